"""`kill -9` of a load into a warehouse (a stand-in); the run after it must leave each row once.

The stand-in for Snowflake keeps the transaction of a client that died for ever, so there no run is killed inside one.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ematix_flow.backends.redshift import RedshiftBackend
from ematix_flow.backends.snowflake import SnowflakeBackend
from ematix_flow.backends.warehouse import WarehouseBackend
from ematix_flow.connections import RedshiftConnection, SnowflakeConnection
from ematix_flow.contracts.crashpoints import VARIABLE
from ematix_flow.declare.connection import Connection
from tests.backends.test_warehouse_redshift import redshift as redshift
from tests.backends.test_warehouse_snowflake import snowflake as snowflake

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from typing import Annotated

import psycopg
import pyarrow as pa

from ematix_flow import BigInt, Text, ematix, pk
from ematix_flow.connections import RedshiftConnection, SnowflakeConnection
from tests.services.redshift import StandInConnection

psycopg.connect = StandInConnection.connect
warehouse = {connection}


@ematix.table(schema="analytics")
class Orders:
    id: Annotated[BigInt, pk()]
    name: Text


@ematix.pipeline(target=Orders, source_connection=warehouse, target_connection=warehouse, mode="{mode}")
def load(conn):
    return pa.table({{"id": pa.array([1, 2], pa.int64()), "name": ["ann", "bob"]}})


if __name__ == "__main__":
    print(load.sync())
"""

SNOWFLAKE_POINTS, REDSHIFT_POINTS = ["staged"], ["mid-settle"]
if os.environ.get("EMATIX_PROVE"):
    SNOWFLAKE_POINTS = ["opened", "planned", "staged", "settled"]
    REDSHIFT_POINTS = [*SNOWFLAKE_POINTS, "mid-settle"]


def said(connection: Connection) -> str:
    """A connection as code that makes it."""
    fields = {field.name: getattr(connection, field.name) for field in dataclasses.fields(connection)}
    return f"{type(connection).__name__}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


def killed_and_repeated(backend: WarehouseBackend, folder: Path, mode: str, point: str) -> None:
    program = folder / "program.py"
    program.write_text(PROGRAM.format(connection=said(backend.connection), mode=mode))

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "EMATIX_FLOW_RUN_LOG_URL": "memory://", **more}
        return subprocess.run(
            [sys.executable, str(program)], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
        )

    dead = run(**{VARIABLE: point})
    assert dead.returncode == -9, dead.stderr
    if point != "settled":
        with backend.session() as db:
            shape = backend.shape(db, backend.table_ref("analytics", "orders"))
        assert shape is None or not shape.has_rows
    done = run()
    assert done.returncode == 0, done.stderr
    assert ("replayed=True" in done.stdout) == (point == "settled"), done.stdout
    with backend.session() as db:
        assert sorted(db.execute("SELECT id, name FROM analytics.orders").fetchall()) == [(1, "ann"), (2, "bob")]
        ended = db.execute("SELECT status FROM ematix_flow.run_history ORDER BY started_at").fetchall()
        assert ended[-1][0] == "success" and "running" not in [row[0] for row in ended]
        tables = db.execute(
            "SELECT count(*) FROM information_schema.tables WHERE lower(table_schema) = 'ematix_flow'"
        ).fetchone()
        assert int(tables[0]) == 4, "nothing but the books is left"


@pytest.mark.parametrize("mode", ["append", "merge"])
@pytest.mark.parametrize("point", SNOWFLAKE_POINTS)
def test_a_killed_load_into_snowflake_is_made_good(
    snowflake: SnowflakeConnection, tmp_project: Path, mode: str, point: str
) -> None:
    killed_and_repeated(SnowflakeBackend(snowflake), tmp_project, mode, point)


@pytest.mark.parametrize("mode", ["append", "merge"])
@pytest.mark.parametrize("point", REDSHIFT_POINTS)
def test_a_killed_load_into_redshift_is_made_good(
    redshift: RedshiftConnection, tmp_project: Path, mode: str, point: str
) -> None:
    killed_and_repeated(RedshiftBackend(redshift), tmp_project, mode, point)
