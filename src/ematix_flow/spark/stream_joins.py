"""Two streams matched by key within a span of event time.

Rows of both sides are remembered until no row can come any more that would match them. A batch is matched with what is
remembered and with itself, so every pair is found once, when its second row comes. A row of a side that is to be kept
without a match comes out alone when it is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from pyspark.sql import Column, DataFrame, Observation, SparkSession, functions as F, types as t

from ematix_flow.contracts.streams import EVENT_TIME, HIDDEN_COLUMNS, StreamBatch
from ematix_flow.declare.stream import Join, Watermark
from ematix_flow.errors import InvalidPlan, UnknownColumn, closest
from ematix_flow.plan.event_time import idle_after_ms
from ematix_flow.spark.accumulators import MICROS
from ematix_flow.spark.expressions import column_of
from ematix_flow.spark.stream_memory import MOST_PARTS, Note, Part, StreamMemory
from ematix_flow.spark.stream_steps import UNREADABLE, Stepped, moves, timed

ROW = ("__batch", "__id")
"""Which row of its side, for as long as it is remembered."""

_LATE = "__is_late"


@dataclass(frozen=True)
class _Side:
    """One side of a join.

    Attributes:
        reach: How long after its event time a row can be matched, in microseconds; less than 0 when only before.
        keeps: Whether a row without a match comes out alone.
    """

    name: str
    source: str
    keys: Sequence[str]
    prefix: str
    reach: int
    keeps: bool

    @property
    def matched(self) -> str:
        """The name of what is remembered of its matched rows."""
        return f"{self.name}-matched"

    def is_past(self, mark: int | None) -> Column:
        """Whether no row can come any more that matches one."""
        return F.lit(False) if mark is None else F.col(MICROS) + self.reach < mark

    def outlives(self, part: Part, mark: int | None) -> bool:
        """Whether the part has rows that something may still match."""
        return part.high is not None and (mark is None or part.high + self.reach >= mark)


@dataclass(frozen=True)
class _Added:
    """What a batch brings to one side."""

    part: Part
    latest: int | None
    late: int
    unreadable: int


class JoinSteps:
    """The join of one stream, batch after batch."""

    def __init__(self, join: Join, watermark: Watermark | None, memory: StreamMemory) -> None:
        self._join, self._watermark, self._memory = join, watermark, memory
        self._least, self._greatest = (1000 * bound for bound in join.span_ms)
        self._sides = self._left, self._right = _sides_of(join)
        self.may_lack_a_side: Callable[[], bool] = lambda: True
        """Whether rows may come out without the columns of a side that has not had a row yet."""

    def step(self, sources: Mapping[str, DataFrame], batch: StreamBatch) -> Stepped:
        """Take the rows of a batch, by source, and give the pairs it completes and the rows it leaves alone."""
        before = self._memory.before(batch)
        spark = next(iter(sources.values())).sparkSession
        added = {
            side.name: self._added(side, sources, batch, before.clock.mark_us)
            for side in self._sides
            if side.source in sources
        }
        seen = {side.source: added[side.name].latest for side in self._sides if side.name in added}
        clock = before.clock.after(
            {source: us for source, us in seen.items() if us is not None}, batch.planned_ms, self._watermark
        )
        fresh = {name: one.part for name, one in added.items() if one.part.rows}
        pairs = self._pairs(before, fresh, batch, spark)
        matched = self._matched(pairs, batch, spark)
        note = replace(
            before,
            number=batch.number,
            digest=batch.digest,
            clock=clock,
            parts=(*before.parts, *fresh.values(), *matched),
            begun_ms=batch.planned_ms if before.begun_ms is None and clock.marks else before.begun_ms,
        )
        alone, note = self._alone(note, batch.planned_ms, spark)
        rows = self._output(pairs, alone, note, spark)
        note = self._lasting(note, batch, spark)
        self._memory.keep(note)
        return Stepped(
            rows,
            note,
            late=sum(one.late for one in added.values()),
            unreadable=sum(one.unreadable for one in added.values()),
        )

    def left_out(self, sources: Mapping[str, DataFrame], batch: StreamBatch) -> DataFrame:
        """The rows that nothing could match any more when they came, and those whose event time is none."""
        mark = self._memory.before(batch).clock.mark_us
        frames = [
            timed({side.source: sources[side.source]}, self._join.event_time_column, batch).where(
                F.col(UNREADABLE) | F.coalesce(side.is_past(mark), F.lit(False))
            )
            for side in self._sides
            if side.source in sources
        ]
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)

    def without_rows(self, note: Note, spark: SparkSession) -> Mapping[str, DataFrame]:
        """What a batch gives in which neither side had a row."""
        columns = {side.source: self._names(note, side) for side in self._sides}
        return {
            source: spark.createDataFrame([], t.StructType([t.StructField(name, kind) for name, kind in names.items()]))
            for source, names in columns.items()
            if names
        }

    def is_due(self, note: Note, now_ms: int) -> bool:
        """Whether time alone lets rows come out that wait for a match."""
        return moves(note, now_ms, self._watermark) or self._gives_up(note, now_ms)

    def _gives_up(self, note: Note, now_ms: int) -> bool:
        """Whether rows have only waited for a side that never had one, and is not waited for any more."""
        mark = note.clock.mark_us
        if mark is None or mark == note.alone_us or self._awaits_a_side(note, now_ms):
            return False
        return any(side.keeps and self._past(note, side, mark) for side in self._sides)

    def _awaits_a_side(self, note: Note, now_ms: int) -> bool:
        """Whether a side has had no row yet, and is waited for: as any silent source, or because of its columns."""
        if all(note.of(side.name) or side.name in note.columns_of for side in self._sides):
            return False
        is_idle = note.begun_ms is not None and now_ms - note.begun_ms > idle_after_ms(self._watermark)
        return not is_idle or not self.may_lack_a_side()

    def _past(self, note: Note, side: _Side, mark: int) -> list[Part]:
        """The parts of a side that have rows which nothing can match any more."""
        return [part for part in note.of(side.name) if part.low is not None and part.low + side.reach < mark]

    def oldest(self, note: Note) -> int | None:
        """The oldest event time that something may still match; rows before it are only not yet removed."""
        found = []
        for side in self._sides:
            needed = note.alone_us if side.keeps else note.clock.mark_us
            found += [
                part.low if needed is None else max(part.low, needed - side.reach)
                for part in note.of(side.name)
                if part.low is not None and side.outlives(part, needed)
            ]
        return min(found, default=None)

    # ── what a batch brings ──────────────────────────────────────────────────────────────────────────────────────────

    def _added(self, side: _Side, sources: Mapping[str, DataFrame], batch: StreamBatch, mark: int | None) -> _Added:
        """Write the rows of one side that may find a match."""
        given = sources[side.source]
        for key in side.keys:
            if key not in given.columns:
                known = [name for name in given.columns if not name.startswith("__")]
                raise UnknownColumn(
                    f"{side.name}_keys names the column '{key}', which the rows of '{side.source}' do not have.",
                    fix=closest(key, known),
                )
        late = F.coalesce(side.is_past(mark), F.lit(False))
        rows = timed({side.source: given}, self._join.event_time_column, batch).withColumn(_LATE, late)
        seen = Observation()
        rows = rows.observe(
            seen,
            F.count(F.when(F.col(_LATE), True)).alias("late"),
            F.count(F.when(F.col(UNREADABLE), True)).alias("unreadable"),
            F.count(F.when(~F.col(_LATE), F.col(MICROS))).alias("rows"),
            F.min(F.when(~F.col(_LATE), F.col(MICROS))).alias("low"),
            F.max(F.when(~F.col(_LATE), F.col(MICROS))).alias("high"),
            F.max(MICROS).alias("latest"),
        )
        shown = [
            name
            for name in given.columns
            if not name.startswith("__") and (name not in HIDDEN_COLUMNS or name in (EVENT_TIME, *side.keys))
        ]
        taken = rows.where(F.col(MICROS).isNotNull() & ~F.col(_LATE)).select(
            F.lit(batch.number).cast("bigint").alias(ROW[0]),
            F.monotonically_increasing_id().alias(ROW[1]),
            MICROS,
            *[column_of(name) for name in shown],
        )
        part = self._memory.write(batch, side.name, taken)
        found = seen.get
        sized = replace(part, rows=int(found["rows"]), low=found["low"], high=found["high"])
        return _Added(sized, found["latest"], int(found["late"]), int(found["unreadable"]))

    # ── pairs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _pairs(
        self, before: Note, fresh: Mapping[str, Part], batch: StreamBatch, spark: SparkSession
    ) -> DataFrame | None:
        """Every pair that has at least one row of the batch; None when there can be none."""
        mark = before.clock.mark_us
        old = {side.name: self._memory.read(spark, before.of(side.name)) for side in self._sides}
        known = {
            side.name: frame.where(~side.is_past(mark)) if (frame := old[side.name]) is not None else None
            for side in self._sides
        }
        new = {name: self._memory.rows(spark, part) for name, part in fresh.items()}
        found = []
        if "left" in new:
            others = [frame for frame in (known["right"], new.get("right")) if frame is not None]
            if others:
                right = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), others)
                found.append(self._joined(new["left"], right))
        if "right" in new and known["left"] is not None:
            found.append(self._joined(known["left"], new["right"]))
        if not found:
            return None
        pairs = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), found)
        return self._memory.rows(spark, self._memory.write(batch, "pairs", pairs))

    def _joined(self, left: DataFrame, right: DataFrame) -> DataFrame:
        sides = [_prefixed(left, "__l:"), _prefixed(right, "__r:")]
        matches = []
        for one, other in zip(self._left.keys, self._right.keys, strict=True):
            kinds = left.schema[one].dataType, right.schema[other].dataType
            if isinstance(kinds[0], t.StringType) != isinstance(kinds[1], t.StringType):
                raise InvalidPlan(
                    f"The keys of the join differ in kind: '{one}' is {kinds[0].simpleString()}, and '{other}' is "
                    f"{kinds[1].simpleString()}.",
                    fix="let both producers write the same kind",
                )
            matches.append(column_of(f"__l:{one}") == column_of(f"__r:{other}"))
        apart = column_of(f"__r:{MICROS}") - column_of(f"__l:{MICROS}")
        matches.append(apart.between(self._least, self._greatest))
        return sides[0].join(sides[1], matches)

    def _matched(self, pairs: DataFrame | None, batch: StreamBatch, spark: SparkSession) -> list[Part]:
        """Remember which rows have found a match, on sides whose other rows come out alone."""
        parts = []
        for side, mark in ((self._left, "__l:"), (self._right, "__r:")):
            if not side.keeps or pairs is None:
                continue
            found = pairs.select(*[column_of(f"{mark}{name}").alias(name) for name in (*ROW, MICROS)]).distinct()
            part = self._memory.write(batch, side.matched, found)
            parts.append(self._sized(part, spark))
        return [part for part in parts if part.rows]

    # ── rows alone ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _alone(self, note: Note, now_ms: int, spark: SparkSession) -> tuple[dict[str, DataFrame], Note]:
        """Rows that event time has come past without a match, and have not come out yet.

        They wait for a side that never had a row, whose columns nobody knows.
        """
        mark = note.clock.mark_us
        if mark is None or not any(side.keeps for side in self._sides):
            return {}, note
        if self._awaits_a_side(note, now_ms):
            return {}, note
        found = {}
        for side in self._sides:
            rows = self._memory.read(spark, self._past(note, side, mark)) if side.keeps else None
            if rows is None:
                continue
            leaving = rows.where(side.is_past(mark))
            if note.alone_us is not None:
                leaving = leaving.where(~side.is_past(note.alone_us))
            matched = self._memory.read(spark, note.of(side.matched))
            if matched is not None:
                leaving = leaving.join(matched.select(*ROW), list(ROW), "left_anti")
            found[side.name] = leaving
        return found, replace(note, alone_us=mark)

    # ── what comes out, and what stays ───────────────────────────────────────────────────────────────────────────────

    def _output(
        self, pairs: DataFrame | None, alone: Mapping[str, DataFrame], note: Note, spark: SparkSession
    ) -> DataFrame | None:
        names = {"left": self._names(note, self._left), "right": self._names(note, self._right)}
        out = [
            (side, mark, name)
            for side, mark in ((self._left, "__l:"), (self._right, "__r:"))
            for name in names[side.name]
        ]
        labels = [f"{side.prefix}{name}" for side, _, name in out]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise InvalidPlan(
                f"'{twice}' would be the name of two columns of the join.",
                fix="choose other prefixes: left_column_prefix=, right_column_prefix=",
            )
        frames = []
        if pairs is not None:
            frames.append(
                pairs.select(*[column_of(f"{mark}{name}").alias(f"{side.prefix}{name}") for side, mark, name in out])
            )
        for name, rows in alone.items():
            other = "right" if name == "left" else "left"
            kinds = names[other]
            frames.append(
                rows.select(
                    *[
                        column_of(column).alias(f"{side.prefix}{column}")
                        if side.name == name
                        else F.lit(None).cast(kinds[column]).alias(f"{side.prefix}{column}")
                        for side, _, column in out
                    ]
                )
            )
        return reduce(lambda one, more: one.unionByName(more), frames) if frames else None

    def _names(self, note: Note, side: _Side) -> dict[str, t.DataType]:
        """The columns of a side, as its newest rows have them."""
        parts = note.of(side.name)
        schema = parts[-1].columns if parts else note.columns_of.get(side.name)
        if schema is None:
            return {}
        return {field.name: field.dataType for field in schema.fields if not field.name.startswith("__")}

    def _lasting(self, note: Note, batch: StreamBatch, spark: SparkSession) -> Note:
        """What is remembered for the next batch: without parts that are past, and many of them as one."""
        mark = note.clock.mark_us
        columns = dict(note.columns_of)
        lasting: list[Part] = []
        for side in self._sides:
            if note.of(side.name):
                columns[side.name] = note.of(side.name)[-1].columns
            needed = note.alone_us if side.keeps else mark
            for name in (side.name, side.matched):
                parts = [part for part in note.of(name) if side.outlives(part, needed)]
                if len(parts) > MOST_PARTS:
                    rows = self._memory.read(spark, parts)
                    assert rows is not None
                    whole = self._memory.write(batch, name, rows.where(~side.is_past(needed)), "-whole")
                    parts = [self._sized(whole, spark)]
                lasting += parts
        return replace(note, parts=tuple(lasting), columns_of=columns)

    def _sized(self, part: Part, spark: SparkSession) -> Part:
        counted = self._memory.rows(spark, part).agg(F.count(F.lit(1)), F.min(MICROS), F.max(MICROS))
        rows, low, high = counted.collect()[0]
        return replace(part, rows=int(rows), low=low, high=high)


def waiting_keys(join: Join, memory: StreamMemory, note: Note) -> dict[str, int]:
    """How many keys have a row that something may still match; read without Spark."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    names = [f"key{number}" for number in range(len(join.left_keys))]
    tables = []
    for side in _sides_of(join):
        for part in note.of(side.name):
            rows = pq.read_table(memory.local_path(part), columns=[MICROS, *side.keys])
            if note.clock.mark_us is not None:
                rows = rows.filter(pc.greater_equal(rows[MICROS], note.clock.mark_us - side.reach))
            tables.append(rows.select(list(side.keys)).rename_columns(names))
    if not tables:
        return {"keys": 0}
    waiting = pa.concat_tables(tables, promote_options="permissive").drop_null()  # a NULL matches nothing
    return {"keys": waiting.group_by(names).aggregate([]).num_rows}


def _sides_of(join: Join) -> tuple[_Side, _Side]:
    least, greatest = (1000 * bound for bound in join.span_ms)
    budget = (join.allowed_lateness_ms or 0) * 1000
    return (
        _Side(
            "left",
            join.left_source,
            join.left_keys,
            join.left_column_prefix,
            greatest + budget,
            join.kind in ("left_outer", "full_outer"),
        ),
        _Side(
            "right",
            join.right_source,
            join.right_keys,
            join.right_column_prefix,
            budget - least,
            join.kind in ("right_outer", "full_outer"),
        ),
    )


def _prefixed(rows: DataFrame, mark: str) -> DataFrame:
    return rows.select(*[column_of(name).alias(f"{mark}{name}") for name in rows.columns])
