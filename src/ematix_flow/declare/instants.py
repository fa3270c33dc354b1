"""Times written in ISO 8601, read alike by every Python that this package runs on."""

from __future__ import annotations

import re
from datetime import datetime, timezone

# Before Python 3.11 `fromisoformat` knows neither `Z` nor `+00`, and only fractions of three or six digits.
_ENDING = re.compile(r"(?P<fraction>\.\d+)?(?P<zone>Z|[+-]\d\d(?::?\d\d)?)?$", re.ASCII)


def time_of(text: str) -> datetime:
    """The time that a text says; one without a zone stays without.

    >>> time_of("2026-03-01T06:00:00.5Z")
    datetime.datetime(2026, 3, 1, 6, 0, 0, 500000, tzinfo=datetime.timezone.utc)
    >>> time_of("2026-03-01")
    datetime.datetime(2026, 3, 1, 0, 0)

    Raises:
        ValueError: the text is no time.
    """
    if ":" not in text:
        return datetime.fromisoformat(text)  # a day, whose last two digits are no zone
    ending = _ENDING.search(text)
    assert ending is not None
    fraction, zone = ending["fraction"] or "", ending["zone"] or ""
    if fraction:
        fraction = fraction[:7].ljust(7, "0")
    if zone:
        zone = "+00:00" if zone == "Z" else f"{zone[:3]}:{zone[3:].removeprefix(':') or '00'}"
    return datetime.fromisoformat(text[: ending.start()] + fraction + zone)


def instant_of(text: str) -> datetime:
    """The instant that a text says, in UTC; without a zone it is taken for UTC.

    >>> instant_of("2026-03-01 08:00:00+02:00").isoformat()
    '2026-03-01T06:00:00+00:00'

    Raises:
        ValueError: the text is no time.
    """
    read = time_of(text)
    return read.replace(tzinfo=timezone.utc) if read.tzinfo is None else read.astimezone(timezone.utc)
