"""Slots, gates, attempts and alerts over a run log in memory: what is decided, without processes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import AllOf, Annotated, AnyOf, BigInt, connect, ematix, pipeline, pk
from ematix_flow.alerters import DispatchFailedEvent
from ematix_flow.contracts.orchestration import AlertEvent, LastRun, Slot
from ematix_flow.contracts.run_context import current_run
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.errors import InvalidConfig, StaleLease
from ematix_flow.orchestrate import backfill, control, workflow_run
from ematix_flow.orchestrate.backfill import plan_backfill, run_backfill
from ematix_flow.orchestrate.desk import Desk
from ematix_flow.orchestrate.freshness import check_freshness
from ematix_flow.orchestrate.heartbeat import Heartbeat
from ematix_flow.orchestrate.outcomes import Outcome
from ematix_flow.orchestrate.recovery import recover, remind, take
from ematix_flow.orchestrate.run_due import run_due, run_due_with_dag, run_due_with_dag_detailed
from ematix_flow.orchestrate.scheduler import _Room
from ematix_flow.orchestrate.status import status_of
from ematix_flow.orchestrate.work import Lease, Work
from ematix_flow.plan.cron import Schedule
from ematix_flow.plan.graph import Upstream, gate
from ematix_flow.run.registered import Orchestrated, orchestrated
from ematix_flow.run.runlogs.in_process import forget_process_log
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.watch.alert_text import facts
from ematix_flow.watch.telling import Telling

SIX = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)


class Heard:
    """An alerter that remembers."""

    def __init__(self, realert_after_s: float | None = None) -> None:
        self.events: list[tuple[str, str]] = []
        self.realert_after_s = realert_after_s
        self.is_deaf = False

    def notify(self, event: AlertEvent) -> None:
        """Remember it."""
        if self.is_deaf:
            raise OSError("not now")
        self.events.append((event.kind, event.pipeline))


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Nothing is declared yet, and this process knows of no run."""
    forget_process_log()
    with isolated_registry():
        yield
    forget_process_log()


def at(**after: float) -> datetime:
    """So much later than six."""
    return SIX + timedelta(**after)


def test_a_pipeline_that_is_given_up_is_told_of_once_and_again_after_it_was_cleared() -> None:
    @pipeline.register(name="bad", schedule="* * * * *", retry={"max_attempts": 2})
    def bad() -> None:
        raise RuntimeError("boom")

    store, heard = InMemoryRunLog(), Heard()
    telling = Telling([heard], log=store)
    for minute in range(4):
        run_due(orchestrated(), store, telling, now=at(minutes=minute))
        remind(Desk(orchestrated(), store), telling, at(minutes=minute))
    assert heard.events == [("failed", "bad"), ("failed", "bad"), ("gave_up", "bad")]
    control.retry(store, "bad")
    for minute in range(4, 7):
        run_due(orchestrated(), store, telling, now=at(minutes=minute))
    assert heard.events[3:] == [("failed", "bad"), ("failed", "bad"), ("gave_up", "bad")]


@pytest.mark.parametrize("end", [SystemExit(0), asyncio.CancelledError()], ids=lambda end: type(end).__name__)
def test_a_body_that_ends_its_process_has_failed_and_the_others_run(end: BaseException) -> None:
    def leaves() -> None:
        raise end

    pipeline.register(name="leaves", schedule="* * * * *", retry={"max_attempts": 1})(leaves)
    pipeline.register(name="job", schedule=None)(leaves)
    pipeline.register(name="next", schedule="* * * * *")(lambda: {"rows": 1})
    ematix.workflow(name="jobs", jobs=["job"], schedule="* * * * *")
    store, heard = InMemoryRunLog(), Heard()
    result = run_due(orchestrated(), store, Telling([heard], log=store), now=SIX)
    kind = type(end).__name__
    assert [one.name for one in result.fired] == ["next"]
    failed = sorted((one.name, one.error_type, one.gave_up) for one in result.failed)
    assert failed == [("jobs", kind, False), ("leaves", kind, True)]
    assert sorted(heard.events) == [("failed", "jobs"), ("failed", "leaves"), ("gave_up", "leaves")]
    records, _ = store.list_runs(status="failed")
    assert {(one.pipeline, one.finished_at is not None) for one in records} == {
        ("leaves", True),
        ("job", True),
        ("jobs", True),
    }


def test_a_run_in_the_background_of_a_shell_is_cancelled_and_heeds_no_other_interruption() -> None:
    store, cancelled = InMemoryRunLog(), threading.Event()
    token = store.claim("orders", "me", 60).token
    assert token is not None
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    heartbeat = Heartbeat(store, token, lease_s=60, every_s=0.02, is_cancelled=cancelled.is_set)
    got_so_far = []
    try:
        with pytest.raises(KeyboardInterrupt), heartbeat, heartbeat.interruptible():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            got_so_far.append("over the one of the terminal")
            cancelled.set()
            time.sleep(20)
            got_so_far.append("to the end")
        assert got_so_far == ["over the one of the terminal"] and heartbeat.has_interrupted
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_clock_that_is_set_back_does_not_prolong_a_wait_between_attempts() -> None:
    @pipeline.register(name="bad", schedule=None, retry={"max_attempts": 5, "backoff": "exponential", "base_secs": 30})
    def bad() -> None:
        raise RuntimeError("boom")

    store = InMemoryRunLog()
    store.add_slots([Slot("bad", SIX)])
    ran = [run_due(orchestrated(), store, Telling(), now=now).failed for now in (SIX, at(seconds=10), at(hours=-1))]
    assert [len(failed) for failed in ran] == [1, 0, 1], "an hour would be longer than any wait"
    assert not run_due(orchestrated(), store, Telling(), now=at(hours=-1, seconds=50)).failed, (
        "it waits again, a minute"
    )


def test_no_attempt_begins_before_its_wait_is_over() -> None:
    @pipeline.register(name="bad", schedule=None, retry={"max_attempts": 3, "base_secs": 1})
    def bad() -> None:
        raise RuntimeError("boom")

    store = InMemoryRunLog()
    store.add_slots([Slot("bad", SIX)])
    assert len(run_due(orchestrated(), store, Telling(), now=SIX).failed) == 1
    (slot,) = store.open_slots()
    assert slot.eligible_at is not None
    desk = Desk(orchestrated(), store)
    assert desk.candidates(slot.eligible_at - timedelta(milliseconds=5))[0] == []
    assert [one.name for one in desk.candidates(slot.eligible_at)[0]] == ["bad"]


def test_an_upstream_that_is_late_with_an_older_time_still_holds_back() -> None:
    hourly = Schedule("0 * * * *")
    late = LastRun(at(minutes=20), True, at(minutes=20), at(hours=-1))
    assert gate([Upstream("up", hourly, late)], slot=SIX, now=at(minutes=21)) == ("up",)
    done = LastRun(at(minutes=20), True, at(minutes=20), SIX)
    assert gate([Upstream("up", hourly, done)], slot=SIX, now=at(minutes=21)) == ()


def test_a_run_by_hand_stands_for_every_time_up_to_it() -> None:
    @pipeline.register(name="up", schedule="0 6 * * *")
    def up() -> None: ...

    @pipeline.register(name="down", schedule="0 6 * * *", depends_on=["up"])
    def down() -> None: ...

    store, telling = InMemoryRunLog(), Telling()
    store.add_slots([Slot("down", SIX)])
    assert [one.name for one in run_due(orchestrated(), store, telling, now=at(hours=2)).fired] == []
    token, _ = take(store, "up", "ann", 30)
    entry = next(one for one in orchestrated() if one.name == "up")
    assert token is not None
    Work(store, telling).run_by_hand(entry, Lease(token, 30, 10))
    store.release(token)
    assert [one.name for one in run_due(orchestrated(), store, telling, now=at(hours=2)).fired] == ["down"]


@pytest.mark.parametrize("names", [("eu", "us"), ("us", "eu")])
def test_whichever_member_of_any_of_came_last_is_noticed(names: tuple[str, str]) -> None:
    for name in ("eu", "us", "job"):
        pipeline.register(name=name, schedule=None)(lambda: None)
    ematix.workflow(name="after", jobs=["job"], triggered_by=AnyOf(*names))
    store = InMemoryRunLog()
    store.record_run("eu", at(minutes=1), True)
    desk = Desk(orchestrated(), store)
    desk.write_down_due(at(minutes=2), 60)
    assert store.last_slots()["after"] == at(minutes=1)
    store.record_run("us", at(minutes=5), True)
    store.record_run("after", at(minutes=10), True, slot=at(minutes=1))
    desk.write_down_due(at(minutes=11), 60)
    assert store.last_slots()["after"] == at(minutes=5)


def test_all_of_waits_for_all() -> None:
    for name in ("eu", "us", "job"):
        pipeline.register(name=name, schedule=None)(lambda: None)
    ematix.workflow(name="after", jobs=["job"], triggered_by=AllOf("eu", "us"))
    store = InMemoryRunLog()
    desk = Desk(orchestrated(), store)
    store.record_run("eu", at(minutes=1), True)
    desk.write_down_due(at(minutes=2), 60)
    assert "after" not in store.last_slots()
    store.record_run("us", at(minutes=3), True)
    desk.write_down_due(at(minutes=4), 60)
    assert store.last_slots()["after"] == at(minutes=3)


def test_with_catchup_all_a_bad_time_is_given_up_though_others_succeed() -> None:
    from ematix_flow import current_run

    tries: list[datetime] = []

    @pipeline.register(name="p", schedule="* * * * *", catchup="all", retry={"max_attempts": 3})
    def p() -> None:
        run = current_run()
        assert run is not None and run.slot is not None
        if run.slot == SIX:
            tries.append(run.slot)
            raise RuntimeError("this one never works")

    store, telling = InMemoryRunLog(), Telling()
    for minute in range(8):
        run_due(orchestrated(), store, telling, now=at(minutes=minute, seconds=1))
    assert len(tries) == 3
    assert {slot.at: slot.status for slot in store.slots("p")}[SIX] == "failed"


def test_a_slot_on_its_way_to_a_worker_is_not_superseded() -> None:
    pipeline.register(name="p", schedule="* * * * *")(lambda: None)
    store = InMemoryRunLog()
    desk = Desk(orchestrated(), store)
    desk.write_down_due(at(seconds=1), 60)
    claim = store.claim("p", "dispatched by somebody", 300)
    desk.write_down_due(at(minutes=1, seconds=1), 60)
    assert [slot.status for slot in store.slots("p")] == ["pending", "pending"]
    assert claim.token is not None
    store.release(claim.token)
    desk.write_down_due(at(minutes=2, seconds=1), 60)
    assert [slot.status for slot in store.slots("p")] == ["pending", "superseded", "superseded"]


def test_a_worker_without_its_claim_writes_nothing_about_the_pipeline() -> None:
    store, telling = InMemoryRunLog(), Telling()

    @pipeline.register(name="p", schedule="* * * * *")
    def p() -> None:
        # While it worked it was frozen, and taken for dead.
        claim = store.claims()[0]
        store.break_claim("p", claim.token)
        recover(Desk(orchestrated(), store), telling, "bob", lease_s=30, now=at(seconds=30))

    run_due(orchestrated(), store, telling, now=at(seconds=1))
    assert store.last_runs()["p"].success is False
    assert [slot.status for slot in store.slots("p")] == ["failed"]


def test_a_run_log_that_goes_away_does_not_keep_the_others_from_running(caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []
    store = InMemoryRunLog()

    def body(name: str) -> Any:
        def run() -> None:
            ran.append(name)
            store.close()

        return run

    for name in ("first", "second"):
        pipeline.register(name=name, schedule="* * * * *")(body(name))
    pipeline.register(name="third", schedule="* * * * *", depends_on=["second"])(body("third"))
    import ematix_flow.orchestrate.work as work

    patience, work.PATIENCE_S = work.PATIENCE_S, 0.1
    try:
        result = run_due(orchestrated(), store, Telling(), now=at(seconds=1))
    finally:
        work.PATIENCE_S = patience
    assert ran == ["first", "second", "third"]
    assert [one.name for one in result.fired] == ran
    assert "runs without it" in caplog.text


def test_a_workflow_that_somebody_asks_for_runs_whatever_triggers_it() -> None:
    store = InMemoryRunLog()
    pipeline.register(name="orders", schedule=None)(lambda: {"rows": 1})
    pipeline.register(name="report", schedule=None, depends_on=["orders"])(lambda: {"pages": 3})
    ematix.workflow(name="morning", jobs=["report"], triggered_by="orders")
    asked = store.enqueue_run("morning", extras={"message": "orders-0-1742"})
    result = run_due(orchestrated(), store, Telling(), now=SIX)
    assert [(one.name, one.result) for one in result.fired] == [("morning", {"report": {"pages": 3}})]
    record = store.get_run(asked)
    assert record is not None and (record.status, record.extras["message"]) == ("succeeded", "orders-0-1742")
    assert run_due(orchestrated(), store, Telling(), now=at(minutes=1)).fired == (), "once"


def test_workflows_that_wait_for_what_has_just_run_do_so_in_the_same_call() -> None:
    for name in ("orders", "report", "mail", "late"):
        pipeline.register(name=name, schedule="0 6 * * *" if name == "orders" else None)(lambda: None)
    ematix.workflow(name="evening", jobs=["mail"], triggered_by="morning")
    ematix.workflow(name="morning", jobs=["report"], triggered_by="orders")
    ematix.workflow(name="never", jobs=["late"], triggered_by=AllOf("orders", "late"))
    store = InMemoryRunLog()
    result = run_due(orchestrated(), store, Telling(), now=at(seconds=10))
    assert [one.name for one in result.fired] == ["orders", "morning", "evening"]
    assert run_due(orchestrated(), store, Telling(), now=at(seconds=20)).fired == ()


def test_a_new_pipeline_has_missed_nothing_however_wide_the_first_look_is() -> None:
    pipeline.register(name="quarters", schedule="*/15 * * * *")(lambda: None)
    store = InMemoryRunLog()
    result = run_due(orchestrated(), store, Telling(), now=SIX, interval_s=3600)
    assert [one.name for one in result.fired] == ["quarters"] and result.missed == ()


def test_pipelines_by_name_from_code() -> None:
    pipeline.register(name="a", schedule=None)(lambda: {"rows": 1})
    pipeline.register(name="b", schedule=None, depends_on=["a"])(lambda: 5)
    result = run_due_with_dag_detailed(["b", "a"], now=SIX)
    assert [(one.name, one.result) for one in result.fired] == [("a", {"rows": 1}), ("b", 5)]
    assert run_due_with_dag(["b"], now=at(seconds=1)) == ["b"]
    with pytest.raises(KeyError, match="nowhere"):
        run_due_with_dag(["nowhere"])
    assert [row["name"] for row in pipeline.status_snapshot()] == ["a", "b"]


def test_whoever_asks_for_a_retry_gets_all_attempts_again() -> None:
    tries: list[int] = []

    @pipeline.register(name="bad", schedule="0 6 * * *", retry={"max_attempts": 2})
    def bad() -> None:
        tries.append(1)
        raise RuntimeError("boom")

    store, heard = InMemoryRunLog(), Heard()
    telling = Telling([heard], log=store)
    for round_ in range(2):
        for minute in range(4):
            run_due(orchestrated(), store, telling, now=at(minutes=10 * round_ + minute, seconds=1))
        assert len(tries) == 2 * (round_ + 1)
        assert control.retry(store, "bad") is not None
    assert [kind for kind, _ in heard.events] == ["failed", "failed", "gave_up"] * 2, "of the new attempts, too"


def test_a_backfill_does_not_run_ahead_of_the_clock() -> None:
    pipeline.register(name="p", schedule="0 6 * * *")(lambda: None)
    (entry,), store = orchestrated(), InMemoryRunLog()
    plan = plan_backfill(entry, store, at(days=-2), at(days=5), now=at(hours=1))
    assert [slot.at for slot in plan.to_run] == [at(days=-2), at(days=-1), SIX]
    assert plan.until == at(hours=1)
    assert plan_backfill(entry, store, at(days=-2), SIX, now=at(hours=1)).until is None
    with pytest.raises(InvalidConfig, match="has not come yet"):
        plan_backfill(entry, store, at(days=1), at(days=5), now=SIX)


def test_a_backfill_again_applies_a_time_once_more_and_never_appends_it(tmp_path: Path) -> None:
    @ematix.connection
    class place:
        kind = "sqlite"
        path = str(tmp_path / "place.db")

    @ematix.table(schema="main")
    class Orders:
        id: Annotated[BigInt, pk()]
        amount: BigInt

    @ematix.pipeline(target=Orders, target_connection="place", mode="merge", schedule="0 6 * * *")
    def load(conn: Any) -> str:
        return "SELECT id, amount FROM raw"

    @ematix.pipeline(target=Orders, target_connection="place", mode="append", schedule="0 6 * * *")
    def add(conn: Any) -> str:
        return "SELECT id, amount FROM raw"

    ematix.workflow(name="both", jobs=["load", "add"], schedule="0 6 * * *")
    entries, store = {entry.name: entry for entry in orchestrated()}, InMemoryRunLog()

    def loaded(*, again: bool) -> list[str]:
        ended = filled(entries["load"], store, Telling(), SIX, at(days=2), again=again)
        return [outcome.status for outcome in ended]

    with connect("place") as db:
        db.execute("CREATE TABLE raw (id BIGINT, amount BIGINT)")
        db.execute("INSERT INTO raw VALUES (1, 10)")
        assert loaded(again=False) == ["succeeded"] * 2
        db.execute("UPDATE raw SET amount = 11")
        assert loaded(again=False) == []
        assert db.fetch_scalar_int("SELECT amount FROM orders") == 10
        assert loaded(again=True) == ["succeeded"] * 2
        assert db.fetch_scalar_int("SELECT amount FROM orders") == 11
        db.execute("DROP TABLE raw")
        assert loaded(again=True) == ["failed"] * 2
        (failed, _), _ = store.list_runs(status="failed")
        db.execute("CREATE TABLE raw (id BIGINT, amount BIGINT)")
        db.execute("INSERT INTO raw VALUES (1, 12)")
        control.restart(store, failed.run_id, "load")
        assert run_due([entries["load"]], store, Telling(), now=at(days=9, hours=3)).fired
        assert db.fetch_scalar_int("SELECT amount FROM orders") == 12, "a restart is that logical run, not the first"
    for name in ("add", "both"):
        with pytest.raises(InvalidConfig, match="'add' appends"):
            plan_backfill(entries[name], store, SIX, at(days=2), again=True, now=at(days=9))


def test_the_retry_of_a_backfill_comes_although_its_wait_is_longer_than_a_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backfill, "_LEASE_S", 0.4)
    tries: list[datetime | None] = []

    @pipeline.register(
        name="p",
        schedule="0 6 * * *",
        retry={"max_attempts": 2, "backoff": "fixed", "base_secs": 1, "max_total_secs": 5},
    )
    def body() -> None:
        tries.append(None)
        raise RuntimeError("boom")

    (entry,), store = orchestrated(), InMemoryRunLog()
    (outcome,) = filled(entry, store, Telling(), SIX, at(hours=1))
    assert (outcome.status, outcome.attempt_count, outcome.gave_up) == ("failed", 2, True)
    assert len(tries) == 2
    (slot,) = store.slots("p")
    store.move_slot(replace(slot, first_failed_at=at(days=-9), attempt=0), expected="failed")
    del tries[:]
    filled(entry, store, Telling(), SIX, at(hours=1))
    assert len(tries) == 2, "what retries may take begins anew"


def test_a_time_that_is_run_again_says_nothing_about_how_the_schedule_is_doing() -> None:
    is_broken = False

    @pipeline.register(name="p", schedule="0 6 * * *", retry={"max_attempts": 2, "backoff": "fixed", "base_secs": 0})
    def body() -> None:
        if is_broken:
            raise RuntimeError("boom")

    pipeline.register(name="after", schedule=None, depends_on=["p"])(lambda: None)
    store, heard = InMemoryRunLog(), Heard()
    telling = Telling([heard], log=store)
    entries = {entry.name: entry for entry in orchestrated()}
    run_due(orchestrated(), store, telling, now=at(seconds=1))
    before, slots = store.last_runs(), store.slots("after")
    assert before["p"].last_success_slot == SIX
    is_broken = True
    (failed,) = filled(entries["p"], store, telling, SIX, at(hours=1), again=True)
    assert failed.status == "failed"
    assert (store.attempts(), store.last_runs()) == ({}, before), "the schedule goes on"
    is_broken = False
    (done,) = filled(entries["p"], store, telling, SIX, at(hours=1), again=True)
    assert done.status == "succeeded"
    assert (store.attempts(), store.last_runs(), store.slots("after")) == ({}, before, slots)
    assert ("recovered", "p") not in heard.events


def test_a_time_that_was_to_be_run_again_and_was_not_is_run_again_by_the_schedule() -> None:
    applied: list[str] = []

    @pipeline.register(name="p", schedule="0 6 * * *", idempotent=True)
    def body() -> None:
        run = current_run()
        assert run is not None
        applied.append(str(run.facts.get("logical_run")))
        if len(applied) == 2:
            raise KeyboardInterrupt

    (entry,), store = orchestrated(), InMemoryRunLog()
    run_due([entry], store, Telling(), now=at(seconds=1))
    with pytest.raises(KeyboardInterrupt):
        filled(entry, store, Telling(), SIX, at(hours=1), again=True)
    run_due([entry], store, Telling(), now=at(seconds=9))
    assert applied[0] == "None"
    assert applied[1] == applied[2]
    assert "again" in applied[1]


def test_times_of_a_workflow_take_turns_and_its_jobs_know_what_they_are_part_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workflow_run, "_PATIENCE_S", 0.0)
    seen: list[Any] = []

    @pipeline.register(name="job", schedule=None)
    def job() -> None:
        run = current_run()
        assert run is not None
        seen.append(run.facts.get("logical_run"))
        time.sleep(0.05)

    ematix.workflow(name="all", jobs=["job"], schedule="0 6 * * *")
    entries, store = {entry.name: entry for entry in orchestrated()}, InMemoryRunLog()
    ended = filled(entries["all"], store, Telling(), SIX, at(days=3), parallel=3)
    assert [outcome.status for outcome in ended] == ["succeeded"] * 3
    assert [outcome.status for outcome in filled(entries["all"], store, Telling(), SIX, at(hours=1), again=True)] == [
        "succeeded"
    ]
    assert seen[:3] == [None] * 3
    assert "2026-03-01T06:00:00Z again backfill-" in seen[3]


def test_another_attempt_of_a_workflow_repeats_no_job_that_is_done() -> None:
    ran: list[str] = []

    def body(name: str) -> None:
        ran.append(name)
        if name in ("left", "right") and ran.count(name) == 1:
            raise OSError("not yet")

    for name, after in (("first", []), ("left", ["first"]), ("right", ["first"]), ("last", ["left", "right"])):
        pipeline.register(name=name, schedule=None, depends_on=after)(lambda name=name: body(name))
    jobs = ["first", "left", "right", "last"]
    ematix.workflow(name="all", jobs=jobs, schedule="0 6 * * *", retry={"max_attempts": 3})
    entries, store = {entry.name: entry for entry in orchestrated()}, InMemoryRunLog()
    for minute in range(3):
        run_due(orchestrated(), store, Telling(), now=at(minutes=minute, seconds=1))
    assert ran == ["first", "left", "right", "left", "right", "last"]
    filled(entries["all"], store, Telling(), SIX, at(hours=1), again=True)
    assert ran[6:] == jobs, "a time that is run again is run as a whole"


def test_a_run_that_is_over_cannot_be_paused_and_names_are_known_by_what_they_did() -> None:
    pipeline.register(name="orders", schedule="0 6 * * *")(lambda: None)
    store = InMemoryRunLog()
    assert not control.is_known(store, "orders")
    run_due(orchestrated(), store, Telling(), now=SIX)
    assert control.is_known(store, "orders") and not control.is_known(store, "order")
    (record,), _ = store.list_runs(pipeline="orders")
    with pytest.raises(InvalidConfig, match="is over: it succeeded"):
        control.pause_run(store, record.run_id, is_paused=True)


def filled(
    entry: Orchestrated,
    store: InMemoryRunLog,
    telling: Telling,
    start: datetime,
    end: datetime,
    *,
    again: bool = False,
    parallel: int = 1,
) -> list[Outcome]:
    """How each time of a backfill ended."""
    ended: list[Outcome] = []
    plan = plan_backfill(entry, store, start, end, again=again, now=at(days=9))
    work = Work(store, telling)
    run_backfill(
        plan,
        entry,
        work,
        parallel=parallel,
        stop=threading.Event(),
        told=lambda slot, outcome: ended.append(outcome),
    )
    return ended


def test_a_breach_is_told_until_it_was_heard_and_again_to_those_who_want_to_be_reminded() -> None:
    store, once, often = InMemoryRunLog(), Heard(), Heard(realert_after_s=3600)
    telling = Telling([once, often], log=store)
    slas = {"p": timedelta(hours=1), "never": timedelta(hours=1)}
    store.record_run("p", at(hours=-2), True)
    once.is_deaf = often.is_deaf = True
    check_freshness(slas, store, telling, now=SIX)
    once.is_deaf = often.is_deaf = False
    for minute in (1, 2, 70):
        check_freshness(slas, store, telling, now=at(minutes=minute))
    assert sorted(once.events) == [("sla_breached", "never"), ("sla_breached", "p")]
    assert sorted(often.events) == sorted(once.events * 2)
    store.record_run("p", at(minutes=71), True)
    for minute in (72, 73):
        check_freshness(slas, store, telling, now=at(minutes=minute))
    assert once.events.count(("recovered", "p")) == 1


def test_a_workflow_and_the_job_it_is_at_count_as_one_and_backfills_do_not_count() -> None:
    for name in ("first", "second", "alone"):
        pipeline.register(name=name, schedule="0 6 * * *")(lambda: None)
    ematix.workflow(name="both", jobs=["first", "second"], schedule="0 6 * * *")
    store = InMemoryRunLog()
    for name in ("both", "first", "elsewhere", "alone@2026-03-01T06:00:00Z"):
        assert store.claim(name, "ann", 30).acquired
    assert _Room(Desk(orchestrated(), store), 3).running == 2
    assert store.claim("second", "bob", 30).acquired  # by its own schedule, in another process
    assert _Room(Desk(orchestrated(), store), 3).running == 3


def test_whoever_looks_at_the_clock_notes_what_is_declared() -> None:
    pipeline.register(name="p", schedule="0 6 * * *")(lambda: None)
    pipeline.register(name="by hand", schedule=None)(lambda: None)
    store = InMemoryRunLog()
    Desk(orchestrated(), store).write_down_due(SIX, 60)
    found = store._ask(lambda db: db.rows("SELECT pipeline_name FROM @declared ORDER BY 1"))
    assert found == [("by hand",), ("p",)]


def test_a_workflow_and_a_job_that_are_both_on_their_way_to_workers_count_as_two() -> None:
    pipeline.register(name="first", schedule="0 6 * * *")(lambda: None)
    ematix.workflow(name="both", jobs=["first"], schedule="0 6 * * *")
    store = InMemoryRunLog()
    for name in ("both", "first"):
        assert store.claim(name, "dispatched by ann", 30).acquired
    assert _Room(Desk(orchestrated(), store), 3).running == 2


def test_runs_are_recorded_in_the_bucket_though_claims_are_kept_in_memory() -> None:
    pipeline.register(name="p", schedule="0 6 * * *")(lambda: {"rows": 1})
    bucket, heard = InMemoryRunLog(), Heard()
    store = InMemoryRunLog()
    assert run_due(orchestrated(), store, Telling([heard]), now=at(seconds=1), history=bucket).fired
    assert [record.status for record in bucket.list_runs()[0]] == ["succeeded"]
    assert store.list_runs()[1] == 0


def test_a_slot_is_recovered_as_its_record_says_it_ended() -> None:
    pipeline.register(name="p", schedule="* * * * *", idempotent=True)(lambda: None)
    asked: dict[str, dict[str, Any]] = {
        "cancelled": {"status": "cancelled", "extras": {"cancel_requested": True}},
        "failed": {"status": "failed", "error_summary": "RuntimeError: boom"},
        "pending": {"status": "cancelled", "error_summary": "interrupted"},  # by a signal: it may be done again
        "pending ": {"status": "failed", "error_summary": str(StaleLease("the claim ran out"))},
    }
    for becomes, ended in asked.items():
        store, heard = InMemoryRunLog(), Heard()
        store.add_slots([Slot("p", SIX)])
        store.move_slot(Slot("p", SIX, status="running", attempt=1, run_id="r"), expected="pending")
        store.record_run_record(RunRecord("r", "p", started_at=SIX, finished_at=at(seconds=1), **ended))
        recover(Desk(orchestrated(), store), Telling([heard], log=store), "bob", lease_s=30, now=at(minutes=1))
        assert [slot.status for slot in store.slots("p")] == [becomes.strip()], becomes
        kinds = {"cancelled": [], "failed": ["failed"]}.get(becomes, ["lost"])
        assert [kind for kind, _ in heard.events] == kinds, becomes


def test_an_append_that_may_have_loaded_is_not_restarted_at_its_load() -> None:
    @ematix.table(schema="s")
    class T:
        id: BigInt

    @ematix.pipeline(target=T, target_connection="db", mode="append", idempotent=False)
    def load(conn: Any) -> str:
        return "SELECT 1 AS id"

    store = InMemoryRunLog()
    steps = [{"name": "source", "status": "succeeded"}, {"name": "load:t", "status": "failed"}]
    extras = {"steps": steps}
    store.record_run_record(RunRecord("r", "load", "failed", SIX, at(seconds=1), failed_step="load:t", extras=extras))
    asked = control.restart(store, "r", None)
    result = run_due(orchestrated(), store, Telling(), now=at(minutes=1))
    assert "would be loaded twice" in result.failed[0].error_message
    record = store.get_run(asked)
    assert record is not None and record.status == "failed" and "loaded twice" in str(record.error_summary)


def test_an_incremental_append_that_failed_goes_on_behind_its_mark_whoever_asks_for_it(tmp_path: Path) -> None:
    @ematix.connection
    class place:
        kind = "sqlite"
        path = str(tmp_path / "place.db")

    @ematix.table(schema="main")
    class Orders:
        id: BigInt
        amount: BigInt

    @ematix.pipeline(
        target=Orders, target_connection="place", mode="append", incremental_column="id", schedule="0 * * * *"
    )
    def load(conn: Any) -> str:
        return "SELECT id, amount FROM raw"

    store, telling = InMemoryRunLog(), Telling()
    with connect("place") as db:
        db.execute("CREATE TABLE raw (id BIGINT, amount BIGINT)")
        db.execute("INSERT INTO raw VALUES (1, 10), (2, 20)")
        assert run_due(orchestrated(), store, telling, now=at(seconds=1)).fired
        db.execute("INSERT INTO raw VALUES (3, 30), (4, NULL)")
        assert run_due(orchestrated(), store, telling, now=at(hours=1, seconds=1)).failed
        (failed,), _ = store.list_runs(status="failed")
        assert (failed.failed_step, failed.failed_watermark) == ("load:main.orders", "2")
        db.execute("UPDATE raw SET amount = 40 WHERE id = 4")
        asked = control.restart(store, failed.run_id, None)
        assert run_due(orchestrated(), store, telling, now=at(hours=1, minutes=1)).fired
        again = store.get_run(asked)
        assert again is not None and (again.status, again.extras["rows_inserted"]) == ("succeeded", 2)
        assert control.retry(store, "load") is not None, "its slot has not succeeded"
        (last,) = run_due(orchestrated(), store, telling, now=at(hours=1, minutes=2)).fired
        assert last.result["replayed"]
        loaded = db.query("SELECT id, amount FROM orders ORDER BY id")["rows"]
    assert [tuple(row) for row in loaded] == [(1, 10), (2, 20), (3, 30), (4, 40)]


def test_status_asks_the_run_log_as_often_whatever_number_of_pipelines_fails() -> None:
    def asked(failing: int) -> int:
        questions = [0]

        class Counting(InMemoryRunLog):
            def _ask(self, question: Any) -> Any:
                questions[0] += 1
                return super()._ask(question)

        store = Counting()
        for number in range(failing):
            store.record_run_record(
                RunRecord(f"r{number}", f"p{number}", "failed", SIX, SIX, error_summary=f"boom {number}\nand why")
            )
            store.record_run(f"p{number}", SIX, False)
        questions[0] = 0
        rows = status_of(orchestrated(), store, now=SIX)
        store.close()
        assert [row["last_error"] for row in rows[:failing]] == [f"boom {number}" for number in range(failing)]
        return questions[0]

    for number in range(9):
        pipeline.register(name=f"p{number}", schedule=None)(lambda: {})
    assert asked(9) == asked(1)


def test_a_failed_dispatch_is_an_event_of_its_own() -> None:
    event = DispatchFailedEvent("orders", "DispatchError", "no Job was made for postgres://ann:s3cret@db/x")
    assert (event.kind, event.pipeline, event.error_type) == ("dispatch_failed", "orders", "DispatchError")
    told = facts(event)
    assert told["error_message"].startswith("no Job was made") and "s3cret" not in told["error_message"]
    heard: list[AlertEvent] = []

    class Keeping:
        def notify(self, event: AlertEvent) -> None:
            heard.append(event)

    Telling([Keeping()]).dispatch_failed("orders", OSError("gone"), slot=SIX, at=SIX)
    assert heard == [DispatchFailedEvent("orders", "OSError", "gone", timestamp=SIX)]
