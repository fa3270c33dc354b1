"""`flow scheduler` with much to do: told to stop in the middle of it, doubled, with groups and priorities."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ematix_flow.contracts.orchestration import Slot
from tests.orchestrate.project import Project, quiet_hour
from tests.orchestrate.test_scheduler import opened_log, scheduler
from tests.orchestrate.webhook import Heard

# Bare functions cannot be repeated: one that is cut off would be seen to have failed.
BUSY = """
def busy(name):
    ran(name)
    time.sleep(0.4)
    with (HERE / "ended").open("a") as file:
        file.write(name + chr(10))

for name in ("ants", "bees", "cows"):
    pipeline.register(name=name, schedule="HOURLY", catchup="all")(lambda name=name: busy(name))
"""
FAILING = """
@pipeline.register(name="broken", schedule="0 0 1 1 *", catchup="all", retry={"max_attempts": 3})
def broken():
    ran("broken")
    raise RuntimeError("boom")

@pipeline.register(name="killed", schedule="0 0 1 1 *", catchup="all", idempotent=True)
def killed():
    ran("killed")
    if len((HERE / "ran.jsonl").read_text().split('"killed"')) == 2:
        os.kill(os.getpid(), 9)

@pipeline.register(name="unseen", schedule="HOURLY")
def unseen():
    ran("unseen")

@pipeline.register(name="beat", schedule="* * * * * *", catchup="all")
def beat():
    ran("beat")
"""
GROUPED = """
def stay(name):
    ran(name)
    (HERE / f"in-{name}").touch()
    time.sleep(0.5)
    inside = sorted(path.name[3:] for path in HERE.glob("in-*"))
    with (HERE / "inside").open("a") as file:
        file.write(json.dumps(inside) + chr(10))
    (HERE / f"in-{name}").unlink()

for name, group in (("red", "db"), ("green", "db"), ("blue", "db"), ("free", None)):
    pipeline.register(name=name, schedule="HOURLY", catchup="all", concurrency_group=group)(
        lambda name=name: stay(name))
"""
RANKED = """
for name, priority in (("last", -1), ("usual", 0), ("older", 0), ("first", 10), ("second", 5)):
    pipeline.register(name=name, schedule="0 0 1 1 *", catchup="all", priority=priority)(lambda name=name: ran(name))

@pipeline.register(name="needs last", schedule="0 0 1 1 *", catchup="all", priority=100, depends_on=["last"])
def needs_last():
    ran("needs last")
"""
HOUR = timedelta(hours=1)


def written(project: Project, module: str) -> datetime:
    """Write the module; the latest time of what it runs every hour."""
    hourly, latest = quiet_hour()
    project.write(module.replace("HOURLY", hourly))
    return latest


def crowd(project: Project, *options: str) -> subprocess.Popen[str]:
    """A scheduler with leases that last, however slowly the crowd moves."""
    return scheduler(project, "--lease-seconds", "120", "--leader-lease-seconds", "20", *options)


def put(project: Project, *slots: Slot) -> None:
    """Let these slots wait."""
    log = opened_log(project)
    log.add_slots(slots)
    log.close()


def statuses(project: Project, *names: str) -> Counter[str]:
    """What has become of the slots of these pipelines."""
    log = opened_log(project)
    try:
        return Counter(slot.status for name in names for slot in log.slots(name))
    finally:
        log.close()


def stopped(*running: subprocess.Popen[str]) -> list[int]:
    """Tell them to stop; how they ended."""
    for one in running:
        one.send_signal(signal.SIGTERM)
    return [one.wait(timeout=20) for one in running]


@pytest.mark.parametrize("executor", ["subprocess+python://", "workers://?count=2"])
def test_told_to_stop_under_load_it_leaves_the_rest_to_the_next_one(project: Project, executor: str) -> None:
    names, per_name = ("ants", "bees", "cows"), 3
    latest = written(project, BUSY)
    put(project, *(Slot(name, latest - n * HOUR) for name in names for n in range(per_name)))
    ended = project.folder / "ended"
    running = crowd(project, "--executor", executor, "--max-concurrency", "2")
    project.until(lambda: len(project.executions()) > 1)
    assert stopped(running) == [0], project.said()
    assert statuses(project, *names)["pending"] > 0, "there was more to do"
    # Who had begun, or was about to, goes on to the end without its scheduler.
    project.until(lambda: ended.exists() and len(ended.read_text().split()) == len(project.executions()))
    last = crowd(project, "--executor", executor)
    project.until(lambda: statuses(project, *names) == {"succeeded": per_name * len(names)})
    assert stopped(last) == [0], project.said()
    assert Counter(name for name, _ in project.times()) == dict.fromkeys(names, per_name)
    assert set(project.times().values()) == {1} and {one["attempt"] for one in project.executions()} == {1}


def test_two_schedulers_tell_of_everything_once(project: Project) -> None:
    latest = written(project, FAILING)
    put(
        project,
        Slot("broken", latest),
        Slot("killed", latest),
        Slot("unseen", latest - 5 * HOUR, status="succeeded"),
    )
    heard = Heard()
    try:
        running = [crowd(project, "--alerter", heard.url, "--executor", "workers://?count=2") for _ in range(2)]
        project.until(lambda: statuses(project, "broken", "killed") == {"failed": 1, "succeeded": 1})
        project.until(lambda: len(heard.bodies) >= 7)
        beats = sum(one["name"] == "beat" for one in project.executions())
        # Both go on looking for a while: at what was given up, at what was lost, at what was missed.
        project.until(lambda: sum(one["name"] == "beat" for one in project.executions()) >= beats + 3)
        assert stopped(*running) == [0, 0], project.said()
    finally:
        heard.close()
    told = Counter((one["kind"], one["pipeline"], one["attempt_count"]) for one in map(json.loads, heard.bodies))
    assert told == {
        ("failed", "broken", 1): 1,
        ("failed", "broken", 2): 1,
        ("failed", "broken", 3): 1,
        ("gave_up", "broken", 3): 1,
        ("lost", "killed", 1): 1,
        ("recovered", "killed", 2): 1,
        ("missed", "unseen", 0): 1,
    }
    assert sum(one["name"] == "broken" for one in project.executions()) == 3


def test_of_a_concurrency_group_one_runs_at_a_time_whoever_schedules_it(project: Project) -> None:
    names = ("red", "green", "blue", "free")
    latest = written(project, GROUPED)
    put(project, *(Slot(name, latest - n * HOUR) for name in names for n in range(2)))
    running = [crowd(project, "--executor", "workers://?count=2") for _ in range(2)]
    project.until(lambda: statuses(project, *names) == {"succeeded": 8})
    assert stopped(*running) == [0, 0], project.said()
    inside = [set(json.loads(line)) for line in (project.folder / "inside").read_text().splitlines()]
    assert len(inside) == 8 and all(len(some - {"free"}) <= 1 for some in inside), inside
    assert any(len(some) == 2 for some in inside), "who is in no group runs beside it"
    assert set(project.times().values()) == {1}


def test_higher_priorities_go_first_then_older_slots_and_upstreams_before_all(tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'runs.db'}")
    try:
        latest = written(project, RANKED)
        names = ("last", "usual", "first", "second", "needs last")
        put(project, *(Slot(name, latest) for name in names), Slot("older", latest - HOUR))
        running = crowd(project, "--executor", "workers://?count=1", "--max-concurrency", "1")
        project.until(lambda: len(project.executions()) == 6)
        assert stopped(running) == [0], project.said()
        order = [one["name"] for one in project.executions()]
        assert order == ["first", "second", "older", "usual", "last", "needs last"]
    finally:
        project.close()
