"""Traces: a span for each run, and one below it for each of its steps, as OpenTelemetry knows them.

Any object with `start_as_current_span(name, attributes=…)` is a tracer. Without one, nothing is traced and nothing is
loaded.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from ematix_flow.contracts.runtime import StepStatus
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError, InvalidConfig
from ematix_flow.watch.addresses import shown
from ematix_flow.watch.metrics_otlp import TIMEOUT_S, missing_otel, otlp_address, otlp_endpoint, resource

log = logging.getLogger(__name__)

RUN_SPAN = "flow.pipeline.run"
STEP_SPAN = "flow.step"


class Tracer(Protocol):
    """Who opens spans."""

    def start_as_current_span(self, name: str, *, attributes: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """A span for the length of a block."""


# ── the tracer of this process ───────────────────────────────────────────────────────────────────────────────────────

_lock = threading.Lock()
_tracer: Tracer | None = None
_provider: Any = None


def set_global_tracer(tracer: Tracer | None) -> None:
    """Trace every run of this process with it; None traces nothing."""
    global _tracer
    with _lock:
        _tracer = tracer


def get_global_tracer() -> Tracer | None:
    """The tracer of this process, if there is one."""
    return _tracer


def configure_tracer_from_url(url: str) -> Tracer:
    """Make a tracer, and make it the one of this process. Spans are sent on the way, and at the latest when it ends.

    Args:
        url: `otel://stdout` (lines on stderr), `otel+otlp+grpc://host:4317`, `otel+otlp+http://host:4318`; with
            `grpcs` and `https` by TLS.

    Raises:
        InvalidConfig: It is none of these.
        MissingDriver: (an ImportError) OpenTelemetry's SDK is not installed.
    """
    processor = _processor(url)
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider(resource=resource())  # it shuts itself down when the interpreter ends
    provider.add_span_processor(processor)
    close_traces()
    global _provider
    with _lock:
        _provider = provider
    tracer: Tracer = provider.get_tracer("ematix_flow")
    set_global_tracer(tracer)
    return tracer


def flush_traces() -> None:
    """Send what is known so far; called after a run by processes that live on."""
    if _provider is not None:
        _provider.force_flush(timeout_millis=TIMEOUT_S * 1000)


def close_traces() -> None:
    """Send what is left and trace no more; only what `configure_tracer_from_url` began."""
    global _provider
    with _lock:
        provider, _provider = _provider, None
    if provider is not None:
        set_global_tracer(None)
        try:
            provider.shutdown()
        except Exception as exc:  # spans never change how a command ends
            log.warning("%s", scrub(f"not all spans were sent: {type(exc).__name__}: {exc}"))


# ── spans ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def pipeline_run_span(name: str, attempt: int = 1, tracer: Tracer | None = None) -> Iterator[Any]:
    """The span of one run; None, and nothing else, without a tracer.

    An exception is recorded, without secrets, marks the span as failed and flies on.
    """
    tracer = tracer or get_global_tracer()
    if tracer is None:
        yield None
        return
    failure: BaseException | None = None
    attributes = {"flow.pipeline.name": name, "flow.pipeline.attempt": attempt}
    with tracer.start_as_current_span(RUN_SPAN, attributes=attributes) as span:
        try:
            yield span
        except BaseException as exc:
            failure = exc
            _record(span, exc)
    if failure is not None:
        raise failure  # out here, since OpenTelemetry would record it a second time, with its secrets


class StepSpans:
    """A `RunObserver` that opens a span below the current one for each step of a run.

    Make it inside `pipeline_run_span`, and leave it as a context manager: a step that was under way ends then. Steps of
    one run may overlap: a load holds the stages that it is made of.

    Args:
        tracer: The process's own by default. It needs `start_span`; without that a run has no spans for its steps.
    """

    def __init__(self, tracer: Any = None) -> None:
        self._start = getattr(tracer or get_global_tracer(), "start_span", None)
        self._lock = threading.Lock()
        self._open: dict[str, Any] = {}
        self._route: dict[str, str] = {}
        self._parent: Any = None
        if self._start is not None:
            from opentelemetry import context

            self._parent = context.get_current()  # steps may be reported by other threads

    def __enter__(self) -> StepSpans:
        return self

    def __exit__(self, kind: Any, exc: BaseException | None, tb: Any) -> None:
        with self._lock:
            left, self._open = list(self._open.values()), {}
        for span in left:
            if exc is not None:
                _fail(span, f"{type(exc).__name__}: {exc}")
            span.end()

    def planned(self, headline: str, route: str) -> None:
        """What the plan says; it belongs to the run."""
        self._route = {"flow.plan": scrub(headline), "flow.route": scrub(route)}

    def step(self, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        """A step begins or ends."""
        if self._start is None or status == "pending":
            return
        if status == "running":
            self._end(name)  # a step that begins again
            with self._lock:
                self._open[name] = self._begun(name, None)
            return
        with self._lock:
            span = self._open.pop(name, None)
        if span is None:
            span = self._begun(name, duration_ms)
        span.set_attribute("flow.step.status", status)
        if detail:
            span.set_attribute("flow.step.detail", scrub(detail))
        if status == "failed":
            _fail(span, detail)
        span.end()

    def progress(self, stage: str, rows: int, total: int | None = None) -> None:
        """Rows on their way are no span."""

    def resumes_at(self, watermark: str | None) -> None:
        """Where a load begins is no span."""

    def _begun(self, name: str, duration_ms: float | None) -> Any:
        assert self._start is not None
        attributes = {"flow.step.name": name, **self._route}
        began = None if duration_ms is None else time.time_ns() - int(duration_ms * 1_000_000)
        return self._start(f"{STEP_SPAN}.{name}", context=self._parent, attributes=attributes, start_time=began)

    def _end(self, name: str) -> None:
        with self._lock:
            span = self._open.pop(name, None)
        if span is not None:
            span.end()


def _record(span: Any, exc: BaseException) -> None:
    """Write an exception into a span the way OpenTelemetry does, without secrets."""
    message = scrub(str(exc))
    # What a driver said is behind our own errors, and may hold a value of a row; in the user's code it is all there is.
    is_ours = isinstance(exc, FlowError)
    stack = scrub("".join(traceback.format_exception(type(exc), exc, exc.__traceback__, chain=not is_ours)))
    record = getattr(span, "record_exception", None)
    if record is not None:
        try:
            record(exc, attributes={"exception.message": message, "exception.stacktrace": stack})
        except TypeError:  # a span of another kind, which takes the exception alone
            record(exc)
    _fail(span, f"{type(exc).__name__}: {message}")


def _fail(span: Any, why: str) -> None:
    set_status = getattr(span, "set_status", None)
    if set_status is None:
        return
    try:
        from opentelemetry.trace import Status, StatusCode
    except ImportError:  # a tracer of another kind
        set_status("ERROR", scrub(why))
    else:
        set_status(Status(StatusCode.ERROR, scrub(why)))


# ── where spans go ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Stderr:
    """The stderr of the moment: it may be redirected while the process lives. stdout is for answers."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _processor(url: str) -> Any:
    is_stdout = url.strip().lower() in ("otel://stdout", "otel://stdout/")
    if not is_stdout and not url.strip().lower().startswith("otel+otlp+"):
        raise InvalidConfig(
            f"Traces cannot be sent to '{shown(url)}'.",
            fix="otel://stdout, otel+otlp+grpc://host:4317 or otel+otlp+http://host:4318",
        )
    endpoint, way, is_tls = "", "", False
    if not is_stdout:
        address, way, is_tls = otlp_address(url, "otel+")
        endpoint = otlp_endpoint(address, way, is_tls, "traces")
    try:
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor

        if is_stdout:
            lines = ConsoleSpanExporter(out=_Stderr(), formatter=lambda span: span.to_json(indent=None) + "\n")  # type: ignore[arg-type]
            return SimpleSpanProcessor(lines)
        if way == "http":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as ByHttp

            return BatchSpanProcessor(ByHttp(endpoint=endpoint, timeout=TIMEOUT_S))
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as ByGrpc

        return BatchSpanProcessor(ByGrpc(endpoint=endpoint, insecure=not is_tls, timeout=TIMEOUT_S))
    except ImportError as exc:
        raise missing_otel() from exc
