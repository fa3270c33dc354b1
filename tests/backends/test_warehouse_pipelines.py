"""Pipelines between warehouses: what is declared, what is refused, and what moves (on stand-ins)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ematix_flow import ematix
from ematix_flow.backends.snowflake import ADDRESS
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.connections import PostgresConnection, register_connection
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.pipeline import get_pipeline, list_pipelines, run_pipeline
from ematix_flow.source import Source
from ematix_flow.spark.session import open_session
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.warehouse_pipeline import run_warehouse_pipeline as same_function
from ematix_flow.warehouses import (
    BigQueryConnection,
    FileWatermarkStore,
    InMemoryWatermarkStore,
    RedshiftConnection,
    SnowflakeConnection,
    WarehouseRunResult,
    WarehouseSource,
    WarehouseSyncError,
    WarehouseTarget,
    bigquery_write_arrow,
    redshift_query_to_arrow,
    redshift_write_arrow,
    run_warehouse_pipeline,
    snowflake_query_to_arrow,
    snowflake_write_arrow,
)
from tests.backends.test_warehouse_redshift import redshift as redshift  # a fixture
from tests.services import fakesnow

ORDERS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "price": pa.array([Decimal("1.50"), None, Decimal("3.00")], pa.decimal128(10, 2)),
        "day": pa.array([date(2026, 3, 1), date(2026, 3, 2), None], pa.date32()),
        "seen_at": pa.array(
            [datetime(2026, 3, d, tzinfo=timezone.utc) for d in (1, 2, 3)], pa.timestamp("us", tz="UTC")
        ),
        "note": ["a", None, "it's \\"],
    }
)
SNOWFLAKE = SnowflakeConnection(name="sf", account="a", user="u", password="p")
BIGQUERY = BigQueryConnection(name="bq", project="p", dataset="d")
REDSHIFT = RedshiftConnection(name="rs", host="h", database="d", user="u", password="p")


@pytest.fixture(autouse=True)
def _apart(tmp_project: Path) -> Iterator[None]:
    with isolated_registry():
        yield


@pytest.fixture
def warehouse(snowflake_url: str, monkeypatch: pytest.MonkeyPatch) -> SnowflakeConnection:
    monkeypatch.setenv(ADDRESS, snowflake_url)
    return fakesnow.connection()


def rows(connection: SnowflakeConnection, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in snowflake_query_to_arrow(connection, sql).to_pylist()]


# ── declaring ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_targets_have_a_constructor_per_warehouse() -> None:
    assert WarehouseTarget.snowflake_table(SNOWFLAKE, "a.t") == WarehouseTarget(SNOWFLAKE, "a.t", "snowflake", True)
    assert WarehouseTarget.bigquery_table(BIGQUERY, "t", create_if_not_exists=False) == WarehouseTarget(
        BIGQUERY, "t", "bigquery", False
    )
    assert WarehouseTarget.redshift_table("rs", "a.t").kind == "redshift"
    assert same_function is run_warehouse_pipeline


def test_a_connection_of_another_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="snowflake connection"):
        WarehouseSource(BIGQUERY, "SELECT 1", "snowflake")
    with pytest.raises(TypeError, match="redshift connection"):
        WarehouseTarget.redshift_table(SNOWFLAKE, "t")
    with pytest.raises(ValueError, match="no warehouse"):
        WarehouseSource(SNOWFLAKE, "SELECT 1", "snowflak")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="empty"):
        WarehouseSource(SNOWFLAKE, " ; ", "snowflake")
    with pytest.raises(ValueError, match="no name"):
        WarehouseTarget.snowflake_table(SNOWFLAKE, "a..t")


SOURCE = WarehouseSource(SNOWFLAKE, "SELECT 1", "snowflake")
TARGET = WarehouseTarget.bigquery_table(BIGQUERY, "t")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "SELECT 1", "target": TARGET}, "WarehouseSource"),
        ({"source": SOURCE, "target": "t"}, "WarehouseTarget"),
        ({"source": SOURCE, "target": TARGET, "incremental_column": "seen_at"}, "go together"),
        ({"source": SOURCE, "target": TARGET, "watermark_store": InMemoryWatermarkStore()}, "go together"),
        ({"source": SOURCE, "target": TARGET, "incremental_column": "seen_at", "watermark_store": {}.keys()}, "get"),
    ],
)
def test_wrong_declarations_are_type_errors(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        ematix.warehouse_pipeline(schedule=None, **options)


def test_the_function_takes_nothing_and_gives_sql_or_none() -> None:
    with pytest.raises(TypeError):

        @ematix.warehouse_pipeline(source=SOURCE, target=TARGET, schedule=None)
        def wants(conn: Any) -> None: ...

    @ematix.warehouse_pipeline(source=SOURCE, target=TARGET, schedule=None)
    def gives() -> Any:
        return 5

    with pytest.raises(TypeError, match="int"):
        gives()


def test_a_declared_pipeline_is_registered_with_its_schedule() -> None:
    @ematix.warehouse_pipeline(
        source=SOURCE, target=TARGET, schedule="0 6 * * *", name="nightly", retry={"max_attempts": 2}
    )
    def move() -> None: ...

    assert get_pipeline("nightly") is move
    assert [(p.name, p.schedule) for p in list_pipelines()] == [("nightly", "0 6 * * *")]
    with pytest.raises(ValueError):
        ematix.warehouse_pipeline(source=SOURCE, target=TARGET, schedule="not a schedule")(lambda: None)


def test_a_source_of_the_batch_kind_is_taken_too() -> None:
    declared = ematix.warehouse_pipeline(
        source=Source.snowflake_query(SNOWFLAKE, "SELECT 1"), target=TARGET, schedule=None, name="batch"
    )(lambda: None)
    assert declared.source == SOURCE
    other = Source.postgres_query(PostgresConnection(name="pg", url="postgres://u@h/d"), "SELECT 1")
    with pytest.raises(TypeError):
        ematix.warehouse_pipeline(source=other, target=TARGET, schedule=None)


@pytest.mark.parametrize(
    ("module", "connection", "kind"),
    [
        ("snowflake", SNOWFLAKE, "snowflake"),
        ("google.cloud.bigquery", BIGQUERY, "bigquery"),
        ("psycopg", REDSHIFT, "redshift"),
    ],
)
def test_a_missing_sdk_is_an_import_error_that_names_the_extra(
    module: str, connection: Any, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    if module.startswith("google"):
        monkeypatch.setitem(sys.modules, "google.cloud", None)
    with pytest.raises(ImportError) as missing:
        run_warehouse_pipeline(WarehouseSource(connection, "SELECT 1", kind), WarehouseTarget(connection, "t", kind))
    assert f'pip install "ematix-flow[{kind}]"' in str(missing.value)


# ── moving, on the stand-in for Snowflake ────────────────────────────────────────────────────────────────────────────


def test_arrow_goes_in_and_comes_back_as_it_was(warehouse: SnowflakeConnection) -> None:
    assert snowflake_write_arrow(warehouse, "public.orders", ORDERS) == 3
    back = snowflake_query_to_arrow(warehouse, "SELECT * FROM orders ORDER BY id;")
    assert back.column_names == ORDERS.column_names
    assert back.set_column(0, "id", back.column("id").cast(pa.int64())).to_pylist() == ORDERS.to_pylist()
    assert snowflake_write_arrow(warehouse, "PUBLIC.Orders", ORDERS.slice(0, 1)) == 1
    assert rows(warehouse, "SELECT count(*) AS n FROM orders") == [(4,)]


def test_without_create_a_missing_table_is_an_error_and_nothing_is_left(warehouse: SnowflakeConnection) -> None:
    with pytest.raises(WarehouseSyncError, match="'nowhere'"):
        snowflake_write_arrow(warehouse, "nowhere", ORDERS, create_if_not_exists=False)
    assert rows(warehouse, "SELECT count(*) AS n FROM information_schema.tables") == [(0,)]


def test_rows_move_from_one_warehouse_to_another(warehouse: SnowflakeConnection) -> None:
    snowflake_write_arrow(warehouse, "orders", ORDERS)
    other = fakesnow.connection("other")
    result = run_warehouse_pipeline(
        WarehouseSource(warehouse, "SELECT id, note FROM orders WHERE id > 1;", "snowflake"),
        WarehouseTarget.snowflake_table(other, "moved"),
    )
    assert isinstance(result, WarehouseRunResult)
    assert (result.rows_read, result.rows_written) == (2, 2) and result.duration_ms > 0
    assert rows(other, "SELECT id, note FROM moved ORDER BY id") == [(2, None), (3, "it's \\")]


def test_no_rows_still_make_the_table(warehouse: SnowflakeConnection) -> None:
    snowflake_write_arrow(warehouse, "orders", ORDERS)
    source = WarehouseSource(warehouse, "SELECT id, note FROM orders WHERE id > 9", "snowflake")
    result = run_warehouse_pipeline(source, WarehouseTarget.snowflake_table(warehouse, "moved"))
    assert (result.rows_read, result.rows_written) == (0, 0)
    assert rows(warehouse, "SELECT count(*) AS n FROM moved") == [(0,)]


def test_sql_sees_the_rows_as_the_table_source(warehouse: SnowflakeConnection) -> None:
    snowflake_write_arrow(warehouse, "orders", ORDERS)
    result = run_warehouse_pipeline(
        WarehouseSource(warehouse, "SELECT * FROM orders", "snowflake"),
        WarehouseTarget.snowflake_table(warehouse, "totals"),
        transform_sql="SELECT count(*) AS n, sum(price) AS total, max(seen_at) AS last FROM source",
    )
    assert (result.rows_read, result.rows_written) == (3, 1)
    last = datetime(2026, 3, 3, tzinfo=timezone.utc)
    assert rows(warehouse, "SELECT n, total, last FROM totals") == [(3, Decimal("4.50"), last)]


def test_sql_of_another_dialect_is_translated_and_a_view_of_the_users_stays(warehouse: SnowflakeConnection) -> None:
    spark = open_session(SessionNeeds(), spark_settings())
    spark.range(7).createOrReplaceTempView("source")
    try:
        moved = run_warehouse_pipeline(
            WarehouseSource(warehouse, "SELECT 'a,b' AS pair", "snowflake"),
            WarehouseTarget.snowflake_table(warehouse, "parts"),
            transform_sql="SELECT upper(source.pair) AS pair, strpos(pair, 'b')::bigint AS place FROM source",
            dialect="postgres",
        )
        assert moved.rows_written == 1
        assert rows(warehouse, "SELECT pair, place FROM parts") == [("A,B", 3)]
        assert spark.table("source").count() == 7
    finally:
        spark.catalog.dropTempView("source")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT id,\n  pryce FROM source", "transform_sql (postgres), line 2, column 3: 'pryce'"),
        ("SELECT id FROM orders", "names the table 'orders'; it can name 'source'"),
    ],
)
def test_an_error_in_sql_points_into_it_and_nothing_is_written(
    sql: str, said: str, warehouse: SnowflakeConnection
) -> None:
    snowflake_write_arrow(warehouse, "orders", ORDERS)
    source, target = WarehouseSource(warehouse, "SELECT * FROM orders", "snowflake"), "wrong"
    with pytest.raises(WarehouseSyncError) as failed:
        made = WarehouseTarget.snowflake_table(warehouse, target)
        run_warehouse_pipeline(source, made, transform_sql=sql, dialect="postgres")
    assert said in str(failed.value)
    with pytest.raises(WarehouseSyncError):
        rows(warehouse, f"SELECT * FROM {target}")


def test_a_failure_is_one_kind_of_error(warehouse: SnowflakeConnection) -> None:
    target = WarehouseTarget.snowflake_table(warehouse, "moved")
    with pytest.raises(WarehouseSyncError, match="snowflake → snowflake table 'moved'") as failed:
        run_warehouse_pipeline(WarehouseSource(warehouse, "SELECT 1 FROM nowhere", "snowflake"), target)
    assert isinstance(failed.value, RuntimeError)


def test_connections_may_be_named(warehouse: SnowflakeConnection) -> None:
    register_connection(warehouse)
    source = WarehouseSource(warehouse.name, "SELECT 1 AS id", "snowflake")
    assert run_warehouse_pipeline(source, WarehouseTarget.snowflake_table(warehouse.name, "one")).rows_written == 1
    register_connection(REDSHIFT)
    with pytest.raises(TypeError, match="redshift"):
        run_warehouse_pipeline(WarehouseSource("rs", "SELECT 1", "snowflake"), WarehouseTarget("rs", "t", "redshift"))


class Recording(InMemoryWatermarkStore):
    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def set(self, name: str, value: Any) -> None:
        self.kept.append(value)
        super().set(name, value)


def test_an_incremental_pipeline_reads_above_its_mark(warehouse: SnowflakeConnection) -> None:
    store = Recording()

    @ematix.warehouse_pipeline(
        source=WarehouseSource(warehouse, "SELECT id, seen_at FROM orders", "snowflake"),
        target=WarehouseTarget.snowflake_table(warehouse, "moved"),
        schedule=None,
        incremental_column="seen_at",
        watermark_store=store,
    )
    def newest() -> None: ...

    snowflake_write_arrow(warehouse, "orders", ORDERS.slice(0, 2))
    first = newest()
    assert {key: first[key] for key in ("status", "pipeline", "rows_read", "rows_written", "watermark")} == {
        "status": "succeeded",
        "pipeline": "newest",
        "rows_read": 2,
        "rows_written": 2,
        "watermark": "2026-03-02T00:00:00.000000Z",
    }
    again = run_pipeline("newest")
    assert (again["rows_read"], again["watermark"]) == (0, first["watermark"]), "nothing came: the mark stays"
    snowflake_write_arrow(warehouse, "orders", ORDERS.slice(2))
    assert newest.sync()["rows_written"] == 1
    assert rows(warehouse, "SELECT id FROM moved ORDER BY id") == [(1,), (2,), (3,)]
    assert store.kept == ["2026-03-02T00:00:00.000000Z", "2026-03-03T00:00:00.000000Z"]


def test_the_mark_stays_when_the_write_fails(warehouse: SnowflakeConnection) -> None:
    store = Recording()
    snowflake_write_arrow(warehouse, "orders", ORDERS)
    moved = ematix.warehouse_pipeline(
        source=WarehouseSource(warehouse, "SELECT id FROM orders", "snowflake"),
        target=WarehouseTarget.snowflake_table(warehouse, "nowhere", create_if_not_exists=False),
        schedule=None,
        name="failing",
        incremental_column="id",
        watermark_store=store,
    )(lambda: None)
    with pytest.raises(WarehouseSyncError):
        moved()
    assert store.kept == []


def test_an_incremental_column_that_is_not_read_is_named(warehouse: SnowflakeConnection) -> None:
    moved = ematix.warehouse_pipeline(
        source=WarehouseSource(warehouse, "SELECT 1 AS id", "snowflake"),
        target=WarehouseTarget.snowflake_table(warehouse, "moved"),
        schedule=None,
        name="lost",
        incremental_column="ids",
        watermark_store=InMemoryWatermarkStore(),
    )(lambda: None)
    with pytest.raises(WarehouseSyncError, match="'ids'") as failed:
        moved()
    assert failed.value.fix == "did you mean 'id'?"


# ── on the stand-in for Redshift ─────────────────────────────────────────────────────────────────────────────────────


def test_rows_move_into_redshift_by_way_of_s3(warehouse: SnowflakeConnection, redshift: RedshiftConnection) -> None:
    snowflake_write_arrow(warehouse, "orders", ORDERS)
    result = run_warehouse_pipeline(
        WarehouseSource(warehouse, "SELECT * FROM orders", "snowflake"),
        WarehouseTarget.redshift_table(redshift, "public.orders"),
    )
    assert result.rows_written == 3
    back = redshift_query_to_arrow(redshift, "SELECT * FROM public.orders ORDER BY id")
    assert back.set_column(0, "id", back.column("id").cast(pa.int64())).to_pylist() == ORDERS.to_pylist()
    assert redshift_write_arrow(redshift, "orders", ORDERS.slice(0, 1), create_if_not_exists=False) == 1


# ── where marks are kept ─────────────────────────────────────────────────────────────────────────────────────────────


def test_marks_in_a_file_outlive_the_process(tmp_project: Path) -> None:
    FileWatermarkStore().set("a", "2026-03-01")
    FileWatermarkStore().set("b", 7)
    assert json.loads((tmp_project / ".ematix-flow" / "watermarks.json").read_text()) == {"a": "2026-03-01", "b": "7"}
    assert (FileWatermarkStore().get("a"), FileWatermarkStore().get("c")) == ("2026-03-01", None)
    assert [p.name for p in (tmp_project / ".ematix-flow").iterdir()] == ["watermarks.json"]


def test_a_broken_file_of_marks_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "marks.json"
    for content in ("{", "[]"):
        place.write_text(content)
        with pytest.raises(ValueError, match=r"marks\.json"):
            FileWatermarkStore(place).set("a", "1")
        assert place.read_text() == content


@pytest.mark.filterwarnings("ignore:You are using a Python version:FutureWarning")
def test_bigquery_without_a_login_says_so(tmp_path: Path) -> None:
    missing = BigQueryConnection(name="bq", project="p", dataset="d", credentials_path=str(tmp_path / "key.json"))
    with pytest.raises(WarehouseSyncError, match="no login"):
        bigquery_write_arrow(missing, "t", ORDERS)
