"""A fan-out is killed after its first target: the next run leaves that one alone and does the others."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.crash.conftest import Project

MODULE = """
import os
from ematix_flow import BigInt, Integer, ObjectStoreLocalConnection, SQLiteConnection, Target, Text, ematix

SCHEMA = os.environ["CRASH_SCHEMA"]

@ematix.table(schema=SCHEMA)
class Loaded:
    id: BigInt
    name: Text | None
    amount: Integer

@ematix.table(schema="main", name="copied")
class Copied:
    id: BigInt
    amount: Integer

@ematix.table(schema="raw", name="archived")
class Archived:
    id: BigInt
    name: Text | None

PUSHED = ematix.target(Loaded, mode="append", target_connection="db")
COPIED = ematix.target(Copied, mode="append", target_connection=SQLiteConnection(name="side", path="side.db"))
KEPT = Target(
    table=Archived, connection=ObjectStoreLocalConnection(name="lake", path="lake", format="parquet"), mode="append"
)

for name, targets in {"pushed_first": [PUSHED, COPIED, KEPT], "spark_first": [COPIED, KEPT, PUSHED]}.items():

    @ematix.pipeline(name=name, targets=targets, source_connection="db")
    def fan(conn):
        return os.environ["CRASH_SOURCE"]
"""


class Rows:
    """What the three targets hold."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.side = project.folder / "side.db"
        self.lake = project.folder / "lake" / "raw" / "archived"

    def pushed(self) -> int:
        try:
            return len(self.project.rows())
        except Exception as exc:  # each driver has its own class for a table that is not there
            assert "loaded" in str(exc)
            return 0

    def copied(self) -> int:
        if not self.side.exists():
            return 0
        db = sqlite3.connect(self.side)
        try:
            known = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'copied'").fetchone()[0]
            return int(db.execute("SELECT count(*) FROM copied").fetchone()[0]) if known else 0
        finally:
            db.close()

    def kept(self) -> int:
        files: list[Path] = [
            p for p in self.lake.rglob("*.parquet") if not any(x.startswith((".", "_")) for x in p.parts)
        ]
        return sum(pq.read_metadata(path).num_rows for path in files)

    def all(self) -> list[Any]:
        return [self.pushed(), self.copied(), self.kept()]


FIRST = {"pushed_first": [200, 0, 0], "spark_first": [0, 200, 0]}
PLACES = ["postgres"]
CASES = [("pushed_first", "settled"), ("spark_first", "target-done")]
if os.environ.get("EMATIX_PROVE"):  # each cell starts Spark twice: `make prove`
    PLACES = ["postgres", "sqlite", "duckdb", "mysql"]
    CASES = [(pipeline, point) for pipeline in FIRST for point in ("settled", "target-done")]


@pytest.mark.parametrize("project", PLACES, indirect=True)
@pytest.mark.parametrize(("pipeline", "point"), CASES)
def test_a_fan_out_killed_after_its_first_target_is_made_good_by_the_next_run(
    project: Project, pipeline: str, point: str
) -> None:
    (project.folder / "crashing.py").write_text(MODULE)
    rows = Rows(project)
    code, said = project.run(pipeline, crash_at=point)
    assert code == -9, said
    assert rows.all() == FIRST[pipeline]
    code, said = project.run(pipeline)
    assert code == 0, said
    assert "is already in the target" in said
    assert rows.all() == [200, 200, 200]
