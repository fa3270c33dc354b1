"""The scheduler from code: the documented import path. They live in `ematix_flow.orchestrate`."""

from __future__ import annotations

from ematix_flow.contracts.orchestration import DispatchFailedEvent
from ematix_flow.orchestrate.scheduler import Scheduler, SchedulerSettings, run_scheduler

__all__ = ["DispatchFailedEvent", "Scheduler", "SchedulerSettings", "run_scheduler"]
