"""DuckDB's spelling of names, types, constants and conversions.

DuckDB forgets the length of a VARCHAR and knows one kind of JSON; what it forgets is kept in the column's comment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ematix_flow.contracts import refusals
from ematix_flow.contracts.dialect import Dialect, constant_text
from ematix_flow.contracts.shapes import TableRef
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
from ematix_flow.errors import InvalidPlan

GREATEST_PRECISION = 38
_BARE_TYPES: dict[type[ColumnType], str] = {
    SmallInt: "SMALLINT",
    Integer: "INTEGER",
    BigInt: "BIGINT",
    Float: "REAL",
    Double: "DOUBLE",
    Boolean: "BOOLEAN",
    Text: "VARCHAR",
    Date: "DATE",
    Timestamp: "TIMESTAMP",
    TimestampTZ: "TIMESTAMPTZ",
    JSON: "JSON",
    JSONB: "JSON",
    UUID: "UUID",
    Bytes: "BLOB",
}
_NATIVE_TYPES: dict[str, ColumnType] = {
    **{native: cls() for cls, native in _BARE_TYPES.items() if cls is not JSONB},
    "FLOAT": Float(),
    "TIMESTAMP WITH TIME ZONE": TimestampTZ(),
    "JSONB": JSONB(),
}
# Types of others that hold no more than one of ours; a column of ours is never made so. A HUGEINT has more values than
# any type here: those of more than 38 digits are refused where they are met.
_FOREIGN_TYPES: dict[str, ColumnType] = {
    "TINYINT": SmallInt(),
    "UTINYINT": SmallInt(),
    "USMALLINT": Integer(),
    "UINTEGER": BigInt(),
    "UBIGINT": Numeric(20, 0),
    "HUGEINT": Numeric(GREATEST_PRECISION, 0),
    "UHUGEINT": Numeric(GREATEST_PRECISION, 0),
    "TIMESTAMP_S": Timestamp(),
    "TIMESTAMP_MS": Timestamp(),
    '"NULL"': Text(),
}
_WHOLE = (SmallInt, Integer, BigInt)
_TEXTS = (Text, String)
_DAYS = (Date, Timestamp, TimestampTZ)
_DOCUMENTS = (JSON, JSONB)
_BITS: dict[type[ColumnType], int] = {SmallInt: 16, Integer: 32, BigInt: 64}
_NOTE = re.compile(r"VARCHAR\([1-9][0-9]*\)|JSONB")


class DuckdbDialect(Dialect):
    """DuckDB 2 and later. Sessions are kept in UTC, so that texts of instants are the same everywhere.

    `catalog` is what DuckDB calls the file. A schema of that name must be written behind it, or neither would be meant.
    """

    name = "duckdb"

    def __init__(self, catalog: str = "") -> None:
        self.catalog = catalog

    def table(self, ref: TableRef) -> str:
        return f"{self.schema(ref.schema)}.{self.quote(ref.name)}" if ref.schema else self.quote(ref.name)

    def schema(self, name: str) -> str:
        """A schema, quoted; behind the file's own name where the two are alike."""
        alike = name.casefold() == self.catalog.casefold()
        return f"{self.quote(self.catalog)}.{self.quote(name)}" if alike else self.quote(name)

    def create_schema(self, schema: str) -> str | None:
        return f"CREATE SCHEMA IF NOT EXISTS {self.schema(schema)}"

    def type_sql(self, column_type: ColumnType) -> str:
        if isinstance(column_type, Numeric):
            if column_type.precision > GREATEST_PRECISION:
                raise InvalidPlan(
                    f"{column_type} has more digits than DuckDB can hold ({GREATEST_PRECISION}).",
                    fix=f"declare Numeric[{GREATEST_PRECISION}, {min(column_type.scale, GREATEST_PRECISION)}] or less",
                )
            return f"DECIMAL({column_type.precision},{column_type.scale})"
        if isinstance(column_type, String):
            return f"VARCHAR({column_type.length})"
        return _BARE_TYPES[type(column_type)]

    def from_native(self, native: str) -> ColumnType | None:
        if native in _NATIVE_TYPES:
            return _NATIVE_TYPES[native]
        if found := re.fullmatch(r"VARCHAR\(([1-9][0-9]*)\)", native):
            return String(int(found[1]))
        if found := re.fullmatch(r"DECIMAL\((\d+), ?(\d+)\)", native):
            return Numeric(int(found[1]), int(found[2]))
        return _FOREIGN_TYPES.get(native)

    def same_type(self, declared: ColumnType, native: str) -> bool:
        if native in _FOREIGN_TYPES:
            return False
        # A table made by hand says VARCHAR for every text and JSON for every document.
        by_hand = (native == "VARCHAR" and isinstance(declared, (String, *_DOCUMENTS))) or (
            native == "JSON" and isinstance(declared, JSONB)
        )
        return by_hand or self.from_native(native) == declared

    def noted(self, native: str, comment: str | None) -> str:
        """The type of a live column: what DuckDB says, and what the comment keeps."""
        plain = native in ("VARCHAR", "JSON") and comment is not None and _NOTE.fullmatch(comment) is not None
        return str(comment) if plain and (comment == "JSONB") == (native == "JSON") else native

    def column_notes(self, table: str, columns: Sequence[tuple[str, ColumnType]]) -> tuple[str, ...]:
        return tuple(
            self._note(table, name, self.type_sql(kind) if isinstance(kind, String) else "JSONB")
            for name, kind in columns
            if isinstance(kind, String | JSONB)
        )

    def _note(self, table: str, column: str, note: str | None) -> str:
        kept = "NULL" if note is None else f"'{note}'"
        return f"COMMENT ON COLUMN {table}.{self.quote(column)} IS {kept}"

    def widen_column(self, table: str, column: str, type_sql: str) -> str | None:
        if type_sql.startswith("VARCHAR"):  # any VARCHAR takes any text; only the note is another
            return self._note(table, column, type_sql if type_sql != "VARCHAR" else None)
        return super().widen_column(table, column, type_sql)

    def literal(self, value: object, column_type: ColumnType) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, bytes):
            return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
        quoted = "'" + constant_text(value).replace("'", "''") + "'"
        return quoted if isinstance(column_type, _TEXTS) else f"{quoted}::{self.type_sql(column_type)}"

    def lowest(self, column_type: ColumnType) -> str:
        if isinstance(column_type, _DAYS):
            return f"'-infinity'::{self.type_sql(column_type)}"
        if isinstance(column_type, Float | Double | Numeric):
            return "'-infinity'::DOUBLE"
        if isinstance(column_type, _WHOLE):
            return "(-9223372036854775809)"
        return "''"

    def is_distinct(self, left: str, right: str, column_type: ColumnType) -> str:
        return f"{left} IS DISTINCT FROM {right}"

    def is_same(self, left: str, right: str, column_type: ColumnType) -> str:
        return f"{left} IS NOT DISTINCT FROM {right}"

    def row_hash(self, expressions: Sequence[tuple[str, ColumnType]]) -> str:
        parts = []
        for expression, kind in expressions:
            value = expression if isinstance(kind, Bytes) else f"encode(CAST({expression} AS VARCHAR))"
            parts.append(f"CASE WHEN {expression} IS NULL THEN '\\x00NULL\\x00'::BLOB ELSE {value} END")
        return "unhex(sha256(" + " || '\\x01'::BLOB || ".join(parts) + "))"

    def as_watermark_text(self, expression: str, column_type: ColumnType) -> str:
        if isinstance(column_type, TimestampTZ):
            return f"strftime({expression} AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%S.%fZ')"
        if isinstance(column_type, Timestamp):
            return f"strftime({expression}, '%Y-%m-%dT%H:%M:%S.%f')"
        return f"CAST({expression} AS VARCHAR)"

    def later(self, instant: str, micros: str) -> str:
        return f"({instant} + to_microseconds({micros}))"

    def as_instant(self, expression: str, column_type: ColumnType) -> str:
        if isinstance(column_type, TimestampTZ):
            return expression
        return f"(CAST({expression} AS TIMESTAMP) AT TIME ZONE 'UTC')"

    def fit(self, expression: str, source: ColumnType | None, declared: ColumnType, column: str) -> str | None:
        if source is None:
            return None
        wanted = "VARCHAR" if isinstance(declared, _TEXTS) else self.type_sql(declared)
        # The pairs whose meaning is the same here and in Spark; anything else goes through Spark.
        same = (
            source == declared
            or (isinstance(source, _TEXTS) and isinstance(declared, _TEXTS))
            or (isinstance(source, _WHOLE) and isinstance(declared, (*_WHOLE, Numeric, Double)))
            or (isinstance(source, Numeric) and isinstance(declared, Numeric))
            or (isinstance(source, Numeric) and source.scale == 0 and isinstance(declared, _WHOLE))
            or (isinstance(source, Float) and isinstance(declared, Double))
            or (isinstance(source, _DAYS) and isinstance(declared, _DAYS))
            or (isinstance(source, _DOCUMENTS) and isinstance(declared, (*_DOCUMENTS, Text)))
            or (isinstance(source, UUID) and isinstance(declared, _TEXTS))
        )
        if not same:
            return None
        too_large = _too_large(expression, source, declared)
        if too_large is None:
            return f"CAST({expression} AS {wanted})"
        return f"CASE WHEN {too_large} THEN {refusal(column, str(declared))} ELSE CAST({expression} AS {wanted}) END"


def refusal(column: str, wanted: str) -> str:
    """An expression that stops the query when a row reaches it, and names column and type; never the value."""
    return "error('" + refusals.unfit(column, wanted).replace("'", "''") + "')"


def exported(name: str, native: str, dialect: DuckdbDialect) -> str:
    """A column in the form in which Parquet carries it exactly: what has no such form travels as text."""
    column = dialect.quote(name)
    kind = dialect.from_native(native)
    if native == "TIMESTAMP_NS":
        finer = f"epoch_ns({column}) % 1000 <> 0 OR isinf({column})"
        return f"CASE WHEN {finer} THEN {refusal(name, 'timestamp')} ELSE CAST({column} AS TIMESTAMP) END AS {column}"
    if isinstance(kind, _DAYS):
        value = column if native in _NATIVE_TYPES else f"CAST({column} AS TIMESTAMP)"
        return f"CASE WHEN isinf({column}) THEN {refusal(name, kind.kind)} ELSE {value} END AS {column}"
    if isinstance(kind, Numeric) and native in _FOREIGN_TYPES:
        return f"{dialect.fit(column, kind, kind, name)} AS {column}"
    if kind is not None and not isinstance(kind, (*_TEXTS, *_DOCUMENTS, UUID)):
        return f"CAST({column} AS {dialect.type_sql(kind)}) AS {column}"
    if native.endswith("]") or native.startswith(("STRUCT(", "MAP(", "UNION(", "VARIANT")):
        return f"CAST(to_json({column}) AS VARCHAR) AS {column}"
    return f"CAST({column} AS VARCHAR) AS {column}"


def catalog_name(path: str) -> str:
    """What DuckDB calls a database file: its name up to the first dot that is not the first letter.

    >>> catalog_name("/data/warehouse.v2.duckdb"), catalog_name("main.db"), catalog_name(":memory:")
    ('warehouse', 'main_db', 'memory')
    """
    if path == ":memory:":
        return "memory"
    name = os.path.basename(path).lstrip(".").split(".")[0]
    return f"{name}_db" if name.lower() in ("main", "temp", "system") else name


def _too_large(expression: str, source: ColumnType, declared: ColumnType) -> str | None:
    """A condition that is true for the numbers that the declared type cannot hold; None when all of them fit."""
    if isinstance(declared, _WHOLE):
        bits = _BITS[type(declared)]
        if isinstance(source, Numeric) or (isinstance(source, _WHOLE) and _BITS[type(source)] > bits):
            return f"{expression} NOT BETWEEN {-(2 ** (bits - 1))} AND {2 ** (bits - 1) - 1}"
    if isinstance(declared, Numeric) and isinstance(source, (Numeric, *_WHOLE)):
        room = declared.precision - declared.scale
        digits = source.precision - source.scale if isinstance(source, Numeric) else len(str(2 ** _BITS[type(source)]))
        if isinstance(source, Numeric) and source.scale > declared.scale:
            # Rounding to fewer places may carry into one digit more.
            if digits >= room:
                half = f"{'9' * room or '0'}.{'9' * declared.scale}5"
                return f"({expression} >= {half} OR {expression} <= -{half})"
        elif room == GREATEST_PRECISION == digits:
            # What is called a decimal of 38 digits may be a HUGEINT, which has some of 39.
            return f"{expression} NOT BETWEEN -{'9' * room} AND {'9' * room}"
        elif digits > room:
            return f"({expression} >= 1{'0' * room} OR {expression} <= -1{'0' * room})"
    return None
