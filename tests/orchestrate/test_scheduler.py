"""`flow scheduler` with real processes, on run logs in SQLite and PostgreSQL: killed, frozen, doubled, told to stop."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from datetime import timedelta
from pathlib import Path

import pytest

from ematix_flow.contracts.orchestration import RunLog, Slot
from ematix_flow.orchestrate.scheduler import LEADER
from ematix_flow.run.runlogs.urls import from_url
from tests.orchestrate.project import Project, quiet_hour

EVERY_SECOND = """
@pipeline.register(name="orders", schedule="* * * * * */2", idempotent=True)
def orders():
    ran("orders")
    hold("orders")
    return {"rows": 1}
"""
# Slots of the last hours wait already, and no other one comes: what happens does not depend on when a test begins.
WAITING = """
@pipeline.register(name="orders", schedule="HOURLY", catchup="all", max_catchup=5, idempotent=IDEMPOTENT)
def orders():
    ran("orders")
    hold("orders")
    return {"rows": 1}
"""

LOCKER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


def scheduler(project: Project, *options: str, **env: str) -> subprocess.Popen[str]:
    """Start one that looks often."""
    quick = ("--poll-interval", "0.2", "--lease-seconds", "3", "--leader-lease-seconds", "2")
    return project.start("scheduler", "--module", "flows", *quick, *options, **env)


def waiting(project: Project, slots: int = 5, *, idempotent: bool = True) -> None:
    """A project in which so many slots wait."""
    hourly, latest = quiet_hour()
    project.write(WAITING.replace("IDEMPOTENT", str(idempotent)).replace("HOURLY", hourly))
    log = opened_log(project)
    log.add_slots([Slot("orders", latest - timedelta(hours=n)) for n in range(slots)])
    log.close()


def opened_log(project: Project) -> RunLog:
    """The run log of the project, to look into it."""
    return from_url(project.run_log_url)


def statuses(project: Project) -> list[str]:
    """What has become of the slots."""
    log = opened_log(project)
    try:
        return [slot.status for slot in log.slots("orders")]
    finally:
        log.close()


def all_done(project: Project, slots: int = 5) -> bool:
    """Whether every slot has succeeded."""
    return statuses(project) == ["succeeded"] * slots


def test_two_schedulers_side_by_side_run_every_slot_once(project: Project) -> None:
    waiting(project)
    running = [scheduler(project), scheduler(project)]
    project.until(lambda: all_done(project))
    for one in running:
        one.send_signal(signal.SIGTERM)
    assert [one.wait(timeout=20) for one in running] == [0, 0], project.said()
    assert sorted(project.times().values()) == [1] * 5


@pytest.mark.parametrize("point", ["due-written", "claimed", "dispatched"])
def test_a_scheduler_killed_at_any_step_loses_and_doubles_nothing(project: Project, point: str) -> None:
    waiting(project, 2)
    assert scheduler(project, EMATIX_FLOW_CRASH_AT=point).wait(timeout=30) == -signal.SIGKILL
    second = scheduler(project)
    project.until(lambda: all_done(project, 2))
    second.send_signal(signal.SIGTERM)
    assert second.wait(timeout=20) == 0
    assert sorted(project.times().values()) == [1, 1]


def test_a_killed_worker_is_replaced_and_its_run_is_reported(project: Project) -> None:
    waiting(project, 2)
    (project.folder / "hold-orders").touch()
    scheduler(project, "--alerter", "stdout://")
    first = project.until(project.executions)[0]
    os.kill(first["pid"], signal.SIGKILL)
    (project.folder / "hold-orders").unlink()
    project.until(lambda: all_done(project, 2))
    runs = json.loads(project.flow("runs", "list", "--pipeline", "orders", "--json").stdout)
    assert sorted(run["status"] for run in runs) == ["failed", "succeeded", "succeeded"]
    assert "worker lost" in next(run["error"] for run in runs if run["status"] == "failed")
    assert project.said().count("] lost: orders") == 1 or project.said().count("lost: orders") == 1, project.said()


def test_a_killed_worker_that_cannot_be_repeated_is_reported_and_left(project: Project) -> None:
    waiting(project, 1, idempotent=False)
    (project.folder / "hold-orders").touch()
    scheduler(project)
    first = project.until(project.executions)[0]
    os.kill(first["pid"], signal.SIGKILL)
    project.until(lambda: statuses(project) == ["failed"])
    assert len(project.executions()) == 1


def test_a_worker_that_is_told_to_stop_gives_its_slot_back_at_once(project: Project) -> None:
    waiting(project, 1)
    (project.folder / "hold-orders").touch()
    scheduler(project, "--lease-seconds", "300")
    first = project.until(project.executions)[0]
    os.kill(first["pid"], signal.SIGTERM)
    project.until(lambda: len(project.executions()) == 2)
    (project.folder / "hold-orders").unlink()
    project.until(lambda: all_done(project, 1))
    runs = json.loads(project.flow("runs", "list", "--pipeline", "orders", "--json").stdout)
    assert sorted(run["status"] for run in runs) == ["cancelled", "succeeded"]


def test_a_worker_that_is_told_to_stop_in_what_cannot_be_repeated_leaves_it_to_a_person(project: Project) -> None:
    waiting(project, 1, idempotent=False)
    (project.folder / "hold-orders").touch()
    scheduler(project, "--alerter", "stdout://")
    first = project.until(project.executions)[0]
    os.kill(first["pid"], signal.SIGTERM)
    project.until(lambda: statuses(project) == ["failed"])
    project.until(lambda: "Interrupted" in project.said())
    assert len(project.executions()) == 1


def test_a_hand_over_that_arrives_twice_is_worked_on_once(project: Project) -> None:
    waiting(project, 1)
    log = opened_log(project)
    slot = log.open_slots("orders")[0]
    token = log.claim("orders", "dispatched by a test", 30).token
    log.close()
    (project.folder / "hold-orders").touch()
    words = ("run", "--module", "flows", "orders", "--claim-token", str(token))
    at = f"{slot.at:%Y-%m-%dT%H:%M:%SZ}"
    first = project.start(*words, EMATIX_FLOW_SLOT=at)
    project.until(project.executions)
    second = project.flow(*words, EMATIX_FLOW_SLOT=at)
    assert "another worker's" in second.stderr
    (project.folder / "hold-orders").unlink()
    assert first.wait(timeout=20) == 0
    assert (len(project.executions()), statuses(project)) == (1, ["succeeded"])


def test_a_request_whose_scheduler_died_before_a_worker_began_is_carried_out(project: Project) -> None:
    waiting(project, 0)
    log = opened_log(project)
    asked = log.enqueue_run("orders")
    log.close()
    assert scheduler(project, EMATIX_FLOW_CRASH_AT="claimed").wait(timeout=30) == -signal.SIGKILL
    scheduler(project)
    project.until(project.executions)
    project.until(
        lambda: json.loads(project.flow("runs", "show", asked, "--json").stdout)["status"] == "succeeded", within=20
    )
    assert len(project.executions()) == 1


def test_workers_that_cannot_begin_are_told_of_and_tried_less_often(project: Project) -> None:
    waiting(project, 1)
    module = (project.folder / "flows.py").read_text()
    broken = "import os\nif 'EMATIX_FLOW_SLOT' in os.environ:\n    raise RuntimeError('a bad deployment')\n"
    (project.folder / "flows.py").write_text(broken + module)
    scheduler(project, "--alerter", "stdout://")
    project.until(lambda: project.said().count("worker did not begin") >= 2)
    assert project.said().count("dispatch_failed: orders") == 1, "told once"
    (project.folder / "flows.py").write_text(module)
    project.until(lambda: all_done(project, 1))


def test_a_worker_frozen_past_its_lease_does_no_harm_when_it_wakes(project: Project) -> None:
    waiting(project, 1)
    (project.folder / "hold-orders").touch()
    scheduler(project)
    first = project.until(project.executions)[0]
    os.kill(first["pid"], signal.SIGSTOP)
    second = project.until(lambda: project.executions()[1:])[0]
    assert second["pid"] != first["pid"]
    (project.folder / "hold-orders").unlink()
    project.until(lambda: all_done(project, 1))
    os.kill(first["pid"], signal.SIGCONT)
    project.until(lambda: not Path(f"/proc/{first['pid']}").exists() or _is_zombie(first["pid"]))
    assert statuses(project) == ["succeeded"]
    runs = json.loads(project.flow("runs", "list", "--pipeline", "orders", "--json").stdout)
    assert len(runs) == 2 and sum(run["status"] == "succeeded" for run in runs) >= 1


@pytest.mark.parametrize("point", ["due-written", "claimed", "dispatched"])
def test_a_leader_frozen_at_a_step_past_its_lease_does_no_harm_when_it_wakes(project: Project, point: str) -> None:
    waiting(project, 3)
    (project.folder / "hold-orders").touch()
    frozen = scheduler(project, "--worker-id", "sleeper", "--max-iterations", "1", EMATIX_FLOW_FREEZE_AT=point)
    project.until(lambda: process_state(frozen.pid) == "T")
    assert leader(project) == "sleeper", "it was in the middle of a tick"
    other = scheduler(project, "--alerter", "stdout://")
    # The other one leads, and a slot is at work, which its worker keeps to itself.
    project.until(lambda: leader(project) != "sleeper" and project.executions())
    os.kill(frozen.pid, signal.SIGCONT)
    assert frozen.wait(timeout=20) == 0, "it goes to the end of that tick"
    assert len(project.executions()) == 1 and "lost: orders" not in project.said(), project.said()
    (project.folder / "hold-orders").unlink()
    project.until(lambda: all_done(project, 3))
    other.send_signal(signal.SIGTERM)
    assert other.wait(timeout=20) == 0, project.said()
    assert sorted(project.times().values()) == [1] * 3


def process_state(pid: int) -> str:
    """`T` when it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def leader(project: Project) -> str | None:
    """Who has the lead now, be it that its lease is over."""
    log = opened_log(project)
    try:
        return next((claim.worker_id for claim in log.claims() if claim.pipeline == LEADER), None)
    finally:
        log.close()


def test_a_leader_frozen_past_its_lease_does_no_harm_when_it_wakes(project: Project) -> None:
    project.write(EVERY_SECOND)
    frozen = scheduler(project)
    project.until(project.executions)
    os.kill(frozen.pid, signal.SIGSTOP)
    before = len(project.executions())
    other = scheduler(project)
    project.until(lambda: len(project.executions()) >= before + 3)
    os.kill(frozen.pid, signal.SIGCONT)
    project.until(lambda: len(project.executions()) >= before + 6)
    for one in (frozen, other):
        one.send_signal(signal.SIGTERM)
    assert [one.wait(timeout=20) for one in (frozen, other)] == [0, 0], project.said()
    assert set(project.times().values()) == {1}


def test_told_to_stop_it_ends_and_its_workers_go_on(project: Project) -> None:
    waiting(project, 1)
    (project.folder / "hold-orders").touch()
    running = scheduler(project, "--health-port", "0")
    project.until(project.executions)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=20) == 0
    (project.folder / "hold-orders").unlink()
    project.until(lambda: all_done(project, 1))
    assert list(project.times().values()) == [1]


def test_no_more_run_at_a_time_than_allowed(project: Project) -> None:
    project.write(
        """
for name in "abcdef":
    def body(name=name):
        (HERE / f"in-{name}").touch()
        together = len(list(HERE.glob("in-*")))
        with (HERE / "together").open("a") as file:
            file.write(f"{together}" + chr(10))
        time.sleep(0.3)
        (HERE / f"in-{name}").unlink()
        ran(name)
    pipeline.register(name=name, schedule="* * * * *", catchup="latest")(body)
"""
    )
    scheduler(project, "--max-concurrency", "2")
    project.until(lambda: {one["name"] for one in project.executions()} == set("abcdef"), within=90)
    assert max(int(line) for line in (project.folder / "together").read_text().split()) <= 2


def test_a_run_log_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    project = Project(tmp_path, url)
    try:
        waiting(project, 1)
        (tmp_path / "hold-orders").touch()
        scheduler(project, "--alerter", "stdout://")
        project.until(project.executions)
        locker = subprocess.Popen(
            [sys.executable, "-c", LOCKER, str(tmp_path / "runs.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert locker.stdout is not None and locker.stdin is not None
        assert locker.stdout.readline() == "locked\n"
        (tmp_path / "hold-orders").unlink()
        project.until(lambda: "tick failed" in project.said() or "does not answer" in project.said())
        locker.communicate(timeout=10)  # it lets go when nobody writes to it any more
        project.until(lambda: all_done(project, 1))
        # Its worker may have been taken for lost, since nobody heard of it: then that was told, and it ran again.
        assert list(project.times().values()) == [1 + len(re.findall(r"\blost: orders", project.said()))], (
            project.said()
        )
    finally:
        project.close()


def test_without_a_run_log_it_does_not_start(tmp_path: Path) -> None:
    project = Project(tmp_path, "postgresql://u:s3cret@127.0.0.1:1/x")
    project.write(EVERY_SECOND)
    refused = project.flow("scheduler", "--module", "flows", code=2)
    assert "cannot work without its run log" in refused.stderr and "s3cret" not in refused.stderr
    for url, reason in (("memory://", "not seen by workers"), ("s3://bucket/x?endpoint=http://127.0.0.1:1", "run log")):
        refused = project.flow("scheduler", "--module", "flows", "--run-log", url, code=2)
        assert reason in refused.stderr
    refused = project.flow(
        *("scheduler", "--module", "flows", "--executor", "moon://", "--run-log", f"sqlite:///{tmp_path}/runs.db"),
        code=2,
    )
    assert "moon" in refused.stderr


def test_health_says_whether_ticks_come(project: Project) -> None:
    waiting(project, 1)
    scheduler(project, "--health-port", "0")
    project.until(lambda: all_done(project, 1))
    port = re.search(r"http://127\.0\.0\.1:(\d+)/healthz", project.said())
    assert port is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/readyz", timeout=5) as answer:
        facts = json.loads(answer.read())
    assert facts["ok"] is True and facts["ticks"] >= 1 and facts["dispatched"] == 1


def test_workers_are_handed_the_url_of_the_run_log_as_it_is_written(tmp_path: Path) -> None:
    """So that a secret in it stands in no process and no Job that others can look at."""
    project = Project(tmp_path, "sqlite:///${PLACE}/runs.db")
    project.write(
        """
@pipeline.register(name="orders", schedule="* * * * * */2")
def orders():
    (HERE / "told").write_text(os.environ["EMATIX_FLOW_RUN_LOG_URL"])
    ran("orders")
"""
    )
    try:
        scheduler(project, PLACE=str(tmp_path))
        project.until(project.executions)
        assert (tmp_path / "told").read_text() == "sqlite:///${PLACE}/runs.db"
        assert (tmp_path / "runs.db").exists()
    finally:
        project.close()


@pytest.mark.parametrize("executor", ["subprocess+python://", "workers://?count=1"])
def test_the_port_of_the_scheduler_serves_what_its_workers_count(tmp_path: Path, executor: str) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/runs.db")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    try:
        waiting(project, 2)
        scheduler(project, "--executor", executor, "--metrics", f"prometheus://127.0.0.1:{port}")
        project.until(lambda: all_done(project, 2))

        def served() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return str(answer.read().decode())

        project.until(lambda: 'pipeline_runs_total{outcome="success",pipeline="orders"} 2.0' in served())
        assert 'pipeline_runs_total{outcome="dispatched",pipeline="orders"} 2.0' in served()
        assert "no metrics" not in project.said()
    finally:
        project.close()


def test_warm_workers_run_slots_once_too(project: Project) -> None:
    waiting(project)
    running = scheduler(project, "--executor", "workers://?count=2")
    project.until(lambda: all_done(project))
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=30) == 0
    assert sorted(project.times().values()) == [1] * 5
    assert len({one["pid"] for one in project.executions()}) <= 2


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
