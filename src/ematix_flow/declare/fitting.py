"""Column types for one value: what fits, and the form in which it is stored.

Text is read as an ANSI CAST of Spark reads it, so that a value fits on one route exactly when it fits on the other.
"""

from __future__ import annotations

import json
import math
import re
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from ematix_flow.declare.marker_arguments import as_instant
from ematix_flow.declare.values import (
    Stored,
    Unfit,
    compiled,
    double_text,
    fixed_decimal,
    instant_text,
    number_of,
    plain_decimal,
    read_time,
    text_of,
    wall_text,
)

INTEGER_BITS = {"small_int": 16, "integer": 32, "big_int": 64}
TEXT_KINDS = frozenset({"text", "string", "json", "jsonb", "uuid"})
TIME_KINDS = frozenset({"date", "timestamp", "timestamp_tz"})
_BLANKS = "".join(map(chr, range(33)))


def fit(
    value: Stored, kind: str, first: int | None = None, second: int | None = None, source: str | None = None
) -> Stored:
    """A value in the stored form of a column type.

    Args:
        value: What came.
        kind: The type's kind, with `first` and `second` its arguments: length, or precision and scale.
        source: The kind the value had, when its stored form does not tell: a decimal and a time are texts too.

    Raises:
        Unfit: it is no value of that type; text is read as an ANSI CAST reads it.
    """
    if value is None:
        return None
    if kind in INTEGER_BITS:
        return _fit_integer(value, INTEGER_BITS[kind], source)
    if kind in ("text", "string"):
        return _fit_text(value, first, source)
    fitted: Stored = _FITTERS[kind](value, first, second)
    return fitted


def constant(value: Any, kind: str) -> Any:
    """A declared constant as a Python value of a column type, for `default`, `nullif` and `clamp`.

    Raises:
        Unfit: the constant is no value of that type.
    """
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if kind in TEXT_KINDS:
        return constant_text(value)
    if kind in INTEGER_BITS and (is_number or isinstance(value, str)):
        number = number_of(value)
        if number == int(number) and -(2**63) <= number < 2**63:
            return int(number)
    if kind == "numeric" and (is_number or isinstance(value, str)):
        return number_of(value)
    if kind in ("float", "double") and (is_number or isinstance(value, str)):
        return float(number_of(value))
    if kind == "boolean":
        if isinstance(value, bool):
            return value
        if isinstance(value, int | str) and str(value).lower() in ("true", "1", "false", "0"):
            return str(value).lower() in ("true", "1")
    if kind in TIME_KINDS and isinstance(value, date | str):
        moment = _declared_time(value)
        if kind == "date":
            if moment.time() == datetime.min.time():
                return moment.date()
            raise Unfit("a time where a day is needed")
        return moment if kind == "timestamp" else moment.replace(tzinfo=timezone.utc)
    if kind == "bytes" and isinstance(value, str):
        return value.encode()
    raise Unfit(f"a constant that is no {kind}")


def constant_text(value: Any) -> str:
    """A declared constant as text that its own type can read back."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return wall_text(value) if value.tzinfo is None else instant_text(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return double_text(value)
    return plain_decimal(value) if isinstance(value, Decimal) else str(value)


def _declared_time(value: Any) -> datetime:
    """A constant as a naive UTC time."""
    if isinstance(value, str):
        return _fit_time(value, keeps_zone=True)
    return as_instant(value).replace(tzinfo=None)


def _fit_integer(value: Any, bits: int, source: str | None) -> int:
    if isinstance(value, str):
        text = _stripped(value)
        if source == "numeric":
            number = number_of(text)
            whole = int(number)
            if whole != number:
                raise Unfit("not a whole number")
        elif compiled("[+-]?[0-9]+").fullmatch(text):
            significant = text.lstrip("+-").lstrip("0") or "0"
            whole = int(significant[:30]) * (-1 if text.startswith("-") else 1)
        else:
            raise Unfit("not a whole number")
    elif isinstance(value, float):
        if not value.is_integer():
            raise Unfit("not a whole number")
        whole = int(value)
    elif isinstance(value, int):
        whole = int(value)
    else:
        raise Unfit("not a whole number")
    if not -(2 ** (bits - 1)) <= whole < 2 ** (bits - 1):
        raise Unfit(f"out of the range of {bits} bits")
    return whole


def _fit_text(value: Any, length: int | None, source: str | None) -> str:
    if source == "boolean" and isinstance(value, int):
        text = "true" if value else "false"
    elif source in ("timestamp", "timestamp_tz") and isinstance(value, str):
        moment = read_time(value)
        text = moment.isoformat(sep=" ", timespec="microseconds").rstrip("0").rstrip(".")
    elif isinstance(value, bytes):
        raise Unfit("bytes are no text")
    else:
        text = text_of(value) or ""
    if length is not None and len(text) > length:
        raise Unfit(f"longer than {length} characters")
    return text


def _fit_boolean(value: Any, *_: int | None) -> int:
    if isinstance(value, str):
        word = _stripped(value).lower()
        if word in ("t", "true", "y", "yes", "1"):
            return 1
        if word in ("f", "false", "n", "no", "0"):
            return 0
    elif isinstance(value, int) and value in (0, 1):
        return int(value)
    raise Unfit("not a boolean")


def _fit_numeric(value: Any, precision: int | None, scale: int | None) -> str:
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        raise Unfit("not a decimal number")
    if isinstance(value, str):
        text = value.strip(_BLANKS)
        if not compiled(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,6})?").fullmatch(text):  # digits of any script
            raise Unfit("not a decimal number")
        number = Decimal(text)
    else:
        number = number_of(value)
    fixed = fixed_decimal(number, precision or 38, scale or 0)
    if fixed is None:
        raise Unfit("out of range")
    return fixed


def _fit_double(value: Any, *_: int | None) -> float:
    if isinstance(value, str):
        value = _read_double(value.strip(_BLANKS))
    if isinstance(value, bytes):
        raise Unfit("not a number")
    number = float(value)
    if math.isnan(number):
        raise Unfit("NaN cannot be stored")
    return number


def _read_double(text: str) -> float:
    """As Java reads it, which knows hexadecimal numbers and lets a type letter follow."""
    special = compiled(r"([+-]?)(inf|infinity|nan)").fullmatch(text.lower())
    if special is not None and not (special.group(2) == "nan" and special.group(1)):
        return float(text)
    if compiled(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[dDfF]?").fullmatch(text):
        return float(text.rstrip("dDfF"))
    if compiled(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[dDfF]?").fullmatch(text):
        try:
            return float.fromhex(text.rstrip("dDfF"))
        except OverflowError:
            return -math.inf if text.startswith("-") else math.inf
    raise Unfit("not a number")


def _fit_float(value: Any, *_: int | None) -> float:
    number = _fit_double(value)
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        raise Unfit("out of the range of 32 bits") from None


_DAY = r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})%s)?)?"
_TIME = (
    r"(?:[T ](?:([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{0,9}))?)?)"
    r" ?(Z|UTC|GMT|[+-][0-9]{1,2}(?::?[0-9]{2})?)?)?"
)


def _fit_date(value: Any, *_: int | None) -> str:
    if not isinstance(value, str):
        raise Unfit("not a date")
    match = compiled(_DAY % r"(?:[T ].*)?", re.DOTALL).fullmatch(_stripped(value))
    if match is None:
        raise Unfit("not a date")
    year, month, day = (int(part or 1) for part in match.groups())
    try:
        return date(year, month, day).isoformat()
    except ValueError:
        raise Unfit("no such day") from None


def _fit_time(value: Any, keeps_zone: bool) -> datetime:
    """As a CAST reads it: an offset moves an instant, and is dropped from a wall-clock time."""
    if not isinstance(value, str):
        raise Unfit("not a time")
    match = compiled(_DAY % _TIME).fullmatch(_stripped(value))
    if match is None:
        raise Unfit("not a time")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    micros = int((fraction or "0")[:6].ljust(6, "0"))
    try:
        moment = datetime(int(year), int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0))
        moment += timedelta(microseconds=micros)
        if zone and zone[0] in "+-":
            digits = zone[1:].replace(":", "") if len(zone) > 3 else zone[1:].zfill(2)
            if len(digits) == 3:
                digits = "0" + digits
            digits = digits.ljust(4, "0")
            away = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
            if int(digits[2:]) > 59 or away > timedelta(hours=18):
                raise Unfit("no such offset")
            if keeps_zone:
                moment = moment - away if zone[0] == "+" else moment + away
    except (ValueError, OverflowError):
        raise Unfit("no such time") from None
    return moment


def _fit_timestamp(value: Any, *_: int | None) -> str:
    return wall_text(_fit_time(value, keeps_zone=False))


def _fit_timestamp_tz(value: Any, *_: int | None) -> str:
    return wall_text(_fit_time(value, keeps_zone=True)) + "Z"


def _fit_uuid(value: Any, *_: int | None) -> str:
    match = isinstance(value, str) and compiled("([0-9a-f]{8})" + "-?([0-9a-f]{4})" * 3 + "-?([0-9a-f]{12})").fullmatch(
        value.lower()
    )
    if not match:
        raise Unfit("not a UUID")
    return "-".join(match.groups())


def _fit_json(value: Any, *_: int | None) -> str:
    text = text_of(value)
    try:
        json.loads(text or "", parse_constant=_refuse_constant, parse_int=len, parse_float=len)  # only looked at
    except (ValueError, RecursionError):
        raise Unfit("not JSON") from None
    return text or ""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _fit_bytes(value: Any, *_: int | None) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise Unfit("not bytes")


_FITTERS: dict[str, Any] = {
    "boolean": _fit_boolean,
    "numeric": _fit_numeric,
    "double": _fit_double,
    "float": _fit_float,
    "date": _fit_date,
    "timestamp": _fit_timestamp,
    "timestamp_tz": _fit_timestamp_tz,
    "uuid": _fit_uuid,
    "json": _fit_json,
    "jsonb": _fit_json,
    "bytes": _fit_bytes,
}


def _stripped(text: str) -> str:
    """Without what an ANSI CAST ignores around a value: spaces and control characters."""
    return text.strip(_BLANKS + "\x7f")
