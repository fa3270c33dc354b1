"""What windows, sessions and joins share: rows with an event time, their order of arrival, and what a step gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, Protocol

from pyspark.sql import Column, DataFrame, SparkSession, Window as Over, functions as F, types as t

from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.declare.stream import Aggregation, Watermark
from ematix_flow.errors import UnknownColumn, closest
from ematix_flow.spark.accumulators import ARRIVAL, MICROS, Accumulator
from ematix_flow.spark.event_times import event_micros
from ematix_flow.spark.expressions import column_of
from ematix_flow.spark.stream_memory import Note

UNREADABLE = "__unreadable_time"
"""Whether a row has something for its event time that is no moment."""

LATE = "__is_late"
_SOURCE = "__source"


@dataclass(frozen=True)
class Stepped:
    """What became of a batch.

    Attributes:
        rows: What the targets get; None when there is nothing.
        note: What is remembered now.
        late: How many rows came too late.
        unreadable: How many had an event time that is none.
        dropped: How many were left out because their group was one too many.
        windows: How many windows or sessions the targets get; one that comes again counts again.
    """

    rows: DataFrame | None
    note: Note
    late: int = 0
    unreadable: int = 0
    dropped: int = 0
    windows: int = 0


class Steps(Protocol):
    """Windows, sessions or a join of one stream, batch after batch."""

    def step(self, sources: Mapping[str, DataFrame], batch: StreamBatch) -> Stepped:
        """Take the rows of a batch, by source; what it comes to is remembered before any target has it."""
        ...

    def left_out(self, sources: Mapping[str, DataFrame], batch: StreamBatch) -> DataFrame:
        """The rows that a step counted as late or unreadable, with `UNREADABLE` to tell one from the other."""
        ...

    def without_rows(self, note: Note, spark: SparkSession) -> Mapping[str, DataFrame]:
        """What a batch gives in which no source had a row; nothing before there ever was one."""
        ...

    def is_due(self, note: Note, now_ms: int) -> bool:
        """Whether a batch without rows, planned at this moment, would let something come out."""
        ...

    def oldest(self, note: Note) -> int | None:
        """The oldest moment of which something is remembered that may still count, in microseconds since 1970."""
        ...


def timed(sources: Mapping[str, DataFrame], column: str, batch: StreamBatch, *, by_arrival: bool = False) -> DataFrame:
    """The rows of all sources with their event time in `MICROS`, NULL where they have none.

    Args:
        by_arrival: Whether the moment at which the batch was planned is the event time of its rows.

    Raises:
        UnknownColumn: a source has no such column.
        IncompatibleSchema: it holds no moments.
    """
    frames = []
    for number, (query, rows) in enumerate(sources.items()):
        frame = rows.withColumn(_SOURCE, F.lit(number))
        if by_arrival:
            frames.append(
                frame.withColumns({MICROS: F.lit(batch.planned_ms * 1000).cast("bigint"), UNREADABLE: F.lit(False)})
            )
            continue
        if column not in rows.columns:
            known = [name for name in rows.columns if not name.startswith("__")]
            raise UnknownColumn(
                f"The event time is to be in column '{column}', which the rows of '{query}' do not have.",
                fix=closest(column, known) or "name the right one: event_time_column=",
            )
        frame = frame.withColumn(MICROS, event_micros(column, rows.schema[column].dataType))
        frames.append(frame.withColumn(UNREADABLE, F.col(MICROS).isNull() & column_of(column).isNotNull()))
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def moves(note: Note, now_ms: int, allowed: Watermark | None) -> bool:
    """Whether event time goes on at a moment although nothing comes, and something is remembered that waits for it."""
    return bool(note.parts) and note.clock.after({}, now_ms, allowed).mark_us != note.clock.mark_us


def mark_by_arrival(note: Note, now_ms: int, allowed: Watermark | None) -> int | None:
    """Where event time is at a moment when the time of arrival is the event time, in microseconds since 1970."""
    return note.clock.after(dict.fromkeys(note.clock.marks, now_ms * 1000), now_ms, allowed).mark_us


def empty_sources(note: Note, spark: SparkSession) -> dict[str, DataFrame]:
    """Sources that had rows before, now without one."""
    return {source: spark.createDataFrame([], columns) for source, columns in note.columns_of.items()}


def by_planning(sources: Sequence[str], batch: StreamBatch) -> dict[str, int]:
    """How far each source is when the time of arrival is the event time: also one of which nothing came."""
    return dict.fromkeys(sources, batch.planned_ms * 1000)


def arrivals(rows: DataFrame, batch: StreamBatch) -> DataFrame:
    """Rows with their order of arrival: by batch, and within it by the place that the broker gave them."""
    kinds = {field.name: field.dataType for field in rows.schema.fields}
    place = (
        F.col("_offset").cast("bigint")
        if isinstance(kinds.get("_offset"), t.IntegralType)
        else F.monotonically_increasing_id()
    )
    part = F.col("_partition").cast("bigint") if isinstance(kinds.get("_partition"), t.IntegralType) else F.lit(0)
    return rows.withColumn(
        ARRIVAL,
        F.struct(
            F.lit(batch.number).cast("bigint").alias("batch"),
            place.alias("place"),
            part.cast("bigint").alias("part"),
        ),
    )


def stated(
    rows: DataFrame,
    keys: Sequence[str],
    made: Sequence[Accumulator],
    aggregations: Sequence[Aggregation],
    counts: Column,
) -> DataFrame:
    """Rows before they are grouped; aggregates of the user's own have made states of them, as far as a task goes.

    Args:
        counts: Whether a row belongs to its group, or is only counted there.
    """
    shares = [one.share for one in made if one.share is not None]
    if not shares:
        return rows
    from ematix_flow.spark.window_functions import with_states

    return with_states(rows, keys, shares, [one.column for one in aggregations if one.column is not None], counts)


def group_columns(rows: DataFrame, names: Sequence[str]) -> list[Column]:
    """The columns of a key.

    Raises:
        UnknownColumn: the rows do not have one.
    """
    for name in names:
        if name not in rows.columns:
            known = [known for known in rows.columns if not known.startswith("__")]
            raise UnknownColumn(
                f"group_by names the column '{name}', which the rows do not have.", fix=closest(name, known)
            )
    return [column_of(name) for name in names]


def latest_by_source(sources: Sequence[str]) -> list[Column]:
    """The greatest event time of each source, as aggregates `__latest0`, `__latest1`, …"""
    return [
        F.max(F.when(F.col(_SOURCE) == number, F.col(MICROS))).alias(f"__latest{number}")
        for number in range(len(sources))
    ]


def latest_of(found: Mapping[str, int | None], sources: Sequence[str]) -> dict[str, int]:
    """What `latest_by_source` found, without sources that showed nothing."""
    values = {source: found[f"__latest{number}"] for number, source in enumerate(sources)}
    return {source: int(value) for source, value in values.items() if value is not None}


def among(
    rows: DataFrame, groups: DataFrame, names: Sequence[str], how: Literal["left_semi", "left_anti"]
) -> DataFrame:
    """The rows whose group is among some, or is not; NULL is a group like any other."""
    renamed = groups.select(*[F.col(name).alias(f"{name}_known") for name in names])
    return rows.join(renamed, [F.col(name).eqNullSafe(F.col(f"{name}_known")) for name in names], how)


def first_groups(
    fresh: DataFrame, known: DataFrame | None, names: Sequence[str], within: Sequence[str], most: int
) -> DataFrame:
    """The rows of `fresh` whose group may stay: those known before come first, then by their keys, as many as may be.

    Args:
        names: What makes a group.
        within: What of it is counted by itself: a window has its own groups.
    """
    groups = fresh.select(*names, F.lit(1).alias("__new"))
    if known is not None:
        groups = groups.unionByName(known.select(*names, F.lit(0).alias("__new")))
    once = groups.groupBy(*names).agg(F.min("__new").alias("__new"))
    in_order = Over.partitionBy(*within).orderBy("__new", *[name for name in names if name not in within])
    taken = once.withColumn("__rank", F.row_number().over(in_order)).where(F.col("__rank") <= most)
    return among(fresh, taken, names, "left_semi")
