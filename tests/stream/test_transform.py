"""`transform_sql`: one SELECT per micro-batch, in the dialects people know, and what `*` means in it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ematix_flow import PostgresConnection, run_streaming_pipeline
from ematix_flow.errors import FlowError, InvalidSource
from tests.stream.conftest import Topic


def consume(topic: Topic, url: str, sql: str, **options: Any) -> list[tuple[Any, ...]]:
    run_streaming_pipeline(
        **{
            "name": f"sql_{topic.name}",
            "source": topic.connection(),
            "source_query": topic.name,
            "target": PostgresConnection(name="pg", url=url),
            "target_table": ("public", "out"),
            "transform_sql": sql,
            "once": True,
            **options,
        }
    )
    with psycopg.connect(url) as db:
        return db.execute("SELECT * FROM public.out ORDER BY 1").fetchall()


def test_rows_are_filtered_cast_and_named(topic: Topic, pg_url: str) -> None:
    topic.send({"id": n, "kind": "click" if n % 2 else "view", "at": "2026-03-01T06:00:30Z"} for n in range(6))
    sql = "SELECT id::bigint AS n, date_trunc('minute', at::timestamp) AS minute FROM source WHERE kind = 'click'"
    assert [(n, str(minute)) for n, minute in consume(topic, pg_url, sql)] == [
        (n, "2026-03-01 06:00:00") for n in (1, 3, 5)
    ]


def test_a_star_is_the_payload_and_hidden_columns_come_when_they_are_named(topic: Topic, pg_url: str) -> None:
    topic.send([{"id": 1}], key=b"k1", headers={"trace": b"t1"})
    sql = "SELECT s.*, _offset AS position, decode(_key, 'UTF-8') AS key, size(_headers) AS headers FROM source s"
    found = consume(topic, pg_url, sql, dialect="spark")
    assert found == [(1, 0, "k1", 1)]


def test_groups_are_those_of_one_batch(topic: Topic, pg_url: str) -> None:
    topic.send({"user": "a" if n < 3 else "b", "id": n} for n in range(5))
    sql = (
        "SELECT \"user\", count(*) AS n, array_agg(named_struct('id', id)) AS events FROM source GROUP BY 1 ORDER BY 1"
    )
    found = consume(topic, pg_url, sql)
    assert [(user, n, sorted(event["id"] for event in events)) for user, n, events in found] == [
        ("a", 3, [0, 1, 2]),
        ("b", 2, [3, 4]),
    ]


@pytest.mark.parametrize("condition", ["id > 100", "1 = 0"])
def test_a_batch_that_is_filtered_out_moves_the_position(topic: Topic, pg_url: str, condition: str) -> None:
    topic.send({"id": n} for n in range(4))
    assert consume(topic, pg_url, f"SELECT id FROM source WHERE {condition}") == []
    assert topic.committed() == 4


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT * FROM sauce", "'sauce'.*'source'"),
        ("DELETE FROM source", "one SELECT"),
        ("DROP TABLE source", "one SELECT"),
        ("SELECT FROM WHERE", "transform_sql|parsed"),
    ],
)
def test_sql_that_can_be_seen_to_be_wrong_is_refused_before_anything_connects(
    topic: Topic, sql: str, said: str
) -> None:
    with pytest.raises(InvalidSource, match=said) as caught:
        consume(topic, "postgresql://nobody@127.0.0.1:1/none", sql)
    assert isinstance(caught.value, ValueError)


def test_a_column_that_does_not_exist_is_named(topic: Topic, pg_url: str) -> None:
    topic.send([{"id": 1}])
    with pytest.raises(FlowError, match="idd"):
        consume(topic, pg_url, "SELECT idd FROM source")
