"""PostgreSQL captured without a broker, through Spark, into other databases: equal at the end, whoever died."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from ematix_flow import run_streaming_pipeline
from tests.stream.program import keywords, run_and_die


def raw_options(url: str, file: Path) -> dict[str, Any]:
    """A stream that keeps every event as it came."""
    return {
        "name": "raw_orders",
        "connections": {"shop": {"kind": "postgres", "url": url}, "kept": {"kind": "sqlite", "path": str(file)}},
        "source": "shop",
        "source_query": "public.orders",
        "targets": [{"connection": "kept", "table": ["main", "events"]}],
        "delivery": "exactly_once",
        "once": True,
    }


def kept(file: Path) -> list[tuple[str, int]]:
    """Operations and ids, in the order of the log."""
    with sqlite3.connect(file) as db:
        rows = db.execute("SELECT op, before, after, source FROM events").fetchall()
    found = []
    for op, before, after, source in rows:
        image = json.loads(after if after is not None and json.loads(after) is not None else before)
        found.append((json.loads(source)["ts_ms"], json.loads(source)["lsn"], op, image["id"]))
    return [(op, number) for _, _, op, number in sorted(found)]


def make_orders(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY, item text)")
        db.execute("INSERT INTO orders SELECT n, 'pen' FROM generate_series(1, 5) n")


def change(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        for statement in statements:
            db.execute(statement)


def test_every_event_is_kept_once_over_starts_and_deaths(pg_url: str, tmp_path: Path) -> None:
    file = tmp_path / "kept.db"
    given = raw_options(pg_url, file)
    make_orders(pg_url)
    run_and_die(given, "capture-snapshot")
    change(pg_url, "INSERT INTO orders VALUES (6, 'ink')")
    expected = [("r", number) for number in range(1, 7)]
    run_and_die(given, "batch-applied")
    assert sorted(kept(file)) == expected
    for number, point in enumerate((None, "capture-confirm", None, None), start=10):
        change(pg_url, f"INSERT INTO orders VALUES ({number}, 'nib')", f"DELETE FROM orders WHERE id = {number}")
        if point is None:
            assert run_streaming_pipeline(**keywords(given))["total_rows"] in (0, 2)
        else:
            run_and_die(given, point)
        expected += [("c", number), ("d", number)]
        assert sorted(kept(file)[:6]) + kept(file)[6:] == expected


class Shop:
    """A table that several writers change all the time, in every way, until they are told to end."""

    def __init__(self, url: str) -> None:
        self.url = url
        change(
            url,
            "CREATE TABLE customers "
            "(id int PRIMARY KEY, name text, credit numeric(20,4), since timestamptz, story text)",
            "ALTER TABLE customers ALTER COLUMN story SET STORAGE EXTERNAL",
            "INSERT INTO customers SELECT n, 'old ' || n, n * 1.25, '2024-01-01Z'::timestamptz + n * interval '1 s', "
            "repeat('story ' || n, 400) FROM generate_series(1, 600) n",
        )
        self._ended = threading.Event()
        self._writers = [threading.Thread(target=self._write, args=(number,)) for number in range(2)]

    def __enter__(self) -> Shop:
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for writer in self._writers:
            writer.join()

    def _write(self, writer: int) -> None:
        """Every writer has rows of its own, so that none waits for another."""
        chosen = random.Random(writer)
        with psycopg.connect(self.url) as db:
            next_id = 10_000 + writer
            while not self._ended.is_set():
                for _ in range(chosen.randint(1, 5)):
                    number = chosen.randrange(writer, 600, 2) + 1
                    kind = chosen.random()
                    if kind < 0.4:
                        db.execute("UPDATE customers SET credit = credit + 0.0001 WHERE id = %s", (number,))
                    elif kind < 0.6:
                        db.execute(
                            "INSERT INTO customers VALUES (%s, 'new', 1, now(), 'new') ON CONFLICT (id) DO NOTHING",
                            (number,),
                        )
                    elif kind < 0.8:
                        db.execute("DELETE FROM customers WHERE id = %s", (number,))
                    else:
                        db.execute(
                            "UPDATE customers SET id = %s, name = 'moved', story = 'moved' WHERE id = %s",
                            (next_id, number),
                        )
                        next_id += 2
                db.rollback() if chosen.random() < 0.1 else db.commit()
                self._ended.wait(0.02)


class PostgresMirror:
    """A copy beside the table."""

    target: ClassVar[dict[str, Any]] = {"connection": "copy", "table": ["mirror", "customers"], "primary_key": ["id"]}

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.connection = {"kind": "postgres", "url": url}

    def make(self) -> None:
        change(self.url, "CREATE SCHEMA mirror", "CREATE TABLE mirror.customers (LIKE customers INCLUDING ALL)")

    def rows(self) -> set[tuple[Any, ...]]:
        return rows_of(self.url, "mirror.customers")


class DeltaMirror:
    """A copy in a lake."""

    target: ClassVar[dict[str, Any]] = {"connection": "copy", "table": ["shop", "customers"], "primary_key": ["id"]}

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder / "lake"
        self.connection = {"kind": "delta_local", "path": str(self.folder)}

    def make(self) -> None:
        import deltalake
        import pyarrow as pa

        columns = [("id", pa.int32()), ("name", pa.string()), ("credit", pa.decimal128(20, 4))]
        columns += [("since", pa.timestamp("us", "UTC")), ("story", pa.string()), ("colour", pa.string())]
        deltalake.write_deltalake(str(self.folder / "shop" / "customers"), pa.schema(columns).empty_table())

    def rows(self) -> set[tuple[Any, ...]]:
        import deltalake

        found = deltalake.DeltaTable(str(self.folder / "shop" / "customers")).to_pyarrow_table(columns=list(COLUMNS))
        return {tuple(row.values()) for row in found.to_pylist()}


COLUMNS = ("id", "name", "credit", "since", "story", "colour")


def rows_of(url: str, table: str) -> set[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        db.execute("SET TimeZone = 'UTC'")
        return set(db.execute(f"SELECT {', '.join(COLUMNS)} FROM {table}").fetchall())


@pytest.mark.parametrize("kind", [PostgresMirror, DeltaMirror])
def test_a_mirror_is_equal_at_the_end_whoever_wrote_and_died_meanwhile(
    pg_url: str, tmp_path: Path, kind: type[PostgresMirror] | type[DeltaMirror]
) -> None:
    mirror = kind(pg_url, tmp_path)
    given = {
        "name": "mirror_customers",
        "connections": {"shop": {"kind": "postgres", "url": pg_url}, "copy": mirror.connection},
        "source": "shop",
        "source_query": "public.customers",
        "targets": [mirror.target],
        "cdc": {"envelope": "debezium", "schema_evolution": "add"},
        "once": True,
    }
    with Shop(pg_url):
        mirror.make()
        run_streaming_pipeline(**keywords(given))
        run_and_die(given, "batch-applied")
    change(pg_url, "ALTER TABLE customers ADD COLUMN colour text DEFAULT 'blue'", "UPDATE customers SET name = 'last'")
    run_streaming_pipeline(**keywords(given))
    assert mirror.rows() == rows_of(pg_url, "customers")
    change(pg_url, "TRUNCATE customers", "INSERT INTO customers (id, name) VALUES (1, 'only')")
    run_streaming_pipeline(**keywords(given))
    assert mirror.rows() == rows_of(pg_url, "customers") == {(1, "only", None, None, None, "blue")}
