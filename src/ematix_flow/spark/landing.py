"""Land, then settle: the last two steps of a load, whoever brings the rows. No Spark is needed here."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from uuid import uuid4

from ematix_flow.contracts.backend import Settles
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.plans import BatchPlan, Landed, OpenedRun, SettleReport, Stamp
from ematix_flow.contracts.run_context import before_commit
from ematix_flow.contracts.runtime import RunObserver
from ematix_flow.errors import counted
from ematix_flow.plan.words import report_words


def staging_run(plan: BatchPlan, run: OpenedRun | None) -> OpenedRun:
    """The run under whose name rows are staged; a dry run, which has none, gets one for the purpose."""
    return run or OpenedRun(plan.pipeline, str(uuid4()), "dry-run", 0, None, False, None)


def land_and_settle(
    rows: Any,
    plan: BatchPlan,
    target: Settles,
    run: OpenedRun | None,
    stamp: Stamp,
    observer: RunObserver,
    *,
    dry_run: bool,
    staging: AbstractContextManager[None] | None = None,
    staged_as: OpenedRun,
    before_settling: Callable[[], None] = lambda: None,
) -> SettleReport:
    """Stage the rows beside the target, then apply the plan in one transaction; what was staged is removed.

    Args:
        rows: A DataFrame, or what answers as one.
        staging: Entered while rows are staged, to watch or to explain.
        staged_as: The run under whose name they are staged.
        before_settling: Called when the rows are there; whatever it raises, they go again.
    """
    observer.step("stage", "running")
    began = time.perf_counter()
    with staging or nullcontext():
        landed: Landed = target.stage(rows, plan, staged_as)
    reached("staged")
    try:
        said = "" if landed.rows is None else counted(landed.rows, "row")
        observer.step("stage", "succeeded", said, (time.perf_counter() - began) * 1000)
        before_settling()
        before_commit()
        observer.step("settle", "running")
        began = time.perf_counter()
        report = target.settle(plan, run, stamp, landed, dry_run=dry_run)
    finally:
        target.discard(landed)
    observer.step("settle", "succeeded", report_words(report, plan), (time.perf_counter() - began) * 1000)
    return report
