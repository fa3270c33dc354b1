"""BigQuery: a Parquet load job per task into a passing table, one transaction in a session that settles.

Rows are read as Arrow, by the Storage API where it is installed.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ematix_flow.backends import bigquery_session
from ematix_flow.backends.bigquery_dialect import BigqueryDialect
from ematix_flow.backends.bigquery_session import BEGIN, BigquerySession
from ematix_flow.backends.books import Db
from ematix_flow.backends.locks import digest
from ematix_flow.backends.sql import failed_statement, not_a_table, refused_value
from ematix_flow.backends.warehouse import WarehouseBackend, beside_another
from ematix_flow.backends.warehouse_dialect import DOCUMENTS
from ematix_flow.backends.warehouse_parts import Part, Sender, columns_of, numbered, write_part
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.columns import ColumnType, Numeric, Text
from ematix_flow.declare.connection import BigQueryConnection, Connection
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import ConnectionFailed, FlowError, UnfitValue

if TYPE_CHECKING:
    import pyarrow as pa


class BigqueryBackend(WarehouseBackend):
    """One BigQuery project; tables of the connection's dataset need no schema in SQL."""

    connection_type = BigQueryConnection
    stand_in = "bqemulator, an imitation on DuckDB"
    begin = BEGIN

    def __init__(self, connection: Connection) -> None:
        assert isinstance(connection, BigQueryConnection)
        self.project = connection.project
        self._dialect = BigqueryDialect(connection.project)
        super().__init__(connection)

    @property
    def dialect(self) -> BigqueryDialect:  # type: ignore[override]  # one per project, which is part of every name
        return self._dialect

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self) -> BigquerySession:
        assert isinstance(self.connection, BigQueryConnection)
        db = bigquery_session.session(self.connection)
        self.warn_once()
        return db

    def explained(self, exc: Exception) -> FlowError | None:
        from google.api_core.exceptions import BadRequest, Forbidden, GoogleAPICallError, Unauthorized
        from google.auth.exceptions import GoogleAuthError

        if not isinstance(exc, GoogleAPICallError | GoogleAuthError):
            return None
        refused = refused_value(str(exc))
        if refused is not None:
            return refused
        said = scrub(str(getattr(exc, "message", None) or exc).strip().splitlines()[0])
        if isinstance(exc, GoogleAuthError | Unauthorized | Forbidden):
            return ConnectionFailed(f"BigQuery refuses connection '{self.connection.name}': {said}")
        if "concurrent update" in said or "aborted due to" in said:
            return beside_another(self.dialect.system)
        if isinstance(exc, BadRequest) and ("Bad " in said or "out of range" in said or "too long" in said):
            # It quotes the value it did not like.
            return UnfitValue("A value does not fit its column.", fix="look at the declared types and lengths")
        return failed_statement(said)

    # ── describing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def described(self, db: Any, sql: str) -> tuple[ColumnShape, ...]:
        return tuple(self._column(field) for field in db.job(sql, dry_run=True).schema)

    def explain(self, sql: str) -> str:
        with self.session() as db:
            return f"reads {db.job(sql, dry_run=True).total_bytes_processed} bytes"

    def _column(self, field: Any) -> ColumnShape:
        native = native_type(field)
        return ColumnShape(
            field.name,
            self.dialect.from_native(native),
            native,
            nullable=field.mode != "REQUIRED",
            has_default=field.default_value_expression is not None,
        )

    def kind_of(self, db: Any, table: TableRef) -> str | None:
        found = self._live(db, table)
        return None if found is None else ("VIEW" if "VIEW" in found.table_type else "TABLE")

    def _live(self, db: Any, table: TableRef) -> Any:
        from google.api_core.exceptions import NotFound

        try:
            return db.client.get_table(f"{self.project}.{table.schema}.{table.name}")
        except NotFound:
            return None

    def shape(self, db: Db, table: TableRef) -> TableShape | None:
        found = self._live(db, table)
        if found is None:
            return None
        if "VIEW" in found.table_type:
            raise not_a_table(table)
        columns = tuple(self._column(field) for field in found.schema)
        return TableShape(ref=table, columns=columns, has_rows=bool(found.num_rows))

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def batches(self, db: Any, sql: str) -> Iterator[pa.RecordBatch]:
        rows = db.job(sql).result()
        yield from rows.to_arrow_iterable(bqstorage_client=_storage(db.client))

    def sender(self, run_id: str, columns: Sequence[ColumnSpec]) -> Sender:
        assert isinstance(self.connection, BigQueryConnection)
        schema = self.dialect.bookkeeping_schema or ""
        fields = transported_fields(columns, self.dialect, numbered(columns, self.dialect))
        return LoadJobs(self.connection, schema, digest(run_id), fields)

    def prepare(self, db: Any, run_id: str, columns: Sequence[ColumnSpec]) -> None:
        """Nothing to do: load jobs make their tables."""

    def take_in(self, db: Any, run_id: str, columns: Sequence[ColumnSpec], parts: Sequence[Part]) -> str:
        names = self.dialect.columns(numbered(columns, self.dialect))
        tables = [self.dialect.table(self.dialect.parts_ref(run_id, _stem(part.name))) for part in parts]
        if tables:
            return "(" + " UNION ALL ".join(f"SELECT {names} FROM {table}" for table in tables) + ")"
        empty = ", ".join(
            f"CAST(NULL AS {kind}) AS {self.dialect.quote(name)}"
            for name, kind in transported_fields(columns, self.dialect, numbered(columns, self.dialect))
        )
        return f"(SELECT {empty} LIMIT 0)"

    def clear(self, db: Any, run_id: str) -> None:
        prefix = self.dialect.parts_ref(run_id).name
        dataset = f"{self.project}.{self.dialect.bookkeeping_schema}"
        for table in db.client.list_tables(dataset):
            if table.table_id.startswith(prefix):
                db.client.delete_table(table.reference, not_found_ok=True)

    def write_files(self, table_name: str, files: Sequence[str], *, create_if_not_exists: bool) -> int:
        """Write Parquet files by one load job; with `create_if_not_exists` in the place of the rows that are there."""
        import pyarrow.parquet as pq

        columns = [
            ColumnSpec(c.name, Text() if isinstance(c.type, DOCUMENTS) else c.type, nullable=True)
            for c in columns_of(files, self.dialect)
        ]
        assert isinstance(self.connection, BigQueryConnection)
        with tempfile.TemporaryDirectory(prefix="ematix-flow-") as folder, ExitStack() as open_files:
            path = os.path.join(folder, "rows.parquet")
            readers = [open_files.enter_context(pq.ParquetFile(file)) for file in files]
            batches = itertools.chain.from_iterable(reader.iter_batches() for reader in readers)
            rows, _ = write_part(batches, path, columns, self.dialect, named=True)
            if not rows:
                pq.write_table(pq.read_schema(files[0]).empty_table(), path)
            fields = transported_fields(columns, self.dialect, [column.name for column in columns])
            config = load_config(fields, create_if_not_exists=create_if_not_exists)
            with self.session() as db, open(path, "rb") as file:
                place = full_name(self.connection, table_name)
                db.client.load_table_from_file(
                    file, place, job_id=f"ematix_flow_{uuid4().hex}", job_config=config
                ).result()
        return rows


@dataclass(frozen=True)
class LoadJobs:
    """Loads each file into a table of its own. A job has the name of its file, so asking twice does it once."""

    connection: BigQueryConnection
    dataset: str
    run: str
    fields: tuple[tuple[str, str], ...]

    def send(self, path: str, name: str) -> None:
        db = bigquery_session.session(self.connection)
        try:
            with open(path, "rb") as file:
                db.client.load_table_from_file(
                    file,
                    f"{self.connection.project}.{self.dataset}.parts_{self.run}_{_stem(name)}",
                    job_id=f"ematix_flow_{self.run}_{_stem(name)}",
                    job_config=load_config(self.fields, create_if_not_exists=True),
                ).result()
        finally:
            db.close()


def load_config(fields: Sequence[tuple[str, str]], *, create_if_not_exists: bool) -> Any:
    """How Parquet is loaded: True makes the table and replaces its rows, False adds to a table that must be there."""
    from google.cloud import bigquery

    return bigquery.LoadJobConfig(
        source_format=bigquery.SourceFormat.PARQUET,
        schema=[schema_field(name, kind) for name, kind in fields],
        write_disposition=(
            bigquery.WriteDisposition.WRITE_TRUNCATE if create_if_not_exists else bigquery.WriteDisposition.WRITE_APPEND
        ),
        create_disposition=(
            bigquery.CreateDisposition.CREATE_IF_NEEDED
            if create_if_not_exists
            else bigquery.CreateDisposition.CREATE_NEVER
        ),
    )


def schema_field(name: str, kind: str) -> Any:
    """A column for the client; digits and lengths are told apart from the type's name."""
    from google.cloud import bigquery

    word, _, inside = kind.rstrip(")").partition("(")
    numbers = [int(number) for number in inside.split(",")] if inside else []
    more: dict[str, Any] = {}
    if numbers and word.endswith("NUMERIC"):
        more = {"precision": numbers[0], "scale": numbers[1]}
    elif numbers:
        more = {"max_length": numbers[0]}
    return bigquery.SchemaField(name, word, mode="NULLABLE", **more)


def transported_fields(
    columns: Sequence[ColumnSpec], dialect: BigqueryDialect, names: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Columns as Parquet brings them, under these names, in the words of CREATE TABLE."""

    def kind(column_type: ColumnType) -> ColumnType:
        carried = dialect.transported(column_type)
        # Longer decimals than Arrow's travel as text, here as everywhere.
        return Text() if isinstance(carried, Numeric) and carried.precision > 38 else carried

    return tuple((name, dialect.type_sql(kind(c.type))) for name, c in zip(names, columns, strict=True))


def native_type(field: Any) -> str:
    """A described column in the words of CREATE TABLE."""
    word = str(field.field_type)
    if field.mode == "REPEATED":
        return f"ARRAY<{word}>"
    if field.precision is not None:
        return f"{word}({field.precision}, {field.scale or 0})"
    return f"{word}({field.max_length})" if field.max_length is not None else word


def full_name(connection: BigQueryConnection, table_name: str) -> str:
    """`project.dataset.table` of a name as people write it."""
    parts = [part.strip().strip("`") for part in table_name.split(".")]
    return ".".join([*(connection.project, connection.dataset)[: 3 - len(parts)], *parts])


def _stem(name: str) -> str:
    return name.removesuffix(".parquet").replace("-", "_")


def _storage(client: Any) -> Any:
    """The client of the Storage API, or None when it is not installed, or a stand-in is asked, which is elsewhere."""
    if os.environ.get(bigquery_session.EMULATOR):
        return None
    try:
        from google.cloud import bigquery_storage  # noqa: F401 - asked for by the client
    except ImportError:
        return None
    return client._ensure_bqstorage_client()
