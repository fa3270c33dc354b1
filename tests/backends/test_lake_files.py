"""How many files a load into a lake table makes, in sessions that were told this or that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ematix_flow.backends.lake_files import well_packed
from ematix_flow.testing.spark import local_spark

PARTS = "spark.sql.shuffle.partitions"


@contextmanager
def session_with(parts: str | None) -> Iterator[None]:
    """A session of a user who set this; None: who set nothing."""
    conf = local_spark().conf
    before = conf.get(PARTS)
    if parts is None:
        conf.unset(PARTS)
    else:
        conf.set(PARTS, parts)
    try:
        yield
    finally:
        conf.set(PARTS, str(before))


@pytest.mark.parametrize(("parts", "tasks"), [("3", 3), (None, 200)])
def test_rows_that_go_straight_into_a_table_are_brought_by_no_more_tasks_than_a_shuffle(
    parts: str | None, tasks: int
) -> None:
    with session_with(parts):
        rows = well_packed(local_spark().range(0, 1000, 1, 300), None, ())
        assert rows.rdd.getNumPartitions() == tasks
