"""Streams from lake tables that are elsewhere: in a bucket, or listed by a REST catalog or a database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from ematix_flow import BigInt, SQLiteConnection, ematix, run_streaming_pipeline
from ematix_flow.connections import DeltaS3Connection, IcebergConnection
from ematix_flow.declare.connection import Connection
from ematix_flow.testing.registry import isolated_registry
from tests.services.iceberg_rest import rest_catalog
from tests.services.moto import REGION, S3Server


@ematix.table(schema="sales")
class Orders:
    id: BigInt


@pytest.fixture
def delta_s3(s3_server: S3Server, s3_bucket: str) -> Connection:
    key, secret = s3_server.loader
    return DeltaS3Connection(
        name="lake",
        endpoint=s3_server.endpoint,
        bucket=s3_bucket,
        region=REGION,
        access_key_id=key,
        secret_access_key=secret,
        prefix="tables",
    )


@pytest.fixture
def iceberg_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    warehouse = tmp_path_factory.mktemp("rest")
    with rest_catalog(warehouse) as address:
        yield IcebergConnection(name="lake", warehouse=str(warehouse), catalog="rest", uri=address)


@pytest.fixture
def iceberg_jdbc(pg_url: str, tmp_path: Path) -> Connection:
    return IcebergConnection(
        name="lake", warehouse=str(tmp_path / "jdbc"), catalog="jdbc", uri=pg_url, catalog_name=f"c{uuid4().hex}"
    )


@pytest.mark.parametrize("kind", ["delta_s3", "iceberg_rest", "iceberg_jdbc"])
def test_a_stream_follows_a_table_that_is_elsewhere(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    lake: Connection = request.getfixturevalue(kind)

    def append(*numbers: int) -> None:
        with isolated_registry():

            @ematix.pipeline(target=Orders, target_connection=lake, mode="append")
            def load(conn: object) -> pa.Table:
                return pa.table({"id": pa.array(numbers, pa.int64())})

            load.sync()

    def consume() -> int:
        result = run_streaming_pipeline(
            name=f"follows_{kind}",
            source=lake,
            source_query="sales.orders",
            target=SQLiteConnection(name="store", path=str(tmp_path / "store.db")),
            target_table=("main", "orders"),
            once=True,
        )
        return int(result["total_rows"])

    append(1, 2)
    assert consume() == 2
    append(3)
    append(4, 5)
    assert consume() == 3
    assert consume() == 0
    with sqlite3.connect(tmp_path / "store.db") as db:
        assert [number for (number,) in db.execute("SELECT id FROM orders ORDER BY id")] == [1, 2, 3, 4, 5]
