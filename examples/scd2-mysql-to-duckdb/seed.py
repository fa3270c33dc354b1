"""Scanners report: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

DAYS = {
    "day1": [
        "CREATE TABLE scans (parcel varchar(20), place varchar(40), seen_at timestamp(6))",
        "INSERT INTO scans VALUES ('P-1', 'Porto', '2026-03-01 08:00:00'), ('P-1', 'Lyon', '2026-03-03 09:30:00')",
        "INSERT INTO scans VALUES ('P-2', 'Turin', '2026-03-03 10:00:00')",
    ],
    "day2": [
        "INSERT INTO scans VALUES ('P-1', 'Madrid', '2026-03-02 07:15:00'), ('P-2', 'Bern', '2026-03-04 16:45:00')",
    ],
}
with connect("carrier") as db:
    for statement in DAYS[sys.argv[1]]:
        db.execute(statement)
