"""Markers as expressions of MySQL and MariaDB, only where the result is provably the one Spark gives.

The two servers change case by other tables than Spark, have different regex engines, and read text leniently: what
depends on that is left to Spark. Texts are compared as bytes, since a table's own rules of comparison may call
different texts equal.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from ematix_flow.contracts.mysql_words import by_bytes, text_literal
from ematix_flow.declare import normalizers as n
from ematix_flow.declare.columns import BigInt, Boolean, ColumnType, Date, Float, Numeric, Text, Timestamp, TimestampTZ
from ematix_flow.declare.fitting import INTEGER_BITS, TEXT_KINDS
from ematix_flow.declare.values import TIME_KINDS
from ematix_flow.plan.column_expr import (
    UTC_NAMES,
    CannotPush,
    ColumnExpr,
    fitted,
    kind_of,
    may_equal,
    rounded_type,
    shown,
    type_with_room,
)

_DAY = "CAST(DATE({x}) AS DATETIME(6))"
_TRUNCATED = {
    "microsecond": "{x}",
    "millisecond": "({x} - INTERVAL (MICROSECOND({x}) MOD 1000) MICROSECOND)",
    "second": "({x} - INTERVAL MICROSECOND({x}) MICROSECOND)",
    "minute": "CAST(DATE_FORMAT({x}, '%Y-%m-%d %H:%i:00') AS DATETIME(6))",
    "hour": "CAST(DATE_FORMAT({x}, '%Y-%m-%d %H:00:00') AS DATETIME(6))",
    "day": _DAY,
    "week": f"({_DAY} - INTERVAL WEEKDAY({{x}}) DAY)",
    "month": "CAST(DATE_FORMAT({x}, '%Y-%m-01 00:00:00') AS DATETIME(6))",
    "quarter": "CAST(CONCAT(DATE_FORMAT({x}, '%Y-'), QUARTER({x}) * 3 - 2, '-01 00:00:00') AS DATETIME(6))",
    "year": "CAST(DATE_FORMAT({x}, '%Y-01-01 00:00:00') AS DATETIME(6))",
}


def compile_marker(marker: n.Normalizer, given: ColumnExpr, name: str) -> ColumnExpr:
    """One marker applied to an expression.

    Raises:
        CannotPush: MySQL or MariaDB would not give exactly what Spark gives.
    """
    kind = kind_of(given.type)
    if given.type is None or kind is None:
        raise CannotPush(f"{shown(marker)} meets a value whose type is not known before it is read")
    if isinstance(marker, n.Parser):
        return _known(marker, given, kind)
    if isinstance(marker, n.ParseBool):
        if isinstance(given.type, Boolean):
            return given
        raise CannotPush("parse_bool() changes case, which MySQL does by tables of its own")
    if isinstance(marker, n.ToTimezone):
        if marker.tz not in UTC_NAMES or kind not in TIME_KINDS:
            raise CannotPush(f"to_timezone({marker.tz!r}): releases of the time zone data differ between systems")
        return ColumnExpr(_instant(given), Timestamp())
    if isinstance(marker, n.DateTrunc):
        return _date_trunc(marker, given, kind)
    if isinstance(marker, n.Round):
        return _round(marker, given, kind)
    if isinstance(marker, n.Clamp):
        if kind in TEXT_KINDS or kind in ("boolean", "bytes", "float"):
            raise CannotPush(f"clamp() meets {given.type}")
        low, high = literal(marker.low, given.type), literal(marker.high, given.type)
        return ColumnExpr(
            f"GREATEST({low}, LEAST({given.sql}, {high}))", type_with_room(given.type, (marker.low, marker.high))
        )
    if isinstance(marker, n.Default):
        value = _text_of(marker, given) if kind in TEXT_KINDS else given.sql
        return ColumnExpr(
            f"COALESCE({value}, {literal(marker.value, given.type)})", type_with_room(given.type, (marker.value,))
        )
    if isinstance(marker, n.NullIf):
        return _nullif(marker, given, kind)
    return _text_marker(marker, given)


def literal(value: Any, column_type: ColumnType) -> str:
    """A constant as a value of a column type.

    Raises:
        CannotPush: the constant is no value of that type.
    """
    given = fitted(value, column_type)
    if isinstance(given, bool):
        return str(int(given))
    if isinstance(given, str):
        return text_literal(given)
    if isinstance(given, datetime):
        return f"TIMESTAMP'{given.replace(tzinfo=None).isoformat(sep=' ', timespec='microseconds')}'"
    if isinstance(given, date):
        return f"DATE'{given.isoformat()}'"
    if isinstance(given, int):
        return str(given)
    if isinstance(given, float):
        return repr(given) if "e" in repr(given) else f"{given!r}e0"
    if isinstance(given, Decimal):
        return format(given, "f")
    raise CannotPush("a constant of bytes")


def _text_of(marker: n.Normalizer, given: ColumnExpr) -> str:
    """The value as text. Floats, times and booleans have another text in Spark."""
    kind = kind_of(given.type)
    if kind in TEXT_KINDS or kind in INTEGER_BITS:
        return by_bytes(given.sql)
    raise CannotPush(f"{shown(marker)} needs text, and {given.type} is written differently by Spark")


def _text_marker(marker: n.Normalizer, given: ColumnExpr) -> ColumnExpr:
    text = _text_of(marker, given)
    if isinstance(marker, n.Trim):
        sql = f"TRIM(BOTH ' ' FROM {text})"
    elif isinstance(marker, n.EmptyToNull):
        sql = f"IF(CHAR_LENGTH({text}) = 0, NULL, {text})"
    elif isinstance(marker, n.WhitespaceToNull):
        trimmed = f"TRIM(BOTH ' ' FROM {text})"
        sql = f"IF(CHAR_LENGTH({trimmed}) = 0, NULL, {trimmed})"
    elif isinstance(marker, n.PhoneNormalize):
        sql = f"REGEXP_REPLACE({text}, '[^0-9+]', '')"
    elif isinstance(marker, n.Replace):
        sql = f"REPLACE({text}, {text_literal(marker.old)}, {text_literal(marker.new)})"
    elif isinstance(marker, n.Truncate):
        sql = f"LEFT({text}, {marker.length})"
    elif isinstance(marker, n.Lower | n.Upper | n.EmailNormalize):
        raise CannotPush(f"{shown(marker)}: MySQL changes case by tables of its own")
    else:
        raise CannotPush(f"{shown(marker)} has no form that means the same in MySQL and MariaDB")
    return ColumnExpr(sql, Text())


def _known(marker: n.Parser, given: ColumnExpr, kind: str) -> ColumnExpr:
    """A parser that meets a value which needs no reading."""
    found: ColumnExpr | None = None
    if isinstance(marker, n.ParseInt) and kind in INTEGER_BITS:
        found = ColumnExpr(given.sql, BigInt())
    elif isinstance(marker, n.ParseTime) and kind in TIME_KINDS:
        is_day = isinstance(marker, n.ParseDate)
        found = ColumnExpr(f"DATE({given.sql})", Date()) if is_day else ColumnExpr(_instant(given), TimestampTZ())
    if found is None:
        raise CannotPush(f"{shown(marker)} reads {given.type}, which MySQL reads by rules of its own")
    if marker.on_failure != "default" or found.type is None:
        return found
    return ColumnExpr(f"COALESCE({found.sql}, {literal(marker.default, found.type)})", found.type)


def _instant(given: ColumnExpr) -> str:
    return f"CAST({given.sql} AS DATETIME(6))"


def _date_trunc(marker: n.DateTrunc, given: ColumnExpr, kind: str) -> ColumnExpr:
    if kind not in TIME_KINDS:
        raise CannotPush(f"date_trunc() meets {given.type}")
    cut = _TRUNCATED[marker.precision].replace("{x}", _instant(given))
    return ColumnExpr(f"DATE({cut})" if isinstance(given.type, Date) else cut, given.type)


def _round(marker: n.Round, given: ColumnExpr, kind: str) -> ColumnExpr:
    if kind in INTEGER_BITS:
        if marker.precision >= 0:
            return given
        return ColumnExpr(f"ROUND(CAST({given.sql} AS DECIMAL(30,0)), {marker.precision})", given.type)
    if isinstance(given.type, Numeric):
        wanted = rounded_type(given.type, marker.precision)
        return given if wanted == given.type else ColumnExpr(f"ROUND({given.sql}, {marker.precision})", wanted)
    raise CannotPush(f"round() meets {given.type}, which MySQL rounds otherwise")


def _nullif(marker: n.NullIf, given: ColumnExpr, kind: str) -> ColumnExpr:
    assert given.type is not None
    if not may_equal(given.type, marker.value):
        return given
    value = literal(marker.value, given.type)
    if kind in TEXT_KINDS:
        text = _text_of(marker, given)
        return ColumnExpr(f"IF({text} = {value}, NULL, {text})", Text())
    if isinstance(given.type, Float):
        raise CannotPush("nullif() meets Float, which MySQL compares with more digits than it has")
    return ColumnExpr(f"IF({given.sql} = {value}, NULL, {given.sql})", given.type)
