"""The doors of a backend. `Backend` is what every system has; the other doors are open only where they make sense."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from ematix_flow.contracts.dialect import Dialect
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
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.declare.target import Mode, TargetSpec
from ematix_flow.errors import InvalidPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do, so that a planner may refuse early and say why."""

    modes: frozenset[Mode]
    reads: bool = True
    transactional: bool = True
    delivery: str = "exactly once"


@dataclass(frozen=True)
class Health:
    """The answer to "are you there?"."""

    ok: bool
    detail: str
    elapsed_ms: float


class Backend(ABC):
    """One external system behind one resolved connection. Cheap to make; connects when asked."""

    connection_type: ClassVar[type[Connection]]
    capabilities: ClassVar[Capabilities]
    needs: SessionNeeds = SessionNeeds()
    is_on_this_machine: bool = False
    """Whether its rows are files of this machine, or pass through some."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @abstractmethod
    def check(self) -> Health:
        """Connect, ask the smallest question, and report; never raises for an unreachable system."""

    @abstractmethod
    def table_ref(self, schema: str, name: str) -> TableRef:
        """Where a declared table lives here; refuses schemas the system cannot have."""

    def target_ref(self, target: TargetSpec) -> TableRef:
        """Where a target's rows go; its table, unless the target's options name another place."""
        return self.table_ref(target.table.schema, target.table.name)

    def check_target(self, target: TargetSpec) -> None:
        """Refuse options that mean nothing here, before anything runs."""
        self.refuse_options(target, target.files.given(), "files")
        self.refuse_options(target, target.broker.given(), "brokers")

    def refuse_options(self, target: TargetSpec, given: Mapping[str, object], whose: str) -> None:
        """Say of the first option given that it belongs to another kind of system."""
        if given:
            raise InvalidPlan(
                f"{next(iter(given))}= is an option for {whose}, and {target.table} goes to "
                f"'{self.connection.name}' ({self.connection.kind}).",
                fix="leave it out",
            )

    @abstractmethod
    def describe(self, table: TableRef) -> TableShape | None:
        """The live table, or None when it is not there."""

    @abstractmethod
    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> AbstractContextManager[DataFrame]:
        """The rows of a query as a DataFrame, consistent across its partitions, for as long as the context is open."""

    def estimated_bytes(self, query: SourceQuery, dialect: SqlDialect = "spark") -> int | None:
        """About how much a query reads, if that can be told at once. `dialect` is for SQL that Spark runs."""
        return None

    def close(self) -> None:  # noqa: B027 - most backends hold nothing between calls
        """Let go of files and connections."""


@runtime_checkable
class RunsOnSpark(Protocol):
    """A system without an engine of its own: Spark describes its tables, too."""

    def use_spark(self, session: Callable[[], SparkSession], *, native: bool = False) -> None:
        """Where to get a session, should one be needed outside of a load's own work; whether it is a native one."""
        ...


@runtime_checkable
class SpeaksSql(Protocol):
    """A source that runs SQL of its own: it can describe and explain a query before anything moves."""

    @property
    def dialect(self) -> Dialect: ...

    def describe_query(self, sql: str) -> tuple[ColumnShape, ...]:
        """Names and types of a query's columns, without running it."""
        ...

    def explain(self, sql: str) -> str:
        """The database's own plan of a query; raises `StatementFailed` when the query is wrong."""
        ...


@runtime_checkable
class KeepsBooks(Protocol):
    """A target that remembers runs: lease, logical runs, watermark and history live beside the data."""

    def lease(self, pipeline: str) -> AbstractContextManager[None]:
        """Hold the pipeline for this process; `AlreadyRunning` when a living run holds it. Ends with the process."""
        ...

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
        """Write the `running` row and say what is known: generation, watermark, and an interrupted or applied run."""
        ...

    def close_run(self, run: OpenedRun, *, error: str | None, now: datetime) -> None:
        """End the run: `failed` with the error, or done; the logical run is no longer open afterwards."""
        ...

    def peek(self, pipeline: str) -> tuple[str, str] | None:
        """The stored watermark as (column, text), without opening a run; None when there is none."""
        ...

    def record_step(self, run: OpenedRun, step: str, *, error: str | None, metrics: Any, started: datetime) -> None:
        """Add the history row of one after-load transform."""
        ...


@runtime_checkable
class Settles(KeepsBooks, Protocol):
    """A target that applies a mode in place: land the rows beside the table, then settle in one transaction."""

    @property
    def dialect(self) -> Dialect: ...

    def stage(self, frame: DataFrame, plan: BatchPlan, run: OpenedRun) -> Landed:
        """Bring a DataFrame's rows beside the target, in parallel and in bulk; survives killed and repeated tasks."""
        ...

    def staged_rows(self, run: OpenedRun) -> int | None:
        """How many rows have been staged so far, for a progress display; cheap, a guess is fine, None when unknown."""
        ...

    def settle(
        self, plan: BatchPlan, run: OpenedRun | None, stamp: Stamp, landed: Landed | None, *, dry_run: bool = False
    ) -> SettleReport:
        """Apply the plan in one transaction with watermark, history and ledger; a repeated logical run does nothing.

        `landed` is None for a pushed-down load, whose rows are pinned from `plan.landing_sql` in the same transaction.
        With `dry_run` everything is rolled back after counting, and `run` may be None.
        """
        ...

    def discard(self, landed: Landed) -> None:
        """Remove staged rows."""
        ...

    def execute(self, statements: Sequence[Statement]) -> Mapping[str, int]:
        """Run statements in one transaction of their own, e.g. an after-load transform."""
        ...


@runtime_checkable
class WritesFrames(KeepsBooks, Protocol):
    """A target without statements (files): it takes a DataFrame and appends or replaces, once per logical run."""

    def write(
        self, frame: DataFrame, plan: BatchPlan, run: OpenedRun | None, stamp: Stamp, *, dry_run: bool = False
    ) -> SettleReport:
        """Write the rows and publish them together with watermark and history."""
        ...
