"""What plain Python makes of a change feed's history, and how landed changes are settled in a real database."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.change_feeds import (
    AT,
    DELETE as GONE,
    NEWEST,
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
from tests.plan.loading import SOURCE, Db, minute

NAMES = ("v", "w")
COLUMNS = (
    ColumnSpec("id", BigInt(), primary_key=True),
    ColumnSpec("v", Text(), nullable=True),
    ColumnSpec("w", BigInt(), nullable=True),
)
Image = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """What lands: an image, perhaps without some columns, or None where the row goes; of no key, a truncate."""

    key: int | None
    at: int
    image: Image | None
    place: int = 0


@dataclass
class History:
    """What plain Python makes of it: of every key, what is known from which moment on; None is gone."""

    told: dict[int, dict[int, Image | None]] = field(default_factory=dict)
    places: dict[tuple[int, int], int] = field(default_factory=dict)

    def take(self, batch: list[Change]) -> None:
        emptied = {change.at: change.place for change in batch if change.key is None}
        for key in {change.key for change in batch if change.key is not None} | set(self.told):
            stored = self.told.get(key, {})
            landed = {
                change.at: change.image
                for change in batch
                if change.key == key
                and not (change.at in emptied and change.place <= emptied[change.at])
                and change.place >= self.places.get((key, change.at), 0)
            }
            self.told[key] = self._told(stored, landed, emptied)
        for change in batch:
            if change.key is not None:
                known = self.places.get((change.key, change.at), 0)
                self.places[change.key, change.at] = max(known, change.place)

    def _told(self, stored: Any, landed: Any, emptied: Any) -> dict[int, Image | None]:
        now: Image | None = None
        found: dict[int, Image | None] = {}
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


def landed_row(change: Change) -> dict[str, Any]:
    """The change in the columns in which it lands."""
    op = TRUNCATE if change.key is None else GONE if change.image is None else UPSERT
    has = sum(1 << place for place, name in enumerate(NAMES) if change.image and name in change.image)
    masks = dict.fromkeys(full_masks(len(NAMES)), has)
    where: dict[str, Any] = {AT: change.at, TS: change.at, POSITION: place_in("lsn:", change.place)}
    if change.key is not None:
        where |= {PK: f"{change.key}@{change.at}", TIP: NEWEST}
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
    names = ("id", *NAMES, "valid_from", "valid_to", "is_current")
    return [tuple(row[name] for name in names) for row in db.stored(spec)]
