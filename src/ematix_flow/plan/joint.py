"""Several targets, one reading: what is asked of the source once, and each target's own share of the rows that come.

Targets of one pipeline may differ in their columns, markers, names and watermarks. The joint reading holds every column
any of them needs and starts at the lowest of their marks; a share says how one target's columns are found in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation

from ematix_flow.contracts.plans import BatchPlan, Reading, WatermarkRule
from ematix_flow.declare.columns import (
    JSON,
    JSONB,
    BigInt,
    Bytes,
    ColumnType,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.declare.instants import time_of
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.steps import FilterWhere
from ematix_flow.declare.table import ColumnSpec, TableSpec
from ematix_flow.plan.batch import SourceSide, reading_of, uses_mark


@dataclass(frozen=True)
class Member:
    """One target that goes through Spark: its plan, and the source as its planner saw it."""

    plan: BatchPlan
    source: SourceSide


@dataclass(frozen=True)
class Share:
    """How one target takes its rows out of a joint reading; rows up to `newer_than` are not for it."""

    reading: Reading
    newer_than: WatermarkRule | None


@dataclass(frozen=True)
class JointReading:
    """One reading for several targets.

    `names` says, for each target's pipeline name, under which of the reading's columns its own are found. `floor` is
    the mark the reading starts at, None when it holds everything.
    """

    reading: Reading
    names: Mapping[str, Mapping[str, str]]
    floor: str | None

    def share_of(self, plan: BatchPlan) -> Share | None:
        """A target's share, or None when the reading does not hold all that its plan needs."""
        names = self.names.get(plan.pipeline)
        if names is None or plan.reading is None or any(column.name not in names for column in plan.columns):
            return None
        mark = plan.watermark.last_value if plan.watermark is not None else None
        if self.floor is not None:
            assert plan.watermark is not None
            if mark is None or lowest_mark((mark, self.floor), plan.watermark.type) != self.floor:
                return None  # somebody set the target's mark back in the meantime
        joint = self.reading
        found = {column.name: joint.renamed.get(names[column.name], names[column.name]) for column in plan.columns}
        reading = Reading(
            query=joint.query,
            columns=plan.columns,
            renamed={name: there for name, there in found.items() if there != name},
            pending={c.name: joint.pending[names[c.name]] for c in plan.columns if names[c.name] in joint.pending},
            steps=joint.steps,
            watermark_filter=plan.reading.watermark_filter,
            source_types=joint.source_types,
            dialect=joint.dialect,
        )
        # What the source would have skipped for this target alone is skipped before anything else is done.
        by_source = mark is not None and plan.reading.watermark_filter is None
        return Share(reading, plan.watermark if by_source else None)


def join_readings(spec: PipelineSpec, first: Member, others: Sequence[Member]) -> JointReading | None:
    """One reading for the first target and for every other that can take its rows from it; None when no other can."""
    joint = _Joint(spec, first)
    for other in others:
        joint.add(other)
    return joint.planned() if len(joint.members) > 1 else None


def lowest_mark(marks: Sequence[str], column_type: ColumnType) -> str | None:
    """The lowest of some stored marks in the order of their type; None when that cannot be told for certain.

    >>> lowest_mark(("10", "9"), BigInt()), lowest_mark(("10", "9"), Text())
    ('9', '10')
    """
    try:
        return min(marks, key=lambda mark: _ordered(mark, column_type))
    except (ValueError, InvalidOperation):
        return None


def _ordered(mark: str, column_type: ColumnType) -> int | Decimal | float | datetime | bytes:
    if isinstance(column_type, SmallInt | Integer | BigInt):
        return int(mark)
    if isinstance(column_type, Numeric):
        value = Decimal(mark)
        if not value.is_finite():
            raise ValueError("systems differ in how they order it")
        return value
    if isinstance(column_type, Float | Double):
        number = float(mark)
        if number != number:
            raise ValueError("systems differ in how they order it")
        return number
    if isinstance(column_type, Date | Timestamp | TimestampTZ):
        return time_of(mark)
    return mark.encode()


@dataclass
class _Joint:
    """A joint reading while it is put together."""

    spec: PipelineSpec
    first: Member
    members: list[Member] = field(default_factory=list)
    columns: list[ColumnSpec] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    user_sql_types: dict[str, ColumnType | None] = field(default_factory=dict)
    names: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.add(self.first)

    @property
    def _is_sql(self) -> bool:
        return self.first.source.dialect is not None

    def add(self, member: Member) -> bool:
        """Take a target in, unless its rows could then differ from those of a reading of its own."""
        columns, origins = list(self.columns), dict(self.origins)
        types = dict(self.user_sql_types)
        names: dict[str, str] = {}
        for column in member.plan.columns:
            origin = member.plan.target.column_map.get(column.name, column.name)
            known = next((c for c in columns if origins[c.name] == origin and _is_like(c, column)), None)
            if known is None:
                known = self._new(column, origin, columns, origins)
                if known is None:
                    return False
                columns.append(known)
                origins[known.name] = origin
                types[known.name] = member.source.user_sql_types.get(column.name)
            names[column.name] = known.name
        if self.members and not (self._steps_allow(columns, member) and self._marks_allow(member)):
            return False
        self.columns, self.origins, self.user_sql_types = columns, origins, types
        self.members.append(member)
        self.names[member.plan.pipeline] = names
        return True

    def _new(
        self, column: ColumnSpec, origin: str, columns: Sequence[ColumnSpec], origins: Mapping[str, str]
    ) -> ColumnSpec | None:
        """The column under a name that is free; None when it cannot be had beside the others."""
        hints = {_transport(c) for c in columns if origins[c.name] == origin}
        if hints - {_transport(column)} and not self._is_sql and self.first.source.query.frame is None:
            return None  # a file's column is read in one way only
        taken = {c.name for c in columns}
        if column.name not in taken:
            return replace(column, nullable=True, primary_key=False)
        if self._source_steps:
            return None  # the user's condition names columns as they are declared
        known = taken | {shape.name for shape in self.first.source.shapes or ()}
        free = next(name for n in range(len(known) + 1) if (name := f"ematix_joint_{n}") not in known)
        return replace(column, name=free, nullable=True, primary_key=False)

    @property
    def _source_steps(self) -> int:
        """How many row steps the source must apply: all up to the last that holds the user's own SQL."""
        own = [index for index, step in enumerate(self.spec.transforms_pre) if step.is_user_sql]
        return own[-1] + 1 if own and self._is_sql else 0

    def _steps_allow(self, columns: Sequence[ColumnSpec], member: Member) -> bool:
        """Conditions keep the same rows whatever columns stand beside; the other steps look at all of them."""
        if all(isinstance(step, FilterWhere) for step in self.spec.transforms_pre[: self._source_steps]):
            return True
        return len(columns) == len(self.columns) == len(member.plan.columns)

    def _marks_allow(self, member: Member) -> bool:
        """`$watermark` in the SQL is one constant, so it must have one type."""
        mine, other = self.first.plan.watermark, member.plan.watermark
        if mine is None or other is None or not uses_mark(self.first.source.query):
            return (mine is None) == (other is None)
        return mine.type == other.type

    def planned(self) -> JointReading:
        first = self.first
        table = TableSpec(first.plan.target.table.schema, first.plan.target.table.name, tuple(self.columns))
        target = replace(first.plan.target, table=table, column_map=self.origins)
        mark, is_common = self._mark()
        hints: dict[str, set[str]] = {}
        for column in self.columns:
            hints.setdefault(self.origins[column.name], set()).add(_transport(column))
        reading = reading_of(
            self.spec,
            target,
            replace(first.source, user_sql_types=self.user_sql_types),
            mark,
            filters=is_common,
            aliased=self._is_sql and any(len(found) > 1 for found in hints.values()),
        )
        return JointReading(reading, self.names, mark.last_value if mark is not None else None)

    def _mark(self) -> tuple[WatermarkRule | None, bool]:
        """The lowest mark of all targets, and whether they all compare the same column in the same type."""
        rules = [member.plan.watermark for member in self.members if member.plan.watermark is not None]
        if not rules:
            return None, False
        found = {self.names[m.plan.pipeline][rule.column] for m, rule in zip(self.members, rules, strict=True)}
        is_common = len(found) == 1 and len({rule.type for rule in rules}) == 1
        marks = [rule.last_value for rule in rules if rule.last_value is not None]
        lowest = lowest_mark(marks, rules[0].type) if len(marks) == len(rules) and is_common else None
        return WatermarkRule(self.names[self.first.plan.pipeline][rules[0].column], rules[0].type, lowest), is_common


def _is_like(known: ColumnSpec, column: ColumnSpec) -> bool:
    """Whether two declared columns of one origin can be one column of the reading."""
    return known.normalizers == column.normalizers and _transport(known) == _transport(column)


def _transport(column: ColumnSpec) -> str:
    """The family in which sources hand a column over, as far as they look at what is declared.

    Exact numbers and bytes travel differently when nothing is done to them on the way.
    """
    if isinstance(column.type, Numeric | Bytes):
        return f"{column.type.kind} {'changed' if column.normalizers else 'as it is'}"
    return "text" if isinstance(column.type, Text | String | JSON | JSONB) else "value"
