"""What the three warehouses share: Parquet files in bulk, a relation of landed rows, one transaction that settles.

Most warehouses end a transaction when a schema changes. There, DDL runs after the rows have landed and been looked at,
immediately before the settling transaction; a table that was made for a load that then failed is removed again.

None of them has a lock that ends with a session. The lease is a lock on this machine; between machines the ledger
decides: whoever opened the pipeline last may settle, everybody else changes nothing.
"""

from __future__ import annotations

import logging
import os
import random
import re
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from uuid import uuid4

from ematix_flow.backends import spool
from ematix_flow.backends.books import Books, Db
from ematix_flow.backends.locks import FileLock, digest
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.backends.transport import arrow_type
from ematix_flow.backends.warehouse_dialect import WarehouseDialect
from ematix_flow.backends.warehouse_parts import Part, Sender, columns_of, send_file, send_frame
from ematix_flow.contracts.backend import Capabilities
from ematix_flow.contracts.plans import (
    BatchPlan,
    Landed,
    OpenedRun,
    Reading,
    SettleReport,
    SourceQuery,
    Stamp,
    Statement,
)
from ematix_flow.contracts.shapes import ColumnShape, TableRef
from ematix_flow.declare.columns import Text
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import (
    FlowError,
    InvalidDeclaration,
    RouteImpossible,
    StatementFailed,
    UnfitValue,
    WriteConflict,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_ROWS_PER_FILE = 1_000_000
_DDL = re.compile(r"\s*(?:CREATE|ALTER|DROP|TRUNCATE)\b", re.IGNORECASE)
_WAITS_S = (0.2, 0.5, 1.0, 2.0)
_Result = TypeVar("_Result")
_warned: set[str] = set()


class WarehouseBackend(SqlBackend):
    """One warehouse: append, truncate and merge, from anywhere and from itself."""

    dialect: ClassVar[WarehouseDialect]
    capabilities = Capabilities(modes=frozenset({"append", "truncate", "merge", "scd1"}))
    stand_in: ClassVar[str]
    """What this code has been run against instead of the service itself, for the warning."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.books = WarehouseBooks(self.dialect)

    # ── what a warehouse adds ────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def batches(self, db: Any, sql: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query as Arrow batches, in order, streamed."""

    @abstractmethod
    def described(self, db: Any, sql: str) -> tuple[ColumnShape, ...]:
        """Names and types of a query's columns, on an open connection."""

    @abstractmethod
    def sender(self, run_id: str, columns: Sequence[ColumnSpec]) -> Sender:
        """Who brings this run's files to where the warehouse takes them from."""

    @abstractmethod
    def prepare(self, db: Any, run_id: str, columns: Sequence[ColumnSpec]) -> None:
        """Make room for a run's files and rows, before any is sent."""

    @abstractmethod
    def take_in(self, db: Any, run_id: str, columns: Sequence[ColumnSpec], parts: Sequence[Part]) -> str:
        """Copy the files that arrived into tables of their own; gives the relation of their rows."""

    @abstractmethod
    def clear(self, db: Any, run_id: str) -> None:
        """Remove a run's files and tables, as far as they are there."""

    # ── before anything runs ─────────────────────────────────────────────────────────────────────────────────────────

    def check_target(self, target: TargetSpec) -> None:
        super().check_target(target)
        if target.is_versioned:
            raise self.dialect.no_history()

    def table_ref(self, schema: str, name: str) -> TableRef:
        return TableRef(schema, name)

    def warn_once(self) -> None:
        """Say once per process that this path has never met the service itself."""
        if self.dialect.name not in _warned:
            _warned.add(self.dialect.name)
            log.warning(
                "%s: this path has been tested against %s, never against %s itself; look at the first loads closely "
                "(docs/warehouses.md)",
                self.connection.name,
                self.stand_in,
                self.dialect.system,
            )

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def describe_query(self, sql: str) -> tuple[ColumnShape, ...]:
        with self.session() as db:
            return self.described(db, sql)

    @contextmanager
    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> Iterator[DataFrame]:
        sql = self.sql_of(query)
        self._require_one_machine(spark)
        with spool.folder(spool.temporary_root()) as place:
            self.spooled(sql, place)
            yield spool.rows_in(spark, place)

    def _require_one_machine(self, spark: Any) -> None:
        """Refuse a Spark that cannot see files of this machine, before anything is read."""
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            here = str(getattr(spark.client, "host", "")) in ("localhost", "127.0.0.1", "::1", "[::1]")
        else:
            here = str(spark.sparkContext.master).startswith("local")
        if not here:
            raise RouteImpossible(
                f"Rows of '{self.connection.name}' ({self.dialect.system}) pass through files of this machine, which "
                "this Spark cannot see.",
                fix="run this pipeline on a local Spark: --spark-master 'local[*]'",
            )

    def spooled(self, sql: str, place: str) -> int:
        """Stream the rows of a query into Parquet files of a folder, a batch at a time; how many they were."""
        import pyarrow.parquet as pq

        rows, part = 0, 0
        with self.session() as db:
            shapes = self.described(db, sql)
            schema = arrow_schema(shapes)
            writer: pq.ParquetWriter | None = None
            try:
                for batch in self.exact_batches(db, sql, shapes):
                    if writer is None or rows >= _ROWS_PER_FILE * part:
                        if writer is not None:
                            writer.close()
                        writer = pq.ParquetWriter(os.path.join(place, f"part-{part:05d}.parquet"), schema)
                        part += 1
                    writer.write_batch(batch)
                    rows += batch.num_rows
                if writer is None:
                    writer = pq.ParquetWriter(os.path.join(place, "part-00000.parquet"), schema)
            finally:
                if writer is not None:
                    writer.close()
        return rows

    def read_arrow(self, sql: str) -> pa.Table:
        import pyarrow as pa

        with self.session() as db:
            shapes = self.described(db, sql)
            return pa.Table.from_batches(self.exact_batches(db, sql, shapes), schema=arrow_schema(shapes))

    def exact_batches(self, db: Any, sql: str, shapes: Sequence[ColumnShape]) -> Iterator[pa.RecordBatch]:
        """The rows of a query in the types that its columns are described with."""
        import pyarrow as pa

        if not shapes:
            raise InvalidDeclaration("The query gives no columns.")
        quote = self.dialect.quote
        columns = ", ".join(
            f"{self.dialect.given_out(f'q.{quote(s.name)}', s.type)} AS {quote(s.name)}" for s in shapes
        )
        schema = arrow_schema(shapes)
        for batch in self.batches(db, f"SELECT {columns} FROM ({sql}\n) AS q"):
            arrays = [_as_described(batch.column(place), schema.field(place)) for place in range(len(shapes))]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    # ── landing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def stage(self, frame: DataFrame, plan: BatchPlan, run: OpenedRun) -> Landed:
        self.ensure_workshop()
        with self.session() as db:
            self.prepare(db, plan.run_id, plan.columns)
        try:
            parts, mark = send_frame(
                frame, plan.columns, self.dialect, self.sender(plan.run_id, plan.columns), plan.watermark
            )
            rows = sum(part.rows for part in parts)
            with self.session() as db:
                relation = self.take_in(db, plan.run_id, plan.columns, parts)
                self._make_landed(db, plan, relation)
                found = int(db.execute(f"SELECT count(*) FROM {relation} AS p").fetchone()[0])
            if found != rows:
                raise StatementFailed(
                    f"{rows} rows of '{plan.pipeline}' were sent and {found} arrived in {self.dialect.system}.",
                    fix="run it again",
                )
        except BaseException:
            with suppress(FlowError):  # the first error is the one to show; what is left goes with a later run
                self._clear(plan.run_id)
            raise
        return Landed(handle=plan.run_id, rows=rows, watermark=mark)

    def ensure_workshop(self) -> None:
        """The schema in which passing tables live.

        In a session of its own: in Snowflake a new schema becomes the one that names without a schema mean.
        """
        make = self.dialect.create_schema(self.dialect.bookkeeping_schema or "")
        if make is not None:
            with self.session() as db:
                db.execute(make)

    def _make_landed(self, db: Db, plan: BatchPlan, relation: str) -> None:
        """The landed rows in their declared types: a view over what was copied."""
        values = self._taken_in(plan.columns)
        columns = ", ".join(
            f"{value} AS {self.dialect.quote(c.name)}" for value, c in zip(values, plan.columns, strict=True)
        )
        landed = self.dialect.table(self.dialect.landed_ref(plan.run_id))
        db.execute(f"CREATE VIEW {landed} AS SELECT {columns} FROM {relation} AS p")

    def _taken_in(self, columns: Sequence[ColumnSpec]) -> list[str]:
        """The copied columns (of the alias p) as their declared types."""
        return [self.dialect.taken_in(f"p.{self.dialect.quote(f'c{n}')}", c.type) for n, c in enumerate(columns)]

    def parts_columns(self, columns: Sequence[ColumnSpec]) -> str:
        """The columns of a table that files are copied into."""
        return ", ".join(
            f"{self.dialect.quote(f'c{place}')} {self.dialect.type_sql(self.dialect.transported(c.type))}"
            for place, c in enumerate(columns)
        )

    def attach(self, db: Db, plan: BatchPlan, landed: Landed) -> None:
        """Nothing to do: statements know the landed relation by its own name."""

    def discard(self, landed: Landed) -> None:
        self._clear(landed.handle)

    def _clear(self, run_id: str) -> None:
        with self.session() as db:
            self.drop_landed(db, run_id)  # first: it may be a view over the rest
            self.clear(db, run_id)

    def drop_landed(self, db: Db, run_id: str) -> None:
        """Remove the landed relation, whichever of the two it is: a view over files' rows, or a pinned query."""
        ref = self.dialect.landed_ref(run_id)
        kind = self.kind_of(db, ref)
        if kind is not None:
            db.execute(f"DROP {kind} {self.dialect.table(ref)}")

    def kind_of(self, db: Db, table: TableRef) -> str | None:
        """`TABLE` or `VIEW`, or None when there is nothing of that name."""
        rows = db.execute(
            f"SELECT table_type FROM {self.catalog_of(table)} WHERE table_schema = {self._kept(table.schema or '')} "
            f"AND table_name = {self._kept(table.name)}"
        ).fetchall()
        if not rows:
            return None
        return "VIEW" if "VIEW" in str(rows[0][0]).upper() else "TABLE"

    def catalog_of(self, table: TableRef) -> str:
        """Where the system lists its tables."""
        return "information_schema.tables"

    def _kept(self, name: str) -> str:
        return self.dialect.literal(self.dialect.kept_name(name), Text())

    def write_files(self, table_name: str, files: Sequence[str], *, create_if_not_exists: bool) -> int:
        """Add the rows of Parquet files to a table by one statement; how many they were. Keeps no books."""
        run_id = str(uuid4())
        columns = columns_of(files, self.dialect)
        target = self.dialect.written(table_name)
        names = self.dialect.columns([column.name for column in columns])
        values = ", ".join(self._taken_in(columns))
        self.ensure_workshop()
        with self.session() as db:
            self.prepare(db, run_id, columns)
            try:
                parts = [
                    part
                    for file in files
                    for part in send_file(file, columns, self.dialect, self.sender(run_id, columns))
                ]
                relation = self.take_in(db, run_id, columns, parts)
                if create_if_not_exists:
                    made = ", ".join(f"{self.dialect.quote(c.name)} {self.dialect.type_sql(c.type)}" for c in columns)
                    db.execute(f"CREATE TABLE IF NOT EXISTS {target} ({made})")
                db.execute(f"INSERT INTO {target} ({names}) SELECT {values} FROM {relation} AS p")
            finally:
                with suppress(FlowError):
                    self._clear(run_id)
        return sum(part.rows for part in parts)

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(
        self, plan: BatchPlan, run: OpenedRun | None, stamp: Stamp, landed: Landed | None, *, dry_run: bool = False
    ) -> SettleReport:
        if run is not None and not dry_run:
            with self.session() as db:
                # Asked again under the lock; here it keeps a late run from changing the table.
                self.books.still_open(db, run)
                if run.is_held(self.books.applied(db, run.pipeline, run.logical_run)):
                    return SettleReport(rows=0, replayed=True)
        with self._landed(plan, landed) as there, self._changed_table(plan, there, dry_run) as ready:
            settle = super().settle
            return patiently(lambda: settle(ready, run, stamp, there, dry_run=dry_run))

    @contextmanager
    def _landed(self, plan: BatchPlan, landed: Landed | None) -> Iterator[Landed]:
        """The landed rows; those of a pushed-down load are pinned for as long as the block lasts."""
        if landed is not None:
            yield landed
            return
        assert plan.landing_sql is not None
        self.ensure_workshop()
        try:
            with self.session() as db:
                db.execute(
                    self.dialect.pinned(self.dialect.table(self.dialect.landed_ref(plan.run_id)), plan.landing_sql)
                )
            yield Landed(handle=plan.run_id, rows=None, verified=False)
        finally:
            with suppress(FlowError), self.session() as db:
                self.drop_landed(db, plan.run_id)

    @contextmanager
    def _changed_table(self, plan: BatchPlan, landed: Landed, dry_run: bool) -> Iterator[BatchPlan]:
        """The plan without its DDL, which has been done: on the table, or on a copy when nothing may be kept."""
        if not plan.ddl.statements or not self.dialect.ddl_commits:
            yield plan
            return
        done = replace(plan, ddl=replace(plan.ddl, statements=()))
        if dry_run:
            with self._rehearsal(done, plan.ddl.statements) as stand_in:
                yield stand_in
            return
        with self.session() as db:
            self.verified(db, done, landed)
            is_new = self.kind_of(db, plan.table) is None
            for statement in plan.ddl.statements:
                self.change_schema(db, statement)
        try:
            yield done
        except BaseException:
            if is_new:
                with suppress(FlowError):  # the first error is the one to show
                    self._take_back(plan.table)
            raise

    def _take_back(self, table: TableRef) -> None:
        """Remove a table that this load has made and left empty."""
        with self.session() as db:
            shape = self.shape(db, table)
            if shape is not None and not shape.has_rows:
                db.execute(f"DROP TABLE {self.dialect.table(table)}")

    @contextmanager
    def _rehearsal(self, plan: BatchPlan, ddl: Sequence[Statement]) -> Iterator[BatchPlan]:
        """The plan for a copy of the table that its DDL changes, with the change made and the rows in it."""
        table = self.dialect.table(plan.table)
        ref = TableRef(self.dialect.bookkeeping_schema, f"copy_{digest(plan.run_id)}")
        copy = self.dialect.table(ref)
        # Conditions speak of the table by its name alone.
        names = (f"{self.dialect.quote(plan.table.name)}.", f"{self.dialect.quote(ref.name)}.")
        try:
            with self.session() as db:
                if self.kind_of(db, plan.table) is not None:
                    db.execute(self.dialect.pinned(copy, f"SELECT * FROM {table}"))
                for statement in ddl:
                    if table in statement.sql:  # not the schema
                        db.execute(statement.sql.replace(table, copy))
            moved = (replace(s, sql=s.sql.replace(table, copy).replace(*names)) for s in plan.statements)
            yield replace(plan, statements=tuple(moved))
        finally:
            with suppress(FlowError), self.session() as db:
                db.execute(f"DROP TABLE IF EXISTS {copy}")

    def execute(self, statements: Sequence[Statement]) -> Mapping[str, int]:
        if not self.dialect.ddl_commits or not any(_DDL.match(statement.sql) for statement in statements):
            return super().execute(statements)
        counts: Counter[str] = Counter()
        with self.session() as db:  # a transaction would end at once, or not take them
            for statement in statements:
                counts[statement.counts or "affected"] += max(db.execute(statement.sql).rowcount, 0)
        return counts

    # ── books ────────────────────────────────────────────────────────────────────────────────────────────────────────

    books: WarehouseBooks

    def ensure_books(self) -> None:
        with self.session() as db:
            if self.kind_of(db, self.dialect.bookkeeping("run_history")) is None:
                for statement in self.books.create_statements():
                    db.execute(statement)

    def open_run(
        self, pipeline: str, *, run_id: str, logical_run: str | None, target: TableRef, mode: str, now: datetime
    ) -> OpenedRun:
        self.ensure_books()
        with self.session() as db:
            self.books.ensure_row(db, pipeline)
        opened = super().open_run
        return patiently(
            lambda: opened(pipeline, run_id=run_id, logical_run=logical_run, target=target, mode=mode, now=now)
        )

    def close_run(self, run: OpenedRun, *, error: str | None, now: datetime) -> None:
        close = super().close_run
        patiently(lambda: close(run, error=error, now=now))

    def record_step(self, run: OpenedRun, step: str, *, error: str | None, metrics: Any, started: datetime) -> None:
        record = super().record_step
        patiently(lambda: record(run, step, error=error, metrics=metrics, started=started))

    # ── one living run per pipeline and machine ──────────────────────────────────────────────────────────────────────

    @contextmanager
    def lease(self, pipeline: str) -> Iterator[None]:
        name = f"{self.dialect.name}.{digest(f'{self.connection.identity()} {pipeline}')}.lock"
        with self.holding(FileLock(os.path.join(spool.temporary_root(), name)), pipeline):
            yield

    def clean_up_after_dead_runs(self, pipeline: str) -> None:
        with self.session() as db:
            for run_id in self.books.left_open(db, pipeline):
                self.drop_landed(db, run_id)
                self.clear(db, run_id)


class WarehouseBooks(Books):
    """The books in a warehouse, where no key is enforced and no row can be locked by reading it."""

    dialect: WarehouseDialect

    def create_statements(self) -> list[str]:
        # Keys would only be remarks; what they promise is kept by `ensure_row` and by the lock on the ledger's row.
        return [
            statement.partition(", PRIMARY KEY")[0] + ")" if ", PRIMARY KEY" in statement else statement
            for statement in super().create_statements()
        ]

    def ensure_row(self, db: Db, pipeline: str) -> None:
        """The pipeline's row of the ledger is there, once: statements that merge wait for each other."""
        known = db.execute(
            f"SELECT count(*) FROM {self.table('ledger')} WHERE pipeline_name = {self._text(pipeline)}"
        ).fetchone()[0]
        if not int(known):
            first = self.dialect.insert_once(
                self.table("ledger"), "pipeline_name", self._text(pipeline), "generation", "0"
            )
            db.execute(first)

    def lock(self, db: Db, run: OpenedRun, lock_clause: str) -> None:
        # Writing the row is what keeps others from it until the transaction ends.
        db.execute(
            f"UPDATE {self.table('ledger')} SET generation = generation "
            f"WHERE pipeline_name = {self._text(run.pipeline)}"
        )
        self.still_open(db, run)

    def still_open(self, db: Db, run: OpenedRun) -> None:
        """Refuse a run that another one has taken over or overtaken."""
        super().lock(db, run, "")

    def left_open(self, db: Db, pipeline: str) -> list[str]:
        """Runs of a pipeline that never ended."""
        rows = db.execute(
            f"SELECT run_id FROM {self.table('run_history')} "
            f"WHERE pipeline_name = {self._text(pipeline)} AND status = 'running'"
        ).fetchall()
        return [str(row[0]) for row in rows]


def beside_another(system: str) -> WriteConflict:
    """The error of a transaction that a warehouse gave up because of another one; it may be tried again at once."""
    conflict = WriteConflict(f"{system} could not settle beside another writer.", fix="run it again")
    vars(conflict)["passing"] = True
    return conflict


def patiently(work: Callable[[], _Result]) -> _Result:
    """Do a transaction, a few times if need be: the books are shared, and other pipelines write in them, too."""
    for wait_s in _WAITS_S:
        try:
            return work()
        except WriteConflict as exc:
            if not vars(exc).get("passing"):
                raise
            time.sleep(wait_s * random.uniform(0.5, 1.5))
    return work()


def arrow_schema(shapes: Sequence[ColumnShape]) -> pa.Schema:
    """Described columns as Arrow has them."""
    import pyarrow as pa

    return pa.schema([(shape.name, arrow_type(shape.type)) for shape in shapes])


def _as_described(values: pa.Array, field: pa.Field) -> Any:
    import pyarrow as pa

    if values.type == field.type:
        return values
    try:
        return values.cast(field.type)
    except pa.ArrowException as exc:  # its words hold the value
        raise UnfitValue(
            f"Column '{field.name}' of the source holds a value that is no {field.type}.",
            fix="read it as text, by a cast in the query",
        ) from exc
