"""`--module`, once or several times, and what daemons say: in this process, without workers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.testing.registry import isolated_registry

BASE = """
from ematix_flow import pipeline

@pipeline.register(name="raw", schedule="0 6 1 3 *")
def raw():
    print("raw prints")
    return {"rows": 1}
"""
MART = """
from ematix_flow import pipeline

@pipeline.register(name="mart", schedule="0 6 1 3 *", depends_on=["raw"])
def mart():
    return {"rows": 2}
"""


@pytest.fixture(autouse=True)
def modules(tmp_project: Path) -> Iterator[None]:
    """Two modules, one of which waits for what the other declares."""
    (tmp_project / "half_base.py").write_text(BASE)
    (tmp_project / "half_mart.py").write_text(MART)
    for name in ("half_base", "half_mart"):
        sys.modules.pop(name, None)
    with isolated_registry():
        yield


def test_the_modules_of_a_command_are_one_graph(capsys: pytest.CaptureFixture[str]) -> None:
    both = ("--module", "half_mart", "--module", "half_base")
    assert main(["run-due", *both, "--now", "2026-03-01T06:00:10Z"]) == 0
    assert [one["_pipeline"] for one in json.loads(capsys.readouterr().out)["ran"]] == ["raw", "mart"]
    assert main(["status", *both, "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == ["mart", "raw"]


def test_modules_with_commas_between_are_what_a_worker_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--module", "half_mart,half_base", "mart", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": 2}


def test_one_of_two_modules_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--module", "half_base", "--module", "half_bass"]) == 2
    assert "There is no module 'half_bass'." in capsys.readouterr().err


def test_output_of_a_run_by_hand_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--module", "half_base", "raw"]) == 0
    assert main(["runs", "list", "--json"]) == 0
    run_id = json.loads(capsys.readouterr().out.splitlines()[-1])[0]["run_id"]
    assert main(["logs", run_id]) == 0
    assert capsys.readouterr().out == "raw prints\n"


def test_every_line_of_a_scheduler_says_when(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduler", "--module", "half_base", "--max-iterations", "1"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert "scheduler started" in said[0] and "scheduler stopped" in said[-1]
    assert all(re.match(r"\d\d:\d\d:\d\d (INFO|WARNING) ematix_flow\.", line) for line in said), said


def test_a_scheduler_refuses_a_run_log_that_its_workers_could_not_open(
    tmp_project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = ("scheduler", "--module", "half_base", "--max-iterations", "1", "--run-log")
    assert main([*refused, f"duckdb:///{tmp_project}/runs.duckdb"]) == 2
    assert "DuckDB, which gives a file to one process, is not seen by workers" in capsys.readouterr().err
