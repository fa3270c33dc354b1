"""What all SQL databases share: one settling transaction, bookkeeping beside the data, errors with names.

A database adds its dialect, how to connect, how to describe itself, and how rows are staged beside its tables.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from ematix_flow.backends.books import Books, Db
from ematix_flow.backends.locks import FileLock
from ematix_flow.contracts import refusals
from ematix_flow.contracts.backend import Backend, Health
from ematix_flow.contracts.change_feeds import GATE, ChangeCounts, FeedPlan
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.dialect import LANDED, Dialect
from ematix_flow.contracts.plans import BatchPlan, Check, Landed, OpenedRun, SettleReport, SourceQuery, Stamp, Statement
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.connection import Connection
from ematix_flow.errors import (
    AlreadyRunning,
    DuplicateKeys,
    EmptySource,
    FlowError,
    IncompatibleSchema,
    LateArrival,
    StatementFailed,
    UnfitValue,
    counted,
    listed,
)

if TYPE_CHECKING:
    import pyarrow as pa


class SqlBackend(Backend):
    """One SQL database. Opens a connection per piece of work and closes it again."""

    dialect: ClassVar[Dialect]
    lock_clause: ClassVar[str] = ""
    begin: ClassVar[str] = "BEGIN"
    settling_settings: ClassVar[Sequence[str]] = ()
    """Statements that tune the settling transaction, and it alone."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.books = Books(self.dialect)

    # ── what a database adds ─────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def connect(self) -> Any:
        """A new driver connection in autocommit mode; `ConnectionFailed` when that is not to be had."""

    @abstractmethod
    def explained(self, exc: Exception) -> FlowError | None:
        """A driver's error as one of ours, without row values; None when it is not the driver's."""

    @abstractmethod
    def describe_query(self, sql: str) -> tuple[ColumnShape, ...]:
        """Names and types of a query's columns, without running it."""

    @abstractmethod
    def read_arrow(self, sql: str) -> pa.Table:
        """All rows of a query, in this process and without Spark; types as they are described, order as it is asked."""

    @abstractmethod
    def shape(self, db: Db, table: TableRef) -> TableShape | None:
        """The live table, or None."""

    @abstractmethod
    def attach(self, db: Db, plan: BatchPlan, landed: Landed) -> None:
        """Make staged rows readable as the landed relation, inside the settling transaction."""

    def detach(self, db: Db) -> None:
        """Let the landed relation go, before the settling transaction ends."""

    def change_schema(self, db: Db, statement: Statement) -> None:
        """Do one statement of a plan's schema change, inside the settling transaction."""
        db.execute(statement.sql)

    def staged_rows(self, run: OpenedRun) -> int | None:
        return None

    @abstractmethod
    def clean_up_after_dead_runs(self, pipeline: str) -> None:
        """Remove what runs that died left beside the target; never that of a living run."""

    # ── the doors ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> Health:
        started = time.perf_counter()
        try:
            with self.session() as db:
                db.execute("SELECT 1").fetchone()
        except FlowError as exc:
            return Health(False, exc.message, (time.perf_counter() - started) * 1000)
        return Health(True, "ok", (time.perf_counter() - started) * 1000)

    def describe(self, table: TableRef) -> TableShape | None:
        with self.session() as db:
            return self.shape(db, table)

    def sql_of(self, query: SourceQuery) -> str:
        """A query as SQL; a table is all of its rows."""
        if query.sql is not None:
            return query.sql
        assert query.table is not None
        return f"SELECT * FROM {self.dialect.table(query.table)}"

    def explain(self, sql: str) -> str:
        with self.session() as db:
            return "\n".join(str(row[-1]) for row in db.execute(f"EXPLAIN {sql}").fetchall())

    def execute(self, statements: Sequence[Statement]) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        with self.transaction() as db:
            for statement in statements:
                done = db.execute(statement.sql).rowcount
                counts[statement.counts or "affected"] += max(done, 0)
        return counts

    def settle(
        self, plan: BatchPlan, run: OpenedRun | None, stamp: Stamp, landed: Landed | None, *, dry_run: bool = False
    ) -> SettleReport:
        with self.transaction(keep=not dry_run) as db:
            for setting in self.settling_settings:
                db.execute(setting)
            if run is not None and not dry_run:
                self.books.lock(db, run, self.lock_clause)
                if run.is_held(self.books.applied(db, run.pipeline, run.logical_run)):
                    return SettleReport(rows=0, replayed=True)
            for statement in plan.feed.prepares if plan.feed is not None and not dry_run else ():
                db.execute(statement.sql)
            for statement in plan.ddl.statements:
                self.change_schema(db, statement)
            report = self._fast_lane(db, plan, landed) or self._apply(db, plan, landed)
            if run is not None and not dry_run:
                self.books.settle(
                    db,
                    run,
                    report,
                    column=plan.watermark.column if plan.watermark else None,
                    path=plan.route.path,
                    unchanged=unchanged_rows(plan, report),
                    changed=report.closed if plan.target.is_versioned else report.updated,
                    now=stamp.now,
                )
            return report

    def _apply(self, db: Db, plan: BatchPlan, landed: Landed | None) -> SettleReport:
        """The usual way: land the rows, look at them, run the plan's statements over them."""
        if landed is None:
            assert plan.landing_sql is not None
            db.execute(self.dialect.create_landed(LANDED, plan.landing_sql))
        else:
            self.attach(db, plan, landed)
        rows, watermark = self.verified(db, plan, landed)
        counts: Counter[str] = Counter()
        for statement in plan.statements:
            done = db.execute(statement.sql).rowcount
            if statement.counts is not None:
                counts[statement.counts] += max(done, 0)
            reached("mid-settle")
        changes = self._applied_feed(db, plan.feed, counts) if plan.feed is not None else None
        if landed is not None:
            self.detach(db)
        return SettleReport(
            rows=rows if changes is None else changes.applied,
            inserted=counts["inserted"],
            updated=counts["updated"],
            closed=counts["closed"],
            deleted=counts["deleted"],
            watermark=watermark,
            changes=changes,
        )

    def _applied_feed(self, db: Db, feed: FeedPlan, counts: Counter[str]) -> ChangeCounts:
        """Apply changes that have been judged, turn after turn, and remember them."""
        found = ChangeCounts.of(db.execute(feed.tally).fetchall())
        turns = db.execute(feed.rounds).fetchone()[0] if feed.rounds else None
        for number in range(1, int(turns or 0) + 1):
            for statement in feed.turn(number):
                counts[statement.counts or ""] += max(db.execute(statement.sql).rowcount, 0)
                reached("mid-settle")
        for statement in feed.passed:
            db.execute(statement.sql)
        return found

    def _fast_lane(self, db: Db, plan: BatchPlan, landed: Landed | None) -> SettleReport | None:
        """What the plan's lane saves; None when there is none, or when the database will not have it."""
        if plan.lane.kind == "insert":
            return None
        db.execute("SAVEPOINT ematix_flow_lane")
        try:
            report = self._straight(db, plan) if plan.lane.kind == "straight" else self.swap(db, plan, landed)
        except Exception as exc:
            if isinstance(exc, FlowError) or self.explained(exc) is None:
                raise
            # A value that does not fit, a missing right: the usual way succeeds, or says what is wrong and where.
            report = None
        if report is None:
            db.execute("ROLLBACK TO SAVEPOINT ematix_flow_lane")
        return report

    def _straight(self, db: Db, plan: BatchPlan) -> SettleReport:
        assert plan.lane.statement is not None
        rows = max(db.execute(plan.lane.statement.sql).rowcount, 0)
        reached("mid-settle")
        return SettleReport(rows=rows, inserted=rows)

    def swap(self, db: Db, plan: BatchPlan, landed: Landed | None) -> SettleReport | None:
        """Put the landed table in the target's place, in a savepoint; None when that cannot be done, or not now."""
        return None

    def verified(self, db: Db, plan: BatchPlan, landed: Landed | None) -> tuple[int, str | None]:
        """Check the landed rows; their number and greatest watermark."""
        if landed is not None and landed.verified:
            assert landed.rows is not None
            rows, watermark = landed.rows, landed.watermark
        else:
            assert plan.profile is not None
            found = db.execute(plan.profile.sql).fetchone()
            rows, watermark = int(found[0]), None if found[1] is None else str(found[1])
            for check, number in zip(plan.profile.checks, found[2:], strict=True):
                if number:
                    raise unmet(check, int(number), plan)
        require_rows(plan, rows)
        if rows:
            for check in plan.checks:
                number = int(db.execute(check.sql).fetchone()[0])
                if number:
                    raise unmet(check, number, plan)
        return rows, watermark

    # ── one living run per pipeline ──────────────────────────────────────────────────────────────────────────────────

    def under_way(self, pipeline: str) -> AlreadyRunning:
        """The error of a run that finds its pipeline held by another."""
        return AlreadyRunning(
            f"Another run of '{pipeline}' is under way ({self.holder(pipeline)}); this one changed nothing.",
            fix="wait for it to end; `flow runs list` shows it",
        )

    @contextmanager
    def holding(self, lock: FileLock, pipeline: str) -> Iterator[None]:
        """Hold a pipeline by a lock of this machine; `AlreadyRunning` when a living run holds it."""
        if not lock.acquire():
            raise self.under_way(pipeline)
        try:
            yield
        finally:
            lock.release()

    def holder(self, pipeline: str) -> str:
        """Who has the pipeline open, for a message."""
        with self.session() as db:
            known = self.shape(db, self.dialect.bookkeeping("ledger")) is not None
            return (self.books.holder(db, pipeline) if known else None) or "just started"

    # ── books ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def open_run(
        self,
        pipeline: str,
        *,
        run_id: str,
        logical_run: str | None,
        target: TableRef,
        mode: str,
        now: datetime,
    ) -> OpenedRun:
        self.ensure_books()
        self.clean_up_after_dead_runs(pipeline)
        with self.transaction() as db:
            return self.books.open(
                db, pipeline, run_id=run_id, logical_run=logical_run, target=target, mode=mode, now=now
            )

    def close_run(self, run: OpenedRun, *, error: str | None, now: datetime) -> None:
        with self.transaction() as db:
            self.books.close(db, run, error=error, now=now)

    def peek(self, pipeline: str) -> tuple[str, str] | None:
        with self.session() as db:
            if self.shape(db, self.dialect.bookkeeping("watermarks")) is None:
                return None
            return self.books.watermark(db, pipeline)

    def record_step(self, run: OpenedRun, step: str, *, error: str | None, metrics: Any, started: datetime) -> None:
        now = datetime.now(timezone.utc)
        with self.transaction() as db:
            self.books.record_step(db, run, str(uuid4()), step, error=error, metrics=metrics, started=started, now=now)

    def ensure_books(self) -> None:
        """Create the framework's tables when they are not there."""
        with self.transaction() as db:
            if self.shape(db, self.dialect.bookkeeping("run_history")) is None:
                for statement in self.books.create_statements():
                    db.execute(statement)

    def ensure_gate(self) -> None:
        """Make the table in which change feeds remember what they applied; an older version's gets what it lacks."""
        with self.session() as db:
            live = self.shape(db, self.dialect.bookkeeping(GATE))
            for statement in [self.books.gate_statement()] if live is None else self.books.gate_additions(live):
                db.execute(statement)

    # ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def session(self) -> Iterator[Any]:
        """A connection whose driver errors come out as ours."""
        db = self.connect()
        try:
            yield db
        except Exception as exc:
            found = None if isinstance(exc, FlowError) else self.explained(exc)
            if found is None:
                raise
            raise found from exc
        finally:
            self.release(db)

    def release(self, db: Any) -> None:
        """Give a connection back; closes it."""
        db.close()

    @contextmanager
    def transaction(self, *, keep: bool = True) -> Iterator[Any]:
        """A transaction that commits at the end of the block (or rolls back, without `keep`, or on any error)."""
        with self.session() as db:
            db.execute(self.begin)
            try:
                yield db
            except BaseException:
                self._roll_back(db)
                raise
            if keep:
                db.execute("COMMIT")
            else:
                self._roll_back(db)

    def _roll_back(self, db: Any) -> None:
        # A connection that is broken has rolled back already; the first error is the one to show.
        try:
            db.execute("ROLLBACK")
        except Exception as exc:
            if self.explained(exc) is None:
                raise


def unchanged_rows(plan: BatchPlan, report: SettleReport) -> int:
    """Landed rows that changed nothing; only modes that compare have any."""
    if not (plan.target.is_merge or plan.target.is_versioned):
        return 0
    return report.unchanged


def require_rows(plan: BatchPlan, rows: int) -> None:
    """Refuse to empty a table because its source is empty, unless that is allowed."""
    if rows == 0 and plan.target.handle_deletes == "hard" and not plan.target.allow_empty_source:
        raise EmptySource(
            f"'{plan.pipeline}' refuses an empty source: handle_deletes='hard' would empty {plan.table}.",
            fix="find out why the source is empty, or pass allow_empty_source=True",
        )


def unmet(check: Check, number: int, plan: BatchPlan) -> FlowError:
    """The error for a check that found something. Columns are named, values never."""
    columns = listed(check.columns)
    rows, keys = counted(number, "row"), counted(number, "key")
    table = plan.table
    makers: dict[str, Callable[[], FlowError]] = {
        "null": lambda: UnfitValue(
            f"Column {columns} of {table} is NOT NULL, and the source has no value for it in {rows}.",
            fix=f"declare it nullable ({check.columns[0]}: T | None), fill it with default(...), or mend the source",
        ),
        "too_long": lambda: UnfitValue(
            f"Column {columns} of {table} holds at most {check.limit} characters; longer in {rows} of the source.",
            fix=f"declare a longer String[n] or Text, or shorten with truncate({check.limit})",
        ),
        "null_key": lambda: UnfitValue(
            f"Key {columns} of {table} is NULL in {rows} of the source.", fix="filter them out, or choose other keys"
        ),
        "null_event_time": lambda: UnfitValue(
            f"Event time {columns} of {table} is NULL in {counted(number, 'changed row')}.",
            fix="fill it in the source SQL",
        ),
        "duplicate_keys": lambda: DuplicateKeys(
            f"The source of {table} holds {keys} more than once; the key is {columns}.",
            fix="choose one row per key with transforms_pre=[deduplicate_by(..., order_by=...)], "
            "or, for scd2, declare the order with event_timestamp_column=",
        ),
        "duplicate_events": lambda: DuplicateKeys(
            f"The source of {table} holds {keys} with different content for the same time; key and time are {columns}.",
            fix="choose one row with transforms_pre=[deduplicate_by(..., order_by=...)]",
        ),
        "late": lambda: LateArrival(
            f"late_arrivals='error': {rows} for {table} not newer than what is stored; the time is {columns}.",
            fix="leave late_arrivals at its default to splice them in",
        ),
    }
    return makers[check.kind]()


def refused_value(said: str) -> UnfitValue | None:
    """The error for a value that one of our own expressions refused; None when the words are the database's own."""
    facts = refusals.facts_in(said)
    if facts is None:
        return None
    step = f" after {facts['marker']}()" if facts.get("marker") else ""
    return UnfitValue(
        f"A value of column '{facts.get('column')}' does not fit its type{step}: {facts.get('type')}.",
        fix="declare a type that takes it, such as Text, or mend the source",
    )


def failed_statement(message: str, hint: str | None = None) -> StatementFailed:
    """A refusal of the database that has no clearer name: its own first line, and its hint if it gave one."""
    return StatementFailed(
        f"The database refused a statement: {message.strip().splitlines()[0]}",
        fix=hint or "look at the names and the SQL that the pipeline gives; `flow preview` shows every statement",
    )


def not_a_table(table: TableRef) -> IncompatibleSchema:
    """The target's name belongs to a view."""
    return IncompatibleSchema(
        f"{table} is a view, and rows are loaded into tables.", fix="give the target another name"
    )
