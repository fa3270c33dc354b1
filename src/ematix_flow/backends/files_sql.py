"""SQL over folders: which folders a query reads, and the same query over temporary views."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.contracts.shapes import TableRef
from ematix_flow.errors import InvalidSource

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True)
class FolderQuery:
    """A query whose folder names were replaced by views; `views` says which view stands for which folder.

    `moments` holds, by view, the version (a number) or the time (a text) that the query asks a table for.
    """

    sql: str
    views: Mapping[str, TableRef]
    moments: Mapping[str, int | str]


def is_prefix(text: str) -> bool:
    """Whether the whole query is a bare prefix, `events/raw`: no statement of SQL is one word.

    >>> is_prefix("events/raw"), is_prefix("select * from raw.events")
    (True, False)
    """
    return bool(text.strip()) and not any(character.isspace() for character in text.strip())


def folder_query(sql: str) -> FolderQuery:
    """Find the folders in Spark SQL and put views in their place. Names of CTEs are not folders.

    `schema.table` is the folder `schema/table`; a name alone, also a quoted one with slashes, is a prefix. Columns may
    go on naming their table, with or without the schema.

    Raises:
        InvalidSource: it is not one SELECT that can be parsed, or a name has more than two parts.
    """
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        statements = [found for found in sqlglot.parse(sql, read="spark") if found is not None]
    except SqlglotError as exc:
        reason = str(exc).strip().splitlines()[0]
        raise InvalidSource(f"The source SQL cannot be parsed as Spark SQL: {reason}") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise InvalidSource("The source SQL must be one SELECT.", fix="return a single query, without other statements")
    tree = statements[0]
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    views: dict[tuple[TableRef, int | str | None], str] = {}
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
    return FolderQuery(
        tree.sql(dialect="spark"),
        {view: ref for (ref, _), view in views.items()},
        {view: moment for (_, moment), view in views.items() if moment is not None},
    )


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
