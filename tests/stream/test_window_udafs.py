"""Aggregates of the user's own in windows: the same as over all rows at once, however batches are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from ematix_flow import Aggregation, Window, udaf
from ematix_flow.errors import IncompatibleSchema, InvalidDeclaration, UnknownColumn
from ematix_flow.spark import windows
from ematix_flow.spark.session_windows import SessionSteps
from ematix_flow.spark.windows import WindowSteps
from tests.stream.test_window_limits import SESSION, TUMBLING, batch, frame
from tests.stream.test_window_model import memory_in, spark as spark


@udaf(args=("Float64", "Int64"), state=("Float64", "Int64", "Binary"), returns="Float64", name="vwap")
class Vwap:
    def __init__(self) -> None:
        self.worth, self.pieces = 0.0, 0

    def update_batch(self, prices: Any, pieces: Any) -> None:
        self.worth += pc.sum(pc.multiply(prices, pc.cast(pieces, pa.float64()))).as_py() or 0.0
        self.pieces += pc.sum(pieces).as_py() or 0

    def merge_batch(self, worths: Any, pieces: Any, marks: Any) -> None:
        assert set(marks.to_pylist()) == {b"\x00\xff"}
        self.worth += pc.sum(worths).as_py()
        self.pieces += pc.sum(pieces).as_py()

    def evaluate(self) -> Any:
        return pa.array([self.worth / self.pieces if self.pieces else None], pa.float64())

    def state(self) -> Any:
        return (
            pa.array([self.worth], pa.float64()),
            pa.array([self.pieces], pa.int64()),
            pa.array([b"\x00\xff"], pa.binary()),
        )


KINDS = "at bigint, k string, price double, pieces int"
AGGREGATIONS = [Aggregation("count", "n"), Aggregation("vwap", "price", columns=["price", "pieces"])]


@pytest.mark.parametrize(
    ("shape", "steps"), [(TUMBLING, WindowSteps), ({**SESSION, "max_session_duration_ms": 3_000}, SessionSteps)]
)
def test_an_aggregate_of_the_users_own_is_that_of_all_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any], steps: Any
) -> None:
    monkeypatch.setattr(windows, "MOST_PARTS", 1)  # parts are put together after every batch
    taken = steps(Window(aggregations=AGGREGATIONS, **shape), None, memory_in(tmp_path), [Vwap])
    cut = [
        [(1, "x", 2.0, 10), (2, "x", None, 5), (1, "y", 4.0, None)],
        [(2, "x", 3.0, 30), (3, "x", 8.0, 1)],
        [(20, "x", 9.0, 1)],
        [(1, "y", 5.0, 7), (40, "z", 1.0, 1)],
    ]
    found, late = [], 0
    for number, rows in enumerate(cut):
        stepped = taken.step(frame(spark, *rows, kinds=KINDS), batch(number))
        late += stepped.late
        found += [(row["k"], row["n"], row["price"]) for row in (stepped.rows.collect() if stepped.rows else [])]
    assert late == 1
    assert sorted(found, key=str) == [("x", 1, 9.0), ("x", 4, (20.0 + 90 + 8) / 46), ("y", 1, None)]


def test_a_session_that_became_too_long_is_cut_between_rows(spark: SparkSession, tmp_path: Path) -> None:
    window = Window(aggregations=AGGREGATIONS, **{**SESSION, "max_session_duration_ms": 2_500})
    taken = SessionSteps(window, None, memory_in(tmp_path), [Vwap])
    rows = [(1, "x", 2.0, 10), (3, "x", 4.0, 10), (5, "x", 8.0, 1)]
    (row,) = taken.step(frame(spark, *rows, kinds=KINDS), batch(0)).rows.collect()
    assert (row["n"], row["price"]) == (2, 3.0)


def test_what_does_not_fit_is_refused_before_a_row_moves(spark: SparkSession, tmp_path: Path) -> None:
    def step(*columns: str, agg: str = "vwap", kinds: str = KINDS) -> None:
        window = Window(aggregations=[Aggregation(agg, "p", columns=columns)], **TUMBLING)
        window.check()
        WindowSteps(window, None, memory_in(tmp_path), [Vwap]).step({"a": spark.createDataFrame([], kinds)}, batch(0))

    with pytest.raises(InvalidDeclaration, match="there is no aggregate 'vwapp'"):
        step("price", "pieces", agg="vwapp")
    with pytest.raises(InvalidDeclaration, match="takes 2 columns, not 1"):
        step("price")
    with pytest.raises(UnknownColumn, match="'pieses'"):
        step("price", "pieses")
    with pytest.raises(IncompatibleSchema, match="declares Int64 and column 'k' is string"):
        step("price", "k")
    with pytest.raises(InvalidDeclaration, match="takes column=, not columns="):
        step("price", agg="sum")
