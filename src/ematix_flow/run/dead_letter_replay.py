"""Replaying dead letters: one pass through the stream's own codec, transform and targets, each letter once.

Letters are taken in steps. A step is judged before anything of it is written: letters that fail again are put back as a
new attempt, and only the rest goes to the targets, under the name of the step. A replay that is killed leaves a step
whose name tells the next replay whether a target holds it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ematix_flow.config.resolve import resolve
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.dead_letters import KeepsDeadLetters, ReplayReport, Selection, Stage, Taken
from ematix_flow.contracts.plans import OpenedRun
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.streams import StreamBatch, StreamCounters
from ematix_flow.declare.stream_checks import check_whole
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import FlowError, UnsupportedBackend, WriteConflict, counted
from ematix_flow.run.dead_letters import letter_keeper
from ematix_flow.run.places import lend_spark, needing_spark
from ematix_flow.run.stream_targets import StreamTarget
from ematix_flow.run.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.spark.micro_batch import BatchWork

log = logging.getLogger(__name__)


@contextmanager
def opened(spec: StreamSpec) -> Iterator[tuple[StreamSpec, KeepsDeadLetters]]:
    """The stream with its connections filled in, and the keeper of its letters."""
    from ematix_flow.spark.checkpoints import CheckpointFolder

    ready = spec.with_connections(lambda ref: resolve(ref, where=str(spec.where)).connection)
    keeper = letter_keeper(ready, CheckpointFolder.of(ready))
    yield ready, keeper


def replay(spec: StreamSpec, selection: Selection, *, max_attempts: int | None = None) -> ReplayReport:
    """Replay letters of a stream, which may be running.

    Args:
        selection: Which ones; those that fail during this pass wait for the next one.
        max_attempts: Instead of `dlq_max_attempts`: a letter that has been tried so often is parked.

    Raises:
        AlreadyRunning: another replay of this stream is under way.
        InvalidDeclaration: (a ValueError) `max_attempts` is below 1.
        UnsupportedBackend: its changes are applied in order, which letters are not in.
        FlowError: a target cannot be reached or the pipeline is wrong; letters that were not applied stay.
    """
    check_whole("max_attempts", max_attempts, least=1)
    if spec.cdc is not None:
        raise UnsupportedBackend(
            f"Stream '{spec.name}' applies changes in their order, and a letter comes out of turn.",
            fix="flow rewind the stream to where the letter lay",
        )
    if spec.is_stateful:
        raise UnsupportedBackend(
            f"Stream '{spec.name}' gathers rows by their event time, and a letter's time has passed.",
            fix="flow rewind the stream to where the letter lay, or send the message to its source again",
        )
    with needing_spark("A replay runs on Spark"), opened(spec) as (ready, keeper), ExitStack() as held:
        return _Replay(ready, keeper, max_attempts or ready.dlq_max_attempts, held).run(selection)


class _Replay:
    """One pass."""

    def __init__(self, spec: StreamSpec, keeper: KeepsDeadLetters, most_attempts: int, held: ExitStack) -> None:
        self._spec, self._keeper, self._most_attempts, self._held = spec, keeper, most_attempts, held
        self._targets = [_ReplayTarget(spec, target) for target in spec.targets]
        self._work: BatchWork | None = None
        self._report = ReplayReport()

    def run(self, selection: Selection) -> ReplayReport:
        started = _now_ms()
        left = selection
        while left.kind != "first_n" or left.n > 0:
            taken = self._keeper.take(left, before_ms=started, now_ms=_now_ms())
            if taken is None:
                break
            try:
                self._step(taken)
            except Exception:
                self._keeper.give_back(taken)
                raise
            if left.kind == "first_n":
                left = replace(left, n=left.n - len(taken.letters))
        return replace(self._report, started_at_ms=started, finished_at_ms=_now_ms())

    def _step(self, taken: Taken) -> None:
        from ematix_flow.spark.batch import explained

        with explained(), self._open_targets(f"dlq-{taken.lease}"):
            pending = [target for target in self._targets if not target.is_applied]
            failed: Mapping[str, tuple[Stage, str]] = {}
            if pending:
                failed = self._apply(taken, pending, is_frozen=len(pending) < len(self._targets))
            reached("replay-applied")
            self._keeper.done(taken.without(set(failed)), now_ms=_now_ms())
        parked = sum(letter.attempt + 1 > self._most_attempts for letter in taken.letters if letter.id in failed)
        self._report = replace(
            self._report,
            taken=self._report.taken + len(taken.letters),
            succeeded=self._report.succeeded + len(taken.letters) - len(failed),
            redeadlettered=self._report.redeadlettered + len(failed) - parked,
            parked=self._report.parked + parked,
        )

    @contextmanager
    def _open_targets(self, step: str) -> Iterator[None]:
        """All targets, held and open under the name of a step."""
        opened: list[_ReplayTarget] = []
        try:
            for target in self._targets:
                target.open_as(step)
                opened.append(target)
            yield
        except BaseException as exc:
            for target in opened:
                target.close(exc)
            raise
        for target in opened:
            target.close()

    def _apply(self, taken: Taken, pending: list[_ReplayTarget], *, is_frozen: bool) -> Mapping[str, tuple[Stage, str]]:
        """Write what can be written; which letters cannot, and why."""
        from pyspark.sql import functions as F

        from ematix_flow.spark.dead_letters import STAGE, messages_of
        from ematix_flow.spark.payloads import BAD, MESSAGE
        from ematix_flow.spark.poison import blames_rows

        spark, work = self._engine()
        several = len(self._spec.sources) > 1
        decoded, _ = work.looked_at(messages_of(spark, taken.letters, several_sources=several))
        try:
            judged = work.judged(decoded)
            letter = F.col(f"{MESSAGE}.letter")
            rows = judged.where(F.col(BAD).isNotNull()).select(letter, BAD, STAGE).collect()
            failed: dict[str, tuple[Stage, str]] = {row[0]: (row[2], row[1]) for row in rows}
            good = [one.id for one in taken.letters if one.id not in failed]
            failed |= self._poison(work, judged, good) if len(self._targets) > 1 and not is_frozen else {}
            if failed and is_frozen:
                raise WriteConflict(
                    f"{counted(len(failed), 'letter')} of '{self._spec.name}' reached one target in a replay that was "
                    "cut off, and another target no longer takes them.",
                    fix="mend the table; the next replay goes on with them",
                )
            self._put_back(taken, failed)
            try:
                self._write(work, judged, taken, failed, pending)
            except FlowError as exc:
                if not blames_rows(exc) or len(self._targets) > 1:
                    raise
                more = self._poison(work, judged, [one for one in good if one not in failed])
                self._put_back(taken, more)
                failed |= more
                self._write(work, judged, taken, failed, pending)
            return failed
        finally:
            decoded.unpersist()

    def _write(
        self,
        work: BatchWork,
        judged: DataFrame,
        taken: Taken,
        failed: Mapping[str, Any],
        pending: list[_ReplayTarget],
    ) -> None:
        from ematix_flow.spark.batch import explained

        good = self._only(judged, [one.id for one in taken.letters if one.id not in failed])
        for target in pending:
            with explained():
                target.write(work.rows(good, target), StreamBatch("", 0, ""))
            reached("between-targets")

    def _put_back(self, taken: Taken, failed: Mapping[str, tuple[Stage, str]]) -> None:
        moment = _now_ms()
        originals = [letter for letter in taken.letters if letter.id in failed]
        again = [
            letter.tried_again(
                failed[letter.id][1], now_ms=moment, most_attempts=self._most_attempts, stage=failed[letter.id][0]
            )
            for letter in originals
        ]
        self._keeper.decide(taken, again, [letter.id for letter in originals], now_ms=moment)

    def _poison(self, work: BatchWork, judged: DataFrame, ids: list[str]) -> dict[str, tuple[Stage, str]]:
        """Letters that a target refuses although their rows look right, found by trying."""
        from ematix_flow.spark.poison import poison

        def tried(some: Any) -> FlowError | None:
            part = self._only(judged, list(some))
            return next((error for target in self._targets if (error := work.try_out(target, part))), None)

        stage: Stage = "write" if self._spec.transform_sql is None else "transform"
        return {letter: (stage, error.message) for letter, error in poison(ids, tried).items()}

    def _only(self, judged: DataFrame, ids: list[str]) -> DataFrame:
        from pyspark.sql import functions as F

        from ematix_flow.spark.payloads import BAD, MESSAGE

        return judged.where(F.col(BAD).isNull() & F.col(f"{MESSAGE}.letter").isin(ids))

    def _engine(self) -> tuple[SparkSession, BatchWork]:
        """The session and the work on batches, made when the first step needs them."""
        from ematix_flow.backends.catalog import open_backend
        from ematix_flow.spark.codecs import codec_of
        from ematix_flow.spark.micro_batch import BatchWork
        from ematix_flow.spark.session import open_session
        from ematix_flow.spark.set_aside import SetAside
        from ematix_flow.spark.stream import OpenSource

        needs = SessionNeeds()
        for target in self._targets:
            needs = needs | target.backend.needs
        for source in self._spec.sources:
            needs = needs | open_backend(source.connection).needs  # type: ignore[arg-type]  # what payloads need
        stream = None if self._work is not None else Stream(self._spec, lookups_of=f"replay-{uuid.uuid4().hex[:8]}")
        if stream is not None and stream.lookups is not None:
            needs = needs | stream.lookups.needs
        lend_spark(*[target.backend for target in self._targets])
        spark = open_session(needs, spark_settings())
        if stream is not None:
            stream.open_lookups(spark, self._held)
            sources: list[Any] = []
            codecs: dict[str, Any] = {}
            for source in self._spec.sources:
                backend = open_backend(source.connection)  # type: ignore[arg-type]  # names are connections by now
                self._held.callback(backend.close)
                sources.append(OpenSource(source.query, backend, None, None, False))  # type: ignore[arg-type]
                codecs[source.query] = codec_of(source, backend, stream.folder)
            counters = StreamCounters()
            aside = SetAside(replace(self._spec, transform_on_error="drop"), counters)
            self._work = BatchWork(self._spec, sources, codecs, self._targets, counters, {}, stream.transformed, aside)
        assert self._work is not None
        return spark, self._work


class _ReplayTarget(StreamTarget):
    """A target of a stream while letters are replayed: every step is a load of its own, applied once."""

    @property
    def name(self) -> str:
        """Beside the stream's own name, which a running stream holds."""
        return f"{super().name}::replay"

    def open_as(self, step: str) -> None:
        """Take the lease and open a run under the name of a step."""
        self.logical_run = step
        self._described = None
        self.open()

    @property
    def is_applied(self) -> bool:
        """Whether the target holds the step."""
        return self._run is not None and self._run.applied is not None

    def _run_of(self, batch: StreamBatch) -> OpenedRun:
        assert self._run is not None
        return self._run


def _now_ms() -> int:
    return int(time.time() * 1000)
