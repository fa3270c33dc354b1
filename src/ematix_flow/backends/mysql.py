"""MySQL and MariaDB: one reader of one snapshot, LOAD DATA into staging from Arrow batches, one settling transaction.

DDL commits by itself here. So a load lands its rows and looks at them first, then changes the table, then settles; a
value that does not fit leaves table and schema as they were. A dry run whose plan changes the table is rehearsed on a
copy. What a run lands is kept in ordinary tables of the bookkeeping database: MySQL reads a temporary table only once
in a statement.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ematix_flow.backends import mysql_arrow, mysql_errors, mysql_ranges
from ematix_flow.backends.books import Db
from ematix_flow.backends.locks import digest
from ematix_flow.backends.mysql_capture import CapturesBinlog
from ematix_flow.backends.mysql_dialect import MysqlDialect
from ematix_flow.backends.mysql_session import Field, MysqlSession, open_session
from ematix_flow.backends.sql import SqlBackend, not_a_table
from ematix_flow.contracts.backend import Capabilities
from ematix_flow.contracts.dialect import LANDED
from ematix_flow.contracts.mysql_words import text_literal
from ematix_flow.contracts.plans import (
    BatchPlan,
    DdlPlan,
    Landed,
    OpenedRun,
    Reading,
    SettleReport,
    SourceQuery,
    Stamp,
)
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.columns import JSON, JSONB, Bytes, Text, Timestamp, TimestampTZ
from ematix_flow.declare.connection import Connection, MySQLConnection
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import (
    DuplicateKeys,
    FlowError,
    IncompatibleSchema,
    StatementFailed,
    WriteConflict,
    listed,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_STAGING, _COPY = "stg_", "copy_"
_ATTEMPT = "__flow_attempt"
_OURS = "ematix-flow, passing: "
"""What the comment of a table that only lives during a run begins with; the digest of its pipeline follows."""
_BOOKS_LOCK = "ematix_flow books"
_WITH_TRANSACTIONS = ("innodb", "rocksdb", "tokudb", "ndbcluster")


class MysqlBackend(SqlBackend, CapturesBinlog):
    """One MySQL or MariaDB server, through one database of it: loads and settles, and gives changes as a stream."""

    connection_type = MySQLConnection
    dialect: ClassVar[MysqlDialect] = MysqlDialect()
    capabilities = Capabilities(modes=frozenset({"append", "truncate", "merge", "scd1", "scd2"}))
    lock_clause = " FOR UPDATE"

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        assert isinstance(connection, MySQLConnection)
        self.url = str(connection.url)

    def table_ref(self, schema: str, name: str) -> TableRef:
        return TableRef(schema, name)

    def check_target(self, target: TargetSpec) -> None:
        super().check_target(target)
        table = target.table
        keys = {*table.primary_key, *(name for constraint in table.unique for name in constraint)}
        if target.exact_history:
            keys |= {*target.resolved_keys()[0]}
        for column in table.columns:
            if column.name in keys and isinstance(column.type, Text | Bytes | JSON | JSONB):
                raise mysql_errors.unbounded_key(column.name)

    def connect(self) -> MysqlSession:
        return open_session(self.url, self.connection.name)

    def explained(self, exc: Exception) -> FlowError | None:
        return mysql_errors.explained(exc, self.connection.name)

    def explain(self, sql: str) -> str:
        with self.session() as db:
            found = db.execute(f"EXPLAIN {sql}").fetchall()
        return "\n".join(" ".join(str(value) for value in row if value is not None) for row in found)

    def close(self) -> None:
        self.stop_receiving()

    # ── what is there ────────────────────────────────────────────────────────────────────────────────────────────────

    def describe_query(self, sql: str) -> tuple[ColumnShape, ...]:
        with self.session() as db:
            fields = db.fields(sql)
            known = self._stored_columns(db, fields)
        # A type does not tell everything; where a column comes straight from a table, the table does.
        natives = [known.get((f.schema, f.table, f.column), f.native) for f in fields]
        return tuple(
            ColumnShape(field.name, self.dialect.from_native(native), native)
            for field, native in zip(fields, natives, strict=True)
        )

    def _stored_columns(self, db: MysqlSession, fields: list[Field]) -> dict[tuple[str, str, str], str]:
        import pymysql

        found: dict[tuple[str, str, str], str] = {}
        for schema, table in {(f.schema, f.table) for f in fields if f.schema and f.table}:
            # The name may be an alias of something that is no table.
            with suppress(pymysql.Error):
                for row in db.execute(
                    f"SHOW FULL COLUMNS FROM {self.dialect.table(TableRef(schema, table))}"
                ).fetchall():
                    found[schema, table, row[0]] = self.dialect.native(row[1], row[2], row[8])
        return found

    def shape(self, db: Db, table: TableRef) -> TableShape | None:
        schema, name = text_literal(table.schema or ""), text_literal(table.name)
        kinds = db.execute(
            "SELECT table_name, table_type, engine FROM information_schema.tables "
            f"WHERE table_schema = {schema} AND table_name = {name}"
        ).fetchall()
        kind = next((row for row in kinds if row[0] == table.name), None)
        if kind is None and kinds and db.execute("SELECT @@lower_case_table_names").fetchone()[0]:
            kind = kinds[0]  # a server that does not tell cases apart; on others the catalog alone may not
        if kind is None:
            return None
        if "VIEW" in str(kind[1]):
            raise not_a_table(table)
        if str(kind[2]).lower() not in _WITH_TRANSACTIONS:
            raise IncompatibleSchema(
                f"{table} is kept by {kind[2]}, which has no transactions.",
                fix=f"ALTER TABLE {self.dialect.table(table)} ENGINE = InnoDB",
            )
        qualified = self.dialect.table(table)
        columns = []
        for row in db.execute(f"SHOW FULL COLUMNS FROM {qualified}").fetchall():
            native = self.dialect.native(row[1], row[2], row[8])
            filled = row[5] is not None or any(word in row[6].lower() for word in ("auto_increment", "generated"))
            columns.append(ColumnShape(row[0], self.dialect.from_native(native), native, row[3] == "YES", filled))
        indexes: dict[str, list[str]] = {}
        for row in db.execute(f"SHOW INDEX FROM {qualified}").fetchall():
            if not row[1]:  # unique; columns come in their order
                indexes.setdefault(row[2], []).append(row[4])
        primary = indexes.pop("PRIMARY", [])
        has_rows = db.execute(f"SELECT EXISTS (SELECT 1 FROM {qualified})").fetchone()[0]
        return TableShape(
            ref=table,
            columns=tuple(columns),
            primary_key=tuple(primary),
            unique=tuple(sorted(tuple(names) for names in indexes.values())),
            has_rows=bool(has_rows),
        )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> Iterator[DataFrame]:
        sql = self.sql_of(query)
        shapes = [
            # Inside a subquery a column's table is forgotten, and with it that a time is an instant.
            replace(shape, type=TimestampTZ())
            if isinstance(shape.type, Timestamp) and isinstance(reading.source_types.get(shape.name), TimestampTZ)
            else shape
            for shape in self.describe_query(sql)
        ]
        queries: Sequence[str] = (sql,)
        if reading.parallel_reads is not None:
            parts = self._split(query, reading.parallel_reads)
            queries = parts.queries
            level = logging.INFO if len(queries) > 1 else logging.WARNING
            log.log(level, "'%s' is read %s", self.connection.name, parts.words)
        yield mysql_arrow.frame(spark, self.url, self.connection.name, queries, shapes, reading)

    def parts_in_words(self, reading: Reading) -> str:
        assert reading.parallel_reads is not None
        return self._split(reading.query, reading.parallel_reads).words

    def _split(self, query: SourceQuery, readers: int) -> mysql_ranges.Split:
        with self.session() as db:
            return mysql_ranges.split(self.sql_of(query), readers, db)

    def read_arrow(self, sql: str) -> pa.Table:
        return mysql_arrow.table(self.url, self.connection.name, sql, self.describe_query(sql))

    def staged_rows(self, run: OpenedRun) -> int | None:
        with self.session() as db:
            found = db.execute(
                "SELECT table_rows FROM information_schema.tables "
                f"WHERE table_schema = '{self.dialect.bookkeeping_schema}' AND table_name = '{_staging(run).name}'"
            ).fetchone()
        return None if found is None or found[0] is None else int(found[0])

    def stage(self, frame: DataFrame, plan: BatchPlan, run: OpenedRun) -> Landed:
        table = self.dialect.table(_staging(run))
        with self.session() as db, self._workshop(db):
            self._make(db, table, plan, attempts=True)
        try:
            attempts, mark = mysql_arrow.load_frame(
                frame, self.url, self.connection.name, table, plan.columns, _ATTEMPT, plan.watermark
            )
        except BaseException:
            self._remove(table)
            raise
        return Landed(handle=(table, attempts), rows=sum(attempts.values()), watermark=mark)

    def discard(self, landed: Landed) -> None:
        self._remove(landed.handle[0])

    def attach(self, db: Db, plan: BatchPlan, landed: Landed) -> None:
        """Nothing is left to do: `settle` has put the rows in their place."""

    def _make(self, db: MysqlSession, table: str, plan: BatchPlan, *, attempts: bool = False) -> None:
        """A table for landed rows."""
        parts = [f"{self.dialect.quote(c.name)} {self.dialect.landed_type(c.type)} NULL" for c in plan.columns]
        if attempts:
            parts.append(f"{self.dialect.quote(_ATTEMPT)} BIGINT NOT NULL")
        db.execute(f"CREATE TABLE {table} ({', '.join(parts)}) ENGINE = InnoDB COMMENT = '{_comment(plan)}'")

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(
        self, plan: BatchPlan, run: OpenedRun | None, stamp: Stamp, landed: Landed | None, *, dry_run: bool = False
    ) -> SettleReport:
        if run is not None and not dry_run:
            with self.session() as db:
                # Asked again under the lock; here it keeps a late run from changing the table.
                self.books.lock(db, run, "")
                if run.is_held(self.books.applied(db, run.pipeline, run.logical_run)):
                    return SettleReport(rows=0, replayed=True)
        with self._landed(plan, landed) as there:
            try:
                with self._changed_table(plan, there, dry_run) as ready:
                    return super().settle(ready, run, stamp, there, dry_run=dry_run)
            except DuplicateKeys as exc:
                raise self._named(exc, plan) from exc

    @contextmanager
    def _landed(self, plan: BatchPlan, staged: Landed | None) -> Iterator[Landed]:
        """The landed relation, for as long as the block lasts."""
        name = self.dialect.table(self.dialect.landed_ref(plan.run_id))
        keys = [(key, plan.target.table.column(key).type) for key in plan.keys]
        index = self.dialect.index(keys)
        try:
            with self.session() as db:
                if staged is None:
                    assert plan.landing_sql is not None
                    with self._workshop(db):
                        self._make(db, name, plan)
                    columns = self.dialect.columns([column.name for column in plan.columns])
                    rows = db.execute(f"INSERT INTO {name} ({columns}) {plan.landing_sql}").rowcount
                    landed = Landed(handle=None, rows=rows, verified=False)
                    if index and rows:
                        db.execute(f"ALTER TABLE {name} ADD {index}")
                else:
                    # Under its new name nobody else writes to it, not even a task that was given up and still runs.
                    added = f", ADD {index}" if index and staged.rows else ""
                    db.execute(f"ALTER TABLE {staged.handle[0]} RENAME TO {name}{added}")
                    landed = staged
                    self._keep_finished(db, name, plan, staged)
                if plan.keys and landed.rows:
                    db.execute(f"ANALYZE TABLE {name}").fetchall()
            yield landed
        finally:
            self._remove(name)

    def _keep_finished(self, db: MysqlSession, name: str, plan: BatchPlan, staged: Landed) -> None:
        """Leave only what the finished attempts wrote: a task killed after its commit ran again elsewhere."""
        wanted: dict[int, int] = staged.handle[1]
        attempt = self.dialect.quote(_ATTEMPT)
        found = {
            int(row[0]): int(row[1])
            for row in db.execute(f"SELECT {attempt}, count(*) FROM {name} GROUP BY {attempt}").fetchall()
        }
        if {number: found.get(number, 0) for number in wanted} != wanted:
            there = sum(found.get(number, 0) for number in wanted)
            raise StatementFailed(
                f"The staged rows of '{plan.pipeline}' changed: {staged.rows} were written and {there} are there.",
                fix="run it again",
            )
        for number in found.keys() - wanted.keys():
            db.execute(f"DELETE FROM {name} WHERE {attempt} = {number}")

    @contextmanager
    def _changed_table(self, plan: BatchPlan, landed: Landed, dry_run: bool) -> Iterator[BatchPlan]:
        """The plan without its DDL, which has been done: on the table, or on a copy when nothing may be kept."""
        if not plan.ddl.statements:
            yield plan
            return
        target = self.dialect.table(plan.table)
        done = replace(plan, ddl=replace(plan.ddl, statements=()))
        if dry_run or any(target in check.sql for check in plan.checks):
            with self._rehearsal(done, plan.ddl, only_touched=not dry_run) as stand_in:
                if dry_run:
                    yield stand_in
                    return
                self._verify(stand_in, landed)
        else:
            self._verify(done, landed)
        with self.session() as db:
            new = [ref for ref in (plan.table, plan.table.events) if self.shape(db, ref) is None]
            for statement in plan.ddl.statements:
                db.execute(statement.sql)
        try:
            yield done
        except BaseException:
            with suppress(FlowError):  # the first error is the one to show
                self._take_back(new)
            raise

    def _take_back(self, new: list[TableRef]) -> None:
        """Remove tables that this load has made and left empty; additions to tables that were there stay."""
        with self.session() as db:
            for ref in new:
                shape = self.shape(db, ref)
                if shape is not None and not shape.has_rows:
                    db.execute(f"DROP TABLE {self.dialect.table(ref)}")

    def _verify(self, plan: BatchPlan, landed: Landed) -> None:
        with self.session() as db:
            self.verified(db, plan, landed)

    @contextmanager
    def _rehearsal(self, plan: BatchPlan, ddl: DdlPlan, *, only_touched: bool) -> Iterator[BatchPlan]:
        """The plan for copies of the tables that its DDL changes, with the change made and their rows in them."""
        names: dict[str, str] = {}
        try:
            with self.session() as db, self._workshop(db):
                for number, ref in enumerate((plan.table, plan.table.events)):
                    table = self.dialect.table(ref)
                    if not any(table in statement.sql for statement in ddl.statements):
                        continue
                    copy = TableRef(self.dialect.bookkeeping_schema, f"{_COPY}{digest(plan.run_id)}_{number}")
                    names[table] = self.dialect.table(copy)
                    if self.shape(db, ref) is not None:
                        self._copy(db, table, names[table], plan, only_touched)
                for statement in ddl.statements:
                    if any(table in statement.sql for table in names):  # not the schema
                        db.execute(_renamed(statement.sql, names))
                for copy_name in names.values():
                    db.execute(f"ALTER TABLE {copy_name} COMMENT = '{_comment(plan)}'")
            yield replace(
                plan,
                statements=tuple(replace(s, sql=_renamed(s.sql, names)) for s in plan.statements),
                checks=tuple(replace(c, sql=_renamed(c.sql, names)) for c in plan.checks),
                feed=plan.feed and plan.feed.renamed(lambda sql: _renamed(sql, names)),
            )
        finally:
            self._remove(*names.values())

    def _copy(self, db: MysqlSession, table: str, copy: str, plan: BatchPlan, only_touched: bool) -> None:
        """Copy a table, or only the rows whose keys have landed."""
        db.execute(f"CREATE TABLE {copy} LIKE {table}")
        db.execute(f"ALTER TABLE {copy} COMMENT = '{_comment(plan)}'")
        names = [
            row[0]
            for row in db.execute(f"SHOW COLUMNS FROM {table}").fetchall()
            if not re.search("(VIRTUAL|STORED|PERSISTENT) GENERATED", row[5].upper())
        ]
        condition = ""
        if only_touched:
            landed = self.dialect.relation(LANDED, plan.run_id)
            match = " AND ".join(f"t.{self.dialect.quote(k)} = s.{self.dialect.quote(k)}" for k in plan.keys)
            condition = f" WHERE EXISTS (SELECT 1 FROM {landed} AS s WHERE {match})"
        db.execute(
            f"INSERT INTO {copy} ({self.dialect.columns(names)}) "
            f"SELECT {self.dialect.columns(names, 't')} FROM {table} AS t{condition}"
        )

    def _named(self, exc: DuplicateKeys, plan: BatchPlan) -> DuplicateKeys:
        """The error with the columns of the index that refused a row."""
        index = vars(exc).get("index")
        if index is None:
            return exc
        with self.session() as db:
            live = self.shape(db, plan.table)
            found = db.execute(f"SHOW INDEX FROM {self.dialect.table(plan.table)}").fetchall() if live else []
        columns = [row[4] for row in found if row[2] == index] or (plan.target.table.primary_key if not live else ())
        if not columns:
            return exc
        return DuplicateKeys(
            f"Rows with the same {listed(columns)} come twice or exist already, and {plan.table} allows one.",
            fix="use mode='merge', or remove the duplicates",
        )

    # ── books, and the database they are in ──────────────────────────────────────────────────────────────────────────

    def ensure_books(self) -> None:
        with self.session() as db:
            if self.shape(db, self.dialect.bookkeeping("run_history")) is None:
                with self._workshop(db):
                    for statement in self.books.create_statements():
                        db.execute(statement)

    @contextmanager
    def _workshop(self, db: MysqlSession) -> Iterator[None]:
        """The bookkeeping database is there and stays while the block makes something in it."""
        with self._alone(db):
            db.execute(f"CREATE SCHEMA IF NOT EXISTS {self.dialect.quote(self.dialect.bookkeeping_schema or '')}")
            yield

    @contextmanager
    def _alone(self, db: MysqlSession) -> Iterator[None]:
        """Nobody else makes or removes the bookkeeping database."""
        if db.execute(f"SELECT GET_LOCK('{_BOOKS_LOCK}', 60)").fetchone()[0] != 1:
            raise WriteConflict("Another run has been setting up its tables for a minute.", fix="run it again")
        try:
            yield
        finally:
            db.execute(f"SELECT RELEASE_LOCK('{_BOOKS_LOCK}')")

    def _remove(self, *tables: str) -> None:
        """Remove passing tables. What cannot be removed now is removed by a later run, and hides no other error."""
        with suppress(FlowError):
            self._removed(*tables)

    def _removed(self, *tables: str) -> None:
        """Remove tables, and their database when that holds nothing else: then only a dry run has been here."""
        schema = self.dialect.bookkeeping_schema or ""
        known = f"SELECT 1 FROM information_schema.schemata WHERE schema_name = '{schema}'"
        in_use = f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{schema}' LIMIT 1"
        with self.session() as db:
            if db.execute(known).fetchone() is None:
                return
            # A task of a failed job may still hold a table for a moment; a later run then removes it.
            db.execute("SET SESSION lock_wait_timeout = 10")
            for table in tables:
                db.execute(f"DROP TABLE IF EXISTS {table}")
            if db.execute(in_use).fetchone() is None:
                with self._alone(db):
                    if db.execute(in_use).fetchone() is None:
                        db.execute(f"DROP SCHEMA IF EXISTS {self.dialect.quote(schema)}")

    # ── one living run per pipeline ──────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def lease(self, pipeline: str) -> Iterator[None]:
        with self.session() as db:
            # A session lock: the server frees it when this process ends, however it ends.
            name = _lock_name(digest(pipeline))
            if db.execute(f"SELECT GET_LOCK('{name}', 0)").fetchone()[0] != 1:
                raise self.under_way(pipeline)
            try:
                yield
            finally:
                # The server takes a moment to notice that a session has ended, and the next run may come sooner.
                with suppress(Exception):  # a connection that broke has given the lock back
                    db.execute(f"SELECT RELEASE_LOCK('{name}')")

    def clean_up_after_dead_runs(self, pipeline: str) -> None:
        import pymysql

        mine = digest(pipeline)
        with self.session() as db:
            left = db.execute(
                "SELECT table_name, table_comment FROM information_schema.tables "
                f"WHERE table_schema = '{self.dialect.bookkeeping_schema}' AND table_comment LIKE '{_OURS}%'"
            ).fetchall()
        for name, comment in left:
            owner = comment.removeprefix(_OURS)
            table = self.dialect.table(TableRef(self.dialect.bookkeeping_schema, name))
            with self.session() as db:
                # Our own lease is held by another session of this process, so only foreign pipelines are asked.
                if owner != mine and db.execute(f"SELECT GET_LOCK('{_lock_name(owner)}', 0)").fetchone()[0] != 1:
                    continue
                db.execute("SET SESSION lock_wait_timeout = 5")
                with suppress(pymysql.Error):  # somebody still reads it: a later run removes it
                    db.execute(f"DROP TABLE IF EXISTS {table}")
                if owner != mine:
                    db.execute(f"SELECT RELEASE_LOCK('{_lock_name(owner)}')")


def _staging(run: OpenedRun) -> TableRef:
    """The staging table of a run."""
    return TableRef(MysqlDialect.bookkeeping_schema, f"{_STAGING}{digest(run.pipeline)}_{digest(run.run_id)}")


def _comment(plan: BatchPlan) -> str:
    """Tells later runs whose lease to ask for before they remove a table."""
    return f"{_OURS}{digest(plan.pipeline)}"


def _lock_name(owner: str) -> str:
    return f"ematix_flow.{owner}"


def _renamed(sql: str, names: dict[str, str]) -> str:
    # A qualified and quoted name is nothing else: inside another name its quotes would be doubled, and statements of
    # the planner hold no texts of users.
    for table, copy in names.items():
        sql = sql.replace(table, copy)
    return sql
