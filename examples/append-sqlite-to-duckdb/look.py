"""What arrived."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("lab") as db:
    for row in db.query("SELECT reading_id, sensor, celsius FROM greenhouse.readings ORDER BY reading_id")["rows"]:
        print(*row)
