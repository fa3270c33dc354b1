"""Delta and Iceberg tables as sources of streams: appended rows, positions, and commits that change rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from ematix_flow import PostgresConnection, run_streaming_pipeline
from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.iceberg import IcebergBackend
from ematix_flow.connections import DeltaLocalConnection, IcebergConnection
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.errors import InvalidConnection, InvalidSource, StateIncompatible
from ematix_flow.run.places import lend_spark


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


def ids(url: str) -> list[int]:
    with psycopg.connect(url) as db:
        return [row[0] for row in db.execute("SELECT id FROM public.orders ORDER BY id")]


def test_a_delta_table_is_followed_commit_by_commit(tmp_path: Path, pg_url: str, checkpoints: Path) -> None:
    lake = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"))
    folder = str(tmp_path / "lake" / "sales" / "orders")

    def append(*numbers: int) -> None:
        write_deltalake(folder, pa.table({"id": pa.array(numbers, pa.int64())}), mode="append")

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
    DeltaTable(folder).delete("id = 1")
    append(6)
    with pytest.raises(StateIncompatible, match="Version 4 of the table changes or deletes rows"):
        consume(lake, pg_url)
    skipping = DeltaLocalConnection(name="lake", path=str(tmp_path / "lake"), stream_changes="skip")
    assert consume(skipping, pg_url) == 1
    assert ids(pg_url) == [1, 2, 3, 4, 5, 6]


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
