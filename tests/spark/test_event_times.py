"""The event time of rows in every form that producers write it in."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as t

from ematix_flow.spark.event_times import event_micros
from ematix_flow.testing.spark import local_spark

SECOND = 1_700_000_000


@pytest.mark.parametrize(
    ("kind", "written", "micros"),
    [
        ("decimal(14,3)", Decimal(f"{SECOND}.123"), SECOND * 1_000_000 + 123_000),
        ("decimal(38,18)", Decimal(f"{SECOND}.123456"), SECOND * 1_000_000 + 123_456),
        ("decimal(14,1)", Decimal("-1.5"), -1_500_000),
        ("decimal(16,2)", Decimal(f"{SECOND}123.25"), SECOND * 1_000_000 + 123_250),
        ("decimal(18,1)", Decimal(f"{SECOND}123456.7"), SECOND * 1_000_000 + 123_456),
        ("decimal(20,0)", Decimal(f"{SECOND}123456789"), SECOND * 1_000_000 + 123_456),
        ("double", SECOND + 0.5, SECOND * 1_000_000 + 500_000),
        ("bigint", SECOND * 1000 + 5, SECOND * 1_000_000 + 5_000),
        ("string", "2023-11-14T22:13:20.25Z", SECOND * 1_000_000 + 250_000),
    ],
)
def test_an_event_time_keeps_its_fractions_of_a_second(kind: str, written: Any, micros: int) -> None:
    rows = local_spark().createDataFrame([(written,), (None,)], f"at {kind}")
    found = rows.select(event_micros("at", rows.schema["at"].dataType)).collect()
    assert [row[0] for row in found] == [micros, None]


@pytest.mark.parametrize(
    ("kind", "written"),
    [("double", 1e300), ("double", float("inf")), ("decimal(38,0)", Decimal(10) ** 30), ("string", "soon")],
)
def test_what_is_no_moment_is_none_and_stops_nothing(kind: str, written: Any) -> None:
    rows = local_spark().createDataFrame([(written,)], f"at {kind}")
    assert rows.select(event_micros("at", rows.schema["at"].dataType)).collect()[0][0] is None


def test_decimals_that_spark_itself_divides_keep_theirs() -> None:
    rows = local_spark().sql(f"SELECT {SECOND}123L / 1000.0 AS at")
    assert isinstance(rows.schema["at"].dataType, t.DecimalType)
    assert rows.select(event_micros("at", rows.schema["at"].dataType)).collect()[0][0] == SECOND * 1_000_000 + 123_000
