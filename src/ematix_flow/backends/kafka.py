"""Kafka as a target: every row of a load becomes one message, appended once per logical run. As a source of streams
it is in `kafka_stream.py`.

A load is worked out first (`kafka_rows.py`), so a value that cannot be sent stops it before the first message. It then
goes out in parts of some megabytes, each in one transaction together with its line in the books (`kafka_books.py`). A
small load is one part: for readers of committed messages it is there as a whole or not at all.

Topics are never made or changed here, except the one of the books.
"""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ematix_flow.backends import kafka_registry, kafka_rows
from ematix_flow.backends.kafka_books import PREFIX, KafkaBooks, books_topic, read_books
from ematix_flow.backends.kafka_client import (
    Cluster,
    cluster_of,
    require_driver,
    too_large,
    unknown_topic,
)
from ematix_flow.backends.kafka_stream import KafkaStreams
from ematix_flow.backends.registries import has_keys_with_schemas, registry_of_kafka
from ematix_flow.contracts.backend import Backend, Capabilities, Health
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.plans import BatchPlan, OpenedRun, Reading, SettleReport, SourceQuery, Stamp
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.contracts.streams import POSITION
from ematix_flow.declare.columns import UUID, Bytes, String, Text
from ematix_flow.declare.connection import Connection, KafkaConnection
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import (
    FlowError,
    InvalidIdentifier,
    InvalidPlan,
    StateIncompatible,
    UnsupportedBackend,
    UnsupportedMode,
    closest,
    listed,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PAYLOADS: tuple[kafka_rows.PayloadFormat, ...] = ("json", "raw_bytes", "avro", "protobuf")
_OVERHEAD_BYTES = 512
"""What the protocol adds to a message; a message that is nearer to the limit is left to the broker to judge."""


class KafkaBackend(KafkaStreams, Backend):
    """One Kafka cluster. Not a source of batches: topics have no end."""

    connection_type: ClassVar[type[Connection]] = KafkaConnection
    capabilities = Capabilities(
        modes=frozenset({"append"}),
        reads=False,
        transactional=False,
        delivery="exactly once for readers of committed messages; a load of several parts that is cut off between two "
        "of them, and whose rows have changed in the source when it is repeated, may send a part twice",
    )

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        assert isinstance(connection, KafkaConnection)
        self.kafka = connection
        # Beside values in JSON, the keys of changes may be Avro (`spark/change_keys.py`).
        if connection.payload_format == "avro" or has_keys_with_schemas(connection):
            self.needs = SessionNeeds(jars=frozenset({"avro"}))
        self._books: dict[str, KafkaBooks] = {}
        self._opened_at: dict[str, int] = {}

    @property
    def cluster(self) -> Cluster:
        """How to reach the brokers.

        Raises:
            MissingDriver: the client library is not installed.
            InvalidConnection: the ways to log in are mixed or incomplete.
        """
        require_driver()
        return cluster_of(self.kafka)

    # ── every backend ────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> Health:
        """Ask for the list of topics."""
        began = time.perf_counter()
        try:
            ok, detail = True, f"{len(self.cluster.topics())} topics"
        except FlowError as exc:
            ok, detail = False, exc.message
        return Health(ok, detail, (time.perf_counter() - began) * 1000)

    def check_target(self, target: TargetSpec) -> None:
        """Refuse modes and options that mean nothing here, before anything runs."""
        if target.mode not in self.capabilities.modes:
            raise UnsupportedMode(
                f"mode='{target.mode}' is not possible on kafka (table {target.table}): a topic only grows.",
                fix="use mode='append', or a database or a Delta table as target",
            )
        self.refuse_options(target, target.files.given(), "files")
        given = target.broker.given()
        others = {name: value for name, value in given.items() if name not in ("topic", "message_key_column")}
        self.refuse_options(target, others, "other brokers")
        key = target.broker.message_key_column
        if key is not None:
            target.table.require((key,), "message_key_column=")
            if not isinstance(kind := target.table.column(key).type, Text | String | UUID | Bytes):
                raise InvalidPlan(
                    f"message_key_column='{key}' of {target.table} is {kind}; a key is text or bytes.",
                    fix=f"declare '{key}' as Text, or take another column",
                )
        self._check_payload(target)
        self.target_ref(target)
        cluster_of(self.kafka)

    def _check_payload(self, target: TargetSpec) -> None:
        if self._payload in ("avro", "protobuf"):
            registry_of_kafka(self.kafka)
        if self._payload != "raw_bytes":
            return
        left = [c for c in target.table.columns if c.name != target.broker.message_key_column]
        if len(left) != 1 or not isinstance(left[0].type, Bytes):
            raise InvalidPlan(
                f"payload_format='raw_bytes' needs exactly one column of type Bytes, and {target.table} declares "
                f"{listed(c.name for c in left)}.",
                fix="declare one Bytes column (and the one of message_key_column=), or use payload_format='json'",
            )

    @property
    def _payload(self) -> kafka_rows.PayloadFormat:
        written = self.kafka.payload_format or "json"
        for payload in PAYLOADS:
            if written == payload:
                return payload
        raise InvalidPlan(
            f"Connection '{self.kafka.name}': payload_format '{written}' is unknown.",
            fix=closest(written, PAYLOADS) or f"choose one of {listed(PAYLOADS)}",
        )

    def target_ref(self, target: TargetSpec) -> TableRef:
        """The topic that a target names, else one that is called like the table."""
        return self.table_ref("", target.broker.topic or target.table.name)

    def table_ref(self, schema: str, name: str) -> TableRef:
        """A topic; it has no schema."""
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in (".", ".."):
            raise InvalidIdentifier(
                f"{name!r} cannot be a topic: its name has up to 249 letters, digits, '.', '_' and '-'.",
                fix="give the topic's name with Target(topic=…)",
            )
        if name.startswith(PREFIX):
            raise InvalidIdentifier(f"'{name}' is a name that is kept for the books.", fix="choose another topic")
        return TableRef(None, name)

    def describe(self, table: TableRef) -> TableShape | None:
        """Make sure that the topic is there; it has no columns to tell of."""
        if table.name not in self.cluster.topics():
            raise unknown_topic(table.name, self.kafka.name)
        return None

    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> AbstractContextManager[DataFrame]:
        """Refused: a batch needs an end."""
        raise UnsupportedBackend(
            f"'{self.kafka.name}' (kafka) cannot be the source of a batch pipeline: a topic has no end.",
            fix="name another source with source_connection=; topics are read by streaming pipelines",
        )

    def close(self) -> None:
        """Let go of producers and consumers."""
        self._books.clear()
        self.leave_group()

    # ── target ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(
        self, frame: DataFrame, plan: BatchPlan, run: OpenedRun | None, stamp: Stamp, *, dry_run: bool = False
    ) -> SettleReport:
        """Work all messages out, then send them; a repeated logical run sends nothing. A dry run only counts."""
        rows = kafka_rows.to_messages(frame, plan, self._payload, self._framed_value(frame, plan))
        rows.persist()
        try:
            found = kafka_rows.measured(rows, plan)
            limit = self.cluster.largest_message(plan.table.name)
            if limit is not None and found.largest > limit - min(_OVERHEAD_BYTES, limit // 2):
                raise too_large(plan.table.name, limit)
            if dry_run or run is None:
                return found.report()
            if run.applied is not None:
                return SettleReport(rows=0, replayed=True)
            reached("staged")
            return self._send(rows, found, limit, plan, run, stamp)
        finally:
            rows.unpersist()

    def _framed_value(self, frame: DataFrame, plan: BatchPlan) -> Column | None:
        """A row's message where it has a schema."""
        has_schema = self._payload in ("avro", "protobuf")
        return kafka_registry.framed_value(frame.drop(POSITION), plan, self.kafka) if has_schema else None

    def _send(
        self,
        rows: DataFrame,
        found: kafka_rows.Measured,
        limit: int | None,
        plan: BatchPlan,
        run: OpenedRun,
        stamp: Stamp,
    ) -> SettleReport:
        books = self._books[run.pipeline]
        column = plan.watermark.column if plan.watermark else None
        begun, known = books.parts_of(run)
        # A load that goes on has the parts it began with, or its rows would be in others.
        way = _way(run, is_placed=any(column.name == POSITION for column in plan.columns))
        parts = begun["parts"] if begun and known else 1 if way == "whole" else found.parts()
        report = found.report()
        if begun and known and (begun["way"], way) == ("position", "whole"):
            raise StateIncompatible(
                f"Some parts of a batch of '{run.pipeline}' are in the topic, and the SQL that is to make the rest "
                "does not say of its rows which messages they come from.",
                fix="start it once with the transform_sql it had; then change it",
            )
        if found.rows or known:
            books.begin_sending(run, parts, report, column, way)
            sending = kafka_rows.Sending(
                cluster=self.cluster,
                topic=plan.table.name,
                pipeline=run.pipeline,
                logical_run=run.load_name,
                run_id=run.run_id,
                opening=books.state.ledger["opening"],
                since=self._opened_at[run.pipeline],
                largest_message=limit,
                known=known,
                compares=way == "content",
            )
            try:
                sent = kafka_rows.send(rows, sending, parts)
            except Exception:
                with suppress(FlowError):  # the first error is the one to show
                    books.after_failure(run)
                raise
            report = replace(report, rows=sent, inserted=sent)
        reached("mid-settle")
        books.settle(run, report, column, stamp.now)
        return report

    # ── books ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def lease(self, pipeline: str) -> AbstractContextManager[None]:
        """Hold the pipeline on this machine; a later run on another machine ends this one."""
        return KafkaBooks(self.cluster, pipeline).lease()

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
        """End interrupted runs, write the `running` record, and say what is known."""
        books = KafkaBooks(self.cluster, pipeline)
        run, self._opened_at[pipeline] = books.open(
            run_id=run_id, logical_run=logical_run, target=target, mode=mode, now=now
        )
        self._books[pipeline] = books
        return run

    def close_run(self, run: OpenedRun, *, error: str | None, now: datetime) -> None:
        """End the run in history and ledger."""
        self._books[run.pipeline].close(run, error=error, now=now)

    def peek(self, pipeline: str) -> tuple[str, str] | None:
        """The stored watermark, without opening a run."""
        cluster = self.cluster
        if books_topic(pipeline) not in cluster.topics():
            return None
        mark = read_books(cluster, pipeline).entries.get(("watermark",))
        return (mark["column_name"], mark["last_value"]) if mark else None

    def record_step(self, run: OpenedRun, step: str, *, error: str | None, metrics: Any, started: datetime) -> None:
        """Add the history record of one after-load transform."""
        self._books[run.pipeline].record_step(run, step, error=error, metrics=metrics, started=started)


def _way(run: OpenedRun, *, is_placed: bool) -> Literal["content", "position", "whole"]:
    """By what a load is cut into parts, and parts are known again; `whole` is not cut.

    A batch of a stream may say something else when it is done again: its SQL asks for the time, a lookup has changed.
    Only where its rows come from stays the same.
    """
    if run.batch is None:
        return "content"
    return "position" if is_placed else "whole"
