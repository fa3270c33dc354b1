"""How answers and errors look: stdout is the answer, stderr is the story. Commands hand over data, this file prints it.

The plain path needs only the standard library. `rich` is loaded when a table goes to a terminal, or when a load on a
terminal takes longer than a second. User text is never read as markup: brackets in a reason stay where they are.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from ematix_flow.contracts.runtime import StepStatus, instant_text
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

Style = Literal["bold", "dim", "red", "green", "yellow"]

_CODES: dict[Style, str] = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_MARKS: dict[StepStatus, str] = {"succeeded": "✓", "failed": "✗", "skipped": "-"}
_MARK_STYLES: dict[StepStatus, Style] = {"succeeded": "green", "failed": "red", "skipped": "dim"}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_DASHES_BELOW_HEADER = "    \n    \n ---\n" + "    \n" * 5
_SILENCE_S = 1.0
_PLAIN_PROGRESS_S = 10.0


class Console:
    """One command's mouth. Streams are looked up at every write, so that redirecting them works."""

    def __init__(self, json: bool = False, color: bool | None = None) -> None:
        self.is_json = json
        self._color = color

    def line(self, text: str = "") -> None:
        """A line of the answer."""
        _write(sys.stdout, text)

    def json(self, value: Any) -> None:
        """The whole answer as one line of JSON."""
        _write(sys.stdout, json_text(value))

    def note(self, text: str, style: Style | None = None) -> None:
        """A line of the story, on stderr."""
        _write(sys.stderr, self.painted(text, style))

    def warning(self, text: str) -> None:
        """One line that the user should act on, on stderr."""
        _write(sys.stderr, f"{self.painted('warning:', 'yellow')} {scrub(text)}")

    def error(self, exc: BaseException | str) -> None:
        """What went wrong, on stderr; an object on one line when the answer is JSON."""
        if self.is_json:
            _write(sys.stderr, json_text(_error_fields(exc)))
            return
        first, *rest = scrub(str(exc)).splitlines() or [type(exc).__name__]
        _write(sys.stderr, "\n".join([self.painted(first, "red"), *rest]))

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, header: bool = True, ruled: bool = False
    ) -> None:
        """Rows in aligned columns; None is left empty. Without a terminal nothing is cut and nothing is coloured.

        With `ruled`, a line of dashes stands below the header.
        """
        cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
        if self.is_terminal(sys.stdout):
            self._terminal_table(columns, cells, header, ruled)
            return
        lines = [list(columns), *cells] if header else cells
        widths = [max((len(line[i]) for line in lines), default=0) for i in range(len(columns))]
        for number, line in enumerate(lines):
            padded = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            self.line(padded.rstrip())
            if ruled and number == 0:
                self.line("-" * len(padded))

    def is_terminal(self, stream: TextIO) -> bool:
        """Whether somebody is looking, and the terminal can do more than print."""
        return stream.isatty() and os.environ.get("TERM") != "dumb"

    def has_color(self, stream: TextIO) -> bool:
        """Colour on terminals only, unless `--no-color` or `NO_COLOR` forbids it."""
        if self._color is not None:
            return self._color
        return not os.environ.get("NO_COLOR") and self.is_terminal(stream)

    def painted(self, text: str, style: Style | None) -> str:
        """Text for stderr in a style, or as it is where there is no colour."""
        if style is None or not text or not self.has_color(sys.stderr):
            return text
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m"

    def _terminal_table(self, columns: Sequence[str], cells: list[list[str]], header: bool, ruled: bool) -> None:
        from rich.box import Box
        from rich.console import Console as RichConsole
        from rich.table import Table
        from rich.text import Text

        colored = self.has_color(sys.stdout)
        table = Table(
            box=Box(_DASHES_BELOW_HEADER, ascii=True) if ruled else None,
            show_edge=False,
            show_header=header,
            header_style="dim" if colored else "",
            pad_edge=False,
            padding=(0, 1),
        )
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))  # Text, not str: a str would be read as markup
        RichConsole(file=sys.stdout, no_color=not colored, highlight=False, markup=False).print(table)


class RunDisplay:
    """Tells the story of one run on stderr, as a `RunObserver`.

    Every finished step is a line. What is still going on shows itself after a second: on a terminal as a moving line
    with stage, rows and rate, elsewhere as a plain line now and then. Use it as a context manager: leaving it ends the
    moving line, however the run ended. Calls may come from any thread.
    """

    def __init__(self, console: Console, pipeline: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._pipeline = pipeline
        self._clock = clock
        self._lock = threading.RLock()
        self._began = clock()
        self._stage = ""
        self._stage_began = self._began
        self._rows: int | None = None
        self._total: int | None = None
        self._last_plain: float | None = None
        self._timer: threading.Timer | None = None
        self._live: Live | None = None

    def __enter__(self) -> RunDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._end_stage()

    def planned(self, headline: str, route: str) -> None:
        """The headline of one target: what goes where, and on which route."""
        with self._lock:
            stage, began = self._stage, self._stage_began
            self._end_stage()
            name = self._console.painted(self._pipeline, "bold")
            invisible = len(name) - len(self._pipeline)
            self._console.note(f"{name}  {headline}".ljust(60 + invisible) + f"  {route}")
            if stage:
                self._begin_stage(stage, began)

    def step(self, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        """A step begins, or ended well or badly; only ends are lines of their own."""
        if status == "running":
            self._begin_stage(name)
        if status not in _MARKS:
            return
        self._end_stage()
        mark = self._console.painted(_MARKS[status], _MARK_STYLES[status])
        took = f"  {duration_text(duration_ms / 1000)}" if duration_ms is not None and duration_ms >= 1000 else ""
        self._console.note(f"  {mark} {name:<8}  {scrub(detail)}{self._console.painted(took, 'dim')}".rstrip())

    def resumes_at(self, watermark: str | None) -> None:
        """The words of the plan say it."""

    def progress(self, stage: str, rows: int, total: int | None = None) -> None:
        """Rows moved so far; kept, and shown when somebody has waited long enough."""
        with self._lock:
            if stage != self._stage:
                self._begin_stage(stage)
            self._rows, self._total = rows, total
            if self._live is not None or self._console.is_terminal(sys.stderr):
                return
            now = self._clock()
            waited = now - self._stage_began
            is_news = self._last_plain is None or now - self._last_plain >= _PLAIN_PROGRESS_S
            if waited >= _SILENCE_S and is_news:
                self._last_plain = now
                self._console.note(f"  … {self._progress_text()}")

    def done(self, run_id: str | None, *, failed: bool = False, recorded: bool = True) -> None:
        """The last line: how long it took, and where to read more."""
        self._end_stage()
        took = duration_text(self._clock() - self._began)
        words = f"failed after {took}" if failed else f"done in {took}"
        if run_id:
            short = run_id[:8]
            words += f"   run {short}" + (f"   more: flow runs show {short}" if recorded else "")
        self._console.note(words, "red" if failed else None)

    def _begin_stage(self, stage: str, began: float | None = None) -> None:
        with self._lock:
            self._end_stage()
            self._stage, self._stage_began = stage, self._clock() if began is None else began
            self._rows = self._total = self._last_plain = None
            if self._console.is_terminal(sys.stderr):
                self._timer = threading.Timer(_SILENCE_S, self._show_live, args=(stage, self._stage_began))
                self._timer.daemon = True
                self._timer.start()

    def _end_stage(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._live is not None:
                self._live.stop()
                self._live = None
            self._stage = ""

    def _show_live(self, stage: str, began: float) -> None:
        """Called by the timer, a second into a stage."""
        from rich.console import Console as RichConsole
        from rich.live import Live

        with self._lock:
            if (stage, began) != (self._stage, self._stage_began) or self._live is not None:
                return  # the stage ended while rich was being loaded
            colored = self._console.has_color(sys.stderr)
            terminal = RichConsole(file=sys.stderr, no_color=not colored, highlight=False, markup=False)
            self._live = Live(
                console=terminal,
                transient=True,
                refresh_per_second=8,
                get_renderable=self._live_text,  # takes no lock: the thread that draws must never wait for us
                redirect_stdout=False,
            )
            self._live.start()

    def _live_text(self) -> Text:
        from rich.text import Text

        waited = self._clock() - self._stage_began
        frame = _SPINNER[int(waited * 8) % len(_SPINNER)]
        return Text(f"  {frame} {self._progress_text()}", no_wrap=True, overflow="ellipsis")

    def _progress_text(self) -> str:
        waited = self._clock() - self._stage_began
        words = [f"{self._stage:<8}"]
        if self._rows is not None:
            of = f" of {self._total:,}" if self._total is not None else ""
            words.append(f"{self._rows:,}{of} rows")
            if waited > 0:
                words.append(f"{self._rows / waited:,.0f} rows/s")
        words.append(duration_text(waited))
        return "  ".join(words)


def duration_text(seconds: float) -> str:
    """A duration for people.

    >>> duration_text(2.14), duration_text(0.034), duration_text(75), duration_text(7260)
    ('2.1 s', '0.03 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def json_text(value: Any) -> str:
    """Any answer as one line of JSON; instants in UTC with milliseconds, everything unknown as its text.

    >>> json_text({"rows": 3, "keys": ("id",)})
    '{"rows": 3, "keys": ["id"]}'
    """
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Only what JSON knows. Results are mappings that are no dicts, and may hold more of them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None  # JSON has no such numbers
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, datetime):
        return instant_text(value) if value.tzinfo is not None else value.isoformat()
    return value.isoformat() if isinstance(value, date) else str(value)


def _error_fields(exc: BaseException | str) -> dict[str, Any]:
    if not isinstance(exc, FlowError):
        return {"error": scrub(str(exc))}
    fields = {
        "error": scrub(exc.message),
        "code": exc.code,
        "where": exc.where,
        "tried": list(exc.tried),
        "fix": exc.fix and scrub(exc.fix),
    }
    return {name: value for name, value in fields.items() if value}


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:  # a terminal or a pipe with a small character set: better marks replaced than no answer
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
    stream.flush()
