"""Batch pipelines whose SQL calls functions in Python: over files and databases, always through Spark."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ematix_flow import Annotated, BigInt, Text, ematix, pk, udaf, udf
from ematix_flow.connections import ObjectStoreLocalConnection, PostgresConnection, SQLiteConnection
from ematix_flow.errors import InvalidDeclaration, InvalidPlan, RouteImpossible, WrongDeclarationType
from ematix_flow.testing.registry import isolated_registry


@udf(args=("Utf8",), returns="Utf8")
def initial(text: pa.Array) -> pa.Array:
    return pc.utf8_slice_codeunits(text, 0, 1)


@udaf(args=("Int64",), state=("Int64",), returns="Int64", name="largest")
class Largest:
    def __init__(self) -> None:
        self.value: int | None = None

    def update_batch(self, values: pa.Array) -> None:
        found = [value for value in (self.value, pc.max(values).as_py()) if value is not None]
        self.value = max(found, default=None)

    merge_batch = update_batch

    def evaluate(self) -> pa.Array:
        return pa.array([self.value], pa.int64())

    def state(self) -> tuple[pa.Array]:
        return (pa.array([self.value], pa.int64()),)


@ematix.table(schema="main")
class Initials:
    initial: Annotated[Text, pk()]
    most: BigInt
    orders: BigInt


SQL = "SELECT initial(customer) AS initial, largest(id) AS most, count(*) AS orders FROM {table} GROUP BY 1"


@pytest.fixture
def store(tmp_project: Path) -> SQLiteConnection:
    return SQLiteConnection(name="store", path=str(tmp_project / "store.db"))


def stored(store: SQLiteConnection) -> list[tuple[object, ...]]:
    with sqlite3.connect(str(store.path)) as db:
        return db.execute("SELECT initial, most, orders FROM initials ORDER BY 1").fetchall()


def test_sql_over_files_may_call_functions_in_python(tmp_project: Path, store: SQLiteConnection) -> None:
    folder = tmp_project / "lake" / "raw" / "orders"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2, 3], "customer": ["ada", "grace", "alan"]}), folder / "a.parquet")
    lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
    with isolated_registry():

        @ematix.pipeline(
            target=Initials,
            source_connection=lake,
            target_connection=store,
            mode="merge",
            udfs=[initial],
            aggregate_udfs=[Largest],
        )
        def load(conn: object) -> str:
            return SQL.format(table="raw.orders")

        result = load.sync()
    assert result["rows_inserted"] == 2
    assert stored(store) == [("a", 3, 2), ("g", 2, 1)]


def test_sql_of_a_database_runs_in_spark_when_it_may_call_python(pg_url: str, store: SQLiteConnection) -> None:
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("CREATE TABLE public.orders (id bigint, customer text)")
        db.execute("INSERT INTO public.orders VALUES (1, 'ada'), (2, 'grace'), (7, 'alan')")
    source = PostgresConnection(name="shop", url=pg_url)
    with isolated_registry():

        @ematix.pipeline(
            target=Initials,
            source_connection=source,
            target_connection=store,
            mode="truncate",
            udfs=[initial],
            aggregate_udfs=[Largest],
        )
        def load(conn: object) -> str:
            return SQL.format(table="public.orders WHERE id::int / 2 < 9")

        load.sync()
    assert stored(store) == [("a", 7, 2), ("g", 2, 1)]


def test_a_load_within_one_database_goes_through_spark_and_says_why(store: SQLiteConnection) -> None:
    with sqlite3.connect(str(store.path)) as db:
        db.execute("CREATE TABLE orders (id INTEGER, customer TEXT)")
        db.execute("INSERT INTO orders VALUES (5, 'ada')")
    options = {"target": Initials, "target_connection": store, "mode": "append", "udfs": [initial]}
    with isolated_registry():

        @ematix.pipeline(**options, aggregate_udfs=[Largest])
        def load(conn: object) -> str:
            return SQL.format(table="orders")

        @ematix.pipeline(**options, name="pushed", engine="pushdown", aggregate_udfs=[Largest])
        def pushed(conn: object) -> str:
            return SQL.format(table="orders")

        assert "Python functions" in str(load.preview())
        assert load.sync()["path"] == "cross_db"
        with pytest.raises(RouteImpossible, match="its SQL may call Python functions"):
            pushed.sync()
    assert stored(store) == [("a", 5, 1)]


def test_wrong_calls_and_declarations_are_refused(store: SQLiteConnection) -> None:
    with sqlite3.connect(str(store.path)) as db:
        db.execute("CREATE TABLE orders (id INTEGER, customer TEXT)")
    with isolated_registry():

        @ematix.pipeline(target=Initials, target_connection=store, mode="append", udfs=[initial])
        def load(conn: object) -> str:
            return "SELECT initial(id) AS initial, 1 AS most, 1 AS orders FROM orders"

        with pytest.raises(InvalidPlan, match="'initial' declares Utf8 for argument 1 and is given bigint"):
            load.sync()
        with pytest.raises(WrongDeclarationType, match=r"udfs= takes what @udf made"):
            ematix.pipeline(target=Initials, mode="append", udfs=[len])(lambda conn: "")
        with pytest.raises(InvalidDeclaration, match="Two UDFs are named"):
            ematix.pipeline(target=Initials, mode="append", udfs=[initial, initial])(lambda conn: "")
