"""Fill the loans: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

DAYS = {
    "day1": [
        "CREATE TABLE loans (title VARCHAR, lent_on DATE)",
        "INSERT INTO loans SELECT 'Emma', DATE '2026-03-01' FROM range(3)",
        "INSERT INTO loans VALUES ('Dracula', '2026-03-01'), ('Dracula', '2026-03-01'), ('Ulysses', '2026-03-01')",
    ],
    "day2": ["INSERT INTO loans SELECT 'Ulysses', DATE '2026-03-02' FROM range(4)"],
}
with connect("analysis") as db:
    for statement in DAYS[sys.argv[1]]:
        db.execute(statement)
