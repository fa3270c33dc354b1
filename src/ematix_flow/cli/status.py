"""`flow status`: every pipeline with its schedule, its last run, and what it waits for."""

from __future__ import annotations

from argparse import Namespace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, load
from ematix_flow.cli.run_log_options import add_run_log, run_log_for_writing

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

_COLUMNS = ("NAME", "SCHEDULE", "LAST RUN", "OUTCOME", "RETRY", "DEPENDS ON", "NEXT DUE", "NOW")
"""Those up to DEPENDS ON are documented, and scripts go by them; what came later stands behind."""


def configure(parser: CommandParser) -> None:
    """The module and the run log."""
    add_module(parser)
    add_run_log(parser, may_be_off=True)
    parser.say(
        example="flow status --module my_pipelines",
        then="flow runs list --pipeline NAME, flow retry NAME, flow graph --module my_pipelines",
    )


def run(args: Namespace, console: Console) -> int:
    """Print the table, or a JSON list."""
    from ematix_flow.contracts.orchestration import RunLog
    from ematix_flow.orchestrate.status import retry_words, status_of
    from ematix_flow.run.registered import orchestrated
    from ematix_flow.run.runlogs.memory import InMemoryRunLog

    load(args.module)
    with run_log_for_writing(args, console) as history:
        store = history if isinstance(history, RunLog) else InMemoryRunLog()
        rows = status_of(orchestrated(), store, now=datetime.now(timezone.utc))
    if console.is_json:
        console.json(rows)
        return 0
    if not rows:
        console.line("no pipelines registered")
        return 0
    console.table(_COLUMNS, [_row(row, retry_words(row)) for row in rows], ruled=True)
    for row in rows:
        if row["last_error"]:
            console.note(f"{row['name']}: {row['last_error']}", "dim")
    return 0


def _row(row: dict[str, Any], retry: str) -> tuple[str, ...]:
    last = row["last_run"]
    return (
        row["name"],
        row["schedule"] or (f"on {row['on_message']}" if row["on_message"] else "(unscheduled)"),
        last[0] if last else "never",
        ("ok" if last[1] else "fail") if last else "",
        retry,
        ", ".join(row["depends_on"]),
        row["next_due_at"] or "",
        _now(row),
    )


def _now(row: dict[str, Any]) -> str:
    if row["running"]:
        return "running"
    if row["paused"]:
        return "paused"
    return str(row["waiting_reason"] or "")
