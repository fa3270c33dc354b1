"""The same SQL gives the same values: DuckDB and PostgreSQL run it themselves, Spark runs its translation.

Each group holds what is known to differ without a word between the systems. Values are compared one by one; numbers may
differ by one part in 10¹², since averages of doubles depend on the order of their addends.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks.tpch import is_same
from ematix_flow.backends.translation.answers import run_translated
from ematix_flow.backends.translation.spark_sql import parsed_query, spark_query
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.errors import InvalidSource
from ematix_flow.testing.spark import local_spark
from tests.services.postgres import PostgresServer

D, T = datetime.date, datetime.datetime
Rows = list[tuple[Any, ...]]
COLUMNS = {
    "id": pa.int32(),
    "i": pa.int32(),
    "j": pa.int64(),
    "d": pa.decimal128(15, 2),
    "e": pa.decimal128(10, 4),
    "f": pa.float64(),
    "s": pa.string(),
    "dt": pa.date32(),
    "ts": pa.timestamp("us"),
    "l": pa.list_(pa.int32()),
}
ROWS: Rows = [
    (
        1,
        7,
        2,
        Decimal("10.00"),
        Decimal("3.0000"),
        2.5,
        "alpha_beta",
        D(2024, 1, 31),
        T(2024, 1, 31, 23, 59, 59, 500000),
        [1, 2, 3],
    ),
    (2, -7, 2, Decimal("-0.05"), Decimal("7.1234"), 3.5, "Aa\\b%c", D(2024, 2, 29), T(2024, 2, 29, 0, 0, 0), []),
    (3, None, 3, None, Decimal("0.3333"), -2.5, None, D(2020, 12, 27), T(1969, 12, 31, 23, 30, 0), None),
    (4, 2147483647, -3, Decimal("9999999999999.99"), Decimal("-1.5000"), None, "", D(2021, 1, 3), None, [None, 5]),
    (5, 1, 9007199254740993, Decimal("2.50"), None, 0.1, "line\nbreak", None, T(2024, 6, 2, 12, 0, 0), [9]),
    (
        6,
        1,
        1,
        Decimal("1.50"),
        Decimal("2.5000"),
        2.675,
        "ÄÖü x1y22",
        D(1969, 12, 31),
        T(2024, 3, 1, 1, 2, 3, 456789),
        [4, 4],
    ),
]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    columns = list(zip(*ROWS, strict=True))
    return pa.table(
        {name: pa.array(values, kind) for (name, kind), values in zip(COLUMNS.items(), columns, strict=True)}
    )


@pytest.fixture(scope="module")
def on_spark(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, SqlDialect], Rows]]:
    folder: Path = tmp_path_factory.mktemp("meaning")
    pq.write_table(table, folder / "t.parquet")
    spark: SparkSession = local_spark()
    spark.read.parquet(str(folder)).coalesce(1).createOrReplaceTempView("t")
    schemas = {"t": {field.name: field.dataType.simpleString() for field in spark.table("t").schema.fields}}

    def run(text: str, dialect: SqlDialect) -> Rows:
        written = UserSql(text, dialect)
        translated = spark_query(parsed_query(written), written, schemas)
        return [tuple(row) for row in run_translated(spark, translated, written).collect()]

    yield run
    spark.catalog.dropTempView("t")


@pytest.fixture(scope="module")
def on_duckdb(table: pa.Table) -> Iterator[Callable[[str], Rows]]:
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'")
        db.register("given", table)
        db.execute("CREATE TABLE t AS SELECT * FROM given")
        yield lambda text: db.execute(text).fetchall()


@pytest.fixture(scope="module")
def on_postgres(postgres_server: PostgresServer) -> Iterator[Callable[[str], Rows]]:
    with postgres_server.fresh_database() as url, psycopg.connect(url, autocommit=True) as db:
        db.execute("SET TimeZone = 'UTC'")
        db.execute(
            "CREATE TABLE t (id int, i int, j bigint, d numeric(15,2), e numeric(10,4), f float8, s text, dt date, "
            "ts timestamp, l int[])"
        )
        with db.cursor() as cursor:
            cursor.executemany(f"INSERT INTO t VALUES ({', '.join(['%s'] * len(COLUMNS))})", ROWS)
        yield lambda text: db.execute(text).fetchall()  # type: ignore[arg-type]


def as_plain(value: Any) -> Any:
    """A value as all sides give it: points in time by the clock of UTC."""
    if isinstance(value, T) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return value


def compared(expressions: list[str], found: Rows, expected: Rows) -> list[str]:
    assert len(found) == len(expected)
    return [
        f"{expressions[place]} of row {mine[0]}: {mine[place + 1]!r}, and not {theirs[place + 1]!r}"
        for mine, theirs in zip(found, expected, strict=True)
        for place in range(len(expressions))
        if not is_same(as_plain(mine[place + 1]), as_plain(theirs[place + 1]), 1e-12)
    ]


def selecting(expressions: list[str]) -> str:
    listed = ", ".join(f"{expression} AS c{place}" for place, expression in enumerate(expressions))
    return f"SELECT id, {listed} FROM t ORDER BY id"


BOTH: dict[str, list[str]] = {
    "division": [
        "i / 2",
        "j / 3",
        "-7 / 2",
        "i / f",
        "i / 2 * 2",
        "(i + j) / 2",
        "abs(i) / 4",
        "coalesce(i, 0) / 2",
        "i % 4",
    ],
    "division of decimals": ["d / 3", "d / e", "1.0 / 3", "d / j", "1 / e"],
    "casts that round": [
        "CAST(f AS INT)",
        "CAST(d AS BIGINT)",
        "CAST(e AS INT)",
        "CAST(d / 4 AS BIGINT)",
        "CAST(d AS NUMERIC(20, 0))",
    ],
    "rounding": [
        "round(f)",
        "round(d)",
        "round(d, 1)",
        "floor(d)",
        "ceil(e)",
        "log(100.0)",
        "ln(2.0)",
        "trunc(f)",
        "trunc(d)",
    ],
    "concatenation with null": ["concat(s, '-', i)", "s || 'x'", "concat(s, NULL)", "concat_ws('-', s, 'y', NULL)"],
    "substrings": [
        "substring(s, 0, 3)",
        "substring(s, 0)",
        "substring(s FROM 2 FOR 3)",
        "substring(s, 2)",
        "substring(s, 20, 2)",
        "substring(s, i, 2)",
        "substr(s, 0, 1)",
        "left(s, 2)",
        "left(s, -2)",
        "right(s, -2)",
        "right(s, 3)",
        "left(s, i)",
    ],
    "patterns of like": [
        "s LIKE 'a%'",
        "s ILIKE 'A%'",
        "s LIKE 'Aa%'",
        "s NOT LIKE '%b%'",
        "s LIKE '%!%%' ESCAPE '!'",
        "s LIKE '_lpha%'",
    ],
    "parts of times": [
        "extract(dow FROM dt)",
        "extract(isodow FROM dt)",
        "extract(week FROM dt)",
        "extract(isoyear FROM dt)",
        "extract(doy FROM dt)",
        "extract(quarter FROM dt)",
        "extract(year FROM ts)",
        "extract(hour FROM ts)",
        "extract(epoch FROM ts)",
        "date_part('dow', ts)",
        "date_part('month', dt)",
        "extract(microseconds FROM ts)",
    ],
    "truncated times": [
        "date_trunc('week', dt)",
        "date_trunc('month', ts)",
        "date_trunc('hour', ts)",
        "date_trunc('quarter', ts)",
    ],
    "sums with intervals": [
        "ts + INTERVAL '1' MONTH",
        "dt + INTERVAL '1' DAY",
        "dt - INTERVAL '1' MONTH",
        "dt + 3",
        "dt - 3",
        "dt - DATE '2020-01-01'",
        "DATE '2024-01-31' + INTERVAL '1' MONTH",
        "extract(epoch FROM ts - TIMESTAMP '2024-01-01 00:00:00')",
        "CAST(dt + INTERVAL '1' YEAR AS DATE)",
        "ts - INTERVAL '90 minutes'",
    ],
    "lists": ["l[1]", "l[2]", "l[7]", "l[0]"],
    "choices": [
        "greatest(i, j)",
        "least(d, e)",
        "nullif(i, 1)",
        "CASE WHEN i > 0 THEN d / 4 ELSE 0 END",
        "i IS DISTINCT FROM 1",
    ],
    "texts of values": ["CAST(i AS VARCHAR)", "CAST(d AS VARCHAR)", "CAST(dt AS VARCHAR)", "CAST(i = 1 AS VARCHAR)"],
    "split and position": [
        "split_part(s, '_', 2)",
        "split_part(s, '_', 9)",
        "strpos(s, 'b')",
        "position('a' IN s)",
        "length(s)",
        "upper(left(s, 2))",
        "replace(s, 'a', 'b')",
        "lpad(s, 12, '*')",
    ],
}
DUCKDB_ONLY: dict[str, list[str]] = {
    "differences of dates": [
        f"date_diff('{unit}', dt, DATE '2024-03-01')" for unit in ("year", "quarter", "month", "week", "day")
    ]
    + [
        f"date_diff('{unit}', ts, TIMESTAMP '2024-03-01 01:02:03')"
        for unit in ("day", "hour", "minute", "second", "week", "month")
    ]
    + ["date_diff('week', DATE '2024-03-01', dt)", "datediff('month', DATE '2030-01-01', dt)"],
    "whole division": ["i // 2", "j // 3", "-7 // 2"],
    "rounding after multiplying": ["round(f, 2)", "round(f, 1)", "round(f * 100, -1)"],
    "substrings from the end": [
        "substring(s, -3, 2)",
        "substring(s, -20, 12)",
        "substring(s, 3, -2)",
        "substring(s, -1)",
        "substring(s, i % 5, i % 3)",
    ],
    "like without an escape": ["s LIKE 'Aa\\b%'", "s LIKE '%\\%%'", "s LIKE s"],
    "regular expressions": [
        "regexp_matches(s, 'a.b')",
        "regexp_matches(s, 'line.break')",
        "regexp_matches(s, 'k$')",
        "s ~ 'alpha.*'",
        "s ~ 'alpha'",
        "regexp_full_match(s, '[a-z_]+')",
        "regexp_matches(s, 'ALPHA', 'i')",
        "regexp_replace(s, 'a', '<>')",
        "regexp_replace(s, 'a', '<>', 'g')",
        "regexp_replace(s, '([a-z])([a-z])', '\\2\\1')",
        "regexp_replace(s, '\\d+', '$', 'g')",
        "regexp_extract(s, '[a-z]+')",
        "regexp_extract(s, '([a-z]+)_([a-z]+)', 2)",
        "regexp_extract_all(s, '\\d+')",
        "regexp_matches(s, '[[:digit:]]')",
        "regexp_replace(s, '^', '0')",
    ],
    "days and weeks": [
        "dayofweek(dt)",
        "weekday(dt)",
        "isodow(dt)",
        "week(dt)",
        "yearweek(dt)",
        "dayname(dt)",
        "monthname(dt)",
        "second(ts)",
        "dayofyear(dt)",
    ],
    "seconds since 1970": [
        "epoch(ts)",
        "epoch_ms(ts)",
        "epoch_ms(1700000000123)",
        "extract(second FROM ts)",
        "extract(milliseconds FROM ts)",
    ],
    "intervals of columns": [
        "ts + INTERVAL (id) DAY",
        "ts + INTERVAL (id) MONTH",
        "date_add(dt, INTERVAL 1 DAY)",
        "INTERVAL 3 DAY + ts",
    ],
    "indexes of lists": ["l[-1]", "l[i]", "l[1:2]", "s[1]", "len(l)"],
    "formats": [
        "strftime(ts, '%Y-%m-%d %H:%M:%S.%f')",
        "strftime(dt, 'day %d of %B, %A')",
        "strftime(dt, '%-d/%-m/%y, it''s %j')",
        "strptime('3/4/2024', '%d/%m/%Y')",
        "strftime(ts, '%I %p 100%%')",
    ],
    "letters and padding": ["chr(8364)", "lpad(s, 3, '*')", "rpad(s, 3, '*')", "trim(s)", "reverse(s)", "s || chr(10)"],
    "comparisons with texts": [
        "dt > '2024-01-01'",
        "ts < '2024-02-01'",
        "i = '7'",
        "s > 'a'",
        "dt BETWEEN '2020-01-01' AND '2024-02-01'",
    ],
    "safe casts": ["TRY_CAST(s AS INT)", "TRY_CAST('2.7' AS INT)", "TRY_CAST('x' AS DOUBLE)", "CAST(d AS DECIMAL)"],
}
POSTGRES_ONLY: dict[str, list[str]] = {
    "numeric without digits": ["i::numeric / 4", "f::numeric", "round(f::numeric, 2)", "d::numeric"],
    "regular expressions": [
        "s ~ 'alpha_[a-z]+'",
        "s ~* 'ALPHA'",
        "s !~ '[0-9]'",
        "regexp_replace(s, '[a-z]', '#')",
        "regexp_replace(s, '[0-9]+', '#', 'g')",
    ],
    "texts cut by casts": ["s::varchar(3)", "s::text"],
    "substrings before the first letter": [
        "substring(s FROM -1 FOR 4)",
        "substr(s, -2)",
        "substring(s FROM i - 8 FOR 10)",
    ],
    "seconds": ["extract(second FROM ts)", "extract(milliseconds FROM ts)"],
    "lists": ["array_length(l, 1)", "l[-1]", "l[id]"],
    "formatted": [
        "to_char(ts, 'YYYY-MM-DD HH24:MI:SS')",
        "to_char(dt, 'DD.MM.YYYY')",
        "to_date('3.4.2024', 'DD.MM.YYYY')",
        "to_char(ts, 'HH24:MI:SS.US')",
    ],
}


@pytest.mark.parametrize("group", [*BOTH, *DUCKDB_ONLY])
def test_values_are_those_of_duckdb(
    group: str, on_spark: Callable[[str, SqlDialect], Rows], on_duckdb: Callable[[str], Rows]
) -> None:
    expressions = BOTH.get(group) or DUCKDB_ONLY[group]
    text = selecting(expressions)
    assert not compared(expressions, on_spark(text, "duckdb"), on_duckdb(text))


@pytest.mark.parametrize("group", [*BOTH, *(f"{group} " for group in POSTGRES_ONLY)])
def test_values_are_those_of_postgres(
    group: str, on_spark: Callable[[str, SqlDialect], Rows], on_postgres: Callable[[str], Rows]
) -> None:
    expressions = BOTH[group] if group in BOTH else POSTGRES_ONLY[group.strip()]
    text = selecting(expressions)
    assert not compared(expressions, on_spark(text, "postgres"), on_postgres(text))


QUERIES_OF_BOTH = {
    "nulls in ascending order": "SELECT i FROM t ORDER BY i, id",
    "nulls in descending order": "SELECT i, id FROM t ORDER BY i DESC, id",
    "nulls of a window": "SELECT id, row_number() OVER (ORDER BY i DESC, id) AS n FROM t ORDER BY id",
    "an alias in group by": "SELECT j % 2 AS j, count(*) AS n FROM t GROUP BY j ORDER BY n, j",
    "an alias that hides no column": "SELECT i % 2 AS odd, count(*) AS n FROM t GROUP BY odd ORDER BY odd",
    "group by position": "SELECT extract(year FROM dt) AS y, sum(i) AS n FROM t GROUP BY 1 ORDER BY 1",
    "averages": "SELECT avg(i) AS a, avg(d) AS b, avg(e) AS c, avg(f) AS g, avg(DISTINCT d) AS h FROM t",
    "averages over windows": "SELECT id, avg(d) OVER (PARTITION BY i) AS a FROM t ORDER BY id",
    "filtered averages": "SELECT avg(d) FILTER (WHERE i > 0) AS a, avg(d) FILTER (WHERE i > 99999999999) AS b FROM t",
    "lists of values": "SELECT array_agg(i ORDER BY id DESC) AS a, array_agg(s ORDER BY i DESC, id) AS b FROM t",
    "a list of no rows": "SELECT array_agg(i) AS a FROM t WHERE id > 99",
    "filtered lists": "SELECT array_agg(i ORDER BY id) FILTER (WHERE id < 3) AS a FROM t",
    "texts put together": "SELECT string_agg(s, ',' ORDER BY id) AS a FROM t",
    "percentiles": (
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY f) AS a, "
        "percentile_disc(0.5) WITHIN GROUP (ORDER BY i) AS b FROM t"
    ),
    "the first of each": "SELECT DISTINCT ON (i) i, id FROM t ORDER BY i, id DESC",
    "the first of each and a limit": "SELECT DISTINCT ON (i) i, id FROM t ORDER BY i, id DESC LIMIT 2",
    "a share of a whole": (
        "SELECT sum(d) / count(*) AS a, sum(i) / count(i) AS b, 100.0 * sum(e) / sum(d) AS c FROM t WHERE id <> 4"
    ),
    "a product of many digits": "SELECT sum(d) * 0.1234567891 AS a, sum(e) * sum(i) * 0.25 AS b FROM t WHERE id <> 4",
    "a name of the output in order by": "SELECT -j AS j, id FROM t ORDER BY j, id",
    "a column in an expression of order by": "SELECT -i AS i, id FROM t ORDER BY i + 0, id",
    "a series": "SELECT x FROM generate_series(2, 5) AS g(x) ORDER BY x",
    "an empty series": "SELECT x FROM generate_series(5, 2) AS g(x)",
    "a list as rows": "SELECT id, x FROM t, unnest(l) AS u(x) ORDER BY id, x",
    "a scalar subquery": "SELECT id, (SELECT max(u.i) FROM t AS u WHERE u.id < t.id) / 2 AS a FROM t ORDER BY id",
    "a correlated filter": "SELECT id FROM t WHERE d > (SELECT 0.5 * avg(u.d) FROM t AS u WHERE u.i = t.i) ORDER BY id",
    "counts": "SELECT count(*) AS a, count(i) AS b, count(DISTINCT i) AS c, bool_or(i > 5) AS g FROM t",
}
QUERIES_OF_DUCKDB = {
    "qualify": (
        "SELECT id, i FROM t QUALIFY row_number() OVER (PARTITION BY i ORDER BY id DESC) = 1 ORDER BY id LIMIT 3"
    ),
    "qualify and a star": (
        "SELECT * EXCLUDE (l) FROM t QUALIFY row_number() OVER (PARTITION BY i ORDER BY id) = 1 ORDER BY id"
    ),
    "qualify by a name": "SELECT id, rank() OVER (ORDER BY i) AS r FROM t QUALIFY r < 4 AND f IS NOT NULL ORDER BY id",
    "group by all": "SELECT i % 2 AS odd, count(*) AS n FROM t GROUP BY ALL ORDER BY ALL",
    "from first": "FROM t SELECT id WHERE i = 1 ORDER BY id",
    "quantiles": (
        "SELECT quantile_cont(f, 0.25) AS a, quantile_disc(i, 0.5) AS b, median(i) AS c, quantile(i, 0.5) AS g FROM t"
    ),
    "the row of a highest value": "SELECT arg_max(id, j) AS a, arg_min(s, id) AS b, any_value(l) AS c FROM t",
    "a range": "SELECT i FROM range(3) AS r(i) ORDER BY i",
    "a list with its nulls": "SELECT list(i ORDER BY id) AS a FROM t",
    "a list of windows": (
        "SELECT id, list(i) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS a FROM t ORDER BY id"
    ),
}


@pytest.mark.parametrize("name", [*QUERIES_OF_BOTH, *QUERIES_OF_DUCKDB])
def test_rows_are_those_of_duckdb(
    name: str, on_spark: Callable[[str, SqlDialect], Rows], on_duckdb: Callable[[str], Rows]
) -> None:
    text = QUERIES_OF_BOTH.get(name) or QUERIES_OF_DUCKDB[name]
    found, expected = on_spark(text, "duckdb"), on_duckdb(text)
    assert [same_row(a, b) for a, b in zip(found, expected, strict=True)] == [True] * len(expected), (found, expected)


@pytest.mark.parametrize("name", QUERIES_OF_BOTH)
def test_rows_are_those_of_postgres(
    name: str, on_spark: Callable[[str, SqlDialect], Rows], on_postgres: Callable[[str], Rows]
) -> None:
    text = QUERIES_OF_BOTH[name]
    found, expected = on_spark(text, "postgres"), on_postgres(text)
    assert [same_row(a, b) for a, b in zip(found, expected, strict=True)] == [True] * len(expected), (found, expected)


def same_row(mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    return len(mine) == len(theirs) and all(is_same(a, b, 1e-12) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT id,\n  no_such FROM t", "line 2, column 3: 'no_such': there is no column 'no_such'"),
        (
            "SELECT id FROM t\nWHERE no_such_function(i) = 1",
            "line 2, column 7: 'no_such_function': Spark has no function",
        ),
        ("SELECT id FROM t WHERE l > 'x'", "line 1, column 24: 'l': Spark cannot run its translation"),
    ],
)
def test_what_spark_does_not_understand_is_pointed_at_in_the_users_text(
    text: str, said: str, on_spark: Callable[[str, SqlDialect], Rows]
) -> None:
    with pytest.raises(InvalidSource) as caught:
        on_spark(text, "duckdb")
    assert said in str(caught.value) and "^" in str(caught.value)


def test_the_words_of_datafusion_mean_what_its_documentation_says(on_spark: Callable[[str, SqlDialect], Rows]) -> None:
    """There is no DataFusion here to compare with: these are values worked out by hand."""
    expressions = {
        "date_bin(interval '15 minutes', ts, timestamp '2024-01-01 00:05:00')": T(2024, 2, 28, 23, 50),
        "date_bin(interval '15 minutes', ts, '2024-01-01T00:05:00')": T(2024, 2, 28, 23, 50),
        "date_bin(interval '1 hour', ts)": T(2024, 2, 29, 0, 0),
        "date_trunc('minute', ts)": T(2024, 2, 29, 0, 0),
        "ts + interval '1 minute'": T(2024, 2, 29, 0, 1),
        "i / 2": -3,
        "make_array(1, i)": [1, -7],
        "strpos(s, 'b')": 4,
        "arrow_cast(f, 'Int64')": 3,
        "f::int": 3,
        "round(f)": 4.0,
        "to_timestamp_millis(1700000000123)": T(2023, 11, 14, 22, 13, 20, 123000),
        "j::varchar || 'x'": "2x",
        "\"dt\" - date '2024-02-01'": 28,
        "nvl(NULL, 5)": 5,
    }
    listed = ", ".join(f"{expression} AS c{place}" for place, expression in enumerate(expressions))
    found = on_spark(f"SELECT {listed} FROM t WHERE id = 2", "datafusion")
    assert [as_plain(value) for value in found[0]] == list(expressions.values())


def test_lists_of_structs_are_gathered_and_taken_apart_in_datafusion(
    on_spark: Callable[[str, SqlDialect], Rows],
) -> None:
    gathered = "SELECT array_agg(named_struct('a', id, 'b', s) ORDER BY id) AS x FROM t WHERE id < 3 GROUP BY 1 = 1"
    assert [tuple(one) for one in on_spark(gathered, "datafusion")[0][0]] == [(1, "alpha_beta"), (2, "Aa\\b%c")]
    assert on_spark("SELECT id, unnest(l) AS x FROM t WHERE id = 1 ORDER BY x", "datafusion") == [
        (1, 1),
        (1, 2),
        (1, 3),
    ]
