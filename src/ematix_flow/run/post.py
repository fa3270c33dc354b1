"""After-load transforms: each in its own transaction, in order, recorded beside the load."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from ematix_flow.backends.catalog import open_backend
from ematix_flow.config.handles import ConnectionHandle
from ematix_flow.config.resolve import ResolvedConnection, resolve
from ematix_flow.contracts.backend import KeepsBooks
from ematix_flow.contracts.plans import OpenedRun, RunResult
from ematix_flow.contracts.run_context import RunContext, between_steps, current_run
from ematix_flow.contracts.runtime import RunObserver
from ematix_flow.declare import registry
from ematix_flow.declare.pipeline import (
    DEFAULT_CONNECTION,
    Pipeline,
    PipelineSpec,
    PostStep,
    TransformRef,
    parameter_count,
)
from ematix_flow.declare.transform import TransformSpec
from ematix_flow.declare.withheld import cause_without_values
from ematix_flow.errors import FlowError, StepFailed, UnknownName, closest, listed
from ematix_flow.run.loads import now
from ematix_flow.run.recorder import RunRecorder
from ematix_flow.run.runlogs.open import current_run_log
from ematix_flow.watch.openlineage import RunLineage
from ematix_flow.watch.traces import pipeline_run_span


@dataclass(frozen=True)
class ParentRun:
    """The load a transform follows, as its second argument."""

    pipeline_name: str
    run_id: str
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_unchanged: int = 0


def finish_load(
    spec: PipelineSpec,
    resolved: ResolvedConnection,
    books: KeepsBooks,
    run: OpenedRun,
    result: RunResult,
    observer: RunObserver,
) -> None:
    """After a load: its transforms, then the run is over. A failed transform fails the run and keeps the load."""
    error: str | None = None
    try:
        if spec.transforms_post:
            run_post_steps(spec, resolved, run, result, observer)
    except FlowError as exc:
        error = exc.message
        raise
    finally:
        books.close_run(run, error=error, now=now())


def run_post_steps(
    spec: PipelineSpec, resolved: ResolvedConnection, run: OpenedRun, result: RunResult, observer: RunObserver
) -> None:
    """Run the steps after a successful load.

    Raises:
        StepFailed: a step failed; the load is kept, the steps after it did not run. Not with
            `continue_on_failure_post`, which goes on.
    """
    parent = ParentRun(
        spec.name, run.run_id, *(int(result.get(f"rows_{n}", 0)) for n in ("inserted", "updated", "unchanged"))
    )
    first = _first_step()
    for index, step in enumerate(spec.transforms_post):
        name = step_name(index, step)
        if index < first:
            observer.step(f"post[{index}]", "skipped", "done by an earlier attempt")
            continue
        between_steps()
        started, began = now(), time.perf_counter()
        observer.step(f"post[{index}]", "running")
        try:
            metrics = _run_step(step, resolved, parent)
        except Exception as exc:
            _record(resolved, run, name, exc, None, started)
            observer.step(f"post[{index}]", "failed", _reason(exc), (time.perf_counter() - began) * 1000)
            if not spec.continue_on_failure_post:
                raise _as_step_failure(name, spec, exc) from exc
            continue
        _record(resolved, run, name, None, metrics, started)
        observer.step(f"post[{index}]", "succeeded", name, (time.perf_counter() - began) * 1000)


def _first_step() -> int:
    """The after-load step that the run begins with: later than 0 when an earlier attempt got further."""
    run = current_run()
    found = re.fullmatch(r"post\[(\d+)\]", run.restart_from or "") if run is not None else None
    return int(found[1]) if found else 0


def step_name(index: int, step: PostStep) -> str:
    """The step's name in the history: `transform[0]:sql`, `transform[1]:ref=NAME`, `transform[2]:FUNC`."""
    if isinstance(step, str):
        return f"transform[{index}]:sql"
    if isinstance(step, TransformRef):
        return f"transform[{index}]:ref={step.name}"
    return f"transform[{index}]:{getattr(step, '__name__', type(step).__name__)}"


def run_transform(name: str) -> RunResult:
    """Run a declared transform on its own.

    Raises:
        UnknownName: (a KeyError) no transform has that name.
    """
    found = registry.current().transform(name)
    if found is None:
        known = [entry.name for entry in registry.current().transforms()]
        raise UnknownName(f"No transform is named '{name}'.", fix=closest(name, known) or f"known: {listed(known)}")
    spec = found.thing
    assert isinstance(spec, TransformSpec)
    run = current_run()
    if run is None or run.pipeline != name:
        run = RunContext(name, str(uuid4()))
    recorder = recorder_of(run)
    recorder.start()
    lineage = RunLineage(name, run.run_id, nominal_at=run.slot, job_type="TRANSFORM")
    try:
        with pipeline_run_span(name, run.attempt), lineage:
            lineage.started()
            between_steps()
            metrics = _run_declared(spec, None, None)
    except BaseException as exc:
        recorder.finish("failed", error=exc)
        raise exc from cause_without_values(exc)
    result = RunResult(status="transform_success", metrics=metrics, run_id=run.run_id)
    recorder.finish("succeeded", result=result)
    return result


def recorder_of(run: RunContext) -> RunRecorder:
    """Who writes a run down where this process writes its runs."""
    return RunRecorder(
        current_run_log(),
        run.pipeline,
        run.run_id,
        attempt=run.attempt,
        extras=run.facts,
        patience_s=run.record_patience_s,
    )


def _run_step(step: PostStep, resolved: ResolvedConnection, parent: ParentRun) -> Any:
    if isinstance(step, str):
        with ConnectionHandle(resolved) as handle:
            handle.execute_in_transaction([step])
        return None
    if isinstance(step, TransformRef):
        return _run_reference(step, resolved, parent)
    with ConnectionHandle(resolved) as handle:
        return _called(step, handle, parent, parameter_count(step, allowed=(1, 2), what="post transform"))


def _run_reference(step: TransformRef, resolved: ResolvedConnection, parent: ParentRun) -> Any:
    found = registry.current().transform(step.name)
    if found is not None:
        assert isinstance(found.thing, TransformSpec)
        return _run_declared(found.thing, resolved, parent)
    pipeline = registry.current().pipeline(step.name)
    if pipeline is None:
        known = [e.name for e in (*registry.current().transforms(), *registry.current().pipelines())]
        raise UnknownName(
            f"No transform and no pipeline is named '{step.name}'.",
            fix=closest(step.name, known) or f"known: {listed(known)}",
        )
    result = pipeline.thing.sync() if isinstance(pipeline.thing, Pipeline) else pipeline.thing()  # type: ignore[operator]
    return dict(result) if isinstance(result, Mapping) else None


def _run_declared(spec: TransformSpec, resolved: ResolvedConnection | None, parent: ParentRun | None) -> Any:
    if spec.target_connection is not None or resolved is None:
        resolved = resolve(spec.target_connection or DEFAULT_CONNECTION, where=str(spec.where))
    with ConnectionHandle(resolved) as handle:
        try:
            return _called(spec.function, handle, parent, spec.parameters)
        except FlowError:
            raise
        except Exception as exc:
            raise StepFailed(
                f"Transform '{spec.name}' raised {type(exc).__name__}: {exc}", where=str(spec.where)
            ) from exc


def _called(function: Any, handle: ConnectionHandle, parent: ParentRun | None, parameters: int) -> Any:
    """Call the function inside one transaction on its connection."""
    with handle.transaction():
        given = function(handle) if parameters == 1 else function(handle, parent)
    return dict(given) if isinstance(given, Mapping) else None


def _record(
    resolved: ResolvedConnection, run: OpenedRun, name: str, exc: Exception | None, metrics: Any, started: datetime
) -> None:
    books = open_backend(resolved.connection)
    if isinstance(books, KeepsBooks):
        books.record_step(run, name, error=None if exc is None else _reason(exc), metrics=metrics, started=started)


def _reason(exc: Exception) -> str:
    return exc.message if isinstance(exc, FlowError) else f"{type(exc).__name__}: {exc}"


def _as_step_failure(name: str, spec: PipelineSpec, exc: Exception) -> FlowError:
    if isinstance(exc, UnknownName):
        return exc.at(str(spec.where))
    return StepFailed(
        f"After-load step {name} of '{spec.name}' failed: {_reason(exc)}",
        where=str(spec.where),
        fix="the load itself is kept; mend the step and run it again, or pass continue_on_failure_post=True",
    )
