"""Numbers about runs: where they go is said by a URL. A sink that fails is a warning, and never stops a run."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from ematix_flow.config.secrets import expand_field
from ematix_flow.contracts.orchestration import MetricsSink
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError, InvalidConfig, closest, listed
from ematix_flow.watch.addresses import read_address, shown

log = logging.getLogger(__name__)

RUNS = "pipeline_runs_total"
DURATION = "pipeline_duration_seconds"
ATTEMPT = "pipeline_retry_attempt"
ROWS = "pipeline_rows_total"
LAST_SUCCESS = "pipeline_last_success_timestamp_seconds"
HELP = {
    RUNS: "runs by outcome",
    DURATION: "how long runs took",
    ATTEMPT: "failures in a row; 0 when all is well",
    ROWS: "rows that runs changed in their targets, by what was done to them",
    LAST_SUCCESS: "when the last run that went well ended",
}
_ROW_ACTIONS = ("inserted", "updated", "closed", "deleted")


@runtime_checkable
class DetailedMetrics(MetricsSink, Protocol):
    """A sink that takes everything we know. One of yours may do with less: the methods of `MetricsSink` are enough."""

    def add_rows(self, name: str, action: str, rows: int) -> None:
        """A run changed so many rows: inserted, updated, closed or deleted."""

    def set_last_success(self, name: str, at: float) -> None:
        """When a run ended well, in seconds since 1970."""

    def flush(self) -> None:
        """Hand over what is known so far; called after each run."""


class NullMetrics:
    """Nowhere."""

    def inc_runs(self, name: str, outcome: str) -> None:
        """Ignore it."""

    def observe_duration(self, name: str, secs: float) -> None:
        """Ignore it."""

    def set_attempt(self, name: str, count: int) -> None:
        """Ignore it."""

    def close(self) -> None:
        """Nothing is open."""


class StdoutMetrics:
    """A line per number, on stderr; stdout is for answers."""

    def inc_runs(self, name: str, outcome: str) -> None:
        """Write it."""
        _line(f"{RUNS}{{name={name},outcome={outcome}}} +1")

    def observe_duration(self, name: str, secs: float) -> None:
        """Write it."""
        _line(f"{DURATION}{{name={name}}} {secs:.4f}")

    def set_attempt(self, name: str, count: int) -> None:
        """Write it."""
        _line(f"{ATTEMPT}{{name={name}}} {count}")

    def add_rows(self, name: str, action: str, rows: int) -> None:
        """Write it."""
        _line(f"{ROWS}{{name={name},action={action}}} +{rows}")

    def set_last_success(self, name: str, at: float) -> None:
        """Write it."""
        _line(f"{LAST_SUCCESS}{{name={name}}} {at:.3f}")

    def flush(self) -> None:
        """Lines are written at once."""

    def close(self) -> None:
        """Nothing is open."""


class MemoryMetrics:
    """Kept in this process, for tests and notebooks.

    Attributes:
        counters: Runs by (pipeline, outcome).
        durations: Seconds of each run, by pipeline.
        attempts: Failures in a row, by pipeline.
        rows: Rows by (pipeline, action).
        last_success: Seconds since 1970, by pipeline.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counters: Counter[tuple[str, str]] = Counter()
        self.durations: dict[str, list[float]] = {}
        self.attempts: dict[str, int] = {}
        self.rows: Counter[tuple[str, str]] = Counter()
        self.last_success: dict[str, float] = {}

    def inc_runs(self, name: str, outcome: str) -> None:
        """Count it."""
        with self._lock:
            self.counters[name, outcome] += 1

    def observe_duration(self, name: str, secs: float) -> None:
        """Keep it."""
        with self._lock:
            self.durations.setdefault(name, []).append(secs)

    def set_attempt(self, name: str, count: int) -> None:
        """Keep it."""
        self.attempts[name] = count

    def add_rows(self, name: str, action: str, rows: int) -> None:
        """Count them."""
        with self._lock:
            self.rows[name, action] += rows

    def set_last_success(self, name: str, at: float) -> None:
        """Keep it."""
        self.last_success[name] = at

    def flush(self) -> None:
        """It is all here."""

    def close(self) -> None:
        """What was counted stays."""


def from_url(url: str) -> MetricsSink:
    """The sink that a URL means; a server listens when this returns.

    Raises:
        InvalidConfig: Unknown, or something is wrong with it.
        MissingDriver: (an ImportError) A library is not installed; the message says which extra has it.
        PortTaken: Somebody else listens there.
    """
    scheme, separator, _ = url.strip().partition("://")
    make = _KINDS.get(scheme.lower()) if separator else None
    if make is None:
        raise InvalidConfig(
            f"Metrics cannot be sent to '{shown(url)}'.",
            fix=closest(scheme, _KINDS) or f"known: {listed(f'{name}://' for name in _KINDS)}",
        )
    return make(url.strip())


def open_metrics(url: str | None, *, warn: Callable[[str], None] | None = None) -> MetricsSink:
    """The sink of a URL, `${…}` filled in; one that cannot be had is a warning, and the numbers go nowhere."""
    if not url:
        return NullMetrics()
    try:
        return from_url(expand_field(url))
    except FlowError as exc:
        fix = f" ({exc.fix})" if exc.fix else ""
        line = scrub(" ".join(f"no metrics: {exc.message}{fix} [{shown(url)}]".split()))
        if warn is None:
            log.warning("%s", line)
        else:
            warn(line)
        return NullMetrics()


def rows_of(result: Any) -> dict[str, int]:
    """How many rows a run changed, by action; summed over the targets of a run with several.

    >>> rows_of({"rows_inserted": 3, "rows_updated": 0, "rows_unchanged": 9})
    {'inserted': 3}
    >>> rows_of({"a": {"rows_inserted": 3}, "b": {"rows_inserted": 2, "rows_deleted": 1}})
    {'inserted': 5, 'deleted': 1}
    >>> rows_of({"rows": 3})
    {'processed': 3}
    """
    if not isinstance(result, Mapping):
        return {}
    nested = result.get("results")
    parts = [part for part in (nested if isinstance(nested, Mapping) else result).values() if isinstance(part, Mapping)]
    rows: Counter[str] = Counter()
    for part in [result, *parts]:
        for action in _ROW_ACTIONS:
            number = part.get(f"rows_{action}")
            if isinstance(number, int) and not isinstance(number, bool) and number > 0:
                rows[action] += number
    reported = reported_rows(result)
    if reported:
        rows["processed"] += reported
    return dict(rows)


def reported_rows(result: Mapping[str, Any]) -> int | None:
    """What a function that moves rows itself says about them: `{"rows": 3}`; None where a load has counted.

    >>> reported_rows({"rows": 3}), reported_rows({"rows": 3, "rows_inserted": 1}), reported_rows({"rows": True})
    (3, None, None)
    """
    number = result.get("rows")
    has_counted = any(str(name).startswith("rows_") for name in result)
    return number if isinstance(number, int) and not isinstance(number, bool) and not has_counted else None


def _null(url: str) -> MetricsSink:
    read_address(url)
    return NullMetrics()


def _stdout(url: str) -> MetricsSink:
    read_address(url)
    return StdoutMetrics()


def _memory(url: str) -> MetricsSink:
    read_address(url)
    return MemoryMetrics()


def _prometheus(url: str) -> MetricsSink:
    from ematix_flow.watch.metrics_prometheus import PrometheusMetrics

    return PrometheusMetrics(url)


def _textfile(url: str) -> MetricsSink:
    from ematix_flow.watch.metrics_handed_over import TextfileMetrics

    return TextfileMetrics(url)


def _pushgateway(url: str) -> MetricsSink:
    from ematix_flow.watch.metrics_handed_over import PushgatewayMetrics

    return PushgatewayMetrics(url)


def _otlp(url: str) -> MetricsSink:
    from ematix_flow.watch.metrics_otlp import OtlpMetrics

    return OtlpMetrics(url)


_KINDS: dict[str, Callable[[str], MetricsSink]] = {
    "null": _null,
    "stdout": _stdout,
    "memory": _memory,
    "prometheus": _prometheus,
    "textfile": _textfile,
    "pushgateway": _pushgateway,
    "pushgateway+https": _pushgateway,
    "otlp": _otlp,
    "otlp+grpc": _otlp,
    "otlp+grpcs": _otlp,
    "otlp+http": _otlp,
    "otlp+https": _otlp,
}


def _line(text: str) -> None:
    sys.stderr.write(f"[METRIC] {text}\n")
    sys.stderr.flush()
