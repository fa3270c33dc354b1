"""The history: each version, and whether it is over."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("archive") as db:
    for row in db.query("SELECT name, office, valid_to FROM seats ORDER BY person_id, valid_from")["rows"]:
        print(row[0], row[1], "now" if row[2] is None else "before")
