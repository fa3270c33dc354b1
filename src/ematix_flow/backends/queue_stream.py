"""Queues as sources of streams: a receiver writes what comes to files (`queue_spool.py`), Spark reads the files."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.queue_spool import (
    FILE_ROWS,
    MESSAGE_ID,
    REMEMBERED,
    SPARK_SCHEMA,
    Gives,
    Spool,
    forget_messages,
    kept_position,
    position_in,
    write_json,
)
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.streams import Lag, StreamReading
from ematix_flow.errors import StateIncompatible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEHIND = "behind"
"""In the position of a batch: where the queue was, in its own words."""

DRAINED_S = 2.0
"""After how long a queue that gives nothing counts as empty."""

_ENDS, _ENDS_KEPT = "_ends.json", 20


class QueueStreams:
    """What a queue's backend adds to be read as a stream. One queue per backend."""

    gives_messages = True
    _spool: Spool | None = None
    _log: Path | None = None
    _acknowledged: int = -1

    @abstractmethod
    def giver(self, query: str, position: Any) -> Gives:
        """A client for the queue; it goes on behind a position, if it has such."""

    @property
    def stream_needs(self) -> SessionNeeds:
        """Files are read by Spark itself."""
        return SessionNeeds()

    def first_position(self, query: str) -> Any:
        """The broker knows what was acknowledged."""
        return None

    def read_stream(self, spark: SparkSession, reading: StreamReading) -> DataFrame:
        """Begin to receive; the rows are those of the files."""
        assert reading.spool is not None and reading.log is not None
        folder, self._log = Path(reading.spool), Path(reading.log)
        folder.mkdir(parents=True, exist_ok=True)
        self._acknowledged = -1
        self._spool = Spool(folder, self.giver(reading.query, self._where_it_was(folder, reading)), reading.query)
        self._spool.open()
        per_batch = max(1, (reading.max_rows or FILE_ROWS) // FILE_ROWS)
        options = {"maxFilesPerTrigger": str(per_batch), "maxFileAge": REMEMBERED}
        frame = spark.readStream.schema(SPARK_SCHEMA).options(**options).parquet(folder.as_uri())
        return frame.drop(MESSAGE_ID)

    def _where_it_was(self, folder: Path, reading: StreamReading) -> Any:
        """Behind which position the client goes on, if it has such."""
        return kept_position(folder)

    def position(self, offset: str) -> Any:
        """Spark counts the batches of files."""
        return json.loads(offset)

    def applied(self, query: str, end: Any) -> None:
        """Acknowledge the messages of every file up to there."""
        if self._spool is None or self._log is None:
            return
        last = int(end["logOffset"])
        if last > self._acknowledged:
            self._spool.applied(_files_between(self._log, self._acknowledged, last))
            self._acknowledged = last

    def is_drained(self) -> bool:
        """Whether the queue is empty, as far as can be told."""
        return self._spool is not None and self._spool.is_drained(DRAINED_S)

    def lag(self, query: str, end: Any) -> Sequence[Lag]:
        """Messages that were received and are in no target yet; what is still at the broker is not asked for."""
        return () if self._spool is None else (Lag("received", self._spool.waiting_rows()),)

    def stop_receiving(self) -> None:
        """Give back what is not acknowledged."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None


class PositionedQueue(QueueStreams):
    """A queue that keeps its messages for everybody, and is read on from a position.

    Targets keep that position with their rows: it says where to go on when the checkpoint and its files are gone.
    """

    _ends: EndsOfBatches | None = None

    def _where_it_was(self, folder: Path, reading: StreamReading) -> Any:
        """Where the targets are, when the checkpoint is new and they are not; else behind the newest file.

        Raises:
            StateIncompatible: the targets hold messages, and do not say which.
        """
        assert reading.log is not None
        self._ends = EndsOfBatches(folder, Path(reading.log))
        if not reading.begins or reading.start is None:
            return kept_position(folder)
        if BEHIND not in reading.start:
            raise StateIncompatible(
                f"The targets hold messages of '{reading.query}' already, and the checkpoint that knew which is gone.",
                fix="put the checkpoint back (StateStore(kind='postgres') keeps a copy), or give the stream a new name",
            )
        forget_messages(folder)  # what the targets lack of it is read again
        return reading.start[BEHIND]

    def position(self, offset: str) -> Any:
        """Beside Spark's count of batches, where the queue was behind the last file of this one."""
        told = super().position(offset)
        behind = None if self._ends is None else self._ends.behind(told["logOffset"])
        return told if behind is None else {**told, BEHIND: behind}


class EndsOfBatches:
    """Where a source was at the end of its newest batches; known also when their files are gone.

    A batch that is done again must be called the same, so what was said of it once is written down.
    """

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder, self._log = folder, log
        self._of = "/".join(log.parts[-3:])  # a folder that was moved is the same
        known = _read_json(folder / _ENDS) or {}
        self._known: dict[str, Any] = known["ends"] if known.get("of") == self._of else {}

    def behind(self, number: int) -> Any:
        """The position behind a batch; None when nothing is known of it any more."""
        if str(number) not in self._known:
            names = _files_between(self._log, number - 1, number)
            if not names or not (self._folder / max(names)).exists():
                return None
            self._known[str(number)] = position_in(self._folder / max(names))
            for old in sorted(self._known, key=int)[:-_ENDS_KEPT]:
                del self._known[old]
            write_json(self._folder / _ENDS, {"of": self._of, "ends": self._known})
        return self._known[str(number)]


class RejectingQueue(QueueStreams):
    """A queue whose broker has a place of its own for messages that nobody can use (`contracts.RejectsMessages`)."""

    def reject(self, query: str, offsets: Iterable[int]) -> None:
        """Note messages of a batch; the broker is told when the batch is applied."""
        if self._spool is not None:
            self._spool.reject(offsets)

    def forget_rejects(self, query: str) -> bool:
        """A batch is judged from its beginning: what was noted when it was tried before counts no longer."""
        return self._spool is not None and self._spool.forget_rejects()


def _read_json(place: Path) -> Any:
    return json.loads(place.read_text()) if place.exists() else None


def _files_between(log: Path, after: int, last: int) -> list[str]:
    """The names of the files of some batches, as Spark wrote them down.

    Every tenth entry of its list repeats all before it, so that the rest can be removed.
    """
    known: dict[str, int] = {}
    for number in range(last, after, -1):
        whole = log / f"{number}.compact"
        place = whole if whole.exists() else log / str(number)
        if place.exists():
            for entry in (json.loads(line) for line in place.read_text().splitlines()[1:]):
                known.setdefault(entry["path"].rsplit("/", 1)[-1], entry["batchId"])
        if whole.exists():
            break
    return [name for name, batch in known.items() if after < batch <= last]
