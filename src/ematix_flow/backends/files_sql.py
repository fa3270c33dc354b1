"""SQL over folders: which folders a query reads, and the same query over temporary views, in Spark's words."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ematix_flow.backends.translation.answers import run_translated
from ematix_flow.backends.translation.own_functions import OwnFunctions
from ematix_flow.backends.translation.spark_sql import parsed_query, spark_query
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.errors import FlowError, InvalidSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlglot import exp


@dataclass(frozen=True)
class FolderQuery:
    """A query whose folder names were replaced by views; `views` says which view stands for which folder.

    `moments` holds, by view, the version (a number) or the time (a text) that the query asks a table for. `given` is
    the same text read as Spark SQL, for dialects that take it too.
    """

    written: UserSql
    tree: exp.Query
    views: Mapping[str, TableRef]
    moments: Mapping[str, int | str]
    given: str | None = None

    @property
    def sql(self) -> str:
        """The query over the views, word for word; Spark SQL when it was written in that."""
        return self.tree.sql(dialect="spark")

    def changed(self, change: Callable[[exp.Expr], None]) -> FolderQuery:
        """The query after a change to its tree, which is made in both of its readings."""
        from sqlglot import parse_one

        change(self.tree)
        if self.given is None:
            return self
        given = parse_one(self.given, read="spark")
        change(given)
        return replace(self, given=given.sql(dialect="spark"))

    def frame(self, spark: SparkSession, run: Callable[[SparkSession, str], DataFrame] | None = None) -> DataFrame:
        """The rows of the query. The views must have been made.

        Args:
            run: Who runs Spark SQL, when it is not Spark alone: queries may call functions of the user's own.

        Raises:
            InvalidSource: it says something that Spark cannot do with the same meaning; the message points at it.
        """
        if self.written.dialect == "spark":
            return run_translated(spark, self.sql, self.written, run)
        schemas = {
            view: {field.name: field.dataType.simpleString() for field in spark.table(view).schema.fields}
            for view in self.views
        }
        try:
            translated = spark_query(self.tree.copy(), self.written, schemas)
            return run_translated(spark, translated, self.written, run)
        except FlowError as refused:
            if self.given is None:
                raise
            try:
                return run_translated(spark, self.given, self.written, run)
            except FlowError:
                raise refused from None


def is_prefix(text: str) -> bool:
    """Whether the whole query is a bare prefix, `events/raw`: no statement of SQL is one word.

    >>> is_prefix("events/raw"), is_prefix("select * from raw.events")
    (True, False)
    """
    return bool(text.strip()) and not any(character.isspace() for character in text.strip())


def folder_query(
    sql: str, dialect: SqlDialect = "spark", own: OwnFunctions | None = None, *, what: str = "The source SQL"
) -> FolderQuery:
    """Find the folders in a query and put views in their place. Names of CTEs are not folders.

    `schema.table` is the folder `schema/table`; a name alone, also a quoted one with slashes, is a prefix. Columns may
    go on naming their table, with or without the schema. `own` are functions of the user's that it may call; `what` is
    how messages call it.

    Raises:
        InvalidSource: it is not one SELECT that can be parsed, or a name has more than two parts.
    """
    written = UserSql(sql, dialect, what, own)
    try:
        tree = parsed_query(written)
    except InvalidSource as refused:
        if dialect != "datafusion":
            raise
        try:
            return folder_query(sql, own=own, what=what)
        except InvalidSource:
            raise refused from None
    views: _Views = {}
    _put_views(tree, views)
    given = _as_given(written, views) if dialect == "datafusion" else None
    return FolderQuery(
        written,
        tree,
        {view: ref for (ref, _), view in views.items()},
        {view: moment for (_, moment), view in views.items() if moment is not None},
        given,
    )


_Views = dict[tuple[TableRef, int | str | None], str]


def _as_given(written: UserSql, views: _Views) -> str | None:
    """The text as the Spark SQL it may have been all along, over the same views."""
    try:
        tree = parsed_query(replace(written, dialect="spark"))
    except InvalidSource:
        return None
    known = dict(views)
    _put_views(tree, known)
    return tree.sql(dialect="spark") if known == views else None


def _put_views(tree: exp.Query, views: _Views) -> None:
    """Put a view in the place of every folder; `views` is told which, and keeps those it knows."""
    from sqlglot import exp

    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    for table in list(tree.find_all(exp.Table)):
        if not isinstance(table.this, exp.Identifier) or (not table.db and table.name.lower() in ctes):
            continue
        if table.catalog:
            raise InvalidSource(
                f"The source SQL names '{table.catalog}.{table.db}.{table.name}'; folders have two parts.",
                fix="write schema.table, which is the folder schema/table below the connection's path",
            )
        ref = TableRef(table.db or None, table.name)
        view = views.setdefault((ref, _moment(table)), f"ematix_flow_{uuid.uuid4().hex}")
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        table.set("this", exp.to_identifier(view))
        table.set("db", None)
        table.set("version", None)
    schemas = {(ref.schema, ref.name) for ref, _ in views if ref.schema}
    for column in tree.find_all(exp.Column):
        # `payload.user.id` looks like schema.table.column, so only the names of folders lose their schema.
        if (column.db, column.table) in schemas and not column.catalog:
            column.set("db", None)
        elif (column.catalog, column.db) in schemas:
            column.set("catalog", None)


def _moment(table: exp.Table) -> int | str | None:
    """The number after VERSION AS OF, or the text after TIMESTAMP AS OF."""
    from sqlglot import exp

    asked = table.args.get("version")
    if asked is None:
        return None
    value = asked.expression
    if not isinstance(value, exp.Literal) or (str(asked.this) == "VERSION") == value.is_string:
        raise InvalidSource(
            f"A moment of '{table.name}' is neither a version nor a time.",
            fix="write VERSION AS OF 3, or TIMESTAMP AS OF '2026-03-01 12:00:00'",
        )
    return str(value.this) if value.is_string else int(value.this)
