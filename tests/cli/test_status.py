"""`flow status` in text: the documented columns first, a dashed line, and one line per pipeline."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.contracts.orchestration import AttemptState
from ematix_flow.declare import registry
from ematix_flow.run.runlogs.sqlite import SqliteRunLog
from tests.cli.commands import known_command
from tests.cli.test_console import Terminal

MODULE = """
from ematix_flow import pipeline

@pipeline.register(name="orders", schedule="0 6 * * *", retry={"max_attempts": 3, "backoff": "linear", "base_secs": 9})
def orders():
    return {"rows": 1}

@pipeline.register(name="report", schedule=None, depends_on=["orders"])
def report():
    return {"rows": 1}
"""
SIX = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def project(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    known_command(monkeypatch, "status")
    (tmp_project / "status_case.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "status_case", raising=False)
    with registry.isolated():
        yield tmp_project


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["status", "--module", "status_case", "--run-log", "log.db"]) == 0
    return capsys.readouterr().out.splitlines()


def test_it_has_the_documented_columns_above_a_dashed_line(capsys: pytest.CaptureFixture[str]) -> None:
    header, dashes, orders, report = shown(capsys)
    assert re.split(r"\s{2,}", header)[:6] == ["NAME", "SCHEDULE", "LAST RUN", "OUTCOME", "RETRY", "DEPENDS ON"]
    assert len(dashes) >= len(header) and set(dashes) == {"-"}
    assert re.split(r"\s{2,}", orders)[:4] == ["orders", "0 6 * * *", "never", "0/3 (linear)"]
    assert re.split(r"\s{2,}", report)[:5] == ["report", "(unscheduled)", "never", "no retry", "orders"]


def test_it_says_how_the_last_run_ended(capsys: pytest.CaptureFixture[str]) -> None:
    log = SqliteRunLog("log.db")
    log.record_run("orders", SIX, False)
    log.record_attempt("orders", AttemptState(3, SIX, True))
    log.record_run("report", SIX, True)
    log.close()
    _, _, orders, report = shown(capsys)
    assert re.split(r"\s{2,}", orders)[2:5] == ["2026-03-01T06:00:00Z", "fail", "3/3 gave up"]
    assert re.split(r"\s{2,}", report)[2:6] == ["2026-03-01T06:00:00Z", "ok", "no retry", "orders"]


def test_a_terminal_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["status", "--module", "status_case", "--run-log", "log.db"]) == 0
    header, dashes, orders, _ = (line.rstrip() for line in screen.getvalue().splitlines())
    assert header.split()[:2] == ["NAME", "SCHEDULE"] and orders.startswith("orders ")
    assert set(dashes) == {"-"} and len(dashes) > 60
