"""Checks of what is written between a marker's parentheses. All failures are `InvalidDeclaration`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from ematix_flow.declare.instants import time_of
from ematix_flow.errors import InvalidDeclaration


def exact(value: Any) -> Decimal:
    """A number as the decimal it is written as: 0.1 is one tenth."""
    if isinstance(value, bool):
        raise TypeError("a boolean is no number")
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def is_number(value: object) -> bool:
    """Whether a declared value is a number; a boolean is none."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def as_instant(value: date) -> datetime:
    """A declared time as an instant: without a zone it is UTC, a day begins at midnight."""
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


def chosen_formats(
    kind: str, one: str | None, several: Iterable[str] | None, standard: tuple[str, ...]
) -> tuple[str, ...]:
    """The formats a parser was given, or its standard ones."""
    if one is not None and several is not None:
        raise InvalidDeclaration(f"{kind}: give format= or formats=, not both.")
    if several is not None:
        found = (several,) if isinstance(several, str) else tuple(several)
        if not found:
            raise InvalidDeclaration(f"{kind}: formats= is empty.")
        return found
    return standard if one is None else (one,)


def default_instant(kind: str, value: object) -> datetime:
    """The default of a time parser as an instant."""
    if isinstance(value, str):
        try:
            value = time_of(value)
        except ValueError:
            raise InvalidDeclaration(f"{kind}: default={value!r} is not a time.") from None
    if not isinstance(value, date):
        raise InvalidDeclaration(f"{kind}: default={value!r} is not a time.", fix="give a datetime or a date")
    return as_instant(value)


def check_scalar(kind: str, name: str, value: object) -> None:
    """Refuse what is no constant: None, NaN, lists…"""
    if value is None:
        raise InvalidDeclaration(f"{kind}: {name} cannot be None.")
    if not isinstance(value, bool | int | float | Decimal | str | date):
        raise InvalidDeclaration(
            f"{kind}: {name}={value!r} is not a constant.",
            fix="give a bool, int, float, Decimal, str, date or datetime",
        )
    if isinstance(value, float | Decimal) and not math.isfinite(value):
        raise InvalidDeclaration(f"{kind}: {name} must be a finite number.")
    if isinstance(value, str):
        check_text(kind, name, value, may_be_empty=True)


def check_text(kind: str, name: str, value: object, *, may_be_empty: bool = False) -> None:
    """Refuse what is no text, or one that databases cannot hold."""
    if not isinstance(value, str):
        raise InvalidDeclaration(f"{kind}: {name} must be a text, not {value!r}.")
    if not value and not may_be_empty:
        raise InvalidDeclaration(f"{kind}: {name} is empty.")
    if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidDeclaration(f"{kind}: {name} holds a character that databases cannot hold.")


def check_whole(kind: str, name: str, value: object, *, least: int, most: int | None = None) -> None:
    """Refuse what is no whole number, or out of its range."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidDeclaration(f"{kind}: {name} must be a whole number, not {value!r}.")
    if value < least or (most is not None and value > most):
        span = f"at least {least}" if most is None else f"between {least} and {most}"
        raise InvalidDeclaration(f"{kind}: {name}={value} must be {span}.")


def user_expression(kind: str, written: object) -> str:
    """The user's SQL without what ends a statement."""
    check_text(kind, "expression", written)
    text = str(written).strip().rstrip(";").rstrip()
    if not text:
        raise InvalidDeclaration(f"{kind}: expression is empty.")
    return text
