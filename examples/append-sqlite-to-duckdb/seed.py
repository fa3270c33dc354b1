"""Fill the controller's file: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

DAYS = {
    "day1": [
        "CREATE TABLE readings (reading_id INTEGER PRIMARY KEY, sensor TEXT, celsius REAL, taken_at TEXT)",
        "INSERT INTO readings VALUES (1, 'door', 11.5, '2026-03-01T06:00:00Z')",
        "INSERT INTO readings VALUES (2, 'roof', 14.25, '2026-03-01T06:00:00Z')",
    ],
    "day2": ["INSERT INTO readings VALUES (3, 'door', 9.0, '2026-03-02T06:00:00Z')"],
}
with connect("controller") as db:
    for statement in DAYS[sys.argv[1]]:
        db.execute(statement)
