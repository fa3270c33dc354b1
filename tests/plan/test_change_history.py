"""Histories straight from change feeds: images that lack columns, late ones, and truncates, against plain Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from tests.plan.change_history_model import NAMES, Change, History, history_spec, landed_row, settle, stored_versions
from tests.plan.loading import Db

PROVES = bool(os.environ.get("EMATIX_PROVE"))


@st.composite
def batches(draw: st.DrawFn) -> list[list[Change]]:
    """A few batches: one change a key and time, most of them without some columns; some come again."""
    values = {"v": st.sampled_from([None, "p", "q"]), "w": st.sampled_from([None, 1, 2])}
    found: list[list[Change]] = []
    for _ in range(draw(st.integers(1, 4))):
        if found and draw(st.integers(0, 4)) == 4:
            found.append(draw(st.sampled_from(found)))
            continue
        changes = {}
        for _ in range(draw(st.integers(0, 6))):
            key, at, place = draw(st.integers(1, 3)), draw(st.integers(0, 9)), draw(st.integers(1, 5))
            has = draw(st.sets(st.sampled_from(NAMES)))
            image = {name: draw(values[name]) for name in sorted(has)} if draw(st.integers(0, 3)) else None
            changes[key, at] = Change(key, at, image, place)
        if draw(st.integers(0, 3)) == 3:
            at = draw(st.integers(0, 9))
            changes[0, at] = Change(None, at, None, draw(st.integers(0, 5)))
        found.append(list(changes.values()))
    return found


def prove(examples: int, more: int) -> Callable[[Any], Any]:
    return settings(
        max_examples=more if PROVES else examples,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


def check(db: Db, told: list[list[Change]]) -> None:
    spec, model = history_spec(db), History()
    for number, batch in enumerate(told):
        model.take(batch)
        settle(db, spec, [landed_row(change) for change in batch], now=100 + number)
        assert stored_versions(db, spec) == model.versions()


def test_an_image_takes_what_it_lacks_from_the_version_before_it(db: Db) -> None:
    first = [Change(1, 1, {"v": "p", "w": 1}), Change(2, 1, {"v": "p", "w": 1})]
    later = [Change(1, 3, {"w": 2}), Change(1, 5, {"v": "q"}), Change(2, 2, None), Change(2, 4, {"w": 7})]
    spec = history_spec(db)
    for number, batch in enumerate([first, later, [Change(None, 6, None), Change(2, 7, {"v": "r"})]]):
        settle(db, spec, [landed_row(change) for change in batch], now=100 + number)
    assert stored_versions(db, spec) == [
        (1, "p", 1, 1, 3, False),
        (1, "p", 2, 3, 5, False),
        (1, "q", 2, 5, 6, False),
        (2, "p", 1, 1, 2, False),
        (2, None, 7, 4, 6, False),
        (2, "r", None, 7, None, True),
    ]


@prove(150, 1000)
@given(told=batches())
def test_histories_of_feeds_on_sqlite_are_those_of_the_model(sqlite_db: Db, told: list[list[Change]]) -> None:
    check(sqlite_db, told)


@prove(15, 200)
@given(told=batches())
def test_the_same_on_postgres(postgres_db: Db, told: list[list[Change]]) -> None:
    check(postgres_db, told)


@prove(8, 100)
@given(told=batches())
def test_the_same_on_mysql(mysql_db: Db, told: list[list[Change]]) -> None:
    check(mysql_db, told)


@prove(15, 200)
@given(told=batches())
def test_the_same_on_duckdb(duckdb_db: Db, told: list[list[Change]]) -> None:
    check(duckdb_db, told)
