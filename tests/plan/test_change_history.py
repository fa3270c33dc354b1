"""Histories straight from change feeds: images that lack columns, late ones, and truncates, against plain Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.plan.change_history_model import (
    NAMES,
    At,
    Change,
    History,
    Image,
    history_spec,
    landed_rows,
    settle,
    stored_versions,
)
from tests.plan.loading import Db

PROVES = bool(os.environ.get("EMATIX_PROVE"))


@st.composite
def batches(draw: st.DrawFn) -> list[list[Change]]:
    """A few batches: of a key one change a time and place, most without some columns; some come again, or in part.

    The source's clock goes back between two batches as it likes.
    """
    values = {"v": st.sampled_from([None, "p", "q"]), "w": st.sampled_from([None, 1, 2])}
    found: list[list[Change]] = []
    for _ in range(draw(st.integers(1, 4))):
        if found and draw(st.integers(0, 4)) == 4:
            again = draw(st.sampled_from(found))
            found.append([change for change in again if draw(st.integers(0, 3))])
            continue
        changes = []
        for key in range(1, draw(st.integers(1, 4))):
            times, places = (draw(st.sets(st.integers(1, 9), min_size=3, max_size=3)) for _ in range(2))
            for at, place in list(zip(sorted(times), sorted(places), strict=True))[: draw(st.integers(0, 3))]:
                has = draw(st.sets(st.sampled_from(NAMES)))
                image = {name: draw(values[name]) for name in sorted(has)} if draw(st.integers(0, 3)) else None
                changes.append(Change(key, at, image, place))
        if draw(st.integers(0, 3)) == 3:
            changes.append(Change(None, draw(st.integers(0, 9)), None, draw(st.integers(0, 9))))
        found.append(changes)
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
        settle(db, spec, landed_rows(batch), now=100 + number)
        assert stored_versions(db, spec) == model.versions()


def test_an_image_takes_what_it_lacks_from_the_version_before_it(db: Db) -> None:
    first = [Change(1, 1, {"v": "p", "w": 1}, 1), Change(2, 1, {"v": "p", "w": 1}, 1)]
    later = [Change(1, 3, {"w": 2}, 2), Change(1, 5, {"v": "q"}, 3), Change(2, 2, None, 2), Change(2, 4, {"w": 7}, 3)]
    spec = history_spec(db)
    for number, batch in enumerate([first, later, [Change(None, 6, None), Change(2, 7, {"v": "r"}, 4)]]):
        settle(db, spec, landed_rows(batch), now=100 + number)
    assert stored_versions(db, spec) == [
        (1, "p", 1, (1, 0), (3, 0), False),
        (1, "p", 2, (3, 0), (5, 0), False),
        (1, "q", 2, (5, 0), (6, 0), False),
        (2, "p", 1, (1, 0), (2, 0), False),
        (2, None, 7, (4, 0), (6, 0), False),
        (2, "r", None, (7, 0), None, True),
    ]


def test_a_change_behind_the_furthest_is_the_current_one_although_the_clock_was_set_back(db: Db) -> None:
    batches = [
        [Change(1, 10, {"v": "p", "w": 1}, 1), Change(2, 10, {"v": "p", "w": 1}, 1)],
        [Change(1, 5, {"w": 2}, 2), Change(1, 6, {"v": "q"}, 3), Change(2, 9, None, 2)],
        [Change(1, 7, {"w": 3}, 4)],
    ]
    spec = history_spec(db)
    for number, batch in enumerate([*batches, batches[1], batches[0], [batches[1][0]], batches[2]]):
        settle(db, spec, landed_rows(batch), now=100 + number)
    again = [Change(1, 7, {"w": 3}, 4), Change(1, 11, {"v": "r"}, 5)]
    settle(db, spec, landed_rows(again), now=200)
    assert stored_versions(db, spec) == [
        (1, "p", 1, (10, 0), (10, 1), False),
        (1, "p", 2, (10, 1), (10, 2), False),
        (1, "q", 2, (10, 2), (10, 3), False),
        (1, "q", 3, (10, 3), (11, 0), False),
        (1, "r", 3, (11, 0), None, True),
        (2, "p", 1, (10, 0), (10, 1), False),
    ]


def test_the_furthest_comes_again_with_one_of_its_very_time(db: Db) -> None:
    """Of its own batch it was the last of two, and got the time of the first, at which the next is made."""
    spec = history_spec(db)
    settle(db, spec, landed_rows([Change(1, 10, {"v": "p", "w": 1}, 2)]), now=100)
    settle(db, spec, landed_rows([Change(1, 5, {"v": "p", "w": 1}, 2), Change(1, 10, {"w": 2}, 3)]), now=101)
    assert stored_versions(db, spec) == [(1, "p", 2, (10, 0), None, True)]


@pytest.mark.parametrize("comes_again", [False, True])
def test_histories_have_the_order_of_the_log_whatever_the_clock_says(sqlite_db: Db, comes_again: bool) -> None:
    """In the end, at any rate: what comes again alone, after others of its batch, may be put beside itself."""
    chosen, spec = Random(23), history_spec(sqlite_db)
    rows: dict[int, Image] = {}
    log: list[Change] = []
    wanted: dict[int, list[Image | None]] = {}
    at = 50
    for number in range(40):
        begin = len(log)
        for _ in range(chosen.randint(1, 8)):
            at += chosen.choice([0, 1, 2, -7])
            key = chosen.randrange(6)
            if key in rows and chosen.random() < 0.2:
                del rows[key]
            else:
                rows[key] = {"v": chosen.choice("pqr"), "w": chosen.randint(1, 2)}
            log.append(Change(key, at, rows.get(key), len(log) + 1))
        landed = in_step(log[begin:])
        for change in landed:
            if [change.image] != wanted.setdefault(change.key or 0, [None])[-1:]:
                wanted[change.key or 0].append(change.image)
        settle(sqlite_db, spec, landed_rows(landed), now=500 + number)
        if comes_again:
            again = chosen.choice(log)
            settle(sqlite_db, spec, landed_rows([again]), now=600 + number)
            again_from = chosen.randrange(len(log))
            settle(sqlite_db, spec, landed_rows(in_step(log[again_from:])), now=700 + number)
    found = {key: [None, *told_in_order(stored_versions(sqlite_db, spec), key)] for key in wanted}
    if comes_again:
        assert {key: told[-1] for key, told in found.items()} == {key: told[-1] for key, told in wanted.items()}
    else:
        assert found == wanted


def in_step(changes: list[Change]) -> list[Change]:
    """What lands of a part of a log: no time is earlier than that of a change before it; of one time the last."""
    newest: dict[int | None, int] = {}
    found = {}
    for change in changes:
        at = newest[change.key] = max(change.at, newest.get(change.key, 0))
        found[change.key, at] = replace(change, at=at)
    return [*found.values()]


def told_in_order(versions: list[tuple[Any, ...]], key: int) -> list[Image | None]:
    """What a key was, one after the other; None for gone."""
    found: list[Image | None] = []
    own = [version for version in versions if version[0] == key]
    for version, follows in zip(own, [*own[1:], None], strict=False):
        found.append(dict(zip(NAMES, version[1:3], strict=True)))
        if version[4] is not None and (follows is None or follows[3] != version[4]):
            found.append(None)
    return found


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
        settle(sqlite_db, spec, landed_rows([*last.values()]), now=500 + number)
        again = chosen.choice(log)  # alone, however old it is
        if again in log[:read]:
            settle(sqlite_db, spec, landed_rows([again]), now=600 + number)
    assert stored_versions(sqlite_db, spec) == History(told=by_key(seen)).versions()


def by_key(seen: dict[tuple[int, int], Image | None]) -> dict[int, dict[At, Image | None]]:
    """What is known of every key from which moment on, without the moments that say nothing new."""
    found: dict[int, dict[At, Image | None]] = {}
    for (key, at), image in sorted(seen.items(), key=lambda item: item[0]):
        told = found.setdefault(key, {})
        if image != (told[max(told)] if told else None):
            told[at, 0] = image
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
