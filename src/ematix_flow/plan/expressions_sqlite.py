"""Markers as SQLite expressions: calls of the functions that `backends/sqlite_functions.py` registers.

The functions are the model itself, so nearly everything can be pushed down. What the stored form of a value does not
tell (a decimal and a time are texts) is taken from its type; patterns on which regex engines disagree and time zones of
regions are left to Spark.
"""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from ematix_flow.declare import normalizers as n
from ematix_flow.declare.columns import BigInt, Boolean, ColumnType, Date, Numeric, Text, Timestamp, TimestampTZ
from ematix_flow.declare.fitting import INTEGER_BITS, TEXT_KINDS
from ematix_flow.declare.patterns import portable
from ematix_flow.declare.values import TIME_KINDS, instant_text, plain_decimal, wall_text
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

_PLAIN_TEXT = (n.Trim, n.Lower, n.Upper, n.EmptyToNull, n.WhitespaceToNull, n.EmailNormalize, n.PhoneNormalize)


def compile_marker(marker: n.Normalizer, given: ColumnExpr, name: str) -> ColumnExpr:
    """One marker applied to an expression.

    Raises:
        CannotPush: SQLite would not give exactly what Spark gives.
    """
    sql, kind = given.sql, kind_of(given.type)
    if isinstance(marker, n.Parser):
        return _parser(marker, given, name)
    if isinstance(marker, n.ParseBool):
        if isinstance(given.type, Boolean):
            return given
        _need_text(marker, given)
        words = f"{_text(json.dumps(marker.truthy))}, {_text(json.dumps(marker.falsy))}"
        return ColumnExpr(f"ematix_parse_bool({sql}, {words})", Boolean())
    if isinstance(marker, n.ToTimezone):
        if marker.tz not in UTC_NAMES:
            raise CannotPush(f"to_timezone({marker.tz!r}): releases of the time zone data differ between systems")
        _need_time(marker, given)
        return ColumnExpr(f"ematix_to_timezone({_canonical_time(given)}, 'UTC')", Timestamp())
    if isinstance(marker, n.DateTrunc):
        _need_time(marker, given)
        return ColumnExpr(f"ematix_date_trunc({_canonical_time(given)}, '{marker.precision}')", given.type)
    if isinstance(marker, n.Round):
        wanted = rounded_type(given.type, marker.precision) if isinstance(given.type, Numeric) else given.type
        _need_number(marker, given)
        return ColumnExpr(f"ematix_round({sql}, {marker.precision})", wanted)
    if isinstance(marker, n.Clamp):
        if given.type is None or kind in TEXT_KINDS or kind in ("boolean", "bytes"):
            raise CannotPush(f"clamp() meets {given.type or 'a value of unknown type'}")
        value = _canonical_time(given) if kind in TIME_KINDS else sql
        low, high = literal(marker.low, given.type), literal(marker.high, given.type)
        return ColumnExpr(
            f"ematix_clamp({value}, {low}, {high})", type_with_room(given.type, (marker.low, marker.high))
        )
    if isinstance(marker, n.Default):
        wanted = type_with_room(given.type, (marker.value,)) if given.type is not None else None
        return ColumnExpr(f"COALESCE({sql}, {literal(marker.value, given.type)})", wanted)
    if isinstance(marker, n.NullIf):
        return _nullif(marker, given)
    return _text_marker(marker, given)


def literal(value: Any, column_type: ColumnType | None) -> str:
    """A constant in the stored form of a column type; of its own when the type is not known.

    Raises:
        CannotPush: the constant is no value of that type.
    """
    given = value if column_type is None else fitted(value, column_type)
    if isinstance(given, Decimal) and column_type is None:
        raise CannotPush("a decimal constant meets a value of unknown type")
    if isinstance(given, bool):
        return str(int(given))
    if isinstance(given, int):
        return "(-9223372036854775807 - 1)" if given == -(2**63) else str(given)
    if isinstance(given, float):
        return repr(given)
    if isinstance(given, Decimal):
        return _text(plain_decimal(given))
    if isinstance(given, datetime):
        return _text(wall_text(given) if given.tzinfo is None else instant_text(given))
    if isinstance(given, date):
        return _text(given.isoformat())
    return f"X'{given.hex()}'" if isinstance(given, bytes) else _text(str(given))


def _text_marker(marker: n.Normalizer, given: ColumnExpr) -> ColumnExpr:
    _need_text(marker, given)
    if isinstance(marker, _PLAIN_TEXT):
        return ColumnExpr(f"ematix_{marker.kind}({given.sql})", Text())
    if isinstance(marker, n.Replace):
        return ColumnExpr(f"ematix_replace({given.sql}, {_text(marker.old)}, {_text(marker.new)})", Text())
    if isinstance(marker, n.Truncate):
        return ColumnExpr(f"ematix_truncate({given.sql}, {marker.length})", Text())
    if isinstance(marker, n.RegexReplace):
        if portable(marker.pattern, marker.ignores_case) is None:
            raise CannotPush(f"regex_replace() with {marker.pattern!r}: regex engines disagree about such patterns")
        arguments = f"{_text(marker.pattern)}, {_text(marker.replacement)}, {_text(marker.flags)}"
        return ColumnExpr(f"ematix_regex_replace({given.sql}, {arguments})", Text())
    raise CannotPush(f"{shown(marker)} has no form in SQLite")


def _parser(marker: n.Parser, given: ColumnExpr, name: str) -> ColumnExpr:
    kind = kind_of(given.type)
    wanted: ColumnType
    if isinstance(marker, n.ParseTime):
        wanted = Date() if isinstance(marker, n.ParseDate) else TimestampTZ()
        if kind in TIME_KINDS:
            known = f"ematix_fit({given.sql}, '{wanted.kind}', NULL, NULL, {_text(name)}, '{kind}')"
            if marker.on_failure == "default":
                known = f"COALESCE({known}, {literal(marker.default, wanted)})"
            return ColumnExpr(known, wanted)
        arguments = _text(json.dumps(marker.formats))
    elif isinstance(marker, n.ParseNumeric):
        wanted, arguments = Numeric(marker.precision, marker.scale), f"{marker.precision}, {marker.scale}"
    else:
        wanted, arguments = BigInt(), "NULL"
        if kind == "numeric":
            raise CannotPush("parse_int() meets a decimal")
    if kind in ("boolean", "bytes") or kind in TIME_KINDS:
        raise CannotPush(f"{shown(marker)} meets {given.type}")
    default = "NULL" if marker.default is None else literal(marker.default, wanted)
    failure = f"'{marker.on_failure}', {default}, {_text(name)}"
    return ColumnExpr(f"ematix_{marker.kind}({given.sql}, {arguments}, {failure})", wanted)


def _nullif(marker: n.NullIf, given: ColumnExpr) -> ColumnExpr:
    kind = kind_of(given.type)
    if given.type is not None and not may_equal(given.type, marker.value):
        return given
    value = _canonical_time(given) if kind in TIME_KINDS else given.sql
    told = "NULL" if kind is None else f"'{kind}'"
    return ColumnExpr(f"ematix_nullif({value}, {literal(marker.value, given.type)}, {told})", given.type)


def _canonical_time(given: ColumnExpr) -> str:
    """Times written by others may have another form."""
    return f"ematix_fit({given.sql}, '{kind_of(given.type)}', NULL, NULL, NULL)"


def _need_text(marker: n.Normalizer, given: ColumnExpr) -> None:
    kind = kind_of(given.type)
    if kind is not None and kind not in TEXT_KINDS and kind not in INTEGER_BITS:
        raise CannotPush(f"{shown(marker)} needs text, and {given.type} is written differently by Spark")


def _need_time(marker: n.Normalizer, given: ColumnExpr) -> None:
    if kind_of(given.type) not in TIME_KINDS:
        raise CannotPush(f"{shown(marker)} meets {given.type or 'a value of unknown type'}")


def _need_number(marker: n.Normalizer, given: ColumnExpr) -> None:
    kind = kind_of(given.type)
    if kind not in INTEGER_BITS and kind not in ("numeric", "float", "double"):
        raise CannotPush(f"{shown(marker)} meets {given.type or 'a value of unknown type'}")


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
