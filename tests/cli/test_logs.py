"""`flow logs`: what a run printed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.watch.run_output import _LogFile, capture_pipeline_logs, log_file
from tests.cli.commands import known_command

RUN = "7f3a91c2-0000-4000-8000-000000000001"


@pytest.fixture(autouse=True)
def kept(tmp_project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    known_command(monkeypatch, "logs")
    with capture_pipeline_logs(RUN):
        print("one\ntwo\nthree")
    capsys.readouterr()
    yield


def test_the_output_by_the_beginning_of_the_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "7f3a91c2"]) == 0
    assert capsys.readouterr().out == "one\ntwo\nthree\n"


def test_the_last_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", RUN, "--tail", "1"]) == 0
    assert capsys.readouterr().out == "three\n"


def test_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", RUN, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == "one\ntwo\nthree\n"


def test_following_a_run_that_is_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    file = _LogFile(log_file("under-way"))
    file.write("out", b"begun\nready\n")
    threading.Timer(0.3, lambda: (file.write("out", b"done\n"), file.close())).start()
    assert main(["logs", "under-way", "--follow", "--tail", "1"]) == 0
    assert capsys.readouterr().out == "ready\ndone\n"


@pytest.mark.parametrize("run_id", ["nobody", "../../../etc/hostname", ""])
def test_an_unknown_run_is_said_on_stderr(run_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", run_id]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "No output of a run" in err


def test_a_number_of_lines_that_is_none() -> None:
    assert main(["logs", RUN, "--tail", "few"]) == 2
