"""What a running stream says of itself: to Prometheus, to the run log, and when it hangs."""

from __future__ import annotations

import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from ematix_flow import PostgresConnection
from ematix_flow.contracts.streams import Lag, StreamCounters
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.stream import Source
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import Target
from ematix_flow.errors import ConnectionFailed, PortTaken
from ematix_flow.run.runlogs.sqlite import SqliteRunLog
from ematix_flow.run.stream_metrics import served
from ematix_flow.run.stream_watch import StreamWatch
from ematix_flow.run.streams import run_stream
from tests.stream.conftest import Topic

COUNTERS = (
    *("rows_consumed", "rows_written", "batches", "errors", "dlq_writes", "idle_iterations", "iterations", "restarts"),
    *("messages_lost", "lookup_refreshes", "lookup_failures"),
    *("cdc_creates", "cdc_updates", "cdc_deletes", "cdc_skipped", "cdc_idempotent_skipped"),
)


def asked(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def value(text: str, name: str, **labels: str) -> float:
    """One series of an answer."""
    for line in text.splitlines():
        series, _, number = line.rpartition(" ")
        if series.partition("{")[0] == name and all(f'{key}="{word}"' in series for key, word in labels.items()):
            return float(number)
    raise AssertionError(f"{name} {labels} is not there:\n{text}")


def until(is_so: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"it was never so: {what}"
        time.sleep(0.05)


def test_every_counter_is_there_from_the_start() -> None:
    with served(StreamWatch("orders"), 0) as port:
        text = asked(port)
        for name in COUNTERS:
            assert value(text, f"ematix_streaming_{name}_total", pipeline="orders") == 0
        for name in (
            "stalled",
            "state_rows",
            "state_bytes",
            "watermark_delay_seconds",
            "last_success_timestamp_seconds",
        ):
            assert value(text, f"ematix_streaming_{name}", pipeline="orders") == 0
        assert value(text, "ematix_streaming_batch_duration_seconds_bucket", le="+Inf") == 0


def test_other_paths_are_not_found_and_the_server_ends_with_its_block() -> None:
    with served(StreamWatch("orders"), 0) as port, pytest.raises(urllib.error.HTTPError, match="404"):
        asked(port, "/")
    with pytest.raises(urllib.error.URLError):
        asked(port)


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=str(port)), served(StreamWatch("orders"), port):
            pass


def test_counts_go_on_over_restarts_and_a_failed_start_is_an_error() -> None:
    watch = StreamWatch("orders")
    for _ in range(2):
        counters = StreamCounters()
        with pytest.raises(ConnectionFailed), watch.run_of(counters, lambda facts: None):
            counters.add(rows_written=5)
            counters.batch_done({}, 0.3)
            raise ConnectionFailed("gone")
        watch.restarting()
    with served(watch, 0) as port:
        text = asked(port)
    assert value(text, "ematix_streaming_rows_written_total") == 10
    assert value(text, "ematix_streaming_errors_total") == 2
    assert value(text, "ematix_streaming_restarts_total") == 2
    assert value(text, "ematix_streaming_batch_duration_seconds_bucket", le="0.25") == 0
    assert value(text, "ematix_streaming_batch_duration_seconds_bucket", le="0.5") == 2
    assert value(text, "ematix_streaming_batch_duration_seconds_sum") == pytest.approx(0.6)


class Query:
    """A query that says what it is told to say."""

    def __init__(self) -> None:
        self.waits = True

    def progress(self) -> None:
        return None

    def is_waiting(self) -> bool:
        return self.waits


def test_waiting_with_nothing_to_do_is_no_stall_and_waiting_with_messages_is(caplog: pytest.LogCaptureFixture) -> None:
    watch = StreamWatch("orders", stalled_after_s=0.2, sample_s=0.02)
    behind, counters = [0], StreamCounters()
    with (
        caplog.at_level(logging.WARNING, "ematix_flow"),
        watch.run_of(counters, lambda facts: None),
        watch.sampling(Query(), lambda positions: {"t": [Lag("t-0", behind[0])]}),
    ):
        until(lambda: watch.view().idle > 20, "it has waited for a while")
        assert watch.view().phase == "waiting"
        assert not caplog.records
        behind[0] = 7
        until(lambda: watch.view().phase == "stalled", "the watchdog has seen it", seconds=20)
        assert "7 messages wait" in caplog.text
        counters.batch_done({}, 0.1)
        until(lambda: watch.view().phase != "stalled", "it goes on")
    assert sum("makes no progress" in record.getMessage() for record in caplog.records) == 1


def test_a_stream_tells_its_numbers_while_it_runs_hangs_and_ends(topic: Topic, pg_url: str, tmp_path: Path) -> None:
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id bigint)")
    spec = StreamSpec(
        name=f"told_{topic.name}",
        where=SourceLocation(file=__file__, line=1),
        sources=(Source(connection=topic.connection(), query=topic.name),),
        targets=(Target(connection=PostgresConnection(name="warehouse", url=pg_url), table=("public", "events")),),
        idle_pause_ms=50,
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "runs.db"
    watch, told = StreamWatch(spec.name, stalled_after_s=3, snapshot_every_s=0.5, sample_s=0.1), threading.Event()
    topic.send({"id": n} for n in range(100))
    running = threading.Thread(
        target=run_stream,
        args=(spec,),
        kwargs={"stop": told, "watch": watch, "metrics_port": port, "run_log_url": f"sqlite:///{log}"},
    )
    running.start()
    try:
        until(lambda: watch.view().counts["rows_written"] == 100, "the first rows are there")
        until(lambda: watch.view().behind == 0, "nothing waits any more")
        text = asked(port)
        assert value(text, "ematix_streaming_rows_consumed_total") == 100
        assert value(text, "ematix_streaming_lag", source=topic.name, partition=f"{topic.name}-1") == 0
        assert value(text, "ematix_streaming_last_success_timestamp_seconds") > time.time() - 60
        until(lambda: value(asked(port), "ematix_streaming_idle_iterations_total") > 0, "it waits")
        with psycopg.connect(pg_url) as db:
            db.execute("LOCK TABLE public.events IN ACCESS EXCLUSIVE MODE")
            topic.send({"id": n} for n in range(100, 105))
            until(lambda: value(asked(port), "ematix_streaming_stalled") == 1, "the watchdog has seen it")
        until(lambda: watch.view().counts["rows_written"] == 105, "it goes on by itself")
        until(lambda: value(asked(port), "ematix_streaming_stalled") == 0, "the watchdog has seen that too")
    finally:
        told.set()
        running.join(60)
    with pytest.raises(urllib.error.URLError):
        asked(port)
    records, total = SqliteRunLog(log).list_runs()
    assert total == 1
    assert (records[0].kind, records[0].status) == ("streaming", "cancelled")
    assert records[0].run_id.startswith(f"{spec.name}-stream-")
    assert records[0].extras["rows_written_total"] == 105
    assert records[0].extras["stats_1m"]["rows_written_per_sec"] > 0
    assert records[0].extras["result"]["total_rows"] == 105


def test_a_run_log_that_cannot_be_opened_is_one_warning(
    topic: Topic, pg_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic.send([{"id": 1}])
    spec = StreamSpec(
        name=f"unlogged_{topic.name}",
        where=SourceLocation(file=__file__, line=1),
        sources=(Source(connection=topic.connection(), query=topic.name),),
        targets=(Target(connection=PostgresConnection(name="warehouse", url=pg_url), table=("public", "events")),),
    )
    assert run_stream(spec, once=True, run_log_url=f"sqlite:///{tmp_path}")["total_rows"] == 1
    assert sum("no run history" in record.getMessage() for record in caplog.records) == 1
