"""One declared load and the described tables become one `BatchPlan`. From there on nothing is decided, only done."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ematix_flow.contracts.dialect import Dialect
from ematix_flow.contracts.plans import (
    BatchPlan,
    ChangeSet,
    Check,
    DdlPlan,
    Lane,
    Profile,
    Reading,
    Route,
    SourceQuery,
    Stamp,
    Statement,
    WatermarkRule,
)
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.contracts.streams import POSITION, RETRACTED
from ematix_flow.declare.columns import BigInt, ColumnType, SmallInt
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.target import Mode, TargetSpec
from ematix_flow.errors import InvalidPlan, MissingSourceColumn, UnsupportedMode, closest, listed
from ematix_flow.plan.changes import change_set
from ematix_flow.plan.ddl import companion_statements, plan_ddl
from ematix_flow.plan.expressions import ColumnExpr, NotPushable, compile_column, step_sql
from ematix_flow.plan.file_drift import plan_file_drift
from ematix_flow.plan.history import events_table
from ematix_flow.plan.lanes import choose_lane
from ematix_flow.plan.native import against_native, against_native_target
from ematix_flow.plan.route import choose_route
from ematix_flow.plan.strategies import Load, landed_profile, mode_checks, mode_statements

_WATERMARK = re.compile(r"\$watermark\b")
_RETRACTED = ColumnSpec(RETRACTED, SmallInt(), nullable=False)
_POSITION = ColumnSpec(POSITION, BigInt(), nullable=False)


@dataclass(frozen=True)
class SourceSide:
    """What is known of the source. `shapes` is None when only Spark, or nobody, can describe it.

    `spark_dialect` is what SQL that Spark runs is written in, when the pipeline says nothing.
    """

    query: SourceQuery
    dialect: Dialect | None = None
    shapes: tuple[ColumnShape, ...] | None = None
    user_sql_types: Mapping[str, ColumnType | None] = field(default_factory=dict)
    kind: str = ""
    file_format: str | None = None
    spark_dialect: SqlDialect = "spark"


@dataclass(frozen=True)
class TargetSide:
    """What is known of the target. `dialect` is None when modes are not applied by statements (files)."""

    table: TableRef
    modes: frozenset[Mode]
    kind: str
    dialect: Dialect | None = None
    live: TableShape | None = None
    live_events: TableShape | None = None
    is_same_place: bool = False
    file_format: str | None = None


def plan_load(
    spec: PipelineSpec,
    target: TargetSpec,
    source: SourceSide,
    sink: TargetSide,
    *,
    stamp: Stamp,
    stored_mark: tuple[str, str] | None,
    retracts: bool = False,
    is_placed: bool = False,
    null_keys: tuple[str, ...] = (),
) -> BatchPlan:
    """Decide everything about one target's load.

    Args:
        stored_mark: the target's watermark as (column, text); a mark of another column is ignored.
        retracts: whether the rows of a merge say in `RETRACTED` which of them are to go.
        is_placed: whether the rows say in `POSITION` where they come from.
        null_keys: columns of a merge's key in which NULL is a value like any other; never all of them.
    """
    if target.mode not in sink.modes:
        raise UnsupportedMode(
            f"mode='{target.mode}' is not possible on {sink.kind} (table {target.table}).",
            fix="write to a database, or to a lake table (Delta, Iceberg); files take append and truncate",
        )
    _check_dialect(spec, source)
    watermark = _watermark(target, stored_mark)
    ddl = _ddl(spec, target, sink)
    columns = tuple(c for c in target.table.columns if c.name not in ddl.missing_columns)
    query = _with_mark(source, watermark)
    landed = (*columns, *([_RETRACTED] if retracts else []), *([_POSITION] if is_placed else []))
    _require_columns(target, landed, source)
    projection = _Projection(target, landed, source, query)
    landing, obstacles = _pushed_down(spec, projection, sink, watermark)
    ends = ((source.kind, source.file_format), (sink.kind, sink.file_format))
    against = [*against_native(*ends), *against_native_target(sink.kind, target, ddl)]
    route = choose_route(spec.engine, obstacles, mover=spec.mover, against_native=against)
    reading = None if route.engine == "pushdown" else _reading(spec, projection, watermark)
    keys, keys_reason = target.resolved_keys() if target.is_merge or target.is_versioned else ((), "")
    compare, compare_reason = target.resolved_compare_columns() if keys else ((), "")
    profile: Profile | None = None
    checks: tuple[Check, ...] = ()
    statements: tuple[Statement, ...] = ()
    lane = Lane()
    changes: ChangeSet | None = None
    if sink.dialect is not None:
        flag = _RETRACTED.name if retracts else None
        load = Load(sink.dialect, target, sink.table, columns, stamp, retracts=flag, null_keys=null_keys)
        profile, checks = landed_profile(load, watermark), mode_checks(load)
        statements = mode_statements(load)
        changes = change_set(load) if sink.dialect.commits_each_statement else None
        lane = choose_lane(load, sink.live, ddl, route, landing if route.engine == "pushdown" else None, watermark)
    return BatchPlan(
        pipeline=spec.history_name(target),
        target=target,
        table=sink.table,
        columns=landed,
        route=route,
        ddl=ddl,
        landing_sql=landing if route.engine == "pushdown" else None,
        reading=reading,
        profile=profile,
        checks=checks,
        statements=statements,
        watermark=watermark,
        changes=changes,
        lane=lane,
        keys=keys,
        keys_reason=keys_reason,
        compare_columns=compare,
        compare_reason=compare_reason,
        run_id=stamp.run_id,
    )


def _watermark(target: TargetSpec, stored: tuple[str, str] | None) -> WatermarkRule | None:
    column = target.incremental_column
    if column is None:
        return None
    last = stored[1] if stored is not None and stored[0] == column else None
    return WatermarkRule(column, target.table.column(column).type, last)


def _check_dialect(spec: PipelineSpec, source: SourceSide) -> None:
    """SQL on a database is that database's own; only what Spark runs is translated."""
    if spec.dialect is not None and source.dialect is not None and spec.dialect != source.dialect.name:
        raise InvalidPlan(
            f"Pipeline '{spec.name}': dialect='{spec.dialect}' is for SQL that runs in Spark; this one runs in "
            f"{source.dialect.name}.",
            fix="leave out dialect=, and write the SQL of the source",
        )


def _ddl(spec: PipelineSpec, target: TargetSpec, sink: TargetSide) -> DdlPlan:
    if sink.dialect is None:
        return plan_file_drift(target, sink.table, sink.live, spec.on_drift)
    plan = plan_ddl(sink.dialect, target, sink.table, sink.live, spec.on_drift)
    if not target.exact_history:
        return plan
    companion = companion_statements(
        sink.dialect, target, events_table(sink.table), sink.live_events, plan.missing_columns
    )
    action = "evolve" if companion and plan.action == "match" else plan.action
    return DdlPlan(action, (*plan.statements, *companion), plan.differences, plan.missing_columns)


def describable(query: SourceQuery, target: TargetSpec | None, dialect: Dialect) -> str:
    """The query as SQL that the source can describe or explain before any mark is known."""
    if query.table is not None:
        return f"SELECT * FROM {dialect.table(query.table)}"
    assert query.sql is not None
    watermark = None if target is None else _watermark(target, None)
    return query.sql if watermark is None else _WATERMARK.sub(lambda _: mark_literal(dialect, watermark), query.sql)


def user_sql_probe(target: TargetSpec, source: SourceSide) -> str | None:
    """A query whose columns are the user's own SQL expressions, for the source to say their types; None without any."""
    if source.dialect is None or source.shapes is None:
        return None
    sql = describable(source.query, target, source.dialect)
    projection = _Projection(target, target.table.columns, source, SourceQuery(sql=sql))
    parts = []
    for column in projection.columns:
        found = projection.normalized(column, column.normalizers[: _user_sql_share(column)])
        if _user_sql_share(column) and isinstance(found, ColumnExpr):
            parts.append(f"{found.sql} AS {source.dialect.quote(column.name)}")
    return f"SELECT {', '.join(parts)} FROM {projection.relation()}" if parts else None


def uses_mark(query: SourceQuery) -> bool:
    """Whether the SQL names `$watermark` itself."""
    return query.sql is not None and _WATERMARK.search(query.sql) is not None


def _with_mark(source: SourceSide, watermark: WatermarkRule | None) -> SourceQuery:
    """The query with `$watermark` replaced by the stored mark as a typed constant."""
    sql = source.query.sql
    if sql is None or not _WATERMARK.search(sql):
        return source.query
    if watermark is None:
        raise InvalidPlan("The source SQL uses $watermark, and the pipeline has no incremental_column=.")
    if source.dialect is None:
        raise InvalidPlan("$watermark works in the SQL of a database; here the filter is applied by itself.")
    return SourceQuery(sql=_WATERMARK.sub(lambda _: mark_literal(source.dialect, watermark), sql))  # type: ignore[arg-type]


def mark_literal(dialect: Dialect, watermark: WatermarkRule) -> str:
    """The mark as a constant; on a first run one below all values."""
    if watermark.last_value is None:
        return dialect.lowest(watermark.type)
    return dialect.literal(watermark.last_value, watermark.type)


def _require_columns(target: TargetSpec, columns: Sequence[ColumnSpec], source: SourceSide) -> None:
    if source.shapes is None:
        return
    delivered = [shape.name for shape in source.shapes]
    for column in columns:
        name = target.column_map.get(column.name, column.name)
        if name not in delivered and not _is_derived(column):
            raise MissingSourceColumn(
                f"The source does not deliver '{name}', which {target.table} declares.",
                fix=closest(name, delivered) or f"it delivers {listed(delivered)}; rename with AS or column_map=",
            )


def _is_derived(column: ColumnSpec) -> bool:
    return bool(column.normalizers) and column.normalizers[0].kind == "derive"


class _Projection:
    """The declared columns as expressions over the source query, in the source's dialect."""

    def __init__(
        self, target: TargetSpec, columns: Sequence[ColumnSpec], source: SourceSide, query: SourceQuery
    ) -> None:
        self.target, self.columns, self.source, self.query = target, tuple(columns), source, query
        self.types: Mapping[str, ColumnType | None] = {s.name: s.type for s in source.shapes or ()}

    @property
    def dialect(self) -> Dialect:
        assert self.source.dialect is not None
        return self.source.dialect

    def source_name(self, column: ColumnSpec) -> str:
        return self.target.column_map.get(column.name, column.name)

    def relation(self) -> str:
        """The source as a FROM item."""
        if self.query.table is not None:
            return f"{self.dialect.table(self.query.table)} AS src"
        return f"({self.query.sql}\n) AS src"

    def raw(self, column: ColumnSpec) -> ColumnExpr:
        """The column as the source gives it; for derived ones the marker itself brings the expression."""
        name = self.source_name(column)
        return ColumnExpr(f"src.{self.dialect.quote(name)}", self.types.get(name))

    def normalized(self, column: ColumnSpec, markers: Sequence[object]) -> ColumnExpr | NotPushable:
        """The column with some of its markers applied by the source."""
        if not markers:
            return self.raw(column)
        share = _user_sql_share(column)
        if not 0 < share <= len(markers):
            return self._compiled(column, markers, self.raw(column))
        own = self._compiled(column, markers[:share], self.raw(column))
        if isinstance(own, NotPushable):
            return own
        own = ColumnExpr(own.sql, self.source.user_sql_types.get(column.name))
        return self._compiled(column, markers[share:], own) if markers[share:] else own

    def _compiled(self, column: ColumnSpec, markers: Sequence[object], given: ColumnExpr) -> ColumnExpr | NotPushable:
        return compile_column(self.dialect.name, tuple(markers), given, name=column.name)  # type: ignore[arg-type]


def _pushed_down(
    spec: PipelineSpec, projection: _Projection, sink: TargetSide, watermark: WatermarkRule | None
) -> tuple[str | None, list[str]]:
    """The query that lands the rows inside the database, or everything that stands against it."""
    source = projection.source
    if projection.query.frame is not None:
        return None, ["the source is a DataFrame"]
    if sink.dialect is None:
        return None, [f"{sink.kind} targets are written by Spark"]
    if not sink.dialect.has_engine:
        return None, [f"{sink.kind} tables are written by Spark"]
    if source.dialect is None and spec.calls_python:
        return None, ["its SQL may call Python functions"]
    if source.dialect is None:
        return None, ["the source is not a database"]
    if not sink.is_same_place:
        return None, ["source and target are different databases"]
    if source.shapes is None:
        return None, ["the source could not be described"]
    dialect, obstacles = sink.dialect, []
    normalized: list[tuple[ColumnSpec, ColumnExpr]] = []
    for column in projection.columns:
        found = projection.normalized(column, column.normalizers)
        if isinstance(found, NotPushable):
            obstacles.append(f"column '{column.name}': {found.reason}")
            continue
        normalized.append((column, found))
        if dialect.fit("x", found.type, column.type, column.name) is None:
            unknown = _user_sql_share(column) or projection.source_name(column) not in projection.types
            shown = found.type or ("an unknown type" if unknown else _native(source, projection.source_name(column)))
            obstacles.append(f"column '{column.name}' must be converted from {shown} to {column.type}")
    if obstacles:
        return None, obstacles
    inner = ", ".join(f"{expr.sql} AS {dialect.quote(column.name)}" for column, expr in normalized)
    relation = f"SELECT {inner} FROM {projection.relation()}"
    names = [column.name for column in projection.columns]
    types = {column.name: expr.type for column, expr in normalized}
    for step in spec.transforms_pre:
        stepped = step_sql(dialect.name, step, relation, names, dialect.quote, types=types)
        if isinstance(stepped, NotPushable):
            return None, [f"{step!r}: {stepped.reason}"]
        relation = stepped
    fitted = {
        column.name: dialect.fit(f"n.{dialect.quote(column.name)}", expr.type, column.type, column.name)
        for column, expr in normalized
    }
    outer = ", ".join(f"{sql} AS {dialect.quote(name)}" for name, sql in fitted.items())
    where = ""
    if watermark is not None and watermark.last_value is not None:
        fresh = dialect.ordered(str(fitted[watermark.column]), watermark.type)
        where = f" WHERE {fresh} > {mark_literal(dialect, watermark)}"
    return f"SELECT {outer} FROM ({relation}) AS n{where}", []


def _native(source: SourceSide, name: str) -> str:
    return next((shape.native for shape in source.shapes or () if shape.name == name), "an unknown type")


def reading_of(
    spec: PipelineSpec,
    target: TargetSpec,
    source: SourceSide,
    watermark: WatermarkRule | None,
    *,
    filters: bool = True,
    aliased: bool = False,
) -> Reading:
    """How the columns of a target are read from its source.

    Args:
        filters: whether rows up to the mark may be left out; without it the mark only stands for `$watermark`.
        aliased: let the source give every column under its declared name, also when it computes nothing.
    """
    projection = _Projection(target, target.table.columns, source, _with_mark(source, watermark))
    return _reading(spec, projection, watermark if filters else None, aliased=aliased)


def _reading(
    spec: PipelineSpec, projection: _Projection, watermark: WatermarkRule | None, *, aliased: bool = False
) -> Reading:
    """What the source computes itself, and what is left for Spark.

    SQL that the user wrote (`derive`, `sql`, `filter_where`) is in the source's dialect and runs there; with it goes
    whatever must happen before it.
    """
    columns, steps = projection.columns, spec.transforms_pre
    renamed = {c.name: projection.source_name(c) for c in columns if projection.source_name(c) != c.name}
    pending = {column.name: column.normalizers for column in columns if column.normalizers}
    if projection.source.dialect is None:
        return Reading(
            query=projection.query,
            columns=columns,
            renamed=renamed,
            pending=pending,
            steps=steps,
            watermark_filter=watermark,
            dialect=spec.dialect or projection.source.spark_dialect,
        )
    user_steps = [index for index, step in enumerate(steps) if step.is_user_sql]
    upto = user_steps[-1] + 1 if user_steps else 0
    shares = {column.name: len(column.normalizers) if upto else _user_sql_share(column) for column in columns}
    query, mark, types = projection.query, watermark, dict(projection.types)
    if upto or aliased or any(shares.values()):
        query, types = _source_share(projection, shares, steps[:upto])
        renamed = {}
        pending = {c.name: c.normalizers[shares[c.name] :] for c in columns if c.normalizers[shares[c.name] :]}
    if watermark is not None and watermark.last_value is not None:
        filtered = _filtered_by_source(projection, query, renamed, watermark)
        if filtered is not None:
            query, mark = filtered, None
    return Reading(
        query=query,
        columns=columns,
        renamed=renamed,
        pending=pending,
        steps=steps[upto:],
        watermark_filter=mark,
        source_types=types,
        parallel_reads=_readers(spec),
    )


def _readers(spec: PipelineSpec) -> int | None:
    """How many readers are asked for; one for a load from a mark on."""
    # A reader that began early may miss rows that are older than the mark which a later one finds: lost for good.
    has_mark = any(target.incremental_column is not None for target in spec.targets)
    return 1 if spec.parallel_reads is not None and has_mark else spec.parallel_reads


def _user_sql_share(column: ColumnSpec) -> int:
    """How many of a column's markers the source must apply: all up to the last that holds the user's own SQL."""
    own = [index for index, marker in enumerate(column.normalizers) if marker.kind in ("sql", "derive")]
    return own[-1] + 1 if own else 0


def _source_share(
    projection: _Projection, shares: Mapping[str, int], steps: Sequence[object]
) -> tuple[SourceQuery, dict[str, ColumnType | None]]:
    """The query of the source's share, and the types of its columns as far as they are known."""
    dialect = projection.dialect
    parts, types = [], {}
    for column in projection.columns:
        found = projection.normalized(column, column.normalizers[: shares[column.name]])
        if isinstance(found, NotPushable):
            raise InvalidPlan(
                f"Column '{column.name}': SQL of yours follows a marker that {dialect.name} cannot apply "
                f"with the same meaning: {found.reason}.",
                fix="put derive(...) or sql(...) first, or filter in the source SQL itself",
            )
        types[column.name] = found.type
        parts.append(f"{found.sql} AS {dialect.quote(column.name)}")
    relation = f"SELECT {', '.join(parts)} FROM {projection.relation()}"
    names = [column.name for column in projection.columns]
    for step in steps:
        stepped = step_sql(dialect.name, step, relation, names, dialect.quote, types=types)  # type: ignore[arg-type]
        if isinstance(stepped, NotPushable):
            raise InvalidPlan(f"{step!r} cannot run on {dialect.name}: {stepped.reason}.")
        relation = stepped
    return SourceQuery(sql=relation), types


def _filtered_by_source(
    projection: _Projection, query: SourceQuery, renamed: Mapping[str, str], watermark: WatermarkRule
) -> SourceQuery | None:
    """Let the source skip old rows itself, when the column arrives there just as it is compared here."""
    column = projection.target.table.column(watermark.column)
    name = renamed.get(column.name, column.name)
    if column.normalizers or projection.types.get(projection.source_name(column)) != watermark.type:
        return None
    dialect = projection.dialect
    relation = dialect.table(query.table) if query.table is not None else f"({query.sql}\n)"
    fresh = dialect.ordered(f"w.{dialect.quote(name)}", watermark.type)
    return SourceQuery(sql=f"SELECT * FROM {relation} AS w WHERE {fresh} > {mark_literal(dialect, watermark)}")


__all__ = ["BatchPlan", "Route", "SourceSide", "TargetSide", "describable", "mark_literal", "plan_load"]
