"""Which rows a query of a stream fails for: found at once, in the words of every dialect."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from ematix_flow.spark.stream_sql import StreamSql

ROW = "__row"


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    given = [(n, "x" if n % 3 == 0 else str(n), n % 4, n) for n in range(60)]
    return spark.createDataFrame(given, f"id bigint, v string, m int, {ROW} bigint")


FAILING: list[tuple[Any, str, Any]] = [
    ("datafusion", 'SELECT "id", v::int AS n FROM source', lambda n: n % 3 == 0),
    ("duckdb", "SELECT id, CAST(v AS INTEGER) + 1 AS n FROM source WHERE v <> 'x' OR m = 0", lambda n: n % 12 == 0),
    ("spark", "SELECT s.*, u.t, array(1, 2)[s.m] AS a FROM source s LEFT JOIN u ON u.id = s.id", lambda n: n % 4 > 1),
    ("spark", "SELECT id FROM source WHERE assert_true(m < 3) IS NULL", lambda n: n % 4 == 3),
    ("spark", "SELECT id FROM source", lambda n: False),
]


def test_rows_that_a_query_fails_for_are_named(spark: SparkSession, rows: DataFrame) -> None:
    lookups = {"u": spark.createDataFrame([(1, "a")], "id bigint, t string")}
    for dialect, sql, fails in FAILING:
        found = StreamSql(sql, dialect, tuple(lookups)).failing(rows, ROW, lookups)
        assert found is not None
        assert {row[0] for row in found.collect()} == {n for n in range(60) if fails(n)}, sql


def test_a_query_that_takes_rows_together_cannot_be_asked(rows: DataFrame) -> None:
    for sql in (
        "SELECT sum(cast(v AS int)) AS n FROM source",
        "SELECT explode(array(cast(v AS int))) AS n FROM source",
        "SELECT n FROM (SELECT cast(v AS int) AS n FROM source)",
        "SELECT DISTINCT cast(v AS int) AS n FROM source",
    ):
        assert StreamSql(sql, "spark").failing(rows, ROW) is None
