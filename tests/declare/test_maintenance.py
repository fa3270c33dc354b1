"""`maintenance=` on a table: what may be written, and what it means."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ematix_flow import BigInt, Maintenance, ManagedTable, ematix
from ematix_flow.declare.table import table_spec
from ematix_flow.errors import InvalidDeclaration, WrongDeclarationType


def test_durations_and_sizes_may_be_written_in_words() -> None:
    written = Maintenance(every="12h", target_file_size="1GB", retention="2w")
    assert (written.every, written.retention) == (timedelta(hours=12), timedelta(days=14))
    assert written.target_file_size == 1024**3
    assert written == Maintenance(every=timedelta(hours=12), target_file_size=1024**3, retention=timedelta(weeks=2))
    assert replace(written, compact=False).every == timedelta(hours=12)


def test_the_defaults_are_a_day_a_week_and_128_megabytes() -> None:
    meant = Maintenance()
    assert (meant.every, meant.retention) == (timedelta(days=1), timedelta(days=7))
    assert (meant.target_file_size, meant.compact, meant.keep_snapshots) == (128 * 1024**2, True, 5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retention": "23h"}, "a reader or a writer that still runs would lose its files"),
        ({"retention": timedelta(0)}, "shorter than a day"),
        ({"every": "soon"}, "every='soon' is no duration"),
        ({"every": timedelta(seconds=5)}, "a minute or longer"),
        ({"every": 3600}, "is no duration"),
        ({"target_file_size": "128"}, "is no size"),
        ({"target_file_size": 1000}, "between 1MB and 16GB"),
        ({"target_file_size": True}, "is no size"),
        ({"keep_snapshots": 0}, "keep_snapshots must be 1 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDeclaration, match=said):
        Maintenance(**options)


def test_both_spellings_of_a_table_take_it() -> None:
    @ematix.table(schema="sales", maintenance=Maintenance(every="6h"))
    class Orders:
        id: BigInt

    class Items(ManagedTable):
        __schema__ = "sales"
        __tablename__ = "items"
        __maintenance__ = True
        id: BigInt

    @ematix.table(schema="sales")
    class Plain:
        id: BigInt

    assert table_spec(Orders).maintenance == Maintenance(every="6h")
    assert table_spec(Items).maintenance == Maintenance()
    assert table_spec(Plain).maintenance is None


def test_anything_else_is_refused_with_the_table() -> None:
    with pytest.raises(WrongDeclarationType, match=r"sales.orders: maintenance= takes Maintenance\(...\) or True"):

        @ematix.table(schema="sales", maintenance="daily")  # type: ignore[arg-type]
        class Orders:
            id: BigInt
