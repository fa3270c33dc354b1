"""BigQuery's spelling of names, types, constants and conversions."""

from __future__ import annotations

import re

from ematix_flow.backends.transport import MOST_DIGITS
from ematix_flow.backends.warehouse_dialect import DAYS, DOCUMENTS, TEXTS, WHOLE, WarehouseDialect
from ematix_flow.contracts import refusals
from ematix_flow.contracts.dialect import constant_text
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
from ematix_flow.errors import InvalidIdentifier, InvalidPlan

_BARE_TYPES: dict[type[ColumnType], str] = {
    SmallInt: "INT64",
    Integer: "INT64",
    BigInt: "INT64",
    Float: "FLOAT64",
    Double: "FLOAT64",
    Boolean: "BOOL",
    Text: "STRING",
    Date: "DATE",
    Timestamp: "DATETIME",
    TimestampTZ: "TIMESTAMP",
    JSON: "JSON",
    JSONB: "JSON",
    UUID: "STRING(36)",
    Bytes: "BYTES",
}
_NATIVE_TYPES: dict[str, ColumnType] = {
    "INT64": BigInt(),
    "INTEGER": BigInt(),
    "FLOAT64": Double(),
    "FLOAT": Double(),
    "BOOL": Boolean(),
    "BOOLEAN": Boolean(),
    "STRING": Text(),
    "DATE": Date(),
    "DATETIME": Timestamp(),
    "TIMESTAMP": TimestampTZ(),
    "JSON": JSON(),
    "BYTES": Bytes(),
    "NUMERIC": Numeric(38, 9),
    "BIGNUMERIC": Numeric(76, 38),
}
_MOMENT = "%Y-%m-%dT%H:%M:%E6S"
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\x00": "\\x00"}


class BigqueryDialect(WarehouseDialect):
    """BigQuery, in GoogleSQL. Tables are named with their project, so that views find them from anywhere."""

    name = "bigquery"
    system = "BigQuery"
    max_identifier_bytes = 300

    def __init__(self, project: str = "") -> None:
        self.project = project

    # ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def quote(self, name: str) -> str:
        super().quote(name)  # refuses what no system takes
        if "`" in name or "\\" in name:
            raise InvalidIdentifier(f"{name!r} cannot be a name in BigQuery.", fix="choose another name")
        return f"`{name}`"

    def table(self, ref: TableRef) -> str:
        project = f"{self.quote(self.project)}." if self.project and ref.schema else ""
        return project + super().table(ref)

    def written(self, table_name: str) -> str:
        return ".".join(self.quote(part.strip().strip("`")) for part in table_name.split("."))

    def pinned(self, table: str, query: str) -> str:
        kept = "expiration_timestamp = TIMESTAMP_ADD(CURRENT_TIMESTAMP(), INTERVAL 1 DAY)"
        return f"CREATE TABLE {table} OPTIONS ({kept}) AS {query}"

    # ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def type_sql(self, column_type: ColumnType) -> str:
        if isinstance(column_type, Numeric):
            digits, scale = column_type.precision, column_type.scale
            if scale <= 9 and digits - scale <= 29:
                return f"NUMERIC({digits}, {scale})"
            if scale <= 38 and digits - scale <= 38:
                return f"BIGNUMERIC({digits}, {scale})"
            raise InvalidPlan(f"{column_type} has more digits than BigQuery can hold.", fix="declare fewer digits")
        if isinstance(column_type, String):
            return f"STRING({column_type.length})"
        return _BARE_TYPES[type(column_type)]

    def from_native(self, native: str) -> ColumnType | None:
        if native in _NATIVE_TYPES:
            return _NATIVE_TYPES[native]
        if found := re.fullmatch(r"STRING\((\d+)\)", native):
            return String(int(found[1]))
        if found := re.fullmatch(r"(?:BIG)?NUMERIC\((\d+)(?:, ?(\d+))?\)", native):
            return Numeric(int(found[1]), int(found[2] or 0))
        return Bytes() if re.fullmatch(r"BYTES\(\d+\)", native) else None

    # ── how columns travel ───────────────────────────────────────────────────────────────────────────────────────────

    def taken_in(self, expression: str, column_type: ColumnType) -> str:
        return f"PARSE_JSON({expression})" if isinstance(column_type, DOCUMENTS) else expression

    def given_out(self, expression: str, column_type: ColumnType | None) -> str:
        if column_type is None or isinstance(column_type, DOCUMENTS):
            return f"TO_JSON_STRING({expression})"
        if isinstance(column_type, Numeric) and column_type.precision > MOST_DIGITS:
            return f"CAST({expression} AS STRING)"
        return expression

    # ── constants and expressions ────────────────────────────────────────────────────────────────────────────────────

    def literal(self, value: object, column_type: ColumnType) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, bytes):
            return f"FROM_HEX('{value.hex()}')"
        quoted = "'" + "".join(_ESCAPES.get(letter, letter) for letter in constant_text(value)) + "'"
        if isinstance(column_type, (*TEXTS, UUID)):
            return quoted
        if isinstance(column_type, DOCUMENTS):
            return f"PARSE_JSON({quoted})"
        return f"CAST({quoted} AS {self.type_sql(column_type)})"

    def lowest(self, column_type: ColumnType) -> str:
        if isinstance(column_type, DAYS):
            return f"CAST('0001-01-01' AS {self.type_sql(column_type)})"
        if isinstance(column_type, Float | Double):
            return "CAST('-inf' AS FLOAT64)"
        if isinstance(column_type, (Numeric, *WHOLE)):
            return f"CAST('-{'9' * 38}' AS BIGNUMERIC)"
        return "''"

    def is_distinct(self, left: str, right: str, column_type: ColumnType) -> str:
        if isinstance(column_type, DOCUMENTS):  # documents have no equality of their own
            left, right = f"TO_JSON_STRING({left})", f"TO_JSON_STRING({right})"
        return f"{left} IS DISTINCT FROM {right}"

    def as_watermark_text(self, expression: str, column_type: ColumnType) -> str:
        if isinstance(column_type, TimestampTZ):
            return f"FORMAT_TIMESTAMP('{_MOMENT}Z', {expression}, 'UTC')"
        if isinstance(column_type, Timestamp):
            return f"FORMAT_DATETIME('{_MOMENT}', {expression})"
        return f"CAST({expression} AS STRING)"

    def text_length(self, expression: str) -> str:
        return f"CHAR_LENGTH({expression})"

    def refusal(self, expression: str, declared: ColumnType, column: str) -> str:
        return f"ERROR({self.literal(refusals.unfit(column, str(declared)), Text())})"

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────

    def delete_all(self, target: str) -> str:
        return f"DELETE FROM {target} WHERE TRUE"  # without a condition it is refused

    def widen_column(self, table: str, column: str, type_sql: str) -> str | None:
        return f"ALTER TABLE {table} ALTER COLUMN {self.quote(column)} SET DATA TYPE {type_sql}"
