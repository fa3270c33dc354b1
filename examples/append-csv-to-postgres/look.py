"""What arrived."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("warehouse") as db:
    for row in db.query("SELECT order_id, item, amount FROM shop.orders ORDER BY order_id")["rows"]:
        print(*row)
