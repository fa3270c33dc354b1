"""The language of time formats: `YYYY-MM-DD HH24:MI:SS` and its kin, read once into a shape every route can match.

A format has a *shape* (how many digits stand where) and a text has at most one reading under it. The shape decides
which of several formats is used; whether the day exists is a second question, answered by `on_failure`. Digits are
ASCII.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Literal

from ematix_flow.errors import InvalidDeclaration

Part = Literal["year", "month", "day", "hour", "hour12", "meridiem", "minute", "second", "fraction", "offset"]

SUPPORTED = 'YYYY MM DD HH24 HH12 HH AM PM MI SS MS US OF TZH TZH:TZM, T, punctuation, and "quoted text"'

_TOKENS: tuple[tuple[str, Part, str], ...] = (  # longest first: HH24 before HH, TZH:TZM before TZH
    ("TZH:TZM", "offset", r"(Z|[+-](?:0[0-9]|1[0-5])(?::?[0-5][0-9])?)"),
    ("TZHTZM", "offset", r"(Z|[+-](?:0[0-9]|1[0-5])(?::?[0-5][0-9])?)"),
    ("YYYY", "year", "([0-9]{4})"),
    ("HH24", "hour", "([0-9]{2})"),
    ("HH12", "hour12", "([0-9]{2})"),
    ("TZH", "offset", r"(Z|[+-](?:0[0-9]|1[0-5])(?::?[0-5][0-9])?)"),
    ("MM", "month", "([0-9]{2})"),
    ("DD", "day", "([0-9]{2})"),
    ("HH", "hour12", "([0-9]{2})"),
    ("AM", "meridiem", "([AaPp][Mm])"),
    ("PM", "meridiem", "([AaPp][Mm])"),
    ("MI", "minute", "([0-9]{2})"),
    ("SS", "second", "([0-9]{2})"),
    ("MS", "fraction", "([0-9]{1,6})"),
    ("US", "fraction", "([0-9]{1,6})"),
    ("OF", "offset", r"(Z|[+-](?:0[0-9]|1[0-5])(?::?[0-5][0-9])?)"),
)
_NEEDS: dict[Part, tuple[Part, ...]] = {
    "day": ("month",),
    "minute": ("hour", "hour12"),
    "second": ("minute",),
    "fraction": ("second",),
    "offset": ("hour", "hour12"),
    "hour12": ("meridiem",),
    "meridiem": ("hour12",),
    "hour": ("day",),
}
_TOKEN_OF: dict[Part, str] = {
    "year": "YYYY",
    "month": "MM",
    "day": "DD",
    "hour": "HH24",
    "hour12": "HH12",
    "meridiem": "AM",
    "minute": "MI",
    "second": "SS",
    "fraction": "MS",
    "offset": "OF",
}
_REGEX_SPECIAL = set("\\.+*?()|[]{}^$")


@dataclass(frozen=True)
class TimeFormat:
    """A format, read. Group `i + 1` of `pattern` (a regex without anchors, the same in every engine) is `parts[i]`."""

    text: str
    pattern: str
    parts: tuple[Part, ...]

    @property
    def has_time(self) -> bool:
        """Whether it tells more than the day."""
        return "hour" in self.parts or "hour12" in self.parts

    @property
    def is_twelve_hour(self) -> bool:
        """Whether the hour needs AM or PM to be known."""
        return "hour12" in self.parts

    def group(self, part: Part) -> int | None:
        """The number of the regex group that holds a part, or None when the format lacks it."""
        return self.parts.index(part) + 1 if part in self.parts else None

    def iso(self, reference: Callable[[int], str]) -> str:
        """A replacement text that turns a matching text into `YYYY-MM-DDTHH:MI:SS.f` and its offset, `Z` if none.

        Args:
            reference: how the engine refers to group n in a replacement, such as `$1`. The hour of a twelve-hour
                format is copied as it stands.
        """

        def part_or(part: Part, absent: str) -> str:
            number = self.group(part)
            return absent if number is None else reference(number)

        hour = part_or("hour12", "00") if self.is_twelve_hour else part_or("hour", "00")
        day = f"{part_or('year', '')}-{part_or('month', '01')}-{part_or('day', '01')}"
        time = f"{hour}:{part_or('minute', '00')}:{part_or('second', '00')}.{part_or('fraction', '0')}"
        return f"{day}T{time}{part_or('offset', 'Z')}"

    def matches(self, text: str) -> bool:
        """Whether a text has this shape."""
        return _compiled(self.pattern).fullmatch(text) is not None

    def read(self, text: str) -> datetime | None:
        """The instant a text of this shape means, in UTC; None when there is no such moment."""
        match = _compiled(self.pattern).fullmatch(text)
        if match is None:
            return None
        found: dict[str, str] = dict(zip(self.parts, match.groups(), strict=True))
        hour = int(found.get("hour", "0"))
        if self.is_twelve_hour:
            written = int(found["hour12"])
            if not 1 <= written <= 12:
                return None
            hour = written % 12 + (12 if found["meridiem"].upper() == "PM" else 0)
        try:
            return datetime(
                int(found["year"]),
                int(found.get("month", "1")),
                int(found.get("day", "1")),
                hour,
                int(found.get("minute", "0")),
                int(found.get("second", "0")),
                int(found.get("fraction", "0").ljust(6, "0")),
                tzinfo=_zone(found.get("offset", "Z")),
            ).astimezone(timezone.utc)
        except (ValueError, OverflowError):  # no such day or hour, or an instant outside the years 1 to 9999
            return None


@functools.lru_cache(maxsize=256)
def time_format(text: str) -> TimeFormat:
    """Read a format.

    Raises:
        InvalidDeclaration: it holds something that is not in the language, twice the same part, or no year.
    """
    if not isinstance(text, str) or not text:
        raise InvalidDeclaration(f"A time format is a text such as 'YYYY-MM-DD', not {text!r}.")
    pattern, parts, position = "", list[Part](), 0
    while position < len(text):
        token = next((t for t in _TOKENS if text[position : position + len(t[0])].upper() == t[0]), None)
        if token is not None:
            name, part, shape = token
            if part in parts:
                raise InvalidDeclaration(f"Time format '{text}' has {name} where it already has its {part}.")
            parts.append(part)
            pattern += shape
            position += len(name)
            continue
        literal, position = _literal(text, position)
        pattern += "".join("\\" + c if c in _REGEX_SPECIAL else c for c in literal)
    _check(text, parts)
    return TimeFormat(text, pattern, tuple(parts))


def _literal(text: str, position: int) -> tuple[str, int]:
    character = text[position]
    if character == '"':
        end = text.find('"', position + 1)
        if end < 0:
            raise InvalidDeclaration(f"Time format '{text}' opens a quotation and does not close it.")
        return text[position + 1 : end], end + 1
    if character != "T" and (character.isalnum() or character == "\x00"):
        word = re.match(r"\w+", text[position:])
        raise InvalidDeclaration(
            f"Time format '{text}': '{word.group() if word else character}' is not supported.",
            fix=f"use {SUPPORTED}",
        )
    return character, position + 1


def _check(text: str, parts: list[Part]) -> None:
    if "year" not in parts:
        raise InvalidDeclaration(f"Time format '{text}' has no year.", fix="add YYYY")
    if "hour" in parts and "hour12" in parts:
        raise InvalidDeclaration(f"Time format '{text}' has the hour twice.", fix="use HH24, or HH12 with AM")
    for part in parts:
        needed = _NEEDS.get(part, ())
        if part == "hour12" and "day" not in parts:
            needed = ("day",)
        if needed and not any(other in parts for other in needed):
            raise InvalidDeclaration(
                f"Time format '{text}' has {_TOKEN_OF[part]} without {' or '.join(_TOKEN_OF[n] for n in needed)}."
            )


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _zone(offset: str) -> timezone:
    if offset == "Z":
        return timezone.utc
    digits = offset[1:].replace(":", "").ljust(4, "0")
    away = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-away if offset[0] == "-" else away)
