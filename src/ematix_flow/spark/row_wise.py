"""SQL in front of a window: it must say something of each row by itself, and what the window needs goes through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.backends.files_sql import FolderQuery
from ematix_flow.errors import InvalidSource

if TYPE_CHECKING:
    from sqlglot import exp


def require_row_wise(query: FolderQuery) -> None:
    """Refuse SQL whose answer for one row depends on others: what shares a batch with it is chance.

    Raises:
        InvalidSource: names what it found.
    """
    from sqlglot import exp

    for node in query.tree.walk():
        found = None
        if isinstance(node, exp.Window):
            found = "a window function"
        elif isinstance(node, exp.AggFunc):
            found = f"the aggregate {node.sql_name().lower()}()"
        elif query.written.own is not None and (called := query.written.own.called(node)) and called.is_aggregate:
            found = f"the aggregate {called.name}()"
        elif isinstance(node, (exp.Group, exp.Having)):
            found = "GROUP BY"
        elif isinstance(node, (exp.Limit, exp.Fetch)):
            found = "LIMIT"
        elif isinstance(node, exp.Distinct):
            found = "DISTINCT"
        if found is not None:
            raise InvalidSource(
                f"transform_sql stands in front of window=, and {found} would depend on which rows share a batch.",
                fix="let it filter rows and compute columns only; the window aggregates",
            )


def carrying(query: FolderQuery, views: Sequence[str], names: Sequence[str]) -> FolderQuery:
    """The query with columns of the stream that it did not ask for, as far as it reads the stream itself.

    A query over a query of its own has to pass them on by itself.
    """
    return query.changed(lambda tree: _add(tree, views, names)) if names else query


def _add(tree: exp.Expr, views: Sequence[str], names: Sequence[str]) -> None:
    from sqlglot import exp

    if not isinstance(tree, exp.Select):
        return
    source = tree.args.get("from_") or tree.args.get("from")
    joins = tree.args.get("joins") or ()
    tables = [part.this for part in (source, *joins) if part is not None]
    read = [table for table in tables if isinstance(table, exp.Table) and table.name in views]
    if not read:
        return
    given = {projection.alias_or_name.lower() for projection in tree.expressions}
    for name in names:
        if name.lower() not in given:
            column = exp.column(exp.to_identifier(name, quoted=True), table=read[0].alias_or_name, quoted=True)
            tree.append("expressions", exp.alias_(column, name, quoted=True))
