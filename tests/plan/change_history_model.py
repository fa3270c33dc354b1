"""What plain Python makes of a change feed's history, and how landed changes are settled in a real database."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.change_feeds import (
    AT,
    DELETE as GONE,
    FURTHEST,
    KEY,
    NEWEST,
    NTH,
    OP,
    PK,
    POSITION,
    TIP,
    TRUNCATE,
    TS,
    UPSERT,
    full_masks,
)
from ematix_flow.contracts.dialect import LANDED
from ematix_flow.contracts.plans import Profile, Stamp
from ematix_flow.declare.columns import BigInt, Text
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.plan.change_apply import Feed, plan_changes
from ematix_flow.run.places import opened
from tests.plan.change_model import place_in
from tests.plan.loading import DAWN, SOURCE, Db, minute

NAMES = ("v", "w")
COLUMNS = (
    ColumnSpec("id", BigInt(), primary_key=True),
    ColumnSpec("v", Text(), nullable=True),
    ColumnSpec("w", BigInt(), nullable=True),
)
Image = dict[str, Any]
At = tuple[int, int]
"""A moment: its minute, and the microseconds that a version begins behind it because the clock had been set back."""


@dataclass(frozen=True)
class Change:
    """What lands: an image, perhaps without some columns, or None where the row goes; of no key, a truncate."""

    key: int | None
    at: int
    image: Image | None
    place: int = 0


@dataclass(frozen=True)
class Furthest:
    """Where in the log the version of a key is that stands behind all others of it, and from when it is."""

    place: int
    at: int
    more: int = 0

    def holds_back(self, change: Change) -> bool:
        """Whether a change stands behind it, or is itself, and has an earlier time."""
        return change.place >= self.place and (self.at, self.more) > (change.at, 0)


@dataclass
class History:
    """What plain Python makes of it: of every key, what is known from which moment on; None is gone."""

    told: dict[int, dict[At, Image | None]] = field(default_factory=dict)
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    furthest: dict[int, Furthest] = field(default_factory=dict)
    elsewhere: set[tuple[int, int]] = field(default_factory=set)

    def take(self, batch: list[Change]) -> None:
        emptied = {(change.at, 0): change.place for change in batch if change.key is None}
        by_key: dict[int, list[Change]] = {}
        for change in sorted(batch, key=lambda one: one.place):
            if change.key is not None:
                by_key.setdefault(change.key, []).append(change)
        for key in {*by_key, *self.told}:
            landed: dict[At, Image | None] = {}
            for nth, change in enumerate(by_key.get(key, []), 1):
                at = self._moved(key, change, nth)
                if self._is_past(key, change) or (at in emptied and change.place <= emptied[at]):
                    continue
                before = landed.get(at, {})
                before = dict.fromkeys(NAMES) if before is None else before
                landed[at] = None if change.image is None else {**before, **change.image}
            self.told[key] = self._told(self.told.get(key, {}), landed, emptied)
        for key, changes in by_key.items():
            self._remember(key, changes)

    def _moved(self, key: int, change: Change, nth: int) -> At:
        known = self.furthest.get(key)
        if known is None or not known.holds_back(change):
            return change.at, 0
        return known.at, known.more + (nth if change.place > known.place else 0)

    def _is_past(self, key: int, change: Change) -> bool:
        known, place = self.furthest.get(key), self.places.get((key, change.at), 0)
        if place > change.place or ((key, change.at) in self.elsewhere and place == change.place):
            return True
        return known is not None and change.place < known.place and (change.at, 1) > (known.at, 1 - bool(known.more))

    def _remember(self, key: int, changes: list[Change]) -> None:
        known, last = self.furthest.get(key), changes[-1]
        for change in changes:
            self.places[key, change.at] = max(self.places.get((key, change.at), 0), change.place)
            if known is not None and known.holds_back(change):
                self.elsewhere.add((key, change.at))
        if known is None or last.place > known.place:
            at, more = self._moved(key, last, len(changes))
            self.furthest[key] = Furthest(last.place, at, more)

    def _told(self, stored: Any, landed: Any, emptied: Any) -> dict[At, Image | None]:
        now: Image | None = None
        found: dict[At, Image | None] = {}
        for at in sorted({*stored, *landed, *emptied}):
            before = now
            if at in emptied:
                now = None
            for words in (stored, landed):
                if at in words:
                    image = words[at]
                    now = None if image is None else {**(now or dict.fromkeys(NAMES)), **image}
            if now != before:
                found[at] = now
        return found

    def versions(self) -> list[tuple[Any, ...]]:
        rows = []
        for key, told in sorted(self.told.items()):
            moments = sorted(told)
            for at, end in zip(moments, [*moments[1:], None], strict=False):
                image = told[at]
                if image is not None:
                    rows.append((key, *(image[name] for name in NAMES), at, end, end is None))
        return rows


def landed_rows(batch: list[Change]) -> list[dict[str, Any]]:
    """Changes in the columns in which they land: of every key one for a time, by time and place alike."""
    found = []
    for change in batch:
        of_key = [other.place for other in batch if other.key == change.key]
        row = _landed_row(change)
        if change.key is not None:
            row[NTH] = sum(place <= change.place for place in of_key)
            row[TIP] = NEWEST | (FURTHEST if change.place == max(of_key) else 0)
        found.append(row)
    return found


def _landed_row(change: Change) -> dict[str, Any]:
    op = TRUNCATE if change.key is None else GONE if change.image is None else UPSERT
    has = sum(1 << place for place, name in enumerate(NAMES) if change.image and name in change.image)
    masks = dict.fromkeys(full_masks(len(NAMES)), has)
    where: dict[str, Any] = {AT: change.at, TS: change.at * 60_000, POSITION: place_in("lsn:", change.place)}
    if change.key is not None:
        where |= {PK: f"{change.key}@{change.at}", KEY: f"{change.key}"}
    return {"id": change.key, **(change.image or {}), OP: op, **masks, **where}


def settle(db: Db, spec: PipelineSpec, rows: list[dict[str, Any]], now: int) -> None:
    """Settle landed changes as a stream does."""
    stamp = Stamp(f"00000000-0000-0000-0000-{now:012d}", minute(now))
    with opened(spec, spec.target) as places:
        assert isinstance(places.target, SqlBackend)
        places.target.ensure_books()
        places.target.ensure_gate()
        plan = plan_changes(spec.target, places.target_side(spec.target), Feed("feed", NAMES), stamp)
        landing = replace(spec, targets=(replace(spec.target, table=replace(spec.target.table, columns=plan.columns)),))
        db.put(landing, [{**dict.fromkeys(c.name for c in plan.columns), **row} for row in rows])
        counted = Profile(f"SELECT count(*), NULL FROM {db.dialect.relation(LANDED, stamp.run_id)}", ())
        plan = replace(plan, landing_sql=f"SELECT * FROM {SOURCE}", profile=counted)
        places.target.settle(plan, None, stamp, None)


def history_spec(db: Db) -> PipelineSpec:
    spec = db.spec(COLUMNS, mode="scd2", keys=("id",), stamped=False)
    db.forget(spec)
    return spec


def stored_versions(db: Db, spec: PipelineSpec) -> list[tuple[Any, ...]]:
    """What the target holds, in the words of `History.versions`."""
    names = ("id", *NAMES, "valid_from", "valid_to", "is_current")
    columns, table = db.dialect.columns(names), spec.target.table
    place = db.dialect.table(db.backend.table_ref(table.schema, table.name))
    rows = db.own.execute(f"SELECT {columns} FROM {place} ORDER BY id, valid_from").fetchall()
    return [(*row[:3], _moment(row[3]), row[4] and _moment(row[4]), bool(row[5])) for row in rows]


def _moment(stored: Any) -> At:
    at = stored if isinstance(stored, datetime) else datetime.fromisoformat(stored.replace("Z", "+00:00"))
    since = at.replace(tzinfo=at.tzinfo or timezone.utc) - DAWN
    return since // timedelta(minutes=1), since % timedelta(minutes=1) // timedelta(microseconds=1)
