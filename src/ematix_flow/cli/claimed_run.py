"""`flow run --claim-token`: what a worker does with a pipeline that a scheduler claimed for it."""

from __future__ import annotations

import os
import signal
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ematix_flow.cli.declared import declared_entry, prints_on_stderr
from ematix_flow.cli.run_due import claimable
from ematix_flow.cli.spark_options import spark_place
from ematix_flow.cli.watch_options import watching
from ematix_flow.declare.instants import time_of
from ematix_flow.errors import InvalidConfig
from ematix_flow.orchestrate.identity import worker_name
from ematix_flow.orchestrate.outcomes import Outcome, error_words
from ematix_flow.orchestrate.recovery import give_back
from ematix_flow.orchestrate.scheduler import REQUEST_VARIABLE, SLOT_VARIABLE
from ematix_flow.orchestrate.work import Lease, Work
from ematix_flow.run.registered import Orchestrated
from ematix_flow.run.runlogs.open import run_log_url
from ematix_flow.run.runlogs.urls import from_url
from ematix_flow.watch.run_output import is_capture_wanted, take_descriptors

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.contracts.orchestration import RunLog


def run_claimed(args: Namespace, console: Console) -> int:
    """Do the work of the claim and give it back. 0 when it succeeded, or when it was no longer this worker's to do."""
    if is_capture_wanted():
        take_descriptors()
    store = claimable(from_url(run_log_url(args.run_log_url or args.run_log_path)))
    if store is None:
        raise InvalidConfig("A claim needs a run log that can hold it.")
    # The token that was handed over is exchanged: should the same hand-over arrive twice, one of them works.
    token = store.adopt(args.claim_token, worker_name())
    if token is None:
        console.note(f"{args.name}: the claim ran out, or is another worker's; nothing was done")
        store.close()
        return 0
    try:
        entry = declared_entry(args.module, args.name)
        lease = Lease(token, args.lease_seconds, args.heartbeat_interval)
        with spark_place(args), prints_on_stderr(), watching(args, console, store) as telling, _interruptible():
            outcome = _worked(Work(store, telling), store, entry, lease)
    finally:
        give_back(store, token)
        store.close()
    said = {"pipeline": outcome.name, "status": outcome.status, "run_id": outcome.run_id}
    if outcome.error is not None:
        kind, words = error_words(outcome.error)
        console.error(f"{outcome.name}: {kind}: {words}")
    elif outcome.reason:
        console.note(f"{outcome.name}: {outcome.reason}")
    console.json({**said, "result": outcome.result} if outcome.result is not None else said)
    return 1 if outcome.status == "failed" else 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does: its slot is another worker's at once, and nobody waits for the lease."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _worked(work: Work, store: RunLog, entry: Orchestrated, lease: Lease) -> Outcome:
    asked = os.environ.get(REQUEST_VARIABLE)
    if asked:
        request = store.get_run(asked)
        if request is None or request.status != "running":
            return Outcome(entry.name, "unstarted", reason=f"the requested run {asked} is not there to be done")
        return work.run_request(entry, request, lease)
    written = os.environ.get(SLOT_VARIABLE)
    if not written:
        return work.run_by_hand(entry, lease)
    at = time_of(written)
    slot = next(iter(store.slots(entry.name, since=at, until=at)), None)
    if slot is None or slot.status != "pending":
        state = slot.status if slot is not None else "unknown"
        return Outcome(entry.name, "unstarted", reason=f"the slot {written} is {state}")
    return work.run_slot(entry, slot, lease)
