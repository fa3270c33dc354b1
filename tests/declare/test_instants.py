"""Times as text, in every form that books, users and databases write them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from ematix_flow.contracts.runtime import instant_text
from ematix_flow.declare.instants import instant_of, time_of
from ematix_flow.declare.source import BatchSource

UTC = timezone.utc


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("2026-03-01", datetime(2026, 3, 1)),
        ("2026-03-01 06:00", datetime(2026, 3, 1, 6)),
        ("2026-03-01T06:00:07.5", datetime(2026, 3, 1, 6, 0, 7, 500000)),
        ("2026-03-01T06:00:07.123456789", datetime(2026, 3, 1, 6, 0, 7, 123456)),
        ("2026-03-01T06:00:07.120Z", datetime(2026, 3, 1, 6, 0, 7, 120000, UTC)),
        ("2026-03-01 06:00:07.12+00", datetime(2026, 3, 1, 6, 0, 7, 120000, UTC)),
        ("2026-03-01T06:00-0530", datetime(2026, 3, 1, 6, tzinfo=timezone(-timedelta(hours=5, minutes=30)))),
        ("2026-03-01T06:00:07+02:00", datetime(2026, 3, 1, 6, 0, 7, tzinfo=timezone(timedelta(hours=2)))),
    ],
)
def test_a_time_is_read_whatever_its_fraction_and_zone(text: str, read: datetime) -> None:
    assert time_of(text) == read
    assert time_of(text).tzinfo == read.tzinfo


@pytest.mark.parametrize("text", ["", "Z", "soon", "06:00Z", "2026-03-01T06:00:00ZZ", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        time_of(text)


def test_what_books_write_they_read() -> None:
    now = datetime(2026, 3, 1, 6, 0, 7, 120000, UTC)
    assert instant_of(str(instant_text(now))) == now
    assert instant_of("2026-03-01 06:00:07.12") == now


def test_a_source_takes_a_time_with_z() -> None:
    source = BatchSource("lake", table="orders", schema="sales", timestamp="2026-03-01T06:00:00Z")
    assert source.timestamp == "2026-03-01 06:00:00+00:00"
