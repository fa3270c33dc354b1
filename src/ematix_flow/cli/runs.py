"""`flow runs`: what has been run, and how it ended."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from datetime import timezone
from typing import TYPE_CHECKING, Any, get_args

from ematix_flow.cli.run_log_options import add_run_log, run_log_for_reading
from ematix_flow.contracts.runtime import RunHistory, RunRecord, RunStatus
from ematix_flow.errors import UnknownName

if TYPE_CHECKING:
    from datetime import datetime

    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

_UUID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}")
_COUNTS = ("inserted", "updated", "closed", "deleted", "unchanged")
_MARKS = {"succeeded": "✓", "failed": "✗", "skipped": "-", "running": "…", "pending": "·"}
_MANY = 100_000


def configure(parser: CommandParser) -> None:
    """Looking at runs, and asking for others."""
    parser.say(example="flow runs list --pipeline sync_customers\nflow runs show 7f3a91c2", then="flow runs show ID")
    commands = parser.add_subparsers(dest="action", metavar="list|show|restart|rerun|pause|resume", required=True)
    listing = commands.add_parser("list", help="recent runs, newest first")
    listing.add_argument("--pipeline", metavar="NAME", help="only runs of this pipeline")
    listing.add_argument("--status", choices=get_args(RunStatus), help="only runs that are in this state")
    listing.add_argument("--limit", type=_positive, default=20, metavar="N", help="at most so many (default 20)")
    add_run_log(listing, may_be_off=False)
    listing.say(example="flow runs list --status failed --limit 5", then="flow runs show ID")
    showing = commands.add_parser("show", help="everything known of one run")
    showing.add_argument(
        "run_id", metavar="ID", help="the run's id; its first characters are enough when no other begins so"
    )
    add_run_log(showing, may_be_off=False)
    showing.say(example="flow runs show 7f3a91c2", then="flow run --module M NAME   to run its pipeline again")
    for name, what, then in _WISHES:
        asking = commands.add_parser(name, help=what)
        asking.add_argument("run_id", metavar="ID", help="the run's id, or the beginning of it")
        if name == "restart":
            asking.add_argument("--from-step", metavar="STEP", help="begin there instead of at the step that failed")
        add_run_log(asking, may_be_off=False)
        asking.say(example=f"flow runs {name} 7f3a91c2", then=then)


def run(args: Namespace, console: Console) -> int:
    """Ask the run log."""
    if args.action not in ("list", "show"):
        return _ask_for(args, console)
    with run_log_for_reading(args) as history:
        return _list(args, console, history) if args.action == "list" else _show(args, console, history)


_STARTED = "flow run-due or the running scheduler starts it"
_WISHES = (
    ("restart", "ask for a run that begins where this one failed", _STARTED),
    ("rerun", "ask for the whole run again", _STARTED),
    ("pause", "ask a running run to wait before its next step", "flow runs resume ID"),
    ("resume", "let a paused run go on", "flow runs show ID"),
)


def _ask_for(args: Namespace, console: Console) -> int:
    from ematix_flow.cli.control import controlled
    from ematix_flow.orchestrate import control

    with controlled(args) as store:
        if args.action in ("pause", "resume"):
            record = control.pause_run(store, args.run_id, is_paused=args.action == "pause")
            said, text = {"status": f"{args.action}_requested"}, f"{record.run_id}: {args.action} requested"
        else:
            step = getattr(args, "from_step", None)
            asked = (
                control.restart(store, args.run_id, step)
                if args.action == "restart"
                else control.rerun(store, args.run_id)
            )
            said, text = {"new_run_id": asked}, f"{asked}: requested; {_STARTED}"
    if console.is_json:
        console.json(said)
    else:
        console.line(text)
    return 0


def _list(args: Namespace, console: Console, history: RunHistory) -> int:
    records, total = history.list_runs(pipeline=args.pipeline, status=args.status, limit=args.limit)
    if console.is_json:
        console.json([{**r.to_summary_dict(), "rows": _rows(r), "error": r.error_summary} for r in records])
        return 0
    if not records:
        console.line("no runs recorded")
        return 0
    columns = ("RUN", "PIPELINE", "STATUS", "STARTED (UTC)", "DURATION", "ATTEMPT", "ROWS", "ERROR")
    console.table(columns, [_row(record) for record in records])
    if total > len(records):
        console.note(f"{len(records)} of {total} runs; more with --limit")
    return 0


def _row(record: RunRecord) -> tuple[Any, ...]:
    error = (record.error_summary or "").splitlines()
    return (
        short_id(record.run_id),
        record.pipeline,
        record.status,
        _moment(record.started_at),
        _duration(record),
        record.attempt,
        _rows_text(record),
        error[0] if error else "",
    )


def _show(args: Namespace, console: Console, history: RunHistory) -> int:
    record = history.get_run(args.run_id)
    if record is None:
        raise _not_one(args.run_id, history)
    if console.is_json:
        console.json(record.to_detail_dict())
        return 0
    facts = [
        ("run", record.run_id),
        ("pipeline", record.pipeline),
        ("status", record.status),
        ("started", f"{_moment(record.started_at)} UTC"),
        ("finished", f"{_moment(record.finished_at)} UTC" if record.finished_at else None),
        ("duration", _duration(record)),
        ("attempt", str(record.attempt)),
        ("rows", _rows_text(record)),
        ("failed in", record.failed_step),
        ("watermark", record.failed_watermark),
    ]
    for label, value in facts:
        if value:
            console.line(f"{label:<10} {value}")
    for plan in record.extras.get("plans") or ():
        console.line(f"{'plan':<10} {plan.get('headline', '')}  {plan.get('route', '')}".rstrip())
    for step in record.extras.get("steps") or ():
        console.line(_step_line(step))
        for stage in step.get("stages") or ():
            console.line("  " + _step_line(stage))
    if record.kind == "streaming":
        for line in _stream_lines(record.extras):
            console.line(line)
    if record.error_summary:
        console.line()
        console.line(record.error_summary)
    return 0


def _step_line(step: dict[str, Any]) -> str:
    from ematix_flow.cli.console import duration_text

    took = f"  {duration_text(step['duration_ms'] / 1000)}" if step.get("duration_ms") is not None else ""
    mark = _MARKS.get(str(step.get("status")), "?")
    return f"  {mark} {step.get('name', ''):<8}  {step.get('detail', '')}{took}".rstrip()


def _stream_lines(extras: Mapping[str, Any]) -> Iterator[str]:
    """How a stream was doing when it said so last: about every half minute, and at its end."""
    if "snapshot_at" not in extras:
        return
    counts = ("batches", "errors", "dead_letters", "rows_dropped")
    told = [f"{extras.get(f'{name}_total') or 0:,} {name.replace('_', ' ')}" for name in counts]
    restarts = f"{extras.get('restarts') or 0:,} restarts"
    yield f"{'counts':<10} {' · '.join([*told, restarts])}"
    for label, name in (("1 min", "stats_1m"), ("5 min", "stats_5m")):
        stats = extras.get(name) or {}
        if stats.get("span_seconds") is not None:
            cycle = stats.get("avg_batch_cycle_ms")
            every = f" · a batch every {cycle / 1000:,.2f} s" if cycle else ""
            read, written = stats["rows_consumed_per_sec"], stats["rows_written_per_sec"]
            yield f"{label:<10} {read:,.0f} rows/s read · {written:,.0f} rows/s written{every}"
    lag = extras.get("lag") or {}
    if lag:
        yield f"{'behind':<10} {' · '.join(f'{part}: {behind:,}' for part, behind in lag.items())}"
    yield f"{'as of':<10} {extras['snapshot_at']}"


def _not_one(run_id: str, history: RunHistory) -> UnknownName:
    """Either nothing begins so, or too much does."""
    records, _ = history.list_runs(limit=_MANY)
    near = [record.run_id for record in records if record.run_id.startswith(run_id)]
    if not near:
        return UnknownName(
            f"No run has an id that begins with '{run_id}'.", fix="`flow runs list` shows the recent ones"
        )
    shown = ", ".join(near[:5]) + (", …" if len(near) > 5 else "")
    return UnknownName(f"{len(near)} runs have an id that begins with '{run_id}'.", fix=f"write more of it: {shown}")


def short_id(run_id: str) -> str:
    """Enough of a random id to find it again; other ids as they are."""
    return run_id[:8] if _UUID.fullmatch(run_id) else run_id


def _rows(record: RunRecord) -> dict[str, int]:
    counts = {"processed": record.extras.get("rows"), **{n: record.extras.get(f"rows_{n}") for n in _COUNTS}}
    if record.kind == "streaming":
        counts = {name: record.extras.get(f"rows_{name}_total") for name in ("consumed", "written")}
    return {name: count for name, count in counts.items() if isinstance(count, int)}


def _rows_text(record: RunRecord) -> str:
    return " · ".join(f"{count:,} {name}" for name, count in _rows(record).items())


def _duration(record: RunRecord) -> str:
    from ematix_flow.cli.console import duration_text

    return "" if record.duration_ms is None else duration_text(record.duration_ms / 1000)


def _moment(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"'{text}' is not a number above zero")
    return int(text)
