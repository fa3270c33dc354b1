"""Windows and sessions as anybody would write them down: rows one by one, in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.declare.stream import Aggregation, Watermark, Window

Row = dict[str, Any]


@dataclass
class Clock:
    """The greatest event time of each source, less the lateness; the least over the sources that are awake."""

    allowed: Watermark
    latest: dict[str, tuple[int, int]] = field(default_factory=dict)
    mark: int | None = None

    def seen(self, rows: Iterable[Row], now_ms: int) -> None:
        for row in rows:
            if row["us"] is not None:
                known = self.latest.get(row["source"], (row["us"], 0))[0]
                self.latest[row["source"]] = (max(known, row["us"]), now_ms)
        idle = self.allowed.source_idleness_ms if self.allowed.source_idleness_ms is not None else 60_000
        awake = [us for us, at in self.latest.values() if now_ms - at <= idle]
        if awake:
            found = min(awake) - 1000 * (self.allowed.lateness_ms or 0)
            self.mark = found if self.mark is None else max(found, self.mark)


def answer(rows: Sequence[Row], one: Aggregation) -> Any:
    """One aggregate over rows in their order of arrival."""
    if one.agg == "count":
        return len(rows)
    values = [(row["us"], number, row[one.column or ""]) for number, row in enumerate(rows)]
    values = [value for value in values if value[2] is not None]
    plain = [value[2] for value in values]
    if one.agg == "count_col":
        return len(plain)
    if one.agg == "count_distinct":
        return len(set(plain))
    if not plain:
        return None
    if one.agg == "first":
        return min(values, key=lambda value: (value[0], value[1]))[2]
    if one.agg == "last":
        return max(values, key=lambda value: (value[0], -value[1]))[2]
    if one.agg == "avg":
        return sum(plain) / len(plain)
    return {"sum": sum, "min": min, "max": max}[one.agg](plain)


class Windows:
    """Tumbling and hopping windows."""

    def __init__(self, window: Window, allowed: Watermark) -> None:
        self.window, self.clock = window, Clock(allowed)
        self.length = window.duration_ms * 1000
        self.hop = (window.hop_ms or window.duration_ms) * 1000
        self.budget = 1000 * (window.allowed_lateness_ms or 0)
        self.rows: dict[int, list[Row]] = defaultdict(list)
        self.late = 0

    def batch(self, rows: Sequence[Row], now_ms: int) -> list[tuple[Any, ...]]:
        mark, changed = self.clock.mark, set()
        for row in rows:
            if row["us"] is None:
                continue
            start = row["us"] // self.hop * self.hop
            was_late = False
            while start + self.length > row["us"]:
                if mark is not None and start + self.length + self.budget <= mark:
                    was_late = True
                else:
                    self.rows[start].append(row)
                    changed.add(start)
                start -= self.hop
            self.late += was_late
        self.clock.seen(rows, now_ms)
        new = self.clock.mark
        found = []
        for start, kept in self.rows.items():
            end = start + self.length
            if new is None or end > new:
                continue
            if mark is None or end > mark or start in changed:
                groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
                for row in kept:
                    groups[tuple(row[name] for name in self.window.group_by)].append(row)
                found += [
                    (start, end, *key, *[answer(group, one) for one in self.window.aggregations])
                    for key, group in groups.items()
                ]
        return found


GONE = "gone"
"""How a row begins that says: what was given out for this start and key is no session any more."""


Piece = tuple[int, int, list[Row], bool]
"""The first and the last moment of rows that stay together, these rows, and whether any is new."""


class Sessions:
    """Sessions; rows of a batch are taken in the order of their event time, those of one moment together."""

    def __init__(self, window: Window, allowed: Watermark) -> None:
        assert window.gap_ms and window.max_session_duration_ms
        self.window, self.clock = window, Clock(allowed)
        self.gap, self.longest = window.gap_ms * 1000, window.max_session_duration_ms * 1000
        self.budget = 1000 * (window.allowed_lateness_ms or 0)
        self.open: dict[tuple[Any, ...], list[list[Row]]] = defaultdict(list)
        self.shown: dict[tuple[Any, ...], set[int]] = defaultdict(set)
        self.late = 0

    def batch(self, rows: Sequence[Row], now_ms: int) -> list[tuple[Any, ...]]:
        mark = self.clock.mark
        found: list[tuple[Any, ...]] = []
        fresh: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in rows:
            if row["us"] is None:
                continue
            if mark is not None and row["us"] + self.gap + self.budget < mark:
                self.late += 1
            else:
                fresh[tuple(row[name] for name in self.window.group_by)].append(row)
        self.clock.seen(rows, now_ms)
        new = self.clock.mark
        for key in {*self.open, *fresh}:
            pieces: list[Piece] = [(_first(one), _last(one), one, False) for one in self.open[key]]
            pieces += [(row["us"], row["us"], [row], True) for row in fresh[key]]
            made: list[tuple[list[Row], bool, bool]] = []  # rows, has new ones, was cut
            for start, last, piece, is_new in _of_one_moment(pieces):
                if made and start <= _last(made[-1][0]) + self.gap:
                    if max(_last(made[-1][0]), last) - _first(made[-1][0]) <= self.longest:
                        made[-1] = (made[-1][0] + piece, made[-1][1] or is_new, False)
                        continue
                    made[-1] = (made[-1][0], made[-1][1], True)
                made.append((piece, is_new, False))
            starts = {_first(session) for session, _, _ in made}
            found += [(GONE, start, *key) for start in self.shown[key] - starts]
            shown = self.shown[key] & starts
            kept = []
            for session, has_new, cut in made:
                past = new is not None and _last(session) + self.gap < new
                was_out = not has_new and mark is not None and _last(session) + self.gap < mark
                if cut or (past and not was_out):
                    shown.add(_first(session))
                    in_order = sorted(session, key=lambda row: row["arrival"])
                    found.append(
                        (
                            _first(session),
                            _last(session) + self.gap,
                            *key,
                            *[answer(in_order, one) for one in self.window.aggregations],
                        )
                    )
                if not cut and not (new is not None and _last(session) + self.gap + self.budget < new):
                    kept.append(session)
            self.open[key] = kept
            self.shown[key] = shown & {_first(session) for session in kept}
        return found


class Table:
    """What a target holds that is merged by the start of a window and its key."""

    def __init__(self, window: Window) -> None:
        self.key = 1 + len(window.group_by)
        self.rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def take(self, out: Iterable[tuple[Any, ...]]) -> None:
        """Take what comes out of a batch; only what is there can be gone."""
        out = list(out)
        for row in out:
            if row[0] == GONE:
                del self.rows[row[1:]]
        for row in out:
            if row[0] != GONE:
                key = (row[0], *row[2 : 1 + self.key])
                self.rows[key] = row


def _of_one_moment(pieces: Iterable[Piece]) -> list[Piece]:
    """Pieces in order, those that begin at one moment as one: a session is never ended between their rows."""
    found: dict[int, Piece] = {}
    for start, last, rows, is_new in sorted(pieces, key=lambda one: one[0]):
        _, known_last, known, was_new = found.get(start, (start, last, [], False))
        found[start] = (start, max(known_last, last), [*known, *rows], was_new or is_new)
    return list(found.values())


def _first(rows: Sequence[Row]) -> int:
    return min(row["us"] for row in rows)


def _last(rows: Sequence[Row]) -> int:
    return max(row["us"] for row in rows)
