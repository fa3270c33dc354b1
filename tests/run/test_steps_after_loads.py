"""SQL steps after a load, where the target runs no SQL: refused before any row moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ematix_flow import (
    BigInt,
    DeltaLocalConnection,
    IcebergConnection,
    ObjectStoreLocalConnection,
    SQLiteConnection,
    connect,
    ematix,
)
from ematix_flow.declare.connection import Connection
from ematix_flow.errors import InvalidPlan
from ematix_flow.testing.registry import isolated_registry


@ematix.table(schema="shop")
class Orders:
    id: BigInt


@ematix.table(schema="main")
class Copies:
    id: BigInt


PLACES = {
    "delta": lambda path: DeltaLocalConnection(name="lake", path=path),
    "iceberg": lambda path: IcebergConnection(name="lake", warehouse=path),
    "files": lambda path: ObjectStoreLocalConnection(name="lake", path=path, format="parquet"),
}


def count(conn: Any) -> None:
    raise AssertionError("a step of a load that was refused")


@pytest.fixture
def source(tmp_path: Path) -> SQLiteConnection:
    shop = SQLiteConnection(name="shop", path=str(tmp_path / "shop.db"))
    with connect(url=f"sqlite:///{shop.path}") as db:
        db.execute("CREATE TABLE raw (id INTEGER)")
        db.execute("INSERT INTO raw VALUES (1)")
    return shop


def declared(source: SQLiteConnection, *targets: Any, step: Any) -> Any:
    with isolated_registry():

        @ematix.pipeline(targets=list(targets), source_connection=source, transforms_post=[step])
        def load(conn: Any) -> str:
            return "SELECT id FROM raw"

    return load


@pytest.mark.parametrize("kind", PLACES)
def test_a_sql_step_is_refused_before_a_row_is_written(kind: str, source: SQLiteConnection, tmp_path: Path) -> None:
    lake: Connection = PLACES[kind](str(tmp_path / "lake"))
    load = declared(source, ematix.target(Orders, mode="append", target_connection=lake), step="OPTIMIZE shop.orders")
    with pytest.raises(InvalidPlan, match=r"transforms_post\[0\] of 'load' is SQL, and 'lake'") as refused:
        load.preview()
    assert "transform_ref" in (refused.value.fix or "")
    validated = load.validate()
    assert not validated.ok and "runs no SQL steps" in validated.errors[0]
    with pytest.raises(InvalidPlan, match="runs no SQL steps"):
        load.sync()
    assert not list(tmp_path.glob("lake/**/*.*"))


def test_a_function_that_wants_a_connection_is_refused_too(source: SQLiteConnection, tmp_path: Path) -> None:
    target = ematix.target(Orders, mode="append", target_connection=PLACES["files"](str(tmp_path / "lake")))
    with pytest.raises(InvalidPlan, match="is a function that is given a SQL connection"):
        declared(source, target, step=count).sync()


def test_of_several_targets_the_last_one_runs_the_steps(source: SQLiteConnection, tmp_path: Path) -> None:
    lake = ematix.target(Orders, mode="append", target_connection=PLACES["files"](str(tmp_path / "lake")))
    copies = ematix.target(Copies, mode="append", target_connection=source)
    with pytest.raises(InvalidPlan, match="'lake'"):
        declared(source, copies, lake, step="SELECT 1").sync()
    with connect(url=f"sqlite:///{source.path}") as db:
        assert db.fetch_scalar_int("SELECT count(*) FROM sqlite_master WHERE name = 'copies'") == 0
    assert [
        plan.target_connection_name for plan in declared(source, lake, copies, step="SELECT 1").preview().targets
    ] == [
        "lake",
        "shop",
    ]
