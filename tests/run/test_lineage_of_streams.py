"""What a stream tells of its lineage: names of everything it reads and writes, and when which event is sent."""

from __future__ import annotations

from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import (
    KafkaConnection,
    KinesisConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    PubSubConnection,
    RabbitMQConnection,
    Source,
    Target,
)
from ematix_flow.cli import consume_all
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.registry import caller_location
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.run.declared_lineage import stream_lineage
from ematix_flow.watch import stream_lineage as telling
from ematix_flow.watch.lineage import Lineage
from ematix_flow.watch.openlineage import use_lineage
from ematix_flow.watch.stream_lineage import StreamLineage
from tests.watch.test_lineage_events import events

KAFKA = KafkaConnection(name="k", bootstrap_servers="b1:9092,b2:9092", group_id="g")
RABBIT = RabbitMQConnection(name="r", amqp_url="amqp://ann:s3cret@mq:5672/shop")
PUBSUB = PubSubConnection(name="p", project_id="shop-1")
KINESIS = KinesisConnection(name="s", stream_name="clicks", region="eu-west-1")
WAREHOUSE = PostgresConnection(name="w", url="postgres://ann:s3cret@db/sales")


def spec(**options: Any) -> StreamSpec:
    given = {"source": KAFKA, "source_query": "orders", "target": WAREHOUSE, "target_table": ("public", "orders")}
    if "targets" in options:
        given = {name: value for name, value in given.items() if not name.startswith("target")}
    if "sources" in options:
        given = {name: value for name, value in given.items() if not name.startswith("source")}
    return stream_spec({"name": "to_sales", **given, **options}, caller_location())


@pytest.mark.parametrize(
    ("connection", "query", "dataset"),
    [
        (KAFKA, "orders", "kafka://b1:9092/orders"),
        (RABBIT, "orders", "amqp://mq:5672/shop.orders"),
        (PUBSUB, "orders", "pubsub/subscription:shop-1:orders"),
        (PUBSUB, "projects/shop-2/subscriptions/orders", "pubsub/subscription:shop-2:orders"),
        (KINESIS, "clicks", "kinesis://eu-west-1/clicks"),
    ],
)
def test_what_a_stream_reads_has_its_name_in_openlineage(connection: Connection, query: str, dataset: str) -> None:
    lineage = stream_lineage(spec(source=connection, source_query=query))
    assert [str(one) for one in lineage.inputs] == [dataset]
    assert [str(one.dataset) for one in lineage.outputs] == ["postgres://db:5432/sales.public.orders"]


def test_what_a_stream_writes_has_its_name_in_openlineage(tmp_path: Path) -> None:
    targets = [
        Target(connection=KAFKA, topic="out"),
        Target(connection=RABBIT, queue="out"),
        Target(connection=PUBSUB, topic="out"),
        Target(connection=KINESIS, partition_key_prefix="order-"),
        Target(connection=ObjectStoreLocalConnection(name="f", path=str(tmp_path), format="parquet"), prefix="out"),
        Target(connection=WAREHOUSE, table=("public", "orders")),
    ]
    assert [str(one.dataset) for one in stream_lineage(spec(targets=targets)).outputs] == [
        "kafka://b1:9092/out",
        "amqp://mq:5672/shop.out",
        "pubsub/topic:shop-1:out",
        "kinesis://eu-west-1/clicks",
        f"file/{tmp_path}/out",
        "postgres://db:5432/sales.public.orders",
    ]


def test_several_sources_are_several_inputs() -> None:
    sources = [Source(connection=KAFKA, query="orders"), Source(connection=KAFKA, query="returns")]
    lineage = stream_lineage(spec(sources=sources))
    assert [one.name for one in lineage.inputs] == ["orders", "returns"]


def test_a_stream_is_told_at_its_start_at_most_every_minute_and_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lineage.jsonl"
    with use_lineage(str(file)):
        run = StreamLineage("to_sales", "to_sales-stream-1", lambda: stream_lineage(spec()))
        run.started()
        run.goes_on(5)
        assert len(events(file)) == 1, "it was told a moment ago"
        monkeypatch.setattr(telling, "RUNNING_EVERY_S", 0.0)
        run.goes_on(7)
        run.finished("cancelled", 9)
        run.goes_on(11)
    start, running, end = events(file)
    assert [one["eventType"] for one in (start, running, end)] == ["START", "RUNNING", "ABORT"]
    assert len({one["run"]["runId"] for one in (start, running, end)}) == 1
    assert start["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    for event in (start, running, end):
        assert event["inputs"] == [{"namespace": "kafka://b1:9092", "name": "orders"}]
        assert [one["name"] for one in event["outputs"]] == ["sales.public.orders"]
    rows = [one["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] for one in (running, end)]
    assert rows == [7, 9] and "outputFacets" not in start["outputs"][0]
    assert "s3cret" not in file.read_text()


def test_lineage_that_cannot_be_told_breaks_no_stream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Lineage:
        raise LookupError("no such table")

    file = tmp_path / "lineage.jsonl"
    with use_lineage(str(file)):
        run = StreamLineage("to_sales", "to_sales-stream-1", broken)
        run.started()
        run.finished("failed", 0, error=RuntimeError("the broker is away"))
    start, end = events(file)
    assert (start["eventType"], end["eventType"], end["inputs"]) == ("START", "FAIL", [])
    assert end["run"]["facets"]["errorMessage"]["message"] == "the broker is away"
    assert "no such table" in caplog.text


def test_nobody_is_asked_for_lineage_that_nobody_wants() -> None:
    def never() -> Lineage:
        raise AssertionError

    run = StreamLineage("to_sales", "to_sales-stream-1", never)
    run.started()
    run.goes_on(1)
    run.finished("succeeded", 1)


def test_all_streams_of_a_module_are_told_to_the_same_place() -> None:
    given: dict[str, Any] = defaultdict(lambda: None, module="shop", lineage="file:///lineage.jsonl")

    class Arguments(Namespace):
        def __getattr__(self, name: str) -> Any:
            return given[name]

    words = consume_all._command("to_sales", 0, Arguments())
    assert words[words.index("--lineage") + 1] == "file:///lineage.jsonl"
