"""Lake tables of a test load, read back by programs that are not Spark."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.lake import LakeBackend
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.declare import columns as c
from ematix_flow.declare.connection import Connection, DeltaLocalConnection, IcebergConnection
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.run.places import lend_spark
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, Row, arrow_table, canonical, in_order


class LakeEndpoint(FilesEndpoint):
    """Lake tables in a folder of this machine."""

    def __init__(self, connection: Connection, root: str, schema: str = "raw") -> None:
        Endpoint.__init__(self, connection, schema)
        self.root = Path(root)
        self.format = "parquet"

    @abstractmethod
    def commits(self, name: str) -> list[str | None]:
        """The run that each commit of a table names, oldest first."""

    @abstractmethod
    def version(self, name: str) -> int:
        """The version of a table that is the newest now."""

    def folder(self, name: str) -> Path:
        """Where a table is."""
        return self.root / self.schema / name

    def _canonical(self, records: Sequence[dict[str, Any]], columns: Sequence[ColumnSpec]) -> list[Row]:
        return in_order([tuple(canonical(row[k.name], k.type) for k in columns) for row in records])

    def _backend(self) -> LakeBackend:
        backend = open_backend(self.connection)
        assert isinstance(backend, LakeBackend)
        lend_spark(backend)
        return backend

    def shape(self, name: str) -> TableShape | None:
        return self._backend().describe(TableRef(self.schema, name))

    def strays(self, *tables: str) -> set[str]:
        known = tuple(f"{self.schema}/{table}/" for table in tables)
        books = tuple(f"_ematix_flow/{book}/" for book in ("ledger", "watermarks", "run_history", "locks"))
        return {name for name in self.snapshot() if not name.startswith((*known, *books))}


class DeltaEndpoint(LakeEndpoint):
    """Delta tables, through another implementation of Delta (delta-rs)."""

    def __init__(self, connection: DeltaLocalConnection, schema: str = "raw") -> None:
        super().__init__(connection, connection.path, schema)

    def make(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        from deltalake import write_deltalake

        write_deltalake(str(self.folder(name)), arrow_table(columns, rows), mode="overwrite", schema_mode="overwrite")

    def rows(self, name: str, columns: Sequence[ColumnSpec]) -> list[Row]:
        from deltalake.exceptions import DeltaError

        listed = ", ".join('"' + column.name.replace('"', '""') + '"' for column in columns)
        try:
            found = self._read(name, listed)
        except DeltaError as exc:
            if "TypeWidening" not in str(exc):
                raise
            # A table with a widened column is beyond delta-rs, so Spark must do.
            backend = self._backend()
            found = backend.frame(backend.spark(), TableRef(self.schema, name)).toArrow().to_pylist()
        return self._canonical(found, columns)

    def _read(self, name: str, listed: str) -> list[dict[str, Any]]:
        import pyarrow as pa
        from deltalake import DeltaTable, QueryBuilder

        stored = QueryBuilder().register("stored", DeltaTable(str(self.folder(name))))
        records: list[dict[str, Any]] = pa.table(stored.execute(f"SELECT {listed} FROM stored").read_all()).to_pylist()
        return records

    def commits(self, name: str) -> list[str | None]:
        from deltalake import DeltaTable

        marks = [commit.get("userMetadata") for commit in DeltaTable(str(self.folder(name))).history()]
        return [json.loads(mark)["ematix_flow_run"] if mark else None for mark in reversed(marks)]

    def version(self, name: str) -> int:
        from deltalake import DeltaTable

        return DeltaTable(str(self.folder(name))).version()


class IcebergEndpoint(LakeEndpoint):
    """Iceberg tables that their folder lists, through another implementation of Iceberg (pyiceberg)."""

    def __init__(self, connection: IcebergConnection, schema: str = "raw") -> None:
        super().__init__(connection, connection.warehouse, schema)

    def make(self, name: str, columns: Sequence[ColumnSpec], rows: Sequence[Row]) -> None:
        # Only Java writes tables that a folder lists.
        backend = self._backend()
        spark = backend.spark()
        backend.prepare(spark)
        table, dialect = backend.name_of(TableRef(self.schema, name)), backend.dialect
        # A table that is made of a frame would forget which columns are NOT NULL.
        declared = [
            f"{dialect.quote(k.name)} {dialect.type_sql(k.type)}{'' if k.nullable else ' NOT NULL'}" for k in columns
        ]
        spark.sql(f"CREATE OR REPLACE TABLE {table} ({', '.join(declared)}) USING iceberg")
        if rows:
            spark.createDataFrame(arrow_table(columns, rows)).writeTo(table).append()

    def rows(self, name: str, columns: Sequence[ColumnSpec]) -> list[Row]:
        return self._canonical(self._table(name).scan().to_arrow().to_pylist(), columns)

    def _table(self, name: str) -> Any:
        from pyiceberg.table import StaticTable

        metadata = self.folder(name) / "metadata"
        newest = (metadata / "version-hint.text").read_text().strip()
        return StaticTable.from_metadata(str(metadata / f"v{newest}.metadata.json"))

    def commits(self, name: str) -> list[str | None]:
        marks = [snapshot.summary for snapshot in self._table(name).snapshots()]
        return [mark.additional_properties.get("ematix-flow.run") for mark in marks]

    def version(self, name: str) -> int:
        return int(self._table(name).current_snapshot().snapshot_id)

    def described(self, kind: c.ColumnType) -> c.ColumnType:
        return c.Integer() if isinstance(kind, c.SmallInt) else super().described(kind)
