"""Cron by brute force, as a model: every minute of the world is looked at on the clock of the zone. No cron library."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


def fires(
    expression: str,
    zone: str | None,
    after: datetime,
    until: datetime,
    *,
    repeated: str = "once",
    missing: str = "shift",
) -> list[datetime]:
    """Fire times with `after < t <= until`, both whole minutes in UTC."""
    matcher = Matcher(expression)
    found: list[datetime] = []
    # A time may have been shown already, or left out, a little before the window begins.
    moment = after - timedelta(hours=26)
    before, *walls = clock(zone or "UTC", moment, until)
    shown: set[datetime] = set()
    for wall in walls:
        moment += MINUTE
        due = matcher.matches(wall)
        if not matcher.every_hour:
            if repeated == "once" and wall in shown:
                due = False
            if missing == "shift" and any(matcher.matches(left_out) for left_out in minutes_inside(before, wall)):
                due = True
        if due and moment > after:
            found.append(moment)
        shown.add(wall)
        before = wall
    return found


@lru_cache(maxsize=1)
def clock(zone: str, first: datetime, last: datetime) -> list[datetime]:
    """What the clock of a zone shows at every minute of the world."""
    minutes = int((last - first) / MINUTE)
    shown = (first + i * MINUTE for i in range(minutes + 1))
    return [moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None, fold=0) for moment in shown]


def minutes_inside(before: datetime, after: datetime) -> Iterator[datetime]:
    """Minutes that the clock left out between two that it showed one after the other."""
    if after - before == MINUTE:
        return
    minute = before + MINUTE
    while minute < after:
        yield minute
        minute += MINUTE


class Matcher:
    """Five fields, asked one after the other."""

    def __init__(self, expression: str) -> None:
        minute, hour, day, month, self.weekday = expression.upper().split()
        self.minutes = numbers(minute, 0, 59, [])
        self.hours = numbers(hour, 0, 23, [])
        self.months = numbers(month, 1, 12, MONTHS)
        self.last_day = day == "L"
        self.days = set() if self.last_day else numbers(day, 1, 31, [])
        self.nth = "#" in self.weekday
        self.weekdays = set() if self.nth else {day % 7 for day in numbers(self.weekday, 0, 7, WEEKDAYS)}
        self.every_hour = self.hours == set(range(24))

    def matches(self, wall: datetime) -> bool:
        if wall.minute not in self.minutes or wall.hour not in self.hours or wall.month not in self.months:
            return False
        any_day, any_weekday = self.days == set(range(1, 32)), self.weekdays == set(range(7))
        if any_day or any_weekday:
            return (any_day or self._is_day(wall)) and (any_weekday or self._is_weekday(wall))
        return self._is_day(wall) or self._is_weekday(wall)

    def _is_day(self, wall: datetime) -> bool:
        return wall.day in self.days or (self.last_day and (wall + timedelta(days=1)).month != wall.month)

    def _is_weekday(self, wall: datetime) -> bool:
        weekday = (wall.weekday() + 1) % 7
        if not self.nth:
            return weekday in self.weekdays
        which, nth = map(int, self.weekday.split("#"))
        same = [day for day in range(1, wall.day + 1) if (wall.replace(day=day).weekday() + 1) % 7 == which]
        return weekday == which and len(same) == nth


def numbers(field: str, least: int, most: int, names: list[str]) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        low = least if first == "*" else number(first, names, least)
        high = most if first == "*" else number(last, names, least) if last else low
        if most == 7 and first == "*":
            high = 6
        found.update(range(low, high + 1, int(step or 1)))
    return found


def number(text: str, names: list[str], least: int) -> int:
    return names.index(text) + least if text in names else int(text)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[misc,arg-type]
