"""A broker that goes away under a running stream: one clear error, in bounded time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from ematix_flow import PostgresConnection
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.stream import Source
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import Target
from ematix_flow.errors import ConnectionFailed
from ematix_flow.run.stream_watch import StreamWatch
from ematix_flow.run.streams import run_stream
from tests.services import kafka
from tests.stream.conftest import Topic


def test_a_broker_that_goes_away_ends_the_stream_with_one_error(pg_url: str, tmp_path: Path) -> None:
    topic = Topic(kafka.start(tmp_path / "broker"))
    topic.send({"id": n} for n in range(10))
    spec = StreamSpec(
        name=f"away_{topic.name}",
        where=SourceLocation(file=__file__, line=1),
        sources=(Source(connection=topic.connection(), query=topic.name),),
        targets=(Target(connection=PostgresConnection(name="warehouse", url=pg_url), table=("public", "events")),),
    )
    watch, told, raised = StreamWatch(spec.name), threading.Event(), []

    def run() -> None:
        try:
            run_stream(spec, stop=told, watch=watch)
        except Exception as exc:
            raised.append(exc)

    running = threading.Thread(target=run)
    running.start()
    try:
        _until(lambda: watch.view().counts["batches"] == 1)
    finally:
        kafka.stop(tmp_path / "broker")
    began = time.monotonic()
    running.join(400)
    told.set()
    assert raised, f"it still runs after {time.monotonic() - began:.0f} s"
    assert isinstance(raised[0], ConnectionFailed), raised[0]
    assert "Kafka does not answer any more" in raised[0].message


def _until(is_so: Any) -> None:
    deadline = time.monotonic() + 240
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)
