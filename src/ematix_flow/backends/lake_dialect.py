"""How Spark SQL spells things for lake tables: tables that are files, which Spark itself reads and changes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal

from ematix_flow.backends.locks import digest
from ematix_flow.backends.transport import (
    INSTANT_PATTERN,
    MOST_DIGITS,
    WALL_CLOCK_PATTERN,
    is_decimal,
    quoted,
    spark_type,
)
from ematix_flow.contracts.dialect import Dialect
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.columns import (
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
    Text,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.errors import InvalidPlan

_NATIVE_TYPES: dict[str, ColumnType] = {
    "smallint": SmallInt(),
    "int": Integer(),
    "bigint": BigInt(),
    "float": Float(),
    "double": Double(),
    "boolean": Boolean(),
    "string": Text(),
    "date": Date(),
    "timestamp_ntz": Timestamp(),
    "timestamp": TimestampTZ(),
    "binary": Bytes(),
}
STORED = "ematix_flow_stored"
"""The view of the target that statements read: one version of it."""


class LakeDialect(Dialect):
    """Spark SQL over the tables of one lake; `name_of` says how a table is called in it."""

    bookkeeping_schema = None
    keeps_keys = False
    commits_each_statement = True
    fills_added_columns = False
    ignores_case = True
    has_engine = False

    def __init__(self, name: str, name_of: Callable[[TableRef], str]) -> None:
        self.name = name  # type: ignore[misc]  # one class for every kind of lake table
        self._name_of = name_of

    def quote(self, name: str) -> str:
        super().quote(name)  # refuses what cannot be a name
        return quoted(name)

    def table(self, ref: TableRef) -> str:
        return self._name_of(ref)

    def relation(self, name: str, run_id: str) -> str:
        return quoted(f"{name}_{digest(run_id)}")  # views are seen by the whole session

    def stored(self, ref: TableRef, run_id: str) -> str:
        return self.relation(STORED, run_id)

    def type_sql(self, column_type: ColumnType) -> str:
        if isinstance(column_type, Numeric) and not is_decimal(column_type):
            raise InvalidPlan(
                f"{column_type} has more digits than Spark can hold ({MOST_DIGITS}).",
                fix=f"declare Numeric[{MOST_DIGITS}, {min(column_type.scale, MOST_DIGITS)}] or less",
            )
        return spark_type(column_type).upper()

    def create_schema(self, schema: str) -> str | None:
        return None

    def literal(self, value: object, column_type: ColumnType) -> str:
        if value is None:
            return f"CAST(NULL AS {self.type_sql(column_type)})"
        if isinstance(value, bool):
            return "TRUE" if value else "FALSE"
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        if isinstance(value, datetime):
            moment = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
            zone = "Z" if isinstance(column_type, TimestampTZ) else ""
            return f"CAST('{moment.isoformat(timespec='microseconds')}{zone}' AS {self.type_sql(column_type)})"
        text = value.isoformat() if isinstance(value, date) else str(value)
        if isinstance(value, int | float | Decimal) or not isinstance(column_type, Text):
            return f"CAST({self.text(text)} AS {self.type_sql(column_type)})"
        return self.text(text)

    def text(self, value: str) -> str:
        """A text as a constant."""
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    def lowest(self, column_type: ColumnType) -> str:
        if isinstance(column_type, TimestampTZ | Timestamp | Date):
            return f"CAST('0001-01-01' AS {self.type_sql(column_type)})"
        if isinstance(column_type, Float | Double):
            return f"CAST('-Infinity' AS {self.type_sql(column_type)})"
        if isinstance(column_type, Numeric):
            whole = "9" * (column_type.precision - column_type.scale) or "0"
            return f"CAST('-{whole}.{'9' * column_type.scale}' AS {self.type_sql(column_type)})"
        bits = {"small_int": 15, "integer": 31, "big_int": 63}.get(column_type.kind)
        return "''" if bits is None else f"CAST('{-(2**bits)}' AS {self.type_sql(column_type)})"

    def is_distinct(self, left: str, right: str, column_type: ColumnType) -> str:
        return f"NOT ({left} <=> {right})"

    def is_same(self, left: str, right: str, column_type: ColumnType) -> str:
        return f"{left} <=> {right}"

    def row_hash(self, expressions: Sequence[tuple[str, ColumnType]]) -> str:
        parts = []
        for expression, kind in expressions:
            text = f"hex({expression})" if isinstance(kind, Bytes) else f"CAST({expression} AS STRING)"
            parts.append(f"coalesce({text}, '\\u0000NULL\\u0000')")
        return f"unhex(sha2(concat_ws('\\u0001', {', '.join(parts)}), 256))"

    def as_watermark_text(self, expression: str, column_type: ColumnType) -> str:
        pattern = {"timestamp_tz": INSTANT_PATTERN, "timestamp": WALL_CLOCK_PATTERN}.get(column_type.kind)
        if pattern is None:
            return f"CAST({expression} AS STRING)"
        return f"date_format({expression}, {self.text(pattern)})"

    def as_instant(self, expression: str, column_type: ColumnType) -> str:
        if isinstance(column_type, TimestampTZ):
            return expression
        wall_clock = f"date_format(CAST({expression} AS TIMESTAMP_NTZ), {self.text(WALL_CLOCK_PATTERN)})"
        return f"CAST(concat({wall_clock}, 'Z') AS TIMESTAMP)"

    def later(self, instant: str, micros: str) -> str:
        return f"timestamp_micros(unix_micros({instant}) + {micros})"

    def fit(self, expression: str, source: ColumnType | None, declared: ColumnType, column: str) -> str | None:
        return None

    def from_native(self, native: str) -> ColumnType | None:
        if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", native):
            return Numeric(int(found[1]), int(found[2]))
        return _NATIVE_TYPES.get(native)

    def same_type(self, declared: ColumnType, native: str) -> bool:
        return spark_type(declared) == native

    def add_column(self, table: str, column: str, type_sql: str, default: str | None) -> str:
        assert default is None, "files that are there stay as they are"
        return f"ALTER TABLE {table} ADD COLUMNS ({self.quote(column)} {type_sql})"
