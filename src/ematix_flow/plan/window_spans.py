"""Which windows there are, in a few numbers: unbroken rows of windows, each by its first start and its last."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]


def spans_of(starts: Iterable[int], step: int) -> tuple[Span, ...]:
    """Starts of windows, of which one may begin every `step`, as spans.

    >>> spans_of([30, 10, 20, 50], step=10)
    ((10, 30), (50, 50))
    """
    return _joined(((start, start) for start in starts), step)


def starts_after(spans: Iterable[Span], step: int, bound: int | None) -> int:
    """How many different starts are greater than a bound, in spans that may lie over each other.

    >>> starts_after([(10, 30), (20, 40)], step=10, bound=15)
    3
    """
    found = 0
    for first, last in _joined(spans, step):
        # Windows begin at multiples of the step.
        first = first if bound is None else max(first, bound // step * step + step)
        found += max((last - first) // step + 1, 0)
    return found


def first_after(spans: Iterable[Span], step: int, bound: int | None) -> int | None:
    """The least start that is greater than a bound.

    >>> first_after([(10, 30), (50, 50)], step=10, bound=20), first_after([(10, 30)], step=10, bound=30)
    (30, None)
    """
    found = [
        first if bound is None else max(first, bound // step * step + step)
        for first, last in spans
        if bound is None or last > bound
    ]
    return min(found, default=None)


def _joined(spans: Iterable[Span], step: int) -> tuple[Span, ...]:
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + step:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)
