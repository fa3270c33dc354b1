"""Markers as DuckDB expressions, only where the result is provably the one Spark gives.

A value used more than once is bound by a lambda over a list of one, so that chains of markers stay as long as they are
written. Case is changed by the functions of `backends/duckdb_functions.py`. Time zones of regions, floating-point
rounding and patterns on which regex engines disagree are left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from ematix_flow.contracts import refusals
from ematix_flow.declare import normalizers as n
from ematix_flow.declare.columns import BigInt, Boolean, ColumnType, Date, Numeric, Text, Timestamp, TimestampTZ
from ematix_flow.declare.fitting import INTEGER_BITS, TEXT_KINDS
from ematix_flow.declare.patterns import portable, replacement_parts
from ematix_flow.declare.timeformats import TimeFormat
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

_SQL_TYPES = {
    "small_int": "SMALLINT",
    "integer": "INTEGER",
    "big_int": "BIGINT",
    "float": "REAL",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_tz": "TIMESTAMPTZ",
}
_FIRST_MOMENT = "TIMESTAMPTZ '0001-01-01 00:00:00+00'"
_LAST_MOMENT = "TIMESTAMPTZ '9999-12-31 23:59:59.999999+00'"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9][.][0-9]{1,6}"


def compile_marker(marker: n.Normalizer, given: ColumnExpr, name: str) -> ColumnExpr:
    """One marker applied to an expression.

    Raises:
        CannotPush: DuckDB would not give exactly what Spark gives.
    """
    if given.type is None:
        raise CannotPush(f"{shown(marker)} meets a value whose type is not known before it is read")
    for kinds, compiler in _COMPILERS:
        if isinstance(marker, kinds):
            return compiler(marker, given, name)
    raise CannotPush(f"{shown(marker)} has no form in DuckDB")


def text_literal(text: str) -> str:
    """A text constant; a backslash means itself."""
    return "'" + text.replace("'", "''") + "'"


def literal(value: Any, column_type: ColumnType) -> str:
    """A constant as a value of a column type.

    Raises:
        CannotPush: the constant is no value of that type.
    """
    given = fitted(value, column_type)
    if isinstance(given, bool):
        return "true" if given else "false"
    if isinstance(given, str):
        return text_literal(given)
    if isinstance(given, datetime):
        stamp = given.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return f"TIMESTAMP '{stamp}'" if given.tzinfo is None else f"TIMESTAMPTZ '{stamp}+00'"
    if isinstance(given, date):
        return f"DATE '{given.isoformat()}'"
    if isinstance(given, int):
        return f"'{given}'::BIGINT"
    if isinstance(given, float):
        return f"'{given!r}'::{_SQL_TYPES[column_type.kind]}"
    if isinstance(given, Decimal):
        return f"'{format(given, 'f')}'::{_sql_type(column_type)}"
    raise CannotPush("a constant of bytes")


def _sql_type(column_type: ColumnType) -> str:
    if isinstance(column_type, Numeric):
        return f"DECIMAL({column_type.precision},{column_type.scale})"
    return _SQL_TYPES[column_type.kind]


def _bound(expression: str, name: str, body: str) -> str:
    """The body with a name for the value of an expression, which is worked out once."""
    return f"list_transform([{expression}], lambda {name}: {body})[1]"


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _text_of(marker: n.Normalizer, given: ColumnExpr) -> str:
    """The value as text. Floats, times and booleans have another text in Spark."""
    kind = kind_of(given.type)
    if kind in TEXT_KINDS or kind in INTEGER_BITS:
        return f"CAST({given.sql} AS VARCHAR)"
    raise CannotPush(f"{shown(marker)} needs text, and {given.type} is written differently by Spark")


def _text_marker(marker: n.Normalizer, given: ColumnExpr, name: str) -> ColumnExpr:
    text = _text_of(marker, given)
    if isinstance(marker, n.Trim):
        sql = f"trim({text}, ' ')"
    elif isinstance(marker, n.Lower):
        sql = f"ematix_lower({text})"
    elif isinstance(marker, n.Upper):
        sql = f"ematix_upper({text})"
    elif isinstance(marker, n.EmailNormalize):
        sql = f"ematix_lower(trim({text}, ' '))"
    elif isinstance(marker, n.EmptyToNull):
        sql = f"NULLIF({text}, '')"
    elif isinstance(marker, n.WhitespaceToNull):
        sql = f"NULLIF(trim({text}, ' '), '')"
    elif isinstance(marker, n.PhoneNormalize):
        sql = f"regexp_replace({text}, '[^0-9+]', '', 'g')"
    elif isinstance(marker, n.Replace):
        sql = f"replace({text}, {text_literal(marker.old)}, {text_literal(marker.new)})"
    elif isinstance(marker, n.Truncate):
        sql = f"left({text}, {marker.length})"
    else:
        assert isinstance(marker, n.RegexReplace)
        sql = _regex_replace(marker, text)
    return ColumnExpr(sql, Text())


def _regex_replace(marker: n.RegexReplace, text: str) -> str:
    pattern = portable(marker.pattern, marker.ignores_case)
    if pattern is None:
        raise CannotPush(f"regex_replace() with {marker.pattern!r}: regex engines disagree about such patterns")
    replacement = "".join(
        part.replace("\\", "\\\\") if isinstance(part, str) else f"\\{part}"
        for part in replacement_parts(marker.replacement)
    )
    flags = ", 'g'" if marker.replaces_all else ""
    # DuckDB's engine is RE2, which has Java's words for the ends of a text.
    return f"regexp_replace({text}, {text_literal(pattern.text('java'))}, {text_literal(replacement)}{flags})"


# ── reading text ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _parse(marker: n.Parser, text: str, read: str, wanted: ColumnType, name: str) -> ColumnExpr:
    """`read` is an expression over `v`, the text, that is NULL when it cannot be read."""
    if marker.on_failure == "error":
        message = text_literal(refusals.unfit(name, str(wanted), marker.kind))
        read = _bound(read, "r", f"CASE WHEN r IS NULL AND v IS NOT NULL THEN error({message}) ELSE r END")
    return _or_default(marker, ColumnExpr(_bound(text, "v", read), wanted))


def _or_default(marker: n.Parser, given: ColumnExpr) -> ColumnExpr:
    if marker.on_failure != "default" or given.type is None:
        return given
    return ColumnExpr(f"COALESCE({given.sql}, {literal(marker.default, given.type)})", given.type)


def _parse_int(marker: n.ParseInt, given: ColumnExpr, name: str) -> ColumnExpr:
    if kind_of(given.type) in INTEGER_BITS:
        return _or_default(marker, ColumnExpr(f"CAST({given.sql} AS BIGINT)", BigInt()))
    if kind_of(given.type) not in TEXT_KINDS:
        raise CannotPush(f"parse_int() meets {given.type}")
    read = "CASE WHEN regexp_full_match(v, '-?[0-9]+') THEN TRY_CAST(v AS BIGINT) END"
    return _parse(marker, _text_of(marker, given), read, BigInt(), name)


def _parse_numeric(marker: n.ParseNumeric, given: ColumnExpr, name: str) -> ColumnExpr:
    if kind_of(given.type) not in TEXT_KINDS and kind_of(given.type) not in INTEGER_BITS:
        raise CannotPush(f"parse_numeric() meets {given.type}")
    wanted = Numeric(marker.precision, marker.scale)
    # A text is rounded by its first digit that has no place, so half goes away from zero.
    read = f"CASE WHEN regexp_full_match(v, '-?[0-9]+([.][0-9]+)?') THEN TRY_CAST(v AS {_sql_type(wanted)}) END"
    return _parse(marker, _text_of(marker, given), read, wanted, name)


def _parse_time(marker: n.ParseTime, given: ColumnExpr, name: str) -> ColumnExpr:
    wanted: ColumnType = Date() if isinstance(marker, n.ParseDate) else TimestampTZ()
    known = _known_instant(given)
    if known is not None:
        if isinstance(wanted, Date):
            known = given.sql if isinstance(given.type, Date) else f"CAST(({known} AT TIME ZONE 'UTC') AS DATE)"
        return _or_default(marker, ColumnExpr(known, wanted))
    if kind_of(given.type) not in TEXT_KINDS and kind_of(given.type) not in INTEGER_BITS:
        raise CannotPush(f"{shown(marker)} meets {given.type}")
    shapes = " ".join(
        f"WHEN regexp_full_match(v, {text_literal(reading.pattern)}) THEN {_moment(reading)}"
        for reading in marker.readings
    )
    read = _bound(f"CASE {shapes} END", "m", f"CASE WHEN m BETWEEN {_FIRST_MOMENT} AND {_LAST_MOMENT} THEN m END")
    if isinstance(wanted, Date):
        read = f"CAST(({read} AT TIME ZONE 'UTC') AS DATE)"
    return _parse(marker, _text_of(marker, given), read, wanted, name)


def _moment(reading: TimeFormat) -> str:
    """The instant that a text of this shape means, NULL when there is none; the year 0 is none."""
    pattern = text_literal(f"\\A{reading.pattern}\\z")

    def part(number: int) -> str:
        return f"\\{number}"

    iso = f"regexp_replace(v, {pattern}, {text_literal(reading.iso(part))})"
    valid = f"regexp_matches(c, '\\A[0-9-]+T{_CLOCK}(?:Z|[+-])') AND left(c, 4) <> '0000'"
    moment = f"CASE WHEN {valid} THEN TRY_CAST(c AS TIMESTAMPTZ) END"
    if not reading.is_twelve_hour:
        return _bound(iso, "c", moment)
    hour = f"regexp_extract(v, {pattern}, {reading.group('hour12')})"
    half = f"upper(regexp_extract(v, {pattern}, {reading.group('meridiem')}))"
    # The text is read as if it were the first hour of its half of the day.
    start = f"substr(c, 1, 11) || CASE WHEN {half} = 'PM' THEN '12' ELSE '00' END || substr(c, 14)"
    shifted = f"{_bound(start, 'c', moment)} + to_hours(TRY_CAST({hour} AS BIGINT) % 12)"
    return _bound(iso, "c", f"CASE WHEN {hour} BETWEEN '01' AND '12' THEN {shifted} END")


def _parse_bool(marker: n.ParseBool, given: ColumnExpr, name: str) -> ColumnExpr:
    if isinstance(given.type, Boolean):
        return given
    truthy, falsy = (", ".join(text_literal(word.lower()) for word in words) for words in (marker.truthy, marker.falsy))
    body = f"CASE WHEN w IN ({truthy}) THEN true WHEN w IN ({falsy}) THEN false END"
    return ColumnExpr(_bound(f"ematix_lower({_text_of(marker, given)})", "w", body), Boolean())


# ── time and numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


def _known_instant(given: ColumnExpr) -> str | None:
    """A time as TIMESTAMPTZ; wall-clock times are UTC. None when the value is no time."""
    if isinstance(given.type, TimestampTZ):
        return given.sql
    if isinstance(given.type, Timestamp | Date):
        return f"(CAST({given.sql} AS TIMESTAMP) AT TIME ZONE 'UTC')"
    return None


def _to_timezone(marker: n.ToTimezone, given: ColumnExpr, name: str) -> ColumnExpr:
    known = _known_instant(given)
    if known is None or marker.tz not in UTC_NAMES:
        raise CannotPush(f"to_timezone({marker.tz!r}): releases of the time zone data differ between systems")
    return ColumnExpr(f"({known} AT TIME ZONE 'UTC')", Timestamp())


def _date_trunc(marker: n.DateTrunc, given: ColumnExpr, name: str) -> ColumnExpr:
    if kind_of(given.type) not in TIME_KINDS:
        raise CannotPush(f"date_trunc() meets {given.type}")
    if isinstance(given.type, TimestampTZ):
        cut = f"date_trunc('{marker.precision}', {given.sql} AT TIME ZONE 'UTC')"
        return ColumnExpr(f"({cut} AT TIME ZONE 'UTC')", given.type)
    cut = f"date_trunc('{marker.precision}', CAST({given.sql} AS TIMESTAMP))"
    return ColumnExpr(f"CAST({cut} AS DATE)" if isinstance(given.type, Date) else cut, given.type)


def _round(marker: n.Round, given: ColumnExpr, name: str) -> ColumnExpr:
    kind = kind_of(given.type)
    if kind in INTEGER_BITS:
        if marker.precision >= 0:
            return given
        rounded = f"round(CAST({given.sql} AS DECIMAL(38,0)), {marker.precision})"
        return ColumnExpr(f"CAST({rounded} AS {_SQL_TYPES[str(kind)]})", given.type)
    if isinstance(given.type, Numeric):
        wanted = rounded_type(given.type, marker.precision)
        if wanted == given.type:
            return given
        roomy = Numeric(min(given.type.precision + 1, 38), given.type.scale)  # rounding may carry into one digit more
        rounded = f"round(CAST({given.sql} AS {_sql_type(roomy)}), {marker.precision})"
        return ColumnExpr(f"CAST({rounded} AS {_sql_type(wanted)})", wanted)
    raise CannotPush(f"round() meets {given.type}, which DuckDB rounds otherwise")


def _clamp(marker: n.Clamp, given: ColumnExpr, name: str) -> ColumnExpr:
    assert given.type is not None
    if given.type.kind in TEXT_KINDS or given.type.kind in ("boolean", "bytes"):
        raise CannotPush(f"clamp() meets {given.type}")
    wanted = type_with_room(given.type, (marker.low, marker.high))
    low, high = literal(marker.low, wanted), literal(marker.high, wanted)
    body = f"CASE WHEN v < {low} THEN {low} WHEN v > {high} THEN {high} ELSE v END"
    return ColumnExpr(_bound(f"CAST({given.sql} AS {_sql_type(wanted)})", "v", body), wanted)


def _default(marker: n.Default, given: ColumnExpr, name: str) -> ColumnExpr:
    assert given.type is not None
    if given.type.kind in TEXT_KINDS:
        return ColumnExpr(f"COALESCE({_text_of(marker, given)}, {literal(marker.value, given.type)})", Text())
    wanted = type_with_room(given.type, (marker.value,))
    value = given.sql if wanted == given.type else f"CAST({given.sql} AS {_sql_type(wanted)})"
    return ColumnExpr(f"COALESCE({value}, {literal(marker.value, wanted)})", wanted)


def _nullif(marker: n.NullIf, given: ColumnExpr, name: str) -> ColumnExpr:
    assert given.type is not None
    if not may_equal(given.type, marker.value):
        return given
    if given.type.kind in TEXT_KINDS:
        return ColumnExpr(f"NULLIF({_text_of(marker, given)}, {literal(marker.value, given.type)})", Text())
    other = literal(marker.value, type_with_room(given.type, (marker.value,)))
    return ColumnExpr(f"NULLIF({given.sql}, {other})", given.type)


_TEXT_MARKERS = (
    n.Trim,
    n.Lower,
    n.Upper,
    n.EmptyToNull,
    n.WhitespaceToNull,
    n.EmailNormalize,
    n.PhoneNormalize,
    n.Replace,
    n.RegexReplace,
    n.Truncate,
)
_COMPILERS: tuple[tuple[Any, Callable[[Any, ColumnExpr, str], ColumnExpr]], ...] = (
    (_TEXT_MARKERS, _text_marker),
    (n.ParseInt, _parse_int),
    (n.ParseNumeric, _parse_numeric),
    (n.ParseTime, _parse_time),
    (n.ParseBool, _parse_bool),
    (n.ToTimezone, _to_timezone),
    (n.DateTrunc, _date_trunc),
    (n.Round, _round),
    (n.Clamp, _clamp),
    (n.Default, _default),
    (n.NullIf, _nullif),
)
