"""Spark and the native engine at Delta tables: the same rows from the same load, and turns at one table."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

MODULE = """
from ematix_flow import (
    Annotated, BigInt, Boolean, Bytes, Date, Double, Numeric, SmallInt, Text, Timestamp, TimestampTZ, ematix, pk,
)

@ematix.connection
class files:
    kind = "object_store_local"
    path = "raw"
    format = "parquet"

@ematix.table(schema="sales")
class Prices:
    id: Annotated[BigInt, pk()]
    at: TimestampTZ
    name: Text | None
    net: Numeric[20, 4] | None
    small: SmallInt | None
    day: Date | None
    clock: Timestamp | None
    said: Boolean | None
    raw: Bytes | None
    ratio: Double | None

for place in ("by_spark", "by_native", "by_both"):
    ematix.connection(type(place, (), {"kind": "delta_local", "path": place}))
    @ematix.pipeline(
        name=f"load_{place}",
        source_connection="files",
        target=Prices,
        target_connection=place,
        mode="scd2",
        event_timestamp_column="at",
        compare_columns=["name", "net", "small", "day", "clock", "said", "raw"],
    )
    def load(conn):
        return "prices"
"""
START = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)
TEXTS = ("", "a\x00b", "é𝄞 ", None, "x" * 100)
NETS = (Decimal("-0.0001"), Decimal("9007199254740993.1200"), Decimal("0.0000"), None, Decimal("1E+15"))
DAYS = (date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 10), None, date(2024, 2, 29))
CLOCKS = (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None, datetime(1900, 1, 1), START)
RATIOS = (-0.0, math.nan, math.inf, None, 1e22)


def put(folder: Path, day: int, keys: list[int]) -> None:
    """Make the source: these keys, with other values every day."""
    rolled = [key + day for key in keys]
    clocks = [clock.replace(tzinfo=None) if clock else None for clock in CLOCKS]
    columns = {
        "id": pa.array(keys, pa.int64()),
        "at": pa.array([START + timedelta(days=day, microseconds=key) for key in keys], pa.timestamp("us", "UTC")),
        "name": pa.array([TEXTS[n % 5] for n in rolled], pa.string()),
        "net": pa.array([NETS[n % 5] for n in rolled], pa.decimal128(20, 4)),
        "small": pa.array([(-32768, 0, None, 1, 32767)[n % 5] for n in rolled], pa.int16()),
        "day": pa.array([DAYS[n % 5] for n in rolled], pa.date32()),
        "clock": pa.array([clocks[n % 5] for n in rolled], pa.timestamp("us")),
        "said": pa.array([(True, False, None)[n % 3] for n in rolled], pa.bool_()),
        "raw": pa.array([(b"\x00", b"", None, b"\xff\xfe")[n % 4] for n in rolled], pa.binary()),
        "ratio": pa.array([RATIOS[n % 5] for n in rolled], pa.float64()),
    }
    place = folder / "raw" / "prices"
    place.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), place / "prices.parquet")


def run(folder: Path, pipeline: str, engine: str, *options: str) -> tuple[int, str]:
    """One `flow run`; exit code and what was said."""
    command = [sys.executable, "-m", "ematix_flow", "run", "--module", "prices", pipeline, "--engine", engine, *options]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def stored(folder: Path, place: str) -> list[tuple[str, ...]]:
    """Every row of the table but its stamps, exactly as it is, read by delta-rs."""
    from deltalake import DeltaTable, QueryBuilder

    reader = QueryBuilder().register("stored", DeltaTable(str(folder / place / "sales" / "prices")))
    rows: list[dict[str, Any]] = pa.table(reader.execute("SELECT * FROM stored").read_all()).to_pylist()
    kept = [{name: value for name, value in row.items() if name not in ("_loaded_at", "_batch_id")} for row in rows]
    return sorted(tuple(map(repr, row.values())) for row in kept)


def test_both_engines_write_the_same_history_and_take_turns_at_it(tmp_path: Path) -> None:
    (tmp_path / "prices.py").write_text(MODULE)

    def load(place: str, engine: str, *options: str) -> str:
        code, said = run(tmp_path, f"load_{place}", engine, *options)
        assert code == 0, said
        return said

    put(tmp_path, 0, [1, 2, 3, 4, 5, 6, 7])
    load("by_spark", "spark")
    load("by_native", "native")
    load("by_both", "native")
    assert stored(tmp_path, "by_native") == stored(tmp_path, "by_spark")
    put(tmp_path, 1, [2, 3, 4, 8])
    load("by_native", "native")
    load("by_both", "spark", "--run-id", "tuesday")
    after = stored(tmp_path, "by_both")
    assert len(after) == 11 and after == stored(tmp_path, "by_native")
    assert '"replayed": true' in load("by_both", "native", "--run-id", "tuesday", "--json")
    assert stored(tmp_path, "by_both") == after
    put(tmp_path, 2, [1, 3, 8, 9])
    load("by_native", "native")
    load("by_both", "native")
    assert stored(tmp_path, "by_both") == stored(tmp_path, "by_native") != after
    code, said = run(tmp_path, "load_by_spark", "native")
    assert code != 0 and "'deletionVectors'" in said and "engine='spark'" in said, said
