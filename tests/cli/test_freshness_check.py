"""`flow freshness-check`: promises kept and broken, told once."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.declare import registry
from ematix_flow.quality.freshness import evaluate_freshness
from ematix_flow.run.runlogs.sqlite import SqliteRunLog
from tests.cli.commands import known_command

MODULE = """
from datetime import timedelta
from ematix_flow import Annotated, BigInt, ematix, pk

@ematix.table(schema="main")
class T:
    id: Annotated[BigInt, pk()]

@ematix.pipeline(target=T, mode="append", freshness_sla=timedelta(hours=1))
def hourly(conn):
    return "SELECT 1 AS id"

@ematix.pipeline(target=T, mode="append", name="no_promise")
def no_promise(conn):
    return "SELECT 1 AS id"
"""
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def project(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    known_command(monkeypatch, "freshness-check")
    (tmp_project / "fresh_case.py").write_text(MODULE)
    (tmp_project / "promises_nothing.py").write_text("")
    for name in ("fresh_case", "promises_nothing"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with registry.isolated():
        yield tmp_project


def check(*words: str) -> int:
    return main(["freshness-check", "--module", "fresh_case", "--run-log", "log.db", *words])


def succeeded(ago: timedelta, *, by_hand: bool = False) -> None:
    at = datetime.now(timezone.utc) - ago
    log = SqliteRunLog("log.db")
    if by_hand:
        log.record_run_record(RunRecord(f"run-{ago}", "hourly", "succeeded", at, at))
    else:
        log.record_run("hourly", at, True)
    log.close()


def test_a_pipeline_that_never_ran_breaks_its_promise(capsys: Captured) -> None:
    assert check() == 1
    assert capsys.readouterr().out == "hourly  breached  lag=never  sla=3600s\n"


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize(
    ("minutes", "state", "code"), [(10, "healthy", 0), (55, "warning", 0), (61, "breached", 1)], ids=str
)
def test_the_last_success_counts(minutes: int, state: str, code: int, by_hand: bool, capsys: Captured) -> None:
    succeeded(timedelta(minutes=minutes), by_hand=by_hand)
    assert check("--json") == code
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["pipeline"], found["state"], found["sla_seconds"]) == ("hourly", state, 3600)
    assert found["lag_seconds"] // 60 == minutes and found["last_success"].endswith("Z")


def test_a_breach_and_its_end_are_told_once_across_calls(capsys: Captured) -> None:
    def told() -> list[str]:
        check("--alerter", "stdout://")
        said = "".join(capsys.readouterr())
        return [word for word in ("sla_breached", "recovered") if word in said]

    assert [told(), told()] == [["sla_breached"], []]
    succeeded(timedelta(minutes=1))
    assert [told(), told()] == [["recovered"], []]


def test_nothing_promised_is_said(capsys: Captured) -> None:
    assert main(["freshness-check", "--module", "promises_nothing"]) == 0
    assert capsys.readouterr().out == "no freshness SLOs registered\n"


def test_times_without_a_zone_are_utc_and_lag_is_whole_seconds() -> None:
    noon = datetime(2026, 3, 1, 12)
    state = evaluate_freshness(pipeline="p", last_success=noon, sla=10, now=noon + timedelta(seconds=9.7))
    assert (state.state, state.lag_seconds) == ("warning", 9)
    assert state.evaluated_at.tzinfo is not None
    assert (
        evaluate_freshness(pipeline="p", last_success=noon, sla=10, now=noon + timedelta(seconds=10)).state == "warning"
    )


def freshness_states(file: str) -> list[tuple[object, ...]]:
    db = sqlite3.connect(file)
    found = db.execute("SELECT pipeline, sla_seconds, state, last_success IS NULL FROM freshness_state").fetchall()
    db.close()
    return found


def test_where_promises_stand_is_kept_in_a_table(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    assert check("--analytics-db", "analytics.db") == 1
    assert freshness_states("analytics.db") == [("hourly", 3600.0, "breached", 1)]
    succeeded(timedelta(minutes=1))
    monkeypatch.setenv("EMATIX_FLOW_ANALYTICS_DB", "analytics.db")
    assert check() == 0
    assert freshness_states("analytics.db") == [("hourly", 3600.0, "healthy", 0)]
    Path("no.db").write_text("something else")
    assert check("--analytics-db", "no.db") == 2
    assert "cannot hold the table freshness_state" in capsys.readouterr().err
