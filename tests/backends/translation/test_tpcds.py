"""TPC-DS: every query, translated as DuckDB's and as PostgreSQL's, gives on Spark what DuckDB gives on the same files.

Each is one text that both systems take, and both translators are given it. The texts in `benchmarks/tpcds/` are the 99
queries of the specification, four of them in two parts, with its qualification values. Where these find nothing at a
small scale, the statement is run at scale factor 1. Rows are compared in the order of the query, which is total: some
texts end their ORDER BY with a column more. Numbers may differ by one part in 10⁹. PostgreSQL, too, gives DuckDB's
rows. `make prove` runs all of them; `make test` runs some, and has PostgreSQL plan all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from pyspark.sql import SparkSession

from benchmarks.tpch import differences, make_data
from ematix_flow.backends.translation.answers import run_translated
from ematix_flow.backends.translation.spark_sql import parsed_query, spark_query
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.testing.spark import local_spark
from tests.services.postgres import PostgresServer

TEXTS = Path(__file__).resolve().parents[3] / "benchmarks" / "tpcds"
NAMES = sorted(path.stem for path in TEXTS.glob("q*.sql"))
SMALL, FULL = 0.01, 1.0
# fmt: off
NOTHING_WHEN_SMALL = {
    "q08", "q10", "q12", "q16", "q23a", "q23b", "q24a", "q24b", "q31", "q32",
    "q37", "q38", "q39b", "q41", "q44", "q54", "q58", "q64", "q82", "q83",
    "q84", "q85", "q88", "q90", "q91", "q92", "q94", "q95", "q96",
}
# fmt: on
"""The store, the county or the manufacturer asked for is not there, or (q12, q90) a divisor is zero."""
SOME = ("q21", "q27", "q36", "q47", "q51", "q67", "q87", "q97")
IS_PROOF = bool(os.environ.get("EMATIX_PROVE"))
DIALECTS: tuple[SqlDialect, ...] = ("duckdb", "postgres")

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Tables:
    """The same tables in Spark and in DuckDB."""

    spark: SparkSession
    schemas: dict[str, dict[str, str]]
    db: duckdb.DuckDBPyConnection


@pytest.fixture(scope="module")
def small_rows() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        yield make_data(Path(place) / "rows", SMALL, suite="tpcds", parts=1)


@pytest.fixture(scope="module")
def full_rows() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        yield make_data(Path(place) / "rows", FULL, suite="tpcds", parts=1)


@pytest.fixture(scope="module")
def small(small_rows: Path) -> Iterator[Tables]:
    yield from in_both(small_rows)


@pytest.fixture(scope="module")
def full(full_rows: Path) -> Iterator[Tables]:
    yield from in_both(full_rows)


def in_both(folder: Path) -> Iterator[Tables]:
    """The tables of a folder by their names; others of these names are hidden from now on."""
    spark = local_spark()
    schemas: dict[str, dict[str, str]] = {}
    with duckdb.connect() as db:
        for table in views(folder, db):
            frame = spark.read.parquet(str(folder / table))
            frame.createOrReplaceTempView(table)
            schemas[table] = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        yield Tables(spark, schemas, db)
    for table in schemas:
        spark.catalog.dropTempView(table)


@pytest.mark.xdist_group("tpcds")
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in NOTHING_WHEN_SMALL and (IS_PROOF or name in SOME)]
)
def test_a_query_of_tpcds_gives_the_same_rows_as_duckdb(name: str, small: Tables) -> None:
    assert_same_rows(name, small)


if IS_PROOF:  # rows of 400 MB: `make prove`

    @pytest.mark.xdist_group("tpcds")
    @pytest.mark.parametrize("name", sorted(NOTHING_WHEN_SMALL))
    def test_a_query_of_tpcds_that_needs_more_rows_gives_the_same_as_duckdb(name: str, full: Tables) -> None:
        assert_same_rows(name, full)


def assert_same_rows(name: str, tables: Tables) -> None:
    text = text_of(name)
    expected: Rows = tables.db.execute(text).fetchall()
    translations: dict[str, Rows] = {}
    for dialect in DIALECTS:
        written = UserSql(text, dialect)
        translated = spark_query(parsed_query(written), written, tables.schemas)
        if translated not in translations:  # often both dialects come out the same
            found = run_translated(tables.spark, translated, written).collect()
            translations[translated] = [tuple(row) for row in found]
    for translated, rows in translations.items():
        assert not differences(rows, expected), translated
    assert any(value for row in expected for value in row), "an answer of nothing but zeros and NULLs proves little"


def test_there_is_a_text_for_every_query_of_the_specification() -> None:
    in_two_parts = {14, 23, 24, 39}
    parts = [(number, part) for number in range(1, 100) for part in ("ab" if number in in_two_parts else [""])]
    assert [f"q{number:02d}{part}" for number, part in parts] == NAMES and len(NAMES) == 103


@pytest.fixture(scope="module")
def empty_postgres(postgres_server: PostgresServer, small_rows: Path) -> Iterator[psycopg.Connection[Any]]:
    """PostgreSQL with empty tables of the right types; texts are in the order of their bytes, as in DuckDB."""
    with (
        duckdb.connect() as db,
        postgres_server.fresh_database() as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        for table in views(small_rows, db):
            columns = ", ".join(f"{name} {kind}" for name, kind, *_ in db.execute(f"DESCRIBE {table}").fetchall())
            by_bytes = columns.replace("VARCHAR", 'VARCHAR COLLATE "C"')
            ask(connection, f"CREATE TABLE {table} ({by_bytes})")
        yield connection


@pytest.mark.xdist_group("tpcds")
@pytest.mark.parametrize("name", NAMES)
def test_a_query_of_tpcds_is_in_postgres_words(name: str, empty_postgres: psycopg.Connection[Any]) -> None:
    assert ask(empty_postgres, f"EXPLAIN {text_of(name)}")


@pytest.fixture(scope="module")
def filled(
    empty_postgres: psycopg.Connection[Any], small_rows: Path
) -> Iterator[tuple[psycopg.Connection[Any], duckdb.DuckDBPyConnection]]:
    """PostgreSQL and DuckDB with the same rows."""
    with duckdb.connect() as db, tempfile.TemporaryDirectory() as place:
        file = Path(place) / "rows.csv"
        for table in views(small_rows, db):
            db.execute(f"COPY {table} TO '{file}' (HEADER false, NULLSTR '\\N')")
            with (
                empty_postgres.cursor().copy(f"COPY {table} FROM STDIN (FORMAT csv, NULL '\\N')") as copy,
                file.open("rb") as rows,
            ):
                while some := rows.read(1 << 20):
                    copy.write(some)
        ask(empty_postgres, "ANALYZE")
        yield empty_postgres, db


if IS_PROOF:  # half a minute: `make prove`

    @pytest.mark.xdist_group("tpcds")
    @pytest.mark.parametrize("name", [name for name in NAMES if name not in NOTHING_WHEN_SMALL])
    def test_a_query_of_tpcds_gives_the_same_rows_in_postgres_as_in_duckdb(
        name: str, filled: tuple[psycopg.Connection[Any], duckdb.DuckDBPyConnection]
    ) -> None:
        postgres, db = filled
        text = text_of(name)
        expected: Rows = db.execute(text).fetchall()
        assert expected and not differences(ask(postgres, text), expected)


def text_of(name: str) -> str:
    return (TEXTS / f"{name}.sql").read_text(encoding="utf-8")


def views(folder: Path, db: duckdb.DuckDBPyConnection) -> list[str]:
    """The names of the tables in a folder, each now a view in DuckDB."""
    places = sorted(folder.iterdir())
    for place in places:
        db.execute(f"CREATE VIEW {place.stem} AS SELECT * FROM '{place}/*.parquet'")
    return [place.stem for place in places]


def ask(connection: psycopg.Connection[Any], statement: str) -> Rows:
    """The rows of a statement; none where it gives no rows."""
    text: Any = statement  # typed as text that the caller vouches for
    cursor = connection.execute(text)
    return cursor.fetchall() if cursor.description else []
