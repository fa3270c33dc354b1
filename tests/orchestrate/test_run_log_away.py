"""`flow scheduler` whose run log, in a PostgreSQL of its own, crashes or is away while work is in flight."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ematix_flow import pipeline
from ematix_flow.contracts.orchestration import (
    AlertEvent,
    ClaimResult,
    DispatchHandle,
    DispatchReport,
    DispatchSpec,
    Slot,
)
from ematix_flow.errors import ConnectionFailed
from ematix_flow.orchestrate.scheduler import LEADER, SLOT_VARIABLE, Scheduler, SchedulerSettings
from ematix_flow.orchestrate.work import slot_key
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.run.runlogs.urls import from_url
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.watch.metrics import MemoryMetrics
from ematix_flow.watch.telling import Telling
from tests.orchestrate.project import Project, opened
from tests.services import postgres

EVERY = timedelta(seconds=6)
# Every time is wanted, so that one which passes while the run log is away must be run, too.
ORDERS = """
@pipeline.register(name="orders", schedule="* * * * * */6", catchup="all", idempotent=True)
def orders():
    ran("orders")
    hold("orders")
    return {"rows": 1}
"""
BILLS = """
@pipeline.register(name="bills", schedule=None, idempotent=IDEMPOTENT)
def bills():
    ran("bills")
    hold("bills")
    if fails("bills"):
        raise RuntimeError("no paper")
    return {"rows": 1}
"""


@dataclass
class OwnServer:
    """A PostgreSQL that nobody else uses, and the project whose run log lies in it."""

    home: Path
    project: Project

    def crash(self) -> None:
        """It goes down in the middle of everything, and is up again as soon as it can be."""
        postgres.restart(self.home)

    def go_away(self) -> None:
        """It goes down in the middle of everything."""
        postgres.stop(self.home)

    def come_back(self) -> None:
        """It is up again, on the same port."""
        postgres.restart(self.home)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnServer]:
    home = tmp_path / "postgres"
    server = postgres.start(home)
    try:
        # The servers of tests may forget what they have confirmed when they crash; a run log may not.
        server.run("ALTER SYSTEM SET synchronous_commit = on")
        server.run("SELECT pg_reload_conf()")
        (tmp_path / "project").mkdir()
        for project in opened(tmp_path / "project", server.url):
            yield OwnServer(home, project)
    finally:
        postgres.stop(home)


def started(project: Project, *options: str, flows: str) -> subprocess.Popen[str]:
    """A scheduler with its pipelines in flight, held up until their files are gone."""
    project.write(flows)
    names = set(re.findall(r'name="(\w+)"', flows))
    for name in names:
        (project.folder / f"hold-{name}").touch()
    log = from_url(project.run_log_url)
    log.add_slots([Slot("bills", log.clock().replace(microsecond=0))])
    log.close()
    quick = ("--poll-interval", "0.2", "--leader-lease-seconds", "2", "--alerter", "stdout://")
    running = project.start("scheduler", "--module", "flows", *quick, *options)
    project.until(lambda: {one["name"] for one in project.executions()} == names)
    return running


def let_go(project: Project, *names: str) -> None:
    """Let bodies that are held up go on."""
    for name in names:
        (project.folder / f"hold-{name}").unlink()


def slots(project: Project, name: str) -> list[Slot]:
    """The slots of a pipeline, oldest first."""
    log = from_url(project.run_log_url)
    try:
        return sorted(log.slots(name), key=lambda slot: slot.at)
    finally:
        log.close()


def told(project: Project, kind: str, name: str) -> int:
    """How often an alert of this kind was sent."""
    return len(re.findall(rf"\b{kind}: {name}\b", project.said()))


def stopped(project: Project, running: subprocess.Popen[str], *, after: datetime) -> list[Slot]:
    """Let the scheduler catch up to a time, then end it in order; what it has done of the orders, oldest first."""

    def has_caught_up() -> bool:
        return any(slot.at > after and slot.status == "succeeded" for slot in slots(project, "orders"))

    project.until(has_caught_up, within=90)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=20) == 0, project.said()
    project.until(lambda: not any(slot.status == "running" for slot in slots(project, "orders")))
    return [slot for slot in slots(project, "orders") if slot.status != "pending"]


def assert_every_time_ran_once(project: Project, done: list[Slot]) -> None:
    """No time is missing between the first and the last, each was executed once, and its record says so."""
    assert [slot.at for slot in done] == [done[0].at + number * EVERY for number in range(len(done))]
    assert {slot.status for slot in done} == {"succeeded"}
    times = {at: count for (name, at), count in project.times().items() if name == "orders"}
    assert times == {slot.at.isoformat(): 1 for slot in done}
    assert records(project, "orders") == {"succeeded": len(done)}


def records(project: Project, name: str) -> Counter[str]:
    """How the runs of a pipeline ended, as the run log has it."""
    listed = json.loads(project.flow("runs", "list", "--pipeline", name, "--limit", "100", "--json").stdout)
    return Counter(run["status"] for run in listed)


def now(project: Project) -> datetime:
    """The run log's time."""
    log = from_url(project.run_log_url)
    try:
        return log.clock()
    finally:
        log.close()


def test_a_crash_of_the_run_log_loses_and_doubles_nothing(own: OwnServer) -> None:
    project = own.project
    running = started(project, "--lease-seconds", "30", flows=ORDERS + BILLS.replace("IDEMPOTENT", "True"))
    (project.folder / "fail-bills").touch()
    own.crash()
    let_go(project, "orders", "bills")
    project.until(lambda: [slot.status for slot in slots(project, "bills")] == ["failed"])
    own.crash()  # once more, whatever the scheduler and its workers are at
    done = stopped(project, running, after=now(project))
    assert_every_time_ran_once(project, done)
    assert [one["name"] for one in project.executions()].count("bills") == 1
    assert told(project, "failed", "bills") == 1, project.said()
    assert told(project, "lost", "orders") == told(project, "lost", "bills") == 0, project.said()


def test_work_that_ends_while_the_run_log_is_away_is_written_down_when_it_is_back(own: OwnServer) -> None:
    project = own.project
    running = started(project, "--lease-seconds", "30", flows=ORDERS + BILLS.replace("IDEMPOTENT", "True"))
    (project.folder / "fail-bills").touch()
    own.go_away()
    began = time.monotonic()
    let_go(project, "orders", "bills")
    project.until(lambda: "nothing new is started" in project.said())
    executed = len(project.executions())
    time.sleep(max(0.0, 7 - (time.monotonic() - began)))  # so long that a time passes meanwhile
    assert running.poll() is None and len(project.executions()) == executed, "nothing starts without a run log"
    own.come_back()
    done = stopped(project, running, after=now(project))
    assert_every_time_ran_once(project, done)
    assert [slot.status for slot in slots(project, "bills")] == ["failed"]
    assert records(project, "bills") == {"failed": 1}
    assert told(project, "failed", "bills") == 1, project.said()
    assert told(project, "lost", "orders") == told(project, "lost", "bills") == 0, project.said()
    said = project.said()
    assert said.count("tick failed") == said.count("nothing new is started") == said.count("ticks go on") == 1, said


@pytest.mark.parametrize("idempotent", [True, False])
def test_work_out_of_touch_for_longer_than_its_lease_is_reported_or_done_once(own: OwnServer, idempotent: bool) -> None:
    project = own.project
    # A lease that a worker on a busy machine can begin in, and that an outage of seconds is longer than.
    started(project, "--lease-seconds", "6", flows=BILLS.replace("IDEMPOTENT", str(idempotent)))
    own.go_away()
    began = time.monotonic()
    project.until(lambda: "nothing new is started" in project.said())
    time.sleep(max(0.0, 8 - (time.monotonic() - began)))
    own.come_back()
    project.until(lambda: "ticks go on" in project.said())
    # The worker still runs: either it kept its claim, being heard of first, or its run was found without an owner.
    let_go(project, "bills")
    project.until(lambda: slots(project, "bills")[0].status in ("succeeded", "failed"))
    (slot,) = slots(project, "bills")
    executions, lost = len(project.executions()), told(project, "lost", "bills")
    if idempotent:
        assert (slot.status, executions) == ("succeeded", 1 + lost), project.said()
    else:
        assert executions == 1, "nobody repeats what cannot be repeated"
        assert slot.status == ("failed" if lost else "succeeded"), project.said()
    assert lost <= 1 and told(project, "failed", "bills") == 0, project.said()


class LosesAnswers(InMemoryRunLog):
    """A run log that does what it is asked, and goes away before it says so, once for each name."""

    def __init__(self, *loses: str) -> None:
        super().__init__()
        self.loses = set(loses)

    def claim(self, pipeline: str, worker_id: str, lease_seconds: float) -> ClaimResult:
        answer = super().claim(pipeline, worker_id, lease_seconds)
        if pipeline != LEADER and "claim" in self.loses:
            self.loses.remove("claim")
            raise ConnectionFailed("away")
        return answer

    def break_claim(self, pipeline: str, token: str) -> bool:
        if "break_claim" in self.loses:
            self.loses.remove("break_claim")
            raise ConnectionFailed("away")
        return super().break_claim(pipeline, token)


class Taking:
    """An executor whose workers end when a test says so."""

    def __init__(self) -> None:
        self.dispatched: list[DispatchHandle] = []
        self.slots: list[str] = []
        self.ended: list[DispatchReport] = []

    def dispatch(self, spec: DispatchSpec) -> DispatchHandle:
        self.slots.append(spec.env[SLOT_VARIABLE])
        self.dispatched.append(DispatchHandle(spec.pipeline_name, "taking", str(len(self.dispatched))))
        return self.dispatched[-1]

    def cancel(self, handle: DispatchHandle) -> None:
        raise AssertionError

    def running(self) -> int:
        return 0

    def reap(self) -> list[DispatchReport]:
        ended, self.ended = self.ended, []
        return ended

    def close(self, timeout_s: float = 5.0) -> None:
        raise AssertionError


def one_slot(store: InMemoryRunLog) -> tuple[Scheduler, Taking]:
    """A scheduler of one pipeline, whose only slot waits; a lease would last longer than any test."""
    pipeline.register(name="orders", schedule=None, idempotent=True)(lambda: None)
    store.add_slots([Slot("orders", store.clock())])
    executor = Taking()
    settings = SchedulerSettings(module="flows", run_log_url="memory://", lease_s=3600)
    return Scheduler(settings, store, executor, Telling()), executor


def test_a_claim_whose_answer_was_lost_does_not_hold_its_slot_up() -> None:
    with isolated_registry():
        scheduler, executor = one_slot(LosesAnswers("claim"))
        with pytest.raises(ConnectionFailed):
            scheduler.tick()
        assert executor.dispatched == []
        scheduler.tick()
        scheduler.tick()
    assert [handle.pipeline_name for handle in executor.dispatched] == ["orders"]


class FreedMeanwhile(InMemoryRunLog):
    """A run log in which a claim that is refused is free a moment later."""

    def claim(self, pipeline: str, worker_id: str, lease_seconds: float) -> ClaimResult:
        answer = super().claim(pipeline, worker_id, lease_seconds)
        for held in self.claims() if not answer.acquired else ():
            if held.pipeline == pipeline:
                self.release(held.token)
        return answer


def test_times_are_run_in_their_order_though_the_claim_comes_free_in_the_middle_of_a_tick() -> None:
    with isolated_registry():
        store = FreedMeanwhile()
        scheduler, executor = one_slot(store)
        (first,) = store.open_slots()
        store.add_slots([Slot("orders", first.at + EVERY)])
        assert store.claim("orders", "worker of the time before", 60).acquired
        scheduler.tick()
        scheduler.tick()
    assert executor.slots == [slot_key(first.at)]


def test_the_end_of_a_worker_is_not_forgotten_when_the_run_log_cannot_hear_of_it() -> None:
    with isolated_registry():
        scheduler, executor = one_slot(LosesAnswers("break_claim"))
        scheduler.tick()
        executor.ended = [DispatchReport(executor.dispatched[0], -9)]
        with pytest.raises(ConnectionFailed):
            scheduler.tick()
        scheduler.tick()
    assert len(executor.dispatched) == 2, "its claim was free at once"


def elapsed(scheduler: Scheduler, seconds: float) -> None:
    """As if so much time had passed for the scheduler."""
    then = scheduler._clock()
    scheduler._clock = lambda: then + timedelta(seconds=seconds)


def test_a_worker_that_never_begins_is_told_of_and_sent_for_less_often() -> None:
    """A pod that finds no room, a function that does not start: nobody reports an end, only the lease runs out."""
    store, metrics = InMemoryRunLog(), MemoryMetrics()
    told: list[AlertEvent] = []
    alerter = type("Heard", (), {"notify": lambda _self, event: told.append(event)})()
    with isolated_registry():
        scheduler, executor = one_slot(store)
        scheduler.telling = Telling([alerter], metrics, store)
        scheduler.settings = replace(scheduler.settings, lease_s=0.1, poll_s=10.0)
        scheduler.tick()
        time.sleep(0.2)
        scheduler.tick()
        scheduler.tick()
        assert len(executor.dispatched) == 1, "not at once again"
        elapsed(scheduler, 21)
        scheduler.tick()
        assert len(executor.dispatched) == 2
        time.sleep(0.2)
        scheduler.tick()
        elapsed(scheduler, 21)
        scheduler.tick()
        assert len(executor.dispatched) == 2, "the second wait is longer"
        elapsed(scheduler, -3600)
        scheduler.tick()
        assert len(executor.dispatched) == 3, "a clock that is set back does not make it last an hour longer"
    assert metrics.counters["orders", "lease_expired"] == metrics.counters["orders", "dispatch_failed"] == 2
    assert [(event.kind, event.pipeline) for event in told] == [("dispatch_failed", "orders")]
    assert "no worker began" in told[0].error_message


def test_a_scheduler_wakes_for_an_attempt_and_for_the_end_of_a_worker() -> None:
    store = InMemoryRunLog()
    with isolated_registry():
        scheduler, executor = one_slot(store)
        slot = store.open_slots("orders")[0]
        store.move_slot(replace(slot, eligible_at=store.clock() + timedelta(seconds=4)), expected="pending")
        scheduler.tick()
        assert executor.dispatched == []
        assert 1 < scheduler._pause_s() < 4.1, "not the ten seconds of the poll interval"
        scheduler._next_attempt = None
        began = time.monotonic()
        executor.ended = [DispatchReport(DispatchHandle("other", "taking", "x"), 0)]
        scheduler._rest(threading.Event())
        assert time.monotonic() - began < 2
        assert [report.handle.ref for report in scheduler._reports] == ["x"], "kept for the tick"
