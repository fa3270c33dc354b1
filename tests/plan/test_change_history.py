"""Histories straight from change feeds: images that lack columns, late ones, and truncates, against plain Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from tests.plan.change_history_model import (
    NAMES,
    Change,
    History,
    Image,
    history_spec,
    landed_row,
    settle,
    stored_versions,
)
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


def test_histories_are_those_of_the_source_whatever_is_delivered_again(sqlite_db: Db) -> None:
    """The source's clock knows only minutes: most rows change several times within one."""
    chosen, spec = Random(11), history_spec(sqlite_db)
    rows: dict[int, Image] = {}
    log: list[Change] = []
    seen: dict[tuple[int, int], Image | None] = {}
    at = read = 0
    for number in range(30):
        for _ in range(chosen.randint(5, 15)):
            at += chosen.randint(0, 3) == 3
            key = chosen.randrange(12)
            if key in rows and chosen.random() < 0.2:
                del rows[key]
            else:
                rows[key] = {"v": chosen.choice("pqr"), "w": chosen.randint(1, 2)}
            seen[key, at] = rows.get(key)
            log.append(Change(key, at, rows.get(key), len(log) + 1))
        begin = max(0, read - chosen.choice([0, 0, 5, 40]))
        read = len(log) if number == 29 else min(len(log), begin + chosen.randint(1, 30))
        last = {(change.key, change.at): change for change in log[begin:read]}
        settle(sqlite_db, spec, [landed_row(change) for change in last.values()], now=500 + number)
        again = chosen.choice(log)  # alone, however old it is
        if again in log[:read]:
            settle(sqlite_db, spec, [landed_row(again)], now=600 + number)
    assert stored_versions(sqlite_db, spec) == History(told=by_key(seen)).versions()


def by_key(seen: dict[tuple[int, int], Image | None]) -> dict[int, dict[int, Image | None]]:
    """What is known of every key from which moment on, without the moments that say nothing new."""
    found: dict[int, dict[int, Image | None]] = {}
    for (key, at), image in sorted(seen.items(), key=lambda item: item[0]):
        told = found.setdefault(key, {})
        if image != (told[max(told)] if told else None):
            told[at] = image
    return found


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
