"""Pipelines over files whose SQL is written in another dialect: source SQL, conditions and derived columns."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow import Annotated, BigInt, Double, Text, ematix, pk
from ematix_flow.connections import (
    DeltaLocalConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
)
from ematix_flow.errors import InvalidDeclaration, InvalidPlan, InvalidSource
from ematix_flow.normalize import derive, sql
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.transforms import filter_where


@ematix.table(schema="main")
class Totals:
    customer: Annotated[Text, pk()]
    orders: BigInt
    half: BigInt
    mean: Double


@ematix.table(schema="main")
class Lines:
    id: Annotated[BigInt, pk()]
    label: Annotated[Text, derive("concat(customer, ':', note)")]
    half: Annotated[BigInt, derive("amount / 2")]
    begin: Annotated[Text, sql("substring(col, 0, 3)")]


@pytest.fixture
def lake(tmp_project: Path) -> ObjectStoreLocalConnection:
    folder = tmp_project / "lake" / "raw" / "orders"
    folder.mkdir(parents=True)
    rows = {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "customer": ["ada", "ada", "grace", None],
        "amount": pa.array([7, 8, 5, 3], pa.int32()),
        "note": ["x", None, "y", "z"],
    }
    pq.write_table(pa.table(rows), folder / "a.parquet")
    return ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")


@pytest.fixture
def store(tmp_project: Path) -> SQLiteConnection:
    return SQLiteConnection(name="store", path=str(tmp_project / "store.db"))


def stored(store: SQLiteConnection, query: str) -> list[tuple[object, ...]]:
    db = sqlite3.connect(str(store.path))
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


TOTALS = """
SELECT customer, count(*) AS orders, sum(amount) / count(*) AS half, avg(amount) AS mean
FROM raw.orders
WHERE customer IS NOT NULL
GROUP BY customer
"""


@pytest.mark.parametrize(("dialect", "half"), [("postgres", 7), ("duckdb", 8)])
def test_source_sql_means_what_it_means_in_its_dialect(
    dialect: str, half: int, lake: ObjectStoreLocalConnection, store: SQLiteConnection
) -> None:
    text = (
        TOTALS if dialect == "postgres" else TOTALS.replace("sum(amount) / count(*)", "CAST(sum(amount) / 2 AS BIGINT)")
    )
    with isolated_registry():

        @ematix.pipeline(
            target=Totals, source_connection=lake, target_connection=store, mode="truncate", dialect=dialect
        )
        def load(conn: object) -> str:
            return text

        load.sync()
    assert stored(store, "SELECT customer, orders, half, mean FROM totals ORDER BY customer") == [
        ("ada", 2, half, 7.5),
        ("grace", 1, 5 if dialect == "postgres" else 2, 5.0),
    ]


def test_conditions_and_derived_columns_are_in_the_dialect_too(
    lake: ObjectStoreLocalConnection, store: SQLiteConnection
) -> None:
    with isolated_registry():

        @ematix.pipeline(
            target=Lines,
            source_connection=lake,
            target_connection=store,
            source_table="raw.orders",
            column_map={"begin": "customer"},
            mode="append",
            dialect="postgres",
            transforms_pre=[filter_where("id / 2 = 1")],
        )
        def load() -> None: ...

        load.sync()
    found = stored(store, "SELECT id, label, half, begin FROM lines ORDER BY id")
    assert found == [(2, "ada:", 4, "ad"), (3, "grace:y", 2, "gr")]


@ematix.table(schema="main")
class Halves:
    id: Annotated[BigInt, pk()]
    half: Annotated[BigInt, derive("amount / 2")]


def test_targets_that_share_a_reading_share_its_dialect(
    lake: ObjectStoreLocalConnection, store: SQLiteConnection
) -> None:
    with isolated_registry():

        @ematix.pipeline(
            targets=[
                ematix.target(Lines, mode="append", target_connection=store, column_map={"begin": "customer"}),
                ematix.target(Halves, mode="append", target_connection=store),
            ],
            source_connection=lake,
            source_table="raw.orders",
            dialect="postgres",
            transforms_pre=[filter_where("id / 2 = 1")],
        )
        def load() -> None: ...

        load.sync()
    assert stored(store, "SELECT id, half FROM lines ORDER BY id") == [(2, 4), (3, 2)]
    assert stored(store, "SELECT id, half FROM halves ORDER BY id") == [(2, 4), (3, 2)]


def test_sql_over_lake_tables_is_translated_too(tmp_project: Path, store: SQLiteConnection) -> None:

    from deltalake import write_deltalake

    rows = pa.table({"customer": ["ada", "ada", "grace"], "amount": pa.array([10, 5, 5], pa.int64())})
    write_deltalake(str(tmp_project / "delta" / "raw" / "orders"), rows)
    tables = DeltaLocalConnection(name="tables", path=str(tmp_project / "delta"))
    with isolated_registry():

        @ematix.pipeline(
            target=Totals, source_connection=tables, target_connection=store, mode="truncate", dialect="postgres"
        )
        def load(conn: object) -> str:
            return TOTALS

        load.sync()
    assert stored(store, "SELECT customer, orders, half FROM totals ORDER BY customer") == [
        ("ada", 2, 7),
        ("grace", 1, 5),
    ]


def test_an_error_points_into_the_users_text_and_nothing_is_loaded(
    lake: ObjectStoreLocalConnection, store: SQLiteConnection
) -> None:
    with isolated_registry():

        @ematix.pipeline(
            target=Totals, source_connection=lake, target_connection=store, mode="append", dialect="duckdb"
        )
        def load(conn: object) -> str:
            return "SELECT customer,\n       hash(customer) AS orders\nFROM raw.orders"

        with pytest.raises(InvalidSource) as caught:
            load.sync()
    lines = str(caught.value).splitlines()
    assert "line 2, column 8" in lines[0]
    assert lines[1].strip() == "hash(customer) AS orders" and "^^^^" in lines[2]
    assert not stored(store, "SELECT name FROM sqlite_master WHERE name = 'totals'")


def test_a_condition_with_an_unknown_column_is_pointed_at(
    lake: ObjectStoreLocalConnection, store: SQLiteConnection
) -> None:
    with isolated_registry():

        @ematix.pipeline(
            target=Lines,
            source_connection=lake,
            target_connection=store,
            source_table="raw.orders",
            column_map={"begin": "customer"},
            mode="append",
            dialect="duckdb",
            transforms_pre=[filter_where("id > 1 AND lable = 'x'")],
        )
        def load() -> None: ...

        with pytest.raises(
            InvalidSource, match="filter_where .duckdb., line 1, column 12: 'lable': there is no column"
        ):
            load.sync()


@pytest.mark.parametrize(
    "text",
    [
        'SELECT "customer", count(*) AS orders, sum(amount)::bigint AS half, avg(amount) AS mean FROM raw.orders '
        "WHERE strpos(customer, 'a') = 1 GROUP BY 1",
        "SELECT `customer`, count(*) AS orders, sum(amount) AS half, avg(amount) AS mean FROM raw.orders "
        "WHERE customer RLIKE '^a' GROUP BY 1",
    ],
)
def test_datafusion_takes_its_own_words_and_those_of_spark(
    text: str, lake: ObjectStoreLocalConnection, store: SQLiteConnection
) -> None:
    with isolated_registry():

        @ematix.pipeline(
            target=Totals, source_connection=lake, target_connection=store, mode="truncate", dialect="datafusion"
        )
        def load(conn: object) -> str:
            return text

        load.sync()
    assert stored(store, "SELECT customer, orders, half, mean FROM totals") == [("ada", 2, 15, 7.5)]


def test_a_dialect_that_nobody_reads_is_refused_when_declared(store: SQLiteConnection) -> None:
    with isolated_registry(), pytest.raises(InvalidDeclaration, match="did you mean 'postgres'"):
        ematix.pipeline(target=Totals, target_connection=store, mode="append", dialect="postgre")(
            lambda conn: "SELECT 1"
        )


def test_sql_that_runs_in_a_database_is_not_translated(tmp_project: Path, pg_url: str) -> None:
    warehouse = PostgresConnection(name="warehouse", url=pg_url)
    with isolated_registry():

        @ematix.pipeline(target=Totals, target_connection=warehouse, mode="append", dialect="duckdb")
        def load(conn: object) -> str:
            return "SELECT 'a' AS customer, 1 AS orders, 1 AS half, 1.0 AS mean"

        with pytest.raises(InvalidPlan, match="dialect='duckdb' is for SQL that runs in Spark"):
            load.sync()
