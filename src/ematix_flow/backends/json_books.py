"""Books of targets that hold no tables of the framework's: lease, ledger, watermarks and history as small JSON files.

What the target itself has committed is the truth; the books are brought up to it when a run opens.

::

    <root>/_ematix_flow/
    ├── ledger/<pipeline>.json        generation, the folder it writes to, and the run that is open
    ├── watermarks/<pipeline>.json    a copy of what was committed with the rows
    ├── run_history/<run id>.json     one JSON line per run
    └── locks/<digest>.lock           the lease
"""

from __future__ import annotations

import json
import os
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

from ematix_flow.backends.files_store import Store
from ematix_flow.backends.locks import digest
from ematix_flow.contracts.plans import PATH_OF, AppliedRun, OpenedRun, SettleReport
from ematix_flow.contracts.runtime import instant_text
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.instants import instant_of
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import AlreadyRunning, WriteConflict

BOOKS = "_ematix_flow"


@dataclass(frozen=True)
class Mark:
    """A pipeline's watermark; the generation says which of two copies is newer."""

    column: str
    value: str
    generation: int


@dataclass(frozen=True)
class PipelineState:
    """What a target knows of one pipeline that writes to it; committed together with the rows."""

    generation: int = 0
    mark: Mark | None = None
    applied: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The state as JSON."""
        mark = None if self.mark is None else vars(self.mark)
        return {"generation": self.generation, "watermark": mark, "applied": dict(self.applied)}

    @staticmethod
    def from_dict(known: Mapping[str, Any]) -> PipelineState:
        """The inverse of `to_dict`."""
        mark = Mark(**known["watermark"]) if known["watermark"] else None
        return PipelineState(known["generation"], mark, known["applied"])

    def applied_run(self, logical_run: str) -> AppliedRun | None:
        """The logical run, if the target holds it; of a stream, its last batch."""
        known = self.applied.get(logical_run)
        if not known:
            return None
        return AppliedRun(logical_run, known["run_id"], known["metrics"], instant_of(known["applied_at"]))


class JsonBooks(ABC):
    """Reads and writes the books of one root folder."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._streamed: dict[str, int] = {}  # rows of streams, by run, until their history is written

    @abstractmethod
    def state(self, pipeline: str, folders: Sequence[str]) -> PipelineState:
        """What the targets in these folders and the books know together."""

    def tidy(self, folders: Sequence[str]) -> None:  # noqa: B027 - nothing to tidy is the usual case
        """Remove what dead runs left in the folders of a pipeline."""

    @contextmanager
    def lease(self, pipeline: str) -> Iterator[None]:
        """Hold the pipeline for this process."""
        path = f"{BOOKS}/locks/{digest(pipeline)}.lock"
        lock = self.store.lock(path)
        if lock is None:
            raise AlreadyRunning(
                f"'{pipeline}' is already running; this run changed nothing.",
                where=self._holder(pipeline, self.store.lock_note(path)),
                fix="wait for it to end, then run again",
            )
        lock.note(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
        try:
            yield
        finally:
            lock.release()

    def _holder(self, pipeline: str, note: str) -> str | None:
        try:
            known = json.loads(note)
            who = f"host {known['host']}, process {known['pid']}"
        except (ValueError, KeyError, TypeError):
            return None
        opened = self.ledger(pipeline)["open"]
        return f"run {opened['run_id'][:8]} on {who}, since {opened['opened_at']}" if opened else who

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(
        self,
        pipeline: str,
        *,
        run_id: str,
        logical_run: str | None,
        folder: str,
        target: TableRef,
        mode: str,
        now: datetime,
    ) -> OpenedRun:
        """Open a run; an interrupted one is taken up again under its own name. Called with the lease held."""
        ledger = self.ledger(pipeline)
        folders = list(dict.fromkeys([folder, ledger["folder"] or folder]))
        self.tidy(folders)
        state = self.state(pipeline, folders)
        interrupted = ledger["open"]
        chosen = logical_run or (interrupted["logical_run"] if interrupted else run_id)
        if interrupted:
            self._end_interrupted(interrupted, state, now)
        self._keep_mark(pipeline, state.mark, now)
        self.write_ledger(
            pipeline,
            generation=state.generation,
            folder=folder,
            open={
                "logical_run": chosen,
                "run_id": run_id,
                "opened_at": instant_text(now),
                "host": socket.gethostname(),
                "pid": os.getpid(),
            },
        )
        self._write_history(
            run_id,
            {
                "run_id": run_id,
                "pipeline_name": pipeline,
                "target_schema": target.schema,
                "target_table": target.name,
                "mode": mode,
                "path": PATH_OF["spark"],
                "started_at": instant_text(now),
                "finished_at": None,
                "status": "running",
                "rows_inserted": None,
                "rows_updated": None,
                "rows_unchanged": None,
                "error_message": None,
                "parent_run_id": None,
                "step_name": None,
                "metrics_json": None,
            },
        )
        settled = ledger.get("settled_at")
        return OpenedRun(
            pipeline=pipeline,
            run_id=run_id,
            logical_run=chosen,
            generation=state.generation,
            watermark=(state.mark.column, state.mark.value) if state.mark else None,
            resumed=interrupted is not None and chosen == interrupted["logical_run"],
            applied=state.applied_run(chosen),
            settled_at=instant_of(settled) if settled else None,
        )

    def peek(self, pipeline: str) -> tuple[str, str] | None:
        """The stored mark as (column, text); changes nothing."""
        folder = self.ledger(pipeline)["folder"]
        mark = self.state(pipeline, [folder] if folder else []).mark
        return (mark.column, mark.value) if mark else None

    def _end_interrupted(self, interrupted: dict[str, Any], state: PipelineState, now: datetime) -> None:
        """Give the history of a dead run its end: it had committed, or it was lost."""
        record = self.store.read_json(self._history_path(interrupted["run_id"]))
        if record is None or record["status"] != "running":
            return
        applied = state.applied.get(interrupted["logical_run"])
        if applied and applied["run_id"] == interrupted["run_id"]:
            self._write_history(interrupted["run_id"], {**record, **_success(record["mode"], applied["metrics"], now)})
        else:
            end = {"status": "failed", "finished_at": instant_text(now), "error_message": "worker lost"}
            self._write_history(interrupted["run_id"], {**record, **end})

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def require_current(self, run: OpenedRun, generation: int) -> None:
        """Make sure that nobody committed for this pipeline since the run was planned."""
        ledger = self.ledger(run.pipeline)
        is_open = ledger["open"] is not None and ledger["open"]["run_id"] == run.opened_id
        if not is_open or max(ledger["generation"], generation) != run.generation:
            raise WriteConflict(
                f"Another run of '{run.pipeline}' was faster; this one changed nothing.",
                fix="look at `flow runs list`; run it again if it is still needed",
            )

    def remember_folder(self, run: OpenedRun, folder: str) -> None:
        """Note where the run commits, so that it is found again after a crash."""
        ledger = self.ledger(run.pipeline)
        if ledger["folder"] != folder:
            self.write_ledger(run.pipeline, folder=folder)

    def settled(
        self, run: OpenedRun, before: PipelineState, report: SettleReport, column: str | None, now: datetime
    ) -> PipelineState:
        """The pipeline's state with this run in it, to be committed with its rows."""
        generation = run.generation + 1
        mark = before.mark
        if column is not None and report.watermark is not None:
            mark = Mark(column, report.watermark, generation)
        applied = {
            "run_id": run.run_id,
            "applied_at": instant_text(now),
            "metrics": run.metrics(report),
        }
        return replace(before, generation=generation, mark=mark, applied={**before.applied, run.logical_run: applied})

    def after_commit(self, run: OpenedRun, state: PipelineState, now: datetime) -> None:
        """Bring the copies up to what was committed; a crash before this is mended by the next open."""
        self._keep_mark(run.pipeline, state.mark, now)
        self.write_ledger(run.pipeline, generation=state.generation, settled_at=instant_text(now))
        if run.batch is not None:
            rows = state.applied[run.logical_run]["metrics"]["inserted"]
            self._streamed[run.opened_id] = self._streamed.get(run.opened_id, 0) + rows
            return  # a stream's history is written when it ends, not with every batch
        record = self.store.read_json(self._history_path(run.run_id))
        if record is not None:
            metrics = state.applied[run.logical_run]["metrics"]
            self._write_history(run.run_id, {**record, **_success(record["mode"], metrics, now)})

    def close(self, run: OpenedRun, *, error: str | None, now: datetime) -> None:
        """The run is over: nothing of it is left to repeat."""
        record = self.store.read_json(self._history_path(run.run_id))
        if record is not None and error is not None:
            end = {"status": "failed", "finished_at": instant_text(now), "error_message": scrub(error)}
            self._write_history(run.run_id, {**record, **end})
        elif record is not None and record["status"] == "running":
            rows = self._streamed.pop(run.run_id, 0)
            end = _success(record["mode"], {**NOTHING, "rows": rows, "inserted": rows}, now)
            self._write_history(run.run_id, {**record, **end, "metrics_json": None})
        ledger = self.ledger(run.pipeline)
        if ledger["open"] is not None and ledger["open"]["run_id"] == run.run_id:
            self.write_ledger(run.pipeline, open=None)

    def record_step(self, run: OpenedRun, step: str, *, error: str | None, metrics: Any, started: datetime) -> None:
        """One after-load transform in the history."""
        step_id = str(uuid4())
        parent = self.store.read_json(self._history_path(run.run_id)) or {}
        self._write_history(
            step_id,
            {
                "run_id": step_id,
                "pipeline_name": run.pipeline,
                "target_schema": parent.get("target_schema"),
                "target_table": parent.get("target_table"),
                "mode": "transform",
                "path": "post",
                "started_at": instant_text(started),
                "finished_at": instant_text(datetime.now(timezone.utc)),
                "status": "transform_failed" if error else "transform_success",
                "rows_inserted": None,
                "rows_updated": None,
                "rows_unchanged": None,
                "error_message": scrub(error) if error else None,
                "parent_run_id": run.run_id,
                "step_name": step,
                "metrics_json": None if metrics is None else json.dumps(metrics, default=str),
            },
        )

    # ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def ledger(self, pipeline: str) -> dict[str, Any]:
        """What is known of a pipeline's runs."""
        known: dict[str, Any] | None = self.store.read_json(self.book_path("ledger", pipeline))
        return known or {"generation": 0, "folder": None, "open": None}

    def write_ledger(self, pipeline: str, **changes: Any) -> None:
        """Change some of it, in one step."""
        content = {"pipeline_name": pipeline, **self.ledger(pipeline), **changes}
        self.store.write_json(self.book_path("ledger", pipeline), content)

    def _keep_mark(self, pipeline: str, mark: Mark | None, now: datetime) -> None:
        path = self.book_path("watermarks", pipeline)
        known = self.store.read_json(path)
        if mark is not None and (known is None or known["generation"] != mark.generation):
            self.store.write_json(
                path,
                {
                    "pipeline_name": pipeline,
                    "column_name": mark.column,
                    "last_value": mark.value,
                    "generation": mark.generation,
                    "updated_at": instant_text(now),
                },
            )

    def _write_history(self, run_id: str, record: dict[str, Any]) -> None:
        self.store.write_json(self._history_path(run_id), record)

    def _history_path(self, run_id: str) -> str:
        return f"{BOOKS}/run_history/{file_name(run_id)}.json"

    def book_path(self, book: str, pipeline: str) -> str:
        """Where one of a pipeline's books is."""
        return f"{BOOKS}/{book}/{file_name(pipeline)}.json"


class KeepsJsonBooks:
    """A backend whose books are JSON files of a store."""

    store: Store
    books: JsonBooks

    @contextmanager
    def lease(self, pipeline: str) -> Iterator[None]:
        """Hold the pipeline for this process; `AlreadyRunning` when a living run holds it."""
        with ExitStack() as stack:
            with self.store.explained():
                stack.enter_context(self.books.lease(pipeline))
            yield

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
        """Write the `running` record, sweep up after dead runs, and say what is known."""
        with self.store.explained():
            self.before_opening(pipeline)
            return self.books.open(
                pipeline,
                run_id=run_id,
                logical_run=logical_run,
                folder=self.folder_of(target),
                target=target,
                mode=mode,
                now=now,
            )

    def before_opening(self, pipeline: str) -> None:
        """Settle what a dead run of the pipeline left open."""

    def folder_of(self, table: TableRef) -> str:
        """The folder of a table in the store."""
        return f"{table.schema}/{table.name}" if table.schema else table.name

    def close_run(self, run: OpenedRun, *, error: str | None, now: datetime) -> None:
        """End the run in history and ledger."""
        with self.store.explained():
            self.books.close(run, error=error, now=now)

    def peek(self, pipeline: str) -> tuple[str, str] | None:
        """The stored watermark, without opening a run."""
        with self.store.explained():
            return self.books.peek(pipeline)

    def record_step(self, run: OpenedRun, step: str, *, error: str | None, metrics: Any, started: datetime) -> None:
        """Add the history record of one after-load transform."""
        with self.store.explained():
            self.books.record_step(run, step, error=error, metrics=metrics, started=started)


def file_name(name: str) -> str:
    """A file name that people recognise and no two names share; plain names such as run ids stay as they are.

    >>> file_name("7f3a"), file_name("sync: Kunden")
    ('7f3a', 'sync_Kunden-...')
    """
    if re.fullmatch(r"[0-9a-f-]{1,64}", name):
        return name
    slug = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:40]
    return f"{slug}-{digest(name)}"


NOTHING: Mapping[str, int] = {"rows": 0, "inserted": 0, "updated": 0, "closed": 0}


def _success(mode: str, metrics: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    compares = mode in ("merge", "scd1", "scd2")
    return {
        "status": "success",
        "finished_at": instant_text(now),
        "rows_inserted": metrics["inserted"],
        "rows_updated": metrics["closed"] if mode == "scd2" else metrics["updated"],
        "rows_unchanged": max(metrics["rows"] - metrics["inserted"] - metrics["updated"], 0) if compares else 0,
        "metrics_json": json.dumps(metrics),
    }
