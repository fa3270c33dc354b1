"""Windows and sessions through Spark are what plain Python makes of the same rows, however batches are cut."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from pyspark.sql import SparkSession

from ematix_flow.contracts.streams import RETRACTED, StreamBatch
from ematix_flow.declare.stream import Aggregation, Watermark, Window
from ematix_flow.spark import stream_joins, windows
from ematix_flow.spark.checkpoints import CheckpointFolder
from ematix_flow.spark.session_windows import SessionSteps, open_sessions
from ematix_flow.spark.stream_memory import StreamMemory
from ematix_flow.spark.windows import WindowSteps, open_windows
from ematix_flow.testing.spark import local_spark
from tests.stream.window_model import GONE, Row, Sessions, Table, Windows

# Or the example that fails is not shown, for its length.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

PROVES = bool(os.environ.get("EMATIX_PROVE"))
EXAMPLES, MOST_ROWS, KEYS = (60, 40, "abcdefgh") if PROVES else (1, 8, "xy")
STREAMS = [f"s{number}" for number in range(200)]
"""Under a common clock every key has a stream of its own, so many keys are many streams at the price of one."""
AGGREGATIONS = [
    Aggregation("count", "n"),
    Aggregation("count_col", "n_v", "v"),
    Aggregation("sum", "total", "v"),
    Aggregation("sum", "cents", "price"),
    Aggregation("min", "least", "v"),
    Aggregation("max", "most", "word"),
    Aggregation("avg", "mean", "v"),
    Aggregation("first", "opened", "word"),
    Aggregation("last", "closed", "word"),
    Aggregation("count_distinct", "words", "word", mode="exact"),
    Aggregation("count_distinct", "about", "word"),
]
SECOND = 1_000_000

rows = st.fixed_dictionaries(
    {
        "source": st.sampled_from(["a", "b"]),
        "us": st.one_of(st.none(), st.integers(-5, 60).map(lambda second: second * SECOND)),
        "k": st.one_of(st.none(), st.sampled_from(KEYS)),
        "v": st.one_of(st.none(), st.integers(-3, 3)),
        "word": st.one_of(st.none(), st.sampled_from(["p", "q", "r"])),
        "price": st.one_of(st.none(), st.decimals(-9, 99, places=2)),
    }
)
few_streams = st.lists(
    st.tuples(st.lists(rows, max_size=MOST_ROWS), st.sampled_from([1_000, 40_000])), min_size=1, max_size=5
)
Cut = list[tuple[list[Row], int]]


def many_streams(seed: int) -> Cut:
    """Some hundred random streams in the same batches; event time goes on from batch to batch, some rows are late."""
    chosen, cut, second = Random(seed), Cut(), 0
    for _ in range(4):
        reach, sources = chosen.choice([2, 8, 25]), chosen.choice(["ab", "ab", "a", "b"])
        number = 0 if chosen.random() < 0.1 else 2 * len(STREAMS)
        found = [random_row(chosen, sources, second - 20, second + reach) for _ in range(number)]
        cut.append((found, chosen.choice([1_000, 1_000, 40_000])))
        second += reach
    return cut


def among_many(cut: Cut, seed: int) -> Cut:
    """A cut as it is, with random streams beside it that do not move its clock."""
    chosen, found, newest = Random(seed), Cut(), 0
    for given_rows, later in cut:
        newest = max([newest, *(row["us"] // SECOND for row in given_rows)])
        more = [random_row(chosen, "a", newest - 40, newest, has_time=True) for _ in range(len(STREAMS))]
        found.append(([*given_rows, *more], later))
    return found


def random_row(chosen: Random, sources: str, first: int, last: int, *, has_time: bool = False) -> Row:
    """A row of one of the many streams."""
    return {
        "source": chosen.choice(sources),
        "us": chosen.randint(first, last) * SECOND if has_time or chosen.random() < 0.95 else None,
        "k": None if chosen.random() < 0.01 else chosen.choice(STREAMS),
        "v": chosen.choice([None, -3, -2, -1, 0, 1, 2, 3]),
        "word": chosen.choice([None, "p", "q", "r"]),
        "price": chosen.choice([None, Decimal(chosen.randint(-900, 9900)) / 100]),
    }


seeds = st.builds(many_streams, st.integers(0, 2**32))
batches = st.one_of(few_streams, seeds) if PROVES else seeds
late = st.sampled_from([("drop", None), ("dlq", None), ("reopen", 10_000)])
watermarks = st.builds(Watermark, lateness_ms=st.sampled_from([None, 5_000]), source_idleness_ms=st.just(30_000))


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return local_spark()


@pytest.fixture(autouse=True, scope="module")
def few_parts() -> Iterator[None]:
    """Parts are put together as soon as there are three, so that short streams come to it, too."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (windows, stream_joins):
            patched.setattr(module, "MOST_PARTS", 2)
        yield


def memory_in(folder: Path) -> StreamMemory:
    place = CheckpointFolder("random", str(folder))
    return StreamMemory(place, place.begin("any"))


def played(steps: Any, spark: SparkSession, cut: Cut, *, again: int) -> tuple[list[Counter[Any]], int]:
    """What comes out batch by batch, and how many rows were late; the batch `again` is done twice, as after a crash."""
    now, found, late_ones = 0, list[Counter[Any]](), 0
    kinds = "us timestamp, k string, v int, word string, price decimal(10,2), _offset bigint"
    for number, (given_rows, later) in enumerate(cut):
        now += later
        batch = StreamBatch("g", number, str(number), {}, now)
        frames = {}
        for source in ("a", "b"):
            listed = [
                (_moment(row["us"]), row["k"], row["v"], row["word"], row["price"], at)
                for at, row in enumerate(given_rows)
                if row["source"] == source
            ]
            frames[source] = spark.createDataFrame(listed, kinds)
        for _ in range(2 if number == again else 1):
            stepped = steps.step(frames, batch)
        looked = open_sessions if isinstance(steps, SessionSteps) else open_windows
        assert stepped.note.open_windows == looked(steps._window, steps._memory, stepped.note)["open_windows"]
        out = stepped.rows.collect() if stepped.rows is not None else []
        found.append(Counter(_plain(row) for row in out))
        assert stepped.windows == _windows_among(found[-1], steps)
        late_rows = steps.left_out(frames, batch).count()
        assert late_rows == stepped.late
        late_ones += stepped.late
    return found, late_ones


def _windows_among(out: Counter[Any], steps: Any) -> int:
    """How many windows or sessions came out: a session has a key of its own."""
    rows = [row for row in out if row[0] != GONE]
    return len(rows) if isinstance(steps, SessionSteps) else len({row[0] for row in rows})


def _moment(us: int | None) -> Any:
    from datetime import datetime, timedelta, timezone

    return None if us is None else datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=us)


def _plain(row: Any) -> tuple[Any, ...]:
    values = {name: value for name, value in row.asDict().items() if name != "session_id"}
    times = [values.pop("window_start"), values.pop("window_end")]
    start, end = [round(moment.timestamp() * 1e6) for moment in times]
    return (GONE, start, values["k"]) if values.pop(RETRACTED, 0) else (start, end, *values.values())


def expected(model: Any, cut: Cut) -> tuple[list[Counter[Any]], int]:
    now, found = 0, []
    for number, (given_rows, later) in enumerate(cut):
        now += later
        placed = [{**row, "arrival": (number, at)} for at, row in enumerate(given_rows)]
        found.append(Counter(model.batch(placed, now)))
    return found, model.late


def at(second: int, key: str | None) -> Row:
    return {"source": "a", "us": second * SECOND, "k": key, "v": 1, "word": "p", "price": Decimal("0.10")}


# Making an example smaller takes Spark longer than finding it.
QUIET = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)


@QUIET
# All batches belong to one window, so that parts are put together twice before it comes out.
@example(
    cut=among_many([*[([at(second, "x")], 1_000) for second in range(6)], ([at(40, "x")], 1_000)], seed=1),
    policy=("drop", None),
    allowed=Watermark(source_idleness_ms=30_000),
    hop=10_000,
    keyed=True,
    again=5,
)
@given(
    cut=batches,
    policy=late,
    allowed=watermarks,
    hop=st.sampled_from([10_000, 4_000, 3_000]),
    keyed=st.booleans(),
    again=st.integers(0, 4),
)
def test_windows_are_what_plain_python_makes_of_them(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    cut: Cut,
    policy: tuple[Any, int | None],
    allowed: Watermark,
    hop: int,
    keyed: bool,
    again: int,
) -> None:
    window = Window(
        "tumbling" if hop == 10_000 else "hopping",
        AGGREGATIONS,
        duration_ms=10_000,
        hop_ms=None if hop == 10_000 else hop,
        event_time_column="us",
        group_by=("k",) if keyed else (),
        late_data=policy[0],
        allowed_lateness_ms=policy[1],
    )
    window.check()
    memory = memory_in(tmp_path_factory.mktemp("memory"))
    assert played(WindowSteps(window, allowed, memory), spark, cut, again=again) == expected(
        Windows(window, allowed), cut
    )


# All but w is given out at first. Then two sessions of x are joined, and two without a key, y begins earlier, and z is
# joined and goes on; before z comes out again it begins earlier, too.
JOINED = [
    ([at(0, "x"), at(10, "x"), at(8, "y"), at(0, "z"), at(6, "z"), at(15, "w"), at(1, None), at(9, None)], 1_000),
    ([at(4, "x"), at(7, "x"), at(5, "y"), at(3, "z"), at(9, "z"), at(12, "z"), at(5, None)], 1_000),
    ([at(-2, "z")], 1_000),
    ([at(40, "w")], 1_000),
]


# A session that is open begins where one before it, which late rows make, becomes too long: rows of one moment stay
# together.
TIED = [([at(14, "x"), at(17, "x")], 1_000), ([at(second, "x") for second in (9, 11, 14, 18)], 1_000)]


@QUIET
@example(
    cut=TIED,
    policy=("dlq", None),
    allowed=Watermark(lateness_ms=20_000, source_idleness_ms=30_000),
    longest=6_000,
    again=1,
)
@example(
    cut=among_many(JOINED, seed=2),
    policy=("reopen", 30_000),
    allowed=Watermark(source_idleness_ms=30_000),
    longest=90_000,
    again=1,
)
@example(
    cut=among_many(JOINED, seed=3),
    policy=("reopen", 30_000),
    allowed=Watermark(source_idleness_ms=30_000),
    longest=9_000,
    again=2,
)
@given(
    cut=batches,
    policy=late,
    allowed=watermarks,
    longest=st.sampled_from([6_000, 15_000, 90_000]),
    again=st.integers(0, 4),
)
def test_sessions_are_what_plain_python_makes_of_them(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    cut: Cut,
    policy: tuple[Any, int | None],
    allowed: Watermark,
    longest: int,
    again: int,
) -> None:
    window = Window(
        "session",
        AGGREGATIONS,
        gap_ms=4_000,
        max_session_duration_ms=longest,
        event_time_column="us",
        group_by=("k",),
        late_data=policy[0],
        allowed_lateness_ms=policy[1],
    )
    window.check()
    memory = memory_in(tmp_path_factory.mktemp("memory"))
    assert played(SessionSteps(window, allowed, memory), spark, cut, again=again) == expected(
        Sessions(window, allowed), cut
    )


def sessions_of(window: Window, cut: Cut) -> dict[tuple[int, Any], int]:
    """How many rows each session has when all rows come at once, by its first event and its key."""
    found: dict[tuple[int, Any], int] = {}
    assert window.gap_ms is not None
    for key in {row["k"] for given_rows, _ in cut for row in given_rows}:
        times = sorted(row["us"] for given_rows, _ in cut for row in given_rows if row["k"] == key)
        start = None
        for before, time in zip([None, *times], times, strict=False):
            start = time if before is None or time - before > 1000 * window.gap_ms else start
            found[start, key] = found.get((start, key), 0) + 1
    return found


timed_rows = rows.filter(lambda row: row["us"] is not None)
timed_batches = st.lists(
    st.tuples(st.lists(timed_rows, max_size=MOST_ROWS), st.sampled_from([1_000, 40_000])), min_size=1, max_size=8
)


@settings(max_examples=1000 if os.environ.get("EMATIX_PROVE") else 200, deadline=None)
@example(cut=JOINED)
@given(cut=timed_batches)
def test_a_table_of_reopened_sessions_is_that_of_all_rows_at_once(cut: Cut) -> None:
    window = Window(
        "session",
        [Aggregation("count", "n")],
        gap_ms=4_000,
        max_session_duration_ms=900_000,
        event_time_column="us",
        group_by=("k",),
        late_data="reopen",
        allowed_lateness_ms=600_000,
    )
    model, table, now = Sessions(window, Watermark(source_idleness_ms=30_000)), Table(window), 0
    far = [{**at(500, "far"), "source": source} for source in ("a", "b")]
    for number, (given_rows, later) in enumerate([*cut, (far, 40_000)]):
        now += later
        placed = [{**row, "arrival": (number, place)} for place, row in enumerate(given_rows)]
        table.take(model.batch(placed, now))
    assert {key: row[-1] for key, row in table.rows.items()} == sessions_of(window, cut)
