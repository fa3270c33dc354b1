"""`kill -9` of loads into lake tables: whether the commit was made decides what the next run does."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

MODULE = """
from typing import Annotated
from ematix_flow import BigInt, Text, ematix, pk

@ematix.connection
class till:
    kind = "sqlite"
    path = "till.db"

@ematix.connection
class lake:
    kind = "{kind}"
    {place} = "lake"

@ematix.table(schema="sales")
class Loaded:
    id: Annotated[BigInt, pk()]
    name: Text

for mode in ("append", "truncate", "merge", "scd2"):
    @ematix.pipeline(name=mode, source_connection="till", target=Loaded, target_connection="lake", mode=mode)
    def load(conn):
        return "SELECT id, name FROM source"

@ematix.table(schema="main")
class Copied:
    id: Annotated[BigInt, pk()]
    name: Text
    batch: Text

@ematix.pipeline(source_connection="lake", target=Copied, target_connection="till", mode="truncate")
def look(conn):
    return "SELECT row_number() OVER (ORDER BY id, name) AS id, name, _batch_id AS batch FROM sales.loaded"
"""

PLACES = {"delta_local": "path", "iceberg": "warehouse"}
CELLS = [("delta_local", "merge", "committed"), ("iceberg", "merge", "mid-settle")]
if os.environ.get("EMATIX_PROVE"):
    CELLS = [
        (kind, mode, point)
        for kind in PLACES
        for mode in ("append", "truncate", "merge", "scd2")
        for point in ("opened", "planned", "staged", "mid-settle", "committed", "settled")
    ]


@dataclass
class LakeProject:
    """A project with a SQLite source and a lake."""

    folder: Path

    def run(self, pipeline: str, crash_at: str | None = None, engine: str = "auto") -> tuple[int, str]:
        """One `flow run`; exit code and what was said."""
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        env |= {"EMATIX_FLOW_CRASH_AT": crash_at} if crash_at else {}
        command = [sys.executable, "-m", "ematix_flow", "run", "--module", "lakes", pipeline, "--json"]
        command += ["--engine", engine]
        done = subprocess.run(command, cwd=self.folder, env=env, text=True, capture_output=True, timeout=300)
        return done.returncode, done.stdout + done.stderr

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        """One statement on the SQLite file."""
        db = sqlite3.connect(self.folder / "till.db", isolation_level=None)
        try:
            return db.execute(statement).fetchall()
        finally:
            db.close()

    def rows(self, engine: str = "auto") -> list[str]:
        """The names in the lake table, read by a load of its own."""
        code, said = self.run("look", engine=engine)
        assert code == 0, said
        return [str(row[0]) for row in self.sql("SELECT name FROM copied ORDER BY name")]

    def statuses(self) -> list[str]:
        """How the runs ended, by the history beside the tables."""
        history = (self.folder / "lake" / "_ematix_flow" / "run_history").glob("*.json")
        records = [json.loads(file.read_text()) for file in history]
        return [record["status"] for record in sorted(records, key=lambda record: str(record["started_at"]))]


def lake_project(folder: Path, kind: str) -> LakeProject:
    """A project whose source has two rows."""
    project = LakeProject(folder)
    (folder / "lakes.py").write_text(MODULE.format(kind=kind, place=PLACES[kind]))
    project.sql("CREATE TABLE source (id INTEGER PRIMARY KEY, name TEXT)")
    project.sql("INSERT INTO source VALUES (1, 'a'), (2, 'b')")
    return project


@pytest.mark.parametrize(("kind", "mode", "point"), CELLS)
def test_a_killed_load_is_made_good_by_the_next_run(tmp_path: Path, kind: str, mode: str, point: str) -> None:
    project = lake_project(tmp_path, kind)
    code, said = project.run(mode)
    assert code == 0, said
    project.sql("UPDATE source SET name = 'B' WHERE id = 2")
    code, said = project.run(mode, crash_at=point)
    assert code == -9, said
    code, said = project.run(mode)
    assert code == 0, said
    expected = {"append": ["B", "a", "a", "b"], "scd2": ["B", "a", "b"]}.get(mode, ["B", "a"])
    assert project.rows() == expected
    assert "running" not in project.statuses()
    staging = tmp_path / "lake" / "_ematix_flow" / "staging"
    assert not [file for file in staging.rglob("*") if file.is_file()]


NATIVE = [("merge", "committed", "spark"), ("append", "committed", "native")]
if os.environ.get("EMATIX_PROVE"):
    NATIVE = [
        (mode, point, after)
        for mode in ("append", "truncate", "merge", "scd2")
        for point in ("opened", "planned", "staged", "mid-settle", "committed", "settled")
        for after in ("native", "spark")
        if after == "native" or point == "committed"
    ]


@pytest.mark.parametrize(("mode", "point", "after"), NATIVE)
def test_a_load_killed_on_the_native_engine_is_made_good_on_either(
    tmp_path: Path, mode: str, point: str, after: str
) -> None:
    project = lake_project(tmp_path, "delta_local")
    code, said = project.run(mode, engine="native")
    assert code == 0, said
    project.sql("UPDATE source SET name = 'B' WHERE id = 2")
    code, said = project.run(mode, crash_at=point, engine="native")
    assert code == -9, said
    code, said = project.run(mode, engine=after)
    assert code == 0, said
    expected = {"append": ["B", "a", "a", "b"], "scd2": ["B", "a", "b"]}.get(mode, ["B", "a"])
    assert project.rows(engine="native") == expected
    assert "running" not in project.statuses()
    staging = tmp_path / "lake" / "_ematix_flow" / "staging"
    assert not [file for file in staging.rglob("*") if file.is_file()]
