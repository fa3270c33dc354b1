"""scd2 against its model: random histories in random batches, late, repeated, corrected, deleted, expired."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ematix_flow.declare.columns import BigInt, String, Text, TimestampTZ
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import DuplicateKeys, FlowError, LateArrival, UnfitValue
from tests.plan.loading import Db, Loaded
from tests.plan.models import CLOSED, Counts, ExactHistoryModel, HistoryModel, Refused, Version, versions_of

COLUMNS = (
    ColumnSpec("a", BigInt(), primary_key=True),
    ColumnSpec("b", String(40), primary_key=True),
    ColumnSpec("v", Text(), nullable=True),
    ColumnSpec("w", BigInt(), nullable=True),
    ColumnSpec("at", TimestampTZ(), nullable=True),
)
NAMES = tuple(column.name for column in COLUMNS)
ERRORS: dict[str, type[FlowError]] = {
    "duplicate_keys": DuplicateKeys,
    "duplicate_events": DuplicateKeys,
    "null_event_time": UnfitValue,
    "late": LateArrival,
}
Batch = tuple[int, list[dict[str, Any]]]


def prove(examples: int) -> Callable[[Any], Any]:
    """Many examples, the same ones every time; each starts from an empty database of its own making."""
    return settings(
        max_examples=examples, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


@dataclass(frozen=True)
class Story:
    """How a table is kept, and the batches that come in: (load time, rows)."""

    event_time: str | None
    compare_columns: tuple[str, ...] | None
    soft_deletes: bool
    ttl: int | None
    refuse_late: bool
    exact: bool
    batches: tuple[Batch, ...]

    def model(self) -> HistoryModel:
        kind = ExactHistoryModel if self.exact else HistoryModel
        return kind(
            keys=("a", "b"),
            columns=NAMES,
            event_time=self.event_time,
            compare_columns=self.compare_columns,
            soft_deletes=self.soft_deletes,
            ttl=self.ttl,
            refuse_late=self.refuse_late,
        )

    def spec(self, db: Db) -> PipelineSpec:
        return db.spec(
            COLUMNS,
            mode="scd2",
            event_timestamp_column=self.event_time,
            compare_columns=self.compare_columns,
            handle_deletes="soft" if self.soft_deletes else None,
            ttl=None if self.ttl is None else timedelta(minutes=self.ttl),
            late_arrivals="error" if self.refuse_late else "splice",
            exact_history=self.exact,
        )


keys = st.sampled_from([(1, "x"), (1, "x"), (1, "y"), (2, "x")])
moments = st.integers(0, 8)


@st.composite
def row_lists(draw: st.DrawFn, *, per_event_time: bool) -> list[dict[str, Any]]:
    """A few rows. Mostly one per key (and time), sometimes not; rarely a time is missing."""
    values = st.tuples(keys, st.sampled_from([None, "", "p", "q"]), st.sampled_from([None, 1]), moments)
    size = draw(st.sampled_from([0, 1, 1, 2, 2, 3, 4, 6]))
    rows: list[dict[str, Any]] = [
        {"a": a, "b": b, "v": v, "w": w, "at": at}
        for (a, b), v, w, at in draw(st.lists(values, min_size=size, max_size=size))
    ]
    if rows and draw(st.integers(0, 14)) == 14:
        rows[0]["at"] = None
    if draw(st.integers(0, 14)) < 14:
        rows = list({(r["a"], r["b"], r["at"] if per_event_time else 0): r for r in rows}.values())
    return rows


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Load times run through the middle of the event times: some events are late, some are ahead of the clock."""
    event_time = draw(st.sampled_from(["at", "at", None]))
    batches: list[Batch] = []
    now = draw(st.integers(2, 9))
    for _ in range(draw(st.integers(2, 6))):
        if batches and draw(st.integers(0, 3)) == 3:
            rows = draw(st.sampled_from(batches))[1]
        else:
            rows = draw(row_lists(per_event_time=event_time is not None))
        batches.append((now, rows))
        now += draw(st.sampled_from([1, 1, 2, 3, 0, -1]))  # clocks of two machines differ
    return Story(
        event_time=event_time,
        compare_columns=draw(st.sampled_from([None, ("v",), ("v", "w")])),
        soft_deletes=draw(st.booleans()),
        ttl=draw(st.sampled_from([None, None, 2, 4])),
        refuse_late=event_time is not None and draw(st.integers(0, 4)) == 4,
        exact=draw(st.booleans()),
        batches=tuple(batches),
    )


def run(db: Db, story: Story) -> None:
    """Tell the story to the model and to the database; they must agree after every batch."""
    spec, model = story.spec(db), story.model()
    db.forget(spec)
    for number, (now, rows) in enumerate(story.batches, start=1):
        run_id = str(UUID(int=number))
        try:
            counts = model.load(rows, now, (now, run_id))
        except Refused as refusal:
            with pytest.raises(ERRORS[str(refusal)]):
                db.load(spec, rows, now=now, run_id=run_id)
        else:
            loaded = db.load(spec, rows, now=now, run_id=run_id)
            assert reported(loaded) == counts
        stored = db.stored(spec)
        assert without_hash(stored) == expected(model)
        assert_hashes_tell_contents_apart(stored, model.compared)
        if isinstance(model, ExactHistoryModel):
            assert remembered(db, spec) == memory_of(model)


def reported(loaded: Loaded) -> Counts:
    found = loaded.report
    return Counts(inserted=found.inserted, updated=found.updated, closed=found.closed, deleted=found.deleted)


def expected(model: HistoryModel) -> list[dict[str, Any]]:
    """The model's table, row by row, as it must be stored."""
    rows = [_stored_row(version) for versions in model.stored.values() for version in versions.values()]
    return sorted(rows, key=lambda row: (row["a"], row["b"], row["valid_from"]))


def _stored_row(version: Version) -> dict[str, Any]:
    loaded_at, batch_id = version.stamp
    return {
        **version.row,
        "valid_from": version.valid_from,
        "valid_to": version.valid_to,
        "is_current": version.valid_to is None,
        "_loaded_at": loaded_at,
        "_batch_id": batch_id,
    }


def without_hash(stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "row_hash"} for row in stored]


def assert_hashes_tell_contents_apart(stored: list[dict[str, Any]], compared: tuple[str, ...]) -> None:
    pairs = {(tuple(row[name] for name in compared), bytes(row["row_hash"])) for row in stored}
    assert len(pairs) == len({content for content, _ in pairs}) == len({digest for _, digest in pairs})


def remembered(db: Db, spec: PipelineSpec) -> dict[Any, Any]:
    return {
        (row["a"], row["b"], row["event_at"]): CLOSED if row["is_closing"] else {name: row[name] for name in NAMES}
        for row in db.remembered(spec)
    }


def memory_of(model: ExactHistoryModel) -> dict[Any, Any]:
    return {(*key, when): word for key, told in model.memory.items() for when, word in told.items()}


@prove(400)
@given(story=stories())
def test_histories_on_sqlite_are_those_of_the_model_after_every_batch(sqlite_db: Db, story: Story) -> None:
    run(sqlite_db, story)


@prove(30)
@given(story=stories())
def test_histories_on_postgres_are_those_of_the_model_after_every_batch(postgres_db: Db, story: Story) -> None:
    run(postgres_db, story)


@prove(300 if os.environ.get("EMATIX_PROVE") else 12)
@given(story=stories())
def test_histories_on_mysql_are_those_of_the_model_after_every_batch(mysql_db: Db, story: Story) -> None:
    run(mysql_db, story)


@prove(400 if os.environ.get("EMATIX_PROVE") else 30)
@given(story=stories())
def test_histories_on_duckdb_are_those_of_the_model_after_every_batch(duckdb_db: Db, story: Story) -> None:
    run(duckdb_db, story)


@st.composite
def truths(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Events of which no two contradict each other, and batches that bring each of them at least once, in any order."""
    events = draw(
        st.dictionaries(
            st.tuples(keys, moments),
            st.tuples(st.sampled_from([None, "p", "q"]), st.sampled_from([None, 1])),
            min_size=1,
            max_size=12,
        )
    )
    rows = [{"a": a, "b": b, "v": v, "w": w, "at": at} for ((a, b), at), (v, w) in events.items()]
    shuffled = draw(st.permutations(rows))
    cuts = sorted(draw(st.sets(st.integers(1, len(rows)), max_size=4)) | {0, len(rows)})
    batches = [list(shuffled[start:end]) for start, end in zip(cuts, cuts[1:], strict=False)]
    again = [list(draw(st.sampled_from(batches))) for _ in range(draw(st.integers(0, 2)))]
    return rows, list(draw(st.permutations(batches + again)))


@prove(150)
@given(truth=truths())
def test_exact_history_is_the_same_whatever_the_order_of_arrival(sqlite_db: Db, truth: Any) -> None:
    rows, batches = truth
    spec = sqlite_db.spec(COLUMNS, mode="scd2", event_timestamp_column="at", exact_history=True)
    sqlite_db.forget(spec)
    for number, batch in enumerate(batches):
        sqlite_db.load(spec, batch, now=100 + number)
    told: dict[Any, Any] = {}
    for row in rows:
        told.setdefault((row["a"], row["b"]), {})[row["at"]] = row
    wanted = [
        {**version.row, "valid_from": version.valid_from, "valid_to": version.valid_to}
        for key in sorted(told)
        for version in versions_of(told[key], ("v", "w"))
    ]
    names = (*NAMES, "valid_from", "valid_to")
    assert [{name: row[name] for name in names} for row in without_hash(sqlite_db.stored(spec))] == wanted


@prove(80)
@given(truth=truths())
def test_history_without_memory_is_exact_when_events_arrive_in_order_of_time(sqlite_db: Db, truth: Any) -> None:
    rows, _ = truth
    ordered = sorted(rows, key=lambda row: row["at"])
    exact = sqlite_db.spec(COLUMNS, mode="scd2", event_timestamp_column="at", exact_history=True)
    sqlite_db.forget(exact)
    sqlite_db.load(exact, rows, now=100)
    wanted = [(r["a"], r["b"], r["v"], r["w"], r["valid_from"], r["valid_to"]) for r in sqlite_db.stored(exact)]
    plain = sqlite_db.spec(COLUMNS, mode="scd2", event_timestamp_column="at")
    sqlite_db.forget(plain)
    for number, row in enumerate(ordered):
        sqlite_db.load(plain, [row], now=100 + number)
    found = [(r["a"], r["b"], r["v"], r["w"], r["valid_from"], r["valid_to"]) for r in sqlite_db.stored(plain)]
    assert found == wanted
