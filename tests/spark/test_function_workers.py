"""The halves of an aggregation as plain functions over Arrow, against models of a few lines. No Spark is started."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st

from ematix_flow import udaf, udf
from ematix_flow.errors import UdfFailed
from ematix_flow.spark.function_workers import PartialAggregation, Share, merging_function, scalar_function

BIG = 2**60 + 1


@udaf(args=("Int64",), state=("Int64", "Int64"), returns="Int64", name="spread")
class Spread:
    """Largest minus smallest value."""

    def __init__(self) -> None:
        self.low: int | None = None
        self.high: int | None = None

    def update_batch(self, values: pa.Array) -> None:
        self.merge_batch(pa.array([pc.min(values).as_py()]), pa.array([pc.max(values).as_py()]))

    def merge_batch(self, lows: pa.Array, highs: pa.Array) -> None:
        low, high = pc.min(lows).as_py(), pc.max(highs).as_py()
        self.low = low if self.low is None else min(self.low, self.low if low is None else low)
        self.high = high if self.high is None else max(self.high, self.high if high is None else high)

    def evaluate(self) -> pa.Array:
        found = None if self.low is None or self.high is None else self.high - self.low
        return pa.array([found], pa.int64())

    def state(self) -> tuple[pa.Array, pa.Array]:
        return pa.array([self.low], pa.int64()), pa.array([self.high], pa.int64())


def spread_of(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) - min(known) if known else None


def halves(rows: list[dict[str, Any]], cuts: list[int], tasks: int, *, passes_rows: bool = True) -> dict[Any, Any]:
    """Both halves, with rows cut into batches and batches given to tasks; what Spark does between them, in Python."""
    schema = pa.schema([("key_0", pa.string()), ("x", pa.int64()), ("given_0", pa.int64())])
    table = pa.Table.from_pylist([{"key_0": r["k"], "x": r["x"], "given_0": r["x"]} for r in rows], schema)
    work = PartialAggregation(("key_0",), ("x",), (Share(Spread, ("given_0",), None, "state_0"),), passes_rows)
    edges = sorted({0, len(rows), *(cut % (len(rows) + 1) for cut in cuts)})
    batches = [batch for a, b in zip(edges, edges[1:], strict=False) for batch in table.slice(a, b - a).to_batches()]
    states: dict[Any, list[bytes]] = defaultdict(list)
    counted: dict[Any, int] = defaultdict(int)
    for number in range(tasks):
        for out in work(batches[number::tasks]):
            for row in out.to_pylist():
                counted[row["key_0"]] += 1
                if row["state_0"] is not None:
                    states[row["key_0"]].append(row["state_0"])
    for packed in states.values():
        random.Random(1).shuffle(packed)
        assert len(packed) <= tasks, "one state per group and task"
    merged = merging_function(Spread)(pd.Series(list(states.values()), dtype=object)).tolist()
    results = {key: None if value is pd.NA else value for key, value in zip(states, merged, strict=True)}
    return {key: (results[key], counted[key]) for key in states}


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"k": st.sampled_from(["a", "b", None, ""]), "x": st.none() | st.integers(-BIG, BIG)},
        ),
        max_size=40,
    ),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    tasks=st.integers(1, 4),
)
def test_two_halves_are_one_aggregation_however_rows_are_cut(
    rows: list[dict[str, Any]], cuts: list[int], tasks: int
) -> None:
    model: dict[Any, list[int | None]] = defaultdict(list)
    for row in rows:
        model[row["k"]].append(row["x"])
    assert halves(rows, cuts, tasks) == {key: (spread_of(values), len(values)) for key, values in model.items()}


def test_states_alone_go_out_when_nobody_needs_the_rows() -> None:
    found = halves([{"k": "a", "x": n} for n in range(50)], [10, 20], tasks=2, passes_rows=False)
    assert found == {"a": (49, 2)}


def test_values_that_are_missing_stay_missing_and_large_ones_exact() -> None:
    seen: list[pa.Array] = []

    @udf(args=("Int64", "Float64", "Utf8"), returns="Int64")
    def first(number: pa.Array, real: pa.Array, text: pa.Array) -> pa.Array:
        seen.extend([number, real, text])
        return number

    call = scalar_function(first, [True, True, False])
    result = call(
        pd.Series([BIG, 0]),
        pd.Series([float("nan"), 0.0]),
        pd.Series(["é", None], dtype=object),
        pd.Series([0, 0b011]),
    )
    assert pa.array(result).to_pylist() == [BIG, None]
    assert seen[0].to_pylist() == [BIG, None]
    assert seen[1][0].as_py() != seen[1][0].as_py() and seen[1][1].as_py() is None
    assert seen[2].to_pylist() == ["é", None]


def test_an_unsigned_argument_refuses_what_has_no_place_in_it() -> None:
    @udf(args=("UInt8",), returns="UInt8")
    def same(value: pa.Array) -> pa.Array:
        assert value.type == pa.uint8()
        return value

    call = scalar_function(same, [False])
    assert pa.array(call(pd.Series([0, 255], dtype="int16"))).to_pylist() == [0, 255]
    with pytest.raises(UdfFailed, match=r"'same'.*UInt8"):
        call(pd.Series([-1], dtype="int16"))
