"""The run log: what is written is found again, by every process, whatever happened to the one that wrote it."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.contracts.orchestration import AttemptState, LastRun
from ematix_flow.contracts.runtime import RunHistory, RunRecord
from ematix_flow.errors import ConnectionFailed, InvalidConfig
from ematix_flow.run.process import ProcessMark, this_process
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.run.runlogs.open import current_run_log, from_url, open_run_log, run_log_url, use_run_log
from ematix_flow.run.runlogs.sqlite import SqliteRunLog

MORNING = datetime(2026, 3, 1, 6, 0, 0, 123456, tzinfo=timezone.utc)


def a_run(run_id: str = "r1", *, minutes: int = 0, pipeline: str = "p", **fields) -> RunRecord:
    status = fields.pop("status", "running")
    return RunRecord(run_id, pipeline, status, MORNING + timedelta(minutes=minutes), **fields)


@pytest.fixture(params=["sqlite", "memory"])
def history(request, tmp_path: Path):
    log: RunHistory = SqliteRunLog(tmp_path / "log.db") if request.param == "sqlite" else InMemoryRunLog()
    yield log
    log.close()


def test_threads_write_at_the_same_time(history: RunHistory) -> None:
    def write(number: int) -> None:
        for i in range(20):
            history.record_run_record(a_run(f"{number}-{i}"))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert history.list_runs()[1] == 100


_WRITER = """
import sys
from datetime import datetime, timezone
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.run.runlogs.sqlite import SqliteRunLog
log = SqliteRunLog(sys.argv[1])
for i in range(50):
    log.record_run_record(RunRecord(f"{sys.argv[2]}-{i}", "p", "running", datetime.now(timezone.utc)))
log.close()
"""


def test_processes_open_a_new_file_and_write_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "log.db"
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(4)
    ]
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert writer.returncode == 0, said
    log = SqliteRunLog(path)
    assert log.list_runs()[1] == 200
    log.close()


def test_the_file_is_in_wal_mode_and_closing_twice_is_fine(tmp_path: Path) -> None:
    log = SqliteRunLog(tmp_path / "log.db")
    assert sqlite3.connect(tmp_path / "log.db").execute("PRAGMA journal_mode").fetchone() == ("wal",)
    log.close()
    log.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        log.list_runs()


_KILLED = """
import os, signal, sys
from ematix_flow.run.recorder import RunRecorder
from ematix_flow.run.runlogs.sqlite import SqliteRunLog
recorder = RunRecorder(SqliteRunLog(sys.argv[1]), "p", "the-lost-one")
recorder.start()
recorder.step("source", "succeeded")
recorder.step("load:main.t", "running")
recorder.step("post[0]", "pending")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_whose_process_was_killed_ends_as_failed_at_the_next_opening(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    assert subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False).returncode == -9
    log = SqliteRunLog(path)
    lost = log.get_run("the-lost-one")
    log.close()
    assert lost.status == "failed"
    assert lost.error_summary.startswith("worker lost")
    assert lost.finished_at is not None
    assert lost.failed_step == "load:main.t"
    assert [step["status"] for step in lost.extras["steps"]] == ["succeeded", "failed", "skipped"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="this very process"),
        pytest.param({"host": "another-host", "pid": 999_999_999}, id="a process of another host"),
        pytest.param({"namespace": "pid:[1]", "pid": 999_999_999}, id="a process of another container"),
    ],
)
def test_a_run_that_may_be_alive_is_left_alone(tmp_path: Path, changes: dict) -> None:
    process = replace(this_process(), **changes)
    log = SqliteRunLog(tmp_path / "log.db")
    log.record_run_record(a_run(extras={"process": process.to_dict()}))
    log.record_run_record(a_run("without a process"))
    log.close()
    log = SqliteRunLog(tmp_path / "log.db")
    assert [record.status for record in log.list_runs()[0]] == ["running", "running"]
    log.close()


def test_a_process_number_that_was_given_out_again_does_not_keep_a_run_alive() -> None:
    me = this_process()
    assert not me.is_dead
    assert replace(me, started="an earlier start").is_dead
    assert ProcessMark.from_dict(me.to_dict()) == me
    assert ProcessMark.from_dict({"host": 3}) is None


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    from ematix_flow.run.process import _start_of

    mark = replace(this_process(), pid=child.pid, started=_start_of(child.pid))
    assert not mark.is_dead
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it ended, and stays a zombie until somebody waits for it
    assert mark.is_dead
    child.communicate()
    assert mark.is_dead


def test_old_records_are_removed_when_a_new_one_ends(tmp_path: Path) -> None:
    log = from_url(f"sqlite://{tmp_path}/log.db?max_records=2")
    for i in range(4):
        log.record_run_record(a_run(f"r{i}", minutes=i, status="succeeded", finished_at=MORNING + timedelta(hours=i)))
    assert [record.run_id for record in log.list_runs()[0]] == ["r3", "r2"]
    log.close()
    log = from_url(f"{tmp_path}/log.db?max_age_days=1")
    later = MORNING + timedelta(days=1, hours=2, minutes=30)
    log.record_run_record(RunRecord("now", "p", "succeeded", later, later))
    assert [record.run_id for record in log.list_runs()[0]] == ["now", "r3"]
    log.close()


_VERSION_1 = """
CREATE TABLE ematix_flow_run_log_version (version INTEGER NOT NULL);
INSERT INTO ematix_flow_run_log_version VALUES (1);
CREATE TABLE run_records (
    run_id TEXT PRIMARY KEY, pipeline TEXT NOT NULL, status TEXT NOT NULL, started_at TEXT NOT NULL, finished_at TEXT,
    attempt INTEGER NOT NULL, failed_step TEXT, failed_watermark TEXT, error_summary TEXT, kind TEXT NOT NULL,
    extras TEXT NOT NULL
);
CREATE INDEX run_records_by_time ON run_records (started_at);
CREATE INDEX run_records_by_pipeline ON run_records (pipeline, started_at);
INSERT INTO run_records VALUES
    ('r1', 'p', 'succeeded', '2026-03-01T06:00:00.123456Z', '2026-03-01T06:01:00.123456Z', 1, NULL, NULL, NULL, 'batch',
     '{"rows_inserted": 3}'),
    ('r2', 'p', 'running', '2026-03-01T07:00:00.123456Z', NULL, 2, NULL, NULL, NULL, 'batch', '{}');
"""
# What version 1.0.0 of the program that had these tables first left behind.
_BEFORE = """
CREATE TABLE run_log (pipeline_name TEXT PRIMARY KEY, last_run_at TEXT NOT NULL, success INTEGER NOT NULL);
CREATE TABLE attempt_state (
    pipeline_name TEXT PRIMARY KEY, attempt_count INTEGER NOT NULL, last_attempt_at TEXT, gave_up INTEGER NOT NULL
);
CREATE TABLE pipeline_claims (
    pipeline_name TEXT PRIMARY KEY, claim_token TEXT NOT NULL, worker_id TEXT NOT NULL, claimed_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
);
INSERT INTO run_log VALUES ('p', '2026-03-01T06:00:00Z', 1);
INSERT INTO attempt_state VALUES ('q', 2, '2026-03-01T06:00:00Z', 1);
INSERT INTO pipeline_claims VALUES ('p', 'abc', 'ann', '2026-03-01T06:00:00Z', '2026-03-01T06:00:30Z');
"""


def written_by(path: Path, script: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


def test_a_file_of_version_1_is_upgraded_with_everything_in_it(tmp_path: Path) -> None:
    log = SqliteRunLog(written_by(tmp_path / "log.db", _VERSION_1))
    log.record_run_record(a_run("r3", minutes=120))
    records, total = log.list_runs()
    assert ([(r.run_id, r.status, r.attempt) for r in records], total) == (
        [("r3", "running", 1), ("r2", "running", 2), ("r1", "succeeded", 1)],
        3,
    )
    assert log.get_run("r1").extras == {"rows_inserted": 3}
    log.set_pause("r2", True)
    assert log.claim("p", "ann", 30).acquired
    log.close()
    connection = sqlite3.connect(tmp_path / "log.db")
    assert connection.execute("SELECT max(version) FROM ematix_flow_run_log_version").fetchone() == (4,)
    connection.close()


def test_processes_upgrade_a_file_at_the_same_time(tmp_path: Path) -> None:
    path = written_by(tmp_path / "log.db", _VERSION_1)
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), str(number)], stderr=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert writer.returncode == 0, said
    log = SqliteRunLog(path)
    assert log.list_runs()[1] == 152
    log.close()


def test_a_log_with_only_the_tables_of_old_is_taken_over(tmp_path: Path) -> None:
    log = SqliteRunLog(written_by(tmp_path / "log.db", _BEFORE))
    six = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)
    assert log.last_runs() == {"p": LastRun(six, True)}
    assert log.attempts() == {"q": AttemptState(2, six, True)}
    assert [(claim.worker_id, claim.fence) for claim in log.claims()] == [("ann", 0)]
    log.release("abc")
    assert log.claim("p", "bob", 30).fence == 1
    log.close()


def test_a_file_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    SqliteRunLog(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO ematix_flow_run_log_version VALUES (99)")
    connection.close()
    with pytest.raises(InvalidConfig, match="version 99"):
        SqliteRunLog(path)


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_text("this is a diary, not a database, and it is longer than a header\n" * 20)
    with pytest.raises(ConnectionFailed, match="cannot be opened"):
        SqliteRunLog(path)
    assert path.read_text().startswith("this is a diary")


def test_the_choice_follows_the_documented_order(tmp_project: Path, monkeypatch) -> None:
    assert run_log_url() == "~/.ematix-flow/run_log.db"
    (tmp_project / ".ematix-flow.toml").write_text('run_log = "from_project.db"\n')
    assert run_log_url() == "from_project.db"
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_PATH", "from_path.db")
    assert run_log_url() == "from_path.db"
    monkeypatch.setenv("EMATIX_FLOW_RUN_LOG_URL", "memory://")
    assert run_log_url() == "memory://"
    assert run_log_url("chosen.db") == "chosen.db"


@pytest.mark.parametrize(
    "written", ["log.db", "file://log.db", "sqlite://log.db", "sqlite://{here}/log.db", "{here}/log.db"]
)
def test_paths_and_sqlite_urls_mean_the_same_file(written: str, tmp_project: Path) -> None:
    log = from_url(written.format(here=tmp_project))
    log.close()
    assert (tmp_project / "log.db").exists()


def test_the_default_lies_in_the_home(tmp_project: Path) -> None:
    log = open_run_log()
    log.close()
    assert Path("~/.ematix-flow/run_log.db").expanduser().exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgres://ann:s3cret@127.0.0.1:1/x?password=alsohidden", "cannot be opened"),
        ("mysql://ann:s3cret@127.0.0.1:1/x", "cannot be opened"),
        ("mysql://ann:s3cret@127.0.0.1:1/x?tabel_prefix=t_", "take no parameter 'tabel_prefix'"),
        ("azure://account", "incomplete"),
        ("s3:///prefix", "names no bucket"),
        ("postgres://ann:s3cret@127.0.0.1:1/x?create_tables=perhaps", "true or false"),
        ("sqlit:///x", "did you mean 'sqlite'?"),
        ("gopher://ann:s3cret@db", "unknown"),
        ("sqlite:///nowhere/at/all\0/x.db", "no run history"),
        ("log.db?max_recrods=3", "did you mean 'max_records'?"),
        ("log.db?max_records=many", "are numbers"),
    ],
)
def test_a_store_that_cannot_be_had_is_one_warning_without_a_password(
    url: str, words: str, tmp_project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="ematix_flow"):
        assert open_run_log(url) is None
    (line,) = caplog.messages
    assert words in line
    assert "\n" not in line
    assert "s3cret" not in line
    assert "alsohidden" not in line


def test_a_broken_project_file_is_a_warning_for_the_run_log(tmp_project: Path) -> None:
    (tmp_project / ".ematix-flow.toml").write_text("run_log = \n")
    told: list[str] = []
    assert open_run_log(warn=told.append) is None
    assert len(told) == 1


def test_runs_are_recorded_in_the_chosen_log_else_in_the_default(tmp_project: Path) -> None:
    mine = InMemoryRunLog()
    with use_run_log(mine):
        assert current_run_log() is mine
        with use_run_log(None):
            assert current_run_log() is None
        assert current_run_log() is mine
    default = current_run_log()
    assert isinstance(default, SqliteRunLog)
    assert default.path == Path("~/.ematix-flow/run_log.db").expanduser()
    assert current_run_log() is default, "opened once"
    default.close()


def test_a_time_of_day_that_jumps_takes_no_claim_from_a_process_that_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SqliteRunLog(tmp_path / "log.db")
    token = log.claim("p", "ann", 60).token
    assert token is not None
    for hours in (1, -1):
        jumped = time.time_ns() + hours * 3600 * 10**9
        with monkeypatch.context() as patched:
            patched.setattr("time.time_ns", lambda jumped=jumped: jumped)
            patched.setattr("ematix_flow.run.runlogs.sqlite.datetime", _clock_of(jumped))
            other = SqliteRunLog(tmp_path / "log.db")  # another process, which has seen only the new time of day
            assert not other.claim("p", "bob", 60).acquired, hours
            assert log.holds(token) and list(other.sweep_expired_leases()) == []
            assert log.heartbeat(token, 60) and other.holds(token)
            other.close()
    short = log.claim("q", "ann", 0.05).token
    time.sleep(0.1)
    assert short is not None and not log.holds(short), "a lease still ends"
    log.close()


def _clock_of(nanoseconds: int) -> type[datetime]:
    class Set(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.fromtimestamp(nanoseconds / 10**9, tz)

    return Set
