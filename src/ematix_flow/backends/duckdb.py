"""DuckDB: one file, held by one process at a time. It reads and writes the Parquet spool itself, vector by vector.

The file is open only while a statement needs it: whoever wants to look into it between two steps of a run may do so.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.backends import duckdb_functions, spool
from ematix_flow.backends.books import Db
from ematix_flow.backends.database_file import DatabaseFileBackend
from ematix_flow.backends.duckdb_dialect import DuckdbDialect, catalog_name, exported, refusal
from ematix_flow.backends.sql import failed_statement, not_a_table, refused_value
from ematix_flow.contracts.backend import Capabilities
from ematix_flow.contracts.dialect import LANDED
from ematix_flow.contracts.plans import BatchPlan, Landed, Reading, SourceQuery
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.columns import JSON, JSONB, Text
from ematix_flow.declare.connection import Connection, DuckDBConnection
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import (
    ConnectionFailed,
    DuplicateKeys,
    FlowError,
    IncompatibleSchema,
    MissingDriver,
    StatementFailed,
    UnfitValue,
    WriteConflict,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PATIENCE = 30.0
"""How many seconds to wait for a process that holds the file."""

_LEAST_VERSION = (2, 0)
_SPOOL_FILE_SIZE = "64MB"  # several files, so that Spark's tasks share them
# What DuckDB may take of the machine before it writes to disk; Spark needs the rest.
_MEMORY_SHARE = "50%"
_HELD = re.compile(r"Could not set lock|being used by another process")
_TYPE_WORD = re.compile(
    r"\b(U?INT(?:8|16|32|64|128)|U?HUGEINT|FLOAT|DOUBLE|DECIMAL\(\d+,\d+\)|BOOL(?:EAN)?|DATE|TIMESTAMP(?:_[A-Z]+)?"
    r"(?: WITH TIME ZONE)?|TIME|INTERVAL|UUID|BLOB|JSON|VARCHAR)(?!\w)"
)


class DuckdbBackend(DatabaseFileBackend):
    """One DuckDB database file, or `:memory:` within this process."""

    system = "DuckDB"
    connection_type = DuckDBConnection
    capabilities = Capabilities(modes=frozenset({"append", "truncate", "merge", "scd1", "scd2"}))
    _memory: ClassVar[dict[str, Any]] = {}
    _memory_guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, connection: Connection) -> None:
        assert isinstance(connection, DuckDBConnection)
        self._dialect = DuckdbDialect(catalog_name(str(connection.path)))
        self._patience = PATIENCE
        super().__init__(connection)

    @property
    def dialect(self) -> DuckdbDialect:  # type: ignore[override]  # one per file, whose name is part of the spelling
        return self._dialect

    def table_ref(self, schema: str, name: str) -> TableRef:
        return TableRef(schema or "main", name)

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self) -> Any:
        duckdb = _driver()
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self._memory_session(duckdb) if self.is_memory else self._file_session(duckdb)
            except duckdb.Error as exc:
                said = _said(exc)
                if "different configuration" in said:
                    raise ConnectionFailed(
                        f"The DuckDB database '{self.path}' is open in this process with a configuration of its own.",
                        fix="close that connection, or open it without config= and read_only=",
                    ) from exc
                if not _HELD.search(said):
                    raise ConnectionFailed(
                        f"The DuckDB database '{self.path}' cannot be opened: {said}.",
                        fix="name a DuckDB file that may be read and written, or one that does not exist yet",
                    ) from exc
                if time.monotonic() >= deadline:
                    raise self._held(said) from exc
            time.sleep(0.05)  # the operating system tells nobody when a file is let go

    def _held(self, said: str) -> ConnectionFailed:
        holder = re.search(r"\(PID (\d+)\)", said)
        who = f"process {holder[1]}" if holder else "another process"
        return ConnectionFailed(
            f"The DuckDB database '{self.path}' is held by {who}.",
            fix="close it there: DuckDB gives a file to one process at a time",
        )

    def _file_session(self, duckdb: Any) -> Any:
        self.require_folder()
        read_only = os.path.exists(self.path) and not os.access(self.path, os.W_OK)
        # No configuration is given here: somebody who has the file open in this process would have to give the same.
        db = duckdb.connect(self.path, read_only=read_only)
        if db.execute("SELECT count FROM duckdb_connection_count()").fetchone()[0] == 1:
            db.execute("SET GLOBAL autoinstall_known_extensions = false")  # nothing is fetched from anywhere
            db.execute(f"SET GLOBAL memory_limit = '{_MEMORY_SHARE}'")
        return _prepared(db)

    def _memory_session(self, duckdb: Any) -> Any:
        with self._memory_guard:
            root = self._memory.get(self.connection.identity())
            if root is None:
                settings = {
                    "autoinstall_known_extensions": "false",
                    "memory_limit": _MEMORY_SHARE,
                    "temp_directory": os.path.join(spool.temporary_root(), f"duckdb-{os.getpid()}"),
                }
                root = duckdb.connect(":memory:", config=settings)
                self._memory[self.connection.identity()] = root
            return _prepared(root.cursor())  # a session of its own: temporary tables and transactions are not shared

    def holder(self, pipeline: str) -> str:
        self._patience = 0.0  # the run is refused already; who holds the file now is all there is to say
        try:
            return super().holder(pipeline)
        except ConnectionFailed as exc:
            return exc.message.rstrip(".")
        finally:
            self._patience = PATIENCE

    def explained(self, exc: Exception) -> FlowError | None:
        import duckdb

        if not isinstance(exc, duckdb.Error):
            return None
        said = _said(exc)
        refused = refused_value(said)
        if refused is not None:
            return refused
        if isinstance(exc, duckdb.ConstraintException):
            return _broken_constraint(said)
        if isinstance(exc, duckdb.TransactionException) or "write-write conflict" in said:
            return WriteConflict("DuckDB could not settle beside another writer of this process.", fix="run it again")
        if _HELD.search(said):
            return self._held(said)
        if "read-only" in said:
            return StatementFailed(
                f"The DuckDB database '{self.path}' is open for reading only.",
                fix="make the file writable, and close connections of this process that opened it for reading only",
            )
        if "Cannot change the type of a column that has a UNIQUE or PRIMARY KEY" in said:
            return IncompatibleSchema(
                "DuckDB cannot change the type of a column that belongs to a key or a unique constraint.",
                fix="declare the type that the table has, or copy the table into one with the new type",
            )
        if isinstance(exc, duckdb.DataError | duckdb.InvalidInputException):
            return _unfit(said)
        if isinstance(exc, duckdb.OutOfMemoryException):
            return StatementFailed(
                "DuckDB has no memory left for a statement.",
                fix="free memory or disk space: DuckDB takes half the memory, then writes beside its file",
            )
        return failed_statement(said)

    # ── describing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def describe_query(self, sql: str) -> tuple[ColumnShape, ...]:
        with self.session() as db:
            return self._described(db, sql)

    def _described(self, db: Db, sql: str) -> tuple[ColumnShape, ...]:
        found = db.execute(f"DESCRIBE SELECT * FROM ({sql}\n) AS q").fetchall()
        return tuple(ColumnShape(name, self.dialect.from_native(native), native) for name, native, *_ in found)

    def shape(self, db: Db, table: TableRef) -> TableShape | None:
        found = self._oid(db, table)
        if found is None:
            return None
        oid, kind = found
        if kind == "view":
            raise not_a_table(table)
        columns = db.execute(
            "SELECT column_name, data_type, comment, is_nullable, column_default FROM duckdb_columns() "
            f"WHERE database_name = current_database() AND table_oid = {oid} ORDER BY column_index"
        ).fetchall()
        constraints = db.execute(
            "SELECT constraint_type, constraint_column_names FROM duckdb_constraints() "
            f"WHERE database_name = current_database() AND table_oid = {oid} "
            "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
        ).fetchall()
        has_rows = db.execute(f"SELECT EXISTS (SELECT 1 FROM {self.dialect.table(table)})").fetchone()[0]
        described = []
        for name, native, comment, nullable, default in columns:
            kept = self.dialect.noted(native, comment)
            described.append(ColumnShape(name, self.dialect.from_native(kept), kept, nullable, default is not None))
        keys = [tuple(names) for kind, names in constraints if kind == "PRIMARY KEY"]
        return TableShape(
            ref=table,
            columns=tuple(described),
            primary_key=keys[0] if keys else (),
            unique=tuple(sorted(tuple(names) for kind, names in constraints if kind == "UNIQUE")),
            has_rows=bool(has_rows),
        )

    def _oid(self, db: Db, table: TableRef) -> tuple[int, str] | None:
        """The number of a table or view, and which of them it is; DuckDB does not tell upper from lower case."""
        schema = self.dialect.literal(table.schema or "main", Text())
        name = self.dialect.literal(table.name, Text())
        where = f"database_name = current_database() AND lower(schema_name) = lower({schema})"
        row = db.execute(
            f"SELECT oid, kind FROM (SELECT table_oid AS oid, 'table' AS kind, schema_name, table_name AS name "
            f"FROM duckdb_tables() WHERE {where} UNION ALL SELECT view_oid, 'view', schema_name, view_name "
            f"FROM duckdb_views() WHERE {where}) WHERE lower(name) = lower({name}) "
            f"ORDER BY schema_name = {schema} DESC, name = {name} DESC LIMIT 1"
        ).fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> Iterator[DataFrame]:
        sql = self.sql_of(query)
        with spool.folder(self.spool_root()) as place:
            with self.session() as db:
                columns = ", ".join(exported(c.name, c.native, self.dialect) for c in self._described(db, sql))
                db.execute(
                    f"COPY (SELECT {columns} FROM ({sql}\n) AS q) TO {self._path(place)} (FORMAT parquet, "
                    f"PER_THREAD_OUTPUT true, FILE_SIZE_BYTES '{_SPOOL_FILE_SIZE}', OVERWRITE_OR_IGNORE true)"
                )
            yield spool.rows_in(spark, place)  # the file is free again while Spark works

    def read_arrow(self, sql: str) -> pa.Table:
        with self.session() as db:
            columns = ", ".join(exported(c.name, c.native, self.dialect) for c in self._described(db, sql))
            return db.sql(f"SELECT {columns} FROM ({sql}\n) AS q").to_arrow_table()

    def attach(self, db: Db, plan: BatchPlan, landed: Landed) -> None:
        files = spool.data_files(landed.handle)
        quote = self.dialect.quote
        if not files:
            parts = ", ".join(f"{quote(c.name)} {self.dialect.type_sql(c.type)}" for c in plan.columns)
            db.execute(f"CREATE TEMPORARY TABLE {quote(LANDED)} ({parts})")
            return
        columns = ", ".join(self._imported(column) for column in plan.columns)
        # Brackets round a character stand for that character alone, also for those that would make a pattern of it.
        listed = ", ".join(self._path(re.sub(r"[\[*?]", r"[\g<0>]", file)) for file in files)
        db.execute(
            f"CREATE TEMPORARY VIEW {quote(LANDED)} AS SELECT {columns} "
            f"FROM read_parquet([{listed}], hive_partitioning = false)"
        )

    def _imported(self, column: ColumnSpec) -> str:
        name, wanted = self.dialect.quote(column.name), self.dialect.type_sql(column.type)
        if isinstance(column.type, JSON | JSONB):
            refused = refusal(column.name, column.type.kind)
            return f"CASE WHEN json_valid({name}) OR {name} IS NULL THEN {name} ELSE {refused} END::{wanted} AS {name}"
        return f"CAST({name} AS {wanted}) AS {name}"

    def _path(self, path: str) -> str:
        return self.dialect.literal(path, Text())


def _driver() -> Any:
    try:
        import duckdb
    except ImportError as exc:
        raise MissingDriver("The duckdb backend needs 'duckdb'.", fix='pip install "ematix-flow[duckdb]"') from exc
    if tuple(int(part) for part in duckdb.__version__.split(".")[:2]) < _LEAST_VERSION:
        # Before 2.0 it does not tell how many rows a statement touched, and checks keys in the middle of a statement.
        raise MissingDriver(
            f"The duckdb backend needs DuckDB 2.0 or later, and {duckdb.__version__} is installed.",
            fix='pip install --upgrade "ematix-flow[duckdb]"',
        )
    return duckdb


def _prepared(db: Any) -> Any:
    """A session in which instants read the same everywhere, and which keeps no order that nobody asked for."""
    db.execute("SET SESSION TimeZone = 'UTC'")
    db.execute("SET SESSION preserve_insertion_order = false")  # keeping it costs memory
    duckdb_functions.register(db)
    return db


def _said(exc: Exception) -> str:
    """The first line of an error, without DuckDB's word for its class."""
    lines = str(exc).strip().splitlines() or [""]
    return re.sub(r"^[A-Za-z ]+ Error: ", "", lines[0]).rstrip(".!")


def _broken_constraint(said: str) -> FlowError:
    """DuckDB quotes keys as `column: value, …`; only the first column can be told from the values."""
    if said.startswith("NOT NULL constraint failed: "):
        found = re.search(r'"((?:[^"]|"")+)"$|([^.]+)$', said)  # the column, behind its table, quoted where need be
        column = (found[1] or found[2]).replace('""', '"') if found else ""
        return UnfitValue(f"Column '{column}' is NOT NULL and the source has rows without a value.")
    if "uplicate key" in said:
        found = re.match(r'Duplicate key "(.+?): ', said)
        named = f" (a key that begins with '{found[1]}')" if found else ""
        return DuplicateKeys(
            f"Rows with the same key exist already, and the table allows one{named}.",
            fix="use mode='merge', or remove the duplicates",
        )
    kind = "a foreign key" if "foreign key" in said else "a constraint"
    return UnfitValue(f"Rows break {kind} of the table.")


def _unfit(said: str) -> UnfitValue:
    """A value that could not be converted or computed. DuckDB quotes it; what is told stops before that."""
    if "out of range" in said:
        reason = "it is out of range"
    elif said.startswith(("Could not c", "Casting")):
        reason = "it cannot be converted"
    else:
        reason = re.split(r"['\"(:]|\bvalue\b|(?<![A-Z0-9])\d|-\d", said)[0].strip() or "it cannot be converted"
    types = _TYPE_WORD.findall(said)
    wanted = f" {types[-1]}" if types else ""
    return UnfitValue(f"A value does not fit{wanted}: {reason}.", fix="look at the declared types and the SQL's casts")
