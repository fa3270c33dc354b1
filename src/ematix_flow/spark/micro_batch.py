"""What happens to one micro-batch: decode, transform, and apply it to every target that does not hold it yet.

A batch for one database goes through in a single pass: while its rows land, bad messages and unknown fields are
counted, and only then does it count. So does one for files or a lake table, which show a batch as a whole: there the
first such message stops it. Any other batch is kept by Spark first, and looked at.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Literal

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession, functions as F

from ematix_flow.backends.transport import quoted
from ematix_flow.contracts import refusals
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.streams import IN_PARTS, POSITION, StreamBatch, StreamCounters, TakesBatches
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import BadMessages, FlowError, StateIncompatible, UnfitValue, counted
from ematix_flow.spark.backlog import Backlog
from ematix_flow.spark.batch import explained
from ematix_flow.spark.payloads import BAD, RAW, UNKNOWN, Codec, Facts
from ematix_flow.spark.poison import blames_rows
from ematix_flow.spark.refused_rows import Fetched, Tried, TriedAtHand
from ematix_flow.spark.set_aside import SetAside
from ematix_flow.spark.stream import SOURCE_ID, OpenSource

log = logging.getLogger(__name__)

WIDENINGS = 20
"""How often one batch may teach something new. More would mean that what is learned does not stay."""

_CAREFUL_BATCHES = 20
"""For how many batches after one with bad rows the next are looked at before they are written."""


_SURPRISE, _IS_BAD, _IS_UNKNOWN = "Surprise", "bad", "unknown"


class LookAgain(Exception):
    """The rows that landed are not what they should be: some messages are bad, or have more than is known."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts


class BatchWork:
    """The work on a stream's batches, one after another."""

    def __init__(
        self,
        spec: StreamSpec,
        sources: Sequence[OpenSource],
        codecs: Mapping[str, Codec],
        targets: Sequence[TakesBatches],
        counters: StreamCounters,
        backlogs: Mapping[str, Backlog],
        transformed: Callable[[DataFrame], DataFrame] | None = None,
        aside: SetAside | None = None,
    ) -> None:
        self._spec, self._sources, self._codecs = spec, sources, codecs
        self._targets, self._counters, self._transformed = targets, counters, transformed
        self._backlogs = backlogs
        self._aside = aside or SetAside(spec, counters)
        self._takes_unknown_fields = False
        self._careful_batches = 0
        self._consumed = 0  # messages of the batch at hand; they count when it is done
        ends = [target.connection for target in spec.targets]
        self._is_placed = any(isinstance(end, Connection) and end.kind in IN_PARTS for end in ends)
        self._facts = Facts.columns()
        self._offered: dict[tuple[str, ...], list[Column]] = {}

    can_be_due = False
    """Whether there is ever something to do without a message."""

    def is_due(self, now_ms: int) -> bool:
        """Whether a batch without messages would come to something at a moment, in milliseconds since 1970."""
        return False

    def __call__(self, messages: DataFrame, batch: StreamBatch) -> None:
        """Bring one batch to all targets, then tell its sources.

        Raises:
            FlowError: at least one target does not have it; the batch will come again.
        """
        began = time.monotonic()
        self._consumed = 0
        reached("batch-began")
        with explained():
            self._catch_up(messages.sparkSession, batch)
            pending = [target for target in self._targets if not self._has(target, batch)]
            if len(pending) == len(self._targets):  # else what was set aside stays so: one of them goes without it
                self._aside.begin(batch)
            if pending or self._owes(batch):
                self._apply(messages, batch, pending)
        reached("batch-applied")
        self._counters.add(rows_consumed=self._consumed)
        for source in self._sources:
            if source.query in batch.positions:
                source.backend.applied(source.query, batch.positions[source.query])
        self._counters.batch_done(batch.positions, time.monotonic() - began)

    def _owes(self, batch: StreamBatch) -> bool:
        """Whether a batch that every target holds must be worked on all the same."""
        return False

    def _has(self, target: TakesBatches, batch: StreamBatch) -> bool:
        """Whether the batch is the target's already, or waits for it; of one that is away that is found out later."""
        return self._backlogs[target.label].holds(batch) or (not target.is_away and target.holds(batch))

    def _catch_up(self, spark: SparkSession, batch: StreamBatch) -> None:
        """Give targets that were away what was kept for them, as far as they take it."""
        for target in self._targets:
            backlog = self._backlogs[target.label]
            try:
                with explained():
                    if target.is_away:
                        target.come_back([*backlog.batches(), batch])
                    taken = backlog.apply(spark, partial(self._take_late, target))
            except FlowError as exc:
                if not self._spec.continue_on_target_failure or isinstance(exc, StateIncompatible):
                    raise
                log.warning("%s: %s is still away: %s", self._spec.name, target.label, exc.message)
            else:
                if taken:
                    log.info(
                        "%s: %s has caught up with %s",
                        self._spec.name,
                        target.label,
                        counted(taken, "batch", "batches"),
                    )

    def _take_late(self, target: TakesBatches, rows: DataFrame, batch: StreamBatch, is_chosen: bool) -> None:
        if target.holds(batch):
            return
        chosen = rows if is_chosen else self._chosen(rows, target.wanted(rows.columns))
        self._counters.add(rows_written=target.write(chosen, batch).rows)

    def _apply(self, messages: DataFrame, batch: StreamBatch, pending: Sequence[TakesBatches]) -> None:
        self._each(messages, lambda codec, part: codec.prepare(part))
        if all(codec.has_nothing() for codec in self._codecs.values()):
            return
        if not any(codec.columns for codec in self._codecs.values()) and self._all_bad(messages, batch):
            return
        # A transform may turn out to need no message at all (`WHERE 1 = 0`), and then nothing is counted on the way.
        goes_straight = pending[0].lands_first or pending[0].shows_whole_batches
        is_simple = len(self._targets) == 1 and self._transformed is None and not self._spec.continue_on_target_failure
        single = goes_straight and is_simple and self._trusts_messages()
        for _ in range(WIDENINGS):
            try:
                if not single:
                    return self._kept(messages, batch, pending)
                with explained():
                    return self._in_one_pass(messages, batch, pending[0])
            except LookAgain as again:
                if any(self._each(messages, lambda codec, part: codec.widen(part))):
                    continue
                if again.facts.bad and self._aside.is_on:
                    single = self._distrusts_messages()
                elif again.facts.bad and not pending[0].lands_first:
                    single = False  # it is known that some are bad, not how many
                elif again.facts.bad:
                    raise self._bad(again.facts.bad) from None
                else:  # they cannot be learned: Spark reads what Python does not
                    self._takes_unknown_fields = True
            except FlowError as exc:
                if not (single and self._aside.is_on and blames_rows(exc)):
                    raise
                single = self._distrusts_messages()
        raise self._restless()

    def _all_bad(self, messages: DataFrame, batch: StreamBatch) -> bool:
        """Whether a batch of which nothing could be learned holds bad messages only; they are dealt with then."""
        decoded, facts = self.looked_at(messages)
        try:
            if facts.bad < facts.rows:
                return False
            if facts.bad and not self._aside.is_on:
                self._counters.add(errors=1)
                raise self._bad(facts.bad)
            self._consumed = facts.rows
            self._aside.put(self._aside.judged(decoded, [], self.rows), batch)
            return True
        finally:
            decoded.unpersist()

    def _trusts_messages(self) -> bool:
        """Whether a batch is first tried in a single pass. Where rows can be set aside, not after one had to be."""
        self._careful_batches = max(self._careful_batches - 1, 0)
        return not self._aside.is_on or self._careful_batches == 0

    def _distrusts_messages(self) -> Literal[False]:
        self._careful_batches = _CAREFUL_BATCHES
        return False

    def _restless(self) -> BadMessages:
        return BadMessages(f"The messages of '{self._spec.name}' keep changing their fields within one batch.")

    def _in_one_pass(self, messages: DataFrame, batch: StreamBatch, target: TakesBatches) -> None:
        if not target.lands_first:
            return self._up_to_a_surprise(messages, batch, target)
        seen = Observation()
        decoded = self._decoded(messages).observe(seen, *self._facts)
        facts: list[Facts] = []

        def look() -> None:
            facts.append(Facts(**seen.get))
            if facts[-1].bad or (facts[-1].is_wider and not self._takes_unknown_fields):
                raise LookAgain(facts[-1])

        report = target.write(self.rows(decoded, target), batch, before_settling=look)
        self._consumed = facts[-1].rows if facts else 0
        self._counters.add(rows_written=report.rows)

    def _up_to_a_surprise(self, messages: DataFrame, batch: StreamBatch, target: TakesBatches) -> None:
        """Write a batch; a message that is bad, or has unknown fields, fails the job, and nothing of it is there."""
        is_unknown = F.lit(False) if self._takes_unknown_fields else F.col(UNKNOWN)
        reason = F.when(F.col(BAD).isNotNull(), _stopping(_IS_BAD)).when(is_unknown, _stopping(_IS_UNKNOWN))
        # Observed for no one: Spark moves no condition over it, and would work all of them out twice.
        decoded = self._decoded(messages).observe("messages", F.count(F.lit(1))).withColumn(BAD, reason)
        try:
            report = target.write(self.rows(decoded, target), batch)
        except Exception as exc:
            surprise = _surprise_in(exc)
            if surprise is None:
                raise
            raise LookAgain(Facts(rows=0, bad=int(surprise == _IS_BAD), is_wider=surprise == _IS_UNKNOWN)) from exc
        self._consumed = report.rows
        self._counters.add(rows_written=report.rows)

    def _kept(self, messages: DataFrame, batch: StreamBatch, pending: Sequence[TakesBatches]) -> None:
        decoded, facts = self.looked_at(messages)
        try:
            if facts.bad and self._spec.transform_on_error == "fail":
                self._counters.add(errors=1)
                raise self._bad(facts.bad)
            self._consumed = facts.rows
            if not self._aside.is_on:
                return self._write_all(partial(self.rows, decoded), batch, pending)
            judged = self.judged(decoded)
            self._aside.put(judged, batch)
            goes_to_several = len(self._targets) > 1 and self._transformed is not None and not self._fails_with_sql
            if goes_to_several and (error := self._tried_sql(judged)) is not None:
                # Before any of them has the batch: what one has cannot be taken out for a row that the next refuses.
                judged = self._cleaned(judged, error, self._tried_sql, batch)
            try:
                self._write_all(partial(self.rows, judged), batch, pending)
            except FlowError as exc:
                # Another target may have the batch by now, and what it has cannot be taken out.
                if len(self._targets) > 1 or not blames_rows(exc) or self._fails_with_sql:
                    raise
                fetched = partial(self._fetched, pending[0]) if self._transformed is None else None
                clean = self._cleaned(judged, exc, partial(self.try_out, pending[0]), batch, fetched)
                self._write_all(partial(self.rows, clean), batch, pending)
        finally:
            decoded.unpersist()

    def _cleaned(
        self,
        judged: DataFrame,
        error: FlowError,
        tried: Tried,
        batch: StreamBatch,
        fetched: Fetched | None = None,
    ) -> DataFrame:
        """The batch without the rows that something is wrong with which shows only when they are worked on."""
        failing = getattr(self._transformed, "failing", None)
        if failing is not None:
            rest = self._aside.without_failing(judged, failing, error, batch)
            if rest is not judged and tried(rest) is None:
                return rest
            judged = rest
        return self._aside.without_poison(judged, error, tried, batch, fetched)

    def looked_at(self, messages: DataFrame) -> tuple[DataFrame, Facts]:
        """The decoded messages, when nothing more can be learned from them; kept by Spark until `unpersist`."""
        for _ in range(WIDENINGS):
            decoded = self._decoded(messages).persist(StorageLevel.MEMORY_AND_DISK)
            try:
                facts = Facts(**decoded.agg(*self._facts).collect()[0].asDict())
                learned = (facts.is_wider or facts.bad) and any(
                    self._each(messages, lambda codec, part: codec.widen(part))
                )
            except BaseException:
                decoded.unpersist()
                raise
            if not learned:
                return decoded, facts
            decoded.unpersist()
        raise self._restless()

    def try_out(self, target: TakesBatches, decoded: DataFrame) -> FlowError | None:
        """Write good rows without keeping them; what their target has against one of them, if anything."""
        try:
            with explained():
                target.try_out(self.rows(decoded, target))
        except FlowError as exc:
            if not blames_rows(exc):
                raise
            return exc
        return None

    def _fetched(self, target: TakesBatches, decoded: DataFrame, row: str) -> TriedAtHand | None:
        """How good rows can be tried out from this process, by the numbers in a column; None when they cannot."""
        rows = decoded.where(F.col(BAD).isNull())
        offered = [name for name in rows.schema.names if name not in (RAW, BAD) and not name.startswith("__")]
        with explained():
            trial = target.fetched(self._chosen(rows, [*target.wanted(offered), row]), row)
        if trial is None:
            return None

        def tried(some: Sequence[int]) -> FlowError | None:
            try:
                with explained():
                    trial(some)
            except FlowError as exc:
                if not blames_rows(exc):
                    raise
                return exc
            return None

        return tried

    def _tried_sql(self, decoded: DataFrame) -> FlowError | None:
        """Transform good rows, and see whether every target could hold the result; what is wrong, if anything."""
        assert self._transformed is not None
        try:
            with explained():
                made = self._transformed(decoded.where(F.col(BAD).isNull()))
                made.write.format("noop").mode("overwrite").save()
                for target in self._misfitting:
                    reason = target.misfit(made)
                    found = None if reason is None else made.where(reason.isNotNull()).select(reason).first()
                    if found is not None:
                        return UnfitValue(str(found[0]))
        except FlowError as exc:
            if not blames_rows(exc):
                raise
            return exc
        return None

    @property
    def _misfitting(self) -> Sequence[TakesBatches]:
        """The targets that are asked about rows when SQL is tried out."""
        return [target for target in self._targets if target.is_known]

    def judged(self, decoded: DataFrame) -> DataFrame:
        """The decoded rows with a reason where one is bad, or fits a target's columns not; transforms speak later."""
        if self._transformed is not None:
            return self._aside.judged(decoded, [], self.rows, later="transform")
        return self._aside.judged(decoded, [target for target in self._targets if target.is_known], self.rows)

    @property
    def _fails_with_sql(self) -> bool:
        return self._transformed is not None and self._spec.transform_on_error == "fail"

    def _write_all(
        self, rows_for: Callable[[TakesBatches], DataFrame], batch: StreamBatch, pending: Sequence[TakesBatches]
    ) -> None:
        """Write to every target, also when one fails: the next time the others will have the batch."""
        failures: list[FlowError] = []
        for target in pending:
            backlog = self._backlogs[target.label]
            try:
                if not target.is_away and not backlog.batches():  # else its turn comes after what it is behind with
                    with explained():
                        self._counters.add(rows_written=target.write(rows_for(target), batch).rows)
                    reached("between-targets")
                    continue
            except FlowError as exc:
                self._counters.add(errors=1)
                log.warning(
                    "%s: batch %d did not reach %s: %s", self._spec.name, batch.number, target.label, exc.message
                )
                is_ours = self._aside.is_on and len(self._targets) == 1 and blames_rows(exc)
                if is_ours or not self._spec.continue_on_target_failure:
                    failures.append(exc)
                    continue
            backlog.keep(rows_for(target), batch, is_chosen=target.is_known or self._makes_rows)
        if failures:
            raise failures[0]

    def _bad(self, number: int) -> BadMessages:
        wants = "; ".join(dict.fromkeys(codec.wants for codec in self._codecs.values()))
        return BadMessages(
            f"{counted(number, 'message')} of '{self._spec.name}' cannot be read: {wants}.",
            fix="mend the producer, or say what becomes of such messages: transform_on_error='dlq' or 'drop'",
        )

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _each(self, messages: DataFrame, do: Callable[[Codec, DataFrame], Any]) -> list[Any]:
        """Do something with every source's share of a batch."""
        return [do(self._codecs[source.query], self._share(messages, source)) for source in self._sources]

    def _share(self, messages: DataFrame, source: OpenSource) -> DataFrame:
        if len(self._sources) == 1:
            return messages
        return messages.where(F.col(SOURCE_ID) == source.query).drop(SOURCE_ID)

    def _decoded(self, messages: DataFrame) -> DataFrame:
        shares = [
            self._codecs[source.query].decoded(self._aside.marked(self._share(messages, source), source))
            for source in self._sources
        ]
        decoded = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), shares)
        return with_position(decoded) if self._is_placed else decoded

    def rows(self, decoded: DataFrame, target: TakesBatches) -> DataFrame:
        """What a target gets: good messages, transformed, without what nobody asked for."""
        rows = decoded.where(F.col(BAD).isNull())
        if self._transformed is not None:
            return self._transformed(rows)
        offered = [name for name in rows.schema.names if name not in (RAW, BAD) and not name.startswith("__")]
        # What a target wants that was never asked for its columns is found out when it takes them.
        wanted = target.wanted(offered) if target.is_known else offered
        return self._chosen(rows, [*wanted, POSITION] if POSITION in rows.columns else wanted)

    def _chosen(self, rows: DataFrame, names: Sequence[str]) -> DataFrame:
        wanted = tuple(names)
        if wanted not in self._offered:
            self._offered[wanted] = [F.col(quoted(name)) for name in wanted]
        return rows.select(*self._offered[wanted])

    @property
    def _makes_rows(self) -> bool:
        """Whether a target's rows are as somebody made them, all of whose columns are meant."""
        return self._transformed is not None


def with_position(decoded: DataFrame) -> DataFrame:
    """The rows with `POSITION`: of where a broker has their message, or else of what they hold, as far as it can be."""
    told: Sequence[str] = ("_topic", "_partition", "_offset")
    if any(name not in decoded.columns for name in told):
        fields = [field for field in decoded.schema.fields if not field.name.startswith("__")]
        told = [field.name for field in fields if not re.search("map<|variant", field.dataType.simpleString())]
    return decoded.withColumn(POSITION, F.xxhash64(*[F.col(quoted(name)) for name in told])) if told else decoded


def _stopping(surprise: str) -> Column:
    return F.raise_error(F.lit(refusals.refusal(_SURPRISE, surprise))).cast("string")


def _surprise_in(exc: BaseException) -> str | None:
    """Which surprise stopped a batch; None when it was something else."""
    facts = refusals.facts_in(str(exc)) or {}
    if facts.get("error") == _SURPRISE:
        return str(facts["message"])
    return None if exc.__cause__ is None else _surprise_in(exc.__cause__)
