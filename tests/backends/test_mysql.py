"""MySQL keeps the contract, shown on MariaDB: rows from itself, from PostgreSQL and from files."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow.backends.catalog import open_backend
from ematix_flow.config import connect
from ematix_flow.connections import MySQLConnection, ObjectStoreLocalConnection, PostgresConnection
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.namespace import Ematix
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.declare.target import Target
from ematix_flow.errors import (
    ConnectionFailed,
    DuplicateKeys,
    IncompatibleSchema,
    InvalidConfig,
    InvalidPlan,
    UnfitValue,
)
from ematix_flow.markers import pk
from ematix_flow.normalize import derive
from ematix_flow.testing.bench import Bench, RouteName, Table, source_name
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.contract_values import same, typed_rows, typed_table
from ematix_flow.testing.endpoints import KEY, Endpoint, FilesEndpoint, MysqlEndpoint, Row, SqlEndpoint, in_order
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.testing.runlog import MemoryRunLog, use_run_log
from ematix_flow.testing.spark import settings
from ematix_flow.transforms import filter_where
from ematix_flow.types import JSON, BigInt, Bytes, Integer, SmallInt, String, Text, TimestampTZ
from tests.services.mariadb import MariadbServer

CODE: Any = String[3]
READER = "the native engine" if settings().engine == "native" else "Spark"

NO_PLACE = frozenset((kind, value) for kind in ("float", "double") for value in ("nan", math.inf, -math.inf))


class TestMysql(BackendContract):
    """All of it, no gap."""

    @pytest.fixture
    def target(self, mysql_url: str, tmp_project: Path) -> SqlEndpoint:
        return MysqlEndpoint(MySQLConnection(name="warehouse", url=mysql_url), "analytics", NO_PLACE)

    @pytest.fixture
    def sources(self, pg_url: str, tmp_project: Path) -> Mapping[str, Endpoint]:
        return {
            "postgres": SqlEndpoint(PostgresConnection(name="shop", url=pg_url), schema="public"),
            "files": FilesEndpoint(
                ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
            ),
        }

    # ── keys and texts ───────────────────────────────────────────────────────────────────────────────────────────────

    def test_a_text_without_a_length_cannot_be_a_key_and_the_error_says_what_can(self, bench: Bench) -> None:
        users = bench.table("users", id=Annotated[Text, pk()], name=Text)
        with pytest.raises(InvalidPlan, match="'id'") as caught:
            bench.load(users, [("a", "ann")], route="pushdown", mode="merge")
        assert "String[n]" in (caught.value.fix or "")
        with pytest.raises(InvalidPlan, match="'id'"):
            users.ensure(bench.target.connection)
        assert bench.target.shape("users") is None

    def test_keys_are_equal_when_their_bytes_are(self, bench: Bench, route: RouteName) -> None:
        users = bench.table("users", id=Annotated[KEY, pk()], n=BigInt)
        rows = [("a", 1), ("A", 2), ("a ", 3), ("á", 4), ("a\u0301", 5), ("ß", 6), ("ss", 7), ("", 8), (" ", 9)]
        first = bench.load(users, rows, route=route, mode="merge")
        again = bench.load(users, [(key, -n) for key, n in rows], route=route, mode="merge")
        assert (first.rows_inserted, again.rows_inserted, again.rows_updated) == (9, 0, 9)
        assert bench.rows(users) == in_order([(key, -n) for key, n in rows])

    def test_spaces_at_the_end_of_a_long_text_are_not_cut_off_silently(self, bench: Bench, route: RouteName) -> None:
        codes = bench.table("codes", code=CODE)
        for text in ("ab    ", "abc   ", "abcd"):
            with pytest.raises(UnfitValue, match="'code'"):
                bench.load(codes, [(text,)], route=route, mode="append", columns={"code": Text()})
        assert bench.target.shape("codes") is None
        bench.load(codes, [("ab ",), ("  ",)], route=route, mode="append", columns={"code": Text()})
        assert bench.rows(codes) == [("  ",), ("ab ",)]

    def test_texts_hold_every_character(self, bench: Bench, route: RouteName) -> None:
        texts = bench.table("texts", n=BigInt, t=Text | None)
        nasty = [
            "\\N",
            "\\",
            "\\\\n",
            "\t",
            "\n",
            "\r\n",
            "'",
            '"',
            "a\tb\\\nc'd",
            "\x01",
            "\x1a",
            "NULL",
            "",
            None,
            "🚲",
        ]
        rows = list(enumerate(nasty))
        place = bench.target  # PostgreSQL has no place for a NUL
        bench.load(texts, [*rows, (99, "a\x00b")], route=route, mode="append", place=place)
        assert bench.rows(texts) == [*rows, (99, "a\x00b")]

    def test_a_table_that_compares_texts_by_another_rule_is_loaded_by_bytes_or_refused(self, bench: Bench) -> None:
        users = bench.table("users", id=Annotated[KEY, pk()], n=BigInt)
        bench.load(users, [("a", 1)], route="pushdown", mode="merge")
        name = bench.target.sql_name("users")
        bench.target.execute(f"ALTER TABLE {name} MODIFY id VARCHAR(50) COLLATE utf8mb4_general_ci NOT NULL")
        assert bench.load(users, [("a", 2), ("b", 3)], route="pushdown", mode="merge").rows_updated == 1
        with pytest.raises(DuplicateKeys, match="'id'"):
            bench.load(users, [("B", 4)], route="pushdown", mode="merge")
        bench.target.execute(f"ALTER TABLE {name} MODIFY id VARCHAR(50) COLLATE utf8mb4_bin NOT NULL")
        with pytest.raises(IncompatibleSchema, match="another rule"):
            bench.load(users, [("c", 5)], route="pushdown", mode="merge")
        assert bench.rows(users) == [("a", 2), ("b", 3)]

    def test_a_document_too_deep_for_the_server_is_refused_by_name(self, bench: Bench) -> None:
        things = bench.table("things", v=JSON)
        depth = bench.target.json_depth + 1
        with pytest.raises(UnfitValue, match="'v'"):
            bench.load(things, [("[" * depth + "]" * depth,)], route="spark", mode="append", columns={"v": Text()})
        assert bench.target.shape("things") is None

    # ── DDL commits by itself, and still ─────────────────────────────────────────────────────────────────────────────

    def definitions(self, target: SqlEndpoint) -> dict[str, str]:
        """Every table of the server, as DDL."""
        return {name: target.query(f"SHOW CREATE TABLE {name}")[0][1] for name in target.snapshot()}

    def test_a_dry_run_that_would_change_the_table_changes_nothing(self, bench: Bench, route: RouteName) -> None:
        at = datetime(2026, 3, 1, tzinfo=timezone.utc)
        history: dict[str, Any] = {"mode": "scd2", "event_timestamp_column": "at"}
        before = bench.table("levels", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ)
        bench.put(before, [(1, "gold", at)], route=route)
        for options in (history, {**history, "exact_history": True}):  # one table more
            new = bench.pipeline(before, route=route, **options).dry_run()
            assert (new.targets[0].dry_run_rows_affected, new.targets[0].dry_run_error) == (1, None)
            assert not bench.target.strays("src_levels")
        bench.pipeline(before, route=route, **history).sync()
        after = bench.table("levels", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ, note=Text | None)
        bench.put(after, [(1, "gold", at, "x"), (2, "red", at, None)], route=route)
        stored, made = bench.target.snapshot(), self.definitions(bench.target)
        pipeline = bench.pipeline(after, route=route, **history)
        changed = pipeline.dry_run()
        assert (changed.targets[0].dry_run_rows_affected, changed.targets[0].dry_run_error) == (2, None)
        assert (bench.target.snapshot(), self.definitions(bench.target)) == (stored, made)
        real = pipeline.sync()
        assert real.rows_inserted + real.rows_updated + real.rows_closed == 2

    def test_a_check_against_the_table_fails_before_the_table_is_changed(self, bench: Bench, route: RouteName) -> None:
        timed: dict[str, Any] = {"route": route, "mode": "scd2", "event_timestamp_column": "at"}
        before = bench.table("levels", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ | None)
        with pytest.raises(UnfitValue, match="'at'"):
            bench.load(before, [(1, "gold", None)], **timed)
        assert bench.target.shape("levels") is None
        bench.load(before, [(1, "gold", datetime(2026, 3, 1, tzinfo=timezone.utc))], **timed)
        columns = bench.columns(before)
        after = bench.table("levels", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ | None, note=Text | None)
        with pytest.raises(UnfitValue, match="'at'"):
            bench.load(after, [(1, "blue", None, "x")], **timed)
        assert bench.columns(before) == columns

    def test_a_first_load_that_fails_in_the_end_leaves_no_table(self, bench: Bench, route: RouteName) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        with pytest.raises(DuplicateKeys, match="'id'"):
            bench.load(users, [(1, "ann"), (1, "eve")], route=route, mode="append")
        assert bench.target.shape("users") is None and not bench.target.strays("src_users")

    def test_widening_keeps_what_else_is_known_of_a_column(self, bench: Bench) -> None:
        before = bench.table("things", id=Annotated[SmallInt, pk()], v=Integer, w=CODE, d=Integer | None)
        bench.load(before, [(1, 2, "x", 3)], route="pushdown", mode="append")
        name = bench.target.sql_name("things")
        bench.target.execute(f"ALTER TABLE {name} MODIFY d INT NULL DEFAULT 7")
        after = bench.table("things", id=Annotated[BigInt, pk()], v=BigInt, w=Text | None, d=BigInt | None)
        bench.load(after, [(2, 2**40, None, None)], route="pushdown", mode="append")
        shape = bench.target.shape("things")
        assert shape is not None and shape.primary_key == ("id",)
        found = {c.name: (c.type, c.nullable, c.has_default) for c in shape.columns}
        assert found["id"] == (BigInt(), False, False) and found["v"] == (BigInt(), False, False)
        assert found["w"] == (Text(), True, False)
        assert found["d"] == (Integer(), True, True)  # its default would be lost, so it stays

    def test_a_table_without_transactions_is_refused(self, bench: Bench) -> None:
        users = bench.table("users", id=BigInt)
        bench.put(users, [(1,)], route="pushdown")
        bench.target.execute(f"CREATE TABLE {bench.target.sql_name('users')} (id BIGINT) ENGINE = MyISAM")
        with pytest.raises(IncompatibleSchema, match="MyISAM"):
            bench.load(users, [(1,)], route="pushdown", mode="append")

    # ── other servers, other users ───────────────────────────────────────────────────────────────────────────────────

    @pytest.fixture
    def no_local_files(self, mariadb_server: MariadbServer) -> Iterator[None]:
        """The server takes no files of its clients, as MySQL by default."""
        if mariadb_server.is_shared:
            pytest.skip("a server of somebody else is not changed")
        mariadb_server.run("SET GLOBAL local_infile = 0")
        yield
        mariadb_server.run("SET GLOBAL local_infile = 1")

    def test_a_server_that_takes_no_files_gets_the_same_rows(self, bench: Bench, no_local_files: None) -> None:
        everything = typed_table(bench, "everything")
        rows = typed_rows(bench.target, bench.source)
        bench.load(everything, rows, route="spark", mode="append")
        assert same(bench.rows(everything)) == same(rows)
        texts = bench.table("texts", n=BigInt, t=Text, b=Bytes)
        many = [(n, f"it's\\{n}\t\n", bytes([n % 256, 39, 92])) for n in range(3000)]
        bench.load(texts, many, route="spark", mode="append")
        assert bench.rows(texts) == many

    def test_a_hostile_schema_is_created_like_any_other(self, target: SqlEndpoint, bench: Bench) -> None:
        there = Bench(MysqlEndpoint(target.connection, "sch`ema; DROP DATABASE mysql; --"), bench.source)
        users = there.table("users", id=Annotated[BigInt, pk()], name=Text)
        there.load(users, [(1, "ann")], route="pushdown", mode="merge")
        there.load(users, [(1, "eve")], route="spark", mode="merge")
        assert there.rows(users) == [(1, "eve")]

    def test_what_a_connection_cannot_do_is_said_without_the_password(
        self, mariadb_server: MariadbServer, mysql_url: str
    ) -> None:
        database = mysql_url.rsplit("/", 1)[1]
        wrong = {
            mariadb_server.url_of(database, password="se cret"): "Access denied",
            mariadb_server.url_of("nowhere_at_all"): "nowhere_at_all",
            "mysql://flow:se%20cret@127.0.0.1:1/x": "connect",
            mysql_url + "?ssl_mode=on": "ssl_mode",
        }
        for url, said in wrong.items():
            with pytest.raises((ConnectionFailed, InvalidConfig), match=said) as caught:
                open_backend(MySQLConnection(name="shop", url=url)).describe(TableRef("x", "y"))
            assert "se cret" not in str(caught.value) and "se%20cret" not in str(caught.value)

    def test_handles_speak_to_it(self, mysql_url: str) -> None:
        with connect(url=mysql_url) as handle:
            assert handle.ping() and handle.dialect() == "mysql"
            handle.execute("CREATE TABLE t (id BIGINT, name VARCHAR(9), price DECIMAL(8,2))")
            assert handle.execute("INSERT INTO t VALUES (1, 'ann', 1.5), (2, 'bob', NULL)") == 2
            assert handle.execute("UPDATE t SET name = 'ann' WHERE id = 1") == 1
            found = handle.query("SELECT * FROM t ORDER BY id", max_rows=1)
        assert [(c["name"], c["type"]) for c in found["columns"]] == [
            ("id", "bigint"),
            ("name", "varchar(9)"),
            ("price", "decimal(8,2)"),
        ]
        assert found["truncated"] and found["rows"] == [[1, "ann", Decimal("1.50")]]


# ── several readers, for pipelines that ask for them ─────────────────────────────────────────────────────────────────


@pytest.fixture
def from_mysql(mysql_url: str, pg_url: str, tmp_project: Path) -> Iterator[Bench]:
    """Rows of MySQL for PostgreSQL."""
    shop = MysqlEndpoint(MySQLConnection(name="shop", url=mysql_url), "shop")
    with isolated_registry(), use_run_log(MemoryRunLog()):
        yield Bench(SqlEndpoint(PostgresConnection(name="warehouse", url=pg_url), "analytics"), shop)


def put_keyed(bench: Bench, table: Table, rows: Sequence[Row], key: str) -> None:
    """Put rows into the source, in a table with a key."""
    bench.put(table, rows, route="spark")
    assert isinstance(bench.source, SqlEndpoint)
    bench.source.execute(f"ALTER TABLE {bench.source.sql_name(source_name(table))} ADD {key}")


def plan_of(pipeline: Pipeline) -> str:
    return "\n".join(pipeline.preview().targets[0].plan_sql)


@pytest.mark.parametrize("readers", [1, 257, 0, -2, True, 2.0, "2"])
def test_the_number_of_readers_is_checked(from_mysql: Bench, readers: Any) -> None:
    users = from_mysql.table("users", id=BigInt)
    for allowed in (None, 2, 256):
        from_mysql.pipeline(users, route="spark", mode="append", parallel_reads=allowed)
    with pytest.raises(ValueError, match="parallel_reads must be a whole number from 2 to 256"):
        from_mysql.pipeline(users, route="spark", mode="append", parallel_reads=readers)


def test_several_readers_feed_a_merge_as_one_does(from_mysql: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench = from_mysql
    users = bench.table("users", id=Annotated[BigInt, pk()], line=Annotated[Integer, pk()], name=Text | None)
    keys = [*range(-50, 400), *range(7_000_000, 7_000_300), 2**62]
    rows = [(key, line, f"n{key}" if key % 7 else None) for key in keys for line in (1, 2)]
    put_keyed(bench, users, rows, "PRIMARY KEY (id, line)")
    pipeline = bench.pipeline(users, route="spark", mode="merge", parallel_reads=3)
    assert f"read by {READER}, in 3 parts by `id`, each as of its own moment\n" in plan_of(pipeline)
    with caplog.at_level(logging.INFO, "ematix_flow"):
        first = pipeline.sync()
    assert "'shop' is read in 3 parts by `id`" in caplog.text
    assert first.rows_inserted == len(rows) and bench.rows(users) == in_order(rows)
    changed = [(key, line, "new" if key % 10 == 0 else name) for key, line, name in rows]
    put_keyed(bench, users, changed, "PRIMARY KEY (id, line)")
    again = pipeline.sync()
    assert (again.rows_inserted, again.rows_updated) == (0, sum(row[2] == "new" for row in changed))
    assert bench.rows(users) == in_order(changed)


def test_several_readers_take_what_the_source_computes(from_mysql: Bench) -> None:
    bench = from_mysql
    rows = [(None if n % 5 == 0 else n, f"n{n}") for n in range(200)]
    put_keyed(bench, bench.table("users", id=BigInt | None, first=Text), rows, "KEY (id)")
    users = bench.table("users", id=BigInt | None, name=Annotated[Text | None, derive("CONCAT(first, ' ', id)")])
    pipeline = bench.pipeline(
        users,
        route="spark",
        mode="append",
        parallel_reads=2,
        transforms_pre=[filter_where("name IS NULL OR id > 20")],
        function=lambda conn: "SELECT * FROM shop.src_users WHERE first <> 'n7' OR first = 'n8' -- not him",
    )
    assert "in 2 parts by `id`" in plan_of(pipeline)
    pipeline.sync()
    kept = [(n, None if n is None else f"{first} {n}") for n, first in rows if n is None or n > 20]
    assert bench.rows(users) == in_order(kept)


def test_several_readers_read_once_for_several_targets(from_mysql: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench = from_mysql
    users, names = bench.table("users", id=BigInt, name=Text), bench.table("names", name=Text)
    rows = [(n, f"n{n}") for n in range(100)]
    put_keyed(bench, users, rows, "PRIMARY KEY (id)")
    everyone = Ematix().pipeline(
        targets=[Target(table=table, connection=bench.target.connection) for table in (users, names)],
        mode="append",
        source_connection=bench.source.connection,
        parallel_reads=2,
    )(lambda conn: "SELECT id, name FROM shop.src_users")
    with caplog.at_level(logging.INFO, "ematix_flow"):
        everyone.sync()
    assert caplog.text.count("'shop' is read in 2 parts by `id`") == 1
    assert bench.rows(users) == in_order(rows) and bench.rows(names) == in_order([(name,) for _, name in rows])


@pytest.mark.parametrize(
    ("key", "rows", "reason"),
    [
        ("PRIMARY KEY (id)", [("a", 1), ("b", 2)], "no index of `shop`.`src_users` begins with an integer column"),
        ("PRIMARY KEY (n)", [], "`shop`.`src_users` holds fewer than two values of `n`"),
    ],
)
def test_what_cannot_be_divided_is_read_by_one_reader_who_says_why(
    from_mysql: Bench, caplog: pytest.LogCaptureFixture, key: str, rows: list[Row], reason: str
) -> None:
    bench = from_mysql
    users = bench.table("users", id=KEY, n=BigInt)
    put_keyed(bench, users, rows, key)
    pipeline = bench.pipeline(users, route="spark", mode="append", parallel_reads=4)
    assert f"read by {READER}, by one reader: {reason}\n" in plan_of(pipeline)
    assert pipeline.sync().rows_inserted == len(rows) and bench.rows(users) == in_order(rows)
    assert f"'shop' is read by one reader: {reason}" in caplog.text


def test_a_load_from_a_mark_on_has_one_reader(from_mysql: Bench) -> None:
    bench = from_mysql
    users = bench.table("users", id=BigInt, name=Text)
    put_keyed(bench, users, [(n, f"n{n}") for n in range(9)], "PRIMARY KEY (id)")
    pipeline = bench.pipeline(users, route="spark", mode="append", incremental_column="id", parallel_reads=4)
    assert "by one reader: a load from a mark on must see all rows as of one moment\n" in plan_of(pipeline)


def test_sources_that_divide_themselves_and_pushed_down_loads_take_the_option_and_need_it_not(
    from_mysql: Bench,
) -> None:
    users = from_mysql.table("users", id=BigInt, name=Text)
    from_mysql.put(users, [(1, "ann")], route="pushdown")
    pipeline = from_mysql.pipeline(users, route="pushdown", mode="append", parallel_reads=4)
    assert pipeline.sync().rows_inserted == 1
    there = Bench(from_mysql.source, from_mysql.target)
    users = there.table("users", id=BigInt, name=Text)
    there.put(users, [(1, "ann")], route="spark")
    other = there.pipeline(users, route="spark", mode="append", name="back", parallel_reads=4)
    assert f"read by {READER}\n" in plan_of(other)
