"""The search for the rows of a batch that only their target can refuse: by trying parts of it without keeping them.

A try on Spark takes a good part of a second, so it finds the thousands among which there are such rows. These are
fetched where their target takes rows of this process, and then a try takes milliseconds.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, functions as F

from ematix_flow.errors import FlowError
from ematix_flow.spark.poison import Found, Tries, clashing, refused

log = logging.getLogger(__name__)

MOST_TRIES, MOST_TRIES_AT_HAND = 400, 10_000
"""How often parts of one batch are tried: minutes, in which nothing else happens."""

_ROWS_AT_HAND = 10_000

Tried = Callable[[DataFrame], FlowError | None]
TriedAtHand = Callable[[Sequence[int]], FlowError | None]
Fetched = Callable[[DataFrame, str], TriedAtHand | None]
"""Fetches rows to try them out by the numbers in a column; gives None where that cannot be."""


class RefusedRows:
    """The search in one batch.

    Args:
        rows: Rows that nothing is known against.
        row: A column with a number that tells them apart.
        tried: Writes rows without keeping them; gives what their target has against them.
        fetched: Fetches rows, and gives how to try some of them out by their numbers; None where it cannot.
    """

    def __init__(
        self, rows: DataFrame, row: str, tried: Tried, fetched: Callable[[DataFrame], TriedAtHand | None] | None = None
    ) -> None:
        self._rows, self._row, self._fetched = rows, row, fetched
        self._ids: list[int] = sorted(rows.select(row).distinct().toArrow()[row].to_pylist())
        self._on_spark: Tries[int] = Tries(lambda some: tried(self.only(some).drop(row)), MOST_TRIES)
        self._left_at_hand = MOST_TRIES_AT_HAND

    def found(self, error: FlowError) -> Found[int]:
        """The numbers of the rows without which the others are taken, where all together are refused with an error."""
        step = _ROWS_AT_HAND if self._fetched is not None else len(self._ids)
        parts = [self._ids[begin : begin + step] for begin in range(0, len(self._ids), step)]
        together = Tries[int](lambda some: self._on_spark([one for part in some for one in parts[part]]), MOST_TRIES)
        spoiled = refused(range(len(parts)), together, error)
        found = Found[int](unknown=[one for part in spoiled.unknown for one in parts[part]])
        for part, why in spoiled.refused.items():
            more = self._within(parts[part], lambda units, tries, why=why: refused(units, tries, why))  # type: ignore[misc]
            found.refused.update(more.refused)
            found.unknown += more.unknown
        if found.unknown:
            return found
        good = [one for one in self._ids if one not in found.refused]
        if good and self._on_spark(good) is not None:
            more = self._within(good, clashing)
            found.refused.update(more.refused)
            found.unknown = more.unknown
        return found

    def _within(self, ids: Sequence[int], search: Callable[[Sequence[int], Tries[int]], Found[int]]) -> Found[int]:
        """Search among some rows, in this process where that can be."""
        if self._fetched is not None and len(ids) <= _ROWS_AT_HAND:
            try:
                tried = self._fetched(self.only(ids))
                if tried is not None:
                    tries = Tries(tried, self._left_at_hand)
                    try:
                        return search(ids, tries)
                    finally:
                        self._left_at_hand -= tries.number
            except Exception:  # whatever it is: Spark says the same, or can do what this process cannot
                log.debug("rows are tried out on Spark", exc_info=True)
        return search(ids, self._on_spark)

    def only(self, ids: Sequence[int]) -> DataFrame:
        """Some of the rows."""
        first, last = bisect_left(self._ids, ids[0]), bisect_left(self._ids, ids[-1])
        rows = self._rows.where(F.col(self._row).between(ids[0], ids[-1]))
        left_out = set(self._ids[first : last + 1]).difference(ids)
        return rows if not left_out else rows.join(numbers(rows, self._row, sorted(left_out)), self._row, "left_anti")


def numbers(rows: DataFrame, name: str, ids: Sequence[int]) -> DataFrame:
    """Numbers as a small table beside the rows."""
    import pyarrow as pa

    return F.broadcast(rows.sparkSession.createDataFrame(pa.table({name: pa.array(ids, pa.int64())})))
