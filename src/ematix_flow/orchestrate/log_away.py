"""A run log that does not take what is written to it: what can still be read of it, in one that lasts for this call."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from ematix_flow.contracts.orchestration import RunLog, Slot
from ematix_flow.declare.redaction import scrub
from ematix_flow.orchestrate.identity import is_dead
from ematix_flow.run.registered import Orchestrated
from ematix_flow.run.runlogs.memory import InMemoryRunLog

log = logging.getLogger(__name__)


def in_place_of(
    store: RunLog,
    entries: Iterable[Orchestrated],
    why: Exception,
    *,
    now: datetime,
    interval_s: float,
    worker_id: str,
) -> InMemoryRunLog:
    """Warn of what nobody promises any more, and make a run log in memory that knows what the other one still says.

    Only times of this very interval are in it. What waits from before would be run again in every call, for as long as
    nobody can write down that it was.
    """
    log.warning(
        "the run log does not answer (%s): what is due now runs without it, so nothing of that is remembered, and "
        "another call in the same interval, or on another host, may run the same pipelines again (targets apply a slot "
        "once); retries, requests and what has waited from before are left until it answers",
        scrub(" ".join(str(why).split())),
    )
    memory = InMemoryRunLog()
    try:
        _take_over(memory, store, entries, now - timedelta(seconds=interval_s), worker_id)
    except Exception as exc:  # it says nothing more, so nothing more is known
        log.debug("nothing can be read either: %s", scrub(str(exc)))
    return memory


def _take_over(
    memory: InMemoryRunLog, store: RunLog, entries: Iterable[Orchestrated], since: datetime, worker_id: str
) -> None:
    """What keeps a pipeline from running: a person's wish, its failures, its upstreams, and others who are at it."""
    memory.take_over(store.last_runs().items(), store.attempts().items())
    for name, pause in store.paused().items():
        memory.set_paused(name, True, by=pause.by, reason=pause.reason)
    clock = store.clock()
    for claim in store.claims():
        if claim.worker_id != worker_id and claim.expires_at > clock and not is_dead(claim.worker_id):
            memory.claim(claim.pipeline, claim.worker_id, (claim.expires_at - clock).total_seconds())
    latest = store.last_slots()
    known = {(slot.pipeline, slot.at): slot for slot in store.open_slots()}
    for entry in entries:
        last = latest.get(entry.name)
        if last is not None and last > since:
            memory.add_slots([known.get((entry.name, last)) or Slot(entry.name, last, status="succeeded")])
        elif entry.due is None and entry.triggered_by is not None:
            memory.add_slots([Slot(entry.name, since, status="succeeded")])  # only later triggers are news
