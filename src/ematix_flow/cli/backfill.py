"""`flow backfill`: the scheduled times of a stretch of the past, each run once. Stopped and called again it goes on."""

from __future__ import annotations

import threading
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.control import controlled
from ematix_flow.cli.declared import add_module, add_name, declared_entry, prints_on_stderr
from ematix_flow.cli.run_due import instant, stopping
from ematix_flow.cli.run_log_options import add_run_log
from ematix_flow.cli.spark_options import add_spark_place, spark_place
from ematix_flow.cli.watch_options import add_watching, watching
from ematix_flow.errors import counted

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser


def configure(parser: CommandParser) -> None:
    """The pipeline and the stretch of time."""
    add_module(parser)
    add_name(parser, "pipeline")
    parser.add_argument("--from", dest="start", type=instant, required=True, metavar="ISO", help="the first time")
    parser.add_argument("--to", dest="end", type=instant, required=True, metavar="ISO", help="up to, not including")
    parser.add_argument("--parallel", type=_workers, default=1, metavar="N", help="so many at a time (default 1)")
    parser.add_argument("--again", action="store_true", help="also those that have been run; not for append")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be run")
    add_spark_place(parser)
    add_run_log(parser, may_be_off=False)
    add_watching(parser)
    parser.say(
        "exit codes: 0 all of them ran, 1 one failed or the backfill was stopped, 2 bad input",
        example="flow backfill --module my_pipelines daily_orders --from 2026-03-01 --to 2026-04-01",
        then="the same command again goes on with what is missing",
    )


def run(args: Namespace, console: Console) -> int:
    """Plan, say it, do it."""
    from ematix_flow.contracts.orchestration import Slot
    from ematix_flow.orchestrate.backfill import plan_backfill, run_backfill
    from ematix_flow.orchestrate.outcomes import Outcome, error_words
    from ematix_flow.orchestrate.work import Work, slot_key

    entry, stop = declared_entry(args.module, args.name), threading.Event()
    ended: list[dict[str, Any]] = []
    with controlled(args) as store:
        plan = plan_backfill(entry, store, args.start, args.end, again=args.again)
        if plan.until is not None:
            console.warning(
                f"--to lies ahead: only times before {slot_key(plan.until)} are run, the schedule runs the rest"
            )
        console.note(f"{entry.name}: {counted(len(plan.to_run), 'slot')} to run, {plan.done:,} done before")
        if args.dry_run:
            console.json(
                {"pipeline": entry.name, "slots": [slot_key(one.at) for one in plan.to_run], "done": plan.done}
            )
            return 0

        def told(slot: Slot, outcome: Outcome) -> None:
            row = {"slot": slot_key(slot.at), "status": outcome.status, "run_id": outcome.run_id}
            if outcome.error is not None:
                row["error"] = error_words(outcome.error)[1]
            elif outcome.reason:
                row["error"] = outcome.reason
            ended.append(row)
            console.note(f"{len(ended):>6,}/{len(plan.to_run):,}  {row['slot']}  {outcome.status}")

        with spark_place(args), stopping(stop), prints_on_stderr(), watching(args, console, store) as telling:
            run_backfill(plan, entry, Work(store, telling), parallel=args.parallel, stop=stop, told=told)
    missing = len(plan.to_run) - sum(row["status"] == "succeeded" for row in ended)
    console.json({"pipeline": entry.name, "done": plan.done, "slots": ended, "missing": missing})
    return 1 if missing else 0


def _workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise ArgumentTypeError(f"'{text}' is not a number from 1 to 64")
    return int(text)
