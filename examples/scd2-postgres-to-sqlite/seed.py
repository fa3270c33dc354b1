"""Fill the directory: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

DAYS = {
    "day1": [
        "CREATE TABLE people (person_id bigint PRIMARY KEY, name text, office text)",
        "INSERT INTO people VALUES (1, 'Ida', 'Oslo'), (2, 'Jan', 'Ghent')",
    ],
    "day2": [
        "UPDATE people SET office = 'Bergen' WHERE person_id = 1",
        "INSERT INTO people VALUES (3, 'Kim', NULL)",
    ],
}
with connect("directory") as db:
    db.execute_in_transaction(DAYS[sys.argv[1]])
