"""The Spark route of a batch load: read → normalize → fit → stage → settle. DataFrame API only."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import Column, DataFrame, functions as F

from ematix_flow.backends.folder import refuse_patterns
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.contracts.backend import Backend, KeepsBooks, RunsOnSpark, Settles, SpeaksSql, WritesFrames
from ematix_flow.contracts.left_out import LeftOutFile, left_out_by, left_out_words
from ematix_flow.contracts.plans import BatchPlan, OpenedRun, Reading, SettleReport, SourceQuery, Stamp, WatermarkRule
from ematix_flow.contracts.run_context import before_commit
from ematix_flow.contracts.runtime import RunObserver
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.declare.pipeline import Mover
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import FlowError, MissingSourceColumn, RouteImpossible, closest, listed
from ematix_flow.plan.left_out import require_all_rows
from ematix_flow.plan.physical import stamps
from ematix_flow.plan.words import report_words
from ematix_flow.spark import failures
from ematix_flow.spark.expressions import apply_step, column_of, compile_column
from ematix_flow.spark.fitting import failing, fit_column, or_required, typed_column
from ematix_flow.spark.kept_rows import KeptRows, source_rows
from ematix_flow.spark.landing import land_and_settle, staging_run
from ematix_flow.spark.reach import is_this_machine, shown
from ematix_flow.spark.session import fit_to_job, open_session, use_session
from ematix_flow.spark.types import to_spark_type
from ematix_flow.spark.user_sql import markers_in_spark, step_in_spark

log = logging.getLogger(__name__)

_SMALL_JOB_BYTES = 32 * 1024 * 1024


def run_on_spark(
    plan: BatchPlan,
    source: Backend,
    target: Settles | WritesFrames,
    run: OpenedRun | None,
    stamp: Stamp,
    observer: RunObserver,
    *,
    dry_run: bool = False,
    kept: KeptRows | None = None,
) -> SettleReport:
    """Walk the plan on Spark. One transaction at the end makes the rows visible, or none of it happened.

    `kept` holds the rows of this and of other targets; the source is then read only if nobody has done so yet.
    """
    with explained(), ExitStack() as reading:
        engine: Mover = "native" if plan.route.engine == "native" else "spark"
        observer.step(engine, "running")
        began = time.perf_counter()
        needs = _needs(source, target, *([kept] if kept else []))
        given = plan.reading.query.frame if plan.reading is not None else None
        if isinstance(given, DataFrame):  # it lives in a session, and only there
            spark = use_session(given.sparkSession, needs)
        else:
            size = read_bytes(plan, source, target)
            settings = replace(job_settings(size, target), engine=engine)
            if settings.engine == "native" and _holds_user_sql(plan, source):
                log.warning(
                    "%s: SQL of yours runs on the native engine, which may differ from Spark (docs/engines.md)",
                    plan.pipeline,
                )
            refuse_files_out_of_reach(settings, source, target)
            if settings.engine == "native":
                refuse_patterns(plan, source, target)
            spark = open_session(needs, settings)
            fit_to_job(spark, size)
        observer.step(engine, "succeeded", "", (time.perf_counter() - began) * 1000)
        if kept is not None:
            frame, plan = kept.share(spark, source, plan, observer)
            left_out = kept.left_out
        else:
            assert plan.reading is not None
            frame = reading.enter_context(source_rows(spark, source, plan.reading))
            left_out = left_out_by(source)
        shaped = shape(frame, plan)
        if left_out:
            require_all_rows(plan, left_out)
            _tell_left_out(left_out, target, run, observer)
        if isinstance(target, Settles):
            staged_as = staging_run(plan, run)
            watched = _watched(observer, "stage", lambda: target.staged_rows(staged_as))
            report = land_and_settle(
                shaped, plan, target, run, stamp, observer, dry_run=dry_run, staging=watched, staged_as=staged_as
            )
        else:
            report = write_rows(shaped, plan, target, run, stamp, observer, dry_run)
        return replace(report, left_out=left_out) if left_out else report


def _tell_left_out(
    files: tuple[LeftOutFile, ...], target: KeepsBooks, run: OpenedRun | None, observer: RunObserver
) -> None:
    """Write into the target's books which files are left out, before any row of the others is there."""
    if run is not None:
        metrics = {"files_left_out": [file.to_dict() for file in files]}
        target.record_step(run, "quarantine", error=None, metrics=metrics, started=datetime.now(timezone.utc))
    observer.step("quarantine", "skipped", left_out_words(files))


def write_rows(
    shaped: DataFrame,
    plan: BatchPlan,
    target: WritesFrames,
    run: OpenedRun | None,
    stamp: Stamp,
    observer: RunObserver,
    dry_run: bool,
) -> SettleReport:
    """Hand shaped rows to a target that takes DataFrames."""
    observer.step("write", "running")
    began = time.perf_counter()
    values = {"_loaded_at": F.lit(stamp.now).cast("timestamp"), "_batch_id": F.lit(stamp.run_id)}
    for column in stamps(plan.target):
        shaped = shaped.withColumn(column.name, values[column.name])
    before_commit()
    report = target.write(shaped, plan, run, stamp, dry_run=dry_run)
    observer.step("write", "succeeded", report_words(report, plan), (time.perf_counter() - began) * 1000)
    return report


def shape(frame: DataFrame, plan: BatchPlan) -> DataFrame:
    """The source's rows in the declared columns and types: normalized, stepped, fitted, newer than the mark."""
    reading = plan.reading
    assert reading is not None
    _require_columns(frame, plan, reading)
    types = {field.name: field.dataType for field in frame.schema.fields}
    if reading.steps or any(reading.pending.values()):
        result = _normalized(frame, reading, types)
        types = {field.name: field.dataType for field in result.schema.fields}
        given = {column.name: column.name for column in plan.columns}
    else:
        result, given = frame, {c.name: reading.renamed.get(c.name, c.name) for c in plan.columns}
    fitted = [_fitted(column_of(given[c.name]), types[given[c.name]], c).alias(c.name) for c in plan.columns]
    result = result.select(*fitted)
    if reading.watermark_filter is not None and reading.watermark_filter.last_value is not None:
        result = result.where(_newer(reading.watermark_filter))
    return result


def _normalized(frame: DataFrame, reading: Reading, types: Mapping[str, Any]) -> DataFrame:
    """The rows under their own names, after their markers and steps."""
    normalized = []
    for column in reading.columns:
        name = reading.renamed.get(column.name, column.name)
        pending = reading.pending.get(column.name, ())
        if not pending and not reading.steps:
            normalized.append(column_of(name).alias(column.name))
            continue
        if name not in types:
            raw, kind = F.lit(None), to_spark_type(column.type)  # derived: its first marker brings the value
        else:
            raw, kind = typed_column(column_of(name), types[name], reading.source_types.get(name), name)
        if pending:
            pending = markers_in_spark(pending, reading.dialect, frame, kind, name=column.name)
            raw = compile_column(pending, raw, kind, name=column.name)
        normalized.append(raw.alias(column.name))
    result = frame.select(*normalized)
    for step in reading.steps:
        result = apply_step(result, step_in_spark(step, reading.dialect, result))
    return result


def _fitted(column: Column, kind: Any, spec: ColumnSpec) -> Column:
    fitted = fit_column(column, kind, spec.type, spec.name)
    return fitted if spec.nullable else or_required(fitted, spec.type, failing(spec.name, "NOT NULL"))


def _newer(rule: WatermarkRule) -> Column:
    return column_of(rule.column) > F.lit(rule.last_value).cast(to_spark_type(rule.type))


def _require_columns(frame: DataFrame, plan: BatchPlan, reading: Reading) -> None:
    delivered = frame.schema.names
    for column in reading.columns:
        name = reading.renamed.get(column.name, column.name)
        derived = reading.pending.get(column.name, ())[:1]
        if name not in delivered and not (derived and derived[0].kind == "derive"):
            raise MissingSourceColumn(
                f"The source does not deliver '{name}', which {plan.target.table} declares.",
                fix=closest(name, delivered) or f"it delivers {listed(delivered)}; rename with AS or column_map=",
            )


def job_settings(size: int | None, target: Settles | WritesFrames) -> SparkSettings:
    """The project's settings, and a quick start for a command whose one job is small."""
    settings = spark_settings()
    if settings.short_job is not None or not settings.is_only_job or isinstance(target, RunsOnSpark):
        return settings
    return replace(settings, short_job=size is not None and size < _SMALL_JOB_BYTES)


def read_bytes(plan: BatchPlan, source: Backend, target: Settles | WritesFrames) -> int | None:
    """About how much a load reads: its source, and what is stored already where Spark must compare with it."""
    reading = plan.reading
    if reading is None or reading.query.frame is not None:
        return None
    size = source.estimated_bytes(reading.query, reading.dialect)
    if size is None or plan.changes is None or not isinstance(target, Backend):
        return size
    return size + (target.estimated_bytes(SourceQuery(table=plan.table)) or 0)


def _holds_user_sql(plan: BatchPlan, source: Backend) -> bool:
    """Whether the user's own Spark SQL is among what is left for the engine."""
    reading = plan.reading
    if reading is None:
        return False
    markers = (marker for chain in reading.pending.values() for marker in chain)
    over_files = (
        reading.query.sql is not None and not isinstance(source, SpeaksSql) and " " in reading.query.sql.strip()
    )
    own_steps = any(step.is_user_sql for step in reading.steps)
    return over_files or own_steps or any(marker.kind in ("sql", "derive") for marker in markers)


def refuse_files_out_of_reach(settings: SparkSettings, *backends: Any) -> None:
    """A server on another machine cannot see files of this one, nor the spool beside a database that is a file."""
    for backend in backends:
        if backend.is_on_this_machine:
            require_this_machine(settings, f"'{backend.connection.name}' ({backend.connection.kind}) is")


def require_this_machine(settings: SparkSettings, what: str) -> None:
    """Refuse a server on another machine for what is on the disk of this one.

    Raises:
        RouteImpossible: Spark would run there.
    """
    if settings.engine == "native" or not settings.remote or is_this_machine(settings.remote):
        return
    raise RouteImpossible(
        f"{what} on the disk of this machine, which the Spark Connect server at {shown(settings.remote)} cannot see.",
        fix="run it where the files are: without a remote, or with engine='native'",
    )


def _needs(*backends: Any) -> SessionNeeds:
    needs = SessionNeeds()
    for backend in backends:
        needs = needs | backend.needs
    return needs


@contextmanager
def explained() -> Iterator[None]:
    """Spark's errors as ours; everything else passes."""
    try:
        yield
    except FlowError:
        raise
    except Exception as exc:
        found = failures.explain(exc)
        if found is None:
            raise
        found.message = scrub(found.message)
        raise found from exc


@contextmanager
def _watched(observer: RunObserver, stage: str, rows: Callable[[], int | None]) -> Iterator[None]:
    """Tell the observer once a second how many rows have moved, while the block runs."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(1.0):
            try:
                moved = rows()
            except FlowError:
                continue  # a display is not worth a failed load
            if moved is not None:
                observer.progress(stage, moved)

    watcher = threading.Thread(target=watch, name="ematix-flow progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join(timeout=5)
