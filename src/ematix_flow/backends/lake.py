"""Lake tables: tables that are files, with a log of commits. Spark reads and changes them; every load is one commit.

Rows land in a Parquet folder beside the tables (a plain append needs no landing), what changes is worked out against
one version of the table, and one statement commits it, marked with the run. The books under `_ematix_flow/` say
beforehand what the commit will mean; whether it is there decides after a crash. Writers of ours take turns at a table;
another program's commit in between makes the load work out its changes anew.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from ematix_flow.backends.files_native import as_view
from ematix_flow.backends.files_options import prefix_segments
from ematix_flow.backends.files_sql import folder_query, is_prefix
from ematix_flow.backends.files_store import Lock
from ematix_flow.backends.folder import FolderBackend
from ematix_flow.backends.json_books import BOOKS, PipelineState, file_name
from ematix_flow.backends.lake_books import LakeBooks
from ematix_flow.backends.lake_commits import Commit, LoadCommit
from ematix_flow.backends.lake_dialect import STORED, LakeDialect
from ematix_flow.backends.lake_files import well_packed
from ematix_flow.backends.locks import digest
from ematix_flow.backends.sql import require_rows, unmet
from ematix_flow.backends.transport import mark_column, quoted
from ematix_flow.contracts.backend import Capabilities
from ematix_flow.contracts.change_feeds import ChangeCounts
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.dialect import LANDED, SCRATCH, TOUCHED
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
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import (
    InvalidPlan,
    InvalidSource,
    RouteImpossible,
    StaleLease,
    WriteConflict,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.lake_maintenance import LakeMaintenance

log = logging.getLogger(__name__)

_ATTEMPTS = 5
_VERSION_COLUMNS = "valid_from TIMESTAMP, valid_to TIMESTAMP, is_current BOOLEAN"


@dataclass(frozen=True)
class LandedRows:
    """Rows on their way: the frame, and the folder it was written to, if it was."""

    frame: DataFrame
    place: str | None


@dataclass(frozen=True)
class Work:
    """The one statement of a load, None when nothing changes; what it will have done, None when its commit says it."""

    statement: Statement | None
    report: SettleReport | None


class LakeBackend(FolderBackend):
    """One lake: the tables below one folder."""

    capabilities = Capabilities(modes=frozenset({"append", "truncate", "merge", "scd1", "scd2"}))
    system: ClassVar[str]
    dialect_type: ClassVar[type[LakeDialect]]
    goes_without_spark: ClassVar[bool] = False
    """Whether the native engine can have these tables."""
    gathers_partitions: ClassVar[bool] = False
    """Whether these tables bring the rows of a partition together by themselves when they are written."""
    books: LakeBooks

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.books = LakeBooks(self.store, lambda table, run_id: self.is_committed(self.spark(), table, run_id))
        self._dialect = self.dialect_type(self.system, self.name_of)
        self._session: Callable[[], SparkSession] | None = None
        self._turns: dict[TableRef, Lock] = {}
        self._mended: set[TableRef] = set()
        self.is_native = False

    @property
    def dialect(self) -> LakeDialect:
        return self._dialect

    def use_spark(self, session: Callable[[], SparkSession], *, native: bool = False) -> None:
        """Where to get a session when one is needed outside of a load's own work."""
        self._session = session
        self.is_native = self._dialect.holds_left = native

    def spark(self) -> SparkSession:
        """The session."""
        if self._session is None:
            raise InvalidPlan(f"{self.system} tables of '{self.connection.name}' need Spark here, and there is none.")
        if self.is_native and not self.goes_without_spark:
            raise RouteImpossible(
                f"The native engine has no connector for {self.connection.kind}.",
                fix="engine='spark' on this pipeline, and run it in a process of its own",
            )
        return self._session()

    # ── what each kind of table knows ────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def name_of(self, table: TableRef) -> str:
        """The table's name in Spark SQL."""

    def prepare(self, spark: SparkSession) -> None:
        """Tell the session what it must know before these tables can be named."""
        self.store.prepare(spark)

    @abstractmethod
    def exists(self, table: TableRef) -> bool:
        """Whether the table is there; without Spark if that can be told."""

    @abstractmethod
    def version(self, spark: SparkSession, table: TableRef) -> int | None:
        """The newest version of a table; None when nothing was ever written to it."""

    @abstractmethod
    def frame(self, spark: SparkSession, table: TableRef, moment: int | str | None = None) -> DataFrame:
        """The rows of a table: of a version (a number), at a time (a text), or now."""

    def current(self, spark: SparkSession, table: TableRef) -> DataFrame:
        """The rows of a table as it is now; however often they are looked at, they are those of one version."""
        return self.frame(spark, table, self.version(spark, table))

    @abstractmethod
    def has_rows(self, spark: SparkSession, table: TableRef) -> bool:
        """Whether there are any rows, as cheaply as that can be told."""

    @abstractmethod
    def rows_and_partitions(self, spark: SparkSession, table: TableRef) -> tuple[bool, tuple[str, ...]]:
        """Whether there are any rows, and the columns that the table is partitioned by."""

    @abstractmethod
    def commit(self, spark: SparkSession, table: TableRef, statement: str, commit: Commit) -> None:
        """Run one statement as one commit that carries the mark.

        Raises:
            WriteConflict: somebody else committed something that cannot go together with this.
        """

    @abstractmethod
    def is_conflict(self, exc: Exception) -> bool:
        """Whether Spark failed because somebody else committed at the same time."""

    @abstractmethod
    def maintenance(self) -> LakeMaintenance:
        """Who looks after the tables."""

    @abstractmethod
    def is_committed(self, spark: SparkSession, table: TableRef, run_id: str, *, after: int | None = None) -> bool:
        """Whether a commit of that run is there; one behind a version, where that is known and spares work."""

    @abstractmethod
    def loads_of(self, spark: SparkSession, table: TableRef, pipeline: str) -> Mapping[str, str]:
        """The logical runs of a pipeline that the table's newest commits name, and the run that made each."""

    @abstractmethod
    def rows_written(self, spark: SparkSession, table: TableRef, run_id: str) -> int:
        """How many rows the run's commit added, as the table's own log has it."""

    def remove(self, spark: SparkSession, table: TableRef) -> None:
        """Remove a table with all that it holds."""
        self.store.remove_tree(self.folder_of(table))

    def change_schema(self, spark: SparkSession, statement: str) -> None:
        """Create or alter a table."""
        spark.sql(statement)

    def change_table(self, spark: SparkSession, plan: BatchPlan) -> None:
        """Bring the table into the form that the plan wants."""
        for statement in plan.ddl.statements:
            self.change_schema(spark, statement.sql)

    def carry_out(self, spark: SparkSession, load: LoadCommit) -> None:
        """Make the load's one commit."""
        self.commit(spark, load.plan.table, load.statement.sql, load.mark)

    # ── every backend ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_target(self, target: TargetSpec) -> None:
        given = {name: value for name, value in target.files.given().items() if name != "partition_by"}
        self.refuse_options(target, given, "files")
        self.refuse_options(target, target.broker.given(), "brokers")
        self.check_partitions(target)
        self.target_ref(target)

    def describe(self, table: TableRef) -> TableShape | None:
        with self.store.explained():
            if not self.exists(table):
                return None
        spark = self._prepared(self.spark())
        columns = tuple(
            ColumnShape(
                name=field.name,
                native=field.dataType.simpleString(),
                type=self.dialect.from_native(field.dataType.simpleString()),
                nullable=field.nullable,
            )
            for field in self.frame(spark, table).schema.fields
        )
        has_rows, partition_by = self.rows_and_partitions(spark, table)
        return TableShape(table, columns, has_rows=has_rows, partition_by=partition_by)

    def _prepared(self, spark: SparkSession) -> SparkSession:
        self.prepare(spark)
        return spark

    # ── source ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> Iterator[DataFrame]:
        """The rows of a table, or of Spark SQL over tables, each pinned to the version it has now."""
        with ExitStack() as stack:
            with self.store.explained():
                self.prepare(spark)
                frame = self._query_frame(spark, query, stack, reading.dialect)
            yield frame

    def _query_frame(self, spark: SparkSession, query: SourceQuery, stack: ExitStack, dialect: SqlDialect) -> DataFrame:
        if query.table is not None:
            return self._table_frame(spark, query.table)
        if query.sql is None:
            raise InvalidSource(f"{self.system} tables are read by name or by SQL.")
        if is_prefix(query.sql):
            return self._table_frame(spark, self._named(query.sql.strip()))
        tables = folder_query(query.sql, dialect)
        for view, ref in tables.views.items():
            table = ref if ref.schema else self._named(ref.name)
            as_view(self._table_frame(spark, table, tables.moments.get(view)), view)
            stack.callback(spark.catalog.dropTempView, view)
        return tables.frame(spark)

    def folder_named(self, name: str) -> str:
        return self.folder_of(self._named(name))

    def _named(self, text: str) -> TableRef:
        parts = prefix_segments(text) if "/" in text else text.split(".")
        if len(parts) != 2:
            raise InvalidSource(f"'{text}' is not a table of '{self.connection.name}'.", fix="write schema.table")
        return self.table_ref(*parts)

    def _table_frame(self, spark: SparkSession, table: TableRef, moment: int | str | None = None) -> DataFrame:
        if not self.exists(table):
            raise InvalidSource(
                f"The {self.system} table '{table}' does not exist in '{self.connection.name}'.",
                where=self.store.shown_path(self.folder_of(table)),
                fix="check the name and the path of the connection",
            )
        if isinstance(moment, int) and moment >= 1 << 63:  # such a number no engine can even look for
            newest = self.version(spark, table)
            raise InvalidSource(
                f"The {self.system} table '{table}' has no version {moment}: its newest is {newest}.",
                where=self.store.shown_path(self.folder_of(table)),
                fix="ask for one that it has, or for a time",
            )
        return self.current(spark, table) if moment is None else self.frame(spark, table, moment)

    # ── target: landing ──────────────────────────────────────────────────────────────────────────────────────────────

    def stage(self, frame: DataFrame, plan: BatchPlan, run: OpenedRun) -> Landed:
        """Write the rows beside the tables, unless they can go into one as they are.

        They cannot when their mark is wanted beforehand, or when a table must change first: it does so only for rows
        that are known to be good. A table that a stream makes gets its rows as they come, in the few tasks of a batch,
        and goes again when they are not good; the first rows of a load are packed into as few files as hold them.
        """
        frame = self.storable(frame, plan)
        makes_only = plan.ddl.action == "create" and run.batch is not None
        only_adds = plan.changes is None and (not plan.ddl.statements or makes_only)
        if only_adds and plan.watermark is None and run.logical_run != "dry-run":
            return Landed(LandedRows(frame, None), rows=None)
        from pyspark.sql import functions as F

        place = f"{self._staging_root(run.pipeline)}/{file_name(run.run_id)}"
        try:
            landed = self._written(frame, place)
            counts = [F.count(F.lit(1)).alias("rows")]
            if plan.watermark is not None:
                highest = F.max(F.col(quoted(plan.watermark.column)))
                counts.append(mark_column(highest, plan.watermark.type).alias("mark"))
            found = landed.agg(*counts).collect()[0]
        except BaseException:
            self.store.remove_tree(place)
            raise
        return Landed(LandedRows(landed, place), found["rows"], found["mark"] if plan.watermark else None)

    def storable(self, frame: DataFrame, plan: BatchPlan) -> DataFrame:
        """The rows; one with a value that the table would give back as another stops the load."""
        return frame

    def _written(self, frame: DataFrame, place: str) -> DataFrame:
        """The rows, now in files of that place."""
        spark = frame.sparkSession
        self.prepare(spark)
        self.store.save(spark, frame.write.format("parquet").mode("overwrite"), place)
        return spark.read.schema(frame.schema).parquet(self.store.spark_path(place))

    def staged_rows(self, run: OpenedRun) -> int | None:
        return None

    def discard(self, landed: Landed) -> None:
        if landed.handle.place is not None:
            self.store.remove_tree(landed.handle.place)

    def _staging_root(self, pipeline: str) -> str:
        return f"{BOOKS}/staging/{digest(pipeline)}"

    # ── target: settling ─────────────────────────────────────────────────────────────────────────────────────────────

    def settle(
        self, plan: BatchPlan, run: OpenedRun | None, stamp: Stamp, landed: Landed | None, *, dry_run: bool = False
    ) -> SettleReport:
        assert landed is not None, "lake tables are always written by Spark"
        rows: LandedRows = landed.handle
        spark = self._prepared(rows.frame.sparkSession)
        with ExitStack() as stack, self.store.explained():
            self._view(stack, rows.frame, LANDED, plan.run_id)
            if dry_run or run is None:
                self._verified(spark, plan, landed)
                return self._tried(stack, spark, plan, landed)
            if run.applied is not None:
                return SettleReport(rows=0, replayed=True)
            stack.enter_context(self.turn(plan.table))
            known = self._known(spark, plan.table, run, stamp)
            if run.is_held(known.applied_run(run.logical_run)):
                return SettleReport(rows=0, replayed=True)
            self.books.require_current(run, known.generation)
            self._verified(spark, plan, landed)
            self._prepare_gate(spark, plan)
            self.change_table(spark, plan)
            if plan.ddl.action == "create" and landed.rows is None:
                stack.enter_context(self._gone_if_it_fails(spark, plan.table))
            self._make_gate(spark, plan)
            if plan.changes is None:
                self._view(stack, self._packed(rows, plan), LANDED, plan.run_id)
            application = self.books.application(run.pipeline)
            mark = Commit(application, run.generation + 1, run.run_id, run.pipeline, run.load_name)
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return self._commit(stack, spark, plan, run, stamp, landed, mark)
                except WriteConflict:
                    if attempt == _ATTEMPTS:
                        raise
                    log.info("%s changed meanwhile; working out its changes anew", plan.table)
        raise AssertionError("unreachable")

    def _known(self, spark: SparkSession, table: TableRef, run: OpenedRun, stamp: Stamp) -> PipelineState:
        """What the books know; when that is nothing, they are new or were lost, and the table itself is asked.

        A stream is not taken up from its table: who throws away its books may want all batches anew.
        """
        known = self.books.state(run.pipeline, ())
        if known != PipelineState() or run.batch is not None or not self.exists(table):
            return known
        return self.books.found_again(run.pipeline, self.loads_of(spark, table, run.pipeline), stamp.now)

    @contextmanager
    def _gone_if_it_fails(self, spark: SparkSession, table: TableRef) -> Iterator[None]:
        """A table that was just made goes again when its first rows turn out not to fit, if it is still empty."""
        made = self.version(spark, table)
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the first error is the one to show; an empty table does no harm
                if self.version(spark, table) == made:
                    self.remove(spark, table)
            raise

    def _commit(
        self,
        stack: ExitStack,
        spark: SparkSession,
        plan: BatchPlan,
        run: OpenedRun,
        stamp: Stamp,
        landed: Landed,
        mark: Commit,
    ) -> SettleReport:
        version = self.version(spark, plan.table)
        work = self._worked_out(stack, spark, plan, landed, version)
        report = work.report or SettleReport(0)
        if plan.feed is not None:
            changes = ChangeCounts.of(spark.sql(plan.feed.tally).collect())
            report = replace(report, rows=changes.applied, changes=changes)
        column = plan.watermark.column if plan.watermark else None
        known = self.books.state(run.pipeline, ())
        state = self.books.settled(run, known, report, column, stamp.now)
        self.books.about_to_commit(run, plan.table, state)
        reached("mid-settle")
        for note in plan.feed.passed if plan.feed is not None else ():
            spark.sql(note.sql)
            reached("gate-passed")
        if work.statement is not None:
            self._require_turn(plan.table)
            if plan.changes is not None and self.version(spark, plan.table) != version:
                raise WriteConflict(f"{plan.table} changed while its changes were worked out.")
            try:
                self.carry_out(spark, LoadCommit(plan, run, work.statement, mark, version))
            except WriteConflict:
                # A catalog may have lost no more than its answer: the same statement again would double the rows.
                if not self.is_committed(spark, plan.table, run.run_id, after=version):
                    raise
            reached("committed")
            if work.report is None:
                written = self.rows_written(spark, plan.table, run.run_id)
                report = SettleReport(rows=written, inserted=written)
                state = self.books.settled(run, known, report, column, stamp.now)
        try:
            self.books.after_commit(run, state, stamp.now)
        except OSError as exc:
            # The rows are committed, so the run has succeeded; the next one brings the books up to date.
            log.warning("'%s' is loaded, but its books could not be brought up to date: %s", run.pipeline, exc)
        return report

    def _worked_out(
        self, stack: ExitStack, spark: SparkSession, plan: BatchPlan, landed: Landed, version: int | None
    ) -> Work:
        if plan.changes is None:
            if landed.rows is None:
                return Work(plan.statements[-1], None)
            nothing = landed.rows == 0 and plan.target.mode == "append"
            report = SettleReport(landed.rows, inserted=landed.rows, watermark=landed.watermark)
            return Work(None if nothing else plan.statements[-1], report)
        if plan.changes.fill and plan.ddl.action == "create" and landed.rows and not self.has_rows(spark, plan.table):
            self._view(stack, self._packed(landed.handle, plan), LANDED, plan.run_id)
            return Work(plan.changes.fill, SettleReport(landed.rows, landed.rows, watermark=landed.watermark))
        changes, changed, report = self._counted(stack, self.current(spark, plan.table), plan, landed, version)
        statement = plan.changes.least(changed, report)
        if statement is plan.changes.insert:
            self._view(stack, self._packed(changes, plan), SCRATCH, plan.run_id)
        return Work(statement, report)

    def _counted(
        self, stack: ExitStack, stored: DataFrame, plan: BatchPlan, landed: Landed, version: int | None
    ) -> tuple[LandedRows, int, SettleReport]:
        """Work out what changes against the stored rows, and count it.

        The changes are written down: they are counted and applied, and must be the same both times.
        """
        assert plan.changes is not None
        spark = stored.sparkSession
        self._view(stack, stored, STORED, plan.run_id)
        if plan.changes.touched is not None:
            place = f"{landed.handle.place}-touched-{version}"
            stack.callback(self.store.remove_tree, place)
            self._view(stack, self._written(spark.sql(plan.changes.touched.sql), place), TOUCHED, plan.run_id)
        place = f"{landed.handle.place}-changes-{version}"
        stack.callback(self.store.remove_tree, place)
        changes = LandedRows(self._written(spark.sql(plan.changes.query.sql), place), place)
        self._view(stack, changes.frame, SCRATCH, plan.run_id)
        changed, inserted, updated, closed, deleted = spark.sql(plan.changes.counts).collect()[0]
        report = SettleReport(landed.rows or 0, inserted, updated, closed, deleted, landed.watermark)
        return changes, changed, report

    def _prepare_gate(self, spark: SparkSession, plan: BatchPlan) -> None:
        """What the gate of a change feed should no longer know."""
        self._mend_gate(spark, plan)
        if plan.feed is not None and plan.feed.prepares and plan.feed.gate and self.exists(plan.feed.gate):
            for statement in plan.feed.prepares:
                spark.sql(statement.sql)

    def _mend_gate(self, spark: SparkSession, plan: BatchPlan) -> None:
        """Give a gate that an older version made the columns that it lacks; looked at once."""
        gate = plan.feed.gate if plan.feed else None
        if plan.feed is None or gate is None or gate in self._mended or not self.exists(gate):
            return
        known = set(self.frame(spark, gate).columns)
        for name, statement in plan.feed.mend_gate:
            if name not in known:
                self.change_schema(spark, statement.sql)
        self._mended.add(gate)

    def _make_gate(self, spark: SparkSession, plan: BatchPlan) -> None:
        """The table that remembers what a change feed has applied, when it is not there."""
        if plan.feed is not None and plan.feed.gate is not None and not self.exists(plan.feed.gate):
            for statement in plan.feed.make_gate:
                self.change_schema(spark, statement.sql)

    def _packed(self, rows: LandedRows, plan: BatchPlan) -> DataFrame:
        """Rows that are only added, in as few tasks as hold them well: each writes a file."""
        size = None
        if rows.place is not None:
            size = sum(file.size for file in self.store.visible_files(rows.place))
        partitions = () if self.gathers_partitions else plan.ddl.partition_by
        return well_packed(rows.frame, size, [name for name in partitions if name in rows.frame.columns])

    def _tried(self, stack: ExitStack, spark: SparkSession, plan: BatchPlan, landed: Landed) -> SettleReport:
        """What the load would do; nothing is changed."""
        from pyspark.sql import functions as F

        rows = landed.rows or 0
        if plan.changes is None or not self.exists(plan.table):
            return SettleReport(rows, inserted=rows, watermark=landed.watermark)
        self._mend_gate(spark, plan)
        self._make_gate(spark, plan)
        stored = self.current(spark, plan.table)
        for column in plan.target.table.columns:
            if column.name not in stored.columns:  # the load would add it
                missing = F.lit(None).cast(self.dialect.type_sql(column.type))
                stored = stored.withColumn(column.name, missing)
        return self._counted(stack, stored, plan, landed, None)[-1]

    def _verified(self, spark: SparkSession, plan: BatchPlan, landed: Landed) -> None:
        """Check the landed rows before anything changes."""
        if landed.rows == 0:
            require_rows(plan, 0)
        if landed.rows == 0 or not plan.checks:
            return
        with ExitStack() as stack:
            is_there = self.exists(plan.table)
            stored = self.frame(spark, plan.table) if is_there else self._nothing_stored(spark, plan)
            self._view(stack, stored, STORED, plan.run_id)
            numbers = spark.sql("SELECT " + ", ".join(f"({check.sql})" for check in plan.checks)).collect()[0]
            for check, number in zip(plan.checks, numbers, strict=True):
                if number:
                    raise unmet(check, int(number), plan)

    def _nothing_stored(self, spark: SparkSession, plan: BatchPlan) -> DataFrame:
        """A table that is not there yet, as far as checks look at it."""
        declared = [f"{quoted(column.name)} {self.dialect.type_sql(column.type)}" for column in plan.columns]
        added = [_VERSION_COLUMNS] if plan.target.is_versioned else []
        return spark.createDataFrame([], ", ".join([*declared, *added]))

    def _view(self, stack: ExitStack, frame: DataFrame, name: str, run_id: str) -> None:
        view = self.dialect.relation(name, run_id).strip("`")
        frame.createOrReplaceTempView(view)
        stack.callback(self._drop_view, frame.sparkSession, view)

    def _drop_view(self, spark: SparkSession, view: str) -> None:
        if self.is_native:  # a view of that name may have been dropped already, which is an error to it
            spark.sql(f"DROP VIEW IF EXISTS {quoted(view)}")
        else:
            spark.catalog.dropTempView(view)

    @contextmanager
    def turn(self, table: TableRef) -> Iterator[None]:
        """One writer of ours at a table at a time."""
        lock = self.store.lock(f"{BOOKS}/locks/table-{digest(str(table))}.lock", wait=True)
        assert lock is not None
        self._turns[table] = lock
        try:
            yield
        finally:
            del self._turns[table]
            lock.release()

    def _require_turn(self, table: TableRef) -> None:
        """Make sure, just before a commit, that nobody took the turn over while this process slept.

        In a bucket a commit is an object that is put: two writers at the same moment could overwrite each other's.
        """
        if not self._turns[table].is_held():
            raise StaleLease(
                f"This run was silent for so long that another one took its turn at {table}; it changed nothing.",
                where=self.store.shown_path(self.folder_of(table)),
                fix="run it again",
            )

    def execute(self, statements: Sequence[Statement]) -> Mapping[str, int]:
        """Run statements, each of which is a commit of its own; tables are named schema.table."""
        raise InvalidPlan(
            f"{self.system} tables take no SQL steps after a load.",
            fix="make the step a pipeline of its own that reads the table",
        )

    def before_opening(self, pipeline: str) -> None:
        self.store.remove_tree(self._staging_root(pipeline))
        self.books.take_up(pipeline)
