"""The fields of a cron expression, read once and refused where they are written when no clock can follow them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache
from typing import Any

from ematix_flow.errors import InvalidDeclaration

_HOW = 'five fields: minute hour day-of-month month day-of-week, e.g. "*/5 * * * *" or "0 2 * * MON-FRI"'
_NAMES = re.compile(r"SUN|MON|TUE|WED|THU|FRI|SAT|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC")
_FOREIGN = re.compile(r"[A-KM-Z]")  # L is the only letter that is not part of a name
_ONE = re.compile(r"(?<!\w)(\w+)-\1(?!\w)(/\d+)?")  # 9-9 is 9; croniter reads it as every hour
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LAST = "l"


@dataclass(frozen=True)
class CronFields:
    """What a wall clock must show for the expression to match.

    Attributes:
        days: Days of the month; None for every day.
        last_day: Whether the last day of a month is meant, too.
        weekdays: Sunday is 0; None for every day.
        nth: Pairs of a weekday and which one of the month it must be, 0 for the last one.
        years: None for every year.
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: frozenset[int]
    days: frozenset[int] | None
    last_day: bool
    weekdays: frozenset[int] | None
    nth: frozenset[tuple[int, int]]
    seconds: tuple[int, ...] = (0,)
    years: frozenset[int] | None = None

    @property
    def every_hour(self) -> bool:
        """Whether every hour of a day has a match, so that the expression says how often and not at what time."""
        return len(self.hours) == 24

    def has_day(self, day: date) -> bool:
        """Whether a day matches. When day of month and weekday are both restricted, one of the two is enough."""
        if self.days is None:
            return self.weekdays is None or self._has_weekday(day)
        return self._has_day_of_month(day) or (self.weekdays is not None and self._has_weekday(day))

    def _has_day_of_month(self, day: date) -> bool:
        assert self.days is not None
        return day.day in self.days or (self.last_day and (day + timedelta(days=1)).day == 1)

    def _has_weekday(self, day: date) -> bool:
        weekday = day.isoweekday() % 7
        if not self.nth:
            return self.weekdays is not None and weekday in self.weekdays
        is_last = (day + timedelta(days=7)).month != day.month
        return (weekday, (day.day + 6) // 7) in self.nth or (is_last and (weekday, 0) in self.nth)


def read_cron(expression: str) -> CronFields:
    """The fields of an expression: five, or six with seconds last, or seven with the year; or an alias like `@daily`.

    Raises:
        InvalidDeclaration: (a ValueError) it is none, or no day ever matches it.
    """
    if not isinstance(expression, str):
        raise InvalidDeclaration(f"{expression!r} is not a cron expression.", fix=_HOW)
    return _read(expression)


@lru_cache(maxsize=4096)
def _read(expression: str) -> CronFields:
    from croniter import croniter

    if _is_foreign(expression) or not croniter.is_valid(expression):
        raise InvalidDeclaration(f"{expression!r} is not a cron expression.", fix=_HOW)
    expanded, nth = croniter.expand(_ONE.sub(r"\1", expression))
    minutes, hours, days, months, weekdays, *rest = expanded
    fields = CronFields(
        minutes=_numbers(minutes, 0, 59),
        hours=_numbers(hours, 0, 23),
        months=frozenset(_numbers(months, 1, 12)),
        days=_restricted({day for day in days if day != _LAST}, 31),
        last_day=_LAST in days,
        weekdays=_restricted(set(weekdays), 7),
        nth=frozenset((day, 0 if which == _LAST else which) for day, some in nth.items() for which in some),
        seconds=_numbers(rest[0], 0, 59) if rest else (0,),
        years=frozenset(rest[1]) if len(rest) > 1 and "*" not in rest[1] else None,
    )
    if _never_comes(fields):
        raise InvalidDeclaration(f"{expression!r} never comes: no such month has that day.", fix=_HOW)
    return fields


def _is_foreign(expression: str) -> bool:
    """Letters of other schedulers: hashed (H) and random (R) times, and nearest working days (W), which get lost."""
    text = expression.strip().upper()
    return not text.startswith("@") and _FOREIGN.search(_NAMES.sub("", text)) is not None


def _never_comes(fields: CronFields) -> bool:
    if not fields.days or fields.last_day or fields.weekdays is not None:
        return False
    return min(fields.days) > max(_LONGEST[month - 1] for month in fields.months)


def _restricted(field: set[Any], whole: int) -> frozenset[int] | None:
    """The numbers of a field; None when it has all of them, however that was written."""
    return None if "*" in field or len(field) == whole else frozenset(field)


def _numbers(field: list[int | str], least: int, most: int) -> tuple[int, ...]:
    if "*" in field:
        return tuple(range(least, most + 1))
    return tuple(sorted({int(number) for number in field}))
