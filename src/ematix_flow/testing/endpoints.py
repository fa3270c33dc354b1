"""Both ends of a test load: systems that can be filled by hand and read back without the code under test.

Rows are read through the system's own connection, or with Arrow alone, and come back as plain Python values of the
declared types.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID as Uuid

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.declare import columns as c
from ematix_flow.declare.connection import Connection, ObjectStoreLocalConnection
from ematix_flow.declare.instants import time_of
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.plan.ddl import create_statements

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]
KEY: Any = c.String[50]  # type: ignore[misc]  # a type made by subscript is no generic to mypy


def canonical(value: Any, kind: c.ColumnType) -> Any:
    """A driver's value as the one Python value that stands for it, whatever system it comes from."""
    if value is None:
        return None
    if isinstance(kind, c.Boolean):
        return bool(value)
    if isinstance(kind, c.Numeric):
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale)) if kind.precision <= 28 else Decimal(value)
    if isinstance(kind, c.Float):
        return struct.unpack("<f", struct.pack("<f", float(value)))[0]
    if isinstance(kind, c.Date):
        return value if isinstance(value, date) else date.fromisoformat(value)
    if isinstance(kind, c.Timestamp):
        return value if isinstance(value, datetime) else time_of(value)
    if isinstance(kind, c.TimestampTZ):
        moment = value if isinstance(value, datetime) else time_of(value)
        return moment.replace(tzinfo=moment.tzinfo or timezone.utc).astimezone(timezone.utc)
    if isinstance(kind, c.JSON | c.JSONB):
        return json.loads(value)
    if isinstance(kind, c.UUID):
        return str(Uuid(str(value)))
    return bytes(value) if isinstance(kind, c.Bytes) else value


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Rows in an order that does not depend on the system; NULL comes first, NaN compares equal to itself."""

    def place(value: Any) -> tuple[int, str, Any]:
        if value is None:
            return (0, "", 0)
        if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return (1, "", value if not math.isnan(value) else math.inf)
        if isinstance(value, dict | list):
            return (2, type(value).__name__, json.dumps(value, sort_keys=True))
        return (2, type(value).__name__, value)

    return sorted(rows, key=lambda row: tuple(place(value) for value in row))


HISTORY = (
    "run_id",
    "pipeline_name",
    "target_schema",
    "target_table",
    "mode",
    "path",
    "started_at",
    "finished_at",
    "status",
    "rows_inserted",
    "rows_updated",
    "rows_unchanged",
    "error_message",
    "parent_run_id",
    "step_name",
    "metrics_json",
)
"""What the history in a target tells of a run."""


class Endpoint(ABC):
    """A system a test can fill and look into.

    Attributes:
        connection: What a pipeline is given.
        schema: Where the tests' tables live in it.
        cannot_hold: Values, as (kind, value), that the system has no place for. NaN is written `"nan"`.
        speaks_sql: Whether it runs SQL of its own; without it no load is pushed down.
        max_identifier_bytes: The longest name it keeps; None when there is no such limit.
        max_identifier_chars: The same where letters are counted and not bytes.
        cannot_name: Names that it cannot give to a column.
        text_key: The declared type of a text that is part of a key.
        json_depth: How deeply documents may be nested; at least so deep as any test has them.
    """

    speaks_sql: ClassVar[bool] = True
    max_identifier_bytes: int | None = None
    max_identifier_chars: ClassVar[int | None] = None
    cannot_name: ClassVar[frozenset[str]] = frozenset()
    text_key: ClassVar[Any] = c.Text
    json_depth: ClassVar[int] = 100

    def __init__(
        self, connection: Connection, schema: str, cannot_hold: frozenset[tuple[str, Any]] = frozenset()
    ) -> None:
        self.connection = connection
        self.schema = schema
        self.cannot_hold = cannot_hold

    def put(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        """Make, or make anew, a table that takes NULL everywhere and holds just these rows."""
        self.make(name, [ColumnSpec(column.name, column.type, nullable=True) for column in columns], rows)

    @abstractmethod
    def make(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        """Make, or make anew, a table as somebody would by hand: these columns, without keys, and just these rows."""

    @abstractmethod
    def sql_name(self, name: str) -> str:
        """A table of the tests as SQL names it."""

    @abstractmethod
    def rows(self, name: str, columns: Sequence[ColumnSpec]) -> list[Row]:
        """All rows of a table in these columns, as canonical values, in a fixed order."""

    @abstractmethod
    def shape(self, name: str) -> TableShape | None:
        """The live table, or None."""

    @abstractmethod
    def history(self, pipeline: str | None = None) -> list[dict[str, Any]]:
        """The run history, of one pipeline or of all, oldest first: the fields of `HISTORY`."""

    @abstractmethod
    def watermark(self, pipeline: str) -> tuple[str, str] | None:
        """The stored mark of a pipeline: column and value."""

    @abstractmethod
    def snapshot(self) -> dict[str, list[str]]:
        """Everything in the system, as text: to see that nothing changed."""

    @abstractmethod
    def strays(self, *tables: str) -> set[str]:
        """Everything in the system that is neither one of these tables nor belongs to the books."""

    def described(self, kind: c.ColumnType) -> c.ColumnType:
        """The type that the system says a column has which was made for another; the same one, in a database."""
        return kind

    def holds(self, kind: c.ColumnType, value: Any) -> bool:
        """Whether the system has a place for a value."""
        shown = "nan" if isinstance(value, float) and math.isnan(value) else value
        return not any(kind.kind == other and shown == refused for other, refused in self.cannot_hold)


class SqlEndpoint(Endpoint):
    """A database, spoken to in its own SQL."""

    tables_query = (
        "SELECT table_schema, table_name FROM information_schema.tables "
        "WHERE table_schema NOT IN ('information_schema', 'pg_catalog', 'pg_toast') ORDER BY 1, 2"
    )

    def __init__(
        self, connection: Connection, schema: str, cannot_hold: frozenset[tuple[str, Any]] = frozenset()
    ) -> None:
        super().__init__(connection, schema, cannot_hold)
        backend = open_backend(connection)
        assert isinstance(backend, SqlBackend)
        self.backend = backend
        self.dialect = backend.dialect
        self.max_identifier_bytes = backend.dialect.max_identifier_bytes

    def ref(self, name: str) -> TableRef:
        """Where a table of the tests lives."""
        return self.backend.table_ref(self.schema, name)

    def sql_name(self, name: str) -> str:
        return self.dialect.table(self.ref(name))

    def books(self, name: str) -> str:
        """One of the framework's own tables, qualified and quoted."""
        return self.dialect.table(self.dialect.bookkeeping(name))

    def execute(self, *statements: str) -> None:
        """Run statements, each committed by itself."""
        with self.backend.session() as db:
            for statement in statements:
                db.execute(statement)

    def query(self, sql: str) -> list[Row]:
        """The rows of a query, as the driver gives them."""
        with self.backend.session() as db:
            return [tuple(row) for row in db.execute(sql).fetchall()]

    def shape(self, name: str) -> TableShape | None:
        return self.backend.describe(self.ref(name))

    def history(self, pipeline: str | None = None) -> list[dict[str, Any]]:
        where = f" WHERE pipeline_name = {self.dialect.literal(pipeline, c.Text())}" if pipeline else ""
        found = self.query(
            f"SELECT {', '.join(HISTORY)} FROM {self.books('run_history')}{where} ORDER BY started_at, run_id"
        )
        return [dict(zip(HISTORY, row, strict=True)) for row in found]

    def watermark(self, pipeline: str) -> tuple[str, str] | None:
        found = self.query(
            f"SELECT column_name, {self.dialect.quote('last_value')} FROM {self.books('watermarks')} "
            f"WHERE pipeline_name = {self.dialect.literal(pipeline, c.Text())}"
        )
        return (found[0][0], found[0][1]) if found else None

    def make(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        statements = [s.sql for s in create_statements(self.dialect, self.ref(name), columns, (), ())]
        values = [
            f"({', '.join(self.value_sql(v, k.type) for v, k in zip(row, columns, strict=True))})" for row in rows
        ]
        if values:
            statements.append(f"INSERT INTO {self.sql_name(name)} VALUES {', '.join(values)}")
        # The schema first: dropping a table in a schema that is not there is an error in some systems.
        first = [statement for statement in statements if statement.startswith("CREATE SCHEMA")]
        self.execute(*first, f"DROP TABLE IF EXISTS {self.sql_name(name)}", *statements[len(first) :])

    def value_sql(self, value: Any, kind: c.ColumnType) -> str:
        """A value as a constant of the column's type, exactly as it is."""
        if isinstance(kind, c.JSON | c.JSONB) and value is not None:
            value = json.dumps(value, ensure_ascii=False)
        return self.dialect.literal(value, kind)

    def column_sql(self, column: ColumnSpec) -> str:
        """A column as it is read back: documents as text, since some drivers parse them and others do not."""
        name = self.dialect.quote(column.name)
        return f"CAST({name} AS TEXT)" if isinstance(column.type, c.JSON | c.JSONB) else name

    def rows(self, name: str, columns: Sequence[ColumnSpec]) -> list[Row]:
        listed = ", ".join(self.column_sql(column) for column in columns)
        found = self.query(f"SELECT {listed} FROM {self.sql_name(name)}")
        return in_order([tuple(canonical(v, k.type) for v, k in zip(row, columns, strict=True)) for row in found])

    def snapshot(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for schema, name in self.query(self.tables_query):
            table = self.dialect.table(TableRef(schema, name))
            found[table] = sorted(repr(row) for row in self.query(f"SELECT * FROM {table}"))
        return found

    def strays(self, *tables: str) -> set[str]:
        books = (self.books(name) for name in ("ledger", "applied_runs", "watermarks", "run_history"))
        return set(self.snapshot()) - {*(self.sql_name(table) for table in tables), *books}


class SqliteEndpoint(SqlEndpoint):
    """A SQLite file. Infinity is written as a number too large for it."""

    tables_query = "SELECT NULL, name FROM sqlite_master WHERE type = 'table' ORDER BY 2"

    def value_sql(self, value: Any, kind: c.ColumnType) -> str:
        if isinstance(value, float) and math.isinf(value):
            return "9e999" if value > 0 else "-9e999"
        return super().value_sql(value, kind)


class MysqlEndpoint(SqlEndpoint):
    """A MySQL or MariaDB server. Keys need texts of a known length, and names hold nothing beyond U+FFFF."""

    tables_query = (
        "SELECT table_schema, table_name FROM information_schema.tables "
        "WHERE table_schema NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys') ORDER BY 1, 2"
    )
    max_identifier_chars = 64
    cannot_name = frozenset({"Ünïcødé 🚲", "ends in a space "})
    text_key = KEY
    json_depth = 31  # MariaDB's; MySQL goes to 100

    def column_sql(self, column: ColumnSpec) -> str:
        name = self.dialect.quote(column.name)
        return f"{name} * 1e0" if isinstance(column.type, c.Float) else name  # by itself it is written with six digits


class FilesEndpoint(Endpoint):
    """Folders of files, read with Arrow and the standard library alone; a manifest says which files count.

    Rows are put as Parquet, whatever the format of the connection is.
    """

    speaks_sql = False

    def __init__(self, connection: ObjectStoreLocalConnection, schema: str = "raw") -> None:
        super().__init__(connection, schema)
        self.root = Path(connection.path)
        self.format = connection.format

    def sql_name(self, name: str) -> str:
        return f"{self.schema}.{name}"

    def make(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        import pyarrow.parquet as pq

        folder = self.root / self.schema / name
        os.makedirs(folder, exist_ok=True)
        for old in folder.glob("*.parquet"):
            old.unlink()
        pq.write_table(arrow_table(columns, rows), folder / "rows.parquet")

    def rows(self, name: str, columns: Sequence[ColumnSpec]) -> list[Row]:
        found: list[Mapping[str, Any]] = []
        for file in self.data_files(name):
            found += _records(file)
        # A column that was added later is not in the older files.
        return in_order([tuple(canonical(_read(row.get(k.name), k.type), k.type) for k in columns) for row in found])

    def data_files(self, name: str) -> list[Path]:
        """The files that make up a table, by its manifest where it has one."""
        folder = self.root / self.schema / name
        manifest = _json_file(folder / "_ematix_flow" / "manifest.json")
        if manifest is not None:
            return [folder / file["path"] for file in manifest["files"]]
        return sorted(file for file in folder.glob("*") if file.is_file() and file.name[0] not in "._")

    def shape(self, name: str) -> TableShape | None:
        return open_backend(self.connection).describe(TableRef(self.schema, name))

    def described(self, kind: c.ColumnType) -> c.ColumnType:
        """Files know numbers, times and bytes; what is left is text."""
        return c.Text() if isinstance(kind, c.String | c.JSON | c.JSONB | c.UUID) else kind

    def history(self, pipeline: str | None = None) -> list[dict[str, Any]]:
        records = [_json_file(file) for file in (self.root / "_ematix_flow" / "run_history").glob("*.json")]
        chosen = [
            {field: r[field] for field in HISTORY}
            for r in records
            if r["pipeline_name"] == (pipeline or r["pipeline_name"])
        ]
        return sorted(chosen, key=lambda record: (record["started_at"], record["run_id"]))

    def watermark(self, pipeline: str) -> tuple[str, str] | None:
        for file in (self.root / "_ematix_flow" / "watermarks").glob("*.json"):
            known = _json_file(file)
            if known["pipeline_name"] == pipeline:
                return known["column_name"], known["last_value"]
        return None

    def snapshot(self) -> dict[str, list[str]]:
        return {
            str(file.relative_to(self.root)): [hashlib.sha256(file.read_bytes()).hexdigest()]
            for file in self.root.rglob("*")
            if file.is_file()
        }

    def strays(self, *tables: str) -> set[str]:
        known = {str(file.relative_to(self.root)) for table in tables for file in self.data_files(table)}
        for table in tables:
            books = Path(self.schema) / table / "_ematix_flow"
            known |= {str(books / name) for name in ("manifest.json", "table.lock", "readers.lock")}
        books_folders = tuple(f"_ematix_flow/{book}/" for book in ("ledger", "watermarks", "run_history", "locks"))
        return {name for name in self.snapshot() if name not in known and not name.startswith(books_folders)}


def arrow_table(columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> pa.Table:
    """Rows as an Arrow table in the declared types."""
    import pyarrow as pa

    from ematix_flow.spark.types import to_arrow_schema

    by_column = list(zip(*rows, strict=True)) if rows else [() for _ in columns]
    schema = to_arrow_schema(columns)
    arrays = [
        pa.array([_written(v, column.type) for v in values], type=field.type)
        for values, column, field in zip(by_column, columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _written(value: Any, kind: c.ColumnType) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(kind, c.JSON | c.JSONB) and value is not None else value


def _json_file(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def _records(file: Path) -> list[dict[str, Any]]:
    """The records of one file, in the types that its format has."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv, orc, parquet

    table: pa.Table
    if file.suffix == ".jsonl":
        lines = file.read_text(encoding="utf-8").split("\n")
        return [json.loads(line, parse_float=Decimal) for line in lines if line]
    if file.suffix == ".csv":
        with open(file, encoding="utf-8", newline="") as text:
            header = text.readline()
        names = next(csv.reader([header]))
        # NULL is an empty field; a quoted one is an empty text.
        table = arrow_csv.read_csv(
            file,
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    elif file.suffix == ".orc":
        table = orc.ORCFile(file).read()
    else:
        with parquet.ParquetFile(file) as opened:
            table = opened.read()
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def _read(value: Any, kind: c.ColumnType) -> Any:
    """A value that a text format could only spell, as what it spells."""
    if isinstance(value, Decimal) and isinstance(kind, c.Float | c.Double):
        return float(value)
    if not isinstance(value, str):
        return value
    if isinstance(kind, c.SmallInt | c.Integer | c.BigInt):
        return int(value)
    if isinstance(kind, c.Float | c.Double):
        return float(value)
    if isinstance(kind, c.Boolean):
        return {"true": True, "false": False}[value]
    return base64.b64decode(value) if isinstance(kind, c.Bytes) else value
