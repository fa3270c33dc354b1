"""Which columns of which tables a query's columns come from, read from its SQL. Nothing is connected to or run.

What a query hands on is *direct* (the value itself, or computed from it); what only decides which rows come, or which
branch is taken, is *indirect*. A column whose origin the text alone does not tell is named in `unknown`, never guessed;
only a name without a table inside a subquery is taken for the subquery's own, when nothing speaks against it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.optimizer.scope import Scope

Direct = Literal["IDENTITY", "TRANSFORMATION", "AGGREGATION"]
Indirect = Literal["JOIN", "FILTER", "GROUP_BY", "SORT", "WINDOW", "CONDITIONAL"]
How = Direct | Indirect
"""The words of the OpenLineage column lineage facet."""

_STRENGTH: dict[str, int] = {"IDENTITY": 0, "TRANSFORMATION": 1, "AGGREGATION": 2}
_AS_IT_IS: How = "IDENTITY"
_WATERMARK = re.compile(r"\$watermark\b")
# What readers of SQL here call a dialect that sqlglot has no word for; DataFusion's grammar is PostgreSQL's.
_READ_AS = {"datafusion": "postgres"}
# Systems whose unquoted names are folded to one case: there the folded name is the table's real one.
_FOLDED = frozenset({"postgres", "redshift", "snowflake", "datafusion"})
_MASKS = frozenset({"MD5", "MD5Digest", "SHA", "SHA1Digest", "SHA2", "SHA2Digest", "FarmFingerprint", "StandardHash"})
_MASKING_NAMES = re.compile(r"^(md5|sha\d*|sha_?\d+|hash|xxhash\d*|crc32|digest|hmac)", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class SqlTable:
    """A table as a query names it; parts that were not written are empty."""

    catalog: str
    schema: str
    name: str

    def __str__(self) -> str:
        return ".".join(part for part in (self.catalog, self.schema, self.name) if part)


@dataclass(frozen=True, order=True)
class Origin:
    """One column that another depends on.

    Attributes:
        how: What becomes of it on the way.
        masked: Whether the value cannot be told any more, as behind a hash.
    """

    table: SqlTable
    column: str
    how: How
    masked: bool = False

    @property
    def is_direct(self) -> bool:
        """Whether the value goes in, rather than only deciding something."""
        return self.how in _STRENGTH

    def through(self, how: How, masked: bool = False) -> Origin:
        """The same origin after one more step: indirect stays indirect, the strongest direct word wins."""
        masked = self.masked or masked
        if not self.is_direct:
            return replace(self, masked=masked)
        if how not in _STRENGTH:
            return replace(self, how=how, masked=masked)
        return replace(self, how=max(self.how, how, key=_STRENGTH.__getitem__), masked=masked)


Columns = Callable[[SqlTable], Collection[str] | None]
"""What is known of a table's columns; None when nothing is."""


class QueryLineage:
    """The lineage of one query. Columns are worked out when they are asked for.

    Args:
        sql: The query; `$watermark` in it is a constant.
        dialect: What it is written in.
        columns: What is known of tables, for `SELECT *` over several and for names without a table.

    Raises:
        ValueError: The text cannot be read as one query.
    """

    def __init__(self, sql: str, dialect: str = "", columns: Columns = lambda table: None) -> None:
        self._dialect, self._known = dialect, columns
        self._root = _scope_of(sql, dialect)
        self._open: set[tuple[int, str]] = set()
        self._done: dict[tuple[int, str], frozenset[Origin]] = {}
        self.unknown: set[str] = set()

    @property
    def tables(self) -> tuple[SqlTable, ...]:
        """Every table that is read, in all parts of the query."""
        from sqlglot import exp

        found = {
            self._named(source)
            for scope in self._scopes()
            for source in scope.sources.values()
            if isinstance(source, exp.Table)
        }
        return tuple(sorted(found))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that the query gives, as far as its text says them; `*` stands for those it does not."""
        return tuple(_output_names(self._root))

    def of(self, column: str) -> tuple[Origin, ...]:
        """Where a column of the result comes from; nothing for a constant."""
        return tuple(sorted(self._of(self._root, column)))

    def of_expression(self, sql: str, how: Direct = "TRANSFORMATION") -> tuple[Origin, ...]:
        """Where an expression over the result's columns comes from.

        Raises:
            ValueError: It cannot be read.
        """
        found: set[Origin] = set()
        for name in named_columns(sql, self._dialect):
            found |= {origin.through(how) for origin in self._of(self._root, name)}
        return tuple(sorted(found))

    def influences(self) -> tuple[Origin, ...]:
        """What decides which rows come, and in which groups: joins, conditions, groups, orders of all parts."""
        found: set[Origin] = set()
        for scope in self._scopes():
            for node, how in _deciding_parts(scope):
                found |= {origin.through(how) for origin in self._in(scope, node)}
            for name in _shared_names(scope):
                for _, source in scope.selected_sources.values():
                    found |= {origin.through("JOIN") for origin in self._from(source, name)}
        return tuple(sorted(found))

    # ── one column ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _of(self, scope: Scope, name: str) -> frozenset[Origin]:
        key = (id(scope), name.casefold())
        if key in self._open:  # a recursive query reads itself: what it began with has been followed already
            return frozenset()
        if key not in self._done:
            self._open.add(key)
            try:
                self._done[key] = frozenset(self._worked_out(scope, name))
            finally:
                self._open.discard(key)
        return self._done[key]

    def _worked_out(self, scope: Scope, name: str) -> Iterator[Origin]:
        from sqlglot import exp

        whole: Any = scope.expression
        if not isinstance(whole, exp.Query):
            for column in whole.find_all(exp.Column):  # UNNEST, VALUES, a table function
                yield from (origin.through("TRANSFORMATION") for origin in self._at(scope, column))
            return
        place = _place_of(scope, name)
        if place is not None:
            yield from self._selected(scope, place)
        elif scope.set_operation_scopes:
            for branch in scope.set_operation_scopes:
                yield from self._of(branch, name)
        else:
            yield from self._behind_stars(scope, [selected for selected in whole.selects if selected.is_star], name)

    def _selected(self, scope: Scope, place: int) -> Iterator[Origin]:
        """What stands at a place of SELECT; branches of a UNION are matched by place."""
        for branch in scope.set_operation_scopes:
            yield from self._selected(branch, place)
        query: Any = scope.expression
        if not scope.set_operation_scopes and place < len(query.selects):
            yield from self._in(scope, query.selects[place].unalias(), top=True)

    def _in(self, scope: Scope, node: exp.Expr, *, top: bool = False) -> Iterator[Origin]:
        """The origins of everything below a node, subqueries included."""
        from sqlglot import exp

        inner = {id(child.expression): child for child in scope.subquery_scopes}
        for found in _walk(node, set(inner)):
            if isinstance(found, exp.Column):
                how, masked = _fate(found, node) if not top or found is not node else (_AS_IT_IS, False)
                yield from (origin.through(how, masked) for origin in self._at(scope, found))
            elif id(found) in inner:
                query: Any = inner[id(found)].expression
                for selected in query.selects:
                    within = self._in(inner[id(found)], selected.unalias())
                    yield from (origin.through("TRANSFORMATION") for origin in within)

    def _at(self, scope: Scope, column: exp.Column) -> Iterator[Origin]:
        """The origins of one column reference."""
        source = _source_named(scope, column.table) if column.table else self._only_source(scope, column.name)
        yield from self._from(source, column.name, column)

    def _from(self, source: Any, name: str, column: exp.Expr | None = None) -> Iterator[Origin]:
        from sqlglot import exp

        if isinstance(source, exp.Table):
            written = column.meta.get("written") if column is not None and self._dialect not in _FOLDED else None
            yield Origin(self._named(source), written or name, "IDENTITY")
        elif source is not None:
            yield from self._of(source, name)
        else:
            self.unknown.add(name)

    def _only_source(self, scope: Scope, name: str) -> Any:
        """The source that a name without a table belongs to, of this query or of one around it."""
        sources = [source for _, source in scope.selected_sources.values()]
        if sources and name.casefold() in _shared_names(scope):
            return sources[0]
        found = self._owner(sources, name)
        if (
            found is not None
            or not scope.is_subquery
            or any(self._has(source, name) is not False for source in sources)
        ):
            return found
        return self._only_source(scope.parent, name) if scope.parent is not None else None

    def _behind_stars(self, scope: Scope, stars: list[exp.Expr], name: str) -> Iterator[Origin]:
        named = [alias for star in stars if (alias := getattr(star, "table", ""))]
        plain = len(named) < len(stars)
        sources = [source for alias, (_, source) in scope.selected_sources.items() if plain or alias in named]
        shared = stars and sources and name.casefold() in _shared_names(scope)
        yield from self._from(sources[0] if shared else self._owner(sources, name) if stars else None, name)

    def _owner(self, sources: list[Any], name: str) -> Any:
        """The one source that has a column; else the one that may have it; None when several do or may."""
        for answers in ((True,), (True, None)):
            owners = [source for source in sources if self._has(source, name) in answers]
            if owners:
                return owners[0] if len(owners) == 1 else None
        return None

    def _has(self, source: Any, name: str) -> bool | None:
        """Whether a source has a column; None when that is not known."""
        from sqlglot import exp

        if isinstance(source, exp.Table):
            names = self._known(self._named(source))
        else:
            names = None if not isinstance(source.expression, exp.Query) else _output_names(source)
        if names is None:
            return None
        folded = {known.casefold() for known in names}
        return True if name.casefold() in folded else None if "*" in folded else False

    # ── the parts of the query ───────────────────────────────────────────────────────────────────────────────────────

    def _scopes(self) -> list[Scope]:
        return list(self._root.traverse())

    def _named(self, table: exp.Table) -> SqlTable:
        written = table.meta.get("written")
        if written is not None and self._dialect not in _FOLDED:
            return SqlTable(*written)
        return SqlTable(table.catalog, table.db, table.name)


def named_columns(sql: str, dialect: str = "") -> tuple[str, ...]:
    """The columns that an expression names.

    >>> named_columns("upper(first) || ' ' || last")
    ('first', 'last')

    Raises:
        ValueError: It cannot be read.
    """
    from sqlglot import exp

    return tuple(sorted({column.name for column in _parsed(f"SELECT {sql}", dialect).find_all(exp.Column)}))


def _parsed(sql: str, dialect: str) -> exp.Expr:
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        return sqlglot.parse_one(sql, dialect=_READ_AS.get(dialect, dialect) or None)
    except SqlglotError as exc:
        raise ValueError(str(exc).splitlines()[0]) from exc


def _scope_of(sql: str, dialect: str) -> Scope:
    from sqlglot import exp
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.optimizer.scope import build_scope

    tree = _parsed(_WATERMARK.sub("NULL", sql), dialect)
    # Names are folded below, so that references meet their columns; what was written is kept for people.
    for table in tree.find_all(exp.Table):
        table.meta["written"] = (table.catalog, table.db, table.name)
    for column in tree.find_all(exp.Column):
        column.meta["written"] = column.name
    # Columns are left as they stand: giving each its table needs all schemas, and only a run could ask for them.
    tree = qualify(
        tree,
        dialect=_READ_AS.get(dialect, dialect) or None,
        qualify_columns=False,
        validate_qualify_columns=False,
        quote_identifiers=False,
    )
    scope = build_scope(tree)
    if scope is None:
        raise ValueError("it is not a query")
    return scope


def _output_names(scope: Scope) -> list[str]:
    """What the columns of a query are called, by itself or by the one around it; `*` for those that are not said."""
    query: Any = scope.expression
    names = ["*" if selected.is_star else selected.alias_or_name for selected in query.selects]
    alias = query.parent.args.get("alias") if query.parent is not None else None
    for place, column in enumerate(getattr(alias, "columns", ())):
        if place < len(names):
            names[place] = column.name
    return names


def _source_named(scope: Scope | None, name: str) -> Any:
    """The table or query behind an alias: of this query, or of one around it."""
    while scope is not None:
        if name in scope.sources:
            return scope.sources[name]
        scope = scope.parent
    return None


def _place_of(scope: Scope, name: str) -> int | None:
    """Where in SELECT a column stands; None when a star hides it."""
    names = [known.casefold() for known in _output_names(scope)]
    first_star = names.index("*") if "*" in names else len(names)
    found = [place for place, known in enumerate(names) if known == name.casefold()]
    # In a UNION, what stands behind a star has another place in each branch.
    return found[0] if found and (found[0] < first_star or not scope.set_operation_scopes) else None


def _walk(node: exp.Expr, stop: set[int]) -> Iterator[exp.Expr]:
    """A node and what is below it, not going into queries inside."""
    yield node
    if id(node) in stop:
        return
    for child in node.iter_expressions():
        yield from _walk(child, stop)


def _fate(column: exp.Expr, top: exp.Expr) -> tuple[How, bool]:
    """What becomes of a column on its way up to the selected expression, and whether it is masked."""
    from sqlglot import exp

    how: How = "TRANSFORMATION"
    masked = False
    child: exp.Expr = column
    node = column.parent
    while node is not None:
        masked = masked or _masks(node)
        if isinstance(node, exp.Window) and child.arg_key in ("partition_by", "order"):
            return "WINDOW", masked
        if isinstance(node, exp.If | exp.Case | exp.Filter) and child.arg_key == _CONDITION[type(node).__name__]:
            return "CONDITIONAL", masked
        if isinstance(node, exp.AggFunc):
            how = "AGGREGATION"
        if node is top:
            break
        child, node = node, node.parent
    return how, masked


_CONDITION = {"If": "this", "Case": "this", "Filter": "expression"}


def _masks(node: exp.Expr) -> bool:
    from sqlglot import exp

    return type(node).__name__ in _MASKS or (
        isinstance(node, exp.Anonymous) and _MASKING_NAMES.match(node.name) is not None
    )


def _deciding_parts(scope: Scope) -> Iterator[tuple[exp.Expr, Indirect]]:
    """The parts of one SELECT that decide about rows."""
    from sqlglot import exp

    whole = scope.expression
    parts: tuple[tuple[str, Indirect], ...] = (
        ("where", "FILTER"),
        ("having", "FILTER"),
        ("qualify", "FILTER"),
        ("group", "GROUP_BY"),
        ("order", "SORT"),
    )
    selects: Sequence[exp.Expr] = getattr(whole, "selects", ())
    given = {selected.alias.casefold(): selected.unalias() for selected in selects if selected.alias}
    named = {selected.alias_or_name.casefold(): selected.unalias() for selected in selects}
    for key, how in parts:
        part = whole.args.get(key)
        if isinstance(part, exp.Group | exp.Order):
            for term in part.expressions:
                bare = term.this if isinstance(term, exp.Ordered) else term
                # An order is one of the result's columns; a group is one of the source's, unless it is not called so.
                yield _meant(bare, whole, named if how == "SORT" else given), how
        elif isinstance(part, exp.Expr):
            yield part, how
    for join in whole.args.get("joins") or ():
        if isinstance(condition := join.args.get("on"), exp.Expr):
            yield condition, "JOIN"


def _meant(term: exp.Expr, whole: Any, aliases: Mapping[str, exp.Expr]) -> exp.Expr:
    """What a term of GROUP BY or ORDER BY stands for: a place, a name given in SELECT, or itself."""
    from sqlglot import exp

    if isinstance(term, exp.Literal) and term.is_int and 0 < int(term.name) <= len(whole.selects):
        chosen: exp.Expr = whole.selects[int(term.name) - 1].unalias()
        return chosen
    if isinstance(term, exp.Column) and not term.table:
        return aliases.get(term.name.casefold(), term)
    return term


def _shared_names(scope: Scope) -> set[str]:
    """The columns of `JOIN … USING (…)`."""
    joins = scope.expression.args.get("joins") or ()
    return {name.name.casefold() for join in joins for name in join.args.get("using") or ()}
