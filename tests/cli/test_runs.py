"""`flow runs` and `flow run`: what was run can be read afterwards."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.declare import registry
from ematix_flow.run.runlogs.sqlite import SqliteRunLog

MORNING = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)
GOOD = "7f3a91c2-0000-4000-8000-000000000001"
BAD = "7f3b0000-0000-4000-8000-000000000002"


@pytest.fixture(autouse=True)
def own_registry():
    """What one test declares, the next one must not see."""
    with registry.isolated():
        yield


@pytest.fixture
def two_runs(tmp_project: Path) -> Path:
    """The default run log with a good and a bad run in it."""
    log = SqliteRunLog("~/.ematix-flow/run_log.db")
    steps = [
        {"name": "source", "status": "succeeded", "depends_on": [], "duration_ms": 1200.0, "detail": "1,204 rows"},
        {"name": "load:main.t", "status": "succeeded", "depends_on": [], "duration_ms": None},
    ]
    extras = {"rows_inserted": 1204, "rows_updated": 7, "steps": steps}
    log.record_run_record(
        RunRecord(GOOD, "sync", "succeeded", MORNING, MORNING + timedelta(seconds=2.1), extras=extras)
    )
    later = MORNING + timedelta(minutes=1)
    error = "The database said no. [FLOW406]\n  fix    ask it"
    log.record_run_record(
        RunRecord(BAD, "other", "failed", later, later, failed_step="load:main.t", error_summary=error)
    )
    log.close()
    return tmp_project


def test_no_runs_yet_is_said_in_words(tmp_project: Path, capsys) -> None:
    assert main(["runs", "list"]) == 0
    assert capsys.readouterr().out == "no runs recorded\n"


def test_the_list_shows_newest_first_with_rows_and_error(two_runs: Path, capsys) -> None:
    assert main(["runs", "list"]) == 0
    header, first, second = (re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines())
    assert header == ["RUN", "PIPELINE", "STATUS", "STARTED (UTC)", "DURATION", "ATTEMPT", "ROWS", "ERROR"]
    assert first == [
        "7f3b0000",
        "other",
        "failed",
        "2026-03-01 06:01:00",
        "0.00 s",
        "1",
        "The database said no. [FLOW406]",
    ]
    assert second == [
        *("7f3a91c2", "sync", "succeeded", "2026-03-01 06:00:00", "2.1 s", "1"),
        "1,204 inserted · 7 updated",
    ]


def test_the_list_can_be_narrowed(two_runs: Path, capsys) -> None:
    assert main(["runs", "list", "--pipeline", "sync"]) == 0
    assert "other" not in capsys.readouterr().out
    assert main(["runs", "list", "--status", "failed", "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)
    assert only["run_id"] == BAD
    assert only["error"].startswith("The database said no.")
    assert only["started_at"] == "2026-03-01T06:01:00.000Z"
    assert main(["runs", "list", "--limit", "1"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2
    assert "1 of 2 runs" in said.err


def test_the_beginning_of_an_id_shows_the_run(two_runs: Path, capsys) -> None:
    assert main(["runs", "show", "7f3a"]) == 0
    said = capsys.readouterr().out
    assert GOOD in said
    assert "  ✓ source    1,204 rows  1.2 s" in said
    assert "1,204 inserted · 7 updated" in said
    assert main(["runs", "show", "7f3b", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["failed_step"] == "load:main.t"
    assert shown["error_summary"].endswith("fix    ask it")


def test_an_ambiguous_or_unknown_id_is_an_error_that_helps(two_runs: Path, capsys) -> None:
    assert main(["runs", "show", "7f3"]) == 2
    said = capsys.readouterr().err
    assert "2 runs have an id that begins with '7f3'." in said
    assert GOOD in said
    assert main(["runs", "show", "zzz"]) == 2
    assert "No run has an id that begins with 'zzz'." in capsys.readouterr().err


def test_another_run_log_is_read_when_it_is_named(two_runs: Path, capsys) -> None:
    for words in (["--run-log", "empty.db"], ["--run-log-url", "sqlite://empty.db"], ["--run-log-path", "empty.db"]):
        assert main(["runs", "list", *words]) == 0
        assert capsys.readouterr().out == "no runs recorded\n"


def test_a_run_log_that_cannot_be_read_is_an_error_here(tmp_project: Path, capsys) -> None:
    assert main(["runs", "list", "--run-log", "postgres://ann:s3cret@127.0.0.1:1/x"]) == 1
    said = capsys.readouterr().err
    assert "cannot be opened" in said
    assert "s3cret" not in said


# ── a real pipeline, from one SQLite file into another and within one ────────────────────────────────────────────────


def declare(project: Path, module: str, body: str = "SELECT id, name FROM people", more: str = "") -> None:
    """A module with one pipeline inside a SQLite file, and the file with two people in it."""
    with sqlite3.connect(project / "people.db") as db:
        db.execute("CREATE TABLE IF NOT EXISTS people (id INTEGER PRIMARY KEY, name TEXT)")
        db.execute("INSERT OR REPLACE INTO people VALUES (1, 'Ann'), (2, 'Bob')")
    db.close()
    (project / f"{module}.py").write_text(
        f"""\
from __future__ import annotations
from typing import Annotated
from ematix_flow import BigInt, SQLiteConnection, Text, ematix, pk

people = SQLiteConnection(name="people", path="people.db")

@ematix.table(schema="main")
class Copied:
    id: Annotated[BigInt, pk()]
    name: Text

@ematix.pipeline(target=Copied, target_connection=people, mode="merge")
def copy_people(conn):
    {f'return "{body}"' if "raise" not in body else body}

{more}
"""
    )


def test_a_run_prints_one_json_line_tells_its_story_and_is_recorded(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_good")
    assert main(["run", "--module", "pipelines_good", "copy_people"]) == 0
    said = capsys.readouterr()
    (line,) = said.out.splitlines()
    result = json.loads(line)
    assert result["status"] == "success"
    assert result["rows_inserted"] == 2
    story = said.err.splitlines()
    assert story[0].startswith("copy_people  merge → ")
    assert re.fullmatch(
        rf"done in .* run {result['run_id'][:8]}   more: flow runs show {result['run_id'][:8]}", story[-1]
    )
    assert main(["runs", "show", result["run_id"][:8], "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["run_id"] == result["run_id"]
    assert record["status"] == "succeeded"
    assert record["extras"]["rows_inserted"] == 2
    assert record["extras"]["steps"]
    db = sqlite3.connect("people.db")
    assert db.execute("SELECT id, name, _batch_id FROM Copied ORDER BY id").fetchall() == [
        (1, "Ann", result["run_id"]),
        (2, "Bob", result["run_id"]),
    ]
    db.close()


def test_what_the_users_code_prints_does_not_get_into_the_answer(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_chatty", more="print('imported')\n")
    text = (tmp_project / "pipelines_chatty.py").read_text()
    (tmp_project / "pipelines_chatty.py").write_text(text.replace("    return", "    print('called')\n    return"))
    for command in ("run", "preview", "dry-run"):
        assert main([command, "--module", "pipelines_chatty", "copy_people", "--json"]) == 0
        said = capsys.readouterr()
        json.loads(said.out)
        assert "called" in said.err
    assert main(["list", "--module", "pipelines_chatty", "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_repeating_a_logical_run_changes_nothing(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_twice")
    words = ["run", "--module", "pipelines_twice", "copy_people", "--run-id", "2026-03-01", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["rows_inserted"] == 2
    assert main(words) == 0
    said = capsys.readouterr()
    json.loads(said.out)
    assert said.err == "", "with --json there is no story"
    db = sqlite3.connect("people.db")
    assert db.execute("SELECT count(*) FROM Copied").fetchone() == (2,)
    db.close()


def test_an_unknown_pipeline_is_wrong_and_the_nearest_is_named(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_named")
    assert main(["run", "--module", "pipelines_named", "copy_peple"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "did you mean 'copy_people'?" in said.err


def test_a_failing_run_says_why_exits_1_and_is_recorded_as_failed(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_failing", "SELECT id, name FROM not_there")
    assert main(["run", "--module", "pipelines_failing", "copy_people"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "not_there" in said.err
    assert "Traceback" not in said.err
    assert main(["runs", "list", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["status"] == "failed"
    assert "not_there" in record["error"]


def test_a_key_error_in_the_users_function_is_not_an_unknown_pipeline(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_raising", "raise KeyError('colour')")
    assert main(["run", "--module", "pipelines_raising", "copy_people"]) == 1
    said = capsys.readouterr().err
    assert "KeyError" in said
    assert "declares no pipeline" not in said


def test_a_run_log_that_cannot_be_opened_does_not_stop_the_run(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_unlogged")
    words = ["run", "--module", "pipelines_unlogged", "copy_people", "--run-log", "mysql://ann:s3cret@db/x"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["rows_inserted"] == 2
    warnings = [line for line in said.err.splitlines() if line.startswith("warning:")]
    assert len(warnings) == 1
    assert "s3cret" not in said.err
    assert "more: flow runs" not in said.err


def test_no_run_log_keeps_no_record(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_secretly")
    assert main(["run", "--module", "pipelines_secretly", "copy_people", "--no-run-log"]) == 0
    capsys.readouterr()
    assert not Path("~/.ematix-flow/run_log.db").expanduser().exists()


def test_preview_shows_the_plan_and_changes_nothing(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_previewed")
    assert main(["preview", "--module", "pipelines_previewed", "copy_people"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("copy_people  merge  (unscheduled)\n")
    assert "[from primary_key=True]" in said
    assert main(["preview", "copy_people", "--module", "pipelines_previewed", "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["pipeline_name"] == "copy_people"
    assert plan["targets"][0]["merge_keys"] == ["id"]
    assert plan["is_dry_run"] is False
    db = sqlite3.connect("people.db")
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'Copied'").fetchone() == (0,)
    db.close()


def test_a_dry_run_counts_and_rolls_back(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_tried")
    assert main(["dry-run", "--module", "pipelines_tried", "copy_people", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["is_dry_run"] is True
    assert plan["targets"][0]["dry_run_rows_affected"] == 2


def test_validate_is_ok_or_lists_what_is_wrong(tmp_project: Path, capsys) -> None:
    declare(tmp_project, "pipelines_valid")
    assert main(["validate", "--module", "pipelines_valid", "copy_people"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "copy_people: ok"
    with registry.isolated():
        declare(tmp_project, "pipelines_invalid", "SELECT id, nam FROM people")
        assert main(["validate", "--module", "pipelines_invalid", "copy_people"]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        lines = said.err.splitlines()
        assert lines[0] == "copy_people: failed"
        assert any(line.startswith("  - ") and "nam" in line for line in lines)
        assert main(["validate", "--module", "pipelines_invalid", "copy_people", "--json"]) == 1
        told = json.loads(capsys.readouterr().out)
        assert told["ok"] is False
        assert told["pipeline_name"] == "copy_people"


def test_a_transform_runs_on_its_own_and_gives_its_metrics(tmp_project: Path, capsys) -> None:
    more = (
        "@ematix.transform(target_connection=people)\n"
        "def count_people(conn):\n"
        "    return {'people': conn.fetch_scalar_int('SELECT count(*) FROM people')}\n"
    )
    declare(tmp_project, "pipelines_transforming", more=more)
    assert main(["transform", "list", "--module", "pipelines_transforming"]) == 0
    assert capsys.readouterr().out == "count_people\t(unscheduled)\n"
    assert main(["transform", "run", "--module", "pipelines_transforming", "count_people"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "transform_success"
    assert result["metrics"] == {"people": 2}
    assert main(["transform", "run", "--module", "pipelines_transforming", "count_poeple"]) == 2
    assert "did you mean 'count_people'?" in capsys.readouterr().err


def test_others_are_told_how_a_transform_ended(tmp_project: Path, capsys) -> None:
    more = (
        "@ematix.transform(target_connection=people)\n"
        "def fails(conn):\n"
        "    raise ValueError('nobody there')\n"
        "@ematix.transform(target_connection=people)\n"
        "def works(conn):\n"
        "    return {'people': conn.fetch_scalar_int('SELECT count(*) FROM people')}\n"
    )
    declare(tmp_project, "pipelines_told", more=more)
    told = ["--alerter", "stdout://", "--metrics", "textfile://numbers.prom", "--lineage", "file://lineage.jsonl"]
    assert main(["transform", "run", "--module", "pipelines_told", "fails", *told]) == 1
    assert "failed: fails (attempt 1)" in capsys.readouterr().err
    assert main(["transform", "run", "--module", "pipelines_told", "works", *told]) == 0
    events = [json.loads(line) for line in (tmp_project / "lineage.jsonl").read_text().splitlines()]
    ends = [(event["job"]["name"], event["eventType"]) for event in events if event["eventType"] != "START"]
    assert ends == [("fails", "FAIL"), ("works", "COMPLETE")]
    numbers = (tmp_project / "numbers.prom").read_text()
    assert 'pipeline_runs_total{outcome="success",pipeline="works"} 1.0' in numbers


def test_a_bare_function_runs_is_recorded_and_has_no_preview(tmp_project: Path, capsys) -> None:
    (tmp_project / "pipelines_bare.py").write_text(
        "from ematix_flow import pipeline\n"
        "@pipeline.register(name='good', schedule='0 6 * * *')\n"
        "def good():\n"
        "    return {'rows_inserted': 3}\n"
        "@pipeline.register(name='bad', schedule=None)\n"
        "def bad():\n"
        "    return {}['colour']\n"
    )
    assert main(["list", "--module", "pipelines_bare"]) == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["bad", "pipeline"],
        ["good", "pipeline"],
    ]
    assert main(["run", "--module", "pipelines_bare", "good"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows_inserted": 3}
    assert main(["run", "--module", "pipelines_bare", "bad"]) == 1
    assert "Pipeline 'bad' raised KeyError: 'colour'" in capsys.readouterr().err
    assert main(["preview", "--module", "pipelines_bare", "good"]) == 2
    assert "bare function" in capsys.readouterr().err
    assert main(["runs", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(run["pipeline"], run["status"], run["rows"]) for run in told] == [
        ("bad", "failed", {}),
        ("good", "succeeded", {"inserted": 3}),
    ]


def test_an_interrupted_run_is_recorded_as_cancelled(tmp_project: Path, capsys) -> None:
    body = "raise KeyboardInterrupt  # as if somebody had pressed Ctrl-C just now"
    declare(tmp_project, "pipelines_interrupted", body)
    assert main(["run", "--module", "pipelines_interrupted", "copy_people"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    assert main(["runs", "list", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["status"] == "cancelled"


def test_a_pushed_down_run_starts_no_jvm_and_loads_no_spark(tmp_project: Path) -> None:
    declare(tmp_project, "pipelines_light")
    program = (
        "import sys\n"
        "from ematix_flow.cli.main import main\n"
        "code = main(['run', '--module', 'pipelines_light', 'copy_people'])\n"
        "print(sorted({'pyspark', 'py4j', 'rich', 'pandas'} & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines()[-1] == "[]"


def test_a_stream_is_shown_with_its_counts_and_how_fast_it_was(tmp_project: Path, capsys) -> None:
    log = SqliteRunLog("~/.ematix-flow/run_log.db")
    stats = {
        **{"rows_consumed_per_sec": 50.2, "rows_written_per_sec": 48.0, "batches_per_sec": 2.0},
        **{"errors_per_sec": 0.0, "avg_batch_cycle_ms": 500.0, "span_seconds": 59.0},
    }
    extras = {
        **{"snapshot_at": "2026-03-01T06:00:30.000Z", "rows_consumed_total": 1204, "rows_written_total": 1200},
        **{"batches_total": 9, "errors_total": 1, "dead_letters_total": 3, "rows_dropped_total": 1, "restarts": 2},
        **{"stats_1m": stats, "stats_5m": dict.fromkeys(stats), "lag": {"orders-0": 12}},
    }
    log.record_run_record(RunRecord("orders-stream-1", "orders", "running", MORNING, kind="streaming", extras=extras))
    log.close()
    assert main(["runs", "list"]) == 0
    assert "1,204 consumed · 1,200 written" in capsys.readouterr().out
    assert main(["runs", "show", "orders-stream"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[-5:] == [
        "rows 1,204 consumed · 1,200 written",
        "counts 9 batches · 1 errors · 3 dead letters · 1 rows dropped · 2 restarts",
        "1 min 50 rows/s read · 48 rows/s written · a batch every 0.50 s",
        "behind orders-0: 12",
        "as of 2026-03-01T06:00:30.000Z",
    ]
