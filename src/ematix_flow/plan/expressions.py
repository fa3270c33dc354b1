"""Markers and row steps as SQL text of a database, or the reason why Spark must do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ematix_flow.contracts.mysql_words import by_bytes
from ematix_flow.declare.columns import ColumnType
from ematix_flow.declare.fitting import TEXT_KINDS
from ematix_flow.declare.normalizers import Derive, Normalizer, Sql
from ematix_flow.declare.steps import DeduplicateBy, FilterWhere, Limit, OrderTerm, RowStep, SamplePct
from ematix_flow.plan import (
    expressions_duckdb,
    expressions_mysql,
    expressions_postgres,
    expressions_sqlite,
    expressions_warehouse,
)
from ematix_flow.plan.column_expr import CannotPush, ColumnExpr as ColumnExpr, NotPushable as NotPushable
from ematix_flow.plan.user_sql import enclosed, with_column

_COMPILERS = {
    "postgres": expressions_postgres.compile_marker,
    "sqlite": expressions_sqlite.compile_marker,
    "duckdb": expressions_duckdb.compile_marker,
    "mysql": expressions_mysql.compile_marker,
    **dict.fromkeys(expressions_warehouse.WAREHOUSES, expressions_warehouse.compile_marker),
}
_RANK = "ematix_flow_rank"


def compile_column(
    dialect_name: str, normalizers: Sequence[Normalizer], source: ColumnExpr, *, name: str = ""
) -> ColumnExpr | NotPushable:
    """A column with its markers applied, left to right, in the words of a database.

    Args:
        dialect_name: `postgres`, `sqlite`, `duckdb` or `mysql`; warehouses take `sql` and `derive`, others nothing.
        normalizers: The markers, in order.
        source: The column as the source gives it. A type of None is one nobody knows: only `sql` and `derive` meet it.
        name: The declared column, for the message of a failing `on_failure="error"`.
    """
    if not normalizers:
        return source
    compiler = _COMPILERS.get(dialect_name)
    if compiler is None:
        return NotPushable(f"markers are not written for {dialect_name}")
    expression = source
    try:
        for marker in normalizers:
            expression = _users_own(marker, expression) or compiler(marker, expression, name)
    except CannotPush as exc:
        return NotPushable(str(exc))
    return expression


def _users_own(marker: Normalizer, given: ColumnExpr) -> ColumnExpr | None:
    """What `derive` and `sql` give: SQL in the source's own dialect, taken as it is written; None for other markers."""
    if isinstance(marker, Derive):
        return ColumnExpr(enclosed(marker.expression), None)
    return ColumnExpr(enclosed(with_column(marker.expression, given.sql)), None) if isinstance(marker, Sql) else None


def step_sql(
    dialect_name: str,
    step: RowStep,
    relation_sql: str,
    columns: Sequence[str],
    quote: Callable[[str], str],
    *,
    types: Mapping[str, ColumnType | None] | None = None,
) -> str | NotPushable:
    """A SELECT that applies one row step to the rows of another SELECT.

    Args:
        dialect_name: `postgres`, `sqlite`, `duckdb` or `mysql`.
        step: What to do.
        relation_sql: The SELECT whose rows are meant; it gives just `columns`.
        columns: Their names, in order; they break ties in `deduplicate_by`.
        quote: Turns a name into an identifier.
        types: The columns' types, needed where rows are ordered: databases order texts in many ways, Spark by bytes.
    """
    if dialect_name not in _COMPILERS:
        return NotPushable(f"row steps are not written for {dialect_name}")
    names = ", ".join(quote(column) for column in columns)
    rows = f"({relation_sql}\n) AS ematix_rows"
    if isinstance(step, FilterWhere):
        return f"SELECT {names} FROM {rows} WHERE ({step.condition}\n)"
    if isinstance(step, Limit):
        return f"SELECT {names} FROM {rows} LIMIT {step.rows}"
    if dialect_name in expressions_warehouse.WAREHOUSES:
        return NotPushable(f"{step.kind} is left to Spark on warehouses")
    if isinstance(step, SamplePct):
        if step.fraction in (0.0, 1.0):
            return f"SELECT {names} FROM {rows} WHERE 1 = {int(step.fraction)}"
        # SQLite's random() is a whole number of 64 bits; 53 of them make a fraction.
        chance = "random()" if dialect_name != "sqlite" else "((random() & 9007199254740991) / 9007199254740992.0)"
        chance = "RAND()" if dialect_name == "mysql" else chance
        return f"SELECT {names} FROM {rows} WHERE {chance} < {step.fraction!r}"
    if isinstance(step, DeduplicateBy):
        try:
            return _deduplicated(dialect_name, step, rows, names, columns, quote, types or {})
        except CannotPush as exc:
            return NotPushable(str(exc))
    return NotPushable(f"{step.kind} is not written for {dialect_name}")


def _deduplicated(
    dialect_name: str,
    step: DeduplicateBy,
    rows: str,
    names: str,
    columns: Sequence[str],
    quote: Callable[[str], str],
    types: Mapping[str, ColumnType | None],
) -> str:
    named = {term.column for term in step.order_by}
    terms = [*step.order_by, *(OrderTerm(column) for column in columns if column not in named)]

    def comparable(column: str) -> str:
        return _comparable(dialect_name, quote(column), types.get(column), column)

    def placed(term: OrderTerm) -> str:
        value, way = comparable(term.column), "DESC" if term.descending else "ASC"
        if dialect_name == "mysql":  # it cannot be told where NULLs go
            return f"{value} IS NULL {'DESC' if term.nulls_first else 'ASC'}, {value} {way}"
        return f"{value} {way} NULLS {'FIRST' if term.nulls_first else 'LAST'}"

    order = ", ".join(placed(term) for term in terms)
    keys = ", ".join(comparable(key) for key in step.keys)
    ranked = f"SELECT {names}, row_number() OVER (PARTITION BY {keys} ORDER BY {order}) AS {_RANK} FROM {rows}"
    return f"SELECT {names} FROM ({ranked}) AS ematix_ranked WHERE {_RANK} = 1"


def _comparable(dialect_name: str, identifier: str, column_type: ColumnType | None, column: str) -> str:
    """A column in the form whose order and equality are Spark's."""
    if column_type is None:
        raise CannotPush(f"the order of column '{column}' depends on its type, which is not known")
    if dialect_name == "sqlite":
        return f"{identifier} COLLATE {'ematix_decimal' if column_type.kind == 'numeric' else 'BINARY'}"
    if dialect_name == "mysql":
        return by_bytes(identifier) if column_type.kind in TEXT_KINDS else identifier
    if dialect_name == "duckdb":  # it orders text by its bytes
        return f"CAST({identifier} AS VARCHAR)" if column_type.kind in TEXT_KINDS else identifier
    return f'({identifier}::text COLLATE "C")' if column_type.kind in TEXT_KINDS else identifier
