"""scd2, one behaviour at a time, on both databases. Times are minutes; a version is (key, value, from, to)."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.declare.columns import BigInt, Date, String, Text, TimestampTZ
from ematix_flow.declare.pipeline import Pipeline, PipelineSpec
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import DuplicateKeys, InvalidDeclaration, LateArrival, UnfitValue
from tests.plan.loading import Db, minute

EVENTS = (
    ColumnSpec("id", BigInt(), primary_key=True),
    ColumnSpec("v", Text(), nullable=True),
    ColumnSpec("at", TimestampTZ(), nullable=True),
)
SNAPSHOT = EVENTS[:2]
TTL = timedelta(minutes=60)


def event_history(db: Db, **options: Any) -> PipelineSpec:
    return db.spec(EVENTS, mode="scd2", event_timestamp_column="at", **options)


def snapshot_history(db: Db, **options: Any) -> PipelineSpec:
    return db.spec(SNAPSHOT, mode="scd2", **options)


def event(id: int, v: str | None, at: int | None) -> dict[str, Any]:
    return {"id": id, "v": v, "at": at}


def row(id: int, v: str | None) -> dict[str, Any]:
    return {"id": id, "v": v}


def versions(db: Db, spec: PipelineSpec) -> list[tuple[Any, ...]]:
    """Every version; `is_current` must say just what an open end says."""
    stored = db.stored(spec)
    assert all(row["is_current"] == (row["valid_to"] is None) for row in stored)
    return [(row["id"], row["v"], row["valid_from"], row["valid_to"]) for row in stored]


# ── with event time: every order of arrival ──────────────────────────────────────────────────────────────────────────


def test_every_distinct_version_of_a_key_in_one_batch_becomes_a_version(db: Db) -> None:
    spec = event_history(db)
    report = db.load(spec, [event(1, "c", 30), event(1, "a", 10), event(2, "z", 5), event(1, "b", 20)], now=100).report
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, 30), (1, "c", 30, None), (2, "z", 5, None)]
    assert (report.inserted, report.updated, report.closed) == (4, 0, 0)


def test_a_newer_event_closes_the_current_version_at_its_own_time(db: Db) -> None:
    spec = event_history(db)
    db.load(spec, [event(1, "a", 10)], now=100)
    report = db.load(spec, [event(1, "b", 20)], now=101).report
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, None)]
    assert (report.inserted, report.updated, report.closed) == (1, 0, 1)


def test_a_late_change_before_everything_known_opens_the_history(db: Db) -> None:
    spec = event_history(db)
    first = db.load(spec, [event(1, "b", 20), event(1, "c", 30)], now=100)
    report = db.load(spec, [event(1, "a", 10)], now=101).report
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, 30), (1, "c", 30, None)]
    assert (report.inserted, report.updated, report.closed) == (1, 0, 0)
    assert [row["_batch_id"] for row in db.stored(spec)][1:] == [first.run_id] * 2


def test_a_late_change_between_two_versions_is_spliced_in(db: Db) -> None:
    spec = event_history(db)
    first = db.load(spec, [event(1, "a", 10), event(1, "c", 30)], now=100)
    second = db.load(spec, [event(1, "b", 20)], now=101)
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, 30), (1, "c", 30, None)]
    assert (second.report.inserted, second.report.updated, second.report.closed) == (1, 1, 0)
    stamps = [(row["_batch_id"], row["_loaded_at"]) for row in db.stored(spec)]
    assert stamps == [(second.run_id, 101), (second.run_id, 101), (first.run_id, 100)]


def test_late_and_new_changes_may_come_in_one_batch(db: Db) -> None:
    spec = event_history(db)
    db.load(spec, [event(1, "b", 20), event(1, "d", 40)], now=100)
    db.load(spec, [event(1, "e", 50), event(1, "a", 10), event(1, "c", 30)], now=101)
    assert versions(db, spec) == [
        (1, "a", 10, 20),
        (1, "b", 20, 30),
        (1, "c", 30, 40),
        (1, "d", 40, 50),
        (1, "e", 50, None),
    ]


def test_an_event_that_repeats_its_predecessor_makes_no_version(db: Db) -> None:
    spec = event_history(db)
    db.load(spec, [event(1, "a", 10), event(1, "b", 30)], now=100)
    before = db.stored(spec)
    report = db.load(spec, [event(1, "a", 20), event(1, "b", 40)], now=101).report
    assert db.stored(spec) == before
    assert (report.inserted, report.updated, report.closed) == (0, 0, 0)


def test_a_late_event_that_equals_its_successor_moves_that_version_back(db: Db) -> None:
    spec = event_history(db)
    db.load(spec, [event(1, "a", 10), event(1, "b", 30)], now=100)
    db.load(spec, [event(1, "b", 20)], now=101)
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, None)]


def test_an_equal_time_with_other_content_corrects_the_version(db: Db) -> None:
    spec = event_history(db)
    first = db.load(spec, [event(1, "a", 10), event(1, "b", 20), event(1, "c", 30)], now=100)
    second = db.load(spec, [event(1, "B", 20)], now=101)
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "B", 20, 30), (1, "c", 30, None)]
    assert (second.report.inserted, second.report.updated, second.report.closed) == (0, 1, 0)
    assert [row["_batch_id"] for row in db.stored(spec)] == [first.run_id, second.run_id, first.run_id]
    assert len({bytes(row["row_hash"]) for row in db.stored(spec)}) == 3


def test_a_correction_that_equals_its_predecessor_joins_it(db: Db) -> None:
    spec = event_history(db)
    db.load(spec, [event(1, "a", 10), event(1, "b", 20), event(1, "c", 30)], now=100)
    db.load(spec, [event(1, "a", 20)], now=101)
    assert versions(db, spec) == [(1, "a", 10, 30), (1, "c", 30, None)]


def test_a_version_that_is_corrected_and_closed_counts_as_both(db: Db) -> None:
    spec = event_history(db)
    db.load(spec, [event(1, "a", 10)], now=100)
    report = db.load(spec, [event(1, "A", 10), event(1, "b", 20)], now=101).report
    assert versions(db, spec) == [(1, "A", 10, 20), (1, "b", 20, None)]
    assert (report.inserted, report.updated, report.closed) == (1, 1, 1)


@pytest.mark.parametrize("exact", [False, True])
def test_replaying_any_earlier_batch_changes_nothing(db: Db, exact: bool) -> None:
    spec = event_history(db, exact_history=exact)
    batches = [
        [event(1, "a", 10), event(1, "c", 30), event(2, "z", 15)],
        [event(1, "b", 20), event(2, "z", 25)],
        [event(1, "d", 40), event(2, None, 35)],
    ]
    for number, batch in enumerate(batches):
        db.load(spec, batch, now=100 + number)
    before = db.stored(spec)
    for number, batch in enumerate(batches):
        report = db.load(spec, batch, now=200 + number).report
        assert (report.inserted, report.updated, report.closed) == (0, 0, 0)
        assert db.stored(spec) == before


def test_other_keys_and_untouched_versions_keep_their_stamps(db: Db) -> None:
    spec = event_history(db)
    first = db.load(spec, [event(1, "a", 10), event(1, "b", 20), event(2, "z", 10)], now=100)
    second = db.load(spec, [event(1, "c", 30), event(2, "z", 30)], now=101)
    found = [(row["id"], row["v"], row["_batch_id"], row["_loaded_at"]) for row in db.stored(spec)]
    assert found == [
        (1, "a", first.run_id, 100),
        (1, "b", second.run_id, 101),
        (1, "c", second.run_id, 101),
        (2, "z", first.run_id, 100),
    ]


def test_keys_of_several_columns_each_have_their_own_history(db: Db) -> None:
    columns = (
        ColumnSpec("shop", String(40), primary_key=True),
        ColumnSpec("sku", String(40), primary_key=True),
        ColumnSpec("v", Text()),
        ColumnSpec("at", TimestampTZ()),
    )
    spec = db.spec(columns, mode="scd2", event_timestamp_column="at")
    names = ("shop", "sku", "v", "at")
    rows = [("ab", "c", "p", 10), ("a", "bc", "q", 10), ("a", "bc", "r", 20), ("a", "c", "s", 15)]
    for number, values in enumerate(rows):
        db.load(spec, [dict(zip(names, values, strict=True))], now=100 + number)
    assert [(r["shop"], r["sku"], r["v"], r["valid_from"], r["valid_to"]) for r in db.stored(spec)] == [
        ("a", "bc", "q", 10, 20),
        ("a", "bc", "r", 20, None),
        ("a", "c", "s", 15, None),
        ("ab", "c", "p", 10, None),
    ]


def test_null_empty_text_and_the_word_null_are_three_different_values(db: Db) -> None:
    spec = event_history(db)
    values = [None, "", "NULL", None, "x", None]
    for number, value in enumerate(values):
        db.load(spec, [event(1, value, 10 * number)], now=100 + number)
    assert [version[1] for version in versions(db, spec)] == values
    assert len({bytes(row["row_hash"]) for row in db.stored(spec)}) == 4


def test_null_in_one_column_never_hides_a_change_in_another(db: Db) -> None:
    columns = (*EVENTS, ColumnSpec("w", Text(), nullable=True))
    spec = db.spec(columns, mode="scd2", event_timestamp_column="at")
    for number, (v, w) in enumerate([(None, "x"), (None, "y"), ("x", None), (None, "x")]):
        db.load(spec, [{**event(1, v, 10 * number), "w": w}], now=100 + number)
    assert [(row["v"], row["w"]) for row in db.stored(spec)] == [(None, "x"), (None, "y"), ("x", None), (None, "x")]


def test_columns_that_are_not_compared_do_not_make_versions(db: Db) -> None:
    columns = (*EVENTS, ColumnSpec("note", Text(), nullable=True))
    spec = db.spec(columns, mode="scd2", event_timestamp_column="at", compare_columns=("v",))
    db.load(spec, [{**event(1, "a", 10), "note": "first"}], now=100)
    before = db.stored(spec)
    db.load(spec, [{**event(1, "a", 20), "note": "other"}, {**event(1, "a", 10), "note": "other"}], now=101)
    assert db.stored(spec) == before
    db.load(spec, [{**event(1, "b", 30), "note": "third"}], now=102)
    assert [(row["v"], row["note"]) for row in db.stored(spec)] == [("a", "first"), ("b", "third")]


def test_the_event_time_is_compared_only_when_asked_for(db: Db) -> None:
    spec = event_history(db, compare_columns=("v", "at"))
    db.load(spec, [event(1, "a", 10)], now=100)
    db.load(spec, [event(1, "a", 20)], now=101)
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "a", 20, None)]


def test_a_date_serves_as_event_time_from_its_midnight_on(db: Db) -> None:
    columns = (EVENTS[0], EVENTS[1], ColumnSpec("day", Date()))
    spec = db.spec(columns, mode="scd2", event_timestamp_column="day")
    for number, day in enumerate([date(2024, 3, 2), date(2024, 3, 1)]):
        db.load(spec, [{"id": 1, "v": f"{day.day}", "day": day}], now=10_000 + number)
    first, second = 60 + 24 * 60, 60 + 2 * 24 * 60  # the timeline starts an hour before the end of 28 February
    assert minute(first).isoformat() == "2024-03-01T00:00:00+00:00"
    assert versions(db, spec) == [(1, "1", first, second), (1, "2", second, None)]


# ── load time ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_event_time_a_version_begins_when_it_is_loaded(db: Db) -> None:
    spec = snapshot_history(db)
    db.load(spec, [row(1, "a"), row(2, "z")], now=10)
    report = db.load(spec, [row(1, "b"), row(2, "z"), row(3, "n")], now=20).report
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, None), (2, "z", 10, None), (3, "n", 20, None)]
    assert (report.rows, report.inserted, report.updated, report.closed) == (3, 2, 0, 1)


def test_an_unchanged_snapshot_keeps_every_stamp(db: Db) -> None:
    spec = snapshot_history(db)
    db.load(spec, [row(1, "a"), row(2, None)], now=10)
    before = db.stored(spec)
    report = db.load(spec, [row(1, "a"), row(2, None)], now=20).report
    assert (report.inserted, report.updated, report.closed) == (0, 0, 0)
    assert db.stored(spec) == before


def test_duplicate_keys_without_event_time_are_refused_and_the_table_left_alone(db: Db, tmp_project: Path) -> None:
    spec, key = snapshot_history(db), 7_700_770_077
    db.load(spec, [row(key, "a")], now=10)
    before = db.stored(spec)
    db.put(spec, [row(key, "secret"), row(key, "secret"), row(3, "n")])
    with pytest.raises(DuplicateKeys) as refused:
        Pipeline(spec).sync()
    assert "'id'" in str(refused.value) and "deduplicate_by" in str(refused.value)
    assert str(key) not in str(refused.value) and "secret" not in str(refused.value)
    assert db.stored(spec) == before
    assert db.runs(spec)[-1][:2] == ("scd2", "failed")


# ── gone and back ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_absent_keys_stay_open_unless_soft_deletes_are_asked_for(db: Db) -> None:
    spec = snapshot_history(db)
    db.load(spec, [row(1, "a"), row(2, "z")], now=10)
    before = db.stored(spec)
    db.load(spec, [row(1, "a")], now=20)
    assert db.stored(spec) == before


@pytest.mark.parametrize("exact", [False, True])
def test_a_soft_delete_closes_the_version_and_makes_no_new_one(db: Db, exact: bool) -> None:
    spec = snapshot_history(db, handle_deletes="soft", exact_history=exact)
    db.load(spec, [row(1, "a"), row(2, "z")], now=10)
    report = db.load(spec, [row(1, "a")], now=20).report
    assert versions(db, spec) == [(1, "a", 10, None), (2, "z", 10, 20)]
    assert (report.inserted, report.updated, report.closed) == (0, 0, 1)
    before = db.stored(spec)
    assert db.load(spec, [row(1, "a")], now=30).report.closed == 0
    assert db.stored(spec) == before


@pytest.mark.parametrize("exact", [False, True])
def test_a_key_that_returns_unchanged_gets_a_new_version(db: Db, exact: bool) -> None:
    spec = snapshot_history(db, handle_deletes="soft", exact_history=exact)
    db.load(spec, [row(1, "a"), row(2, "z"), row(3, None)], now=10)
    db.load(spec, [row(1, "a")], now=20)
    db.load(spec, [row(1, "a"), row(2, "z"), row(3, None)], now=30)
    db.load(spec, [row(1, "a"), row(2, "y"), row(3, None)], now=40)
    assert versions(db, spec) == [
        (1, "a", 10, None),
        (2, "z", 10, 20),
        (2, "z", 30, 40),
        (2, "y", 40, None),
        (3, None, 10, 20),
        (3, None, 30, None),
    ]


@pytest.mark.parametrize("exact", [False, True])
def test_a_key_in_the_snapshot_is_open_afterwards_even_when_its_event_is_older_than_its_closing(
    db: Db, exact: bool
) -> None:
    spec = event_history(db, handle_deletes="soft", exact_history=exact)
    db.load(spec, [event(1, "a", 10), event(2, "z", 10)], now=100)
    db.load(spec, [event(1, "a", 10)], now=110)
    db.load(spec, [event(1, "a", 10), event(2, "z", 10)], now=120)
    assert versions(db, spec) == [(1, "a", 10, None), (2, "z", 10, 110), (2, "z", 120, None)]
    db.load(spec, [event(1, "a", 10), event(2, "z", 10)], now=130)
    db.load(spec, [event(1, "a", 10), event(2, "y", 105)], now=140)
    assert versions(db, spec) == [(1, "a", 10, None), (2, "z", 10, 105), (2, "y", 105, 110), (2, "z", 120, None)]


@pytest.mark.parametrize("exact", [False, True])
def test_a_key_that_returns_with_several_events_is_open_with_the_latest(db: Db, exact: bool) -> None:
    spec = event_history(db, handle_deletes="soft", exact_history=exact)
    db.load(spec, [event(1, "a", 10)], now=100)
    db.load(spec, [], now=110)
    db.load(spec, [event(1, "c", 30), event(1, "b", 20)], now=120)
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, 30), (1, "c", 30, 110), (1, "c", 120, None)]


@pytest.mark.parametrize("exact", [False, True])
def test_a_late_event_before_a_closing_ends_at_the_closing(db: Db, exact: bool) -> None:
    soft = event_history(db, handle_deletes="soft", exact_history=exact)
    db.load(soft, [event(1, "a", 10), event(2, "z", 10)], now=100)
    db.load(soft, [event(1, "a", 10)], now=110)
    db.load(event_history(db, exact_history=exact), [event(2, "y", 50)], now=120)
    assert versions(db, soft) == [(1, "a", 10, None), (2, "z", 10, 50), (2, "y", 50, 110)]


def test_soft_deletes_close_everything_when_the_source_is_empty(db: Db) -> None:
    spec = snapshot_history(db, handle_deletes="soft")
    db.load(spec, [row(1, "a"), row(2, "z")], now=10)
    assert db.load(spec, [], now=20).report.closed == 2
    assert versions(db, spec) == [(1, "a", 10, 20), (2, "z", 10, 20)]


@pytest.mark.parametrize("exact", [False, True])
def test_a_version_that_lies_ahead_of_the_clock_ends_as_it_begins_when_its_key_is_gone(db: Db, exact: bool) -> None:
    spec = event_history(db, handle_deletes="soft", exact_history=exact)
    db.load(spec, [event(1, "a", 10), event(1, "b", 500), event(2, "z", 10)], now=100)
    assert db.load(spec, [event(2, "z", 10)], now=110).report.closed == 1
    assert versions(db, spec) == [(1, "a", 10, 500), (1, "b", 500, 500), (2, "z", 10, None)]
    db.load(spec, [event(1, "b", 500), event(2, "z", 10)], now=120)
    assert versions(db, spec) == [(1, "a", 10, 500), (1, "b", 500, None), (2, "z", 10, None)]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("clock", [110, 105])
def test_a_key_that_a_faster_clock_closed_is_open_when_a_slower_clock_sees_it(db: Db, clock: int, exact: bool) -> None:
    spec = event_history(db, handle_deletes="soft", exact_history=exact)
    db.load(spec, [event(1, "a", 10), event(2, "z", 10)], now=100)
    db.load(spec, [event(2, "z", 10)], now=110)
    db.load(spec, [event(1, "a", 10), event(2, "z", 10)], now=clock)
    assert versions(db, spec) == [(1, "a", 10, None), (2, "z", 10, None)]
    db.load(spec, [event(1, "a", 10), event(2, "z", 10)], now=120)
    assert versions(db, spec) == [(1, "a", 10, None), (2, "z", 10, None)]


# ── ttl ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("exact", [False, True])
def test_ttl_closes_old_versions_and_the_next_run_opens_those_still_present_again(db: Db, exact: bool) -> None:
    spec = snapshot_history(db, ttl=TTL, exact_history=exact)
    db.load(spec, [row(1, "a"), row(2, "z")], now=0)
    assert db.load(spec, [row(1, "a"), row(2, "z")], now=60).report.closed == 0
    assert db.load(spec, [row(1, "a")], now=61).report.closed == 2
    assert versions(db, spec) == [(1, "a", 0, 61), (2, "z", 0, 61)]
    report = db.load(spec, [row(1, "a")], now=70).report
    assert (report.inserted, report.closed) == (1, 0)
    assert versions(db, spec) == [(1, "a", 0, 61), (1, "a", 70, None), (2, "z", 0, 61)]


@pytest.mark.parametrize("exact", [False, True])
def test_with_event_time_ttl_counts_from_the_event(db: Db, exact: bool) -> None:
    spec = event_history(db, ttl=TTL, exact_history=exact)
    report = db.load(spec, [event(1, "old", 10), event(2, "young", 90)], now=100).report
    assert versions(db, spec) == [(1, "old", 10, 100), (2, "young", 90, None)]
    assert (report.inserted, report.closed) == (2, 1)
    before = db.stored(spec)
    db.load(spec, [event(1, "old", 10), event(2, "young", 90)], now=110)
    assert db.stored(spec) == before
    db.load(spec, [event(1, "old", 105)], now=120)
    assert versions(db, spec) == [(1, "old", 10, 100), (1, "old", 105, None), (2, "young", 90, None)]


@pytest.mark.parametrize("exact", [False, True])
def test_ttl_closes_a_version_that_an_event_of_this_very_moment_repeats(db: Db, exact: bool) -> None:
    spec = event_history(db, ttl=TTL, exact_history=exact)
    db.load(spec, [event(1, "a", 0)], now=10)
    db.load(spec, [event(1, "a", 100)], now=100)
    assert versions(db, spec) == [(1, "a", 0, 100)]


# ── late_arrivals="error" ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("late", [event(1, "x", 5), event(1, "x", 15), event(1, "x", 20), event(1, "b", 15)])
def test_strict_arrivals_refuse_what_is_not_newer_and_leave_the_table_alone(db: Db, late: dict[str, Any]) -> None:
    spec = event_history(db, late_arrivals="error")
    db.load(spec, [event(1, "a", 10), event(1, "b", 20)], now=100)
    before = db.stored(spec)
    with pytest.raises(LateArrival) as refused:
        db.load(spec, [late, event(2, "n", 1), event(1, "c", 30)], now=101)
    assert "'at'" in str(refused.value)
    assert db.stored(spec) == before


def test_strict_arrivals_take_newer_events_new_keys_and_replays(db: Db) -> None:
    spec = event_history(db, late_arrivals="error")
    db.load(spec, [event(1, "a", 10), event(1, "b", 20)], now=100)
    db.load(spec, [event(1, "a", 10), event(1, "b", 20), event(2, "n", 1), event(1, "c", 30)], now=101)
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, 30), (1, "c", 30, None), (2, "n", 1, None)]


# ── exact_history ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("exact", "after"),
    [
        (False, [(1, "a", 10, 20), (1, "b", 20, None)]),
        (True, [(1, "a", 10, 20), (1, "b", 20, 30), (1, "a", 30, None)]),
    ],
)
def test_a_change_before_a_repeat_ends_at_the_repeat_only_when_repeats_are_remembered(
    db: Db, exact: bool, after: list[tuple[Any, ...]]
) -> None:
    spec = event_history(db, exact_history=exact)
    db.load(spec, [event(1, "a", 10)], now=100)
    db.load(spec, [event(1, "a", 30)], now=101)
    db.load(spec, [event(1, "b", 20)], now=102)
    assert versions(db, spec) == after


def test_exact_history_remembers_a_version_that_a_late_event_made_part_of_another(db: Db) -> None:
    spec = event_history(db, exact_history=True)
    for number, one in enumerate([event(1, "a", 30), event(1, "a", 10), event(1, "b", 20)]):
        db.load(spec, [one], now=100 + number)
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, 30), (1, "a", 30, None)]


def test_exact_history_takes_corrections_of_remembered_repeats(db: Db) -> None:
    spec = event_history(db, exact_history=True)
    db.load(spec, [event(1, "a", 10), event(1, "a", 20)], now=100)
    db.load(spec, [event(1, "b", 20)], now=101)
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, None)]
    db.load(spec, [event(1, "a", 20)], now=102)
    assert versions(db, spec) == [(1, "a", 10, None)]


def test_exact_history_switched_on_later_keeps_what_is_stored(db: Db) -> None:
    plain, exact = event_history(db), event_history(db, exact_history=True)
    db.load(plain, [event(1, "a", 10), event(1, "b", 20)], now=100)
    before = db.stored(plain)
    db.load(exact, [event(1, "b", 30)], now=101)
    assert db.stored(exact) == before
    db.load(exact, [event(1, "c", 25)], now=102)
    assert versions(db, exact) == [(1, "a", 10, 20), (1, "b", 20, 25), (1, "c", 25, 30), (1, "b", 30, None)]


def test_exact_history_switched_on_later_keeps_keys_that_were_first_closed_and_then_came_back(db: Db) -> None:
    plain = event_history(db, handle_deletes="soft")
    exact = event_history(db, handle_deletes="soft", exact_history=True)
    db.load(plain, [event(1, "a", 10), event(1, "b", 20), event(2, "z", 10)], now=100)
    db.load(exact, [event(2, "z", 10)], now=110)
    db.load(exact, [event(1, "b", 20), event(2, "z", 10)], now=120)
    assert versions(db, exact) == [(1, "a", 10, 20), (1, "b", 20, 110), (1, "b", 120, None), (2, "z", 10, None)]


def test_exact_history_switched_on_later_knows_that_a_key_was_gone(db: Db) -> None:
    plain = event_history(db, handle_deletes="soft")
    exact = event_history(db, handle_deletes="soft", exact_history=True)
    db.load(plain, [event(1, "a", 10)], now=100)
    db.load(plain, [], now=110)
    db.load(exact, [event(1, "a", 10)], now=120)
    assert versions(db, exact) == [(1, "a", 10, 110), (1, "a", 120, None)]


def test_exact_history_switched_off_for_a_while_keeps_what_came_in_meanwhile(db: Db) -> None:
    plain, exact = event_history(db), event_history(db, exact_history=True)
    db.load(exact, [event(1, "a", 10), event(1, "b", 20)], now=100)
    db.load(plain, [event(1, "B", 20), event(1, "c", 30)], now=101)
    db.load(exact, [event(1, "b", 25)], now=102)
    assert versions(db, exact) == [(1, "a", 10, 20), (1, "B", 20, 25), (1, "b", 25, 30), (1, "c", 30, None)]


# ── events without a time, and events that contradict each other ─────────────────────────────────────────────────────


@pytest.mark.parametrize("untimed", [event(1, "b", None), event(2, "n", None)], ids=["changed", "new"])
def test_a_changed_row_without_event_time_fails_the_load_and_leaves_the_table_alone(
    db: Db, untimed: dict[str, Any]
) -> None:
    spec = event_history(db)
    db.load(spec, [event(1, "a", 10)], now=100)
    before = db.stored(spec)
    with pytest.raises(UnfitValue, match="'at'"):
        db.load(spec, [untimed, event(3, "n", 20)], now=101)
    assert db.stored(spec) == before


@pytest.mark.parametrize("exact", [False, True])
def test_an_unchanged_row_without_event_time_is_there_and_says_nothing(db: Db, exact: bool) -> None:
    spec = event_history(db, handle_deletes="soft", exact_history=exact)
    db.load(spec, [event(1, "a", 10), event(2, None, 10)], now=100)
    before = db.stored(spec)
    db.load(spec, [event(1, "a", None), event(2, None, None)], now=101)
    assert db.stored(spec) == before


def test_two_events_of_one_key_and_time_with_different_content_are_refused(db: Db, tmp_project: Path) -> None:
    spec = event_history(db)
    key = 7_700_770_077
    db.load(spec, [event(key, "a", 10)], now=100)
    before = db.stored(spec)
    db.put(spec, [event(key, "secret", 20), event(key, "other", 20), event(3, "n", 1)])
    with pytest.raises(DuplicateKeys) as refused:
        Pipeline(spec).sync()
    assert "'id'" in str(refused.value) and "'at'" in str(refused.value) and "deduplicate_by" in str(refused.value)
    assert str(key) not in str(refused.value) and "secret" not in str(refused.value)
    assert db.stored(spec) == before


@pytest.mark.parametrize("exact", [False, True])
def test_the_same_event_twice_in_a_batch_is_one_event(db: Db, exact: bool) -> None:
    spec = event_history(db, exact_history=exact)
    report = db.load(spec, [event(1, "a", 10), event(1, "a", 10), event(1, "b", 20), event(1, "b", 20)], now=100).report
    assert versions(db, spec) == [(1, "a", 10, 20), (1, "b", 20, None)]
    assert report.inserted == 2


# ── what the user sees ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_reports_new_versions_and_closings_and_stamps_them_with_its_id(db: Db, tmp_project: Path) -> None:
    spec = event_history(db)
    db.put(spec, [event(1, "a", 10), event(2, "z", 10)])
    first = Pipeline(spec).sync()
    db.put(spec, [event(1, "b", 20), event(2, "z", 20), event(3, "n", 20)])
    second = Pipeline(spec).sync()
    assert (first.rows_inserted, first.rows_closed) == (2, 0)
    assert (second.rows_inserted, second.rows_closed) == (2, 1)
    assert [row["_batch_id"] for row in db.stored(spec)] == [
        second.run_id,
        second.run_id,
        first.run_id,
        second.run_id,
    ]
    assert [run[:4] for run in db.runs(spec)] == [("scd2", "success", 2, 0), ("scd2", "success", 2, 1)]


def test_a_load_time_history_through_a_run_begins_where_the_last_version_ends(db: Db, tmp_project: Path) -> None:
    spec = snapshot_history(db, handle_deletes="soft")
    for rows in ([row(1, "a"), row(2, "z")], [row(1, "b")], [row(1, "b"), row(2, "z")]):
        db.put(spec, rows)
        Pipeline(spec).sync()
    found = [(version["id"], version["v"], version["is_current"]) for version in db.stored(spec)]
    assert found == [(1, "a", False), (1, "b", True), (2, "z", False), (2, "z", True)]


def test_a_history_by_natural_key_goes_on_when_the_surrogate_key_changes(db: Db, tmp_project: Path) -> None:
    columns = (*EVENTS, ColumnSpec("email", String(40)))
    spec = db.spec(columns, mode="scd2", event_timestamp_column="at", unique=(("email",),), compare_columns=("v",))
    for given in ({**event(1, "a", 10), "email": "x"}, {**event(2, "b", 20), "email": "x"}):
        db.put(spec, [given])
        with pytest.warns(UserWarning, match="natural_key"):
            Pipeline(spec).sync()
    assert versions(db, spec) == [(1, "a", 10, 20), (2, "b", 20, None)]


def test_a_history_needs_a_column_to_compare_and_cannot_delete(db: Db) -> None:
    with pytest.raises(InvalidDeclaration, match="no column to compare"):
        db.spec((EVENTS[0], EVENTS[2]), mode="scd2", event_timestamp_column="at")
    with pytest.raises(InvalidDeclaration, match="hard"):
        event_history(db, handle_deletes="hard")
    with pytest.raises(InvalidDeclaration, match="event_at"):
        db.spec((*SNAPSHOT, ColumnSpec("event_at", TimestampTZ())), mode="scd2", exact_history=True)
    with pytest.raises(InvalidDeclaration, match="valid_to"):
        db.spec((*SNAPSHOT, ColumnSpec("valid_to", TimestampTZ())), mode="scd2")


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("table", ["events", "ranked", "lagged", "kept", "returned", "complete", "ended", "s"])
def test_a_history_may_have_any_name(db: Db, table: str, exact: bool) -> None:
    spec = event_history(db, name=table, handle_deletes="soft", ttl=TTL, late_arrivals="error", exact_history=exact)
    db.load(spec, [event(1, "a", 90), event(2, "z", 95)], now=100)
    db.load(spec, [event(1, "b", 105)], now=110)
    assert versions(db, spec) == [(1, "a", 90, 105), (1, "b", 105, None), (2, "z", 95, 110)]


@pytest.mark.parametrize("exact", [False, True])
def test_the_columns_of_a_history_may_have_any_name(db: Db, exact: bool) -> None:
    keys, values = ("n", "t", "s", "e"), ("place", "ends", "before_at", "before_closing", "event", "valid", "c", "k")
    columns = (
        *(ColumnSpec(name, BigInt(), primary_key=True) for name in keys),
        *(ColumnSpec(name, BigInt(), nullable=True) for name in values),
        ColumnSpec("at", TimestampTZ()),
    )
    spec = db.spec(columns, mode="scd2", event_timestamp_column="at", handle_deletes="soft", exact_history=exact)

    def load(key: int, value: int | None, at: int, *, now: int) -> None:
        db.load(spec, [{**dict.fromkeys(keys, key), **dict.fromkeys(values, value), "at": at}], now=now)

    load(1, 2, 10, now=100)
    load(1, None, 20, now=101)
    load(1, 1, 15, now=102)
    load(2, 1, 15, now=103)
    load(1, 1, 15, now=104)
    found = [(row["n"], row["place"], row["k"], row["valid_from"], row["valid_to"]) for row in db.stored(spec)]
    assert found == [
        (1, 2, 2, 10, 15),
        (1, 1, 1, 15, 20),
        (1, None, None, 20, 103),
        (1, 1, 1, 104, None),
        (2, 1, 1, 15, 104),
    ]
