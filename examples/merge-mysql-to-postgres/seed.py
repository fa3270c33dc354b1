"""Fill the club's list: `python seed.py day1`, then `python seed.py day2`."""

from __future__ import annotations

import sys

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

DAYS = {
    "day1": [
        "CREATE TABLE members (member_id bigint PRIMARY KEY, name varchar(80), email varchar(80), joined_on date)",
        "INSERT INTO members VALUES (1, ' Ada ', 'Ada@Example.com', '2025-11-03'), (2, 'Ben', NULL, '2026-01-20')",
        "INSERT INTO members VALUES (3, 'Cleo', 'cleo@example.com', '2026-02-14')",
    ],
    "day2": [
        "UPDATE members SET email = 'ben@example.com' WHERE member_id = 2",
        "DELETE FROM members WHERE member_id = 1",
        "INSERT INTO members VALUES (4, 'Dora', NULL, '2026-03-02')",
    ],
}
with connect("club") as db:
    db.execute_in_transaction(DAYS[sys.argv[1]])
