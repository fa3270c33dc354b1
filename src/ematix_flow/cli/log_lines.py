"""Log records as lines on stderr. The library only logs; the command line decides, once, that somebody listens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ematix_flow.declare.redaction import scrub

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console


class _ConsoleHandler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            self._console.warning(text)
        else:
            self._console.note(scrub(f"{record.levelname.lower()}: {record.name}: {text}"), "dim")


@contextmanager
def log_lines(console: Console, *, debug: bool) -> Iterator[None]:
    """While a command runs, warnings of ours become one line each; with `debug` also every decision on the way."""
    ours = logging.getLogger("ematix_flow")
    handler, level, propagate = _ConsoleHandler(console), ours.level, ours.propagate
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG if debug else logging.WARNING)
    ours.propagate = False  # a handler that the user's module put on the root logger would say everything twice
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)
        ours.propagate = propagate
