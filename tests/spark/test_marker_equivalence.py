"""The heart: a marker means the same in Spark, PostgreSQL, SQLite, DuckDB and the model, for every value."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any, get_args

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import SparkSession

from ematix_flow.declare import normalizers as n
from ematix_flow.declare.columns import BigInt, ColumnType, Date, Double, Numeric, Text, Timestamp, TimestampTZ
from ematix_flow.plan.expressions import NotPushable
from tests.services.postgres import PostgresServer
from tests.spark.nasty_values import NASTY
from tests.spark.routes import Chain, through_duckdb, through_postgres, through_spark, through_sqlite


@pytest.fixture(scope="module")
def pg(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose session zone is far from UTC: it must not matter."""
    with postgres_server.fresh_database() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET TIME ZONE 'Pacific/Auckland'")
        connection.execute("SET DateStyle = 'SQL, DMY'")
        yield connection


def assert_equal_routes(
    spark: SparkSession,
    pg: psycopg.Connection[Any],
    chains: Sequence[Chain],
    values: Sequence[Any],
    kind: ColumnType,
    *,
    only_spark: Sequence[Chain] = (),
) -> None:
    """Every chain gives the same on every route. A route may refuse only the chains that are named for it."""
    expected = through_spark(spark, chains, values, kind)
    for route, found in (
        ("postgres", through_postgres(pg, chains, values, kind)),
        ("sqlite", through_sqlite(chains, values, kind)),
        ("duckdb", through_duckdb(chains, values, kind)),
    ):
        for chain, right, result in zip(chains, expected, found, strict=True):
            if isinstance(result, NotPushable):
                assert chain in only_spark, f"{route} refuses {chain}: {result.reason}"
                continue
            wrong = [
                (value, spark_says, other)
                for value, spark_says, other in zip(values, right, result, strict=True)
                if spark_says != other
            ]
            assert not wrong, f"{chain} on {route}: (value, Spark, {route}) = {wrong[:5]}"


TEXT_CHAINS: tuple[Chain, ...] = (
    (n.trim(),),
    (n.lower(),),
    (n.upper(),),
    (n.empty_to_null(),),
    (n.whitespace_to_null(),),
    (n.email_normalize(),),
    (n.phone_normalize(),),
    (n.replace("a", "bb"),),
    (n.replace("'", "\\"),),
    (n.replace("aa", ""),),
    (n.truncate(0),),
    (n.truncate(2),),
    (n.default("n/a"),),
    (n.not_null_or("it's \\ here"),),
    (n.nullif("a"),),
    (n.nullif(0),),
    (n.parse_bool(),),
    (n.parse_bool(("ΝΑΙ", "Ja", "K"), ("ß", "o'no")),),
    (n.parse_int(),),
    (n.parse_int("default", -7),),
    (n.parse_numeric(38, 0),),
    (n.parse_numeric(5, 2),),
    (n.parse_numeric(3, 3),),
    (n.parse_numeric(38, 38),),
    (n.parse_numeric(12, 4, "default", 1.5),),
    (n.parse_timestamp(),),
    (n.parse_timestamp("MM/DD/YYYY HH12:MI AM"),),
    (n.parse_timestamp('DD.MM.YYYY "um" HH24:MI "Uhr"'),),
    (n.parse_timestamp(formats=("YYYY", "YYYY-MM", "YYYY.MM.DD HH12:MI:SS.US PM TZH:TZM")),),
    (n.parse_timestamp(on_failure="default", default=datetime(2020, 1, 2, 3, 4, 5, 6)),),
    (n.parse_date(),),
    (n.parse_date("YYYY-MM-DDTHH24:MI:SSOF"),),
    (n.parse_date(on_failure="default", default=date(1999, 12, 31)),),
    (n.lower(), n.trim(), n.empty_to_null(), n.default("none")),
    (n.trim(), n.parse_int(), n.clamp(-5, 100), n.default(0)),
    (n.parse_timestamp(), n.date_trunc("week")),
    (n.parse_timestamp(), n.to_timezone("UTC"), n.date_trunc("quarter")),
    (n.parse_numeric(12, 4), n.round(1), n.clamp(-9.55, 99), n.nullif(0)),
)

PATTERNS = (
    r"\s+",
    r"[^0-9A-Za-z]",
    r"(\d+)[.,](\d+)",
    r"^(\w)",
    r"(a)?b",
    r"^\s*|x",
    r"a{2,3}",
    r"(ab|cd)+",
    r"[a-f&&[^c]]",
    r".+",
    r"\.$",
    r"[\]\-^]",
    r"é|ß",
    r"(x)(y)?",
    r"a|ab",
    r"(?<=a)b",
    r"\bA",
    r"(a)\1",
    r"[.]\d{1,2}$",
    r"\\",
    r"[\d\s]+x?",
)
REGEX_CHAINS: tuple[Chain, ...] = tuple(
    (n.regex_replace(pattern, replacement, flags),)
    for pattern in PATTERNS
    for replacement in ("", r"<\&>", r"$1\\")
    for flags in ("g", "", "gi", "i")
) + ((n.regex_replace(r"(\d+)[.,](\d+)", r"\2\1" + "5", "g"),), (n.regex_replace("(x)(y)?", r"[\2|\1]", ""),))


def test_text_markers_agree_on_nasty_values(spark: SparkSession, pg: psycopg.Connection[Any]) -> None:
    assert_equal_routes(spark, pg, TEXT_CHAINS, NASTY, Text())


def test_regex_markers_agree_or_stay_on_spark(spark: SparkSession, pg: psycopg.Connection[Any]) -> None:
    refused = ("[a-f&&[^c]]", "a|ab", "(?<=a)b", r"\bA", r"(a)\1", r"^\s*|x")
    only_spark = [chain for chain in REGEX_CHAINS if chain[0].pattern in refused]  # type: ignore[attr-defined]
    values = [value for value in NASTY if value is None or len(value) < 5000]
    assert_equal_routes(spark, pg, REGEX_CHAINS, values, Text(), only_spark=only_spark)


def test_every_code_point_changes_case_alike(spark: SparkSession, pg: psycopg.Connection[Any]) -> None:
    letters = [chr(code) for code in range(1, 0x110000) if not 0xD800 <= code <= 0xDFFF]
    texts = ["".join(letters[start : start + 64]) for start in range(0, len(letters), 64)]
    # What stands beside a sigma decides its form; signs newer than an engine's Unicode have no say in it there.
    known = [letter for letter in letters[:0x3000] if unicodedata.category(letter) != "Cn"]
    texts += [f"a{letter}Σ{letter}" for letter in known]
    assert_equal_routes(spark, pg, ((n.lower(),), (n.upper(),)), texts, Text())


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12)
_NEAR_NUMBERS = st.text("0123456789.-+eE ", max_size=24)
_NEAR_TIMES = st.builds(
    lambda parts, tail: "{}-{}-{}{}{}:{}:{}".format(*parts) + tail,
    st.tuples(
        st.sampled_from(["2026", "2024", "0000", "0001", "9999", "1900", "26"]),
        st.sampled_from(["00", "01", "02", "04", "12", "13", "2"]),
        st.sampled_from(["00", "01", "28", "29", "30", "31", "32"]),
        st.sampled_from(["T", " ", "t", ""]),
        st.sampled_from(["00", "12", "23", "24", "7"]),
        st.sampled_from(["00", "59", "60"]),
        st.sampled_from(["00", "59", "60"]),
    ),
    st.sampled_from(["", "Z", "+02", "-0530", "+15:59", "+16", ".5", ".123456", ".1234567", ".5Z", " AM", "\n"]),
)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(_TEXT, _NEAR_NUMBERS, _NEAR_TIMES), min_size=100, max_size=200))
def test_text_markers_agree_on_any_values(spark: SparkSession, pg: psycopg.Connection[Any], values: list[str]) -> None:
    assert_equal_routes(spark, pg, TEXT_CHAINS, values, Text())


_PIECES = st.sampled_from(["a", "b", "[ab]", "[^a]", r"\d", "(a)", "(ab)", "(?:b|c)", ".", "x", "(a|bc)", "[0-9]"])
_PATTERNS = st.lists(
    st.tuples(_PIECES, st.sampled_from(["", "*", "+", "?", "{2}", "{1,2}", "{2,}"])), min_size=1, max_size=4
)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(_PATTERNS, min_size=25, max_size=40),
    st.lists(st.text("abcx19A\n", max_size=9), min_size=50, max_size=100),
    st.sampled_from(["g", "", "gi"]),
)
def test_any_pattern_that_is_pushed_down_means_the_same(
    spark: SparkSession, pg: psycopg.Connection[Any], patterns: list[Any], values: list[str], flags: str
) -> None:
    written = ["".join(piece + times for piece, times in pattern) for pattern in patterns]
    chains = [(n.regex_replace(text, r"<\1>" if "(" in text.replace("(?:", "") else "-", flags),) for text in written]
    assert_equal_routes(spark, pg, chains, values, Text(), only_spark=chains)


NUMBER_CHAINS: tuple[Chain, ...] = (
    (n.round(0),),
    (n.round(2),),
    (n.round(-1),),
    (n.clamp(-10, 100),),
    (n.default(7),),
    (n.nullif(5),),
    (n.nullif("never"),),
    (n.nullif(1.5),),
    (n.default(0), n.round(-2), n.clamp(0, 900)),
)


def test_markers_agree_on_whole_numbers(spark: SparkSession, pg: psycopg.Connection[Any]) -> None:
    generator = random.Random(5)
    values = [None, 0, 5, -5, 4, 15, 25, -15, 45, 55, 2**62, -(2**62), 10**18] + [
        generator.randint(-(10**6), 10**6) for _ in range(300)
    ]
    texts: tuple[Chain, ...] = (
        (n.trim(),),
        (n.parse_int(),),
        (n.parse_numeric(20, 2),),
        (n.truncate(2),),
        (n.parse_bool(),),
    )
    assert_equal_routes(spark, pg, (*NUMBER_CHAINS, *texts), values, BigInt())


def test_markers_agree_on_decimals(spark: SparkSession, pg: psycopg.Connection[Any]) -> None:
    generator = random.Random(6)
    edges = [
        "0",
        "1.25",
        "-1.25",
        "1.35",
        "-1.35",
        "0.0050",
        "-0.0050",
        "0.0049",
        "5",
        "5.0000",
        "1.5",
        "-99999999.9999",
    ]
    values: list[Decimal | None] = [None, *map(Decimal, edges)]
    values += [Decimal(generator.randint(-(10**12) + 1, 10**12 - 1)).scaleb(-4) for _ in range(300)]
    chains: tuple[Chain, ...] = (*NUMBER_CHAINS, (n.round(1),), (n.clamp(-1.123456, 10**9),), (n.default(0.00001),))
    assert_equal_routes(spark, pg, chains, values, Numeric(12, 4))


def test_markers_agree_on_doubles_and_their_rounding_stays_out_of_postgres_and_duckdb(
    spark: SparkSession, pg: psycopg.Connection[Any]
) -> None:
    generator = random.Random(7)
    values = [
        None,
        0.0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        1.005,
        2.675,
        0.1,
        5.0,
        1e22,
        1e-7,
        123456789.987654321,
        float("inf"),
    ]
    values += [generator.uniform(-1000, 1000) for _ in range(300)]
    rounding = [chain for chain in NUMBER_CHAINS if any(marker.kind == "round" for marker in chain)]
    assert_equal_routes(spark, pg, NUMBER_CHAINS, values, Double(), only_spark=rounding)
    assert not any(isinstance(found, NotPushable) for found in through_sqlite(rounding, values, Double()))


def test_a_double_becomes_text_as_spark_writes_it(spark: SparkSession) -> None:
    from ematix_flow.declare.values import double_text

    generator = random.Random(8)
    values = [
        0.0,
        -0.0,
        1.0,
        0.001,
        0.0009,
        9999999.0,
        1e7,
        1.5e-5,
        -12.5,
        1e300,
        123456.789,
        float("inf"),
        float("nan"),
    ]
    values += [generator.uniform(-1, 1) * 10 ** generator.randint(-12, 12) for _ in range(200)]
    (found,) = through_spark(spark, [(n.trim(),)], values, Double())
    assert found == [double_text(value) for value in values]


TIME_CHAINS: tuple[Chain, ...] = (
    *((n.date_trunc(precision),) for precision in get_args(n.Precision)),
    (n.to_timezone("UTC"),),
    (n.parse_timestamp(),),
    (n.parse_date(),),
    (n.parse_timestamp(on_failure="default", default="2000-01-01"),),
    (n.default(date(2001, 2, 3)),),
    (n.nullif("2026-05-06"),),
    (n.clamp(date(1950, 1, 1), date(2030, 1, 1)),),
)


@pytest.mark.parametrize("kind", [TimestampTZ(), Timestamp(), Date()], ids=str)
def test_markers_agree_on_times(spark: SparkSession, pg: psycopg.Connection[Any], kind: ColumnType) -> None:
    generator = random.Random(9)
    zone = timezone.utc if isinstance(kind, TimestampTZ) else None
    moments = [
        datetime(2026, 5, 6),
        datetime(1, 1, 1),
        datetime(9999, 12, 31, 23, 59, 59, 999999),
        datetime(1969, 12, 31, 23),
    ]
    moments += [datetime(1582, 10, 10, 1, 2, 3, 4), datetime(1900, 2, 28, 23, 59, 59, 999999)]
    moments += [datetime(generator.randint(1, 9999), 3, 31, 5, generator.randint(0, 59), 7, 890123) for _ in range(200)]
    values = [None, *(moment.date() if isinstance(kind, Date) else moment.replace(tzinfo=zone) for moment in moments)]
    assert_equal_routes(spark, pg, TIME_CHAINS, values, kind)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"])
def test_a_region_stays_on_spark_and_means_what_the_zone_data_says(
    spark: SparkSession, pg: psycopg.Connection[Any], zone: str
) -> None:
    from ematix_flow.declare.values import to_timezone

    generator = random.Random(10)
    values = [datetime.fromtimestamp(generator.randint(0, 2**31), timezone.utc) for _ in range(300)]
    chains = [(n.to_timezone(zone),)]
    (found,) = through_spark(spark, chains, values, TimestampTZ())
    assert found == [to_timezone(value.strftime("%Y-%m-%dT%H:%M:%S"), zone) for value in values]
    assert isinstance(through_postgres(pg, chains, values, TimestampTZ())[0], NotPushable)
    assert isinstance(through_sqlite(chains, values, TimestampTZ())[0], NotPushable)
    assert isinstance(through_duckdb(chains, values, TimestampTZ())[0], NotPushable)
