"""What every capture of a database does for the spool: give the rows that were there first, then changes.

Rows are read into files that nobody else sees, and nothing of them reaches a stream before all of them are on disk. A
reading that is cut off is therefore as if it had never begun: the next start reads them again, and nothing was given
twice or left out.
"""

from __future__ import annotations

import logging
import shutil
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ematix_flow.backends.capture_state import STAGING, CaptureState, Gathered, Position
from ematix_flow.backends.queue_spool import FILE_BYTES, FILE_ROWS, Message, applied_position, write_file
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.errors import FlowError, counted

log = logging.getLogger(__name__)


class Stopped(Exception):
    """The stream is to end before everything was read."""


class CaptureGiver:
    """Rows and changes for the spool (`Gives`); `confirm` is told when targets have them.

    Args:
        folder: That of the spool, with what is remembered of the capture.
        kept: Where the newest file of the spool ends.
    """

    part: str
    """What lags are reported under."""

    def __init__(self, folder: Path, kept: Mapping[str, Any] | None) -> None:
        self._folder = folder
        self._kept = Position.of(kept)
        self._given, self._applied = self._kept, Position.of(applied_position(folder))
        self._state: CaptureState | None = None
        self._staged_next = self._staged_end = 0
        self._gathered = Gathered(Position(0), FILE_ROWS, FILE_BYTES)
        self._heard = self._goal = 0
        self._has_begun = False
        self._failure: FlowError | None = None
        self.stopping = threading.Event()
        self.is_caught_up = False
        self.held_bytes: int | None = None
        self.held_limit: int | None = None

    @abstractmethod
    def _begin(self) -> None:
        """Read the rows, if that is still to be done, and begin to receive (`_start`); raises `Stopped`."""

    @abstractmethod
    def _receive(self, idle_s: float) -> None:
        """Put what comes into `_gathered`, until it is full or nothing comes for so long; say how far it is heard."""

    @abstractmethod
    def _confirm(self, lsn: int) -> None:
        """Every target has everything up to there."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; what is not confirmed comes again."""

    @property
    def is_beyond_start(self) -> bool:
        """Whether targets have a change that was made after the start, and so everything from before."""
        return self._has_begun and self._applied is not None and self._applied.lsn >= self._goal

    def raise_failure(self) -> None:
        """Raise what was found beside the receiving."""
        if self._failure is not None:
            raise self._failure

    def take(self, rows: int, most_bytes: int, idle_s: float) -> Sequence[Message]:
        """Rows that were there at first, then changes."""
        self.raise_failure()
        if self.stopping.is_set():
            return ()
        if not self._has_begun:
            try:
                self._begin()
            except Stopped:
                return ()
        if self._staged_next < self._staged_end:
            return self._next_staged()
        self._receive(idle_s)
        found = self._gathered.take()
        if found:
            self._given = self._gathered.position
        elif self._gathered.is_empty and self._heard >= self._goal:
            # Whatever was there when it began has been given, and is in files by now: this is the next question.
            self.is_caught_up = True
        return found

    def settle(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Messages are not settled one by one: see `confirm`."""
        return ()

    def position(self) -> Any:
        """Behind what was taken last."""
        return None if self._given is None else self._given.to_dict()

    def confirm(self) -> None:
        """Let the source know what every target has, by the files that are gone."""
        done = Position.of(applied_position(self._folder))
        if done is not None and self._has_begun:
            self._applied = done
            self._confirm(done.lsn)

    def _start(self, state: CaptureState) -> Position:
        """Where changes go on, and which rows are still to be given."""
        self._state, self._staged_end = state, state.staged
        start = Position(state.lsn, state.ts_ms)
        if self._kept is not None and not self._kept.staged:
            self._staged_next, start = state.staged, self._kept
        elif self._kept is not None:
            self._staged_next = self._kept.staged
        if state.confirmed > start.lsn:
            start = Position(state.confirmed, start.ts_ms)
        if self._staged_next >= self._staged_end:
            forget_staged(self._folder)
        self._gathered = Gathered(start, FILE_ROWS, FILE_BYTES)
        return start

    def _next_staged(self) -> list[Message]:
        assert self._state is not None
        found = staged_messages(self._folder, self._staged_next)
        self._staged_next += 1
        self._given = Position(self._state.lsn, self._state.ts_ms, staged=self._staged_next)
        return found


def stage_messages(folder: Path, topic: str, messages: Iterable[Message], is_stopping: Callable[[], bool]) -> int:
    """Write rows that were read; how many files they fill.

    Raises:
        Stopped: it was told to.
    """
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    files = rows = size = 0
    part: list[Message] = []

    def write() -> None:
        nonlocal files, rows, size
        write_file(staging / f"{files:012d}.parquet", part, topic, None)
        files, rows, size = files + 1, rows + len(part), 0
        part.clear()
        reached("capture-snapshot")
        if is_stopping():
            raise Stopped

    for message in messages:
        part.append(message)
        size += len(message.body)
        if len(part) >= FILE_ROWS or size >= FILE_BYTES:
            write()
    if part:
        write()
    log.info("%s of %s read, to be given first", counted(rows, "row"), topic)
    return files


def staged_messages(folder: Path, number: int) -> list[Message]:
    """The messages of one file of rows."""
    import pyarrow.parquet as pq

    found = pq.read_table(folder / STAGING / f"{number:012d}.parquet", columns=["value", "_key", "_event_ts"])
    bodies, keys = found["value"].to_pylist(), found["_key"].to_pylist()
    times = found["_event_ts"].cast("int64").to_pylist()
    return [Message(body, when, None, key=key) for body, key, when in zip(bodies, keys, times, strict=True)]


def forget_staged(folder: Path) -> None:
    """All of them are in the spool."""
    shutil.rmtree(folder / STAGING, ignore_errors=True)
