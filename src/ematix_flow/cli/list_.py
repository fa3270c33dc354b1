"""`flow list`: what a module declares."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from ematix_flow.cli.declared import add_module, load, schedule_of
from ematix_flow.declare import registry

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser


def configure(parser: CommandParser) -> None:
    """One option: the module."""
    add_module(parser)
    parser.say(example="flow list --module my_pipelines", then="flow preview --module my_pipelines NAME")


def run(args: Namespace, console: Console) -> int:
    """Name, kind and schedule of everything that can be run, sorted by name."""
    load(args.module)
    declared = registry.current()
    shelves = (
        ("pipeline", declared.pipelines()),
        ("transform", declared.transforms()),
        ("streaming", declared.streaming_pipelines()),
    )
    entries = sorted((entry.name, kind, schedule_of(entry.thing)) for kind, shelf in shelves for entry in shelf)
    if console.is_json:
        console.json([{"name": name, "kind": kind, "schedule": schedule} for name, kind, schedule in entries])
    elif not entries:
        console.line("no pipelines registered")
    else:
        rows = [(name, kind, schedule or "(unscheduled)") for name, kind, schedule in entries]
        console.table(("name", "kind", "schedule"), rows, header=False)
    return 0
