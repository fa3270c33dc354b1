"""The run history: records of runs, and how a run hears that it should pause."""

from __future__ import annotations

from ematix_flow.contracts.runtime import RunKind, RunRecord, RunStatus
from ematix_flow.run.runlogs.history import InMemoryRunHistory, PauseChecker, RunHistoryStore

__all__ = ["InMemoryRunHistory", "PauseChecker", "RunHistoryStore", "RunKind", "RunRecord", "RunStatus"]
