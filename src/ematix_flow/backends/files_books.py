"""Runs of pipelines that write files: lease, ledger, watermarks and history, as small JSON files under the root.

::

    <root>/_ematix_flow/
    ├── ledger/<pipeline>.json        generation, the folder it writes to, and the run that is open
    ├── watermarks/<pipeline>.json    a copy of what the table's manifest holds
    ├── run_history/<run id>.json     one JSON line per run
    └── locks/<digest>.lock           the lease

The manifest of the table is the commit point and the truth; what is here is brought up to it when a run opens.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

from ematix_flow.backends.files_store import LocalStore
from ematix_flow.backends.files_table import BOOKS, Manifest, Mark, PipelineState, TableFolder
from ematix_flow.backends.locks import digest
from ematix_flow.contracts.plans import PATH_OF, AppliedRun, OpenedRun, SettleReport
from ematix_flow.contracts.runtime import instant_text
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.fileformats import FileFormat
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import AlreadyRunning, WriteConflict


class FileBooks:
    """Reads and writes the books of one root folder."""

    def __init__(self, store: LocalStore, file_format: FileFormat) -> None:
        self.store, self.file_format = store, file_format

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
        opened = self._ledger(pipeline)["open"]
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
        ledger = self._ledger(pipeline)
        folders = dict.fromkeys([folder, ledger["folder"] or folder])
        for place in folders:
            TableFolder(self.store, place, self.file_format).sweep()
        state = self._state(pipeline, list(folders))
        interrupted = ledger["open"]
        chosen = logical_run or (interrupted["logical_run"] if interrupted else run_id)
        if interrupted:
            self._end_interrupted(interrupted, state, now)
        self._keep_mark(pipeline, state.mark, now)
        self._write_ledger(
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
        applied = state.applied.get(chosen)
        return OpenedRun(
            pipeline=pipeline,
            run_id=run_id,
            logical_run=chosen,
            generation=state.generation,
            watermark=(state.mark.column, state.mark.value) if state.mark else None,
            resumed=interrupted is not None and chosen == interrupted["logical_run"],
            applied=AppliedRun(chosen, applied["run_id"], applied["metrics"]) if applied else None,
        )

    def peek(self, pipeline: str) -> tuple[str, str] | None:
        """The stored mark as (column, text); changes nothing."""
        folder = self._ledger(pipeline)["folder"]
        mark = self._state(pipeline, [folder] if folder else []).mark
        return (mark.column, mark.value) if mark else None

    def _state(self, pipeline: str, folders: list[str]) -> PipelineState:
        """What the manifests and the books know together; of two watermarks the newer one counts."""
        known = self.store.read_json(self._path("watermarks", pipeline))
        marks = [Mark(known["column_name"], known["last_value"], known["generation"])] if known else []
        generation: int = self._ledger(pipeline)["generation"]
        applied: dict[str, Mapping[str, Any]] = {}
        for folder in folders:
            manifest = TableFolder(self.store, folder, self.file_format).manifest()
            if manifest is not None:
                found = manifest.pipeline(pipeline)
                generation = max(generation, found.generation)
                applied.update(found.applied)
                marks.extend([found.mark] if found.mark else [])
        newest = max(marks, key=lambda mark: mark.generation, default=None)
        return PipelineState(generation, newest, applied)

    def _end_interrupted(self, interrupted: dict[str, Any], state: PipelineState, now: datetime) -> None:
        """Give the history of a dead run its end: it had committed, or it was lost."""
        record = self.store.read_json(self._history_path(interrupted["run_id"]))
        if record is None or record["status"] != "running":
            return
        applied = state.applied.get(interrupted["logical_run"])
        if applied and applied["run_id"] == interrupted["run_id"]:
            self._write_history(interrupted["run_id"], {**record, **_success(applied["metrics"], now)})
        else:
            end = {"status": "failed", "finished_at": instant_text(now), "error_message": "worker lost"}
            self._write_history(interrupted["run_id"], {**record, **end})

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def require_current(self, run: OpenedRun, manifest: Manifest) -> None:
        """Make sure that nobody committed for this pipeline since the run was planned."""
        ledger = self._ledger(run.pipeline)
        is_open = ledger["open"] is not None and ledger["open"]["run_id"] == run.run_id
        if not is_open or max(ledger["generation"], manifest.pipeline(run.pipeline).generation) != run.generation:
            raise WriteConflict(
                f"Another run of '{run.pipeline}' was faster; this one changed nothing.",
                fix="look at `flow runs list`; run it again if it is still needed",
            )

    def remember_folder(self, run: OpenedRun, folder: str) -> None:
        """Note where the run commits, so that it is found again after a crash."""
        ledger = self._ledger(run.pipeline)
        if ledger["folder"] != folder:
            self._write_ledger(run.pipeline, generation=ledger["generation"], folder=folder, open=ledger["open"])

    def settled(
        self, run: OpenedRun, before: PipelineState, report: SettleReport, column: str | None, now: datetime
    ) -> PipelineState:
        """The pipeline's state with this run in it, for the manifest."""
        generation = run.generation + 1
        mark = before.mark
        if column is not None and report.watermark is not None:
            mark = Mark(column, report.watermark, generation)
        applied = {
            "run_id": run.run_id,
            "applied_at": instant_text(now),
            "metrics": {
                "version": 1,
                "rows": report.rows,
                "inserted": report.inserted,
                "updated": 0,
                "closed": 0,
                "deleted": 0,
            },
        }
        return replace(before, generation=generation, mark=mark, applied={**before.applied, run.logical_run: applied})

    def after_commit(self, run: OpenedRun, state: PipelineState, now: datetime) -> None:
        """Bring the copies up to the manifest; a crash before this is mended by the next open."""
        self._keep_mark(run.pipeline, state.mark, now)
        ledger = self._ledger(run.pipeline)
        self._write_ledger(run.pipeline, generation=state.generation, folder=ledger["folder"], open=ledger["open"])
        record = self.store.read_json(self._history_path(run.run_id))
        if record is not None:
            self._write_history(run.run_id, {**record, **_success(state.applied[run.logical_run]["metrics"], now)})

    def close(self, run: OpenedRun, *, error: str | None, now: datetime) -> None:
        """The run is over: nothing of it is left to repeat."""
        record = self.store.read_json(self._history_path(run.run_id))
        if record is not None and error is not None:
            end = {"status": "failed", "finished_at": instant_text(now), "error_message": scrub(error)}
            self._write_history(run.run_id, {**record, **end})
        elif record is not None and record["status"] == "running":
            self._write_history(run.run_id, {**record, **_success({"inserted": 0}, now), "metrics_json": None})
        ledger = self._ledger(run.pipeline)
        if ledger["open"] is not None and ledger["open"]["run_id"] == run.run_id:
            self._write_ledger(run.pipeline, generation=ledger["generation"], folder=ledger["folder"], open=None)

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

    def _ledger(self, pipeline: str) -> dict[str, Any]:
        known: dict[str, Any] | None = self.store.read_json(self._path("ledger", pipeline))
        return known or {"generation": 0, "folder": None, "open": None}

    def _write_ledger(self, pipeline: str, *, generation: int, folder: str | None, open: dict[str, Any] | None) -> None:
        content = {"pipeline_name": pipeline, "generation": generation, "folder": folder, "open": open}
        self.store.write_json(self._path("ledger", pipeline), content)

    def _keep_mark(self, pipeline: str, mark: Mark | None, now: datetime) -> None:
        path = self._path("watermarks", pipeline)
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

    def _path(self, book: str, pipeline: str) -> str:
        return f"{BOOKS}/{book}/{file_name(pipeline)}.json"


def file_name(name: str) -> str:
    """A file name that people recognise and no two names share; plain names such as run ids stay as they are.

    >>> file_name("7f3a"), file_name("sync: Kunden")
    ('7f3a', 'sync_Kunden-...')
    """
    if re.fullmatch(r"[0-9a-f-]{1,64}", name):
        return name
    slug = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:40]
    return f"{slug}-{digest(name)}"


def _success(metrics: Any, now: datetime) -> dict[str, Any]:
    return {
        "status": "success",
        "finished_at": instant_text(now),
        "rows_inserted": metrics["inserted"],
        "rows_updated": 0,
        "rows_unchanged": 0,
        "metrics_json": json.dumps(metrics),
    }
