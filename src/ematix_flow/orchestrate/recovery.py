"""Runs whose process is gone: written down as lost, and done again where that can do no harm."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from datetime import datetime

from ematix_flow.contracts.orchestration import AttemptState, Claim, RunLog, Slot
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import StaleLease
from ematix_flow.orchestrate.desk import Desk
from ematix_flow.orchestrate.identity import is_dead, spoken
from ematix_flow.plan.retries import after_failure
from ematix_flow.run.registered import Orchestrated
from ematix_flow.run.runlogs.sql_history import WORKER_LOST
from ematix_flow.watch.telling import Telling

log = logging.getLogger(__name__)

_MOST_RUNNING = 500
LOST_AT_MOST = 3
"""So often a slot is begun again after its worker was lost, at least: something in it may be killing workers."""


def recover(desk: Desk, telling: Telling, worker_id: str, *, lease_s: float, now: datetime) -> None:
    """Find running slots that nobody holds, end their records, and let repeatable ones wait for another attempt.

    The claim is taken first, so that the old worker, should it still live, can no longer write its outcome down.
    """
    store = desk.log
    claims = {claim.pipeline: claim for claim in store.claims()}
    clock = store.clock()
    for slot in store.open_slots():
        entry = desk.entries.get(slot.pipeline)
        if slot.status != "running" or slot.backfill is not None or entry is None:
            continue  # a backfill looks after its own
        if _is_held(store, claims.get(slot.pipeline), clock):
            continue
        claim = store.claim(slot.pipeline, worker_id, lease_s)
        if not claim.acquired or claim.token is None:
            continue
        try:
            _recover_slot(store, entry, slot, claim.token, telling, now)
        finally:
            give_back(store, claim.token)
    _end_unclaimed(store)


def _end_unclaimed(store: RunLog) -> None:
    """Records that nobody works on any more: requests that no worker began wait again, the others are lost."""
    records = [
        record for status in ("running", "paused") for record in store.list_runs(status=status, limit=_MOST_RUNNING)[0]
    ]
    if not records:
        return
    # After the records: who began to work since then has a claim by now.
    clock = store.clock()
    held = {claim.pipeline for claim in store.claims() if claim.expires_at > clock and not is_dead(claim.worker_id)}
    for record in records:
        facts = record.extras
        name = f"{record.pipeline}@{facts.get('slot')}" if facts.get("backfill") else record.pipeline
        if name in held:
            continue
        if "consumed_by" in facts and "process" not in facts:
            store.return_requested_run(record.run_id)
        elif facts.get("claimed"):
            store.end_lost_run(record)


def _is_held(store: RunLog, claim: Claim | None, clock: datetime) -> bool:
    if claim is None or claim.expires_at <= clock:
        return False
    if is_dead(claim.worker_id):
        store.break_claim(claim.pipeline, claim.token)
        return False
    return True


def _recover_slot(store: RunLog, entry: Orchestrated, slot: Slot, token: str, telling: Telling, now: datetime) -> None:
    record = store.get_run(slot.run_id) if slot.run_id else None
    state = store.attempts().get(entry.name) or AttemptState()
    if record is not None and record.status == "succeeded":
        # It was lost after its work was done; only the end of the slot was not written down.
        store.record_run(entry.name, record.finished_at or now, True, slot=slot.at)
        telling.succeeded(entry.name, run_id=record.run_id, slot=slot.at, failures=state.attempt_count, at=now)
        store.clear_attempt_state(entry.name)
        store.move_slot(replace(slot, status="succeeded"), expected="running", token=token)
        return
    if record is not None and record.status == "cancelled" and record.extras.get("cancel_requested"):
        store.move_slot(replace(slot, status="cancelled", reason="cancelled by hand"), expected="running", token=token)
        return
    if record is not None and record.status == "failed" and not _was_lost(record):
        _end_failed(store, entry, slot, record, state, token, telling, now)
        return
    again = entry.is_repeatable and slot.attempt < max(LOST_AT_MOST, entry.retry.max_attempts)
    reason = "worker lost"
    if not entry.is_repeatable:
        reason = "worker lost, and it is not known how far it got; `flow retry` runs it again"
    moved = replace(slot, status="pending" if again else "failed", reason=reason)
    if not store.move_slot(moved, expected="running", expected_attempt=slot.attempt, token=token):
        return  # it ended in between
    if record is not None and record.status in ("running", "paused"):
        store.end_lost_run(record)
    if not again:
        store.record_run(entry.name, now, False)
    # It counts, so that the next success is known to be a recovery.
    store.record_attempt(entry.name, replace(state, attempt_count=state.attempt_count + 1, last_attempt_at=now))
    telling.count(entry.name, "lease_expired")
    telling.lost(
        entry.name, run_id=slot.run_id or "", slot=slot.at, attempt_count=slot.attempt, is_repeated=again, at=now
    )
    log.warning("%s: the worker of %s was lost; %s", entry.name, slot.run_id, "tried again" if again else reason)


def _was_lost(record: RunRecord) -> bool:
    """Whether it failed only because its process, or its claim, was gone."""
    said = record.error_summary or ""
    return said == WORKER_LOST or StaleLease.code in said


def _end_failed(
    store: RunLog,
    entry: Orchestrated,
    slot: Slot,
    record: RunRecord,
    state: AttemptState,
    token: str,
    telling: Telling,
    now: datetime,
) -> None:
    """Its work had failed before its worker was lost: what the worker would have written down and told is so now."""
    # The worker may have counted it already, and then told of it under that number: it is not counted twice.
    count = max(state.attempt_count, slot.attempt, 1)
    said = record.error_summary or "it failed"
    after = after_failure(
        replace(entry.retry, retry_on=()),  # of the error only its text is left
        replace(state, attempt_count=count - 1),
        slot,
        now,
        RuntimeError(said),
        jitter=random.Random(),
    )
    store.record_run(entry.name, record.finished_at or now, False)
    store.record_attempt(entry.name, after.state)
    telling.failed(
        entry.name,
        said,
        run_id=record.run_id,
        slot=slot.at,
        attempt_count=count,
        max_attempts=entry.retry.max_attempts,
        gave_up=after.gave_up,
        at=now,
    )
    moved = replace(
        slot,
        status="failed" if after.retry_at is None else "pending",
        eligible_at=after.retry_at,
        first_failed_at=slot.first_failed_at or now,
        reason=said.splitlines()[0],
    )
    store.move_slot(moved, expected="running", expected_attempt=slot.attempt, token=token)


def give_back(store: RunLog, token: str) -> None:
    """Release a claim; one that cannot be released now runs out by itself."""
    try:
        store.release(token)
    except Exception as exc:  # what was done under it is done
        log.warning("a claim could not be given back, and runs out by itself: %s", scrub(str(exc)))


def take(store: RunLog, name: str, worker_id: str, lease_s: float) -> tuple[str | None, str]:
    """Claim a name, also from a process of this host that is dead; the token, or None and who has it."""
    for _ in range(2):
        claim = store.claim(name, worker_id, lease_s)
        if claim.acquired:
            return claim.token, ""
        held = next((one for one in store.claims() if one.pipeline == name), None)
        if held is None or not is_dead(held.worker_id) or not store.break_claim(name, held.token):
            break
    until = f" until {claim.expires_at:%H:%M:%S} UTC" if claim.expires_at is not None else ""
    return None, f"busy: {spoken(claim.holder)} has it{until}"


def remind(desk: Desk, telling: Telling, now: datetime) -> None:
    """Tell again of pipelines that were given up; alerters that want no reminders were told once and hear nothing."""
    for name, state in desk.log.attempts().items():
        entry = desk.entries.get(name)
        if state.gave_up and entry is not None:
            telling.gave_up(
                name,
                "it is not tried any more; `flow retry` tries again",
                attempt_count=state.attempt_count,
                max_attempts=entry.retry.max_attempts,
                slot=state.last_attempt_at,
                at=now,
            )
