"""Runs of pipelines that write to Kafka: one small compacted topic per pipeline, `_ematix_flow.books.<pipeline>`.

====================  ==================================================================================
key                   value
====================  ==================================================================================
["ledger"]            generation, number of openings, and the run that is open
["run", id]           one record per run, as everywhere (`run_history`)
["applied", logical]  a logical run that the topic holds, with its counts
["watermark"]         the column and how far it got
["sending", logical]  a load under way: its parts, rows, mark, and the run that sends it
["part", logical, n]  part n of a load is in the topic; written in the very transaction of its rows
====================  ==================================================================================

A topic of its own, because readers of committed messages wait at the first open transaction of a partition: a run that
was killed while it wrote must not stop other pipelines. Its own next run ends its transactions at once, by beginning
producers with the same ids; then everything committed is there to be read.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from ematix_flow.backends.jars import cache_root
from ematix_flow.backends.kafka_client import WAIT_S, Cluster, Heard, admin_module, answer_of
from ematix_flow.backends.locks import FileLock, digest
from ematix_flow.contracts.plans import PATH_OF, AppliedRun, OpenedRun, SettleReport
from ematix_flow.contracts.runtime import instant_text
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.declare.instants import instant_of
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import AlreadyRunning, ConnectionFailed, StatementFailed

log = logging.getLogger(__name__)

PREFIX = "_ematix_flow."
Key = tuple[str | int, ...]
Entries = Mapping[Key, Any]


def books_topic(pipeline: str) -> str:
    """The topic of a pipeline's books: a name that people recognise and no two pipelines share.

    >>> books_topic("sync: Kunden")
    '_ematix_flow.books.sync_Kunden-...'
    """
    slug = re.sub(r"[^A-Za-z0-9]+", "_", pipeline).strip("_")[:80]
    return f"{PREFIX}books.{slug}-{digest(pipeline)}"


def transactional_id(pipeline: str, part: int | None = None) -> str:
    """Whoever begins a producer with the same id ends the one before: per pipeline, and per part of its loads."""
    return f"{PREFIX}{digest(pipeline)}" + ("" if part is None else f".{part}")


@dataclass
class State:
    """What the books say; `end` is the offset behind the last message read."""

    entries: dict[Key, Any] = field(default_factory=dict)
    end: int = 0

    def take(self, key: Key, value: Any) -> None:
        """The newest value of a key; None removes it."""
        if value is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = value

    @property
    def ledger(self) -> dict[str, Any]:
        """The pipeline's own line."""
        known: dict[str, Any] = self.entries.get(("ledger",), {})
        return {"generation": 0, "opening": 0, "settled_at": None, "open": None, **known}

    def parts(self, logical_run: str) -> dict[int, dict[str, Any]]:
        """The parts of a load that are in the topic."""
        return {int(key[2]): value for key, value in self.entries.items() if key[0] == "part" and key[1] == logical_run}

    def is_sent(self, logical_run: str) -> bool:
        """Whether every part is there, as the run that sends the load last saw it; only the books lack the news."""
        sending = self.entries.get(("sending", logical_run))
        if sending is None:
            return False
        there = self.parts(logical_run)
        return all(
            number in there and there[number]["run_id"] == sending["run_id"] for number in range(sending["parts"])
        )


def read_books(cluster: Cluster, pipeline: str, *, since: int | None = None) -> State:
    """Read a pipeline's books from the beginning, or only what was written since an offset."""
    from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

    topic, heard, state = books_topic(pipeline), Heard(), State()
    reader = cluster.reader(heard)
    try:
        with cluster.explaining(heard, topic):
            reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING if since is None else since)])
            deadline = time.monotonic() + WAIT_S
            while True:
                message = reader.poll(0.5)
                if message is not None and message.error() is None:
                    deadline = time.monotonic() + WAIT_S
                    value = message.value()
                    state.take(tuple(json.loads(message.key())), None if value is None else json.loads(value))
                    state.end = message.offset() + 1
                elif message is not None and message.error().code() == KafkaError._PARTITION_EOF:
                    return state
                elif message is not None:
                    raise cluster.explained(message.error(), heard, topic)
                elif heard.refusal or time.monotonic() > deadline:
                    raise ConnectionFailed(
                        f"Kafka at {cluster.servers} did not give the books of '{pipeline}' within {WAIT_S:.0f} s.",
                        fix="check that its brokers are up and that the user may read topics that begin with "
                        f"'{PREFIX}'",
                    )
    finally:
        reader.close()


class KafkaBooks:
    """The books of one pipeline, open for writing by one living run."""

    def __init__(self, cluster: Cluster, pipeline: str) -> None:
        self.cluster, self.pipeline = cluster, pipeline
        self.topic = books_topic(pipeline)
        self.state = State()
        self._heard = Heard()
        self._producer: Any = None
        self._may_have_sent = False

    # ── one run at a time ────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Hold the pipeline on this machine. A run on another machine that begins later ends this one instead."""
        place = digest(f"{self.cluster.servers} {self.pipeline}")
        lock = FileLock(str(cache_root() / "leases" / f"{place}.lock"))
        if not lock.acquire():
            raise AlreadyRunning(
                f"'{self.pipeline}' is already running; this run changed nothing.",
                where=self._holder(Path(lock.path)),
                fix="wait for it to end, then run again",
            )
        try:
            Path(lock.path).write_text(f"process {os.getpid()} on {socket.gethostname()}")
            yield
        finally:
            lock.release()

    def _holder(self, path: Path) -> str | None:
        try:
            return path.read_text() or None
        except OSError:
            return None

    def open(
        self, *, run_id: str, logical_run: str | None, target: TableRef, mode: str, now: datetime
    ) -> tuple[OpenedRun, int]:
        """Open a run and say what is known; an interrupted load is taken up again under its own name.

        Returns:
            The run, and the offset behind everything that was known when it was opened.
        """
        self._create_topic()
        self._producer = self.cluster.producer(transactional_id(self.pipeline), self._heard)
        with self.cluster.explaining(self._heard, self.topic):
            self._producer.init_transactions(WAIT_S * 3)
        before = self.state = read_books(self.cluster, self.pipeline)
        interrupted = before.ledger["open"]
        chosen = logical_run or (interrupted["logical_run"] if interrupted else run_id)
        opened = {
            "logical_run": chosen,
            "run_id": run_id,
            "opened_at": instant_text(now),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        record = {
            "run_id": run_id,
            "pipeline_name": self.pipeline,
            "target_schema": target.schema,
            "target_table": target.name,
            "mode": mode,
            "path": PATH_OF["spark"],
            "started_at": instant_text(now),
            "status": "running",
        }
        ledger = {**before.ledger, "opening": before.ledger["opening"] + 1, "open": opened}
        self._write({("ledger",): ledger, ("run", run_id): record})
        for logical in {key[1] for key in before.entries if key[0] == "sending"}:
            self._end_senders(str(logical))
        self.state = self._read_own(run_id)
        for logical in {str(key[1]) for key in self.state.entries if key[0] == "sending"}:
            if self.state.is_sent(logical):
                self._settle_sent(logical, now)
        if interrupted:
            self._end_interrupted(interrupted, now)
        mark = self.state.entries.get(("watermark",))
        applied = self.state.entries.get(("applied", chosen))
        settled = self.state.ledger["settled_at"]
        return OpenedRun(
            pipeline=self.pipeline,
            run_id=run_id,
            logical_run=chosen,
            generation=self.state.ledger["generation"],
            watermark=(mark["column_name"], mark["last_value"]) if mark else None,
            resumed=interrupted is not None and chosen == interrupted["logical_run"],
            applied=AppliedRun(chosen, applied["run_id"], applied["metrics"]) if applied else None,
            settled_at=instant_of(settled) if settled else None,
        ), self.state.end

    def _create_topic(self) -> None:
        """Make the topic if it is not there. Compacted, so that it stays as small as what is known."""
        from confluent_kafka import KafkaError, KafkaException

        heard = Heard()
        if self.topic in self.cluster.topics(heard):
            return
        wanted = admin_module().NewTopic(
            self.topic, num_partitions=1, replication_factor=-1, config={"cleanup.policy": "compact"}
        )
        admin = self.cluster.admin(heard)  # its answers end with it
        made = admin.create_topics([wanted], request_timeout=WAIT_S)[self.topic]
        try:
            answer_of(made)
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise StatementFailed(
                    f"The books of '{self.pipeline}' need the topic '{self.topic}', and it cannot be made: "
                    f"{exc.args[0].str()}.",
                    fix="let the user create topics that begin with '_ematix_flow.', or create it with one partition "
                    "and cleanup.policy=compact",
                ) from exc
        deadline = time.monotonic() + WAIT_S
        while self.topic not in self.cluster.topics(heard):  # a broker may not have heard of it yet
            if time.monotonic() > deadline:
                raise ConnectionFailed(f"The topic '{self.topic}' was made and does not appear.")
            time.sleep(0.05)

    def _end_senders(self, logical_run: str) -> None:
        """End the producers of an interrupted load: what they have not committed by now, they never will."""
        parts = self.state.entries[("sending", logical_run)]["parts"]
        for number in range(parts):
            heard = Heard()
            with self.cluster.explaining(heard):
                self.cluster.producer(transactional_id(self.pipeline, number), heard).init_transactions(WAIT_S * 3)

    def _read_own(self, run_id: str) -> State:
        """The books with our own opening in them. A commit is answered before readers see it, a moment later."""
        deadline = time.monotonic() + WAIT_S
        while True:
            state = read_books(self.cluster, self.pipeline)
            opened = state.ledger["open"]
            if (opened is not None and opened["run_id"] == run_id) or time.monotonic() > deadline:
                return state
            time.sleep(0.02)

    def _end_interrupted(self, interrupted: Mapping[str, Any], now: datetime) -> None:
        """Give the record of a dead run its end, unless it has one."""
        key = ("run", interrupted["run_id"])
        record = self.state.entries.get(key)
        if record is not None and record["status"] == "running":
            end = {"status": "failed", "finished_at": instant_text(now), "error_message": "worker lost"}
            self._write({key: {**record, **end}})

    # ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def parts_of(self, run: OpenedRun) -> tuple[dict[str, Any] | None, dict[int, dict[str, Any]]]:
        """How an interrupted load was cut into parts, and which of them are in the topic."""
        sending = self.state.entries.get(("sending", run.load_name))
        return (sending, self.state.parts(run.load_name)) if sending else (None, {})

    def begin_sending(self, run: OpenedRun, parts: int, report: SettleReport, column: str | None, way: str) -> None:
        """Note what is about to be sent; if only the end of the run is lost, the next one can write it down."""
        what = {
            "parts": parts,
            "way": way,
            "run_id": run.run_id,
            "rows": report.rows,
            "column": column,
            "mark": report.watermark,
            "logical_run": run.logical_run,
            "batch": None if run.batch is None else run.batch.to_dict(),
        }
        self._write({("sending", run.load_name): what})
        self._may_have_sent = True

    def settle(self, run: OpenedRun, report: SettleReport, column: str | None, now: datetime) -> None:
        """Everything is sent: write mark, applied run and history in one transaction."""
        self._write(self._settled(run, report, column, now))
        self._may_have_sent = False

    def _settle_sent(self, load: str, now: datetime) -> None:
        """A run died after its last part and before its books were written: write them."""
        sending = self.state.entries[("sending", load)]
        report = SettleReport(rows=sending["rows"], inserted=sending["rows"], watermark=sending["mark"])
        batch = StreamBatch(**sending["batch"]) if sending.get("batch") else None
        logical_run = sending.get("logical_run", load)
        run = OpenedRun(self.pipeline, sending["run_id"], logical_run, 0, None, False, None, batch=batch)
        self._write(self._settled(run, report, sending["column"], now))

    def _settled(self, run: OpenedRun, report: SettleReport, column: str | None, now: datetime) -> Entries:
        metrics, ledger = run.metrics(report), self.state.ledger
        done: dict[Key, Any] = {
            ("ledger",): {**ledger, "generation": ledger["generation"] + 1, "settled_at": now.isoformat()},
            ("applied", run.logical_run): {
                "run_id": run.run_id,
                "applied_at": instant_text(now),
                "metrics": metrics,
            },
            ("sending", run.load_name): None,
        }
        known = self.state.entries.get(("run", run.opened_id), {})
        if run.batch is None:
            done[("run", run.run_id)] = {
                **known,
                "status": "success",
                "finished_at": instant_text(now),
                "rows_inserted": report.inserted,
                "rows_updated": 0,
                "rows_unchanged": 0,
                "metrics_json": json.dumps(metrics),
            }
        elif known:
            rows = (known.get("rows_inserted") or 0) + report.inserted
            done[("run", run.opened_id)] = {**known, "rows_inserted": rows}
        if column is not None and report.watermark is not None:
            mark = {"column_name": column, "last_value": report.watermark, "updated_at": instant_text(now)}
            done[("watermark",)] = mark
        sending = self.state.entries.get(("sending", run.load_name))
        for number in range(sending["parts"] if sending else 0):
            done[("part", run.load_name, number)] = None
        return done

    def after_failure(self, run: OpenedRun) -> None:
        """End what is still being sent, and see what of the load is in the topic."""
        self._end_senders(run.load_name)
        for key, value in read_books(self.cluster, self.pipeline).entries.items():
            if key[0] == "part":
                self.state.take(key, value)
        self._may_have_sent = bool(self.state.parts(run.load_name))

    def close(self, run: OpenedRun, *, error: str | None, now: datetime) -> None:
        """End the run. A load of which only a part is in the topic stays open, so that the next run completes it."""
        is_partly_sent = error is not None and (self._may_have_sent or bool(self.state.parts(run.load_name)))
        key = ("run", run.run_id)
        record = self.state.entries.get(key, {"run_id": run.run_id, "pipeline_name": self.pipeline})
        changes: dict[Key, Any] = {}
        if error is not None:
            end = {"status": "failed", "finished_at": instant_text(now), "error_message": scrub(error)}
            changes[key] = {**record, **end}
        elif record.get("status") == "running":
            end = {"status": "success", "finished_at": instant_text(now)}
            changes[key] = {"rows_inserted": 0, **record, **end}
        opened = self.state.ledger["open"]
        if opened is not None and opened["run_id"] == run.run_id and not is_partly_sent:
            changes[("ledger",)] = {**self.state.ledger, "open": None}
            if error is not None:
                changes[("sending", run.load_name)] = None
        self._write(changes)

    def record_step(self, run: OpenedRun, step: str, *, error: str | None, metrics: Any, started: datetime) -> None:
        """One after-load transform in the history."""
        step_id = str(uuid4())
        parent = self.state.entries.get(("run", run.run_id), {})
        record = {
            "run_id": step_id,
            "pipeline_name": run.pipeline,
            "target_schema": parent.get("target_schema"),
            "target_table": parent.get("target_table"),
            "mode": "transform",
            "path": "post",
            "started_at": instant_text(started),
            "finished_at": instant_text(datetime.now(timezone.utc)),
            "status": "transform_failed" if error else "transform_success",
            "error_message": scrub(error) if error else None,
            "parent_run_id": run.run_id,
            "step_name": step,
            "metrics_json": None if metrics is None else json.dumps(metrics, default=str),
        }
        self._write({("run", step_id): record})

    def _write(self, changes: Entries) -> None:
        """Change several lines at once; a run that another one has ended can no longer write."""
        if not changes:
            return
        from confluent_kafka import KafkaException

        with self.cluster.explaining(self._heard, self.topic):
            self._producer.begin_transaction()
            try:
                for key, value in messages(changes):
                    self._producer.produce(self.topic, value=value, key=key, partition=0)
                self._producer.commit_transaction(WAIT_S * 3)
            except KafkaException as exc:
                if exc.args[0].txn_requires_abort():  # else the failure could not even be written down
                    self._producer.abort_transaction(WAIT_S)
                raise
        for known, value in changes.items():
            self.state.take(known, value)


def messages(changes: Entries) -> Iterable[tuple[bytes, bytes | None]]:
    """Lines of the books as messages."""
    for key, value in changes.items():
        yield json.dumps(list(key)).encode(), None if value is None else json.dumps(value).encode()
