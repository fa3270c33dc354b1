"""Real changes of a real PostgreSQL, read by real Debezium, through Kafka into PostgreSQL and Delta: tables are equal.

Inserts, updates, deletes, changed keys, several changes in one transaction, large values that updates do not touch, an
added column; the stream is killed with `kill -9` in the middle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from ematix_flow import CDC, DeltaLocalConnection, KafkaConnection, PostgresConnection, Target, run_streaming_pipeline
from tests.services import debezium
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer
from tests.stream.program import run_and_die

_TABLE = """
CREATE TABLE public.customers (
  id bigint PRIMARY KEY, name text, balance numeric(12, 2), born date, seen timestamptz, made timestamp,
  vip boolean, story text
)"""
_COLUMNS = "id, name, balance, born, seen, made, vip, story"


def work(db: psycopg.Connection[Any], first: int) -> None:
    """A day at the source: every kind of change, committed in several transactions."""
    with db.transaction():
        db.execute(
            "INSERT INTO customers SELECT n, 'n' || n, n * 1.25, DATE '1990-01-01' + n::int, now(), "
            "TIMESTAMP '2026-03-01 06:00:00.123456', n %% 2 = 0, "
            "(SELECT string_agg(md5(i || ' ' || n), '') FROM generate_series(1, 200) AS i) "
            "FROM generate_series(%s::bigint, %s::bigint) AS n",
            (first, first + 199),
        )
        db.execute("UPDATE customers SET story = 'short' WHERE id = %s", (first + 2,))
    with db.transaction():  # one row, three times within one commit
        for word in ("one", "two", "three"):
            db.execute("UPDATE customers SET name = %s WHERE id = %s", (word, first + 1))
    with db.transaction():
        db.execute("UPDATE customers SET balance = balance + 1000 WHERE id % 3 = 0")  # the story is not in the log
        db.execute("DELETE FROM customers WHERE id % 7 = 0")
        db.execute("UPDATE customers SET id = id + 100000 WHERE id = %s", (first + 2,))
        db.execute("UPDATE customers SET balance = NULL, vip = NULL WHERE id % 11 = 0")


@pytest.mark.timeout(1800)  # a source, Debezium, a broker and Spark, several starts of it, on one machine
@pytest.mark.parametrize("schemas", [True, False])
def test_tables_are_equal_after_changes_and_a_kill(
    schemas: bool, kafka_server: KafkaServer, postgres_server: PostgresServer, pg_url: str, tmp_path: Path
) -> None:
    prefix = f"dbz_{uuid4().hex[:8]}"
    topic = kafka_server.create_topic(f"{prefix}.public.customers", partitions=2)
    home, lake = tmp_path / "debezium", str(tmp_path / "lake")
    with postgres_server.fresh_database() as source, psycopg.connect(source, autocommit=True) as db:
        db.execute(_TABLE)
        work(db, 1)
        # Decimals in bytes need the schema that says their scale.
        try:
            debezium.start(
                *(home, kafka_server, postgres_server, source.rpartition("/")[2]),
                prefix=prefix,
                tables="public.customers",
                schemas=schemas,
                more="" if schemas else "decimal.handling.mode=string\n",
            )
            with psycopg.connect(pg_url, autocommit=True) as there:
                there.execute(_TABLE)
            if not schemas:  # only the target knows then that a number is a time
                make_lake_table(lake)
            mirrors = Mirrors(kafka_server, topic, pg_url, lake)
            mirrors.follow(lambda: mirrors.postgres() == rows(db))
            work(db, 10_000)
            mirrors.die()
            db.execute("ALTER TABLE customers ADD COLUMN city text")
            work(db, 20_000)
            db.execute("UPDATE customers SET city = 'Rome' WHERE id % 5 = 0")
            mirrors.follow(lambda: mirrors.postgres() == rows(db))
            assert mirrors.postgres("city") == rows(db, "city")
            assert mirrors.delta() == rows(db)
            assert mirrors.delta("city") == rows(db, "city")
        finally:
            debezium.stop(home)
            with suppress(psycopg.Error):
                db.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid > 0")
                db.execute(f"SELECT pg_drop_replication_slot('{prefix}')")  # type: ignore[arg-type]


def rows(db: psycopg.Connection[Any], columns: str = _COLUMNS) -> list[Any]:
    return db.execute(f"SELECT id, {columns} FROM customers ORDER BY id").fetchall()  # type: ignore[arg-type]


def make_lake_table(lake: str) -> None:
    """The table of the lake, without a row."""
    import deltalake
    import pyarrow as pa

    columns = [("id", pa.int64()), ("name", pa.string()), ("balance", pa.decimal128(12, 2)), ("born", pa.date32())]
    columns += [("seen", pa.timestamp("us", "UTC")), ("made", pa.timestamp("us")), ("vip", pa.bool_())]
    columns += [("story", pa.string())]
    deltalake.write_deltalake(f"{lake}/shop/customers", pa.schema(columns).empty_table())


class Mirrors:
    """The stream, and what it has made."""

    def __init__(self, broker: KafkaServer, topic: str, url: str, lake: str) -> None:
        self._broker, self._topic, self._url, self._lake = broker, topic, url, lake
        self._group = f"group-{topic}"
        self._name = topic.replace(".", "_")
        self._targets = {
            "pg": {"connection": "pg", "table": ["public", "customers"]},
            "lake": {"connection": "lake", "table": ["shop", "customers"], "primary_key": ["id"]},
        }

    def follow(self, is_done: Callable[[], bool]) -> None:
        """Mirror what is there until the tables are equal."""
        connections = {
            "pg": PostgresConnection(name="pg", url=self._url),
            "lake": DeltaLocalConnection(name="lake", path=self._lake),
        }
        deadline = time.monotonic() + 600
        while True:
            run_streaming_pipeline(
                name=self._name,
                source=KafkaConnection(name="broker", bootstrap_servers=self._broker.address, group_id=self._group),
                source_query=self._topic,
                targets=[
                    Target(**{**given, "connection": connections[name], "table": tuple(given["table"])})
                    for name, given in self._targets.items()
                ],
                cdc=CDC(schema_evolution="add"),
                once=True,
                max_batch_rows=300,
            )
            if is_done():
                return
            assert time.monotonic() < deadline, "the tables did not become equal"

    def die(self) -> None:
        """Mirror in a process that is killed while a batch settles."""
        kinds = {"pg": {"kind": "postgres", "url": self._url}, "lake": {"kind": "delta_local", "path": self._lake}}
        given: dict[str, Any] = {
            "connections": {
                "broker": {
                    "kind": "kafka",
                    "bootstrap_servers": self._broker.address,
                    "group_id": self._group,
                },
                **kinds,
            },
            "name": self._name,
            "source": "broker",
            "source_query": self._topic,
            "targets": list(self._targets.values()),
            "cdc": {"schema_evolution": "add"},
            "max_batch_rows": 300,
        }
        run_and_die(given, "between-targets")

    def postgres(self, columns: str = _COLUMNS) -> list[Any]:
        with psycopg.connect(self._url) as db:
            return rows(db, columns)

    def delta(self, columns: str = _COLUMNS) -> list[Any]:
        from ematix_flow.df import to_pyspark

        lake = DeltaLocalConnection(name="lake", path=self._lake)
        # An instant as text: Python would get it without its zone.
        instant = "date_format(seen, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'\") AS seen"
        asked = columns.replace("seen", instant)
        found = to_pyspark(lake, f"SELECT id AS key, {asked} FROM shop.customers ORDER BY id").collect()
        instants = [name.strip() == "seen" for name in f"key, {columns}".split(",")]
        return [
            tuple(
                datetime.fromisoformat(value.replace("Z", "+00:00")) if is_instant else value
                for is_instant, value in zip(instants, row, strict=True)
            )
            for row in found
        ]
