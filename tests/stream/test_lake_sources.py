"""Delta and Iceberg tables as sources of streams: appended rows, positions, and commits that change rows."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ematix_flow import PostgresConnection, run_streaming_pipeline
from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.delta import DeltaBackend
from ematix_flow.backends.iceberg import IcebergBackend
from ematix_flow.connections import DeltaLocalConnection, IcebergConnection
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.contracts.streams import StreamReading
from ematix_flow.errors import InvalidConnection, InvalidSource, LostMessages, StateIncompatible
from ematix_flow.run.places import lend_spark
from ematix_flow.spark.lake_failures import lake_stream_failure


def consume(source: Any, url: str, **options: Any) -> int:
    result = run_streaming_pipeline(
        **{
            "name": "orders_to_pg",
            "source": source,
            "source_query": "sales.orders",
            "target": PostgresConnection(name="warehouse", url=url),
            "target_table": ("public", "orders"),
            "once": True,
            **options,
        }
    )
    return int(result["total_rows"])


def add_rows(folder: Path, *numbers: int) -> None:
    """One commit with these rows in a Delta table."""
    write_deltalake(str(folder), pa.table({"id": pa.array(numbers, pa.int64())}), mode="append")


def ids(url: str) -> list[int]:
    with psycopg.connect(url) as db:
        return [row[0] for row in db.execute("SELECT id FROM public.orders ORDER BY id")]


def test_a_delta_table_is_followed_commit_by_commit(tmp_path: Path, pg_url: str, checkpoints: Path) -> None:
    lake = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))
    folder = tmp_path / "lake" / "sales" / "orders"
    append = partial(add_rows, folder)
    with pytest.raises(InvalidSource, match="'sales.orders' does not exist"):
        consume(lake, pg_url)
    append(1, 2)
    append(3)
    assert consume(lake, pg_url) == 3
    append(4)
    assert consume(lake, pg_url) == 1
    shutil.rmtree(checkpoints)
    with pytest.raises(StateIncompatible, match="nothing was committed since version 2"):
        consume(lake, pg_url)
    shutil.rmtree(checkpoints)
    append(5)
    assert consume(lake, pg_url) == 1, "without a checkpoint it goes on where its target is"
    DeltaTable(str(folder)).delete("id = 1")
    append(6)
    with pytest.raises(StateIncompatible, match="Version 4 of the table changes or deletes rows"):
        consume(lake, pg_url)
    skipping = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"), stream_changes="skip")
    assert consume(skipping, pg_url) == 1
    assert ids(pg_url) == [1, 2, 3, 4, 5, 6]


def test_a_delta_table_that_was_made_anew_is_noticed(
    tmp_path: Path, pg_url: str, checkpoints: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))
    folder = tmp_path / "lake" / "sales" / "orders"
    append = partial(add_rows, folder)
    append(1)
    append(2)
    assert consume(lake, pg_url) == 2
    shutil.rmtree(folder)
    for number in range(10, 14):
        append(number)
    with pytest.raises(LostMessages, match="'sales.orders' was deleted and made anew"):
        consume(lake, pg_url)
    with caplog.at_level("WARNING", "ematix_flow"):
        assert consume(lake, pg_url, on_gap="continue") == 4
    assert "made anew; it is read from its beginning" in caplog.text
    assert ids(pg_url) == [1, 2, 10, 11, 12, 13]
    shutil.rmtree(folder)
    for number in range(20, 26):
        append(number)
    shutil.rmtree(checkpoints)
    with pytest.raises(StateIncompatible, match="was deleted and made anew since"):
        consume(lake, pg_url)  # its target knows a version of the one before
    assert ids(pg_url) == [1, 2, 10, 11, 12, 13]


def test_a_delta_table_whose_log_was_cleaned_is_one_error_or_goes_on_with_what_is_there(
    tmp_path: Path, pg_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    lake = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))
    folder = tmp_path / "lake" / "sales" / "orders"
    append = partial(add_rows, folder)
    append(0)
    append(1)
    assert consume(lake, pg_url) == 2
    for number in range(2, 8):
        append(number)
    DeltaTable(str(folder)).create_checkpoint()
    for version in range(6):
        (folder / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(LostMessages, match="'sales.orders' no longer knows what came right after batch 0"):
        consume(lake, pg_url)
    with caplog.at_level("WARNING", "ematix_flow"):
        assert consume(lake, pg_url, on_gap="continue") == 2
    assert "it goes on with what is there" in caplog.text
    append(8)
    assert consume(lake, pg_url) == 1
    assert ids(pg_url) == [0, 1, 6, 7, 8]


def test_an_iceberg_table_whose_snapshots_expired_is_one_error_or_goes_on_with_what_is_there(
    tmp_path: Path, pg_url: str
) -> None:
    lake = IcebergConnection(name="ice", warehouse=str(tmp_path / "ice"))
    backend = open_backend(lake)
    assert isinstance(backend, IcebergBackend)
    lend_spark(backend)
    spark, name = backend.spark(), backend.name_of(TableRef("sales", "orders"))
    backend.prepare(spark)
    spark.sql(f"CREATE TABLE {name} (id BIGINT) USING iceberg")
    spark.sql(f"INSERT INTO {name} VALUES (1)")
    assert consume(lake, pg_url) == 1
    for number in (2, 3):
        spark.sql(f"INSERT INTO {name} VALUES ({number})")
    newest = spark.sql(f"SELECT max(committed_at) FROM {name}.snapshots").collect()[0][0]
    catalog, _, table = name.partition(".")
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{table}', "
        f"older_than => TIMESTAMP '{newest}', retain_last => 1)"
    )
    with pytest.raises(LostMessages, match="no longer knows what came right after batch 0"):
        consume(lake, pg_url)
    assert consume(lake, pg_url, on_gap="continue") == 1
    assert ids(pg_url) == [1, 3]


def test_what_a_lake_table_has_left_after_a_place(tmp_path: Path) -> None:
    delta = open_backend(DeltaLocalConnection(name="lake", path=str(tmp_path / "delta")))
    assert isinstance(delta, DeltaBackend)
    log = tmp_path / "delta" / "sales" / "orders" / "_delta_log"
    log.mkdir(parents=True)
    for version in (6, 7):
        (log / f"{version:020d}.json").write_text("{}")
    left = [delta.place_left("sales.orders", {"version": version, "table": "t"}) for version in (5, 6, 8)]
    assert left == [{"version": 6}, None, None]
    assert delta.place_left("sales.orders", {"reservoirVersion": 2, "index": 3, "isStartingVersion": False})
    assert delta.place_left("sales.orders", {"reservoirVersion": 2, "index": 3, "isStartingVersion": True}) is None
    iceberg = open_backend(IcebergConnection(name="ice", warehouse=str(tmp_path / "ice")))
    assert isinstance(iceberg, IcebergBackend)
    folder = tmp_path / "ice" / "sales" / "orders" / "metadata"
    folder.mkdir(parents=True)
    snapshots = [{"snapshot-id": 8, "timestamp-ms": 200}, {"snapshot-id": 9, "timestamp-ms": 300}]
    (folder / "v3.metadata.json").write_text(json.dumps({"table-uuid": "t", "snapshots": snapshots}))
    left = [iceberg.place_left("sales.orders", {"snapshot_id": number, "position": 1}) for number in (7, 8, -1)]
    assert left == [{"ms": 200}, None, None]


def test_a_place_in_a_delta_table_says_nothing_of_another_of_its_name(tmp_path: Path) -> None:
    backend = open_backend(DeltaLocalConnection(name="lake", path=str(tmp_path)))
    assert isinstance(backend, DeltaBackend)
    folder, known = tmp_path / "sales" / "orders", []
    for _ in range(2):
        for number in range(3):
            write_deltalake(str(folder), pa.table({"id": [number]}), mode="append")
        known.append(backend.identity("sales.orders"))
        shutil.rmtree(folder) if len(known) < 2 else None
    assert None not in known
    assert known[0] != known[1]
    reading = StreamReading("sales.orders", {"version": 2, "table": known[0]}, None)
    with pytest.raises(StateIncompatible, match="deleted and made anew since"):
        backend._begins_with(TableRef("sales", "orders"), reading)
    (folder / "_delta_log" / f"{0:020d}.json").unlink()
    assert backend.identity("sales.orders") is None, "the log no longer says it"


def test_what_spark_says_of_another_table_is_one_error() -> None:
    said = "[DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE] The streaming query was reading from an unexpected Delta"
    found = lake_stream_failure("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE", said)
    assert isinstance(found, LostMessages)
    assert "made anew" in found.message


def test_the_id_of_an_iceberg_table_is_its_own(tmp_path: Path) -> None:
    backend = open_backend(IcebergConnection(name="ice", warehouse=str(tmp_path / "ice")))
    assert isinstance(backend, IcebergBackend)
    folder = tmp_path / "ice" / "sales" / "orders" / "metadata"
    folder.mkdir(parents=True)
    assert backend.identity("sales.orders") is None
    for version, uuid in ((2, "one"), (10, "other")):
        (folder / f"v{version}.metadata.json").write_text(f'{{"format-version" : 2, "table-uuid" : "{uuid}", "x": 1}}')
    assert backend.identity("sales.orders") == "other"


def test_an_iceberg_table_is_followed_snapshot_by_snapshot(tmp_path: Path, pg_url: str, checkpoints: Path) -> None:
    lake = IcebergConnection(name="ice", warehouse=str(tmp_path / "ice"))
    backend = open_backend(lake)
    assert isinstance(backend, IcebergBackend)
    lend_spark(backend)
    spark, name = backend.spark(), backend.name_of(TableRef("sales", "orders"))
    backend.prepare(spark)
    spark.sql(f"CREATE TABLE {name} (id BIGINT) USING iceberg")

    def append(*numbers: int) -> None:
        spark.sql(f"INSERT INTO {name} VALUES {', '.join(f'({number})' for number in numbers)}")

    append(1, 2)
    append(3)
    assert backend.identity("sales.orders") == backend._told_by_catalog(TableRef("sales", "orders"))
    assert consume(lake, pg_url, max_batch_rows=2) == 3
    append(4)
    shutil.rmtree(checkpoints)
    assert consume(lake, pg_url) == 1, "without a checkpoint it goes on where its target is"
    spark.sql(f"DELETE FROM {name} WHERE id = 4")
    append(5)
    with pytest.raises(StateIncompatible, match="Snapshot .* of the table changes or deletes rows"):
        consume(lake, pg_url)
    assert consume(IcebergConnection(name="ice", warehouse=lake.warehouse, stream_changes="skip"), pg_url) == 1
    assert ids(pg_url) == [1, 2, 3, 4, 5]
    oldest = spark.sql(f"SELECT max(committed_at) FROM {name}.snapshots").collect()[0][0]
    catalog, _, table = name.partition(".")
    spark.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{table}', "
        f"older_than => TIMESTAMP '{oldest}', retain_last => 1)"
    )
    shutil.rmtree(checkpoints)
    with pytest.raises(StateIncompatible, match="rows from snapshots that have expired"):
        consume(lake, pg_url, name="another", target_table=("public", "others"))


def test_what_is_done_about_changes_is_one_of_two_words() -> None:
    with pytest.raises(InvalidConnection, match="stream_changes 'ignore' is unknown"):
        DeltaLocalConnection(name="lake", path="lake", stream_changes="ignore")
