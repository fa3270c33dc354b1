"""When a cron expression fires: wall-clock times of a zone become instants, and daylight saving becomes a decision.

A zone's clock shows some times twice (in autumn) and some never (in spring). A schedule that says at what time of day
it runs has a policy for both. One that has a match in every hour says how often it runs, so it follows real time: it
fires whenever the clock shows a match, once per real hour or quarter of an hour.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone as fixed_zone, tzinfo
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from ematix_flow.declare.cron_fields import CronFields, read_cron
from ematix_flow.declare.schedule import MissingHour, RepeatedHour, check_timezone

UTC = fixed_zone.utc
Direction = Literal[1, -1]
# No pattern of days repeats later than this: 29 February may be eight years away.
_HORIZON = timedelta(days=9 * 366)
# No zone changes its clock twice within this time, and none by more.
_NEAR = timedelta(hours=25)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Schedule:
    """A cron expression on the clock of a zone (UTC without one).

    Attributes:
        repeated_hour: What becomes of a time that the clock shows twice: run `once`, the first time, or `twice`.
        missing_hour: What becomes of a time that the clock leaves out: `shift` to right after the gap, or `skip`.

    Raises:
        InvalidDeclaration: (a ValueError) The expression or the zone is none.

    >>> daily = Schedule("30 1 * * *", "America/New_York")
    >>> [str(t) for t in daily.between(datetime(2026, 10, 31, 12), datetime(2026, 11, 2, 12))]
    ['2026-11-01 05:30:00+00:00', '2026-11-02 06:30:00+00:00']
    """

    expression: str
    timezone: str | None = None
    repeated_hour: RepeatedHour = "once"
    missing_hour: MissingHour = "shift"

    def __post_init__(self) -> None:
        read_cron(self.expression)
        check_timezone(self.timezone)

    def between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        """Fire times with `after < t <= until`, ascending, found one by one."""
        until = as_utc(until)
        for instant in self._walk(as_utc(after), 1):
            if instant > until:
                return
            yield instant

    def next_after(self, moment: datetime) -> datetime | None:
        """The first fire time later than `moment`; None when there is none any more."""
        return next(self._walk(as_utc(moment), 1), None)

    def latest(self, moment: datetime) -> datetime | None:
        """The last fire time that is not later than `moment`."""
        return _latest(self, as_utc(moment))

    def before(self, moment: datetime) -> Iterator[datetime]:
        """Fire times not later than `moment`, the latest first, found one by one."""
        return self._walk(as_utc(moment), -1)

    def _walk(self, start: datetime, direction: Direction) -> Iterator[datetime]:
        """Fire times from `start` on (later than it, or going back not later than it), each once."""
        last: datetime | None = None
        for instant in self._in_order(start, direction):
            if instant != last:  # several left-out times may end at the same gap
                yield instant
            last = instant

    def _in_order(self, start: datetime, direction: Direction) -> Iterator[datetime]:
        """The same, a shared gap's instant perhaps several times.

        Walking along the wall clock visits instants nearly in order: only the other showings of repeated times belong
        further on, and wait on a heap until the walk has come to them.
        """
        zone = _zone(self.timezone)
        fields = read_cron(self.expression)
        twice = fields.every_hour or self.repeated_hour == "twice"
        shift = not fields.every_hour and self.missing_hour == "shift"
        waiting: list[tuple[float, datetime]] = []
        for wall in _walls(fields, _first_wall(start, zone, direction), direction):
            first, second = _showings(wall, zone)
            nearest = first if direction == 1 or second is None else second
            while waiting and waiting[0][0] <= direction * nearest.timestamp():
                yield heapq.heappop(waiting)[1]
            if second is None:  # left out by the clock
                instants = [first] if shift else []
            else:
                instants = [first, second] if twice and first != second else [first]
            for instant in instants:
                if not (instant > start if direction == 1 else instant <= start):
                    continue
                if instant == nearest:  # nothing on the wall after this one is nearer
                    yield instant
                else:
                    heapq.heappush(waiting, (direction * instant.timestamp(), instant))
        while waiting:
            yield heapq.heappop(waiting)[1]


def is_due(schedule: str | None, now: datetime, interval_seconds: float, *, tz: str | tzinfo | None = None) -> bool:
    """Whether a fire time lies in `(now - interval, now]`; never without a schedule."""
    return matched_fire_time(schedule, now, interval_seconds, tz=tz) is not None


def matched_fire_time(
    schedule: str | None, now: datetime, interval_seconds: float, *, tz: str | tzinfo | None = None
) -> datetime | None:
    """The first fire time in `(now - interval, now]`, in UTC.

    Raises:
        InvalidDeclaration: (a ValueError) The expression or the zone is none.
    """
    if schedule is None:
        return None
    now = as_utc(now)
    return next(_named(schedule, tz).between(now - timedelta(seconds=interval_seconds), now), None)


def forecast_next_run(schedule: str | None, *, now: datetime, timezone: str | tzinfo | None = None) -> datetime | None:
    """The first fire time later than `now`, in UTC; None without a schedule."""
    return None if schedule is None else _named(schedule, timezone).next_after(now)


def as_utc(moment: datetime) -> datetime:
    """The same instant in UTC; a time without a zone is meant in UTC."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _named(expression: str, zone: str | tzinfo | None) -> Schedule:
    return Schedule(expression, None if zone is None else str(zone))


@lru_cache(maxsize=8192)
def _latest(schedule: Schedule, moment: datetime) -> datetime | None:
    # Many downstreams ask the same of one upstream, all for the same few times.
    return next(schedule.before(moment), None)


# ── the wall clock ───────────────────────────────────────────────────────────────────────────────────────────────────


def _walls(fields: CronFields, start: datetime, direction: Direction) -> Iterator[datetime]:
    """Naive times that match, from `start` on and including it, in that direction."""
    hours, minutes, seconds = (part[::direction] for part in (fields.hours, fields.minutes, fields.seconds))
    for day in _days(fields, start.date(), direction):
        edge = (start.hour, start.minute, start.second) if day == start.date() else None
        for hour in hours:
            if edge and (edge[0] - hour) * direction > 0:
                continue
            for minute in minutes:
                if edge and ((edge[0] - hour) or (edge[1] - minute)) * direction > 0:
                    continue
                for second in seconds:
                    if edge and ((edge[0] - hour) or (edge[1] - minute) or (edge[2] - second)) * direction > 0:
                        continue
                    yield datetime(day.year, day.month, day.day, hour, minute, second)


def _days(fields: CronFields, start: date, direction: Direction) -> Iterator[date]:
    day, found = start, start
    try:
        while abs(day - found) <= _HORIZON or _is_year_to_come(fields, day, direction):
            if day.month not in fields.months or (fields.years is not None and day.year not in fields.years):
                day = _beside_month(day, direction)
                continue
            if fields.has_day(day):
                found = day
                yield day
            day += timedelta(days=direction)
    except OverflowError:  # the calendar of Python ends with the year 9999
        return


def _is_year_to_come(fields: CronFields, day: date, direction: Direction) -> bool:
    return fields.years is not None and any((year - day.year) * direction >= 0 for year in fields.years)


def _beside_month(day: date, direction: Direction) -> date:
    """The first day of the next month, or the last day of the one before."""
    first = day.replace(day=1)
    return (first + timedelta(days=31)).replace(day=1) if direction == 1 else first - timedelta(days=1)


# ── from the wall to the world ───────────────────────────────────────────────────────────────────────────────────────


def _zone(name: str | None) -> ZoneInfo | None:
    return None if name in (None, "UTC") else ZoneInfo(name)


def _first_wall(start: datetime, zone: ZoneInfo | None, direction: Direction) -> datetime:
    """The wall time to begin at so that no instant beyond `start` is overlooked."""
    whole = start.replace(microsecond=0, tzinfo=None)
    if zone is None:
        return whole + _SECOND if direction == 1 else whole
    local = start.astimezone(zone)
    # Times that are about to be shown again, or have just been, lie on the far side of the wall time of `start`.
    beyond = (start + direction * _NEAR).astimezone(zone)
    here, there = local.utcoffset(), beyond.utcoffset()
    assert here is not None and there is not None
    repeated = max(timedelta(0), (here - there) * direction)
    return local.replace(tzinfo=None, microsecond=0, fold=0) - direction * repeated


def _showings(wall: datetime, zone: ZoneInfo | None) -> tuple[datetime, datetime | None]:
    """The instants at which a clock shows `wall`, first and last; in a gap, the instant right after it and None."""
    if zone is None:
        instant = wall.replace(tzinfo=UTC)
        return instant, instant
    early = wall.replace(tzinfo=zone, fold=0).utcoffset()
    late = wall.replace(tzinfo=zone, fold=1).utcoffset()
    assert early is not None and late is not None
    naive = wall.replace(tzinfo=UTC)
    if early >= late:
        return naive - early, naive - late
    return _change(naive - late, naive - early, zone), None


def _change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """The second at which the zone's offset changes, with `before < change <= after`."""
    old = before.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + timedelta(seconds=int((after - before).total_seconds()) // 2)
        if middle.astimezone(zone).utcoffset() == old:
            before = middle
        else:
            after = middle
    return after
