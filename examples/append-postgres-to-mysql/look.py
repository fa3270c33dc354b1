"""What arrived."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("bookkeeping") as db:
    for row in db.query("SELECT payment_id, method, amount FROM accounts.payments ORDER BY payment_id")["rows"]:
        print(*row)
