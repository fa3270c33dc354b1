"""`--alerter`, `--metrics`, `--traces`: options win over variables, bad ones warn, what is left is sent at the end."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import pytest

from ematix_flow import tracing
from ematix_flow.alerters import active_alerters, clear_alerters
from ematix_flow.cli.console import Console
from ematix_flow.cli.parser import CommandParser
from ematix_flow.cli.watch_options import add_watching, alerter_urls, metrics_url, traces_url, watching
from ematix_flow.errors import InvalidConfig
from tests.watch.receivers import http_receiver, otlp_by_http


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("ALERTERS", "METRICS", "TRACES"):
        monkeypatch.delenv(f"EMATIX_FLOW_{name}", raising=False)
    yield
    clear_alerters()


def parsed(*words: str) -> Namespace:
    parser = CommandParser(prog="flow test")
    add_watching(parser)
    args: Namespace = parser.parse_args(list(words))
    return args


def test_an_option_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (alerter_urls(parsed()), metrics_url(parsed()), traces_url(parsed())) == ((), None, None)
    monkeypatch.setenv("EMATIX_FLOW_ALERTERS", "stdout://,email://m?to=a@x,b@x")
    monkeypatch.setenv("EMATIX_FLOW_METRICS", "memory://")
    monkeypatch.setenv("EMATIX_FLOW_TRACES", "otel://stdout")
    assert alerter_urls(parsed()) == ("stdout://", "email://m?to=a@x,b@x")
    assert (metrics_url(parsed()), traces_url(parsed())) == ("memory://", "otel://stdout")
    said = parsed("--alerter", "https://a/b", "--alerter", "stdout://", "--metrics", "null://", "--traces", "otel://x")
    assert alerter_urls(said) == ("https://a/b", "stdout://")
    assert (metrics_url(said), traces_url(said)) == ("null://", "otel://x")


def test_everything_is_told_and_sent_by_the_end_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", "k3y")
    with http_receiver() as hook, otlp_by_http() as collector:
        args = parsed(
            *("--alerter", f"http://127.0.0.1:{hook.port}/h?secret=${{HOOK_KEY}}"),
            *("--metrics", f"otlp+http://{collector.endpoint}"),
            *("--traces", f"otel+otlp+http://{collector.endpoint}"),
        )
        with watching(args, Console(), None) as telling:
            assert len(active_alerters()) == 1
            with tracing.pipeline_run_span("orders"):
                telling.failed("orders", ValueError("boom"), run_id="r1")
        assert [request.json()["kind"] for request in hook.requests] == ["failed"]
        assert collector.points("pipeline_runs_total")["failure", "orders"].as_int == 1
        assert [span.name for span in collector.spans] == ["flow.pipeline.run"]
    assert active_alerters() == ()
    assert tracing.get_global_tracer() is None


def test_bad_alerters_and_metrics_warn_and_the_command_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    args = parsed("--alerter", "slak://hushhush", "--alerter", "stdout://", "--metrics", "prometeus://:1")
    with watching(args, Console(), None) as telling:
        telling.failed("orders", "boom", run_id="r1")
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: alerter slak://… is left out:")
    assert second.startswith("warning: no metrics:")
    assert third.startswith("[ALERT]")


def test_bad_traces_are_an_error() -> None:
    with pytest.raises(InvalidConfig), watching(parsed("--traces", "jaeger://host"), Console(), None):
        pass
