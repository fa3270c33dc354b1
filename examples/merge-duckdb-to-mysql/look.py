"""What the game shows."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

with connect("game") as db:
    for row in db.query("SELECT player, rounds, average FROM game.ratings ORDER BY player")["rows"]:
        print(*row)
