"""What streams are made of: micro-batches with a name of their own, positions in sources, and the door to read them."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.declare.fileformats import FileFormat
from ematix_flow.errors import StateIncompatible

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ematix_flow.contracts.plans import AppliedRun, SettleReport

STREAM = "stream"
"""The logical run of a stream: one, that settles again and again. What was applied last is kept under this name."""

VALUE = "value"
"""The column of a message's bytes, before they are decoded."""

FILE_NAME, FILE_SIZE = "__file", "__size"
"""The columns of a stream whose rows are files, until they are read."""

MESSAGE_COLUMNS = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers")
EVENT_TIME = "_event_ts"
HIDDEN_COLUMNS = (*MESSAGE_COLUMNS, EVENT_TIME)
"""What every row of a broker has beside its payload. Nobody gets them who does not name them."""

RETRACTED = "__flow_retracted"
"""In a batch that takes rows back which its targets have: 1 for those, 0 for rows to write. Other batches lack it."""

POSITION = "__flow_position"
"""A number that says which message or row of its source a row comes from: the same, however often its batch is done,
and whatever SQL makes of it. Rows have it on their way to targets that take a batch in parts."""

IN_PARTS = ("kafka",)
"""Kinds of targets that take a batch in parts, so that one which broke off may be there with some of its rows."""

Delivery = Literal["at_least_once", "exactly_once"]
Positions = Mapping[str, Any]
"""Where a batch ends, by source: the source's own words, ready for JSON."""


@dataclass(frozen=True)
class StreamBatch:
    """A micro-batch, by the name under which it is applied once.

    `generation` is that of the checkpoint, `number` Spark's count within it, `digest` says which messages it holds, and
    `positions` where it ends, so that a stream whose checkpoint is lost can go on from its target.
    """

    generation: str
    number: int
    digest: str
    positions: Positions = field(default_factory=dict)
    planned_ms: int = field(default=0, compare=False)
    """When Spark planned it, in milliseconds since 1970: the same, however often it is done."""

    def held_by(self, applied: AppliedRun | None) -> bool:
        """Whether a target that last applied this holds the batch already.

        Raises:
            StateIncompatible: it holds another batch under this number, or later ones.
        """
        known = batch_of(applied)
        if known is None or known.generation != self.generation or known.number < self.number:
            return False
        if known.number == self.number and known.digest == self.digest:
            return True
        raise StateIncompatible(
            f"The target holds batch {known.number} of this stream, and its checkpoint has come to batch "
            f"{self.number}{' with other messages' if known.number == self.number else ''}: the checkpoint was "
            "changed or put back from a copy.",
            fix="begin a new checkpoint where the target is: flow state reset NAME",
        )

    def to_dict(self) -> dict[str, Any]:
        """The batch in the books of a target."""
        return {
            "generation": self.generation,
            "number": self.number,
            "digest": self.digest,
            "positions": dict(self.positions),
        }


def batch_of(applied: AppliedRun | None) -> StreamBatch | None:
    """The batch that a target applied last."""
    known = applied.metrics.get("batch") if applied is not None else None
    return StreamBatch(**known) if known else None


def digest_of(start: Positions, end: Positions) -> str:
    """Which messages lie between two positions, in a few letters."""
    told = json.dumps([start, end], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(told.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class StreamReading:
    """How one source is to be read. `start` is where, in the source's words; None is where it says itself.

    `spool` is a folder for the source's own files, and `log` where Spark lists those that it has read. `begins` is
    False when the checkpoint has batches: it then says where to go on, whatever `start` was. `stream` is the stream's
    name, for what a source keeps under a name in its own system.
    """

    query: str
    start: Any = None
    max_rows: int | None = None
    tolerates_gaps: bool = False
    spool: str | None = None
    log: str | None = None
    begins: bool = True
    stream: str = ""


@dataclass(frozen=True)
class Lag:
    """How far a stream is behind in one part of a source (a partition, a shard), and what the source keeps for it.

    Attributes:
        held_bytes: How much the source keeps; None where it cannot tell.
        held_limit: How much it may keep, as declared.
    """

    part: str
    behind: int
    held_bytes: int | None = None
    held_limit: int | None = None


@dataclass(frozen=True)
class Gap:
    """Messages that a source no longer had when they were to be read: from one position up to another, in one part."""

    part: str
    first: int
    behind: int

    @property
    def messages(self) -> int:
        """How many positions that is."""
        return self.behind - self.first


BATCH_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds between quick and slow batches, for those who count them."""


class TakesBatches(Protocol):
    """A target of a running stream."""

    @property
    def label(self) -> str:
        """For people."""
        ...

    @property
    def lands_first(self) -> bool:
        """Whether rows are all there before they count, so that they can be looked at in between."""
        ...

    @property
    def shows_whole_batches(self) -> bool:
        """Whether nothing of a batch is ever seen that broke off on the way."""
        ...

    @property
    def is_away(self) -> bool:
        """Whether it did not answer when the stream began, and has not come back since."""
        ...

    @property
    def is_known(self) -> bool:
        """Whether its columns have been asked for, or can be."""
        ...

    @property
    def knows_columns(self) -> bool:
        """Whether its table is declared or there already; of one that is away that is not known."""
        ...

    def come_back(self, waiting: Sequence[StreamBatch]) -> None:
        """Try once more to open a target that was away; `waiting` is what was kept for it. Raises when it still is."""
        ...

    def holds(self, batch: StreamBatch) -> bool:
        """Whether the target has the batch already; `StateIncompatible` when it has another under its name."""
        ...

    def wanted(self, columns: list[str]) -> list[str]:
        """Which of a batch's columns are written: all of the payload, and hidden ones that the table has."""
        ...

    def write(self, rows: DataFrame, batch: StreamBatch, *, before_settling: Callable[[], None] = ...) -> SettleReport:
        """Apply a batch once. `before_settling` may still stop it, on targets where rows land first."""
        ...

    def misfit(self, rows: DataFrame) -> Column | None:
        """Why a row does not fit the target's columns, NULL for one that does; None when all do."""
        ...

    def fetched(self, rows: DataFrame, row: str) -> Callable[[Sequence[int]], None] | None:
        """Fetch rows into this process, to try some of them out by the numbers in a column; None where only Spark can
        bring rows there."""
        ...

    def try_out(self, rows: DataFrame) -> None:
        """Do all that `write` does and keep nothing of it; raises what it would raise."""
        ...


@dataclass
class StreamCounters:
    """What a running stream has done so far; read by whoever watches it."""

    rows_consumed: int = 0
    rows_written: int = 0
    rows_dropped: int = 0
    batches: int = 0
    errors: int = 0
    dead_letters: int = 0
    cdc_creates: int = 0
    cdc_updates: int = 0
    cdc_deletes: int = 0
    cdc_skipped: int = 0
    cdc_idempotent_skipped: int = 0
    messages_lost: int = 0
    lookup_refreshes: int = 0
    lookup_failures: int = 0
    late_rows: int = 0
    windows_emitted: int = 0
    remembered_rows: int = 0
    remembered_bytes: int = 0
    open_windows: int = 0
    oldest_event_us: int | None = None
    """The oldest event time of which something is remembered, in a stream with windows or joins."""
    late_policy: str = "drop"
    event_mark_us: int | None = None
    """How far event time has come, in a stream with windows or joins."""
    source_marks_us: Mapping[str, int] = field(default_factory=dict)
    """How far each of its sources has come."""
    held_keys: Callable[[], Mapping[str, int]] = dict
    """Counts what is remembered by key, as far as it can: `keys`, and for windows `groups`. It reads files."""
    last_batch_s: float | None = None
    last_batch_at: float | None = None
    positions: Mapping[str, Any] = field(default_factory=dict)
    batch_seconds: list[int] = field(default_factory=lambda: [0] * (len(BATCH_SECONDS) + 1))
    """How many batches took at most so long: one number per bound of `BATCH_SECONDS`, and one for longer ones."""
    batch_seconds_sum: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **numbers: int) -> None:
        """Count."""
        with self.lock:
            for name, number in numbers.items():
                setattr(self, name, getattr(self, name) + number)

    def remembers(
        self,
        *,
        rows: int,
        size: int,
        mark_us: int | None,
        oldest_us: int | None,
        windows: int,
        sources_us: Mapping[str, int] | None = None,
        held_keys: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """What windows or a join remember now: rows, bytes, windows, since when; how far event time is, by source."""
        with self.lock:
            self.remembered_rows, self.remembered_bytes, self.event_mark_us = rows, size, mark_us
            self.open_windows, self.oldest_event_us = windows, oldest_us
            self.source_marks_us, self.held_keys = sources_us or {}, held_keys

    def batch_done(self, positions: Positions, seconds: float) -> None:
        """Every target holds a batch; say where it ends and how long it took."""
        with self.lock:
            self.batches += 1
            self.positions = positions
            self.last_batch_at = time.time()
            self.last_batch_s = seconds
            self.batch_seconds[bisect_left(BATCH_SECONDS, seconds)] += 1
            self.batch_seconds_sum += seconds


@runtime_checkable
class TellsGaps(Protocol):
    """A source that can say which messages of a batch it no longer has."""

    def gaps(self, query: str, start: Any, end: Any) -> Sequence[Gap]:
        """What is missing between two positions; asked when a batch begins."""
        ...


@runtime_checkable
class TellsIdentity(Protocol):
    """A source of which another may come under the same name, with other messages at the same positions."""

    def identity(self, query: str) -> str | None:
        """What tells it from all others of its name; None when that is not known."""
        ...


@dataclass(frozen=True)
class Newest:
    """How far a topic has come: all messages that were ever in it, the removed ones included.

    Attributes:
        identity: What tells it from another topic that had its name before; empty where the broker has no word for it.
    """

    messages: int
    identity: str = ""


@runtime_checkable
class TellsNewest(Protocol):
    """A source that says how far a topic has come, without taking a message from anybody."""

    def newest(self, query: str, within_s: float) -> Newest:
        """Messages that readers of committed ones can see. Raises when it has no answer within so many seconds."""
        ...


@runtime_checkable
class KnowsWhatIsLeft(Protocol):
    """A source that forgets its beginning, and from which Spark cannot go on by itself once it has."""

    def place_left(self, query: str, end: Any) -> Any:
        """Where the oldest of what is left begins, if what came after a position is gone; None when it is all there."""
        ...


@runtime_checkable
class StreamsIn(Protocol):
    """A system that can be read as a stream."""

    gives_messages: bool
    """Whether rows are messages (`value` and the hidden columns) that a codec decodes; else they have columns."""

    @property
    def stream_needs(self) -> SessionNeeds:
        """What the session must have for it."""
        ...

    def check_stream(self, query: str) -> None:
        """Refuse what can be seen to be wrong before Spark starts: an unknown topic, a missing group."""
        ...

    def first_position(self, query: str) -> Any:
        """Where to begin without a checkpoint, in the words of `StreamReading.start`."""
        ...

    def read_stream(self, spark: SparkSession, reading: StreamReading) -> DataFrame:
        """The endless rows."""
        ...

    def position(self, offset: str) -> Any:
        """Where a batch ends, from the line that Spark keeps of it; something that `StreamReading.start` takes."""
        ...

    def applied(self, query: str, end: Any) -> None:
        """Every target holds everything up to there: acknowledge it."""
        ...

    def lag(self, query: str, end: Any) -> Sequence[Lag]:
        """How much is waiting behind a position; empty when that cannot be told."""
        ...


@runtime_checkable
class Receives(Protocol):
    """A source whose end Spark cannot see, because messages are received on the way."""

    def is_drained(self) -> bool:
        """Whether nothing is left, as far as can be told; raises what stopped the receiving."""
        ...


@runtime_checkable
class StreamsFiles(Protocol):
    """A source whose stream is names of files (`FILE_NAME`, `FILE_SIZE`); a batch reads the files it names."""

    file_format: FileFormat

    def file_frames(self, spark: SparkSession, query: str, names: Sequence[tuple[str, int]]) -> Sequence[DataFrame]:
        """The rows of the files, in one frame or in several that differ in types; JSON as lines in `VALUE`."""
        ...


@runtime_checkable
class SeeksPositions(Protocol):
    """A source whose positions can be chosen, so that a stream can be sent back or forth."""

    def position_at(self, query: str, when: datetime | Literal["earliest", "latest"]) -> Any:
        """The first message at or after a moment, as of now; the end, when there is none."""
        ...

    def position_given(self, query: str, given: Any) -> Any:
        """A position that somebody wrote down, checked against what the source has."""
        ...


@runtime_checkable
class KeepsForStreams(Protocol):
    """A source that keeps something for a stream in its own system, as long as nobody says that it may go."""

    def let_go(self, query: str, stream: str) -> Sequence[str]:
        """Remove it, for a stream that will not come back; what was removed, in words."""
        ...
