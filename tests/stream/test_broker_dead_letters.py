"""Dead letters that are left to the broker: bad messages are rejected once their batch is durable, and never lost.

RabbitMQ is the real one. Pub/Sub is the server of Google's own client tests, which counts deliveries and moves messages
as a dead-letter policy says.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ematix_flow import _core, run_streaming_pipeline
from tests.services.pubsub import PROJECT, PubSubServer
from tests.services.rabbitmq import RabbitMQServer
from tests.stream.program import keywords, run_and_die

PROVE = bool(os.environ.get("EMATIX_PROVE"))
UNREADABLE = b"{not json"
TOO_LONG = b'{"id": 2, "name": "abcd"}'
POISON = b'{"id": 13, "name": "c"}'


@dataclass
class Queue:
    """A queue whose broker keeps dead letters: how a stream names it, what is left in it, and what is dead."""

    fields: dict[str, Any]
    query: str
    send: Callable[..., None]
    left: Callable[[], list[bytes]]
    dead: Callable[[], list[bytes]]


def rabbitmq(server: RabbitMQServer) -> Queue:
    dead = server.create_queue()
    name = server.create_queue(**{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})

    def send(*bodies: bytes) -> None:
        for body in bodies:
            server.send(name, body, message_id=uuid4().hex)

    return Queue(
        {"kind": "rabbitmq", "amqp_url": server.url},
        name,
        send,
        lambda: server.bodies(name),
        lambda: sorted(server.bodies(dead)),
    )


def pubsub(server: PubSubServer) -> Queue:
    topic, dead_topic = server.create_topic(), server.create_topic()
    dead = server.create_subscription(dead_topic)
    policy = {"dead_letter_topic": f"projects/{PROJECT}/topics/{dead_topic}", "max_delivery_attempts": 5}
    name = server.create_subscription(topic, dead_letter_policy=policy)
    return Queue(
        {"kind": "pubsub", "project_id": PROJECT, "endpoint": server.address, "anonymous_auth": True},
        name,
        lambda *bodies: server.send(topic, *bodies),
        lambda: server.bodies(name),
        lambda: sorted(server.bodies(dead)),
    )


@pytest.fixture
def rabbit_queue(rabbitmq_server: RabbitMQServer) -> Queue:
    return rabbitmq(rabbitmq_server)


@pytest.fixture
def pubsub_queue(pubsub_server: PubSubServer) -> Queue:
    return pubsub(pubsub_server)


@pytest.fixture
def table(pg_url: str) -> str:
    """Where the table of the stream is: short names, and no 13."""
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id integer, name varchar(3), CHECK (id <> 13))")
    return pg_url


def options(queue: Queue, url: str) -> dict[str, Any]:
    return {
        "name": f"rejecting_{uuid4().hex[:6]}",
        "connections": {"queue": queue.fields, "pg": {"kind": "postgres", "url": url}},
        "source": "queue",
        "source_query": queue.query,
        "targets": [{"connection": "pg", "table": ["public", "events"]}],
        "transform_on_error": "dlq",
        "dlq_store": "broker",
        "once": True,
    }


def good(*numbers: int) -> list[bytes]:
    return [json.dumps({"id": n, "name": "abc"}).encode() for n in numbers]


def ids(url: str) -> list[int]:
    with psycopg.connect(url) as db:
        return [row[0] for row in db.execute("SELECT id FROM public.events ORDER BY id").fetchall()]


def beside_checkpoint(checkpoints: Path, name: str) -> list[str]:
    """Files of messages, notes and letters that are still there."""
    return sorted(file.name for file in checkpoints.rglob(name))


def test_bad_messages_of_a_queue_go_to_its_dead_letter_exchange_and_the_rest_arrives(
    rabbit_queue: Queue, table: str, checkpoints: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rabbit_queue.send(*good(1), UNREADABLE, *good(3), TOO_LONG, POISON, *good(4, 5))
    given = options(rabbit_queue, table)
    run_streaming_pipeline(**keywords(given))
    assert ids(table) == [1, 3, 4, 5]
    assert rabbit_queue.dead() == sorted([UNREADABLE, TOO_LONG, POISON])
    assert rabbit_queue.left() == []
    assert "without one it throws rejected messages away" in caplog.text
    assert beside_checkpoint(checkpoints, "_rejected-*") == []
    assert beside_checkpoint(checkpoints, "dead_letters.db") == []
    rabbit_queue.send(*good(6), UNREADABLE)
    run_streaming_pipeline(**keywords(given))
    assert (ids(table), rabbit_queue.dead()) == ([1, 3, 4, 5, 6], [UNREADABLE])


def test_bad_messages_of_a_subscription_are_given_back_until_its_policy_moves_them(
    pubsub_queue: Queue, table: str
) -> None:
    pubsub_queue.send(*good(1), UNREADABLE, TOO_LONG, *good(3))
    run_streaming_pipeline(**keywords(options(pubsub_queue, table)))
    assert ids(table) == [1, 3], "once, although the others of their batch came five times"
    assert pubsub_queue.dead() == sorted([UNREADABLE, TOO_LONG])
    assert pubsub_queue.left() == []


def test_a_message_that_fits_by_the_time_it_comes_again_arrives(pubsub_queue: Queue, table: str) -> None:
    pubsub_queue.send(*good(1), TOO_LONG)
    given = options(pubsub_queue, table)
    run_streaming_pipeline(**keywords({**given, "max_batches": 1}))
    assert ids(table) == [1]
    with psycopg.connect(table) as db:
        db.execute("ALTER TABLE public.events ALTER COLUMN name TYPE text")
    run_streaming_pipeline(**keywords(given))
    assert ids(table) == [1, 2]
    assert (pubsub_queue.left(), pubsub_queue.dead()) == ([], [])


def test_a_stream_with_windows_rejects_what_cannot_be_counted(rabbit_queue: Queue, pg_url: str) -> None:
    no_moment = b'{"at": "yesterday"}'
    moments = [f'{{"at": "2026-03-01T06:00:{second:02}Z"}}'.encode() for second in (1, 2, 30)]
    rabbit_queue.send(moments[0], UNREADABLE, moments[1], no_moment, moments[2])
    window = {
        "kind": "tumbling",
        "aggregations": [{"agg": "count", "as_": "n"}],
        "duration_ms": 10_000,
        "event_time_column": "at",
    }
    given = {**options(rabbit_queue, pg_url), "window": window}
    given["targets"] = [{"connection": "pg", "table": ["public", "counts"]}]
    run_streaming_pipeline(**keywords(given))
    with psycopg.connect(pg_url) as db:
        assert db.execute("SELECT n FROM public.counts").fetchall() == [(2,)]
    assert rabbit_queue.dead() == sorted([UNREADABLE, no_moment])
    assert rabbit_queue.left() == []


@pytest.mark.parametrize("point", ["batch-applied", *(["messages-rejected"] if PROVE else [])])
def test_a_stream_killed_before_the_broker_heard_of_a_bad_message_rejects_it_afterwards(
    rabbit_queue: Queue, table: str, point: str
) -> None:
    given = options(rabbit_queue, table)
    rabbit_queue.send(*good(1), UNREADABLE, *good(3), TOO_LONG)
    run_and_die(given, point)
    assert ids(table) == [1, 3]
    dead = rabbit_queue.dead()
    assert dead == ([] if point == "batch-applied" else sorted([UNREADABLE, TOO_LONG]))
    with psycopg.connect(table) as db:
        # It would fit now. But the batch is in the table without it, and is not looked at again.
        db.execute("ALTER TABLE public.events ALTER COLUMN name TYPE text")
    rabbit_queue.send(*good(5))
    assert run_streaming_pipeline(**keywords(given))["total_rows"] == 1
    assert ids(table) == [1, 3, 5]
    assert sorted(dead + rabbit_queue.dead()) == sorted([UNREADABLE, TOO_LONG])
    assert rabbit_queue.left() == []


def test_a_batch_that_is_done_again_is_judged_anew(rabbit_queue: Queue, table: str) -> None:
    given = options(rabbit_queue, table)
    rabbit_queue.send(*good(1), UNREADABLE, TOO_LONG)
    run_and_die(given, "letters-kept")
    assert (ids(table), rabbit_queue.dead()) == ([], [])
    with psycopg.connect(table) as db:
        db.execute("ALTER TABLE public.events ALTER COLUMN name TYPE text")
    run_streaming_pipeline(**keywords(given))
    assert ids(table) == [1, 2]
    assert (rabbit_queue.dead(), rabbit_queue.left()) == ([UNREADABLE], [])


def test_what_is_to_be_rejected_outlives_the_disk(rabbit_queue: Queue, table: str, checkpoints: Path) -> None:
    given = {**options(rabbit_queue, table), "state_store": {"kind": "postgres", "url": table, "schema": "flow_state"}}
    rabbit_queue.send(*good(1), UNREADABLE, *good(3))
    run_and_die(given, "batch-applied")
    assert ids(table) == [1, 3]
    shutil.rmtree(checkpoints)
    run_streaming_pipeline(**keywords(given))
    assert ids(table) == [1, 3]
    assert (rabbit_queue.dead(), rabbit_queue.left()) == ([UNREADABLE], [])


def test_a_subscription_without_a_policy_is_refused_and_gives_nothing(pubsub_server: PubSubServer, table: str) -> None:
    queue = pubsub(pubsub_server)
    topic = pubsub_server.create_topic()
    queue.query = pubsub_server.create_subscription(topic)
    pubsub_server.send(topic, UNREADABLE)
    with pytest.raises(ValueError, match="has no dead-letter policy"):
        run_streaming_pipeline(**keywords(options(queue, table)))
    assert pubsub_server.bodies(queue.query) == [UNREADABLE]


def test_letters_that_the_broker_has_cannot_be_listed_or_replayed_here() -> None:
    config = (
        'pipeline_name = "rejecting"\nsource_query = "orders"\ndlq_store = "broker"\n'
        '[source]\nkind = "rabbitmq"\namqp_url = "amqp://localhost"\n'
        '[target]\nkind = "sqlite"\npath = "shop.db"\ntable = { schema = "main", name = "orders" }\n'
    )
    for ask in (_core.dlq_records, lambda text: _core.dlq_replay(text, '{"kind": "all"}')):
        with pytest.raises(ValueError, match="leaves its dead letters to the broker"):
            ask(config)
