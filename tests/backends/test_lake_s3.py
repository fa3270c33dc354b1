"""Lake tables in a bucket: the same commits, with books and leases that are objects."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated

import pytest

from ematix_flow import pk
from ematix_flow.backends.bucket_lease import BucketLease
from ematix_flow.backends.bucket_store import BucketStore
from ematix_flow.backends.delta import S3DeltaBackend
from ematix_flow.connections import Connection, DeltaS3Connection, IcebergConnection, SQLiteConnection
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import ConnectionFailed, FlowError, StaleLease
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import Endpoint, Row, SqliteEndpoint
from ematix_flow.testing.lake_endpoints import DeltaEndpoint, IcebergEndpoint, LakeEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.types import BigInt, Text, TimestampTZ
from tests.backends.lake_contract import LakeContract, ReadBySpark
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


# ── a slice of the contract ──────────────────────────────────────────────────────────────────────────────────────────

SLICE = (
    "test_append_adds_all_rows_every_time_and_stamps_them",
    "test_truncate_replaces_everything_or_nothing",
    "test_merge_inserts_updates_and_leaves_the_rest_alone",
    "test_scd2_by_event_time_is_right_whatever_the_order_of_arrival",
    "test_incremental_append_by_instant_is_exact_to_the_microsecond",
    "test_repeating_a_logical_run_changes_nothing",
    "test_a_load_is_one_commit_that_names_its_run",
    "test_a_merge_that_changes_nothing_commits_nothing",
    "test_partitions_are_folders_and_survive_every_mode",
    "test_two_pipelines_that_merge_at_once_lose_nothing",
    "test_a_key_that_another_program_adds_during_a_merge_is_not_there_twice",
)
"""What a place of tables could get wrong: every mode, once, one commit each, partitions, and others beside us."""


class InBucket(LakeEndpoint):
    """Lake tables in a bucket, looked at in a copy on this machine."""

    def __init__(self, connection: Connection, server: S3Server, bucket: str, copy: Path) -> None:
        Endpoint.__init__(self, connection, "analytics")
        self.format = "parquet"
        self._server, self._bucket, self._copy = server, bucket, copy

    @property
    def root(self) -> Path:  # type: ignore[override]
        """The copy, as the bucket is now."""
        shutil.rmtree(self._copy, ignore_errors=True)
        for key, content in self._server.objects(self._bucket).items():
            if not key.endswith("/"):
                path = self._copy / key.removeprefix(f"{self.connection.prefix}/")  # type: ignore[attr-defined]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return self._copy


class DeltaInBucket(InBucket, DeltaEndpoint):
    """Delta tables in a bucket, read from their copy by delta-rs."""


class IcebergInBucket(InBucket, IcebergEndpoint):
    """Iceberg tables in a bucket; their files name each other by the bucket, so Spark reads their rows."""

    def rows(self, name: str, columns: Sequence[ColumnSpec]) -> list[Row]:
        return ReadBySpark.rows(self, name, columns)  # type: ignore[arg-type]


class S3LakeContract(LakeContract):
    """The slice; `make test` has one test of it, `make prove` all."""


for _name in [name for name in dir(LakeContract) if name.startswith("test_") and name not in SLICE]:
    setattr(S3LakeContract, _name, None)


class TestS3Delta(S3LakeContract):
    """Delta tables of a bucket."""

    @pytest.fixture
    def target(self, s3_server: S3Server, s3_bucket: str, tmp_project: Path) -> Endpoint:
        return DeltaInBucket(delta(s3_server, s3_bucket, s3_server.loader), s3_server, s3_bucket, tmp_project / "copy")


class TestS3Iceberg(S3LakeContract):
    """Iceberg tables of a bucket, which lists them itself."""

    @pytest.fixture
    def target(self, s3_server: S3Server, s3_bucket: str, tmp_project: Path) -> Endpoint:
        lake = iceberg(s3_server, s3_bucket, s3_server.loader)
        return IcebergInBucket(lake, s3_server, s3_bucket, tmp_project / "copy")


# ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_slept_through_its_turn_commits_nothing(s3_server: S3Server, s3_bucket: str) -> None:
    asleep, awake = (
        S3DeltaBackend(delta(s3_server, s3_bucket, s3_server.loader)),
        S3DeltaBackend(delta(s3_server, s3_bucket, s3_server.loader)),
    )
    table = TableRef("analytics", "users")
    with asleep.turn(table):
        asleep._require_turn(table)
        lease = asleep._turns[table]
        assert isinstance(lease, BucketLease)
        lease._ended.set()  # as if the machine slept
        lease._keeper.join()
        assert isinstance(awake.store, BucketStore)
        awake.store.lease_s = 0.1
        with awake.turn(table), pytest.raises(StaleLease, match=r"its turn at analytics\.users; it changed nothing"):
            asleep._require_turn(table)


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────

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
