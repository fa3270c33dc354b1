"""Dead letters in a table: looking, taking, deciding, parking and purging, on every database they can be in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.dead_letters_sql import SqlDeadLetters
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.dead_letters import (
    LEASE_MS,
    TAKEN_BYTES,
    DeadLetter,
    Selection,
    check_page,
    letter_id,
    position_text,
    short_error,
)
from ematix_flow.declare.connection import connection_from_dsn
from ematix_flow.errors import InvalidConfig, InvalidDeclaration

NOW = 1_772_345_000_000


def letter(
    offset: int, *, failed_at: int = NOW - 1000, payload: bytes = b"{oops", pipeline: str = "orders"
) -> DeadLetter:
    position = {"topic": "events", "partition": 0, "offset": offset}
    return DeadLetter(
        id=letter_id(pipeline, "events", position_text(position), "transform", 1),
        pipeline_name=pipeline,
        stage="transform",
        error="not a JSON object",
        source_id="events",
        payload=payload,
        position=position,
        failed_at=failed_at,
        key=b"\x00k\xff",
        headers=(("trace", b"\xfe\x00"), ("empty", None), ("trace", b"2")),
        event_ts=1_772_344_000_000_001,
    )


@pytest.fixture(params=["sqlite", "postgres", "duckdb", "mysql"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> SqlDeadLetters:
    urls = {"sqlite": f"sqlite:///{tmp_path}/deep/letters.db", "duckdb": f"duckdb:///{tmp_path}/letters.duckdb"}
    if request.param in ("postgres", "mysql"):
        url = request.getfixturevalue({"postgres": "pg_url", "mysql": "mysql_url"}[request.param])
    else:
        url = urls[request.param]
    schema = {"postgres": "kept", "mysql": urlsplit(url).path.lstrip("/")}.get(request.param, "main")
    backend = open_backend(connection_from_dsn("store", url))
    assert isinstance(backend, SqlBackend)
    return SqlDeadLetters(backend, "orders", schema, "gen1")


def test_a_letter_comes_back_as_it_was_kept(keeper: SqlDeadLetters) -> None:
    assert keeper.records(None, 0, 50) == []
    assert keeper.stats(NOW).pending == 0
    every_byte = replace(letter(7, payload=bytes(range(256))), event_ts=None, key=None, headers=())
    keeper.keep([letter(8), every_byte])
    keeper.keep([letter(8)])
    assert keeper.records(None, 0, 50) == [every_byte, letter(8)]
    assert keeper.by_id(letter(8).id) == letter(8)
    assert keeper.by_id("39de450b") is None
    assert keeper.ids_like(letter(8).id[:6]) == [letter(8).id]
    assert keeper.ids_like("%") == []


def test_pages_are_oldest_first_and_belong_to_one_pipeline(keeper: SqlDeadLetters) -> None:
    keeper.keep([letter(n, failed_at=NOW - 10 * n) for n in range(5)] + [letter(1, pipeline="other")])
    offsets = [one.position["offset"] for page in range(3) for one in keeper.records("pending", page, 2)]
    assert offsets == [4, 3, 2, 1, 0]
    assert keeper.records("parked", 0, 50) == []


def test_letters_are_counted_by_stage_and_age(keeper: SqlDeadLetters) -> None:
    keeper.keep([letter(1), letter(2, failed_at=NOW - 10 * 60_000), replace(letter(3), id="x", stage="write")])
    keeper.park(Selection("ids", ids=(letter(2).id,)), now_ms=NOW)
    assert keeper.stats(NOW).to_dict() == {
        "pending": 2,
        "parked": 1,
        "by_stage": {"transform": 2, "write": 1},
        "arrivals": {"last_1m": 2, "last_5m": 2, "last_15m": 3, "last_60m": 3},
        "scanned": 3,
        "truncated": False,
    }


def test_what_a_replay_holds_nobody_else_takes_until_its_lease_ends(keeper: SqlDeadLetters) -> None:
    keeper.keep([letter(1), letter(2)])
    first = keeper.take(Selection("first_n", n=1), before_ms=NOW, now_ms=NOW)
    assert first is not None
    assert [one.position["offset"] for one in first.letters] == [1]
    second = keeper.take(Selection(), before_ms=NOW, now_ms=NOW)
    assert second is not None
    assert [one.position["offset"] for one in second.letters] == [2]
    assert keeper.take(Selection(), before_ms=NOW, now_ms=NOW + LEASE_MS - 1) is None
    assert keeper.purge(Selection(), now_ms=NOW) == 0
    again = keeper.take(Selection(), before_ms=NOW, now_ms=NOW + LEASE_MS)
    assert again == first


def test_a_letter_that_was_replayed_does_not_come_back_with_its_batch(keeper: SqlDeadLetters) -> None:
    keeper.keep([letter(1)])
    taken = keeper.take(Selection(), before_ms=NOW, now_ms=NOW)
    assert taken is not None
    keeper.done(taken, now_ms=NOW)
    keeper.keep([letter(1)])
    assert keeper.records(None, 0, 50) == []
    assert keeper.stats(NOW).scanned == 0
    keeper.forget_traces()
    assert keeper.known([letter(1).id]) == {letter(1).id}
    keeper.generation = "gen2"
    keeper.forget_traces()
    keeper.keep([letter(1)])
    assert keeper.records(None, 0, 50) == [letter(1)]


def test_a_letter_that_failed_again_is_a_new_attempt_and_waits_for_the_next_replay(keeper: SqlDeadLetters) -> None:
    keeper.keep([letter(1), letter(2)])
    taken = keeper.take(Selection(), before_ms=NOW, now_ms=NOW)
    assert taken is not None
    again = letter(1).tried_again("still not JSON", now_ms=NOW, most_attempts=3)
    keeper.decide(taken, [again], [letter(1).id], now_ms=NOW)
    keeper.done(taken.without({letter(1).id}), now_ms=NOW)
    assert keeper.records(None, 0, 50) == [again]
    assert (again.attempt, again.status, again.payload) == (2, "pending", letter(1).payload)
    assert keeper.take(Selection(), before_ms=NOW, now_ms=NOW) is None
    later = keeper.take(Selection(), before_ms=NOW + 1, now_ms=NOW)
    assert later is not None
    assert later.letters == (again,)


def test_parked_letters_are_taken_by_their_id_only(keeper: SqlDeadLetters) -> None:
    keeper.keep([letter(n) for n in range(4)])
    assert keeper.park(Selection("first_n", n=3), now_ms=NOW) == 3
    assert keeper.park(Selection(), now_ms=NOW) == 1
    assert keeper.take(Selection(), before_ms=NOW, now_ms=NOW) is None
    named = keeper.take(Selection("ids", ids=(letter(2).id,)), before_ms=NOW, now_ms=NOW)
    assert named is not None
    assert [one.id for one in named.letters] == [letter(2).id]
    assert keeper.purge(Selection("ids", ids=(letter(1).id,)), now_ms=NOW) == 1
    assert keeper.purge(Selection(), now_ms=NOW) == 2


def test_one_step_of_a_replay_is_bounded_in_bytes(tmp_path: Path) -> None:
    backend = open_backend(connection_from_dsn("store", f"sqlite:///{tmp_path}/letters.db"))
    assert isinstance(backend, SqlBackend)
    keeper = SqlDeadLetters(backend, "orders", "main")
    keeper.keep([letter(n, payload=b"x" * (TAKEN_BYTES // 2)) for n in range(3)])
    taken = keeper.take(Selection(), before_ms=NOW, now_ms=NOW)
    assert taken is not None
    assert [one.position["offset"] for one in taken.letters] == [0, 1]


def test_a_letter_is_parked_once_it_has_been_tried_often_enough() -> None:
    one = letter(1)
    for attempt, status in ((2, "pending"), (3, "pending"), (4, "parked")):
        one = one.tried_again("again", now_ms=NOW, most_attempts=3)
        assert (one.attempt, one.status) == (attempt, status)


def test_long_errors_are_cut_between_letters() -> None:
    assert short_error("ä" * 5000) == "ä" * 4096


@pytest.mark.parametrize(
    "written", ["{", "[]", '{"kind": "some"}', '{"kind": "first_n", "n": 0}', '{"kind": "ids", "ids": []}']
)
def test_a_selection_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(InvalidConfig):
        Selection.of(written)


def test_a_page_that_cannot_be_is_refused() -> None:
    for status, page, size in ((None, -1, 50), (None, 0, 0), ("leased", 0, 50)):
        with pytest.raises(InvalidDeclaration):
            check_page(status, page, size)
