"""Queues as sources of streams: a receiver writes what comes to files (`queue_spool.py`), Spark reads the files."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.queue_spool import FILE_ROWS, MESSAGE_ID, SPARK_SCHEMA, Gives, Spool, kept_position
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.streams import Lag, StreamReading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRAINED_S = 2.0
"""After how long a queue that gives nothing counts as empty."""


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
        self._spool = Spool(folder, self.giver(reading.query, kept_position(folder)), reading.query)
        self._spool.open()
        per_batch = max(1, (reading.max_rows or FILE_ROWS) // FILE_ROWS)
        frame = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", per_batch).parquet(folder.as_uri())
        return frame.drop(MESSAGE_ID)

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
        """Queues tell nothing that would be true a moment later."""
        return ()

    def stop_receiving(self) -> None:
        """Give back what is not acknowledged."""
        if self._spool is not None:
            self._spool.close()
            self._spool = None


class RejectingQueue(QueueStreams):
    """A queue whose broker has a place of its own for messages that nobody can use (`contracts.RejectsMessages`)."""

    def reject(self, query: str, offsets: Iterable[int]) -> None:
        """Note messages of a batch; the broker is told when the batch is applied."""
        if self._spool is not None:
            self._spool.reject(offsets)

    def forget_rejects(self, query: str) -> bool:
        """A batch is judged from its beginning: what was noted when it was tried before counts no longer."""
        return self._spool is not None and self._spool.forget_rejects()


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
