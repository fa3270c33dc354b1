"""What happens to one micro-batch of a stream that remembers: decode, transform, step, and apply what came out.

The step writes down what the batch comes to before any target has a row of it. A batch that is done again is stepped
again from what was remembered before it, and comes to the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession, functions as F

from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.streams import StreamBatch, TakesBatches
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import BadMessages, FlowError, counted
from ematix_flow.spark.batch import explained
from ematix_flow.spark.dead_letters import STAGE, with_message
from ematix_flow.spark.micro_batch import WIDENINGS, BatchWork, LookAgain
from ematix_flow.spark.payloads import BAD, MESSAGE, RAW, Facts
from ematix_flow.spark.poison import blames_rows
from ematix_flow.spark.session_windows import SessionSteps, open_sessions
from ematix_flow.spark.stream_joins import JoinSteps, waiting_keys
from ematix_flow.spark.stream_memory import Note, StreamMemory
from ematix_flow.spark.stream_steps import UNREADABLE, Stepped, Steps
from ematix_flow.spark.windows import WindowSteps, open_windows

log = logging.getLogger(__name__)

_MOST_COUNTED = 5_000_000
"""How many rows are read at most to count keys for whoever watches; they are in this process's memory meanwhile."""


def steps_of(spec: StreamSpec, memory: StreamMemory) -> Steps:
    """What a stream does with its rows before its targets get them."""
    if spec.join is not None:
        return JoinSteps(spec.join, spec.watermark, memory)
    assert spec.window is not None
    if spec.window.kind == "session":
        return SessionSteps(spec.window, spec.watermark, memory, spec.aggregate_udfs)
    return WindowSteps(spec.window, spec.watermark, memory, spec.aggregate_udfs)


def held_keys(spec: StreamSpec, memory: StreamMemory, note: Note) -> dict[str, int]:
    """Windows that are open, and groups and keys that have something there or wait for a match.

    The files are read without Spark, which needs them on this machine; else there is what the note says.
    """
    if not memory.is_local:
        return {} if note.open_windows is None else {"open_windows": note.open_windows}
    if spec.join is not None:
        return waiting_keys(spec.join, memory, note)
    assert spec.window is not None
    return (open_sessions if spec.window.kind == "session" else open_windows)(spec.window, memory, note)


class StatefulWork(BatchWork):
    """The work on batches of a stream with a window or a join."""

    def __init__(self, *given: Any, steps: Steps, memory: StreamMemory) -> None:
        super().__init__(*given)
        self._steps, self._memory = steps, memory
        declared = self._spec.window or self._spec.join
        assert declared is not None
        self._late_data = self._counters.late_policy = declared.late_data
        self._note: Note | None = None
        if isinstance(steps, JoinSteps):
            steps.may_lack_a_side = self._takes_half_rows
        by_arrival = self._spec.window is not None and self._spec.window.time_mode == "processing"
        self.can_be_due = by_arrival or len(self._sources) > 1  # a source alone is waited for, however long

    def is_due(self, now_ms: int) -> bool:
        """Whether time alone lets something come out that is remembered: a source is no longer waited for."""
        self._note = self._note or self._memory.newest()
        return self._note is not None and self._steps.is_due(self._note, now_ms)

    def _owes(self, batch: StreamBatch) -> bool:
        """Whether it is not remembered what the batch came to.

        A checkpoint that was restored is older than its targets: they hold a batch that it has only planned.
        """
        return self._memory.note(batch.number) is None

    def _takes_half_rows(self) -> bool:
        """Whether rows of one side of a join can be written while nobody knows the columns of the other.

        A table made of them would lack these, and a database's does not grow by itself.
        """
        return all(target.knows_columns or not target.lands_first for target in self._targets)

    def _apply(self, messages: DataFrame, batch: StreamBatch, pending: Sequence[TakesBatches]) -> None:
        self._each(messages, lambda codec, part: codec.prepare(part))
        if not self._known():
            return self._pass_time(messages.sparkSession, batch, pending)
        is_learned = False
        for _ in range(WIDENINGS):
            try:
                with explained():
                    return self._step(messages, batch, pending, is_learned=is_learned)
            except LookAgain as again:
                if any(self._each(messages, lambda codec, part: codec.widen(part))):
                    continue
                if again.facts.bad and not self._sets_aside:
                    raise self._bad(again.facts.bad) from None
                is_learned = True
        raise self._restless()

    def _pass_time(self, spark: SparkSession, batch: StreamBatch, pending: Sequence[TakesBatches]) -> None:
        """Take a batch without any row: time has gone on all the same."""
        rows = self._steps.without_rows(self._memory.before(batch), spark)
        if not rows:
            return self._told(self._memory.carried(batch))
        with explained():
            self._finish(self._steps.step(rows, batch), rows, batch, pending)

    def _step(
        self, messages: DataFrame, batch: StreamBatch, pending: Sequence[TakesBatches], *, is_learned: bool
    ) -> None:
        """Take a batch; `is_learned` when nothing more can be learned from its messages."""
        if self._aside.is_on or self._transformed is not None:
            return self._step_kept(messages, batch, pending, is_learned=is_learned)
        seen = {source.query: Observation() for source in self._known()}
        rows = {
            source.query: self._decoded_of(messages, source).observe(seen[source.query], *self._facts)
            for source in self._known()
        }
        good = {query: frame.where(F.col(BAD).isNull()) for query, frame in rows.items()}
        stepped = self._steps.step(good, batch)
        facts = _sum([Facts(**one.get) for one in seen.values()])
        if facts.bad or (facts.is_wider and not is_learned):
            raise LookAgain(facts)
        self._consumed = facts.rows
        self._finish(stepped, good, batch, pending)

    def _step_kept(
        self, messages: DataFrame, batch: StreamBatch, pending: Sequence[TakesBatches], *, is_learned: bool
    ) -> None:
        """With a look at the messages first: some can be set aside, or SQL stands before the step."""
        kept = {
            source.query: self._decoded_of(messages, source).persist(StorageLevel.MEMORY_AND_DISK)
            for source in self._known()
        }
        try:
            facts = _sum([Facts(**frame.agg(*self._facts).collect()[0].asDict()) for frame in kept.values()])
            if not is_learned and (facts.is_wider or facts.bad):
                raise LookAgain(facts)
            self._consumed = facts.rows
            decoded = {query: self._judged(frame, batch) for query, frame in kept.items()}
            rows = {query: self._good(frame) for query, frame in decoded.items()}
            try:
                with explained():  # what Spark says of a row is ours to judge
                    stepped = self._steps.step(rows, batch)
            except FlowError as exc:
                if self._transformed is None or not self._sets_aside or not blames_rows(exc):
                    raise
                clean = {query: self._cleaned(frame, exc, self._tried_sql, batch) for query, frame in decoded.items()}
                rows = {query: self._good(frame) for query, frame in clean.items()}
                stepped = self._steps.step(rows, batch)
            self._finish(stepped, rows, batch, pending)
        finally:
            for frame in kept.values():
                frame.unpersist()

    @property
    def _makes_rows(self) -> bool:
        return True

    @property
    def _sets_aside(self) -> bool:
        return self._aside.is_on and self._spec.transform_on_error != "fail"

    def _judged(self, decoded: DataFrame, batch: StreamBatch) -> DataFrame:
        if not self._aside.is_on:
            return decoded
        judged = self._aside.judged(decoded, [], self.rows, later="transform")
        self._aside.put(judged, batch)
        return judged

    def _good(self, decoded: DataFrame) -> DataFrame:
        rows = decoded.where(F.col(BAD).isNull())
        return rows if self._transformed is None else self._transformed(rows)

    @property
    def _misfitting(self) -> Sequence[TakesBatches]:
        return ()  # what a window makes of rows is theirs, not the rows

    # ── after the step ───────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(
        self,
        stepped: Stepped,
        rows: Mapping[str, DataFrame],
        batch: StreamBatch,
        pending: Sequence[TakesBatches],
    ) -> None:
        if stepped.unreadable and not self._sets_aside:
            raise BadMessages(
                f"{counted(stepped.unreadable, 'row')} of '{self._spec.name}' "
                f"{'has' if stepped.unreadable == 1 else 'have'} an event time that is no moment.",
                fix="mend the producer, convert it in transform_sql, or use transform_on_error='dlq' or 'drop'",
            )
        if stepped.late or stepped.unreadable:
            self._set_aside(stepped, rows, batch)
        if stepped.dropped:
            self._counters.add(rows_dropped=stepped.dropped)
            log.warning(
                "%s: %s of new groups left out, because max_groups_per_window is reached",
                self._spec.name,
                counted(stepped.dropped, "row"),
            )
        reached("stepped")
        if stepped.rows is not None:
            made = stepped.rows
            self._write_all(lambda target: made, batch, pending)
        self._counters.add(windows_emitted=stepped.windows)
        self._told(stepped.note)

    def _set_aside(self, stepped: Stepped, rows: Mapping[str, DataFrame], batch: StreamBatch) -> None:
        """Keep late rows and those without a moment as letters, or count them as gone."""
        keeps_late = self._late_data == "dlq" and self._aside.keeps_letters
        keeps_rest = self._spec.transform_on_error == "dlq" and self._aside.keeps_letters
        if (stepped.late and keeps_late) or (stepped.unreadable and keeps_rest):
            left = _as_messages(self._steps.left_out(rows, batch), next(iter(rows)))
            left = left.withColumn(STAGE, F.when(F.col(UNREADABLE), "transform").otherwise("late_data"))
            reason = F.when(F.col(UNREADABLE), "its event time is no moment").otherwise("it came too late")
            kept = left.withColumn(BAD, reason)
            if not keeps_late:
                kept = kept.where(F.col(UNREADABLE))
            if not keeps_rest:
                kept = kept.where(~F.col(UNREADABLE))
            self._aside.put(kept, batch)
        if stepped.unreadable and not keeps_rest:
            self._counters.add(rows_dropped=stepped.unreadable)
        self._counters.add(late_rows=stepped.late)

    def _told(self, note: Note) -> None:
        """What is remembered now, for whoever watches."""
        self._note = note
        rows = sum(part.rows for part in note.parts)
        self._counters.remembers(
            rows=rows,
            size=sum(part.size for part in note.parts),
            mark_us=note.clock.mark_us,
            oldest_us=self._steps.oldest(note),
            windows=note.open_windows or 0,
            sources_us=note.clock.by_source(self._spec.watermark),
            held_keys=lambda: held_keys(self._spec, self._memory, note) if rows <= _MOST_COUNTED else {},
        )

    # ── sources ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _known(self) -> list[Any]:
        """The sources of whose messages anything is known."""
        return [source for source in self._sources if not self._codecs[source.query].has_nothing()]

    def _decoded_of(self, messages: DataFrame, source: Any) -> DataFrame:
        return self._codecs[source.query].decoded(self._aside.marked(self._share(messages, source), source))


def _sum(facts: Sequence[Facts]) -> Facts:
    return Facts(sum(one.rows for one in facts), sum(one.bad for one in facts), any(one.is_wider for one in facts))


def _as_messages(rows: DataFrame, source: str) -> DataFrame:
    """Rows that carry what a letter needs: the message they came from, or after SQL what they are now."""
    if MESSAGE in rows.columns:
        return rows
    shown = [name for name in rows.columns if not name.startswith("__")]
    said = F.to_json(F.struct(*[F.col(f"`{name.replace('`', '``')}`") for name in shown]))
    return with_message(rows.withColumn(RAW, said.cast("binary")), source, "json")
