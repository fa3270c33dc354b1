"""SQLite: one file, one writer. Rows come and go through a Parquet spool; the owning process streams them in.

Types are kept in the declared column types (`DECIMAL TEXT(12,2)`, `TIMESTAMPTZ TEXT`, …): the second word gives SQLite
the affinity that keeps the value as it is, the first tells people and this backend what it means.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.backends import spool, sqlite_columns
from ematix_flow.backends.books import Db
from ematix_flow.backends.database_file import DatabaseFileBackend
from ematix_flow.backends.sql import failed_statement, not_a_table
from ematix_flow.contracts.backend import Capabilities
from ematix_flow.contracts.dialect import LANDED, Dialect
from ematix_flow.contracts.plans import BatchPlan, Landed, Reading, SourceQuery, Statement
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
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
from ematix_flow.declare.connection import SQLiteConnection
from ematix_flow.errors import (
    ConnectionFailed,
    DuplicateKeys,
    FlowError,
    InvalidPlan,
    UnfitValue,
    WriteConflict,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_BARE_TYPES: dict[type[ColumnType], str] = {
    SmallInt: "SMALLINT",
    Integer: "INTEGER",
    BigInt: "BIGINT",
    Float: "FLOAT",
    Double: "DOUBLE",
    Boolean: "BOOLEAN INTEGER",
    Text: "TEXT",
    Date: "DATE TEXT",
    Timestamp: "TIMESTAMP TEXT",
    TimestampTZ: "TIMESTAMPTZ TEXT",
    JSON: "JSON TEXT",
    JSONB: "JSONB TEXT",
    UUID: "UUID TEXT",
    Bytes: "BLOB",
}
_NATIVE_TYPES = {native: cls() for cls, native in _BARE_TYPES.items()}
_FOREIGN_TYPES: dict[str, ColumnType] = {
    "INT": BigInt(),
    "INTEGER PRIMARY KEY": BigInt(),
    "TINYINT": BigInt(),
    "MEDIUMINT": BigInt(),
    "INT2": BigInt(),
    "INT8": BigInt(),
    "REAL": Double(),
    "DOUBLE PRECISION": Double(),
    "BOOLEAN": Boolean(),
    "BOOL": Boolean(),
    "CLOB": Text(),
}


_ROW_ID = "INTEGER PRIMARY KEY"
"""A column that is another name for the row's own number, of 64 bits; it must go on being called INTEGER."""


class SqliteDialect(Dialect):
    """SQLite's spelling. Values are kept in one canonical form per type, made by the `ematix_fit` function."""

    name = "sqlite"
    bookkeeping_schema = None
    bookkeeping_prefix = "ematix_flow_"

    def type_sql(self, column_type: ColumnType) -> str:
        if isinstance(column_type, Numeric):
            return f"DECIMAL TEXT({column_type.precision},{column_type.scale})"
        if isinstance(column_type, String):
            return f"VARCHAR({column_type.length})"
        return _BARE_TYPES[type(column_type)]

    def from_native(self, native: str) -> ColumnType | None:
        text = " ".join(native.upper().split())
        if text in _NATIVE_TYPES:
            return _NATIVE_TYPES[text]
        if found := re.fullmatch(r"(?:N?VARCHAR|N?CHAR|CHARACTER|VARYING CHARACTER) ?\((\d+)\)", text):
            return String(int(found[1]))
        if found := re.fullmatch(r"DECIMAL TEXT ?\((\d+), ?(\d+)\)", text):
            return Numeric(int(found[1]), int(found[2]))
        return _FOREIGN_TYPES.get(text)

    def same_type(self, declared: ColumnType, native: str) -> bool:
        if self.from_native(native) == declared:
            return True
        # A table made by hand: what is no word of ours is taken for what SQLite keeps there, any whole number or text.
        text = native.upper().strip()
        whole = isinstance(declared, SmallInt | Integer | BigInt | Boolean) and text in ("INT", _ROW_ID)
        whole = whole or (isinstance(declared, Boolean) and text in ("INTEGER", "BIGINT"))
        real = isinstance(declared, Float | Double) and text == "REAL"
        plain = text in ("TEXT", "VARCHAR", "CLOB") and not isinstance(
            declared, SmallInt | Integer | BigInt | Boolean | Float | Double | Bytes
        )
        return whole or real or plain or (isinstance(declared, Bytes) and text == "BLOB")

    def literal(self, value: object, column_type: ColumnType) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "1" if value else "0"
        if isinstance(column_type, TimestampTZ | Timestamp) and isinstance(value, datetime):
            moment = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
            text = moment.isoformat(timespec="microseconds")
            return self._quoted(text + "Z" if isinstance(column_type, TimestampTZ) else text)
        if isinstance(value, datetime | date):
            return self._quoted(value.isoformat())
        if isinstance(column_type, SmallInt | Integer | BigInt):
            return str(int(value))  # type: ignore[call-overload]  # a stored watermark is the text of a whole number
        if isinstance(column_type, Float | Double):
            return repr(float(value))  # type: ignore[arg-type]
        if isinstance(value, Decimal) or isinstance(column_type, Numeric):
            return self._quoted(str(value))
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        return self._quoted(str(value))

    def lowest(self, column_type: ColumnType) -> str:
        if isinstance(column_type, SmallInt | Integer | BigInt | Float | Double | Numeric):
            return "-9e999"
        return "''"

    def is_distinct(self, left: str, right: str, column_type: ColumnType) -> str:
        return f"{left} IS NOT {right}"

    def is_same(self, left: str, right: str, column_type: ColumnType) -> str:
        return f"{left} IS {right}"

    def row_hash(self, expressions: Sequence[tuple[str, ColumnType]]) -> str:
        return f"ematix_sha256({', '.join(expression for expression, _ in expressions)})"

    def as_watermark_text(self, expression: str, column_type: ColumnType) -> str:
        if isinstance(column_type, Float | Double):
            return f"printf('%!.17g', {expression})"
        return f"CAST({expression} AS TEXT)"

    def ordered(self, expression: str, column_type: ColumnType) -> str:
        # Decimals are kept as text, which SQLite would order letter by letter.
        return f"({expression} COLLATE ematix_decimal)" if isinstance(column_type, Numeric) else expression

    def later(self, instant: str, micros: str) -> str:
        return f"ematix_later({instant}, {micros})"

    def as_instant(self, expression: str, column_type: ColumnType) -> str:
        if isinstance(column_type, Date):
            return f"({expression} || 'T00:00:00.000000Z')"
        return f"({expression} || 'Z')" if isinstance(column_type, Timestamp) else expression

    def fit(self, expression: str, source: ColumnType | None, declared: ColumnType, column: str) -> str | None:
        first, second = "NULL", "NULL"
        if isinstance(declared, Numeric):
            first, second = str(declared.precision), str(declared.scale)
        # The length of a String is checked over all landed rows at once, with a better message.
        kind = "text" if isinstance(declared, String) else declared.kind
        if isinstance(source, Float | Double) and kind == "text":
            return None  # the text of a floating-point number is Spark's to write
        given = "NULL" if source is None else f"'{source.kind}'"
        return f"ematix_fit({expression}, '{kind}', {first}, {second}, {self._quoted(column)}, {given})"

    def create_schema(self, schema: str) -> str | None:
        return None

    def create_landed(self, name: str, query: str) -> str:
        return f"CREATE TEMPORARY TABLE {self.quote(name)} AS {query}"

    def widen_column(self, table: str, column: str, type_sql: str) -> str | None:
        return sqlite_columns.widen_statement(table, self.quote(column), type_sql)

    def drop_not_null(self, table: str, column: str) -> str | None:
        return sqlite_columns.drop_not_null_statement(table, self.quote(column))

    @staticmethod
    def _quoted(text: str) -> str:
        if "\x00" in text:
            raise InvalidPlan("A constant for SQLite holds a NUL character.")
        return "'" + text.replace("'", "''") + "'"


class SqliteBackend(DatabaseFileBackend):
    """One SQLite database file, or `:memory:` within this process."""

    system = "SQLite"
    connection_type = SQLiteConnection
    dialect: ClassVar[Dialect] = SqliteDialect()
    capabilities = Capabilities(modes=frozenset({"append", "truncate", "merge", "scd1", "scd2"}))
    begin = "BEGIN IMMEDIATE"

    _memory: ClassVar[dict[str, sqlite3.Connection]] = {}
    _memory_guard: ClassVar[threading.RLock] = threading.RLock()

    def table_ref(self, schema: str, name: str) -> TableRef:
        if schema not in ("", "main"):
            raise InvalidPlan(
                f"SQLite has no schema '{schema}' (table '{name}').", fix='declare the table with schema="main"'
            )
        return TableRef(None, name)

    def connect(self) -> sqlite3.Connection:
        from ematix_flow.backends import sqlite_functions

        if self.is_memory:
            return self._memory_connection()
        self.require_folder()
        try:
            db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
            db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        except sqlite3.Error as exc:
            raise ConnectionFailed(
                f"The SQLite database '{self.path}' cannot be opened: {exc}.",
                fix="name a SQLite file that may be read and written, or one that does not exist yet",
            ) from exc
        sqlite_functions.register(db)
        return db

    def _memory_connection(self) -> sqlite3.Connection:
        from ematix_flow.backends import sqlite_functions

        with self._memory_guard:
            db = self._memory.get(self.connection.identity())
            if db is None:
                db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                sqlite_functions.register(db)
                self._memory[self.connection.identity()] = db
            return db

    def release(self, db: Any) -> None:
        if self.is_memory:
            for scratch in ("ematix_flow_landed", "ematix_flow_versions"):
                db.execute(f"DROP TABLE IF EXISTS temp.{scratch}")
            return
        db.close()

    def explained(self, exc: Exception) -> FlowError | None:
        from ematix_flow.backends import sqlite_functions

        raised = sqlite_functions.take_error()
        if raised is not None:
            return raised
        if not isinstance(exc, sqlite3.Error):
            return None
        text = str(exc)
        if found := re.match(r"NOT NULL constraint failed: (.+)", text):
            return UnfitValue(
                f"Column '{found[1].split('.')[-1]}' is NOT NULL and the source has rows without a value."
            )
        if found := re.match(r"UNIQUE constraint failed: (.+)", text):
            columns = ", ".join(part.strip().split(".")[-1] for part in found[1].split(","))
            return DuplicateKeys(
                f"Rows with the same {columns} exist already, and the table allows one.",
                fix="use mode='merge', or remove the duplicates",
            )
        if found := re.match(r"(CHECK|FOREIGN KEY) constraint failed(?:: (.+))?", text, re.DOTALL):
            return UnfitValue(f"Rows break the constraint '{found[2] or found[1]}' of the table.")
        if "database is locked" in text or "database table is locked" in text:
            return WriteConflict(f"The SQLite database '{self.path}' is locked by another process.", fix="try again")
        return failed_statement(text)

    def describe_query(self, sql: str) -> tuple[ColumnShape, ...]:
        with self.session() as db:
            db.execute("DROP VIEW IF EXISTS temp.ematix_flow_described")
            db.execute(f"CREATE TEMPORARY VIEW ematix_flow_described AS {sql}")
            try:
                found = db.execute("PRAGMA table_info(ematix_flow_described)").fetchall()
                if not found:
                    db.execute("SELECT * FROM ematix_flow_described LIMIT 0")
                return tuple(
                    ColumnShape(name, self.dialect.from_native(native) if native else None, native or "")
                    for _, name, native, *_ in found
                )
            finally:
                db.execute("DROP VIEW IF EXISTS temp.ematix_flow_described")

    def explain(self, sql: str) -> str:
        with self.session() as db:
            return "\n".join(str(row[-1]) for row in db.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall())

    def shape(self, db: Db, table: TableRef) -> TableShape | None:
        name = self.dialect.literal(table.name, Text())
        found = db.execute(f'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info({name})').fetchall()
        if not found:
            return None
        if db.execute(f"SELECT 1 FROM sqlite_master WHERE type = 'view' AND name = {name}").fetchone():
            raise not_a_table(table)
        keys = [row for row in found if row[4]]
        unique = []
        indexes = db.execute(f'SELECT name, "unique", origin FROM pragma_index_list({name})').fetchall()
        # A key of one INTEGER that has no index of its own is the row's number.
        is_row_id = len(keys) == 1 and keys[0][1].upper() == "INTEGER" and "pk" not in [row[2] for row in indexes]
        natives = {row[0]: _ROW_ID if is_row_id and row[4] else row[1] for row in found}
        columns = tuple(
            ColumnShape(
                column,
                self.dialect.from_native(natives[column]),
                natives[column],
                not (not_null or pk),
                default is not None,
            )
            for column, _, not_null, default, pk in found
        )
        for index, is_unique, origin in indexes:
            if is_unique and origin == "u":
                inside = db.execute(
                    f"SELECT name FROM pragma_index_info({self.dialect.literal(index, Text())}) ORDER BY seqno"
                ).fetchall()
                unique.append(tuple(row[0] for row in inside))
        has_rows = db.execute(f"SELECT EXISTS (SELECT 1 FROM {self.dialect.table(table)})").fetchone()[0]
        return TableShape(
            ref=table,
            columns=columns,
            primary_key=tuple(row[0] for row in sorted(keys, key=lambda row: row[4])),
            unique=tuple(sorted(unique)),
            has_rows=bool(has_rows),
        )

    def change_schema(self, db: Db, statement: Statement) -> None:
        if not sqlite_columns.change(db, statement.sql):
            super().change_schema(db, statement)

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> Iterator[DataFrame]:
        sql = self.sql_of(query)
        shapes = self.describe_query(sql)
        with self.session() as db, spool.folder(self.spool_root()) as place:
            wanted = {reading.renamed.get(c.name, c.name): c.type for c in reading.columns}
            spool.write_rows(db.execute(sql), shapes, wanted, place)
            yield spool.rows_in(spark, place)

    def read_arrow(self, sql: str) -> pa.Table:
        shapes = self.describe_query(sql)
        with self.session() as db:
            return spool.arrow_table(db.execute(sql).fetchall(), shapes)

    def attach(self, db: Db, plan: BatchPlan, landed: Landed) -> None:
        names = [column.name for column in plan.columns]
        types = [self.dialect.type_sql(column.type) for column in plan.columns]
        listed = ", ".join(f"{self.dialect.quote(n)} {t}" for n, t in zip(names, types, strict=True))
        db.execute(f"CREATE TEMPORARY TABLE {LANDED} ({listed})")
        marks = ", ".join("?" for _ in names)
        for rows in spool.sqlite_rows(landed.handle, plan.columns):
            db.executemany(f"INSERT INTO {LANDED} VALUES ({marks})", rows)  # type: ignore[attr-defined]
