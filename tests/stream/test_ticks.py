"""Time alone finishes windows: of arrival times when they are over, of several sources when one is not waited for."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ematix_flow import Aggregation, Join, Watermark, Window, run_streaming_pipeline
from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.plan.event_time import EventClock, SourceMark
from ematix_flow.spark.session_windows import SessionSteps
from ematix_flow.spark.stream_joins import JoinSteps
from ematix_flow.spark.stream_memory import Note, Part
from ematix_flow.spark.windows import WindowSteps
from tests.stream.program import keywords, run_and_die
from tests.stream.test_window_model import memory_in, spark as spark

SECOND = 1_000_000
COUNT = [Aggregation("count", "n")]
TUMBLING = Window("tumbling", COUNT, duration_ms=10_000)
SESSION = Window("session", COUNT, gap_ms=10_000, max_session_duration_ms=60_000, group_by=("k",))
ALLOWED = Watermark(source_idleness_ms=30_000)
REMEMBERED = (
    Part("windows", "0/windows", "", 1, low=0, high=0, spans=((0, 0),)),
    Part("sessions", "0/sessions", "", 1, low=0, high=0),
    Part("left", "0/left", "", 1, low=0, high=0),
)


def steps(**more: Any) -> list[Any]:
    memory: Any = None  # nothing is read
    return [
        WindowSteps(Window(**{**vars(TUMBLING), **more}), ALLOWED, memory),
        SessionSteps(Window(**{**vars(SESSION), **more}), ALLOWED, memory),
    ]


def test_a_batch_is_due_when_a_silent_source_is_no_longer_waited_for_and_another_is() -> None:
    clock = EventClock({"a": SourceMark(40 * SECOND, 20_000), "b": SourceMark(5 * SECOND, 0)}, 5 * SECOND)
    note = Note(0, "", clock, REMEMBERED)
    for one in (*steps(), JoinSteps(Join("a", "b", ["k"], ["k"], time_window_ms=1_000), ALLOWED, None)):  # type: ignore[arg-type]
        moments = [now for now in (20_000, 30_000, 30_001, 50_000, 50_001) if one.is_due(note, now)]
        assert moments == [30_001, 50_000]
        assert not one.is_due(Note(0, "", clock, ()), 40_000)
        after = clock.after({}, 30_001, ALLOWED)
        assert (after.mark_us, one.is_due(Note(1, "", after, REMEMBERED), 30_002)) == (40 * SECOND, False)


@pytest.mark.parametrize("late", [{}, {"late_data": "reopen", "allowed_lateness_ms": 60_000}])
def test_a_batch_is_due_when_a_window_of_arrival_times_is_over(late: dict[str, Any]) -> None:
    note = Note(0, "", EventClock({"a": SourceMark(0, 0)}, 0), REMEMBERED)
    for one in steps(time_mode="processing", **late):
        assert [one.is_due(note, now) for now in (9_999, 10_001)] == [False, True]
        over = Note(1, "", EventClock({"a": SourceMark(10_001_000, 10_001)}, 10_001_000), REMEMBERED)
        assert not one.is_due(over, 20_000)


def test_a_row_without_a_match_comes_out_when_its_other_side_is_no_longer_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    join = Join("a", "b", ["k"], ["k"], time_window_ms=1_000, kind="left_outer", event_time_column="at")
    taken = JoinSteps(join, ALLOWED, memory_in(tmp_path))

    def rows(*given: tuple[int, str]) -> Any:
        return spark.createDataFrame(list(given), "at bigint, k string")

    taken.step({"a": rows((3, "x")), "b": rows((2, "y"))}, StreamBatch("g", 0, "0", {}, 0))
    note = taken.step({"a": rows((40, "z"))}, StreamBatch("g", 1, "1", {}, 20_000)).note
    assert taken.is_due(note, 30_001)
    stepped = taken.step(taken.without_rows(note, spark), StreamBatch("g", 2, "2", {}, 30_001))
    assert [(row["left_k"], row["right_k"]) for row in stepped.rows.collect()] == [("x", None)]
    assert taken.oldest(stepped.note) == 40 * SECOND  # what is past is not counted any more


def test_a_batch_is_due_when_a_side_that_never_had_a_row_is_no_longer_waited_for() -> None:
    note = Note(0, "", EventClock({"a": SourceMark(40 * SECOND, 0)}, 40 * SECOND), REMEMBERED, begun_ms=0)
    for kind, due in (("left_outer", [30_001, 90_000]), ("full_outer", [30_001, 90_000]), ("inner", [])):
        one = JoinSteps(Join("a", "b", ["k"], ["k"], time_window_ms=1_000, kind=kind), ALLOWED, None)  # type: ignore[arg-type]
        assert [now for now in (30_000, 30_001, 90_000) if one.is_due(note, now)] == due
        assert not one.is_due(replace(note, alone_us=40 * SECOND), 90_000), "they have come out"
        one.may_lack_a_side = lambda: False
        assert not one.is_due(note, 90_000), "a table is to be made, and its columns are not all known"


def test_a_side_that_never_had_a_row_is_not_waited_for_for_ever(tmp_path: Path, pg_url: str) -> None:
    given: dict[str, Any] = {
        "connections": {
            "drop": {"kind": "object_store_local", "path": str(tmp_path / "drop"), "format": "json_lines"},
            "shop": {"kind": "sqlite", "path": str(tmp_path / "shop.db")},
        },
        "name": "one_sided",
        "sources": [{"connection": "drop", "query": "orders"}, {"connection": "drop", "query": "payments"}],
        "targets": [{"connection": "shop", "table": ["main", "paid"]}],
        "join": {
            "left_source": "orders",
            "right_source": "payments",
            "left_keys": ["k"],
            "right_keys": ["k"],
            "time_window_ms": 1_000,
            "kind": "left_outer",
            "event_time_column": "at",
        },
        "watermark": {"source_idleness_ms": 2_000},
        "state_store": {"kind": "postgres", "url": pg_url, "schema": "flow_state"},
        "checkpoint": str(tmp_path / "checkpoint"),
    }

    def paid() -> list[tuple[Any, ...]]:
        with sqlite3.connect(tmp_path / "shop.db") as db:
            return db.execute("SELECT left_k, right_cents FROM paid ORDER BY left_k").fetchall()

    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE paid (left_k INT, left_at INT, right_k INT, right_at INT, right_cents INT)")
    (tmp_path / "drop" / "payments").mkdir(parents=True)
    dropped(tmp_path, {"k": 1, "at": 1_000}, {"k": 2, "at": 1_060}, folder="orders")
    assert run_streaming_pipeline(**keywords({**given, "once": True}))["total_rows"] == 0
    assert run_streaming_pipeline(**keywords({**given, "max_batches": 1}))["total_rows"] == 1  # time alone has passed
    assert paid() == [(1, None)]
    dropped(tmp_path, {"k": 2, "at": 1_060, "cents": 5}, folder="payments")
    run_streaming_pipeline(**keywords({**given, "once": True}))
    assert paid() == [(1, None), (2, 5)]


def test_windows_of_arrival_times_come_out_although_nothing_comes_also_after_a_kill(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "connections": {
            "drop": {"kind": "object_store_local", "path": str(tmp_path / "drop"), "format": "json_lines"},
            "shop": {"kind": "sqlite", "path": str(tmp_path / "shop.db")},
        },
        "name": "arrivals",
        "source": "drop",
        "source_query": "events",
        "targets": [{"connection": "shop", "table": ["main", "counts"]}],
        "window": {
            "kind": "tumbling",
            "aggregations": [{"agg": "count", "as_": "n"}],
            "duration_ms": 1_000,
            "time_mode": "processing",
        },
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    dropped(tmp_path, *({"k": n} for n in range(3)))
    assert run_streaming_pipeline(**keywords({**given, "once": True}))["total_rows"] == 0
    run_and_die({**given, "max_batches": 1}, "stepped")  # the tick is planned, and its window is in no table
    dropped(tmp_path, *({"k": n} for n in range(2)))
    run_streaming_pipeline(**keywords({**given, "max_batches": 3}))  # the tick again, two rows, and their tick
    with sqlite3.connect(tmp_path / "shop.db") as db:
        assert db.execute("SELECT n FROM counts ORDER BY window_start").fetchall() == [(3,), (2,)]


def dropped(directory: Path, *rows: dict[str, Any], folder: str = "events") -> None:
    place = directory / "drop" / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{len(list(place.iterdir()))}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
