"""What becomes of messages and rows that cannot reach the targets: dropped, or kept as dead letters.

Letters are durable before the rest of their batch is written. A crash in between does the batch again, and letters that
are there already stay one; the other order could lose them, should the stream then go on from where its targets are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window, functions as F

from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.dead_letters import STAGES, Stage, TakesDeadLetters, short_error
from ematix_flow.contracts.streams import StreamBatch, StreamCounters
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import BadMessages, FlowError, counted
from ematix_flow.spark.dead_letters import STAGE, letters_of, with_message
from ematix_flow.spark.payloads import BAD, MESSAGE, RAW
from ematix_flow.spark.refused_rows import Fetched, RefusedRows, Tried
from ematix_flow.spark.stream import OpenSource

log = logging.getLogger(__name__)

_ROW, _FAILS = "__row", "__fails"


class JudgesRows(Protocol):
    """A target that can say of a row that it will not take it."""

    def misfit(self, rows: DataFrame) -> Column | None:
        """Why a row does not fit, NULL for one that does; None when all do."""
        ...


class SetAside:
    """How a stream goes on without some of its messages.

    Args:
        letters: Where they are kept; None when they are not.
    """

    def __init__(self, spec: StreamSpec, counters: StreamCounters, letters: TakesDeadLetters | None = None) -> None:
        self._spec, self._counters, self._letters = spec, counters, letters

    @property
    def is_on(self) -> bool:
        """Whether anything can be set aside at all; else a batch succeeds or fails as a whole."""
        return self._letters is not None or self._spec.transform_on_error == "drop"

    @property
    def keeps_letters(self) -> bool:
        """Whether what is set aside can be looked at again."""
        return self._letters is not None

    def begin(self, batch: StreamBatch) -> None:
        """A batch of which no target has anything is judged from its beginning."""
        if self._letters is not None:
            self._letters.begin(batch)

    def marked(self, messages: DataFrame, source: OpenSource) -> DataFrame:
        """Messages that carry what a letter needs, should they become one."""
        if not self.is_on:
            return messages
        connection = getattr(source.backend, "connection", None)
        return with_message(messages, source.query, getattr(connection, "payload_format", None) or "json")

    def judged(
        self,
        decoded: DataFrame,
        targets: Sequence[JudgesRows],
        rows_for: Callable[[DataFrame, Any], DataFrame],
        later: Stage = "write",
    ) -> DataFrame:
        """The decoded rows, with a reason also where some target could not hold one.

        A row goes to all targets or to none: a letter that is replayed must not reach one of them a second time.

        Args:
            later: The stage of what is found wrong with a row after it was read.
        """
        staged = decoded.withColumn(STAGE, F.when(F.col(BAD).isNotNull(), "transform").otherwise(later))
        reasons = [target.misfit(rows_for(decoded, target)) for target in targets]
        found = [reason for reason in reasons if reason is not None]
        return staged.withColumn(BAD, F.coalesce(F.col(BAD), *found)) if found else staged

    def put(self, judged: DataFrame, batch: StreamBatch) -> None:
        """Keep or drop every row that has a reason against it. Does nothing when there is none."""
        numbers = [
            F.count(F.when(F.col(BAD).isNotNull() & (F.col(STAGE) == stage), True)).alias(stage) for stage in STAGES
        ]
        found = judged.agg(*numbers).collect()[0].asDict()
        stages = {stage: int(number) for stage, number in found.items() if number}
        if not stages:
            return
        kept = [stage for stage in stages if self._keeps(stage)]
        letters, dropped = sum(stages[stage] for stage in kept), sum(stages[s] for s in stages if s not in kept)
        self._counters.add(errors=1)
        if self._letters is not None and letters:
            failed = judged.where(F.col(BAD).isNotNull() & F.col(STAGE).isin(kept))
            self._letters.write(letters_of(failed, self._spec.name, failed_at_ms=int(time.time() * 1000)), batch)
            self._counters.add(dead_letters=letters)
            log.warning("%s: %s to %s", self._spec.name, counted(letters, "dead letter"), self._letters.label)
            reached("letters-kept")
        if dropped:
            self._counters.add(rows_dropped=dropped)
            log.warning("%s: %s dropped", self._spec.name, counted(dropped, "message"))

    def without_failing(
        self,
        judged: DataFrame,
        failing: Callable[[DataFrame, str], DataFrame | None],
        error: FlowError,
        batch: StreamBatch,
    ) -> DataFrame:
        """Set the rows aside that SQL can tell it fails for, and give the batch with a reason for each of them.

        Args:
            failing: Gives what a column holds in such rows; None when that cannot be asked.
            error: What the SQL had against the first of them.
        """
        named = judged.withColumn(_ROW, F.xxhash64(*_place()))
        try:
            asked = failing(named.where(F.col(BAD).isNull()), _ROW)
            found = None if asked is None else asked.distinct().toArrow()
        except Exception:  # whatever it is: rows are tried out then, which says the same or finds them
            log.debug("%s: the rows that fail are searched for", self._spec.name, exc_info=True)
            return judged
        if found is None or not found.num_rows:
            return judged
        fails = judged.sparkSession.createDataFrame(found).withColumn(_FAILS, F.lit(True))
        marked = named.join(fails, _ROW, "left")
        is_new = F.col(BAD).isNull() & F.coalesce(_FAILS, F.lit(False))
        reason = F.when(is_new, F.lit(short_error(error.message))).otherwise(F.col(BAD))
        self.put(marked.where(is_new).withColumn(BAD, reason).drop(_ROW, _FAILS), batch)
        return marked.withColumn(BAD, reason).drop(_ROW, _FAILS)

    def without_poison(
        self,
        judged: DataFrame,
        error: FlowError,
        tried: Tried,
        batch: StreamBatch,
        fetched: Fetched | None = None,
    ) -> DataFrame:
        """Find the rows that a target refuses, set them aside, and give the batch with a reason for each of them.

        Args:
            error: What the target had against the batch.
            tried: Writes the good rows of a frame without keeping them.
            fetched: Fetches rows to try them out by the numbers in a column; None where that cannot be.

        Raises:
            BadMessages: there are too many of them to be found, and good rows would be dropped with them.
        """
        named = _numbered(judged)
        log.info("%s: batch %d is searched for rows that are refused", self._spec.name, batch.number)
        search = RefusedRows(
            named.where(F.col(BAD).isNull()), _ROW, tried, None if fetched is None else lambda some: fetched(some, _ROW)
        )
        found = search.found(error)
        if found.unknown and not self._keeps("write" if self._spec.transform_sql is None else "transform"):
            raise BadMessages(
                f"So many rows of '{self._spec.name}' are refused that they cannot all be found by trying: "
                f"{counted(len(found.refused), 'row')} of batch {batch.number} are bad, and of "
                f"{counted(len(found.unknown), 'more row')} nothing is known. {error.message}",
                fix="mend the table or the producer; transform_on_error='dlq' keeps all of them as dead letters",
            )
        doubtful = f"among too many rows that are refused: {error.message}"
        reasons = {
            **{row: short_error(why.message) for row, why in found.refused.items()},
            **dict.fromkeys(found.unknown, short_error(doubtful)),
        }
        if not reasons:
            return judged
        told = pa.table({_ROW: pa.array(reasons, pa.int64()), _FAILS: pa.array(reasons.values(), pa.string())})
        marked = named.join(F.broadcast(judged.sparkSession.createDataFrame(told)), _ROW, "left")
        is_new = F.col(BAD).isNull() & F.col(_FAILS).isNotNull()
        self.put(marked.where(is_new).withColumn(BAD, F.col(_FAILS)).drop(_ROW, _FAILS), batch)
        return marked.withColumn(BAD, F.coalesce(BAD, _FAILS)).drop(_ROW, _FAILS)

    def _keeps(self, stage: str) -> bool:
        return self._letters is not None and (stage != "transform" or self._spec.transform_on_error == "dlq")


def _numbered(judged: DataFrame) -> DataFrame:
    """The rows with a number for each, which stays the same when they are read again."""
    named = judged.withColumn(_ROW, F.xxhash64(*_place()))
    if named.where(F.col(BAD).isNull()).groupBy(_ROW).count().where("count > 1").isEmpty():
        return named
    # Files may hold the same row twice, of which a key takes one; which of the two that is makes no difference.
    which = F.row_number().over(Window.partitionBy(_ROW).orderBy(F.lit(0)))
    return named.withColumn(_ROW, F.xxhash64(_ROW, which))


def _place() -> list[Column]:
    """Where a message lay and what it says."""
    return [*(F.col(f"{MESSAGE}.{name}") for name in ("source", "_partition", "_offset")), F.col(RAW)]
