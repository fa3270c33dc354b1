"""What only Spark does: the user's SQL on file sources, failing parsers, row steps over frames."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions as F, types as t

from ematix_flow.backends import sqlite_functions
from ematix_flow.backends.sqlite import SqliteDialect
from ematix_flow.declare import normalizers as n
from ematix_flow.declare.columns import BigInt, ColumnType, Double, Numeric, Text
from ematix_flow.declare.steps import RowStep, deduplicate_by, filter_where, limit, sample_pct
from ematix_flow.errors import InvalidPlan, UnfitValue
from ematix_flow.plan.expressions import ColumnExpr, compile_column, step_sql
from ematix_flow.spark import expressions


def one(spark: SparkSession, value: Any, kind: str, *markers: n.Normalizer) -> Any:
    frame = spark.createDataFrame([(value, 7)], f"v {kind}, other int")
    compiled = expressions.compile_column(markers, F.col("v"), frame.schema["v"].dataType, name="amount")
    return frame.select(compiled).collect()[0][0]


def test_col_in_the_users_sql_is_the_value_so_far(spark: SparkSession) -> None:
    assert one(spark, " Ab ", "string", n.trim(), n.sql("concat(col, 'col', `other`, COL) -- col")) == "Abcol7Ab"


def test_markers_follow_the_users_sql(spark: SparkSession) -> None:
    assert one(spark, "ab", "string", n.sql("concat(col, '  ')"), n.trim(), n.upper()) == "AB"
    assert one(spark, "12", "string", n.sql("cast(col AS int) * 2"), n.clamp(0, 10)) == 10
    assert one(spark, None, "string", n.sql("col"), n.default("x")) == "x"


def test_derive_computes_from_other_columns(spark: SparkSession) -> None:
    assert one(spark, "unused", "string", n.derive("other * 2"), n.clamp(0, 10)) == 10


@pytest.mark.parametrize(
    "marker",
    [
        n.parse_int("error"),
        n.parse_numeric(5, 2, "error"),
        n.parse_date("YYYY-MM-DD", on_failure="error"),
        n.parse_timestamp("YYYY-MM-DD", on_failure="error"),
    ],
    ids=str,
)
def test_on_failure_error_ends_the_load_on_every_route(spark: SparkSession, pg_url: str, marker: n.Normalizer) -> None:
    assert one(spark, None, "string", marker) is None
    with pytest.raises(PySparkException) as from_spark:
        one(spark, "secret", "string", marker)
    assert (
        facts_of(str(from_spark.value)) == ("amount", marker.kind) or facts_of(str(from_spark.value))[1] == marker.kind
    )
    assert "secret" not in str(from_spark.value).partition("ematix-flow-error: ")[2].partition("}")[0]

    compiled = compile_column("postgres", (marker,), ColumnExpr("t.v", Text()), name="amount")
    assert isinstance(compiled, ColumnExpr)
    with psycopg.connect(pg_url, autocommit=True) as connection:
        fine = connection.execute(f"SELECT {compiled.sql} FROM (VALUES (NULL::text)) AS t(v)".encode()).fetchone()
        assert fine == (None,)
        # A branch that is never taken must not fail while the statement is planned.
        assert (
            connection.execute(f"SELECT {compiled.sql} FROM (VALUES ('x')) AS t(v) WHERE false".encode()).fetchall()
            == []
        )
        with pytest.raises(psycopg.Error) as from_postgres:
            connection.execute(f"SELECT {compiled.sql} FROM (VALUES ('secret')) AS t(v)".encode())
    assert facts_of(str(from_postgres.value)) == ("amount", marker.kind)
    assert "secret" not in str(from_postgres.value)

    in_sqlite = compile_column("sqlite", (marker,), ColumnExpr("t.v", Text()), name="amount")
    assert isinstance(in_sqlite, ColumnExpr)
    database = sqlite3.connect(":memory:")
    sqlite_functions.register(database)
    with pytest.raises(sqlite3.OperationalError):
        database.execute(f"SELECT {in_sqlite.sql} FROM (SELECT 'secret' AS v) AS t").fetchall()
    error = sqlite_functions.take_error()
    assert isinstance(error, UnfitValue) and "'amount'" in str(error) and "secret" not in str(error)
    assert sqlite_functions.take_error() is None


def facts_of(text: str) -> tuple[str, str]:
    start = text.index("ematix-flow-error: ") + len("ematix-flow-error: ")
    facts, _ = json.JSONDecoder().raw_decode(text[start:])
    assert facts["error"] == "UnfitValue"
    return facts["column"], facts["marker"]


@pytest.mark.parametrize("marker", [n.round(1), n.date_trunc("day"), n.to_timezone("UTC"), n.clamp(1, 2)], ids=str)
def test_a_marker_on_text_that_needs_a_number_or_time_says_what_to_put_in_front(marker: n.Normalizer) -> None:
    with pytest.raises(InvalidPlan, match="fix .*parse") as caught:
        expressions.compile_column((marker,), F.col("v"), t.StringType())
    assert marker.kind in caught.value.message


ROWS = [
    ("a", 1, None, 2.0), ("a", 2, "x", 1.0), ("a", 2, "X", 1.0), ("b", None, "é", 0.0), ("b", None, "z", 0.0),
    (None, 1, "q", 1.0), (None, 1, "p", 1.0), ("c", 5, "10", 3.5), ("c", 5, "9", 3.5), ("A", 1, "", None),
]  # fmt: skip
COLUMNS: dict[str, ColumnType] = {"k y": Text(), "n": BigInt(), "s": Text(), "d": Double()}


@pytest.mark.parametrize(
    "step",
    [
        deduplicate_by("k y"),
        deduplicate_by("k y", order_by="n desc"),
        deduplicate_by("k y", order_by="n desc nulls first, s"),
        deduplicate_by("n", order_by=["s desc", '"k y" asc nulls first']),
        deduplicate_by(keys=("k y", "n"), order_by="d"),
        filter_where("n > 1 -- all but the first"),
        limit(0),
        limit(100),
        sample_pct(0),
        sample_pct(1),
    ],
    ids=repr,
)
def test_row_steps_leave_the_same_rows_on_every_route(spark: SparkSession, pg_url: str, step: RowStep) -> None:
    frame = spark.createDataFrame(ROWS, "`k y` string, n bigint, s string, d double")
    expected = ordered([tuple(row) for row in expressions.apply_step(frame, step).collect()])
    quote = SqliteDialect().quote
    names = list(COLUMNS)

    with psycopg.connect(pg_url) as connection:
        connection.execute('CREATE TABLE r ("k y" text, n bigint, s text, d double precision)')
        connection.cursor().executemany("INSERT INTO r VALUES (%s, %s, %s, %s)", ROWS)
        sql = step_sql("postgres", step, "SELECT * FROM r", names, quote, types=COLUMNS)
        assert isinstance(sql, str)
        assert ordered(connection.execute(sql.encode()).fetchall()) == expected

    database = sqlite3.connect(":memory:")
    sqlite_functions.register(database)
    database.execute('CREATE TABLE r ("k y", n, s, d)')
    database.executemany("INSERT INTO r VALUES (?, ?, ?, ?)", ROWS)
    sql = step_sql("sqlite", step, "SELECT * FROM r", names, quote, types=COLUMNS)
    assert isinstance(sql, str)
    assert ordered(database.execute(sql).fetchall()) == expected


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def test_sqlite_orders_decimals_as_numbers() -> None:
    database = sqlite3.connect(":memory:")
    sqlite_functions.register(database)
    database.execute("CREATE TABLE r (k, v)")
    database.executemany("INSERT INTO r VALUES (?, ?)", [(1, "9.00"), (1, "10.00"), (1, "-3.00")])
    types: dict[str, ColumnType] = {"k": BigInt(), "v": Numeric(6, 2)}
    sql = step_sql(
        "sqlite", deduplicate_by("k", order_by="v desc"), "SELECT * FROM r", ["k", "v"], lambda x: x, types=types
    )
    assert isinstance(sql, str)
    assert database.execute(sql).fetchall() == [(1, "10.00")]


def test_a_sample_keeps_about_its_fraction(spark: SparkSession, pg_url: str) -> None:
    count = expressions.apply_step(spark.range(20_000), sample_pct(0.25)).count()
    assert 4_000 < count < 6_000
    with psycopg.connect(pg_url) as connection:
        sql = step_sql("postgres", sample_pct(0.25), "SELECT g AS id FROM generate_series(1, 20000) AS g", ["id"], str)
        assert isinstance(sql, str)
        assert 4_000 < len(connection.execute(sql.encode()).fetchall()) < 6_000
    database = sqlite3.connect(":memory:")
    sql = "WITH RECURSIVE g(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM g WHERE id < 20000) SELECT id FROM g"
    stepped = step_sql("sqlite", sample_pct(0.25), sql, ["id"], str)
    assert isinstance(stepped, str)
    assert 4_000 < len(database.execute(stepped).fetchall()) < 6_000


def test_an_unknown_column_in_a_step_is_named(spark: SparkSession) -> None:
    with pytest.raises(InvalidPlan, match="no column 'missing'"):
        expressions.apply_step(spark.range(1), deduplicate_by("missing"))
