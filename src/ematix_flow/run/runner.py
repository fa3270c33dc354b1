"""One pipeline, start to end: the conductor. `.sync()` and `flow run` come here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ematix_flow.config.project import PROJECT_FILE, project_settings
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.contracts.plans import SourceQuery
from ematix_flow.contracts.run_context import RunContext, between_steps, current_run
from ematix_flow.contracts.runtime import RunObserver, SilentObserver, StepStatus
from ematix_flow.declare.pipeline import PipelineSpec, checked_engine
from ematix_flow.declare.target import TargetSpec
from ematix_flow.declare.withheld import cause_without_values
from ematix_flow.errors import FlowError, InvalidConfig, RunCancelled, StepFailed
from ematix_flow.run.fanout import FanOut
from ematix_flow.run.loads import load_target, new_run_id, warn_about_keys
from ematix_flow.run.maintenance import maintain_loaded
from ematix_flow.run.places import opened, reading_from
from ematix_flow.run.post import finish_load, recorder_of, run_transform
from ematix_flow.run.run_steps import SOURCE, RunSteps, load_step
from ematix_flow.run.source_rows import source_of
from ematix_flow.watch.openlineage import RunLineage
from ematix_flow.watch.traces import StepSpans, pipeline_run_span

__all__ = ["run_function", "run_pipeline", "run_transform"]


def run_pipeline(spec: PipelineSpec, *, logical_run: str | None = None, observer: RunObserver | None = None) -> Any:
    """Run a pipeline once.

    Args:
        logical_run: which run this is; repeating one that the target holds changes nothing. Without it, a run that was
            interrupted is taken up again, else this is a new one.
        observer: told what happens.

    Returns:
        A `RunResult`; for several targets a mapping from `schema.table` to results; what the function returned, if
        that was a mapping.

    Raises:
        FlowError: the load was refused or failed. The target is as it was.
    """
    spec = in_this_project(spec)
    run = current_run()
    if run is None or run.pipeline != spec.name:
        run = RunContext(spec.name, new_run_id())
    run_id = run.run_id
    recorder = recorder_of(run)
    lineage = RunLineage(spec.name, run_id, nominal_at=run.slot)
    with pipeline_run_span(spec.name, run.attempt), lineage, StepSpans() as spans:
        steps = RunSteps(recorder, spec)
        watching = _Several(observer or SilentObserver(), steps, spans)
        recorder.start()
        try:
            if spec.is_fan_out:
                result = FanOut(spec, run_id, logical_run, watching, steps).run()
            else:
                result = _run_one(spec, spec.target, run_id, logical_run, watching, steps)
        except (KeyboardInterrupt, RunCancelled) as exc:
            recorder.finish("cancelled", error=exc if isinstance(exc, FlowError) else "interrupted")
            raise
        except BaseException as exc:
            watching.failed()
            recorder.finish("failed", error=exc)
            if isinstance(exc, FlowError):
                raise exc.at(str(spec.where)) from cause_without_values(exc)
            raise
        try:
            maintain_loaded(spec, result, watching)
        finally:
            recorder.finish("failed" if _failed(result) else "succeeded", result=result)
        return lineage.told(result)


def run_function(name: str, function: Callable[[], Any]) -> Any:
    """Call a bare function that was registered by name: it moves rows itself, and is recorded all the same.

    Raises:
        StepFailed: it raised something that is no error of ours.
    """
    run = current_run()
    if run is None or run.pipeline != name:
        run = RunContext(name, new_run_id())
    recorder = recorder_of(run)
    recorder.start()
    try:
        with pipeline_run_span(name, run.attempt), RunLineage(name, run.run_id, nominal_at=run.slot) as lineage:
            lineage.started()
            between_steps()
            result = lineage.told(function())
    except (KeyboardInterrupt, RunCancelled) as exc:
        recorder.finish("cancelled", error=exc if isinstance(exc, FlowError) else "interrupted")
        raise
    except BaseException as exc:
        recorder.finish("failed", error=exc)
        if isinstance(exc, FlowError) or not isinstance(exc, Exception):
            raise
        raise StepFailed(f"Pipeline '{name}' raised {type(exc).__name__}: {exc}") from exc
    recorder.finish("succeeded", result)
    return result


def in_this_project(spec: PipelineSpec) -> PipelineSpec:
    """The pipeline with what the project's file says for all of them; what a pipeline says itself wins."""
    if spec.engine != "auto":
        return spec
    settings, spark = project_settings(), spark_settings()
    engine = settings.engine
    if engine == "distributed":
        if not spark.remote and (spark.master or "local").startswith("local"):
            raise InvalidConfig(
                'engine = "distributed" needs a cluster, and none is named.',
                where=f"./{PROJECT_FILE}",
                fix='[spark] master = "spark://host:7077" or remote = "sc://host:15002"; or remove engine',
            )
        engine = "spark"
    if engine in ("auto", "datafusion") and not settings.pushdown:
        engine = spark.engine
    return replace(spec, engine=checked_engine(engine), mover=spark.engine)


def _run_one(
    spec: PipelineSpec,
    target: TargetSpec,
    run_id: str,
    logical_run: str | None,
    observer: RunObserver,
    steps: RunSteps,
) -> Any:
    warn_about_keys(spec, target)
    with ExitStack() as held:
        with steps.during(SOURCE):
            places = held.enter_context(opened(spec, target))
            query = source_of(spec, places)
        if not isinstance(query, SourceQuery):
            return query
        with steps.during(load_step(target.table)):
            books = places.books()
            held.enter_context(books.lease(spec.history_name(target)))
            places = held.enter_context(reading_from(places, query, spec))
            result, run = load_target(
                spec, target, places, query, run_id=run_id, logical_run=logical_run, observer=observer
            )
        finish_load(spec, places.target_connection, books, run, result, observer)
        return result


def _failed(result: Any) -> bool:
    return isinstance(result, Mapping) and bool(result.get("errors"))


class _Several:
    """Tells several observers; a broken one is a warning and is not told again."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = list(observers)
        self._running: str | None = None

    def planned(self, headline: str, route: str) -> None:
        self._tell("planned", headline, route)

    def step(self, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        self._running = name if status == "running" else None
        self._tell("step", name, status, detail, duration_ms)

    def failed(self) -> None:
        """The run broke: so did the step that was under way."""
        if self._running is not None:
            self.step(self._running, "failed")

    def progress(self, stage: str, rows: int, total: int | None = None) -> None:
        self._tell("progress", stage, rows, total)

    def resumes_at(self, watermark: str | None) -> None:
        self._tell("resumes_at", watermark)

    def _tell(self, what: str, *arguments: Any) -> None:
        for observer in list(self._observers):
            try:
                getattr(observer, what)(*arguments)
            except Exception as exc:  # watching must never stop the work
                self._observers.remove(observer)
                warnings.warn(f"an observer of the run failed and is left out: {exc!r}", RuntimeWarning, stacklevel=3)
