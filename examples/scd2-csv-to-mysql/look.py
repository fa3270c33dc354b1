"""The history: each version, and whether it is over."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("cafe") as db:
    for row in db.query("SELECT dish, price, valid_to FROM cafe.prices ORDER BY dish, valid_from")["rows"]:
        print(row[0], row[1], "now" if row[2] is None else "before")
