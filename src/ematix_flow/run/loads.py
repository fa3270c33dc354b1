"""One target's load, start to end: open the run in the target, plan, land, settle, close."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ematix_flow.contracts.backend import KeepsBooks, Settles, WritesFrames
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.plans import (
    PATH_OF,
    BatchPlan,
    OpenedRun,
    RunResult,
    SettleReport,
    SourceQuery,
    Stamp,
)
from ematix_flow.contracts.run_context import before_commit, between_steps
from ematix_flow.contracts.runtime import RunObserver
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import FlowError, UnsupportedBackend
from ematix_flow.plan.batch import SourceSide, plan_load
from ematix_flow.plan.words import plan_words, report_words
from ematix_flow.run.in_memory import load_from_memory, with_frame_at_hand
from ematix_flow.run.places import Places, needing_spark
from ematix_flow.watch.openlineage import reading_for_run

if TYPE_CHECKING:
    from ematix_flow.run.sharing import Sharing

log = logging.getLogger(__name__)


def now() -> datetime:
    """The run's one instant, to the microsecond, in UTC."""
    return datetime.now(timezone.utc)


def moment_after(settled: datetime | None) -> datetime:
    """Now, but never before what the target already holds: a clock set back must not file new versions in the past."""
    moment = now()
    return moment if settled is None else max(moment, settled + timedelta(microseconds=1))


def warn_about_keys(spec: PipelineSpec, target: TargetSpec) -> None:
    """One warning per run when the merge keys are not the primary key and nobody said so explicitly."""
    if not (target.is_merge or target.is_versioned):
        return
    keys, reason = target.resolved_keys()
    declared = target.table.primary_key
    if "explicit" not in reason and declared and set(keys) != set(declared):
        warnings.warn(
            f"pipeline '{spec.name}' matches on {keys} ({reason}), not on the primary key {declared}; "
            f"pass keys={keys!r} to silence this warning",
            UserWarning,
            stacklevel=2,
        )


def load_target(
    spec: PipelineSpec,
    target: TargetSpec,
    places: Places,
    query: SourceQuery,
    *,
    run_id: str,
    logical_run: str | None,
    observer: RunObserver,
    sharing: Sharing | None = None,
) -> tuple[RunResult, OpenedRun]:
    """Load one target once. The caller holds the target's lease and closes the run afterwards.

    With `sharing`, rows that go through Spark may come from a reading that other targets share.

    Raises:
        FlowError: nothing was changed in the target, and the run is recorded there as failed.
    """
    books = places.target
    assert isinstance(books, KeepsBooks)
    name = spec.history_name(target)
    began = time.perf_counter()
    between_steps()
    reading_for_run(spec, target, query, places.source_connection.connection, places.target_connection.connection)
    observer.step("plan", "running")
    run = books.open_run(
        name,
        run_id=run_id,
        logical_run=logical_run,
        target=places.table,
        mode=target.mode,
        now=now(),
    )
    reached("opened")
    try:
        if run.applied is not None:
            observer.step("plan", "succeeded", f"logical run {run.logical_run} is already in the target")
            return _replayed(target, run), run
        observer.resumes_at(_mark(target, run))
        stamp = Stamp(run.run_id, moment_after(run.settled_at))
        source = places.source_side(query, target)
        plan = plan_load(spec, target, source, places.target_side(target), stamp=stamp, stored_mark=run.watermark)
        if sharing is None:
            plan = with_frame_at_hand(spec, plan, places.target)
        if plan.ddl.action == "warn":
            for difference in plan.ddl.differences:
                log.warning("%s: schema drift: %s", target.table, difference)
        observer.planned(
            f"{target.mode} → {places.target_connection.connection.name}.{target.table}",
            f"{plan.route.engine} · {plan.route.reason}",
        )
        observer.step("plan", "succeeded", plan_words(plan), (time.perf_counter() - began) * 1000)
        reached("planned")
        report = walk(plan, places, source, run, stamp, observer, sharing=sharing)
        observer.resumes_at(None)
        reached("settled")
    except BaseException as exc:
        _record_failure(books, run, exc)
        raise
    return result_of(plan, run, report), run


def walk(
    plan: BatchPlan,
    places: Places,
    source: SourceSide,
    run: OpenedRun | None,
    stamp: Stamp,
    observer: RunObserver,
    *,
    dry_run: bool = False,
    sharing: Sharing | None = None,
) -> SettleReport:
    """Do what the plan says, on the route it says."""
    if plan.route.engine == "pushdown":
        assert isinstance(places.target, Settles)
        before_commit()
        observer.step("settle", "running")
        began = time.perf_counter()
        report = places.target.settle(plan, run, stamp, None, dry_run=dry_run)
        observer.step("settle", "succeeded", report_words(report, plan), (time.perf_counter() - began) * 1000)
        return report
    if plan.route.engine == "memory":
        assert isinstance(places.target, Settles)
        return load_from_memory(plan, places.target, run, stamp, observer, dry_run=dry_run)
    if not isinstance(places.target, Settles | WritesFrames):
        raise UnsupportedBackend(f"{places.target_connection.connection.kind} cannot be a target.")
    with needing_spark(f"This load goes through Spark ({plan.route.reason})"):
        from ematix_flow.spark.batch import run_on_spark

    kept = sharing.rows_for(plan, source) if sharing is not None else None
    return run_on_spark(plan, places.source, places.target, run, stamp, observer, dry_run=dry_run, kept=kept)


def result_of(plan: BatchPlan, run: OpenedRun, report: SettleReport) -> RunResult:
    """The outcome in the documented fields of the mode."""
    merged, versioned = plan.target.is_merge, plan.target.is_versioned
    return RunResult(
        run_id=run.run_id,
        status="success",
        path=plan.route.path,
        rows_inserted=report.inserted,
        rows_updated=report.updated if merged or versioned else None,
        rows_unchanged=report.unchanged if merged else None,
        rows_closed=report.closed if versioned else None,
        rows_deleted=report.deleted if plan.target.handle_deletes == "hard" else None,
        watermark=(report.watermark or plan.watermark.last_value) if plan.watermark else None,
        replayed=True if report.replayed else None,
        files_left_out=[file.to_dict() for file in report.left_out] or None,
    )


def new_run_id() -> str:
    """A run's own id; its rows carry it in `_batch_id`."""
    return str(uuid4())


def _mark(target: TargetSpec, run: OpenedRun) -> str | None:
    """How far the load has got before; it moves in the transaction of the rows, so a failed one leaves it there."""
    column, mark = run.watermark or (None, None)
    return mark if target.incremental_column is not None and target.incremental_column == column else None


def _replayed(target: TargetSpec, run: OpenedRun) -> RunResult:
    assert run.applied is not None
    metrics: Mapping[str, Any] = run.applied.metrics
    return RunResult(
        run_id=run.run_id,
        status="success",
        path=PATH_OF["pushdown"],
        rows_inserted=0,
        rows_updated=0 if target.is_merge or target.is_versioned else None,
        replayed=True,
        replayed_run_id=run.applied.run_id,
        replayed_rows=metrics.get("rows"),
    )


def _record_failure(books: KeepsBooks, run: OpenedRun, exc: BaseException) -> None:
    """Write the failure down; if that fails too, the first error is the one to show."""
    text = str(exc) if isinstance(exc, FlowError) else f"{type(exc).__name__}: {exc}"
    try:
        books.close_run(run, error=text, now=now())
    except FlowError as second:
        warnings.warn(f"the failure could not be recorded in the target: {second.message}", UserWarning, stacklevel=2)
