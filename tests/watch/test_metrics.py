"""Numbers about runs: what each sink makes of them, read back by Prometheus' own parser and by OTLP receivers."""

from __future__ import annotations

import socket
import stat
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

import pytest
from prometheus_client import CollectorRegistry, push_to_gateway
from prometheus_client.parser import text_string_to_metric_families

from ematix_flow import metrics
from ematix_flow.errors import ConnectionFailed, PortTaken
from ematix_flow.metrics import DetailedMetrics, MemoryMetrics, NullMetrics
from ematix_flow.watch.metrics import open_metrics, rows_of
from ematix_flow.watch.metrics_handed_over import PushgatewayMetrics
from ematix_flow.watch.metrics_prometheus import BUCKETS, PrometheusMetrics, RunNumbers, read_numbers
from tests.watch.receivers import Otlp, Pushgateway, Receiver, http_receiver, otlp_by_grpc, otlp_by_http


def sink(url: str) -> DetailedMetrics:
    opened = metrics.from_url(url)
    assert isinstance(opened, DetailedMetrics)
    return opened


def count_some(into: DetailedMetrics) -> None:
    """Two good runs and a bad one."""
    into.inc_runs("orders", "success")
    into.inc_runs("orders", "success")
    into.inc_runs("orders", "failure")
    into.observe_duration("orders", 0.2)
    into.observe_duration("orders", 45)
    into.set_attempt("orders", 1)
    into.add_rows("orders", "inserted", 120)
    into.set_last_success("orders", 1_772_000_000.5)


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    return samples(text)[name, frozenset(labels.items())]


def test_stdout_is_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    lines = sink("stdout://")
    lines.inc_runs("x", "success")
    lines.observe_duration("x", 0.00123)
    lines.set_attempt("x", 0)
    lines.add_rows("x", "inserted", 3)
    lines.close()
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "[METRIC] pipeline_runs_total{name=x,outcome=success} +1",
        "[METRIC] pipeline_duration_seconds{name=x} 0.0012",
        "[METRIC] pipeline_retry_attempt{name=x} 0",
        "[METRIC] pipeline_rows_total{name=x,action=inserted} +3",
    ]


def test_memory_keeps_everything() -> None:
    kept = metrics.from_url("memory://")
    assert isinstance(kept, MemoryMetrics)
    count_some(kept)
    assert kept.counters[("orders", "success")] == 2
    assert kept.counters[("orders", "skipped")] == 0
    assert kept.durations["orders"] == [0.2, 45]
    assert kept.attempts["orders"] == 1
    assert kept.rows[("orders", "inserted")] == 120
    assert kept.last_success["orders"] == 1_772_000_000.5


def test_prometheus_is_asked_over_http() -> None:
    served = sink("prometheus://127.0.0.1:0")
    assert isinstance(served, PrometheusMetrics)
    count_some(served)
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics") as answer:
        text = answer.read().decode()
    served.close()
    served.close()
    assert value(text, "pipeline_runs_total", pipeline="orders", outcome="success") == 2
    assert value(text, "pipeline_runs_total", pipeline="orders", outcome="failure") == 1
    assert value(text, "pipeline_retry_attempt", pipeline="orders") == 1
    assert value(text, "pipeline_rows_total", pipeline="orders", action="inserted") == 120
    assert value(text, "pipeline_last_success_timestamp_seconds", pipeline="orders") == 1_772_000_000.5
    assert value(text, "pipeline_duration_seconds_count", pipeline="orders") == 2
    assert value(text, "pipeline_duration_seconds_sum", pipeline="orders") == pytest.approx(45.2)
    assert value(text, "pipeline_duration_seconds_bucket", pipeline="orders", le="0.25") == 1
    assert value(text, "pipeline_duration_seconds_bucket", pipeline="orders", le="60.0") == 2
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics")


def test_the_buckets_hold_those_of_prometheus() -> None:
    from prometheus_client import Histogram

    assert set(BUCKETS) >= set(Histogram.DEFAULT_BUCKETS[:-1])


def test_an_outcome_that_may_come_is_there_at_zero() -> None:
    numbers = RunNumbers()
    numbers.inc_runs("orders", "success")
    numbers.inc_runs("orders", "dispatched")
    text = numbers.exposition().decode()
    for outcome in ("failure", "dispatch_failed", "lease_expired"):
        assert value(text, "pipeline_runs_total", pipeline="orders", outcome=outcome) == 0


def test_prometheus_without_a_port_only_counts() -> None:
    counting = sink("prometheus://")
    assert isinstance(counting, PrometheusMetrics)
    count_some(counting)
    assert value(counting.exposition().decode(), "pipeline_runs_total", pipeline="orders", outcome="failure") == 1


def test_a_port_that_is_taken_is_an_error_and_opening_softly_a_warning() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"prometheus://127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(PortTaken):
            metrics.from_url(url)
        said: list[str] = []
        assert isinstance(open_metrics(url, warn=said.append), NullMetrics)
    (line,) = said
    assert line.startswith("no metrics: Metrics cannot be served on")


def test_exposition_and_reading_are_inverse() -> None:
    numbers = RunNumbers()
    count_some(numbers)  # type: ignore[arg-type]  # it counts, and is flushed nowhere
    numbers.inc_runs('odd "name"\n{x}', "skipped")
    again = read_numbers(numbers.exposition().decode())
    assert again.exposition() == numbers.exposition()
    twice = numbers.plus(again)
    assert twice.runs["orders", "success"] == 4
    assert sum(twice.buckets["orders"]) == 4
    assert twice.attempts["orders"] == 1


def test_a_textfile_adds_up_over_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = "textfile://flow.prom"

    def process() -> None:
        for _ in range(5):
            mine = sink(url)
            mine.inc_runs("orders", "success")
            mine.observe_duration("orders", 0.2)
            mine.close()

    others = [threading.Thread(target=process) for _ in range(4)]
    for one in others:
        one.start()
    for one in others:
        one.join()
    text = (tmp_path / "flow.prom").read_text()
    assert value(text, "pipeline_runs_total", pipeline="orders", outcome="success") == 20
    assert value(text, "pipeline_duration_seconds_count", pipeline="orders") == 20
    assert [path.name for path in tmp_path.iterdir()] == ["flow.prom"]
    assert stat.S_IMODE((tmp_path / "flow.prom").stat().st_mode) == 0o644


def test_a_textfile_takes_the_last_state_and_is_written_with_each_flush(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "flow.prom"
    path.write_text("this is {no exposition")
    mine = sink(f"textfile://{path}")
    mine.set_attempt("orders", 2)
    mine.flush()
    assert "holds no metrics" in caplog.text
    mine.set_attempt("orders", 0)
    mine.inc_runs("orders", "success")
    mine.flush()
    mine.flush()
    text = path.read_text()
    assert value(text, "pipeline_retry_attempt", pipeline="orders") == 0
    assert value(text, "pipeline_runs_total", pipeline="orders", outcome="success") == 1
    mine.close()
    assert path.read_text() == text


@pytest.fixture
def gateway() -> Iterator[tuple[Receiver, Pushgateway]]:
    with http_receiver() as receiver:
        keeper = Pushgateway()
        receiver.answer = keeper
        yield receiver, keeper


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def test_a_pushgateway_adds_up_over_processes(gateway: tuple[Receiver, Pushgateway]) -> None:
    """Against a stand-in, see `receivers.py`."""
    receiver, keeper = gateway
    for instance in ("a/b", "a/b", "other"):
        mine = sink(f"pushgateway://ann:pw@127.0.0.1:{receiver.port}?instance={instance.replace('/', '%2F')}")
        count_some(mine)
        mine.close()
    assert set(keeper.groups) == {
        (("job", "ematix_flow"), ("instance", "a/b")),
        (("job", "ematix_flow"), ("instance", "other")),
    }
    own = {"job": "ematix_flow", "instance": "a/b", "pipeline": "orders"}
    assert value(keeper.page(), "pipeline_runs_total", **own, outcome="success") == 4
    assert value(keeper.page(), "pipeline_retry_attempt", **own) == 1
    assert receiver.requests[-1].method == "PUT"
    assert receiver.requests[-1].headers["Authorization"] == "Basic YW5uOnB3"


@pytest.mark.parametrize("instance", ["web-1", "a/b", "a b%c"])
def test_a_group_is_named_as_prometheus_own_client_names_it(
    instance: str, gateway: tuple[Receiver, Pushgateway]
) -> None:
    receiver, keeper = gateway
    mine = sink(f"pushgateway://127.0.0.1:{receiver.port}?job=shop&instance={quote(instance, safe='')}")
    mine.inc_runs("orders", "success")
    mine.close()
    server = f"127.0.0.1:{receiver.port}"
    push_to_gateway(server, "shop", CollectorRegistry(), grouping_key={"instance": instance})
    assert list(keeper.groups) == [(("job", "shop"), ("instance", instance))]


def test_what_a_pushgateway_does_not_take_is_kept(gateway: tuple[Receiver, Pushgateway]) -> None:
    receiver, keeper = gateway
    receiver.answer = lambda _: (503, b"away")
    mine = sink(f"pushgateway://127.0.0.1:{receiver.port}")
    assert isinstance(mine, PushgatewayMetrics)
    mine.inc_runs("orders", "success")
    with pytest.raises(ConnectionFailed, match="answered 503: away"):
        mine.flush()
    asked = len(receiver.requests)
    mine.inc_runs("orders", "success")
    mine.flush()
    assert len(receiver.requests) == asked  # not with every run while it is away
    receiver.answer = keeper
    mine.close()
    (text,) = keeper.groups.values()
    assert value(text, "pipeline_runs_total", pipeline="orders", outcome="success") == 2


@pytest.mark.parametrize(("scheme", "collector"), [("otlp", otlp_by_grpc), ("otlp+http", otlp_by_http)])
def test_otlp_reaches_a_collector(scheme: str, collector: Callable[[], AbstractContextManager[Otlp]]) -> None:
    with collector() as taken:
        mine = sink(f"{scheme}://{taken.endpoint}")
        count_some(mine)
        mine.close()
        mine.close()
    assert taken.resources[0]["service.name"] == "ematix-flow"
    assert taken.points("pipeline_runs_total")["success", "orders"].as_int == 2
    assert taken.points("pipeline_runs_total")["failure", "orders"].as_int == 1
    assert taken.points("pipeline_duration_seconds")["orders",].count == 2
    assert taken.points("pipeline_retry_attempt")["orders",].as_int == 1
    assert taken.points("pipeline_rows_total")["inserted", "orders"].as_int == 120
    assert taken.points("pipeline_last_success_timestamp_seconds")["orders",].as_double == 1_772_000_000.5


@pytest.mark.parametrize(
    "url",
    [
        "",
        "prometeus://:9100",
        "prometheus://host",
        "otlp+udp://host:4317",
        "otlp://",
        "otlp://ann:pw@host:4317",
        "textfile:///nowhere/at/all.prom",
        "textfile:///tmp/flow.txt",
        "pushgateway://",
        "pushgateway://h?jb=x",
        "memory://?x=1",
    ],
)
def test_a_bad_url_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError):
        metrics.from_url(url)


def test_opening_softly_never_fails() -> None:
    said: list[str] = []
    assert isinstance(open_metrics(None), NullMetrics)
    assert isinstance(open_metrics("pushgatway://ann:hushhush@h", warn=said.append), NullMetrics)
    (line,) = said
    assert "did you mean 'pushgateway'?" in line
    assert "hushhush" not in line


def test_rows_of_a_result() -> None:
    assert rows_of(None) == {}
    assert rows_of({"rows": 3, "rows_inserted": True}) == {}
    assert rows_of({"rows": 3}) == {"processed": 3}
    assert rows_of({"rows": True}) == rows_of({"rows": "3"}) == rows_of({"rows": 0}) == {}
    fanned = {"results": {"a": {"rows_inserted": 2, "rows_closed": 1}, "b": {"rows_inserted": 5}}, "errors": {}}
    assert rows_of(fanned) == {"inserted": 7, "closed": 1}
