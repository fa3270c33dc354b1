"""A running stream on one screen of a terminal; elsewhere a line now and then, when something has changed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from ematix_flow.cli.console import Console, duration_text
from ematix_flow.errors import counted

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from ematix_flow.run.stream_watch import StreamView, StreamWatch

_PLAIN_EVERY_S = 30.0


class StreamDisplay:
    """Shows what a `StreamWatch` sees, on stderr, while its block runs. Says nothing when the answer is JSON."""

    def __init__(self, console: Console, watch: StreamWatch, *, plain_every_s: float = _PLAIN_EVERY_S) -> None:
        self._console, self._watch, self._plain_every_s = console, watch, plain_every_s
        self._began = time.monotonic()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._live: Live | None = None

    def __enter__(self) -> StreamDisplay:
        if self._console.is_json:
            return self
        self._began = time.monotonic()
        if self._console.is_terminal(sys.stderr):
            self._show_live()
        else:
            self._thread = threading.Thread(target=self._say, name="display", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._console.is_json:
            return
        self._done.set()
        if self._live is not None:
            self._live.stop()
        if self._thread is not None:
            self._thread.join()
        view = self._watch.view()
        took = duration_text(time.monotonic() - self._began)
        rows, batches = counted(view.counts["rows_written"], "row"), counted(view.counts["batches"], "batch", "batches")
        word = "failed" if kind else "ended"
        self._console.note(f"{view.pipeline} {word} after {took}: {rows} in {batches}", "red" if kind else None)

    def _say(self) -> None:
        """A line every half minute, if there is news."""
        said = ""
        while not self._done.wait(self._plain_every_s):
            words = plain_line(self._watch.view())
            if words != said:
                self._console.note(words)
                said = words

    def _show_live(self) -> None:
        from rich.console import Console as RichConsole
        from rich.live import Live

        colored = self._console.has_color(sys.stderr)
        terminal = RichConsole(file=sys.stderr, no_color=not colored, highlight=False, markup=False)
        self._live = Live(
            console=terminal, transient=True, refresh_per_second=2, get_renderable=self._screen, redirect_stdout=False
        )
        self._live.start()

    def _screen(self) -> Text:
        from rich.text import Text

        lines = screen(self._watch.view(), time.monotonic() - self._began, time.time)
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def plain_line(view: StreamView) -> str:
    """A stream in one line, for logs."""
    counts = view.counts
    words = [
        f"{view.pipeline}  {view.phase}",
        f"{counts['rows_written']:,} rows",
        f"{view.rows_per_s:,.0f} rows/s",
        *([] if view.behind is None else [f"{view.behind:,} behind"]),
    ]
    for name, noun in (("errors", "error"), ("dead_letters", "dead letter")):
        if counts[name]:
            words.append(counted(counts[name], noun))
    if view.restarts:
        words.append(counted(view.restarts, "restart"))
    return "  ".join(words)


def screen(view: StreamView, running_s: float, clock: Callable[[], float]) -> list[str]:
    """A stream on one screen."""
    counts = view.counts
    rows = [
        f"{counts['rows_written']:,} written",
        f"{counts['rows_consumed']:,} read",
        f"{view.rows_per_s:,.0f} rows/s",
    ]
    batches = [f"{counts['batches']:,}"]
    if view.last_batch_s is not None:
        batches.append(f"the last took {duration_text(view.last_batch_s)}")
    if view.last_success_at is not None:
        batches.append(f"{duration_text(max(clock() - view.last_success_at, 0))} ago")
    lines = [
        f"{view.pipeline}   {view.phase}   {duration_text(running_s)}",
        f"  rows     {' · '.join(rows)}",
        f"  batches  {' · '.join(batches)}",
    ]
    if view.behind is not None:
        worst = sorted((lag for parts in view.lag.values() for lag in parts), key=lambda lag: -lag.behind)[:3]
        named = [f"{lag.part}: {lag.behind:,}" for lag in worst if lag.behind]
        lines.append("  behind   " + " · ".join([counted(view.behind, "message"), *named]))
    if view.state_rows:
        lines.append(f"  state    {counted(view.state_rows, 'row')} · {view.state_bytes / 1e6:,.1f} MB")
    trouble = [
        counted(counts["errors"], "error"),
        counted(counts["dead_letters"], "dead letter"),
        f"{counts['rows_dropped']:,} dropped",
        counted(view.restarts, "restart"),
    ]
    lines.append(f"  trouble  {' · '.join(trouble)}")
    return lines
