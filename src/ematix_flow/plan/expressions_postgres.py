"""Markers as PostgreSQL expressions, only where the result is provably the one Spark gives.

Text is compared and searched by bytes (`COLLATE "C"`), letters change case by ICU, impossible values never raise (there
is no TRY_CAST before PostgreSQL 17): their shape and range are checked first. A value used more than once is bound in a
subquery, so that chains of markers stay as long as they are written. The server must have its ICU collations (the
packages of all distributions have them), Unicode 14 or later; time zones of regions, floating-point rounding and
patterns on which regex engines disagree are left to Spark.
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
from ematix_flow.declare.values import RECENT_LOWER, RECENT_UPPER
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
    "small_int": "smallint",
    "integer": "integer",
    "big_int": "bigint",
    "float": "real",
    "double": "double precision",
    "numeric": "numeric",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_tz": "timestamptz",
}

# A day that exists: years 0001 to 9999, 29 February in leap years only.
_DAY = (
    "(?!0000)(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_CLOCK_24 = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9][.][0-9]{1,6}"
_CLOCK_12 = "(?:0[1-9]|1[0-2]):[0-5][0-9]:[0-5][0-9][.][0-9]{1,6} [AaPp][Mm] "


def compile_marker(marker: n.Normalizer, given: ColumnExpr, name: str) -> ColumnExpr:
    """One marker applied to an expression.

    Raises:
        CannotPush: PostgreSQL would not give exactly what Spark gives.
    """
    if given.type is None:
        raise CannotPush(f"{shown(marker)} meets a value whose type is not known before it is read")
    for kinds, compiler in _COMPILERS:
        if isinstance(marker, kinds):
            return compiler(marker, given, name)
    raise CannotPush(f"{shown(marker)} has no form in PostgreSQL")


def text_literal(text: str) -> str:
    """A text constant that reads the same whatever `standard_conforming_strings` says."""
    quoted = text.replace("'", "''")
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in text else f"'{quoted}'"


def literal(value: Any, column_type: ColumnType) -> str:
    """A constant as a value of a column type.

    Raises:
        CannotPush: the constant is no value of that type.
    """
    given = fitted(value, column_type)
    if isinstance(given, bool):
        return "TRUE" if given else "FALSE"
    if isinstance(given, str):
        return f'({text_literal(given)}::text COLLATE "C")'
    if isinstance(given, datetime):
        stamp = given.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return f"TIMESTAMP '{stamp}'" if given.tzinfo is None else f"TIMESTAMPTZ '{stamp}+00'"
    if isinstance(given, date):
        return f"DATE '{given.isoformat()}'"
    if isinstance(given, int):
        return f"'{given}'::bigint"
    if isinstance(given, float):
        return f"'{given!r}'::{_SQL_TYPES[column_type.kind]}"
    if isinstance(given, Decimal):
        return f"'{format(given, 'f')}'::numeric"
    raise CannotPush("a constant of bytes")


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _text_of(marker: n.Normalizer, given: ColumnExpr) -> str:
    """The value as text, compared by bytes. Floats, times and booleans have another text in Spark."""
    kind = kind_of(given.type)
    if kind in TEXT_KINDS or kind in INTEGER_BITS:
        return f'(({given.sql})::text COLLATE "C")'
    raise CannotPush(f"{shown(marker)} needs text, and {given.type} is written differently by Spark")


def _text_marker(marker: n.Normalizer, given: ColumnExpr, name: str) -> ColumnExpr:
    text = _text_of(marker, given)
    if isinstance(marker, n.Trim):
        sql = f"btrim({text}, ' ')"
    elif isinstance(marker, n.Lower):
        sql = _lower(text)
    elif isinstance(marker, n.Upper):
        sql = (
            f'(translate(upper({text} COLLATE "und-x-icu"), {text_literal(RECENT_LOWER)}, '
            f'{text_literal(RECENT_UPPER)}) COLLATE "C")'
        )
    elif isinstance(marker, n.EmptyToNull):
        sql = f"NULLIF({text}, '')"
    elif isinstance(marker, n.WhitespaceToNull):
        sql = f"NULLIF(btrim({text}, ' '), '')"
    elif isinstance(marker, n.EmailNormalize):
        sql = _lower(f"btrim({text}, ' ')")
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


def _lower(text: str) -> str:
    return (
        f'(translate(lower({text} COLLATE "und-x-icu"), {text_literal(RECENT_UPPER)}, '
        f'{text_literal(RECENT_LOWER)}) COLLATE "C")'
    )


def _regex_replace(marker: n.RegexReplace, text: str) -> str:
    pattern = portable(marker.pattern, marker.ignores_case)
    if pattern is None:
        raise CannotPush(f"regex_replace() with {marker.pattern!r}: regex engines disagree about such patterns")
    replacement = "".join(
        part.replace("\\", "\\\\") if isinstance(part, str) else ("\\&" if part == 0 else f"\\{part}")
        for part in replacement_parts(marker.replacement)
    )
    flags = ", 'g'" if marker.replaces_all else ""
    return f"regexp_replace({text}, {text_literal(pattern.text('postgres'))}, {text_literal(replacement)}{flags})"


# ── reading text ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _parse(marker: n.Parser, text: str, read: str, wanted: ColumnType, sql_type: str, name: str) -> ColumnExpr:
    """`read` is an expression over `v`, the text, that is NULL when it cannot be read."""
    bound = f"(SELECT v, {read} AS r FROM (SELECT {text} AS v OFFSET 0) AS ematix_v OFFSET 0) AS ematix_r"
    if marker.on_failure == "error":
        # The failing cast must hang on the row, or the planner would run it while planning.
        message = text_literal(refusals.unfit(name, str(wanted), marker.kind))
        failed = f"(left(v, 0) || {message})::bigint::text::{sql_type}"
        result = f"CASE WHEN r IS NULL AND v IS NOT NULL THEN {failed} ELSE r END"
    else:
        result = "r"
    return _or_default(marker, ColumnExpr(f"(SELECT {result} FROM {bound})", wanted))


def _or_default(marker: n.Parser, given: ColumnExpr) -> ColumnExpr:
    if marker.on_failure != "default" or given.type is None:
        return given
    return ColumnExpr(f"COALESCE({given.sql}, {literal(marker.default, given.type)})", given.type)


def _parse_int(marker: n.ParseInt, given: ColumnExpr, name: str) -> ColumnExpr:
    if kind_of(given.type) in INTEGER_BITS:
        return _or_default(marker, ColumnExpr(f"({given.sql})::bigint", BigInt()))
    if kind_of(given.type) not in TEXT_KINDS:
        raise CannotPush(f"parse_int() meets {given.type}")
    read = (
        "CASE WHEN v ~ '^-?0*[0-9]{1,18}$' THEN v::bigint "
        "WHEN v ~ '^-?0*[0-9]{19}$' AND right(v, 19) <= "
        "CASE WHEN left(v, 1) = '-' THEN '9223372036854775808' ELSE '9223372036854775807' END THEN v::bigint END"
    )
    return _parse(marker, _text_of(marker, given), read, BigInt(), "bigint", name)


def _parse_numeric(marker: n.ParseNumeric, given: ColumnExpr, name: str) -> ColumnExpr:
    if kind_of(given.type) not in TEXT_KINDS and kind_of(given.type) not in INTEGER_BITS:
        raise CannotPush(f"parse_numeric() meets {given.type}")
    precision, scale = marker.precision, marker.scale
    sql_type = f"numeric({precision},{scale})"
    # Digits that cannot matter are cut off first: PostgreSQL refuses numbers of more than 131,072 of them.
    digits = f"substring(v, '^-?0*([0-9]{{1,38}}(?:[.][0-9]{{1,{scale + 1}}})?)')"
    number = f"round((CASE WHEN left(v, 1) = '-' THEN '-' ELSE '' END || {digits})::numeric, {scale})"
    whole = precision - scale
    read = (
        f"(SELECT CASE WHEN abs(d) < '1{'0' * whole}'::numeric THEN d::{sql_type} END FROM "
        f"(SELECT CASE WHEN v ~ '^-?0*[0-9]{{1,38}}([.][0-9]+)?$' THEN {number} END AS d OFFSET 0) AS ematix_d)"
    )
    return _parse(marker, _text_of(marker, given), read, Numeric(precision, scale), sql_type, name)


def _parse_time(marker: n.ParseTime, given: ColumnExpr, name: str) -> ColumnExpr:
    wanted: ColumnType = Date() if isinstance(marker, n.ParseDate) else TimestampTZ()
    known = _known_instant(given)
    if known is not None:
        if isinstance(wanted, Date):
            known = given.sql if isinstance(given.type, Date) else f"({known} AT TIME ZONE 'UTC')::date"
        return _or_default(marker, ColumnExpr(known, wanted))
    if kind_of(given.type) not in TEXT_KINDS and kind_of(given.type) not in INTEGER_BITS:
        raise CannotPush(f"{shown(marker)} meets {given.type}")
    formats = marker.readings
    shapes = " ".join(
        f"WHEN v ~ {text_literal(f'^{reading.pattern}$')} THEN "
        f"regexp_replace(v, {text_literal(f'^{reading.pattern}$')}, {text_literal(_iso(reading))})"
        for reading in formats
    )
    clock = _CLOCK_24
    if any(reading.is_twelve_hour for reading in formats):
        clock = f"(?:{_CLOCK_24}|{_CLOCK_12})"
    valid = text_literal(f"^{_DAY}T{clock}(?:Z|[+-].*)$")
    moment = (
        f"(SELECT CASE WHEN m BETWEEN TIMESTAMPTZ '0001-01-01 00:00:00+00' "
        f"AND TIMESTAMPTZ '9999-12-31 23:59:59.999999+00' THEN m END FROM "
        f"(SELECT CASE WHEN c ~ {valid} THEN c::timestamptz END AS m FROM "
        f"(SELECT CASE {shapes} END AS c OFFSET 0) AS ematix_c OFFSET 0) AS ematix_m)"
    )
    if isinstance(wanted, Date):
        return _parse(marker, _text_of(marker, given), f"({moment} AT TIME ZONE 'UTC')::date", wanted, "date", name)
    return _parse(marker, _text_of(marker, given), moment, wanted, "timestamptz", name)


def _iso(reading: TimeFormat) -> str:
    iso = reading.iso(lambda number: f"\\{number}")
    meridiem, offset = reading.group("meridiem"), reading.group("offset")
    if meridiem is None:
        return iso
    tail = "Z" if offset is None else f"\\{offset}"
    return f"{iso[: -len(tail)]} \\{meridiem} {tail}"


def _parse_bool(marker: n.ParseBool, given: ColumnExpr, name: str) -> ColumnExpr:
    if isinstance(given.type, Boolean):
        return given
    truthy = ", ".join(text_literal(word.lower()) for word in marker.truthy)
    falsy = ", ".join(text_literal(word.lower()) for word in marker.falsy)
    word = _lower(_text_of(marker, given))
    return ColumnExpr(
        f"(SELECT CASE WHEN w IN ({truthy}) THEN TRUE WHEN w IN ({falsy}) THEN FALSE END "
        f"FROM (SELECT {word} AS w OFFSET 0) AS ematix_w)",
        Boolean(),
    )


# ── time and numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


def _known_instant(given: ColumnExpr) -> str | None:
    """A time as timestamptz; wall-clock times are UTC. None when the value is no time."""
    if isinstance(given.type, TimestampTZ):
        return given.sql
    if isinstance(given.type, Timestamp):
        return f"(({given.sql}) AT TIME ZONE 'UTC')"
    if isinstance(given.type, Date):
        return f"(({given.sql})::timestamp AT TIME ZONE 'UTC')"
    return None


def _to_timezone(marker: n.ToTimezone, given: ColumnExpr, name: str) -> ColumnExpr:
    known = _known_instant(given)
    if known is None or marker.tz not in UTC_NAMES:
        raise CannotPush(f"to_timezone({marker.tz!r}): releases of the time zone data differ between systems")
    return ColumnExpr(f"({known} AT TIME ZONE 'UTC')", Timestamp())


def _date_trunc(marker: n.DateTrunc, given: ColumnExpr, name: str) -> ColumnExpr:
    if isinstance(given.type, TimestampTZ):
        return ColumnExpr(f"date_trunc('{marker.precision}', {given.sql}, 'UTC')", given.type)
    if isinstance(given.type, Timestamp):
        return ColumnExpr(f"date_trunc('{marker.precision}', {given.sql})", given.type)
    if isinstance(given.type, Date):
        return ColumnExpr(f"date_trunc('{marker.precision}', ({given.sql})::timestamp)::date", given.type)
    raise CannotPush(f"date_trunc() meets {given.type}")


def _round(marker: n.Round, given: ColumnExpr, name: str) -> ColumnExpr:
    kind = kind_of(given.type)
    if kind in INTEGER_BITS:
        if marker.precision >= 0:
            return given
        return ColumnExpr(f"round(({given.sql})::numeric, {marker.precision})::{_SQL_TYPES[str(kind)]}", given.type)
    if isinstance(given.type, Numeric):
        wanted = rounded_type(given.type, marker.precision)
        if wanted == given.type:
            return given
        return ColumnExpr(f"round({given.sql}, {marker.precision})", wanted)
    raise CannotPush(f"round() meets {given.type}, which PostgreSQL rounds otherwise")


def _clamp(marker: n.Clamp, given: ColumnExpr, name: str) -> ColumnExpr:
    assert given.type is not None
    if given.type.kind in TEXT_KINDS or given.type.kind in ("boolean", "bytes"):
        raise CannotPush(f"clamp() meets {given.type}")
    low, high = literal(marker.low, given.type), literal(marker.high, given.type)
    sql = (
        f"(SELECT CASE WHEN v < {low} THEN {low} WHEN v > {high} THEN {high} ELSE v END "
        f"FROM (SELECT {given.sql} AS v OFFSET 0) AS ematix_v)"
    )
    return ColumnExpr(sql, type_with_room(given.type, (marker.low, marker.high)))


def _default(marker: n.Default, given: ColumnExpr, name: str) -> ColumnExpr:
    assert given.type is not None
    value = given.sql
    if given.type.kind in TEXT_KINDS:
        return ColumnExpr(f"COALESCE({_text_of(marker, given)}, {literal(marker.value, given.type)})", Text())
    return ColumnExpr(
        f"COALESCE({value}, {literal(marker.value, given.type)})", type_with_room(given.type, (marker.value,))
    )


def _nullif(marker: n.NullIf, given: ColumnExpr, name: str) -> ColumnExpr:
    assert given.type is not None
    if not may_equal(given.type, marker.value):
        return given
    if given.type.kind in TEXT_KINDS:
        return ColumnExpr(f"NULLIF({_text_of(marker, given)}, {literal(marker.value, given.type)})", Text())
    return ColumnExpr(f"NULLIF({given.sql}, {literal(marker.value, given.type)})", given.type)


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
