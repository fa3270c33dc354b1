"""The language of time formats."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from ematix_flow.declare.timeformats import time_format
from ematix_flow.errors import InvalidDeclaration


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=timezone.utc)  # type: ignore[arg-type, misc]  # year, month, … as datetime takes them


@pytest.mark.parametrize(
    ("written", "text", "expected"),
    [
        ("YYYY-MM-DD", "2026-01-02", utc(2026, 1, 2)),
        ("YYYY-MM-DDTHH24:MI:SS", "2026-01-02T03:04:05", utc(2026, 1, 2, 3, 4, 5)),
        ("YYYY-MM-DDTHH24:MI:SSOF", "2026-01-02T03:04:05Z", utc(2026, 1, 2, 3, 4, 5)),
        ("YYYY-MM-DDTHH24:MI:SSOF", "2026-01-02T03:04:05+02", utc(2026, 1, 2, 1, 4, 5)),
        ("YYYY-MM-DDTHH24:MI:SSTZH:TZM", "2026-01-02T03:04:05-0530", utc(2026, 1, 2, 8, 34, 5)),
        ("YYYY-MM-DD HH24:MI:SS.MS", "2026-01-02 03:04:05.5", utc(2026, 1, 2, 3, 4, 5, 500000)),
        ("YYYY-MM-DD HH24:MI:SS.MS", "2026-01-02 03:04:05.123456", utc(2026, 1, 2, 3, 4, 5, 123456)),
        ("MM/DD/YYYY HH12:MI AM", "01/02/2026 12:30 am", utc(2026, 1, 2, 0, 30)),
        ("MM/DD/YYYY HH12:MI AM", "01/02/2026 12:30 PM", utc(2026, 1, 2, 12, 30)),
        ('DD.MM.YYYY "um" HH24"h"', "02.01.2026 um 07h", utc(2026, 1, 2, 7)),
        ("yyyymmdd", "20260102", utc(2026, 1, 2)),
        ("YYYY", "2026", utc(2026, 1, 1)),
    ],
)
def test_a_text_of_the_shape_is_read(written: str, text: str, expected: datetime) -> None:
    assert time_format(written).read(text) == expected


@pytest.mark.parametrize(
    "text", ["2026-13-01", "2026-02-30", "0000-01-01", "2026-00-10", "2026-01-00"]
)  # fmt: skip
def test_a_day_that_does_not_exist_has_the_shape_but_no_reading(text: str) -> None:
    reading = time_format("YYYY-MM-DD")
    assert reading.matches(text)
    assert reading.read(text) is None


@pytest.mark.parametrize("text", ["2026-1-2", "2026-01-02 ", "2026-01-02\n", "x2026-01-02", "２０２６-01-02", ""])
def test_another_shape_does_not_match(text: str) -> None:
    assert not time_format("YYYY-MM-DD").matches(text)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("YY-MM-DD", "'YY' is not supported"),
        ("YYYY-Mon-DD", "'Mon' is not supported"),
        ("YYYY-MM-DD HH24:MM", "already has its month"),
        ("MM/DD", "no year"),
        ("YYYY-DD", "DD without MM"),
        ("YYYY-MM-DD HH12:MI", "HH12 without AM"),
        ("YYYY-MM-DD HH24:MI AM", "AM without HH12"),
        ("YYYY-MM-DD SS", "SS without MI"),
        ('YYYY "open', "does not close"),
        ("", "such as 'YYYY-MM-DD'"),
    ],
)
def test_a_format_outside_the_language_is_refused_with_the_reason(written: str, reason: str) -> None:
    with pytest.raises(InvalidDeclaration, match=reason):
        time_format(written)


def test_the_refusal_lists_what_is_supported() -> None:
    with pytest.raises(InvalidDeclaration, match="YYYY MM DD HH24 HH12"):
        time_format("YYYY-MM-DD J")
