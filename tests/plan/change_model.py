"""A change feed in plain Python: what a table should hold, and how the events of a batch should land.

`Mirror` applies one event after another by the rules of a feed. `landed` says again, event by event, what
`spark/change_order.py` works out for a whole batch at once. `Source` knows nothing of either: it is a table with a log
and a clock, and what a mirror should hold in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from ematix_flow.contracts.change_feeds import (
    ALONE,
    CREATED,
    DELETE,
    DELETED,
    EVERY_KEY,
    LAST_GONE,
    LAST_ROW,
    NEWEST,
    NEWEST_READ,
    NOTHING,
    STALE,
    TRUNCATE,
    UNCOUNTED,
    UPDATED,
    UPSERT,
)
from ematix_flow.plan.change_feed import Gate, Moment, is_newer, log_of, passed

COLUMNS = ("a", "b", "c")


def place_in(log: str, number: int) -> str:
    """A position as it is compared."""
    return f"{log}{number:028d}"


@dataclass(frozen=True)
class Event:
    """One event of a feed; `key` is None for a truncate. `offset` is where it stands in its topic."""

    op: str
    key: int | None
    moment: Moment
    image: dict[str, int] = field(default_factory=dict)
    offset: int | None = None


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

    @property
    def place(self) -> str | None:
        is_told = self.event.offset is not None and self.tip & (LAST_ROW | LAST_GONE | ALONE)
        return f"{0:010d}:{self.event.offset:020d}" if is_told else None


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


def _of_one_key(events: Sequence[Event]) -> list[Landing]:
    rows, gate = [], Gate()
    tips: dict[int, int] = {}
    events = _in_step(events)
    for number, event in enumerate(events):
        before = events[number - 1] if number else None
        is_tombstone = event.op == "tombstone"
        is_echo = is_tombstone and before is not None and before.op in ("delete", "tombstone")
        moment = event.moment
        if is_tombstone and before is not None:
            told = before.moment
            moment = Moment(told.ts_ms, None if told.position is None else told.position + "~")
            event = replace(event, moment=moment)
        counts = is_newer(moment, gate) and not is_echo
        kind = {"truncate": TRUNCATE, "delete": DELETE, "tombstone": DELETE}.get(event.op, UPSERT)
        if kind != TRUNCATE and not counts:
            kind = NOTHING
        counted = _COUNTED.get(event.op, DELETED) if counts or event.op == "truncate" else STALE
        rows.append(Landing(event, kind, UNCOUNTED if is_echo else counted, turn=int(kind == TRUNCATE and counts)))
        after = passed(gate, moment)
        if after != gate:
            tips[NEWEST_READ if moment.is_snapshot else NEWEST] = number
        gate = after
    for tip, number in tips.items():
        rows[number].tip = tip
    if events[-1].key is not None:
        rows[-1].tip += LAST_GONE if events[-1].op in ("delete", "tombstone") else LAST_ROW
    if events[0].op == "tombstone":
        rows[0].tip += ALONE
    later: dict[object, int] = {}
    kept = []
    for row in reversed(rows):
        if row.op not in (UPSERT, DELETE):
            continue
        own = _FULL if row.op == DELETE else row.mask
        of = row.event.moment
        family = None if of.ts_ms is None else (log_of(of.position), of.position is None, of.is_snapshot)
        if family not in later or own & ~later[family]:
            kept.append(row)
        later[family] = own | later.get(family, 0)
    for turn, row in enumerate(reversed(kept), 1):
        row.turn = turn
    return rows


def _in_step(events: Sequence[Event]) -> list[Event]:
    """The events of a key with times that do not go back where the places of their log go on."""
    found = []
    for event in events:
        at, log = event.moment, log_of(event.moment.position)
        if at.ts_ms is not None and log is not None:
            moments = [one.moment for one in events if log_of(one.moment.position) == log]
            known = [m.ts_ms for m in moments if m.ts_ms is not None and m.position <= at.position]  # type: ignore[operator]
            at = replace(at, ts_ms=max(known))
        found.append(replace(event, moment=at))
    return found


@st.composite
def feeds(draw: st.DrawFn, keys: int = 3, most: int = 14) -> list[Event]:
    """Random feeds: same milliseconds, old events, redeliveries, partial images, snapshots, truncates in their turn."""
    number = draw(st.integers(1, most))
    events: list[Event] = []
    clock = 10
    logs = draw(st.sampled_from([["lsn:"], ["lsn:"], ["off:", None]]))
    for place in range(number):
        kind = draw(st.sampled_from(["new", "new", "new", "old", "again", "untimed", "truncate"]))
        if kind == "again" and events:
            events.append(draw(st.sampled_from(events)))
            continue
        clock = max(clock + draw(st.integers(-1 if logs == ["lsn:"] else 0, 2)), 1)
        if kind == "truncate":
            clock += 1
            events.append(Event("truncate", None, Moment(clock, place_in(logs[0] or "", place))))
            clock += 1
            continue
        op = draw(st.sampled_from(["create", "read", "update", "update", "delete"]))
        names = draw(st.sets(st.sampled_from(COLUMNS))) if draw(st.booleans()) else set(COLUMNS)
        image = {name: draw(st.integers(0, 9)) for name in sorted(names)} if op != "delete" else {}
        ts = None if kind == "untimed" else clock - (draw(st.integers(0, 8)) if kind == "old" else 0)
        log = draw(st.sampled_from(logs))
        position = None if log is None else place_in(log, draw(st.sampled_from([place, max(place - 3, 0)])))
        events.append(Event(op, draw(st.integers(1, keys)), Moment(ts, position, op == "read"), image))
    return events


# ── a source with a log and a clock ──────────────────────────────────────────────────────────────────────────────────


@dataclass
class Source:
    """A table that changes at random, and the topic in which its changes stand in their order.

    Its clock is set back now and then, and may know only seconds. Deletes are followed by tombstones, or are told by
    nothing else. `rows` is what the table holds, and `told` every row that it ever held, by the place in its log.
    """

    chosen: Random
    keys: int
    marks: str
    tick_ms: int
    rows: dict[int, dict[str, int | None]] = field(default_factory=dict)
    topic: list[Event] = field(default_factory=list)
    clock: int = 1_000_000
    log: int = 0

    def change(self) -> None:
        """Change a row, or all of them."""
        chosen = self.chosen
        self.clock += chosen.choice([0, 0, 1, 3, 700, -900])
        self.log += chosen.randint(1, 3)
        at = Moment(self.clock // self.tick_ms * self.tick_ms, place_in("lsn:", self.log))
        key = chosen.randrange(self.keys)
        if self.marks == "both" and chosen.random() < 0.005:
            self.rows.clear()
            self._tell(Event("truncate", None, at))
        elif key not in self.rows:
            self.rows[key] = {name: chosen.randint(0, 99) for name in COLUMNS}
            self._tell(Event("create", key, at, dict(self.rows[key])))  # type: ignore[arg-type]
        elif chosen.random() < 0.3:
            del self.rows[key]
            if self.marks == "both":
                self._tell(Event("delete", key, at))
            self._tell(Event("tombstone", key, Moment(None)))
        else:
            image = {name: chosen.randint(0, 99) for name in chosen.sample(COLUMNS, chosen.randint(1, 3))}
            self.rows[key].update(image)
            self._tell(Event("update", key, at, image))

    def _tell(self, event: Event) -> None:
        self.topic.append(replace(event, offset=len(self.topic)))

    def table(self) -> list[tuple[Any, ...]]:
        """The rows, in order."""
        return sorted((key, *(row[name] for name in COLUMNS)) for key, row in self.rows.items())

    def deliveries(self, changes: int, largest: int) -> Iterator[list[Event]]:
        """Batches of so many changes, cut anywhere: the topic is read on, or once more from an earlier place, and what
        was sent already is sent again, behind the rest. In the end all of it was read."""
        chosen, at = self.chosen, 0
        while changes > 0 or at < len(self.topic):
            for _ in range(min(changes, chosen.randint(1, largest))):
                self.change()
                changes -= 1
            luck = chosen.random()
            if luck < 0.15:
                at = max(0, at - chosen.randint(1, 2 * largest))
            elif luck < 0.3:  # a connector that was killed goes on from what it had noted
                self._send_again(chosen.randint(1, 2 * largest))
            end = min(len(self.topic), at + chosen.randint(1, 2 * largest))
            yield self.topic[at:end]
            at = end

    def _send_again(self, number: int) -> None:
        told: set[int | None] = set()
        for event in self.topic[-number:]:
            # A tombstone is never sent again without what came before it: it says nothing of when it was.
            if event.op != "tombstone" or event.key in told:
                told.add(event.key)
                self._tell(event)


def cuts(feed: Sequence[Event], places: Sequence[int]) -> list[list[Event]]:
    """The feed in batches."""
    ends = sorted({min(place, len(feed)) for place in places} | {len(feed)})
    return [list(feed[begin:end]) for begin, end in zip([0, *ends], ends, strict=False) if begin < end]
