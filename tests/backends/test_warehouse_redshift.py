"""Redshift on a stand-in: PostgreSQL for the statements, an S3 server for the files, COPY played by the test."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pyarrow as pa
import pytest

from ematix_flow.backends.redshift import RedshiftBackend
from ematix_flow.connections import ObjectStoreLocalConnection, RedshiftConnection
from ematix_flow.declare.columns import ColumnType
from ematix_flow.declare.namespace import Ematix
from ematix_flow.declare.server_address import server_address
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import (
    ConnectionFailed,
    DuplicateKeys,
    InvalidConnection,
    UnfitValue,
    UnsupportedMode,
)
from ematix_flow.markers import pk
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import FilesEndpoint, SqlEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.testing.runlog import MemoryRunLog, use_run_log
from ematix_flow.types import (
    JSON,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)
from tests.services.moto import REGION, S3Server
from tests.services.redshift import StandInConnection

ROLE = "arn:aws:iam::123456789012:role/loader"


@pytest.fixture
def redshift(
    pg_url: str, s3_server: S3Server, s3_bucket: str, tmp_project: Path, monkeypatch: pytest.MonkeyPatch
) -> RedshiftConnection:
    monkeypatch.setattr(psycopg, "connect", StandInConnection.connect)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.loader[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.loader[1])
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    address = server_address(pg_url, default_port=5432)
    return RedshiftConnection(
        name="warehouse",
        host=address.host,
        port=address.port,
        database=str(address.database),
        user=str(address.user),
        password=str(address.password or "none"),
        s3_staging_dir=f"s3://{s3_bucket}/staging/",
        iam_role=ROLE,
    )


class RedshiftEndpoint(SqlEndpoint):
    backend: RedshiftBackend

    def column_sql(self, column: ColumnSpec) -> str:
        return self.dialect.quote(column.name)

    def described(self, kind: ColumnType) -> ColumnType:
        return self.dialect.from_native(self.dialect.type_sql(kind)) or kind


@pytest.fixture
def target(redshift: RedshiftConnection) -> RedshiftEndpoint:
    return RedshiftEndpoint(redshift, "analytics")


@pytest.fixture
def bench(target: RedshiftEndpoint, tmp_project: Path) -> Iterator[Bench]:
    lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
    with isolated_registry(), use_run_log(MemoryRunLog()):
        yield Bench(target, FilesEndpoint(lake))


def load(bench: Bench, table: Any, frame: Any, **options: Any) -> Any:
    run_id = options.pop("run_id", None)
    options = {"mode": "append", "name": "load", **options}

    def frame_of(conn: Any) -> Any:
        return frame

    declared = Ematix().pipeline(
        target=table, source_connection=bench.target.connection, target_connection=bench.target.connection, **options
    )(frame_of)
    return declared.sync(run_id=run_id)


def users(bench: Bench) -> Any:
    return bench.table("users", id=Annotated[BigInt, pk()], name=Text | None, seen=TimestampTZ | None)


def people(*rows: tuple[int, str | None]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([row[0] for row in rows], pa.int64()),
            "name": pa.array([row[1] for row in rows], pa.string()),
            "seen": pa.array([SEEN] * len(rows), pa.timestamp("us", tz="UTC")),
        }
    )


SEEN = datetime(2026, 3, 1, 12, 0, 0, 250000, tzinfo=timezone.utc)


def test_append_truncate_and_merge_leave_the_rows_they_should(
    bench: Bench, s3_server: S3Server, s3_bucket: str
) -> None:
    table = users(bench)
    assert load(bench, table, people((1, "ann"), (2, "it's a \\ test"))).rows_inserted == 2
    assert bench.rows(table) == [(1, "ann", SEEN), (2, "it's a \\ test", SEEN)]
    merged = load(bench, table, people((2, None), (3, "eve"), (1, "ann")), mode="merge")
    assert (merged.rows_inserted, merged.rows_updated, merged.rows_unchanged) == (1, 1, 1)
    gone = load(bench, table, people((3, "eve")), mode="merge", handle_deletes="hard")
    assert gone.rows_deleted == 2
    assert load(bench, table, people((9, "zoe")), mode="truncate").rows_inserted == 1
    assert bench.rows(table) == [(9, "zoe", SEEN)]
    assert bench.target.strays("users") == set() and s3_server.objects(s3_bucket) == {}


@pytest.mark.parametrize("mode", ["append", "truncate", "merge"])
def test_rows_of_the_same_database_are_pushed_down(bench: Bench, mode: str) -> None:
    table = users(bench)
    bench.load(table, [(1, "ann", SEEN)], route="pushdown", mode=mode)
    bench.load(table, [(1, "eve\\", SEEN), (2, "bob", None)], route="pushdown", mode=mode)
    kept = [(1, "ann", SEEN)] if mode == "append" else []
    assert bench.rows(table) == [*kept, (1, "eve\\", SEEN), (2, "bob", None)]
    assert bench.target.strays("users", "src_users") == set()


def test_every_type_arrives_through_spark_and_comes_back(bench: Bench) -> None:
    columns = {
        "small": SmallInt,
        "whole": Integer,
        "big": Annotated[BigInt, pk()],
        "single": Float,
        "real": Double,
        "exact": Numeric[38, 9],  # type: ignore[misc]
        "flag": Boolean,
        "text": Text,
        "short": String[5],  # type: ignore[misc]
        "day": Date,
        "clock": Timestamp,
        "moment": TimestampTZ,
        "doc": JSON,
        "key": UUID,
        "raw": Bytes,
    }
    row = (
        -5,
        2**31 - 1,
        -(2**63),
        0.5,
        0.1,
        Decimal("12345678901234567890123456789.123456789"),
        True,
        "déjà 🚲 \\ 'q'\n\t",
        "äöüßé",
        date(1, 1, 1),
        datetime(9999, 12, 31, 23, 59, 59, 999999),
        SEEN,
        {"a": [1, None]},
        "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        b"\x00\xff\\",
    )
    table = bench.table("things", columns)
    bench.load(table, [row], route="spark", mode="append")
    assert bench.rows(table) == [row]
    back = bench.table("back", columns)
    bench.pipeline(
        back, route="spark", mode="append", place=bench.target, source_table="analytics.things", name="back"
    ).sync()
    assert bench.rows(back) == [row]


def test_a_load_and_its_table_vanish_together_when_it_fails(bench: Bench) -> None:
    table = users(bench)
    with pytest.raises(DuplicateKeys, match="'id'"):
        load(bench, table, people((1, "ann"), (1, "eve")), mode="merge")
    assert bench.target.shape("users") is None and bench.target.strays() == set()
    tight = bench.table("tight", id=Annotated[BigInt, pk()], name=String[3])  # type: ignore[misc]
    with pytest.raises(UnfitValue, match="'name'"):
        load(bench, tight, people((1, "long")))
    assert bench.target.strays() == set()


def test_a_logical_run_is_applied_once_and_the_mark_moves_with_the_rows(bench: Bench) -> None:
    events = bench.table("events", id=Annotated[BigInt, pk()], at=TimestampTZ)
    later = SEEN.replace(day=2)
    for rows in ([(1, SEEN)], [(1, SEEN), (2, later)]):
        bench.load(events, rows, route="pushdown", mode="append", incremental_column="at")
    assert bench.rows(events) == [(1, SEEN), (2, later)]
    assert bench.watermark("events") == ("at", "2026-03-02T12:00:00.250000Z")
    table = users(bench)
    load(bench, table, people((1, "ann")), run_id="monday")
    assert load(bench, table, people((1, "ann")), run_id="monday").replayed
    assert len(bench.rows(table)) == 1


def test_a_new_column_is_added_and_a_wider_type_takes_what_fits_the_old(bench: Bench) -> None:
    load(bench, users(bench), people((1, "ann")))
    wider = bench.table(
        "users", id=Annotated[BigInt, pk()], name=Text | None, seen=TimestampTZ | None, age=Integer | None
    )
    load(bench, wider, people((2, "bob")).append_column("age", pa.array([7], pa.int32())))
    assert [row[3] for row in bench.rows(wider)] == [None, 7]
    changed = bench.table(
        "users", id=Annotated[BigInt, pk()], name=Text | None, seen=TimestampTZ | None, age=BigInt | None
    )
    load(bench, changed, people((3, "eve")).append_column("age", pa.array([8], pa.int64())))
    with pytest.raises(UnfitValue):
        load(bench, changed, people((4, "zoe")).append_column("age", pa.array([2**40], pa.int64())))
    assert [row[3] for row in bench.rows(changed)] == [None, 7, 8]


def test_writing_needs_a_place_and_a_role(bench: Bench, redshift: RedshiftConnection) -> None:
    from dataclasses import replace

    for missing in ("s3_staging_dir", "iam_role"):
        poor = Bench(RedshiftEndpoint(replace(redshift, **{missing: None}), "analytics"), bench.source)
        with pytest.raises(InvalidConnection, match=f"{missing} is required"):
            load(poor, users(poor), people((1, "ann")))


def test_a_bucket_that_is_not_there_is_one_clear_error(bench: Bench, redshift: RedshiftConnection) -> None:
    from dataclasses import replace

    lost = Bench(RedshiftEndpoint(replace(redshift, s3_staging_dir="s3://no-such-bucket/x"), "analytics"), bench.source)
    with pytest.raises(Exception, match="S3 refused"):
        load(lost, users(lost), people((1, "ann")))
    assert lost.target.strays() == set()


def test_scd2_is_refused(bench: Bench) -> None:
    with pytest.raises(UnsupportedMode, match="Redshift"):
        load(bench, users(bench), people((1, "ann")), mode="scd2")


def test_a_wrong_password_is_a_failed_connection_that_keeps_it_secret(redshift: RedshiftConnection) -> None:
    from dataclasses import replace

    wrong = replace(redshift, user="nobody", password="tulip-77")
    with pytest.raises(ConnectionFailed) as failed:
        RedshiftBackend(wrong).describe_query("SELECT 1")
    assert "tulip-77" not in str(failed.value)
