"""What the report says."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("clinic") as db:
    for row in db.query("SELECT ward, visits, fees FROM reports.visits_by_ward ORDER BY ward")["rows"]:
        print(*row)
