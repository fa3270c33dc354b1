"""Pipelines by name: the documented import path. Everything here lives in `ematix_flow.run` and `orchestrate`."""

from __future__ import annotations

from ematix_flow.contracts.orchestration import AttemptState
from ematix_flow.declare.dependencies import check_graph
from ematix_flow.declare.schedule import RetryPolicy
from ematix_flow.orchestrate.outcomes import FailedEvent, FiredEvent, RunDueResult, SkippedEvent
from ematix_flow.orchestrate.run_due import run_due_with_dag, run_due_with_dag_detailed
from ematix_flow.orchestrate.status import status_snapshot
from ematix_flow.plan.cron import is_due, matched_fire_time
from ematix_flow.run.post import run_transform
from ematix_flow.run.registered import (
    RegistryEntry,
    ScheduledPipeline,
    depends_on_of,
    dry_run,
    forecast_next_run,
    get_pipeline,
    list_entries,
    list_feature_views,
    list_pipelines,
    list_transforms,
    order_for_run_due,
    preview,
    register,
    retry_policy_of,
    run_pipeline,
    sync,
    upstream_freshness_secs_of,
    validate,
)
from ematix_flow.run.runlogs.sqlite import SqliteRunLog as RunLog

__all__ = [
    "AttemptState",
    "FailedEvent",
    "FiredEvent",
    "RegistryEntry",
    "RetryPolicy",
    "RunDueResult",
    "RunLog",
    "ScheduledPipeline",
    "SkippedEvent",
    "check_graph",
    "depends_on_of",
    "dry_run",
    "forecast_next_run",
    "get_pipeline",
    "is_due",
    "list_entries",
    "list_feature_views",
    "list_pipelines",
    "list_transforms",
    "matched_fire_time",
    "order_for_run_due",
    "preview",
    "register",
    "retry_policy_of",
    "run_due_with_dag",
    "run_due_with_dag_detailed",
    "run_pipeline",
    "run_transform",
    "status_snapshot",
    "sync",
    "upstream_freshness_secs_of",
    "validate",
]
