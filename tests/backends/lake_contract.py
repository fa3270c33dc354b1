"""What every kind of lake table keeps: each load is one commit that names its run, and other programs can read it."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import Target, pk
from ematix_flow.backends.delta import DeltaBackend
from ematix_flow.backends.iceberg import IcebergBackend
from ematix_flow.backends.lake import LakeBackend
from ematix_flow.backends.lake_commits import told
from ematix_flow.connections import Connection, PostgresConnection, SQLiteConnection
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.namespace import Ematix
from ematix_flow.declare.normalizers import default
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.declare.source import BatchSource
from ematix_flow.declare.table import ColumnSpec, table_spec
from ematix_flow.errors import FlowError, IncompatibleSchema, InvalidPlan, InvalidSource
from ematix_flow.testing.bench import Bench, source_name
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.contract_modes import Incremental, Scd2
from ematix_flow.testing.contract_runs import AfterLoad, Books, Looking, SeveralTargets
from ematix_flow.testing.contract_sources import Markers, RowSteps, Sources
from ematix_flow.testing.contract_tables import Tables
from ematix_flow.testing.contract_values import Names, Types, UnfitValues
from ematix_flow.testing.endpoints import Endpoint, Row, SqlEndpoint, SqliteEndpoint
from ematix_flow.testing.gaps import never, notyet
from ematix_flow.testing.lake_endpoints import LakeEndpoint
from ematix_flow.testing.spark import settings
from ematix_flow.types import BigInt, Text, TimestampTZ

NO_NAN = frozenset({("float", "nan"), ("double", "nan")})
NO_NUL = frozenset({("text", "a\x00b")})
SAME_FOR_ALL_LAKES = (Scd2, Incremental)
"""Parts of the contract whose statements are the very same for every kind of lake table."""


class LakeContract(BackendContract):
    """A folder of lake tables."""

    exact_history = never("two tables cannot be committed together")
    pushdown = never("only Spark writes lake tables")
    sql = notyet("a lake table runs no SQL of its own")
    keys_enforced = notyet("lake tables have no keys; a load checks what it brings")
    fills_added_columns = never("files that are there stay as they are")

    @pytest.fixture
    def sources(self, pg_url: str, tmp_project: Path) -> Mapping[str, Endpoint]:
        return {
            "postgres": SqlEndpoint(PostgresConnection(name="shop", url=pg_url), "public", NO_NUL),
            "sqlite": SqliteEndpoint(SQLiteConnection(name="till", path=str(tmp_project / "till.db")), "main", NO_NAN),
        }

    # ── beyond the contract ──────────────────────────────────────────────────────────────────────────────────────────

    def test_a_load_is_one_commit_that_names_its_run(self, bench: Bench) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        first = bench.load(users, [(1, "ann"), (2, "bob")], route="spark", mode="merge")
        second = bench.load(users, [(1, "Ann"), (3, "cid")], route="spark", mode="merge")
        marks = [mark for mark in endpoint(bench).commits("users") if mark]
        assert marks == [first.run_id, second.run_id]

    def test_a_merge_that_changes_nothing_commits_nothing(self, bench: Bench) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(users, [(1, "ann")], route="spark", mode="merge")
        before = len(endpoint(bench).commits("users"))
        again = bench.load(users, [(1, "ann")], route="spark", mode="merge")
        assert (again.rows_inserted, again.rows_updated, again.rows_unchanged) == (0, 0, 1)
        assert len(endpoint(bench).commits("users")) == before

    def test_a_repeated_logical_run_adds_no_commit(self, bench: Bench) -> None:
        users = bench.table("users", id=BigInt, name=Text)
        bench.load(users, [(1, "ann")], route="spark", mode="append", run_id="monday")
        before = len(endpoint(bench).commits("users"))
        again = bench.pipeline(users, route="spark", mode="append").sync(run_id="monday")
        assert again.replayed and len(endpoint(bench).commits("users")) == before
        assert bench.rows(users) == [(1, "ann")]

    def test_rows_still_come_after_the_books_were_lost_and_a_run_that_is_in_the_table_comes_once(
        self, bench: Bench
    ) -> None:
        users = bench.table("users", id=BigInt, name=Text)
        bench.load(users, [(1, "ann")], route="spark", mode="append", run_id="monday")
        shutil.rmtree(endpoint(bench).root / "_ematix_flow")
        again = bench.pipeline(users, route="spark", mode="append")
        assert again.sync(run_id="monday").replayed and bench.rows(users) == [(1, "ann")]
        bench.load(users, [(2, "bob")], route="spark", mode="append")
        assert again.sync(run_id="monday").replayed
        bench.load(users, [(3, "cid")], route="spark", mode="append", run_id="monday", name="of another pipeline")
        assert bench.rows(users) == [(1, "ann"), (2, "bob"), (3, "cid")]

    def test_a_row_stored_twice_is_updated_twice(self, bench: Bench) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(users, [(1, "ann"), (2, "bob")], route="spark", mode="append")
        bench.load(users, [(1, "ann")], route="spark", mode="append")
        merged = bench.load(users, [(1, "Ann"), (2, "bob")], route="spark", mode="merge")
        assert merged.rows_updated == 2
        assert bench.rows(users) == [(1, "Ann"), (1, "Ann"), (2, "bob")]

    def test_an_older_version_can_be_read(self, bench: Bench) -> None:
        users = bench.table("users", id=BigInt, name=Text)
        bench.load(users, [(1, "ann")], route="spark", mode="truncate")
        old = endpoint(bench).version("users")
        between = datetime.now(timezone.utc)
        bench.load(users, [(2, "bob")], route="spark", mode="truncate")
        then: dict[str, Any] = {
            "version": BatchSource(bench.target.connection, schema="analytics", table="users", version=old),
            "time": BatchSource(bench.target.connection, schema="analytics", table="users", timestamp=between),
            "sql": f"SELECT id, name FROM analytics.users VERSION AS OF {old}",
        }
        for how, source in then.items():
            copies = bench.table(f"by_{how}", id=BigInt, name=Text)
            bench.pipeline(copies, route="spark", mode="append", place=bench.target, function=giving(source)).sync()
            assert bench.rows(copies) == [(1, "ann")], how
        later = BatchSource(bench.target.connection, schema="analytics", table="users", timestamp="2999-01-01")
        newest = bench.table("newest", id=BigInt, name=Text)
        bench.pipeline(newest, route="spark", mode="append", place=bench.target, function=giving(later)).sync()
        assert bench.rows(newest) == [(2, "bob")], "nothing was loaded since"
        gone: dict[str, Any] = {
            "9": BatchSource(bench.target.connection, schema="analytics", table="users", version=9),
            str(10**19): BatchSource(bench.target.connection, schema="analytics", table="users", version=10**19),
            "8": "SELECT id, name FROM analytics.users VERSION AS OF 8",
            "1990-01-01": BatchSource(
                bench.target.connection, schema="analytics", table="users", timestamp="1990-01-01"
            ),
        }
        for said, source in gone.items():
            copies = bench.table("never", id=BigInt, name=Text)
            pipeline = bench.pipeline(copies, route="spark", mode="append", place=bench.target, function=giving(source))
            with pytest.raises(InvalidSource, match=said):
                pipeline.sync()
            assert bench.target.shape("never") is None
        with pytest.raises(InvalidSource, match="need a lake table"):
            source = BatchSource(bench.source.connection, schema="public", table="users", version=1)
            copies = bench.table("copies", id=BigInt, name=Text)
            bench.pipeline(copies, route="spark", mode="append", function=giving(source)).sync()

    def test_partitions_are_folders_and_survive_every_mode(self, bench: Bench) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], city=Text)
        for mode, rows in (("merge", [(1, "Rome"), (2, "Oslo")]), ("merge", [(2, "Paris")]), ("append", [(3, "Rome")])):
            bench.put(users, rows, route="spark")
            into(bench, users, mode=mode, partition_by=["city"]).sync()
        assert bench.rows(users) == [(1, "Rome"), (2, "Paris"), (3, "Rome")]
        folders = {folder.name for folder in endpoint(bench).folder("users").rglob("city=*")}
        assert folders >= {"city=Rome", "city=Paris"}
        with pytest.raises(IncompatibleSchema, match="is partitioned by 'city', and this load says .* 'id'"):
            into(bench, users, mode="append", partition_by=["id"]).sync()
        bench.load(users, [(4, "Rome")], route="spark", mode="append")
        assert bench.rows(users)[3:] == [(4, "Rome")]

    def test_two_pipelines_that_merge_at_once_lose_nothing(self, bench: Bench) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(users, [(0, "zero")], route="spark", mode="merge")
        pipelines = []
        for number in (1, 2):
            rows = [(0, f"by {number}"), *((n * 10 + number, f"by {number}") for n in range(1, 20))]
            bench.source.put(f"part{number}", table_spec(users).columns, rows)
            pipelines.append(
                bench.pipeline(
                    users,
                    name=f"merge{number}",
                    route="spark",
                    mode="merge",
                    source_table=f"{bench.source.schema}.part{number}",
                )
            )
        threads = [threading.Thread(target=pipeline.sync) for pipeline in pipelines]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = dict(bench.rows(users))
        assert len(found) == 39 and found.pop(0) in ("by 1", "by 2")
        assert all(name == f"by {key % 10}" for key, name in found.items())

    def test_a_key_that_another_program_adds_during_a_merge_is_not_there_twice(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(users, [(1, "ann")], route="spark", mode="merge")
        with monkeypatch.context() as during:
            between_check_and_statement(during, lambda: add(bench, "users", id="2", name="'theirs'"))
            bench.load(users, [(2, "bob")], route="spark", mode="merge")
        assert bench.rows(users) == [(1, "ann"), (2, "bob")]
        with monkeypatch.context() as during:
            while_the_statement_works(during, tmp_path, lambda: add(bench, "users", id="3", name="'theirs'"))
            bench.load(users, [(3, "cid")], route="spark", mode="merge")
        assert bench.rows(users) == [(1, "ann"), (2, "bob"), (3, "cid")]

    def test_a_version_that_another_program_adds_during_a_load_ends_when_the_next_begins(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        levels = bench.table("levels", id=Annotated[BigInt, pk()], level=Text)
        bench.load(levels, [(1, "low")], route="spark", mode="scd2")
        began = "TIMESTAMP '2020-01-01 00:00:00Z'"
        between_check_and_statement(
            monkeypatch, lambda: add(bench, "levels", id="2", level="'theirs'", valid_from=began)
        )
        bench.load(levels, [(1, "low"), (2, "high")], route="spark", mode="scd2")
        assert bench.history(levels) == [
            (1, "low", 2, None, True),
            (2, "high", 3, None, True),
            (2, "theirs", 1, 3, False),
        ]

    def test_a_new_not_null_column_is_added_when_no_row_stays_that_would_lack_it(self, bench: Bench) -> None:
        before = bench.table("users", id=Annotated[BigInt, pk()])
        bench.load(before, [], route="spark", mode="append")
        filled = bench.table("users", id=Annotated[BigInt, pk()], city=Annotated[Text, default("?")])
        bench.load(filled, [(1, "Rome"), (2, None)], route="spark", mode="append")
        assert bench.rows(filled) == [(1, "Rome"), (2, "?")]
        wider = bench.table("users", id=Annotated[BigInt, pk()], city=Text, zip=Annotated[Text, default("00")])
        with pytest.raises(IncompatibleSchema, match="'zip'.* cannot give them a default.*declare it nullable"):
            bench.load(wider, [(3, "Oslo", None)], route="spark", mode="append")
        assert bench.rows(filled) == [(1, "Rome"), (2, "?")] and "zip" not in bench.columns(filled)
        bench.load(wider, [(3, "Oslo", None)], route="spark", mode="truncate")
        assert bench.rows(wider) == [(3, "Oslo", "00")]

    def test_columns_that_only_the_table_has_are_left_alone(self, bench: Bench) -> None:
        from_elsewhere = {"id": Annotated[BigInt, pk()], "name": Text, "note": Text | None}
        for mode, rows in (
            ("append", [(1, "ann", "kept"), (2, "bob", None)]),
            ("truncate", [(2, "bob", None)]),
            ("merge", [(1, "ann", "kept"), (2, "bob", None)]),
        ):
            wider = bench.table(f"users_{mode}", **from_elsewhere)
            bench.load(wider, [(1, "ann", "kept")], route="spark", mode=mode)
            users = bench.table(f"users_{mode}", id=Annotated[BigInt, pk()], name=Text)
            bench.load(users, [(2, "bob")], route="spark", mode=mode)
            assert bench.rows(wider) == rows, mode

    def test_truncate_replaces_all_partitions_whatever_the_session_says_of_them(self, bench: Bench) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], city=Text)
        bench.put(users, [(1, "Rome"), (2, "Oslo")], route="spark")
        into(bench, users, mode="truncate", partition_by=["city"]).sync()
        bench.put(users, [(3, "Oslo")], route="spark")
        spark = endpoint(bench)._backend().spark()
        with told(spark, {"spark.sql.sources.partitionOverwriteMode": "dynamic"}):
            into(bench, users, mode="truncate").sync()
        assert bench.rows(users) == [(3, "Oslo")]

    def test_exact_history_is_refused_before_anything_is_made(self, bench: Bench) -> None:
        levels = bench.table("levels", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ)
        with pytest.raises(InvalidPlan, match="exact_history= needs a database"):
            bench.load(
                levels,
                [],
                route="spark",
                mode="scd2",
                event_timestamp_column="at",
                exact_history=True,
            )
        assert bench.target.shape("levels") is None

    def test_an_option_for_csv_files_is_refused(self, bench: Bench) -> None:
        users = bench.table("users", id=BigInt)
        with pytest.raises(FlowError, match="csv_header= is an option for files"):
            into(bench, users, mode="append", csv_header=True).sync()


def left_to_prove(contract: type[BackendContract], *parts: type) -> None:
    """Take parts of the contract out of `make test`; `make prove` runs all of it. A load into a lake takes seconds."""
    if not os.environ.get("EMATIX_PROVE"):
        for name in (name for part in parts for name in vars(part) if name.startswith("test_")):
            setattr(contract, name, None)


if settings().engine == "native" or settings().remote is not None:  # the other program is a second session of this JVM
    for _name in [name for name in vars(LakeContract) if "another_program_adds" in name]:
        setattr(LakeContract, _name, None)

# What a value goes through on its way is the same for all targets that Spark writes, and the tests of files look at it.
left_to_prove(
    LakeContract,
    Tables,
    Types,
    UnfitValues,
    Names,
    Sources,
    RowSteps,
    Markers,
    Looking,
    Books,
    SeveralTargets,
    AfterLoad,
)


class ReadBySpark(LakeEndpoint):
    """Lake tables that only Spark knows the way to: in a bucket, or listed by a catalog."""

    def __init__(self, connection: Connection, schema: str) -> None:
        super().__init__(connection, "", schema)

    def rows(self, name: str, columns: Sequence[ColumnSpec]) -> list[Row]:
        backend = self._backend()
        spark = backend.spark()
        backend.prepare(spark)
        return self._canonical(backend.frame(spark, TableRef(self.schema, name)).toArrow().to_pylist(), columns)

    def commits(self, name: str) -> list[str | None]:
        raise NotImplementedError

    def version(self, name: str) -> int:
        raise NotImplementedError


def into(bench: Bench, table: Any, **options: Any) -> Pipeline:
    """A pipeline whose target is said with options of its own."""
    target = Target(connection=bench.target.connection, table=table, **options)
    source = f"{bench.source.schema}.{source_name(table)}"
    declare = Ematix().pipeline(
        targets=[target], name="into", source_connection=bench.source.connection, source_table=source
    )
    return declare(lambda: None)


def add(bench: Bench, table: str, **values: str) -> None:
    """Add a row as another program would: one that is there, with other values in some columns."""
    from pyspark.sql import functions as F

    backend = endpoint(bench)._backend()
    theirs = backend.spark().newSession()  # one of its own, since settings of ours would mark the commit as a run's
    backend.prepare(theirs)
    name = backend.name_of(TableRef(bench.target.schema, table))
    stored = theirs.table(name)
    added = stored.limit(1).withColumns({column: F.expr(value) for column, value in values.items()})
    added.select(*(F.col(field.name).cast(field.dataType) for field in stored.schema)).write.insertInto(name)


def between_check_and_statement(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Let something happen once, just after a load has seen that nobody changed its table."""
    acts = [act]
    for kind in (DeltaBackend, IcebergBackend):
        original = kind.carry_out

        def carried_out(self: Any, *given: Any, _original: Any = original) -> None:
            if acts:
                acts.pop()()
            _original(self, *given)

        monkeypatch.setattr(kind, "carry_out", carried_out)


def while_the_statement_works(monkeypatch: pytest.MonkeyPatch, folder: Path, act: Callable[[], None]) -> None:
    """Let something happen once, while the rows of a load are on their way into its table."""
    begun, done = folder / "begun", folder / "done"
    packed = LakeBackend._packed

    def waits(batches: Any) -> Any:
        begun.touch()
        while not done.exists():
            time.sleep(0.05)
        yield from batches

    def acts() -> None:
        while not begun.exists():
            time.sleep(0.05)
        try:
            act()
        finally:
            done.touch()

    def slowly_packed(self: Any, rows: Any, plan: Any) -> Any:
        frame = packed(self, rows, plan)
        return frame.coalesce(1).mapInArrow(waits, frame.schema)

    monkeypatch.setattr(LakeBackend, "_packed", slowly_packed)
    monkeypatch.setattr(DeltaBackend, "_packed", slowly_packed)
    threading.Thread(target=acts, daemon=True).start()


def giving(source: Any) -> Any:
    """A pipeline function that returns a source."""

    def function(conn: Any) -> Any:
        return source

    return function


def endpoint(bench: Bench) -> LakeEndpoint:
    """The lake of a bench."""
    assert isinstance(bench.target, LakeEndpoint)
    return bench.target
