"""Lists and ordered aggregates that come out differently: NULLs, order, the first index, series of numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.translation.kinds import kind
from ematix_flow.backends.translation.rules import (
    Rule,
    Task,
    call,
    cast,
    choice,
    constant,
    number,
    operation,
    text_constant,
    whole_aggregate,
    within,
)

if TYPE_CHECKING:
    from sqlglot import exp


def _list_of_values(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`array_agg` keeps NULLs and an order there, and gives NULL for no rows; Spark's does none of it."""
    from sqlglot import exp

    inner, order = node.this, None
    if isinstance(inner, exp.Order):
        inner, order = inner.this, inner
    is_distinct = isinstance(inner, exp.Distinct)
    value = inner.expressions[0] if is_distinct else inner
    if task.family == "other" and order is None:
        return None
    if is_distinct and order is not None:
        raise task.refused(node, "DISTINCT and ORDER BY together have no counterpart in Spark.", "order the list later")
    terms = list(order.expressions) if order is not None else []
    pairs = [(string_name("v"), value), *((string_name(f"k{place}"), term.this) for place, term in enumerate(terms))]
    packed: exp.Expr = call("named_struct", *(part for pair in pairs for part in pair))
    if is_distinct:
        packed = exp.Distinct(expressions=[packed])
    top = whole_aggregate(node)
    gathered: exp.Expr = within(top, node, exp.Anonymous(this="COLLECT_LIST", expressions=[packed]))
    if terms:
        comparison = _lambda(["a", "b"], _compared(terms))
        gathered = exp.Anonymous(this="ARRAY_SORT", expressions=[gathered, comparison])
    made = call("transform", gathered, _lambda(["s"], exp.Dot(this=_variable("s"), expression=exp.to_identifier("v"))))
    if task.family != "other":
        made = call("nullif", made, exp.Anonymous(this="ARRAY", expressions=[]))
    made.meta["kind"] = kind(node)
    top.replace(made)
    return made


def string_name(name: str) -> exp.Expr:
    """The name of a field, as `named_struct` takes it."""
    from sqlglot import exp

    return exp.Literal.string(name)


def _variable(name: str) -> exp.Expr:
    from sqlglot import exp

    return exp.to_identifier(name)


def _lambda(names: list[str], body: exp.Expr) -> exp.Expr:
    from sqlglot import exp

    return exp.Lambda(this=body, expressions=[exp.to_identifier(name) for name in names])


def _compared(terms: list[exp.Expr]) -> exp.Expr:
    """How two packed rows are ordered: -1, 0 or 1."""
    from sqlglot import exp

    found: exp.Expr = number(0)
    for place in reversed(range(len(terms))):
        descending = bool(terms[place].args.get("desc"))
        before = exp.Neg(this=number(1))
        first, second = (
            exp.Dot(this=_variable(side), expression=exp.to_identifier(f"k{place}")) for side in ("a", "b")
        )
        null_first = before if terms[place].args.get("nulls_first") else number(1)
        null_last = number(1) if terms[place].args.get("nulls_first") else before
        less, more = (number(1), before) if descending else (before, number(1))
        missing = [exp.Is(this=side.copy(), expression=exp.Null()) for side in (first, second)]
        found = choice(
            (exp.And(this=missing[0].copy(), expression=exp.Not(this=missing[1].copy())), null_first),
            (exp.And(this=exp.Not(this=missing[0].copy()), expression=missing[1].copy()), null_last),
            (exp.LT(this=first.copy(), expression=second.copy()), less),
            (exp.GT(this=first.copy(), expression=second.copy()), more),
            otherwise=found,
        )
    return found


def _element(node: exp.Expr, task: Task) -> exp.Expr | None:
    """Lists begin at 1 there; an index beyond the end gives NULL there and an error here."""
    from sqlglot import exp

    inside, index = kind(node.this), node.expressions[0]
    if len(node.expressions) != 1 or (text_constant(index) is not None and inside.name != "text"):
        return None  # a field of a struct, or a key of a map
    if isinstance(index, exp.Slice):
        first, last = constant(index.this), constant(index.expression)
        if inside.name != "list" or first is None or last is None or first < 1 or last < first:
            raise task.refused(node, "this slice has no counterpart in Spark.", "write two positive numbers: l[1:3]")
        return call("slice", node.this, number(first), number(last - first + 1))
    place = constant(index)
    if inside.name == "text":
        if place is None or place < 1:
            raise task.refused(node, "this index into a text has no counterpart in Spark.", "use substring")
        return call("substring", node.this, number(place), number(1))
    lowest = 1 if task.family == "postgres" else -math.inf
    if place is not None:
        return call("try_element_at", node.this, index) if place != 0 and place >= lowest else exp.Null()
    if inside.name != "list":
        return call("try_element_at", node.this, index)
    outside = operation("EQ", index, number(0)) if task.family == "duckdb" else operation("LT", index, number(1))
    return choice((outside, exp.Null()), otherwise=call("try_element_at", node.this, cast(index, "int")))


def _percentile(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`percentile_cont(p) WITHIN GROUP (ORDER BY x)` is exact in Spark too, under the same name."""
    from sqlglot import exp

    inner = node.this
    if not isinstance(inner, exp.PercentileCont | exp.PercentileDisc):
        return None
    name = "percentile_cont" if isinstance(inner, exp.PercentileCont) else "percentile_disc"
    terms = node.expression.expressions
    if len(terms) != 1:
        raise task.refused(node, "a percentile is ordered by one expression.")
    order = exp.Order(
        expressions=[
            exp.Ordered(
                this=terms[0].this.copy(), desc=terms[0].args.get("desc"), nulls_first=not terms[0].args.get("desc")
            )
        ]
    )
    return exp.WithinGroup(this=call(name, inner.this), expression=order)


def _quantile(node: exp.Expr, task: Task) -> exp.Expr | None:
    """DuckDB's `quantile_cont(x, p)` in the words of the standard."""
    from sqlglot import exp

    share = node.args.get("quantile") or node.args.get("expression")
    if share is None:
        return None
    name = "percentile_cont" if type(node).__name__ == "PercentileCont" else "percentile_disc"
    order = exp.Order(expressions=[exp.Ordered(this=node.this.copy(), nulls_first=True)])
    return exp.WithinGroup(this=call(name, share), expression=order)


def _series(node: exp.Expr, task: Task) -> exp.Expr | None:
    """A series that ends before it begins is empty there; Spark's runs backwards."""
    from sqlglot import exp

    start, end, step = node.args["start"], node.args["end"], node.args.get("step")
    exclusive = bool(node.args.get("is_end_exclusive"))
    is_time = kind(start).is_time
    if is_time and (kind(step).name != "interval" or exclusive):
        raise task.refused(node, "a series of times needs an interval as its step.")
    width = None if step is None or is_time else constant(step)
    if not is_time and step is not None and (width is None or width < 1 or exclusive):
        raise task.refused(node, "only series that go up by a written number can be taken over.")
    if is_time:
        start, end = cast(start, "timestamp_ntz"), cast(end, "timestamp_ntz")
    elif exclusive:
        end = operation("Sub", end, number(1))
    listed = call("sequence", start, end, *([step] if step is not None else []))
    made: exp.Expr = choice(
        (operation("GTE", end, start), listed), otherwise=exp.Anonymous(this="ARRAY", expressions=[])
    )
    table = node.parent
    if not isinstance(table, exp.Table):
        return call("explode", made) if type(node).__name__ == "ExplodingGenerateSeries" else made
    alias = table.args.get("alias")
    named = alias.columns[0].name if alias is not None and alias.columns else None
    if named is None:
        named = (
            alias.name
            if alias is not None and task.family == "postgres"
            else "range"
            if exclusive
            else "generate_series"
        )
    rows = exp.Select(expressions=[exp.alias_(call("explode", made), named)])
    shown = alias.name if alias is not None else named
    table.replace(exp.Subquery(this=rows, alias=exp.TableAlias(this=exp.to_identifier(shown))))
    return None


def _size(node: exp.Expr, task: Task) -> exp.Expr | None:
    """PostgreSQL's `array_length` of an empty list is NULL."""
    return call("nullif", call("size", node.this), number(0)) if task.family == "postgres" else None


def _length(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`len` is for texts and lists alike in DuckDB."""
    return call("size", node.this) if kind(node.this).name == "list" else None


def _unnesting(node: exp.Expr, task: Task) -> exp.Expr | None:
    if node.args.get("offset"):
        raise task.refused(
            node, "WITH ORDINALITY counts from 1, and Spark from 0.", "use posexplode with dialect='spark'"
        )
    return None


RULES: Mapping[str, Rule] = {
    "ArrayAgg": _list_of_values,
    "Bracket": _element,
    "WithinGroup": _percentile,
    "PercentileCont": _quantile,
    "PercentileDisc": _quantile,
    "Quantile": _quantile,
    "GenerateSeries": _series,
    "ExplodingGenerateSeries": _series,
    "ArraySize": _size,
    "Length": _length,
    "Unnest": _unnesting,
}
