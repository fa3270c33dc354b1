"""What the type matrix moves: a column for every type, with its extremes, and what each system refuses of them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

from ematix_flow.declare.columns import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    ColumnType,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
    to_column_type,
)
from ematix_flow.testing.endpoints import Row, canonical

FLOAT_MAX, FLOAT_LEAST_NORMAL, FLOAT_LEAST = 3.4028234663852886e38, 1.1754943508222875e-38, 1.401298464324817e-45
DOUBLE_MAX, DOUBLE_LEAST_NORMAL, DOUBLE_LEAST = 1.7976931348623157e308, 2.2250738585072014e-308, 5e-324
NOT_FINITE = (math.inf, -math.inf, math.nan)
NUL = "a\x00b"
JSON_NUL = '{"nul": "a\\u0000b"}'
JSON_HALF = '["\\ud83d"]'
JSON_LOW_HALF = '["\\udeb2\\ud83d\\udeb2"]'
JSON_ESCAPED = r'["\\u0000 \\\\ud83d \\\uD83D\uDEB2"]'
JSON_DEEP = '{"deeper": [1, ' * 40 + "null" + "]}" * 40
_WIDE = Context(prec=76)  # the default of 28 digits would round
GAP_DAYS = (date(1582, 10, 5), date(1582, 10, 14))


@dataclass(frozen=True)
class Typed:
    """A column of the matrix: its declared type and values; `given` is its type in a source where that is another."""

    declared: Any
    values: tuple[Any, ...]
    given: ColumnType | None = None

    @property
    def type(self) -> ColumnType:
        """The declared type, as plans know it."""
        return to_column_type(self.declared)

    @property
    def source_type(self) -> ColumnType:
        """The column's type in a source that is made by hand."""
        return self.given or self.type

    def arrived(self, value: Any) -> Any:
        """A value as it must be found in every target."""
        if value is None or not isinstance(self.type, JSON | JSONB):
            return canonical(value, self.type)
        return value if self.given else json.dumps(value, ensure_ascii=False)


def _decimals(precision: int, scale: int, *more: str) -> Typed:
    largest = Decimal("9" * precision).scaleb(-scale, _WIDE)
    least = Decimal(1).scaleb(-scale, _WIDE)
    shown = [
        largest,
        largest.copy_negate(),
        least,
        least.copy_negate(),
        Decimal(0).scaleb(-scale, _WIDE),
        *map(Decimal, more),
    ]
    return Typed(Numeric[precision, scale], tuple(shown))


# Wall-clock times: to the microsecond, both ends, both calendars, both sides of 1970, hours that some zone leaves out.
_WALL = (
    datetime(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
    datetime(1582, 10, 4, 23, 59, 59, 999999),
    datetime(1582, 10, 15),
    datetime(1582, 10, 10, 12),
    datetime(1883, 11, 18, 12, 3, 58),
    datetime(1900, 2, 28, 23, 59, 59, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(1970, 1, 1),
    datetime(1970, 1, 1, 0, 0, 0, 1),
    datetime(2026, 3, 29, 2, 30, 0, 1),  # left out in Berlin
    datetime(2026, 10, 25, 2, 30),  # twice in Berlin
    datetime(2026, 3, 8, 2, 30),  # left out in New York
    datetime(2024, 2, 29, 23, 59, 59, 100000),
    datetime(2038, 1, 19, 3, 14, 8),
)
_BERLIN_SUMMER_BEGINS = datetime(2026, 3, 29, 1, tzinfo=timezone.utc)
_BERLIN_WINTER_BEGINS = datetime(2026, 10, 25, 1, tzinfo=timezone.utc)
_AROUND = (timedelta(hours=-1), timedelta(microseconds=-1), timedelta(0), timedelta(microseconds=1), timedelta(hours=1))
_INSTANTS = tuple(moment.replace(tzinfo=timezone.utc) for moment in _WALL) + tuple(
    change + away for change in (_BERLIN_SUMMER_BEGINS, _BERLIN_WINTER_BEGINS) for away in _AROUND
)
_DAYS = (
    date(1, 1, 1),
    date(9999, 12, 31),
    date(1582, 10, 4),
    date(1582, 10, 15),
    *GAP_DAYS,
    date(1900, 3, 1),
    date(1969, 12, 31),
    date(1970, 1, 1),
    date(2024, 2, 29),
)
_TEXTS = (
    "plain",
    "",
    " ",
    "trailing spaces   ",
    "   leading",
    "NULL",
    "null",
    "\\N",
    "\\",
    "\\\\n",
    'it\'s "quoted"',
    '"',
    '""',
    "'",
    "a,b;c|d",
    "tab\tline\nend",
    "\r",
    "\r\n",
    "line\r\n",
    "\n",
    "".join(map(chr, range(1, 32))) + "\x7f\x85\u2028\u2029",
    "\x1a",
    "日本語",
    "🚲 \U0010ffff",
    "\U0001f469\u200d\U0001f52c",  # two people's signs joined to one
    "e\u0301 é",  # the same letter twice, as two characters and as one
    "\ufeffmark",
    "\ufffd\uffff",
    "#comment",
    "=1+1",
    "ab" * 60_000,
    "é🚲" * 40_000,
    NUL,
    "\x00",
)
_DEEP = json.loads('{"deeper": [1, ' * 15 + "null" + "]}" * 15)
_DOCUMENTS = (
    {"b": [1, None, "ü", True], "a": {}, "": [[]], "🚲": "e\u0301"},
    {"big": 2**63, "bigger": 10**40 + 1, "least": -(10**40) - 1, "tiny": 5e-324, "huge": 1.7976931348623157e308},
    _DEEP,
    [],
    {},
    'text with "quotes", a \\ and\ttabs\n',
    "",
    0,
    False,
    0.1,
    "x" * 100_000,
)
_WRITTEN = (
    ' {"a" : [1.50, 1e2, 0.1234567890123456789012345678901234567890]} ',
    '{"huge": 1.5E+400, "whole": 123456789012345678901234567890123456789012345678901234567890}',
    '"\\u00e9\\ud83d\\udeb2\\/"',
    "null",
    "-0.0",
    JSON_NUL,
    JSON_ESCAPED,
    JSON_HALF,
    JSON_LOW_HALF,
    JSON_DEEP,
)

NATIVE_REFUSES = (JSON_HALF, JSON_LOW_HALF, JSON_DEEP)
"""Documents that are unfit values to the native engine, whatever system they are for."""

COLUMNS: dict[str, Typed] = {
    "a_small": Typed(SmallInt, (-(2**15), 2**15 - 1, 0, -1)),
    "an_integer": Typed(Integer, (-(2**31), 2**31 - 1, 0, -1)),
    "a_big": Typed(BigInt, (-(2**63), 2**63 - 1, 0, -1, 2**53 + 1)),
    "a_float": Typed(
        Float, (FLOAT_MAX, -FLOAT_MAX, FLOAT_LEAST_NORMAL, FLOAT_LEAST, -FLOAT_LEAST, 0.0, -0.0, 1.5, *NOT_FINITE)
    ),
    "a_double": Typed(
        Double,
        (DOUBLE_MAX, -DOUBLE_MAX, DOUBLE_LEAST_NORMAL, DOUBLE_LEAST, -DOUBLE_LEAST, 0.0, -0.0, 0.1, 1e23, *NOT_FINITE),
    ),
    "money": _decimals(12, 2, "12.34"),
    "whole": _decimals(38, 0, "12345678901234567890123456789012345678"),
    "middle": _decimals(38, 18, "-12345678901234567890.123456789012345678"),
    "all_behind": _decimals(38, 38, "-0.12345678901234567890123456789012345678"),
    "one_digit": _decimals(1, 1),
    "a_flag": Typed(Boolean, (True, False)),
    "a_text": Typed(Text, _TEXTS),
    "a_string": Typed(String[5], ("abcde", "", "ab   ", "     ", "日本🚲e\u0301", NUL)),
    "a_date": Typed(Date, _DAYS),
    "a_time": Typed(Timestamp, _WALL),
    "an_instant": Typed(TimestampTZ, _INSTANTS),
    "a_json": Typed(JSON, _DOCUMENTS),
    "a_jsonb": Typed(JSONB, _DOCUMENTS),
    "a_written_json": Typed(JSON, _WRITTEN, Text()),
    "a_written_jsonb": Typed(JSONB, _WRITTEN, Text()),
    "a_uuid": Typed(UUID, ("123e4567-e89b-12d3-a456-426614174000", "0" * 8 + "-0000-0000-0000-" + "0" * 12)),
    "a_written_uuid": Typed(
        UUID,
        (
            "123E4567-E89B-12D3-A456-426614174ABC",
            "ffffffff-FFFF-ffff-FFFF-ffffffffffff",
            "123e4567e89b12d3a456426614174000",
        ),
        Text(),
    ),
    "some_bytes": Typed(Bytes, (b"", b"\x00", b"\x00\xff\\x'", bytes(range(256)), bytes(range(256)) * 500)),
}
"""Column → type and values. The shorter lists end in NULLs, and the last row is NULL throughout."""

_NOT_FINITE = frozenset((kind, shown) for kind in ("float", "double") for shown in ("nan", math.inf, -math.inf))
_HALVES = (JSON_HALF, JSON_LOW_HALF)
_NAN = frozenset({("float", "nan"), ("double", "nan")})
REFUSED: dict[str, frozenset[tuple[str, Any]]] = {
    "PostgreSQL": frozenset(
        {("text", NUL), ("text", "\x00"), ("string", NUL), ("jsonb", JSON_NUL), *(("jsonb", t) for t in _HALVES)}
    ),
    "MySQL": _NOT_FINITE | {(kind, text) for kind in ("json", "jsonb") for text in (JSON_DEEP, *_HALVES)},
    "SQLite": _NAN,
    "DuckDB": frozenset((kind, text) for kind in ("json", "jsonb") for text in _HALVES),
    "Parquet": frozenset(),
    "CSV": frozenset(),
    "JSON lines": frozenset(),
    "Delta": frozenset(),
    "Iceberg": frozenset(),
    "ORC": frozenset(
        {("date", day) for day in GAP_DAYS}
        | {
            ("timestamp_tz", datetime(1582, 10, 10, 12, tzinfo=timezone.utc)),
            ("timestamp_tz", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc)),
        }
    ),
}
"""System → (kind of type, value) that it has no place for; a load says so. NaN is written `"nan"`."""


UNSIGNED_ZERO = frozenset({"MySQL", "SQLite"})
"""Systems that keep -0.0 as 0.0, which is equal to it."""


def is_held(system: str, typed: Typed, value: Any) -> bool:
    """Whether a system has a place for a value."""
    if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0 and system in UNSIGNED_ZERO:
        return False
    shown = "nan" if isinstance(value, float) and math.isnan(value) else value
    return not any(typed.type.kind == kind and shown == refused for kind, refused in REFUSED[system])


def rows_for(*systems: str) -> list[Row]:
    """Rows with all values that all of these systems hold; the first column numbers them."""
    refused = NATIVE_REFUSES if os.environ.get("EMATIX_TEST_ENGINE") == "native" else ()
    columns = [
        [
            value
            for value in typed.values
            if value not in refused and all(is_held(system, typed, value) for system in systems)
        ]
        for typed in COLUMNS.values()
    ]
    longest = max(len(values) for values in columns) + 1
    return [(n, *(values[n] if n < len(values) else None for values in columns)) for n in range(longest)]


def exact(value: Any, kind: ColumnType) -> Any:
    """A value in a form that is equal only to itself: NaN to NaN, 0.0 not to -0.0, 1.50 in a document to 1.5."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(kind, JSON | JSONB) and value is not None:
        return json.loads(value, parse_float=_number, parse_int=_number)
    return value


def _number(text: str) -> tuple[str, Decimal]:
    # Marked, so that a number is not equal to a boolean.
    return "number", Decimal(text)
