"""TPC-H: every query, translated as DuckDB's and as PostgreSQL's, gives on Spark what DuckDB gives on the same files.

Each is one text that both systems take, and both translators are given it. Some are written once more with words that
only one of the two knows.

Numbers may differ by one part in 10⁹ (sums of doubles depend on the order of their addends); everything else is equal.
Rows are compared in the order of the query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from benchmarks.tpch import QUERIES, TABLES, differences, make_data, query
from ematix_flow.backends.translation.answers import run_translated
from ematix_flow.backends.translation.spark_sql import parsed_query, spark_query
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.testing.spark import local_spark

SCALE = 0.01
Rows = list[tuple[Any, ...]]
Schemas = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def rows_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("tpch") / "rows", SCALE, parts=1)


@pytest.fixture(scope="module")
def on_duckdb(rows_folder: Path) -> Iterator[Callable[[str], Rows]]:
    with duckdb.connect() as db:
        for table in TABLES:
            db.execute(f"CREATE VIEW {table} AS SELECT * FROM '{rows_folder}/{table}/*.parquet'")
        yield lambda text: db.execute(text).fetchall()


@pytest.fixture(scope="module")
def session(rows_folder: Path) -> Iterator[tuple[SparkSession, Schemas]]:
    spark = local_spark()
    schemas: Schemas = {}
    for table in TABLES:
        frame = spark.read.parquet(str(rows_folder / table))
        frame.createOrReplaceTempView(table)
        schemas[table] = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    yield spark, schemas
    for table in TABLES:
        spark.catalog.dropTempView(table)


@pytest.mark.xdist_group("tpch")
@pytest.mark.parametrize("number", QUERIES)
def test_a_query_of_tpch_gives_the_same_rows_as_duckdb(
    number: int, session: tuple[SparkSession, Schemas], on_duckdb: Callable[[str], Rows]
) -> None:
    spark, schemas = session
    text = query(number, SCALE)
    expected = on_duckdb(text)
    translations: dict[str, Rows] = {}
    dialects: tuple[SqlDialect, ...] = ("duckdb", "postgres")
    for dialect in dialects:
        written = UserSql(text, dialect)
        translated = spark_query(parsed_query(written), written, schemas)
        if translated not in translations:  # often both dialects come out the same
            translations[translated] = [tuple(row) for row in run_translated(spark, translated, written).collect()]
    for translated, found in translations.items():
        assert not differences(found, expected), translated
    assert expected, "an empty answer proves nothing"


OWN_WORDS: dict[tuple[SqlDialect, int], str] = {
    ("duckdb", 1): """
        FROM lineitem SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice),
            sum(l_extendedprice * (1 - l_discount)), sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)),
            avg(l_quantity), avg(l_extendedprice), avg(l_discount), count() AS count_order,
        WHERE l_shipdate <= '1998-12-01'::DATE - INTERVAL 90 DAY GROUP BY ALL ORDER BY l_returnflag, l_linestatus
    """,
    ("duckdb", 12): """
        SELECT l_shipmode, count_if(list_contains(['1-URGENT', '2-HIGH'], o_orderpriority)) AS high,
            count(*) FILTER (NOT list_contains(['1-URGENT', '2-HIGH'], o_orderpriority)) AS low
        FROM orders JOIN lineitem ON l_orderkey == o_orderkey
        WHERE l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
          AND date_part('year', l_receiptdate) = 1994
        GROUP BY ALL ORDER BY ALL
    """,
    ("postgres", 6): """
        SELECT sum(l_extendedprice * l_discount) AS revenue FROM lineitem
        WHERE l_shipdate >= '1994-01-01'::date AND l_shipdate < ('1994-01-01'::date + '1 year'::interval)::date
          AND l_discount BETWEEN 0.05::numeric AND 0.07::numeric AND l_quantity < 24
    """,
    ("postgres", 12): """
        SELECT l_shipmode, count(*) FILTER (WHERE o_orderpriority ~ '^[12]-') AS high,
            count(*) FILTER (WHERE o_orderpriority !~ '^[12]-') AS low
        FROM orders JOIN lineitem ON l_orderkey = o_orderkey
        WHERE l_shipmode IN ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate
          AND date_trunc('year', l_receiptdate) = '1994-01-01'::timestamp
        GROUP BY 1 ORDER BY 1
    """,
    ("postgres", 22): """
        SELECT left(c_phone, 2) AS cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal FROM customer
        WHERE left(c_phone, 2) = ANY (ARRAY['13', '31', '23', '29', '30', '18', '17']) AND c_acctbal > (
            SELECT avg(c_acctbal) FROM customer
            WHERE c_acctbal > 0.00 AND left(c_phone, 2) = ANY (ARRAY['13', '31', '23', '29', '30', '18', '17']))
          AND NOT EXISTS (SELECT NULL FROM orders WHERE o_custkey = c_custkey)
        GROUP BY left(c_phone, 2) ORDER BY 1 NULLS LAST
    """,
}


@pytest.mark.xdist_group("tpch")
@pytest.mark.parametrize(("dialect", "number"), OWN_WORDS)
def test_a_query_in_words_of_its_system_gives_the_same_rows(
    dialect: SqlDialect, number: int, session: tuple[SparkSession, Schemas], on_duckdb: Callable[[str], Rows]
) -> None:
    spark, schemas = session
    written = UserSql(OWN_WORDS[dialect, number], dialect)
    translated = spark_query(parsed_query(written), written, schemas)
    found = [tuple(row) for row in run_translated(spark, translated, written).collect()]
    expected = on_duckdb(query(number, SCALE))
    assert expected and not differences(found, expected), translated


def test_answers_that_differ_are_seen() -> None:
    assert differences([(1, "a")], [(1, "b")])
    assert differences([(1.0,)], [(1.00001,)])
    assert differences([(1,)], [(1,), (2,)])
    assert differences([(None,)], [(0,)])
    assert not differences([(1.0,)], [(1.0 + 1e-12,)])
