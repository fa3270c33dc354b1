"""A load killed after its commit, and every version removed by maintenance before the next run: no row comes twice."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ematix_flow import DeltaLocalConnection, IcebergConnection, Maintenance, ematix
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.table import table_spec
from ematix_flow.testing.lake_endpoints import DeltaEndpoint, IcebergEndpoint, LakeEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.types import BigInt, Text

MODULE = """
import pyarrow as pa
from ematix_flow import BigInt, Text, ematix

@ematix.connection
class lake:
    kind = "KIND"
    PLACE = "lake"

@ematix.table(schema="sales")
class Loaded:
    id: BigInt
    name: Text

@ematix.pipeline(target=Loaded, target_connection="lake", mode="append")
def load(conn):
    return pa.table({"id": [1, 2], "name": ["a", "b"]})
"""


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_load_killed_after_its_commit_is_known_although_its_version_is_gone(kind: str, tmp_project: Path) -> None:
    place = _lake(kind, tmp_project)
    words = ("delta_local", "path") if kind == "delta" else ("iceberg", "warehouse")
    (tmp_project / "lakes.py").write_text(MODULE.replace("KIND", words[0]).replace("PLACE", words[1]))
    code, said = _killed(tmp_project)
    assert code == -9, said
    (killed,) = (mark for mark in place.commits("loaded") if mark)
    with isolated_registry():
        _by_another_program(place)
        report = (
            place._backend()
            .maintenance()
            .run(
                TableRef("sales", "loaded"),
                Maintenance(keep_snapshots=1),
                now=datetime.now(timezone.utc),
                retention=timedelta(0),
            )
        )
        assert not report.left_out
        if kind == "iceberg":  # Delta's log remembers more than the files it removes
            assert killed not in place.commits("loaded")
        again = _load(place)
    assert (again.get("replayed"), again.get("replayed_run_id")) == (True, killed)
    assert sorted(name for _, name in place.rows("loaded", table_spec(Loaded).columns)) == ["a", "b", "c"]


@ematix.table(schema="sales")
class Loaded:
    id: BigInt
    name: Text


def _lake(kind: str, folder: Path) -> LakeEndpoint:
    root = str(folder / "lake")
    if kind == "delta":
        return DeltaEndpoint(DeltaLocalConnection(name="lake", path=root), schema="sales")
    return IcebergEndpoint(IcebergConnection(name="lake", warehouse=root), schema="sales")


def _killed(folder: Path) -> tuple[int, str]:
    env = {**os.environ, "PYTHONPATH": str(folder), "EMATIX_FLOW_CRASH_AT": "committed"}
    command = [sys.executable, "-m", "ematix_flow", "run", "--module", "lakes", "load", "--json"]
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def _by_another_program(place: LakeEndpoint) -> None:
    """A row that makes the killed run's version an old one."""
    backend = place._backend()
    spark = backend.spark()
    backend.prepare(spark)
    name = backend.name_of(TableRef("sales", "loaded"))
    spark.sql(f"INSERT INTO {name} SELECT 3, 'c', _loaded_at, _batch_id FROM {name} LIMIT 1")


def _load(place: LakeEndpoint) -> Any:
    @ematix.pipeline(target=Loaded, target_connection=place.connection, mode="append")
    def load(conn: Any) -> Any:
        return pa.table({"id": [1, 2], "name": ["a", "b"]})

    return load.sync()
