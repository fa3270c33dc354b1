"""The SQL functions that SQLite borrows from us: one per marker, the fitting of values to types, and the row hash.

They are the functions of `declare/values.py`, so SQLite computes exactly what the model says. SQLite tells the caller
only that "a user-defined function raised"; the reason waits in `take_error`.
"""

from __future__ import annotations

import functools
import json
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ematix_flow.declare import fitting, values
from ematix_flow.declare.patterns import portable
from ematix_flow.declare.values import Stored, Unfit
from ematix_flow.errors import FlowError, UnfitValue

_raised = threading.local()
_Result = TypeVar("_Result")


def register(connection: sqlite3.Connection) -> None:
    """Make the functions known to a connection. Called once for each that is opened."""
    for name, (arity, function) in _FUNCTIONS.items():
        connection.create_function(f"ematix_{name}", arity, _reporting(function), deterministic=True)
    connection.create_collation("ematix_decimal", _compare_decimals)


def take_error() -> FlowError | None:
    """The reason for the last failure of a function in this thread; asking again gives None."""
    error: FlowError | None = getattr(_raised, "error", None)
    _raised.error = None
    return error


def _reporting(function: Callable[..., _Result]) -> Callable[..., _Result]:
    @functools.wraps(function)
    def reported(*arguments: Any) -> _Result:
        try:
            return function(*arguments)
        except UnfitValue as exc:
            _raised.error = exc
            raise
        except Unfit as exc:
            _raised.error = UnfitValue(f"A value does not fit its column: {exc}.")
            raise

    return reported


def _over_text(function: Callable[..., Stored]) -> Callable[..., Stored]:
    """A text function for any stored value; NULL stays NULL."""

    @functools.wraps(function)
    def over_stored(value: Stored, *arguments: Any) -> Stored:
        text = values.text_of(value)
        return None if text is None else function(text, *arguments)

    return over_stored


def _or_null(function: Callable[..., Stored]) -> Callable[..., Stored]:
    @functools.wraps(function)
    def guarded(value: Stored, *arguments: Any) -> Stored:
        return None if value is None else function(value, *arguments)

    return guarded


def _settled(value: Stored, read: Stored, on_failure: str, default: Stored, column: str, marker: str) -> Stored:
    """What a parser gives: what it read, or what was declared for failure."""
    if read is not None:
        return read
    if on_failure == "default":
        return default
    if on_failure == "error" and value is not None:
        raise UnfitValue(
            f"Column '{column}' has a value that {marker}() cannot read.",
            fix=f"{marker}(on_failure='null') lets it pass",
        )
    return None


def _parse_int(value: Stored, _: None, on_failure: str, default: Stored, column: str) -> Stored:
    return _settled(value, values.parse_int(value), on_failure, default, column, "parse_int")


def _parse_numeric(value: Stored, precision: int, scale: int, on_failure: str, default: Stored, column: str) -> Stored:
    read = values.parse_numeric(value, precision, scale)
    return _settled(value, read, on_failure, default, column, "parse_numeric")


def _parse_timestamp(value: Stored, formats: str, on_failure: str, default: Stored, column: str) -> Stored:
    read = values.parse_timestamp(value, _listed(formats))
    return _settled(value, read, on_failure, default, column, "parse_timestamp")


def _parse_date(value: Stored, formats: str, on_failure: str, default: Stored, column: str) -> Stored:
    read = values.parse_date(value, _listed(formats))
    return _settled(value, read, on_failure, default, column, "parse_date")


def _parse_bool(value: Stored, truthy: str, falsy: str) -> Stored:
    return values.parse_bool(value, _listed(truthy), _listed(falsy))


def _regex_replace(text: str, pattern: str, replacement: str, flags: str) -> str:
    common = portable(pattern, "i" in flags)
    if common is None:
        raise Unfit("a pattern on which regex engines disagree")
    return values.regex_replace(text, common, replacement, "g" in flags)


def _fit(
    value: Stored, kind: str, first: int | None, second: int | None, column: str | None, source: str | None = None
) -> Stored:
    try:
        return fitting.fit(value, kind, first, second, source)
    except Unfit as exc:
        wanted = kind + (f"({first})" if second is None and first is not None else "")
        wanted += f"({first}, {second})" if second is not None else ""
        raise UnfitValue(
            f"Column '{column}' has a value that does not fit {wanted}: {exc}." if column else f"A value is {exc}."
        ) from None


def _compare_decimals(left: str, right: str) -> int:
    try:
        first, second = values.number_of(left), values.number_of(right)
    except Unfit:  # a text that is no decimal; SQLite needs some order all the same
        return (left > right) - (left < right)
    return (first > second) - (first < second)


@functools.lru_cache(maxsize=256)
def _listed(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "trim": (1, _over_text(values.trim)),
    "lower": (1, _over_text(values.lower)),
    "upper": (1, _over_text(values.upper)),
    "empty_to_null": (1, _over_text(values.empty_to_null)),
    "whitespace_to_null": (1, _over_text(values.whitespace_to_null)),
    "email_normalize": (1, _over_text(values.email_normalize)),
    "phone_normalize": (1, _over_text(values.phone_normalize)),
    "replace": (3, _over_text(str.replace)),
    "regex_replace": (4, _over_text(_regex_replace)),
    "truncate": (2, _over_text(lambda text, length: text[:length])),
    "parse_int": (5, _parse_int),
    "parse_numeric": (6, _parse_numeric),
    "parse_timestamp": (5, _parse_timestamp),
    "parse_date": (5, _parse_date),
    "parse_bool": (3, _parse_bool),
    "to_timezone": (2, _or_null(values.to_timezone)),
    "later": (2, _or_null(values.later)),
    "date_trunc": (2, _or_null(values.date_trunc)),
    "round": (2, _or_null(values.round_half_up)),
    "clamp": (3, _or_null(values.clamp)),
    "nullif": (3, _or_null(values.nullif)),
    "fit": (-1, _fit),
    "sha256": (-1, values.sha256),
}
