"""From a text in another dialect to Spark SQL that means the same, or an error that points into the text."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.translation import formats, functions, lists, numbers, queries, regex, texts, times
from ematix_flow.backends.translation.asof import without_asof
from ematix_flow.backends.translation.kinds import (
    Kind,
    Tables,
    find_kinds,
    find_kinds_of_expression,
    kind,
    spark_kinds,
)
from ematix_flow.backends.translation.rules import Family, Rule, Task
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.errors import InvalidSource

if TYPE_CHECKING:
    from sqlglot import exp

log = logging.getLogger(__name__)

_FAMILIES: Mapping[str, Family] = {
    "duckdb": "duckdb",
    "postgres": "postgres",
    "datafusion": "postgres",
    "redshift": "postgres",
}
_READ_AS = {"datafusion": "postgres"}
_RULES: Mapping[str, Rule] = {
    **numbers.RULES,
    **texts.RULES,
    **regex.RULES,
    **times.RULES,
    **lists.RULES,
    **formats.RULES,
    **functions.RULES,
    **queries.RULES,
}
_RULES_FOR_OTHERS: Mapping[str, Rule] = {name: lists.RULES[name] for name in ("ArrayAgg", "WithinGroup")}


def parsed_query(sql: UserSql) -> exp.Query:
    """The one SELECT of a text.

    Raises:
        InvalidSource: it cannot be parsed, or is not one SELECT.
    """
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        text, moved = sql.own.renamed(sql.text, _reader(sql)) if sql.own is not None else (sql.text, [])
        statements = [found for found in sqlglot.parse(text, read=_reader(sql)) if found is not None]
    except SqlglotError as exc:
        raise _unparsed(sql, exc) from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise InvalidSource(f"{sql.what} must be one SELECT.", fix="return a single query, without other statements")
    if sql.own is not None:
        sql.own.note(statements[0], moved)
    if _FAMILIES.get(sql.dialect) == "postgres":
        queries.fold_names(statements[0])
    return statements[0]


def spark_query(tree: exp.Expr, sql: UserSql, tables: Mapping[str, Mapping[str, str]]) -> str:
    """A parsed query in Spark's words.

    Args:
        tree: What `parsed_query` gave; tables may have been renamed since.
        sql: The text it was read from, for messages.
        tables: Spark's type of every column, by table and column.

    Raises:
        InvalidSource: something in it means something else in Spark, and cannot be mended.
    """
    if sql.dialect in ("spark", "databricks"):
        return tree.sql(dialect="spark")
    known: Tables = {name.lower(): spark_kinds(columns) for name, columns in tables.items()}
    return _translated(tree, sql, lambda family: find_kinds(tree, known, family))


def spark_expression(text: str, dialect: SqlDialect, columns: Mapping[str, str], what: str) -> str:
    """An expression or a condition over the columns of a row, in Spark's words.

    Raises:
        InvalidSource: it cannot be parsed, or means something else in Spark.
    """
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    if dialect in ("spark", "databricks"):
        return text
    sql = UserSql(text, dialect, what)
    try:
        tree: exp.Expr = sqlglot.parse_one(text, read=_reader(sql), into=exp.Condition)
    except SqlglotError as exc:
        raise _unparsed(sql, exc) from None
    if _FAMILIES.get(sql.dialect) == "postgres":
        queries.fold_names(tree)
    known: dict[str, Kind] = spark_kinds(columns)
    return _translated(tree, sql, lambda family: find_kinds_of_expression(tree, known, family))


def _reader(sql: UserSql) -> Any:
    """Who parses a text. Indexes of lists stay as they are written; sqlglot would count some of them down, not all."""
    from sqlglot.dialects.dialect import Dialect

    name = _READ_AS.get(sql.dialect, sql.dialect)
    return name if sql.dialect not in _FAMILIES else _unshifted(type(Dialect.get_or_raise(name)))


@functools.cache
def _unshifted(dialect: type) -> type:
    return type(f"Unshifted{dialect.__name__}", (dialect,), {"INDEX_OFFSET": 0})


def _translated(tree: exp.Expr, sql: UserSql, note_kinds: Callable[[Family], None]) -> str:
    from sqlglot.errors import ErrorLevel, SqlglotError

    family = _FAMILIES.get(sql.dialect, "other")
    task = Task(sql, family)
    queries.refuse_joins(tree, task)
    if family == "other":
        log.warning(
            "%s is translated from %s; of the other dialects DuckDB and PostgreSQL are proven", sql.what, sql.dialect
        )
    note_kinds(family)
    tree = mended(tree, task)
    tree = without_asof(queries.without_qualify(tree, task), task)
    try:
        return tree.sql(dialect="spark", unsupported_level=ErrorLevel.RAISE)
    except SqlglotError as exc:
        raise InvalidSource(
            f"{sql.what} ({sql.dialect}) cannot be said in Spark SQL: {str(exc).splitlines()[0]}"
        ) from None


def mended(tree: exp.Expr, task: Task) -> exp.Expr:
    """The tree with every rule applied, from the leaves up."""
    from sqlglot import exp

    rules = _RULES_FOR_OTHERS if task.family == "other" else _RULES
    holder = exp.Paren(this=tree)
    for node in reversed(list(tree.walk())):
        rule = rules.get(type(node).__name__)
        made = rule(node, task) if rule is not None else None
        if made is None:
            continue
        made.meta.setdefault("kind", kind(node))
        if node.parent is not None and made.parent is None:
            node.replace(made)
    root: exp.Expr = holder.this
    root.pop()
    return root


def _unparsed(sql: UserSql, exc: Exception) -> InvalidSource:
    """Sqlglot's complaint with the place it means."""
    details = getattr(exc, "errors", None) or []
    if not details:
        reason = re.sub(r"\x1b\[\d+m", "", str(exc)).strip().splitlines()[0]
        return sql.refused_at(_place_said(sql, reason), f"it cannot be parsed as {sql.dialect} SQL.")
    found = details[0]
    words = str(found.get("highlight") or "")
    line, column = found.get("line"), found.get("col")
    span = None
    if line and column:
        lines = sql.text.split("\n")
        end = sum(len(text) + 1 for text in lines[: line - 1]) + column - 1
        span = (max(0, end - max(len(words), 1) + 1), end)
    reason = str(found.get("description") or "it cannot be parsed").rstrip(".")
    return sql.refused_at(span, f"it cannot be parsed as {sql.dialect} SQL: {reason}.")


def _place_said(sql: UserSql, reason: str) -> tuple[int, int] | None:
    """The words that an error of the tokenizer quotes, where they stand in the text."""
    quoted = re.search(r"Error tokenizing '(.*)'?$", reason, flags=re.DOTALL)
    words = quoted[1].rstrip("'") if quoted else ""
    start = sql.text.find(words) if words else -1
    return (start + len(words) - 1, start + len(words) - 1) if start >= 0 else None
