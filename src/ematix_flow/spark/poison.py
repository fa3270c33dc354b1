"""Finding the few that spoil the rest: a search that tries parts of a whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ematix_flow.errors import DuplicateKeys, EngineFailed, FlowError, LateArrival, StepFailed, UdfFailed, UnfitValue

_ROW_ERRORS = (UnfitValue, DuplicateKeys, LateArrival, UdfFailed)
_ROW_CONDITIONS = (
    *("[DIVIDE_BY_ZERO", "[REMAINDER_BY_ZERO", "[INTERVAL_DIVIDED_BY_ZERO"),
    *("[MAP_KEY_DOES_NOT_EXIST", "[SCALAR_SUBQUERY_TOO_MANY_ROWS", "[USER_RAISED_EXCEPTION"),
)

Unit = TypeVar("Unit")


def blames_rows(exc: FlowError) -> bool:
    """Whether an error is one of rows. Any other is the target's or the declaration's, and no row is to blame."""
    if isinstance(exc, (EngineFailed, StepFailed)):
        return any(condition in str(exc.__cause__) for condition in _ROW_CONDITIONS)
    return isinstance(exc, _ROW_ERRORS)


@dataclass
class Found(Generic[Unit]):
    """What a search came to.

    Attributes:
        refused: The units that must go, with what each of them causes.
        unknown: Those of which nothing is known, because the tries were used up.
    """

    refused: dict[Unit, FlowError] = field(default_factory=dict)
    unknown: list[Unit] = field(default_factory=list)


class Tries(Generic[Unit]):
    """Trying units, so many times.

    Args:
        tried: Writes units without keeping them; gives the error, or None when it went well.
    """

    def __init__(self, tried: Callable[[Sequence[Unit]], FlowError | None], most: int) -> None:
        self._tried, self._most, self.number = tried, most, 0

    @property
    def are_used_up(self) -> bool:
        """Whether there may be no more."""
        return self.number >= self._most

    def __call__(self, some: Sequence[Unit]) -> FlowError | None:
        self.number += 1
        return self._tried(some)


def refused(units: Sequence[Unit], tries: Tries[Unit], error: FlowError) -> Found[Unit]:
    """Which units are refused, each by itself, of a whole that is with an error; the others may still clash.

    Halves are tried without each other. A try costs as much as its part is large, so that many bad units are found at a
    small multiple of writing the whole once.

    >>> wrong = lambda some: UnfitValue("odd") if any(n % 2 for n in some) else None
    >>> sorted(refused([2, 4, 5, 6, 7, 8], Tries(wrong, 100), UnfitValue("odd")).refused)
    [5, 7]
    """
    found = Found[Unit]()
    parts = [(units, error, True)]  # with what was the matter, and whether that was said of the part itself
    while parts:
        part, error, is_sure = parts.pop()
        if len(part) == 1 and is_sure:
            found.refused[part[0]] = error
        elif tries.are_used_up:
            found.unknown += part
        elif len(part) == 1:
            said = tries(part)
            if said is not None:
                found.refused[part[0]] = said
        else:
            left, right = part[: len(part) // 2], part[len(part) // 2 :]
            said = tries(left)
            if said is None:
                parts.append((right, error, False))  # it must be in there, unless the halves clash
                continue
            parts.append((left, said, True))
            said = tries(right)
            if said is not None:
                parts.append((right, said, True))
    return found


def clashing(units: Sequence[Unit], tries: Tries[Unit]) -> Found[Unit]:
    """Which units must go so that the rest can be written together, and what each of them causes.

    A unit that only fails beside an earlier one is the one that goes. Needs about two tries per unit found, and the
    logarithm of what lies between them, each with all that is good so far.
    """
    found = Found[Unit]()
    good: list[Unit] = []
    left = list(units)
    while left:
        error = tries([*good, *left])
        if error is None:
            return found
        fits, fails = 0, len(left)  # the first `fits` go well beside the good ones, the first `fails` do not
        step = 1
        while fails - fits > 1:
            if tries.are_used_up:
                found.unknown = left
                return found
            middle = min(fits + step, (fits + fails + 1) // 2, fails - 1)
            failed = tries([*good, *left[:middle]])
            if failed is None:
                fits, step = middle, step * 2
            else:
                fails, error = middle, failed
        found.refused[left[fails - 1]] = error
        good += left[:fits]
        left = left[fails:]
    return found


def poison(units: Sequence[Unit], tried: Callable[[Sequence[Unit]], FlowError | None]) -> dict[Unit, FlowError]:
    """The same, however many tries that takes: for few units.

    >>> wrong = lambda some: UnfitValue("odd") if any(n % 2 for n in some) else None
    >>> sorted(poison([2, 4, 5, 6, 7, 8], wrong))
    [5, 7]
    """
    return clashing(units, Tries(tried, sys.maxsize)).refused
