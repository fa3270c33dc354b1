"""The run-log options that several commands share, and the run log they mean."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ematix_flow.run.runlogs.open import open_run_log, run_log_url
from ematix_flow.run.runlogs.urls import from_url

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.contracts.orchestration import RunLog


def add_run_log(parser: ArgumentParser, *, may_be_off: bool) -> None:
    """`--run-log URL` and its documented spellings."""
    group = parser.add_argument_group(
        "run log",
        "default: $EMATIX_FLOW_RUN_LOG_URL, $EMATIX_FLOW_RUN_LOG_PATH, the project's file, ~/.ematix-flow/run_log.db",
    )
    group.add_argument(
        "--run-log",
        "--run-log-url",
        dest="run_log_url",
        metavar="URL",
        help="a SQLite file, or sqlite:// postgres:// mysql:// duckdb:// s3:// gs:// azure:// memory://",
    )
    group.add_argument("--run-log-path", metavar="PATH", help="a SQLite file")
    if may_be_off:
        group.add_argument("--no-run-log", action="store_true", help="keep no record of this run")


@contextmanager
def run_log_for_writing(args: Namespace, console: Console, *, without: str = "") -> Iterator[RunLog | None]:
    """The run log that a run is recorded in; None when switched off, or after one warning when it cannot be had.

    Args:
        without: What is not promised then; part of that warning.
    """

    def warn(line: str) -> None:
        console.warning(f"{line}; {without}" if without else line)

    history = None if args.no_run_log else open_run_log(args.run_log_url or args.run_log_path, warn=warn)
    try:
        yield history
    finally:
        if history is not None:
            history.close()


@contextmanager
def run_log_for_reading(args: Namespace) -> Iterator[RunLog]:
    """The run log whose records are the answer: without it there is none, so here a failure is an error.

    Raises:
        FlowError: It cannot be opened.
    """
    history = from_url(run_log_url(args.run_log_url or args.run_log_path))
    try:
        yield history
    finally:
        history.close()
