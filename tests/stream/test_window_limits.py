"""What windows do at their limits: too many groups or values, times of every form, a memory that is gone."""

from __future__ import annotations

import json
import shutil
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ematix_flow import ObjectStoreLocalConnection, SQLiteConnection
from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream import Aggregation, Window
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.errors import IncompatibleSchema, StateIncompatible, StateTooLarge, UnfitValue, UnknownColumn
from ematix_flow.run.stream_state import StreamState
from ematix_flow.run.streams import run_stream
from ematix_flow.spark.batch import explained
from ematix_flow.spark.session_windows import SessionSteps
from ematix_flow.spark.stream_memory import _can_grow
from ematix_flow.spark.windows import WindowSteps
from tests.stream.test_reopened_sessions import LastCounters
from tests.stream.test_window_model import memory_in, spark as spark

COUNT = [Aggregation("count", "n")]
BASE = {"event_time_column": "at", "group_by": ("k",), "max_groups_per_window": 2}
TUMBLING = {"kind": "tumbling", "duration_ms": 10_000, **BASE}
SESSION = {"kind": "session", "gap_ms": 2_000, "max_session_duration_ms": 60_000, **BASE}


def batch(number: int, planned_ms: int = 0) -> StreamBatch:
    return StreamBatch("g", number, str(number), {}, planned_ms)


def frame(spark: SparkSession, *rows: tuple[Any, ...], kinds: str = "at bigint, k string") -> dict[str, Any]:
    return {"a": spark.createDataFrame(list(rows), kinds)}


@pytest.mark.parametrize(("shape", "steps"), [(TUMBLING, WindowSteps), (SESSION, SessionSteps)])
def test_groups_beyond_the_cap_stop_the_stream_or_are_left_out(
    spark: SparkSession, tmp_path: Path, shape: dict[str, Any], steps: Any
) -> None:
    first, more = frame(spark, (1, "y"), (1, "z")), frame(spark, (1, "a"), (1, "a"), (1, "z"))
    end = frame(spark, (100, "y"))

    strict = steps(Window(aggregations=COUNT, **shape), None, memory_in(tmp_path / "strict"))
    strict.step(first, batch(0))
    with pytest.raises(StateTooLarge, match="max_groups_per_window is 2"):
        strict.step(more, batch(1))

    lenient = steps(
        Window(aggregations=COUNT, on_state_cap="drop_new_groups", **shape), None, memory_in(tmp_path / "lenient")
    )
    dropped = []
    for number, rows in enumerate((first, more, end)):
        stepped = lenient.step(rows, batch(number))
        dropped.append(stepped.dropped)
    assert dropped == [0, 2, 0]
    assert {(row["k"], row["n"]) for row in stepped.rows.collect()} == {("y", 1), ("z", 2)}


@pytest.mark.parametrize(
    ("shape", "steps", "kind", "most", "wider"),
    [
        (TUMBLING, WindowSteps, "bigint", 2**63 - 1, "DECIMAL(38, 0)"),
        (SESSION, SessionSteps, "decimal(38, 2)", Decimal("9" * 36 + ".99"), "DOUBLE"),
    ],
)
def test_a_sum_that_no_column_holds_stops_the_stream_and_is_named(
    spark: SparkSession, tmp_path: Path, shape: dict[str, Any], steps: Any, kind: str, most: Any, wider: str
) -> None:
    window = Window(aggregations=[Aggregation("count", "n"), Aggregation("sum", "total", "v")], **shape)
    kinds = f"at bigint, k string, v {kind}"
    at_once = steps(window, None, memory_in(tmp_path / "at_once"))
    with pytest.raises(UnfitValue, match="'total', the sum of 'v' over one window") as caught, explained():
        at_once.step(frame(spark, (1, "x", most), (2, "x", most), kinds=kinds), batch(0))
    assert wider in str(caught.value.fix)
    in_turn = steps(window, None, memory_in(tmp_path / "in_turn"))
    with pytest.raises(UnfitValue, match="'total', the sum of 'v' over one window"), explained():
        for number, (at, value) in enumerate([(1, most), (2, most), (100, None)]):
            stepped = in_turn.step(frame(spark, (at, "x", value), kinds=kinds), batch(number))
        stepped.rows.collect()


@pytest.mark.parametrize(("shape", "steps"), [(TUMBLING, WindowSteps), (SESSION, SessionSteps)])
def test_too_many_different_values_are_not_remembered_and_name_the_option(
    spark: SparkSession, tmp_path: Path, shape: dict[str, Any], steps: Any
) -> None:
    distinct = Aggregation("count_distinct", "vs", "v", mode="exact", max_distinct_values_per_group=2)
    memory = memory_in(tmp_path)
    taken, kinds = steps(Window(aggregations=[distinct], **shape), None, memory), "at bigint, k string, v int"
    taken.step(frame(spark, (1, "x", 1), (2, "x", 2), (20, "x", 3), kinds=kinds), batch(0))
    late = [(1, "y", value) for value in range(5)]
    assert taken.step(frame(spark, (21, "x", 4), *late, kinds=kinds), batch(1)).late == 5
    for given in (
        frame(spark, (22, "x", 5), kinds=kinds),
        frame(spark, *[(22, "z", n) for n in range(3)], kinds=kinds),
    ):
        with pytest.raises(StateTooLarge, match="max_distinct_values_per_group"), explained():
            taken.step(given, batch(2))
        assert memory.note(2) is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("bigint", 1_772_359_200),
        ("bigint", 1_772_359_200_000),
        ("bigint", 1_772_359_200_000_000),
        ("bigint", 1_772_359_200_000_000_000),
        ("double", 1_772_359_200.25),
        ("string", "2026-03-01T10:00:00Z"),
        ("string", "2026-03-01T11:00:00+01:00"),
        ("timestamp", datetime(2026, 3, 1, 10, tzinfo=timezone.utc)),
    ],
)
def test_event_times_come_in_many_forms(spark: SparkSession, tmp_path: Path, kind: str, value: Any) -> None:
    window = Window("tumbling", COUNT, duration_ms=60_000, event_time_column="at", late_data="drop")
    steps = WindowSteps(window, None, memory_in(tmp_path))
    steps.step(frame(spark, (value, "x"), kinds=f"at {kind}, k string"), batch(0))
    later = (
        frame(spark, (1_772_370_000, "x"))
        if kind == "bigint"
        else frame(spark, ("2026-03-02", "x"), kinds="at string, k string")
    )
    (row,) = steps.step(later, batch(1)).rows.collect()
    assert row["window_start"].astimezone(timezone.utc) == datetime(2026, 3, 1, 10, tzinfo=timezone.utc)


def test_what_is_no_moment_is_counted_and_a_column_that_can_hold_none_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    window = Window("tumbling", COUNT, duration_ms=60_000, event_time_column="at")
    steps = WindowSteps(window, None, memory_in(tmp_path))
    given = frame(spark, ("2026-03-01", "x"), ("soon", "y"), (None, "z"), kinds="at string, k string")
    assert steps.step(given, batch(0)).unreadable == 1
    assert [row["k"] for row in steps.left_out(given, batch(0)).collect()] == ["y"]
    with pytest.raises(IncompatibleSchema, match="holds no moments"):
        steps.step(frame(spark, (True, "x"), kinds="at boolean, k string"), batch(1))
    with pytest.raises(UnknownColumn, match="in column 'at'"):
        steps.step(frame(spark, (1, "x"), kinds="att bigint, k string"), batch(1))


KINDS = {
    "small smallint": 7,
    "whole int": 8,
    "yes boolean": True,
    "day date": date(2026, 3, 1),
    "price decimal(12,2)": Decimal("9.90"),
    "share float": 0.5,
    "raw binary": b"\x00\xff",
}


@pytest.mark.parametrize(("shape", "steps"), [(TUMBLING, WindowSteps), (SESSION, SessionSteps)])
def test_groups_and_values_keep_their_types(
    spark: SparkSession, tmp_path: Path, shape: dict[str, Any], steps: Any
) -> None:
    names = [kind.split()[0] for kind in KINDS]
    values, nothing = tuple(KINDS.values()), (None,) * len(KINDS)
    largest = [Aggregation("max", f"max_{name}", name) for name in names if name not in ("yes", "raw")]
    window = Window(aggregations=[*COUNT, *largest], **{**shape, "group_by": tuple(names)})
    taken = steps(window, None, memory_in(tmp_path))
    kinds = ", ".join(["at bigint", *KINDS])
    taken.step(frame(spark, (1, *values), (2, *values), (2, *nothing), kinds=kinds), batch(0))
    found = taken.step(frame(spark, (100, *values), kinds=kinds), batch(1)).rows
    types = {field.name: field.dataType.simpleString() for field in found.schema.fields}
    assert [types[name] for name in names] == [kind.split()[1] for kind in KINDS]
    rows = {row["n"]: tuple(row[name] for name in names) for row in found.collect()}
    assert rows == {2: values, 1: nothing}
    assert {tuple(row[one.as_] for one in largest) for row in found.collect()} == {
        tuple(KINDS[kind] for kind in KINDS if kind.split()[0] not in ("yes", "raw")),
        (None,) * len(largest),
    }


def test_the_time_of_a_batch_can_be_the_event_time(spark: SparkSession, tmp_path: Path) -> None:
    window = Window("tumbling", COUNT, duration_ms=60_000, time_mode="processing")
    steps = WindowSteps(window, None, memory_in(tmp_path))
    assert steps.step(frame(spark, (1, "x"), (2, "y")), batch(0, planned_ms=30_000)).rows is None
    (row,) = steps.step(frame(spark, (3, "x")), batch(1, planned_ms=61_000)).rows.collect()
    assert row["n"] == 2


def test_a_memory_that_is_gone_stops_the_stream(spark: SparkSession, tmp_path: Path) -> None:
    window = Window("tumbling", COUNT, duration_ms=60_000, event_time_column="at")
    steps = WindowSteps(window, None, memory_in(tmp_path))
    steps.step(frame(spark, (1, "x")), batch(0))
    shutil.rmtree(next(tmp_path.rglob("memory")))
    with pytest.raises(StateIncompatible, match="before batch 1 is gone"):
        steps.step(frame(spark, (2, "x")), batch(1))


@pytest.mark.parametrize(
    ("old", "new", "can"),
    [
        ("decimal(20,2)", "decimal(38,2)", True),
        ("decimal(20,2)", "decimal(38,4)", True),
        ("decimal(38,2)", "decimal(38,4)", False),
        ("decimal(20,2)", "decimal(12,2)", False),
        ("bigint", "decimal(38,2)", True),
        ("bigint", "decimal(10,2)", False),
        ("array<int>", "array<bigint>", True),
        ("array<bigint>", "array<int>", False),
        ("struct<us:bigint,v:decimal(10,2)>", "struct<us:bigint,v:decimal(12,2)>", True),
        ("double", "decimal(38,2)", False),
    ],
)
def test_what_is_remembered_grows_where_every_value_stays_what_it_is(old: str, new: str, can: bool) -> None:
    assert _can_grow(StructType.fromDDL(f"c {old}")["c"].dataType, StructType.fromDDL(f"c {new}")["c"].dataType) is can


def test_rows_of_groups_too_many_are_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "drop" / "events"
    place.mkdir(parents=True)
    rows = [{"at": 1, "k": "a"}, {"at": 2, "k": "b"}, {"at": 2, "k": "b"}, {"at": 20, "k": "a"}]
    (place / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "name": "capped",
        "source": ObjectStoreLocalConnection(name="drop", path=str(tmp_path / "drop"), format="json_lines"),
        "source_query": "events",
        "target": SQLiteConnection(name="shop", path=str(tmp_path / "shop.db")),
        "target_table": ("main", "counts"),
        "window": Window(
            aggregations=COUNT, on_state_cap="drop_new_groups", **{**TUMBLING, "max_groups_per_window": 1}
        ),
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    spec, watch = stream_spec(given, user_location("test")), LastCounters("capped")
    run_stream(spec, once=True, watch=watch)
    assert (watch.last.rows_dropped, watch.last.windows_emitted) == (2, 1)
    assert "capped: 2 rows of new groups left out, because max_groups_per_window is reached" in caplog.text
    assert watch.last.held_keys() == {"open_windows": 1, "groups": 1, "keys": 1}
    assert watch.last.oldest_event_us == 20_000_000
    memory = StreamState(spec).inspect()["memory"]
    assert (memory["open_windows"], memory["groups"], memory["keys"]) == (1, 1, 1)
