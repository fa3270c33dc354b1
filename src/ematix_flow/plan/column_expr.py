"""A column's value as SQL text, and the refusal to write it so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ematix_flow.declare.columns import BigInt, ColumnType, Numeric, Text
from ematix_flow.declare.fitting import TEXT_KINDS, constant
from ematix_flow.declare.normalizers import GREATEST_PRECISION, Normalizer
from ematix_flow.declare.values import Unfit

UTC_NAMES = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Zulu", "Etc/Zulu", "Universal", "Etc/Universal", "UCT"})
"""Names of the one zone that is the same in every release of the time zone data."""


@dataclass(frozen=True)
class ColumnExpr:
    """An expression and its type; None when nobody knows it before it has run."""

    sql: str
    type: ColumnType | None


@dataclass(frozen=True)
class NotPushable:
    """Why a database cannot give exactly the result Spark gives. Not an error: the load takes the other route."""

    reason: str


class CannotPush(Exception):
    """Carries the reason out of the depth of a compiler; never leaves `plan/`."""


def kind_of(column_type: ColumnType | None) -> str | None:
    """The kind of a type, None when unknown."""
    return None if column_type is None else column_type.kind


def fitted(value: Any, column_type: ColumnType) -> Any:
    """A constant as a value of a column type.

    Raises:
        CannotPush: it is none.
    """
    try:
        return constant(value, column_type.kind)
    except Unfit as exc:
        raise CannotPush(f"a constant is {exc}") from None


def may_equal(column_type: ColumnType, value: Any) -> bool:
    """Whether a column can hold a constant at all; what is no value of the type is never equal to one."""
    try:
        constant(value, column_type.kind)
    except Unfit:
        return False
    return True


def rounded_type(given: Numeric, places: int) -> Numeric:
    """The type of a decimal after rounding: one digit may be carried."""
    if places >= given.scale:
        return given
    scale = max(places, 0)
    return Numeric(min(max(given.precision - given.scale + scale + 1, scale + 1), GREATEST_PRECISION), scale)


def shown(normalizer: Normalizer) -> str:
    """A marker for a reason: its name, without arguments that may be long."""
    return f"{normalizer.kind}()"


def type_with_room(given: ColumnType, values: tuple[Any, ...]) -> ColumnType:
    """The type that also holds some constants: 64 bits, or more digits on either side of the point."""
    if given.kind in ("small_int", "integer"):
        return BigInt()
    if not isinstance(given, Numeric):
        return Text() if given.kind in TEXT_KINDS else given
    whole, scale = given.precision - given.scale, given.scale
    for value in values:
        number = constant(value, "numeric")
        scale = max(scale, -int(number.as_tuple().exponent))
        whole = max(whole, number.adjusted() + 1)
    if whole + scale > GREATEST_PRECISION:
        raise CannotPush("a constant has more digits than every route can hold")
    return Numeric(whole + scale, scale)
