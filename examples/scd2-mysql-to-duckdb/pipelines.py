"""Where a parcel was from when until when: events from MySQL or MariaDB, the history in DuckDB."""

from __future__ import annotations

from ematix_flow import Annotated, String, Text, TimestampTZ, ematix, pk


@ematix.connection
class carrier:
    kind = "mysql"
    url = "${CARRIER_URL}"


@ematix.connection
class analysis:
    kind = "duckdb"
    path = "analysis.duckdb"


@ematix.table(schema="parcels")
class Whereabouts:
    parcel: Annotated[String[20], pk()]
    place: Text
    seen_at: TimestampTZ


@ematix.pipeline(
    source_connection="carrier",
    target=Whereabouts,
    target_connection="analysis",
    mode="scd2",
    event_timestamp_column="seen_at",
)
def follow_parcels(conn):
    return "SELECT parcel, place, seen_at FROM scans"
