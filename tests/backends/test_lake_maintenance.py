"""Lake tables looked after: fewer files, the same rows, and nothing removed that somebody still needs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any, cast

import pyarrow as pa
import pytest

from ematix_flow import DeltaLocalConnection, IcebergConnection, Maintenance, SQLiteConnection, Target, ematix, pk
from ematix_flow.backends.lake_commits import told
from ematix_flow.backends.lake_maintenance import LakeMaintenance
from ematix_flow.contracts.plans import OpenedRun, RunResult
from ematix_flow.contracts.runtime import SilentObserver, StepStatus
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.declare.table import table_spec
from ematix_flow.errors import InvalidPlan, WriteConflict
from ematix_flow.run.maintenance import _is_loaded
from ematix_flow.run.runner import run_pipeline
from ematix_flow.testing.lake_endpoints import DeltaEndpoint, IcebergEndpoint, LakeEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.types import BigInt, Text
from tests.backends.lake_contract import ReadBySpark
from tests.backends.test_lake_s3 import delta, iceberg
from tests.services.moto import S3Server

NOW = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)
TABLE = TableRef("sales", "orders")
KINDS = ("delta", "iceberg")


@ematix.table(schema="sales")
class Orders:
    id: Annotated[BigInt, pk()]
    city: Text


@ematix.table(schema="sales")
class History:
    id: Annotated[BigInt, pk()]
    city: Text


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    with isolated_registry():
        yield


def lake(kind: str, folder: Path) -> LakeEndpoint:
    """An empty lake."""
    root = str(folder / kind)
    if kind == "delta":
        return DeltaEndpoint(DeltaLocalConnection(name="lake", path=root), schema="sales")
    return IcebergEndpoint(IcebergConnection(name="lake", warehouse=root), schema="sales")


def into(place: LakeEndpoint, rows: Any, table: Any = Orders, mode: str = "append", **options: Any) -> Pipeline:
    """A pipeline that brings rows: (id, city), or a frame."""
    frame = rows
    if isinstance(rows, list):
        frame = pa.table({"id": [row[0] for row in rows], "city": [row[1] for row in rows]})
    target: dict[str, Any] = {"target": table, "target_connection": place.connection, "mode": mode}
    if options:
        target = {"targets": [Target(connection=place.connection, table=table, mode=mode, **options)]}

    @ematix.pipeline(name="load", **target)
    def load(conn: Any) -> Any:
        return frame

    return load


def load_in_parts(place: LakeEndpoint, number: int, mode: str = "append") -> None:
    """As many loads as that, of two rows each."""
    for part in range(number):
        into(place, [(2 * part, "Rome"), (2 * part + 1, "Oslo")], mode=mode).sync()


def ids(place: LakeEndpoint) -> list[int]:
    """What is stored, as another program reads it."""
    return [row[0] for row in place.rows("orders", table_spec(Orders).columns)]


def looked_after(place: LakeEndpoint) -> LakeMaintenance:
    """Who looks after the lake's tables."""
    return place._backend().maintenance()


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_become_one_and_only_what_is_old_goes(kind: str, tmp_project: Path) -> None:
    place = lake(kind, tmp_project)
    load_in_parts(place, 3, mode="merge")
    into(place, [(1, "Paris"), (9, "Bern")], mode="merge").sync()  # marks a row as gone, beside its file
    runs = [mark for mark in place.commits("orders") if mark]
    kept = looked_after(place).run(TABLE, Maintenance(), now=datetime.now(timezone.utc))
    assert kept.before.live.files >= 4 and kept.after.live.files == 1
    assert kept.before.live.bytes > kept.after.live.bytes > 0
    assert any("put together into 1" in words for words in kept.done) and not kept.left_out
    assert ids(place) == [0, 1, 2, 3, 4, 5, 9]
    assert [mark for mark in place.commits("orders") if mark] == runs, "a week has not passed"
    assert kept.before.stored and kept.after.stored
    assert kept.after.stored.files > kept.before.stored.files, "the old files are still there"

    later = looked_after(place).run(
        TABLE, Maintenance(keep_snapshots=1), now=datetime.now(timezone.utc), retention=timedelta(0)
    )
    assert later.after.live == kept.after.live and later.after.stored
    assert later.after.stored.files < kept.after.stored.files
    assert len([file for file in place.folder("orders").rglob("*.parquet") if "_delta_log" not in file.parts]) == 1
    assert ids(place) == [0, 1, 2, 3, 4, 5, 9]
    assert looked_after(place).last(TABLE) == later.at.replace(microsecond=later.at.microsecond // 1000 * 1000)
    into(place, [(10, "Rome")]).sync()
    assert ids(place) == [0, 1, 2, 3, 4, 5, 9, 10]


@pytest.mark.parametrize("kind", KINDS)
def test_versions_stay_while_a_living_run_may_need_them(kind: str, tmp_project: Path) -> None:
    place = lake(kind, tmp_project)
    load_in_parts(place, 2)
    backend = place._backend()
    files = set(place.folder("orders").rglob("*.parquet"))
    run = OpenedRun("other", "run-1", "run-1", 0, None, False, None)
    with backend.books.lease("other"):
        backend.books.about_to_commit(run, TABLE, backend.books.state("other", ()))
        report = looked_after(place).run(
            TABLE, Maintenance(keep_snapshots=1), now=datetime.now(timezone.utc), retention=timedelta(0)
        )
    assert report.left_out == (
        "nothing old is removed: a run of 'other' is under way that the table's versions may have to tell about",
    )
    assert files <= set(place.folder("orders").rglob("*.parquet"))
    assert backend.books.ledger("other")["pending"] is not None
    looked_after(place).run(
        TABLE, Maintenance(keep_snapshots=1), now=datetime.now(timezone.utc), retention=timedelta(0)
    )
    assert backend.books.ledger("other")["pending"] is None, "its lease was free, so it was settled first"
    assert not files & set(place.folder("orders").rglob("*.parquet"))


if os.environ.get("EMATIX_PROVE"):  # a table in a bucket takes its time

    @pytest.mark.parametrize("connection", [delta, iceberg], ids=KINDS)
    def test_a_table_in_a_bucket_is_maintained_too(
        connection: Any, s3_server: S3Server, s3_bucket: str, tmp_project: Path
    ) -> None:
        place = ReadBySpark(connection(s3_server, s3_bucket, s3_server.loader), schema="sales")
        load_in_parts(place, 2)
        now = datetime.now(timezone.utc)
        report = looked_after(place).run(TABLE, Maintenance(keep_snapshots=1), now=now, retention=timedelta(0))
        assert (report.before.live.files, report.after.live.files) == (2, 1)
        assert not report.left_out and ids(place) == [0, 1, 2, 3]
        data = [key for key in s3_server.objects(s3_bucket) if key.endswith(".parquet") and "_delta_log" not in key]
        assert len(data) == 1


@contextmanager
def read_by_many_tasks(spark: Any) -> Iterator[None]:
    """Let every landed file be read by a task of its own, as on a machine with many cores."""
    settings = {"spark.sql.files.maxPartitionBytes": "1024", "spark.sql.files.openCostInBytes": "1024"}
    with told(spark, settings):
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_many_tasks_make_few_files_per_partition(kind: str, tmp_project: Path) -> None:
    place = lake(kind, tmp_project)
    spark = place._backend().spark()
    cities = "concat('city-', CAST(id % 5 AS STRING)) AS city"
    frame = spark.range(0, 4000, 1, 16).selectExpr("id", cities)
    folder, before = place.folder("orders"), set[Path]()
    # The first load lands, since it makes the table; the second goes straight in; the third works out what is new.
    for mode in ("append", "append", "scd2"):
        if mode == "scd2":
            folder, before = place.folder("history"), set()
        table = Orders if mode == "append" else History
        with read_by_many_tasks(spark):
            into(place, frame, table, mode=mode, partition_by=["city"]).sync()
        files = set(folder.rglob("city=*/*.parquet"))
        assert len({file.parent for file in files - before}) == 5
        assert len(files - before) <= 10, f"{mode}: 16 tasks could have written 80"
        before = files
    assert len(ids(place)) == 8000


@pytest.mark.parametrize("kind", KINDS)
def test_small_landed_rows_make_one_file(kind: str, tmp_project: Path) -> None:
    place = lake(kind, tmp_project)
    spark = place._backend().spark()
    with read_by_many_tasks(spark):
        into(place, spark.range(0, 4000, 1, 16).selectExpr("id", "'Rome' AS city")).sync()
    assert len(data_files(place)) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_many_tasks_that_write_straight_into_a_table_make_no_more_files_than_a_shuffle_has_parts(
    kind: str, tmp_project: Path
) -> None:
    place = lake(kind, tmp_project)
    spark = place._backend().spark()
    parts = int(spark.conf.get("spark.sql.shuffle.partitions") or 0)
    into(place, [(9, "Oslo")]).sync()
    into(place, spark.range(10, 4010, 1, 5 * parts).selectExpr("id", "'Rome' AS city")).sync()
    assert len(data_files(place)) <= 1 + parts
    assert ids(place) == [9, *range(10, 4010)]


def data_files(place: LakeEndpoint) -> list[Path]:
    """Every file with rows that is below the table's folder."""
    return [file for file in place.folder("orders").rglob("*.parquet") if "_delta_log" not in file.parts]


# ── when ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Steps(SilentObserver):
    """Remembers the ends of steps."""

    def __init__(self) -> None:
        self.ended: dict[str, tuple[StepStatus, str]] = {}

    def step(self, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        if status != "running":
            self.ended[name] = (status, detail)


def looked_after_orders() -> Any:
    @ematix.table(schema="sales", name="orders", maintenance=Maintenance(every="1d"))
    class Tended:
        id: Annotated[BigInt, pk()]
        city: Text

    return Tended


def run(pipeline: Pipeline) -> tuple[Any, Steps]:
    watching = Steps()
    return run_pipeline(pipeline.spec, observer=watching), watching


def age_by_a_day(place: LakeEndpoint) -> None:
    """Let the last maintenance of the table lie a day and an hour further back."""
    maintenance = looked_after(place)
    book = cast(dict[str, Any], maintenance._book(TABLE))
    for key in ("since", "tried", "at"):
        if book.get(key):
            book[key] = (datetime.fromisoformat(book[key]) - timedelta(hours=25)).isoformat()
    maintenance.store.write_json(maintenance._book_path(TABLE), book)


def test_a_load_maintains_its_table_when_that_is_due_and_never_fails_by_it(
    tmp_project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, table = lake("delta", tmp_project), looked_after_orders()
    result, watched = run(into(place, [(1, "Rome")], table))
    assert "maintain" not in watched.ended, "a first load leaves nothing to tidy up"
    age_by_a_day(place)
    _, watched = run(into(place, [(2, "Oslo")], table))
    status, words = watched.ended["maintain"]
    assert status == "succeeded" and words.startswith("2 files") and "2 files put together into 1" in words
    _, watched = run(into(place, [(3, "Bern")], table))
    assert "maintain" not in watched.ended, "a day has not passed"

    def broken(*_: Any) -> list[str]:
        raise OSError("no space left")

    from ematix_flow.backends.delta_maintenance import DeltaMaintenance

    age_by_a_day(place)
    monkeypatch.setattr(DeltaMaintenance, "compact", broken)
    with caplog.at_level(logging.WARNING):
        result, watched = run(into(place, [(4, "Wien")], table))
    assert result.rows_inserted == 1
    assert watched.ended["maintain"][0] == "failed"
    assert "sales.orders is loaded, but its maintenance failed" in caplog.text
    assert ids(place) == [1, 2, 3, 4]


def test_only_targets_that_were_loaded_are_looked_after(tmp_project: Path) -> None:
    here, there = (lake(kind, tmp_project).connection for kind in KINDS)
    targets = [Target(connection=here, table=Orders, mode="append"), Target(connection=there, table=History)]

    @ematix.pipeline(targets=targets, mode="append", continue_on_target_failure=True)
    def load(conn: Any) -> Any:
        return None

    first, second = load.spec.targets
    result = RunResult(results={"sales.orders": RunResult(rows_inserted=1)}, errors={"sales.history": "broken"})
    assert _is_loaded(load.spec, first, result) and not _is_loaded(load.spec, second, result)
    assert not _is_loaded(load.spec, first, {"sales.orders": "what a function returned by itself"})


def test_a_table_is_due_when_its_time_has_passed_also_since_it_failed(
    tmp_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintenance = looked_after(lake("delta", tmp_project))
    asked: list[datetime] = []
    monkeypatch.setattr(maintenance, "_run", lambda table, wanted, retention, now: asked.append(now))
    for hours in (0, 23, 24, 25, 47):
        maintenance.run_if_due(TABLE, Maintenance(), now=NOW + timedelta(hours=hours), begin=lambda: None)
    assert asked == [NOW + timedelta(hours=24)]
    assert maintenance.last(TABLE) is None


def test_another_programs_commit_makes_a_step_begin_anew(tmp_project: Path) -> None:
    maintenance = looked_after(lake("delta", tmp_project))
    conflicts = [RuntimeError("[DELTA_CONCURRENT_APPEND] files were added")] * 2

    def step() -> list[str]:
        if conflicts:
            raise conflicts.pop()
        return ["done"]

    assert maintenance._patiently(step) == ["done"]
    conflicts += [RuntimeError("[DELTA_CONCURRENT_APPEND] files were added")] * 5
    with pytest.raises(WriteConflict, match="3 times"):
        maintenance._patiently(step)


def test_maintenance_of_a_database_table_is_refused_before_anything_runs(tmp_project: Path) -> None:
    till = SQLiteConnection(name="till", path=str(tmp_project / "till.db"))

    @ematix.table(schema="main", maintenance=True)
    class Sold:
        id: BigInt

    @ematix.pipeline(target=Sold, target_connection=till, mode="append")
    def load(conn: Any) -> str:
        return "SELECT 1 AS id"

    for look_or_load in (load.preview, load.sync):
        with pytest.raises(InvalidPlan, match=r"Only lake tables \(Delta, Iceberg\) are maintained, and main.sold"):
            look_or_load()
