"""Kafka into every kind of target: what arrives, once, and what a second start adds."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ematix_flow import (
    DeltaLocalConnection,
    DuckDBConnection,
    IcebergConnection,
    KafkaConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
    Target,
    run_streaming_pipeline,
)
from ematix_flow.cli.main import main
from ematix_flow.declare import registry
from ematix_flow.errors import BadMessages
from ematix_flow.testing.registry import isolated_registry
from tests.services.kafka import KafkaServer
from tests.stream.conftest import Topic

Rows = list[tuple[int, str]]


@dataclass
class End:
    """A target, and how to see what is in it."""

    target: Target
    rows: Callable[[], Rows]


def database(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> End:
    sql = "SELECT id, name FROM events ORDER BY id"
    if kind == "postgres":
        import psycopg

        url = request.getfixturevalue("pg_url")

        def rows() -> Rows:
            with psycopg.connect(url) as db:
                return [tuple(row) for row in db.execute(sql).fetchall()]

        return End(Target(connection=PostgresConnection(name="pg", url=url), table=("public", "events")), rows)
    if kind == "mysql":
        from ematix_flow.backends.mysql import MysqlBackend

        connection = MySQLConnection(name="my", url=request.getfixturevalue("mysql_url"))

        def my_rows() -> Rows:
            with MysqlBackend(connection).session() as db:
                return [tuple(row) for row in db.execute(sql).fetchall()]

        return End(Target(connection=connection, table=(connection.url.rpartition("/")[2], "events")), my_rows)
    if kind == "sqlite":
        import sqlite3

        path = str(tmp_path / "events.db")
        lite = SQLiteConnection(name="lite", path=path)
        return End(
            Target(connection=lite, table=("main", "events")), lambda: sqlite3.connect(path).execute(sql).fetchall()
        )
    import duckdb

    path = str(tmp_path / "events.duckdb")

    def duck_rows() -> Rows:
        with duckdb.connect(path) as db:
            return db.execute(sql).fetchall()

    return End(Target(connection=DuckDBConnection(name="duck", path=path), table=("main", "events")), duck_rows)


def folder(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> End:
    root = str(tmp_path / "lake")
    if kind == "delta":
        delta = DeltaLocalConnection(name="lake", path=root)

        def delta_rows() -> Rows:
            found = DeltaTable(f"{root}/shop/events").to_pyarrow_table().to_pylist()
            return sorted((row["id"], row["name"]) for row in found)

        return End(Target(connection=delta, table=("shop", "events")), delta_rows)
    if kind == "iceberg":
        iceberg = IcebergConnection(name="ice", warehouse=root)

        def ice_rows() -> Rows:
            from ematix_flow.df import to_pyspark

            found = to_pyspark(iceberg, "SELECT id, name FROM shop.events ORDER BY id").collect()
            return [tuple(row) for row in found]

        return End(Target(connection=iceberg, table=("shop", "events")), ice_rows)
    files = ObjectStoreLocalConnection(name="files", path=root, format="parquet")

    def file_rows() -> Rows:
        found = [row for file in Path(root, "events").glob("*.parquet") for row in pq.read_table(file).to_pylist()]
        return sorted((row["id"], row["name"]) for row in found)

    return End(Target(connection=files, prefix="events"), file_rows)


def topic_end(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> End:
    server: KafkaServer = request.getfixturevalue("kafka_server")
    out = Topic(server)

    def messages() -> Rows:
        found = [json.loads(message.value or b"") for message in server.messages(out.name)]
        return sorted((row["id"], row["name"]) for row in found)

    connection = KafkaConnection(name="out", bootstrap_servers=server.address)
    return End(Target(connection=connection, topic=out.name), messages)


MAKERS = {
    **dict.fromkeys(("postgres", "mysql", "sqlite", "duckdb"), database),
    **dict.fromkeys(("delta", "iceberg", "files"), folder),
    "kafka": topic_end,
}


@pytest.fixture(params=list(MAKERS))
def end(request: pytest.FixtureRequest, tmp_path: Path) -> End:
    return MAKERS[request.param](request.param, request, tmp_path)


def stream(topic: Topic, end: End) -> dict[str, Any]:
    """All that is there, into the target."""
    return {
        "name": f"to_{topic.name}",
        "source": topic.connection(),
        "source_query": topic.name,
        "targets": [end.target],
        "once": True,
    }


def begun(topic: Topic, end: End) -> dict[str, Any]:
    """A stream that has written 50 rows, with 1,950 more waiting for it."""
    options = stream(topic, end)
    topic.send({"id": n, "name": f"n{n}"} for n in range(50))
    assert run_streaming_pipeline(**options)["total_rows"] == 50
    topic.send({"id": n, "name": f"n{n}"} for n in range(50, 2000))
    return options


def test_every_message_is_there_once_after_two_starts(topic: Topic, end: End) -> None:
    options = {**stream(topic, end), "delivery": "exactly_once", "max_batch_rows": 40}
    topic.send({"id": n, "name": f"n{n}"} for n in range(100))
    first = run_streaming_pipeline(**options)
    assert first["total_rows"] == 100
    assert first["iterations"] >= 3
    topic.send({"id": n, "name": f"n{n}"} for n in range(100, 120))
    assert run_streaming_pipeline(**options)["total_rows"] == 20
    assert end.rows() == [(n, f"n{n}") for n in range(120)]
    assert topic.committed() == 120


@pytest.mark.parametrize("kind", ["delta", "iceberg", "files"])
def test_a_surprise_in_the_middle_of_a_batch_leaves_nothing_half_written(
    kind: str, request: pytest.FixtureRequest, topic: Topic, tmp_path: Path
) -> None:
    end = folder(kind, request, tmp_path)
    options = begun(topic, end)
    topic.send([b"[3]", b"no message"])
    with pytest.raises(BadMessages, match="2 messages of .* cannot be read"):
        run_streaming_pipeline(**options)
    assert end.rows() == [(n, f"n{n}") for n in range(50)]
    dropping = run_streaming_pipeline(**options, transform_on_error="drop")
    assert dropping["total_rows"] == 1950
    assert end.rows() == [(n, f"n{n}") for n in range(2000)]


@pytest.mark.parametrize("kind", ["delta", "files"])
def test_a_new_field_in_the_middle_of_a_batch_becomes_a_column(
    kind: str, request: pytest.FixtureRequest, topic: Topic, tmp_path: Path
) -> None:
    end = folder(kind, request, tmp_path)
    options = begun(topic, end)
    topic.send([{"id": 2000, "name": "n2000", "colour": "red"}])
    assert run_streaming_pipeline(**options)["total_rows"] == 1951
    assert end.rows() == [(n, f"n{n}") for n in range(2001)]
    if kind == "delta":
        found = DeltaTable(str(tmp_path / "lake" / "shop" / "events")).to_pyarrow_table()["colour"].to_pylist()
    else:
        files = [pq.read_table(file) for file in Path(tmp_path, "lake", "events").glob("*.parquet")]
        found = [colour for rows in files if "colour" in rows.column_names for colour in rows["colour"].to_pylist()]
    assert [colour for colour in found if colour is not None] == ["red"]


def test_a_surprise_in_the_first_batch_leaves_no_lake_table(
    request: pytest.FixtureRequest, topic: Topic, tmp_path: Path
) -> None:
    end = folder("delta", request, tmp_path)
    topic.send([*({"id": n, "name": f"n{n}"} for n in range(50)), b"no message"])
    with pytest.raises(BadMessages, match="1 message of .* cannot be read"):
        run_streaming_pipeline(**stream(topic, end))
    assert not DeltaTable.is_deltatable(str(tmp_path / "lake" / "shop" / "events"))
    assert run_streaming_pipeline(**stream(topic, end), transform_on_error="drop")["total_rows"] == 50
    assert end.rows() == [(n, f"n{n}") for n in range(50)]


def test_a_stream_looks_after_its_lake_table_between_batches(
    topic: Topic, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due long ago: the small files of its batches become one. `flow maintain` knows the tables of streams, too."""
    (tmp_path / "visits.py").write_text(
        f"""
from ematix_flow import BigInt, DeltaLocalConnection, KafkaConnection, Maintenance, ematix
broker = KafkaConnection(name="broker", bootstrap_servers="{topic.server.address}", group_id="g-{topic.name}")
lake = DeltaLocalConnection(name="lake", path="{tmp_path}/lake")
@ematix.table(schema="shop", maintenance=Maintenance(every="1h"))
class Visits:
    id: BigInt
ematix.streaming_pipeline(name="visits_{topic.name}", source=broker, source_query="{topic.name}", target=lake,
                          target_table=Visits, max_batch_rows=10)(lambda: None)
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "visits", raising=False)
    with isolated_registry():
        importlib.import_module("visits")
        stream = registry.current().streaming_pipeline(f"visits_{topic.name}").thing
        topic.send({"id": n} for n in range(40))
        stream.run(once=True)
        place = f"{tmp_path}/lake/shop/visits"
        assert len(DeltaTable(place).file_uris()) > 1
        (book,) = Path(tmp_path, "lake", "_ematix_flow", "maintenance").glob("*.json")
        book.write_text(book.read_text().replace(str(datetime.now(timezone.utc).year), "2020", 1))
        topic.send([{"id": 40}])
        stream.run(once=True)
        assert len(DeltaTable(place).file_uris()) == 1
        assert sorted(row["id"] for row in DeltaTable(place).to_pyarrow_table().to_pylist()) == list(range(41))
        assert main(["maintain", "--module", "visits", "--dry-run"]) == 0
        assert "shop.visits in lake (delta_local)" in capsys.readouterr().out
