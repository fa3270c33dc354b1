"""Where in its source a row was goes with it through SQL, to targets that take a batch in parts."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from ematix_flow.contracts.streams import POSITION
from ematix_flow.spark.micro_batch import with_position
from ematix_flow.spark.stream_sql import StreamSql


@pytest.mark.parametrize(
    ("sql", "passes"),
    [
        ("SELECT * FROM source", True),
        ("SELECT s.*, uuid() AS token FROM source s WHERE v > 1", True),
        ("SELECT v, _offset FROM source", True),
        ("SELECT v, x FROM source LATERAL VIEW explode(array(1, 2)) t AS x", True),
        ("SELECT s.v, u.n FROM source s JOIN users u ON u.v = s.v", True),
        ("SELECT * FROM (SELECT v FROM source)", False),
        ("SELECT v, count(*) AS n FROM source GROUP BY v", False),
        ("SELECT v FROM source LIMIT 2", False),
        ("SELECT v FROM source UNION ALL SELECT v FROM source", False),
    ],
)
def test_sql_that_speaks_of_each_row_keeps_where_it_comes_from(spark: SparkSession, sql: str, passes: bool) -> None:
    rows = spark.sql("SELECT id AS v, 't' AS _topic, 0 AS _partition, id AS _offset FROM range(4)")
    placed = with_position(rows)
    known = {row["v"]: row[POSITION] for row in placed.collect()}
    assert len(set(known.values())) == 4
    lookups = {"users": spark.sql("SELECT id AS v, id AS n FROM range(4)")}
    transform = StreamSql(sql, "spark", ["users"])
    made = transform(placed, lookups)
    assert (POSITION in made.columns) is passes
    assert made.columns[: len(made.columns) - passes] == transform(rows, lookups).columns, "it is no part of *"
    if passes:
        assert all(row[POSITION] == known[row["v"]] for row in made.collect())


def test_rows_without_a_broker_are_known_by_what_they_hold(spark: SparkSession) -> None:
    rows = with_position(spark.sql("SELECT id, map('k', id) AS m, 'x' AS __raw FROM range(3)"))
    found = {row["id"]: row[POSITION] for row in rows.collect()}
    assert len(set(found.values())) == 3
    wider = with_position(spark.sql("SELECT id, map('k', id) AS m, 'y' AS __raw, NULL AS later FROM range(3)"))
    assert {row["id"]: row[POSITION] for row in wider.collect()} == found
    assert POSITION not in with_position(spark.sql("SELECT map(1, 2) AS m")).columns
