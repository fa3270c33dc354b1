"""A scheduler and its workers while a time of day is set, their host's or their run log's: an hour ahead, or back."""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.request
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ematix_flow.contracts.orchestration import Slot
from tests.orchestrate.project import Project, opened
from tests.orchestrate.test_scheduler import opened_log, scheduler, statuses, waiting
from tests.services import postgres
from tests.services.shifted_clock import ShiftedClock

FLOWS = """
@pipeline.register(name="every", schedule="*/15 * * * *", catchup="all")
def every():
    ran("every")

@pipeline.register(name="fresh", schedule="* * * * * */4")
def fresh():
    ran("fresh")

@pipeline.register(name="long", schedule="0 0 1 1 *", catchup="all")
def long():
    ran("long")
    hold("long")

@pipeline.register(name="asked", schedule=None)
def asked():
    ran("asked")
"""
QUARTER, FOUR_SECONDS = timedelta(minutes=15), timedelta(seconds=4)


def test_a_clock_that_is_set_under_a_scheduler_loses_and_doubles_nothing(project: Project) -> None:
    clock = ShiftedClock(project.folder)
    clock.set_off(hours=-1)  # wrong from the beginning: the module's file is from the future
    project.write(FLOWS)
    (project.folder / "hold-long").touch()
    start = _floor(clock.now(), QUARTER)
    log = opened_log(project)
    log.add_slots([Slot("every", start), Slot("long", start), Slot("fresh", _floor(clock.now(), FOUR_SECONDS))])
    leases = ("--lease-seconds", "60", "--leader-lease-seconds", "20")  # by the clock, a jump would end them all
    options = ("--executor", "workers://?count=3", "--health-port", "0")
    running = scheduler(project, *leases, *options, **clock.environment)
    project.until(lambda: _ran(project, "long") and _ran(project, "fresh"))

    for hours, may_ask in ((0, False), (1, False), (0, True), (-1, True), (1.25, False)):
        before = {name: len(_ran(project, name)) for name in ("fresh", "asked")}
        clock.set_off(hours)
        assert _is_healthy(project), "it ticked a moment ago, whatever the clock says"
        if may_ask:  # it has been this late before: nothing is due, and the scheduler goes on all the same
            log.enqueue_run("asked")
            project.until(lambda before=before: len(_ran(project, "asked")) > before["asked"])
        else:
            due = _floor(clock.now(), QUARTER)
            project.until(lambda due=due: due.isoformat() in _ran(project, "every"))
            project.until(lambda before=before: len(_ran(project, "fresh")) > before["fresh"])

    assert [slot.status for slot in log.slots("long")] == ["running"], "its lease is none of the clock's business"
    (project.folder / "hold-long").unlink()
    project.until(lambda: [slot.status for slot in log.slots("long")] == ["succeeded"])
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=20) == 0, project.said()
    project.until(lambda: all(slot.status != "running" for name in ("every", "fresh") for slot in log.slots(name)))

    assert all(times == 1 for (name, _), times in project.times().items() if name != "asked"), project.times()
    assert all(one["attempt"] == 1 for one in project.executions() if one["slot"]), project.executions()
    assert len(_ran(project, "asked")) == 2
    executed = sorted(_ran(project, "every"))
    assert executed == [(start + n * QUARTER).isoformat() for n in range(len(executed))], "none was left out"
    # What has no `catchup` is run or said to be missed: nothing in between is unaccounted for.
    slots = sorted(slot.at for slot in log.slots("fresh"))
    missed = sum(int(count) for count in re.findall(r"fresh: (\d+) scheduled times? up to", project.said()))
    assert len(slots) + missed == (slots[-1] - slots[0]) // FOUR_SECONDS + 1, project.said()
    assert {slot.status for slot in log.slots("fresh")} <= {"succeeded", "superseded", "pending"}
    for word in ("lease expired", "worker lost", "worker gone", "loaded again", "is replaced", "tick failed"):
        assert word not in project.said(), project.said()
    log.close()


def _ran(project: Project, name: str) -> list[str]:
    """The slots of a pipeline that were run, as often as they were."""
    return [one["slot"] for one in project.executions() if one["name"] == name]


def _is_healthy(project: Project) -> bool:
    found = re.search(r"(http://127\.0\.0\.1:\d+/healthz)", project.said())
    assert found is not None, project.said()
    with urllib.request.urlopen(found[1], timeout=5) as answer:
        return bool(json.loads(answer.read())["ok"])


def _floor(moment: datetime, step: timedelta) -> datetime:
    return moment - timedelta(seconds=moment.timestamp() % step.total_seconds())


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_clock_that_is_set_under_the_run_logs_server_loses_nothing_and_what_runs_again_is_told(
    tmp_path: Path, idempotent: bool
) -> None:
    clock = ShiftedClock(tmp_path)
    server = postgres.start(tmp_path / "postgres", clock.environment)
    (tmp_path / "project").mkdir()
    try:
        for project in opened(tmp_path / "project", server.url):
            waiting(project, 4, idempotent=idempotent)
            hold = project.folder / "hold-orders"
            hold.touch()
            # A heartbeat that comes before a scheduler looks prolongs a lease that is over: they come seldom here.
            scheduler(project, "--lease-seconds", "15", "--alerter", "stdout://")
            project.until(project.executions)
            log = opened_log(project)
            for hours in (1, 0, -1, 0.5):
                clock.set_off(hours)
                assert abs((log.clock() - clock.now()).total_seconds()) < 60, "the server lives by it"
                time.sleep(4)
            hold.unlink()
            project.until(lambda log=log: {slot.status for slot in log.slots("orders")} <= {"succeeded", "failed"})
            log.close()
            lost = len(re.findall(r"\blost: orders", project.said()))
            assert len(project.times()) == 4, "none was left out"
            assert len(project.executions()) == 4 + (lost if idempotent else 0), project.said()
            assert statuses(project).count("failed") == (0 if idempotent else lost), project.said()
    finally:
        postgres.stop(tmp_path / "postgres")
