"""Pipelines by name: the documented import path. Everything here lives in `ematix_flow.run`."""

from __future__ import annotations

from ematix_flow.declare.schedule import RetryPolicy
from ematix_flow.run.post import run_transform
from ematix_flow.run.registered import (
    RegistryEntry,
    ScheduledPipeline,
    dry_run,
    get_pipeline,
    list_entries,
    list_feature_views,
    list_pipelines,
    list_transforms,
    preview,
    register,
    run_pipeline,
    sync,
    validate,
)

__all__ = [
    "RegistryEntry",
    "RetryPolicy",
    "ScheduledPipeline",
    "dry_run",
    "get_pipeline",
    "list_entries",
    "list_feature_views",
    "list_pipelines",
    "list_transforms",
    "preview",
    "register",
    "run_pipeline",
    "run_transform",
    "sync",
    "validate",
]
