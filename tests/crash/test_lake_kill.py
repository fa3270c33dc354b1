"""`kill -9` of loads into lake tables: whether the commit was made decides what the next run does."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    {lake}

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

PLACES = {
    "delta_local": {"kind": "delta_local", "path": "lake"},
    "iceberg": {"kind": "iceberg", "warehouse": "lake"},
}
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
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(
        self, pipeline: str, *, engine: str = "auto", environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """One `flow run`, in a group of processes of its own."""
        paths = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **self.environment, **(environment or {})}
        command = [sys.executable, "-m", "ematix_flow", "run", "--module", "lakes", pipeline, "--json"]
        return subprocess.Popen(
            [*command, "--engine", engine],
            cwd=self.folder,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def run(self, pipeline: str, crash_at: str | None = None, engine: str = "auto") -> tuple[int, str]:
        """The same, to its end; exit code and what was said."""
        crash = {"EMATIX_FLOW_CRASH_AT": crash_at} if crash_at else {}
        process = self.start(pipeline, engine=engine, environment=crash)
        try:
            said, _ = process.communicate(timeout=300)
        except BaseException:
            process.kill()
            raise
        return process.returncode, said

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
        history = [content for name, content in self.files().items() if "/run_history/" in name]
        records = [json.loads(content) for content in history]
        return [record["status"] for record in sorted(records, key=lambda record: str(record["started_at"]))]

    def files(self) -> Mapping[str, bytes]:
        """Everything in the lake."""
        lake = self.folder / "lake"
        return {f"{file.relative_to(lake)}": file.read_bytes() for file in lake.rglob("*") if file.is_file()}

    def staged(self) -> list[str]:
        """What loads have left beside the tables."""
        return [name for name in self.files() if "_ematix_flow/staging/" in name]


def lake_project(folder: Path, kind: str) -> LakeProject:
    """A project whose source has two rows."""
    return filled(LakeProject(folder), PLACES[kind])


def filled(project: LakeProject, lake: Mapping[str, str]) -> LakeProject:
    """Write the project's module, and two rows into its source."""
    fields = "\n    ".join(f'{name} = "{value}"' for name, value in lake.items())
    (project.folder / "lakes.py").write_text(MODULE.format(lake=fields))
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
    assert not project.staged()


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
    assert not project.staged()
