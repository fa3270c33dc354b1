"""`flow status`: every pipeline with its schedule, its last run, what it waits for, and who is at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ematix_flow.contracts.orchestration import AttemptState, LastRun, RunLog
from ematix_flow.orchestrate.desk import Desk
from ematix_flow.run.registered import Orchestrated, orchestrated
from ematix_flow.run.runlogs.in_process import process_log

_INSTANT = "%Y-%m-%dT%H:%M:%SZ"


def status_of(entries: Sequence[Orchestrated], store: RunLog, *, now: datetime) -> list[dict[str, Any]]:
    """One mapping per pipeline and workflow, by name: what `flow status --format json` prints."""
    desk = Desk(entries, store)
    last_runs, attempts, paused = store.last_runs(), store.attempts(), store.paused()
    errors = store.last_errors()
    clock = store.clock()
    claims = {claim.pipeline: claim for claim in store.claims() if claim.expires_at > clock}
    waiting = _waiting(desk, now, last_runs)
    found = []
    for entry in sorted(entries, key=lambda one: one.name):
        last, state, claim = last_runs.get(entry.name), attempts.get(entry.name), claims.get(entry.name)
        slots = waiting.get(entry.name)
        found.append(
            {
                "name": entry.name,
                "kind": entry.kind,
                "schedule": entry.due.schedule.expression if entry.due is not None else None,
                "timezone": entry.due.schedule.timezone if entry.due is not None else None,
                "on_message": entry.on_message,
                "depends_on": list(entry.upstreams),
                "last_run": [_text(last.at), last.success] if last is not None else None,
                "last_success_at": _text(last.last_success_at) if last is not None else None,
                "next_due_at": _text(entry.due.schedule.next_after(now)) if entry.due is not None else None,
                "last_error": _first_line(errors.get(entry.name)),
                "waiting_on": slots[0] if slots else None,
                "waiting_reason": slots[1] if slots else None,
                "running": claim is not None,
                "holder": claim.worker_id if claim is not None else None,
                "paused": entry.name in paused,
                "retry_policy": {
                    "max_attempts": entry.retry.max_attempts,
                    "backoff": entry.retry.backoff,
                    "base_secs": entry.retry.base_secs,
                    "max_backoff_secs": entry.retry.max_backoff_secs,
                },
                "attempt_state": _state(state, slots[2] if slots else None),
            }
        )
    return found


def status_snapshot() -> list[dict[str, Any]]:
    """The same, of everything registered in this process and as far as this process knows."""
    return status_of(orchestrated(), process_log(), now=datetime.now(timezone.utc))


def _waiting(
    desk: Desk, now: datetime, last_runs: Mapping[str, LastRun]
) -> dict[str, tuple[list[str], str, datetime | None]]:
    """Of every pipeline with a slot that waits: for whom, why, and until when."""
    try:
        candidates, held = desk.candidates(now)
    except NotImplementedError:  # a run log without slots
        return {}
    found: dict[str, tuple[list[str], str, datetime | None]] = {
        one.name: ([], one.reason, one.slot.eligible_at) for one in held
    }
    for candidate in candidates:
        reason = desk.waits_for(candidate, now, last_runs)
        names = reason.partition(": ")[2].split(", ") if reason else []
        found[candidate.name] = (names, reason or "due", candidate.slot.eligible_at)
    return found


def _first_line(said: str | None) -> str | None:
    return next(iter((said or "").splitlines()), None)


def _state(state: AttemptState | None, eligible_at: datetime | None) -> dict[str, Any] | None:
    if state is None or state.attempt_count == 0:
        return None
    return {
        "attempt_count": state.attempt_count,
        "last_attempt_at": _text(state.last_attempt_at),
        "next_eligible_at": _text(eligible_at),
        "gave_up": state.gave_up,
    }


def _text(moment: datetime | None) -> str | None:
    return moment.strftime(_INSTANT) if moment is not None else None


def retry_words(row: dict[str, Any]) -> str:
    """The column RETRY: `no retry`, `0/3 (linear)`, `1/3 next><time>`, `3/3 gave up`."""
    policy, state = row["retry_policy"], row["attempt_state"]
    most = policy["max_attempts"]
    if state is None:
        return "no retry" if most == 1 else f"0/{most} ({policy['backoff']})"
    if state["gave_up"]:
        return f"{state['attempt_count']}/{most} gave up"
    if state["next_eligible_at"]:
        return f"{state['attempt_count']}/{most} next>{state['next_eligible_at']}"
    return f"{state['attempt_count']}/{most}" if most > 1 else "no retry"
