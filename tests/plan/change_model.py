"""A change feed in plain Python: what a table should hold, and how the events of a batch should land.

The first is the model: one event after another. The second says again, event by event, what `spark/change_order.py`
works out for a whole batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from ematix_flow.contracts.change_feeds import (
    CREATED,
    DELETE,
    DELETED,
    EVERY_KEY,
    NOTHING,
    STALE,
    TRUNCATE,
    UPDATED,
    UPSERT,
)
from ematix_flow.plan.change_feed import Gate, Moment, class_of, is_newer, passed

COLUMNS = ("a", "b", "c")


@dataclass(frozen=True)
class Event:
    """One event of a feed; `key` is None for a truncate."""

    op: str
    key: int | None
    moment: Moment
    image: dict[str, int] = field(default_factory=dict)


@dataclass
class Mirror:
    """The table, and what is known of its keys."""

    rows: dict[int, dict[str, int | None]] = field(default_factory=dict)
    gates: dict[int | None, Gate] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        gate = self.gates.get(event.key, Gate())
        emptied = self.gates.get(None, Gate())
        counts = is_newer(event.moment, gate)
        if event.key is not None:
            counts = counts and is_newer(event.moment, Gate(emptied.ts_ms, emptied.position))
        self.gates[event.key] = passed(gate, event.moment)
        self._count(event.op if counts else "stale")
        if not counts:
            return
        if event.key is None:
            self.rows.clear()
        elif event.op == "delete":
            self.rows.pop(event.key, None)
        else:
            row = self.rows.setdefault(event.key, dict.fromkeys(COLUMNS))
            row.update(event.image)

    def _count(self, word: str) -> None:
        self.counts[word] = self.counts.get(word, 0) + 1

    def table(self) -> list[tuple[Any, ...]]:
        """The rows, in order."""
        return sorted((key, *(row[name] for name in COLUMNS)) for key, row in self.rows.items())


@dataclass
class Landing:
    """One event as it lands: everything but the values of superfluous columns."""

    event: Event
    op: int
    counts_as: int
    turn: int = 0
    tip: int = 0
    seq: int = 0

    @property
    def pk(self) -> str:
        return EVERY_KEY if self.event.key is None else f'{{"id":{self.event.key}}}'

    @property
    def mask(self) -> int:
        return sum(1 << place for place, name in enumerate(COLUMNS) if name in self.event.image)


_FULL = (1 << len(COLUMNS)) - 1
_COUNTED = {"create": CREATED, "read": CREATED, "update": UPDATED, "delete": DELETED, "truncate": DELETED}


def landed(batch: Sequence[Event]) -> list[Landing]:
    """The events of a batch as they land."""
    found: list[Landing] = []
    numbered = list(enumerate(batch))
    for key in dict.fromkeys(event.key for event in batch):
        places = [place for place, event in numbered if event.key == key]
        for place, row in zip(places, _of_one_key([batch[place] for place in places]), strict=True):
            row.seq = place
            found.append(row)
    return found


def _of_one_key(events: list[Event]) -> list[Landing]:
    rows, gate = [], Gate()
    tips: dict[int, int] = {}
    for number, event in enumerate(events):
        counts = is_newer(event.moment, gate)
        kind = {"truncate": TRUNCATE, "delete": DELETE}.get(event.op, UPSERT)
        if kind != TRUNCATE and not counts:
            kind = NOTHING
        counted = _COUNTED[event.op] if counts or event.op == "truncate" else STALE
        rows.append(Landing(event, kind, counted, turn=int(kind == TRUNCATE and counts)))
        after = passed(gate, event.moment)
        if after != gate:
            tips[2 if event.moment.is_snapshot else 1] = number
        gate = after
    for tip, number in tips.items():
        rows[number].tip = tip
    later: dict[int, int] = {}
    kept = []
    for row in reversed(rows):
        if row.op not in (UPSERT, DELETE):
            continue
        own = _FULL if row.op == DELETE else row.mask
        family = class_of(row.event.moment)
        if family not in later or own & ~later[family]:
            kept.append(row)
        later[family] = own | later.get(family, 0)
    for turn, row in enumerate(reversed(kept), 1):
        row.turn = turn
    return rows


@st.composite
def feeds(draw: st.DrawFn, keys: int = 3, most: int = 14) -> list[Event]:
    """Random feeds: same milliseconds, old events, redeliveries, partial images, snapshots, truncates in their turn."""
    number = draw(st.integers(1, most))
    events: list[Event] = []
    clock = 10
    for place in range(number):
        kind = draw(st.sampled_from(["new", "new", "new", "old", "again", "untimed", "truncate"]))
        if kind == "again" and events:
            events.append(draw(st.sampled_from(events)))
            continue
        clock += draw(st.integers(0, 2))
        if kind == "truncate":
            clock += 1
            events.append(Event("truncate", None, Moment(clock, f"lsn:{place:03d}")))
            clock += 1
            continue
        op = draw(st.sampled_from(["create", "read", "update", "update", "delete"]))
        names = draw(st.sets(st.sampled_from(COLUMNS))) if draw(st.booleans()) else set(COLUMNS)
        image = {name: draw(st.integers(0, 9)) for name in sorted(names)} if op != "delete" else {}
        ts = None if kind == "untimed" else clock - (draw(st.integers(0, 8)) if kind == "old" else 0)
        log = draw(st.sampled_from(["lsn:", "lsn:", "off:"]))
        position = draw(st.sampled_from([f"{log}{place:03d}", f"{log}{max(place - 3, 0):03d}", None]))
        events.append(Event(op, draw(st.integers(1, keys)), Moment(ts, position, op == "read"), image))
    return events


def cuts(feed: Sequence[Event], places: Sequence[int]) -> list[list[Event]]:
    """The feed in batches."""
    ends = sorted({min(place, len(feed)) for place in places} | {len(feed)})
    return [list(feed[begin:end]) for begin, end in zip([0, *ends], ends, strict=False) if begin < end]
