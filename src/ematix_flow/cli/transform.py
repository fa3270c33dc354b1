"""`flow transform`: transforms that run on their own, outside a load."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING

from ematix_flow.cli.declared import (
    add_module,
    add_name,
    declared_transform,
    load,
    prints_on_stderr,
    schedule_of,
)
from ematix_flow.cli.run_due import claimable
from ematix_flow.cli.run_log_options import add_run_log, run_log_for_writing
from ematix_flow.cli.watch_options import add_watching, watching
from ematix_flow.declare import registry

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser


def configure(parser: CommandParser) -> None:
    """Two sub-commands."""
    parser.say(
        example="flow transform list --module my_pipelines\nflow transform run --module my_pipelines refresh_totals",
        then="flow runs list",
    )
    commands = parser.add_subparsers(dest="action", metavar="list|run", required=True)
    listing = commands.add_parser("list", help="the transforms of a module, with their schedules")
    add_module(listing)
    listing.say(
        example="flow transform list --module my_pipelines", then="flow transform run --module my_pipelines NAME"
    )
    running = commands.add_parser("run", help="run one transform now")
    add_module(running)
    add_name(running, "transform")
    add_run_log(running, may_be_off=True)
    add_watching(running)
    running.say(example="flow transform run --module my_pipelines refresh_totals", then="flow runs list")


def run(args: Namespace, console: Console) -> int:
    """List them, or run one."""
    return _list(args, console) if args.action == "list" else _run(args, console)


def _list(args: Namespace, console: Console) -> int:
    load(args.module)
    found = sorted((entry.name, schedule_of(entry.thing)) for entry in registry.current().transforms())
    if console.is_json:
        console.json([{"name": name, "schedule": schedule} for name, schedule in found])
        return 0
    for name, schedule in found:
        console.line(f"{name}\t{schedule or '(unscheduled)'}")
    if not found:
        console.note("no transforms registered")
    return 0


def _run(args: Namespace, console: Console) -> int:
    declared_transform(args)
    from ematix_flow.run.runlogs.open import use_run_log
    from ematix_flow.run.runner import run_transform

    with (
        run_log_for_writing(args, console) as history,
        use_run_log(history),
        watching(args, console, claimable(history)) as telling,
        prints_on_stderr(),
    ):
        began = time.monotonic()
        try:
            result = run_transform(args.name)
        except Exception as exc:
            telling.failed(args.name, exc, took_s=time.monotonic() - began)
            raise
        telling.succeeded(args.name, run_id=result["run_id"], result=result, took_s=time.monotonic() - began)
    console.json({"status": result["status"], "metrics": result.get("metrics"), "run_id": result["run_id"]})
    return 0
