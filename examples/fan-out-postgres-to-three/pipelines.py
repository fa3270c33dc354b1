"""Bookings of a hotel, read once, for three readers: the front desk, the analysts, the archive."""

from __future__ import annotations

from ematix_flow import Annotated, BigInt, Date, Numeric, Text, ematix, pk
from ematix_flow.normalize import trim


@ematix.connection
class hotel:
    kind = "postgres"
    url = "${HOTEL_URL}"


@ematix.connection
class desk:
    kind = "mysql"
    url = "${DESK_URL}"


@ematix.connection
class analysis:
    kind = "duckdb"
    path = "analysis.duckdb"


@ematix.connection
class archive:
    kind = "object_store_local"
    format = "json_lines"
    path = "archive"


@ematix.table(schema="desk")
class Bookings:
    booking_id: Annotated[BigInt, pk()]
    guest: Annotated[Text, trim()]
    arrives_on: Date


@ematix.table(schema="hotel")
class BookingHistory:
    booking_id: Annotated[BigInt, pk()]
    arrives_on: Date
    price: Numeric[8, 2]


@ematix.table(schema="hotel")
class BookingLog:
    booking_id: BigInt
    guest: Text
    arrives_on: Date
    price: Numeric[8, 2]


@ematix.pipeline(
    source_connection="hotel",
    targets=[
        ematix.target(Bookings, mode="merge", target_connection="desk"),
        ematix.target(BookingHistory, mode="scd2", target_connection="analysis"),
        ematix.target(BookingLog, mode="append", target_connection="archive"),
    ],
)
def share_bookings(conn):
    return "SELECT booking_id, guest, arrives_on, price FROM bookings"
