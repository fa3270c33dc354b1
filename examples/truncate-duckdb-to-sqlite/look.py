"""What the web page shows."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("web_page") as db:
    for row in db.query("SELECT times, title FROM most_borrowed ORDER BY times DESC")["rows"]:
        print(*row)
