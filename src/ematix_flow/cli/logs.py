"""`flow logs`: what a run printed, also while it still does."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from ematix_flow.errors import UnknownName
from ematix_flow.watch.run_output import find_log, follow, read_run_logs

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser


def configure(parser: CommandParser) -> None:
    """A run, and how much of its output."""
    parser.add_argument("run_id", metavar="RUN_ID", help="the run's id; its first characters are enough")
    parser.add_argument("--tail", type=_count, metavar="N", help="only the last N lines")
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run has ended")
    parser.say(
        "Output is kept of every run that a command or a scheduler starts, unless EMATIX_FLOW_CAPTURE_LOGS=0, in\n"
        "$EMATIX_FLOW_LOGS_DIR or ~/.ematix-flow/logs of the machine that ran them; for 30 days.",
        example="flow logs 7f3a91c2 --tail 20\nflow logs 7f3a91c2 --follow",
        then="flow runs show 7f3a91c2   how the run ended",
    )


def run(args: Namespace, console: Console) -> int:
    """Print it; exit code 1 when nothing is kept of such a run."""
    try:
        path = find_log(args.run_id)
        text = read_run_logs(args.run_id, tail=args.tail)
    except UnknownName as exc:
        console.error(exc)
        return 1
    if console.is_json:
        console.json({"run_id": args.run_id, "file": str(path), "text": text})
        return 0
    if not args.follow:
        for line in text.splitlines():
            console.line(line)
        return 0
    skipped = 0 if args.tail is None else len(read_run_logs(args.run_id).splitlines()) - args.tail
    for number, line in enumerate(follow(path)):
        if number >= skipped:
            console.line(line.rstrip("\n"))
    return 0


def _count(text: str) -> int:
    if not text.isdigit():
        raise ArgumentTypeError(f"'{text}' is not a number of lines")
    return int(text)
