"""Sessions that late rows join, or begin earlier: merged tables hold the sessions that there are, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import Aggregation, StateStore, Target, Watermark, Window
from ematix_flow.contracts.streams import StreamCounters
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.run.stream_state import StreamState
from ematix_flow.run.stream_watch import StreamWatch
from ematix_flow.run.streams import run_stream
from tests.stream.conftest import Topic
from tests.stream.test_cdc import End, end_of
from tests.stream.test_window_model import JOINED, SECOND
from tests.stream.test_windows import minute
from tests.stream.window_model import Sessions, Table

WINDOW = Window(
    "session",
    [Aggregation("count", "n"), Aggregation("sum", "total", "v")],
    gap_ms=4_000,
    max_session_duration_ms=90_000,
    event_time_column="at",
    group_by=("k",),
    late_data="reopen",
    allowed_lateness_ms=30_000,
)
# Every row has a number of its own, so that sums tell sessions apart.
STORY = [
    [{**row, "v": 2 ** (10 * number + place)} for place, row in enumerate(rows)]
    for number, (rows, _) in enumerate(JOINED)
]


class LastCounters(StreamWatch):
    """A watch that still knows the counters of a start when it has ended."""

    def run_of(self, counters: StreamCounters, note: Any) -> AbstractContextManager[None]:
        self.last = counters
        return super().run_of(counters, note)


def consumed(topic: Topic, rows: list[dict[str, Any]], *targets: Target) -> tuple[dict[str, Any], StreamCounters]:
    """Bring rows through the stream; what it remembers then, and what its metrics are made of."""
    topic.send([{"at": minute(row["us"] // SECOND), "k": row["k"], "v": row["v"]} for row in rows], key=b"one")
    given = {
        "name": f"sessions_{topic.name}",
        "source": topic.connection(),
        "source_query": topic.name,
        "targets": list(targets),
        "window": WINDOW,
        "state_store": StateStore(kind="rocksdb"),
    }
    spec, watch = stream_spec(given, user_location("test")), LastCounters("sessions")
    run_stream(spec, once=True, watch=watch)
    return StreamState(spec).inspect()["memory"], watch.last


def held(end: End, table: str = "customers") -> list[tuple[Any, ...]]:
    found = end.select(f"SELECT k, n, total FROM {table}")
    return in_order((k, int(n), int(total)) for k, n, total in found)


def in_order(rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: (row[0] or "", *row[1:]))


@pytest.mark.parametrize("kind", ["postgres", "delta", "sqlite", "duckdb", "mysql", "iceberg"])
def test_a_table_has_the_sessions_that_there_are(
    topic: Topic, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    end = end_of(kind, request, tmp_path)
    model, table = Sessions(WINDOW, Watermark()), Table(WINDOW)
    for number, rows in enumerate(STORY):
        consumed(topic, rows, end.target(primary_key=None))
        table.take(model.batch([{**row, "arrival": (number, place)} for place, row in enumerate(rows)], number))
        assert held(end) == in_order(row[2:] for row in table.rows.values())
    assert [row[:2] for row in held(end)] == [(None, 3), ("w", 1), ("x", 4), ("y", 2), ("z", 6)]


def test_a_target_that_only_adds_rows_is_not_told_what_goes(
    topic: Topic, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    end = end_of("sqlite", request, tmp_path)
    keyed = Target(connection=end.connection, table=("main", "keyed"), mode="merge", keys=("session_id",))
    added = Target(connection=end.connection, table=("main", "added"), mode="append")
    latest = Target(connection=end.connection, table=("main", "latest"), mode="merge", keys=("k",))
    without_joins = [[row for row in rows if row["k"] in ("y", "w")] for rows in STORY]
    for rows in filter(None, without_joins):
        memory, counters = consumed(topic, rows, keyed, added, latest)
    first, both = 4, 4 + 2**12
    assert held(end, "keyed") == [("w", 1, 32), ("y", 2, both)]
    assert held(end, "added") == [("w", 1, 32), ("y", 1, first), ("y", 2, both)]
    assert held(end, "latest") == [("w", 1, 32), ("y", 2, both)]
    assert (memory["open_windows"], memory["keys"], memory["parts"]["sessions"]["rows"]) == (3, 2, 3)
    assert (counters.open_windows, counters.oldest_event_us) == (
        3,
        10**6 * datetime.fromisoformat(minute(5)).timestamp(),
    )
