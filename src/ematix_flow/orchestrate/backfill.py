"""`flow backfill`: the slots of a stretch of time, each run once; stopped and called again it goes on where it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import uuid4

from ematix_flow.contracts.orchestration import RunLog, Slot
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.errors import InvalidConfig
from ematix_flow.orchestrate.heartbeat import Heartbeat
from ematix_flow.orchestrate.identity import worker_name
from ematix_flow.orchestrate.outcomes import Outcome
from ematix_flow.orchestrate.recovery import give_back, take
from ematix_flow.orchestrate.work import Lease, Work, slot_key, utc_now
from ematix_flow.plan.due import backfill_slots
from ematix_flow.run.registered import Orchestrated, orchestrated

_LEASE_S = 60.0


@dataclass(frozen=True)
class BackfillPlan:
    """What a backfill will do.

    Attributes:
        to_run: Slots without a success, oldest first.
        done: Slots that have been run already, by their schedule or by an earlier backfill.
        until: Where it really ends, when it was asked for up to a time that has not come yet.
        again: What makes its logical runs others than those that targets hold already; None when those count.
    """

    name: str
    to_run: tuple[Slot, ...]
    done: int
    until: datetime | None = None
    again: str | None = None


def plan_backfill(
    entry: Orchestrated,
    store: RunLog,
    start: datetime,
    end: datetime,
    *,
    again: bool = False,
    now: datetime | None = None,
) -> BackfillPlan:
    """The slots with `start <= t < end` whose time has come.

    With `again` those that have been run are not left out, and targets apply all of them once more.

    Raises:
        InvalidConfig: The pipeline has no schedule, the end is not later than the start, or the start has not come yet;
            or it is to run again and appends.
    """
    now = now or utc_now()
    if entry.due is None:
        raise InvalidConfig(f"'{entry.name}' has no schedule, so there are no slots to fill.")
    if end <= start:
        raise InvalidConfig("The end of a backfill must be later than its start.")
    if start > now:
        raise InvalidConfig(
            f"A backfill fills the past, and {start:%Y-%m-%d %H:%M} UTC has not come yet.",
            fix="the schedule runs what is to come",
        )
    if again:
        _refuse_appends(entry)
    until = now if end > now else None
    end = min(end, now)
    times = backfill_slots(entry.due.schedule, start, end)
    known = {slot.at: slot for slot in store.slots(entry.name, since=start, until=end, limit=len(times) + 1000)}
    done = [at for at in times if at in known and known[at].status == "succeeded"]
    name = f"backfill-{uuid4().hex[:8]}"
    # A time that the schedule has seen stays the schedule's: its claim keeps a worker that is at it apart from us.
    wanted = [
        known[at] if at in known else Slot(entry.name, at, backfill=name) for at in times if again or at not in done
    ]
    return BackfillPlan(entry.name, tuple(wanted), 0 if again else len(done), until, again=name if again else None)


def _refuse_appends(entry: Orchestrated) -> None:
    """Rows that are appended once more are there twice."""
    jobs = [one for one in orchestrated() if one.name in entry.jobs] if entry.jobs else [entry]
    for job in jobs:
        if isinstance(job.thing, Pipeline) and any(target.mode == "append" for target in job.thing.spec.targets):
            raise InvalidConfig(
                f"'{job.name}' appends: run again, its rows of those times would be there twice.",
                fix='a pipeline with mode="merge", "truncate" or "scd2" can be run again; without --again only times '
                "that are missing are run",
            )


def run_backfill(
    plan: BackfillPlan,
    entry: Orchestrated,
    work: Work,
    *,
    parallel: int = 1,
    stop: threading.Event,
    told: Callable[[Slot, Outcome], None],
) -> None:
    """Run the slots. Bare functions run side by side.

    Loads into one table take turns, since a table has one writer, and so do runs of a workflow, whose jobs run one at a
    time wherever they are asked for.
    """
    work.store.add_slots(plan.to_run)
    turn = threading.Lock()

    def one(slot: Slot) -> None:
        if stop.is_set():
            return
        takes_turns = isinstance(entry.thing, Pipeline) or bool(entry.jobs) or slot.backfill is None
        with turn if takes_turns else nullcontext():
            told(slot, _run_one(entry, work, slot, stop, plan.again))

    with ThreadPoolExecutor(max_workers=max(1, parallel), thread_name_prefix="backfill") as pool:
        list(pool.map(one, plan.to_run))


def _run_one(entry: Orchestrated, work: Work, slot: Slot, stop: threading.Event, again: str | None) -> Outcome:
    """One slot with its retries, waited for in place."""
    store = work.store
    claimed = f"{entry.name}@{slot_key(slot.at)}" if slot.backfill else entry.name
    token, holder = take(store, claimed, worker_name(), _LEASE_S)
    if token is None:
        return Outcome(entry.name, "unstarted", reason=holder)
    try:
        lease = Lease(token, _LEASE_S, _LEASE_S / 3)
        is_first = True
        while True:
            stored = next(iter(store.slots(entry.name, since=slot.at, until=slot.at)), slot)
            ready = replace(stored, status="pending", eligible_at=None, reason=None)
            if is_first:  # the time that retries may take begins now
                ready = replace(ready, first_failed_at=None)
            if is_first and again is not None:  # what became of it before has no say in it
                ready = Slot(slot.pipeline, slot.at, backfill=slot.backfill)
            is_first = False
            if stored.status != "pending" or stored.attempt != ready.attempt:
                # Failed, superseded, or left by a process that is gone: its claim is ours now.
                store.move_slot(ready, expected=stored.status, expected_attempt=stored.attempt, token=token)
            outcome = work.run_slot(entry, ready, lease, again=again)
            if outcome.status != "failed" or outcome.retry_at is None:
                return outcome
            wait_s = max(0.0, (outcome.retry_at - work.now()).total_seconds())
            with Heartbeat(store, token, lease_s=lease.lease_s, every_s=lease.heartbeat_s):
                if stop.wait(wait_s):
                    return outcome
    finally:
        give_back(store, token)
