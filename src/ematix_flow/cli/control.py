"""`flow retry`, `clear`, `pause`, `resume`, `cancel`: what people ask of pipelines and runs, kept in the run log."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, declared_entry
from ematix_flow.cli.run_log_options import add_run_log, run_log_for_reading
from ematix_flow.errors import InvalidConfig, counted

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser
    from ematix_flow.contracts.orchestration import RunLog

_THEN = {
    "retry": "flow run-due or the running scheduler starts it at once",
    "clear": "the next scheduled time runs as ever; flow retry NAME tries the last one again",
    "pause": "flow resume NAME lets it start again, flow status shows who is paused",
    "resume": "flow run-due or the running scheduler starts what waits",
    "cancel": "flow runs show RUN shows how it ended",
}


def configure(parser: CommandParser) -> None:
    """The name; which of the commands it is says the parser."""
    command = parser.prog.split()[-1]
    if command == "cancel":
        parser.add_argument("name", metavar="RUN", help="the run's id, or the beginning of it")
    else:
        parser.add_argument("name", metavar="NAME", help="the pipeline's or workflow's name")
        add_module(parser, required=False, what="the module that declares it; then a wrong name is noticed")
    if command == "pause":
        parser.add_argument("--reason", default="", metavar="TEXT", help="why, for the others")
    add_run_log(parser, may_be_off=False)
    parser.say(example=f"flow {command} {'1f0c9a2e' if command == 'cancel' else 'sync_customers'}", then=_THEN[command])


def run(args: Namespace, console: Console) -> int:
    """Do it and say what it changed."""
    from ematix_flow.orchestrate import control

    if args.command != "cancel" and args.module:
        declared_entry(args.module, args.name)
    with controlled(args) as store:
        said: dict[str, Any] = {"name": args.name}
        if args.command != "cancel" and not args.module and not control.is_known(store, args.name):
            console.warning(f"nothing in the run log is named '{args.name}'; with --module M a wrong name is noticed")
        if args.command == "retry":
            slot = control.retry(store, args.name)
            at = f"{slot.at:%Y-%m-%dT%H:%M:%SZ}" if slot is not None else None
            said |= {"slot": at}
            text = f"{args.name}: {at} is tried again" if at else f"{args.name}: failures forgotten; no slot waits"
        elif args.command == "clear":
            state, gone = control.clear(store, args.name)
            failures = state.attempt_count if state is not None else 0
            said |= {"failures": failures, "slots": gone}
            text = f"{args.name}: {counted(failures, 'failure')} and {counted(gone, 'waiting slot')} forgotten"
        elif args.command == "pause":
            control.pause(store, args.name, reason=args.reason)
            text = f"{args.name}: paused"
        elif args.command == "resume":
            was_paused = control.resume(store, args.name)
            said |= {"was_paused": was_paused}
            text = f"{args.name}: resumed" if was_paused else f"{args.name}: was not paused"
        else:
            record = control.cancel(store, args.name)
            said = {"run_id": record.run_id, "pipeline": record.pipeline}
            text = f"{record.run_id}: asked to stop"
    if console.is_json:
        console.json(said)
    else:
        console.line(text)
    return 0


@contextmanager
def controlled(args: Namespace) -> Iterator[RunLog]:
    """The run log that wishes are written into.

    Raises:
        InvalidConfig: It is one that cannot hold them.
    """
    from ematix_flow.cli.run_due import claimable

    with run_log_for_reading(args) as history:
        store = claimable(history)
        if store is None:
            raise InvalidConfig(
                "This run log cannot hold wishes.", fix="use one in SQLite, PostgreSQL, MySQL or DuckDB"
            )
        yield store
