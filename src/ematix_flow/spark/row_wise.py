"""SQL in front of a window: it must say something of each row by itself, and what the window needs goes through it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from ematix_flow.backends.files_sql import FolderQuery
from ematix_flow.errors import InvalidSource

if TYPE_CHECKING:
    from sqlglot import exp


def require_row_wise(query: FolderQuery, views: Sequence[str]) -> None:
    """Refuse SQL whose answer for one row depends on others: what shares a batch with it is chance.

    Args:
        views: What the query calls the rows of the stream.

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
            _refuse(found)
    known = {view.lower(): True for view in views}
    if not _reads_stream(query.tree, known):
        _refuse("a query that does not read source")


def _refuse(found: str) -> NoReturn:
    raise InvalidSource(
        f"transform_sql stands in front of window=, and {found} would depend on which rows share a batch.",
        fix="let it filter rows, compute columns and join lookups only; the window aggregates",
    )


def _reads_stream(query: exp.Expr, known: Mapping[str, bool]) -> bool:
    """Whether a query gives something for rows of the stream, each by itself; refuses what takes them together.

    Args:
        known: Tables by name, and whether their rows are the stream's.
    """
    from sqlglot import exp

    known = _with_tables_of_its_own(query, known)
    if isinstance(query, exp.Subquery):
        return _is_of_stream(query, known)
    if isinstance(query, exp.SetOperation):
        sides = [_reads_stream(side, known) for side in (query.this, query.expression)]
        if any(sides):
            word = type(query).__name__.upper()
            if not isinstance(query, exp.Union) or query.args.get("distinct"):
                _refuse("UNION without ALL" if isinstance(query, exp.Union) else word)
            if not all(sides):
                _refuse("a UNION ALL with rows that are not of source")
        return any(sides)
    if not isinstance(query, exp.Select):
        return _names_stream(query, known)
    source = query.args.get("from_") or query.args.get("from")
    is_of_stream = source is not None and _is_of_stream(source.this, known)
    for join in (*(query.args.get("joins") or ()), *(query.args.get("laterals") or ())):
        is_of_stream = _joined(join, is_of_stream, known)
    for inner in _queries_in_expressions(query):
        if _reads_stream(inner, known):
            _refuse("a query over source within an expression")
    return is_of_stream


def _joined(join: exp.Expr, is_of_stream: bool, known: Mapping[str, bool]) -> bool:
    """Whether what stands before a join is of the stream once it is joined."""
    from sqlglot import exp

    if not isinstance(join, exp.Join):
        return is_of_stream or _names_stream(join, known)
    other = _is_of_stream(join.this, known)
    if other and is_of_stream:
        _refuse("a join of source with itself")
    side, kind = (str(join.args.get(word) or "").upper() for word in ("side", "kind"))
    # One row of a lookup is kept, dropped or given a partner by all the rows of the stream that share a batch.
    keeps_lookup = side == "FULL" or (side == "LEFT" and other) or (side == "RIGHT" and is_of_stream)
    asks_stream = other and (kind in ("SEMI", "ANTI") or str(join.args.get("method") or "").upper() == "ASOF")
    if (other or is_of_stream) and (keeps_lookup or asks_stream):
        _refuse("a join that keeps rows of a lookup by what source has")
    return is_of_stream or other


def _is_of_stream(relation: exp.Expr, known: Mapping[str, bool]) -> bool:
    """Whether the rows of what stands in FROM or JOIN are the stream's."""
    from sqlglot import exp

    if isinstance(relation, exp.Table):
        found = not relation.db and known.get(relation.name.lower(), False)
    elif isinstance(relation, exp.Subquery):
        inner = relation.this
        found = _is_of_stream(inner, known) if isinstance(inner, exp.Table) else _reads_stream(inner, known)
    else:
        found = _names_stream(relation, known)
    for join in relation.args.get("joins") or ():
        found = _joined(join, found, known)
    return found


def _names_stream(node: exp.Expr, known: Mapping[str, bool]) -> bool:
    from sqlglot import exp

    return any(not table.db and known.get(table.name.lower(), False) for table in node.find_all(exp.Table))


def _with_tables_of_its_own(query: exp.Expr, known: Mapping[str, bool]) -> Mapping[str, bool]:
    """The tables that a query knows: those around it, and those of its WITH; one of these may name itself."""
    own = query.args.get("with_") or query.args.get("with")
    if own is None:
        return known
    for table in own.expressions:
        name = table.alias_or_name.lower()
        is_recursive = bool(own.args.get("recursive")) and _names_stream(table.this, {name: True})
        begins = {**known, name: is_recursive and _names_stream(table.this, {**known, name: False})}
        known = {**known, name: _reads_stream(table.this, begins)}
    return known


def _queries_in_expressions(select: exp.Select) -> Iterator[exp.Expr]:
    """Queries that a SELECT asks elsewhere than in FROM and WITH: in its columns, in WHERE, in ON."""
    from sqlglot import exp

    places = ("from_", "from", "with_", "with", "joins", "laterals")
    parts = [part for name, value in select.args.items() if name not in places for part in _listed(value)]
    parts += [part for join in select.args.get("joins") or () for part in _listed(join.args.get("on"))]
    for part in parts:
        for node in part.walk(prune=lambda node: isinstance(node, exp.Query)):
            if isinstance(node, exp.Query):
                yield node


def _listed(value: object) -> list[exp.Expr]:
    from sqlglot import exp

    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, exp.Expression)]


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
