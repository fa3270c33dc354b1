"""Session windows: rows of one key that follow each other closely, until the key falls silent.

A batch makes pieces of sessions out of its rows, and puts them together with the sessions that are open. What is
remembered is one row per open session, never the rows themselves. Within a batch rows count in the order of their event
time.

A late row may join two sessions that have been given out, or begin one earlier than it was given out. Targets know a
session by its first event, so what they have under a first event that is none any more is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession, Window as Over, functions as F

from ematix_flow.contracts.streams import RETRACTED, StreamBatch
from ematix_flow.declare.stream import Watermark, Window
from ematix_flow.declare.udf import PythonAggregateUdfHandle
from ematix_flow.errors import StateTooLarge
from ematix_flow.plan.event_time import EventClock
from ematix_flow.spark.accumulators import MICROS, Accumulator, accumulators
from ematix_flow.spark.event_times import as_timestamp
from ematix_flow.spark.stream_memory import Note, Part, StreamMemory
from ematix_flow.spark.stream_steps import (
    UNREADABLE,
    Stepped,
    among,
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

PARTS = "sessions"
START, LAST = "__start", "__last"
"""The first and the last event of a session, in microseconds since 1970."""

IS_OUT, HAS_NEW, CUT = "__is_out", "__has_new", "__cut"
"""Whether a session has been given out; whether this batch brought something to it; whether it became too long."""

SHOWN, SHOWN_LAST = "__shown", "__shown_last"
"""The least and the greatest first event under which targets have something of a session; NULL without one."""

_SESSION, _LEFT_OUT, _ROWS = "__session", "__left_out", "__rows"


class SessionSteps:
    """The sessions of one stream, batch after batch."""

    def __init__(
        self,
        window: Window,
        watermark: Watermark | None,
        memory: StreamMemory,
        own: Sequence[PythonAggregateUdfHandle] = (),
    ) -> None:
        self._own = own
        assert window.gap_ms is not None and window.max_session_duration_ms is not None
        self._window, self._watermark, self._memory = window, watermark, memory
        self._gap, self._longest = window.gap_ms * 1000, window.max_session_duration_ms * 1000
        self._budget = (window.allowed_lateness_ms or 0) * 1000
        self._keys = [f"__k{number}" for number in range(len(window.group_by))]

    def step(self, sources: Mapping[str, DataFrame], batch: StreamBatch) -> Stepped:
        """Take the rows of a batch, by source, and give the sessions that it has finished or changed."""
        before = self._memory.before(batch)
        rows = self._placed(sources, batch, before.clock.mark_us)
        spark, made = rows.sparkSession, accumulators(self._window.aggregations, rows.schema, self._own)
        pieces = self._memory.write(batch, "pieces", self._pieces(rows, made, list(sources)))
        latest = [f"__latest{number}" for number in range(len(sources))]
        numbers = [F.count(START).alias("pieces"), *[F.sum(f"__{name}").alias(name) for name in ("late", "unreadable")]]
        counted = self._memory.rows(spark, pieces).agg(*numbers, *[F.max(name).alias(name) for name in latest])
        found = counted.collect()[0].asDict()
        everyone = [*before.clock.marks, *sources]
        seen = by_planning(everyone, batch) if self._by_arrival else latest_of(found, list(sources))
        clock = before.clock.after(seen, batch.planned_ms, self._watermark)
        known = self._known(before, spark)
        fresh = self._memory.rows(spark, pieces).where(F.col(START).isNotNull())
        at_most = int(found["pieces"]) + sum(part.rows for part in before.parts)
        fresh, dropped = self._held_to_size(fresh, known, at_most)
        part, counts = self._counted(self._memory.write(batch, PARTS, self._together(fresh, known, made)), clock, spark)
        if counts["longest"] > self._longest:
            sessions = self._not_too_long(self._memory.rows(spark, part), known, rows, fresh, made)
            part, counts = self._counted(self._memory.write(batch, PARTS, sessions, "-cut"), clock, spark)
        columns = {**before.columns_of, **{source: frame.schema for source, frame in sources.items()}}
        note = Note(batch.number, batch.digest, clock, (part,), columns_of=columns, open_windows=part.rows)
        self._memory.keep(note)
        sessions = self._memory.rows(spark, part)
        finished = self._answered(sessions.where(self._comes_out(clock)), made) if counts["out"] else None
        if counts["swallowed"]:
            finished = self._with_retracted(finished, sessions, known, made)
        return Stepped(
            finished,
            note,
            late=int(found["late"] or 0),
            unreadable=int(found["unreadable"] or 0),
            dropped=dropped,
            windows=counts["out"],
        )

    def _known(self, before: Note, spark: SparkSession) -> DataFrame | None:
        """The sessions to which rows may still come, whether they are out, and whether they ever were."""
        sessions = self._memory.read(spark, before.of(PARTS))
        if sessions is None:
            return None
        stays = ~F.col(CUT) & ~self._is_past(before.clock, self._budget)
        is_out = self._is_past(before.clock)
        # One that was out and goes on since then is not out as it is, and targets have something of it all the same.
        is_shown = is_out | (F.col(SHOWN) == F.col(START))
        return sessions.where(stays).withColumns({IS_OUT: is_out, SHOWN: F.when(is_shown, F.col(START))})

    def _counted(self, part: Part, clock: EventClock, spark: SparkSession) -> tuple[Part, dict[str, int]]:
        """The sessions with how many of them stay; how many come out or have swallowed others; the longest of them."""
        stays = ~F.col(CUT) & ~self._is_past(clock, self._budget)
        numbers = self._memory.rows(spark, part).agg(
            F.count(F.when(stays, True)).alias("stay"),
            F.min(F.when(stays, F.col(START))).alias("low"),
            F.max(F.when(stays, F.col(LAST))).alias("high"),
            F.count(F.when(self._comes_out(clock), True)).alias("out"),
            F.count(F.when(F.col(SHOWN_LAST) > F.col(START), True)).alias("swallowed"),
            F.max(F.col(LAST) - F.col(START)).alias("longest"),
        )
        found = numbers.collect()[0]
        sized = replace(part, rows=int(found["stay"]), low=found["low"], high=found["high"])
        return sized, {name: int(found[name] or 0) for name in ("out", "swallowed", "longest")}

    def _held_to_size(self, fresh: DataFrame, known: DataFrame | None, at_most: int) -> tuple[DataFrame, int]:
        """The pieces of a batch, when no more keys are active than may be; else those of keys that may.

        Returns:
            The pieces, and how many rows are in none of them.

        Raises:
            StateTooLarge: too many keys are active.
        """
        most = self._window.max_groups_per_window
        if at_most <= most:
            return fresh, 0
        active = fresh.select(*self._keys)
        if known is not None:
            active = active.unionByName(known.select(*self._keys))
        number = active.distinct().count()
        if number <= most:
            return fresh, 0
        if self._window.on_state_cap == "fail":
            raise StateTooLarge(
                f"{number:,} keys have a session at the same time, and max_groups_per_window is {most:,}.",
                fix="raise max_groups_per_window, or use on_state_cap='drop_new_groups'",
            )
        stay = first_groups(fresh, known, self._keys, (), most)
        given, kept = (frame.agg(F.sum(_ROWS)).collect()[0][0] for frame in (fresh, stay))
        return stay, int(given or 0) - int(kept or 0)

    def left_out(self, sources: Mapping[str, DataFrame], batch: StreamBatch) -> DataFrame:
        """The rows that came too late for any session, and those whose event time is none."""
        rows = timed(sources, self._window.event_time_column, batch, by_arrival=self._by_arrival)
        return rows.where(F.col(UNREADABLE) | self._is_late(self._memory.before(batch).clock.mark_us))

    def without_rows(self, note: Note, spark: SparkSession) -> Mapping[str, DataFrame]:
        """What a batch gives in which no source had a row."""
        return empty_sources(note, spark)

    def is_due(self, note: Note, now_ms: int) -> bool:
        """Whether time alone finishes a session; of the time of arrival, all that are open."""
        if not self._by_arrival:
            return moves(note, now_ms, self._watermark)
        mark = mark_by_arrival(note, now_ms, self._watermark)
        last = max((part.high for part in note.of(PARTS) if part.high is not None), default=None)
        passed = note.clock.mark_us
        is_open = last is not None and (passed is None or last + self._gap >= passed)
        return is_open and last is not None and mark is not None and last + self._gap < mark

    def oldest(self, note: Note) -> int | None:
        """The first event of the oldest session to which rows may still come."""
        return min((part.low for part in note.of(PARTS) if part.low is not None), default=None)

    @property
    def _by_arrival(self) -> bool:
        return self._window.time_mode == "processing"

    def _is_late(self, mark: int | None) -> Column:
        if mark is None:
            return F.lit(False)
        return F.coalesce(F.col(MICROS) + self._gap + self._budget < mark, F.lit(False))

    # ── from rows to pieces ──────────────────────────────────────────────────────────────────────────────────────────

    def _placed(self, sources: Mapping[str, DataFrame], batch: StreamBatch, mark: int | None) -> DataFrame:
        rows = timed(sources, self._window.event_time_column, batch, by_arrival=self._by_arrival)
        groups = group_columns(rows, self._window.group_by)
        late = self._is_late(mark)
        taken = F.col(MICROS).isNotNull() & ~late
        columns = {_LEFT_OUT: ~taken, "__is_late": late}
        keys = {key: F.when(taken, group) for key, group in zip(self._keys, groups, strict=True)}
        return arrivals(rows, batch).withColumns({**columns, **keys})

    def _pieces(self, rows: DataFrame, made: Sequence[Accumulator], sources: Sequence[str]) -> DataFrame:
        """One row per stretch of a key's rows in which none is further than the gap from the one before."""
        in_order = Over.partitionBy(_LEFT_OUT, *self._keys).orderBy(MICROS)
        far = F.col(MICROS) - F.lag(MICROS).over(in_order) > self._gap
        numbered = rows.withColumn("__far", F.when(F.col(_LEFT_OUT), 0).otherwise(far.cast("int")))
        numbered = numbered.withColumn(_SESSION, F.sum(F.coalesce("__far", F.lit(0))).over(in_order))
        groups = (_LEFT_OUT, *self._keys, _SESSION)
        numbered = stated(numbered, groups, made, self._window.aggregations, ~F.col(_LEFT_OUT))
        return numbered.groupBy(*groups).agg(
            F.min(F.when(~F.col(_LEFT_OUT), F.col(MICROS))).alias(START),
            F.max(F.when(~F.col(_LEFT_OUT), F.col(MICROS))).alias(LAST),
            F.count(F.when(F.col("__is_late"), True)).alias("__late"),
            F.count(F.when(F.col(UNREADABLE), True)).alias("__unreadable"),
            F.count(F.lit(1)).alias(_ROWS),
            *latest_by_source(sources),
            # Late rows are counted and no more: their values are no session's, and no bound is theirs.
            *[
                F.when(~F.col(_LEFT_OUT), first).alias(name)
                for one in made
                for name, first in zip(one.names, one.first, strict=True)
            ],
        )

    # ── from pieces to sessions ──────────────────────────────────────────────────────────────────────────────────────

    def _columns(self, made: Sequence[Accumulator]) -> list[str]:
        return [*self._keys, START, LAST, *[name for one in made for name in one.names]]

    def _together(self, fresh: DataFrame, known: DataFrame | None, made: Sequence[Accumulator]) -> DataFrame:
        """The sessions that open ones and pieces of this batch make, however long they are."""
        pieces = self._united(fresh, known, made)
        in_order = Over.partitionBy(*self._keys).orderBy(START, LAST)
        reached = F.max(LAST).over(in_order.rowsBetween(Over.unboundedPreceding, -1))
        pieces = pieces.withColumn("__far", (F.col(START) > reached + self._gap).cast("int"))
        pieces = pieces.withColumn(_SESSION, F.sum(F.coalesce("__far", F.lit(0))).over(in_order))
        return self._merged(pieces.withColumn(CUT, F.lit(False)), made)

    def _united(self, fresh: DataFrame, known: DataFrame | None, made: Sequence[Accumulator]) -> DataFrame:
        unseen = (F.lit(False).alias(IS_OUT), F.lit(None).cast("bigint").alias(SHOWN))
        pieces = fresh.select(*self._columns(made), *unseen, F.lit(True).alias(HAS_NEW))
        if known is None:
            return pieces
        return known.select(*self._columns(made), IS_OUT, SHOWN, F.lit(False).alias(HAS_NEW)).unionByName(pieces)

    def _merged(self, pieces: DataFrame, made: Sequence[Accumulator]) -> DataFrame:
        again = [again.alias(name) for one in made for name, again in zip(one.names, one.again, strict=True)]
        ends = (F.min(START).alias(START), F.max(LAST).alias(LAST))
        flags = [F.max(flag).alias(flag) for flag in (IS_OUT, HAS_NEW, CUT)]
        shown = (F.min(SHOWN).alias(SHOWN), F.max(SHOWN).alias(SHOWN_LAST))
        return pieces.groupBy(*self._keys, _SESSION).agg(*ends, *again, *flags, *shown).drop(_SESSION)

    def _not_too_long(
        self,
        sessions: DataFrame,
        known: DataFrame | None,
        rows: DataFrame,
        fresh: DataFrame,
        made: Sequence[Accumulator],
    ) -> DataFrame:
        """The sessions, those that are too long cut into shorter ones, between rows and not within them.

        Keys with such a session are looked at row by row, which costs more, and is done for them alone.
        """
        is_long = F.col(LAST) - F.col(START) > self._longest
        long_keys = sessions.where(is_long).select(*self._keys).distinct()
        single = rows.where(~F.col(_LEFT_OUT)).withColumns({START: F.col(MICROS), LAST: F.col(MICROS)})
        # Rows of one key at one moment can never be in two sessions.
        single = stated(single, (*self._keys, START, LAST), made, self._window.aggregations, F.lit(True))
        points = single.groupBy(*self._keys, START, LAST).agg(
            *[first.alias(name) for one in made for name, first in zip(one.names, one.first, strict=True)]
        )
        points = among(points, fresh.select(*self._keys).distinct(), self._keys, "left_semi")
        pieces = among(self._united(points, known, made), long_keys, self._keys, "left_semi")
        cuts = self._cuts(pieces)
        numbered = pieces.join(cuts, [pieces[key].eqNullSafe(cuts[f"{key}_cut"]) for key in self._keys]).withColumn(
            _SESSION, F.size(F.filter("__starts", lambda one: one["start"] <= F.col(START)))
        )
        forced = F.element_at("__starts", F.col(_SESSION))["forced"]
        numbered = numbered.withColumn(CUT, forced).drop("__starts", *[f"{key}_cut" for key in self._keys])
        cut = self._merged(numbered, made)
        return among(sessions, long_keys, self._keys, "left_anti").unionByName(cut)

    def _cuts(self, pieces: DataFrame) -> DataFrame:
        """Where the sessions of a key begin, and whether each was ended because it became too long."""
        gap, longest = self._gap, self._longest
        kind = "array<struct<start:bigint,last:bigint,forced:boolean>>"
        found = F.array_sort(F.collect_list(F.struct(F.col(START).alias("start"), F.col(LAST).alias("last"))))
        nothing = F.array().cast(kind)

        def taken(sessions: Column, piece: Column) -> Column:
            newest = F.element_at(sessions, -1)
            first = F.slice(sessions, 1, F.greatest(F.size(sessions) - 1, F.lit(0)))
            end = F.greatest(newest["last"], piece["last"])
            begun = F.array(
                F.struct(piece["start"].alias("start"), piece["last"].alias("last"), F.lit(False).alias("forced"))
            )
            grown = F.array(F.struct(newest["start"].alias("start"), end.alias("last"), F.lit(False).alias("forced")))
            ended = F.array(
                F.struct(newest["start"].alias("start"), newest["last"].alias("last"), F.lit(True).alias("forced"))
            )
            return (
                F.when((F.size(sessions) == 0) | (piece["start"] > newest["last"] + gap), F.concat(sessions, begun))
                .when(end - newest["start"] > longest, F.concat(first, ended, begun))
                .otherwise(F.concat(first, grown))
            )

        return pieces.groupBy(*[F.col(key).alias(f"{key}_cut") for key in self._keys]).agg(
            F.aggregate(found, nothing, taken).alias("__starts")
        )

    # ── what stays, and what comes out ───────────────────────────────────────────────────────────────────────────────

    def _is_past(self, clock: EventClock, budget: int = 0) -> Column:
        if clock.mark_us is None:
            return F.lit(False)
        return F.col(LAST) + self._gap + budget < clock.mark_us

    def _comes_out(self, clock: EventClock) -> Column:
        """A session that became too long, or that event time has come past, unless it is out as it is."""
        return F.col(CUT) | (self._is_past(clock) & (F.col(HAS_NEW) | ~F.col(IS_OUT)))

    def _with_retracted(
        self, finished: DataFrame | None, sessions: DataFrame, known: DataFrame | None, made: Sequence[Accumulator]
    ) -> DataFrame:
        """What comes out, and the rows of sessions that have become part of others, as they were known."""
        assert known is not None
        shown = known.where(F.col(SHOWN).isNotNull())
        gone = self._answered(among(shown, sessions, (*self._keys, START), "left_anti"), made)
        gone = gone.withColumn(RETRACTED, F.lit(1).cast("smallint"))
        if finished is None:
            return gone
        return finished.withColumn(RETRACTED, F.lit(0).cast("smallint")).unionByName(gone)

    def _answered(self, sessions: DataFrame, made: Sequence[Accumulator]) -> DataFrame:
        said = F.to_json(F.struct(*self._keys), {"ignoreNullFields": "false"})
        return sessions.select(
            as_timestamp(F.col(START)).alias(self._window.window_start_column),
            as_timestamp(F.col(LAST) + self._gap).alias(self._window.window_end_column),
            F.xxhash64(said, F.col(START)).bitwiseAND(F.lit((1 << 63) - 1)).alias(self._window.session_id_column),
            *[F.col(key).alias(name) for key, name in zip(self._keys, self._window.group_by, strict=True)],
            *[one.answer.alias(one.alias) for one in made],
        )


def open_sessions(window: Window, memory: StreamMemory, note: Note) -> dict[str, int]:
    """How many sessions may still get rows, and how many keys have one; read without Spark."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    keys = [f"__k{number}" for number in range(len(window.group_by))]
    tables = [pq.read_table(memory.local_path(part), columns=[LAST, CUT, *keys]) for part in note.of(PARTS)]
    if not tables:
        return {"open_windows": 0, "groups": 0, "keys": 0}
    rows, mark = pa.concat_tables(tables, promote_options="permissive"), note.clock.mark_us
    rows = rows.filter(pc.invert(rows[CUT]))
    if mark is not None:
        lasts = 1000 * ((window.gap_ms or 0) + (window.allowed_lateness_ms or 0))
        rows = rows.filter(pc.greater_equal(rows[LAST], mark - lasts))
    number = rows.num_rows
    return {"open_windows": number, "groups": number, "keys": rows.group_by(keys).aggregate([]).num_rows}
