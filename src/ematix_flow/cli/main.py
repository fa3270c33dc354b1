"""The front door: `flow <command>`. Finds the command in a table, imports only its file, turns errors into words.

Exit codes: 0 fine, 1 a run or check failed, 2 the command or the configuration is wrong, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from ematix_flow.cli.parser import CommandParser, bad_choice
from ematix_flow.errors import ConfigError, DeclarationError, FlowError

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console

FINE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
_BANNER_COMMANDS = frozenset({"run", "run-due", "scheduler", "consume"})


@dataclass(frozen=True)
class Command:
    """One line of the table: the file behind a command, and what it is for."""

    name: str
    module: str
    help: str


COMMANDS = (
    Command("list", "ematix_flow.cli.list_", "what a module declares: pipelines, transforms, schedules"),
    Command("run", "ematix_flow.cli.run", "run one pipeline now"),
    Command("run-due", "ematix_flow.cli.run_due", "run everything that is due, once; for cron and timers"),
    Command("scheduler", "ematix_flow.cli.scheduler", "a daemon that hands due pipelines to workers"),
    Command("status", "ematix_flow.cli.status", "every pipeline: schedule, last run, retries, what it waits for"),
    Command("graph", "ematix_flow.cli.graph", "who waits for whom"),
    Command("backfill", "ematix_flow.cli.backfill", "run the scheduled times of a stretch of the past"),
    Command("retry", "ematix_flow.cli.control", "try the last failed slot of a pipeline again"),
    Command("clear", "ematix_flow.cli.control", "forget failures and what waits; back on schedule"),
    Command("pause", "ematix_flow.cli.control", "let nobody start a pipeline"),
    Command("resume", "ematix_flow.cli.control", "let a paused pipeline start again"),
    Command("cancel", "ematix_flow.cli.control", "ask a run to stop"),
    Command("consume", "ematix_flow.cli.consume", "run a stream until it is told to stop"),
    Command("consume-list", "ematix_flow.cli.consume", "the streams of a module"),
    Command("state", "ematix_flow.cli.state", "what a stream remembers: check, inspect, reset"),
    Command("rewind", "ematix_flow.cli.rewind", "send a stream back to a time or to offsets"),
    Command("dlq", "ematix_flow.cli.dlq", "dead letters of a stream: list, show, replay, park, purge"),
    Command("preview", "ematix_flow.cli.preview", "what a run would do, without doing it"),
    Command("dry-run", "ematix_flow.cli.preview", "run for real, count, and roll back"),
    Command("validate", "ematix_flow.cli.preview", "check the source SQL and the declared columns"),
    Command("transform", "ematix_flow.cli.transform", "list or run transforms on their own"),
    Command("connections", "ematix_flow.cli.connections", "list, check and set connections"),
    Command("runs", "ematix_flow.cli.runs", "what has been run, and how it ended"),
    Command("logs", "ematix_flow.cli.logs", "what a run printed, also while it still does"),
    Command("lineage", "ematix_flow.cli.lineage", "where a table or a column comes from, and what depends on it"),
    Command("freshness-check", "ematix_flow.cli.freshness_check", "whether pipelines succeeded as lately as promised"),
    Command("secrets", "ematix_flow.cli.secrets", "whether references to secrets can be filled in"),
    Command("init", "ematix_flow.cli.init", "a new project that runs, with tests and deployment files"),
    Command("maintain", "ematix_flow.cli.maintain", "put small files of lake tables together, remove old ones"),
    Command(
        "doctor",
        "ematix_flow.cli.doctor",
        "Java, Spark, drivers, jars, connections: what works and how to fix the rest",
    ),
    Command("jars", "ematix_flow.cli.jars", "list, fetch and check Spark's connector jars"),
    Command("completion", "ematix_flow.cli.completion", "completion script for bash, zsh or fish"),
)


class CommandFile(Protocol):
    """What the file of a command offers."""

    def configure(self, parser: CommandParser) -> None:
        """Declare the command's arguments, its example and what to run next."""

    def run(self, args: Namespace, console: Console) -> int:
        """Do it; the return value is the exit code. `FlowError` may fly: it becomes an error message."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; the script `flow` hands it to `sys.exit`."""
    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:
        # The reader went away (`flow list | head`). Point stdout at nothing, or Python complains again while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def command_parser(command: Command) -> tuple[CommandFile, CommandParser]:
    """The command's file and its parser, arguments included. Completion walks all of them."""
    file: CommandFile = import_module(command.module)
    parser = CommandParser(prog=f"flow {command.name}", description=_sentence(command.help))
    file.configure(parser)
    return file, parser


def _main(argv: list[str]) -> int:
    args = Namespace(json=False, debug=False, no_color=False, format="text")
    try:
        file = _parsed(argv, args)
        return file if isinstance(file, int) else _run(file, args)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        _console(args).note("interrupted")
        return INTERRUPTED
    except FlowError as exc:
        if args.debug:
            show_traceback()
        _console(args).error(exc)
        return exit_code(exc)
    except Exception as exc:
        if args.debug:
            show_traceback()
        hint = "" if args.debug else "; run again with --debug"
        _console(args).error(f"unexpected error: {type(exc).__name__}: {exc}{hint}")
        return FAILED


def _parsed(argv: list[str], args: Namespace) -> CommandFile | int:
    """The file of the command with its arguments in `args`, or the exit code when that was all."""
    leading, rest = _split_at_command(argv)
    try:
        front_parser().parse_args(leading, namespace=args)
        if not rest:
            sys.stderr.write(front_parser().format_help())
            return WRONG
        command = next((known for known in COMMANDS if known.name == rest[0]), None)
        if command is None:
            front_parser().error(bad_choice("command", rest[0], [known.name for known in COMMANDS]))
        file, parser = command_parser(command)
        parser.parse_args(rest[1:], namespace=args)
    except SystemExit as stop:  # --help, --version, or a command line that makes no sense
        return stop.code if isinstance(stop.code, int) else WRONG
    args.command = command.name
    args.json = args.json or args.format == "json"
    args.format = "json" if args.json else "text"
    return file


def _run(file: CommandFile, args: Namespace) -> int:
    from ematix_flow.cli.log_lines import log_lines

    console = _console(args)
    if _has_banner(args):
        console.note(_name_and_version(), "dim")
    with log_lines(console, debug=args.debug, is_daemon=args.command == "scheduler"):
        return file.run(args, console)


def _has_banner(args: Namespace) -> bool:
    """Whether the first line of the story says what is running: for people at a terminal, and where it is asked for."""
    if args.command not in _BANNER_COMMANDS or os.environ.get("EMATIX_FLOW_NO_BANNER") == "1":
        return False
    return os.environ.get("EMATIX_FLOW_BANNER") == "1" or (sys.stderr.isatty() and not args.json)


def _name_and_version() -> str:
    from ematix_flow._version import __version__

    return f"ematix-flow {__version__}"


def _console(args: Namespace) -> Console:
    from ematix_flow.cli.console import Console

    return Console(json=args.json, color=False if args.no_color else None)


def exit_code(exc: FlowError) -> int:
    """2 when what was written or configured is wrong, 1 when a run failed."""
    return WRONG if isinstance(exc, DeclarationError | ConfigError) else FAILED


def _split_at_command(argv: list[str]) -> tuple[list[str], list[str]]:
    """Options in front of the command, and the rest beginning with the command."""
    i = 0
    while i < len(argv) and argv[i].startswith("-"):
        i += 2 if argv[i] == "--format" else 1
    return argv[:i], argv[i:]


def front_parser() -> CommandParser:
    """The parser of everything in front of the command; its help is the table of commands."""
    width = max(len(command.name) for command in COMMANDS)
    table = "\n".join(f"  {command.name:<{width}}  {command.help}" for command in COMMANDS)
    parser = CommandParser(
        prog="flow",
        usage="flow <command> [options]",
        description="Declarative data pipelines in Python, run by Spark or pushed down into the database.",
    )
    parser.add_argument("--version", action="version", version=_name_and_version(), help="print the version")
    parser.say(
        f"commands:\n{table}",
        example="flow run --module my_pipelines sync_customers",
        then="flow <command> --help   or, when something does not work, flow doctor",
    )
    return parser


def show_traceback() -> None:
    """What `--debug` adds to an error, without secrets and values of rows. Called where it was caught."""
    from ematix_flow.cli.tracebacks import traceback_text

    caught = sys.exc_info()[1]
    if caught is not None:
        sys.stderr.write(traceback_text(caught))


def _sentence(words: str) -> str:
    return words[0].upper() + words[1:] + "."
