"""Local files keep the contract as far as files can: append and truncate, through Spark, once per logical run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow.connections import ObjectStoreLocalConnection, PostgresConnection, SQLiteConnection
from ematix_flow.errors import IncompatibleSchema, UnfitValue
from ematix_flow.normalize import clamp
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.bucket_endpoints import AzureFilesEndpoint, GcsFilesEndpoint
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.contract_values import same, typed_rows, typed_table
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, SqlEndpoint, SqliteEndpoint
from ematix_flow.testing.gaps import never, notyet
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.testing.s3_endpoints import S3FilesEndpoint
from ematix_flow.types import BigInt, Date, Double, Float, Integer, Numeric, SmallInt, String, Text, TimestampTZ
from tests.services import azurite, gcs
from tests.services.azurite import AzureServer
from tests.services.gcs import GcsServer
from tests.services.moto import S3Server

NO_NAN = frozenset({("float", "nan"), ("double", "nan")})
NO_NUL = frozenset({("text", "a\x00b")})


class TestFiles(BackendContract):
    """A folder of Parquet files."""

    merge = never("rows in files cannot be found by key")
    scd2 = never("rows in files cannot be closed")
    pushdown = never("only Spark writes files")
    sql = never("a folder runs no SQL of its own")
    keys_enforced = notyet("files have no keys; a load checks what it brings")
    not_null_kept = notyet("files have no NOT NULL; a load checks what it brings")
    fills_added_columns = never("files that are there stay as they are")

    @pytest.fixture
    def target(self, tmp_project: Path) -> Endpoint:
        lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
        return FilesEndpoint(lake, schema="analytics")

    @pytest.fixture
    def sources(self, pg_url: str, tmp_project: Path) -> Mapping[str, Endpoint]:
        return {
            "postgres": SqlEndpoint(PostgresConnection(name="shop", url=pg_url), "public", NO_NUL),
            "sqlite": SqliteEndpoint(SQLiteConnection(name="till", path=str(tmp_project / "till.db")), "main", NO_NAN),
        }

    def test_files_of_different_widths_are_read_back_as_one_table(self, bench: Bench) -> None:
        small = {"v0": SmallInt, "v1": Integer, "v2": Float, "v3": String[3], "v4": Numeric[4, 2], "v5": Numeric[4, 2]}
        wide = {"v0": BigInt, "v1": BigInt, "v2": Double, "v3": Text, "v4": Numeric[8, 2], "v5": Numeric[38, 10]}
        first = (1, 7, 0.5, "abc", Decimal("12.34"), Decimal("12.34"))
        second = (2**40, 2**40, 0.1, "abcdef", Decimal("123456.78"), Decimal("9" * 28 + ".0123456789"))
        bench.load(bench.table("things", small), [first], route="spark", mode="append")
        bench.load(bench.table("things", wide), [second], route="spark", mode="append")
        # The narrow declaration comes back: its files are the newest, and the older ones are still wide.
        bench.load(bench.table("things", small), [first], route="spark", mode="append")
        copies = bench.table("copies", wide)
        copy = bench.pipeline(copies, route="spark", mode="append", place=bench.target, source_table="analytics.things")
        assert copy.sync().rows_inserted == 3
        assert bench.rows(copies) == bench.rows(bench.table("things", wide)) == [first, first, second]

    def test_a_column_that_only_older_files_have_is_still_there(self, bench: Bench) -> None:
        both = bench.table("users", id=BigInt, city=Text | None)
        bench.load(both, [(1, "Rome")], route="spark", mode="append")
        bench.load(bench.table("users", id=BigInt), [(2,)], route="spark", mode="append")
        assert list(bench.columns(both)) == ["id", "_loaded_at", "_batch_id", "city"]
        copies = bench.table("copies", id=BigInt, city=Text | None)
        bench.pipeline(copies, route="spark", mode="append", place=bench.target, source_table="analytics.users").sync()
        assert bench.rows(copies) == [(1, "Rome"), (2, None)]

    def test_a_truncate_may_change_everything(self, bench: Bench) -> None:
        bench.load(bench.table("users", id=BigInt, name=Text), [(1, "ann")], route="spark", mode="truncate")
        users = bench.table("users", id=Text, born=Date)
        bench.load(users, [("a", date(2026, 3, 1))], route="spark", mode="truncate")
        assert bench.rows(users) == [("a", date(2026, 3, 1))]
        assert list(bench.columns(users)) == ["id", "born", "_loaded_at", "_batch_id"]

    def test_another_type_is_refused_even_when_drift_is_only_to_be_warned_of(self, bench: Bench) -> None:
        users = bench.table("users", id=BigInt)
        bench.load(users, [(1,)], route="spark", mode="append")
        with pytest.raises(IncompatibleSchema, match="'id' is long, declared Text"):
            bench.load(bench.table("users", id=Text), [("a",)], route="spark", mode="append", on_drift="warn")
        assert bench.rows(users) == [(1,)]


class TestS3Files(TestFiles):
    """A bucket of Parquet files."""

    @pytest.fixture
    def target(self, s3_server: S3Server, s3_bucket: str, tmp_project: Path) -> Endpoint:
        return S3FilesEndpoint(s3_server.connection(s3_bucket), tmp_project / "bucket", schema="analytics")


class TestGcsFiles(TestFiles):
    """A bucket of Parquet files in Google Cloud Storage."""

    @pytest.fixture
    def target(self, gcs_server: GcsServer, tmp_project: Path) -> Iterator[Endpoint]:
        with gcs.fresh_bucket(gcs_server) as bucket:
            lake = gcs_server.connection(bucket)
            yield GcsFilesEndpoint(lake, gcs_server.client(), tmp_project / "bucket", schema="analytics")


class TestAzureFiles(TestFiles):
    """A container of Parquet files in Azure."""

    @pytest.fixture
    def target(self, azure_server: AzureServer, tmp_project: Path) -> Iterator[Endpoint]:
        with azurite.fresh_container(azure_server) as container:
            lake = azure_server.connection(container)
            yield AzureFilesEndpoint(lake, azure_server.client(), tmp_project / "bucket", schema="analytics")


IN_EVERY_RUN = {
    "test_a_bad_value_takes_back_the_schema_change_too",
    "test_a_column_that_only_older_files_have_is_still_there",
    "test_a_dry_run_of_an_append_tells_what_would_fail_and_leaves_no_trace",
    "test_a_new_nullable_column_is_added_and_old_rows_are_null_in_it",
    "test_a_preview_of_an_append_shows_every_column_and_touches_nothing",
    "test_a_table_made_by_hand_is_adopted",
    "test_append_adds_all_rows_every_time_and_stamps_them",
    "test_append_of_an_empty_source_creates_the_table_and_no_row",
    "test_every_append_is_in_the_history_of_the_target",
    "test_every_type_keeps_every_value",
    "test_hostile_names_are_appended_to",
    "test_incremental_append_takes_what_is_greater_in_the_columns_own_type",
    "test_nothing_of_a_load_is_left_beside_the_target",
    "test_repeating_a_logical_run_changes_nothing",
    "test_truncate_replaces_everything_or_nothing",
}
"""What a bucket could do otherwise than a folder; `make prove` runs the whole contract on it."""

FOR_EVERY_VENDOR = {
    "test_every_type_keeps_every_value",
    "test_hostile_names_are_appended_to",
    "test_repeating_a_logical_run_changes_nothing",
    "test_truncate_replaces_everything_or_nothing",
}
"""What the stores of two vendors could do differently still."""

if not os.environ.get("EMATIX_PROVE"):
    for bucket, kept in {
        TestS3Files: IN_EVERY_RUN,
        TestGcsFiles: FOR_EVERY_VENDOR,
        TestAzureFiles: FOR_EVERY_VENDOR,
    }.items():
        for name in [name for name in dir(bucket) if name.startswith("test_") and name not in kept]:
            setattr(bucket, name, None)


@pytest.mark.parametrize("file_format", ["csv", "json_lines", "orc"])
def test_every_format_keeps_every_value(file_format: str, tmp_project: Path) -> None:
    lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format=file_format)
    parquet = ObjectStoreLocalConnection(name="pond", path=str(tmp_project / "pond"), format="parquet")
    bench = Bench(FilesEndpoint(lake, schema="analytics"), FilesEndpoint(parquet))
    with isolated_registry():
        everything = typed_table(bench, "everything")
        rows = typed_rows(bench.target, bench.source)
        if file_format == "orc":  # it cannot keep all times, and a load says so
            gap, last_second = date(1582, 10, 10), datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc)
            rows = [tuple(None if value in (gap, last_second) else value for value in row) for row in rows]
        assert bench.load(everything, rows, route="spark", mode="append").rows_inserted == len(rows)
        # Spark writes ORC's old dates in the calendar of their time; only readers that know of it give them back.
        assert file_format == "orc" or same(bench.rows(everything)) == same(rows)
        # And back again, as our own reader sees them.
        back = Bench(FilesEndpoint(parquet), bench.target)
        copies = typed_table(back, "copies")
        back.pipeline(copies, route="spark", mode="append", source_table="analytics.everything").sync()
        assert same(back.rows(copies)) == same(rows)


@pytest.mark.parametrize(
    ("kind", "kept", "lost"),
    [
        (Date, [date(1582, 10, 4), date(1582, 10, 15)], [date(1582, 10, 5), date(1582, 10, 14)]),
        (
            TimestampTZ,
            [
                datetime(1969, 12, 31, 23, 59, 59, 999, tzinfo=timezone.utc),
                datetime(1970, 1, 1, tzinfo=timezone.utc),
                datetime(1582, 10, 4, 23, 59, 59, 999999, tzinfo=timezone.utc),
                datetime(1582, 10, 15, tzinfo=timezone.utc),
            ],
            [
                datetime(1969, 12, 31, 23, 59, 59, 1000, tzinfo=timezone.utc),
                datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc),
                datetime(1582, 10, 5, tzinfo=timezone.utc),
                datetime(1582, 10, 14, 23, 59, 59, 999999, tzinfo=timezone.utc),
            ],
        ),
    ],
)
def test_orc_refuses_times_that_it_would_change(kind: Any, kept: list[Any], lost: list[Any], tmp_project: Path) -> None:
    lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="orc")
    pond = FilesEndpoint(ObjectStoreLocalConnection(name="pond", path=str(tmp_project / "pond"), format="parquet"))
    bench, back = Bench(FilesEndpoint(lake, schema="analytics"), pond), Bench(pond, FilesEndpoint(lake))
    with isolated_registry():
        times = bench.table("times", v=kind)
        bench.load(times, [(value,) for value in kept], route="spark", mode="append")
        for value in lost:
            with pytest.raises(UnfitValue, match="'v'.*1582"):
                bench.load(times, [(value,)], route="spark", mode="append")
        copies = back.table("copies", v=kind)
        back.pipeline(copies, route="spark", mode="append", source_table="analytics.times").sync()
        assert back.rows(copies) == [(value,) for value in sorted(kept)]


def test_json_numbers_with_large_exponents_do_not_stop_a_load(tmp_project: Path) -> None:
    folder = tmp_project / "lake" / "raw" / "src_numbers"
    folder.mkdir(parents=True)
    exact = "12345678901234567.891"
    (folder / "rows.jsonl").write_text(f'{{"n": 1, "v": 1.5E22, "m": {exact}}}\n{{"n": 2, "v": 2.5, "m": 0.1}}\n')
    lines = FilesEndpoint(ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="json_lines"))
    pond = FilesEndpoint(ObjectStoreLocalConnection(name="pond", path=str(tmp_project / "pond"), format="parquet"))
    bench = Bench(pond, lines)
    with isolated_registry():
        numbers = bench.table("numbers", n=BigInt, v=Double, m=Annotated[Numeric[20, 3], clamp(1, 10**17)])
        bench.pipeline(numbers, route="spark", mode="append").sync()
        assert bench.rows(numbers) == [(1, 1.5e22, Decimal(exact)), (2, 2.5, Decimal("1.000"))]
