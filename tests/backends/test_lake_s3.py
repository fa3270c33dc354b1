"""Lake tables in a bucket: the same commits, with books and leases that are objects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated

import pytest

from ematix_flow import pk
from ematix_flow.connections import Connection, DeltaS3Connection, IcebergConnection, SQLiteConnection
from ematix_flow.errors import FlowError
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import SqliteEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.types import BigInt, Text, TimestampTZ
from tests.backends.lake_contract import ReadBySpark
from tests.services.moto import REGION, S3Server

NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def delta(server: S3Server, bucket: str, login: tuple[str, str]) -> Connection:
    return DeltaS3Connection(
        name="lake",
        endpoint=server.endpoint,
        bucket=bucket,
        region=REGION,
        access_key_id=login[0],
        secret_access_key=login[1],
        prefix="tables/of/delta",
    )


def iceberg(server: S3Server, bucket: str, login: tuple[str, str]) -> Connection:
    return IcebergConnection(
        name="lake",
        warehouse=f"s3://{bucket}/tables/of/iceberg",
        endpoint=server.endpoint,
        region=REGION,
        access_key_id=login[0],
        secret_access_key=login[1],
    )


Kind = Callable[[S3Server, str, tuple[str, str]], Connection]
KINDS = pytest.mark.parametrize("kind", [delta, iceberg], ids=["delta", "iceberg"])


@KINDS
def test_every_mode_works_in_a_bucket(kind: Kind, s3_server: S3Server, s3_bucket: str, tmp_project: Path) -> None:
    till = SQLiteConnection(name="till", path=str(tmp_project / "till.db"))
    bench = Bench(
        ReadBySpark(kind(s3_server, s3_bucket, s3_server.loader), schema="analytics"), SqliteEndpoint(till, "main")
    )
    with isolated_registry():
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(users, [(1, "ann"), (2, "bob")], route="spark", mode="append")
        merged = bench.load(users, [(2, "Bob"), (3, "cid")], route="spark", mode="merge", run_id="monday")
        assert (merged.rows_inserted, merged.rows_updated) == (1, 1)
        again = bench.pipeline(users, route="spark", mode="merge").sync(run_id="monday")
        assert again.replayed and bench.rows(users) == [(1, "ann"), (2, "Bob"), (3, "cid")]
        levels = bench.table("levels", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ)
        for hour, level in enumerate(("low", "high")):
            bench.load(
                levels,
                [(1, level, NOON + timedelta(hours=hour))],
                route="spark",
                mode="scd2",
                event_timestamp_column="at",
            )
        assert [row[1] for row in bench.rows(levels)] == ["high", "low"]
        bench.load(users, [(9, "zoe")], route="spark", mode="truncate")
        assert bench.rows(users) == [(9, "zoe")]
    keys = s3_server.objects(s3_bucket)
    assert all(key.startswith("tables/of/") for key in keys)
    assert not [key for key in keys if "/staging/" in key]


@KINDS
def test_a_login_that_may_only_read_changes_nothing(
    kind: Kind, s3_server: S3Server, s3_bucket: str, tmp_project: Path
) -> None:
    till = SQLiteConnection(name="till", path=str(tmp_project / "till.db"))
    bench = Bench(
        ReadBySpark(kind(s3_server, s3_bucket, s3_server.reader), schema="analytics"), SqliteEndpoint(till, "main")
    )
    with isolated_registry(), pytest.raises(FlowError) as caught:
        bench.load(bench.table("users", id=BigInt), [(1,)], route="spark", mode="append")
    assert s3_server.reader[1] not in str(caught.value)
    assert not s3_server.objects(s3_bucket)
