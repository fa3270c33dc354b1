"""Lake tables in a bucket: the same commits, with books and leases that are objects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated

import pytest

from ematix_flow import pk
from ematix_flow.connections import Connection, DeltaS3Connection, IcebergConnection, SQLiteConnection
from ematix_flow.errors import ConnectionFailed, FlowError
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import SqliteEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.types import BigInt, Text, TimestampTZ
from tests.backends.lake_contract import ReadBySpark
from tests.services.moto import REGION, S3Server
from tests.services.postgres import _free_port

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


FAULTS = {
    "no bucket": "'nowhere-4711' does not exist",
    "wrong key": "refuses the login",
    "wrong secret": "refuses the login",
    "nobody there": "does not answer",
}


def faulty(kind: Kind, fault: str, server: S3Server, bucket: str) -> Connection:
    """A connection with one thing wrong."""
    key, secret = server.loader
    if fault == "nobody there":
        server = S3Server(f"http://127.0.0.1:{_free_port()}", server.loader, server.reader)
    login = {"wrong key": ("AKIAIOSFODNN7EXAMPLE", secret), "wrong secret": (key, "not-the-secret-4711")}
    return kind(server, "nowhere-4711" if fault == "no bucket" else bucket, login.get(fault, server.loader))


def assert_told(caught: ConnectionFailed, fault: str, connection: Connection) -> None:
    assert FAULTS[fault] in str(caught) and caught.where and caught.fix
    for secret in (*connection.secrets(), getattr(connection, "access_key_id")):  # noqa: B009 - two kinds have it
        assert secret not in str(caught) and secret not in repr(caught)


@KINDS
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bucket_that_cannot_be_written_to_is_one_clear_error_before_spark_is_asked(
    kind: Kind, fault: str, s3_server: S3Server, s3_bucket: str, tmp_project: Path
) -> None:
    till = SQLiteConnection(name="till", path=str(tmp_project / "till.db"))
    lake = faulty(kind, fault, s3_server, s3_bucket)
    bench = Bench(ReadBySpark(lake, schema="analytics"), SqliteEndpoint(till, "main"))
    with isolated_registry(), pytest.raises(ConnectionFailed) as caught:
        bench.load(bench.table("users", id=BigInt), [(1,)], route="spark", mode="append")
    assert_told(caught.value, fault, lake)
    assert not s3_server.objects(s3_bucket)


@KINDS
@pytest.mark.parametrize("fault", ["no bucket", "wrong secret"])
def test_a_bucket_that_cannot_be_read_is_one_clear_error_and_leaves_the_target(
    kind: Kind, fault: str, s3_server: S3Server, s3_bucket: str, tmp_project: Path
) -> None:
    lake = faulty(kind, fault, s3_server, s3_bucket)
    bench = Bench(
        SqliteEndpoint(SQLiteConnection(name="till", path=str(tmp_project / "till.db")), "main"),
        ReadBySpark(lake, schema="analytics"),
    )
    with isolated_registry(), pytest.raises(ConnectionFailed) as caught:
        users = bench.table("users", id=BigInt)
        bench.pipeline(users, route="spark", mode="append").sync()
    assert_told(caught.value, fault, lake)
    assert bench.columns(users) == {}
