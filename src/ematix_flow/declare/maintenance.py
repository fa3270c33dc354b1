"""How a lake table is looked after: when its small files are put together, and how long old ones are kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ematix_flow.errors import InvalidDeclaration, WrongDeclarationType, counted

SHORTEST_RETENTION = timedelta(days=1)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SIZES = {"KB": 1024, "MB": 1024**2, "GB": 1024**3}
_SMALLEST_FILE, _LARGEST_FILE = 1024**2, 16 * 1024**3


@dataclass(frozen=True, kw_only=True, init=False)
class Maintenance:
    """What `maintenance=` on a table says. `maintenance=True` means these defaults.

    Args:
        every: How much time lies between two maintenances that loads begin by themselves: a timedelta, or `"12h"`.
        compact: Whether small files are put together; without it only what is old goes.
        target_file_size: How big files become: a number of bytes, or `"128MB"`.
        retention: How long files and versions are kept that the newest version no longer needs; a day at least.
        keep_snapshots: How many of the newest versions of an Iceberg table stay, however old they are.
    """

    every: timedelta
    compact: bool
    target_file_size: int
    retention: timedelta
    keep_snapshots: int

    def __init__(
        self,
        *,
        every: timedelta | str = "1d",
        compact: bool = True,
        target_file_size: int | str = "128MB",
        retention: timedelta | str = "7d",
        keep_snapshots: int = 5,
    ) -> None:
        checked = {
            "every": duration("every", every),
            "compact": compact,
            "target_file_size": _file_size(target_file_size),
            "retention": duration("retention", retention),
            "keep_snapshots": keep_snapshots,
        }
        if not isinstance(compact, bool):
            raise WrongDeclarationType(f"Maintenance: compact must be True or False, not {compact!r}.")
        if type(keep_snapshots) is not int or keep_snapshots < 1:
            raise InvalidDeclaration(f"Maintenance: keep_snapshots must be 1 or more, not {keep_snapshots!r}.")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if self.every < timedelta(minutes=1):
            raise InvalidDeclaration("Maintenance: every must be a minute or longer.")
        if self.retention < SHORTEST_RETENTION:
            raise InvalidDeclaration(
                f"Maintenance: retention={retention!r} is shorter than a day; a reader or a writer that still runs "
                "would lose its files.",
                fix='retention="1d" or longer',
            )


def declared_maintenance(written: Any, table: str) -> Maintenance | None:
    """What `maintenance=` or `__maintenance__` means; `TypeError` for anything that is not it."""
    if written is None or written is False:
        return None
    if written is True:
        return Maintenance()
    if isinstance(written, Maintenance):
        return written
    raise WrongDeclarationType(
        f"{table}: maintenance= takes Maintenance(...) or True, not {written!r}.",
        fix="from ematix_flow import Maintenance",
    )


def duration(option: str, written: object) -> timedelta:
    """A duration given as timedelta, or as a number and its unit.

    >>> duration("every", "12h"), duration("every", "7d")
    (datetime.timedelta(seconds=43200), datetime.timedelta(days=7))
    """
    if isinstance(written, timedelta):
        return written
    found = re.fullmatch(r"(\d{1,6})\s*([mhdw])", written.strip()) if isinstance(written, str) else None
    if found is None:
        raise InvalidDeclaration(
            f"Maintenance: {option}={written!r} is no duration.", fix='write "30m", "12h", "7d", "2w" or a timedelta'
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def age_text(age: timedelta) -> str:
    """A duration for people.

    >>> age_text(timedelta(days=7)), age_text(timedelta(hours=36)), age_text(timedelta(days=1))
    ('7 days', '36 hours', '1 day')
    """
    if age >= timedelta(days=1) and age % timedelta(days=1) == timedelta(0):
        return counted(age.days, "day")
    return counted(int(age / timedelta(hours=1)), "hour")


def _file_size(written: object) -> int:
    size = written if type(written) is int else None
    found = re.fullmatch(r"(\d{1,6})\s*([KMG]B)", written.strip()) if isinstance(written, str) else None
    if found is not None:
        size = int(found[1]) * _SIZES[found[2]]
    if size is None:
        raise InvalidDeclaration(
            f"Maintenance: target_file_size={written!r} is no size.", fix='write "128MB", "1GB" or a number of bytes'
        )
    if not _SMALLEST_FILE <= size <= _LARGEST_FILE:
        raise InvalidDeclaration(f"Maintenance: target_file_size must lie between 1MB and 16GB, not {written!r}.")
    return size
