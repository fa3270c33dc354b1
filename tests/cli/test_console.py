"""How answers look, with and without somebody watching."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
from datetime import datetime, timezone
from decimal import Decimal

import pytest

from ematix_flow.cli.console import Console, RunDisplay, json_text
from ematix_flow.contracts.plans import RunResult
from ematix_flow.contracts.runtime import RunObserver
from ematix_flow.errors import UnknownConnection


class Terminal(io.StringIO):
    """A stream with somebody in front of it."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_answer_goes_to_stdout_and_the_story_to_stderr(capsys) -> None:
    console = Console()
    console.line("answer")
    console.note("story")
    console.warning("mind the gap")
    said = capsys.readouterr()
    assert said.out == "answer\n"
    assert said.err == "story\nwarning: mind the gap\n"


def test_a_plain_table_is_aligned_and_keeps_brackets(capsys) -> None:
    Console().table(("NAME", "WHY"), [("a", "[from primary_key=True]"), ("longer", None)])
    assert capsys.readouterr().out == "NAME    WHY\na       [from primary_key=True]\nlonger\n"


def test_a_table_on_a_terminal_keeps_brackets_too(monkeypatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    Console().table(("NAME", "WHY"), [("a", "[bold]not markup[/bold]")])
    assert "[bold]not markup[/bold]" in screen.getvalue()
    assert "\x1b[" in screen.getvalue()


@pytest.mark.parametrize("off", ["NO_COLOR", "flag", "dumb"])
def test_colour_can_be_switched_off(off: str, monkeypatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "dumb" if off == "dumb" else "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if off == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    console = Console(color=False if off == "flag" else None)
    console.error("bad")
    console.table(("A",), [("b",)])
    assert "\x1b[3" not in screen.getvalue()
    assert "bad\n" in screen.getvalue()


def test_an_error_shows_place_what_was_tried_and_the_fix(capsys) -> None:
    error = UnknownConnection(
        "Connection 'x' is not defined.", where="p.py:1", tried=("a", "b"), fix="did you mean 'y'?"
    )
    Console().error(error)
    assert capsys.readouterr().err == (
        "Connection 'x' is not defined. [FLOW201]\n  at     p.py:1\n  tried  a · b\n  fix    did you mean 'y'?\n"
    )


def test_an_error_never_shows_a_password(capsys) -> None:
    Console().error(UnknownConnection("no route to postgres://ann:s3cret@db/x", fix="see mysql://bob:pw9@h/y"))
    Console(json=True).error(UnknownConnection("no route to postgres://ann:s3cret@db/x", fix="see mysql://bob:pw9@h/y"))
    said = capsys.readouterr().err
    assert "s3cret" not in said
    assert "pw9" not in said


def test_results_become_one_line_of_json() -> None:
    nested = {
        "results": {"main.t": RunResult(run_id="r", rows_inserted=3)},
        "at": datetime(2026, 3, 1, 6, tzinfo=timezone.utc),
        "sum": Decimal("1.10"),
        "odd": float("nan"),
    }
    assert json.loads(json_text(nested)) == {
        "results": {"main.t": {"run_id": "r", "rows_inserted": 3}},
        "at": "2026-03-01T06:00:00.000Z",
        "sum": "1.10",
        "odd": None,
    }
    assert "\n" not in json_text({"text": "two\nlines"})


def test_a_display_is_an_observer_and_tells_the_story_in_lines(capsys) -> None:
    clock = Clock()
    display: RunObserver = RunDisplay(Console(), "sync_customers", clock=clock)
    assert isinstance(display, RunDisplay)
    with display:
        display.planned("scd2 → warehouse.analytics.customer_dim", "pushdown · same database")
        display.step("plan", "running")
        display.step("plan", "succeeded", "3 statements, no schema change", 12.0)
        display.step("stage", "succeeded", "1,204 rows read [all]", 2100.0)
        display.step("quality", "skipped", "nothing declared")
        display.step("post[0]", "failed", "it broke")
        clock.now += 2.1
        display.done("7f3a91c2-0000-4000-8000-000000000000")
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert re.fullmatch(r"sync_customers  scd2 → warehouse.analytics.customer_dim +pushdown · same database", lines[0])
    assert lines[1:] == [
        "  ✓ plan      3 statements, no schema change",
        "  ✓ stage     1,204 rows read [all]  2.1 s",
        "  - quality   nothing declared",
        "  ✗ post[0]   it broke",
        "done in 2.1 s   run 7f3a91c2   more: flow runs show 7f3a91c2",
    ]


def test_a_long_load_without_a_terminal_says_now_and_then_how_far_it_is(capsys) -> None:
    clock = Clock()
    with RunDisplay(Console(), "p", clock=clock) as display:
        display.step("stage", "running")
        for _ in range(30):
            clock.now += 0.5
            display.progress("stage", int((clock.now - 100) * 1000), 20_000)
        display.step("stage", "succeeded", "done")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "  … stage     1,000 of 20,000 rows  1,000 rows/s  1.0 s",
        "  … stage     11,000 of 20,000 rows  1,000 rows/s  11.0 s",
        "  ✓ stage     done",
    ]


def test_a_short_load_shows_no_progress(capsys) -> None:
    clock = Clock()
    with RunDisplay(Console(), "p", clock=clock) as display:
        display.step("stage", "running")
        clock.now += 0.9
        display.progress("stage", 10)
        display.step("stage", "succeeded", "10 rows")
    assert capsys.readouterr().err.splitlines() == ["  ✓ stage     10 rows"]


_ON_A_TERMINAL = """
import time
from ematix_flow.cli.console import Console, RunDisplay
with RunDisplay(Console(), "p") as display:
    display.planned("append [x] → t", "spark")
    display.step("stage", "running")
    for i in range(1, 24):
        display.progress("stage", i * 1000)
        time.sleep(0.1)
    display.step("stage", "succeeded", "23,000 rows")
    display.done(None)
"""


def test_a_long_load_on_a_terminal_shows_stage_rows_and_rate_and_then_cleans_up() -> None:
    screen = _screen_of(_ON_A_TERMINAL)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen)
    assert re.search(r"stage +[\d,]+ rows  [\d,]+ rows/s", text)
    assert "✓ stage     23,000 rows" in text
    assert "append [x] → t" in text
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h"), "the cursor comes back"
    assert "done in 2." in text.splitlines()[-1]


def test_steps_from_another_thread_are_shown(capsys) -> None:
    with RunDisplay(Console(), "p") as display:
        worker = threading.Thread(target=display.step, args=("stage", "succeeded", "by a worker"))
        worker.start()
        worker.join()
    assert "by a worker" in capsys.readouterr().err


def _screen_of(program: str) -> str:
    """What a real terminal receives while the program runs."""
    outside, inside = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    env.pop("NO_COLOR", None)
    process = subprocess.Popen([sys.executable, "-c", program], stdin=inside, stdout=inside, stderr=inside, env=env)
    os.close(inside)
    received = b""
    while True:
        try:
            part = os.read(outside, 65536)
        except OSError:  # Linux says so when the other side is gone
            break
        if not part:
            break
        received += part
    os.close(outside)
    assert process.wait(timeout=30) == 0
    return received.decode()


def test_a_ruled_table_has_a_line_of_dashes_below_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    Console().table(("NAME", "LAST RUN"), [("orders", "never")], ruled=True)
    assert capsys.readouterr().out == "NAME    LAST RUN\n----------------\norders  never\n"
