"""Windows and sessions as streams run them: from Kafka into tables, over restarts and kills."""

from __future__ import annotations

import json
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from ematix_flow import (
    Aggregation,
    PostgresConnection,
    SQLiteConnection,
    StateStore,
    Watermark,
    Window,
    run_streaming_pipeline,
)
from ematix_flow.errors import InvalidSource, StateIncompatible, StateTooLarge, UnknownColumn
from tests.stream.conftest import Topic
from tests.stream.program import keywords, run_and_die

COUNT = Window(
    "tumbling",
    [Aggregation("count", "n"), Aggregation("sum", "total", "amount")],
    duration_ms=60_000,
    event_time_column="at",
    group_by=("user",),
)


def minute(second: int) -> str:
    return datetime.fromtimestamp(1_700_000_040 + second, timezone.utc).isoformat()


def event(second: int, user: str, amount: int = 1, **more: Any) -> dict[str, Any]:
    return {"at": minute(second), "user": user, "amount": amount, **more}


def table(pg_url: str, columns: str = '"user", n, total', name: str = "per_minute") -> list[tuple[Any, ...]]:
    with psycopg.connect(pg_url) as db:
        return db.execute(f"SELECT {columns} FROM public.{name} ORDER BY window_start, 1").fetchall()


def options(topic: Topic, pg_url: str, **more: Any) -> dict[str, Any]:
    return {
        "name": f"windows_{topic.name}",
        "source": topic.connection(),
        "source_query": topic.name,
        "target": PostgresConnection(name="pg", url=pg_url),
        "target_table": ("public", "per_minute"),
        "once": True,
        **more,
    }


def test_windows_close_when_event_time_has_passed_them_and_go_on_after_a_restart(
    topic: Topic, pg_url: str, checkpoints: Path
) -> None:
    given = options(topic, pg_url, window=COUNT)
    topic.send([event(0, "a", 2), event(10, "b"), event(59, "a", 3)])
    run_streaming_pipeline(**given)
    topic.send([event(30, "a", 5), event(61, "b")])
    run_streaming_pipeline(**given)
    assert table(pg_url) == [("a", 3, 10), ("b", 1, 1)]
    topic.send([event(5, "a"), event(121, "c")])  # the first is late
    run_streaming_pipeline(**given)
    assert table(pg_url) == [("a", 3, 10), ("b", 1, 1), ("b", 1, 1)]


def test_a_window_that_is_reopened_replaces_what_it_gave(topic: Topic, pg_url: str, checkpoints: Path) -> None:
    window = Window(
        "tumbling",
        [Aggregation("count", "n"), Aggregation("sum", "total", "amount")],
        duration_ms=60_000,
        event_time_column="at",
        group_by=("user",),
        late_data="reopen",
        allowed_lateness_ms=120_000,
    )
    given = options(topic, pg_url, window=window)
    topic.send([event(0, "a"), event(61, "b")])
    run_streaming_pipeline(**given)
    assert table(pg_url) == [("a", 1, 1)]
    topic.send([event(1, "a", 7), event(2, "z", 4)])
    run_streaming_pipeline(**given)
    assert table(pg_url) == [("a", 2, 8), ("z", 1, 4)]


def test_late_rows_become_dead_letters(topic: Topic, pg_url: str, checkpoints: Path) -> None:
    window = Window(
        "tumbling",
        [Aggregation("count", "n")],
        duration_ms=60_000,
        event_time_column="at",
        group_by=("user",),
        late_data="dlq",
    )
    given = options(topic, pg_url, window=window, state_store=StateStore(kind="postgres", url=pg_url))
    topic.send([event(0, "a"), event(70, "a")])
    run_streaming_pipeline(**given)
    topic.send([event(5, "late")])
    run_streaming_pipeline(**given)
    assert table(pg_url, '"user", n') == [("a", 1)]
    with psycopg.connect(pg_url) as db:
        found = db.execute("SELECT stage, payload FROM public.ematix_dlq_records").fetchall()
    assert [stage for stage, _ in found] == ["late_data"]
    assert b'"late"' in bytes(found[0][1])


def test_sql_in_front_of_a_window_keeps_the_event_time_of_the_broker(
    topic: Topic, pg_url: str, checkpoints: Path
) -> None:
    window = Window("tumbling", [Aggregation("sum", "total", "cents")], duration_ms=600_000, group_by=("who",))
    given = options(
        topic,
        pg_url,
        window=window,
        transform_sql='SELECT upper("user") AS who, amount * 100 AS cents FROM source WHERE amount > 0',
    )
    topic.send([event(0, "a", 2), event(0, "a", -1), event(0, "b", 3)])
    run_streaming_pipeline(**given)
    # Later by the clock of the producer; a broker takes no more than an hour.

    producer = Producer({"bootstrap.servers": topic.server.address})
    later = int(time.time() * 1000) + 3_000_000
    producer.produce(topic.name, json.dumps(event(0, "c", 1)).encode(), timestamp=later)
    assert producer.flush(30) == 0
    run_streaming_pipeline(**given)
    assert table(pg_url, "who, total") == [("A", 200), ("B", 300)]


def test_sql_that_aggregates_is_refused_in_front_of_a_window(topic: Topic, pg_url: str) -> None:
    with pytest.raises(InvalidSource, match=r"stands in front of window=, and GROUP BY|the aggregate count\(\)"):
        run_streaming_pipeline(
            **options(topic, pg_url, window=COUNT, transform_sql='SELECT "user", count(*) AS n FROM source GROUP BY 1')
        )


def test_too_many_groups_stop_the_stream_and_nothing_of_the_batch_is_written(
    topic: Topic, pg_url: str, checkpoints: Path
) -> None:
    window = Window(
        "tumbling",
        [Aggregation("count", "n")],
        duration_ms=60_000,
        event_time_column="at",
        group_by=("user",),
        max_groups_per_window=2,
    )
    topic.send([event(0, "a"), event(1, "b"), event(2, "c"), event(100, "a")])
    with pytest.raises(StateTooLarge, match=r"2023-11-14 22:14:00.*max_groups_per_window is 2"):
        run_streaming_pipeline(**options(topic, pg_url, window=window))
    with psycopg.connect(pg_url) as db:
        assert db.execute("SELECT to_regclass('public.per_minute')").fetchall() == [(None,)]


def test_a_changed_window_is_told_before_anything_starts(topic: Topic, pg_url: str, checkpoints: Path) -> None:
    topic.send([event(0, "a")])
    run_streaming_pipeline(**options(topic, pg_url, window=COUNT))
    other = Window("tumbling", COUNT.aggregations, duration_ms=30_000, event_time_column="at", group_by=("user",))
    with pytest.raises(StateIncompatible, match="duration_ms=60000.*duration_ms=30000"):
        run_streaming_pipeline(**options(topic, pg_url, window=other))


def test_a_mistake_that_stopped_the_first_batch_can_simply_be_mended(
    topic: Topic, pg_url: str, checkpoints: Path
) -> None:
    topic.send([event(0, "a", 2), event(70, "a")])
    wrong = Window("tumbling", [Aggregation("sum", "total", "amont")], duration_ms=60_000, event_time_column="at")
    with pytest.raises(UnknownColumn, match="'amont'"):
        run_streaming_pipeline(**options(topic, pg_url, window=wrong))
    right = Window("tumbling", [Aggregation("sum", "total", "amount")], duration_ms=60_000, event_time_column="at")
    run_streaming_pipeline(**options(topic, pg_url, window=right))
    assert table(pg_url, "total") == [(2,)]


def test_sessions_end_when_a_key_falls_silent(topic: Topic, tmp_path: Path, checkpoints: Path) -> None:
    import sqlite3

    window = Window(
        "session",
        [Aggregation("count", "n"), Aggregation("last", "page", "page")],
        gap_ms=30_000,
        max_session_duration_ms=600_000,
        event_time_column="at",
        group_by=("user",),
    )
    given = {
        "name": f"sessions_{topic.name}",
        "source": topic.connection(),
        "source_query": topic.name,
        "target": SQLiteConnection(name="db", path=str(tmp_path / "shop.db")),
        "target_table": ("main", "visits"),
        "window": window,
        "watermark": Watermark(lateness_ms=5_000),
        "state_store": StateStore(kind="rocksdb"),
        "once": True,
    }
    topic.send([event(0, "a", page="home"), event(20, "a", page="cart"), event(25, "b", page="home")])
    run_streaming_pipeline(**given)
    topic.send([event(45, "a", page="pay"), event(200, "c", page="home")])
    run_streaming_pipeline(**given)
    with sqlite3.connect(tmp_path / "shop.db") as db:
        found = db.execute('SELECT "user", n, page, session_id >= 0 FROM visits ORDER BY 1').fetchall()
    assert found == [("a", 3, "pay", 1), ("b", 1, "home", 1)]


@pytest.mark.parametrize("point", ["stepped", "batch-applied"])
def test_a_stream_that_is_killed_counts_every_row_once(
    topic: Topic, pg_url: str, checkpoints: Path, point: str
) -> None:
    given = {
        "connections": {
            "broker": {
                "kind": "kafka",
                "bootstrap_servers": topic.server.address,
                "group_id": f"group-{topic.name}",
            },
            "pg": {"kind": "postgres", "url": pg_url},
        },
        "name": f"killed_{topic.name}",
        "source": "broker",
        "source_query": topic.name,
        "targets": [{"connection": "pg", "table": ["public", "per_minute"]}],
        "window": {
            "kind": "tumbling",
            "aggregations": [{"agg": "count", "as_": "n"}, {"agg": "sum", "as_": "total", "column": "amount"}],
            "duration_ms": 60_000,
            "event_time_column": "at",
            "group_by": ["user"],
        },
        "max_batch_rows": 4,
        "once": True,
    }
    topic.send([event(second, "a") for second in range(0, 200, 7)], key=b"one")  # in order, in one partition
    run_and_die(given, point)
    run_and_die({**given, "max_batch_rows": 9}, point)
    run_streaming_pipeline(**keywords(given))
    assert sum(row[1] for row in table(pg_url)) == len([s for s in range(0, 200, 7) if s < 180])
    assert [row[1] for row in table(pg_url)] == [len([s for s in range(0, 200, 7) if s // 60 == m]) for m in range(3)]


def test_what_a_window_remembers_can_be_looked_at(topic: Topic, pg_url: str, checkpoints: Path) -> None:
    from ematix_flow.declare.registry import user_location
    from ematix_flow.declare.stream_pipeline import stream_spec
    from ematix_flow.run.stream_state import StreamState

    given = options(topic, pg_url, window=COUNT)
    topic.send([event(0, "a"), event(10, "b"), event(70, "a")])
    run_streaming_pipeline(**given)
    spec = stream_spec({key: value for key, value in given.items() if key != "once"}, user_location("test"))
    memory = StreamState(spec).inspect()["memory"]
    assert memory["event_time"] == "2023-11-14T22:15:10.000Z"
    assert (memory["open_windows"], memory["keys"], memory["parts"]["windows"]["rows"]) == (1, 1, 3)
    assert memory["parts"]["windows"]["bytes"] > 0
    assert memory["parts"]["windows"]["oldest"] == "2023-11-14T22:15:00.000Z"  # the one before is out
    assert (memory["groups"], memory["sources"]) == (1, {topic.name: "2023-11-14T22:15:10.000Z"})
