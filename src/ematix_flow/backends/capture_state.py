"""How far the capture of a database's changes is: a small file beside the spool, and positions in its log.

::

    <spool of the source>/
    ├── _capture.json          what is being done: reading the rows that are there, or receiving changes
    ├── _snapshot/             the rows that were there when it began, until all of them are in the spool
    └── 000000000017.parquet   messages that targets do not have yet
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ematix_flow.backends.queue_spool import Message

Phase = Literal["snapshot", "stream", "dropped"]
STAGING = "_snapshot"
_FILE = "_capture.json"


@dataclass(frozen=True)
class CaptureState:
    """What is remembered of a capture.

    Attributes:
        phase: Rows are being read; changes are received; or the slot was given up, and changes are lost.
        begun: Which reset it began with; empty for the first beginning.
        with_rows: Whether the rows that were there come first.
        keeps_slot: Whether the slot was there before, so that it must not be made anew.
        lsn: Where changes begin.
        ts_ms: When the rows were read; 0 when changes from before come, too.
        staged: How many files of rows were read.
        confirmed: How far the server was told to forget while nothing was to be captured.
    """

    slot: str
    phase: Phase
    begun: str = ""
    with_rows: bool = True
    keeps_slot: bool = False
    lsn: int = 0
    ts_ms: int = 0
    staged: int = 0
    confirmed: int = 0

    @classmethod
    def read(cls, folder: Path) -> CaptureState | None:
        """What a folder remembers; None before the first start."""
        try:
            known = json.loads((folder / _FILE).read_text())
        except FileNotFoundError:
            return None
        return cls(**{field.name: known[field.name] for field in fields(cls)})

    def write(self, folder: Path) -> None:
        """Remember it, safely: later steps rely on it."""
        partial = folder / f".{_FILE}"
        with open(partial, "w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, folder / _FILE)


@dataclass(frozen=True)
class Position:
    """Where a capture stands: behind a transaction, within a large one, or within the rows that were read first."""

    lsn: int
    ts_ms: int = 0
    skip: int = 0
    staged: int = 0

    @classmethod
    def of(cls, known: Mapping[str, Any] | None) -> Position | None:
        """From a spool's words."""
        return None if known is None else cls(**known)

    def to_dict(self) -> dict[str, int]:
        """For the spool."""
        return asdict(self)


class Gathered:
    """Messages on their way into files: transactions stay whole, unless one alone is more than a file may hold.

    Args:
        position: Behind what was given last. What it says to skip of the next transaction is in files already.
        rows, size: What a file may hold: messages, and their bytes.
    """

    def __init__(self, position: Position, rows: int, size: int) -> None:
        self.position = position
        # One change may make two messages.
        self._rows, self._size = rows - 1, size
        self._whole: deque[tuple[list[Message], int, Position]] = deque()
        self._whole_rows = self._whole_size = 0
        self._open: list[Message] = []
        self._open_size = self._given = 0
        self._skip = position.skip

    @property
    def is_empty(self) -> bool:
        """Whether nothing is here and no transaction is half given."""
        return not self._whole and not self._open and not self.position.skip

    @property
    def is_full(self) -> bool:
        """Whether it is time to write a file."""
        rows, size = max(self._whole_rows, len(self._open)), max(self._whole_size, self._open_size)
        return rows >= self._rows or size >= self._size

    def add(self, message: Message) -> None:
        """The next message of the transaction that is open."""
        if self._skip:
            self._skip -= 1
            self._given += 1
            return
        self._open.append(message)
        self._open_size += len(message.body)

    def commit(self, lsn: int, ts_ms: int) -> None:
        """The transaction is complete."""
        self._whole.append((self._open, self._open_size, Position(lsn, ts_ms)))
        self._whole_rows += len(self._open)
        self._whole_size += self._open_size
        self._open, self._open_size, self._given, self._skip = [], 0, 0, 0

    def rest_at(self, lsn: int) -> None:
        """Nothing is here, and nothing more will come from before this place."""
        assert self.is_empty
        self.position = Position(lsn, self.position.ts_ms)

    def take(self) -> list[Message]:
        """Messages for one file; `position` is behind them afterwards."""
        chosen: list[Message] = []
        size = 0
        while self._whole:
            messages, weight, position = self._whole[0]
            if chosen and (len(chosen) + len(messages) > self._rows + 1 or size + weight > self._size):
                break
            self._whole.popleft()
            self._whole_rows -= len(messages)
            self._whole_size -= weight
            chosen.extend(messages)
            size, self.position = size + weight, position
        if not chosen and not self._whole and (len(self._open) >= self._rows or self._open_size >= self._size):
            chosen, self._open, self._open_size = self._open, [], 0
            self._given += len(chosen)
            self.position = Position(self.position.lsn, self.position.ts_ms, skip=self._given)
        return chosen
