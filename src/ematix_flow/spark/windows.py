"""Tumbling and hopping windows: what a batch adds to them, which of them are finished, and what comes out.

Rows of a batch are aggregated to one part per window and group, and the part is remembered. A window that event time
has passed is put together from all parts that have something of it. Spark's own aggregation does both, in any of the
policies for late rows; nothing goes through Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.declare.stream import Watermark, Window
from ematix_flow.declare.udf import PythonAggregateUdfHandle
from ematix_flow.errors import StateTooLarge
from ematix_flow.plan.window_spans import Span, first_after, spans_of, starts_after
from ematix_flow.spark.accumulators import MICROS, Accumulator, accumulators
from ematix_flow.spark.event_times import as_timestamp
from ematix_flow.spark.stream_memory import MOST_PARTS, Note, Part, StreamMemory
from ematix_flow.spark.stream_steps import (
    LATE,
    UNREADABLE,
    Stepped,
    arrivals,
    by_planning,
    empty_sources,
    first_groups,
    group_columns,
    latest_by_source,
    latest_of,
    mark_by_arrival,
    moves,
    stated,
    timed,
)

PARTS = "windows"
START = "__start"
"""Where a window begins, in microseconds since 1970. NULL for rows that belong to none: they are only counted."""

_ROWS, _FULL = "__rows", "__full"
"""How many rows a group got from a batch; how much it has of what it may have."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class WindowSteps:
    """The windows of one stream, batch after batch."""

    def __init__(
        self,
        window: Window,
        watermark: Watermark | None,
        memory: StreamMemory,
        own: Sequence[PythonAggregateUdfHandle] = (),
    ) -> None:
        self._own = own
        self._window, self._watermark, self._memory = window, watermark, memory
        self._length = window.duration_ms * 1000
        self._hop = (window.hop_ms or window.duration_ms) * 1000
        self._budget = (window.allowed_lateness_ms or 0) * 1000
        self._keys = [f"__k{number}" for number in range(len(window.group_by))]

    def step(self, sources: Mapping[str, DataFrame], batch: StreamBatch) -> Stepped:
        """Take the rows of a batch, by source, and give the windows that it has finished or changed."""
        before = self._memory.before(batch)
        rows = self._timed(sources, batch)
        made = accumulators(self._window.aggregations, rows.schema, self._own)
        written = self._memory.write(batch, PARTS, self._added(rows, batch, before.clock.mark_us, made, list(sources)))
        added, found = self._facts(written, list(sources), made, rows.sparkSession)
        added, dropped = self._held_to_size(before.of(PARTS), added, batch, made, rows.sparkSession)
        everyone = [*before.clock.marks, *sources]
        seen = by_planning(everyone, batch) if self._by_arrival else latest_of(found, list(sources))
        clock = before.clock.after(seen, batch.planned_ms, self._watermark)
        parts = [part for part in (*before.of(PARTS), added) if self._lives(part, clock.mark_us)]
        if len(parts) > MOST_PARTS or self._could_be_too_large(parts):
            parts = [self._together(parts, batch, clock.mark_us, made, rows.sparkSession)]
        note = Note(
            batch.number,
            batch.digest,
            clock,
            tuple(parts),
            columns_of={**before.columns_of, **{source: frame.schema for source, frame in sources.items()}},
            open_windows=self._open_windows(parts, clock.mark_us),
        )
        self._memory.keep(note)
        finished, windows = self._finished(before, added, clock.mark_us, made, rows.sparkSession)
        return Stepped(
            finished,
            note,
            late=int(found["__late"] or 0),
            unreadable=int(found["__unreadable"] or 0),
            dropped=dropped,
            windows=windows,
        )

    def left_out(self, sources: Mapping[str, DataFrame], batch: StreamBatch) -> DataFrame:
        """The rows that were late for one of their windows, and those whose event time is none."""
        rows = self._timed(sources, batch)
        return rows.where(F.col(UNREADABLE) | self._is_late(self._memory.before(batch).clock.mark_us))

    def _timed(self, sources: Mapping[str, DataFrame], batch: StreamBatch) -> DataFrame:
        return timed(sources, self._window.event_time_column, batch, by_arrival=self._by_arrival)

    def without_rows(self, note: Note, spark: SparkSession) -> Mapping[str, DataFrame]:
        """What a batch gives in which no source had a row."""
        return empty_sources(note, spark)

    def is_due(self, note: Note, now_ms: int) -> bool:
        """Whether time alone finishes a window."""
        if not self._by_arrival:
            return moves(note, now_ms, self._watermark)
        mark = mark_by_arrival(note, now_ms, self._watermark)
        spans = [span for part in note.of(PARTS) for span in part.spans]
        return self._past_between(spans, note.clock.mark_us, mark) > 0

    def _past_between(self, spans: Sequence[Span], passed: int | None, mark: int | None) -> int:
        """How many windows end when event time goes on from one mark to another."""
        first, last = (None if one is None else one - self._length for one in (passed, mark))
        return 0 if last is None else starts_after(spans, self._hop, first) - starts_after(spans, self._hop, last)

    @property
    def _by_arrival(self) -> bool:
        return self._window.time_mode == "processing"

    def oldest(self, note: Note) -> int | None:
        """Where the first window begins to which rows may still come."""
        mark = note.clock.mark_us
        bound = None if mark is None else mark - self._length - self._budget
        return first_after([span for part in note.of(PARTS) for span in part.spans], self._hop, bound)

    # ── from rows to parts ───────────────────────────────────────────────────────────────────────────────────────────

    def _is_late(self, mark: int | None) -> Column:
        """Whether a row is late for the earliest of its windows."""
        if mark is None:
            return F.lit(False)
        return F.coalesce(self._earliest() + self._length + self._budget <= mark, F.lit(False))

    def _earliest(self) -> Column:
        """The start of the earliest window that a row belongs to: the first multiple of the hop that reaches it."""
        reached = F.col(MICROS) - self._length + 1
        return reached + F.pmod(-reached, F.lit(self._hop))

    def _added(
        self, rows: DataFrame, batch: StreamBatch, mark: int | None, made: Sequence[Accumulator], sources: Sequence[str]
    ) -> DataFrame:
        placed = arrivals(rows, batch).withColumn(LATE, self._is_late(mark))
        newest = F.col(MICROS) - F.pmod(F.col(MICROS), F.lit(self._hop))
        if self._hop == self._length:
            placed = placed.withColumn(START, F.when(~F.col(LATE), newest))
            is_first = F.lit(True)
        else:
            starts = F.when(F.col(MICROS).isNotNull(), F.sequence(self._earliest(), newest, F.lit(self._hop)))
            if mark is not None:
                starts = F.filter(starts, lambda start: start + self._length + self._budget > mark)
            # A row of no window at all stays one row, so that it is counted.
            placed = placed.select("*", F.posexplode_outer(starts).alias("__at", START))
            is_first = F.coalesce(F.col("__at"), F.lit(0)) == 0
        counted = [
            F.count(F.when(F.col(LATE) & is_first, True)).alias("__late"),
            F.count(F.when(F.col(UNREADABLE), True)).alias("__unreadable"),
            *latest_by_source(sources),
        ]
        if self._window.on_state_cap == "drop_new_groups":
            counted.append(F.count(F.lit(1)).alias(_ROWS))
        belongs = F.col(START).isNotNull()
        # Late rows are counted and no more: their values are no group's, and no bound is theirs.
        parts = [
            F.when(belongs, first).alias(name) for one in made for name, first in zip(one.names, one.first, strict=True)
        ]
        groups = group_columns(rows, self._window.group_by)
        placed = placed.withColumns(
            {key: F.when(belongs, group) for key, group in zip(self._keys, groups, strict=True)}
        )
        placed = stated(placed, (START, *self._keys), made, self._window.aggregations, belongs)
        return placed.groupBy(START, *self._keys).agg(*counted, *parts)

    def _facts(
        self, part: Part, sources: Sequence[str], made: Sequence[Accumulator], spark: SparkSession
    ) -> tuple[Part, dict[str, Any]]:
        """What the part of a batch says of it, without a second look at the batch."""
        latest = [f"__latest{number}" for number in range(len(sources))]
        found = self._measured(part, made, spark, sums=("__late", "__unreadable"), greatest=latest)
        return _sized(part, found, self._hop), found

    def _measured(
        self,
        part: Part,
        made: Sequence[Accumulator],
        spark: SparkSession,
        *,
        sums: Sequence[str] = (),
        greatest: Sequence[str] = (),
    ) -> dict[str, Any]:
        """How large a part is and which windows it has something of; sums and maxima of some columns with it."""
        full = [one.fullness for one in made if one.fullness is not None]
        rows = self._memory.rows(spark, part).withColumn(_FULL, F.greatest(F.lit(0.0), F.lit(0.0), *full))
        folded = [F.sum(name).alias(name) for name in sums] + [F.max(name).alias(name) for name in (*greatest, _FULL)]
        by_window = rows.groupBy(START).agg(F.count(START).alias("groups"), *folded)
        return by_window.agg(*_sizes(), *folded).collect()[0].asDict()

    # ── from parts to windows ────────────────────────────────────────────────────────────────────────────────────────

    def _lives(self, part: Part, mark: int | None) -> bool:
        """Whether rows may still come to a window that the part has something of."""
        return part.high is not None and (mark is None or part.high + self._length + self._budget > mark)

    def _open_windows(self, parts: Sequence[Part], mark: int | None) -> int:
        """To how many windows rows may still come that have something already."""
        bound = None if mark is None else mark - self._length - self._budget
        return starts_after([span for part in parts for span in part.spans], self._hop, bound)

    def _merged(self, parts: DataFrame, made: Sequence[Accumulator]) -> DataFrame:
        again = [again.alias(name) for one in made for name, again in zip(one.names, one.again, strict=True)]
        return parts.groupBy(START, *self._keys).agg(*again)

    def _finished(
        self, before: Note, added: Part, mark: int | None, made: Sequence[Accumulator], spark: SparkSession
    ) -> tuple[DataFrame | None, int]:
        """Windows that event time has come past in this batch, and past ones that got rows in it; how many they are."""
        if mark is None:
            return None, 0
        passed, end = before.clock.mark_us, F.col(START) + self._length
        parts = [
            part for part in (*before.of(PARTS), added) if part.low is not None and part.low + self._length <= mark
        ]
        wanted, changed = end <= mark, list[int]()
        if passed is not None:
            changed = self._changed(added, passed, spark)
            if changed:
                wanted = wanted & ((end > passed) | F.col(START).isin(changed))
            else:
                wanted = wanted & (end > passed)
                parts = [part for part in parts if part.high is not None and part.high + self._length > passed]
        found = self._memory.read(spark, parts)
        if found is None:
            return None, 0
        rows = self._merged(found.where(F.col(START).isNotNull() & wanted), made).select(
            as_timestamp(F.col(START)).alias(self._window.window_start_column),
            as_timestamp(end).alias(self._window.window_end_column),
            *[F.col(key).alias(name) for key, name in zip(self._keys, self._window.group_by, strict=True)],
            *[one.answer.alias(one.alias) for one in made],
        )
        newly = self._past_between([span for part in parts for span in part.spans], passed, mark)
        return rows, newly + len(changed)

    def _changed(self, added: Part, passed: int, spark: SparkSession) -> list[int]:
        """Windows that were past before the batch and have got rows from it all the same."""
        if not self._budget or added.low is None or added.low + self._length > passed:
            return []
        late = self._memory.rows(spark, added).where(F.col(START) + self._length <= passed)
        return [int(row[0]) for row in late.select(START).distinct().collect()]

    def _together(
        self,
        parts: Sequence[Part],
        batch: StreamBatch,
        mark: int | None,
        made: Sequence[Accumulator],
        spark: SparkSession,
    ) -> Part:
        """All parts as one, without windows to which no row can come any more."""
        rows = self._memory.read(spark, parts)
        assert rows is not None
        lives = F.col(START).isNotNull()
        if mark is not None:
            lives = lives & (F.col(START) + self._length + self._budget > mark)
        whole = self._memory.write(batch, PARTS, self._merged(rows.where(lives), made), "-whole")
        return _sized(whole, self._measured(whole, made, spark), self._hop)

    # ── how much it may be ───────────────────────────────────────────────────────────────────────────────────────────

    def _could_be_too_large(self, parts: Sequence[Part]) -> bool:
        """Whether one window may have too many groups, or a group too many values, without looking closer."""
        if len(parts) < 2:
            return False
        groups = sum(part.most for part in parts)
        return groups > self._window.max_groups_per_window or sum(part.fullness for part in parts) > 1

    def _held_to_size(
        self,
        parts: Sequence[Part],
        added: Part,
        batch: StreamBatch,
        made: Sequence[Accumulator],
        spark: SparkSession,
    ) -> tuple[Part, int]:
        """What the batch adds, when no window gets more groups by it than it may have; else what it may add.

        Returns:
            The part, and how many rows are not in it; one that belongs to several windows counts for each.

        Raises:
            StateTooLarge: a window would have too many.
        """
        most = self._window.max_groups_per_window
        if added.most + sum(part.most for part in parts) <= most:
            return added, 0
        together = self._memory.read(spark, [*parts, added])
        assert together is not None
        distinct = together.where(F.col(START).isNotNull()).select(START, *self._keys).distinct()
        counted = distinct.groupBy(START).agg(F.count(F.lit(1)).alias("groups"))
        largest = counted.orderBy(F.col("groups").desc(), START).first()
        if largest is None or int(largest["groups"]) <= most:
            return added, 0
        if self._window.on_state_cap == "drop_new_groups":
            return self._without_new_groups(parts, added, batch, made, spark)
        start = _EPOCH + timedelta(microseconds=int(largest[START]))
        raise StateTooLarge(
            f"The window from {start:%Y-%m-%d %H:%M:%S.%f} to "
            f"{start + timedelta(microseconds=self._length):%Y-%m-%d %H:%M:%S.%f} has {int(largest['groups']):,} "
            f"groups, and max_groups_per_window is {most:,}.",
            fix="raise max_groups_per_window, group by less, or use on_state_cap='drop_new_groups'",
        )

    def _without_new_groups(
        self,
        parts: Sequence[Part],
        added: Part,
        batch: StreamBatch,
        made: Sequence[Accumulator],
        spark: SparkSession,
    ) -> tuple[Part, int]:
        """What the batch adds, without new groups that are too many; which of them stay follows from their keys."""
        fresh = self._memory.rows(spark, added).where(F.col(START).isNotNull())
        names, most = (START, *self._keys), self._window.max_groups_per_window
        stay = first_groups(fresh, self._memory.read(spark, parts), names, (START,), most)
        cut = self._memory.write(batch, PARTS, stay, "-cut")
        found = self._measured(cut, made, spark, sums=(_ROWS,))
        given = fresh.agg(F.sum(_ROWS)).collect()[0][0]
        return _sized(cut, found, self._hop), int(given) - int(found[_ROWS] or 0)


def open_windows(window: Window, memory: StreamMemory, note: Note) -> dict[str, int]:
    """How many windows are open, and how many groups and keys have something in them; read without Spark."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    keys = [f"__k{number}" for number in range(len(window.group_by))]
    tables = [pq.read_table(memory.local_path(part), columns=[START, *keys]) for part in note.of(PARTS)]
    if not tables:
        return {"open_windows": 0, "groups": 0, "keys": 0}
    rows, mark = pa.concat_tables(tables, promote_options="permissive"), note.clock.mark_us
    lasts = 1000 * (window.duration_ms + (window.allowed_lateness_ms or 0))
    rows = rows.filter(pc.is_valid(rows[START]) if mark is None else pc.greater(rows[START], mark - lasts))
    return {
        "open_windows": rows.group_by(START).aggregate([]).num_rows,
        "groups": rows.group_by([START, *keys]).aggregate([]).num_rows,
        "keys": rows.group_by(keys).aggregate([]).num_rows if keys else min(rows.num_rows, 1),
    }


def _sizes() -> list[Column]:
    return [
        F.sum("groups").alias("groups"),
        F.max("groups").alias("most"),
        F.min(START).alias("low"),
        F.max(START).alias("high"),
        F.collect_list(START).alias("starts"),
    ]


def _sized(part: Part, found: Mapping[str, Any], hop: int) -> Part:
    return replace(
        part,
        rows=int(found["groups"] or 0),
        most=int(found["most"] or 0),
        low=found["low"],
        high=found["high"],
        spans=spans_of(found["starts"], hop),
        fullness=float(found[_FULL] or 0),
    )
