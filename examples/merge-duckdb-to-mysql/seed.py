"""Fill the rounds: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

DAYS = {
    "day1": [
        "CREATE TABLE rounds (player VARCHAR, points INTEGER)",
        "INSERT INTO rounds VALUES ('mia', 10), ('mia', 15), ('noa', 8), ('Mia', 30)",
    ],
    "day2": ["INSERT INTO rounds VALUES ('noa', 12), ('olu', 21)"],
}
with connect("analysis") as db:
    for statement in DAYS[sys.argv[1]]:
        db.execute(statement)
