"""What planning sees."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("planning") as db:
    for row in db.query("SELECT article, pieces, counted_at::DATE FROM stock.articles ORDER BY article")["rows"]:
        print(*row)
