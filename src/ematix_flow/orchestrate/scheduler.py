"""`flow scheduler`: looks at the clock, claims what is due and hands it to an executor. It never runs pipeline code.

Any number of schedulers may watch one run log: in each tick the one that gets the leader's lease decides, the others
wait. The lease is a courtesy, not what keeps runs apart. That are claims and slots, which belong to whoever writes them
first: a leader that was frozen and wakes up finds its claims taken and its slots begun.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.orchestration import (
    Alerter,
    DispatchReport,
    DispatchSpec,
    Executor,
    MetricsSink,
    RunLog,
    WatchedExecutor,
)
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import ConnectionFailed, NoFreeWorker, counted
from ematix_flow.orchestrate.desk import Candidate, Desk
from ematix_flow.orchestrate.identity import worker_name
from ematix_flow.orchestrate.messages import write_down_messages
from ematix_flow.orchestrate.recovery import give_back, recover, remind, take
from ematix_flow.orchestrate.work import slot_key, utc_now
from ematix_flow.run.registered import Orchestrated, orchestrated
from ematix_flow.watch.telling import Telling

log = logging.getLogger("ematix_flow.scheduler")

LEADER = "_scheduler_singleton"
_WORKED = (0, 1, 130)
"""Exit codes of a worker that began: it succeeded, failed, or was interrupted."""
_LONGEST_WAIT_S = 300.0
_LOOK_S = 0.1
"""How often a scheduler that rests looks whether one of its workers has ended."""
_DISPATCHED = "dispatched by "
SLOT_VARIABLE = "EMATIX_FLOW_SLOT"
REQUEST_VARIABLE = "EMATIX_FLOW_REQUEST_ID"


@dataclass(frozen=True, kw_only=True)
class SchedulerSettings:
    """How a scheduler behaves. Durations are seconds.

    Attributes:
        interval_s: A fire time that passed longer ago counts as missed.
        lease_s: A worker that is not heard of for so long has lost its pipeline.
        max_concurrency: How many pipelines may run at a time, over all schedulers of the run log; None for any number.
        worker_env: What every worker finds in its environment.
    """

    module: str
    run_log_url: str
    alerter_urls: tuple[str, ...] = ()
    metrics_url: str | None = None
    poll_s: float = 10.0
    lease_s: float = 300.0
    leader_lease_s: float = 60.0
    interval_s: float = 60.0
    max_concurrency: int | None = None
    worker_env: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Pulse:
    """How the scheduler is doing, for its health endpoint."""

    started_at: datetime = field(default_factory=utc_now)
    ticked_at: datetime | None = None
    is_leader: bool = False
    ticks: int = 0
    dispatched: int = 0
    running: int = 0
    problem: str | None = None
    steady_s: float = field(default_factory=time.monotonic)
    """When it was last heard of, on a clock that nobody sets."""


class Scheduler:
    """Ticks until it is told to stop.

    Args:
        entries: What is declared, asked in every tick.
        refresh: Called between two ticks; sees to declarations being up to date, and says whether they are new.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        store: RunLog,
        executor: Executor,
        telling: Telling,
        *,
        worker_id: str | None = None,
        entries: Callable[[], Sequence[Orchestrated]] = orchestrated,
        clock: Callable[[], datetime] = utc_now,
        refresh: Callable[[], bool] = lambda: False,
    ) -> None:
        self.settings, self.store, self.executor, self.telling = settings, store, executor, telling
        self.worker_id = worker_id or worker_name()
        self._entries, self._clock, self._refresh = entries, clock, refresh
        self.pulse = Pulse()
        self._waiting: dict[str, str] = {}
        self._claims: dict[str, str] = {}
        self._reports: list[DispatchReport] = []
        self._in_doubt: set[str] = set()
        self._failed_ticks = 0
        self._leader: str | None = None
        self._told: set[str] = set()
        self._swept: set[tuple[str, datetime]] = set()
        self._refused: dict[str, tuple[int, datetime]] = {}
        self._next_attempt: datetime | None = None

    def run(self, stop: threading.Event, *, max_iterations: int | None = None, sleep: Any = None) -> None:
        """Tick after tick. One that fails is a metric, and a line in the log unless it says the same again."""
        log.info("scheduler started: worker_id=%s module=%s", self.worker_id, self.settings.module)
        while not stop.is_set():
            try:
                if self._refresh():
                    self._refused.clear()  # what could not begin may do so now
                self.tick(stop)
            except Exception as exc:  # the run log may be away for a while; the daemon stays
                self._tick_failed(exc)
            else:
                self._tick_succeeded()
            self.pulse.ticks += 1
            self.pulse.ticked_at, self.pulse.steady_s = self._clock(), time.monotonic()
            if max_iterations is not None and self.pulse.ticks >= max_iterations:
                break
            if sleep is not None:
                sleep(self._pause_s())
            else:
                self._rest(stop)
        log.info("scheduler stopped: worker_id=%s", self.worker_id)

    def _rest(self, stop: threading.Event) -> None:
        """Until the next time something may be due, or until a worker ends: somebody may have waited for it."""
        until = time.monotonic() + self._pause_s()
        while not stop.wait(max(0.0, min(_LOOK_S, until - time.monotonic()))) and time.monotonic() < until:
            try:
                ended = self.executor.reap() if isinstance(self.executor, WatchedExecutor) else ()
            except Exception:  # the next tick asks again, and says what is wrong
                return
            self._reports += ended
            if ended:
                return

    def _tick_failed(self, exc: Exception) -> None:
        before, self.pulse.problem = self.pulse.problem, scrub(f"{type(exc).__name__}: {exc}")
        self._failed_ticks += 1
        self.telling.count("_scheduler", "tick_error")
        kind = type(exc).__name__
        if before is not None and before.partition(":")[0] == kind:
            log.debug("tick failed again: %s", self.pulse.problem)
            return
        log.error("tick failed, and is tried again: %s", self.pulse.problem)
        if isinstance(exc, ConnectionFailed):
            log.warning(
                "until the run log answers, nothing new is started, and times that pass are looked at afterwards; "
                "workers go on, but one out of touch for longer than its lease of %g s may be taken for lost and "
                "its slot be run again: a target applies it once, a bare function may run twice",
                self.settings.lease_s,
            )

    def _tick_succeeded(self) -> None:
        if self._failed_ticks:
            log.info("ticks go on: %s failed before this one", counted(self._failed_ticks, "tick"))
        self._failed_ticks, self.pulse.problem = 0, None

    def tick(self, stop: threading.Event | None = None) -> None:
        """One look: claim the lead, write down what is due, look after the lost, hand out what may run."""
        self._look_after_workers()
        expired = {(one.pipeline, one.expires_at): one for one in self.store.sweep_expired_leases()}
        for key, one in expired.items():
            if one.pipeline != LEADER and key not in self._swept:
                log.warning("lease expired: pipeline=%s held_by=%s", one.pipeline, one.worker_id)
        self._swept = set(expired)
        self._leader = self._taken_lead()
        self.pulse.is_leader = self._leader is not None
        if self._leader is None:
            return
        try:
            self._lead(self._leader, stop or threading.Event())
        finally:
            self.store.release(self._leader)
            self._leader = None

    def _taken_lead(self) -> str | None:
        """The leader's token: a new one, or the one that could not be given back when the run log was away."""
        if self._leader is not None and self.store.heartbeat(self._leader, self.settings.leader_lease_s):
            return self._leader
        return take(self.store, LEADER, self.worker_id, self.settings.leader_lease_s)[0]

    def _look_after_workers(self) -> None:
        """Workers of this scheduler that ended without giving their claim back: nobody needs to wait for the lease."""
        if not isinstance(self.executor, WatchedExecutor):
            return
        self._reports += self.executor.reap()
        while self._reports:  # each is told once: one that the run log has not heard of stays for the next tick
            report = self._reports[0]
            name, token = report.handle.pipeline_name, self._claims.get(report.handle.ref)
            if token is not None and self.store.break_claim(name, token):
                log.warning("worker gone: pipeline=%s exit=%s", name, report.exit_code)
            self._claims.pop(report.handle.ref, None)
            del self._reports[0]
            if report.exit_code in _WORKED:
                self._refused.pop(name, None)
            elif report.exit_code > 0:
                code = report.exit_code
                self._refuse(name, f"its worker ended with exit code {code} before the work began; its output says why")

    def _refuse(self, name: str, problem: str) -> None:
        """A worker that could not even begin, since its module cannot be imported, say: told, and tried less often."""
        now = self._clock()
        times, before = self._refused.get(name, (0, now))
        if (now - before).total_seconds() > self.settings.lease_s + 2 * _LONGEST_WAIT_S:
            times = 0  # that was another trouble
        wait = timedelta(seconds=min(_LONGEST_WAIT_S, self.settings.poll_s * 2 ** (times + 1)))
        self._refused[name] = (times + 1, now + wait)
        log.error("worker did not begin: pipeline=%s: %s; next try in %g s", name, problem, wait.total_seconds())
        self.telling.dispatch_failed(name, problem, at=now)

    def _report_unbegun(self) -> None:
        """Workers that were sent for and did not come: no machine has room for the pod, the function does not start."""
        clock = self.store.clock()
        for claim in self.store.claims():
            if claim.expires_at > clock or not claim.worker_id.startswith(_DISPATCHED):
                continue
            # Of several schedulers, the one that breaks the claim tells of it.
            if self.store.break_claim(claim.pipeline, claim.token):
                self.telling.count(claim.pipeline, "lease_expired")
                self._refuse(claim.pipeline, f"no worker began within the lease of {self.settings.lease_s:g} s")

    def _lead(self, leader: str, stop: threading.Event) -> None:
        now = self._clock()
        desk = Desk(self._entries(), self.store, told=self._told)
        # However long it took to get the lead from one that was lost: that is no reason to miss a time.
        settings = self.settings
        interval_s = max(settings.interval_s, settings.leader_lease_s + 2 * settings.poll_s)
        for missed in desk.write_down_due(now, interval_s):
            log.warning("%s", missed)
            self.telling.missed(missed.name, missed.words(), count=missed.count, last=missed.last, at=now)
        write_down_messages(desk, now)
        reached("due-written")
        recover(desk, self.telling, self.worker_id, lease_s=self.settings.lease_s, now=now)
        self._free_claims_in_doubt()
        self._report_unbegun()
        room = _Room(desk, self.settings.max_concurrency)
        self.pulse.running = room.running
        self._claims = {ref: token for ref, token in self._claims.items() if token in room.tokens}
        may_go_on = _Lead(self.store, leader, self.settings.leader_lease_s, stop)
        self._dispatch_requests(desk, room, may_go_on)
        candidates, held = desk.candidates(now)
        for one in held:
            self._say_once(one.name, one.reason)
        self._next_attempt = min((one.slot.eligible_at for one in held if one.slot.eligible_at), default=None)
        remind(desk, self.telling, now)
        last_runs = self.store.last_runs() if candidates else {}
        asked_for: set[str] = set()
        for candidate in candidates:
            if not may_go_on():
                log.warning("the lead was lost in the middle of a tick: the rest is another scheduler's")
                return
            if candidate.name in asked_for or self._is_refused(candidate.name, now):
                continue
            reason = room.refusal(candidate.entry) or desk.waits_for(candidate, now, last_runs)
            if reason is not None:
                self._say_once(candidate.name, reason)
                continue
            # Once in a tick: if its claim comes free in this moment, the earlier of two times is still the next one.
            asked_for.add(candidate.name)
            if not self._dispatch_slot(candidate, room):
                return

    def _is_refused(self, name: str, now: datetime) -> bool:
        # A wait that is longer than any wait: the clock was set back since.
        wait_s = (self._refused[name][1] - now).total_seconds() if name in self._refused else 0.0
        return 0.0 < wait_s <= _LONGEST_WAIT_S

    def _say_once(self, name: str, reason: str) -> None:
        if self._waiting.get(name) != reason:
            self._waiting[name] = reason
            self.telling.skipped(name)
            log.info("waiting: pipeline=%s (%s)", name, reason)

    def _dispatch_slot(self, candidate: Candidate, room: _Room) -> bool:
        """Claim it and hand it over; False when there is nobody left to hand anything to."""
        token = self._claimed(candidate.name)
        if token is None:
            return True  # it is being run
        slot = candidate.slot.at
        return self._handed_over(candidate.entry, token, {SLOT_VARIABLE: slot_key(slot)}, room, slot) != "full"

    def _claimed(self, name: str) -> str | None:
        """A claim for a worker that is yet to be found; None when somebody has it. In doubt until it is handed over."""
        self._in_doubt.add(name)
        token = take(self.store, name, self._dispatcher, self.settings.lease_s)[0]
        if token is None:
            self._in_doubt.discard(name)
        return token

    @property
    def _dispatcher(self) -> str:
        return f"{_DISPATCHED}{self.worker_id}"

    def _free_claims_in_doubt(self) -> None:
        """Claims that no worker has heard of: the run log went away before it answered, or took them back."""
        if not self._in_doubt:
            return
        handed_over = set(self._claims.values())
        for claim in self.store.claims():
            is_ours = claim.pipeline in self._in_doubt and claim.worker_id == self._dispatcher
            if is_ours and claim.token not in handed_over:
                self.store.break_claim(claim.pipeline, claim.token)
        self._in_doubt.clear()

    def _handed_over(
        self, entry: Orchestrated, token: str, env: Mapping[str, str], room: _Room, slot: datetime | None = None
    ) -> str:
        spec = DispatchSpec(
            entry.name,
            self.settings.module,
            token,
            self.settings.lease_s,
            self.settings.run_log_url,
            self.settings.alerter_urls,
            self.settings.metrics_url,
            {**self.settings.worker_env, **env},
        )
        reached("claimed")
        try:
            handle = self.executor.dispatch(spec)
        except NoFreeWorker as exc:
            give_back(self.store, token)
            self._say_once(entry.name, exc.message)
            return "full"
        except Exception as exc:  # whatever the place says: the claim is given back, the next tick tries again
            give_back(self.store, token)
            self.telling.dispatch_failed(entry.name, exc, slot=slot, at=self._clock())
            log.error("dispatch failed: pipeline=%s: %s", entry.name, scrub(str(exc)))
            return "failed"
        reached("dispatched")
        self._claims[handle.ref] = token
        self._in_doubt.discard(entry.name)
        self._waiting.pop(entry.name, None)
        room.take(entry)
        self.pulse.dispatched += 1
        self.telling.count(entry.name, "dispatched")
        log.info("dispatched pipeline=%s claim=%s", entry.name, token[:8])
        return "started"

    def _dispatch_requests(self, desk: Desk, room: _Room, may_go_on: Callable[[], bool]) -> None:
        for request in self.store.pending_actions():
            entry = desk.entries.get(request.pipeline)
            if request.status != "requested" or entry is None or room.refusal(entry) is not None:
                continue
            if self._is_refused(entry.name, self._clock()):
                continue
            if not may_go_on():
                return
            token = self._claimed(entry.name)
            if token is None:
                continue
            if not self.store.consume_requested_run(request.run_id):
                self.store.release(token)
                continue
            if self._handed_over(entry, token, request_environment(request), room) != "started":
                self.store.return_requested_run(request.run_id)

    def _pause_s(self) -> float:
        """Until the next fire time or attempt, and never longer than the poll interval."""
        now = self._clock()
        moments = [
            moment
            for entry in self._entries()
            if entry.due is not None and (moment := entry.due.schedule.next_after(now)) is not None
        ]
        moments += [until for _, until in self._refused.values() if until > now]
        if self._next_attempt is not None and self._next_attempt > now:
            moments.append(self._next_attempt)
        if not moments:
            return self.settings.poll_s
        return max(0.05, min(self.settings.poll_s, (min(moments) - now).total_seconds()))


def request_environment(request: RunRecord) -> dict[str, str]:
    """What a worker is told of a run that somebody asked for."""
    asked, found = request.extras, {REQUEST_VARIABLE: request.run_id}
    if asked.get("restart_from_step"):
        found["EMATIX_FLOW_RESTART_FROM_STEP"] = str(asked["restart_from_step"])
    if asked.get("rerun_full"):
        found["EMATIX_FLOW_RERUN_FULL"] = "1"
    if asked.get("prior_run_id"):
        found["EMATIX_FLOW_PRIOR_RUN_ID"] = str(asked["prior_run_id"])
    return found


class _Lead:
    """Whether this scheduler still leads. The lease is prolonged on the way, so that a long tick keeps it."""

    def __init__(self, store: RunLog, token: str, lease_s: float, stop: threading.Event) -> None:
        self._store, self._token, self._lease_s, self._stop = store, token, lease_s, stop
        self._renewed = time.monotonic()

    def __call__(self) -> bool:
        if self._stop.is_set() or not self._store.holds(self._token):
            return False
        if time.monotonic() - self._renewed > self._lease_s / 3:
            self._renewed = time.monotonic()
            return self._store.heartbeat(self._token, self._lease_s)
        return True


class _Room:
    """How many may run at a time: over all of them, and one per concurrency group."""

    def __init__(self, desk: Desk, most: int | None) -> None:
        clock = desk.log.clock()
        claims = desk.log.claims()
        self.tokens = {one.token for one in claims}
        busy = {one.pipeline: one.worker_id for one in claims if one.expires_at > clock and one.pipeline != LEADER}
        # A backfill runs in the process that asked for it.
        slots = busy.keys() - desk.entries.keys()
        backfills = {name: base for name in slots if (base := name.rpartition("@")[0]) in desk.entries}
        # A workflow and the job it is at are one, and have one worker; a job that another worker is at runs by itself,
        # and so does one that is yet on its way to a worker.
        jobs = {(job, worker) for name, worker in busy.items() for job in _jobs(desk, backfills.get(name, name))}
        inside = {name for name, by in busy.items() if (name, by) in jobs and not by.startswith(_DISPATCHED)}
        self._most, self.running = most, len(busy.keys() - backfills.keys() - inside)
        self._groups = {
            group: name for name in busy if name in desk.entries and (group := desk.entries[name].concurrency_group)
        }

    def refusal(self, entry: Orchestrated) -> str | None:
        """Why it cannot start for lack of room; None when it can."""
        if self._most is not None and self.running >= self._most:
            return f"{self.running} of at most {self._most} run already"
        other = self._groups.get(entry.concurrency_group) if entry.concurrency_group else None
        return f"'{other}' of the same concurrency group runs" if other and other != entry.name else None

    def take(self, entry: Orchestrated) -> None:
        """It has started."""
        self.running += 1
        if entry.concurrency_group:
            self._groups[entry.concurrency_group] = entry.name


def _jobs(desk: Desk, name: str) -> tuple[str, ...]:
    entry = desk.entries.get(name)
    return entry.jobs if entry is not None else ()


def run_scheduler(
    *,
    module: str,
    run_log: RunLog,
    run_log_url: str,
    executor: Executor,
    alerter_urls: Sequence[str] | None = None,
    metrics_url: str | None = None,
    alerters: Sequence[Alerter] | None = None,
    metrics: MetricsSink | None = None,
    poll_interval_seconds: float = 10,
    lease_seconds: float = 300,
    leader_lease_seconds: float = 60,
    interval_seconds: float = 60,
    worker_id: str | None = None,
    history: RunLog | None = None,
    max_iterations: int | None = None,
    max_concurrency: int | None = None,
    now_fn: Callable[[], datetime] | None = None,
    sleep_fn: Callable[[float], Any] | None = None,
    stop: threading.Event | None = None,
) -> Scheduler:
    """Run a scheduler in this thread until `stop` is set, or for `max_iterations` ticks.

    `history` may be left out: requested runs are read from the run log.
    """
    settings = SchedulerSettings(
        module=module,
        run_log_url=run_log_url,
        alerter_urls=tuple(alerter_urls or ()),
        metrics_url=metrics_url,
        poll_s=poll_interval_seconds,
        lease_s=lease_seconds,
        leader_lease_s=leader_lease_seconds,
        interval_s=interval_seconds,
        max_concurrency=max_concurrency,
    )
    store = history if history is not None else run_log
    telling = Telling(list(alerters or ()), metrics, store)
    scheduler = Scheduler(settings, store, executor, telling, worker_id=worker_id, clock=now_fn or utc_now)
    scheduler.run(stop or threading.Event(), max_iterations=max_iterations, sleep=sleep_fn)
    return scheduler
