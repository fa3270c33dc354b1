"""PostgreSQL: parallel reads of one snapshot, COPY into staging from Arrow batches, one settling transaction."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from ematix_flow.backends import postgres_arrow, postgres_ranges, postgres_swap
from ematix_flow.backends.books import Db
from ematix_flow.backends.locks import digest
from ematix_flow.backends.postgres_capture import CapturesChanges
from ematix_flow.backends.postgres_dialect import PostgresDialect
from ematix_flow.backends.sql import SqlBackend, failed_statement, not_a_table, refused_value
from ematix_flow.contracts.backend import Capabilities
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.dialect import LANDED, Dialect
from ematix_flow.contracts.plans import BatchPlan, Landed, OpenedRun, Reading, SettleReport, SourceQuery, Statement
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.columns import JSON, JSONB, UUID, Text
from ematix_flow.declare.connection import Connection, PostgresConnection
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.errors import (
    ConnectionFailed,
    DuplicateKeys,
    FlowError,
    MissingDriver,
    StatementFailed,
    UnfitValue,
    WriteConflict,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_STAGING = "stg_"
_CREATE_SCHEMA = "CREATE SCHEMA IF NOT EXISTS "
_BOOKS_LOCK = "SELECT pg_advisory_xact_lock(hashtext('ematix_flow books'))"


class PostgresBackend(SqlBackend, CapturesChanges):
    """One PostgreSQL database: loads and settles, and gives its changes as a stream."""

    connection_type = PostgresConnection
    dialect: ClassVar[Dialect] = PostgresDialect()
    capabilities = Capabilities(modes=frozenset({"append", "truncate", "merge", "scd1", "scd2"}))
    lock_clause = " FOR UPDATE"
    # A few changed keys are looked up in the target's index instead of reading all of it; and no statement runs long
    # enough to be worth compiling.
    settling_settings = (
        "SELECT set_config('random_page_cost', least(current_setting('random_page_cost')::float8, 1.1)::text, true)",
        "SELECT set_config('jit', 'off', true)",
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        assert isinstance(connection, PostgresConnection)
        self.url = str(connection.url)

    def table_ref(self, schema: str, name: str) -> TableRef:
        return TableRef(schema, name)

    def connect(self) -> Any:
        try:
            import psycopg
        except ImportError as exc:
            raise MissingDriver(
                "The postgres backend needs 'psycopg'.", fix='pip install "ematix-flow[postgres]"'
            ) from exc
        try:
            db = psycopg.connect(self.url, autocommit=True, connect_timeout=10)
            db.execute(
                "SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO, YMD', false), "
                "set_config('standard_conforming_strings', 'on', false), set_config('extra_float_digits', '1', false), "
                "set_config('client_min_messages', 'warning', false), set_config('bytea_output', 'hex', false)"
            )
        except psycopg.Error as exc:
            reason = scrub(str(exc).strip().splitlines()[0])
            raise ConnectionFailed(
                f"PostgreSQL connection '{self.connection.name}' failed: {reason}",
                fix=f"check host, user and password; then `flow connections check {self.connection.name}`",
            ) from exc
        return db

    def explained(self, exc: Exception) -> FlowError | None:
        import psycopg

        if not isinstance(exc, psycopg.Error):
            return None
        state = exc.sqlstate or ""
        diag = exc.diag
        said = scrub((diag.message_primary or str(exc)).strip().splitlines()[0])
        if state in ("40001", "40P01", "55P03"):
            return WriteConflict(f"PostgreSQL could not settle beside another writer: {said}.", fix="run it again")
        if state == "23502":
            return UnfitValue(
                f"Column '{diag.column_name}' of {diag.table_name} is NOT NULL and the source has rows without a value."
            )
        if state == "23505":
            return DuplicateKeys(
                f"Rows with the same key exist already: constraint '{diag.constraint_name}' of {diag.table_name}.",
                fix="use mode='merge', or remove the duplicates",
            )
        if state == "23503" or state == "23514":
            return UnfitValue(f"Rows break the constraint '{diag.constraint_name}' of {diag.table_name}.")
        refused = refused_value(diag.message_primary or "")
        if refused is not None:
            return refused
        if state.startswith("22"):
            # The server quotes the offending value, behind a colon or in the middle; the message must not.
            reason = re.sub(r'\s*".*"', "", said.split(":")[0])
            return UnfitValue(f"A value does not fit: {reason}.", fix="look at the declared types and lengths")
        if exc.sqlstate is None:
            return ConnectionFailed(f"PostgreSQL connection '{self.connection.name}' broke: {said}")
        return failed_statement(said, scrub(diag.message_hint) if diag.message_hint else None)

    def describe_query(self, sql: str) -> tuple[ColumnShape, ...]:
        with self.session() as db:
            return self._described(db, sql)

    def _described(self, db: Any, sql: str) -> tuple[ColumnShape, ...]:
        found = db.execute(f"SELECT * FROM ({sql}\n) AS q LIMIT 0").description
        return tuple(
            ColumnShape(column.name, self.dialect.from_native(column.type_display), column.type_display)
            for column in found
        )

    def shape(self, db: Db, table: TableRef) -> TableShape | None:
        schema = self.dialect.literal(table.schema or "public", Text())
        name = self.dialect.literal(table.name, Text())
        oid = db.execute(
            "SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE n.nspname = {schema} AND c.relname = {name} AND c.relkind IN ('r', 'p', 'f', 'v', 'm')"
        ).fetchone()
        if oid is None:
            return None
        if oid[1] in ("v", "m", b"v", b"m"):
            raise not_a_table(table)  # PostgreSQL would pass rows on to the table behind a simple view
        columns = db.execute(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef OR a.attidentity <> '' "
            f"FROM pg_attribute a WHERE a.attrelid = {oid[0]} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
        ).fetchall()
        constraints = db.execute(
            "SELECT con.contype, (SELECT array_agg(a.attname ORDER BY k.place) FROM unnest(con.conkey) "
            "WITH ORDINALITY AS k(attnum, place) JOIN pg_attribute a ON a.attrelid = con.conrelid "
            f"AND a.attnum = k.attnum) FROM pg_constraint con WHERE con.conrelid = {oid[0]} "
            "AND con.contype IN ('p', 'u')"
        ).fetchall()
        has_rows = db.execute(f"SELECT EXISTS (SELECT 1 FROM {self.dialect.table(table)})").fetchone()[0]
        keys = [tuple(str(n) for n in names) for kind, names in constraints if kind in ("p", b"p")]
        return TableShape(
            ref=table,
            columns=tuple(
                ColumnShape(column, self.dialect.from_native(native), native, not not_null, bool(default))
                for column, native, not_null, default in columns
            ),
            primary_key=keys[0] if keys else (),
            unique=tuple(sorted(tuple(str(n) for n in names) for kind, names in constraints if kind in ("u", b"u"))),
            has_rows=bool(has_rows),
            bound_by=postgres_swap.bound_by(db, oid[0]),
        )

    def ensure_books(self) -> None:
        with self.transaction() as db:
            # Two first runs at once would both create the schema; the lock lasts until the transaction ends.
            db.execute(_BOOKS_LOCK)
            if self.shape(db, self.dialect.bookkeeping("run_history")) is None:
                for statement in self.books.create_statements():
                    self._change(db, statement)

    def change_schema(self, db: Db, statement: Statement) -> None:
        self._change(db, statement.sql)

    def _change(self, db: Db, sql: str) -> None:
        """One DDL statement; a schema that is there is not asked for: that alone needs a right on the database."""
        schema = sql.removeprefix(_CREATE_SCHEMA)
        if schema != sql:
            there = f"SELECT to_regnamespace({self.dialect.literal(schema, Text())}) IS NOT NULL"
            if db.execute(there).fetchone()[0]:
                return
        db.execute(sql)

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> Iterator[DataFrame]:
        sql = self.sql_of(query)
        with self.session() as keeper:
            # The exported snapshot lives as long as this transaction, so that all readers see the same rows.
            keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            snapshot = keeper.execute("SELECT pg_export_snapshot()").fetchone()[0]
            shapes = self._described(keeper, sql)
            queries = postgres_ranges.split(sql, keeper)
            yield postgres_arrow.frame(spark, self.url, snapshot, queries, shapes, reading)

    def estimated_bytes(self, query: SourceQuery, dialect: SqlDialect = "spark") -> int | None:
        with self.session() as db:
            whole = db.execute(f"EXPLAIN (FORMAT JSON) {self.sql_of(query)}").fetchone()[0][0]["Plan"]
        return int(whole["Plan Rows"]) * int(whole["Plan Width"])

    def read_arrow(self, sql: str) -> pa.Table:
        with self.session() as keeper:
            keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            snapshot = keeper.execute("SELECT pg_export_snapshot()").fetchone()[0]
            return postgres_arrow.table(self.url, snapshot, sql, self._described(keeper, sql))

    def staged_rows(self, run: OpenedRun) -> int | None:
        name = self.dialect.literal(f"{self.dialect.bookkeeping_schema}.{_staging_name(run)}", Text())
        with self.session() as db:
            # Rows of finished COPYs, and of those under way.
            row = db.execute(
                f"SELECT coalesce(pg_stat_get_tuples_inserted(to_regclass({name})), 0) + coalesce((SELECT "
                f"sum(tuples_processed) FROM pg_stat_progress_copy WHERE relid = to_regclass({name})), 0)"
            ).fetchone()
        return int(row[0])

    def stage(self, frame: DataFrame, plan: BatchPlan, run: OpenedRun) -> Landed:
        place = TableRef(self.dialect.bookkeeping_schema, _staging_name(run))
        table = self.dialect.table(place)
        with self.transaction() as db:
            db.execute(_BOOKS_LOCK)
            # A dry run may be the first of all.
            self._change(db, f"{_CREATE_SCHEMA}{self.dialect.quote(place.schema or '')}")
            if plan.lane.kind == "swap":
                db.execute(self._in_target_form(plan, place))
            else:
                parts = [f"{self.dialect.quote(c.name)} {self._transport_type(c.type)}" for c in plan.columns]
                db.execute(f"CREATE UNLOGGED TABLE {table} ({', '.join(parts)})")
        try:
            documents = [column.name for column in plan.columns if isinstance(column.type, JSONB)]
            xids, rows, mark = postgres_arrow.copy_frame(
                postgres_arrow.held_as_jsonb(frame, documents), self.url, place.schema or "", place.name, plan.watermark
            )
        except BaseException:
            with suppress(FlowError):  # the first error is the one to show; what is left goes with a later run
                self._drop_staging(table)
            raise
        with self.session() as db:
            if rows and (plan.target.is_merge or plan.target.is_versioned):
                db.execute(f"ANALYZE {table}")
        return Landed(handle=(place, xids), rows=rows, watermark=mark)

    def _in_target_form(self, plan: BatchPlan, place: TableRef) -> str:
        """The landed table in just the form of the target, but for keys and constants."""
        keys = plan.target.table.primary_key
        parts = [
            f"{self.dialect.quote(c.name)} {self.dialect.type_sql(c.type)}"
            + ("" if c.nullable and c.name not in keys else " NOT NULL")
            for c in plan.lane.columns
        ]
        return f"CREATE TABLE {self.dialect.table(place)} ({', '.join(parts)})"

    def _transport_type(self, column_type: Any) -> str:
        """The staging type: what COPY takes from Arrow. Documents and identifiers travel as text and are cast later."""
        if isinstance(column_type, JSON | JSONB | UUID) or column_type.kind == "string":
            return "text"
        return self.dialect.type_sql(column_type)

    def attach(self, db: Db, plan: BatchPlan, landed: Landed) -> None:
        place, xids = landed.handle
        quote, table = self.dialect.quote, self.dialect.table(place)
        columns = ", ".join(
            f"{quote(c.name)}::{self.dialect.type_sql(c.type)} AS {quote(c.name)}"
            if isinstance(c.type, JSON | JSONB | UUID)
            else quote(c.name)
            for c in plan.columns
        )
        # Only what the finished attempts wrote: a task that was killed after its COPY committed ran again elsewhere.
        finished = f"xmin = ANY('{{{', '.join(map(str, xids))}}}'::xid[])"
        found, whole = db.execute(f"SELECT count(*) FILTER (WHERE {finished}), count(*) FROM {table}").fetchone()
        if found != landed.rows:
            raise StatementFailed(
                f"The staged rows of '{plan.pipeline}' changed: {landed.rows} were written and {found} are there.",
                fix="a server restart empties staging tables; run it again",
            )
        if whole != found:
            db.execute(f"DELETE FROM {table} WHERE NOT ({finished})")
        db.execute(f"CREATE TEMPORARY VIEW {quote(LANDED)} AS SELECT {columns} FROM {table}")

    def detach(self, db: Db) -> None:
        # The view would be there until the server has noticed that this session is over, and hold the staging table.
        db.execute(f"DROP VIEW {self.dialect.quote(LANDED)}")

    def swap(self, db: Db, plan: BatchPlan, landed: Landed | None) -> SettleReport | None:
        if landed is None:
            # Made and gone in this transaction, so that nothing is left behind by a dead run.
            place = TableRef(plan.table.schema, f"{_STAGING}{digest(plan.pipeline)}_{uuid4().hex}")
            db.execute(self._in_target_form(plan, place))
            into = self.dialect.columns([column.name for column in plan.lane.columns])
            chosen = self.dialect.columns([column.name for column in plan.lane.columns], "s")
            db.execute(
                f"INSERT INTO {self.dialect.table(place)} ({into}) SELECT {chosen} FROM ({plan.landing_sql}) AS s"
            )
            rows_of = f"SELECT * FROM {self.dialect.table(place)}"
            db.execute(f"CREATE TEMPORARY VIEW {self.dialect.quote(LANDED)} AS {rows_of}")
        else:
            place = landed.handle[0]
            self.attach(db, plan, landed)
        rows, watermark = self.verified(db, plan, landed)
        self.detach(db)
        reached("mid-settle")
        constants = [
            (column.name, f"{self.dialect.type_sql(column.type)}{'' if column.nullable else ' NOT NULL'}", value)
            for column, value in plan.lane.constants
        ]
        if not postgres_swap.take_place(db, self.dialect, place, plan.table, constants):
            return None
        return SettleReport(rows=rows, inserted=rows, watermark=watermark)

    def discard(self, landed: Landed) -> None:
        place = landed.handle[0]
        try:
            self._drop_staging(self.dialect.table(place))
        except FlowError as exc:  # the load is over, whatever becomes of this
            log.warning("the staging table %s stays until the pipeline's next start: %s", place, exc.message)

    def _drop_staging(self, table: str) -> None:
        """Remove a staging table, and its schema when that holds nothing else: then only a dry run has been here."""
        schema = self.dialect.bookkeeping_schema or ""
        in_use = (
            "SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            f"WHERE n.nspname = {self.dialect.literal(schema, Text())})"
        )
        with self.transaction() as db:
            # A task of a failed job may still hold the table for a moment; a later run then removes it.
            db.execute("SET LOCAL lock_timeout = '10s'")
            db.execute(f"DROP TABLE IF EXISTS {table}")
            if not db.execute(in_use).fetchone()[0]:
                db.execute(_BOOKS_LOCK)
                if not db.execute(in_use).fetchone()[0]:
                    db.execute(f"DROP SCHEMA IF EXISTS {self.dialect.quote(schema)}")

    def close(self) -> None:
        self.stop_receiving()

    # ── one living run per pipeline ──────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def lease(self, pipeline: str) -> Iterator[None]:
        with self.session() as db:
            # A session lock: the server frees it when this process ends, however it ends.
            number = _lock_number(digest(pipeline))
            if not db.execute(f"SELECT pg_try_advisory_lock({number})").fetchone()[0]:
                raise self.under_way(pipeline)
            try:
                yield
            finally:
                # The server takes a moment to notice that a session has ended, and the next run may come sooner.
                with suppress(Exception):  # a connection that broke has given the lock back
                    db.execute(f"SELECT pg_advisory_unlock({number})")

    def clean_up_after_dead_runs(self, pipeline: str) -> None:
        mine = digest(pipeline)
        with self.session() as db:
            left = db.execute(
                "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                f"WHERE n.nspname = '{self.dialect.bookkeeping_schema}' AND c.relkind = 'r' "
                f"AND c.relname LIKE '{_STAGING}%'"
            ).fetchall()
            for (name,) in left:
                owner = name[len(_STAGING) :].split("_")[0]
                number = _lock_number(owner)
                # Our own lease is held by another session of this process, so only foreign pipelines are asked.
                if owner != mine and not db.execute(f"SELECT pg_try_advisory_lock({number})").fetchone()[0]:
                    continue
                db.execute(
                    f"DROP TABLE IF EXISTS {self.dialect.table(TableRef(self.dialect.bookkeeping_schema, name))}"
                )
                if owner != mine:
                    db.execute(f"SELECT pg_advisory_unlock({number})")


def _staging_name(run: OpenedRun) -> str:
    """The staging table of a run; the pipeline's digest in it tells later runs whose lease to ask for."""
    return f"{_STAGING}{digest(run.pipeline)}_{run.run_id.replace('-', '')}"


def _lock_number(name: str) -> int:
    """The advisory-lock number of a pipeline: its digest as a signed 64-bit number."""
    number = int(name, 16)
    return number - 2**64 if number >= 2**63 else number
