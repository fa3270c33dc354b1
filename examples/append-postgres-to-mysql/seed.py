"""Fill the till: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

DAYS = {
    "day1": [
        "CREATE TABLE payments (payment_id bigint, method text, amount numeric(10,2), paid_at timestamptz)",
        "INSERT INTO payments VALUES (1, 'Cash ', 12.50, '2026-03-01 09:05+01')",
        "INSERT INTO payments VALUES (2, 'CARD', 80, '2026-03-01 18:30+01')",
    ],
    "day2": ["INSERT INTO payments VALUES (3, 'card', 7.95, '2026-03-02 10:15+01')"],
}
with connect("till") as db:
    for statement in DAYS[sys.argv[1]]:
        db.execute(statement)
