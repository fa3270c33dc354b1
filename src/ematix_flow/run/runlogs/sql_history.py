"""Run records and events in a database: what happened, and what people ask of a run."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any
from uuid import uuid4

from ematix_flow.contracts.orchestration import RunEvent
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.errors import UnknownName
from ematix_flow.run.process import ProcessMark, this_process
from ematix_flow.run.recorder import copied_steps, end_step
from ematix_flow.run.runlogs import rows
from ematix_flow.run.runlogs.rows import RECORD_COLUMNS, WISHES
from ematix_flow.run.runlogs.store import Db, SqlStore
from ematix_flow.run.runlogs.words import Words

log = logging.getLogger(__name__)

WORKER_LOST = "worker lost: the process of this run is gone; its pipeline can simply be run again"
LAST_CHARACTER = "\U0010ffff"
"""Texts that begin so lie between the beginning and the beginning with this."""

_COLUMNS = ", ".join(RECORD_COLUMNS)
_SELECT = f"SELECT {_COLUMNS} FROM @run_records"
_ORDER = "ORDER BY started_at DESC, place DESC"
_GONE_AFTER = timedelta(days=400)
"""A pipeline of which nobody says for so long, while others are spoken of, that it is declared: it is gone."""
_SLOT_CLAIMS = "%@____-__-__T__:__:__%Z"
"""What the claims of single slots are called: those of a backfill."""
_OPEN = "status IN ('pending', 'running')"
_CLEANING_S = 600.0
"""How often finished slots and old alerts are looked through; records are with every run that ends."""


class KeepsHistory(SqlStore):
    """The part of a run log in a database that is about runs."""

    def __init__(
        self,
        *,
        where: str,
        words: Words,
        create_tables: bool = True,
        max_age_days: float | None = None,
        max_records: int | None = None,
    ) -> None:
        super().__init__(where=where, words=words, create_tables=create_tables)
        self._max_age_days, self._max_records = max_age_days, max_records
        self._cleaned_at: float | None = None

    # ── records ──

    def record_run_record(self, record: RunRecord) -> None:
        """Insert the record, or replace the one with the same run id.

        What others asked of the run stays, unless the record says something about it itself. With `max_age_days` or
        `max_records` a record that is finished also removes those beyond that.
        """
        if record.finished_at is None or (self._max_age_days is None and self._max_records is None):
            self._ask(lambda db: _put(db, record))
            return
        ended = record.finished_at

        def put_and_prune(db: Db) -> None:
            _put(db, record)
            now = time.monotonic()
            is_thorough = self._cleaned_at is None or now - self._cleaned_at > _CLEANING_S
            _prune(db, ended, self._max_age_days, self._max_records, is_thorough=is_thorough)
            if is_thorough:
                self._cleaned_at = now

        self._together(put_and_prune)

    def list_runs(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50, offset: int = 0
    ) -> tuple[Sequence[RunRecord], int]:
        """Newest first, with the number of all that match."""
        wanted = {"pipeline": pipeline, "status": status}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(f'{name} = ?' for name in given)}" if given else ""

        def look(db: Db) -> tuple[list[RunRecord], int]:
            found = db.rows(f"{_SELECT} {where} {_ORDER} LIMIT ? OFFSET ?", *given.values(), limit, offset)
            ((total,),) = db.rows(f"SELECT count(*) FROM @run_records {where}", *given.values())
            return [rows.to_record(row) for row in found], int(total)

        return self._ask(look)

    def get_run(self, run_id: str) -> RunRecord | None:
        """The record with that id, or with an id that begins so when only one does."""
        if not run_id:
            return None

        def look(db: Db) -> RunRecord | None:
            found = db.rows(f"{_SELECT} WHERE run_id = ?", run_id) or db.rows(
                f"{_SELECT} WHERE run_id > ? AND run_id < ? LIMIT 2", run_id, run_id + LAST_CHARACTER
            )
            return rows.to_record(found[0]) if len(found) == 1 else None

        return self._ask(look)

    # ── what people ask for ──

    def enqueue_run(self, pipeline: str, *, extras: Mapping[str, Any] | None = None) -> str:
        """Ask for a run of a pipeline now; the id of the `requested` record."""
        record = RunRecord(
            f"req-{uuid4().hex}", pipeline, "requested", datetime.now(timezone.utc), extras=dict(extras or {})
        )
        self.record_run_record(record)
        return record.run_id

    def enqueue_restart(self, prior_run_id: str, from_step: str) -> str:
        """Ask for a run that reuses everything before a step.

        Raises:
            UnknownName: There is no such run.
        """
        prior = self._known(prior_run_id)
        return self.enqueue_run(prior.pipeline, extras={"restart_from_step": from_step, "prior_run_id": prior.run_id})

    def enqueue_rerun(self, prior_run_id: str) -> str:
        """Ask for the whole run again.

        Raises:
            UnknownName: There is no such run.
        """
        prior = self._known(prior_run_id)
        return self.enqueue_run(prior.pipeline, extras={"rerun_full": True, "prior_run_id": prior.run_id})

    def set_pause(self, run_id: str, paused: bool) -> None:
        """Ask one run to pause at its next step, or to go on.

        Raises:
            UnknownName: There is no such run.
        """
        wish = "UPDATE @run_records SET pause_requested = ? WHERE run_id = ?"
        if not self._ask(lambda db: db.change(wish, int(paused), run_id)):
            raise _unknown(run_id)

    def request_cancel(self, run_id: str) -> None:
        """Ask a run to stop; one that was only requested is cancelled at once.

        Raises:
            UnknownName: There is no such run.
        """

        def change(record: RunRecord) -> RunRecord:
            asked = replace(record, extras={**record.extras, "cancel_requested": True})
            if record.status != "requested":
                return asked
            return replace(asked, status="cancelled", finished_at=_not_before(record))

        self._change(run_id, change)

    def pending_actions(self) -> Sequence[RunRecord]:
        """Records that are requested, and running or paused ones whose pause or cancel was asked for; oldest first."""
        waiting = (
            f"{_SELECT} WHERE status IN ('requested', 'running', 'paused')"
            " AND (status = 'requested' OR pause_requested = 1 OR cancel_requested = 1) ORDER BY started_at, place"
        )
        return [rows.to_record(row) for row in self._ask(lambda db: db.rows(waiting))]

    def consume_requested_run(self, run_id: str) -> bool:
        """Turn a requested record into a running one; False when somebody else was faster. Whoever runs it signs it.

        Raises:
            UnknownName: There is no such run.
        """
        me = this_process().to_dict()

        def change(record: RunRecord) -> RunRecord | None:
            if record.status != "requested":
                return None
            return replace(record, status="running", extras={**record.extras, "consumed_by": me})

        return self._change(run_id, change, lambda was: was.status == "running" and was.extras.get("consumed_by") == me)

    def return_requested_run(self, run_id: str) -> None:
        """Put a consumed record back that could not be started; it is requested again.

        Raises:
            UnknownName: There is no such run.
        """

        def change(record: RunRecord) -> RunRecord | None:
            if record.status != "running":
                return None
            extras = {name: fact for name, fact in record.extras.items() if name not in ("process", "consumed_by")}
            return replace(record, status="requested", extras=extras)

        self._change(run_id, change)

    def end_lost_run(self, seen: RunRecord) -> bool:
        """End a record as failed, "worker lost", if it still is as it was seen.

        Raises:
            UnknownName: There is no such run.
        """
        return self._change(seen.run_id, partial(_lost_if_still, seen))

    # ── events ──

    def add_event(self, event: RunEvent) -> None:
        """Append an event."""
        columns = ("event_id", "run_id", "happened_at", "step", "status", "detail", "duration_ms")
        values = (
            rows.place(),
            event.run_id,
            rows.instant(event.at),
            event.step,
            event.status,
            rows.storable(event.detail),
            event.duration_ms,
        )
        self._ask(lambda db: db.change(db.words.insert("run_events", columns, key="event_id"), *values))

    def events(self, run_id: str) -> Sequence[RunEvent]:
        """Events of a run, oldest first."""
        asked = (
            "SELECT run_id, happened_at, step, status, detail, duration_ms FROM @run_events WHERE run_id = ?"
            " ORDER BY happened_at, event_id"
        )
        return [rows.to_event(row) for row in self._ask(lambda db: db.rows(asked, run_id))]

    def prune(self, *, max_age_days: float | None = None, max_records: int | None = None) -> int:
        """Remove finished records beyond that, with their events, and what else is as old; how many records went."""
        now = datetime.now(timezone.utc)
        return self._together(lambda db: _prune(db, now, max_age_days, max_records, is_thorough=True))

    # ── the pieces ──

    def _known(self, run_id: str) -> RunRecord:
        record = self.get_run(run_id)
        if record is None:
            raise _unknown(run_id)
        return record

    def _change(
        self,
        run_id: str,
        change: Callable[[RunRecord], RunRecord | None],
        is_done: Callable[[RunRecord], bool] = lambda record: False,
    ) -> bool:
        """Replace a record by what becomes of it, while nobody else does; False when nothing becomes of it.

        `is_done` says, when the connection broke before, whether the record shows that it was changed then.
        """

        def work(db: Db) -> bool:
            found = db.rows(f"{_SELECT} WHERE run_id = ?{db.words.lock}", run_id)
            if not found:
                raise _unknown(run_id)
            record = rows.to_record(found[0])
            changed = change(record)
            if changed is None:
                return db.is_repeat and is_done(record)
            _put(db, changed)
            return True

        return self._together(work)

    def _end_lost_runs(self) -> None:
        """End runs as failed whose process is dead. Asked when a log is opened, of processes of this host only."""
        unended = f"{_SELECT} WHERE status IN ('running', 'paused')"
        for record in map(rows.to_record, self._ask(lambda db: db.rows(unended))):
            process = ProcessMark.from_dict(record.extras.get("process"))
            if process is not None and process.is_dead:
                # Only if it is still so: its last word may have come in since we looked.
                self._change(record.run_id, partial(_lost_if_still, record))


def _put(db: Db, record: RunRecord) -> None:
    columns = (*RECORD_COLUMNS, "place")
    upsert = db.words.insert(
        "run_records",
        columns,
        key="run_id",
        replacing=RECORD_COLUMNS[1:],  # not its place: it keeps that among those that began in the same moment
        rules=dict.fromkeys(WISHES, "coalesce({new}, {old})"),
    )
    db.change(upsert, *rows.record_row(record), rows.place())


def _prune(db: Db, now: datetime, max_age_days: float | None, max_records: int | None, *, is_thorough: bool) -> int:
    """Remove what is too old or too much. Being thorough includes slots, alerts and the claims of backfills."""
    removed = 0
    limits: list[str] = []
    if max_age_days is not None:
        oldest = rows.instant(now - timedelta(days=max_age_days))
        removed += _remove(db, "finished_at < ?", oldest)
        limits.append(oldest)
    if max_records is not None:
        beyond = db.rows(f"SELECT started_at, place FROM @run_records {_ORDER} LIMIT 1 OFFSET ?", max_records)
        for began, at in beyond:
            older = "finished_at IS NOT NULL AND (started_at < ? OR (started_at = ? AND place <= ?))"
            removed += _remove(db, older, began, began, at)
            limits.append(began)
    if limits and is_thorough:
        limit = max(limits)
        # By when they were changed: the times of a backfill are old from the beginning. The latest slot of a pipeline
        # stays, since what comes next is counted from there.
        db.change(
            f"DELETE FROM @slots WHERE NOT {_OPEN} AND changed_at < ? AND (backfill IS NOT NULL"
            " OR slot_at < (SELECT latest FROM (SELECT pipeline_name AS of_pipeline, max(slot_at) AS latest FROM @slots"
            " WHERE backfill IS NULL GROUP BY pipeline_name) AS newest WHERE of_pipeline = pipeline_name))",
            limit,
        )
        db.change("DELETE FROM @alerts_sent WHERE sent_at < ?", limit)
        # Nobody asks for the fence of a single slot that is over; pipelines keep theirs.
        over = "pipeline_name LIKE ? AND expires_at < ? AND (claim_token = '' OR expires_at <= {later})"
        db.change(f"DELETE FROM @pipeline_claims WHERE {over}", _SLOT_CLAIMS, limit, 0)
        _remove_gone(db, limit)
    return removed


def _remove_gone(db: Db, limit: str) -> None:
    """Remove what is left of pipelines that are no longer declared, waiting slots and the latest one included."""
    ((last_look,),) = db.rows("SELECT max(declared_at) FROM @declared")
    if last_look is None:
        return
    # Measured from the last look at anything: when nobody looked for long, nothing is gone for that.
    since = min(limit, rows.instant(rows.moment(last_look) - _GONE_AFTER))
    gone = "pipeline_name IN (SELECT pipeline_name FROM @declared WHERE declared_at < ?)"
    open_slots = db.change(f"DELETE FROM @slots WHERE changed_at < ? AND {gone} AND {_OPEN}", since, since)
    if open_slots:
        log.info("%d times that waited for pipelines nobody declares any more were removed", open_slots)
    db.change(f"DELETE FROM @slots WHERE changed_at < ? AND {gone}", since, since)
    db.change(f"DELETE FROM @first_seen WHERE {gone}", since)
    db.change("DELETE FROM @declared WHERE declared_at < ?", since)


def _remove(db: Db, condition: str, *values: Any) -> int:
    db.change(f"DELETE FROM @run_events WHERE run_id IN (SELECT run_id FROM @run_records WHERE {condition})", *values)
    return db.change(f"DELETE FROM @run_records WHERE {condition}", *values)


def _lost_if_still(seen: RunRecord, record: RunRecord) -> RunRecord | None:
    return _lost(record) if record == seen else None


def _lost(record: RunRecord) -> RunRecord:
    """The record of a run whose process died: the step it was in failed, the ones after it never came."""
    steps = copied_steps(record.extras.get("steps", ()))
    failed_step = record.failed_step
    for step in steps:
        if step.get("status") == "running":
            failed_step = failed_step or step.get("name")
        end_step(step, "failed")
    return replace(
        record,
        status="failed",
        finished_at=_not_before(record),
        failed_step=failed_step,
        error_summary=WORKER_LOST,
        extras={**record.extras, "steps": steps},
    )


def _not_before(record: RunRecord) -> datetime:
    return max(datetime.now(timezone.utc), record.started_at)


def _unknown(run_id: str) -> UnknownName:
    return UnknownName(f"No run has the id '{run_id}'.", fix="`flow runs list` shows them")
