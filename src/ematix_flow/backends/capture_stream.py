"""Databases as sources of streams: what those that give their changes have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from ematix_flow.backends.capture_giver import CaptureGiver, forget_staged
from ematix_flow.backends.capture_state import CaptureState
from ematix_flow.backends.queue_spool import Gives, applied_position, forget_messages
from ematix_flow.backends.queue_stream import QueueStreams
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.streams import Lag, StreamReading
from ematix_flow.declare.connection import Connection
from ematix_flow.errors import InvalidDeclaration, LostMessages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS, _CHANGES = "snapshot", "changes"
"""Where a reset lets a capture begin: with all rows, or with the next change. The value names the reset."""


class CapturesTables(QueueStreams):
    """What a database's backend adds to be read as a stream. One source per backend."""

    connection: Connection
    url: str
    _changes: CaptureGiver | None = None
    _folder: Path | None = None

    @abstractmethod
    def prepare(self, reading: StreamReading) -> None:
        """Decide how the capture begins or goes on.

        Raises:
            LostMessages: (a ValueError) the server no longer has what was not received yet.
            FlowError: it cannot begin.
        """

    @abstractmethod
    def changes(self, folder: Path, position: Any) -> CaptureGiver:
        """Who receives for the spool, after `prepare`."""

    @abstractmethod
    def session(self) -> AbstractContextManager[Any]:
        """A connection whose driver errors come out as ours."""

    def first_position(self, query: str) -> Any:
        """What is remembered beside the spool says it; the first start begins with the rows."""
        return {}

    def read_stream(self, spark: SparkSession, reading: StreamReading) -> DataFrame:
        """Decide how it begins or goes on, then receive in the background; the rows are those of the files."""
        self.prepare(reading)
        return super().read_stream(spark, reading)

    def giver(self, query: str, position: Any) -> Gives:
        """Who receives changes for the spool."""
        assert self._folder is not None
        self._changes = self.changes(self._folder, position)
        return self._changes

    def applied(self, query: str, end: Any) -> None:
        """Every target has the files up to there: they go, and the source hears of it."""
        if self._changes is None or self._folder is None:
            return
        before = applied_position(self._folder)
        super().applied(query, end)
        if applied_position(self._folder) != before:
            reached("capture-confirm")
        self._changes.confirm()

    def is_drained(self) -> bool:
        """Whether everything that was committed before the start has been applied."""
        if self._changes is None or self._spool is None:
            return False
        self._changes.raise_failure()
        # Either nothing waits; or, while others go on writing, what was there at the start is behind us.
        return (self._spool.is_drained(0.0) and self._changes.is_caught_up) or self._changes.is_beyond_start

    def lag(self, query: str, end: Any) -> Sequence[Lag]:
        """Changes that wait in files, and how much of its log the server keeps for the stream, if that is known."""
        if self._changes is None or self._spool is None:
            return ()
        changes = self._changes
        return (Lag(changes.part, self._spool.waiting_rows(), changes.held_bytes, changes.held_limit),)

    def stop_receiving(self) -> None:
        """Let go of the source; what is not confirmed comes again."""
        if self._changes is not None:
            self._changes.stopping.set()
        super().stop_receiving()

    def position_at(self, query: str, when: datetime | Literal["earliest", "latest"]) -> Any:
        """Begin with all rows again (earliest), or with the next change (latest)."""
        if when == "earliest":
            return {_ROWS: uuid4().hex[:12]}
        if when == "latest":
            return {_CHANGES: uuid4().hex[:12]}
        raise InvalidDeclaration(
            f"'{query}' cannot be sent back to a moment: changes are captured once.",
            fix="flow state reset NAME --from earliest   reads all rows again",
        )

    def position_given(self, query: str, given: Any) -> Any:
        """Refused: changes are captured once."""
        raise InvalidDeclaration(
            f"'{query}' cannot be sent to a place in the database's log: changes are captured once.",
            fix="flow state reset NAME --from earliest   reads all rows again",
        )

    def _folder_of(self, reading: StreamReading) -> Path:
        assert reading.spool is not None
        self._folder = Path(reading.spool)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder


def reset_in(start: Any) -> tuple[str, bool]:
    """The name of the reset that a stream begins with, and whether it wants all rows; no name when it goes on."""
    told = start if isinstance(start, dict) else {}
    return str(told.get(_ROWS) or told.get(_CHANGES) or ""), _ROWS in told


def begun_anew(folder: Path, slot: str, reset: str, *, with_rows: bool) -> CaptureState:
    """Forget what was received, and remember that it begins."""
    forget_messages(folder)
    forget_staged(folder)
    state = CaptureState(slot, "snapshot", reset, with_rows=with_rows)
    state.write(folder)
    return state


def changes_lost(what: str, topic: str, stream: str) -> LostMessages:
    """Changes are gone; only the rows themselves can still be read."""
    return LostMessages(
        f"{what}, so changes of {topic} since then are lost to the stream '{stream}'.",
        fix="empty its target table, if rows deleted meanwhile must not stay there, and begin with all rows again: "
        f"flow state reset {stream} --from earliest",
    )
