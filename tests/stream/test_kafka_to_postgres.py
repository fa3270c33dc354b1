"""Kafka into PostgreSQL: what arrives, how often, and what is remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import PostgresConnection, run_streaming_pipeline
from ematix_flow.errors import BadMessages, UnknownColumn
from tests.stream.conftest import Topic


def consume(topic: Topic, url: str, **options: Any) -> dict[str, Any]:
    return run_streaming_pipeline(
        **{
            "name": f"to_pg_{topic.name}",
            "source": topic.connection(),
            "source_query": topic.name,
            "target": PostgresConnection(name="warehouse", url=url),
            "target_table": ("public", "events"),
            "once": True,
            **options,
        }
    )


def rows(url: str, sql: str = "SELECT id, name FROM public.events ORDER BY id") -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(sql).fetchall()


def test_messages_become_rows_of_a_table_made_for_them(topic: Topic, pg_url: str) -> None:
    topic.send({"id": n, "name": f"n{n}", "amount": n / 4} for n in range(100))
    result = consume(topic, pg_url)
    assert result == {"total_rows": 100, "iterations": 1, "shutdown_triggered": False}
    assert rows(pg_url) == [(n, f"n{n}") for n in range(100)]
    assert rows(pg_url, "SELECT sum(amount) FROM public.events") == [(99 * 100 / 8,)]


def test_a_second_start_reads_only_what_is_new_and_the_group_hears_of_it(topic: Topic, pg_url: str) -> None:
    topic.send({"id": n, "name": "a"} for n in range(10))
    consume(topic, pg_url)
    assert topic.committed() == 10
    topic.send({"id": n, "name": "b"} for n in range(10, 15))
    assert consume(topic, pg_url)["total_rows"] == 5
    assert [row[0] for row in rows(pg_url)] == list(range(15))
    assert topic.committed() == 15


def test_without_its_checkpoint_a_stream_goes_on_where_its_target_is(
    topic: Topic, pg_url: str, checkpoints: Path
) -> None:
    import shutil

    topic.send({"id": n, "name": "a"} for n in range(10))
    consume(topic, pg_url)
    shutil.rmtree(checkpoints)
    topic.send([{"id": 10, "name": "b"}])
    topic.grow(3)
    topic.send([{"id": 11, "name": "c"}], partition=2)
    assert consume(topic, pg_url)["total_rows"] == 2, "also of partitions that the target knows nothing of"
    assert [row[0] for row in rows(pg_url)] == list(range(12))


def test_a_table_that_is_there_keeps_its_types(topic: Topic, pg_url: str) -> None:
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id integer PRIMARY KEY, at timestamptz, _offset bigint, note text)")
    topic.send([{"id": 1, "at": "2026-03-01T06:00:00Z"}])
    consume(topic, pg_url)
    assert rows(pg_url, "SELECT id, at::text, _offset, note FROM public.events") == [
        (1, "2026-03-01 06:00:00+00", 0, None)
    ]


def test_a_field_that_comes_later_needs_no_restart(topic: Topic, pg_url: str) -> None:
    topic.send({"id": n} for n in range(5))
    consume(topic, pg_url)
    with psycopg.connect(pg_url) as db:
        db.execute("ALTER TABLE public.events ADD COLUMN extra text, ADD COLUMN score double precision")
    topic.send([*({"id": n} for n in range(5, 2000)), {"id": 2000, "extra": "x"}, {"id": 2001, "score": 1}])
    topic.send([{"id": 2002, "score": 1.5}])
    consume(topic, pg_url)
    found = rows(pg_url, "SELECT id, extra, score FROM public.events WHERE id >= 2000 ORDER BY id")
    assert found == [(2000, "x", None), (2001, None, 1.0), (2002, None, 1.5)]
    assert rows(pg_url, "SELECT count(*) FROM public.events") == [(2003,)]


def test_a_field_the_table_lacks_stops_the_stream_before_a_row_is_written(topic: Topic, pg_url: str) -> None:
    topic.send([{"id": 1}])
    consume(topic, pg_url)
    topic.send([{"id": 2}, {"id": 3, "surprise": True}])
    with pytest.raises(UnknownColumn, match="surprise"):
        consume(topic, pg_url)
    assert rows(pg_url, "SELECT id FROM public.events") == [(1,)]


def test_a_message_that_is_no_json_stops_the_stream_or_is_dropped(topic: Topic, pg_url: str) -> None:
    topic.send([{"id": 1, "name": "a"}, b"{not json", b"[1]", b"", b"\xff\xfe", None, {"id": 2, "name": "b"}])
    with pytest.raises(BadMessages, match="4 messages"):
        consume(topic, pg_url)
    consume(topic, pg_url, transform_on_error="drop")
    assert rows(pg_url) == [(1, "a"), (2, "b")]
