"""Lake tables of a test load, filled and read back without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.delta import DeltaBackend
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.declare import columns as c
from ematix_flow.declare.connection import DeltaLocalConnection
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.run.places import lend_spark
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, Row, _written, canonical, in_order


class DeltaEndpoint(FilesEndpoint):
    """Delta tables in a folder, through another implementation of Delta (delta-rs)."""

    def __init__(self, connection: DeltaLocalConnection, schema: str = "raw") -> None:
        Endpoint.__init__(self, connection, schema)
        self.root = Path(connection.path)
        self.format = "parquet"

    def folder(self, name: str) -> Path:
        """Where a table is."""
        return self.root / self.schema / name

    def make(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        import pyarrow as pa
        from deltalake import write_deltalake

        from ematix_flow.spark.types import to_arrow_schema

        by_column = list(zip(*rows, strict=True)) if rows else [() for _ in columns]
        schema = to_arrow_schema(columns)
        arrays = [
            pa.array([_written(v, column.type) for v in values], type=field.type)
            for values, column, field in zip(by_column, columns, schema, strict=True)
        ]
        table = pa.Table.from_arrays(arrays, schema=schema)
        write_deltalake(str(self.folder(name)), table, mode="overwrite", schema_mode="overwrite")

    def rows(self, name: str, columns: Sequence[ColumnSpec]) -> list[Row]:
        from deltalake.exceptions import DeltaError

        listed = ", ".join('"' + column.name.replace('"', '""') + '"' for column in columns)
        try:
            found = self._read(name, listed)
        except DeltaError as exc:
            if "TypeWidening" not in str(exc):
                raise
            # A table with a widened column is beyond delta-rs, so Spark must do.
            found = _frame(self._backend(), TableRef(self.schema, name)).toArrow().to_pylist()
        return in_order([tuple(canonical(row[k.name], k.type) for k in columns) for row in found])

    def _read(self, name: str, listed: str) -> list[dict[str, Any]]:
        import pyarrow as pa
        from deltalake import DeltaTable, QueryBuilder

        stored = QueryBuilder().register("stored", DeltaTable(str(self.folder(name))))
        records: list[dict[str, Any]] = pa.table(stored.execute(f"SELECT {listed} FROM stored").read_all()).to_pylist()
        return records

    def _backend(self) -> DeltaBackend:
        backend = open_backend(self.connection)
        assert isinstance(backend, DeltaBackend)
        lend_spark(backend)
        return backend

    def shape(self, name: str) -> TableShape | None:
        return self._backend().describe(TableRef(self.schema, name))

    def strays(self, *tables: str) -> set[str]:
        known = tuple(f"{self.schema}/{table}/" for table in tables)
        books = tuple(f"_ematix_flow/{book}/" for book in ("ledger", "watermarks", "run_history", "locks"))
        return {name for name in self.snapshot() if not name.startswith((*known, *books))}

    def described(self, kind: c.ColumnType) -> c.ColumnType:
        return c.Text() if isinstance(kind, c.String | c.JSON | c.JSONB | c.UUID) else kind

    def commits(self, name: str) -> list[dict[str, Any]]:
        """The log of a table, newest first."""
        from deltalake import DeltaTable

        return DeltaTable(str(self.folder(name))).history()


def _frame(backend: DeltaBackend, table: TableRef) -> Any:
    return backend.frame(backend.spark(), table)
