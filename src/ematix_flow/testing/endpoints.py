"""Both ends of a test load: systems that can be filled by hand and read back without the code under test.

Rows are read through the system's own connection and come back as plain Python values of the declared types.
"""

from __future__ import annotations

import json
import math
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID as Uuid

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.declare import columns as c
from ematix_flow.declare.connection import Connection, ObjectStoreLocalConnection
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.plan.ddl import create_statements

Row = tuple[Any, ...]


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
        return value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if isinstance(kind, c.TimestampTZ):
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value.replace("Z", "+00:00"))
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


class Endpoint(ABC):
    """A system a test can fill and look into.

    Attributes:
        connection: What a pipeline is given.
        schema: Where the tests' tables live in it.
        cannot_hold: Values, as (kind, value), that the system has no place for. NaN is written `"nan"`.
    """

    speaks_sql = True

    def __init__(
        self, connection: Connection, schema: str, cannot_hold: frozenset[tuple[str, Any]] = frozenset()
    ) -> None:
        self.connection = connection
        self.schema = schema
        self.cannot_hold = cannot_hold

    @abstractmethod
    def put(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        """Make, or make anew, a table without keys that holds just these rows."""

    @abstractmethod
    def rows(self, name: str, columns: Sequence[ColumnSpec]) -> list[Row]:
        """All rows of a table in these columns, as canonical values, in a fixed order."""

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

    def ref(self, name: str) -> TableRef:
        """Where a table of the tests lives."""
        return self.backend.table_ref(self.schema, name)

    def sql_name(self, name: str) -> str:
        """A table of the tests, qualified and quoted."""
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
        """The live table, or None."""
        return self.backend.describe(self.ref(name))

    def put(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        plain = [ColumnSpec(column.name, column.type, nullable=True) for column in columns]
        statements = [s.sql for s in create_statements(self.dialect, self.ref(name), plain, (), ())]
        values = [f"({', '.join(self.value_sql(v, k.type) for v, k in zip(row, plain, strict=True))})" for row in rows]
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
        """Everything in the database, as text: to see that nothing changed."""
        found: dict[str, list[str]] = {}
        for schema, name in self.query(self.tables_query):
            table = self.dialect.table(TableRef(schema, name))
            found[table] = sorted(repr(row) for row in self.query(f"SELECT * FROM {table}"))
        return found


class SqliteEndpoint(SqlEndpoint):
    """A SQLite file. Infinity is written as a number too large for it."""

    tables_query = "SELECT NULL, name FROM sqlite_master WHERE type = 'table' ORDER BY 2"

    def value_sql(self, value: Any, kind: c.ColumnType) -> str:
        if isinstance(value, float) and math.isinf(value):
            return "9e999" if value > 0 else "-9e999"
        return super().value_sql(value, kind)


class FilesEndpoint(Endpoint):
    """A folder of Parquet files, written and read with Arrow alone."""

    speaks_sql = False

    def __init__(self, connection: ObjectStoreLocalConnection, schema: str = "raw") -> None:
        super().__init__(connection, schema)
        self.root = Path(connection.path)

    def put(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from ematix_flow.spark.types import to_arrow_schema

        plain = [ColumnSpec(column.name, column.type, nullable=True) for column in columns]
        by_column = list(zip(*rows, strict=True)) if rows else [() for _ in plain]
        schema = to_arrow_schema(plain)
        arrays = [
            pa.array([_written(v, column.type) for v in values], type=field.type)
            for values, column, field in zip(by_column, plain, schema, strict=True)
        ]
        folder = self.root / self.schema / name
        os.makedirs(folder, exist_ok=True)
        for old in folder.glob("*.parquet"):
            old.unlink()
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), folder / "rows.parquet")

    def rows(self, name: str, columns: Sequence[ColumnSpec]) -> list[Row]:
        import pyarrow.parquet as pq

        found: list[Mapping[str, Any]] = []
        for file in sorted((self.root / self.schema / name).glob("*.parquet")):
            found += pq.read_table(file).to_pylist()
        return in_order([tuple(canonical(row[column.name], column.type) for column in columns) for row in found])


def _written(value: Any, kind: c.ColumnType) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(kind, c.JSON | c.JSONB) and value is not None else value
