"""A disk that is full while a load writes: one clear error, the old rows all there, and the next run goes through.

The disk is real: a small file system in memory, mounted in a process of its own, which takes it with it when it ends.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DISK_BYTES = 8 * 1024 * 1024
ROWS = 40_000
"""Of 64 random digits each: more than is left on the disk, however well they are packed."""

LAKES = ("delta", "iceberg", "files") if os.environ.get("EMATIX_PROVE") else ("files",)

SCENARIO = """
import json, os, shutil, sys, warnings
from ematix_flow import BigInt, Text, ematix
from ematix_flow.errors import FlowError

warnings.simplefilter("ignore")  # that a failure could not be recorded on a full disk

@ematix.connection
class till:
    kind = "sqlite"
    path = "till.db"

@ematix.connection
class delta:
    kind = "delta_local"
    path = "disk/delta"

@ematix.connection
class iceberg:
    kind = "iceberg"
    warehouse = "disk/iceberg"

@ematix.connection
class files:
    kind = "object_store_local"
    format = "parquet"
    path = "disk/files"

@ematix.table(schema="sales")
class Loaded:
    id: BigInt
    digits: Text

def pipeline(lake, mode, table):
    return ematix.pipeline(
        name=f"{lake}_{mode}_{table}", source_connection="till", source_table=f"main.{table}", target=Loaded,
        target_connection=lake, mode=mode,
    )(lambda: None)

def rows(lake):
    if lake == "delta":
        from deltalake import DeltaTable
        return DeltaTable("disk/delta/sales/loaded").to_pyarrow_table(columns=["id"]).num_rows
    if lake == "iceberg":
        from pyiceberg.table import StaticTable
        metadata = "disk/iceberg/sales/loaded/metadata"
        with open(f"{metadata}/version-hint.text") as hint:
            newest = f"{metadata}/v{hint.read().strip()}.metadata.json"
        return StaticTable.from_metadata(newest).scan(selected_fields=("id",)).to_arrow().num_rows
    import pyarrow.parquet as pq
    folder = "disk/files/sales/loaded"
    with open(f"{folder}/_ematix_flow/manifest.json") as file:
        live = [entry["path"] for entry in json.load(file)["files"]]
    visible = [name for name in os.listdir(folder) if name[0] not in "._"]
    assert sorted(live) == sorted(visible), "files of a failed load are in the folder"
    return sum(pq.read_metadata(f"{folder}/{path}").num_rows for path in live)

def fill(left):
    disk = os.statvfs("disk")
    with open("disk/ballast", "wb") as file:
        file.write(b"x" * max(disk.f_bavail * disk.f_frsize - left, 0))

def attempt(lake, mode, table):
    try:
        return {"inserted": pipeline(lake, mode, table).sync().rows_inserted}
    except FlowError as exc:
        return {"error": type(exc).__name__, "said": str(exc)}

told = {}
for lake in sys.argv[1:]:
    steps = told[lake] = []
    steps.append([attempt(lake, "append", "few"), rows(lake)])
    fill(left=512 * 1024)
    for mode in ("append", "truncate"):
        steps.append([attempt(lake, mode, "many"), rows(lake)])
    os.remove("disk/ballast")
    fill(left=0)
    steps.append([attempt(lake, "append", "many"), rows(lake)])
    os.remove("disk/ballast")
    steps.append([attempt(lake, "append", "many"), rows(lake)])
    steps.append([attempt(lake, "truncate", "few"), rows(lake)])
    shutil.rmtree(f"disk/{lake}")  # versions that are gone take room, too
print("TOLD " + json.dumps(told))
"""


def _can_mount() -> bool:
    unshare = shutil.which("unshare")
    return unshare is not None and subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(
    not _can_mount(), reason="a disk of its own needs Linux, and leave to make namespaces (unshare -rm)"
)
def test_a_full_disk_stops_a_load_and_takes_nothing_with_it(tmp_project: Path) -> None:
    (tmp_project / "disk").mkdir()
    (tmp_project / "scenario.py").write_text(SCENARIO)
    db = sqlite3.connect(tmp_project / "till.db")
    for table, count in (("few", 10), ("many", ROWS)):
        db.execute(f"CREATE TABLE {table} (id INTEGER NOT NULL, digits TEXT NOT NULL)")
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
        db.execute(f"INSERT INTO {table} {numbers} SELECT i, hex(randomblob(32)) FROM n")
    db.commit()
    db.close()
    mounted = f"mount -t tmpfs -o size={DISK_BYTES} tmpfs disk && exec {sys.executable} scenario.py {' '.join(LAKES)}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted],
        cwd=tmp_project,
        env={**os.environ, "PYTHONPATH": str(tmp_project)},
        text=True,
        capture_output=True,
        timeout=300,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, done.stdout[-2000:] + done.stderr[-4000:]
    told: dict[str, list[list[Any]]] = json.loads(lines[0].removeprefix("TOLD "))
    assert tuple(told) == LAKES
    for lake, (first, *full, after, last) in told.items():
        assert first == [{"inserted": 10}, 10], lake
        for outcome, rows in full:
            assert outcome.get("error") == "StatementFailed" and "disk is full" in outcome["said"], (lake, outcome)
            assert "make room" in outcome["said"] and rows == 10, (lake, outcome, rows)
        assert after == [{"inserted": ROWS}, ROWS + 10], lake
        assert last == [{"inserted": 10}, 10], lake
