"""Lookups: tables that `transform_sql` joins, read at the start, refreshed between batches, kept when that fails."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ematix_flow import (
    DuckDBConnection,
    Lookup,
    MySQLConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
    run_pipeline,
    run_streaming_pipeline,
)
from ematix_flow.backends.catalog import open_backend
from ematix_flow.contracts.streams import StreamCounters
from ematix_flow.errors import FlowError, InvalidDeclaration
from ematix_flow.spark.checkpoints import CheckpointFolder
from ematix_flow.spark.lookups import Lookups
from ematix_flow.spark.stream_sql import StreamSql
from ematix_flow.testing.spark import local_spark
from tests.stream.conftest import Topic

USERS = "CREATE TABLE dim_users (user_id BIGINT, tier VARCHAR(10), since DATE, share DECIMAL(6, 3))"
ROWS = "INSERT INTO dim_users VALUES (1, 'gold', '2026-03-01', 0.125), (2, 'tin', NULL, NULL)"
JOINED = """
  SELECT s.user_id, u.tier, u.since, u.share
  FROM source s
  LEFT JOIN users u ON u.user_id = s.user_id
"""


def until(is_so: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"it was never so: {what}"
        time.sleep(0.02)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "lake" / "events"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("user_id\n1\n2\n3\n")
    return folder


def consume(inbox: Path, tmp_path: Path, lookup: Lookup, sql: str = JOINED) -> list[tuple[Any, ...]]:
    run_streaming_pipeline(
        name="events-clean",
        source=ObjectStoreLocalConnection(name="drop", path=str(inbox.parent), format="csv"),
        source_query=inbox.name,
        target=SQLiteConnection(name="store", path=str(tmp_path / "store.db")),
        target_table=("main", "events_clean"),
        transform_sql=sql,
        lookups={"users": lookup},
        once=True,
    )
    with sqlite3.connect(tmp_path / "store.db") as db:
        return db.execute("SELECT * FROM events_clean ORDER BY 1").fetchall()


def made(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Lookup:
    """The same table on one of several systems, as a lookup."""
    if kind == "postgres":
        url = request.getfixturevalue("pg_url")
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(USERS)
            db.execute(ROWS)
        return Lookup(
            PostgresConnection(name="wh", url=url), query="SELECT user_id, tier, since, share FROM dim_users;"
        )
    if kind == "mysql":
        url = request.getfixturevalue("mysql_url")
        connection = MySQLConnection(name="my", url=url)
        backend: Any = open_backend(connection)
        with backend.transaction() as my:
            my.execute(USERS)
            my.execute(ROWS)
        return Lookup(connection, "dim_users")
    if kind == "sqlite":
        with sqlite3.connect(tmp_path / "dims.db") as lite:
            lite.execute(USERS)
            lite.execute(ROWS)
        return Lookup(SQLiteConnection(name="lite", path=str(tmp_path / "dims.db")), "dim_users", schema="main")
    if kind == "duckdb":
        import duckdb

        with duckdb.connect(str(tmp_path / "dims.duckdb")) as duck:
            duck.execute(USERS)
            duck.execute(ROWS)
        return Lookup(DuckDBConnection(name="duck", path=str(tmp_path / "dims.duckdb")), "dim_users")
    import datetime
    from decimal import Decimal

    rows = {
        "user_id": [1, 2],
        "tier": ["gold", "tin"],
        "since": [datetime.date(2026, 3, 1), None],
        "share": pa.array([Decimal("0.125"), None], pa.decimal128(6, 3)),
    }
    (tmp_path / "dims" / "shop" / "users").mkdir(parents=True)
    if kind == "delta":
        from deltalake import write_deltalake

        from ematix_flow import DeltaLocalConnection

        write_deltalake(str(tmp_path / "dims" / "shop" / "users"), pa.table(rows))
        return Lookup(DeltaLocalConnection(name="lake", path=str(tmp_path / "dims")), "users", schema="shop")
    pq.write_table(pa.table(rows), tmp_path / "dims" / "shop" / "users" / "a.parquet")
    files = ObjectStoreLocalConnection(name="files", path=str(tmp_path / "dims"), format="parquet")
    return Lookup(files, "users", schema="shop")


@pytest.mark.parametrize("kind", ["postgres", "mysql", "sqlite", "duckdb", "files", "delta"])
def test_rows_are_joined_with_a_table_of_another_system(
    kind: str, inbox: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found = consume(inbox, tmp_path, made(kind, request, tmp_path))
    assert [
        (user, tier, str(since)[:10], None if share is None else float(share)) for user, tier, since, share in found
    ] == [
        (1, "gold", "2026-03-01", 0.125),
        (2, "tin", "None", None),
        (3, None, "None", None),
    ]
    assert not list(tmp_path.rglob("*.lookups")), "what was kept is removed"


def test_the_documented_stream_joins_messages_with_their_time(topic: Topic, pg_url: str) -> None:
    topic.send({"user_id": n} for n in (1, 3))
    warehouse = PostgresConnection(name="warehouse", url=pg_url)
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute(USERS)
        db.execute(ROWS)
        run_streaming_pipeline(
            name="events-clean",
            source=topic.connection(),
            source_query=topic.name,
            target=warehouse,
            target_table=("public", "events_clean"),
            transform_sql="""
              SELECT s.user_id, s._event_ts, u.tier
              FROM source s
              LEFT JOIN users u ON u.user_id = s.user_id
            """,
            lookups={
                "users": Lookup(
                    connection=warehouse, query="SELECT user_id, tier FROM dim_users", refresh_interval_ms=60_000
                )
            },
            once=True,
        )
        found = db.execute("SELECT user_id, tier, _event_ts IS NOT NULL FROM events_clean ORDER BY 1").fetchall()
    assert found == [(1, "gold", True), (3, None, True)]


def test_toml_says_the_same(inbox: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    made("sqlite", request, tmp_path)
    run_pipeline(
        config_str=f"""
        pipeline_name = "from_toml"
        source_query = "events"
        [source]
        kind = "object_store_local"
        path = "{inbox.parent}"
        format = "csv"
        [target]
        kind = "sqlite"
        path = "{tmp_path}/store.db"
        [target.table]
        schema = "main"
        name = "joined"
        [transform]
        sql = "SELECT s.user_id, u.tier FROM source s JOIN users u USING (user_id)"
        [transform.lookups.users]
        kind = "sqlite"
        path = "{tmp_path}/dims.db"
        table = "dim_users"
        """,
        once=True,
    )
    with sqlite3.connect(tmp_path / "store.db") as db:
        assert sorted(db.execute("SELECT * FROM joined")) == [(1, "gold"), (2, "tin")]


def test_a_lookup_that_cannot_be_read_stops_the_stream_before_any_row(inbox: Path, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "dims.db").close()
    lookup = Lookup(SQLiteConnection(name="lite", path=str(tmp_path / "dims.db")), "dim_users")
    with pytest.raises(FlowError, match="Lookup 'users'.*dim_users"):
        consume(inbox, tmp_path, lookup)
    with sqlite3.connect(tmp_path / "store.db") as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'events_clean'").fetchone() == (0,)
    with sqlite3.connect(tmp_path / "dims.db") as db:
        db.execute(USERS)
    assert len(consume(inbox, tmp_path, lookup)) == 3, "nothing was lost"


def test_brokers_cannot_be_looked_up_in(topic: Topic) -> None:
    with pytest.raises(InvalidDeclaration, match="is a kafka connection"):
        Lookup(topic.connection(), topic.name)


# ── refreshing ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Refreshed:
    """A lookup over a SQLite file that is read again every few milliseconds, without a stream around it."""

    def __init__(self, tmp_path: Path, sql: str) -> None:
        self.path, self.counters = tmp_path / "dims.db", StreamCounters()
        self.spark: SparkSession = local_spark()
        self.rows = self.spark.createDataFrame([(1,), (2,)], "user_id bigint")
        self.sql = StreamSql(sql, "spark", ("users",))
        self.lookups = Lookups(
            "refreshed",
            {"users": Lookup(SQLiteConnection(name="lite", path=str(self.path)), "users", refresh_interval_ms=30)},
            lambda lookup: open_backend(lookup.connection),  # type: ignore[arg-type]
            CheckpointFolder("refreshed", str(tmp_path / "checkpoint")),
            lambda: self.counters,
        )

    def change(self, *statements: str) -> None:
        with sqlite3.connect(self.path) as db:
            for statement in statements:
                db.execute(statement)

    def batch(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.lookups.over(self.rows, self.sql).collect())

    def awaits(self, counter: str) -> None:
        """Wait until it was read, or failed to be, twice more: the first may have begun before the change."""
        before = getattr(self.counters, counter)
        until(lambda: getattr(self.counters, counter) >= before + 2, counter)


@contextmanager
def refreshed(tmp_path: Path, sql: str) -> Iterator[Refreshed]:
    found = Refreshed(tmp_path, sql)
    found.change("CREATE TABLE users (user_id INTEGER, tier TEXT)", "INSERT INTO users VALUES (1, 'tin')")
    found.lookups.open(found.spark)
    try:
        yield found
    finally:
        found.lookups.close()


def test_new_rows_are_seen_from_the_next_batch_on_all_at_once(tmp_path: Path) -> None:
    with refreshed(tmp_path, "SELECT user_id, tier FROM source JOIN users USING (user_id)") as lookup:
        lookup.lookups.turn()
        assert lookup.batch() == [(1, "tin")]
        lookup.change("UPDATE users SET tier = 'gold'", "INSERT INTO users VALUES (2, 'gold')")
        lookup.awaits("lookup_refreshes")
        assert lookup.batch() == [(1, "tin")], "within a batch nothing changes"
        lookup.lookups.turn()
        assert lookup.batch() == [(1, "gold"), (2, "gold")]
        lookup.lookups.turn()
        kept = list((tmp_path / "checkpoint.lookups" / "stream").iterdir())
        assert len(kept) <= 4, "what nobody reads any more is removed"
    assert not (tmp_path / "checkpoint.lookups").exists()


def test_a_refresh_that_fails_keeps_the_rows_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with refreshed(tmp_path, "SELECT user_id, tier FROM source JOIN users USING (user_id)") as lookup:
        with caplog.at_level(logging.WARNING, "ematix_flow"):
            lookup.change("DROP TABLE users")
            lookup.awaits("lookup_failures")
        lookup.lookups.turn()
        assert lookup.batch() == [(1, "tin")]
        assert "lookup 'users' could not be refreshed and stays as it was" in caplog.text
        lookup.change("CREATE TABLE users (user_id INTEGER, tier TEXT)", "INSERT INTO users VALUES (2, 'back')")
        lookup.awaits("lookup_refreshes")
        lookup.lookups.turn()
        assert lookup.batch() == [(2, "back")]


def test_columns_may_change_as_long_as_what_comes_out_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with refreshed(tmp_path, "SELECT user_id, tier FROM source JOIN users USING (user_id)") as lookup:
        lookup.change("ALTER TABLE users ADD COLUMN note TEXT", "UPDATE users SET tier = 'new'")
        lookup.awaits("lookup_refreshes")
        lookup.lookups.turn()
        assert lookup.batch() == [(1, "new")]
        with caplog.at_level(logging.WARNING, "ematix_flow"):
            lookup.change("ALTER TABLE users RENAME COLUMN tier TO rank", "UPDATE users SET rank = 'lost'")
            lookup.awaits("lookup_refreshes")
            lookup.lookups.turn()
            assert lookup.batch() == [(1, "new")]
        assert "has other columns now and stays as it was" in caplog.text
        assert lookup.counters.lookup_failures >= 1


def test_a_star_over_a_lookup_with_more_columns_stays_with_the_old_rows(tmp_path: Path) -> None:
    with refreshed(tmp_path, "SELECT u.* FROM source JOIN users u USING (user_id)") as lookup:
        lookup.change("ALTER TABLE users ADD COLUMN note TEXT", "UPDATE users SET tier = 'new'")
        lookup.awaits("lookup_refreshes")
        lookup.lookups.turn()
        assert lookup.batch() == [(1, "tin")]


def test_a_running_stream_takes_what_was_refreshed(inbox: Path, tmp_path: Path) -> None:
    from ematix_flow.declare.stream_pipeline import StreamingPipeline
    from ematix_flow.run.stream_watch import StreamWatch
    from ematix_flow.run.streams import run_stream

    shutil.rmtree(inbox)
    inbox.mkdir()
    with sqlite3.connect(tmp_path / "dims.db") as db:
        db.execute("CREATE TABLE users (user_id INTEGER, tier TEXT)")
        db.execute("INSERT INTO users VALUES (1, 'tin')")
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "dims.db"))
    options = {
        "name": "running",
        "source": ObjectStoreLocalConnection(name="drop", path=str(inbox.parent), format="csv"),
        "source_query": inbox.name,
        "target": SQLiteConnection(name="store", path=str(tmp_path / "store.db")),
        "target_table": ("main", "joined"),
        "transform_sql": "SELECT s.n, u.tier FROM source s JOIN users u USING (user_id)",
        "lookups": {"users": Lookup(lite, "users", refresh_interval_ms=100)},
        "idle_pause_ms": 50,
    }
    from ematix_flow.declare.registry import user_location

    spec = StreamingPipeline(options, user_location("running")).spec
    stop, watch = threading.Event(), StreamWatch("running")
    failure: list[BaseException] = []

    def work() -> None:
        try:
            run_stream(spec, stop=stop, watch=watch)
        except BaseException as exc:
            failure.append(exc)

    def joined() -> list[tuple[Any, ...]]:
        with sqlite3.connect(tmp_path / "store.db") as db:
            try:
                return db.execute("SELECT * FROM joined ORDER BY 1").fetchall()
            except sqlite3.OperationalError:
                return []

    thread = threading.Thread(target=work)
    thread.start()
    try:
        (inbox / ".a.csv").write_text("n,user_id\n1,1\n")
        (inbox / ".a.csv").rename(inbox / "a.csv")
        until(lambda: bool(failure) or joined() == [(1, "tin")], "the first row")
        with sqlite3.connect(tmp_path / "dims.db") as db:
            db.execute("UPDATE users SET tier = 'gold'")
        before = watch.view().counts["lookup_refreshes"]
        until(lambda: bool(failure) or watch.view().counts["lookup_refreshes"] >= before + 2, "two refreshes")
        (inbox / ".b.csv").write_text("n,user_id\n2,1\n")
        (inbox / ".b.csv").rename(inbox / "b.csv")
        until(lambda: bool(failure) or joined() == [(1, "tin"), (2, "gold")], "the second row")
    finally:
        stop.set()
        thread.join()
    assert not failure
