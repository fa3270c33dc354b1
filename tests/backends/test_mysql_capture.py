"""Changes of a real MariaDB, from its binary log to the files that a stream reads."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import MySQLConnection
from ematix_flow.backends import capture_giver
from ematix_flow.backends.mysql import MysqlBackend
from ematix_flow.backends.queue_spool import Spool, kept_position
from ematix_flow.contracts.streams import StreamReading
from ematix_flow.errors import ConnectionFailed, InvalidDeclaration, LostMessages, UnfitValue, UnsupportedBackend
from tests.backends.test_postgres_capture import until
from tests.services.mariadb import MariadbServer


class Capturing:
    """A capture without Spark: whatever comes is read from its files, and applied when a test says so."""

    def __init__(self, url: str, folder: Path, query: str) -> None:
        self.folder, self.query = folder, query
        self.backend = MysqlBackend(MySQLConnection(name="shop", url=url))

    def start(self, start: Any = None) -> Capturing:
        self.backend.check_stream(self.query)
        self.backend.prepare(StreamReading(self.query, start, spool=str(self.folder), stream="mirror"))
        self.giver: Any = self.backend.giver(self.query, kept_position(self.folder))
        self.spool = Spool(self.folder, self.giver, self.query)
        self.spool.open()
        return self

    def stop(self) -> None:
        self.giver.stopping.set()
        self.spool.close()

    def raise_failure(self) -> None:
        self.giver.raise_failure()
        self.spool.is_drained(0)

    def rows(self) -> list[dict[str, Any]]:
        import pyarrow.parquet as pq

        files = sorted(self.folder.glob("[0-9]*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def events(self, number: int) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            self.raise_failure()
            events = [json.loads(row["value"], parse_float=str) for row in self.rows()]
            return events if len(events) >= number else []

        events = until(found)
        assert len(events) == number, [event["op"] for event in events]
        return events

    def caught_up(self) -> None:
        def is_there() -> bool:
            self.raise_failure()
            return bool(self.giver.is_caught_up)

        until(is_there)


@pytest.fixture
def capturing(captured_mysql_url: str, tmp_path: Path) -> Iterator[Callable[..., Capturing]]:
    made: list[Capturing] = []

    def make(query: str = "orders") -> Capturing:
        made.append(Capturing(captured_mysql_url, tmp_path / "spool", query))
        return made[-1]

    yield make
    for capture in made:
        if hasattr(capture, "spool"):
            capture.stop()


@pytest.fixture
def run(mariadb_with_log: MariadbServer, captured_mysql_url: str) -> Callable[..., Any]:
    """Statements in the shop's database."""
    name = captured_mysql_url.rpartition("/")[2]
    return lambda *statements: mariadb_with_log.run(f"USE {name}", *statements)


Run = Callable[..., Any]
Make = Callable[..., Capturing]


def test_rows_that_are_there_come_first_and_then_every_change(run: Run, capturing: Make) -> None:
    run("CREATE TABLE orders (id int PRIMARY KEY, item text)", "INSERT INTO orders VALUES (1, 'pen')")
    capture = capturing().start()
    capture.caught_up()
    run("INSERT INTO orders VALUES (2, NULL)", "UPDATE orders SET item = 'quill' WHERE id = 1")
    run("UPDATE orders SET id = 9 WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    run("ALTER TABLE orders ADD COLUMN colour varchar(9) DEFAULT 'blue'", "TRUNCATE TABLE orders")
    run("INSERT INTO orders (id) VALUES (3)")
    events = capture.events(8)
    assert [(event["op"], event["before"], event["after"]) for event in events] == [
        ("r", None, {"id": 1, "item": "pen"}),
        ("c", None, {"id": 2, "item": None}),
        ("u", {"id": 1, "item": "pen"}, {"id": 1, "item": "quill"}),
        ("d", {"id": 1, "item": "quill"}, None),
        ("c", None, {"id": 9, "item": "quill"}),
        ("d", {"id": 2, "item": None}, None),
        ("t", None, None),
        ("c", None, {"id": 3, "item": None, "colour": "blue"}),
    ]
    keys = [row["_key"] for row in capture.rows()]
    assert keys == [b'{"id":%d}' % n if n else None for n in (1, 2, 1, 1, 9, 2, 0, 3)]
    sources = [event["source"] for event in events]
    order = [(source["ts_ms"], source["file"], source["pos"], source["row"]) for source in sources]
    assert order == sorted(order)
    assert [source["snapshot"] for source in sources] == ["true"] + ["false"] * 7


TYPES = {
    "big": ("bigint unsigned", "18446744073709551615", 18446744073709551615),
    "exact": ("decimal(30,10)", "'12345678901234567890.0123456789'", "12345678901234567890.0123456789"),
    "single": ("float", "16777215.5", "16777216"),
    "tenth": ("float", "0.1", "0.1"),
    "ratio": ("double", "0.1", "0.1"),
    "text": ("varchar(40)", r"'tab\t line\n \"quote\" ü'", 'tab\t line\n "quote" ü'),
    "latin": ("text CHARACTER SET latin1", "'é'", "é"),
    "blob_": ("blob", "x'deadbeef'", "3q2+7w=="),
    "fixed": ("binary(4)", "x'01'", "AQAAAA=="),
    "moment": ("datetime(6)", "'2024-02-29 12:34:56.789012'", "2024-02-29T12:34:56.789012"),
    "instant": ("timestamp(3) NULL", "'2024-02-29 10:00:00.125'", "2024-02-29T10:00:00.125000+00:00"),
    "day": ("date", "'2024-02-29'", "2024-02-29"),
    "span": ("time", "'-30:00:01'", "-30:00:01"),
    "clock": ("time(6)", "'23:59:59.999999'", "23:59:59.999999"),
    "year_": ("year", "2024", 2024),
    "mood": ("enum('glad','sad')", "'sad'", "sad"),
    "some": ("set('x','y','z')", "'z,x'", "x,z"),
    "none_of": ("set('x','y')", "''", ""),
    "doc": ("json", """'{"a": [1, 2.50]}'""", '{"a": [1, 2.50]}'),
    "bits": ("bit(10)", "b'1010101010'", 682),
    "flag": ("boolean", "true", 1),
    "nothing": ("int", "NULL", None),
}


def test_every_type_says_the_same_in_a_row_that_was_read_and_in_a_change(run: Run, capturing: Make) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _, _) in TYPES.items())
    values = ", ".join(sql for _, sql, _ in TYPES.values())
    insert = f"INSERT INTO kinds (id, {', '.join(TYPES)}) VALUES (NUMBER, {values})"
    run(
        f"CREATE TABLE kinds (id int PRIMARY KEY, {columns})", "SET time_zone = '+00:00'", insert.replace("NUMBER", "1")
    )
    capture = capturing("kinds").start()
    capture.caught_up()
    run("SET time_zone = '+00:00'", insert.replace("NUMBER", "2"))
    read, changed = capture.events(2)
    expected = {name: value for name, (_, _, value) in TYPES.items()}
    assert {name: str(read["after"][name]) for name in TYPES} == {name: str(value) for name, value in expected.items()}
    assert read["after"] | {"id": 2} == changed["after"]


def test_a_value_that_the_reader_of_the_log_gets_wrong_stops_the_stream(run: Run, capturing: Make) -> None:
    run("CREATE TABLE orders (id int PRIMARY KEY, span time(6))")
    capture = capturing().start()
    capture.caught_up()
    run("INSERT INTO orders VALUES (1, '-23:59:59.999999')")
    with pytest.raises(UnfitValue, match="Column 'span' holds a time below zero with a fraction"):
        until(lambda: capture.raise_failure())


def test_a_transaction_that_may_still_be_rolled_back_stops_the_stream(run: Run, capturing: Make) -> None:
    def two_phases(number: int, table: str, end: str) -> list[str]:
        begun = [f"XA START 'x{number}'", f"INSERT INTO {table} VALUES ({number})", f"XA END 'x{number}'"]
        return begun + ([f"XA PREPARE 'x{number}'", f"{end} 'x{number}'"] if end != "ONE PHASE" else [])

    run("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    capture = capturing().start()
    capture.caught_up()
    run(*two_phases(1, "other", "XA ROLLBACK"), *two_phases(2, "other", "XA COMMIT"))
    run(*two_phases(3, "orders", "ONE PHASE"), "XA COMMIT 'x3' ONE PHASE", "INSERT INTO orders VALUES (4)")
    assert [event["after"]["id"] for event in capture.events(2)] == [3, 4]
    run(*two_phases(5, "orders", "XA ROLLBACK"))
    with pytest.raises(UnsupportedBackend, match=r"An XA transaction changes '\w+\.orders'"):
        until(lambda: capture.raise_failure())
    assert len(capture.rows()) == 2


def test_a_capture_does_not_begin_beside_a_prepared_transaction(run: Run, capturing: Make) -> None:
    run("CREATE TABLE orders (id int PRIMARY KEY)")
    run("XA START 'waits'", "INSERT INTO orders VALUES (1)", "XA END 'waits'", "XA PREPARE 'waits'")
    try:
        capture = capturing().start()
        with pytest.raises(UnsupportedBackend, match="cannot begin while an XA transaction is prepared"):
            until(lambda: capture.raise_failure())
    finally:
        run("XA COMMIT 'waits'")


def test_a_transaction_larger_than_a_file_goes_on_in_its_middle(
    run: Run, capturing: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_giver, "FILE_ROWS", 10)
    run("CREATE TABLE orders (id int PRIMARY KEY)")
    capture = capturing().start()
    capture.caught_up()
    run("INSERT INTO orders SELECT seq FROM seq_1_to_95")
    capture.events(95)
    capture.stop()
    files = sorted(capture.folder.glob("[0-9]*.parquet"))
    assert len(files) > 9
    for file in files[4:]:  # the process died before it could write these
        file.unlink()
    capture.start().caught_up()
    assert [event["after"]["id"] for event in capture.events(95)] == list(range(1, 96))


def test_rows_are_read_beside_a_writer_without_a_gap_and_without_one_twice(
    run: Run, mariadb_with_log: MariadbServer, captured_mysql_url: str, capturing: Make
) -> None:
    run("CREATE TABLE orders (id int PRIMARY KEY, n int)", "INSERT INTO orders SELECT seq, 0 FROM seq_1_to_5000")
    ended = threading.Event()

    def write() -> None:
        with mariadb_with_log.connected() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE {captured_mysql_url.rpartition('/')[2]}")
            number = 100_000
            while not ended.is_set():
                cursor.execute("INSERT INTO orders VALUES (%s, 0)", (number,))
                cursor.execute("UPDATE orders SET n = n + 1 WHERE id = %s", (number % 5000 + 1,))
                number += 1

    writer = threading.Thread(target=write)
    writer.start()
    capture = capturing()
    try:
        capture.start()
        until(lambda: list(capture.folder.glob("[0-9]*.parquet")))
    finally:
        ended.set()
        writer.join()
    expected = dict(run("SELECT id, n FROM orders"))

    def mirrored() -> dict[int, int]:
        capture.raise_failure()
        found: dict[int, int] = {}
        for row in capture.rows():
            event = json.loads(row["value"])
            key, number = event["after"]["id"], event["after"]["n"]
            if event["op"] in ("r", "c"):
                assert key not in found, "a row came twice"
            else:
                assert found[key] + 1 == number, "a change is missing, or came twice"
            found[key] = number
        return found

    until(lambda: mirrored() == expected)


def test_a_log_that_the_server_has_removed_stops_the_stream(run: Run, capturing: Make) -> None:
    run("CREATE TABLE orders (id int PRIMARY KEY)")
    capture = capturing().start()
    capture.caught_up()
    capture.stop()
    run("INSERT INTO orders VALUES (1)", "FLUSH BINARY LOGS")
    last = run("SHOW MASTER STATUS")[0][0]

    def is_removed() -> bool:  # the server keeps a file until its engine is through with it
        run(f"PURGE BINARY LOGS TO '{last}'")
        return bool(run("SHOW BINARY LOGS")[0][0] == last)

    until(is_removed)
    with pytest.raises(LostMessages, match="The server has removed its log") as refused:
        capture.start()
    assert "flow state reset mirror --from earliest" in str(refused.value)
    capture.start(capture.backend.position_at("orders", "earliest")).caught_up()
    assert [event["after"] for event in capture.events(1)] == [{"id": 1}]


def test_what_the_server_must_write_down_is_said(run: Run, capturing: Make, mysql_url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidDeclaration, match="is not there"):
        capturing("nowhere").start()
    with pytest.raises(ConnectionFailed, match="has log_bin 'OFF'") as refused:
        Capturing(mysql_url, tmp_path / "other", "orders").start()
    assert "binlog_row_metadata = FULL" in str(refused.value)
