"""Numbers for Prometheus: plain data with an exposition, and a server that is asked for it."""

from __future__ import annotations

import os
import tempfile
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ematix_flow.errors import InvalidConfig, MissingDriver, PortTaken
from ematix_flow.watch.addresses import read_address
from ematix_flow.watch.metrics import ATTEMPT, DURATION, HELP, LAST_SUCCESS, ROWS, RUNS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# Those of Prometheus' clients, and some for pipelines that take minutes and hours.
BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0),
)
_SIBLINGS = {
    "success": ("failure",),
    "failure": ("success",),
    "dispatched": ("dispatch_failed", "lease_expired"),
}
_BOUNDS = (*map(str, BUCKETS), "+Inf")


class RunNumbers:
    """All numbers of one sink. It is a sink itself, the part that counts; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.runs: Counter[tuple[str, str]] = Counter()
        self.rows: Counter[tuple[str, str]] = Counter()
        self.buckets: dict[str, list[int]] = {}
        self.seconds: dict[str, float] = {}
        self.attempts: dict[str, float] = {}
        self.last_success: dict[str, float] = {}

    def inc_runs(self, name: str, outcome: str) -> None:
        """One run more with that outcome."""
        with self._lock:
            self.runs[name, outcome] += 1

    def observe_duration(self, name: str, secs: float) -> None:
        """How long one took."""
        with self._lock:
            self.buckets.setdefault(name, [0] * len(_BOUNDS))[bisect_left(BUCKETS, secs)] += 1
            self.seconds[name] = self.seconds.get(name, 0.0) + secs

    def set_attempt(self, name: str, count: int) -> None:
        """Failures in a row."""
        with self._lock:
            self.attempts[name] = count

    def add_rows(self, name: str, action: str, rows: int) -> None:
        """Rows that a run changed."""
        with self._lock:
            self.rows[name, action] += rows

    def set_last_success(self, name: str, at: float) -> None:
        """When a run ended well."""
        with self._lock:
            self.last_success[name] = at

    def is_empty(self) -> bool:
        """Whether nothing has been counted."""
        return not (self.runs or self.rows or self.buckets or self.attempts or self.last_success)

    def plus(self, later: RunNumbers) -> RunNumbers:
        """These and later ones together: counts are added, the later state counts."""
        both = RunNumbers()
        both.runs, both.rows = self.runs + later.runs, self.rows + later.rows
        nothing = [0] * len(_BOUNDS)
        for name in {**self.buckets, **later.buckets}:
            pair = zip(self.buckets.get(name, nothing), later.buckets.get(name, nothing), strict=True)
            both.buckets[name] = [before + after for before, after in pair]
            both.seconds[name] = self.seconds.get(name, 0.0) + later.seconds.get(name, 0.0)
        both.attempts = {**self.attempts, **later.attempts}
        both.last_success = dict(self.last_success)
        for name, at in later.last_success.items():
            both.last_success[name] = max(at, both.last_success.get(name, at))
        return both

    def families(self) -> Iterator[Metric]:
        """Every series, as Prometheus' client wants them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        with self._lock:
            runs = CounterMetricFamily(RUNS, HELP[RUNS], labels=["pipeline", "outcome"])
            for labels, number in sorted({**_not_yet(self.runs), **self.runs}.items()):
                runs.add_metric(labels, number)
            rows = CounterMetricFamily(ROWS, HELP[ROWS], labels=["pipeline", "action"])
            for labels, number in sorted(self.rows.items()):
                rows.add_metric(labels, number)
            durations = HistogramMetricFamily(DURATION, HELP[DURATION], labels=["pipeline"])
            for name, counts in sorted(self.buckets.items()):
                durations.add_metric([name], list(_cumulated(counts)), self.seconds[name])
            attempts = GaugeMetricFamily(ATTEMPT, HELP[ATTEMPT], labels=["pipeline"])
            for name, count in sorted(self.attempts.items()):
                attempts.add_metric([name], count)
            successes = GaugeMetricFamily(LAST_SUCCESS, HELP[LAST_SUCCESS], labels=["pipeline"])
            for name, at in sorted(self.last_success.items()):
                successes.add_metric([name], at)
        yield from (runs, durations, attempts, rows, successes)

    def exposition(self) -> bytes:
        """What Prometheus reads."""
        from prometheus_client import generate_latest

        return bytes(generate_latest(_registry(lambda: self)))


def read_numbers(text: str, labels: Mapping[str, str] | None = None) -> RunNumbers:
    """The numbers of an exposition; with labels only those of series that have them.

    Raises:
        ValueError: It is no exposition.
    """
    from prometheus_client.parser import text_string_to_metric_families

    numbers = RunNumbers()
    cumulated: dict[str, dict[str, float]] = {}
    wanted = (labels or {}).items()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.labels.get("pipeline")
            if name is None or not wanted <= sample.labels.items():
                continue
            if sample.name == RUNS:
                numbers.runs[name, sample.labels.get("outcome", "")] += int(sample.value)
            elif sample.name == ROWS:
                numbers.rows[name, sample.labels.get("action", "")] += int(sample.value)
            elif sample.name == ATTEMPT:
                numbers.attempts[name] = sample.value
            elif sample.name == LAST_SUCCESS:
                numbers.last_success[name] = sample.value
            elif sample.name == f"{DURATION}_bucket":
                cumulated.setdefault(name, {})[sample.labels["le"]] = sample.value
            elif sample.name == f"{DURATION}_sum":
                numbers.seconds[name] = sample.value
    for name, counts in cumulated.items():
        if set(counts) == set(_BOUNDS):  # other bounds than ours: of another version, and not to be added to
            steps = [0.0, *(counts[bound] for bound in _BOUNDS)]
            numbers.buckets[name] = [int(after - before) for before, after in zip(steps, steps[1:], strict=False)]
        else:
            numbers.seconds.pop(name, None)
    return numbers


class PrometheusMetrics(RunNumbers):
    """Served as `/metrics` while this process lives.

    Args:
        url: `prometheus://:9100` listens on every address of this machine, `prometheus://127.0.0.1:9100` on one;
            `prometheus://` only counts. Port 0 takes a free one.

    Attributes:
        port: The port it listens on.
    """

    def __init__(self, url: str = "prometheus://") -> None:
        super().__init__()
        needs_prometheus()
        address = read_address(url)
        self.port: int | None = None
        self._of_workers: Path | None = None
        self._server: tuple[Any, threading.Thread] | None = None
        if address.port is None:
            if address.host:
                raise InvalidConfig("This URL names no port.", where=address.shown, fix="prometheus://:9100")
            return
        from prometheus_client import start_http_server

        host = address.host or "0.0.0.0"
        try:
            self._server = start_http_server(address.port, host, registry=_registry(self._all))
        except OSError as exc:
            raise PortTaken(
                f"Metrics cannot be served on {address.server()}: {exc.strerror or exc}.",
                fix="choose another port, or for processes that end: textfile:///path.prom, pushgateway://host:9091",
            ) from exc
        self.port = int(self._server[0].server_port)

    def for_workers(self) -> str:
        """The URL for processes of this host that end before Prometheus asks: their numbers are served here, too.

        The file stays when this process ends, so that workers that outlive it are counted by the next one.
        """
        name = f"workers-{self.port or 0}.prom"
        try:
            folder = Path("~/.ematix-flow/metrics").expanduser()
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                raise PermissionError(folder)
        except (OSError, RuntimeError):  # no home, or one that cannot be written to
            folder = Path(tempfile.mkdtemp(prefix="ematix-flow-metrics-"))
        self._of_workers = folder / name
        return f"textfile://{quote(str(self._of_workers))}"

    def _all(self) -> RunNumbers:
        """These numbers and those of workers."""
        if self._of_workers is None:
            return self
        try:
            theirs = read_numbers(self._of_workers.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError):  # none has ended yet, or it is not theirs; ours are served all the same
            return self
        with self._lock:
            return self.plus(theirs)

    def flush(self) -> None:
        """Prometheus asks when it wants to."""

    def close(self) -> None:
        """Listen no more."""
        server, self._server = self._server, None
        if server is not None:
            server[0].shutdown()
            server[0].server_close()
            server[1].join()


def needs_prometheus() -> None:
    """Raises MissingDriver where Prometheus' client is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError as exc:
        raise MissingDriver(
            "Metrics for Prometheus need 'prometheus-client'.", fix='pip install "ematix-flow[metrics-prometheus]"'
        ) from exc


def _registry(numbers: Callable[[], RunNumbers]) -> Any:
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

    class OfTheNumbers(Collector):
        """Asks whenever somebody asks us."""

        def collect(self) -> Iterable[Metric]:
            return numbers().families()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(OfTheNumbers())
    return registry


def _not_yet(runs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Outcomes that may come, at 0: a counter that begins at 1 has not risen, as Prometheus sees it."""
    return {(name, sibling): 0 for name, outcome in runs for sibling in _SIBLINGS.get(outcome, ())}


def _cumulated(counts: list[int]) -> Iterator[tuple[str, float]]:
    """Prometheus wants each bucket to hold the smaller ones too."""
    total = 0
    for bound, number in zip(_BOUNDS, counts, strict=True):
        total += number
        yield bound, total
