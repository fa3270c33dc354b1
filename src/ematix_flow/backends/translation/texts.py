"""Texts that come out differently: NULL in concatenations, substrings before the first letter, escapes in LIKE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.translation.kinds import kind
from ematix_flow.backends.translation.numbers import refuse_as_text
from ematix_flow.backends.translation.rules import (
    Rule,
    Task,
    call,
    cast,
    choice,
    constant,
    number,
    operation,
    string,
    text_constant,
)

if TYPE_CHECKING:
    from sqlglot import exp

_UNUSED = "\x01"
_LONGEST = 2**31 - 1


def _concatenation(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`concat` skips NULL there; here one NULL makes the whole NULL."""
    parts = []
    for part in node.expressions:
        if kind(part).name == "list":
            return call("concat", *node.expressions)
        refuse_as_text(part, task)
        if text_constant(part) is not None:
            parts.append(part)
        else:
            parts.append(call("coalesce", part if kind(part).name == "text" else cast(part, "string"), string("")))
    return call("concat", *parts)


def _joining(node: exp.Expr, task: Task) -> exp.Expr | None:
    for part in (node.this, node.expression):
        if kind(part).name != "list":
            refuse_as_text(part, task)
    return None


def _substring(node: exp.Expr, task: Task) -> exp.Expr | None:
    """Positions before the first letter count there; Spark takes 0 for 1. DuckDB takes negative lengths backwards."""
    from sqlglot import exp

    text, start, length = node.this, node.args.get("start"), node.args.get("length")
    if start is None or text_constant(start) is not None or kind(start).name == "text":
        raise task.refused(node, "a substring by pattern has no counterpart in Spark.", "use regexp_extract")
    first, count = constant(start), constant(length)
    from_end = task.family == "duckdb"
    if length is None:
        if first is not None and (first >= 1 or from_end):
            return call("substring", text, number(first or 1))
        if first is not None:
            return exp.Paren(this=text.copy())
        lowest = start if from_end else call("greatest", start, number(1))
        return choice(
            (exp.Is(this=start.copy(), expression=exp.Null()), exp.Null()), otherwise=call("substring", text, lowest)
        )
    if count is not None and count < 0 and not from_end:
        raise task.refused(node, "a negative length is an error in PostgreSQL.")
    if first is not None and first >= 1 and count is not None and count >= 0:
        return call("substring", text, start, length)
    begin = start
    if from_end and first is None:
        behind = operation("Add", operation("Add", call("length", text), start), number(1))
        begin = choice((operation("LT", start, number(0)), behind), otherwise=start)
    elif from_end and first is not None and first < 0:
        begin = operation("Add", call("length", text), number(first + 1))
    if first is None or count is None:  # positions of columns may be as large as an integer can be
        begin = cast(begin, "bigint")
    other = operation("Add", begin, length)
    lowest, highest = begin, other
    if from_end and (count is None or count < 0):
        lowest, highest = call("least", begin, other), call("greatest", begin, other)
    entry = call("greatest", lowest, number(1))
    span = call("greatest", operation("Sub", highest, entry), number(0))
    if first is None or count is None:
        entry, span = (cast(call("least", side, number(_LONGEST)), "int") for side in (entry, span))
    taken = call("substring", text, entry, span)
    missing = [exp.Is(this=part.copy(), expression=exp.Null()) for part in (start, length) if constant(part) is None]
    return choice(*((one, exp.Null()) for one in missing), otherwise=taken) if missing else taken


def _end_of_text(name: str) -> Rule:
    """`left(x, -1)` leaves out the last letter there and gives nothing here."""

    def rule(node: exp.Expr, task: Task) -> exp.Expr | None:
        count = constant(node.expression)
        if count is not None and count >= 0:
            return None
        rest = call("greatest", operation("Add", call("length", node.this), node.expression), number(0))
        if count is not None:
            return call(name, node.this, rest)
        is_negative = operation("LT", node.expression, number(0))
        return call(name, node.this, choice((is_negative, rest), otherwise=node.expression))

    return rule


def _likeness(node: exp.Expr, task: Task) -> exp.Expr | None:
    """DuckDB has no escape unless one is named; Spark and PostgreSQL take the backslash."""
    from sqlglot import exp

    pattern = text_constant(node.expression)
    if task.family != "duckdb" or isinstance(node.parent, exp.Escape) or (pattern is not None and "\\" not in pattern):
        return None
    unused = next(c for c in "!|~^#@$" if c not in pattern) if pattern is not None else _UNUSED
    return exp.Escape(this=node.copy(), expression=string(unused))


def _gathering(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`string_agg` of anything but text."""
    from sqlglot import exp

    inner = node.this
    while isinstance(inner, exp.Order | exp.Distinct):
        inner = inner.this if isinstance(inner, exp.Order) else inner.expressions[0]
    refuse_as_text(inner, task)
    if kind(inner).name not in ("text", "unknown"):
        inner.replace(cast(inner, "string"))
    return None


def _no_counterpart(words: str, fix: str) -> Rule:
    def rule(node: exp.Expr, task: Task) -> exp.Expr | None:
        raise task.refused(node, f"{words} has no counterpart in Spark.", fix)

    return rule


def _initial_capitals(node: exp.Expr, task: Task) -> exp.Expr | None:
    raise task.refused(node, "which letters begin a word differs.", "write it out with upper, lower and substring")


RULES: Mapping[str, Rule] = {
    "Concat": _concatenation,
    "DPipe": _joining,
    "Substring": _substring,
    "Left": _end_of_text("left"),
    "Right": _end_of_text("right"),
    "Like": _likeness,
    "ILike": _likeness,
    "GroupConcat": _gathering,
    "SimilarTo": _no_counterpart("SIMILAR TO", "use LIKE or regexp_matches"),
    "Glob": _no_counterpart("GLOB", "use LIKE or regexp_matches"),
    "Initcap": _initial_capitals,
}
