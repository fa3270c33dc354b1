"""Columns of SQLite tables are changed in place: everything else about the table stays as somebody made it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow.backends import sqlite_functions
from ematix_flow.backends.sqlite_columns import change, drop_not_null_statement, widen_statement
from ematix_flow.connections import SQLiteConnection
from ematix_flow.errors import IncompatibleSchema, UnfitValue
from ematix_flow.markers import pk
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import SqliteEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.types import BigInt, Integer, Numeric, SmallInt, String, Text


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    opened = sqlite3.connect(":memory:", isolation_level=None)
    sqlite_functions.register(opened)
    yield opened
    opened.close()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def drop_not_null(db: sqlite3.Connection, column: str, table: str = "t") -> None:
    assert change(db, drop_not_null_statement(quoted(table), quoted(column)))


def widen(db: sqlite3.Connection, column: str, to: str, table: str = "t") -> None:
    assert change(db, widen_statement(quoted(table), quoted(column), to))


def definition(db: sqlite3.Connection, table: str = "t") -> str:
    return str(db.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0])


@pytest.mark.parametrize(
    ("before", "column", "after"),
    [
        ('("id" BIGINT NOT NULL, v TEXT NOT NULL)', "v", '("id" BIGINT NOT NULL, v TEXT )'),
        ("(v TEXT NOT NULL DEFAULT 'NOT NULL', w TEXT)", "v", "(v TEXT  DEFAULT 'NOT NULL', w TEXT)"),
        ("(v NOT NULL)", "v", "(v )"),
        ("(v TEXT CONSTRAINT must NOT NULL ON CONFLICT FAIL UNIQUE)", "v", "(v TEXT  UNIQUE)"),
        (
            "(v TEXT CHECK (v NOT NULL AND v <> ')') not /* why */ null)",
            "v",
            "(v TEXT CHECK (v NOT NULL AND v <> ')') )",
        ),
        ("(v TEXT -- NOT NULL, x\n NOT\n NULL, w INT)", "v", "(v TEXT -- NOT NULL, x\n , w INT)"),
        ("(a INT, [v] VARCHAR(3) NOT NULL COLLATE NOCASE)", "v", "(a INT, [v] VARCHAR(3)  COLLATE NOCASE)"),
        (
            "(a INT, `V` TEXT NOT NULL REFERENCES o(x) NOT DEFERRABLE)",
            "v",
            "(a INT, `V` TEXT  REFERENCES o(x) NOT DEFERRABLE)",
        ),
        ("(a INT, 'v' TEXT NOT NULL, CHECK (a NOT NULL))", "v", "(a INT, 'v' TEXT , CHECK (a NOT NULL))"),
        ('(a INT, "v,""(" TEXT NOT NULL)', 'v,"(', '(a INT, "v,""(" TEXT )'),
    ],
)
def test_not_null_is_taken_out_and_nothing_else(db: sqlite3.Connection, before: str, column: str, after: str) -> None:
    db.execute(f"CREATE TABLE t {before}")
    drop_not_null(db, column)
    assert definition(db) == f"CREATE TABLE t {after}"
    found = db.execute("SELECT name, \"notnull\" FROM pragma_table_info('t')").fetchall()
    assert [not_null for name, not_null in found if name.lower() == column.lower()] == [0]
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    ("before", "to", "after"),
    [
        ("(v VARCHAR(3) NOT NULL DEFAULT 'x')", "TEXT", "(v TEXT NOT NULL DEFAULT 'x')"),
        ("(v VARCHAR ( 3 ) COLLATE NOCASE)", "VARCHAR(6)", "(v VARCHAR(6) COLLATE NOCASE)"),
        ("(w TEXT, v SMALLINT UNIQUE)", "BIGINT", "(w TEXT, v BIGINT UNIQUE)"),
        ("(w TEXT, v DECIMAL  text ( 4 , 2 ))", "DECIMAL TEXT(8,2)", "(w TEXT, v DECIMAL TEXT(8,2))"),
        ("(v FLOAT/* old */)", "DOUBLE", "(v DOUBLE/* old */)"),
        (
            "(v SMALLINT GENERATED ALWAYS AS (w + 1) STORED, w INT)",
            "BIGINT",
            "(v BIGINT GENERATED ALWAYS AS (w + 1) STORED, w INT)",
        ),
        ("(v SMALLINT, PRIMARY KEY (v))", "INTEGER", "(v INT, PRIMARY KEY (v))"),
        ("(v SMALLINT PRIMARY KEY) WITHOUT ROWID", "INTEGER", "(v INT PRIMARY KEY) WITHOUT ROWID"),
    ],
)
def test_the_type_is_replaced_and_nothing_else(db: sqlite3.Connection, before: str, to: str, after: str) -> None:
    db.execute(f"CREATE TABLE t {before}")
    widen(db, "v", to)
    assert definition(db) == f"CREATE TABLE t {after}"
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_what_cannot_be_done_in_place_is_refused_and_leaves_the_table_alone(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE t (v TEXT NOT NULL, CHECK (length(v) > 1))")
    for to in ("BIGINT", "TEXT, w TEXT", "TEXT)", "TEXT UNIQUE"):
        with pytest.raises(IncompatibleSchema):
            widen(db, "v", to)
    db.execute('CREATE TABLE odd (v "DECIMAL" TEXT(4,2))')  # only the quoted word is the type, and that is a number's
    with pytest.raises(IncompatibleSchema, match="'v' of 'odd'"):
        widen(db, "v", "DECIMAL TEXT(8,2)", "odd")
    with pytest.raises(IncompatibleSchema, match="'w'"):
        drop_not_null(db, "w")
    assert definition(db) == "CREATE TABLE t (v TEXT NOT NULL, CHECK (length(v) > 1))"
    db.create_function("own", 1, lambda value: value, deterministic=True)
    db.execute("CREATE TABLE u (v TEXT NOT NULL CHECK (own(v) > 1))")
    with pytest.raises(IncompatibleSchema, match="own"):
        drop_not_null(db, "v", "u")
    assert db.execute("PRAGMA writable_schema").fetchone() == (0,)


def test_other_statements_are_not_taken(db: sqlite3.Connection) -> None:
    assert not change(db, 'ALTER TABLE "t" ADD COLUMN "v" TEXT')


def test_a_rollback_takes_the_change_back_and_other_connections_see_it_when_it_is_committed(tmp_path: Path) -> None:
    one, other = (sqlite3.connect(tmp_path / "shop.db", isolation_level=None) for _ in range(2))
    one.execute("CREATE TABLE t (v TEXT NOT NULL)")
    assert other.execute("SELECT count(*) FROM t").fetchone() == (0,)
    one.execute("BEGIN IMMEDIATE")
    drop_not_null(one, "v")
    one.execute("INSERT INTO t VALUES (NULL)")
    one.execute("ROLLBACK")
    for connection in (one, other):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO t VALUES (NULL)")
    one.execute("BEGIN IMMEDIATE")
    drop_not_null(one, "v")
    one.execute("COMMIT")
    other.execute("INSERT INTO t VALUES (NULL)")
    assert one.execute("SELECT v FROM t").fetchall() == [(None,)]
    one.close()
    other.close()


HAND_MADE = """
CREATE TABLE people (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- theirs
    code VARCHAR(3) NOT NULL DEFAULT 'x' COLLATE NOCASE CHECK (length(code) < 10),
    price DECIMAL TEXT(4,2) NOT NULL,
    size SMALLINT NOT NULL,
    twice INTEGER GENERATED ALWAYS AS (size * 2) VIRTUAL,
    boss INTEGER REFERENCES people(id),
    CONSTRAINT once UNIQUE (code, size)
);
CREATE INDEX by_size ON people (size) WHERE size > 1;
CREATE TABLE noted (what TEXT);
CREATE TRIGGER on_insert AFTER INSERT ON people BEGIN INSERT INTO noted VALUES ('in ' || new.size); END;
CREATE TRIGGER on_update AFTER UPDATE ON people BEGIN INSERT INTO noted VALUES ('up ' || new.size); END;
CREATE VIEW big AS SELECT id, code, size FROM people WHERE size > 1;
INSERT INTO people (code, price, size) VALUES ('abc', '1.50', 1), ('def', '12.34', 2);
DELETE FROM noted;
DELETE FROM people WHERE id = 1;
"""


def test_a_table_made_by_hand_keeps_all_that_hangs_on_it(tmp_project: Path) -> None:
    target = SqliteEndpoint(SQLiteConnection(name="shop", path=str(tmp_project / "shop.db")), "main")
    target.execute(*(f"{part.strip()};" for part in HAND_MADE.replace("END;", "END\n;").split(";\n") if part.strip()))
    before = everything(target)
    bench = Bench(target, target)
    with isolated_registry():
        people = bench.table(
            "people",
            {
                "id": Annotated[Integer, pk()],
                "code": Text | None,
                "price": Numeric[8, 4] | None,
                "size": Integer | None,
            },
        )
        result = bench.load(people, [(7, None, "1234.5678", 2**20)], route="pushdown", mode="append")
    assert result.rows_inserted == 1
    assert target.query("SELECT id, code, price, size, twice FROM people ORDER BY id") == [
        (2, "def", "12.3400", 2, 4),
        (7, None, "1234.5678", 2**20, 2**21),
    ]
    assert target.query("SELECT what FROM noted") == [(f"in {2**20}",)]
    assert target.query("SELECT code, size FROM big ORDER BY id") == [("def", 2), (None, 2**20)]
    target.execute("INSERT INTO people (price, size) VALUES ('0.1000', 3)")
    assert target.query("SELECT id, code FROM people WHERE size = 3") == [(8, "x")]
    assert target.query("PRAGMA integrity_check") == [("ok",)]
    after = everything(target)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"people"}
    assert "-- theirs" in after["people"] and "COLLATE NOCASE CHECK (length(code) < 10)" in after["people"]
    assert "code TEXT  DEFAULT 'x'" in after["people"] and "size INTEGER ," in after["people"]


def everything(target: SqliteEndpoint) -> dict[str, Any]:
    """Every object of the tests' own and its definition."""
    found = target.query("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'ematix%' AND sql IS NOT NULL")
    return dict(found)


def test_a_failing_load_and_a_dry_run_take_the_change_back(tmp_project: Path) -> None:
    for path in (str(tmp_project / "shop.db"), ":memory:"):
        target = SqliteEndpoint(SQLiteConnection(name="shop", path=path), "main")
        bench = Bench(target, target)
        with isolated_registry():
            before = bench.table("users", id=Annotated[BigInt, pk()], name=String[3], size=SmallInt)
            bench.load(before, [(1, "ann", 1)], route="pushdown", mode="append")
            shape = target.shape("users")
            after = bench.table("users", id=Annotated[BigInt, pk()], name=Text | None, size=BigInt)
            bench.put(after, [(2, None, 5)], route="pushdown")
            told = bench.pipeline(after, route="pushdown", mode="append").dry_run().targets[0]
            assert (told.dry_run_rows_affected, told.dry_run_error) == (1, None)
            assert target.shape("users") == shape
            with pytest.raises(UnfitValue, match="'size'"):
                bench.load(after, [(2, None, None)], route="pushdown", mode="append")
            assert target.shape("users") == shape and bench.rows(before) == [(1, "ann", 1)]
            loaded = bench.rows(before, "_loaded_at", "_batch_id")
            bench.load(after, [(2, None, 2**40)], route="pushdown", mode="append")
            assert bench.rows(after, "_loaded_at", "_batch_id")[0] == loaded[0]
            assert bench.rows(after) == [(1, "ann", 1), (2, None, 2**40)]


def test_a_preview_says_what_happens_to_the_columns(tmp_project: Path) -> None:
    target = SqliteEndpoint(SQLiteConnection(name="shop", path=str(tmp_project / "shop.db")), "main")
    bench = Bench(target, target)
    with isolated_registry():
        bench.load(bench.table("users", id=SmallInt), [(1,)], route="pushdown", mode="append")
        users = bench.table("users", id=BigInt | None)
        (plan,) = bench.pipeline(users, route="pushdown", mode="append").preview().targets
    assert 'ALTER TABLE "users" ALTER COLUMN "id" TYPE BIGINT\n-- by editing' in plan.plan_sql[0]
    assert 'ALTER TABLE "users" ALTER COLUMN "id" DROP NOT NULL\n-- by editing' in plan.plan_sql[1]


def test_a_decimal_with_more_places_is_equal_to_what_it_was(tmp_project: Path) -> None:
    target = SqliteEndpoint(SQLiteConnection(name="shop", path=str(tmp_project / "shop.db")), "main")
    bench = Bench(target, target)
    with isolated_registry():
        first = bench.table("prices", id=Annotated[BigInt, pk()], price=Numeric[4, 2])
        bench.load(first, [(1, "12.34"), (2, "0.50")], route="pushdown", mode="merge")
        second = bench.table("prices", id=Annotated[BigInt, pk()], price=Numeric[8, 4])
        result = bench.load(second, [(1, "12.34"), (2, "0.5001")], route="pushdown", mode="merge")
    assert (result.rows_updated, result.rows_unchanged) == (1, 1)


def test_a_process_killed_before_its_commit_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    place = str(tmp_path / "shop.db")
    with closing(sqlite3.connect(place)) as db:
        db.execute("CREATE TABLE t (v SMALLINT NOT NULL)")
        db.execute("INSERT INTO t VALUES (1)")
        db.commit()
    dying = f"""
import os, signal, sqlite3
from ematix_flow.backends.sqlite_columns import change, drop_not_null_statement, widen_statement
db = sqlite3.connect({place!r}, isolation_level=None)
db.execute("PRAGMA cache_size = 1")  # so that pages are written before the end
db.execute("BEGIN IMMEDIATE")
change(db, widen_statement('"t"', '"v"', "BIGINT"))
change(db, drop_not_null_statement('"t"', '"v"'))
db.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 50000) INSERT INTO t SELECT i FROM n")
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", dying], check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with closing(sqlite3.connect(place)) as db:
        assert definition(db) == "CREATE TABLE t (v SMALLINT NOT NULL)"
        assert db.execute("SELECT v FROM t").fetchall() == [(1,)]
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
