"""merge, one behaviour at a time, on both databases."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.declare.columns import BigInt, String, Text, TimestampTZ
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import DuplicateKeys, EmptySource, InvalidDeclaration, MissingKeys, UnfitValue, UnsupportedMode
from tests.plan.loading import Db

COLUMNS = (
    ColumnSpec("id", BigInt(), primary_key=True),
    ColumnSpec("email", String(40), nullable=True),
    ColumnSpec("city", Text(), nullable=True),
)


def person(id: int | None, email: str | None, city: str | None) -> dict[str, Any]:
    return {"id": id, "email": email, "city": city}


def people(db: Db, spec: Any) -> list[tuple[Any, ...]]:
    return [(row["id"], row["email"], row["city"]) for row in db.stored(spec)]


def batch_ids(db: Db, spec: Any) -> list[str]:
    return [row["_batch_id"] for row in db.stored(spec)]


def test_merge_inserts_new_keys_updates_changed_ones_and_counts_the_rest_as_unchanged(
    db: Db, tmp_project: Path
) -> None:
    spec = db.spec(COLUMNS, mode="merge")
    pipeline = Pipeline(spec)
    db.put(spec, [person(1, "a@x", "Bonn"), person(2, "b@x", "Ulm"), person(3, None, None)])
    first = pipeline.sync()
    assert (first.rows_inserted, first.rows_updated, first.rows_unchanged) == (3, 0, 0)

    db.put(spec, [person(1, "a@x", "Bonn"), person(2, "b@x", "Jena"), person(3, None, None), person(4, "d@x", "Suhl")])
    second = pipeline.sync()

    assert (second.rows_inserted, second.rows_updated, second.rows_unchanged) == (1, 1, 2)
    assert people(db, spec) == [(1, "a@x", "Bonn"), (2, "b@x", "Jena"), (3, None, None), (4, "d@x", "Suhl")]
    assert batch_ids(db, spec) == [first.run_id, second.run_id, first.run_id, second.run_id]
    assert db.runs(spec) == [("merge", "success", 3, 0, 0), ("merge", "success", 1, 1, 2)]


def test_merge_that_changes_nothing_keeps_every_stamp(db: Db) -> None:
    spec = db.spec(COLUMNS, mode="merge")
    rows = [person(1, "a@x", None), person(2, None, "Ulm")]
    db.load(spec, rows, now=1)
    before = db.stored(spec)

    report = db.load(spec, rows, now=2).report

    assert (report.inserted, report.updated, report.deleted) == (0, 0, 0)
    assert db.stored(spec) == before


@pytest.mark.parametrize(("old", "new"), [(None, "Ulm"), ("Ulm", None), (None, ""), ("", None)])
def test_merge_counts_null_as_a_value_of_its_own(db: Db, old: str | None, new: str | None) -> None:
    spec = db.spec(COLUMNS, mode="merge")
    db.load(spec, [person(1, "a@x", old)], now=1)
    assert db.load(spec, [person(1, "a@x", new)], now=2).report.updated == 1
    assert people(db, spec) == [(1, "a@x", new)]


def test_merge_matches_on_all_columns_of_a_compound_key(db: Db) -> None:
    columns = (
        ColumnSpec("shop", String(40), primary_key=True),
        ColumnSpec("sku", String(40), primary_key=True),
        ColumnSpec("stock", BigInt()),
    )
    spec = db.spec(columns, mode="merge")
    db.load(spec, [{"shop": "ab", "sku": "c", "stock": 1}, {"shop": "a", "sku": "bc", "stock": 2}], now=1)
    report = db.load(
        spec, [{"shop": "a", "sku": "bc", "stock": 3}, {"shop": "a", "sku": "c", "stock": 4}], now=2
    ).report
    assert (report.inserted, report.updated) == (1, 1)
    assert [(r["shop"], r["sku"], r["stock"]) for r in db.stored(spec)] == [
        ("a", "bc", 3),
        ("a", "c", 4),
        ("ab", "c", 1),
    ]


def test_merge_writes_only_the_update_columns_of_known_rows(db: Db) -> None:
    spec = db.spec(COLUMNS, mode="merge", update_columns=("city",))
    db.load(spec, [person(1, "a@x", "Bonn"), person(2, "b@x", "Ulm")], now=1)
    report = db.load(spec, [person(1, "new@x", "Jena"), person(2, "new@x", "Ulm")], now=2).report
    assert report.updated == 1
    assert people(db, spec) == [(1, "a@x", "Jena"), (2, "b@x", "Ulm")]


def test_empty_update_columns_only_insert(db: Db) -> None:
    spec = db.spec(COLUMNS, mode="merge", update_columns=())
    first = db.load(spec, [person(1, "a@x", "Bonn")], now=1)
    report = db.load(spec, [person(1, "new@x", "Jena"), person(2, "b@x", "Ulm")], now=2).report
    assert (report.inserted, report.updated) == (1, 0)
    assert people(db, spec) == [(1, "a@x", "Bonn"), (2, "b@x", "Ulm")]
    assert batch_ids(db, spec)[0] == first.run_id


def test_compare_columns_decide_whether_a_row_is_updated_at_all(db: Db) -> None:
    spec = db.spec(COLUMNS, mode="merge", compare_columns=("city",))
    first = db.load(spec, [person(1, "a@x", "Bonn"), person(2, "b@x", "Ulm")], now=1)

    second = db.load(spec, [person(1, "new@x", "Bonn"), person(2, "new@x", "Jena")], now=2)

    assert second.report.updated == 1
    assert people(db, spec) == [(1, "a@x", "Bonn"), (2, "new@x", "Jena")]
    assert batch_ids(db, spec) == [first.run_id, second.run_id]


def test_a_compared_column_that_is_never_written_does_not_update_the_row_again_and_again(db: Db) -> None:
    spec = db.spec(COLUMNS, mode="merge", update_columns=("email",), compare_columns=("city",))
    db.load(spec, [person(1, "a@x", "Bonn")], now=1)
    assert db.load(spec, [person(1, "new@x", "Jena")], now=2).report.updated == 1
    before = db.stored(spec)
    assert db.load(spec, [person(1, "new@x", "Jena")], now=3).report.updated == 0
    assert db.stored(spec) == before
    assert people(db, spec) == [(1, "new@x", "Bonn")]


def test_a_merged_table_may_hold_a_column_of_its_own_called_valid_from(db: Db) -> None:
    columns = (ColumnSpec("id", BigInt(), primary_key=True), ColumnSpec("valid_from", TimestampTZ()))
    spec = db.spec(columns, mode="merge")
    db.load(spec, [{"id": 1, "valid_from": 10}], now=100)
    assert db.load(spec, [{"id": 1, "valid_from": 11}], now=101).report.updated == 1
    assert [row["valid_from"] for row in db.stored(spec)] == [11]


def test_a_declared_stamp_is_the_users_own_column(db: Db) -> None:
    columns = (*COLUMNS, ColumnSpec("_loaded_at", TimestampTZ()))
    spec = db.spec(columns, mode="merge")
    db.load(spec, [{**person(1, "a@x", "Bonn"), "_loaded_at": 10}], now=100)
    assert db.load(spec, [{**person(1, "a@x", "Bonn"), "_loaded_at": 11}], now=101).report.updated == 0
    assert db.load(spec, [{**person(1, "a@x", "Jena"), "_loaded_at": 12}], now=102).report.updated == 1
    assert [row["_loaded_at"] for row in db.stored(spec)] == [12]


def test_absent_keys_stay_unless_hard_deletes_are_asked_for(db: Db, tmp_project: Path) -> None:
    spec = db.spec(COLUMNS, mode="merge")
    db.load(spec, [person(1, "a@x", None), person(2, "b@x", None)], now=1)
    db.load(spec, [person(2, "b@x", None)], now=2)
    assert [row[0] for row in people(db, spec)] == [1, 2]

    hard = db.spec(COLUMNS, mode="merge", handle_deletes="hard")
    db.put(hard, [person(2, "b@x", "Ulm"), person(3, "c@x", None)])
    result = Pipeline(hard).sync()

    assert (result.rows_inserted, result.rows_updated, result.rows_unchanged, result.rows_deleted) == (1, 1, 0, 1)
    assert people(db, hard) == [(2, "b@x", "Ulm"), (3, "c@x", None)]


def test_hard_deletes_refuse_an_empty_source_and_leave_the_table_alone(db: Db, tmp_project: Path) -> None:
    spec = db.spec(COLUMNS, mode="merge", handle_deletes="hard")
    db.load(spec, [person(1, "a@x", None)], now=1)
    before = db.stored(spec)
    db.put(spec, [])
    with pytest.raises(EmptySource, match="refuses an empty source"):
        Pipeline(spec).sync()
    assert db.stored(spec) == before
    assert db.runs(spec)[-1][:2] == ("merge", "failed")


def test_hard_deletes_empty_the_table_when_an_empty_source_is_allowed(db: Db) -> None:
    spec = db.spec(COLUMNS, mode="merge", handle_deletes="hard", allow_empty_source=True)
    db.load(spec, [person(1, "a@x", None), person(2, "b@x", None)], now=1)
    assert db.load(spec, [], now=2).report.deleted == 2
    assert db.stored(spec) == []


def test_an_empty_source_without_hard_deletes_changes_nothing(db: Db) -> None:
    spec = db.spec(COLUMNS, mode="merge")
    db.load(spec, [person(1, "a@x", None)], now=1)
    before = db.stored(spec)
    report = db.load(spec, [], now=2).report
    assert (report.rows, report.inserted, report.updated, report.deleted) == (0, 0, 0, 0)
    assert db.stored(spec) == before


def test_duplicate_keys_are_refused_naming_the_key_and_the_way_out_but_no_value(db: Db, tmp_project: Path) -> None:
    spec, key = db.spec(COLUMNS, mode="merge"), 7_700_770_077
    db.load(spec, [person(key, "a@x", None)], now=1)
    before = db.stored(spec)
    db.put(spec, [person(key, "b@x", None), person(key, "b@x", None), person(78, "c@x", None)])
    with pytest.raises(DuplicateKeys) as refused:
        Pipeline(spec).sync()
    assert "'id'" in str(refused.value) and "deduplicate_by" in str(refused.value)
    assert str(key) not in str(refused.value) and "b@x" not in str(refused.value)
    assert db.stored(spec) == before


def test_a_null_key_is_refused_and_the_table_left_alone(db: Db) -> None:
    spec = db.spec(COLUMNS, mode="merge", keys=("email",))
    db.load(spec, [person(1, "a@x", None)], now=1)
    before = db.stored(spec)
    with pytest.raises(UnfitValue, match="NULL"):
        db.load(spec, [person(1, "a@x", "Bonn"), person(2, None, None)], now=2)
    assert db.stored(spec) == before


def test_the_natural_key_comes_before_the_primary_key_and_says_so(db: Db, tmp_project: Path) -> None:
    spec = db.spec(COLUMNS, mode="merge", unique=(("email",),))
    db.put(spec, [person(1, "a@x", "Bonn")])
    with pytest.warns(UserWarning) as told:
        Pipeline(spec).sync()
    (message,) = [str(warning.message) for warning in told]
    for part in ("load_t", "('email',)", "natural_key()", "('id',)", "pass keys="):
        assert part in message

    db.put(spec, [person(9, "a@x", "Jena")])
    with pytest.warns(UserWarning):
        assert Pipeline(spec).sync().rows_updated == 1
    assert people(db, spec) == [(9, "a@x", "Jena")]


def test_declared_merge_keys_come_before_the_natural_key(db: Db, tmp_project: Path) -> None:
    spec = db.spec(COLUMNS, mode="merge", unique=(("email",),), merge_keys=("city",))
    db.load(spec, [person(1, "a@x", "Bonn")], now=1)
    db.put(spec, [person(2, "b@x", "Bonn")])
    with pytest.warns(UserWarning, match="__merge_keys__"):
        assert Pipeline(spec).sync().rows_updated == 1
    assert people(db, spec) == [(2, "b@x", "Bonn")]


def test_explicit_keys_come_first_and_never_warn(db: Db, tmp_project: Path) -> None:
    spec = db.spec(COLUMNS, mode="merge", unique=(("email",),))
    db.put(spec, [person(1, "a@x", "Bonn")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Pipeline(spec).sync(keys=("id",))
        db.put(spec, [person(1, "new@x", "Bonn")])
        assert Pipeline(spec).sync(keys=["id"]).rows_updated == 1
    assert people(db, spec) == [(1, "new@x", "Bonn")]


def test_scd1_is_merge_under_the_name_the_user_wrote(db: Db, tmp_project: Path) -> None:
    spec = db.spec(COLUMNS, mode="scd1")
    db.put(spec, [person(1, "a@x", None)])
    Pipeline(spec).sync()
    db.put(spec, [person(1, "b@x", None)])
    assert Pipeline(spec).sync().rows_updated == 1
    assert people(db, spec) == [(1, "b@x", None)]
    assert [run[0] for run in db.runs(spec)] == ["scd1", "scd1"]


def test_merge_without_any_key_names_the_ways_to_give_one(db: Db) -> None:
    with pytest.raises(MissingKeys) as refused:
        db.spec((ColumnSpec("v", Text()),), mode="merge")
    for way in ("pk()", "natural_key()", "__merge_keys__", "keys="):
        assert way in str(refused.value)


def test_options_that_merge_cannot_honour_are_refused_when_declared(db: Db) -> None:
    with pytest.raises(UnsupportedMode):
        db.spec(COLUMNS, mode="merge", handle_deletes="soft")
    with pytest.raises(InvalidDeclaration):
        db.spec(COLUMNS, mode="merge", exact_history=True)
    with pytest.raises(InvalidDeclaration):
        db.spec(COLUMNS, mode="merge", update_columns=("id",))


def test_the_columns_of_a_merged_table_may_have_any_name(db: Db) -> None:
    columns = tuple(ColumnSpec(name, BigInt(), primary_key=name in ("n", "d")) for name in ("n", "d", "s", "t"))
    spec = db.spec(columns, name="s", mode="merge", handle_deletes="hard")
    db.load(spec, [{"n": 1, "d": 1, "s": 1, "t": 1}, {"n": 2, "d": 1, "s": 1, "t": 1}], now=1)
    db.load(spec, [{"n": 2, "d": 1, "s": 2, "t": 1}, {"n": 2, "d": 2, "s": 1, "t": 1}], now=2)
    assert [(row["n"], row["d"], row["s"], row["t"]) for row in db.stored(spec)] == [(2, 1, 2, 1), (2, 2, 1, 1)]
