"""Numbers of a running stream for Prometheus: `GET /metrics` on a port of this machine, as long as the stream lives.

Nothing is counted here: every question is answered from the `StreamWatch`. All names are there from the start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

from ematix_flow.contracts.streams import BATCH_SECONDS
from ematix_flow.errors import InvalidConfig, MissingDriver, PortTaken
from ematix_flow.run.stream_watch import StreamView, StreamWatch

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "ematix_streaming_"
ADDRESS = "127.0.0.1"


def _count(name: str, view: StreamView) -> int:
    return view.counts[name]


_COUNTERS: tuple[tuple[str, str, Callable[[StreamView], int]], ...] = (
    ("rows_consumed", "messages that were read and are done with", lambda view: view.counts["rows_consumed"]),
    ("rows_written", "rows that targets took", lambda view: view.counts["rows_written"]),
    ("rows_dropped", "unreadable messages and rows of groups too many", lambda view: view.counts["rows_dropped"]),
    ("batches", "micro-batches that all targets hold", lambda view: view.counts["batches"]),
    ("iterations", "the same as batches, under its documented name", lambda view: view.counts["batches"]),
    ("errors", "failures", lambda view: view.counts["errors"]),
    ("dlq_writes", "messages that were set aside as dead letters", lambda view: view.counts["dead_letters"]),
    ("messages_lost", "messages gone before they were read", lambda view: view.counts["messages_lost"]),
    ("lookup_refreshes", "lookups that were read again", lambda view: view.counts["lookup_refreshes"]),
    ("lookup_failures", "refreshes that failed; the old rows stay", lambda view: view.counts["lookup_failures"]),
    ("idle_iterations", "looks at the stream that found it waiting", lambda view: view.idle),
    ("windows_emitted", "windows and sessions that came out", lambda view: view.counts["windows_emitted"]),
    ("restarts", "starts after a failure", lambda view: view.restarts),
    *(
        (f"cdc_{name}", f"changes: {name.replace('_', ' ')}", partial(_count, f"cdc_{name}"))
        for name in ("creates", "updates", "deletes", "skipped", "idempotent_skipped")
    ),
)
_GAUGES: tuple[tuple[str, str, Callable[[StreamView], float]], ...] = (
    ("stalled", "1 while messages wait and no batch ends", lambda view: float(view.phase == "stalled")),
    ("up", "1 while the stream runs", lambda view: float(view.phase in ("running", "waiting", "stalled"))),
    ("last_success_timestamp_seconds", "when a batch was done last; 0 before", lambda view: view.last_success_at or 0),
    ("last_batch_duration_seconds", "how long the last batch took", lambda view: view.last_batch_s or 0),
    ("rows_written_per_second", "over the last minute", lambda view: view.rows_per_s),
    ("state_rows", "rows that are remembered beyond a batch", lambda view: view.state_rows),
    ("state_bytes", "memory of what is remembered", lambda view: view.state_bytes),
    ("state_oldest_event_seconds", "its oldest event time; 0 without one", lambda view: view.oldest_event or 0),
    ("windows_active", "windows and sessions that may still get rows", lambda view: view.open_windows),
    ("state_groups_total", "groups of windows that may still get rows", lambda view: view.held.get("groups", 0)),
    ("state_keys", "keys of which something is remembered", lambda view: view.held.get("keys", 0)),
    ("watermark_delay_seconds", "how far event time is behind the clock; 0 without event time", lambda v: _delay(v)),
    ("global_watermark_micros", "event time in microseconds; 0 without", lambda view: (view.watermark or 0) * 1e6),
)


@contextmanager
def served(watch: StreamWatch, port: int | None) -> Iterator[int | None]:
    """Serve the stream's numbers while the block runs; nothing without a port. Port 0 takes a free one.

    Yields:
        The port.

    Raises:
        MissingDriver: the client of Prometheus is not installed.
        PortTaken: somebody else listens there.
    """
    if port is None:
        yield None
        return
    server = _server(watch, port)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _server(watch: StreamWatch, port: int) -> ThreadingHTTPServer:
    text_of = _exposition(watch)

    class Answers(BaseHTTPRequestHandler):
        """`/metrics`, and nothing else."""

        def do_GET(self) -> None:
            is_known = self.path.partition("?")[0] == "/metrics"
            body = text_of() if is_known else b"only /metrics is here\n"
            self.send_response(200 if is_known else 404)
            kind = "text/plain; version=0.0.4; charset=utf-8" if is_known else "text/plain; charset=utf-8"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing: somebody asks every few seconds."""

    if not 0 <= port <= 65_535:
        raise InvalidConfig(f"{port} is no port.", fix="--metrics-port takes a number from 1 to 65535")
    try:
        return ThreadingHTTPServer((ADDRESS, port), Answers)
    except OSError as exc:
        raise PortTaken(
            f"Metrics cannot be served on {ADDRESS}:{port}: {exc.strerror}.",
            fix="choose another port with --metrics-port, or stop what listens there",
        ) from exc


def _exposition(watch: StreamWatch) -> Callable[[], bytes]:
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.registry import Collector
    except ImportError as exc:
        raise MissingDriver(
            "Metrics need 'prometheus-client'.", fix='pip install "ematix-flow[metrics-prometheus]"'
        ) from exc

    class OfTheWatch(Collector):
        """Asks the watch whenever Prometheus asks us."""

        def collect(self) -> Iterable[Metric]:
            return families(watch.view())

    registry = CollectorRegistry(auto_describe=False)
    registry.register(OfTheWatch())
    return lambda: generate_latest(registry)


def families(view: StreamView) -> Iterator[Metric]:
    """Every series of a stream at one moment."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    own = [view.pipeline]
    for name, help_text, value in _COUNTERS:
        counter = CounterMetricFamily(PREFIX + name, help_text, labels=["pipeline"])
        counter.add_metric(own, value(view))
        yield counter
    for name, help_text, number in _GAUGES:
        gauge = GaugeMetricFamily(PREFIX + name, help_text, labels=["pipeline"])
        gauge.add_metric(own, number(view))
        yield gauge
    late = CounterMetricFamily(
        PREFIX + "late_rows_dropped", "rows that came after their window was closed", labels=["pipeline", "policy"]
    )
    late.add_metric([*own, view.late_policy], view.counts["late_rows"])
    yield late
    watermark = GaugeMetricFamily(
        PREFIX + "watermark_seconds", "event time in seconds since 1970", labels=["pipeline", "source"]
    )
    if view.watermark is not None:
        watermark.add_metric([*own, "_global"], view.watermark)
    by_source = GaugeMetricFamily(
        PREFIX + "per_source_watermark_micros", "event time in microseconds since 1970", labels=["pipeline", "source"]
    )
    for source, seconds in view.source_watermarks.items():
        watermark.add_metric([*own, source], seconds)
        by_source.add_metric([*own, source], round(seconds * 1e6))
    yield watermark
    yield by_source
    lag = GaugeMetricFamily(
        PREFIX + "lag", "messages that wait in one part of a source", labels=["pipeline", "source", "partition"]
    )
    held = GaugeMetricFamily(
        PREFIX + "source_held_bytes", "what a source keeps for the stream", labels=["pipeline", "source", "partition"]
    )
    limit = GaugeMetricFamily(
        PREFIX + "source_held_limit_bytes", "what a source may keep at most", labels=["pipeline", "source", "partition"]
    )
    for source, parts in view.lag.items():
        for part in parts:
            lag.add_metric([*own, source, part.part], part.behind)
            if part.held_bytes is not None:
                held.add_metric([*own, source, part.part], part.held_bytes)
            if part.held_limit is not None:
                limit.add_metric([*own, source, part.part], part.held_limit)
    yield lag
    yield held
    yield limit
    durations = HistogramMetricFamily(
        PREFIX + "batch_duration_seconds", "how long batches took, to the last target", labels=["pipeline"]
    )
    durations.add_metric(own, list(_cumulated(view)), view.batch_seconds_sum)
    yield durations


def _cumulated(view: StreamView) -> Iterator[tuple[str, float]]:
    """Prometheus wants each bucket to hold the smaller ones too."""
    total = 0
    for bound, number in zip([*map(str, BATCH_SECONDS), "+Inf"], view.batch_seconds, strict=True):
        total += number
        yield bound, total


def _delay(view: StreamView) -> float:
    return 0.0 if view.watermark is None else max(time.time() - view.watermark, 0.0)
