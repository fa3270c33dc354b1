"""Which slots of a schedule are to be run now, and which ones nobody will run any more. Clock and past are given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from ematix_flow.declare.schedule import CatchUp
from ematix_flow.plan.cron import Schedule, as_utc

MOST_COUNTED = 1000
"""Missed slots are counted up to here: a minutely schedule that rested for a year need not be counted out."""
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True)
class DueRule:
    """A schedule, and what happens to fire times at which nobody looked.

    Attributes:
        catchup: `none`: only a fire time of this very interval is run; `latest`: the latest one, however old; `all`.
        max_catchup: With `all`, at most so many, the newest ones.
    """

    schedule: Schedule
    catchup: CatchUp = "none"
    max_catchup: int = 100


@dataclass(frozen=True)
class DueSlots:
    """What a look at the clock gave.

    Attributes:
        slots: To be run, oldest first.
        missed: Fire times since the last slot that will not be run, counted up to `MOST_COUNTED`.
        missed_from: The first of them.
        missed_until: The last of them.
    """

    slots: tuple[datetime, ...] = ()
    missed: int = 0
    missed_from: datetime | None = None
    missed_until: datetime | None = None


def due_slots(
    rule: DueRule,
    *,
    now: datetime,
    interval_s: float,
    last_slot: datetime | None,
    first_seen: datetime | None = None,
) -> DueSlots:
    """The fire times to run at `now`, when somebody looks every `interval_s` seconds and `last_slot` is already known.

    Every fire time after `last_slot` is either due or missed, and never both. Without a last slot the time counts from
    `first_seen`, or from one interval ago; nothing from before `first_seen` is missed. A clock that went back behind
    the last slot gives nothing.

    >>> daily = DueRule(Schedule("0 6 * * *"), catchup="all")
    >>> found = due_slots(daily, now=datetime(2026, 3, 4, 7), interval_s=60, last_slot=datetime(2026, 3, 1, 6))
    >>> [slot.day for slot in found.slots], found.missed
    ([2, 3, 4], 0)
    """
    now = as_utc(now)
    window = now - timedelta(seconds=interval_s)
    if last_slot is not None:
        known = as_utc(last_slot)
    else:
        known = min(window, as_utc(first_seen)) if first_seen is not None else window
    if known >= now:
        return DueSlots()
    since = max(window, known) if rule.catchup == "none" else known
    most = rule.max_catchup if rule.catchup == "all" else 1
    newest: list[datetime] = []
    for instant in islice(rule.schedule.before(now), most):
        if instant <= since:
            break
        newest.append(instant)
    slots = tuple(reversed(newest))
    # What lies between the last slot and the first one to run, or one interval ago: nobody will come back to it.
    edge = slots[0] - _INSTANT if slots else since
    seen = as_utc(first_seen) if last_slot is None and first_seen is not None else known
    return _with_missed(slots, rule.schedule, max(known, seen), edge)


def backfill_slots(schedule: Schedule, start: datetime, end: datetime) -> tuple[datetime, ...]:
    """Every fire time with `start <= t < end`, oldest first."""
    return tuple(schedule.between(as_utc(start) - _INSTANT, as_utc(end) - _INSTANT))


def _with_missed(slots: tuple[datetime, ...], schedule: Schedule, after: datetime, until: datetime) -> DueSlots:
    latest = schedule.latest(until) if until > after else None
    if latest is None or latest <= after:
        return DueSlots(slots)
    counted = sum(1 for _ in islice(schedule.between(after, until), MOST_COUNTED))
    return DueSlots(slots, counted, schedule.next_after(after), latest)
