"""Change feeds from Kafka into every kind of table: what is there afterwards, whatever came twice, late or cut."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import (
    CDC,
    DeltaLocalConnection,
    DuckDBConnection,
    IcebergConnection,
    ManagedTable,
    MySQLConnection,
    PostgresConnection,
    Source,
    SQLiteConnection,
    Target,
    pk,
    run_streaming_pipeline,
)
from ematix_flow.backends.schema_registry import Registry, RegistryClient, with_schema_id
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import IncompatibleSchema, UnknownColumn
from ematix_flow.run.stream_watch import StreamWatch
from ematix_flow.run.streams import run_stream
from ematix_flow.types import BigInt, Numeric, Text
from tests.stream.conftest import Topic
from tests.stream.program import run_and_die
from tests.stream.test_avro import encoded

Rows = list[tuple[Any, ...]]


def event(
    op: str,
    after: dict[str, Any] | None,
    ts: int | None,
    *,
    before: dict[str, Any] | None = None,
    lsn: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """An event as Debezium writes it without a schema."""
    source = {"ts_ms": ts, "lsn": lsn, "table": "customers"}
    return {"op": op, "before": before, "after": after, "source": source, "ts_ms": 1, **more}


@dataclass
class End:
    """A target, and how to look into it."""

    connection: Any
    table: tuple[str, str]
    select: Callable[[str], Rows]
    path: str = ""

    def target(self, **options: Any) -> Target:
        return Target(connection=self.connection, table=self.table, **{"primary_key": ("id",), **options})


def end_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> End:
    if kind == "postgres":
        import psycopg

        url = request.getfixturevalue("pg_url")

        def pg(sql: str) -> Rows:
            with psycopg.connect(url) as db:
                return [tuple(row) for row in db.execute(sql).fetchall()]  # type: ignore[arg-type]

        return End(PostgresConnection(name="pg", url=url), ("public", "customers"), pg)
    if kind == "mysql":
        from ematix_flow.backends.mysql import MysqlBackend

        mysql = MySQLConnection(name="my", url=request.getfixturevalue("mysql_url"))

        def my(sql: str) -> Rows:
            with MysqlBackend(mysql).session() as db:
                return [tuple(row) for row in db.execute(sql.replace('"', "`")).fetchall()]

        return End(mysql, (mysql.url.rpartition("/")[2], "customers"), my)
    if kind == "sqlite":
        path = str(tmp_path / "mirror.db")
        lite = SQLiteConnection(name="lite", path=path)
        return End(lite, ("main", "customers"), lambda sql: sqlite3.connect(path).execute(sql).fetchall(), path)
    if kind == "duckdb":
        import duckdb

        path = str(tmp_path / "mirror.duckdb")

        def duck(sql: str) -> Rows:
            with duckdb.connect(path) as db:
                return db.execute(sql).fetchall()

        return End(DuckDBConnection(name="duck", path=path), ("main", "customers"), duck, path)
    root = str(tmp_path / "lake")
    lake: Any = (
        DeltaLocalConnection(name="lake", path=root)
        if kind == "delta"
        else IcebergConnection(name="ice", warehouse=root)
    )

    def lake_rows(sql: str) -> Rows:
        from ematix_flow.df import to_pyspark

        return [tuple(row) for row in to_pyspark(lake, sql.replace("customers", "shop.customers")).collect()]

    return End(lake, ("shop", "customers"), lake_rows, root)


@pytest.fixture(params=["postgres", "sqlite", "delta", "duckdb", "mysql", "iceberg"])
def end(request: pytest.FixtureRequest, tmp_path: Path) -> End:
    return end_of(request.param, request, tmp_path)


@pytest.fixture
def lite(request: pytest.FixtureRequest, tmp_path: Path) -> End:
    return end_of("sqlite", request, tmp_path)


def mirror(topic: Topic, end: End, *, cdc: CDC | None = None, target: Target | None = None, **options: Any) -> Any:
    return run_streaming_pipeline(
        **{
            "name": f"mirror_{topic.name}",
            "source": topic.connection(),
            "source_query": topic.name,
            "targets": [target or end.target()],
            "cdc": cdc or CDC(),
            "once": True,
            **options,
        }
    )


def send(topic: Topic, events: Iterable[Any]) -> None:
    """Send events so that those of a key stay in order, as Debezium does."""
    for one in events:
        image = (one or {}).get("after") or (one or {}).get("before") or {}
        topic.send([one], key=json.dumps({"id": image.get("id")}).encode())


def test_a_feed_is_mirrored_whatever_comes_twice_or_late(topic: Topic, end: End) -> None:
    ann, ben = {"id": 1, "name": "Ann", "score": 1.5}, {"id": 2, "name": "Ben", "score": None}
    first = [
        event("r", ann, 1_000, lsn=10),
        event("c", ben, 2_000, lsn=11),
        event("u", {**ann, "name": "Anna"}, 3_000, lsn=12),
        event("u", {**ann, "name": "Anne"}, 3_000, lsn=13),  # the same millisecond
        event("c", {"id": 3, "name": "Cid", "score": 2}, 3_000, lsn=14),
        event("d", None, 4_000, before=ben, lsn=15),
    ]
    send(topic, first)
    result = mirror(topic, end)
    assert result["total_rows"] == 6
    wanted = "SELECT id, name, score FROM customers ORDER BY id"
    assert end.select(wanted) == [(1, "Anne", 1.5), (3, "Cid", 2.0)]
    send(topic, first)  # all of it again
    send(topic, [event("c", ben, 1_500, lsn=9), event("u", {"id": 3, "score": 7}, 9_000, lsn=20)])
    assert mirror(topic, end)["total_rows"] == 1
    assert end.select(wanted) == [(1, "Anne", 1.5), (3, "Cid", 7.0)]
    moved = {"id": 4, "name": "Cid", "score": 8}
    send(
        topic,
        [
            event("u", moved, 10_000, before={"id": 3}, lsn=21),
            event("c", {"id": 5, "name": "Dan", "score": 0}, 10_000, lsn=22),
        ],
    )
    mirror(topic, end)
    assert end.select(wanted) == [(1, "Anne", 1.5), (4, "Cid", 8.0), (5, "Dan", 0.0)]
    send(topic, [event("t", None, 11_000, lsn=23), event("c", {"id": 6, "name": "Eve", "score": 1}, 12_000, lsn=24)])
    mirror(topic, end)
    assert end.select(wanted) == [(6, "Eve", 1.0)]


@pytest.mark.parametrize("kind", ["sqlite", "delta"])
def test_deleted_rows_can_stay_and_come_back(
    topic: Topic, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    lite = end_of(kind, request, tmp_path)
    ann = {"id": 1, "name": "Ann"}
    cdc = CDC(delete_mode="soft", soft_delete_column="deleted_at")
    send(topic, [event("c", ann, 1_000, lsn=1), event("d", None, 2_000, before=ann, lsn=2)])
    mirror(topic, lite, cdc=cdc)
    ((name, deleted_at),) = lite.select("SELECT name, deleted_at FROM customers")
    assert name == "Ann"
    assert deleted_at is not None
    send(topic, [event("c", {**ann, "name": "Anna"}, 3_000, lsn=3)])
    mirror(topic, lite, cdc=cdc)
    assert lite.select("SELECT name, deleted_at FROM customers") == [("Anna", None)]


def test_a_new_column_is_left_out_added_or_stops_the_stream(
    topic: Topic, lite: End, caplog: pytest.LogCaptureFixture
) -> None:
    send(topic, [event("c", {"id": 1, "name": "Ann"}, 1_000, lsn=1)])
    mirror(topic, lite)
    send(topic, [event("u", {"id": 1, "name": "Ann", "city": "Rome"}, 2_000, lsn=2)])
    with pytest.raises(IncompatibleSchema, match="has no column 'city'"):
        mirror(topic, lite, cdc=CDC(schema_evolution="fail"))
    mirror(topic, lite)
    assert "has no column 'city'" in caplog.text
    send(topic, [event("u", {"id": 1, "name": "Ann", "city": "Oslo"}, 3_000, lsn=3)])
    mirror(topic, lite, cdc=CDC(schema_evolution="add"))
    assert lite.select("SELECT id, name, city FROM customers") == [(1, "Ann", "Oslo")]


def test_what_is_no_event_is_counted_and_the_rest_arrives(topic: Topic, lite: End) -> None:
    good = event("c", {"id": 1, "name": "Ann"}, 1_000, lsn=1)
    watch = StreamWatch("mirror")
    topic.send([good, event("x", {"id": 2}, 1_000), {"after": {"id": 3}}, event("u", {"name": "nobody"}, 1_000)])
    run_watched(topic, lite, watch)
    counts = watch.view().counts
    assert (counts["cdc_creates"], counts["cdc_skipped"], counts["cdc_idempotent_skipped"]) == (1, 3, 0)
    assert lite.select("SELECT id, name FROM customers") == [(1, "Ann")]


def test_what_cannot_be_applied_becomes_a_dead_letter(topic: Topic, lite: End) -> None:
    with sqlite3.connect(lite.path) as db:
        db.execute("CREATE TABLE customers (id BIGINT PRIMARY KEY, n INTEGER)")
    topic.send(
        [
            event("c", {"id": 1, "n": 1}, 1_000, lsn=1),
            event("x", {"id": 2, "n": 2}, 1_000, lsn=2),
            event("c", {"n": 3}, 1_000, lsn=3),
            event("c", {"id": 4, "n": "many"}, 1_000, lsn=4),
            b"{",
        ]
    )
    watch = StreamWatch("mirror")
    run_watched(topic, lite, watch, transform_on_error="dlq")
    counts = watch.view().counts
    assert (counts["cdc_creates"], counts["cdc_skipped"], counts["dead_letters"]) == (1, 0, 4)
    assert lite.select("SELECT id, n FROM customers") == [(1, 1)]


def run_watched(topic: Topic, end: End, watch: StreamWatch, **options: Any) -> None:
    spec = StreamSpec(
        name=f"mirror_{topic.name}",
        where=SourceLocation(file=__file__, line=1),
        sources=(Source(topic.connection(), topic.name),),
        targets=(end.target(),),
        cdc=CDC(),
        **options,
    )
    run_stream(spec, once=True, watch=watch)


@pytest.mark.parametrize("kind", ["sqlite", "delta"])
def test_a_history_is_kept_straight_from_the_feed(
    topic: Topic, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    end = end_of(kind, request, tmp_path)
    target = end.target(mode="scd2")

    def told(op: str, second: int, number: int, **values: str) -> dict[str, Any]:
        side = {"before" if op == "d" else "after": {"id": number, **values}}
        return event(op, None, 1_000_000_000_000 + second * 1_000, lsn=second + 1) | side

    send(topic, [told("c", 0, 1, name="Ann", city="Rome"), told("u", 2, 1, name="Anna")])
    send(topic, [told("c", 0, 2, name="Ben", city="Oslo")])
    mirror(topic, end, target=target)
    send(topic, [told("d", 4, 1), told("u", 1, 1, name="Anne")])  # the second is late
    send(topic, [told("u", 3, 2, city="Bonn"), told("d", 4, 2)])
    topic.send([None], key=b'{"id": 2}')
    send(topic, [told("c", 5, 2, name="Ben")])
    mirror(topic, end, target=target)
    send(topic, [event("t", None, 1_000_000_006_000, lsn=6), told("c", 6, 3, name="Cid")])
    send(topic, [told("c", 7, 1, name="Ann", city="Nice")])
    mirror(topic, end, target=target)

    def second(moment: Any) -> int | None:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        return None if at is None else at.second - 40

    rows = end.select("SELECT id, name, city, valid_from, valid_to, is_current FROM customers ORDER BY id, valid_from")
    assert [(*row[:3], second(row[3]), second(row[4]), bool(row[5])) for row in rows] == [
        (1, "Ann", "Rome", 0, 1, False),
        (1, "Anne", "Rome", 1, 2, False),
        (1, "Anna", "Rome", 2, 4, False),
        (1, "Ann", "Nice", 7, None, True),
        (2, "Ben", "Oslo", 0, 3, False),
        (2, "Ben", "Bonn", 3, 4, False),
        (2, "Ben", None, 5, 6, False),
        (3, "Cid", None, 6, None, True),
    ]


def test_a_key_of_several_columns_is_one_key_and_one_that_no_change_has_is_refused(topic: Topic, lite: End) -> None:
    def line(order: int, number: int, item: str) -> dict[str, Any]:
        return {"order_no": order, "line": number, "item": item}

    target = lite.target(primary_key=("order_no", "line"))
    topic.send(
        [
            event("c", line(1, 1, "pen"), 1_000, lsn=1),
            event("c", line(1, 2, "ink"), 1_000, lsn=2),
            event("u", line(1, 2, "cap"), 2_000, lsn=3),
            event("d", None, 3_000, before={"order_no": 1, "line": 1, "item": None}, lsn=4),
        ],
        key=b"1",
    )
    with pytest.raises(UnknownColumn, match="have no column 'lin'.*key of .*customers"):
        mirror(topic, lite, target=lite.target(primary_key=("order_no", "lin")))
    mirror(topic, lite, target=target)
    assert lite.select("SELECT order_no, line, item FROM customers") == [(1, 2, "cap")]


@pytest.mark.parametrize(
    ("kind", "point"), [("postgres", "mid-settle"), ("delta", "gate-passed"), ("delta", "committed")]
)
def test_a_stream_that_is_killed_in_the_middle_leaves_the_same_table(
    topic: Topic, kind: str, point: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    end = end_of(kind, request, tmp_path)
    given: dict[str, Any] = {
        "connections": {
            "broker": {"kind": "kafka", "bootstrap_servers": topic.server.address, "group_id": f"group-{topic.name}"},
            "there": (
                {"kind": "postgres", "url": end.connection.url}
                if kind == "postgres"
                else {"kind": "delta_local", "path": end.path}
            ),
        },
        "name": f"mirror_{topic.name}",
        "source": "broker",
        "source_query": topic.name,
        "targets": [{"connection": "there", "table": list(end.table), "primary_key": ["id"]}],
        "cdc": {},
        "once": True,
    }
    first = [event("c", {"id": n, "name": f"n{n}"}, 1_000 + n, lsn=n) for n in range(4)]
    topic.send(first, key=b"k")
    mirror(topic, end)
    topic.send(
        [
            event("u", {"id": 1, "name": "one"}, 2_000, lsn=10),
            event("d", None, 2_000, before={"id": 2}, lsn=11),
            event("u", {"id": 9, "name": "moved"}, 2_000, before={"id": 3}, lsn=12),
            *first,
        ],
        key=b"k",
    )
    run_and_die(given, point)
    mirror(topic, end)
    assert end.select("SELECT id, name FROM customers ORDER BY id") == [(0, "n0"), (1, "one"), (9, "moved")]


class Customer(ManagedTable):
    __schema__ = "main"
    __tablename__ = "customers"

    id: Annotated[BigInt, pk()]
    name: Text
    balance: Numeric[12, 2] | None


def test_a_table_class_says_the_schema_the_name_and_the_key(topic: Topic, lite: End) -> None:
    send(topic, [event("c", {"id": 1, "name": "Ann", "balance": "12.50", "city": "Rome"}, 1_000, lsn=1)])
    run_streaming_pipeline(
        name=f"mirror_{topic.name}",
        source=topic.connection(),
        source_query=topic.name,
        target=Customer,
        target_connection=lite.connection,
        cdc=CDC(envelope="debezium"),
        once=True,
    )
    assert lite.select("SELECT id, name, balance FROM customers WHERE _batch_id IS NOT NULL") == [(1, "Ann", "12.50")]


def test_events_in_avro_keep_their_logical_types(topic: Topic, lite: End, schema_registry_url: str) -> None:
    value = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "day", "type": {"type": "int", "connect.name": "io.debezium.time.Date"}},
            {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "note", "type": ["null", "string"]},
        ],
    }
    source = {
        "type": "record",
        "name": "Source",
        "fields": [{"name": "ts_ms", "type": "long"}, {"name": "lsn", "type": ["null", "long"]}],
    }
    schema = {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.customers",
        "fields": [
            {"name": "before", "type": ["null", value]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
        ],
    }
    known = RegistryClient(Registry("r", schema_registry_url)).register(f"{topic.name}-value", json.dumps(schema))

    def message(op: str, number: int, lsn: int) -> bytes:
        row = {"id": number, "day": 20_513, "at": 1_772_344_800_123_456, "price": Decimal("9.90"), "note": None}
        image = {"before": row if op == "d" else None, "after": None if op == "d" else row}
        return with_schema_id(known.id, encoded(schema, {**image, "source": {"ts_ms": 1_000, "lsn": lsn}, "op": op}))

    # In Avro 25 is one byte, which as a text would be the key of another row: 2.
    key_schema = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    key_id = RegistryClient(Registry("r", schema_registry_url)).register(f"{topic.name}-key", json.dumps(key_schema)).id

    def send_one(number: int, *messages: bytes | None) -> None:
        topic.send([*messages], key=with_schema_id(key_id, encoded(key_schema, {"id": number})), partition=0)

    source_of = partial(topic.connection, payload_format="avro", schema_registry_url=schema_registry_url)
    send_one(1, None, None)  # a feed that begins with them
    assert mirror(topic, lite, source=source_of())["total_rows"] == 0
    send_one(25, message("c", 25, 1), message("d", 25, 2), None)
    send_one(2, message("c", 2, 3))
    send_one(3, message("c", 3, 4), None)  # alone, as in a compacted topic
    mirror(topic, lite, source=source_of())
    wanted = 'SELECT id, "day", "at", price, note FROM customers'
    assert lite.select(wanted) == [(2, "2026-03-01", "2026-03-01T06:00:00.123456", "9.90", None)]
    send_one(2, None)  # and the first that this start sees
    mirror(topic, lite, source=source_of())
    assert lite.select(wanted) == []


def test_a_key_of_bytes_is_read_by_its_schema_or_not_at_all(
    topic: Topic, lite: End, schema_registry_url: str, tmp_project: Path
) -> None:
    known = RegistryClient(Registry("r", schema_registry_url)).register(f"{topic.name}-key", '"long"')
    key = with_schema_id(known.id, encoded("long", 25))
    assert key.endswith(b"2")
    send(topic, [event("c", {"id": number, "name": "Ann"}, 1_000, lsn=number) for number in (2, 25, 30)])
    for unreadable in (key, b"\x00\x00\x00\x02", b"\x092", b"Struct{id=2}", b"\xff2", b"null"):
        topic.send([None], key=unreadable)
    mirror(topic, lite)
    assert lite.select("SELECT id FROM customers ORDER BY id") == [(2,), (25,), (30,)]
    topic.send([None], key=b"30")
    mirror(topic, lite, source=topic.connection(schema_registry_url=schema_registry_url))
    assert lite.select("SELECT id FROM customers ORDER BY id") == [(2,), (25,)]
    topic.send([None], key=key)
    named = '[connections.sr]\nkind = "schema_registry"\nurl = "' + schema_registry_url + '"\n'
    (tmp_project / ".ematix-flow.toml").write_text(named)
    mirror(topic, lite, source=topic.connection(payload_format="json", schema_registry="sr"))
    assert lite.select("SELECT id FROM customers") == [(2,)]
