"""Redshift's spelling of names, types, constants and conversions.

It looks like PostgreSQL and is another database: lengths are counted in bytes, a backslash in a text escapes, there is
no `IS DISTINCT FROM`, and Parquet files cannot be copied into a column that knows time zones.
"""

from __future__ import annotations

import re

from ematix_flow.backends.warehouse_dialect import DAYS, TEXTS, WHOLE, WarehouseDialect
from ematix_flow.contracts import refusals
from ematix_flow.contracts.dialect import constant_text
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

LONGEST_TEXT = 65_535
_BYTES_PER_CHARACTER = 4
_TEXT = f"varchar({LONGEST_TEXT})"
_BARE_TYPES: dict[type[ColumnType], str] = {
    SmallInt: "smallint",
    Integer: "integer",
    BigInt: "bigint",
    Float: "real",
    Double: "double precision",
    Boolean: "boolean",
    Text: _TEXT,
    Date: "date",
    Timestamp: "timestamp",
    TimestampTZ: "timestamptz",
    JSON: _TEXT,
    JSONB: _TEXT,
    UUID: "varchar(36)",
    Bytes: "varbyte(1024000)",
}
_NATIVE_TYPES: dict[str, ColumnType] = {
    "smallint": SmallInt(),
    "int2": SmallInt(),
    "integer": Integer(),
    "int4": Integer(),
    "bigint": BigInt(),
    "int8": BigInt(),
    "real": Float(),
    "float4": Float(),
    "double precision": Double(),
    "float8": Double(),
    "boolean": Boolean(),
    "bool": Boolean(),
    "text": Text(),
    "varchar": Text(),
    "character varying": Text(),
    "date": Date(),
    "timestamp": Timestamp(),
    "timestamp without time zone": Timestamp(),
    "timestamptz": TimestampTZ(),
    "timestamp with time zone": TimestampTZ(),
    "varbyte": Bytes(),
    "binary varying": Bytes(),
    "bytea": Bytes(),
}


class RedshiftDialect(WarehouseDialect):
    """Redshift. Sessions are kept in UTC and tell upper from lower case in names."""

    name = "redshift"
    system = "Redshift"
    max_identifier_bytes = 127
    ddl_commits = False

    # ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def type_sql(self, column_type: ColumnType) -> str:
        if isinstance(column_type, Numeric):
            column_type = self.greatest(column_type)
            return f"numeric({column_type.precision},{column_type.scale})"
        if isinstance(column_type, String):
            return f"varchar({min(column_type.length * _BYTES_PER_CHARACTER, LONGEST_TEXT)})"
        return _BARE_TYPES[type(column_type)]

    def from_native(self, native: str) -> ColumnType | None:
        if native in _NATIVE_TYPES:
            return _NATIVE_TYPES[native]
        if found := re.fullmatch(r"(?:character varying|varchar)\((\d+)\)", native):
            return String(int(found[1])) if int(found[1]) < LONGEST_TEXT else Text()
        if found := re.fullmatch(r"(?:numeric|decimal)\((\d+), ?(\d+)\)", native):
            return Numeric(int(found[1]), int(found[2]))
        return Bytes() if native.startswith(("varbyte", "binary varying")) else None

    def text_length(self, expression: str) -> str:
        return f"char_length({expression})"

    # ── how columns travel ───────────────────────────────────────────────────────────────────────────────────────────

    def transported(self, column_type: ColumnType) -> ColumnType:
        return Timestamp() if isinstance(column_type, TimestampTZ) else super().transported(column_type)

    def taken_in(self, expression: str, column_type: ColumnType) -> str:
        return f"({expression} AT TIME ZONE 'UTC')" if isinstance(column_type, TimestampTZ) else expression

    def given_out(self, expression: str, column_type: ColumnType | None) -> str:
        return expression if column_type is not None else f"CAST({expression} AS {_TEXT})"

    # ── constants and expressions ────────────────────────────────────────────────────────────────────────────────────

    def literal(self, value: object, column_type: ColumnType) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, bytes):
            return f"from_hex('{value.hex()}')"
        text = constant_text(value)
        if isinstance(column_type, Timestamp | TimestampTZ):
            text = text.replace("T", " ").replace("Z", "+00:00")  # the one form that needs no guessing
        quoted = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
        if isinstance(column_type, (*TEXTS, UUID, JSON, JSONB)):
            return quoted
        return f"CAST({quoted} AS {self.type_sql(column_type)})"

    def lowest(self, column_type: ColumnType) -> str:
        if isinstance(column_type, DAYS):
            return f"CAST('0001-01-01' AS {self.type_sql(column_type)})"
        if isinstance(column_type, Float | Double):
            return "CAST('-infinity' AS double precision)"
        if isinstance(column_type, (Numeric, *WHOLE)):
            return f"CAST('-{'9' * 38}' AS numeric(38,0))"
        return "''"

    def is_distinct(self, left: str, right: str, column_type: ColumnType) -> str:
        same = f"{left} = {right} OR ({left} IS NULL AND {right} IS NULL)"
        return f"(CASE WHEN {same} THEN 0 ELSE 1 END = 1)"

    def as_watermark_text(self, expression: str, column_type: ColumnType) -> str:
        if isinstance(column_type, TimestampTZ):
            return f"to_char({expression} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US') || 'Z'"
        if isinstance(column_type, Timestamp):
            return f"to_char({expression}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US')"
        return f"CAST({expression} AS {_TEXT})"

    def refusal(self, expression: str, declared: ColumnType, column: str) -> str:
        # Redshift has no way to fail on purpose; a text that is no number does it, when a row gets that far.
        said = self.literal(refusals.unfit(column, str(declared)), Text())
        return f"CAST({said} || left(CAST({expression} AS {_TEXT}), 0) AS {self.type_sql(declared)})"

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────

    def insert_once(self, table: str, key: str, key_sql: str, other: str, other_sql: str) -> str:
        # Transactions are serializable: of two that do this at once, one fails.
        column = self.quote(key)
        return (
            f"INSERT INTO {table} ({column}, {self.quote(other)}) SELECT {key_sql}, {other_sql} "
            f"WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE {column} = {key_sql})"
        )

    def widen_column(self, table: str, column: str, type_sql: str) -> str | None:
        return None  # only texts could be, and not inside a transaction

    def drop_not_null(self, table: str, column: str) -> str | None:
        return None
