"""`flow run`: one pipeline or workflow, now. The result is one line of JSON on stdout, the story is on stderr."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, add_name, declared_entry, prints_on_stderr
from ematix_flow.cli.run_due import claimable_now, positive
from ematix_flow.cli.run_log_options import add_run_log, run_log_for_writing
from ematix_flow.cli.spark_options import add_spark_place, spark_place
from ematix_flow.cli.watch_options import add_watching, watching
from ematix_flow.declare.pipeline import Pipeline, checked_engine
from ematix_flow.errors import AlreadyRunning, FlowError
from ematix_flow.run.process import ProcessMark, this_process

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser
    from ematix_flow.contracts.orchestration import RunLog
    from ematix_flow.contracts.runtime import RunHistory, RunObserver
    from ematix_flow.orchestrate.work import Lease
    from ematix_flow.run.registered import Orchestrated
    from ematix_flow.watch.telling import Telling

log = logging.getLogger(__name__)

_LEASE_S = 60.0
_WITHOUT = (
    "without a run log in a database nobody is kept from running the same pipeline at the same time, `flow cancel` "
    "does not reach this run, its end does not count for the schedule, and its alerts may be sent more than once"
)


def configure(parser: CommandParser) -> None:
    """The pipeline, and how this one run differs."""
    add_module(parser)
    add_name(parser, "pipeline or workflow")
    parser.add_argument(
        "--run-id", metavar="ID", help="name of the logical run; repeating one that has been applied changes nothing"
    )
    parser.add_argument("--engine", metavar="E", help="auto, pushdown, spark or native, instead of the declared one")
    add_spark_place(parser)
    add_run_log(parser, may_be_off=True)
    add_watching(parser)
    worker = parser.add_argument_group("workers", "what a scheduler passes to the process that does its work")
    worker.add_argument("--claim-token", metavar="T", help="the claim under which this run works")
    worker.add_argument("--lease-seconds", type=positive, default=300.0, metavar="S", help="how long a claim lasts")
    worker.add_argument(
        "--heartbeat-interval", type=positive, default=100.0, metavar="S", help="how often it is prolonged"
    )
    parser.say(
        "exit codes: 0 loaded, 1 the run failed, 2 the command or the configuration is wrong, 130 interrupted",
        example="flow run --module my_pipelines sync_customers\n"
        "flow run --module my_pipelines sync_customers --run-id 2026-03-01",
        then="flow runs list   shows how it ended, flow runs show ID every step of it",
    )


def run(args: Namespace, console: Console) -> int:
    """Run it, record it, print the result."""
    if args.claim_token:
        from ematix_flow.cli.claimed_run import run_claimed

        return run_claimed(args, console)
    entry = declared_entry(args.module, args.name)
    with (
        spark_place(args),
        run_log_for_writing(args, console, without=_WITHOUT) as history,
        _claimed(entry, args, console, history) as place,
        watching(args, console, place.store if place.is_shared else None) as telling,
    ):
        result = _result(entry, args, console, place, telling)
    console.json(result)
    return 1 if isinstance(result, Mapping) and result.get("errors") else 0


@dataclass(frozen=True)
class _Place:
    """Where a run is claimed and recorded.

    Attributes:
        store: Holds the claim.
        is_shared: Others see it there.
        history: Holds the record; None when nobody can look for it later.
    """

    store: RunLog
    lease: Lease
    is_shared: bool
    history: RunHistory | None


@contextmanager
def _claimed(entry: Orchestrated, args: Namespace, console: Console, history: RunHistory | None) -> Iterator[_Place]:
    """The claim of the pipeline, in the run log if that takes it, else in this process after saying what that means."""
    from ematix_flow.orchestrate.identity import worker_name
    from ematix_flow.orchestrate.recovery import give_back, take
    from ematix_flow.orchestrate.work import Lease
    from ematix_flow.run.runlogs.memory import InMemoryRunLog

    shared = claimable_now(history, console)
    if args.no_run_log or (history is not None and shared is None):
        console.warning(_WITHOUT)
    store: RunLog = shared if shared is not None else InMemoryRunLog()
    try:
        token, holder = take(store, entry.name, worker_name(), _LEASE_S)
    except FlowError as exc:  # it can be read, not written to: a full disk, a server that stands by, a lock
        console.warning(f"{exc.message} The run goes on without it: {_WITHOUT}")
        store, shared, history = InMemoryRunLog(), None, None
        token, holder = take(store, entry.name, worker_name(), _LEASE_S)
    if token is None:
        raise AlreadyRunning(
            f"Another run of '{entry.name}' is under way: {holder.removeprefix('busy: ')}.",
            fix="wait for it, or stop it: `flow runs list --status running`, `flow cancel RUN`",
        )
    try:
        yield _Place(store, Lease(token, _LEASE_S, _LEASE_S / 3), shared is not None, history)
    finally:
        give_back(store, token)


def _result(entry: Orchestrated, args: Namespace, console: Console, place: _Place, telling: Telling) -> Any:
    if isinstance(entry.thing, Pipeline) and args.engine is not None:
        entry = replace(entry, thing=Pipeline(replace(entry.thing.spec, engine=checked_engine(args.engine))))
    if console.is_json or not isinstance(entry.thing, Pipeline):
        with prints_on_stderr():
            return _done(entry, args, place, telling, None)
    from ematix_flow.cli.console import RunDisplay

    with prints_on_stderr(), RunDisplay(console, entry.name) as display:
        try:
            result = _done(entry, args, place, telling, display)
        except FlowError:
            display.done(_newest_run(entry.name, place.history), failed=True)
            raise
        display.done(_run_id(result), recorded=place.history is not None)
    return result


def _done(entry: Orchestrated, args: Namespace, place: _Place, telling: Telling, observer: RunObserver | None) -> Any:
    """The result of the run; what it raised is raised again."""
    from ematix_flow.orchestrate.work import Work

    work = Work(place.store, telling, observer=lambda _name: observer, history=place.history)
    outcome = work.run_by_hand(entry, place.lease, logical_run=args.run_id)
    if outcome.error is not None and not isinstance(outcome.result, Mapping):
        raise outcome.error
    return outcome.result


def _run_id(result: Any) -> str | None:
    """The id of a run, or of the first of its targets."""
    if not isinstance(result, Mapping):
        return None
    if isinstance(result.get("run_id"), str):
        return str(result["run_id"])
    parts = [part for part in result.values() if isinstance(part, Mapping)]
    return next((found for part in parts if (found := _run_id(part)) is not None), None)


def _newest_run(pipeline: str, history: RunHistory | None) -> str | None:
    """The run that just failed: an exception carries no run id, the run log does."""
    if history is None:
        return None
    try:
        records, _ = history.list_runs(pipeline=pipeline, limit=1)
    except Exception as exc:  # the run has failed already; its own error is the one to show
        log.debug("the run log does not answer: %s", exc)
        return None
    mine = [r for r in records if ProcessMark.from_dict(r.extras.get("process")) == this_process()]
    return mine[0].run_id if mine else None
