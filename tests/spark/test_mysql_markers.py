"""What MySQL applies itself means the same as in Spark, for every value; what it does not is left to Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import SparkSession

from ematix_flow.backends.mysql_dialect import MysqlDialect
from ematix_flow.backends.mysql_session import MysqlSession, open_session
from ematix_flow.declare import normalizers as n
from ematix_flow.declare.columns import BigInt, ColumnType, Date, Integer, Numeric, Text, Timestamp, TimestampTZ
from ematix_flow.plan.expressions import ColumnExpr, NotPushable, compile_column
from tests.services.mariadb import MariadbServer
from tests.spark.nasty_values import NASTY
from tests.spark.routes import Chain, comparable, through_spark

DIALECT = MysqlDialect()


@pytest.fixture(scope="module")
def db(mariadb_server: MariadbServer) -> Iterator[MysqlSession]:
    with mariadb_server.fresh_database() as url:
        session = open_session(url, "shop")
        yield session
        session.close()


def through_mysql(
    db: MysqlSession, chains: Sequence[Chain], values: Sequence[Any], kind: ColumnType, collation: str = ""
) -> list[list[Any] | NotPushable]:
    """A column of results per chain, or the refusal to push it down."""
    native = f"LONGTEXT COLLATE {collation}" if collation else DIALECT.type_sql(kind)
    db.execute(f"CREATE OR REPLACE TABLE t (i INT, `x y` {native})")
    for start in range(0, len(values), 200):
        some = enumerate(values[start : start + 200], start)
        db.execute("INSERT INTO t VALUES " + ", ".join(f"({i}, {DIALECT.literal(v, kind)})" for i, v in some))
    compiled = [compile_column("mysql", chain, ColumnExpr("t.`x y`", kind), name="v") for chain in chains]
    results: list[list[Any] | NotPushable] = []
    for expression in compiled:
        if isinstance(expression, NotPushable):
            results.append(expression)
            continue
        sql = expression.sql
        if isinstance(expression.type, Timestamp | TimestampTZ):
            sql = DIALECT.as_watermark_text(sql, expression.type)
        found = db.execute(f"SELECT {sql} FROM t ORDER BY i").fetchall()
        results.append([comparable(row[0]) for row in found])
    return results


def assert_equal(
    spark: SparkSession, db: MysqlSession, chains: Sequence[Chain], values: Sequence[Any], kind: ColumnType, **how: str
) -> None:
    expected = through_spark(spark, chains, values, kind)
    for chain, right, found in zip(chains, expected, through_mysql(db, chains, values, kind, **how), strict=True):
        assert not isinstance(found, NotPushable), f"{chain}: {found}"
        wrong = [(v, a, b) for v, a, b in zip(values, right, found, strict=True) if a != b]
        assert not wrong, f"{chain}: (value, Spark, MySQL) = {wrong[:5]}"


TEXT_CHAINS: tuple[Chain, ...] = (
    (n.trim(),),
    (n.empty_to_null(),),
    (n.whitespace_to_null(),),
    (n.phone_normalize(),),
    (n.replace("a", "bb"),),
    (n.replace("'", "\\"),),
    (n.replace("aa", ""),),
    (n.truncate(0),),
    (n.truncate(2),),
    (n.default("n/a"),),
    (n.not_null_or("it's \\ here"),),
    (n.nullif("a"),),
    (n.nullif(""),),
    (n.nullif("é "),),
    (n.trim(), n.empty_to_null(), n.truncate(3), n.default("none")),
)


@pytest.mark.parametrize("collation", ["", "utf8mb4_general_ci", "utf8mb4_unicode_ci"])
def test_text_markers_agree_whatever_rule_a_table_compares_by(
    spark: SparkSession, db: MysqlSession, collation: str
) -> None:
    assert_equal(spark, db, TEXT_CHAINS, [*NASTY, "A", "á", "E ", "é"], Text(), collation=collation)


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_TEXT, min_size=100, max_size=200))
def test_text_markers_agree_on_any_values(spark: SparkSession, db: MysqlSession, values: list[str]) -> None:
    assert_equal(spark, db, TEXT_CHAINS, values, Text())


UTC = timezone.utc
MOMENTS = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(1582, 10, 10, 12, 30, 15, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2024, 2, 29, 6, 7, 8, 123456, tzinfo=UTC),
    datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
]
TIME_CHAINS: tuple[Chain, ...] = (
    *((n.date_trunc(precision),) for precision in ("microsecond", "millisecond", "second", "minute", "hour")),
    *((n.date_trunc(precision),) for precision in ("day", "week", "month", "quarter", "year")),
    (n.to_timezone("UTC"),),
    (n.parse_timestamp(),),
    (n.parse_date(),),
    (n.parse_timestamp(on_failure="default", default=datetime(2020, 1, 2, 3, 4, 5, 6)),),
    (n.clamp(datetime(1970, 1, 1), datetime(2025, 1, 1)), n.date_trunc("quarter")),
    (n.nullif(datetime(2026, 3, 29, 1, 30)), n.default(datetime(2000, 1, 1))),
)


def test_time_markers_agree(spark: SparkSession, db: MysqlSession) -> None:
    assert_equal(spark, db, TIME_CHAINS, [*MOMENTS, None], TimestampTZ())
    assert_equal(spark, db, TIME_CHAINS, [*(m.replace(tzinfo=None) for m in MOMENTS), None], Timestamp())
    day_chains = [chain for chain in TIME_CHAINS if chain[0].kind in ("date_trunc", "to_timezone", "parse_date")]
    assert_equal(spark, db, day_chains, [*(m.date() for m in MOMENTS), date(2024, 12, 30), None], Date())


NUMBER_CHAINS: tuple[Chain, ...] = (
    (n.round(0),),
    (n.round(2),),
    (n.round(-1),),
    (n.clamp(-5, 100),),
    (n.default(7),),
    (n.nullif(0),),
    (n.round(1), n.clamp(-9, 99), n.nullif(1), n.default(-1)),
)


def test_number_markers_agree(spark: SparkSession, db: MysqlSession) -> None:
    whole = [0, 1, -1, 4, 5, -5, 15, -15, 99, 2**31 - 10, -(2**31) + 10, None]
    assert_equal(spark, db, NUMBER_CHAINS, whole, Integer())
    assert_equal(spark, db, [*NUMBER_CHAINS, (n.parse_int(),), (n.trim(),)], [*whole, 10**17 + 5], BigInt())
    texts = ["0", "0.005", "-0.005", "1.005", "-1.25", "1.25", "99.995", "9999999999.999", "-9999999999.995"]
    assert_equal(
        spark, db, NUMBER_CHAINS, [*(Decimal(t).quantize(Decimal("0.001")) for t in texts), None], Numeric(13, 3)
    )


def test_what_depends_on_the_servers_own_tables_and_engines_is_left_to_spark() -> None:
    left = (n.lower(), n.upper(), n.email_normalize(), n.parse_bool(), n.parse_int(), n.parse_numeric(5, 2))
    for marker in (*left, n.parse_timestamp(), n.parse_date(), n.regex_replace("a", "b")):
        assert isinstance(compile_column("mysql", (marker,), ColumnExpr("x", Text())), NotPushable), marker
    berlin = compile_column("mysql", (n.to_timezone("Europe/Berlin"),), ColumnExpr("x", TimestampTZ()))
    assert isinstance(berlin, NotPushable)
