"""Telling: each alert once, whoever reports it and however often; numbers with it; and never in the way of a run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.contracts.orchestration import AlertEvent, RunLog
from ematix_flow.errors import StepFailed
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.run.runlogs.sqlite import SqliteRunLog
from ematix_flow.watch.alerters import from_url
from ematix_flow.watch.metrics import MemoryMetrics
from ematix_flow.watch.telling import Telling
from tests.watch.receivers import http_receiver

START = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)
SLOT = START


class Ear:
    """Hears everything; may be deaf for a while."""

    def __init__(self, realert_after_s: float | None = None) -> None:
        self.realert_after_s = realert_after_s
        self.heard: list[AlertEvent] = []
        self.is_deaf = False

    def notify(self, event: AlertEvent) -> None:
        if self.is_deaf:
            raise OSError("nobody is there")
        self.heard.append(event)

    @property
    def kinds(self) -> list[str]:
        return [str(event.kind) for event in self.heard]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def later(self, **by: float) -> None:
        self.now += timedelta(**by)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunLog]:
    log: Any = InMemoryRunLog() if request.param == "memory" else SqliteRunLog(str(tmp_path / "log.db"))
    yield log
    log.close()


def test_an_attempt_is_told_once_by_two_who_saw_it(store: RunLog) -> None:
    first, second = Ear(), Ear()
    for ear in (first, second):
        Telling([ear], log=store).failed("orders", OSError("full"), slot=SLOT, run_id="r1", max_attempts=3)
    assert (len(first.heard), len(second.heard)) == (1, 0)
    event = first.heard[0]
    assert (event.kind, event.error_type, event.error_message) == ("failed", "OSError", "full")
    assert (event.attempt_count, event.max_attempts, event.run_id) == (1, 3, "r1")


def test_many_processes_at_the_same_moment_tell_once(tmp_path: Path) -> None:
    ear, ready = Ear(), threading.Barrier(6)

    def process() -> None:
        log = SqliteRunLog(str(tmp_path / "log.db"))
        ready.wait()
        Telling([ear], log=log).failed("orders", "boom", slot=SLOT)  # type: ignore[arg-type]
        log.close()

    others = [threading.Thread(target=process) for _ in range(6)]
    for one in others:
        one.start()
    for one in others:
        one.join()
    assert ear.kinds == ["failed"]


def test_every_attempt_run_and_kind_is_told(store: RunLog) -> None:
    ear = Ear()
    telling = Telling([ear], log=store)
    telling.failed("orders", "a", slot=SLOT, attempt_count=1, max_attempts=2)
    telling.failed("orders", "b", slot=SLOT, attempt_count=2, max_attempts=2, gave_up=True)
    telling.failed("orders", "c", run_id="by hand")
    telling.failed("or:ders", "d", slot=SLOT)
    telling.lost("orders", run_id="r9", is_repeated=True)
    telling.quality_failed("orders", "3 rows are odd", run_id="r9")
    assert ear.kinds == ["failed", "failed", "gave_up", "failed", "failed", "lost", "quality_failed"]
    assert ear.heard[2].gave_up
    assert "it is tried again" in ear.heard[5].error_message


def test_a_recovery_is_told_once_and_names_the_attempt(store: RunLog) -> None:
    ear = Ear()
    for _ in range(2):
        telling = Telling([ear], log=store)
        telling.failed("orders", "a", slot=SLOT, attempt_count=2)
        telling.succeeded("orders", slot=SLOT, run_id="r2", failures=2)
    telling.succeeded("orders", slot=SLOT + timedelta(days=1), run_id="r3")
    # A recovery frees the keys of what it ended: who reports that once more is heard once more, the recovery is not.
    assert ear.kinds == ["failed", "recovered", "failed"]
    assert ear.heard[1].attempt_count == 3


def test_with_realert_after_a_pipeline_that_fails_each_minute_is_told_of_once_an_hour(store: RunLog) -> None:
    calm, eager, clock = Ear(realert_after_s=3600), Ear(), Clock()
    for minute in range(125):
        telling = Telling([calm, eager], log=store, clock=clock)  # each of them a process of its own
        telling.failed("orders", "down", slot=SLOT + timedelta(minutes=minute), attempt_count=minute + 1)
        clock.later(minutes=1)
    assert [event.attempt_count for event in calm.heard] == [1, 61, 121]
    assert len(eager.heard) == 125
    Telling([calm], log=store, clock=clock).succeeded("orders", run_id="r", failures=125)
    clock.later(minutes=1)
    Telling([calm], log=store, clock=clock).failed("orders", "again", slot=SLOT + timedelta(hours=3))
    assert calm.kinds == ["failed"] * 3 + ["recovered", "failed"]


def test_giving_up_is_told_at_once_and_reminded_of(store: RunLog) -> None:
    calm, eager, clock = Ear(realert_after_s=600), Ear(), Clock()
    telling = Telling([calm, eager], log=store, clock=clock)
    telling.failed("orders", "down", slot=SLOT, attempt_count=1)
    telling.failed("orders", "down", slot=SLOT, attempt_count=2, gave_up=True)
    for _ in range(25):
        clock.later(minutes=1)
        telling.gave_up("orders", "down", slot=SLOT, attempt_count=2)
    assert calm.kinds == ["failed", "gave_up", "gave_up", "gave_up"]
    assert eager.kinds == ["failed", "failed", "gave_up"]


def test_the_url_says_how_often(store: RunLog) -> None:
    clock = Clock()
    with http_receiver() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/h?realert_after=120"
        for minute in range(5):
            telling = Telling([from_url(url)], log=store, clock=clock)
            telling.failed("orders", "down", slot=SLOT + timedelta(minutes=minute))
            clock.later(minutes=1)
    assert [request.json()["timestamp"][14:16] for request in receiver.requests] == ["00", "02", "04"]


def test_an_alert_that_was_not_delivered_may_be_sent_again(store: RunLog, caplog: pytest.LogCaptureFixture) -> None:
    calm = Ear(realert_after_s=3600)
    calm.is_deaf = True
    telling = Telling([calm], log=store)
    telling.failed("orders", "down", slot=SLOT)
    assert "alert not delivered" in caplog.text
    calm.is_deaf = False
    telling.failed("orders", "down", slot=SLOT + timedelta(minutes=1))
    assert calm.kinds == ["failed"]


def test_a_start_that_fails_is_told_once_for_its_slot_and_counted_each_time(store: RunLog) -> None:
    ear, numbers, clock = Ear(), MemoryMetrics(), Clock()
    telling = Telling([ear], numbers, log=store, clock=clock)
    for _ in range(3):
        telling.dispatch_failed("orders", RuntimeError("no room"), slot=SLOT)
        telling.dispatch_failed("no slot", RuntimeError("no room"))
        clock.later(seconds=10)
    assert [event.pipeline for event in ear.heard] == ["orders", "no slot"]
    assert numbers.counters["orders", "dispatch_failed"] == 3


def test_freshness_has_edges(store: RunLog) -> None:
    ear = Ear()
    telling = Telling([ear], log=store)
    telling.failed("orders", "x", slot=SLOT)
    for _ in range(2):
        telling.sla_breached("orders", "2 h old", since=START)
    for _ in range(2):
        telling.fresh_again("orders", since=START + timedelta(hours=3))
    telling.sla_breached("orders", "2 h old", since=START + timedelta(hours=3))
    telling.failed("orders", "x", slot=SLOT)
    assert ear.kinds == ["failed", "sla_breached", "recovered", "sla_breached"]


def test_without_a_run_log_the_process_remembers_for_itself() -> None:
    ear, calm, clock = Ear(), Ear(realert_after_s=60), Clock()
    telling = Telling([ear, calm], clock=clock)
    telling.failed("orders", "x", slot=SLOT)
    telling.failed("orders", "x", slot=SLOT)
    clock.later(seconds=61)
    telling.failed("orders", "x", slot=SLOT)
    telling.recovered("orders", slot=SLOT)
    telling.failed("orders", "x", slot=SLOT)
    assert ear.kinds == ["failed", "recovered", "failed"]
    assert calm.kinds == ["failed", "failed", "recovered", "failed"]


class DownStore:
    """A run log that is away, and says so with its password."""

    def first_alert(self, *_: Any, **__: Any) -> bool:
        raise OSError("no route to postgres://ann:hushhush@db/x")

    def forget_alerts(self, prefix: str) -> None:
        raise OSError("no route to postgres://ann:hushhush@db/x")


def test_a_run_log_that_is_away_is_one_warning_and_the_alert_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    ear = Ear()
    telling = Telling([ear], log=DownStore())  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        telling.failed("orders", "x", slot=SLOT)
        telling.failed("orders", "x", slot=SLOT + timedelta(minutes=1))
        telling.succeeded("orders", failures=2, run_id="r")
    assert ear.kinds == ["failed", "failed", "recovered"]
    assert len(caplog.messages) == 1
    assert "hushhush" not in caplog.text


def test_secrets_of_an_error_reach_nobody() -> None:
    ear = Ear()
    Telling([ear]).failed("orders", StepFailed("postgres://ann:hushhush@db/x is away"), run_id="r")
    assert "hushhush" not in ear.heard[0].error_message
    assert ear.heard[0].error_type == "StepFailed"


def test_numbers_follow_what_is_told() -> None:
    numbers = MemoryMetrics()
    telling = Telling(metrics=numbers)
    telling.failed("orders", "x", attempt_count=1, took_s=2.5, run_id="r1")
    assert numbers.attempts["orders"] == 1
    telling.succeeded("orders", failures=1, result={"rows_inserted": 7, "rows_updated": 2}, took_s=3.5, at=START)
    telling.skipped("orders")
    telling.count("_scheduler", "tick_error")
    telling.close()
    assert dict(numbers.counters) == {
        ("orders", "failure"): 1,
        ("orders", "success"): 1,
        ("orders", "skipped"): 1,
        ("_scheduler", "tick_error"): 1,
    }
    assert numbers.durations["orders"] == [2.5, 3.5]
    assert numbers.attempts["orders"] == 0
    assert numbers.last_success["orders"] == START.timestamp()
    assert dict(numbers.rows) == {("orders", "inserted"): 7, ("orders", "updated"): 2}


def test_a_sink_that_breaks_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def inc_runs(self, name: str, outcome: str) -> None:
            raise OSError("password=hushhush")

        def observe_duration(self, name: str, secs: float) -> None:
            raise OSError

        def set_attempt(self, name: str, count: int) -> None:
            raise OSError

        def close(self) -> None:
            raise OSError

    telling = Telling(metrics=Broken())
    telling.succeeded("orders", took_s=1, run_id="r")
    telling.failed("orders", "x", run_id="r")
    telling.close()
    assert len(caplog.messages) == 1
    assert "hushhush" not in caplog.text


def test_a_sink_with_four_methods_is_enough() -> None:
    class Small:
        def __init__(self) -> None:
            self.calls: list[tuple[Any, ...]] = []

        def inc_runs(self, name: str, outcome: str) -> None:
            self.calls.append((name, outcome))

        def observe_duration(self, name: str, secs: float) -> None:
            self.calls.append((name, secs))

        def set_attempt(self, name: str, count: int) -> None:
            self.calls.append((name, count))

        def close(self) -> None:
            self.calls.append(())

    small = Small()
    telling = Telling(metrics=small)
    telling.succeeded("orders", took_s=1.5, result={"rows_inserted": 3})
    telling.close()
    assert small.calls == [("orders", "success"), ("orders", 1.5), ("orders", 0), ()]


def test_two_alerters_of_one_kind_are_two(store: RunLog) -> None:
    first, second = Ear(), Ear()
    Telling([first, second], log=store).failed("orders", "x" * 400, slot=SLOT)
    Telling([first, second], log=store).failed("ö" * 300, "long names are fine", slot=SLOT)
    assert (len(first.heard), len(second.heard)) == (2, 2)
