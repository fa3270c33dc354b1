"""`flow run-due` with real processes: a slot is run once, whoever calls and however often, and nothing is forgotten."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.orchestrate.project import Project

AT = "2026-03-01T06:00:20Z"
SLOT = "2026-03-01T06:00:00+00:00"

TWO = """
@pipeline.register(name="orders", schedule="* * * * *", retry={"max_attempts": 3, "backoff_seconds": 30})
def orders():
    ran("orders")
    hold("orders")
    if fails("orders"):
        raise RuntimeError("boom")
    return {"rows": 1}

@pipeline.register(name="report", schedule="* * * * *", depends_on=["orders"])
def report():
    ran("report")
    return {"rows": 2}
"""


def test_two_calls_in_a_minute_run_a_slot_once(project: Project) -> None:
    project.write(TWO)
    first = project.run_due("--now", AT)
    assert [one["_pipeline"] for one in first["ran"]] == ["orders", "report"]
    assert project.run_due("--now", "2026-03-01T06:00:50Z") == {"ran": [], "failed": [], "skipped": []}
    project.run_due("--now", "2026-03-01T06:01:10Z")
    assert project.times() == {
        ("orders", SLOT): 1,
        ("report", SLOT): 1,
        ("orders", "2026-03-01T06:01:00+00:00"): 1,
        ("report", "2026-03-01T06:01:00+00:00"): 1,
    }


COUNTING = """
import sqlite3
from ematix_flow import ematix

@ematix.connection
class warehouse:
    kind = "sqlite"
    path = str(HERE / "shop.db")

@ematix.transform(target_connection="warehouse", schedule="* * * * *")
def count_orders(conn):
    ran("count_orders")
    conn.execute("CREATE TABLE IF NOT EXISTS totals (orders INTEGER)")
    conn.execute("INSERT INTO totals VALUES (3)")
    return {"orders": 3}
"""


def test_a_transform_with_a_schedule_runs_by_it_and_without_one_only_when_asked(project: Project) -> None:
    project.write(
        COUNTING
        + COUNTING[COUNTING.index("@ematix.transform") :]
        .replace(', schedule="* * * * *"', "")
        .replace("count_orders", "by_hand")
    )
    first = project.run_due("--now", AT)
    assert [(one["_pipeline"], one["metrics"]) for one in first["ran"]] == [("count_orders", {"orders": 3})]
    assert project.run_due("--now", "2026-03-01T06:00:50Z")["ran"] == []
    assert project.times() == {("count_orders", SLOT): 1}
    with sqlite3.connect(project.folder / "shop.db") as db:
        assert db.execute("SELECT * FROM totals").fetchall() == [(3,)]
    runs = json.loads(project.flow("runs", "list", "--json").stdout)
    assert [(run["pipeline"], run["status"]) for run in runs] == [("count_orders", "succeeded")]


def test_a_transform_with_a_schedule_may_not_have_the_name_of_a_pipeline(project: Project) -> None:
    project.write(
        COUNTING + TWO.replace('name="orders"', 'name="count_orders"').replace('["orders"]', '["count_orders"]')
    )
    said = project.flow("status", "--module", "flows", code=None)
    assert said.returncode != 0
    assert "'count_orders' is a transform with a schedule" in said.stderr
    assert said.stderr.count("flows.py:") == 2


def test_four_hosts_at_once_run_a_slot_once(project: Project) -> None:
    project.write(TWO)
    project.flow("status", "--module", "flows")  # the tables are there
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _n: project.run_due("--now", AT), range(4)))
    project.run_due("--now", AT)
    assert project.times() == {("orders", SLOT): 1, ("report", SLOT): 1}


def test_a_slot_waits_for_its_upstream_and_a_retry_does_not_wait_for_cron(project: Project) -> None:
    project.write(TWO.replace("* * * * *", "0 6 * * *"))
    (project.folder / "fail-orders").touch()
    first = project.run_due("--now", AT, code=1)
    assert first["failed"] == [
        {"pipeline": "orders", "error": "boom", "error_type": "RuntimeError", "attempt_count": 1, "gave_up": False}
    ]
    assert first["skipped"] == [{"pipeline": "report", "reason": "upstream not fresh: orders"}]
    soon = project.run_due("--now", "2026-03-01T06:00:30Z")
    assert "retry backoff (attempt 1/3; next eligible at 2026-03-01T06:00:5" in soon["skipped"][0]["reason"]
    (project.folder / "fail-orders").unlink()
    later = project.run_due("--now", "2026-03-01T06:10:00Z")  # no cron slot is near
    assert [one["_pipeline"] for one in later["ran"]] == ["orders", "report"]
    assert project.times() == {("orders", SLOT): 2, ("report", SLOT): 1}


def test_giving_up_latches_until_somebody_clears_it(project: Project) -> None:
    project.write(TWO)
    (project.folder / "fail-orders").touch()
    moments = ("06:00:20", "06:05:00", "06:20:00", "06:40:00")
    results = [project.run_due("--now", f"2026-03-01T{moment}Z", code=None) for moment in moments]
    assert [one["failed"][0]["gave_up"] for one in results[:3]] == [False, False, True]
    assert results[3]["skipped"][0]["reason"].startswith("gave up after 3 retry attempts")
    status = {row["name"]: row for row in json.loads(project.flow("status", "--module", "flows", "--json").stdout)}
    assert status["orders"]["attempt_state"]["gave_up"] is True
    assert "boom" in status["orders"]["last_error"]
    (project.folder / "fail-orders").unlink()
    project.flow("retry", "orders", "--module", "flows")
    assert [one["_pipeline"] for one in project.run_due("--now", "2026-03-01T06:40:30Z")["ran"]] == ["orders", "report"]


def test_a_killed_run_is_noticed_at_once_on_the_same_host(project: Project) -> None:
    project.write(TWO.replace('name="orders",', 'name="orders", idempotent=True,'))
    (project.folder / "hold-orders").touch()
    process = project.start("run-due", "--module", "flows", "--now", AT)
    project.until(project.executions)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (project.folder / "hold-orders").unlink()
    again = project.run_due("--now", "2026-03-01T06:00:40Z")
    assert [one["_pipeline"] for one in again["ran"]] == ["orders", "report"]
    runs = json.loads(project.flow("runs", "list", "--pipeline", "orders", "--json").stdout)
    assert [run["status"] for run in runs] == ["succeeded", "failed"]
    assert "worker lost" in runs[1]["error"]


def test_a_killed_run_that_cannot_be_repeated_is_left_to_a_person(project: Project) -> None:
    project.write(TWO)  # a bare function: nobody knows how far it got
    (project.folder / "hold-orders").touch()
    process = project.start("run-due", "--module", "flows", "--now", AT)
    project.until(project.executions)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (project.folder / "hold-orders").unlink()
    again = project.run_due("--now", "2026-03-01T06:00:40Z")
    assert again["ran"] == [] and [one["pipeline"] for one in again["skipped"]] == ["report"]
    assert project.times() == {("orders", SLOT): 1}
    project.flow("retry", "orders", "--module", "flows")
    project.run_due("--now", "2026-03-01T06:00:50Z")
    assert project.times() == {("orders", SLOT): 2, ("report", SLOT): 1}


@pytest.mark.parametrize("point", ["outcome-noted", "outcome-told"])
def test_a_failure_is_told_and_waited_after_though_its_process_is_killed_at_its_end(tmp_path: Path, point: str) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/runs.db")
    project.write(TWO.replace("* * * * *", "0 6 * * *"))
    (tmp_path / "fail-orders").touch()
    due = ("run-due", "--module", "flows", "--alerter", "stdout://", "--now")
    killed = project.flow(*due, AT, code=-signal.SIGKILL, EMATIX_FLOW_CRASH_AT=point)
    later = project.flow(*due, "2026-03-01T06:00:30Z", code=None)
    assert (killed.stderr + later.stderr).count("failed: orders (attempt 1/3)") == 1, "told, and once"
    assert "lost:" not in later.stderr, "its work had failed; nothing of it is in doubt"
    waits = [one["reason"] for one in json.loads(later.stdout)["skipped"] if one["pipeline"] == "orders"]
    assert waits and waits[0].startswith("retry backoff (attempt 1/3")
    (tmp_path / "fail-orders").unlink()
    assert project.run_due("--now", "2026-03-01T06:10:00Z")["ran"][0]["_pipeline"] == "orders"
    assert project.times()["orders", SLOT] == 2


@pytest.mark.parametrize("point", ["slot-begun", "body-done", "outcome-noted", "outcome-told", "slot-ended"])
def test_a_process_killed_at_any_step_leaves_nothing_undone(project: Project, point: str) -> None:
    project.write(TWO.replace("schedule=", "idempotent=True, schedule="))
    project.flow("run-due", "--module", "flows", "--now", AT, code=-signal.SIGKILL, EMATIX_FLOW_CRASH_AT=point)
    project.run_due("--now", "2026-03-01T06:00:30Z")
    project.run_due("--now", "2026-03-01T06:00:40Z")
    status = {row["name"]: row for row in json.loads(project.flow("status", "--module", "flows", "--json").stdout)}
    assert [status[name]["waiting_reason"] for name in ("orders", "report")] == [None, None]
    assert {name for name, _ in project.times()} == {"orders", "report"}
    assert set(project.times().values()) == {1}, "before its body a run had done nothing, after it the run log knew"
    assert status["report"]["last_run"][1] is True


def test_a_clock_that_jumps_back_and_forth_runs_no_slot_twice(project: Project) -> None:
    project.write(TWO)
    for moment in ("06:00:20", "05:00:20", "06:00:25", "07:00:20", "06:01:20", "07:00:30", "07:01:05"):
        project.run_due("--now", f"2026-03-01T{moment}Z")
    assert set(project.times().values()) == {1}
    assert {slot[11:16] for name, slot in project.times() if name == "orders"} == {"06:00", "07:00", "07:01"}


def test_missed_times_are_caught_up_with_where_that_is_declared(project: Project) -> None:
    project.write(
        """
for name, how in (("none", "none"), ("latest", "latest"), ("all", "all")):
    pipeline.register(name=name, schedule="0 * * * *", catchup=how, max_catchup=3)(lambda name=name: ran(name))
"""
    )
    project.run_due("--now", "2026-03-01T06:00:20Z")
    watched = ("--alerter", "stdout://", "--metrics", "stdout://")
    done = project.flow("run-due", "--module", "flows", "--now", "2026-03-01T11:30:00Z", *watched)
    hours: dict[str, list[str]] = {}
    for name, slot in sorted(project.times()):
        hours.setdefault(name, []).append(slot[11:13])
    assert hours == {
        "none": ["06"],
        "latest": ["06", "11"],
        "all": ["06", "09", "10", "11"],
    }
    assert {one["pipeline"]: (one["count"], one["last"][11:13]) for one in json.loads(done.stdout)["missed"]} == {
        "none": (5, "11"),
        "latest": (4, "10"),
        "all": (2, "08"),
    }
    assert "missed: none: 5 scheduled times up to 2026-03-01 11:00 UTC passed unseen" in done.stderr
    assert done.stderr.count("{name=none,outcome=missed} +1") == 5
    assert "missed" not in project.run_due("--now", "2026-03-01T11:31:00Z"), "told once"


def test_paused_pipelines_do_not_start_and_requests_are_carried_out(project: Project) -> None:
    project.write(TWO)
    project.flow("pause", "orders", "--module", "flows")
    assert project.run_due("--now", AT)["skipped"][0]["reason"].startswith("paused")
    project.flow("resume", "orders")
    assert len(project.run_due("--now", "2026-03-01T06:00:40Z")["ran"]) == 2
    run_id = json.loads(project.flow("runs", "list", "--pipeline", "report", "--json").stdout)[0]["run_id"]
    asked = json.loads(project.flow("runs", "rerun", run_id, "--json").stdout)["new_run_id"]
    project.run_due("--now", "2026-03-01T06:00:50Z")
    record = json.loads(project.flow("runs", "show", asked, "--json").stdout)
    assert (record["status"], record["pipeline"]) == ("succeeded", "report")
    assert [one["slot"] for one in project.executions() if one["name"] == "report"] == [SLOT, None]


def test_a_run_log_that_cannot_be_opened_is_a_warning(project: Project) -> None:
    project.write(TWO)
    nowhere = "postgresql://u:s3cret@127.0.0.1:1/x"
    done = project.flow("run-due", "--module", "flows", "--now", AT, EMATIX_FLOW_RUN_LOG_URL=nowhere)
    assert len(json.loads(done.stdout)["ran"]) == 2
    assert "warning:" in done.stderr and "runs the same pipelines again" in done.stderr
    assert "s3cret" not in done.stderr + done.stdout


def test_a_workflow_is_one_run_and_restarts_at_the_job_that_failed(project: Project) -> None:
    project.write(
        """
from ematix_flow import ematix

UPSTREAMS = {"extract": [], "clean": ["extract"], "publish": ["clean"], "archive": ["extract"], "tell": []}
for name, after in UPSTREAMS.items():
    def body(name=name):
        ran(name)
        if fails(name):
            raise RuntimeError("boom")
        return {"rows": 1}
    pipeline.register(name=name, schedule=None, depends_on=after)(body)

ematix.workflow(name="nightly", jobs=["extract", "clean", "publish", "archive"], schedule="0 6 * * *")
ematix.workflow(name="after", jobs=["tell"], triggered_by="nightly")
"""
    )
    (project.folder / "fail-clean").touch()
    failed = project.run_due("--now", AT, code=1)
    assert failed["failed"][0]["pipeline"] == "nightly"
    assert [one["name"] for one in project.executions()] == ["extract", "clean", "archive"]
    record = json.loads(project.flow("runs", "list", "--pipeline", "nightly", "--json").stdout)[0]
    assert record["failed_step"] == "clean"
    (project.folder / "fail-clean").unlink()
    project.flow("runs", "restart", record["run_id"])
    project.run_due("--now", "2026-03-01T06:05:00Z")
    assert [one["name"] for one in project.executions()][3:] == ["clean", "publish", "tell"], "the other one waited"
    project.run_due("--now", "2026-03-01T06:06:00Z")
    assert len(project.executions()) == 6


def test_a_backfill_that_was_killed_goes_on_and_the_schedule_leaves_it_alone(project: Project) -> None:
    project.write(TWO.replace("* * * * *", "0 6 * * *"))
    command = (
        "backfill",
        "--module",
        "flows",
        "orders",
        "--from",
        "2026-02-01",
        "--to",
        "2026-02-05",
        "--parallel",
        "2",
    )
    (project.folder / "hold-orders").touch()
    first = project.start(*command)
    project.until(lambda: len(project.executions()) == 2)
    assert project.run_due("--now", "2026-02-10T12:00:00Z") == {"ran": [], "failed": [], "skipped": []}
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    (project.folder / "hold-orders").unlink()
    done = json.loads(project.flow(*command).stdout)
    assert done["missing"] == 0 and len(done["slots"]) == 4
    again = json.loads(project.flow(*command).stdout)
    assert (again["done"], again["slots"]) == (4, [])
    assert sorted(project.times().values()) == [1, 1, 2, 2]
    status = {row["name"]: row for row in json.loads(project.flow("status", "--module", "flows", "--json").stdout)}
    assert status["orders"]["last_run"] is None, "a backfill says nothing about how the schedule is doing"


def test_a_backfill_leaves_a_time_alone_that_a_worker_is_at(project: Project) -> None:
    project.write(TWO.replace("* * * * *", "0 6 * * *"))
    (project.folder / "hold-orders").touch()
    running = project.start("run-due", "--module", "flows", "--now", AT)
    project.until(project.executions)
    command = ("backfill", "--module", "flows", "orders", "--from", "2026-03-01", "--to", "2026-03-02")
    by_hand = project.flow("run", "--module", "flows", "orders", code=1)
    assert "Another run of 'orders' is under way: process" in by_hand.stderr
    refused = json.loads(project.flow(*command, code=1).stdout)
    assert refused["slots"][0]["status"] == "unstarted" and "busy" in refused["slots"][0]["error"]
    (project.folder / "hold-orders").unlink()
    assert running.wait(timeout=30) == 0
    assert project.times() == {("orders", SLOT): 1, ("report", SLOT): 1}


def test_a_failure_by_hand_does_not_count_and_a_success_by_hand_ends_failures(project: Project) -> None:
    project.write(TWO)
    (project.folder / "fail-orders").touch()
    project.run_due("--now", AT, code=1)
    for _ in range(3):
        project.flow("run", "--module", "flows", "orders", code=1)
    status = {row["name"]: row for row in json.loads(project.flow("status", "--module", "flows", "--json").stdout)}
    assert status["orders"]["attempt_state"]["attempt_count"] == 1
    (project.folder / "fail-orders").unlink()
    project.flow("run", "--module", "flows", "orders")
    status = {row["name"]: row for row in json.loads(project.flow("status", "--module", "flows", "--json").stdout)}
    assert status["orders"]["attempt_state"] is None and status["orders"]["last_run"][1] is True


def test_a_run_is_paused_resumed_and_cancelled_between_its_steps(project: Project) -> None:
    project.write(
        """
from ematix_flow import ematix

for name, after in {"first": [], "second": ["first"]}.items():
    def body(name=name):
        ran(name)
        hold(name)
    pipeline.register(name=name, schedule=None, depends_on=after)(body)
ematix.workflow(name="both", jobs=["first", "second"], schedule="0 6 * * *")
"""
    )
    for wish, ends in (("pause", "succeeded"), ("cancel", "cancelled")):
        (project.folder / "hold-first").touch()
        before = len(project.executions())
        day = "01" if wish == "pause" else "02"
        running = project.start("run-due", "--module", "flows", "--now", f"2026-03-{day}T06:00:10Z")
        project.until(lambda before=before: len(project.executions()) > before)
        run_id = json.loads(project.flow("runs", "list", "--pipeline", "both", "--json").stdout)[0]["run_id"]
        project.flow(*(("runs", "pause", run_id) if wish == "pause" else ("cancel", run_id)))
        (project.folder / "hold-first").unlink()
        if wish == "pause":
            project.until(lambda run_id=run_id: _status(project, run_id) == "paused")
            assert [one["name"] for one in project.executions()] == ["first"]
            project.flow("runs", "resume", run_id)
        running.wait(timeout=30)
        assert _status(project, run_id) == ends
    assert [one["name"] for one in project.executions()] == ["first", "second", "first"]


def _status(project: Project, run_id: str) -> str:
    return str(json.loads(project.flow("runs", "show", run_id, "--json").stdout)["status"])


@pytest.mark.parametrize("where", ["off", "away"])
def test_a_run_without_a_run_log_tells_of_its_end_and_says_what_it_cannot_promise(tmp_path: Path, where: str) -> None:
    nowhere = "postgresql://u:s3cret@127.0.0.1:1/x"
    project = Project(tmp_path, nowhere)
    project.write(TWO)
    (tmp_path / "fail-orders").touch()
    words = ("run", "--module", "flows", "orders", "--alerter", "stdout://", "--metrics", "stdout://")
    failed = project.flow(*words, *(("--no-run-log",) if where == "off" else ()), code=1)
    assert failed.stderr.count("[ALERT]") == 1 and "failed: orders" in failed.stderr
    assert "outcome=failure} +1" in failed.stderr
    assert "nobody is kept from running the same pipeline" in failed.stderr and "s3cret" not in failed.stderr


def test_stdout_is_the_answer_and_whatever_else_is_printed_is_kept_with_the_run(tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/runs.db")
    project.write(
        """
os.system("echo while imported")

@pipeline.register(name="orders", schedule="* * * * *")
def orders():
    print("from python")
    os.system("echo from a child; echo from its stderr >&2")
    os.write(1, b"from native code\\n")
    return {"rows": 1}
"""
    )
    expected = ["from a child", "from its stderr", "from native code", "from python"]
    for words in (("run-due", "--now", AT), ("run", "orders")):
        done = project.flow(*words, "--module", "flows")
        answer = json.loads(done.stdout)
        assert answer == (
            {"rows": 1}
            if words[0] == "run"
            else {"failed": [], "skipped": [], "ran": [{"rows": 1, "_pipeline": "orders"}]}
        )
        assert sorted(line for line in done.stderr.splitlines() if line.startswith("from ")) == expected
        assert "while imported" in done.stderr.splitlines()
        run_id = json.loads(project.flow("runs", "list", "--limit", "1", "--json").stdout)[0]["run_id"]
        kept = project.flow("logs", run_id).stdout.splitlines()
        assert sorted(line for line in kept if line.startswith("from ")) == expected


def test_a_workflow_runs_by_hand(tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/runs.db")
    project.write(
        TWO + "\nfrom ematix_flow import ematix\n"
        "ematix.workflow(name='both', jobs=['orders', 'report'], schedule='0 6 * * *')\n"
    )
    done = project.flow("run", "--module", "flows", "both")
    assert set(json.loads(done.stdout)) == {"orders", "report"}
    assert [one["name"] for one in project.executions()] == ["orders", "report"]


def test_references_in_the_url_of_the_run_log_are_filled_in(tmp_path: Path) -> None:
    project = Project(tmp_path, "sqlite:///${PLACE}/runs.db")
    project.write(TWO)
    project.flow("run", "--module", "flows", "orders", PLACE=str(tmp_path))
    project.flow("run", "--module", "flows", "orders", "--run-log", "${PLACE}/second.db", PLACE=str(tmp_path))
    assert (tmp_path / "runs.db").exists() and (tmp_path / "second.db").exists()
    assert not list(tmp_path.glob("*$*"))


@pytest.mark.parametrize("reworded", [False, True], ids=["as-it-is", "reworded"])
def test_a_cancelled_run_is_interrupted_in_the_middle_of_a_step(project: Project, reworded: bool) -> None:
    # Libraries that talk to another process, Spark's for one, make an error of their own of an interruption.
    caught = """    try:
        hold("orders")
    except KeyboardInterrupt:
        raise OSError("broken pipe") from None
"""
    project.write(TWO.replace('    hold("orders")\n', caught) if reworded else TWO)
    (project.folder / "hold-orders").touch()
    running = project.start("run-due", "--module", "flows", "--now", AT, "--alerter", "stdout://")
    project.until(project.executions)
    run_id = json.loads(project.flow("runs", "list", "--pipeline", "orders", "--json").stdout)[0]["run_id"]
    project.flow("cancel", run_id)
    assert running.wait(timeout=20) == 0, project.said()  # the file that holds it is still there
    assert _status(project, run_id) == "cancelled"
    assert "[ALERT]" not in project.said(), "somebody wanted it so"
    again = project.run_due("--now", "2026-03-01T06:00:40Z")
    assert again["ran"] == [] and project.times() == {("orders", SLOT): 1}, "it stays cancelled"


def test_a_load_that_is_cancelled_in_its_statement_leaves_nothing_behind(tmp_path: Path, pg_url: str) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path}/runs.db")
    project.write(
        """
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.table(schema="public")
class Slowly:
    id: Annotated[BigInt, pk()]

@ematix.pipeline(target=Slowly, mode="append")
def load(conn):
    if (HERE / "quick").exists():
        return "SELECT g AS id FROM generate_series(1, 3) g"
    return "SELECT g AS id FROM generate_series(1, 3) g, pg_sleep(50)"
"""
    )
    try:
        words = ("run", "--module", "flows", "load")
        running = project.start(*words, EMATIX_FLOW_DSN=pg_url)
        with psycopg.connect(pg_url, autocommit=True) as db:
            sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            project.until(lambda: db.execute(sleeping).fetchone() == (1,))
            run_id = json.loads(project.flow("runs", "list", "--json").stdout)[0]["run_id"]
            project.flow("cancel", run_id)
            assert running.wait(timeout=20) == 1, project.said()
            assert "was cancelled" in project.said()
            assert _status(project, run_id) == "cancelled"
            project.until(lambda: db.execute(sleeping).fetchone() == (0,), within=10)
            assert db.execute("SELECT to_regclass('public.slowly')").fetchone() == (None,), "not even the table"
            (tmp_path / "quick").touch()
            project.flow(*words, EMATIX_FLOW_DSN=pg_url)
            assert db.execute("SELECT count(*) FROM public.slowly").fetchone() == (3,)
    finally:
        project.close()
