"""Looking before leaping: `preview` plans, `dry_run` runs and rolls back, `validate` asks the source."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ematix_flow.backends.folder import refuse_patterns
from ematix_flow.contracts.backend import Backend, KeepsBooks, SpeaksSql
from ematix_flow.contracts.plans import BatchPlan, SourceQuery, Stamp
from ematix_flow.contracts.runtime import SilentObserver
from ematix_flow.contracts.split_reads import SplitsOnRequest
from ematix_flow.declare.pipeline import PipelineSpec, PostStep, TransformRef
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import FlowError
from ematix_flow.plan.batch import SourceSide, describable, plan_load
from ematix_flow.plan.physical import physical_columns, physical_primary_key
from ematix_flow.run.in_memory import with_frame_at_hand
from ematix_flow.run.loads import new_run_id, now, walk
from ematix_flow.run.places import Places, connection_info, opened, reading_from
from ematix_flow.run.preview_result import PreviewResult, TargetPlan, TransformPlan, ValidateResult
from ematix_flow.run.runner import in_this_project
from ematix_flow.run.source_rows import source_of


def preview(spec: PipelineSpec) -> PreviewResult:
    """What a run would do. The function gets a placeholder; a server that cannot be reached only adds a note."""
    return _looked_at(in_this_project(spec), dry=False)


def dry_run(spec: PipelineSpec) -> PreviewResult:
    """Run every target for real, count, and roll back; leaves no trace, and reports errors instead of raising."""
    return _looked_at(in_this_project(spec), dry=True)


def validate(spec: PipelineSpec) -> ValidateResult:
    """Ask the source to explain its SQL, the target its SQL steps; compare columns and types with the declaration."""
    errors: list[str] = []
    notes: list[str] = []
    sql: str | None = None
    spec = in_this_project(spec)
    for target in spec.targets:
        try:
            with ExitStack() as stack:
                places = stack.enter_context(opened(spec, target))
                query = source_of(spec, places, preview=True)
                if not isinstance(query, SourceQuery):
                    notes.append("the function returns its own result; there is nothing to validate")
                    continue
                sql = query.text
                places = stack.enter_context(reading_from(places, query, spec))
                source, sink = places.source, places.target
                if query.sql is not None and isinstance(source, SpeaksSql):
                    source.explain(describable(query, target, source.dialect))
                plan = _plan(spec, target, places, query)
                notes += plan.ddl.differences
                errors += _unfit(plan, places.source_side(query, target))
                for step in spec.transforms_post:
                    if isinstance(step, str):
                        errors += _explain_step(sink, step)
        except FlowError as exc:
            errors.append(f"{target.table}: {scrub(exc.message)}" if spec.is_fan_out else scrub(exc.message))
    connection = spec.target.connection
    return ValidateResult(
        pipeline_name=spec.name,
        ok=not errors,
        source_sql=sql,
        errors=tuple(errors),
        target_connection_name=connection if isinstance(connection, str) else connection.name,
        notes=tuple(notes),
    )


def _explain_step(backend: Backend, sql: str) -> list[str]:
    """SQL after-load steps: what EXPLAIN can look at is looked at; ANALYZE, VACUUM and DDL are taken as they are."""
    first = sql.lstrip().split(None, 1)[0].upper() if sql.strip() else ""
    if first not in ("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "WITH") or not isinstance(backend, SpeaksSql):
        return []
    try:
        backend.explain(sql)
    except FlowError as exc:
        return [f"transforms_post: {scrub(exc.message)}"]
    return []


def _unfit(plan: BatchPlan, source: SourceSide) -> list[str]:
    """Source columns whose type can never become the declared one."""
    if source.shapes is None:
        return []
    found = []
    types = {shape.name: shape for shape in source.shapes}
    never = {("bytes", "date"), ("bytes", "timestamp"), ("bytes", "timestamp_tz"), ("boolean", "date")}
    for column in plan.columns:
        shape = types.get(plan.target.column_map.get(column.name, column.name))
        if shape is None or shape.type is None or column.normalizers:
            continue
        if (shape.type.kind, column.type.kind) in never:
            found.append(f"column '{column.name}' is {shape.native} in the source and declared {column.type}")
    return found


def _looked_at(spec: PipelineSpec, *, dry: bool) -> PreviewResult:
    plans: list[TargetPlan] = []
    notes: list[str] = []
    sql: str | None = None
    source_info: Mapping[str, Any] | None = None
    source_name: str | None = None
    for target in spec.targets:
        try:
            with ExitStack() as stack:
                places = stack.enter_context(opened(spec, target))
                source_name = places.source_name
                source_info = connection_info(places.source_connection)
                query = source_of(spec, places, preview=not dry)
                if not isinstance(query, SourceQuery):
                    notes.append("the function returns its own result; nothing is loaded")
                    continue
                sql = query.text
                places = stack.enter_context(reading_from(places, query, spec))
                plans.append(_target_plan(spec, target, places, query, notes, dry=dry))
        except FlowError as exc:
            if not dry:
                raise
            plans.append(_declared_only(spec, target, error=scrub(exc.message)))
    return PreviewResult(
        pipeline_name=spec.name,
        schedule=spec.schedule,
        mode=None if spec.is_fan_out and len({t.mode for t in spec.targets}) > 1 else spec.target.mode,
        source_connection_name=source_name,
        source_connection_info=source_info,
        source_sql=sql,
        targets=tuple(plans),
        is_dry_run=dry,
        notes=tuple(notes),
        transforms_post=tuple(_transform_plan(step) for step in spec.transforms_post),
    )


def _target_plan(
    spec: PipelineSpec, target: TargetSpec, places: Places, query: SourceQuery, notes: list[str], *, dry: bool
) -> TargetPlan:
    plan = _plan(spec, target, places, query, notes=None if dry else notes)
    shown = _shown(plan, target, places)
    if not dry:
        return shown
    try:
        stamp = Stamp(new_run_id(), now())
        report = walk(plan, places, places.source_side(query, target), None, stamp, SilentObserver(), dry_run=True)
    except FlowError as exc:
        return replace(shown, dry_run_error=scrub(exc.message))
    return replace(shown, dry_run_rows_affected=report.inserted + report.updated + report.closed + report.deleted)


def _plan(
    spec: PipelineSpec, target: TargetSpec, places: Places, query: SourceQuery, *, notes: list[str] | None = None
) -> BatchPlan:
    """The plan of a run that would start now. With `notes`, what cannot be reached is noted instead of raised."""
    stamp = Stamp(new_run_id(), now())
    try:
        source = places.source_side(query, target)
    except FlowError as exc:
        if notes is None:
            raise
        notes.append(f"source '{places.source_name}': {scrub(exc.message)}")
        source = SourceSide(query)
    mark = None
    try:
        sink = places.target_side(target)
        if target.incremental_column is not None and isinstance(places.target, KeepsBooks):
            mark = places.target.peek(spec.history_name(target))
    except FlowError as exc:
        if notes is None:
            raise
        notes.append(f"target '{places.target_connection.connection.name}': {scrub(exc.message)}")
        sink = places.target_side(target, describe=False)
    plan = plan_load(spec, target, source, sink, stamp=stamp, stored_mark=mark)
    plan = plan if spec.is_fan_out else with_frame_at_hand(spec, plan, places.target)
    refuse_patterns(plan, places.source, places.target)
    return plan


def _shown(plan: BatchPlan, target: TargetSpec, places: Places) -> TargetPlan:
    resolved = places.target_connection
    primary_key = physical_primary_key(target)
    statements = [statement.sql for statement in plan.ddl.statements]
    if plan.landing_sql is not None:
        statements.append(f"-- landed rows\n{plan.landing_sql}")
    elif plan.reading is not None:
        reader = {"memory": "this process", "native": "the native engine"}.get(plan.route.engine, "Spark")
        if plan.reading.parallel_reads is not None and isinstance(places.source, SplitsOnRequest):
            reader += f", {places.source.parts_in_words(plan.reading)}"
        statements.append(f"-- landed rows, read by {reader}\n{plan.reading.query.text}")
    if plan.lane.kind != "insert":
        statements.append(f"-- fast lane: {plan.lane.reason}; only if that cannot be done:")
    elif plan.lane.reason:
        statements.append(f"-- no fast lane: {plan.lane.reason}")
    statements += [statement.sql for statement in plan.statements]
    return TargetPlan(
        schema_qualified_name=str(target.table),
        mode=target.mode,
        path=plan.route.path,
        engine=plan.route.engine,
        path_reason=plan.route.reason,
        augmented_columns=tuple(
            {**column.to_dict(), "primary_key": column.name in primary_key} for column in physical_columns(target)
        ),
        declared_columns=target.table.column_names,
        merge_keys=plan.keys,
        merge_keys_reason=plan.keys_reason or None,
        compare_columns=plan.compare_columns,
        compare_columns_reason=plan.compare_reason or None,
        target_connection_name=resolved.connection.name,
        target_connection_info=connection_info(resolved),
        plan_sql=tuple(statements),
        plan_sql_label="statements in one transaction" if plan.statements else "written by Spark",
    )


def _declared_only(spec: PipelineSpec, target: TargetSpec, *, error: str) -> TargetPlan:
    connection = target.connection
    return TargetPlan(
        schema_qualified_name=str(target.table),
        mode=target.mode,
        declared_columns=target.table.column_names,
        target_connection_name=connection if isinstance(connection, str) else connection.name,
        dry_run_error=error,
    )


def _transform_plan(step: PostStep) -> TransformPlan:
    if isinstance(step, str):
        return TransformPlan(kind="sql", summary=" ".join(step.split()))
    if isinstance(step, TransformRef):
        return TransformPlan(kind="transform_ref", summary=step.name)
    return TransformPlan(kind="callable", summary=getattr(step, "__name__", repr(step)))
