"""Traces: spans of runs and steps, sent to collectors that speak gRPC and HTTP."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from ematix_flow import tracing
from ematix_flow.errors import MissingDriver
from ematix_flow.tracing import StepSpans, configure_tracer_from_url, pipeline_run_span
from tests.watch.receivers import Otlp, otlp_by_grpc, otlp_by_http

OK, ERROR = 0, 2  # the status codes of OTLP: unset, and error
BOTH = pytest.mark.parametrize(
    ("scheme", "collector"), [("otel+otlp+grpc", otlp_by_grpc), ("otel+otlp+http", otlp_by_http)]
)


@pytest.fixture(autouse=True)
def _no_tracer_stays() -> Iterator[None]:
    yield
    tracing.close_traces()
    tracing.set_global_tracer(None)


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


@BOTH
def test_a_run_is_a_span_and_its_steps_are_below_it(
    scheme: str, collector: Callable[[], AbstractContextManager[Otlp]]
) -> None:
    with collector() as taken:
        configure_tracer_from_url(f"{scheme}://{taken.endpoint}")
        with pipeline_run_span("orders", attempt=2), StepSpans() as steps:
            steps.planned("merge → warehouse.orders", "pushdown")
            steps.step("load:orders", "running")
            steps.step("stage", "running")
            reporting = threading.Thread(target=steps.step, args=("stage", "succeeded", "12 rows", 3.0))
            reporting.start()
            reporting.join()
            steps.step("load:orders", "succeeded")
            steps.step("post[0]", "skipped", duration_ms=250.0)
            steps.progress("stage", 12)
        tracing.close_traces()
    spans = {span.name: span for span in taken.spans}
    run = spans.pop("flow.pipeline.run")
    assert attributes(run) == {"flow.pipeline.name": "orders", "flow.pipeline.attempt": 2}
    assert run.status.code == OK
    assert set(spans) == {"flow.step.load:orders", "flow.step.stage", "flow.step.post[0]"}
    assert {span.parent_span_id for span in spans.values()} == {run.span_id}
    assert {span.trace_id for span in spans.values()} == {run.trace_id}
    assert attributes(spans["flow.step.stage"])["flow.step.detail"] == "12 rows"
    assert attributes(spans["flow.step.stage"])["flow.route"] == "pushdown"
    post = spans["flow.step.post[0]"]
    assert post.end_time_unix_nano - post.start_time_unix_nano >= 250_000_000
    assert taken.resources[0]["service.name"] == "ematix-flow"


def test_an_error_is_recorded_once_without_secrets_and_flies_on() -> None:
    with otlp_by_grpc() as taken:
        configure_tracer_from_url(f"otel+otlp+grpc://{taken.endpoint}")
        with pytest.raises(ValueError, match="hushhush") as caught, pipeline_run_span("orders"), StepSpans() as steps:
            steps.step("source", "running")
            steps.step("source", "failed", "password=hushhush is wrong")
            steps.step("load", "running")
            raise ValueError("postgres://ann:hushhush@db/x is not there")
        tracing.close_traces()
    assert caught.value.__context__ is None
    spans = {span.name: span for span in taken.spans}
    assert {span.status.code for span in spans.values()} == {ERROR}
    (event,) = spans["flow.pipeline.run"].events
    assert event.name == "exception"
    assert attributes(event)["exception.type"] == "ValueError"
    assert "raise ValueError" in attributes(event)["exception.stacktrace"]
    assert "hushhush" not in str(taken.spans)


def test_spans_are_sent_when_the_process_just_ends() -> None:
    with otlp_by_grpc() as taken:
        code = (
            "import sys\n"
            "from ematix_flow.tracing import configure_tracer_from_url, pipeline_run_span\n"
            f"configure_tracer_from_url('otel+otlp+grpc://{taken.endpoint}')\n"
            "with pipeline_run_span('orders'):\n    sys.exit(3)\n"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 3
    assert [span.name for span in taken.spans] == ["flow.pipeline.run"]
    assert taken.spans[0].status.code == ERROR


def test_a_process_that_lives_on_can_flush() -> None:
    with otlp_by_http() as taken:
        configure_tracer_from_url(f"otel+otlp+http://{taken.endpoint}")
        with pipeline_run_span("orders"):
            pass
        tracing.flush_traces()
        assert [span.name for span in taken.spans] == ["flow.pipeline.run"]
        assert tracing.get_global_tracer() is not None


def test_stdout_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure_tracer_from_url("otel://stdout")
    with pipeline_run_span("orders"):
        pass
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert '"flow.pipeline.name": "orders"' in line


def test_any_object_that_opens_spans_is_a_tracer() -> None:
    class Span:
        def __init__(self) -> None:
            self.recorded: list[BaseException] = []
            self.status: Any = None

        def record_exception(self, exc: BaseException) -> None:
            self.recorded.append(exc)

        def set_status(self, status: Any) -> None:
            self.status = status

    class Tracer:
        def __init__(self) -> None:
            self.opened: list[tuple[str, Any, Span]] = []

        @contextlib.contextmanager
        def start_as_current_span(self, name: str, *, attributes: Any) -> Iterator[Span]:
            self.opened.append((name, attributes, Span()))
            yield self.opened[-1][2]

    tracer = Tracer()
    with (
        pytest.raises(RuntimeError, match="boom"),
        pipeline_run_span("orders", 3, tracer=tracer),
        StepSpans(tracer) as steps,
    ):
        steps.step("source", "running")  # it has no spans below others, and that is all right
        raise RuntimeError("boom")
    ((name, given, span),) = tracer.opened
    assert (name, given) == ("flow.pipeline.run", {"flow.pipeline.name": "orders", "flow.pipeline.attempt": 3})
    assert [str(exc) for exc in span.recorded] == ["boom"]
    assert span.status.status_code.name == "ERROR"


def test_without_a_tracer_nothing_happens() -> None:
    with pipeline_run_span("orders") as span, StepSpans() as steps:
        steps.step("source", "running")
    assert span is None


@pytest.mark.parametrize("url", ["otel://", "otel://elsewhere", "jaeger://host", "otel+otlp+udp://host", "otlp://host"])
def test_a_url_that_is_not_supported_is_an_error(url: str) -> None:
    with pytest.raises(ValueError):
        configure_tracer_from_url(url)
    assert tracing.get_global_tracer() is None


@pytest.mark.parametrize("url", ["otel://stdout", "otel+otlp+grpc://host:4317", "otel+otlp+http://host:4318"])
def test_a_missing_sdk_is_an_error_that_names_the_extra(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "sdk.trace.export",
        "exporter.otlp.proto.grpc.trace_exporter",
        "exporter.otlp.proto.http.trace_exporter",
    ):
        monkeypatch.setitem(sys.modules, f"opentelemetry.{name}", None)
    with pytest.raises(MissingDriver, match=r"ematix-flow\[metrics-otel\]"):
        configure_tracer_from_url(url)
