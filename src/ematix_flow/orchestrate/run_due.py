"""`flow run-due`: everything that is due now, one after the other, in this process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ematix_flow.contracts.orchestration import Alerter, LastRun, MetricsSink, RunLog, Slot
from ematix_flow.contracts.runtime import RunHistory
from ematix_flow.declare.redaction import scrub
from ematix_flow.orchestrate.desk import Candidate, Desk, Held, Missed
from ematix_flow.orchestrate.identity import worker_name
from ematix_flow.orchestrate.log_away import in_place_of
from ematix_flow.orchestrate.messages import write_down_messages
from ematix_flow.orchestrate.outcomes import (
    FailedEvent,
    FiredEvent,
    MissedEvent,
    Outcome,
    RunDueResult,
    SkippedEvent,
    error_words,
)
from ematix_flow.orchestrate.recovery import give_back, recover, take
from ematix_flow.orchestrate.work import Lease, Work, utc_now
from ematix_flow.plan.cron import as_utc
from ematix_flow.run.registered import Orchestrated, get_pipeline, orchestrated
from ematix_flow.run.runlogs.in_process import process_log
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.watch.telling import Telling

log = logging.getLogger(__name__)

LEASE_S = 60.0
_Waiting = tuple[Sequence[Candidate], Sequence[Held]]


@dataclass
class _Told:
    """What happened so far, and who hears of it at once."""

    say: Callable[[str], None]
    fired: list[FiredEvent] = field(default_factory=list)
    failed: list[FailedEvent] = field(default_factory=list)
    skipped: list[SkippedEvent] = field(default_factory=list)
    missed: list[MissedEvent] = field(default_factory=list)

    def skip(self, name: str, reason: str) -> None:
        self.skipped.append(SkippedEvent(name, reason))
        self.say(f"skipping: {name} ({reason})")

    def ended(self, outcome: Outcome) -> None:
        if outcome.status == "succeeded":
            self.fired.append(FiredEvent(outcome.name, outcome.result))
        elif outcome.status == "failed" and outcome.error is not None:
            kind, said = error_words(outcome.error)
            event = FailedEvent(outcome.name, said, kind, outcome.attempt_count, outcome.gave_up)
            self.failed.append(event)
            self.say(f"failed: {outcome.name}: {said}")
        else:
            self.skip(outcome.name, outcome.reason or outcome.status)

    def result(self) -> RunDueResult:
        return RunDueResult(tuple(self.fired), tuple(self.failed), tuple(self.skipped), tuple(self.missed))


def run_due(
    entries: Sequence[Orchestrated],
    store: RunLog,
    telling: Telling,
    *,
    now: datetime,
    interval_s: float = 60.0,
    worker_id: str | None = None,
    say: Callable[[str], None] = lambda _line: None,
    stop: threading.Event | None = None,
    history: RunHistory | None = None,
) -> RunDueResult:
    """Write down what is due, look after lost runs, and run what may run, upstreams first.

    Whoever calls this, on however many hosts and however often: a slot is run by one of them. An exception of one body
    never stops the others.

    Args:
        history: Where runs are recorded when the run log is only one in memory.
    """
    desk, worker = Desk(entries, store), worker_id or worker_name()
    told = _Told(say)
    now = as_utc(now)
    try:
        _tell_missed(desk.write_down_due(now, interval_s), telling, told, now)
        write_down_messages(desk, now)
        recover(desk, telling, worker, lease_s=LEASE_S, now=now)
        _run_requests(desk, Work(store, telling, history=history), worker, told, stop)
        waiting: _Waiting = desk.candidates(now)
    except Exception as exc:  # bodies do not raise here: it is the run log that does not answer
        store = in_place_of(store, entries, exc, now=now, interval_s=interval_s, worker_id=worker)
        desk, history = Desk(entries, store), None
        _tell_missed(desk.write_down_due(now, interval_s), telling, told, now)
        waiting = desk.candidates(now)
    work = Work(store, telling, clock=_from(now), history=history)
    _run_waiting(desk, work, worker, told, now, stop, waiting)
    # Workflows that wait for what has just run: the next call may be a day away.
    for _ in desk.entries:
        triggered, waiting = _triggered_meanwhile(desk, now)
        if not triggered or (stop is not None and stop.is_set()):
            break
        _run_waiting(desk, work, worker, told, now, stop, waiting, only=triggered)
    return told.result()


def _tell_missed(found: Iterable[Missed], telling: Telling, told: _Told, now: datetime) -> None:
    for missed in found:
        log.warning("%s", missed)
        telling.missed(missed.name, missed.words(), count=missed.count, last=missed.last, at=now)
        told.missed.append(MissedEvent(missed.name, missed.count, missed.first, missed.last))


def _triggered_meanwhile(desk: Desk, now: datetime) -> tuple[list[str], _Waiting]:
    try:
        triggered = desk.write_down_triggered()
        return triggered, desk.candidates(now) if triggered else ([], [])
    except Exception as exc:  # the run log does not answer: they are found at the next call
        log.warning("the run log does not answer, so workflows wait for the next call: %s", scrub(str(exc)))
        return [], ([], [])


def run_due_with_dag_detailed(
    due: Iterable[Any],
    *,
    now: datetime | None = None,
    run_log: RunLog | None = None,
    alerters: Sequence[Alerter] | None = None,
    metrics: MetricsSink | None = None,
) -> RunDueResult:
    """Run the named pipelines as if `now` were their slot, upstreams first: gates, retries and claims as ever.

    Without a run log the state of this process decides, which `run_log.restore_into_process()` can fill.

    Raises:
        UnknownName: (a KeyError) Nothing is registered under one of the names.
    """
    store: RunLog = run_log if run_log is not None else process_log()
    moment = as_utc(now) if now is not None else utc_now()
    wanted = [str(getattr(one, "name", one)) for one in due]
    for name in wanted:
        get_pipeline(name)
    desk, told = Desk(orchestrated(), store), _Told(lambda _line: None)
    desk.add([Slot(name, moment) for name in wanted])
    work = Work(store, Telling(tuple(alerters or ()), metrics, store), clock=_from(moment))
    _run_waiting(desk, work, worker_name(), told, moment, None, desk.candidates(moment), only=wanted)
    return told.result()


def run_due_with_dag(due: Iterable[Any], *, now: datetime | None = None, run_log: RunLog | None = None) -> list[str]:
    """The same; the names of those that succeeded."""
    return [one.name for one in run_due_with_dag_detailed(due, now=now, run_log=run_log).fired]


def _run_waiting(
    desk: Desk,
    work: Work,
    worker: str,
    told: _Told,
    now: datetime,
    stop: threading.Event | None,
    waiting: _Waiting,
    only: Sequence[str] | None = None,
) -> None:
    telling = work.telling
    candidates, held = waiting
    for one in held:
        if only is None or one.name in only:
            telling.skipped(one.name)
            told.skip(one.name, one.reason)
    last_runs: Mapping[str, LastRun] | None = None
    for candidate in candidates:
        if only is not None and candidate.name not in only:
            continue
        if stop is not None and stop.is_set():
            told.skip(candidate.name, "this process was told to stop; it runs at the next call")
            continue
        try:
            last_runs = desk.log.last_runs() if last_runs is None else last_runs
            reason = desk.waits_for(candidate, now, last_runs)
            if reason is None:
                last_runs = None  # whoever comes next may have waited for this one
                told.say(f"firing: {candidate.name}")
                told.ended(_claimed(desk, work, candidate, worker))
        except Exception as exc:  # bodies do not raise here: it is the run log that does not answer
            reason = _unanswered(told, candidate, exc)
            if reason is None:
                told.say(f"firing: {candidate.name}")
                told.ended(_without_log(candidate, telling, worker, now))
        if reason is not None:
            telling.skipped(candidate.name)
            told.skip(candidate.name, reason)


def _unanswered(told: _Told, candidate: Candidate, exc: Exception) -> str | None:
    """The run log went away in the middle: say what that means, and what this process knows against running it."""
    log.warning(
        "the run log does not answer (%s): '%s' runs without it, so nobody else is kept from running the same slot and "
        "nothing of it is remembered; the target of a pipeline still applies the slot once",
        scrub(str(exc)),
        candidate.name,
    )
    absent = {event.name for event in told.failed} | {event.name for event in told.skipped}
    missing = absent & set(candidate.entry.upstreams)
    return f"upstream not fresh: {', '.join(sorted(missing))}" if missing else None


def _without_log(candidate: Candidate, telling: Telling, worker: str, now: datetime) -> Outcome:
    """The same work over a run log in memory."""
    store = InMemoryRunLog()
    store.add_slots([candidate.slot])
    token, _ = take(store, candidate.name, worker, LEASE_S)
    assert token is not None
    work = Work(store, telling, clock=_from(now))
    return work.run_slot(candidate.entry, candidate.slot, Lease(token, LEASE_S, LEASE_S / 3))


def _from(now: datetime) -> Callable[[], datetime]:
    """A clock that shows `now` at this moment and goes on from there."""
    began = time.monotonic()
    return lambda: now + timedelta(seconds=time.monotonic() - began)


def _claimed(desk: Desk, work: Work, candidate: Candidate, worker: str) -> Outcome:
    token, holder = take(desk.log, candidate.name, worker, LEASE_S)
    if token is None:
        return Outcome(candidate.name, "unstarted", reason=holder)
    try:
        return work.run_slot(candidate.entry, candidate.slot, Lease(token, LEASE_S, LEASE_S / 3))
    finally:
        give_back(desk.log, token)


def _run_requests(desk: Desk, work: Work, worker: str, told: _Told, stop: threading.Event | None) -> None:
    """Runs that somebody asked for in the run log."""
    for request in desk.log.pending_actions():
        entry = desk.entries.get(request.pipeline)
        if request.status != "requested" or entry is None or (stop is not None and stop.is_set()):
            continue
        token, holder = take(desk.log, entry.name, worker, LEASE_S)
        if token is None:
            told.skip(entry.name, holder)
            continue
        try:
            if desk.log.consume_requested_run(request.run_id):
                told.say(f"firing: {entry.name}")
                told.ended(work.run_request(entry, request, Lease(token, LEASE_S, LEASE_S / 3)))
        finally:
            give_back(desk.log, token)
