"""`flow freshness-check`: whether pipelines succeeded as lately as their `freshness_sla=` promises."""

from __future__ import annotations

import os
from argparse import Namespace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from ematix_flow.cli.declared import add_module, load
from ematix_flow.cli.run_log_options import add_run_log, run_log_for_reading
from ematix_flow.cli.watch_options import add_watching, watching

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

_VARIABLE = "EMATIX_FLOW_ANALYTICS_DB"


def configure(parser: CommandParser) -> None:
    """The module, the run log, and who is told."""
    add_module(parser)
    add_run_log(parser, may_be_off=False)
    add_watching(parser)
    parser.add_argument(
        "--analytics-db",
        metavar="FILE",
        help=f"a SQLite file whose table freshness_state keeps the answer; default: ${_VARIABLE}, else none",
    )
    parser.say(
        "exit codes: 0 all promises are kept, 1 one is not, 2 the command or the configuration is wrong",
        example="flow freshness-check --module my_pipelines --alerter 'slack://${SLACK_WEBHOOK}'",
        then="flow status --module my_pipelines   what the late ones wait for",
    )


def run(args: Namespace, console: Console) -> int:
    """Look once; a breach is told once, also across calls."""
    from ematix_flow.orchestrate.freshness import check_freshness, declared_slas
    from ematix_flow.orchestrate.freshness_table import write_states

    load(args.module)
    slas = declared_slas()
    with run_log_for_reading(args) as log, watching(args, console, log) as telling:
        states = check_freshness(slas, log, telling, now=datetime.now(timezone.utc))
    analytics = args.analytics_db or os.environ.get(_VARIABLE)
    if analytics:
        write_states(analytics, states)
    if console.is_json:
        console.json([state.to_dict() for state in states])
    elif not states:
        console.line("no freshness SLOs registered")
    for state in states if not console.is_json else ():
        lag = "never" if state.lag_seconds is None else f"{state.lag_seconds}s"
        console.line(f"{state.pipeline}  {state.state}  lag={lag}  sla={state.sla_seconds:g}s")
    return 1 if any(state.state == "breached" for state in states) else 0
