"""What the mirror holds."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("warehouse") as db:
    for row in db.query("SELECT member_id, name, email, joined_on FROM club.members ORDER BY member_id")["rows"]:
        print(*row)
