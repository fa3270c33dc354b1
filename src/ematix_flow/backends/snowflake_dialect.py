"""Snowflake's spelling of names, types, constants and conversions.

Snowflake writes names that are not quoted in capitals. So does this: a plain name in lower case (`customer_id`) is the
same name that people write without quotes, and stored as `CUSTOMER_ID`; any other is stored as it is declared.
"""

from __future__ import annotations

import re

from ematix_flow.backends.warehouse_dialect import DOCUMENTS, TEXTS, WHOLE, WarehouseDialect
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
from ematix_flow.errors import InvalidIdentifier, InvalidPlan

LONGEST_TEXT = 16_777_216
_BARE_TYPES: dict[type[ColumnType], str] = {
    SmallInt: "NUMBER(5,0)",
    Integer: "NUMBER(10,0)",
    BigInt: "NUMBER(19,0)",
    Float: "FLOAT",
    Double: "FLOAT",
    Boolean: "BOOLEAN",
    Text: "VARCHAR",
    Date: "DATE",
    Timestamp: "TIMESTAMP_NTZ(6)",
    TimestampTZ: "TIMESTAMP_TZ(6)",
    JSON: "VARIANT",
    JSONB: "VARIANT",
    UUID: "VARCHAR(36)",
    Bytes: "BINARY",
}
_NATIVE_TYPES: dict[str, ColumnType] = {
    "FLOAT": Double(),
    "REAL": Double(),
    "BOOLEAN": Boolean(),
    "VARCHAR": Text(),
    "TEXT": Text(),
    "DATE": Date(),
    "TIMESTAMP_NTZ": Timestamp(),
    "TIMESTAMP_TZ": TimestampTZ(),
    "TIMESTAMP_LTZ": TimestampTZ(),
    "VARIANT": JSON(),
    "OBJECT": JSON(),
    "ARRAY": JSON(),
    "BINARY": Bytes(),
}
_PLAIN_LOWER = re.compile(r"[a-z_][a-z0-9_$]*")
_PLAIN_UPPER = re.compile(r"[A-Z_][A-Z0-9_$]*")
_MOMENT = 'YYYY-MM-DD"T"HH24:MI:SS.FF6'


class SnowflakeDialect(WarehouseDialect):
    """Snowflake. Sessions are kept in UTC."""

    name = "snowflake"
    system = "Snowflake"
    max_identifier_bytes = 255

    # ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def quote(self, name: str) -> str:
        return super().quote(self.kept_name(name))

    def kept_name(self, name: str) -> str:
        """A declared name as Snowflake keeps it: in capitals, when it needs no quotes.

        Raises:
            InvalidIdentifier: a plain name in capitals, which would be the same as the one in lower case.
        """
        if _PLAIN_LOWER.fullmatch(name):
            return name.upper()
        if _PLAIN_UPPER.fullmatch(name):
            raise InvalidIdentifier(
                f"'{name}' is what Snowflake calls '{name.lower()}'; only one of the two can be declared.",
                fix=f"declare it in lower case: {name.lower()}",
            )
        return name

    def declared_name(self, kept: str) -> str:
        """A name that Snowflake keeps as it is declared here.

        >>> SnowflakeDialect().declared_name("CUSTOMER_ID"), SnowflakeDialect().declared_name("Order No")
        ('customer_id', 'Order No')
        """
        return kept.lower() if _PLAIN_UPPER.fullmatch(kept) else kept

    def written_name(self, part: str) -> str:
        return super().written_name(part) if part.startswith('"') else part.upper()

    def pinned(self, table: str, query: str) -> str:
        return f"CREATE TRANSIENT TABLE {table} AS {query}"

    # ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def type_sql(self, column_type: ColumnType) -> str:
        if isinstance(column_type, Numeric):
            column_type = self.greatest(column_type)
            return f"NUMBER({column_type.precision},{column_type.scale})"
        if isinstance(column_type, String):
            if column_type.length > LONGEST_TEXT:
                raise InvalidPlan(f"{column_type} is longer than Snowflake's longest text.", fix="declare it Text")
            return f"VARCHAR({column_type.length})"
        return _BARE_TYPES[type(column_type)]

    def from_native(self, native: str) -> ColumnType | None:
        word, _, inside = native.upper().replace(" ", "").rstrip(")").partition("(")
        if word in ("NUMBER", "DECIMAL", "NUMERIC") and inside:
            precision, _, scale = inside.partition(",")
            return Numeric(int(precision), int(scale or 0))
        if word in ("VARCHAR", "TEXT") and inside and int(inside) < LONGEST_TEXT:
            return String(int(inside))
        return _NATIVE_TYPES.get(word)

    def made_for(self, native: str) -> ColumnType | None:
        """The type a live column of a target was made for; whole numbers are decimals without places to Snowflake.

        >>> SnowflakeDialect().made_for("NUMBER(19,0)"), SnowflakeDialect().from_native("NUMBER(19,0)")
        (BigInt(), Numeric(precision=19, scale=0))
        """
        whole = (kind for kind in (SmallInt, Integer, BigInt) if _BARE_TYPES[kind] == native.replace(" ", ""))
        return next((kind() for kind in whole), None) or self.from_native(native)

    # ── how columns travel ───────────────────────────────────────────────────────────────────────────────────────────

    def taken_in(self, expression: str, column_type: ColumnType) -> str:
        return f"PARSE_JSON({expression})" if isinstance(column_type, DOCUMENTS) else expression

    def given_out(self, expression: str, column_type: ColumnType | None) -> str:
        # Times come back in nanoseconds, which end in the year 2262.
        if isinstance(column_type, Timestamp | TimestampTZ):
            return self.as_watermark_text(expression, column_type)
        if isinstance(column_type, DOCUMENTS):
            return f"TO_JSON({expression})"
        return expression if column_type is not None else f"TO_VARCHAR({expression})"

    # ── constants and expressions ────────────────────────────────────────────────────────────────────────────────────

    def literal(self, value: object, column_type: ColumnType) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, bytes):
            return f"TO_BINARY('{value.hex()}', 'HEX')"
        quoted = "'" + constant_text(value).replace("\\", "\\\\").replace("'", "''") + "'"
        if isinstance(column_type, (*TEXTS, UUID)):
            return quoted
        if isinstance(column_type, DOCUMENTS):
            return f"PARSE_JSON({quoted})"
        return f"CAST({quoted} AS {self.type_sql(column_type)})"

    def lowest(self, column_type: ColumnType) -> str:
        if isinstance(column_type, Date | Timestamp | TimestampTZ):
            return f"CAST('0001-01-01' AS {self.type_sql(column_type)})"
        if isinstance(column_type, Float | Double):
            return "CAST('-inf' AS FLOAT)"
        if isinstance(column_type, (Numeric, *WHOLE)):
            return f"(-{'9' * 38})"
        return "''"

    def is_distinct(self, left: str, right: str, column_type: ColumnType) -> str:
        if isinstance(column_type, DOCUMENTS):
            left, right = f"TO_JSON({left})", f"TO_JSON({right})"
        return f"{left} IS DISTINCT FROM {right}"

    def as_watermark_text(self, expression: str, column_type: ColumnType) -> str:
        if isinstance(column_type, TimestampTZ):
            return f"TO_VARCHAR(CONVERT_TIMEZONE('UTC', {expression}), '{_MOMENT}') || 'Z'"
        if isinstance(column_type, Timestamp):
            return f"TO_VARCHAR({expression}, '{_MOMENT}')"
        return f"TO_VARCHAR({expression})"

    def refusal(self, expression: str, declared: ColumnType, column: str) -> str:
        # Snowflake has no way to fail on purpose; a text that is no number does it, when a row gets that far.
        said = self.literal(refusals.unfit(column, str(declared)), Text())
        return f"CAST({said} || LEFT(TO_VARCHAR({expression}), 0) AS {self.type_sql(declared)})"

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────

    def widen_column(self, table: str, column: str, type_sql: str) -> str | None:
        return f"ALTER TABLE {table} ALTER COLUMN {self.quote(column)} SET DATA TYPE {type_sql}"
