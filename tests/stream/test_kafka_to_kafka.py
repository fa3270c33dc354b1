"""Kafka to Kafka: readers of committed messages see every message once, also after a kill in the middle of a part."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ematix_flow import KafkaToKafkaEosPipeline, PostgresConnection, run_streaming_pipeline
from ematix_flow.errors import InvalidDeclaration, StateIncompatible
from tests.services.kafka import KafkaServer
from tests.stream.conftest import Topic
from tests.stream.program import PART_BYTES, keywords, run_and_die

POINTS = ("part-sent", "part-committed", "mid-settle", "batch-applied")


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_pipeline_sends_no_message_twice(kafka_server: KafkaServer, topic: Topic, point: str) -> None:
    out = Topic(kafka_server)
    topic.send({"id": n} for n in range(50))
    connection = {"kind": "kafka", "bootstrap_servers": kafka_server.address, "group_id": f"group-{topic.name}"}
    given = {
        "name": f"eos_{topic.name}",
        "connections": {"broker": connection},
        "source": "broker",
        "source_query": topic.name,
        "targets": [{"connection": "broker", "topic": out.name}],
        "delivery": "exactly_once",
        "once": True,
        "max_batch_rows": 20,
    }
    run_and_die(given, point, code=1 if point.startswith("part") else -9)  # a part dies in a worker of Spark's
    topic.send({"id": n} for n in range(50, 55))
    pipeline = KafkaToKafkaEosPipeline(
        topic.connection(),
        topic.connection(),
        source_topic=topic.name,
        target_topic=out.name,
        name=f"eos_{topic.name}",
        max_batch_rows=20,
    )
    pipeline.run(once=True)
    found = [json.loads(message.value or b"") for message in kafka_server.messages(out.name)]
    assert sorted(row["id"] for row in found) == list(range(55))


CHANGING = [
    "SELECT id, uuid() AS token, 'SEEN' AS seen FROM source",
    "SELECT id, seen FROM (SELECT id, uuid() AS token, 'SEEN' AS seen FROM source)",
    "SELECT id, count(*) AS n, 'SEEN' AS seen FROM source GROUP BY id",
]


@pytest.mark.parametrize("sql", [*CHANGING, None] if os.environ.get("EMATIX_PROVE") else CHANGING[:1])
def test_a_batch_cut_off_between_two_parts_is_there_once_whatever_its_sql_says_now(
    kafka_server: KafkaServer, topic: Topic, monkeypatch: pytest.MonkeyPatch, sql: str | None
) -> None:
    out = Topic(kafka_server)
    topic.send({"id": n} for n in range(200))
    given = {
        "name": f"eos_{topic.name}",
        "connections": {
            "broker": {"kind": "kafka", "bootstrap_servers": kafka_server.address, "group_id": f"group-{topic.name}"}
        },
        "source": "broker",
        "source_query": topic.name,
        "targets": [{"connection": "broker", "topic": out.name}],
        "delivery": "exactly_once",
        "once": True,
        "dialect": "spark",
    }
    monkeypatch.setenv(PART_BYTES, "500")
    run_and_die({**given, "transform_sql": sql and sql.replace("SEEN", "before")}, "part-committed", code=1)
    there = [json.loads(message.value or b"") for message in kafka_server.messages(out.name)]
    is_cut = sql is None or sql == CHANGING[0]
    if is_cut:
        assert 0 < len(there) < 200
    else:
        assert len(there) == 200, "what does not say which messages its rows come from is one transaction"
    if sql == CHANGING[0]:
        with pytest.raises(StateIncompatible, match="does not say of its rows which messages they come from"):
            run_streaming_pipeline(**keywords({**given, "transform_sql": CHANGING[2]}))
    topic.send({"id": n} for n in range(200, 210))
    KafkaToKafkaEosPipeline(
        topic.connection(),
        topic.connection(),
        source_topic=topic.name,
        target_topic=out.name,
        name=f"eos_{topic.name}",
        transform_sql=sql and sql.replace("SEEN", "after"),
        dialect="spark",
    ).run(once=True)
    found = [json.loads(message.value or b"") for message in kafka_server.messages(out.name)]
    assert sorted(row["id"] for row in found) == list(range(210))
    if sql is not None:
        assert {row["id"] for row in found if row["seen"] == "before"} == {row["id"] for row in there}


def test_an_end_that_is_no_kafka_or_no_transactions_are_refused(topic: Topic, tmp_path: Path) -> None:
    ends = {"source_topic": "a", "target_topic": "b"}
    with pytest.raises(InvalidDeclaration, match="postgres connection"):
        KafkaToKafkaEosPipeline(topic.connection(), PostgresConnection(name="pg", url="postgresql://u@h/d"), **ends)
    with pytest.raises(InvalidDeclaration, match="transactional target"):
        KafkaToKafkaEosPipeline(topic.connection(), topic.connection(), delivery="at_least_once", **ends)
