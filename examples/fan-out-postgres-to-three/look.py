"""What each of the three holds."""

from __future__ import annotations

import json
from pathlib import Path

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("desk") as db:
    for row in db.query("SELECT booking_id, guest, arrives_on FROM desk.bookings ORDER BY booking_id")["rows"]:
        print("desk", *row)
with connect("analysis") as db:
    columns = "booking_id, arrives_on, price, CASE WHEN is_current THEN 'now' ELSE 'before' END"
    for row in db.query(f"SELECT {columns} FROM hotel.booking_history ORDER BY booking_id, valid_from")["rows"]:
        print("analysis", *row)
files = Path("archive/hotel/booking_log").glob("*.json*")
rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
for row in sorted(rows, key=lambda row: (row["_loaded_at"], row["booking_id"])):
    print("archive", row["booking_id"], repr(row["guest"]), row["arrives_on"])
