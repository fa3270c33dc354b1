"""`--alerter`, `--metrics` and `--traces`: who is told of the runs of a command, and how options become that.

An option wins over its variable: `EMATIX_FLOW_ALERTERS` (URLs with commas between), `EMATIX_FLOW_METRICS`,
`EMATIX_FLOW_TRACES`. A `${…}` in a URL is filled in when it is used, so that no secret stands in a process list.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ematix_flow.config.secrets import expand_field
from ematix_flow.watch.alerters import open_alerters, registered, split_urls
from ematix_flow.watch.metrics import open_metrics
from ematix_flow.watch.openlineage import VARIABLE as LINEAGE_VARIABLE, use_lineage
from ematix_flow.watch.telling import Telling
from ematix_flow.watch.traces import close_traces, configure_tracer_from_url

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.contracts.orchestration import RunLog

ALERTERS_VARIABLE = "EMATIX_FLOW_ALERTERS"
METRICS_VARIABLE = "EMATIX_FLOW_METRICS"
TRACES_VARIABLE = "EMATIX_FLOW_TRACES"


def add_watching(parser: ArgumentParser) -> None:
    """The three options."""
    group = parser.add_argument_group(
        "alerts, metrics, traces", f"default: ${ALERTERS_VARIABLE}, ${METRICS_VARIABLE}, ${TRACES_VARIABLE}"
    )
    group.add_argument(
        "--alerter",
        action="append",
        metavar="URL",
        help="stdout://, slack://…, https://…, email://…, pagerduty://…; may be repeated",
    )
    group.add_argument(
        "--metrics",
        metavar="URL",
        help="stdout://, prometheus://:9100, textfile:///path.prom, pushgateway://host:9091, otlp://host:4317",
    )
    group.add_argument("--lineage", metavar="URL", help="OpenLineage events: file:///path.jsonl, http://host:port")
    group.add_argument("--traces", metavar="URL", help="otel://stdout, otel+otlp+grpc://host:4317, otel+otlp+http://…")


def alerter_urls(args: Namespace) -> tuple[str, ...]:
    """The URLs of the alerters that are meant, as written; a scheduler hands them to its workers."""
    return tuple(args.alerter) if args.alerter else split_urls(os.environ.get(ALERTERS_VARIABLE, ""))


def metrics_url(args: Namespace) -> str | None:
    """The URL of the metrics that are meant, as written."""
    return args.metrics or os.environ.get(METRICS_VARIABLE) or None


def traces_url(args: Namespace) -> str | None:
    """The URL of the traces that are meant, as written."""
    return args.traces or os.environ.get(TRACES_VARIABLE) or None


def worker_environment(args: Namespace) -> dict[str, str]:
    """What workers of this command find in their environment, besides alerters and metrics, which they are handed."""
    wanted = {TRACES_VARIABLE: traces_url(args), LINEAGE_VARIABLE: args.lineage or os.environ.get(LINEAGE_VARIABLE)}
    return {name: url for name, url in wanted.items() if url}


@contextmanager
def watching(args: Namespace, console: Console, log: RunLog | None) -> Iterator[Telling]:
    """What the options say, for as long as the block runs; what is left is sent at its end.

    A bad alerter or bad metrics are a warning each, bad traces an error: spans that nobody gets look like none.

    Raises:
        InvalidConfig: Traces cannot be sent there.
        MissingDriver: OpenTelemetry is not installed.
    """
    traces = traces_url(args)
    if traces:
        configure_tracer_from_url(expand_field(traces))
    alerters = open_alerters(alerter_urls(args), warn=console.warning)
    metrics = open_metrics(metrics_url(args), warn=console.warning)
    telling = Telling(alerters, metrics, log)
    try:
        with registered(alerters), use_lineage(args.lineage and expand_field(args.lineage)):
            yield telling
    finally:
        telling.close()
        close_traces()
