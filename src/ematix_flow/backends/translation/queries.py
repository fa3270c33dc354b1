"""Whole queries: QUALIFY and DISTINCT ON in words that Spark knows, and joins that it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.translation.rules import Rule, Task

if TYPE_CHECKING:
    from sqlglot import exp

_FILTERED = "ematix_filtered"


def refuse_joins(tree: exp.Expr, task: Task) -> None:
    """Spark would read `t POSITIONAL JOIN u` as a plain join of `t` under another name."""
    from sqlglot import exp

    for join in tree.find_all(exp.Join):
        method = (join.args.get("method") or join.args.get("kind") or "").upper()
        if method in ("POSITIONAL", "ARRAY", "PASTE"):
            raise task.refused(join, f"{method} JOIN has no counterpart in Spark.", "join on a condition")


def fold_names(tree: exp.Expr) -> None:
    """Names that are not quoted are in lower case, as PostgreSQL reads them."""
    from sqlglot import exp

    for name in tree.find_all(exp.Identifier):
        if not name.args.get("quoted"):
            name.set("this", name.name.lower())


def _order_term(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`ORDER BY x + 1` means the column there, and here a name of the output that hides it."""
    from sqlglot import exp

    select = node.parent.parent if node.parent is not None else None
    if isinstance(node.this, exp.Column) or not isinstance(select, exp.Select):
        return None
    given = {part.alias.lower() for part in select.selects if isinstance(part, exp.Alias)}
    for column in node.find_all(exp.Column):
        if not column.table and column.name.lower() in given and "source" in column.meta:
            column.set("table", exp.to_identifier(column.meta["source"], quoted=True))
    return None


RULES: Mapping[str, Rule] = {"Ordered": _order_term}


def without_qualify(tree: exp.Expr, task: Task) -> exp.Expr:
    """The query with every QUALIFY and DISTINCT ON as a filter around a subquery; ORDER BY and LIMIT come after it."""
    from sqlglot import exp

    for select in reversed(list(tree.find_all(exp.Select))):
        distinct = select.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            _keep_first(select, distinct.args["on"], task)
        if select.args.get("qualify") is None:
            continue
        made = _filtered(select)
        if select is tree:
            tree = made
        else:
            select.replace(made)
    return tree


def _keep_first(select: exp.Select, on: exp.Expr, task: Task) -> None:
    """DISTINCT ON keeps the first row of each key, in the order of the query."""
    from sqlglot import exp

    named = {part.alias.lower(): part.this for part in select.selects if isinstance(part, exp.Alias)}
    keys = [named.get(key.name.lower(), key) if isinstance(key, exp.Column) else key for key in on.expressions]
    for key in keys:
        if isinstance(key, exp.Literal):
            raise task.refused(key, "DISTINCT ON takes expressions here, not positions.")
    order = select.args.get("order")
    terms = [term.copy() for term in order.expressions] if order else [exp.Ordered(this=key.copy()) for key in keys]
    for term in terms:
        if isinstance(term.this, exp.Literal):
            raise task.refused(term, "DISTINCT ON needs an order by expressions here, not by positions.")
        for column in list(term.find_all(exp.Column)):
            if not column.table and column.name.lower() in named:
                column.replace(named[column.name.lower()].copy())
    ranked = exp.Window(
        this=exp.RowNumber(), partition_by=[key.copy() for key in keys], order=exp.Order(expressions=terms), over="OVER"
    )
    select.set("distinct", None)
    select.set("qualify", exp.Qualify(this=exp.EQ(this=ranked, expression=exp.Literal.number(1))))


def _filtered(select: exp.Select) -> exp.Select:
    from sqlglot import exp

    extra: list[str] = []
    has_star = any(part.is_star for part in select.selects)
    for place, part in enumerate(list(select.selects)):
        if not part.is_star and not part.alias_or_name:
            part.replace(exp.alias_(part.copy(), f"ematix_column_{place}"))
    outputs = {part.alias_or_name.lower() for part in select.selects if not part.is_star}
    names = [part.alias_or_name for part in select.selects]

    def kept(node: exp.Expr) -> exp.Expr:
        """A column of the filtered rows that holds this expression."""
        name = f"{_FILTERED}_{len(extra)}"
        extra.append(name)
        select.select(exp.alias_(node.copy(), name), copy=False)
        return exp.column(name)

    def lifted(node: exp.Expr) -> exp.Expr:
        whole = node.copy()
        holder = exp.Paren(this=whole)
        for window in list(holder.find_all(exp.Window)):
            window.replace(kept(window))
        for column in list(holder.find_all(exp.Column)):
            if column.name in extra or (not column.table and (has_star or column.name.lower() in outputs)):
                continue
            column.replace(kept(column))
        result: exp.Expr = holder.this
        return result

    condition = lifted(select.args["qualify"].this)
    order = select.args.get("order")
    terms = []
    for term in order.expressions if order else ():
        changed = term.copy()
        if not isinstance(changed.this, exp.Literal):
            changed.set("this", lifted(changed.this))
        terms.append(changed)
    outer = exp.Select(expressions=[])
    for clause in ("with_", "limit", "offset"):
        if select.args.get(clause) is not None:
            outer.set(clause, select.args[clause])
            select.set(clause, None)
    select.set("qualify", None)
    select.set("order", None)
    if has_star:
        star = exp.Star(**({"except_": [exp.to_identifier(name) for name in extra]} if extra else {}))
        outer.set("expressions", [star])
    else:
        outer.set("expressions", [exp.column(exp.to_identifier(name)) for name in names])
    outer = outer.from_(exp.Subquery(this=select.copy(), alias=exp.TableAlias(this=exp.to_identifier(_FILTERED))))
    outer = outer.where(condition)
    if terms:
        outer.set("order", exp.Order(expressions=terms))
    return outer
