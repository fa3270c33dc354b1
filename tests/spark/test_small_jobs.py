"""A command with one small job starts Java for a short life; nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ematix_flow.backends.catalog import open_backend
from ematix_flow.config.spark_place import place_told
from ematix_flow.connections import (
    DeltaLocalConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
)
from ematix_flow.contracts.plans import SourceQuery
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.spark.batch import job_settings
from ematix_flow.spark.cluster_sizes import is_chosen, tasks_at_once, tasks_told
from ematix_flow.spark.remote import has_class
from ematix_flow.spark.session import fit_to_job
from ematix_flow.testing.spark import local_spark

MB = 1024 * 1024


@pytest.fixture(autouse=True)
def _nothing_said(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMATIX_FLOW_SHORT_JOB", raising=False)


@pytest.mark.parametrize(("size", "is_short"), [(1 * MB, True), (40 * MB, False)])
def test_a_command_that_reads_little_is_short(tmp_project: Path, size: int, is_short: bool) -> None:
    folder = tmp_project / "raw" / "orders"
    folder.mkdir(parents=True)
    with (folder / "a.csv").open("wb") as file:
        file.truncate(size)
    files = open_backend(ObjectStoreLocalConnection(name="inbox", path=str(tmp_project), format="csv"))
    for query in (
        SourceQuery(table=TableRef("raw", "orders")),
        SourceQuery(sql="raw/orders/a.csv"),
        SourceQuery(sql="SELECT * FROM raw.orders WHERE id > 7"),
    ):
        read = files.estimated_bytes(query)
        with place_told():
            assert job_settings(read, files).short_job is is_short  # type: ignore[arg-type]
        assert not job_settings(read, files).short_job  # type: ignore[arg-type]


def test_the_project_decides_for_all(tmp_project: Path) -> None:
    (tmp_project / ".ematix-flow.toml").write_text("[spark]\nshort_job = false\n")
    database = open_backend(SQLiteConnection(name="till", path=str(tmp_project / "till.db")))
    with place_told():
        assert job_settings(1, database).short_job is False  # type: ignore[arg-type]


def test_postgres_says_how_much_a_query_reads(pg_url: str) -> None:
    shop = open_backend(PostgresConnection(name="shop", url=pg_url))
    few = shop.estimated_bytes(SourceQuery(sql="SELECT 1 AS id"))
    many = shop.estimated_bytes(SourceQuery(sql="SELECT * FROM generate_series(1, 100000000) AS id"))
    assert few is not None and few < 1000
    assert many is not None and many > 100 * MB


def test_a_large_job_is_shuffled_into_more_parts_and_the_next_small_one_into_few() -> None:
    session = local_spark()
    few = session.conf.get("spark.sql.shuffle.partitions")
    fit_to_job(session, 10_000 * MB)
    assert session.conf.get("spark.sql.shuffle.partitions") == "157"
    fit_to_job(session, None)
    assert session.conf.get("spark.sql.shuffle.partitions") == "157", "nothing is known about this one"
    fit_to_job(session, 1 * MB)
    assert session.conf.get("spark.sql.shuffle.partitions") == few


def test_a_cluster_is_asked_how_many_tasks_it_runs_unless_somebody_has_chosen() -> None:
    session = local_spark().newSession()
    assert tasks_at_once(session, is_connect=False) is None, "this session was told when it was made"
    session.conf.unset("spark.sql.shuffle.partitions")
    here = session.sparkContext.defaultParallelism
    assert [tasks_at_once(session, is_connect=far) for far in (False, True)] == [here, here]
    assert tasks_told({"spark.executor.instances": "4", "spark.executor.cores": "8"}) == 32, "they will come"
    assert tasks_told({"spark.cores.max": "640"}) == 640 and tasks_told({}) == 0
    assert is_chosen({"spark.dynamicAllocation.enabled": "true"}), "they come and go"
    assert not is_chosen({"spark.dynamicAllocation.enabled": "false"})


def test_a_server_says_which_classes_it_has() -> None:
    session = local_spark()
    assert has_class(session, "org.apache.spark.sql.SparkSession")
    assert not has_class(session, "io.delta.sql.NoSuchExtension")


def test_a_load_into_a_lake_table_counts_what_is_compared_with(tmp_project: Path) -> None:
    (tmp_project / "lake" / "shop" / "orders").mkdir(parents=True)
    (tmp_project / "lake" / "shop" / "orders" / "part.parquet").write_bytes(b"0" * 1000)
    lake = open_backend(DeltaLocalConnection(name="lake", path=str(tmp_project / "lake")))
    assert lake.estimated_bytes(SourceQuery(table=TableRef("shop", "orders"))) == 1000
    assert lake.estimated_bytes(SourceQuery(sql="shop.orders")) == 1000
    assert lake.estimated_bytes(SourceQuery(sql="SELECT * FROM shop.orders")) == 1000
