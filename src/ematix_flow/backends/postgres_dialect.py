"""PostgreSQL's spelling of names, types, constants and conversions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ematix_flow.contracts import refusals
from ematix_flow.contracts.dialect import Dialect, constant_text
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
)
from ematix_flow.errors import UnfitValue

_BARE_TYPES: dict[type[ColumnType], str] = {
    SmallInt: "smallint",
    Integer: "integer",
    BigInt: "bigint",
    Float: "real",
    Double: "double precision",
    Boolean: "boolean",
    Text: "text",
    Date: "date",
    Timestamp: "timestamp",
    TimestampTZ: "timestamptz",
    JSON: "json",
    JSONB: "jsonb",
    UUID: "uuid",
    Bytes: "bytea",
}
_NATIVE_TYPES: dict[str, ColumnType] = {
    **{native: cls() for cls, native in _BARE_TYPES.items()},
    "int2": SmallInt(),
    "int4": Integer(),
    "int8": BigInt(),
    "float4": Float(),
    "float8": Double(),
    "bool": Boolean(),
    "varchar": Text(),
    "character varying": Text(),
    "timestamp without time zone": Timestamp(),
    "timestamp with time zone": TimestampTZ(),
}
_WHOLE = (SmallInt, Integer, BigInt)
_TEXTS = (Text, String)
_DAYS = (Date, Timestamp, TimestampTZ)
_BITS: dict[type[ColumnType], int] = {SmallInt: 16, Integer: 32, BigInt: 64}
MAX_SPARK_PRECISION = 38


class PostgresDialect(Dialect):
    """PostgreSQL 12 and later. Sessions are kept in UTC, so that texts of instants are the same everywhere."""

    name = "postgres"
    max_identifier_bytes = 63
    swaps_tables = True
    enforces_lengths = True

    def lands_as_declared(self, column_type: ColumnType) -> bool:
        # Documents and identifiers travel as text.
        return not isinstance(column_type, JSON | JSONB | UUID)

    def type_sql(self, column_type: ColumnType) -> str:
        if isinstance(column_type, Numeric):
            return f"numeric({column_type.precision},{column_type.scale})"
        if isinstance(column_type, String):
            return f"varchar({column_type.length})"
        return _BARE_TYPES[type(column_type)]

    def from_native(self, native: str) -> ColumnType | None:
        if native in _NATIVE_TYPES:
            return _NATIVE_TYPES[native]
        if found := re.fullmatch(r"(?:character varying|varchar)\((\d+)\)", native):
            return String(int(found[1]))
        if found := re.fullmatch(r"(?:timestamp|timestamptz)\(6\)(?: (with|without) time zone)?", native):
            return TimestampTZ() if found[1] == "with" or native.startswith("timestamptz") else Timestamp()
        if found := re.fullmatch(r"(?:numeric|decimal)\((\d+),(-?\d+)\)", native.replace(" ", "")):
            precision, scale = int(found[1]), int(found[2])
            return Numeric(precision, scale) if 0 <= scale <= precision else None
        return None

    def literal(self, value: object, column_type: ColumnType) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, bytes):
            return f"'\\x{value.hex()}'::bytea"
        text = constant_text(value)
        if "\x00" in text:
            raise UnfitValue("PostgreSQL cannot hold a NUL character in text.")
        # Standard strings: a backslash means itself; the session makes sure of that.
        quoted = "'" + text.replace("'", "''") + "'"
        if isinstance(column_type, _TEXTS):
            return quoted
        return f"{quoted}::{self.type_sql(column_type)}"

    def lowest(self, column_type: ColumnType) -> str:
        if isinstance(column_type, _DAYS):
            return f"'-infinity'::{self.type_sql(column_type)}"
        if isinstance(column_type, Float | Double):
            return f"'-infinity'::{self.type_sql(column_type)}"
        if isinstance(column_type, Numeric):
            return f"'-{'9' * (column_type.precision - column_type.scale) or '0'}'::numeric - 1"
        bounds = {SmallInt: -(2**15), Integer: -(2**31), BigInt: -(2**63)}
        if type(column_type) in bounds:
            return f"'{bounds[type(column_type)]}'::{self.type_sql(column_type)}"
        return "''"

    def is_distinct(self, left: str, right: str, column_type: ColumnType) -> str:
        if isinstance(column_type, JSON):  # json has no equality of its own
            left, right = f"{left}::text", f"{right}::text"
        return f"{left} IS DISTINCT FROM {right}"

    def is_same(self, left: str, right: str, column_type: ColumnType) -> str:
        empty = "''" if isinstance(column_type, String | Text) else "0" if isinstance(column_type, _WHOLE) else None
        if empty is None:
            return f"{left} IS NOT DISTINCT FROM {right}"
        # Rows are matched by hash where both sides are expressions, and one by one by IS NOT DISTINCT FROM.
        return f"({left} IS NULL) = ({right} IS NULL) AND coalesce({left}, {empty}) = coalesce({right}, {empty})"

    def row_hash(self, expressions: Sequence[tuple[str, ColumnType]]) -> str:
        parts = []
        for expression, kind in expressions:
            value = expression if isinstance(kind, Bytes) else f"convert_to({expression}::text, 'UTF8')"
            parts.append(f"CASE WHEN {expression} IS NULL THEN '\\x004e554c4c00'::bytea ELSE {value} END")
        return "sha256(" + " || '\\x01'::bytea || ".join(parts) + ")"

    def as_watermark_text(self, expression: str, column_type: ColumnType) -> str:
        if isinstance(column_type, TimestampTZ):
            return f"to_char({expression} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
        if isinstance(column_type, Timestamp):
            return f"to_char({expression}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"
        return f"({expression})::text"

    def ordered(self, expression: str, column_type: ColumnType) -> str:
        # A database's own collation orders text by language; Spark, Python and the other systems go by bytes.
        return f'({expression} COLLATE "C")' if isinstance(column_type, _TEXTS) else expression

    def as_instant(self, expression: str, column_type: ColumnType) -> str:
        return expression if isinstance(column_type, TimestampTZ) else f"({expression})::timestamptz"

    def fit(self, expression: str, source: ColumnType | None, declared: ColumnType, column: str) -> str | None:
        if source is None:
            return None
        if source == declared and not isinstance(declared, String):
            return expression
        wanted = "text" if isinstance(declared, _TEXTS) else self.type_sql(declared)
        # The pairs whose meaning is the same here and in Spark; anything else goes through Spark.
        same = (
            (isinstance(source, _TEXTS) and isinstance(declared, _TEXTS))
            or (isinstance(source, _WHOLE) and isinstance(declared, (*_WHOLE, Numeric, Double)))
            or (isinstance(source, Numeric) and isinstance(declared, Numeric))
            or (isinstance(source, Float) and isinstance(declared, Double))
            or (isinstance(source, _DAYS) and isinstance(declared, _DAYS))
            or (isinstance(source, JSON | JSONB) and isinstance(declared, (JSON, JSONB, Text)))
            or (isinstance(source, UUID) and isinstance(declared, _TEXTS))
        )
        if not same:
            return None
        too_large = _too_large(expression, source, declared)
        if too_large is None:
            return f"CAST({expression} AS {wanted})"
        # PostgreSQL's own message would not name the column. The failing cast hangs on the row, or the planner would
        # run it while planning.
        message = self.literal(refusals.unfit(column, str(declared)), Text())
        failed = f"(left({expression}::text, 0) || {message})::bigint::{wanted}"
        return f"CASE WHEN {too_large} THEN {failed} ELSE CAST({expression} AS {wanted}) END"

    def create_landed(self, name: str, query: str) -> str:
        return f"CREATE TEMPORARY TABLE {self.quote(name)} ON COMMIT DROP AS {query}"

    def count_scratch(self, name: str) -> str | None:
        return f"ANALYZE {self.quote(name)}"

    def text_length(self, expression: str) -> str:
        return f"char_length({expression})"


def _too_large(expression: str, source: ColumnType, declared: ColumnType) -> str | None:
    """A condition that is true for the numbers that the declared type cannot hold; None when all of them fit."""
    if isinstance(declared, _WHOLE):
        bits = _BITS[type(declared)]
        if isinstance(source, _WHOLE) and _BITS[type(source)] > bits:
            return f"{expression} NOT BETWEEN {-(2 ** (bits - 1))} AND {2 ** (bits - 1) - 1}"
    if isinstance(declared, Numeric):
        room = declared.precision - declared.scale
        digits = 19 if not isinstance(source, Numeric) else source.precision - source.scale
        # Rounding to fewer places may carry into one digit more.
        if digits > room or (digits == room and isinstance(source, Numeric) and source.scale > declared.scale):
            return f"abs(round({expression}::numeric, {declared.scale})) >= 1e{room}::numeric"
    return None
