"""Joins through Spark are what plain Python makes of the same rows, however batches are cut."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given
from pyspark.sql import SparkSession

from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.declare.stream import Join, Watermark
from ematix_flow.spark.stream_joins import JoinSteps, waiting_keys
from tests.stream.join_model import Joined
from tests.stream.test_window_model import (
    KEYS,
    MOST_ROWS,
    PROVES,
    QUIET,
    SECOND,
    Cut,
    few_parts as few_parts,
    many_streams,
    memory_in,
    spark as spark,
    watermarks,
)

rows = st.fixed_dictionaries(
    {
        "source": st.sampled_from(["a", "b"]),
        "us": st.one_of(st.none(), st.integers(0, 40).map(lambda second: second * SECOND)),
        "k": st.one_of(st.none(), st.sampled_from(KEYS)),
        "v": st.integers(0, 10_000),
    }
)
few_streams = st.lists(
    st.tuples(st.lists(rows, max_size=MOST_ROWS), st.sampled_from([1_000, 40_000])), min_size=1, max_size=5
)


def numbered(cut: Cut) -> Cut:
    """The same rows, each with a number of its own, so that pairs can be told apart."""
    numbers = count()
    return [([{**row, "v": next(numbers)} for row in given_rows], later) for given_rows, later in cut]


pairs_of_streams = st.builds(many_streams, st.integers(0, 2**32)).map(numbered)
batches = st.one_of(few_streams, pairs_of_streams) if PROVES else pairs_of_streams
spans = st.sampled_from([{"time_window_ms": 5_000}, {"min_delta_ms": 2_000, "max_delta_ms": 8_000}])


def row(source: str, second: int, v: int) -> dict[str, Any]:
    return {"source": source, "us": second * SECOND, "k": "x", "v": v}


# One side is forgotten whole, and is known all the same when the other's rows come out alone.
FORGOTTEN = [([row("a", 0, 1), row("b", 0, 2)], 1_000), ([row("a", 40, 3)], 40_000), ([row("a", 50, 4)], 1_000)]


# One side never has a row, and is not waited for any more.
ONE_SIDED = [([row("a", 0, 1), row("a", 40, 2)], 1_000), ([row("a", 50, 3)], 40_000), ([row("b", 50, 4)], 1_000)]


@QUIET
@example(
    cut=ONE_SIDED,
    kind="full_outer",
    span={"time_window_ms": 5_000},
    policy=("drop", None),
    allowed=Watermark(source_idleness_ms=30_000),
    again=1,
)
@example(
    cut=FORGOTTEN,
    kind="left_outer",
    span={"time_window_ms": 5_000},
    policy=("drop", None),
    allowed=Watermark(source_idleness_ms=30_000),
    again=4,
)
@given(
    cut=batches,
    kind=st.sampled_from(["inner", "left_outer", "right_outer", "full_outer"]),
    span=spans,
    policy=st.sampled_from([("drop", None), ("dlq", None), ("reopen", 6_000)]),
    allowed=watermarks,
    again=st.integers(0, 4),
)
def test_joins_are_what_plain_python_makes_of_them(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    cut: Cut,
    kind: Any,
    span: dict[str, int],
    policy: tuple[Any, int | None],
    allowed: Watermark,
    again: int,
) -> None:
    join = Join(
        "a",
        "b",
        ["k"],
        ["k"],
        kind=kind,
        event_time_column="us",
        late_data=policy[0],
        allowed_lateness_ms=policy[1],
        **span,  # type: ignore[arg-type]
    )
    memory = memory_in(tmp_path_factory.mktemp("memory"))
    steps, model = JoinSteps(join, allowed, memory), Joined(join, allowed)
    now, late = 0, 0
    for number, (given_rows, later) in enumerate(cut):
        now += later
        batch = StreamBatch("g", number, str(number), {}, now)
        frames = {
            source: spark.createDataFrame(
                [(_moment(row["us"]), row["k"], row["v"]) for row in given_rows if row["source"] == source],
                "us timestamp, k string, v int",
            )
            for source in ("a", "b")
        }
        for _ in range(2 if number == again else 1):
            stepped = steps.step(frames, batch)
        late += stepped.late
        out = [] if stepped.rows is None else [row.asDict() for row in stepped.rows.collect()]
        pairs = Counter((row.get("left_v"), row.get("right_v")) for row in out)  # a side nobody saw has no columns
        assert pairs == Counter(model.batch(given_rows, now))
        looked = memory.newest()
        assert looked is not None and waiting_keys(join, memory, looked)["keys"] == len(model.waiting_keys())
    assert late == model.late


def _moment(us: int | None) -> Any:
    return None if us is None else datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=us)
