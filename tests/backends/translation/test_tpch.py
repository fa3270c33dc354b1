"""TPC-H: every query, in DuckDB's and in PostgreSQL's spelling, gives on Spark what DuckDB gives on the same files.

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


def test_answers_that_differ_are_seen() -> None:
    assert differences([(1, "a")], [(1, "b")])
    assert differences([(1.0,)], [(1.00001,)])
    assert differences([(1,)], [(1,), (2,)])
    assert differences([(None,)], [(0,)])
    assert not differences([(1.0,)], [(1.0 + 1e-12,)])
