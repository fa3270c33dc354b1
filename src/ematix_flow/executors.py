"""The documented import path of executors: where claimed pipelines run. They live in `orchestrate/executors/`."""

from __future__ import annotations

from ematix_flow.contracts.orchestration import (
    DispatchHandle,
    DispatchReport,
    DispatchSpec,
    Executor,
    WatchedExecutor,
)
from ematix_flow.errors import DispatchError, NoFreeWorker
from ematix_flow.orchestrate.executors.open import executor_from_url

__all__ = [
    "DispatchError",
    "DispatchHandle",
    "DispatchReport",
    "DispatchSpec",
    "Executor",
    "NoFreeWorker",
    "WatchedExecutor",
    "executor_from_url",
]
