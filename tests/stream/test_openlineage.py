"""Real streams, told as OpenLineage events: read to their end, told to stop, and failing."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import PostgresConnection
from ematix_flow.cli.main import main
from ematix_flow.declare.registry import caller_location
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import BadMessages
from ematix_flow.run.stream_watch import StreamWatch
from ematix_flow.run.streams import run_stream
from ematix_flow.watch import stream_lineage
from tests.stream.conftest import Topic
from tests.watch.test_lineage_events import events


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that events go to."""
    monkeypatch.setenv("EMATIX_FLOW_LINEAGE", str(tmp_path / "lineage.jsonl"))
    return tmp_path / "lineage.jsonl"


def stream(topic: Topic, url: str, **options: Any) -> StreamSpec:
    given = {
        "name": f"told_{topic.name.removeprefix('events-')}",
        "source": topic.connection(),
        "source_query": topic.name,
        "target": PostgresConnection(name="warehouse", url=url),
        "target_table": ("public", "events"),
        "idle_pause_ms": 20,
    }
    return stream_spec({**given, **options}, caller_location())


def test_a_stream_that_reads_what_is_there_is_a_start_and_a_complete(topic: Topic, pg_url: str, told: Path) -> None:
    topic.send({"id": n} for n in range(50))
    spec = stream(topic, pg_url)
    run_stream(spec, once=True)
    start, end = events(told)
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"] and end["job"]["name"] == spec.name
    assert end["inputs"] == [{"namespace": f"kafka://{topic.server.address}", "name": topic.name}]
    (output,) = end["outputs"]
    assert output["name"].endswith(".public.events") and output["namespace"].startswith("postgres://127.0.0.1:")
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 50
    topic.send({"id": n} for n in range(50, 53))
    run_stream(spec, once=True)
    *_, again = events(told)
    assert len(events(told)) == 4 and again["run"]["runId"] != end["run"]["runId"]
    assert again["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3, "counted from its start"


def test_a_stream_that_goes_on_says_so_until_it_is_told_to_stop(
    topic: Topic, pg_url: str, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_lineage, "RUNNING_EVERY_S", 1.0)
    topic.send({"id": n} for n in range(20))
    spec, stop = stream(topic, pg_url), threading.Event()
    watch = StreamWatch(spec.name, snapshot_every_s=0.2, sample_s=0.1)
    results: list[dict[str, Any]] = []
    running = threading.Thread(target=lambda: results.append(run_stream(spec, stop=stop, watch=watch)))
    running.start()
    try:
        deadline = time.monotonic() + 120
        while not _rows_while_running(told):
            assert running.is_alive() and time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        stop.set()
        running.join(60)
    assert results == [{"total_rows": 20, "iterations": results[0]["iterations"], "shutdown_triggered": True}]
    start, *between, end = events(told)
    assert (start["eventType"], end["eventType"]) == ("START", "ABORT")
    assert {one["eventType"] for one in between} == {"RUNNING"}
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 20


def _rows_while_running(file: Path) -> bool:
    """Whether a stream that is under way has told of rows."""
    lines = file.read_text().splitlines() if file.exists() else []
    running = [event for event in map(json.loads, lines) if event["eventType"] == "RUNNING"]
    return any(event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 20 for event in running)


def test_a_stream_that_cannot_go_on_fails_with_its_reason(topic: Topic, pg_url: str, told: Path) -> None:
    topic.send([{"id": 1}, b"no document"])
    with pytest.raises(BadMessages):
        run_stream(stream(topic, pg_url), once=True)
    start, end = events(told)
    assert (start["eventType"], end["eventType"]) == ("START", "FAIL")
    assert end["run"]["facets"]["errorMessage"]["message"]
    assert end["inputs"] == start["inputs"] == [{"namespace": f"kafka://{topic.server.address}", "name": topic.name}]


def test_flow_consume_takes_the_place_to_tell(topic: Topic, pg_url: str, tmp_project: Path) -> None:
    topic.send({"id": n} for n in range(3))
    (tmp_project / "told.toml").write_text(
        f'pipeline_name = "told"\nsource_query = "{topic.name}"\n[source]\nkind = "kafka"\n'
        f'bootstrap_servers = "{topic.server.address}"\ngroup_id = "group-{topic.name}"\n'
        f'[target]\nkind = "postgres"\nurl = "{pg_url}"\ntable = {{ schema = "public", name = "events" }}\n'
    )
    assert main(["consume", "told.toml", "--drain", "--lineage", "file://told.jsonl"]) == 0
    start, end = events(tmp_project / "told.jsonl")
    assert (start["eventType"], end["eventType"], end["job"]["name"]) == ("START", "COMPLETE", "told")
    assert end["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert "postgres:postgres" not in (tmp_project / "told.jsonl").read_text()
