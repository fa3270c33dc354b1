"""Guests book: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

DAYS = {
    "day1": [
        "CREATE TABLE bookings (booking_id bigint PRIMARY KEY, guest text, arrives_on date, price numeric(8,2))",
        "INSERT INTO bookings VALUES (1, ' Ruth', '2026-05-01', 240), (2, 'Sam', '2026-05-04', 180.50)",
    ],
    "day2": ["UPDATE bookings SET arrives_on = '2026-05-06' WHERE booking_id = 2"],
}
with connect("hotel") as db:
    for statement in DAYS[sys.argv[1]]:
        db.execute(statement)
