"""Joins of two streams as streams run them: from Kafka into tables, over restarts and dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import Join, PostgresConnection, Source, StateStore, run_streaming_pipeline
from ematix_flow.contracts.dead_letters import Selection
from ematix_flow.errors import InvalidPlan, UnknownColumn, UnsupportedBackend
from ematix_flow.run.dead_letter_replay import replay
from tests.services.kafka import KafkaServer
from tests.stream.conftest import Topic
from tests.stream.test_windows import minute


@pytest.fixture
def payments(kafka_server: KafkaServer) -> Topic:
    return Topic(kafka_server)


def options(orders: Topic, payments: Topic, pg_url: str, **join: Any) -> dict[str, Any]:
    made = {"time_window_ms": 60_000, "kind": "left_outer", "event_time_column": "at", **join}
    return {
        "name": f"paid_{orders.name}",
        "sources": [Source(orders.connection(), orders.name), Source(orders.connection(), payments.name)],
        "target": PostgresConnection(name="pg", url=pg_url),
        "target_table": ("public", "paid"),
        "join": Join(orders.name, payments.name, ["id"], ["order_id"], **made),
        "state_store": StateStore(kind="postgres", url=pg_url, schema="flow_state"),
        "once": True,
    }


def pairs(pg_url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(pg_url) as db:
        return db.execute("SELECT left_id, right_cents FROM public.paid ORDER BY 1, 2").fetchall()


def test_rows_that_match_come_out_as_pairs_and_the_others_alone_when_nothing_can_match_them(
    topic: Topic, payments: Topic, pg_url: str, checkpoints: Path
) -> None:
    given = options(topic, payments, pg_url)
    topic.send([{"id": 1, "at": minute(0)}, {"id": 2, "at": minute(10)}, {"id": None, "at": minute(11)}])
    payments.send([{"order_id": 1, "cents": 500, "at": minute(30)}, {"order_id": 2, "cents": 7, "at": minute(300)}])
    run_streaming_pipeline(**given)
    assert pairs(pg_url) == [(1, 500)]
    topic.send([{"id": 3, "at": minute(310)}])
    run_streaming_pipeline(**given)
    assert pairs(pg_url) == [(1, 500), (2, None), (None, None)]
    payments.send([{"order_id": 3, "cents": 9, "at": minute(300)}])
    run_streaming_pipeline(**given)
    assert pairs(pg_url) == [(1, 500), (2, None), (3, 9), (None, None)]
    with pytest.raises(UnsupportedBackend, match="gathers rows by their event time"):
        from ematix_flow.declare.registry import user_location
        from ematix_flow.declare.stream_pipeline import stream_spec

        spec = stream_spec({key: value for key, value in given.items() if key != "once"}, user_location("test"))
        replay(spec, Selection("all"))


def test_a_key_that_is_not_there_and_keys_of_different_kinds_are_named(
    topic: Topic, payments: Topic, pg_url: str, checkpoints: Path
) -> None:
    topic.send([{"number": 1, "at": minute(0)}])
    with pytest.raises(UnknownColumn, match="left_keys names the column 'id'"):
        run_streaming_pipeline(**options(topic, payments, pg_url))


def test_keys_of_different_kinds_are_refused(topic: Topic, payments: Topic, pg_url: str, checkpoints: Path) -> None:
    topic.send([{"id": "one", "at": minute(0)}])
    payments.send([{"order_id": 1, "cents": 5, "at": minute(0)}])
    with pytest.raises(InvalidPlan, match="'id' is string, and 'order_id' is bigint"):
        run_streaming_pipeline(**options(topic, payments, pg_url))
