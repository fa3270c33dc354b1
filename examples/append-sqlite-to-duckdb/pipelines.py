"""Readings of a greenhouse, from the SQLite file of its controller into a DuckDB file for analysis."""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, Double, Text, TimestampTZ, ematix, pk


@ematix.connection
class controller:
    kind = "sqlite"
    path = "controller.db"


@ematix.connection
class lab:
    kind = "duckdb"
    path = "lab.duckdb"


@ematix.table(schema="greenhouse")
class Readings:
    reading_id: Annotated[BigInt, pk()]
    sensor: Text
    celsius: Double
    taken_at: TimestampTZ


@ematix.pipeline(
    source_connection="controller",
    target=Readings,
    target_connection="lab",
    mode="append",
    incremental_column="reading_id",
)
def collect_readings(conn):
    return "SELECT reading_id, sensor, celsius, taken_at FROM readings"
