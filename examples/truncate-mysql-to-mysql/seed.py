"""Fill the visits: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

DAYS = {
    "day1": [
        "CREATE TABLE visits (visit_id bigint PRIMARY KEY, ward varchar(40), fee decimal(8,2))",
        "INSERT INTO visits VALUES (1, 'north', 40.00), (2, 'south', 55.50), (3, 'north', 12.25)",
    ],
    "day2": ["INSERT INTO visits VALUES (4, 'east', 90.00)", "DELETE FROM visits WHERE visit_id = 2"],
}
with connect("clinic") as db:
    for statement in DAYS[sys.argv[1]]:
        db.execute(statement)
