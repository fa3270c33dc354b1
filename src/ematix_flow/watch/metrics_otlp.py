"""Numbers for an OpenTelemetry collector, by OTLP over gRPC or HTTP. Names and labels are those of Prometheus."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ematix_flow.errors import InvalidConfig, MissingDriver
from ematix_flow.watch.addresses import Address, read_address
from ematix_flow.watch.metrics import ATTEMPT, DURATION, HELP, LAST_SUCCESS, ROWS, RUNS

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

SERVICE = "ematix-flow"
TIMEOUT_S = 5
_EVERY_MS = 15_000
_PORTS = {"grpc": 4317, "http": 4318}


class OtlpMetrics:
    """Sends every quarter of a minute, and when it is closed.

    Args:
        url: `otlp://host:4317` and `otlp+grpc://` by gRPC, `otlp+http://host:4318` by HTTP; `otlp+grpcs://` and
            `otlp+https://` with TLS. Headers, for a login, come from OpenTelemetry's own `OTEL_EXPORTER_OTLP_HEADERS`.
    """

    def __init__(self, url: str) -> None:
        exporter = _exporter(url)
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        reader = PeriodicExportingMetricReader(
            exporter, export_interval_millis=_EVERY_MS, export_timeout_millis=TIMEOUT_S * 1000
        )
        self._provider = MeterProvider(metric_readers=[reader], resource=resource())
        self._is_open = True
        self._attempts: dict[str, int] = {}
        self._last_success: dict[str, float] = {}
        meter = self._provider.get_meter("ematix_flow")
        self._runs = meter.create_counter(RUNS, description=HELP[RUNS])
        self._rows = meter.create_counter(ROWS, description=HELP[ROWS])
        self._durations = meter.create_histogram(DURATION, unit="s", description=HELP[DURATION])
        meter.create_observable_gauge(ATTEMPT, [_states(self._attempts)], description=HELP[ATTEMPT])
        meter.create_observable_gauge(
            LAST_SUCCESS, [_states(self._last_success)], unit="s", description=HELP[LAST_SUCCESS]
        )

    def inc_runs(self, name: str, outcome: str) -> None:
        """One run more with that outcome."""
        self._runs.add(1, {"pipeline": name, "outcome": outcome})

    def observe_duration(self, name: str, secs: float) -> None:
        """How long one took."""
        self._durations.record(secs, {"pipeline": name})

    def set_attempt(self, name: str, count: int) -> None:
        """Failures in a row."""
        self._attempts[name] = count

    def add_rows(self, name: str, action: str, rows: int) -> None:
        """Rows that a run changed."""
        self._rows.add(rows, {"pipeline": name, "action": action})

    def set_last_success(self, name: str, at: float) -> None:
        """When a run ended well."""
        self._last_success[name] = at

    def flush(self) -> None:
        """The next sending is near."""

    def close(self) -> None:
        """Send what is left."""
        if self._is_open:
            self._is_open = False
            self._provider.shutdown(timeout_millis=TIMEOUT_S * 1000)


def resource() -> Any:
    """Who speaks: `service.name`, and what `OTEL_RESOURCE_ATTRIBUTES` says."""
    from opentelemetry.sdk.resources import Resource

    return Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": SERVICE})


def otlp_address(url: str, prefix: str = "") -> tuple[Address, str, bool]:
    """Where a URL of OTLP leads: its address, `grpc` or `http`, and whether with TLS.

    Raises:
        InvalidConfig: No host, a way that OTLP does not know, or a login.
    """
    address = read_address(url)
    way = address.scheme.removeprefix(prefix)
    ways = {"otlp": ("grpc", False)} if not prefix else {}
    ways |= {"otlp+grpc": ("grpc", False), "otlp+grpcs": ("grpc", True)}
    ways |= {"otlp+http": ("http", False), "otlp+https": ("http", True)}
    if way not in ways or not address.host:
        raise InvalidConfig(
            f"'{address.shown}' is no place for OTLP.",
            fix=f"{prefix}otlp+grpc://host:4317 or {prefix}otlp+http://host:4318",
        )
    if address.user is not None:
        raise InvalidConfig(
            "OTLP has no login in its URL.", where=address.shown, fix="OTEL_EXPORTER_OTLP_HEADERS=authorization=…"
        )
    return address, *ways[way]


def otlp_endpoint(address: Address, way: str, is_tls: bool, signal: str) -> str:
    """The URL that an exporter is given; by HTTP each signal has a path of its own."""
    path = address.path.rstrip("/")
    if way == "http" and not path.endswith(f"/v1/{signal}"):
        path = f"{path}/v1/{signal}"
    return f"{'https' if is_tls else 'http'}://{address.server(_PORTS[way])}{path}"


def missing_otel() -> MissingDriver:
    """The error that names the extra."""
    return MissingDriver("OTLP needs OpenTelemetry's SDK and exporters.", fix='pip install "ematix-flow[metrics-otel]"')


def _exporter(url: str) -> Any:
    address, way, is_tls = otlp_address(url)
    endpoint = otlp_endpoint(address, way, is_tls, "metrics")
    try:
        if way == "http":
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as ByHttp

            return ByHttp(endpoint=endpoint, timeout=TIMEOUT_S)
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as ByGrpc

        return ByGrpc(endpoint=endpoint, insecure=not is_tls, timeout=TIMEOUT_S)
    except ImportError as exc:
        raise missing_otel() from exc


def _states(known: dict[str, Any]) -> Any:
    def observed(_: CallbackOptions) -> Iterable[Observation]:
        from opentelemetry.metrics import Observation

        return [Observation(value, {"pipeline": name}) for name, value in dict(known).items()]

    return observed
