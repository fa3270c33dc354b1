"""RabbitMQ, Pub/Sub and Kinesis as sources and as targets: nothing is lost, and what came twice is known."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ematix_flow import run_streaming_pipeline
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.errors import LostMessages
from ematix_flow.run.stream_state import Place, StreamState
from ematix_flow.run.stream_watch import StreamWatch
from ematix_flow.run.streams import run_stream
from tests.services.moto import S3Server
from tests.services.pubsub import PROJECT, PubSubServer
from tests.services.rabbitmq import RabbitMQServer
from tests.stream.conftest import Topic
from tests.stream.program import keywords, run_and_die


@dataclass
class Queue:
    """A queue of some broker: how a stream names it, how to fill it, and what is in it."""

    fields: dict[str, Any]
    query: str
    send: Callable[[Sequence[bytes]], None]
    bodies: Callable[[], list[bytes]]
    target: dict[str, Any]


def rabbitmq(request: pytest.FixtureRequest) -> Queue:
    server: RabbitMQServer = request.getfixturevalue("rabbitmq_server")
    name = server.create_queue()

    def send(bodies: Sequence[bytes]) -> None:
        for body in bodies:
            server.send(name, body, message_id=uuid4().hex)

    return Queue({"kind": "rabbitmq", "amqp_url": server.url}, name, send, lambda: server.bodies(name), {"queue": name})


def pubsub(request: pytest.FixtureRequest) -> Queue:
    server: PubSubServer = request.getfixturevalue("pubsub_server")
    topic = server.create_topic()
    subscription = server.create_subscription(topic)
    return Queue(
        {"kind": "pubsub", "project_id": PROJECT, "endpoint": server.address, "anonymous_auth": True},
        subscription,
        lambda bodies: server.send(topic, *bodies),
        lambda: server.bodies(subscription),
        {"topic": topic},
    )


def kinesis(request: pytest.FixtureRequest) -> Queue:
    server: S3Server = request.getfixturevalue("moto_server")
    stream = server.new_stream()

    def send(bodies: Sequence[bytes]) -> None:
        records = [{"Data": body, "PartitionKey": f"k{n}"} for n, body in enumerate(bodies)]
        server.kinesis().put_records(StreamName=stream, Records=records)

    def bodies() -> list[bytes]:
        client, found = server.kinesis(), []
        for shard in client.list_shards(StreamName=stream)["Shards"]:
            asked = {"StreamName": stream, "ShardId": shard["ShardId"], "ShardIteratorType": "TRIM_HORIZON"}
            iterator = client.get_shard_iterator(**asked)["ShardIterator"]
            found += [record["Data"] for record in client.get_records(ShardIterator=iterator)["Records"]]
        return found

    key, secret = server.loader
    fields = {"kind": "kinesis", "stream_name": stream, "region": "us-east-1", "endpoint": server.endpoint}
    login = {"access_key_id": key, "secret_access_key": secret}
    return Queue({**fields, **login}, stream, send, bodies, {"partition_key_prefix": "row"})


MAKERS = {"rabbitmq": rabbitmq, "pubsub": pubsub, "kinesis": kinesis}


@pytest.fixture(params=list(MAKERS))
def queue(request: pytest.FixtureRequest) -> Queue:
    return MAKERS[request.param](request)


def options(queue: Queue, url: str) -> dict[str, Any]:
    return {
        "name": f"from_queue_{uuid4().hex[:6]}",
        "connections": {"queue": queue.fields, "pg": {"kind": "postgres", "url": url}},
        "source": "queue",
        "source_query": queue.query,
        "targets": [{"connection": "pg", "table": ["public", "events"]}],
        "once": True,
    }


def messages(numbers: range) -> list[bytes]:
    return [json.dumps({"id": n}).encode() for n in numbers]


def ids(url: str) -> list[int]:
    with psycopg.connect(url) as db:
        return [row[0] for row in db.execute("SELECT id FROM public.events ORDER BY id").fetchall()]


def test_a_stream_killed_before_it_could_acknowledge_takes_no_message_twice(queue: Queue, pg_url: str) -> None:
    given = options(queue, pg_url)
    queue.send(messages(range(30)))
    run_and_die(given, "batch-applied")
    assert ids(pg_url) == list(range(30))
    queue.send(messages(range(30, 40)))
    result = run_streaming_pipeline(**keywords(given))
    assert ids(pg_url) == list(range(40))
    assert result["total_rows"] == 10
    if queue.fields["kind"] != "kinesis":  # whose records stay for as long as they are kept for everybody
        assert queue.bodies() == []


def test_messages_that_were_received_and_wait_are_its_lag(request: pytest.FixtureRequest, pg_url: str) -> None:
    queue = rabbitmq(request)
    given, told, watch = keywords(options(queue, pg_url)), threading.Event(), StreamWatch("lag", sample_s=0.05)
    del given["once"]
    queue.send(messages(range(3)))
    running = threading.Thread(
        target=run_stream, args=(stream_spec(given, user_location("lag")),), kwargs={"stop": told, "watch": watch}
    )
    running.start()
    try:
        until(lambda: watch.view().counts["batches"] >= 1 and watch.view().behind == 0)
        with psycopg.connect(pg_url) as db:
            db.execute("LOCK TABLE public.events")  # whoever writes there waits
            queue.send(messages(range(3, 10)))
            until(lambda: watch.view().behind == 7)
        until(lambda: watch.view().behind == 0)
    finally:
        told.set()
        running.join(120)
    assert ids(pg_url) == list(range(10))


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_messages_that_come_again_among_others_before_their_batch_was_written_arrive_once(
    queue: Queue, pg_url: str
) -> None:
    given = options(queue, pg_url)
    queue.send(messages(range(30)))
    run_and_die(given, "staged")
    queue.send(messages(range(30, 40)))
    result = run_streaming_pipeline(**keywords(given))
    assert ids(pg_url) == list(range(40))
    assert result["total_rows"] == 40
    if queue.fields["kind"] != "kinesis":
        assert queue.bodies() == []


def test_a_kinesis_stream_whose_checkpoint_is_lost_goes_on_where_its_target_is(
    request: pytest.FixtureRequest, pg_url: str, checkpoints: Path
) -> None:
    queue = kinesis(request)
    given = {**options(queue, pg_url), "delivery": "exactly_once"}
    queue.send(messages(range(30)))
    run_streaming_pipeline(**keywords(given))
    shutil.rmtree(checkpoints)
    queue.send(messages(range(30, 40)))
    assert run_streaming_pipeline(**keywords(given))["total_rows"] == 10
    assert ids(pg_url) == list(range(40))


def test_a_kinesis_stream_is_sent_back_and_notices_another_of_its_name(
    request: pytest.FixtureRequest, pg_url: str, moto_server: S3Server
) -> None:
    queue = kinesis(request)
    given = options(queue, pg_url)

    def run(**more: Any) -> int:
        return int(run_streaming_pipeline(**keywords({**given, **more}))["total_rows"])

    queue.send(messages(range(4)))
    time.sleep(0.01)
    middle = datetime.now(timezone.utc)
    queue.send(messages(range(4, 10)))
    assert run() == 10
    state = StreamState(stream_spec({k: v for k, v in keywords(given).items() if k != "once"}, user_location("back")))
    state.rewind(Place(when=middle))
    assert (run(), run()) == (6, 0)
    assert ids(pg_url) == sorted([*range(10), *range(4, 10)])
    moto_server.kinesis().delete_stream(StreamName=queue.query)
    time.sleep(1.1)
    moto_server.kinesis().create_stream(StreamName=queue.query, ShardCount=2)
    queue.send(messages(range(20, 60)))
    with pytest.raises(LostMessages, match=f"'{queue.query}' was deleted and made anew"):
        run()
    assert run(on_gap="continue") == 40
    assert ids(pg_url)[-40:] == list(range(20, 60))


def test_a_clock_that_is_set_back_loses_no_messages(
    request: pytest.FixtureRequest, pg_url: str, checkpoints: Path
) -> None:
    queue = rabbitmq(request)
    given = options(queue, pg_url)
    queue.send(messages(range(30)))
    run_and_die(given, "staged")
    [waiting] = [file for file in checkpoints.rglob("*.parquet") if not file.name.startswith(".")]
    in_a_month = time.time() + 30 * 86_400
    os.utime(waiting, (in_a_month, in_a_month))  # as if it had been written, or copied, by another clock
    run_streaming_pipeline(**keywords(given))
    queue.send(messages(range(30, 40)))
    run_streaming_pipeline(**keywords(given))
    assert ids(pg_url) == list(range(40))
    times = [entry["timestamp"] for listed in checkpoints.glob("*/gen-*/sources/0/[0-9]") for entry in entries(listed)]
    assert len(times) >= 2 and max(times) < 1_000, "the files have a clock of their own"


def entries(listed: Path) -> list[dict[str, Any]]:
    """What Spark wrote down of the files of a batch."""
    return [json.loads(line) for line in listed.read_text().splitlines()[1:]]


def test_rows_of_a_stream_arrive_as_messages(queue: Queue, topic: Topic) -> None:
    topic.send({"id": n} for n in range(25))
    broker = {"kind": "kafka", "bootstrap_servers": topic.server.address, "group_id": f"group-{topic.name}"}
    given = {
        "name": f"to_queue_{uuid4().hex[:6]}",
        "connections": {"broker": broker, "queue": queue.fields},
        "source": "broker",
        "source_query": topic.name,
        "targets": [{"connection": "queue", **queue.target}],
        "once": True,
    }
    assert run_streaming_pipeline(**keywords(given))["total_rows"] == 25
    assert sorted(json.loads(body)["id"] for body in queue.bodies()) == list(range(25))
