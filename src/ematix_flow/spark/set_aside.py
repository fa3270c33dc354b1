"""What becomes of messages and rows that cannot reach the targets: dropped, or kept as dead letters.

Letters are durable before the rest of their batch is written. A crash in between does the batch again, and letters that
are there already stay one; the other order could lose them, should the stream then go on from where its targets are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame, functions as F

from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.dead_letters import STAGES, Stage, TakesDeadLetters, short_error
from ematix_flow.contracts.streams import StreamBatch, StreamCounters
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import FlowError, counted
from ematix_flow.spark.dead_letters import STAGE, letters_of, with_message
from ematix_flow.spark.payloads import BAD, MESSAGE, RAW
from ematix_flow.spark.poison import poison
from ematix_flow.spark.stream import OpenSource

log = logging.getLogger(__name__)

_BUCKETS, _MOST_BUCKETS = 1024, 16
"""Into how many parts a batch is cut to find what spoils it, twice; and how many may be found before all else counts as
spoiled. A replay looks at every letter by itself."""

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
        self, judged: DataFrame, tried: Callable[[DataFrame], FlowError | None], batch: StreamBatch
    ) -> DataFrame:
        """Find the rows that a target refuses, set them aside, and give the batch with a reason for each of them.

        Args:
            tried: Writes the good rows of a frame without keeping them.
        """
        good, coarse, fine = F.col(BAD).isNull(), _bucket(1), _bucket(2)
        sizes = _sizes(judged.where(good), coarse)
        found = poison(list(sizes), lambda some: tried(judged.where(good & coarse.isin(*some))), _MOST_BUCKETS)
        spoiled = coarse.isin(*found) if found else F.lit(False)
        if len(found) > _MOST_BUCKETS or all(sizes[bucket] == 1 for bucket in found):
            exact, level = found, coarse
        else:
            parts = list(_sizes(judged.where(good & spoiled), fine))
            exact = poison(parts, lambda some: tried(judged.where(good & (~spoiled | fine.isin(*some)))), _MOST_BUCKETS)
            level = fine
        reason = F.lit(None).cast("string")
        for bucket, error in exact.items():
            reason = F.when(level == bucket, F.lit(short_error(error.message))).otherwise(reason)
        is_new = good & spoiled & reason.isNotNull()
        self.put(judged.where(is_new).withColumn(BAD, reason), batch)
        return judged.withColumn(BAD, F.when(is_new, reason).otherwise(F.col(BAD)))

    def _keeps(self, stage: str) -> bool:
        return self._letters is not None and (stage != "transform" or self._spec.transform_on_error == "dlq")


def _sizes(rows: DataFrame, bucket: Column) -> dict[int, int]:
    """The buckets that have rows, with how many."""
    found = rows.groupBy(bucket.alias("bucket")).count().orderBy("bucket").collect()
    return {int(row["bucket"]): int(row["count"]) for row in found}


def _bucket(level: int) -> Column:
    """A number that follows from where a message lay and what it says."""
    return F.pmod(F.xxhash64(F.lit(level), *_place()), F.lit(_BUCKETS))


def _place() -> list[Column]:
    """Where a message lay and what it says."""
    return [*(F.col(f"{MESSAGE}.{name}") for name in ("source", "_partition", "_offset")), F.col(RAW)]
