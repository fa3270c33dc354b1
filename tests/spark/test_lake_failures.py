"""What lake tables answer to a version that they do not have, in the words that Delta and Iceberg really use."""

from __future__ import annotations

import pytest

from ematix_flow.errors import InvalidSource
from ematix_flow.spark.lake_failures import lake_version_failure

ANSWERS = {
    "DELTA_VERSION_NOT_FOUND": (
        "[DELTA_VERSION_NOT_FOUND] Cannot time travel Delta table to version 99. Available versions: [3, 17].",
        ("no version 99", "is 3,", "newest 17"),
    ),
    "DELTA_TIMESTAMP_EARLIER_THAN_COMMIT_RETENTION": (
        "The provided timestamp (1990-01-01 00:00:00.0) is before the earliest version available to\nthis table "
        "(2026-03-01 04:02:18.913). Please use a timestamp after 2026-03-01 04:02:18.",
        ("at 1990-01-01 00:00:00.0", "its oldest is of 2026-03-01 04:02:18.913"),
    ),
    "DELTA_TIMESTAMP_GREATER_THAN_COMMIT": (
        "Timestamp 2990-01-01 00:00:00.0 is after the table's latest version (2026-03-01 04:02:23.795). Use a "
        "timestamp at or before 2026-03-01 04:02:23.",
        ("at 2990-01-01 00:00:00.0", "its newest is of 2026-03-01 04:02:23.795"),
    ),
    "": ("java.lang.IllegalArgumentException: Cannot find snapshot with ID 99", ("no snapshot 99",)),
}


@pytest.mark.parametrize("condition", ANSWERS)
def test_a_version_that_is_not_there_is_told_with_those_that_are(condition: str) -> None:
    text, said = ANSWERS[condition]
    found = lake_version_failure(condition, text)
    assert isinstance(found, InvalidSource) and found.fix
    assert all(words in found.message for words in said), found.message


def test_another_failure_is_left_to_the_other_rules() -> None:
    assert lake_version_failure("DELTA_TABLE_NOT_FOUND", "Delta table `x` doesn't exist.") is None
