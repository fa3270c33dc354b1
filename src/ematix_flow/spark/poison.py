"""Finding the few that spoil the rest: a search that tries parts of a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

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


def poison(
    units: Sequence[Unit], tried: Callable[[Sequence[Unit]], FlowError | None], most: int | None = None
) -> dict[Unit, FlowError]:
    """Which units must go so that the rest can be written together, and what each of them causes.

    A unit that only fails beside an earlier one is the one that goes. Needs about two tries per unit found, and the
    logarithm of what lies between them.

    Args:
        tried: Writes units without keeping them; gives the error, or None when it went well.
        most: After so many found, all that is left is taken for poison.

    >>> wrong = lambda some: UnfitValue("odd") if any(n % 2 for n in some) else None
    >>> sorted(poison([2, 4, 5, 6, 7, 8], wrong))
    [5, 7]
    """
    found: dict[Unit, FlowError] = {}
    good: list[Unit] = []
    left = list(units)
    while left:
        error = tried([*good, *left])
        if error is None:
            return found
        if most is not None and len(found) >= most:
            found.update(dict.fromkeys(left, error))
            return found
        fits, fails = 0, len(left)  # the first `fits` go well beside the good ones, the first `fails` do not
        step = 1
        while fails - fits > 1:
            middle = min(fits + step, (fits + fails + 1) // 2, fails - 1)
            failed = tried([*good, *left[:middle]])
            if failed is None:
                fits, step = middle, step * 2
            else:
                fails, error = middle, failed
        found[left[fails - 1]] = error
        good += left[:fits]
        left = left[fails:]
    return found
