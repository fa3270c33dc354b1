"""Snowflake keeps what it promises, on fakesnow (a stand-in): append, truncate, merge, incremental, once only."""

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
from ematix_flow.backends.snowflake import ADDRESS, SnowflakeBackend
from ematix_flow.config.handles import connect
from ematix_flow.connections import ObjectStoreLocalConnection, SnowflakeConnection, register_connection
from ematix_flow.declare.columns import ColumnType
from ematix_flow.declare.namespace import Ematix
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import (
    AlreadyRunning,
    ConnectionFailed,
    DuplicateKeys,
    FlowError,
    InvalidIdentifier,
    StatementFailed,
    UnfitValue,
    UnsupportedMode,
    WriteConflict,
)
from ematix_flow.markers import pk
from ematix_flow.normalize import derive, filter_where, trim
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import FilesEndpoint, Row, SqlEndpoint
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
from tests.services import fakesnow

ONE = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
MOMENT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=timezone.utc)


class SnowflakeEndpoint(SqlEndpoint):
    """A database of the stand-in; times are read as text, since it gives NULL back as 1970."""

    backend: SnowflakeBackend

    def column_sql(self, column: ColumnSpec) -> str:
        return self.backend.dialect.given_out(self.dialect.quote(column.name), column.type)

    def described(self, kind: ColumnType) -> ColumnType:
        return self.backend.dialect.made_for(self.dialect.type_sql(kind)) or kind

    def snapshot(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        listed = self.query("SELECT table_schema, table_name FROM information_schema.tables ORDER BY 1, 2")
        for schema, name in listed:
            found[f"{schema}.{name}"] = sorted(repr(row) for row in self.query(f'SELECT * FROM "{schema}"."{name}"'))
        return found

    def strays(self, *tables: str) -> set[str]:
        books = {f"EMATIX_FLOW.{name}" for name in ("LEDGER", "APPLIED_RUNS", "WATERMARKS", "RUN_HISTORY")}
        return set(self.snapshot()) - books - {f"{self.schema}.{table}".upper() for table in tables}


@pytest.fixture
def snowflake(snowflake_url: str, tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> SnowflakeConnection:
    monkeypatch.setenv(ADDRESS, snowflake_url)
    return fakesnow.connection()


@pytest.fixture
def target(snowflake: SnowflakeConnection) -> SnowflakeEndpoint:
    return SnowflakeEndpoint(snowflake, "analytics")


@pytest.fixture
def bench(target: SnowflakeEndpoint, tmp_project: Path) -> Iterator[Bench]:
    from ematix_flow.testing.registry import isolated_registry
    from ematix_flow.testing.runlog import MemoryRunLog, use_run_log

    lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
    with isolated_registry(), use_run_log(MemoryRunLog()):
        yield Bench(target, FilesEndpoint(lake))


def load(bench: Bench, table: Any, frame: Any, **options: Any) -> Any:
    """Load a frame: rows of this process, without Spark."""
    options.setdefault("mode", "append")
    options.setdefault("name", "load")
    run_id = options.pop("run_id", None)

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


class TestModes:
    def test_append_makes_the_table_and_adds_rows(self, bench: Bench) -> None:
        table = users(bench)
        assert load(bench, table, people((1, "ann"), (2, None))).rows_inserted == 2
        assert load(bench, table, people((2, "bob"))).rows_inserted == 1
        assert bench.rows(table) == [(1, "ann"), (2, None), (2, "bob")]
        assert bench.target.strays("users") == set()

    def test_truncate_replaces_all_rows(self, bench: Bench) -> None:
        table = users(bench)
        load(bench, table, people((1, "ann"), (2, "bob")), mode="truncate")
        assert load(bench, table, people((3, "eve")), mode="truncate").rows_inserted == 1
        assert bench.rows(table) == [(3, "eve")]

    def test_merge_inserts_updates_and_leaves_equal_rows_alone(self, bench: Bench) -> None:
        table = users(bench)
        first = load(bench, table, people((1, "ann"), (2, "bob"), (3, None)), mode="merge")
        second = load(bench, table, people((2, "bill"), (3, None), (4, "eve")), mode="merge")
        assert (first.rows_inserted, first.rows_updated, first.rows_unchanged) == (3, 0, 0)
        assert (second.rows_inserted, second.rows_updated, second.rows_unchanged) == (1, 1, 1)
        assert bench.rows(table) == [(1, "ann"), (2, "bill"), (3, None), (4, "eve")]
        written = bench.batches(table)
        assert written[1] == written[3] == first.run_id and written[2] == written[4] == second.run_id

    def test_merge_with_hard_deletes_removes_what_the_source_no_longer_has(self, bench: Bench) -> None:
        table = users(bench)
        load(bench, table, people((1, "ann"), (2, "bob")), mode="merge")
        done = load(bench, table, people((2, "bob")), mode="merge", handle_deletes="hard")
        assert done.rows_deleted == 1 and bench.rows(table) == [(2, "bob")]

    def test_a_key_twice_in_the_source_changes_nothing(self, bench: Bench) -> None:
        table = users(bench)
        load(bench, table, people((1, "ann")), mode="merge")
        with pytest.raises(DuplicateKeys, match="'id'"):
            load(bench, table, people((1, "eve"), (1, "bob")), mode="merge")
        assert bench.rows(table) == [(1, "ann")] and bench.target.strays("users") == set()

    def test_scd2_is_refused_naming_where_histories_are_kept(self, bench: Bench) -> None:
        with pytest.raises(UnsupportedMode) as refused:
            load(bench, users(bench), people((1, "ann")), mode="scd2")
        assert "Delta" in str(refused.value.fix) and bench.target.snapshot() == {}

    @pytest.mark.parametrize("mode", ["append", "truncate", "merge"])
    def test_rows_of_the_same_warehouse_are_pushed_down(self, bench: Bench, mode: str) -> None:
        table = users(bench)
        result = bench.load(table, [(1, "ann"), (2, "it's a \\ test")], route="pushdown", mode=mode)
        assert result.rows_inserted == 2 and bench.rows(table) == [(1, "ann"), (2, "it's a \\ test")]
        assert bench.target.strays("users", "src_users") == set()

    def test_names_without_a_schema_mean_the_one_of_the_connection(
        self, bench: Bench, target: SnowflakeEndpoint
    ) -> None:
        target.execute("CREATE TABLE here (id NUMBER(19,0), name VARCHAR)", "INSERT INTO here SELECT 1, 'ann'")
        pipeline = bench.pipeline(
            users(bench), route="pushdown", mode="merge", function=lambda conn: "SELECT * FROM here"
        )
        pipeline.sync()
        assert bench.rows(users(bench)) == [(1, "ann")]

    def test_sql_of_the_user_runs_in_the_warehouse_and_markers_on_spark(self, bench: Bench) -> None:
        columns = {
            "id": Annotated[BigInt, pk()],
            "name": Annotated[Text, trim()],
            "kind": Annotated[Text, derive("TYPEOF(TO_VARIANT(id))")],
        }
        table = bench.table("users", columns)
        bench.put(table, [(2, " ann ")], route="pushdown", columns={"id": BigInt(), "name": Text()})
        bench.pipeline(table, route="spark", mode="append", place=bench.target).sync()
        assert [row[:2] for row in bench.rows(table)] == [(2, "ann")] and bench.rows(table)[0][2] != ""

    def test_a_filter_runs_in_the_warehouse(self, bench: Bench) -> None:
        table = users(bench)
        bench.put(table, [(2, "ann"), (4, "bob"), (6, "eve")], route="pushdown")
        only = [filter_where("IFF(id < 5, TRUE, FALSE)")]  # no function of Spark's
        for route in ("spark", "pushdown"):
            bench.pipeline(table, route=route, mode="merge", place=bench.target, transforms_pre=only).sync()
            assert bench.rows(table) == [(2, "ann"), (4, "bob")]

    @pytest.mark.parametrize("mode", ["append", "truncate", "merge"])
    def test_rows_from_files_come_through_spark(self, bench: Bench, mode: str) -> None:
        table = users(bench)
        bench.load(table, [(1, "ann"), (2, "bob")], route="spark", mode=mode)
        bench.load(table, [(3, "eve")], route="spark", mode=mode)
        expected = {"append": [1, 2, 3], "truncate": [3], "merge": [1, 2, 3]}[mode]
        assert [row[0] for row in bench.rows(table)] == expected
        assert bench.target.strays("users") == set()


class TestTypes:
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
        ONE,
        b"\x00\xff'",
    )

    def test_every_type_arrives_through_spark_and_comes_back_exactly(self, bench: Bench) -> None:
        table = bench.table("things", self.COLUMNS)
        bench.load(table, [self.VALUES], route="spark", mode="append")
        assert bench.rows(table) == [self.VALUES]
        back = bench.table("back", self.COLUMNS)
        bench.pipeline(
            back, route="spark", mode="append", place=bench.target, source_table="analytics.things", name="back"
        ).sync()
        assert bench.rows(back) == [self.VALUES]

    def test_a_table_that_is_as_declared_needs_no_change(self, bench: Bench) -> None:
        table = bench.table("things", self.COLUMNS)
        bench.load(table, [self.VALUES], route="spark", mode="append")
        before = bench.columns(table)
        bench.load(table, [self.VALUES], route="spark", mode="append", on_drift="error")
        assert bench.columns(table) == before and len(bench.rows(table)) == 2

    def test_a_value_that_does_not_fit_leaves_no_table_behind(self, bench: Bench, target: SnowflakeEndpoint) -> None:
        target.put("src_small", [ColumnSpec("id", BigInt())], [(70_000,)])
        small = bench.table("small", id=Annotated[SmallInt, pk()])
        with pytest.raises(UnfitValue, match="'id'"):
            bench.pipeline(small, route="pushdown", mode="append").sync()
        assert bench.target.strays("src_small") == set()

    def test_a_text_longer_than_declared_is_refused_before_anything_changes(self, bench: Bench) -> None:
        table = bench.table("tight", id=Annotated[BigInt, pk()], name=String[3])  # type: ignore[misc]
        with pytest.raises(UnfitValue, match="'name'"):
            load(bench, table, people((1, "long")))
        assert bench.target.strays() == set()


class TestNames:
    def test_plain_names_are_the_ones_that_people_write_without_quotes(
        self, bench: Bench, target: SnowflakeEndpoint
    ) -> None:
        load(bench, users(bench), people((1, "ann")))
        assert target.query("select id, name from analytics.users") == [(1, "ann")]

    def test_other_names_are_kept_as_they_are_declared(self, bench: Bench) -> None:
        table = bench.table("Order Lines", {"Order No": Annotated[BigInt, pk()], "Unit price": Text | None})
        frame = pa.table({"Order No": pa.array([1], pa.int64()), "Unit price": ["x"]})
        load(bench, table, frame, mode="merge")
        load(bench, table, frame.set_column(1, "Unit price", pa.array(["y"])), mode="merge")
        assert bench.rows(table) == [(1, "y")]

    def test_a_plain_name_in_capitals_is_refused_with_the_one_to_use(self, bench: Bench) -> None:
        table = bench.table("shouting", ID=Annotated[BigInt, pk()])
        with pytest.raises(InvalidIdentifier, match="'id'"):
            load(bench, table, pa.table({"ID": pa.array([1], pa.int64())}))


class TestTables:
    def test_a_new_column_is_added(self, bench: Bench) -> None:
        load(bench, users(bench), people((1, "ann")))
        wider = bench.table("users", id=Annotated[BigInt, pk()], name=Text | None, age=Integer | None)
        rows = pa.table({"id": pa.array([2], pa.int64()), "name": ["bob"], "age": pa.array([7], pa.int32())})
        load(bench, wider, rows)
        assert bench.rows(wider) == [(1, "ann", None), (2, "bob", 7)]

    def test_ensure_makes_the_table_and_then_finds_it(self, bench: Bench, target: SnowflakeEndpoint) -> None:
        assert users(bench).ensure(target.connection)["action"] == "created"
        assert users(bench).ensure(target.connection) == {"action": "matched", "differences": []}

    def test_a_column_is_widened(self, bench: Bench) -> None:
        narrow = bench.table("sizes", id=Annotated[SmallInt, pk()], note=String[3])  # type: ignore[misc]
        load(bench, narrow, pa.table({"id": pa.array([1], pa.int16()), "note": ["abc"]}))
        wide = bench.table("sizes", id=Annotated[BigInt, pk()], note=Text)
        load(bench, wide, pa.table({"id": pa.array([2**60], pa.int64()), "note": ["abcdef"]}))
        assert bench.rows(wide) == [(1, "abc"), (2**60, "abcdef")]
        assert bench.columns(wide)["id"] == BigInt()

    def test_a_dry_run_keeps_nothing_not_even_the_table(self, bench: Bench) -> None:
        table = users(bench)
        bench.put(table, [(1, "ann")], route="pushdown")
        before = bench.target.snapshot()
        done = bench.pipeline(table, route="pushdown", mode="merge").dry_run()
        assert (done.targets[0].dry_run_rows_affected, done.targets[0].dry_run_error) == (1, None)
        assert {k: v for k, v in bench.target.snapshot().items() if not k.startswith("EMATIX")} == before


class TestBooks:
    def test_an_incremental_load_reads_only_what_is_above_its_mark(self, bench: Bench) -> None:
        events = bench.table("events", id=Annotated[BigInt, pk()], at=TimestampTZ)
        first = datetime(2026, 3, 1, tzinfo=timezone.utc)
        second = datetime(2026, 3, 2, tzinfo=timezone.utc)
        for rows in ([(1, first)], [(1, first), (2, second)], [(1, first), (2, second)]):
            bench.load(events, rows, route="pushdown", mode="append", incremental_column="at")
        assert [row[0] for row in bench.rows(events)] == [1, 2]
        assert bench.watermark("events") == ("at", "2026-03-02T00:00:00.000000Z")

    def test_a_logical_run_is_applied_once(self, bench: Bench) -> None:
        table = users(bench)
        load(bench, table, people((1, "ann")), run_id="2026-03-01")
        again = load(bench, table, people((1, "ann")), run_id="2026-03-01")
        assert again.replayed and bench.rows(table) == [(1, "ann")]

    def test_history_tells_how_runs_ended(self, bench: Bench) -> None:
        table = users(bench)
        load(bench, table, people((1, "ann")), mode="merge")
        with pytest.raises(DuplicateKeys):
            load(bench, table, people((1, "eve"), (1, "bob")), mode="merge")
        told = [(run["status"], run["rows_inserted"], run["mode"]) for run in bench.runs("load")]
        assert told == [("success", 1, "merge"), ("failed", None, "merge")]

    def test_a_second_run_on_this_machine_is_refused(self, bench: Bench, target: SnowflakeEndpoint) -> None:
        table = users(bench)
        load(bench, table, people((1, "ann")))
        with target.backend.lease("load"), pytest.raises(AlreadyRunning):
            load(bench, table, people((2, "bob")))
        assert bench.rows(table) == [(1, "ann")]

    def test_a_run_that_another_machine_took_over_changes_nothing(
        self, bench: Bench, target: SnowflakeEndpoint
    ) -> None:
        table = users(bench)

        def overtaken(conn: Any) -> Any:
            return people((1, "ann"))

        pipeline = Ematix().pipeline(
            target=table,
            source_connection=target.connection,
            target_connection=target.connection,
            name="load",
            mode="append",
        )(overtaken)
        other = SnowflakeBackend(target.connection)
        stage = SnowflakeBackend.stage

        def taken_over(self: Any, *arguments: Any) -> Any:
            landed = stage(self, *arguments)
            other.open_run(
                "load", run_id="other", logical_run=None, target=target.ref("users"), mode="append", now=MOMENT
            )
            return landed

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SnowflakeBackend, "stage", taken_over)
            with pytest.raises(WriteConflict, match="faster"):
                pipeline.sync()
        assert target.shape("users") is None

    def test_what_a_dead_run_left_behind_is_removed_by_the_next(self, bench: Bench, target: SnowflakeEndpoint) -> None:
        table = users(bench)
        load(bench, table, people((1, "ann")))
        backend = target.backend
        backend.open_run("load", run_id="dead", logical_run=None, target=target.ref("users"), mode="append", now=MOMENT)
        with backend.session() as db:
            backend.prepare(db, "dead", [ColumnSpec("id", BigInt())])
        assert len(target.strays("users")) == 1
        assert load(bench, table, people((2, "bob"))).rows_inserted == 1
        assert target.strays("users") == set()


class TestParts:
    def test_a_file_of_a_killed_attempt_is_not_taken(self, target: SnowflakeEndpoint, tmp_path: Path) -> None:
        import pyarrow.parquet as pq

        from ematix_flow.backends.warehouse_parts import Part

        backend, columns = target.backend, [ColumnSpec("id", BigInt())]
        sender = backend.sender("run", columns)
        backend.ensure_workshop()
        with backend.session() as db:
            backend.prepare(db, "run", columns)
        for name, values in (("dead.parquet", [1, 2]), ("a.parquet", [3]), ("b.parquet", [4])):
            pq.write_table(pa.table({"C0": pa.array(values, pa.int64())}), tmp_path / name)
            sender.send(str(tmp_path / name), name)
        with backend.session() as db:
            relation = backend.take_in(db, "run", columns, [Part("a.parquet", 1, 0), Part("b.parquet", 1, 0)])
            assert sorted(db.execute(f"SELECT c0 FROM {relation}").fetchall()) == [(3,), (4,)]


class TestPeople:
    def test_a_handle_runs_sql(self, snowflake: SnowflakeConnection) -> None:
        register_connection(snowflake)
        with connect(snowflake.name) as db:
            db.execute("CREATE TABLE public.t (a NUMBER(5,0))")
            assert db.execute("INSERT INTO public.t SELECT 1") == 1
            assert db.query("SELECT a FROM public.t")["rows"] == [[1]]

    def test_a_wrong_query_is_one_clear_error(self, target: SnowflakeEndpoint) -> None:
        with pytest.raises(StatementFailed, match="(?i)nowhere"):
            target.backend.describe_query("SELECT nothing FROM public.nowhere")

    def test_an_address_where_nobody_answers_is_a_failed_connection(
        self, snowflake: SnowflakeConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ADDRESS, "http://127.0.0.1:9")
        health = SnowflakeBackend(snowflake).check()
        assert not health.ok and "snow" not in health.detail.replace("Snowflake", "")

    def test_the_unproven_path_is_said_once(
        self, target: SnowflakeEndpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(warehouse, "_warned", set())
        with caplog.at_level(logging.WARNING, "ematix_flow"):
            target.backend.check()
            target.backend.check()
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1 and "never against Snowflake itself" in said[0]


def test_a_connection_error_is_ours(snowflake: SnowflakeConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, "http://127.0.0.1:9")
    with pytest.raises(ConnectionFailed) as failed:
        SnowflakeBackend(snowflake).describe_query("SELECT 1")
    assert isinstance(failed.value, FlowError) and isinstance(failed.value, ValueError)
