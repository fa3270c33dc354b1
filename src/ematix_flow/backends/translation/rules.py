"""What every rule of a translation is given, and the small pieces that rules build Spark SQL from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ematix_flow.backends.translation.kinds import kind
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.errors import InvalidSource

if TYPE_CHECKING:
    from sqlglot import exp

Family = Literal["duckdb", "postgres", "other"]
"""Whose meaning a dialect has; rules are proven for the first two."""


@dataclass(frozen=True)
class Task:
    """One text on its way: what the user wrote, and whose meaning it has."""

    sql: UserSql
    family: Family

    def refused(self, node: exp.Expr | None, reason: str, fix: str | None = None) -> InvalidSource:
        """The error for words that mean something else in Spark and cannot be mended."""
        return self.sql.refused(node, reason, fix)


Rule = Callable[["exp.Expr", Task], "exp.Expr | None"]
"""Gives what to put in the place of a node, or None to leave it."""


def call(name: str, *arguments: exp.Expr) -> exp.Expr:
    """A function of Spark's by its name, kept from being translated again."""
    from sqlglot import exp

    return exp.Anonymous(this=name.upper(), expressions=[argument.copy() for argument in arguments])


def number(value: int) -> exp.Expr:
    """A whole number."""
    from sqlglot import exp

    return exp.Literal.number(value)


def string(value: str) -> exp.Expr:
    """A text constant."""
    from sqlglot import exp

    return exp.Literal.string(value)


def cast(node: exp.Expr, to: str) -> exp.Expr:
    """A value as one of Spark's types."""
    from sqlglot import exp

    return exp.Cast(this=node.copy(), to=exp.DataType.build(to, dialect="spark"))


def operation(name: str, left: exp.Expr, right: exp.Expr) -> exp.Expr:
    """`(left OP right)`; the name is that of sqlglot's class, `Add`, `IntDiv`, `LT`."""
    from sqlglot import exp

    made: exp.Expr = getattr(exp, name)(this=enclosed(left), expression=enclosed(right))
    return exp.Paren(this=made)


def enclosed(node: exp.Expr) -> exp.Expr:
    """A copy that can stand beside an operator."""
    from sqlglot import exp

    copied = node.copy()
    simple = (exp.Column, exp.Literal, exp.Func, exp.Paren, exp.Cast, exp.Subquery, exp.Identifier)
    return copied if isinstance(copied, simple) and not isinstance(copied, exp.Connector) else exp.Paren(this=copied)


def choice(*branches: tuple[exp.Expr, exp.Expr], otherwise: exp.Expr) -> exp.Expr:
    """`CASE WHEN … THEN … ELSE … END`."""
    from sqlglot import exp

    ifs = [exp.If(this=condition.copy(), true=value.copy()) for condition, value in branches]
    return exp.Case(ifs=ifs, default=otherwise.copy())


def constant(node: exp.Expr | None) -> int | None:
    """The value of a whole number that is written out, with or without a sign."""
    from sqlglot import exp

    inner = node
    while isinstance(inner, exp.Paren):
        inner = inner.this
    sign = 1
    if isinstance(inner, exp.Neg):
        sign, inner = -1, inner.this
    if isinstance(inner, exp.Literal) and not inner.is_string and inner.name.isdigit():
        return sign * int(inner.name)
    return None


def text_constant(node: exp.Expr | None) -> str | None:
    """The value of a text that is written out."""
    from sqlglot import exp

    inner = node
    while isinstance(inner, exp.Paren) or (isinstance(inner, exp.Cast) and kind(inner).name == "text"):
        inner = inner.this
    return str(inner.this) if isinstance(inner, exp.Literal) and inner.is_string else None


def whole_aggregate(node: exp.Expr) -> exp.Expr:
    """An aggregate with the FILTER and OVER that belong to it."""
    from sqlglot import exp

    top = node
    while isinstance(top.parent, exp.Filter | exp.Window) and top.parent.this is top:
        top = top.parent
    return top


def within(top: exp.Expr, inner: exp.Expr, other: exp.Expr) -> exp.Expr:
    """The same FILTER and OVER around another aggregate."""
    if top is inner:
        return other
    copied = top.copy()
    place = copied
    depth = top
    while depth is not inner:
        depth, place = depth.this, place.this
    place.replace(other)
    return copied
