"""The scheduler from code: the documented import path. Everything here lives in `ematix_flow.orchestrate`."""

from __future__ import annotations

from ematix_flow.orchestrate.scheduler import Scheduler, SchedulerSettings, run_scheduler

__all__ = ["Scheduler", "SchedulerSettings", "run_scheduler"]
