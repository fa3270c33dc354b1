"""A join of two streams as anybody would write it down: rows one by one, in plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ematix_flow.declare.stream import Join, Watermark
from tests.stream.window_model import Clock, Row


class Joined:
    """Pairs when their second row comes; rows alone when nothing can match them any more."""

    def __init__(self, join: Join, allowed: Watermark) -> None:
        self.join, self.clock = join, Clock(allowed)
        least, greatest = join.span_ms
        self.least, self.greatest = 1000 * least, 1000 * greatest
        budget = 1000 * (join.allowed_lateness_ms or 0)
        self.reach = {"a": self.greatest + budget, "b": budget - self.least}
        self.keeps = {"a": join.kind in ("left_outer", "full_outer"), "b": join.kind in ("right_outer", "full_outer")}
        self.rows: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
        self.known = {"a": False, "b": False}
        self.late = 0
        self.begun_ms: int | None = None

    def batch(self, rows: Sequence[Row], now_ms: int) -> list[tuple[Any, Any]]:
        mark, found = self.clock.mark, []
        for row in rows:
            if row["us"] is None:
                continue
            side = row["source"]
            if mark is not None and row["us"] + self.reach[side] < mark:
                self.late += 1
                continue
            self.known[side] = True
            mine = {"row": row, "matched": False}
            for other in self.rows["b" if side == "a" else "a"]:
                left, right = (mine, other) if side == "a" else (other, mine)
                apart = right["row"]["us"] - left["row"]["us"]
                if (
                    mark is not None
                    and other["row"]["us"] + self.reach[other["row"]["source"]] < mark  # waits to come out alone
                ):
                    continue
                if row["k"] is not None and row["k"] == other["row"]["k"] and self.least <= apart <= self.greatest:
                    found.append((left["row"]["v"], right["row"]["v"]))
                    left["matched"] = right["matched"] = True
            self.rows[side].append(mine)
        self.clock.seen(rows, now_ms)
        new = self.clock.mark
        if self.begun_ms is None and self.clock.latest:
            self.begun_ms = now_ms
        idle = self.clock.allowed.source_idleness_ms
        gives_up = self.begun_ms is not None and now_ms - self.begun_ms > (60_000 if idle is None else idle)
        if new is None or not (all(self.known.values()) or gives_up or not any(self.keeps.values())):
            return found
        for side in ("a", "b"):
            past = [one for one in self.rows[side] if one["row"]["us"] + self.reach[side] < new]
            self.rows[side] = [one for one in self.rows[side] if one["row"]["us"] + self.reach[side] >= new]
            if self.keeps[side]:
                alone = [one["row"]["v"] for one in past if not one["matched"]]
                found += [(v, None) if side == "a" else (None, v) for v in alone]
        return found

    def waiting_keys(self) -> set[str]:
        """Keys that have a row which something may still match."""
        mark = self.clock.mark
        return {
            one["row"]["k"]
            for side, rows in self.rows.items()
            for one in rows
            if one["row"]["k"] is not None and (mark is None or one["row"]["us"] + self.reach[side] >= mark)
        }
