"""One Structured Streaming query: started from a checkpoint, watched, and stopped between two batches.

What happens to a batch is the business of whoever starts the query (`run/streams.py`); this file knows Spark.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

from py4j.protocol import Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery

from ematix_flow.contracts.streams import (
    Gap,
    Positions,
    Receives,
    StreamBatch,
    StreamReading,
    StreamsIn,
    TellsGaps,
    digest_of,
)
from ematix_flow.errors import EngineFailed, UdfFailed
from ematix_flow.spark.checkpoint_files import query_settings
from ematix_flow.spark.checkpoints import CheckpointFolder, Generation
from ematix_flow.spark.stream_ticks import Ticks, are_kept

log = logging.getLogger(__name__)

SOURCE_ID = "_source_id"
"""Which of several sources a message is from."""

_JAVA_IS_GONE = (ConnectionError, Py4JNetworkError)
_COMMIT_PATIENCE_S = 10.0

_ASKING, _TELLING_PAUSE_MS = "Getting offsets from", 100
"""What Spark says while it asks a source for news: for ever, of one that does not answer. Where pauses between two
questions are shorter than this, it says hardly anything else of one that does."""


@dataclass(frozen=True)
class OpenSource:
    """A source of a running stream."""

    query: str
    backend: StreamsIn
    start: Any
    max_rows: int | None
    tolerates_gaps: bool


class StreamStopped(Exception):
    """The stream is to stop, so a batch that has just begun is left for the next start."""


class StreamRun:
    """A query from its start to its end.

    Args:
        on_batch: Given the messages of a batch and the batch's name; when it returns, every target holds them.
        once: Take what is there now, then end.
        before_batch: Told of a batch before anything is done with it.
        held: The last batch that every target has from before.
        on_gap: Told of messages that a source has no longer, where the stream goes on without them.
        is_due: Whether a batch would come to something at a moment (in milliseconds since 1970) without any message;
            None when it never would.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        sources: Sequence[OpenSource],
        folder: CheckpointFolder,
        generation: Generation,
        on_batch: Callable[[DataFrame, StreamBatch], None],
        *,
        idle_pause_ms: int,
        once: bool,
        before_batch: Callable[[StreamBatch], None] = lambda batch: None,
        held: StreamBatch | None = None,
        on_gap: Callable[[str, Gap], None] = lambda query, gap: None,
        is_due: Callable[[int], bool] | None = None,
    ) -> None:
        self._on_gap = on_gap
        self._is_due = is_due or (lambda now_ms: False)
        kept = are_kept(folder, generation, len(sources))
        has_ticks = is_due is not None if kept is None else kept
        if is_due is not None and not has_ticks:
            log.warning("%s was begun when it needed messages to go on, and still does; a reset changes that", name)
        self._ticks = Ticks(folder, generation) if has_ticks else None
        self._has_ticked = False
        self._spark, self._name, self._sources = spark, name, sources
        self._folder, self._generation, self._on_batch = folder, generation, on_batch
        self._idle_pause_ms, self._once, self._before_batch = idle_pause_ms, once, before_batch
        self._held = held
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._working = threading.Lock()
        self.last_batch: StreamBatch | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin. Batches are worked on in the background."""
        # What a batch raises comes to `wait`; Spark's bridge would print it, too, with all of its traceback.
        logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
        # How long to wait after there was nothing; while messages come, batch follows batch.
        self._spark.conf.set("spark.sql.streaming.pollingDelay", f"{max(self._idle_pause_ms, 1)}ms")
        frames = [self._frame(source) for source in self._sources]
        messages = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
        if self._ticks is not None:
            messages = self._ticks.beside(messages, self._spark)
        writer = (
            messages.writeStream.queryName(self._name)
            .foreachBatch(self._batch)
            .option("checkpointLocation", self._folder.location(self._generation))
        )
        for source in self._sources:
            # A process that died before it could say so is made good: the targets have these messages.
            if self._held is not None and source.query in self._held.positions:
                source.backend.applied(source.query, self._held.positions[source.query])
        sees_end = not any(isinstance(source.backend, Receives) for source in self._sources)
        starting = writer.trigger(availableNow=True) if self._once and sees_end else writer
        settings = query_settings(self._folder.place)
        for name, value in settings.items():
            self._spark.conf.set(name, value)
        try:
            self._query = starting.start()  # it takes the session's settings with it, as they are now
        finally:
            for name in settings:
                self._spark.conf.unset(name)

    def _frame(self, source: OpenSource) -> DataFrame:
        reading = StreamReading(
            source.query,
            source.start,
            source.max_rows,
            source.tolerates_gaps,
            spool=str(self._folder.spool(source.query)),
            log=str(self._folder.sources_log(self._generation, self._sources.index(source))),
            begins=not self._folder.has_batches(self._generation),
            stream=self._folder.pipeline,
        )
        frame = source.backend.read_stream(self._spark, reading)
        return frame if len(self._sources) == 1 else frame.withColumn(SOURCE_ID, F.lit(source.query))

    def _batch(self, messages: DataFrame, number: int) -> None:
        """Called by Spark, in a thread of its own, for one batch after another."""
        with self._working:
            if self._stopping.is_set():
                raise StreamStopped
            try:
                batch = self.batch(number)
                self._before_batch(batch)
                self._tell_gaps(batch)
                self._on_batch(messages, batch)
            except BaseException as exc:
                if isinstance(exc, UdfFailed):
                    exc.message = f"Batch {number}: {exc.message}"
                self.failure = exc
                raise
            self.last_batch, self._has_ticked = batch, False

    def batch(self, number: int) -> StreamBatch:
        """The name of a batch, from the positions that Spark wrote down before it began."""
        end = self._positions(number)
        start = self._positions(number - 1) if number else {}
        planned = self._folder.planned_ms(self._generation, number)
        return StreamBatch(self._generation.name, number, digest_of(start, end), end, planned)

    def _tell_gaps(self, batch: StreamBatch) -> None:
        """Say what the batch lacks; nothing is asked of sources of which a gap stops the stream."""
        asked = [source for source in self._sources if source.tolerates_gaps and source.query in batch.positions]
        before = self._positions(batch.number - 1) if batch.number and asked else {}
        for source in asked:
            if isinstance(source.backend, TellsGaps):
                start = before.get(source.query, source.start)
                for gap in source.backend.gaps(source.query, start, batch.positions[source.query]):
                    self._on_gap(source.query, gap)

    def _positions(self, number: int) -> Positions:
        lines = self._folder.offsets(self._generation, number)
        return {
            source.query: source.backend.position(line)
            for source, line in zip(self._sources, lines[: len(self._sources)], strict=True)  # ticks come last
            if line != "-"
        }

    # ── while it runs ────────────────────────────────────────────────────────────────────────────────────────────────

    def wait(self, seconds: float) -> bool:
        """Wait for its end, but not longer; whether it has ended.

        Raises:
            Exception: what a batch raised, or what Spark says.
        """
        assert self._query is not None
        try:
            ended = self._query.awaitTermination(max(seconds, 0.001))  # type: ignore[arg-type]  # it takes parts of seconds
        except Exception as exc:
            if isinstance(self.failure, StreamStopped) or (self._stopping.is_set() and self.failure is None):
                return True
            if self.failure is not None:
                raise self.failure from None
            if isinstance(exc, _JAVA_IS_GONE):
                raise EngineFailed(
                    "Spark's Java machine has ended.",
                    fix='memory is the usual reason: [spark] driver_memory = "4g", or a smaller max_batch_rows',
                ) from exc
            raise
        if not ended and self._is_drained() and self._once:
            self.stop()
            return True
        if not ended and not self._once:
            self._tick()
        return bool(ended)

    def _tick(self) -> None:
        """Have a batch without messages planned, when it would come to something; once after each batch."""
        if self._ticks is None or self._has_ticked or not self.is_waiting():
            return
        if self._is_due(round(time.time() * 1000)):
            self._has_ticked = True
            self._ticks.tick()

    def _is_drained(self) -> bool:
        """Whether sources that receive have nothing left; also raises what stopped one of them."""
        received = [source.backend for source in self._sources if isinstance(source.backend, Receives)]
        states = [backend.is_drained() for backend in received]
        return bool(states) and all(states)

    def is_waiting(self) -> bool:
        """Whether it found nothing to do when it looked last, and does not look just now."""
        if self._query is None or self._working.locked():
            return False
        status = self._query.status
        busy = ("Initializing", _ASKING) if self._idle_pause_ms >= _TELLING_PAUSE_MS else ("Initializing",)
        return not status["isDataAvailable"] and not status["message"].startswith(busy)

    def stop(self) -> None:
        """Stop between two batches: one that runs is finished first. The rest is as if it had never begun."""
        if self._query is None:
            return
        self._stopping.set()
        with suppress(*_JAVA_IS_GONE):  # then there is nothing left to stop
            with self._working:
                self._await_commit()
            # Spark waits for a batch that it has just handed over, which must be able to see that it is not wanted.
            self._query.stop()

    def _await_commit(self) -> None:
        """Spark writes down a moment later that a batch is done; without it the next start would look at it again."""
        if self.last_batch is None or self._query is None:
            return
        deadline = time.monotonic() + _COMMIT_PATIENCE_S
        while time.monotonic() < deadline and self._query.isActive:
            if self._folder.is_committed(self._generation, self.last_batch.number):
                return
            time.sleep(0.01)
