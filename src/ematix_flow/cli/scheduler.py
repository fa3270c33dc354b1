"""`flow scheduler`: a daemon that hands due pipelines to workers. Several may watch one run log."""

from __future__ import annotations

import logging
import signal
import threading
from argparse import ArgumentTypeError, Namespace
from functools import partial
from typing import TYPE_CHECKING

from ematix_flow.cli.declared import add_module, load
from ematix_flow.cli.run_due import claimable, not_negative, positive, stopping
from ematix_flow.cli.run_log_options import add_run_log
from ematix_flow.cli.watch_options import add_watching, alerter_urls, metrics_url, watching, worker_environment
from ematix_flow.errors import ConnectionFailed, InvalidConfig

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser
    from ematix_flow.contracts.orchestration import Executor
    from ematix_flow.watch.telling import Telling

DEFAULT_EXECUTOR = "subprocess+python://"


def configure(parser: CommandParser) -> None:
    """What to run, where, and how patiently."""
    add_module(parser)
    parser.add_argument(
        "--executor",
        default=DEFAULT_EXECUTOR,
        metavar="URL",
        help="subprocess://, subprocess+python:// (default), workers://?count=2, k8s://namespace?image=…, lambda://name",
    )
    for name, default, what in (
        ("--poll-interval", 10.0, "seconds between two looks at the run log"),
        ("--lease-seconds", 300.0, "a worker that is silent for so long has lost its pipeline"),
        ("--leader-lease-seconds", 60.0, "a scheduler that is silent for so long has lost the lead"),
        ("--interval", 60.0, "fire times that passed longer ago count as missed; at least leader lease and two polls"),
    ):
        parser.add_argument(name, type=positive, default=default, metavar="S", help=f"{what} (default {default:g})")
    parser.add_argument(
        "--max-concurrency", type=_count, metavar="N", help="so many pipelines at a time (default: any)"
    )
    parser.add_argument("--max-iterations", type=_count, metavar="N", help="end after so many ticks")
    parser.add_argument(
        "--drain-seconds",
        type=not_negative,
        default=0.0,
        metavar="S",
        help="when told to stop, wait so long for workers (default 0: they finish on their own)",
    )
    parser.add_argument("--worker-id", metavar="ID", help="the name of this scheduler in the run log")
    parser.add_argument("--health-port", type=_port, metavar="P", help="serve /healthz and /readyz on 127.0.0.1")
    parser.add_argument("--health-bind", default="127.0.0.1", metavar="ADDRESS", help="… on this address instead")
    add_run_log(parser, may_be_off=False)
    add_watching(parser)
    parser.say(
        "SIGTERM ends the tick, gives the lead back and lets workers finish. exit codes: 0 told to stop, 2 bad input",
        example="flow scheduler --module my_pipelines --executor workers://?count=2 --run-log postgresql://…",
        then="flow status --module my_pipelines, flow runs list, flow pause NAME",
    )


def run(args: Namespace, console: Console) -> int:
    """Tick until told to stop."""
    from ematix_flow.orchestrate.executors.open import executor_from_url
    from ematix_flow.orchestrate.health import serving_health
    from ematix_flow.orchestrate.reloading import WatchedModule
    from ematix_flow.orchestrate.scheduler import Scheduler, SchedulerSettings
    from ematix_flow.run.runlogs.open import run_log_url, written_run_log
    from ematix_flow.run.runlogs.urls import from_url

    chosen = args.run_log_url or args.run_log_path
    url = run_log_url(chosen)
    try:
        store = claimable(from_url(url))  # strictly: without a run log everything would start in every tick
    except ConnectionFailed as exc:
        raise InvalidConfig(f"A scheduler cannot work without its run log. {exc.message}", fix=exc.fix) from exc
    if store is None:
        raise InvalidConfig(
            "A scheduler needs a run log that can hold claims.", fix="one in SQLite, PostgreSQL or MySQL"
        )
    if url.startswith(("memory://", "duckdb://")):
        store.close()
        where = "in memory" if url.startswith("memory://") else "in DuckDB, which gives a file to one process,"
        raise InvalidConfig(f"A run log {where} is not seen by workers.", fix="sqlite:///path or postgresql://…")
    module = WatchedModule(args.module, partial(load, args.module))
    executor = executor_from_url(args.executor)
    if "${" in written_run_log(chosen) and args.executor.startswith(("k8s://", "lambda://")):
        console.note(
            "the run log's URL goes to workers as it is written: what it refers to must be known to each of them"
        )
    logging.getLogger("ematix_flow.scheduler").setLevel(logging.INFO)
    stop = threading.Event()
    with watching(args, console, store) as telling, stopping(stop, signal.SIGTERM, signal.SIGINT):
        settings = SchedulerSettings(
            module=args.module,
            run_log_url=written_run_log(chosen),  # as written: a secret in it is the worker's to look up
            alerter_urls=alerter_urls(args),
            metrics_url=_metrics_of_workers(args, telling, executor),
            poll_s=args.poll_interval,
            lease_s=args.lease_seconds,
            leader_lease_s=args.leader_lease_seconds,
            interval_s=args.interval,
            max_concurrency=args.max_concurrency,
            worker_env=worker_environment(args),
        )
        scheduler = Scheduler(settings, store, executor, telling, worker_id=args.worker_id, refresh=module.refreshed)
        with serving_health(scheduler.pulse, settings.poll_s, args.health_bind, args.health_port) as port:
            if port is not None:
                console.note(f"health: http://{args.health_bind}:{port}/healthz")
            scheduler.run(stop, max_iterations=args.max_iterations)
    close = getattr(executor, "close", None)
    if close is not None:
        close(args.drain_seconds)
    store.close()
    return 0


def _metrics_of_workers(args: Namespace, telling: Telling, executor: Executor) -> str | None:
    """Where workers send their numbers. A port has one listener: workers of this host hand theirs to that."""
    url = metrics_url(args)
    is_here = getattr(executor, "backend", "") in ("subprocess", "workers")
    if not is_here or url is None or not url.startswith("prometheus://"):
        return url
    for_workers = getattr(telling.metrics, "for_workers", None)
    return for_workers() if for_workers is not None else "null://"


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"'{text}' is not a number above zero")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise ArgumentTypeError(f"'{text}' is no port; 0 takes a free one")
    return int(text)
