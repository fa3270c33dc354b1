"""DuckDB keeps the contract: rows from itself, from PostgreSQL and from files. And what is peculiar to it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import duckdb
import pytest

from ematix_flow.backends import duckdb as backend_module
from ematix_flow.backends.duckdb import DuckdbBackend
from ematix_flow.backends.duckdb_dialect import catalog_name
from ematix_flow.connections import DuckDBConnection, ObjectStoreLocalConnection, PostgresConnection
from ematix_flow.errors import (
    ConnectionFailed,
    DuplicateKeys,
    FlowError,
    IncompatibleSchema,
    InvalidPlan,
    MissingDriver,
    StatementFailed,
    UnfitValue,
)
from ematix_flow.markers import pk
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, SqlEndpoint
from ematix_flow.types import JSONB, BigInt, Integer, Numeric, String, Text

HOLD = """
import sys, duckdb
db = duckdb.connect(sys.argv[1])
print("held", flush=True)
sys.stdin.readline()
db.close()
"""


class TestDuckdb(BackendContract):
    """All of it, no gap."""

    @pytest.fixture
    def target(self, tmp_project: Path) -> SqlEndpoint:
        return SqlEndpoint(DuckDBConnection(name="warehouse", path=str(tmp_project / "warehouse.duckdb")), "analytics")

    @pytest.fixture
    def sources(self, pg_url: str, tmp_project: Path) -> Mapping[str, Endpoint]:
        return {
            "postgres": SqlEndpoint(PostgresConnection(name="shop", url=pg_url), schema="public"),
            "files": FilesEndpoint(
                ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
            ),
        }

    def test_a_database_in_memory_works_within_the_process(self, bench: Bench) -> None:
        there = Bench(SqlEndpoint(DuckDBConnection(name="scratch", path=":memory:"), "main"), bench.source)
        users = there.table("users", id=Annotated[BigInt, pk()], name=Text)
        there.load(users, [(1, "ann"), (2, "bob")], route="pushdown", mode="scd2")
        there.load(users, [(1, "eve")], route="spark", mode="scd2")
        assert there.history(users) == [(1, "ann", 1, 2, False), (1, "eve", 2, None, True), (2, "bob", 1, None, True)]

    def test_a_schema_may_have_the_name_of_the_file(self, bench: Bench, tmp_project: Path) -> None:
        path = str(tmp_project / "analytics.v1.duckdb")
        there = Bench(SqlEndpoint(DuckDBConnection(name="same", path=path), "Analytics"), bench.source)
        users = there.table("users", id=Annotated[BigInt, pk()], name=String[5])  # type: ignore[misc]
        for name in ("ann", "eve"):
            there.load(users, [(1, name)], route="pushdown", mode="scd2")
        there.load(users, [(2, "bob")], route="spark", mode="scd2")
        assert [row[:2] for row in there.history(users)] == [(1, "ann"), (1, "eve"), (2, "bob")]

    def test_types_of_duckdb_alone_arrive_exactly_or_are_refused(self, bench: Bench, target: SqlEndpoint) -> None:
        columns = {"huge": Numeric[38, 0], "total": BigInt, "tiny": Integer, "nested": Text, "word": Text}  # type: ignore[misc]
        things = bench.table("things", columns)

        sql = (
            "SELECT (-99999999999999999999999999999999999999)::HUGEINT AS huge, 18446744073709551615::UBIGINT // 2 "
            "AS total, 255::UTINYINT AS tiny, {'a': [1, NULL]} AS nested, 'x'::ENUM('x', 'y') AS word"
        )
        bench.pipeline(things, route="spark", mode="append", place=target, function=_giving(sql)).sync()
        assert bench.rows(things) == [(Decimal(-(10**38) + 1), 2**63 - 1, 255, '{"a":[1,null]}', "x")]
        for column, sql in {
            "huge": "100000000000000000000000000000000000000::HUGEINT",
            "day": "'infinity'::DATE",
            "moment": "'-infinity'::TIMESTAMPTZ",
            "nano": "TIMESTAMP_NS '2026-01-02 03:04:05.123456789'",
        }.items():
            one = bench.table(f"one_{column}", {column: Text})
            asked = bench.pipeline(
                one, route="spark", mode="append", place=target, function=_giving(f"SELECT {sql} AS {column}")
            )
            with pytest.raises(UnfitValue, match=f"'{column}'"):
                asked.sync()

    def test_a_sum_is_pushed_down_into_a_whole_number(self, bench: Bench) -> None:
        totals = bench.table("totals", n=BigInt)
        for values, fits in (("(1), (2)", True), ("(9223372036854775807), (1)", False)):
            sql = f"SELECT sum(n) AS n FROM (VALUES {values}) AS v(n)"
            pipeline = bench.pipeline(totals, route="pushdown", mode="truncate", function=_giving(sql))
            if fits:
                pipeline.sync()
            else:
                with pytest.raises(UnfitValue, match="'n'"):
                    pipeline.sync()
        assert bench.rows(totals) == [(3,)]

    def test_the_type_of_a_key_is_not_changed(self, bench: Bench) -> None:
        before = bench.table("users", id=Annotated[Integer, pk()])
        bench.load(before, [(1,)], route="pushdown", mode="append")
        after = bench.table("users", id=Annotated[BigInt, pk()])
        with pytest.raises(IncompatibleSchema, match="key"):
            bench.load(after, [(2**40,)], route="pushdown", mode="append")
        assert bench.rows(before) == [(1,)]

    def test_the_file_is_free_between_runs_and_while_the_pipelines_function_works(
        self, bench: Bench, target: SqlEndpoint
    ) -> None:
        users = bench.table("users", id=BigInt)
        path = str(target.backend.path)  # type: ignore[attr-defined]
        looked: list[int] = []

        def look(conn: Any) -> str:
            looked.append(_elsewhere(path, "CREATE TABLE IF NOT EXISTS seen AS SELECT 7 AS id"))
            return "SELECT id FROM seen"

        bench.pipeline(users, route="pushdown", mode="append", function=look).sync()
        looked.append(_elsewhere(path, "INSERT INTO analytics.users SELECT id + 1, now(), uuid() FROM seen"))
        assert looked == [0, 0] and bench.rows(users) == [(7,), (8,)]

    def test_a_load_waits_for_a_process_that_holds_the_file(self, bench: Bench, target: SqlEndpoint) -> None:
        users = bench.table("users", id=BigInt)
        bench.put(users, [(1,)], route="pushdown")
        pipeline = bench.pipeline(users, route="pushdown", mode="append")
        with _held(str(target.backend.path), release_after=0.5):  # type: ignore[attr-defined]
            pipeline.sync()
        assert bench.rows(users) == [(1,)]


def _giving(sql: str) -> Callable[[Any], str]:
    """A pipeline function that gives this SQL."""

    def given(conn: Any) -> str:
        return sql

    return given


def _elsewhere(path: str, sql: str) -> int:
    """Run a statement in another process; its exit code."""
    program = "import sys, duckdb; duckdb.connect(sys.argv[1]).execute(sys.argv[2])"
    return subprocess.run([sys.executable, "-c", program, path, sql], check=False).returncode


@contextmanager
def _held(path: str, *, release_after: float | None = None) -> Iterator[int]:
    """A file that another process has open; gives its number."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdin is not None
    try:
        assert holder.stdout.readline() == "held\n"
        if release_after is not None:
            threading.Timer(release_after, holder.stdin.close).start()
        yield holder.pid
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(timeout=60)


@pytest.fixture
def db_file(tmp_path: Path) -> DuckdbBackend:
    """An empty database file."""
    return DuckdbBackend(DuckDBConnection(name="store", path=str(tmp_path / "store.duckdb")))


def test_a_file_that_another_process_keeps_is_one_clear_error(
    db_file: DuckdbBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "PATIENCE", 0.2)
    impatient = DuckdbBackend(db_file.connection)
    with _held(db_file.path) as pid:
        with pytest.raises(ConnectionFailed, match=f"held by process {pid}") as caught:
            impatient.describe_query("SELECT 1")
        assert "close it there" in (caught.value.fix or "")
        health = impatient.check()
    assert not health.ok and f"process {pid}" in health.detail


def test_a_connection_of_this_process_may_be_open_beside_ours(db_file: DuckdbBackend) -> None:
    with duckdb.connect(db_file.path) as mine:
        mine.execute("CREATE TABLE t AS SELECT 1 AS a")
        assert [shape.name for shape in db_file.describe_query("SELECT * FROM t")] == ["a"]
        assert mine.execute("SELECT current_setting('autoinstall_known_extensions')").fetchall() == [(True,)]
    with (
        duckdb.connect(db_file.path, read_only=True),
        pytest.raises(ConnectionFailed, match="configuration of its own"),
    ):
        db_file.describe_query("SELECT * FROM t")


def test_a_session_fetches_nothing_and_lives_in_utc(db_file: DuckdbBackend) -> None:
    asked = "SELECT current_setting('autoinstall_known_extensions'), current_setting('TimeZone')"
    memory = DuckdbBackend(DuckDBConnection(name="scratch", path=":memory:"))
    for backend in (db_file, memory):
        with backend.session() as db:
            assert db.execute(asked).fetchall() == [(False, "UTC")]


def test_what_is_no_database_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "notes.duckdb").write_text("no database, just words\n" * 200)
    for path, said in ((tmp_path / "notes.duckdb", "not a valid DuckDB"), (tmp_path / "no" / "x.db", "folder")):
        backend = DuckdbBackend(DuckDBConnection(name="store", path=str(path)))
        with pytest.raises(ConnectionFailed, match=said):
            backend.describe_query("SELECT 1")


def test_an_old_driver_is_refused(db_file: DuckdbBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckdb, "__version__", "1.4.5")
    with pytest.raises(MissingDriver, match=r"1\.4\.5"):
        db_file.describe_query("SELECT 1")


@pytest.mark.parametrize(
    "name", ["store.duckdb", "a.b.duckdb", "x", ".hidden.db", "Ünï.db", "main.db", "TEMP.db", "system.duckdb", "a b.db"]
)
def test_the_files_catalog_is_named_as_duckdb_names_it(tmp_path: Path, name: str) -> None:
    with duckdb.connect(tmp_path / name) as db:
        assert db.execute("SELECT current_catalog()").fetchall() == [(catalog_name(str(tmp_path / name)),)]


def test_a_decimal_of_more_than_38_digits_is_refused_before_anything_moves(db_file: DuckdbBackend) -> None:
    with pytest.raises(InvalidPlan, match="38"):
        db_file.dialect.type_sql(Numeric(39, 2))


def test_a_comment_that_is_a_persons_own_is_no_type(db_file: DuckdbBackend) -> None:
    table = db_file.table_ref("main", "t")
    with db_file.session() as db:
        db.execute("CREATE TABLE t (a VARCHAR, b VARCHAR, c JSON, d INTEGER, e VARCHAR)")
        for column, comment in {
            "a": "VARCHAR(12)",
            "b": "a name",
            "c": "JSONB",
            "d": "VARCHAR(3)",
            "e": "JSONB",
        }.items():
            db.execute(f"COMMENT ON COLUMN t.{column} IS '{comment}'")
        shape = db_file.shape(db, table)
    assert shape is not None
    assert [column.type for column in shape.columns] == [String(12), Text(), JSONB(), Integer(), Text()]


REFUSED: list[Any] = [
    pytest.param("INSERT INTO t VALUES (4711, 'x', 1)", DuplicateKeys, id="a key that is there"),
    pytest.param("INSERT INTO t SELECT 815, 'x', 1 FROM range(2)", DuplicateKeys, id="a key that comes twice"),
    pytest.param("INSERT INTO t VALUES (815, NULL, 1)", UnfitValue, id="NULL where a value must be"),
    pytest.param("INSERT INTO t VALUES (815, 'x', -4711)", UnfitValue, id="a check"),
    pytest.param("INSERT INTO f VALUES (815)", UnfitValue, id="a foreign key"),
    pytest.param("SELECT 'secret 815'::INTEGER", UnfitValue, id="no number"),
    pytest.param("SELECT (a || '815')::SMALLINT FROM t", UnfitValue, id="a number too large"),
    pytest.param("SELECT a * 2147483647 FROM t", UnfitValue, id="an overflow"),
    pytest.param("SELECT (a + 0.5)::DECIMAL(3, 1) FROM t", UnfitValue, id="a decimal too large"),
    pytest.param("SELECT '2026-02-4711'::DATE", UnfitValue, id="no day"),
    pytest.param("SELECT '{secret 815'::JSON", UnfitValue, id="no document"),
    pytest.param("SELECT 'secret 815'::UUID", UnfitValue, id="no identifier"),
    pytest.param("SELECT strptime('secret 815', '%Y')", UnfitValue, id="no time"),
    pytest.param("SELECT * FROM nowhere", StatementFailed, id="no such table"),
    pytest.param("SELECT nothing FROM t", StatementFailed, id="no such column"),
    pytest.param("SELEC 1", StatementFailed, id="no SQL"),
]


@pytest.mark.parametrize(("sql", "expected"), REFUSED)
def test_an_error_of_duckdb_never_tells_a_value(db_file: DuckdbBackend, sql: str, expected: type[FlowError]) -> None:
    with db_file.session() as db:
        db.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, name VARCHAR NOT NULL, n INTEGER CHECK (n > 0))")
        db.execute("CREATE TABLE f (a INTEGER REFERENCES t (a))")
        db.execute("INSERT INTO t VALUES (4711, 'secret', 1)")
    with pytest.raises(expected) as caught, db_file.session() as db:
        db.execute(sql).fetchall()
    said = str(caught.value)
    assert not any(value in said for value in ("4711", "815", "secret")), said
    assert "NULL" not in sql or "'name'" in said
    assert "Error" not in said.splitlines()[0]
