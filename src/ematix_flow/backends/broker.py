"""Brokers that only take and give messages: every row of a load becomes one, confirmed before the load is done.

They cannot keep the name of a load beside its messages, so a load that is cut off and repeated may send some of them
twice. The books are small files of this machine.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from ematix_flow.backends.files_store import LocalStore, Store
from ematix_flow.backends.jars import cache_root
from ematix_flow.backends.json_books import JsonBooks, KeepsJsonBooks, PipelineState
from ematix_flow.backends.kafka_rows import measured, to_messages
from ematix_flow.backends.locks import digest
from ematix_flow.backends.queue_stream import QueueStreams
from ematix_flow.contracts.backend import Backend, Capabilities, Health
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.plans import BatchPlan, OpenedRun, Reading, SettleReport, SourceQuery, Stamp
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import FlowError, UnsupportedBackend, UnsupportedMode

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Send = Callable[[Iterable[bytes]], int]
"""Sends messages and returns how many, once all of them are confirmed. It travels to Spark's workers."""


class BrokerBooks(JsonBooks):
    """Books of a system that keeps none: what is written down here is all there is."""

    def state(self, pipeline: str, folders: Sequence[str]) -> PipelineState:
        known = self.ledger(pipeline).get("state")
        return PipelineState.from_dict(known) if known else PipelineState()

    def after_commit(self, run: OpenedRun, state: PipelineState, now: datetime) -> None:
        self.write_ledger(run.pipeline, state=state.to_dict())
        super().after_commit(run, state, now)


class BrokerBackend(QueueStreams, KeepsJsonBooks, Backend):
    """One broker, as a source of streams and as a target of messages."""

    capabilities = Capabilities(
        modes=frozenset({"append"}),
        reads=False,
        transactional=False,
        delivery="at least once: a load that is cut off and repeated may send messages twice",
    )
    place_option: ClassVar[str]
    """The option of a target that says where messages go."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.store: Store = LocalStore(str(cache_root() / "books" / digest(connection.identity())))
        self.books: BrokerBooks = BrokerBooks(self.store)

    @abstractmethod
    def ping(self) -> None:
        """Log in and out again."""

    @abstractmethod
    def sender(self, target: TargetSpec, task: str) -> Send:
        """How messages are sent; `task` names no other part of any load."""

    def check(self) -> Health:
        began = time.perf_counter()
        try:
            self.ping()
        except FlowError as exc:
            return Health(False, exc.message, (time.perf_counter() - began) * 1000)
        return Health(True, "ok", (time.perf_counter() - began) * 1000)

    def check_stream(self, query: str) -> None:
        """Make sure that the broker lets us in."""
        self.ping()

    def check_target(self, target: TargetSpec) -> None:
        kind = self.connection.kind
        if target.mode not in self.capabilities.modes:
            raise UnsupportedMode(
                f"mode='{target.mode}' is not possible on {kind} (table {target.table}): messages are only added.",
                fix="use mode='append', or a database or a Delta table as target",
            )
        self.refuse_options(target, target.files.given(), "files")
        others = {name: value for name, value in target.broker.given().items() if name != self.place_option}
        self.refuse_options(target, others, "other brokers")

    def table_ref(self, schema: str, name: str) -> TableRef:
        return TableRef(None, name)

    def target_ref(self, target: TargetSpec) -> TableRef:
        return TableRef(None, getattr(target.broker, self.place_option) or target.table.name)

    def folder_of(self, table: TableRef) -> str:
        """Where books of a place would lie; messages are elsewhere."""
        return table.name

    def describe(self, table: TableRef) -> TableShape | None:
        """Messages have no columns to tell of."""
        return None

    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> AbstractContextManager[DataFrame]:
        """Refused: a batch needs an end."""
        raise UnsupportedBackend(
            f"'{self.connection.name}' ({self.connection.kind}) cannot be the source of a batch pipeline: "
            "it has no end.",
            fix="read it with a streaming pipeline",
        )

    def write(
        self, frame: DataFrame, plan: BatchPlan, run: OpenedRun | None, stamp: Stamp, *, dry_run: bool = False
    ) -> SettleReport:
        """Work all messages out, then send them; a repeated logical run sends nothing. A dry run only counts."""
        rows = to_messages(frame, plan, "json")
        rows.persist()
        try:
            found = measured(rows, plan)
            if dry_run or run is None:
                return found.report()
            known = self.books.state(run.pipeline, ())
            if run.applied is not None or run.is_held(known.applied_run(run.logical_run)):
                return SettleReport(rows=0, replayed=True)
            self.books.require_current(run, known.generation)
            reached("staged")
            if found.rows:
                send_all(rows, self.sender(plan.target, run.run_id))
            reached("mid-settle")
            column = plan.watermark.column if plan.watermark else None
            state = self.books.settled(run, known, found.report(), column, stamp.now)
            self.books.after_commit(run, state, stamp.now)
            return found.report()
        finally:
            rows.unpersist()

    def close(self) -> None:
        self.stop_receiving()


def send_all(rows: DataFrame, send: Send) -> int:
    """Send every message from the task that holds it; how many there were."""
    from pyspark.sql import functions as F

    sent = rows.select("value").mapInArrow(lambda batches: _send_part(send, batches), "rows bigint")
    return int(sent.agg(F.coalesce(F.sum("rows"), F.lit(0)).alias("rows")).collect()[0]["rows"])


def _send_part(send: Send, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a Spark worker."""
    import pyarrow as pa

    rows = send(value for batch in batches for value in batch.column("value").to_pylist())
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})
