"""A stream on a screen, and in a log."""

from __future__ import annotations

import io
import time

import pytest

from ematix_flow.cli.console import Console
from ematix_flow.cli.stream_display import StreamDisplay, plain_line, screen
from ematix_flow.contracts.streams import Lag, StreamCounters
from ematix_flow.run.stream_watch import COUNTS, StreamView, StreamWatch

VIEW = StreamView(
    pipeline="orders",
    phase="running",
    counts={**dict.fromkeys(COUNTS, 0), "rows_written": 1204, "rows_consumed": 1210, "batches": 3, "errors": 1},
    restarts=2,
    rows_per_s=400.4,
    lag={"orders": [Lag("orders-0", 5), Lag("orders-1", 1000), Lag("orders-2", 0)]},
    last_batch_s=0.82,
    last_success_at=100.0,
)


def test_the_screen_says_how_much_how_fast_how_far_behind_and_what_went_wrong() -> None:
    assert screen(VIEW, 125, lambda: 102.0) == [
        "orders   running   2 min 5 s",
        "  rows     1,204 written · 1,210 read · 400 rows/s",
        "  batches  3 · the last took 0.82 s · 2.0 s ago",
        "  behind   1,005 messages · orders-1: 1,000 · orders-0: 5",
        "  trouble  1 error · 0 dead letters · 0 dropped · 2 restarts",
    ]


def test_a_log_line_leaves_out_what_did_not_happen() -> None:
    assert plain_line(VIEW) == "orders  running  1,204 rows  400 rows/s  1,005 behind  1 error  2 restarts"
    quiet = StreamView(pipeline="orders", phase="waiting", counts=dict.fromkeys(COUNTS, 0))
    assert plain_line(quiet) == "orders  waiting  0 rows  0 rows/s"


class Terminal(io.StringIO):
    """Somebody looks."""

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_screen_is_drawn_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    monkeypatch.setenv("TERM", "xterm")
    watch, counters = StreamWatch("orders"), StreamCounters()
    with watch.run_of(counters, lambda facts: None), StreamDisplay(Console(color=False), watch):
        counters.add(rows_written=7)
        deadline = time.monotonic() + 10
        while "7 written" not in seen.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "7 written" in seen.getvalue()
    assert "orders ended after" in seen.getvalue().splitlines()[-1]


def test_without_a_terminal_there_is_a_line_when_something_changed(capsys: pytest.CaptureFixture[str]) -> None:
    watch, counters, said = StreamWatch("orders"), StreamCounters(), ""
    with watch.run_of(counters, lambda facts: None), StreamDisplay(Console(), watch, plain_every_s=0.02):
        counters.add(rows_written=7)
        deadline = time.monotonic() + 10
        while "7 rows" not in said and time.monotonic() < deadline:
            said += capsys.readouterr().err
        time.sleep(0.1)
    assert said.count("orders  starting  7 rows") == 1
    assert "orders  " not in capsys.readouterr().err, "nothing has changed since"


def test_with_json_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with StreamDisplay(Console(json=True), StreamWatch("orders"), plain_every_s=0.001):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
