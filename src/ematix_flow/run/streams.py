"""A stream from its start to its end: the conductor. `flow consume` and `run_streaming_pipeline` come here."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.catalog import open_backend
from ematix_flow.config.secrets import expand_field
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.config.stream_ready import stream_advice
from ematix_flow.contracts.backend import Backend
from ematix_flow.contracts.runtime import RunHistory, RunStatus
from ematix_flow.contracts.streams import Gap, Receives, StreamBatch, StreamCounters, StreamsIn
from ematix_flow.declare.stream import Lookup
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.withheld import cause_without_values
from ematix_flow.errors import (
    AlreadyRunning,
    ConnectionFailed,
    FlowError,
    InvalidDeclaration,
    RouteImpossible,
    StateIncompatible,
    UnsupportedBackend,
    counted,
)
from ematix_flow.plan.stream import StreamPlan, is_of_shape, plan_stream
from ematix_flow.run.change_targets import stream_target
from ematix_flow.run.dead_letters import keeps_letters_here, letter_box, rejecting
from ematix_flow.run.declared_lineage import stream_lineage
from ematix_flow.run.loads import new_run_id, now
from ematix_flow.run.places import lend_spark, needing_spark
from ematix_flow.run.recorder import RunRecorder
from ematix_flow.run.runlogs.open import current_run_log, open_run_log
from ematix_flow.run.stream_identity import SourceIdentities
from ematix_flow.run.stream_metrics import served
from ematix_flow.run.stream_targets import StreamTarget
from ematix_flow.run.stream_transform import ready_to_start, sql_of
from ematix_flow.run.stream_watch import StreamWatch, lag_over
from ematix_flow.run.supervisor import RestartPolicy, keep_running
from ematix_flow.watch.stream_lineage import StreamLineage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.checkpoint_mirror import CheckpointMirror
    from ematix_flow.spark.backlog import Backlog
    from ematix_flow.spark.checkpoints import CheckpointFolder, Generation
    from ematix_flow.spark.lookups import Lookups
    from ematix_flow.spark.micro_batch import BatchWork
    from ematix_flow.spark.stream import OpenSource, StreamRun

log = logging.getLogger(__name__)

_MOST_ROWS, _MOST_ROWS_AT_ONCE = 1_000_000, 5_000_000
"""How many messages a batch takes at most when nothing is said: a backlog must not become one endless batch, which a
stream that is told to stop would have to finish. One that ends by itself takes larger ones, which cost less."""


def run_stream(
    spec: StreamSpec,
    *,
    metrics_port: int | None = None,
    run_log_url: str | None = None,
    pipeline_name: str | None = None,
    once: bool = False,
    max_batches: int | None = None,
    stop: threading.Event | None = None,
    restarts: RestartPolicy | None = None,
    watch: StreamWatch | None = None,
) -> dict[str, Any]:
    """Run a stream until it is told to stop, or until what is there has been read.

    Args:
        metrics_port: Where to serve metrics on this machine, instead of the declared port.
        run_log_url: Where to record it, instead of the configured run log.
        pipeline_name: Its name in the run log, instead of its own.
        once: Read what is there now, then end.
        max_batches: End after so many batches.
        stop: Ends the stream between two batches when it is set. Without it, SIGTERM and SIGINT do.
        restarts: Whether it is started again after a failure; without a word it is not.
        watch: Who looks on, when somebody besides the metrics wants to know.

    Returns:
        `total_rows`, `iterations` and `shutdown_triggered`.

    Raises:
        FlowError: it cannot start, or cannot go on. What was applied stays applied.
    """
    watch = watch or StreamWatch(spec.name)
    told = stop or threading.Event()
    with ExitStack() as around:
        if stop is None:
            around.enter_context(stopping_on_signals(told))
        with needing_spark("A stream runs on Spark"):
            stream = Stream(spec, once=once, max_batches=max_batches, watch=watch)
        around.enter_context(served(watch, spec.metrics_port if metrics_port is None else metrics_port))
        stream.recorded_as = pipeline_name or spec.name
        if run_log_url is not None:
            stream.history = open_run_log(run_log_url)
            around.callback(lambda: stream.history.close() if stream.history is not None else None)
        result = keep_running(
            lambda: stream.run(told),
            restarts or RestartPolicy(),
            told,
            on_restart=watch.restarting,
            when_told=lambda: stream.result(stopped=True),
        )
        stream.forget()  # not after a failure: a batch may be with some targets only, and the others are to get it
        return result


@contextmanager
def stopping_on_signals(told: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT set the event; only the main thread may ask for that, others go without."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda *_: told.set())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stream:
    """A stream that can be run, and run again when it failed."""

    def __init__(
        self,
        spec: StreamSpec,
        *,
        once: bool = False,
        max_batches: int | None = None,
        watch: StreamWatch | None = None,
        lookups_of: str = "stream",
    ) -> None:
        from ematix_flow.spark.checkpoints import CheckpointFolder

        self._lookups_of = lookups_of

        self.spec = ready_to_start(spec)
        for word in stream_advice(self.spec):
            log.warning("%s: %s", spec.name, word)
        self.plan: StreamPlan = plan_stream(self.spec)
        self._refuse_what_is_not_there()
        self.folder: CheckpointFolder = CheckpointFolder.of(spec)
        self.lookups: Lookups | None = None
        self.transformed = self._transform()
        self.counters = StreamCounters()
        self._once, self._max_batches = once, max_batches
        self.watch = watch or StreamWatch(spec.name)
        self.recorded_as = spec.name
        self.history: RunHistory | None = current_run_log()
        self._attempt = 0

    def _refuse_what_is_not_there(self) -> None:
        settings = spark_settings()
        against = "the native engine has no streams" if settings.engine == "native" else None
        if settings.remote:
            against = "a Spark Connect server would run the code of every batch itself"
        if against is not None:
            raise RouteImpossible(
                f"Stream '{self.spec.name}' needs a Spark session of this process: {against}.",
                where=str(self.spec.where),
                fix="run it on a Spark master: flow consume … --spark-master 'local[*]'",
            )

    def run(self, told: threading.Event) -> dict[str, Any]:
        """Start, go on until told to stop, and clean up."""
        self.counters = StreamCounters()
        self._attempt += 1
        name, run_id = self.recorded_as, f"{self.recorded_as}-stream-{now():%Y%m%d%H%M%S}-{new_run_id()[:8]}"
        recorder = RunRecorder(self.history, name, run_id, kind="streaming", attempt=self._attempt)
        lineage = StreamLineage(name, run_id, partial(stream_lineage, self.spec))
        recorder.start()
        lineage.started()

        def note(facts: Mapping[str, Any]) -> None:
            recorder.note(facts)
            lineage.goes_on(self.counters.rows_written)

        try:
            with self.watch.run_of(self.counters, note), ExitStack() as held:
                stopped = self._run(told, held)
        except BaseException as exc:
            recorder.finish("failed", error=exc)
            lineage.finished("failed", self.counters.rows_written, error=exc)
            if isinstance(exc, FlowError):
                if exc.fix is not None:  # whoever raised it may not know whose batch it was
                    exc.fix = exc.fix.replace(" NAME", f" {self.spec.name}")
                raise exc.at(str(self.spec.where)) from cause_without_values(exc)
            raise
        result = self.result(stopped=stopped)
        status: RunStatus = "cancelled" if stopped else "succeeded"
        recorder.finish(status, result=result)
        lineage.finished(status, self.counters.rows_written)
        return result

    def forget(self) -> None:
        """Let go of what it remembers, if it is to be forgotten with its process."""
        if self.spec.forgets:
            with suppress(AlreadyRunning), self.folder.held():
                self.folder.forget()

    def result(self, *, stopped: bool) -> dict[str, Any]:
        """What the last start has done."""
        return {
            "total_rows": self.counters.rows_written,
            "iterations": self.counters.batches,
            "shutdown_triggered": stopped,
        }

    def _run(self, told: threading.Event, held: ExitStack) -> bool:
        from ematix_flow.spark.backlog import Backlog
        from ematix_flow.spark.batch import explained
        from ematix_flow.spark.codecs import codec_of
        from ematix_flow.spark.micro_batch import BatchWork
        from ematix_flow.spark.session import open_session
        from ematix_flow.spark.set_aside import SetAside
        from ematix_flow.spark.stream import StreamRun

        backends = [self._source_backend(source.connection, held) for source in self.spec.sources]
        targets = [stream_target(self.spec, target, self.counters) for target in self.spec.targets]
        lend_spark(*backends, *[target.backend for target in targets])
        self._refuse_a_mixture(backends)
        by_query = {source.query: backend for source, backend in zip(self.spec.sources, backends, strict=True)}
        for query, backend in by_query.items():
            backend.check_stream(query)
        if self.spec.dlq_store == "broker":
            for query, rejects in rejecting(self.spec, by_query).items():
                rejects.check_rejects(query)
        needs = self.folder.needs
        for one in (*(backend.stream_needs for backend in backends), *(target.backend.needs for target in targets)):
            needs = needs | one
        if self.lookups is not None:
            needs = needs | self.lookups.needs
        self.folder.needs = needs  # a checkpoint that is elsewhere is looked at by Spark
        self._refuse_checkpoint_elsewhere(backends)
        held.enter_context(self.folder.held())
        mirror = self._mirror()
        failure: list[BaseException] = []
        backlogs = {target.label: Backlog(self.folder.behind(target.label)) for target in targets}
        for target in targets:
            self._open(target)
            held.callback(self._close, target, failure)
        if self.spec.forgets and self._attempt == 1 and self._agree(targets):
            self.folder.forget()  # what a process left that was killed
        identities = SourceIdentities(self.spec, self.folder, by_query)
        with explained():
            generation = identities.settled(self._generation(targets))
        for target in targets:
            target.goes_back = generation.start is not None
        starts = self._starts(generation, targets, backlogs, backends)
        sources = [
            self._open_source(source.query, backend, starts[source.query])
            for source, backend in zip(self.spec.sources, backends, strict=True)
        ]
        with explained():
            spark = open_session(needs, spark_settings())
            self.open_lookups(spark, held)
            codecs = {
                source.query: codec_of(source, backend, self.folder, partial(self._tells_types, targets), self.spec)
                for source, backend in zip(self.spec.sources, backends, strict=True)
            }
            letters = letter_box(self.spec, self.folder, by_query, partial(self._copied, mirror))
            if letters is not None:
                held.callback(letters.close)
            aside = SetAside(self.spec, self.counters, letters)
            given = (self.spec, sources, codecs, targets, self.counters, backlogs, self.transformed, aside)
            work = self._stateful_work(generation, given) if self.spec.is_stateful else BatchWork(*given)
            running = StreamRun(
                spark,
                self.spec.name,
                sources,
                self.folder,
                generation,
                partial(self._worked_on, work, targets),
                idle_pause_ms=self.spec.idle_pause_ms,
                once=self._once,
                before_batch=partial(self._before_batch, mirror, identities),
                held=self._held_by_all(generation, targets, backlogs),
                on_gap=self._lost,
                is_due=work.is_due if work.can_be_due else None,
            )
            try:
                running.start()
                with self.watch.sampling(running, lag_over(sources, starts)):
                    return self._watch(running, told, mirror)
            except BaseException as exc:
                failure.append(exc)
                raise
            finally:
                running.stop()
                if mirror is not None and not failure and running.last_batch is not None:
                    self._copied(mirror, running.last_batch)

    def _worked_on(self, work: BatchWork, targets: list[StreamTarget], messages: DataFrame, batch: StreamBatch) -> None:
        work(messages, batch)
        for target in targets:
            target.look_after()

    def _stateful_work(self, generation: Generation, given: tuple[Any, ...]) -> BatchWork:
        """The work of a stream that remembers, and what it remembers with."""
        from ematix_flow.spark.stateful_batch import StatefulWork, steps_of
        from ematix_flow.spark.stream_memory import StreamMemory

        memory = StreamMemory(self.folder, generation)
        return StatefulWork(*given, steps=steps_of(self.spec, memory), memory=memory)

    def _mirror(self) -> CheckpointMirror | None:
        """The copy of the checkpoint, if one is declared; a folder that lacks what it has, has been filled from it."""
        store = self.spec.state_store
        if store is None or store.kind != "postgres":
            return None
        from ematix_flow.backends.checkpoint_mirror import CheckpointMirror

        mirror = CheckpointMirror(expand_field(store.url or ""), store.schema, self.spec.name, self.folder.path)
        mirror.open()
        if mirror.restore():
            log.warning("%s: its checkpoint was lost or old, and is restored from its state store", self.spec.name)
        return mirror

    def open_lookups(self, spark: SparkSession, held: ExitStack) -> None:
        """Read the tables that the SQL may join, before any row of the stream."""
        if self.lookups is not None:
            held.callback(self.lookups.close)
            self.lookups.open(spark)

    def _before_batch(self, mirror: CheckpointMirror | None, identities: SourceIdentities, batch: StreamBatch) -> None:
        from ematix_flow.spark.stream import StreamStopped

        if self._has_done_all:  # whoever waits for the end looks a few times a second
            raise StreamStopped
        identities.look()
        self._copied(mirror, batch)
        if self.lookups is not None:
            self.lookups.turn()

    def _lost(self, query: str, gap: Gap) -> None:
        self.counters.add(messages_lost=gap.messages)
        log.warning(
            "%s: %s of '%s' were gone before they could be read: partition %s, offsets %d to %d",
            self.spec.name,
            counted(gap.messages, "message"),
            query,
            gap.part,
            gap.first,
            gap.behind - 1,
        )

    def _copied(self, mirror: CheckpointMirror | None, batch: StreamBatch) -> None:
        if mirror is not None:
            mirror.copy(batch.number, batch.positions)

    def _refuse_checkpoint_elsewhere(self, backends: list[Any]) -> None:
        if self.folder.is_remote and any(isinstance(backend, Receives) for backend in backends):
            raise InvalidDeclaration(
                f"Stream '{self.spec.name}': messages of a queue are kept on a disk of this machine, and so must be "
                f"its checkpoint, not at {self.folder.place}.",
                fix="give a folder; StateStore(kind='postgres') keeps a copy of it elsewhere",
            )
        if self.folder.is_remote and self.spec.state_store is not None and self.spec.state_store.kind == "postgres":
            raise InvalidDeclaration(
                f"Stream '{self.spec.name}': state_store= keeps a copy of a checkpoint on this machine, and this one "
                f"is at {self.folder.place}.",
                fix="keep one of them",
            )
        here = ["dead letters"] if keeps_letters_here(self.spec) else []
        if self.spec.continue_on_target_failure and len(self.spec.targets) > 1:
            here.append("rows that wait for a target")
        if self.folder.is_remote and here:
            log.warning(
                "%s: its checkpoint is at %s, but %s stay on this machine, in %s",
                self.spec.name,
                self.folder.place,
                " and ".join(here),
                self.folder.path,
            )

    def _open(self, target: StreamTarget) -> None:
        """Open a target; one that does not answer is behind from now on, where the others may go on without it."""
        try:
            target.try_to_open()
        except ConnectionFailed as exc:
            if not self.spec.continue_on_target_failure:
                raise
            target.away = exc
            log.warning("%s begins without %s: %s", self.spec.name, target.label, exc.message)

    def _agree(self, targets: list[StreamTarget]) -> bool:
        """Whether all targets are there and hold the same."""
        return not any(target.is_away or target.last != targets[0].last for target in targets)

    def _close(self, target: StreamTarget, failure: list[BaseException]) -> None:
        target.close(failure[0] if failure else None)

    def _watch(self, running: StreamRun, told: threading.Event, mirror: CheckpointMirror | None) -> bool:
        """Wait for the end; whether it came by a word from outside."""
        copied: StreamBatch | None = None
        while not running.wait(0.2):
            batch = running.last_batch
            if mirror is not None and batch is not None and batch is not copied and running.is_waiting():
                copied = batch  # who waits for messages may wait for long, and its disk may be lost meanwhile
                try:
                    self._copied(mirror, batch)
                except FlowError as exc:
                    log.warning(
                        "%s: its checkpoint is not copied before its next batch: %s", self.spec.name, exc.message
                    )
            if told.is_set():
                running.stop()
                return True
            if self._has_done_all:
                running.stop()
                return False
        return told.is_set()

    @property
    def _has_done_all(self) -> bool:
        """Whether it has done as many batches as it was to do."""
        return self._max_batches is not None and self.counters.batches >= self._max_batches

    # ── where it begins ──────────────────────────────────────────────────────────────────────────────────────────────

    def _generation(self, targets: list[StreamTarget]) -> Generation:
        current = self.folder.current()
        if current is None:
            if self.spec.is_stateful and not self.spec.forgets and any(target.last is not None for target in targets):
                raise StateIncompatible(
                    f"The stream '{self.spec.name}' has written before, and what it remembered of open windows or "
                    "unmatched rows is gone.",
                    where=self.folder.place,
                    fix=f"put the folder back, or begin anew: flow state reset {self.spec.name} --from earliest "
                    "--confirm-state-reset; StateStore(kind='postgres') keeps a copy",
                )
            return self.folder.begin(self.plan.shape)
        if not is_of_shape(current.shape, self.plan.shape) and self._has_done_nothing(current, targets):
            return self.folder.begin(self.plan.shape, current.start)
        self.folder.require_shape(current, self.plan.shape)
        self.folder.mend(current, len(self.spec.sources))
        return current

    def _has_done_nothing(self, generation: Generation, targets: list[StreamTarget]) -> bool:
        """Whether no batch of a generation was ever finished, nor is in any target: a declaration was being mended."""
        held = any(target.last is not None and target.last.generation == generation.name for target in targets)
        return (
            not held
            and not any(target.is_away for target in targets)
            and self.folder.newest(generation, "commits") is None
        )

    def _starts(
        self,
        generation: Generation,
        targets: list[StreamTarget],
        backlogs: Mapping[str, Backlog],
        backends: list[Any],
    ) -> Mapping[str, Any]:
        """Where each source begins when the checkpoint says nothing: where a rewind put it, where the targets are, else
        where the source says itself."""
        known = generation.start or {}
        if not known and not self.folder.has_batches(generation):
            known = self._where_targets_are(targets, backlogs) or {}
        return {
            source.query: known[source.query] if source.query in known else backend.first_position(source.query)
            for source, backend in zip(self.spec.sources, backends, strict=True)
        }

    def _where_targets_are(
        self, targets: list[StreamTarget], backlogs: Mapping[str, Backlog]
    ) -> Mapping[str, Any] | None:
        """What the targets hold already, or what is kept for them, when the checkpoint is new and they are not.

        Raises:
            StateIncompatible: they hold different batches; wherever it began, one would lack or double rows.
            ConnectionFailed: one that is away cannot be asked, and the others hold some.
        """
        known = [(target, backlogs[target.label].newest() or target.last) for target in targets]
        unknown = [target.away for target, batch in known if batch is None and target.away is not None]
        if unknown and any(batch is not None for _, batch in known):
            raise unknown[0]
        held = [batch.positions if batch is not None else None for _, batch in known]
        if any(positions != held[0] for positions in held):
            raise StateIncompatible(
                f"The stream '{self.spec.name}' has no checkpoint, and its targets hold different batches.",
                where=self.folder.place,
                fix=f"decide where it begins: flow state reset {self.spec.name} --from group|earliest|latest",
            )
        if held[0] is not None:
            log.info("%s goes on where its targets are; its checkpoint is new", self.spec.name)
        return held[0]

    def _held_by_all(
        self, generation: Generation, targets: list[StreamTarget], backlogs: Mapping[str, Backlog]
    ) -> StreamBatch | None:
        """The last batch of this checkpoint that every target has, or that waits for it."""
        held = [backlogs[target.label].newest() or target.last for target in targets]
        if any(batch is None or batch.generation != generation.name for batch in held):
            return None
        return min((batch for batch in held if batch is not None), key=lambda batch: batch.number)

    def _open_source(self, query: str, backend: StreamsIn, start: Any) -> OpenSource:
        from ematix_flow.spark.stream import OpenSource

        most = self.spec.max_batch_rows or (_MOST_ROWS_AT_ONCE if self._once else _MOST_ROWS)
        return OpenSource(query, backend, start, most, self.spec.on_gap == "continue")

    def _refuse_a_mixture(self, backends: list[Any]) -> None:
        """Messages have hidden columns and are decoded, rows are not; one union of both would be neither."""
        kinds = {backend.gives_messages for backend in backends}
        if len(kinds) > 1 and self.spec.join is None:
            raise UnsupportedBackend(
                f"Stream '{self.spec.name}' reads brokers together with files or tables, which only join= can do.",
                fix="make two streams of it that write to the same target",
            )

    def _tells_types(self, targets: list[StreamTarget]) -> bool:
        """Whether all targets know the types of their columns, so that text can be left to them."""
        return self.transformed is None and all(target.knows_columns for target in targets)

    def _source_backend(self, connection: Any, held: ExitStack) -> Any:
        backend: Backend = open_backend(connection)
        held.callback(backend.close)
        if not isinstance(backend, StreamsIn):
            raise UnsupportedBackend(
                f"'{connection.name}' ({connection.kind}) cannot be the source of a stream in this version.",
                fix="read it in batches with @ematix.pipeline(...)",
            )
        return backend

    def _transform(self) -> Callable[[Any], Any] | None:
        sql = sql_of(self.spec)
        if sql is None or not self.spec.lookups:
            return sql
        from ematix_flow.spark.lookups import Lookups, WithLookups

        self.lookups = Lookups(
            self.spec.name, self.spec.lookups, _lookup_backend, self.folder, lambda: self.counters, self._lookups_of
        )
        return WithLookups(sql, self.lookups)


def _lookup_backend(lookup: Lookup) -> Backend:
    backend = open_backend(lookup.connection)  # type: ignore[arg-type]  # names are connections by now
    lend_spark(backend)
    return backend
