"""Log records as lines on stderr. The library only logs; the command line decides, once, that somebody listens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ematix_flow.declare.redaction import scrub

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console


class _ConsoleHandler(logging.Handler):
    def __init__(self, console: Console, *, is_daemon: bool) -> None:
        super().__init__()
        self._console, self._is_daemon = console, is_daemon

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if self._is_daemon:
            at = datetime.fromtimestamp(record.created, timezone.utc)
            line = scrub(f"{at:%H:%M:%S} {record.levelname} {record.name}: {text}")
            self._console.note(line, "yellow" if record.levelno >= logging.WARNING else None)
        elif record.levelno >= logging.WARNING:
            self._console.warning(text)
        else:
            self._console.note(scrub(f"{record.levelname.lower()}: {record.name}: {text}"), "dim")


@contextmanager
def log_lines(console: Console, *, debug: bool, is_daemon: bool = False) -> Iterator[None]:
    """While a command runs, warnings of ours become one line each; with `debug` also every decision on the way.

    Those of a daemon say when (UTC): nobody watches while they are written.
    """
    ours = logging.getLogger("ematix_flow")
    handler, level, propagate = _ConsoleHandler(console, is_daemon=is_daemon), ours.level, ours.propagate
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG if debug else logging.WARNING)
    ours.propagate = False  # a handler that the user's module put on the root logger would say everything twice
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)
        ours.propagate = propagate
