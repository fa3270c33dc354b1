"""BigQuery keeps what it promises, on bqemulator (a stand-in) and by Google's own client."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest

from ematix_flow.backends import warehouse
from ematix_flow.backends.bigquery import BigqueryBackend
from ematix_flow.backends.bigquery_dialect import BigqueryDialect
from ematix_flow.backends.bigquery_session import EMULATOR
from ematix_flow.config.handles import connect
from ematix_flow.connections import BigQueryConnection, ObjectStoreLocalConnection, register_connection
from ematix_flow.declare.columns import ColumnType
from ematix_flow.declare.namespace import Ematix
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import AlreadyRunning, DuplicateKeys, StatementFailed, UnfitValue, UnsupportedMode
from ematix_flow.markers import pk
from ematix_flow.normalize import trim
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import FilesEndpoint, Row, SqlEndpoint
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
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)
from tests.services import bqemulator

pytestmark = pytest.mark.filterwarnings("ignore:You are using a Python version:FutureWarning")

MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=timezone.utc)


class BigqueryEndpoint(SqlEndpoint):
    """A project of the stand-in."""

    backend: BigqueryBackend

    def column_sql(self, column: ColumnSpec) -> str:
        return self.backend.dialect.given_out(self.dialect.quote(column.name), column.type)

    def described(self, kind: ColumnType) -> ColumnType:
        return self.backend.dialect.from_native(self.dialect.type_sql(kind)) or kind

    def snapshot(self) -> dict[str, list[str]]:
        with self.backend.session() as db:
            datasets = [dataset.dataset_id for dataset in db.client.list_datasets()]  # type: ignore[attr-defined]
            tables = [
                (dataset, table.table_id)
                for dataset in datasets
                for table in db.client.list_tables(dataset)  # type: ignore[attr-defined]
            ]
            project = self.backend.project
            return {
                f"{dataset}.{name}": sorted(
                    repr(row) for row in db.execute(f"SELECT * FROM `{project}`.`{dataset}`.`{name}`").fetchall()
                )
                for dataset, name in tables
            }

    def strays(self, *tables: str) -> set[str]:
        books = {f"ematix_flow.{name}" for name in ("ledger", "applied_runs", "watermarks", "run_history")}
        return set(self.snapshot()) - books - {f"{self.schema}.{table}" for table in tables}


@pytest.fixture
def bigquery(bigquery_url: str, tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> BigQueryConnection:
    monkeypatch.setenv(EMULATOR, bigquery_url)
    same_type = BigqueryDialect.same_type

    def same_as_remembered(self: BigqueryDialect, declared: ColumnType, native: str) -> bool:
        """The stand-in forgets how long texts may be, digits, and documents; the service tells them."""
        made = self.type_sql(declared)
        forgotten = {"STRING": ("STRING(", "JSON"), "NUMERIC": ("NUMERIC(",)}.get(native, ())
        return made.startswith(forgotten) or same_type(self, declared, native)

    monkeypatch.setattr(BigqueryDialect, "same_type", same_as_remembered)
    return bqemulator.connection()


@pytest.fixture
def target(bigquery: BigQueryConnection) -> BigqueryEndpoint:
    return BigqueryEndpoint(bigquery, "analytics")


@pytest.fixture
def bench(target: BigqueryEndpoint, tmp_project: Path) -> Iterator[Bench]:
    lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
    with isolated_registry(), use_run_log(MemoryRunLog()):
        yield Bench(target, FilesEndpoint(lake))


def load(bench: Bench, table: Any, frame: Any, **options: Any) -> Any:
    """Load a frame: rows of this process, without Spark."""
    run_id = options.pop("run_id", None)
    options = {"mode": "append", "name": "load", **options}

    def frame_of(conn: Any) -> Any:
        return frame

    declared = Ematix().pipeline(
        target=table, source_connection=bench.target.connection, target_connection=bench.target.connection, **options
    )(frame_of)
    return declared.sync(run_id=run_id)


def users(bench: Bench) -> Any:
    return bench.table("users", id=Annotated[BigInt, pk()], name=Annotated[Text | None, None])


def people(*rows: tuple[int, str | None]) -> pa.Table:
    return pa.table(
        {"id": pa.array([r[0] for r in rows], pa.int64()), "name": pa.array([r[1] for r in rows], pa.string())}
    )


def test_append_truncate_and_merge_leave_the_rows_they_should(bench: Bench) -> None:
    table = users(bench)
    assert load(bench, table, people((1, "ann"), (2, "it's a \\ test"))).rows_inserted == 2
    assert bench.rows(table) == [(1, "ann"), (2, "it's a \\ test")]
    merged = load(bench, table, people((2, None), (3, "eve"), (1, "ann")), mode="merge")
    assert (merged.rows_inserted, merged.rows_updated, merged.rows_unchanged) == (1, 1, 1)
    gone = load(bench, table, people((3, "eve")), mode="merge", handle_deletes="hard")
    assert gone.rows_deleted == 2
    assert load(bench, table, people((9, "zoe")), mode="truncate").rows_inserted == 1
    assert bench.rows(table) == [(9, "zoe")]
    assert bench.target.strays("users") == set()


def test_a_key_twice_in_the_source_changes_nothing(bench: Bench) -> None:
    table = users(bench)
    load(bench, table, people((1, "ann")), mode="merge")
    with pytest.raises(DuplicateKeys, match="'id'"):
        load(bench, table, people((1, "eve"), (1, "bob")), mode="merge")
    assert bench.rows(table) == [(1, "ann")] and bench.target.strays("users") == set()
    told = [(run["status"], run["rows_inserted"], run["mode"]) for run in bench.runs("load")]
    assert told == [("success", 1, "merge"), ("failed", None, "merge")]


def test_scd2_is_refused_naming_where_histories_are_kept(bench: Bench) -> None:
    with pytest.raises(UnsupportedMode) as refused:
        load(bench, users(bench), people((1, "ann")), mode="scd2")
    assert "Delta" in str(refused.value.fix) and bench.target.snapshot() == {}


@pytest.mark.parametrize("mode", ["append", "truncate", "merge"])
def test_rows_of_the_same_project_are_pushed_down(bench: Bench, mode: str) -> None:
    table = users(bench)
    result = bench.load(table, [(1, "ann"), (2, "it's a \\ test")], route="pushdown", mode=mode)
    assert result.rows_inserted == 2 and bench.rows(table) == [(1, "ann"), (2, "it's a \\ test")]
    assert bench.target.strays("users", "src_users") == set()


@pytest.mark.parametrize("mode", ["append", "truncate", "merge"])
def test_rows_from_files_come_through_spark_by_load_jobs(bench: Bench, mode: str) -> None:
    table = users(bench)
    bench.load(table, [(1, "ann"), (2, "bob")], route="spark", mode=mode)
    bench.load(table, [(3, "eve")], route="spark", mode=mode)
    expected = {"append": [1, 2, 3], "truncate": [3], "merge": [1, 2, 3]}[mode]
    assert [row[0] for row in bench.rows(table)] == expected
    assert bench.target.strays("users") == set()


COLUMNS: Mapping[str, Any] = {
    "small": SmallInt,
    "whole": Integer,
    "big": Annotated[BigInt, pk()],
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
VALUES: Row = (
    -(2**15),
    2**31 - 1,
    -(2**63),
    0.1,
    Decimal("12345678901234567890123456789.123456789"),
    True,
    "déjà 🚲 'quoted' \\ back\nline",
    "a b c",
    date(1, 1, 1),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
    MOMENT,
    {"a": [1, "x", None]},
    "6f9619ff-8b86-d011-b42d-00c04fc964ff",
    b"\x00\xff'",
)


def test_every_type_arrives_through_spark_and_comes_back_exactly(bench: Bench) -> None:
    table = bench.table("things", COLUMNS)
    bench.load(table, [VALUES], route="spark", mode="append")
    assert bench.rows(table) == [VALUES]
    before = bench.columns(table)
    bench.load(table, [VALUES], route="spark", mode="append", on_drift="error")
    assert bench.columns(table) == before and len(bench.rows(table)) == 2
    back = bench.table("back", COLUMNS)
    bench.pipeline(
        back, route="spark", mode="append", place=bench.target, source_table="analytics.things", name="back"
    ).sync()
    assert bench.rows(back) == [VALUES, VALUES]


def test_a_value_that_does_not_fit_leaves_no_table_behind(bench: Bench, target: BigqueryEndpoint) -> None:
    target.put("src_small", [ColumnSpec("id", BigInt())], [(70_000,)])
    small = bench.table("small", id=Annotated[SmallInt, pk()])
    with pytest.raises(UnfitValue, match="'id'"):
        bench.pipeline(small, route="pushdown", mode="append").sync()
    tight = bench.table("tight", id=Annotated[BigInt, pk()], name=String[3])  # type: ignore[misc]
    with pytest.raises(UnfitValue, match="'name'"):
        load(bench, tight, people((1, "long")))
    assert bench.target.strays("src_small") == set()


def test_a_column_is_added_and_another_widened(bench: Bench) -> None:
    narrow = bench.table("sizes", id=Annotated[BigInt, pk()], note=String[3])  # type: ignore[misc]
    load(bench, narrow, pa.table({"id": pa.array([1], pa.int64()), "note": ["abc"]}))
    wide = bench.table("sizes", id=Annotated[BigInt, pk()], note=Text, age=Integer | None)
    age = pa.array([7], pa.int32())
    load(bench, wide, pa.table({"id": pa.array([2], pa.int64()), "note": ["abcdef"], "age": age}))
    assert bench.rows(wide) == [(1, "abc", None), (2, "abcdef", 7)]


def test_a_dry_run_keeps_nothing_not_even_the_table(bench: Bench) -> None:
    table = users(bench)
    bench.put(table, [(1, "ann")], route="pushdown")
    before = bench.target.snapshot()
    done = bench.pipeline(table, route="pushdown", mode="merge").dry_run()
    assert (done.targets[0].dry_run_rows_affected, done.targets[0].dry_run_error) == (1, None)
    assert {k: v for k, v in bench.target.snapshot().items() if not k.startswith("ematix")} == before


def test_an_incremental_load_reads_only_what_is_above_its_mark(bench: Bench) -> None:
    events = bench.table("events", id=Annotated[BigInt, pk()], at=TimestampTZ)
    first = datetime(2026, 3, 1, tzinfo=timezone.utc)
    second = datetime(2026, 3, 2, tzinfo=timezone.utc)
    for rows in ([(1, first)], [(1, first), (2, second)], [(1, first), (2, second)]):
        bench.load(events, rows, route="pushdown", mode="append", incremental_column="at")
    assert [row[0] for row in bench.rows(events)] == [1, 2]
    assert bench.watermark("events") == ("at", "2026-03-02T00:00:00.000000Z")


def test_a_logical_run_is_applied_once_and_one_at_a_time(bench: Bench, target: BigqueryEndpoint) -> None:
    table = users(bench)
    load(bench, table, people((1, "ann")), run_id="2026-03-01")
    again = load(bench, table, people((1, "ann")), run_id="2026-03-01")
    assert again.replayed and bench.rows(table) == [(1, "ann")]
    with target.backend.lease("load"), pytest.raises(AlreadyRunning):
        load(bench, table, people((2, "bob")))


def test_sql_of_the_user_runs_in_the_warehouse_and_markers_on_spark(bench: Bench) -> None:
    columns = {"id": Annotated[BigInt, pk()], "name": Annotated[Text, trim()]}
    table = bench.table("users", columns)
    bench.put(table, [(2, " ann ")], route="pushdown", columns={"id": BigInt(), "name": Text()})
    bench.pipeline(table, route="spark", mode="append", place=bench.target).sync()
    assert bench.rows(table) == [(2, "ann")]


def test_a_handle_runs_sql_and_a_wrong_query_is_one_clear_error(target: BigqueryEndpoint) -> None:
    target.put("ours", [ColumnSpec("id", BigInt())], [(1,)])
    register_connection(target.connection)
    with connect(target.connection.name) as db:
        assert db.execute("INSERT INTO analytics.ours (id) SELECT 2") == 1
        assert db.query("SELECT id FROM analytics.ours ORDER BY 1")["rows"] == [[1], [2]]
        some = db.query("SELECT id FROM analytics.ours ORDER BY 1", max_rows=1)
        assert some["rows"] == [[1]] and some["truncated"] and some["columns"][0]["name"] == "id"
        assert db.fetch_scalar_int("SELECT count(*) FROM analytics.ours") == 2
    with pytest.raises(StatementFailed, match="(?i)nowhere"):
        target.backend.describe_query("SELECT nothing FROM analytics.nowhere")


def test_the_unproven_path_is_said_once(
    target: BigqueryEndpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warehouse, "_warned", set())
    with caplog.at_level(logging.WARNING, "ematix_flow"):
        target.backend.check()
        target.backend.check()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "never against BigQuery itself" in said[0]
