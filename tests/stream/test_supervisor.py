"""Starting again: when, how patiently, and with what is left of the failure before."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from ematix_flow import PostgresConnection
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.stream import Source
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import Target
from ematix_flow.errors import (
    ConnectionFailed,
    FlowError,
    InvalidConfig,
    InvalidDeclaration,
    StateIncompatible,
    TakenOver,
    UnsupportedBackend,
)
from ematix_flow.run.stream_watch import StreamWatch
from ematix_flow.run.streams import run_stream
from ematix_flow.run.supervisor import RestartPolicy, keep_running
from tests.stream.conftest import Topic

TOLD: dict[str, Any] = {"told": True}


class Patience(threading.Event):
    """A word to stop that comes after so many waits, and remembers them."""

    def __init__(self, comes_after: int = 1_000) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._comes_after = comes_after

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0)
        return len(self.waits) >= self._comes_after


def failing(*lasting: float, clock: list[float]) -> Callable[[], dict[str, Any]]:
    """A stream that fails after so many seconds each, then ends well."""
    left = list(lasting)

    def start() -> dict[str, Any]:
        if not left:
            return {"total_rows": 1}
        clock[0] += left.pop(0)
        raise ConnectionFailed(f"no. {len(lasting) - len(left)}")

    return start


def supervised(policy: RestartPolicy, *lasting: float, told: Patience) -> tuple[dict[str, Any], int]:
    clock, restarts = [0.0], [0]

    def on_restart() -> None:
        restarts[0] += 1

    result = keep_running(
        failing(*lasting, clock=clock),
        policy,
        told,
        on_restart=on_restart,
        when_told=lambda: TOLD,
        clock=lambda: clock[0],
    )
    return result, restarts[0]


def test_each_failure_in_a_row_is_followed_by_a_longer_wait() -> None:
    told = Patience()
    policy = RestartPolicy(on_error=True, initial_backoff_ms=100, max_backoff_ms=500)
    assert supervised(policy, 1, 1, 1, 1, told=told) == ({"total_rows": 1}, 4)
    assert told.waits == [0.1, 0.2, 0.4, 0.5]


def test_a_start_that_lasted_long_makes_waiting_begin_anew() -> None:
    told = Patience()
    policy = RestartPolicy(on_error=True, initial_backoff_ms=100, max_restarts=2, reset_after_s=60)
    supervised(policy, 1, 1, 61, 1, told=told)
    assert told.waits == [0.1, 0.2, 0.1, 0.2]


def test_it_gives_up_after_so_many_restarts_with_the_last_error() -> None:
    told = Patience()
    with pytest.raises(ConnectionFailed, match=r"no\. 3"):
        supervised(RestartPolicy(on_error=True, max_restarts=2), 1, 1, 1, 1, told=told)
    assert len(told.waits) == 2


def test_without_the_word_a_failure_is_the_end() -> None:
    told = Patience()
    with pytest.raises(ConnectionFailed, match=r"no\. 1"):
        supervised(RestartPolicy(), 1, told=told)
    assert told.waits == []


@pytest.mark.parametrize(
    "mistake", [InvalidDeclaration, StateIncompatible, InvalidConfig, UnsupportedBackend, TakenOver]
)
def test_what_another_start_cannot_mend_is_the_end_at_once(mistake: type[FlowError]) -> None:
    def start() -> dict[str, Any]:
        raise mistake("said again and again")

    told = Patience()
    with pytest.raises(mistake):
        keep_running(start, RestartPolicy(on_error=True), told, when_told=lambda: TOLD)
    assert told.waits == []


def test_the_word_to_stop_ends_a_wait() -> None:
    told = Patience(comes_after=2)
    assert supervised(RestartPolicy(on_error=True), 1, 1, 1, told=told) == (TOLD, 2)


def test_a_policy_below_zero_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="max_backoff_ms"):
        RestartPolicy(max_backoff_ms=-1)


def until(is_so: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"it was never so: {what}"
        time.sleep(0.05)


def test_a_stream_goes_on_once_what_stopped_it_is_mended(topic: Topic, pg_url: str) -> None:
    topic.send({"id": n} for n in range(10))
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id bigint)")
    spec = StreamSpec(
        name=f"mended_{topic.name}",
        where=SourceLocation(file=__file__, line=1),
        sources=(Source(connection=topic.connection(), query=topic.name),),
        targets=(Target(connection=PostgresConnection(name="warehouse", url=pg_url), table=("public", "events")),),
    )
    watch, told, results = StreamWatch(spec.name, sample_s=0.1), threading.Event(), []
    running = threading.Thread(
        target=lambda: results.append(
            run_stream(
                spec,
                stop=told,
                watch=watch,
                restarts=RestartPolicy(on_error=True, initial_backoff_ms=100, max_backoff_ms=300),
            )
        )
    )
    running.start()
    try:
        until(lambda: watch.view().counts["rows_written"] == 10, "the first rows are there")
        topic.send([{"id": 10, "note": "x"}])
        until(lambda: watch.view().restarts >= 2, "it was started again and failed again")
        with psycopg.connect(pg_url) as db:
            db.execute("ALTER TABLE public.events ADD COLUMN note text")
        until(lambda: watch.view().counts["rows_written"] == 11, "the last row is there")
    finally:
        told.set()
        running.join(60)
    assert results == [{"total_rows": 1, "iterations": 1, "shutdown_triggered": True}], "counts are of the last start"
    assert watch.view().counts["errors"] >= 2
    with psycopg.connect(pg_url) as db:
        assert db.execute("SELECT count(*), count(note) FROM public.events").fetchone() == (11, 1)


def test_a_stream_survives_the_death_of_its_java_machine(topic: Topic, pg_url: str) -> None:
    from ematix_flow.spark import session

    topic.send({"id": n} for n in range(10))
    spec = StreamSpec(
        name=f"killed_{topic.name}",
        where=SourceLocation(file=__file__, line=1),
        sources=(Source(connection=topic.connection(), query=topic.name),),
        targets=(Target(connection=PostgresConnection(name="warehouse", url=pg_url), table=("public", "events")),),
    )
    watch, told = StreamWatch(spec.name, sample_s=0.1), threading.Event()
    running = threading.Thread(
        target=run_stream,
        args=(spec,),
        kwargs={"stop": told, "watch": watch, "restarts": RestartPolicy(on_error=True, initial_backoff_ms=100)},
    )
    running.start()
    try:
        until(lambda: watch.view().counts["batches"] == 1, "the first rows are there", 240)
        assert session._own is not None and session._own.driver is not None
        os.kill(session._own.driver.process.pid, signal.SIGKILL)
        topic.send({"id": n} for n in range(10, 15))
        until(lambda: watch.view().counts["rows_written"] == 15, "it goes on with another one", 240)
    finally:
        told.set()
        running.join(120)
    with psycopg.connect(pg_url) as db:
        assert db.execute("SELECT count(*), count(DISTINCT id) FROM public.events").fetchone() == (15, 15)
