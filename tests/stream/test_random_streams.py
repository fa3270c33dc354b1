"""Windows, sessions and joins as whole streams that end or are killed anywhere: tables are those of all rows at once.

Rows come out of order. Where no row is ever too late, how batches are cut, and how often one is done, makes no
difference in the end; where some are, a model that is given the same batches says which.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from ematix_flow import Aggregation, Watermark, Window, run_streaming_pipeline
from tests.services.kafka import KafkaServer
from tests.stream.conftest import Topic
from tests.stream.program import keywords, run_and_die
from tests.stream.test_windows import minute
from tests.stream.window_model import Windows

PROVES = bool(os.environ.get("EMATIX_PROVE"))
SEEDS = range(3) if PROVES else range(1)
STARTS, ROWS = (4, 150) if PROVES else (2, 120)
MINUTE, GAP, SPAN = 60, 7, 5
FAR = 100_000
POINTS = ["batch-began", "stepped", "mid-settle", "batch-applied"]
WINDOWS: dict[str, dict[str, Any]] = {
    "tumbling": {"kind": "tumbling", "duration_ms": 1000 * MINUTE},
    "session": {"kind": "session", "gap_ms": 1000 * GAP, "max_session_duration_ms": 10**8},
}
Rows = list[dict[str, Any]]


def random_rows(chosen: Random, start: int) -> Rows:
    """The rows of one start: a second apart, but for some disorder."""
    return [
        {
            "second": start * ROWS + number + chosen.randint(-15, 15),
            "k": chosen.choice(["a", "b", "c", "d", "e", "f", None]),
            "v": 1000 * start + number,
        }
        for number in range(ROWS)
    ]


def sent(topic: Topic, rows: Rows) -> None:
    topic.send([{"at": minute(row["second"]), "k": row["k"], "v": row["v"]} for row in rows], key=b"one")


def lived(given: dict[str, Any], chosen: Random, *, dies: bool) -> None:
    """Run what is there in batches of some size, perhaps after a death in the middle."""
    given["max_batch_rows"] = chosen.randint(ROWS // 4, 2 * ROWS)
    if dies:
        run_and_die(given, chosen.choice(POINTS))
    run_streaming_pipeline(**keywords(given))


def options(server: KafkaServer, pg_url: str, topic: Topic) -> dict[str, Any]:
    return {
        "connections": {
            "broker": {"kind": "kafka", "bootstrap_servers": server.address, "group_id": f"group-{topic.name}"},
            "pg": {"kind": "postgres", "url": pg_url},
        },
        "name": f"random_{topic.name}",
        "targets": [{"connection": "pg", "table": ["public", "found"]}],
        "state_store": {"kind": "rocksdb"},
        "once": True,
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", list(WINDOWS))
def test_reopened_windows_are_those_of_all_rows_at_once(
    kind: str, seed: int, topic: Topic, kafka_server: KafkaServer, pg_url: str, checkpoints: Path
) -> None:
    made = [{"agg": "count", "as_": "n"}, {"agg": "sum", "as_": "total", "column": "v"}]
    window = {
        **WINDOWS[kind],
        **{"aggregations": made, "event_time_column": "at", "group_by": ["k"]},
        **{"late_data": "reopen", "allowed_lateness_ms": 10**8},
    }
    given = {**options(kafka_server, pg_url, topic), "source": "broker", "source_query": topic.name, "window": window}
    chosen, rows = Random(seed), []
    for start in range(STARTS):
        rows += random_rows(chosen, start)
        sent(topic, rows[-ROWS:])
        lived(given, chosen, dies=PROVES and start % 2 == 1)
    sent(topic, [{"second": FAR, "k": "far", "v": 0}])
    lived(given, chosen, dies=False)
    with psycopg.connect(pg_url) as db:
        found = db.execute("SELECT extract(epoch FROM window_start)::bigint, k, n, total FROM found").fetchall()
    expected = tumbling(rows) if kind == "tumbling" else sessions(rows)
    assert Counter(found) == Counter((first, k, len(values), sum(values)) for (first, k), values in expected.items())


@pytest.mark.parametrize("seed", SEEDS)
def test_windows_drop_the_rows_that_are_late_wherever_the_stream_dies(
    seed: int, topic: Topic, kafka_server: KafkaServer, pg_url: str, checkpoints: Path
) -> None:
    chosen = Random(seed)
    made = [{"agg": "count", "as_": "n"}, {"agg": "sum", "as_": "total", "column": "v"}]
    window = {**WINDOWS["tumbling"], "aggregations": made, "event_time_column": "at", "group_by": ["k"]}
    size = chosen.randint(ROWS // 5, ROWS // 3)
    given = {
        **options(kafka_server, pg_url, topic),
        **{"source": "broker", "source_query": topic.name, "window": window, "max_batch_rows": size},
    }
    rows = [*random_rows(chosen, 0), *random_rows(chosen, 1), {"second": FAR, "k": "far", "v": 0}]
    sent(topic, rows)
    run_and_die(given, chosen.choice(POINTS))
    run_streaming_pipeline(**keywords(given))
    with psycopg.connect(pg_url) as db:
        found = db.execute("SELECT extract(epoch FROM window_start)::bigint, k, n, total FROM found").fetchall()
    model = Windows(Window(**{**window, "aggregations": [Aggregation(**one) for one in made]}), Watermark())
    expected: Counter[Any] = Counter()
    for first in range(0, len(rows), size):
        cut = [{**row, "source": "a", "us": 1_000_000 * moment(row["second"])} for row in rows[first : first + size]]
        expected.update((us // 1_000_000, *values) for us, _, *values in model.batch(cut, now_ms=0))
    assert model.late > 0
    assert Counter(found) == expected


def moment(second: int) -> int:
    return 1_700_000_040 + second


def tumbling(rows: Rows) -> dict[tuple[int, str | None], list[int]]:
    found: dict[tuple[int, str | None], list[int]] = {}
    for row in rows:
        found.setdefault((moment(row["second"]) // MINUTE * MINUTE, row["k"]), []).append(row["v"])
    return found


def sessions(rows: Rows) -> dict[tuple[int, str | None], list[int]]:
    found: dict[tuple[int, str | None], list[int]] = {}
    first: dict[str | None, int] = {}
    last: dict[str | None, int] = {}
    for row in sorted(rows, key=lambda row: row["second"]):
        key, second = row["k"], row["second"]
        if key not in last or second - last[key] > GAP:
            first[key] = second
        last[key] = second
        found.setdefault((moment(first[key]), key), []).append(row["v"])
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["inner", "full_outer"])
def test_a_join_has_every_pair_once_and_every_row_without_one(
    kind: str, seed: int, topic: Topic, kafka_server: KafkaServer, pg_url: str, checkpoints: Path
) -> None:
    other = Topic(kafka_server)
    join = {
        **{"left_source": topic.name, "right_source": other.name, "left_keys": ["k"], "right_keys": ["k"]},
        **{"time_window_ms": 1000 * SPAN, "kind": kind, "event_time_column": "at"},
    }
    given = {
        **options(kafka_server, pg_url, topic),
        "sources": [{"connection": "broker", "query": one.name} for one in (topic, other)],
        "join": join,
        "watermark": {"lateness_ms": 40_000, "source_idleness_ms": 3_600_000},
    }
    chosen = Random(seed)
    left: Rows = []
    right: Rows = []
    for start in range(STARTS):
        left, right = left + random_rows(chosen, start), right + random_rows(chosen, start)
        sent(topic, left[-ROWS:])
        sent(other, right[-ROWS:])
        lived(given, chosen, dies=PROVES and start % 2 == 1)
    for one in (topic, other):
        sent(one, [{"second": FAR, "k": None, "v": -1}])
    lived(given, chosen, dies=False)
    with psycopg.connect(pg_url) as db:
        found = Counter(db.execute("SELECT left_v, right_v FROM found").fetchall())
    pairs = [(one["v"], two["v"]) for one in left for two in right if is_pair(one, two)]
    if kind == "full_outer":
        pairs += [(row["v"], None) for row in left if not any(is_pair(row, two) for two in right)]
        pairs += [(None, row["v"]) for row in right if not any(is_pair(one, row) for one in left)]
    assert found == Counter(pairs)


def is_pair(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one["k"] is not None and one["k"] == two["k"] and abs(one["second"] - two["second"]) <= SPAN
