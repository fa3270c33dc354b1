"""The run that is under way, as its own code may see it, and the two places where a run can be held up.

Whoever starts a run on behalf of a schedule (`orchestrate/`) says so here; a run started by hand has no context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


def _nothing() -> None:
    """A run that nobody can stop."""


@dataclass(frozen=True)
class RunContext:
    """One run of one pipeline.

    Attributes:
        pipeline: Its name.
        run_id: The id that the run log and the rows carry.
        slot: The logical time that this run is for; None when it was asked for by hand.
        attempt: Which attempt at that time this is, from 1.
        restart_from: The step to begin with; everything before it is taken as done.
        facts: What the run log notes beside the run.
        between_steps: Called where the run can be paused or stopped; may wait, may raise.
        before_commit: Called when everything is ready to become visible; raises when this run may not do that any more.
        record_patience_s: How long the end of the run waits for a run log that does not answer.
    """

    pipeline: str
    run_id: str
    slot: datetime | None = None
    attempt: int = 1
    restart_from: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    between_steps: Callable[[], None] = _nothing
    before_commit: Callable[[], None] = _nothing
    record_patience_s: float = 0.0


_current: ContextVar[RunContext | None] = ContextVar("ematix_flow_run", default=None)


def current_run() -> RunContext | None:
    """The scheduled run that is under way in this thread, or None. Its `slot` is the time to load data for."""
    return _current.get()


@contextmanager
def running(context: RunContext) -> Iterator[None]:
    """Everything inside the block is that run."""
    before = _current.set(context)
    try:
        yield
    finally:
        _current.reset(before)


def between_steps() -> None:
    """A place where nothing is half done: whoever asked the run to pause or to stop is heard here."""
    if (context := _current.get()) is not None:
        context.between_steps()


def before_commit() -> None:
    """The last moment before rows become visible."""
    if (context := _current.get()) is not None:
        context.before_commit()
