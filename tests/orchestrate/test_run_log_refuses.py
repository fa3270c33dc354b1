"""A run log that can be opened and read but not written to: what is due runs, and people hear what is not promised."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psycopg
import pytest

from ematix_flow import ematix, pipeline
from ematix_flow.contracts.orchestration import AttemptState, RunLog, Slot
from ematix_flow.orchestrate.run_due import run_due
from ematix_flow.run.registered import orchestrated
from ematix_flow.run.runlogs import sqlite as sqlite_log
from ematix_flow.run.runlogs.urls import from_url
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.watch.telling import Telling
from tests.orchestrate.project import Project

SIX = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Nothing is declared yet."""
    with isolated_registry():
        yield


def make_read_only(path: Path) -> None:
    """As a file on a read-only file system, also for root: this write version says that nobody may write to it."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(18)
        file.write(b"\x03")


def declared(ran: list[str]) -> None:
    """Six pipelines of every minute, each held back by something else, and two workflows."""
    for name in ("free", "paused", "done", "elsewhere", "given_up", "waiting"):
        pipeline.register(name=name, schedule="* * * * *")(lambda name=name: ran.append(name))
    pipeline.register(name="yesterday", schedule=None)(lambda: None)
    pipeline.register(name="after", schedule="* * * * *", depends_on=["yesterday"])(lambda: ran.append("after"))
    pipeline.register(name="part", schedule=None)(lambda: ran.append("part"))
    pipeline.register(name="late_part", schedule=None)(lambda: ran.append("late_part"))
    ematix.workflow(name="triggered_before", jobs=["late_part"], triggered_by="yesterday")
    ematix.workflow(name="triggered_now", jobs=["part"], triggered_by="free")


def filled(store: RunLog) -> None:
    """What keeps those pipelines from running is in the run log."""
    store.set_paused("paused", True, by="ada")
    store.add_slots(
        [
            Slot("done", SIX, status="succeeded"),
            Slot("waiting", SIX - timedelta(hours=1), attempt=1, eligible_at=SIX - timedelta(minutes=50)),
        ]
    )
    store.claim("elsewhere", "another-host:1:x", 600)
    store.record_attempt("given_up", AttemptState(3, SIX - timedelta(hours=1), True))
    store.record_run("yesterday", SIX - timedelta(hours=2), True, slot=SIX - timedelta(hours=2))


@pytest.fixture(params=["read-only file", "locked file", "standing-by server"])
def refusing(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], RunLog]]:
    """A filled run log, opened anew, that may only be read."""
    path = tmp_path / "runs.db"
    is_server = request.param == "standing-by server"
    url = request.getfixturevalue("pg_url") if is_server else f"sqlite:///{path}"
    with closing(from_url(url)) as store:
        filled(store)
    if is_server:
        with psycopg.connect(url, autocommit=True) as db:
            name = db.execute("SELECT current_database()").fetchone()
            assert name is not None
            db.execute(f'ALTER DATABASE "{name[0]}" SET default_transaction_read_only = on')
        yield lambda: from_url(url)
    elif request.param == "locked file":
        monkeypatch.setattr(sqlite_log, "_BUSY_TIMEOUT_S", 0.1)
        with closing(sqlite3.connect(path)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield lambda: from_url(url)
    else:
        make_read_only(path)
        yield lambda: from_url(url)


def test_what_is_due_runs_by_what_a_run_log_still_says(
    refusing: Callable[[], RunLog], caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    declared(ran)
    with closing(refusing()) as store, caplog.at_level(logging.WARNING):
        result = run_due(orchestrated(), store, Telling(log=store), now=SIX + timedelta(seconds=20), history=store)
        assert sorted(one.name for one in result.fired) == ["after", "free", "triggered_now", "waiting"]
        assert sorted(ran) == ["after", "free", "part", "waiting"]
        held = {one.name: one.reason for one in result.skipped}
        assert held["paused"] == "paused by ada" and held["elsewhere"].startswith("busy: ")
        assert held["given_up"].startswith("gave up after 3") and set(held) == {"paused", "elsewhere", "given_up"}
        assert [slot.at for slot in store.slots("free")] == [], "nothing could be written"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "another call in the same interval" in said[0], said


@pytest.mark.parametrize("breaks", ["claims", "open_slots"])
def test_a_run_log_that_goes_away_while_it_is_looked_at_holds_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    ran: list[str] = []
    pipeline.register(name="free", schedule="* * * * *")(lambda: ran.append("free"))
    with closing(from_url(f"sqlite:///{tmp_path}/runs.db")) as store:

        def gone(*_: object) -> None:
            store.close()
            store.clock()

        monkeypatch.setattr(store, breaks, gone)
        result = run_due(orchestrated(), store, Telling(log=store), now=SIX + timedelta(seconds=20), history=store)
    assert [one.name for one in result.fired] == ran == ["free"]


def test_commands_run_without_a_run_log_that_refuses(tmp_path: Path) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'runs.db'}")
    project.write('pipeline.register(name="orders", schedule="* * * * *")(lambda: {"rows": 1})')
    project.run_due("--now", "2026-03-01T06:00:20Z")
    make_read_only(tmp_path / "runs.db")
    due = project.flow("run-due", "--module", "flows", "--now", "2026-03-01T06:01:20Z")
    assert json.loads(due.stdout)["ran"] == [{"rows": 1, "_pipeline": "orders"}]
    assert due.stderr.count("another call in the same interval") == 1
    by_hand = project.flow("run", "--module", "flows", "orders")
    assert json.loads(by_hand.stdout) == {"rows": 1}
    assert by_hand.stderr.count("nobody is kept from running the same pipeline") == 1
    assert by_hand.stderr.count("warning:") == 1 and "readonly" in by_hand.stderr, by_hand.stderr
