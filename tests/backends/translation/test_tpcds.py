"""Queries after TPC-DS, in DuckDB's spelling, give on Spark what DuckDB gives on the same files.

The texts in `benchmarks/tpcds/` keep the numbers and the joins, windows, rollups and set operations of the queries they
are named after, with fewer columns and wider conditions, so that each has rows at a small scale. They are not the texts
of the specification. `make prove` runs all of them, `make test` some. Numbers may differ by one part in 10⁹.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from benchmarks.tpch import differences, make_data
from ematix_flow.backends.translation.answers import run_translated
from ematix_flow.backends.translation.spark_sql import parsed_query, spark_query
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.testing.spark import local_spark

TEXTS = Path(__file__).resolve().parents[3] / "benchmarks" / "tpcds"
SCALE = 0.01
SOME = ("q21", "q36", "q51", "q67")
NAMES = sorted(path.stem for path in TEXTS.glob("q*.sql")) if os.environ.get("EMATIX_PROVE") else SOME

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[SparkSession, dict[str, dict[str, str]], duckdb.DuckDBPyConnection]]:
    folder = make_data(tmp_path_factory.mktemp("tpcds") / "rows", SCALE, suite="tpcds", parts=1)
    spark = local_spark()
    schemas: dict[str, dict[str, str]] = {}
    with duckdb.connect() as db:
        for place in sorted(folder.iterdir()):
            files = f"{place}/*.parquet" if place.is_dir() else str(place)
            table = place.stem
            db.execute(f"CREATE VIEW {table} AS SELECT * FROM '{files}'")
            frame = spark.read.parquet(str(place))
            frame.createOrReplaceTempView(table)
            schemas[table] = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        yield spark, schemas, db
    for table in schemas:
        spark.catalog.dropTempView(table)


@pytest.mark.xdist_group("tpcds")
@pytest.mark.parametrize("name", NAMES)
def test_a_query_after_tpcds_gives_the_same_rows_as_duckdb(
    name: str, both: tuple[SparkSession, dict[str, dict[str, str]], duckdb.DuckDBPyConnection]
) -> None:
    spark, schemas, db = both
    text = (TEXTS / f"{name}.sql").read_text(encoding="utf-8")
    written = UserSql(text, "duckdb")
    expected: Rows = db.execute(text).fetchall()
    translated = spark_query(parsed_query(written), written, schemas)
    found: Rows = [tuple(row) for row in run_translated(spark, translated, written).collect()]
    assert expected and not differences(found, expected), translated
