"""Changes of a real PostgreSQL, from its log to the files that a stream reads: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import PostgresConnection
from ematix_flow.backends import capture_giver, postgres_changes
from ematix_flow.backends.postgres import PostgresBackend
from ematix_flow.backends.postgres_capture import slot_name
from ematix_flow.backends.postgres_changes import ChangesGiver
from ematix_flow.backends.queue_spool import Spool, kept_position
from ematix_flow.contracts.streams import StreamReading
from ematix_flow.errors import (
    AlreadyRunning,
    ConnectionFailed,
    FlowError,
    InvalidDeclaration,
    LostMessages,
    MissingKeys,
    StateIncompatible,
    StatementFailed,
    StreamError,
)
from tests.services import postgres
from tests.services.postgres import PostgresServer
from tests.services.run_folder import RunFolder

PATIENCE_S = 30.0


def until(is_true: Callable[[], Any]) -> Any:
    """Wait for a condition; what it gave."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := is_true()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)
    return found


class Capturing:
    """A capture without Spark: whatever comes is read from its files, and applied when a test says so."""

    def __init__(self, url: str, folder: Path, query: str = "public.orders", **fields: Any) -> None:
        self.url, self.folder, self.query = url, folder, query
        self.connection = PostgresConnection(name="shop", url=url, **fields)
        self.slot = self.connection.slot or slot_name(url.rsplit("/", 1)[1], "mirror", query)
        self.giver: ChangesGiver
        self.spool: Spool

    def start(self, start: Any = None) -> Capturing:
        self.backend = PostgresBackend(self.connection)
        self.backend.check_stream(self.query)
        self.backend.prepare(StreamReading(self.query, start, spool=str(self.folder), stream="mirror"))
        giver = self.backend.giver(self.query, kept_position(self.folder))
        assert isinstance(giver, ChangesGiver)
        self.giver = giver
        self.spool = Spool(self.folder, giver, self.query)
        self.spool.open()
        return self

    def stop(self) -> None:
        self.giver.stopping.set()
        self.spool.close()

    def raise_failure(self) -> None:
        self.giver.raise_failure()
        self.spool.is_drained(0)

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.parquet"))

    def rows(self) -> list[dict[str, Any]]:
        """What is in files: the hidden columns, and the body as it is."""
        import pyarrow.parquet as pq

        return [row for file in self.files() for row in pq.read_table(file).to_pylist()]

    def events(self, number: int) -> list[dict[str, Any]]:
        """Events that wait, once there are so many of them; numbers stay text, to see every digit."""

        def found() -> list[dict[str, Any]]:
            self.raise_failure()
            events = [json.loads(row["value"], parse_float=str, parse_int=int) for row in self.rows()]
            return events if len(events) >= number else []

        events = until(found) if number else []
        assert len(events) == number, [event["op"] for event in events]
        return events

    def caught_up(self) -> None:
        def is_there() -> bool:
            self.raise_failure()
            return self.giver.is_caught_up

        until(is_there)

    def apply(self) -> None:
        """As if every target had committed what is in files now."""
        self.spool.applied([file.name for file in self.files()])
        self.giver.confirm()

    def confirmed(self) -> int:
        with psycopg.connect(self.url) as db:
            row = db.execute(
                "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint FROM pg_replication_slots "
                "WHERE slot_name = %s",
                (self.slot,),
            ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def db(pg_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(pg_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def orders(db: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, item text, amount numeric)")
    return db


@pytest.fixture
def capturing(pg_url: str, tmp_path: Path) -> Iterator[Callable[..., Capturing]]:
    """Makes captures; what still runs at the end is stopped, so that the database can go."""
    made: list[Capturing] = []

    def make(query: str = "public.orders", **fields: Any) -> Capturing:
        capture = Capturing(pg_url, tmp_path / "spool", query, **fields)
        made.append(capture)
        return capture

    yield make
    for capture in made:
        if hasattr(capture, "spool"):
            capture.stop()


Make = Callable[..., Capturing]
Db = psycopg.Connection[Any]


# ── rows and changes ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_that_are_there_come_first_and_then_every_change(orders: Db, capturing: Make) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'pen', 1.10)")
    capture = capturing().start()
    capture.caught_up()
    orders.execute("INSERT INTO orders VALUES (2, NULL, 12345678901234567890.123456789)")
    orders.execute("UPDATE orders SET item = 'quill' WHERE id = 1")
    orders.execute("DELETE FROM orders WHERE id = 2")
    events = capture.events(4)
    assert [(event["op"], event["before"], event["after"]) for event in events] == [
        ("r", None, {"id": 1, "item": "pen", "amount": "1.10"}),
        ("c", None, {"id": 2, "item": None, "amount": "12345678901234567890.123456789"}),
        ("u", None, {"id": 1, "item": "quill", "amount": "1.10"}),
        ("d", {"id": 2}, None),
    ]
    assert [row["_key"] for row in capture.rows()] == [b'{"id":1}', b'{"id":2}', b'{"id":1}', b'{"id":2}']
    sources = [event["source"] for event in events]
    assert {(source["schema"], source["table"], source["connector"]) for source in sources} == {
        ("public", "orders", "postgresql")
    }
    assert [source["snapshot"] for source in sources] == ["true", "false", "false", "false"]
    order = [(source["ts_ms"], source["lsn"]) for source in sources]
    assert order == sorted(set(order)), "every change is later than the one before it"


TYPES = {
    "flag": ("boolean", "true", True),
    "small": ("smallint", "-7", -7),
    "big": ("bigint", "9223372036854775807", 9223372036854775807),
    "exact": ("numeric(40,10)", "12345678901234567890.0123456789", "12345678901234567890.0123456789"),
    "not_a_number": ("numeric", "'NaN'", "NaN"),
    "ratio": ("double precision", "0.1", "0.1"),
    "huge": ("double precision", "'-Infinity'", "-Infinity"),
    "text": ("text", r"E'tab\t line\n back\\slash \\N \"quote\" ü'", 'tab\t line\n back\\slash \\N "quote" ü'),
    "padded": ("char(5)", "'ab'", "ab   "),
    "day": ("date", "'2024-02-29'", "2024-02-29"),
    "moment": ("timestamp", "'2024-02-29 12:34:56.789012'", "2024-02-29T12:34:56.789012"),
    "instant": ("timestamptz", "'2024-02-29 12:34:56.5+02'", "2024-02-29T10:34:56.5+00:00"),
    "forever": ("timestamptz", "'infinity'", "infinity"),
    "clock": ("time", "'23:59:59.999999'", "23:59:59.999999"),
    "span": ("interval", "'1 year 2 days 03:04:05'", "1 year 2 days 03:04:05"),
    "blob": ("bytea", r"'\xdeadbeef'", "3q2+7w=="),
    "uid": ("uuid", "'6b8f3a52-0c1d-4e5f-8a9b-0c1d2e3f4a5b'", "6b8f3a52-0c1d-4e5f-8a9b-0c1d2e3f4a5b"),
    "doc": ("jsonb", """'{"a": [1, 2.50]}'""", '{"a": [1, 2.50]}'),
    "raw_doc": ("json", """'{"a":  1}'""", '{"a":  1}'),
    "numbers": ("int[]", "'{1,NULL,3}'", [1, None, 3]),
    "grid": ("numeric[]", "'{{1.10,2},{3,4}}'", [["1.10", 2], [3, 4]]),
    "words": (
        "text[]",
        """ARRAY['a,b', 'c"d', 'NULL', 'back\\slash', '']""",
        ["a,b", 'c"d', "NULL", "back\\slash", ""],
    ),
    "none_at_all": ("text[]", "'{}'", []),
    "mood": ("mood", "'glad'", "glad"),
    "positive": ("positive", "5", 5),
    "positives": ("positive[]", "'{5,6}'", [5, 6]),
    "address": ("inet", "'10.0.0.1/8'", "10.0.0.1/8"),
    "pair": ("pair", "(1, 'x y')", '(1,"x y")'),
    "spread": ("int4range", "'[1,5)'", "[1,5)"),
    "empty": ("text", "''", ""),
    "nothing": ("int", "NULL", None),
}


def test_every_type_says_the_same_in_a_row_that_was_read_and_in_a_change(db: Db, capturing: Make) -> None:
    db.execute("CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE TYPE pair AS (n int, word text)")
    db.execute("CREATE DOMAIN positive AS int CHECK (VALUE > 0)")
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in TYPES.items())
    db.execute(f"CREATE TABLE kinds (id int PRIMARY KEY, {columns}, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    values = ", ".join(sql for _, sql, _ in TYPES.values())
    insert = f"INSERT INTO kinds (id, {', '.join(TYPES)}) VALUES (NUMBER, {values})"
    db.execute("SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German'; SET bytea_output = 'escape'")
    db.execute(insert.replace("NUMBER", "1"))
    capture = capturing("public.kinds").start()
    capture.caught_up()
    db.execute(insert.replace("NUMBER", "2"))
    read, changed = capture.events(2)
    assert {name: read["after"][name] for name in TYPES} == {name: value for name, (_, _, value) in TYPES.items()}
    assert read["after"] | {"id": 2} == changed["after"]
    assert "twice" not in read["after"]


def test_a_changed_key_is_a_delete_and_a_create(orders: Db, capturing: Make) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'pen', 1)")
    capture = capturing().start()
    capture.caught_up()
    orders.execute("UPDATE orders SET id = 9 WHERE id = 1")
    _, gone, made = capture.events(3)
    assert (gone["op"], gone["before"], gone["after"]) == ("d", {"id": 1}, None)
    assert (made["op"], made["before"], made["after"]["id"]) == ("c", None, 9)
    assert [row["_key"] for row in capture.rows()][1:] == [b'{"id":1}', b'{"id":9}']


def test_a_long_value_that_did_not_change_is_left_out_unless_old_rows_come_whole(db: Db, capturing: Make) -> None:
    for table in ("brief", "whole"):
        db.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int, story text)")
        db.execute(f"ALTER TABLE {table} ALTER COLUMN story SET STORAGE EXTERNAL")
        db.execute(f"INSERT INTO {table} VALUES (1, 1, repeat('long ', 2000))")
    db.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    capture = capturing("public.brief, public.whole").start()
    capture.caught_up()
    db.execute("UPDATE brief SET n = 2")
    db.execute("UPDATE whole SET n = 2")
    *_, brief, whole = capture.events(4)
    assert brief["after"] == {"id": 1, "n": 2}
    assert whole["before"] == {"id": 1, "n": 1, "story": "long " * 2000}
    assert whole["after"] == {"id": 1, "n": 2, "story": "long " * 2000}
    assert [row["_key"] for row in capture.rows()] == [b'{"id":1}'] * 4


def test_a_truncated_table_is_one_event(orders: Db, capturing: Make) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'pen', 1), (2, 'ink', 2)")
    capture = capturing().start()
    capture.caught_up()
    orders.execute("TRUNCATE orders")
    *_, emptied = capture.events(3)
    assert (emptied["op"], emptied["before"], emptied["after"]) == ("t", None, None)


def test_a_column_that_is_added_is_there_from_the_next_change_on(orders: Db, capturing: Make) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'pen', 1)")
    capture = capturing().start()
    capture.caught_up()
    orders.execute("ALTER TABLE orders ADD COLUMN colour text DEFAULT 'blue', DROP COLUMN amount")
    orders.execute("UPDATE orders SET item = 'quill'")
    assert capture.events(2)[1]["after"] == {"id": 1, "item": "quill", "colour": "blue"}


def test_a_partitioned_table_is_one_table(db: Db, capturing: Make) -> None:
    db.execute("CREATE TABLE sales (id int, year int, PRIMARY KEY (id, year)) PARTITION BY LIST (year)")
    for year in (2023, 2024):
        db.execute(f"CREATE TABLE sales_{year} PARTITION OF sales FOR VALUES IN ({year})")
    db.execute("INSERT INTO sales VALUES (1, 2023)")
    capture = capturing("public.sales").start()
    capture.caught_up()
    db.execute("INSERT INTO sales VALUES (2, 2024)")
    assert [(event["op"], event["source"]["table"]) for event in capture.events(2)] == [("r", "sales"), ("c", "sales")]


def test_a_publication_of_somebody_else_decides_what_is_captured(db: Db, capturing: Make) -> None:
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, item text, secret text)")
    db.execute("INSERT INTO orders VALUES (1, 'pen', 'x'), (-1, 'pen', 'x')")
    db.execute("CREATE PUBLICATION mine FOR TABLE orders (id, item) WHERE (id > 0)")
    capture = capturing(publication="mine", slot="my_slot").start()
    capture.caught_up()
    db.execute("INSERT INTO orders VALUES (2, 'ink', 'y'), (-2, 'ink', 'y')")
    assert [event["after"] for event in capture.events(2)] == [{"id": 1, "item": "pen"}, {"id": 2, "item": "ink"}]
    assert capture.confirmed() > 0, "through the slot that was named"


# ── nothing lost, nothing twice ──────────────────────────────────────────────────────────────────────────────────────


def ids(capture: Capturing) -> list[int]:
    return [json.loads(row["value"])["after"]["id"] for row in capture.rows()]


def test_the_slot_moves_on_only_when_changes_are_applied(orders: Db, capturing: Make) -> None:
    capture = capturing().start()
    capture.caught_up()
    orders.execute("INSERT INTO orders VALUES (1, 'pen', 1)")
    capture.events(1)
    before = capture.confirmed()
    capture.stop()
    assert capture.confirmed() == before
    capture.start().caught_up()
    assert ids(capture) == [1], "it is in a file already, and does not come again"
    assert capture.confirmed() == before
    capture.apply()
    until(lambda: capture.confirmed() > before)
    capture.stop()
    orders.execute("INSERT INTO orders VALUES (2, 'ink', 2)")
    capture.start().events(1)
    assert ids(capture) == [2]


def test_a_transaction_larger_than_a_file_goes_on_in_its_middle(
    orders: Db, capturing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_giver, "FILE_ROWS", 10)
    capture = capturing().start()
    capture.caught_up()
    orders.execute("INSERT INTO orders SELECT n, 'pen', n FROM generate_series(1, 95) n")
    capture.events(95)
    capture.stop()
    files = capture.files()
    assert len(files) > 9
    for file in files[4:]:  # the process died before it could write these
        file.unlink()
    capture.start().caught_up()
    assert ids(capture) == list(range(1, 96))


def test_rows_are_read_beside_writers_without_a_gap_and_without_one_twice(orders: Db, capturing: Make) -> None:
    orders.execute("INSERT INTO orders SELECT n, 'old', 0 FROM generate_series(1, 20000) n")
    ended = threading.Event()

    def write(first: int) -> None:
        with psycopg.connect(capture.url, autocommit=True) as writer:
            number = first
            while not ended.is_set():
                writer.execute("INSERT INTO orders VALUES (%s, 'new', 0)", (number,))
                writer.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", (number % 20000 + 1,))
                number += 4

    capture = capturing()
    writers = [threading.Thread(target=write, args=(100_000 + number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    try:
        capture.start()
        until(lambda: capture.files())
    finally:
        ended.set()
        for writer in writers:
            writer.join()
    expected = dict(orders.execute("SELECT id, amount::int FROM orders").fetchall())

    def mirrored() -> dict[int, int]:
        capture.raise_failure()
        found: dict[int, int] = {}
        for row in capture.rows():
            event = json.loads(row["value"])
            key, amount = event["after"]["id"], event["after"]["amount"]
            if event["op"] in ("r", "c"):
                assert key not in found, "a row came twice"
            else:
                assert found[key] + 1 == amount, "a change is missing, or came twice"
            found[key] = amount
        return found

    until(lambda: mirrored() == expected)


def test_rows_whose_reading_was_cut_off_are_read_again_from_the_beginning(
    orders: Db, capturing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_giver, "FILE_ROWS", 10)
    orders.execute("INSERT INTO orders SELECT n, 'pen', 0 FROM generate_series(1, 95) n")
    capture = capturing()
    staged = []

    def stop_in_the_middle(point: str) -> None:
        staged.append(point)
        if len(staged) == 3:
            capture.giver.stopping.set()

    with monkeypatch.context() as during:
        during.setattr(capture_giver, "reached", stop_in_the_middle)
        capture.start()
        until(lambda: len(staged) == 3)
        capture.stop()
        assert capture.spool._thread is not None and not capture.spool._thread.is_alive()
    assert capture.files() == [], "nothing of it was given"
    orders.execute("DELETE FROM orders WHERE id = 1")
    capture.start().caught_up()
    assert ids(capture) == list(range(2, 96))


def test_rows_are_given_on_where_a_start_left_off(orders: Db, capturing: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_giver, "FILE_ROWS", 10)
    orders.execute("INSERT INTO orders SELECT n, 'pen', 0 FROM generate_series(1, 95) n")
    capture = capturing().start()
    capture.caught_up()
    capture.stop()
    assert ids(capture) == list(range(1, 96))


def test_a_slot_without_memory_gives_the_rows_and_what_it_has_kept(orders: Db, capturing: Make, tmp_path: Path) -> None:
    capture = capturing().start()
    capture.caught_up()
    orders.execute("INSERT INTO orders VALUES (1, 'pen', 1), (2, 'ink', 1)")
    capture.events(2)
    capture.stop()
    orders.execute("DELETE FROM orders WHERE id = 1")
    capture.folder = tmp_path / "elsewhere"
    events = capture.start().events(4)
    assert [event["op"] for event in events] == ["r", "c", "c", "d"]
    assert events[0]["source"]["ts_ms"] > max(event["source"]["ts_ms"] for event in events[1:3])


def test_a_reset_reads_all_rows_again_or_begins_with_the_next_change(orders: Db, capturing: Make) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'pen', 1)")
    capture = capturing().start()
    capture.caught_up()
    capture.apply()
    capture.stop()
    begins = capture.backend.position_at(capture.query, "earliest")
    capture.start(begins).caught_up()
    assert ids(capture) == [1]
    capture.stop()
    capture.start(begins).caught_up()
    assert ids(capture) == [1], "a reset happens once"
    capture.stop()
    orders.execute("INSERT INTO orders VALUES (2, 'ink', 1)")
    capture.start(capture.backend.position_at(capture.query, "latest")).caught_up()
    orders.execute("INSERT INTO orders VALUES (3, 'nib', 1)")
    capture.events(1)
    assert ids(capture) == [3]


# ── the slot ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_slot_moves_on_while_only_others_write(orders: Db, capturing: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_changes, "REST_EVERY_S", 0.0)
    orders.execute("CREATE TABLE other (n int)")
    capture = capturing().start()
    capture.caught_up()
    before = capture.confirmed()
    orders.execute("INSERT INTO other SELECT generate_series(1, 1000)")
    until(lambda: capture.confirmed() > before + 10_000)
    capture.stop()
    orders.execute("INSERT INTO orders VALUES (1, 'pen', 1)")
    capture.start().events(1)


def test_a_second_stream_on_the_same_slot_is_told_so(
    orders: Db, capturing: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ematix_flow.backends import postgres_replication

    monkeypatch.setattr(postgres_replication, "_PATIENCE_S", 0.2)
    capturing().start().caught_up()
    second = capturing()
    second.folder = tmp_path / "second"
    second.start()
    with pytest.raises(AlreadyRunning, match="Another stream receives from the replication slot"):
        until(lambda: second.raise_failure())


def test_a_slot_that_grows_too_large_stops_the_stream(
    orders: Db, capturing: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(postgres_changes, "GUARD_EVERY_S", 0.0)
    monkeypatch.setattr(postgres_changes, "WARN_AT", 0.0)
    orders.execute("CREATE TABLE other (n int)")
    capture = capturing(max_slot_bytes=10**12).start()  # other tests write to this server's log at the same time
    until(lambda: "bytes of its log for slot" in caplog.text)
    capture.stop()
    capture.connection = PostgresConnection(name="shop", url=capture.url, max_slot_bytes=4_000_000)
    capture.start()
    orders.execute("INSERT INTO other SELECT generate_series(1, 100000)")
    with pytest.raises(StreamError, match="of 4,000,000 bytes of its log"):
        until(lambda: capture.raise_failure())
    assert capture.confirmed() > 0, "the slot is there, and so are the changes"


def test_a_slot_that_grows_too_large_is_dropped_where_that_is_declared(
    orders: Db, capturing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.execute("INSERT INTO orders VALUES (1, 'pen', 1)")
    capture = capturing(max_slot_bytes=1, on_full_slot="drop")
    monkeypatch.setattr(postgres_changes, "GUARD_EVERY_S", 0.0)
    orders.execute("CREATE TABLE other (n int)")
    capture.start()
    with pytest.raises(LostMessages, match="was dropped as declared"):
        until(lambda: orders.execute("INSERT INTO other VALUES (1)") and capture.raise_failure())
    capture.stop()
    assert orders.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ).fetchone() == (0,)
    with pytest.raises(LostMessages, match="had become too large and was dropped") as refused:
        capture.start()
    assert "flow state reset mirror --from earliest" in str(refused.value)
    capture.connection = PostgresConnection(name="shop", url=capture.url)
    capture.start(capture.backend.position_at(capture.query, "earliest")).caught_up()
    assert ids(capture)[-1] == 1


def test_changes_that_nobody_has_any_more_stop_the_stream(orders: Db, capturing: Make) -> None:
    capture = capturing().start()
    capture.caught_up()
    capture.stop()
    orders.execute("SET synchronous_commit = on")  # a slot is not moved beyond what is on disk
    orders.execute("INSERT INTO orders VALUES (1, 'pen', 1)")
    orders.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", (capture.slot,))
    with pytest.raises(LostMessages, match="Somebody else has received changes"):
        capture.start()
    orders.execute("SELECT pg_drop_replication_slot(%s)", (capture.slot,))
    with pytest.raises(LostMessages, match="is gone"):
        capture.start()


def test_a_stream_that_does_not_come_back_leaves_nothing_behind(orders: Db, capturing: Make) -> None:
    capture = capturing().start()
    capture.caught_up()
    with pytest.raises(AlreadyRunning, match="Somebody receives from the replication slot"):
        capture.backend.let_go(capture.query, "mirror")
    capture.stop()
    removed = capture.backend.let_go(capture.query, "mirror")
    assert removed == [f"replication slot '{capture.slot}'", f"publication '{capture.slot}'"]
    assert capture.backend.let_go(capture.query, "mirror") == []
    assert orders.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
    with pytest.raises(LostMessages, match="is gone"):
        capture.start()


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("CREATE TABLE orders (id int)", "no primary key"),
        ("CREATE TABLE orders (id int PRIMARY KEY); ALTER TABLE orders REPLICA IDENTITY NOTHING", "identity NOTHING"),
    ],
)
def test_a_table_that_cannot_name_its_rows_is_refused_and_not_published(
    db: Db, capturing: Make, made: str, said: str
) -> None:
    db.execute(made)
    with pytest.raises(MissingKeys, match=said) as refused:
        capturing().start()
    assert "REPLICA IDENTITY FULL" in str(refused.value)
    db.execute("INSERT INTO orders VALUES (1)")
    db.execute("UPDATE orders SET id = 2")
    db.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    capture = capturing().start()
    capture.caught_up()
    assert ids(capture) == [2]


@pytest.mark.parametrize(
    "made", ["SELECT 1", "CREATE VIEW orders AS SELECT 1 AS id", "CREATE UNLOGGED TABLE orders (id int)"]
)
def test_what_has_no_changes_is_refused(db: Db, capturing: Make, made: str) -> None:
    db.execute(made)
    with pytest.raises(InvalidDeclaration, match=r"'public.orders' is (not there|no ordinary table)"):
        capturing().start()


def test_a_role_that_may_not_replicate_is_told_what_it_needs(
    orders: Db, capturing: Make, postgres_server: PostgresServer
) -> None:
    name = f"reader_{orders.info.dbname}"
    orders.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'reader-pass-17'; GRANT SELECT ON orders TO {name}")
    try:
        capture = capturing()
        url = postgres_server.url_of(orders.info.dbname, user=name, password="reader-pass-17")
        capture.connection = PostgresConnection(name="shop", url=url)
        with pytest.raises(ConnectionFailed, match="not let in to capture changes") as refused:
            capture.start()
        assert "REPLICATION" in str(refused.value) and "reader-pass-17" not in str(refused.value)
        orders.execute(f"ALTER ROLE {name} REPLICATION")
        with pytest.raises(StatementFailed, match="publication .* cannot be made"):
            capture.start()
        orders.execute(f"CREATE PUBLICATION ours FOR TABLE orders; GRANT SELECT ON orders TO {name}")
        capture.connection = PostgresConnection(name="shop", url=url, publication="ours")
        capture.start().caught_up()
        capture.stop()
    finally:
        orders.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_publication_that_lacks_something_is_refused(orders: Db, capturing: Make) -> None:
    orders.execute("CREATE TABLE other (n int PRIMARY KEY)")
    with pytest.raises(InvalidDeclaration, match="There is no publication 'ours'"):
        capturing(publication="ours").start()
    orders.execute("CREATE PUBLICATION ours FOR TABLE other")
    with pytest.raises(InvalidDeclaration, match="does not have the table 'public.orders'"):
        capturing(publication="ours").start()
    orders.execute("ALTER PUBLICATION ours ADD TABLE orders; ALTER PUBLICATION ours SET (publish = 'insert')")
    with pytest.raises(InvalidDeclaration, match="leaves out a kind of change"):
        capturing(publication="ours").start()


def test_another_slot_is_another_capture(orders: Db, capturing: Make) -> None:
    capture = capturing().start()
    capture.caught_up()
    capture.stop()
    with pytest.raises(StateIncompatible, match="and now names 'another'"):
        capturing(slot="another").start()


def test_a_server_that_writes_too_little_to_its_log_is_told_what_to_set() -> None:
    home = RunFolder.joined().path / f"postgres-replica{os.environ.get('PYTEST_XDIST_WORKER', '')}"
    server = postgres.start(home)
    try:
        with (home / "data" / "postgresql.conf").open("a") as settings:
            settings.write("wal_level = replica\n")
        postgres.restart(home)
        backend = PostgresBackend(PostgresConnection(name="shop", url=server.url))
        with pytest.raises(ConnectionFailed, match="wal_level 'replica'") as refused:
            backend.check_stream("public.orders")
        assert "ALTER SYSTEM SET wal_level" in str(refused.value)
    finally:
        postgres.stop(home)


def test_a_moment_is_no_place_to_go_back_to(pg_url: str) -> None:
    from datetime import datetime, timezone

    backend = PostgresBackend(PostgresConnection(name="shop", url=pg_url))
    with pytest.raises(InvalidDeclaration, match="cannot be sent back to a moment"):
        backend.position_at("public.orders", datetime(2024, 1, 1, tzinfo=timezone.utc))
    with pytest.raises(FlowError, match="cannot be sent to a place"):
        backend.position_given("public.orders", {"lsn": 1})
