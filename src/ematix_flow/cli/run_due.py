"""`flow run-due`: everything that is due, now, in this process. For cron, systemd timers and Kubernetes CronJobs."""

from __future__ import annotations

import json
import logging
import signal
import threading
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, load, prints_on_stderr
from ematix_flow.cli.run_log_options import add_run_log, run_log_for_writing
from ematix_flow.cli.spark_options import add_spark_place, spark_place
from ematix_flow.cli.watch_options import add_watching, watching
from ematix_flow.declare.instants import instant_of
from ematix_flow.errors import FlowError

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser
    from ematix_flow.contracts.orchestration import RunLog
    from ematix_flow.contracts.runtime import RunHistory

log = logging.getLogger(__name__)

_FIRST_YEAR, _LAST_YEAR = 1900, 9000
_CENTURY_S = 100 * 365 * 86_400.0


def configure(parser: CommandParser) -> None:
    """The module, the moment, and who hears of it."""
    add_module(parser)
    parser.add_argument("--now", type=instant, metavar="ISO", help="as if it were that time; naive means UTC")
    parser.add_argument(
        "--interval",
        type=positive,
        default=60.0,
        metavar="S",
        help="how often this command is called: older times are missed (default 60)",
    )
    add_spark_place(parser)
    add_run_log(parser, may_be_off=True)
    add_watching(parser)
    parser.say(
        "exit codes: 0 nothing failed, 1 a pipeline failed, 2 the command or the configuration is wrong",
        example="flow run-due --module my_pipelines",
        then="flow status --module my_pipelines   shows what waits and why, flow scheduler runs without cron",
    )


def run(args: Namespace, console: Console) -> int:
    """Look, run, print one JSON object."""
    from ematix_flow.orchestrate.run_due import run_due
    from ematix_flow.run.registered import orchestrated

    load(args.module)
    now = args.now or datetime.now(timezone.utc)
    stop = threading.Event()
    with (
        spark_place(args),
        run_log_for_writing(args, console) as history,
        stopping(stop),
        prints_on_stderr(),
    ):
        store = orchestrating(history, console)
        with watching(args, console, store) as telling:
            result = run_due(
                orchestrated(),
                store,
                telling,
                now=now,
                interval_s=args.interval,
                say=console.note,
                stop=stop,
                history=history,
            )
    missed = [
        {"pipeline": one.name, "count": one.count, "first": _text(one.first), "last": _text(one.last)}
        for one in result.missed
    ]
    console.json(
        {
            "ran": [{**_as_mapping(one.result), "_pipeline": one.name} for one in result.fired],
            "failed": [
                {
                    "pipeline": one.name,
                    "error": one.error_message,
                    "error_type": one.error_type,
                    "attempt_count": one.attempt_count,
                    "gave_up": one.gave_up,
                }
                for one in result.failed
            ],
            "skipped": [{"pipeline": one.name, "reason": one.reason} for one in result.skipped],
            **({"missed": missed} if missed else {}),
        }
    )
    return 1 if result.failed else 0


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def orchestrating(history: RunHistory | None, console: Console) -> RunLog:
    """The run log, if it can hold claims; else one in memory, after saying what that means."""
    store = claimable_now(history, console)
    if store is not None:
        return store
    from ematix_flow.run.runlogs.memory import InMemoryRunLog

    console.warning(
        "without a run log in a database nothing is remembered between two calls: a second call in the same interval, "
        "or on another host, runs the same pipelines again (targets apply a slot once), and neither retries happen nor "
        "what on_message= starts"
    )
    return InMemoryRunLog()


def claimable(history: RunHistory | None) -> RunLog | None:
    """The run log if it can hold claims; those in object stores cannot."""
    from ematix_flow.contracts.orchestration import RunLog

    if not isinstance(history, RunLog):
        return None
    try:
        history.open_slots("")
    except NotImplementedError:
        return None
    return history


def claimable_now(history: RunHistory | None, console: Console) -> RunLog | None:
    """The same, and None after a warning when it does not answer: work goes on without."""
    try:
        return claimable(history)
    except FlowError as exc:
        console.warning(exc.message)
        return None


@contextmanager
def stopping(stop: threading.Event, *signals: signal.Signals) -> Iterator[None]:
    """While a block runs, these signals (SIGTERM without any) set the event: what is under way ends, nothing begins."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = signals or (signal.SIGTERM,)
    before = {one: signal.signal(one, lambda *_: stop.set()) for one in wanted}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _as_mapping(result: Any) -> Mapping[str, Any]:
    if isinstance(result, Mapping):
        return {str(key): _known(value) for key, value in result.items()}
    return {"result": _known(result)}


def _known(value: Any) -> Any:
    """A value as JSON has it; what JSON does not know is named, not passed off as text of the pipeline."""
    if isinstance(value, Mapping):
        return {str(key): _known(part) for key, part in value.items()}
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        log.warning("a result holds a %s, which JSON does not know; its text is printed", type(value).__name__)
        return str(value)
    return value


def instant(text: str) -> datetime:
    """An ISO 8601 time from the command line; naive means UTC."""
    try:
        found = instant_of(text)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"'{text}' is no time, such as 2026-03-01T06:00:00Z") from None
    if not _FIRST_YEAR <= found.year <= _LAST_YEAR:
        raise ArgumentTypeError(f"'{text}' is not in the years {_FIRST_YEAR} to {_LAST_YEAR}")
    return found


def positive(text: str) -> float:
    """Seconds from the command line, more than none."""
    found = _seconds(text)
    if not found > 0:
        raise ArgumentTypeError(f"'{text}' is not a number above zero")
    return found


def not_negative(text: str) -> float:
    """Seconds from the command line, or none."""
    found = _seconds(text)
    if not found >= 0:
        raise ArgumentTypeError(f"'{text}' is not a number of at least zero")
    return found


def _seconds(text: str) -> float:
    """Not a number where it is none. Up to a century: longer ones lead out of the calendar."""
    try:
        found = float(text)
    except ValueError:
        return float("nan")
    if found > _CENTURY_S:
        raise ArgumentTypeError(f"'{text}' seconds are more than a century")
    return found
