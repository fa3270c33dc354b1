"""What people ask for: try again, forget failures, pause, resume, cancel, run again."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import replace

from ematix_flow.contracts.orchestration import AttemptState, RunLog, Slot
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.errors import InvalidConfig, UnknownName
from ematix_flow.watch.telling import told_of_failures

_RECENT = 100
_ENDS = {"succeeded": "it succeeded", "failed": "it failed", "cancelled": "it was cancelled"}


def retry(store: RunLog, name: str) -> Slot | None:
    """Forget that attempts failed and let the last slot be tried at once, with all its attempts; None without one.

    The target applies a slot once, so what an earlier attempt did reach is not done again.
    """
    _forget_failures(store, name)
    recent = [slot for slot in store.slots(name, limit=_RECENT) if slot.backfill is None]
    for slot in recent:
        if slot.status in ("pending", "failed"):
            again = replace(
                slot,
                status="pending",
                attempt=0,
                eligible_at=None,
                first_failed_at=None,
                reason="asked for by hand",
            )
            if store.move_slot(again, expected=slot.status, expected_attempt=slot.attempt):
                return again
        if slot.status == "succeeded":
            break  # what failed before it is history
    return None


def clear(store: RunLog, name: str) -> tuple[AttemptState | None, int]:
    """Forget failures and what still waits: the pipeline is back on its schedule. What was forgotten comes back."""
    state = store.attempts().get(name)
    _forget_failures(store, name)
    waiting = [slot for slot in store.open_slots(name) if slot.status == "pending"]
    gone = sum(
        store.move_slot(replace(slot, status="cancelled", reason="cleared by hand"), expected="pending")
        for slot in waiting
    )
    return state, gone


def pause(store: RunLog, name: str, *, reason: str = "") -> None:
    """Nobody starts it until it is resumed; a run under way goes on."""
    store.set_paused(name, True, by=_who(), reason=reason)


def resume(store: RunLog, name: str) -> bool:
    """Let it be started again; whether it was paused."""
    was_paused = name in store.paused()
    store.set_paused(name, False)
    return was_paused


def is_known(store: RunLog, name: str) -> bool:
    """Whether the run log has ever heard of it."""
    heard_of = (store.last_slots, store.last_runs, store.attempts, store.paused)
    return any(name in look() for look in heard_of) or store.list_runs(pipeline=name, limit=1)[1] > 0


def cancel(store: RunLog, run_id: str) -> RunRecord:
    """Ask a run to stop: it is interrupted within seconds, or before its next step where that is not possible.

    Raises:
        UnknownName: (a KeyError) There is no such run.
        InvalidConfig: It is over already.
    """
    record = _open_run(store, run_id)
    store.request_cancel(record.run_id)
    return record


def pause_run(store: RunLog, run_id: str, *, is_paused: bool) -> RunRecord:
    """Ask one run to wait before its next step, or to go on.

    Raises:
        UnknownName: (a KeyError) There is no such run.
        InvalidConfig: It is over already.
    """
    record = _open_run(store, run_id)
    store.set_pause(record.run_id, is_paused)
    return record


def known_run(store: RunLog, run_id: str) -> RunRecord:
    """The record of a run, by its id or the beginning of it.

    Raises:
        UnknownName: (a KeyError) There is none, or more than one.
    """
    record = store.get_run(run_id)
    if record is None:
        raise UnknownName(f"No run has the id '{run_id}'.", fix="`flow runs list` shows the recent ones")
    return record


def _open_run(store: RunLog, run_id: str) -> RunRecord:
    record = known_run(store, run_id)
    if record.finished_at is not None or record.status not in ("requested", "running", "paused"):
        raise InvalidConfig(f"Run '{record.run_id}' is over: {_ENDS.get(record.status, record.status)}.")
    return record


def restart(store: RunLog, run_id: str, from_step: str | None) -> str:
    """Ask for a run that begins at a step, the one that failed unless another is named; the id of the new run.

    Raises:
        InvalidConfig: The run did not fail, or its step is not known.
    """
    record = known_run(store, run_id)
    steps: Sequence[str] = [str(step.get("name")) for step in record.extras.get("steps", ())]
    step = from_step or record.failed_step
    if step is None:
        raise InvalidConfig(
            f"Run '{record.run_id}' has no failed step to restart from.",
            fix="name one with --from-step, or run everything again: flow runs rerun",
        )
    if step == "load" and step not in steps:  # whatever the table is called; of several the first that is not done
        loads = [one for one in record.extras.get("steps", ()) if str(one.get("name")).startswith("load:")]
        undone = [one for one in loads if one.get("status") != "succeeded"]
        step = str((undone or loads)[0]["name"]) if loads else step
    if steps and step not in steps:
        raise InvalidConfig(f"Run '{record.run_id}' has no step '{step}'.", fix=f"its steps: {', '.join(steps)}")
    return store.enqueue_restart(record.run_id, step)


def rerun(store: RunLog, run_id: str) -> str:
    """Ask for the whole run again, as a new logical run; the id of the new run."""
    return store.enqueue_rerun(known_run(store, run_id).run_id)


def _forget_failures(store: RunLog, name: str) -> None:
    store.clear_attempt_state(name)
    # Attempts are counted from one again: what is told of them is news again, too.
    for prefix in told_of_failures(name):
        store.forget_alerts(prefix)


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        return ""
