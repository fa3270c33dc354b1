"""Translations word by word, and errors that point into the user's text. Nothing here starts Spark."""

from __future__ import annotations

import logging

import pytest

from ematix_flow.backends.files_sql import folder_query
from ematix_flow.backends.translation.answers import complaint, place_of_word
from ematix_flow.backends.translation.kinds import kind_of_type, spark_kinds
from ematix_flow.backends.translation.regex import java_of_re2, java_replacement
from ematix_flow.backends.translation.spark_sql import parsed_query, spark_expression, spark_query
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.declare.sql_dialects import SqlDialect, checked_dialect
from ematix_flow.errors import InvalidDeclaration, InvalidSource

TABLES = {
    "t": {
        "i": "int",
        "b": "bigint",
        "d": "decimal(15,2)",
        "f": "double",
        "s": "string",
        "dt": "date",
        "ts": "timestamp_ntz",
        "tz": "timestamp",
        "l": "array<int>",
        "st": "struct<x:int,y:string>",
    }
}


def translated(text: str, dialect: SqlDialect = "duckdb") -> str:
    written = UserSql(text, dialect)
    return spark_query(parsed_query(written), written, TABLES)


def expression(text: str, dialect: SqlDialect = "duckdb") -> str:
    return translated(f"SELECT {text} FROM t", dialect).removeprefix("SELECT ").removesuffix(" FROM t")


def refusal(text: str, dialect: SqlDialect = "duckdb") -> str:
    with pytest.raises(InvalidSource) as caught:
        translated(text, dialect)
    return str(caught.value)


# ── errors point into the text ───────────────────────────────────────────────────────────────────────────────────────


def test_a_text_that_cannot_be_parsed_is_shown_with_a_mark_below_the_place() -> None:
    said = refusal("SELECT i,\n  (b + 1 AS x\nFROM t")
    assert said.splitlines()[0].endswith("line 3, column 1: 'FROM': it cannot be parsed as duckdb SQL: Expecting ).")
    assert said.splitlines()[1] == "    FROM t"
    assert said.splitlines()[2].startswith("    ^^^^")


def test_a_word_without_counterpart_is_pointed_at() -> None:
    said = refusal("SELECT i\nFROM t\nWHERE s SIMILAR TO 'a%'")
    lines = said.splitlines()
    assert "line 3, column 7: 's SIMILAR TO 'a%'':" in lines[0] and "SIMILAR TO has no counterpart" in lines[0]
    assert lines[1] == "    WHERE s SIMILAR TO 'a%'"
    assert lines[2].startswith(" " * 10 + "^^^^")
    assert "use LIKE" in said


def test_a_mark_stands_below_its_word_in_a_long_line() -> None:
    said = refusal("SELECT " + "i + " * 60 + "hash(s) FROM t").splitlines()
    start = said[2].index("^")
    assert said[1][start : start + 4] == "hash"


def test_the_name_of_an_expression_is_said() -> None:
    with pytest.raises(InvalidSource, match=r"filter_where \(duckdb\), line 1, column 5: 'hash\(s\)': hash\(\) cannot"):
        spark_expression("i = hash(s)", "duckdb", {"i": "int", "s": "string"}, "filter_where")


def test_words_inside_texts_and_comments_are_not_pointed_at() -> None:
    assert place_of_word("SELECT 'x' -- x\n, x", "X") == (18, 18)
    assert place_of_word("SELECT xs FROM t", "x") is None


@pytest.mark.parametrize("text", ["SELECT 1; SELECT 2", "DROP TABLE t", "UPDATE t SET i = 1"])
def test_only_one_select_is_taken(text: str) -> None:
    assert "must be one SELECT" in refusal(text)


# ── types decide ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "in_duckdb", "in_postgres"),
    [
        ("i / b", "(i / b)", "(i DIV b)"),
        ("f / i", "(f / i)", "(f / i)"),
        ("d / i", "(CAST(d AS DOUBLE) / i)", "(CAST(d AS DOUBLE) / i)"),
        ("d / d", "(CAST(d AS DOUBLE) / d)", "(d / d)"),
        ("sum(i) / count(*)", "(SUM(i) / COUNT(*))", "(SUM(i) DIV COUNT(*))"),
        ("extract(year FROM dt) / 10", "(DATE_PART('YEAR', dt) / 10)", "(DATE_PART('YEAR', dt) DIV 10)"),
        ("st.x / 2", "(st.x / 2)", "(st.x DIV 2)"),
        ("avg(i)", "AVG(i)", "AVG(i)"),
        ("CAST(f AS INT)", "CAST(RINT(f) AS INT)", "CAST(RINT(f) AS INT)"),
        ("CAST(d AS BIGINT)", "CAST(ROUND(d) AS BIGINT)", "CAST(ROUND(d) AS BIGINT)"),
        ("CAST(s AS INT)", "CAST(s AS INT)", "CAST(s AS INT)"),
        ("dt - dt", "DATEDIFF(dt, dt)", "DATEDIFF(dt, dt)"),
    ],
)
def test_a_translation_depends_on_the_types_of_columns(text: str, in_duckdb: str, in_postgres: str) -> None:
    assert expression(text, "duckdb") == in_duckdb
    assert expression(text, "postgres") == in_postgres


@pytest.mark.parametrize(
    "text",
    [
        "WITH c AS (SELECT i AS n FROM t) SELECT n / 2 AS x FROM c",
        "SELECT n / 2 AS x FROM (SELECT coalesce(i, 0) AS n FROM t) AS c",
        "SELECT n / 2 AS x FROM (SELECT * FROM t) AS c(n)",
        "SELECT (SELECT max(u.i) FROM t AS u WHERE u.b = t.b) / 2 AS x FROM t",
        "SELECT n / 2 AS x FROM (SELECT i AS n FROM t UNION ALL SELECT b FROM t) AS c",
        "SELECT c.n / 2 AS x FROM t JOIN (SELECT b, count(*) AS n FROM t GROUP BY b) AS c USING (b)",
        "SELECT row_number() OVER (ORDER BY i) / 2 AS x FROM t",
    ],
)
def test_types_are_followed_through_subqueries(text: str) -> None:
    assert " DIV 2" in translated(text, "postgres")


def test_a_division_of_unknown_type_is_refused_with_what_to_write() -> None:
    said = refusal("SELECT some_function(i) / 2 FROM t", "postgres")
    assert "'some_function(i)':" in said and "its type is not known" in said and "CAST(… AS BIGINT)" in said
    assert "DIV" in translated("SELECT CAST(some_function(i) AS TEXT)::BIGINT / 2 FROM t", "postgres")


def test_types_of_spark_are_read() -> None:
    kinds = spark_kinds({"A": "decimal(15,2)", "b": "array<struct<x:int>>", "c": "timestamp", "d": "void"})
    assert (kinds["a"].precision, kinds["a"].scale) == (15, 2)
    assert kinds["b"].item is not None and kinds["b"].item.fields[0][0] == "x"
    assert kinds["c"].name == "instant" and kinds["d"].name in ("null", "unknown")
    assert kind_of_type.__doc__


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_names_that_are_not_quoted_are_folded_as_postgres_does() -> None:
    assert translated('SELECT I AS Total, i AS "Kept" FROM T', "postgres") == "SELECT i AS total, i AS `Kept` FROM t"
    assert translated("SELECT i AS Total FROM t") == "SELECT i AS Total FROM t"


def test_qualify_is_applied_before_limit() -> None:
    found = translated("SELECT i FROM t QUALIFY row_number() OVER (PARTITION BY i ORDER BY b) = 1 ORDER BY b LIMIT 2")
    inner = found[found.index("(") : found.index(") AS ematix_filtered ")]
    assert "LIMIT" not in inner and found.endswith("LIMIT 2") and "QUALIFY" not in found


def test_a_join_that_spark_would_take_for_a_plain_one_is_refused() -> None:
    assert "has no counterpart" in refusal("SELECT t.i FROM t POSITIONAL JOIN t AS u")


@pytest.mark.parametrize(
    "text",
    [
        "regexp_matches(s, b::VARCHAR)",
        "regexp_matches(s, '\\C')",
        "CAST(f AS VARCHAR)",
        "concat(f, s)",
        "date_sub('month', dt, dt)",
        "age(ts, ts)",
        "list_sort(l)",
        "trunc(d, 1)",
        "array_agg(DISTINCT i ORDER BY i)",
        "date_diff('millennium', dt, dt)",
        "strftime(ts, '%W')",
        "strftime(ts, s)",
        "strftime(tz, '%Y')",
        "chr(i)",
        "ts AT TIME ZONE 'Europe/Berlin'",
        "array_slice(l, 1, 2)",
        "kurtosis(i)",
        "s -> '$.a'",
    ],
)
def test_what_would_come_out_differently_is_refused(text: str) -> None:
    refusal(f"SELECT {text} FROM t")


@pytest.mark.parametrize(
    "text", ["to_char(ts, 'Month')", "to_char(i, '999')", "to_char(ts, 'Q')", "s ~ 'a|ab'", "f::text"]
)
def test_what_would_come_out_differently_from_postgres_is_refused(text: str) -> None:
    refusal(f"SELECT {text} FROM t", "postgres")


def test_patterns_of_re2_are_said_in_javas_words() -> None:
    assert java_of_re2(r"[a&&b]") == r"[a\&\&b]"
    assert java_of_re2(r"[^]a]") is not None
    assert java_of_re2(r"a(?s)b") is None
    assert java_replacement(r"\0x", postgres=False, shift=1) is None
    assert java_replacement(r"\15", postgres=False, shift=0) is None


# ── dialects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now()", "CURRENT_TIMESTAMP()"),
        ("strpos(s, 'a')", "LOCATE('a', s)"),
        ("make_array(1, 2)", "ARRAY(1, 2)"),
        ("arrow_cast(i, 'Int64')", "CAST(i AS BIGINT)"),
        ("arrow_cast(d, 'Decimal128(10, 2)')", "CAST(d AS DECIMAL(10, 2))"),
        ("to_timestamp_micros(b)", "TIMESTAMP_MICROS(b)"),
        ("to_timestamp_millis(b)", "TIMESTAMP_MILLIS(b)"),
        ("to_timestamp_seconds(b)", "TIMESTAMP_SECONDS(b)"),
        ("to_timestamp_millis(s)", "CAST(s AS TIMESTAMP)"),
        ("to_timestamp_nanos(b)", "TIMESTAMP_MICROS((b DIV 1000))"),
        ("to_timestamp(s)", "CAST(s AS TIMESTAMP)"),
        ("to_date(s)", "CAST(s AS DATE)"),
        ("from_unixtime(b)", "TIMESTAMP_SECONDS(b)"),
        ("encode(s, 'hex')", "LOWER(HEX(CAST(s AS BINARY)))"),
        ("approx_distinct(s)", "APPROX_COUNT_DISTINCT(s)"),
        ("named_struct('a', i)", "NAMED_STRUCT('a', i)"),
        ("i::bigint", "CAST(i AS BIGINT)"),
        ('"s"', "`s`"),
        ("i / 2", "(i DIV 2)"),
    ],
)
def test_functions_of_datafusion_are_known(text: str, expected: str) -> None:
    assert expression(text, "datafusion") == expected


def test_datafusion_takes_spark_sql_too() -> None:
    assert folder_query("SELECT `a b` FROM raw.events", "datafusion").written.dialect == "spark"
    found = folder_query("SELECT a FROM raw.events LATERAL VIEW explode(xs) t AS x", "datafusion")
    assert sorted(map(str, found.views.values())) == ["raw.events"]
    with pytest.raises(InvalidSource, match="datafusion"):
        folder_query("SELECT (a FROM raw.events", "datafusion")


def test_folders_are_found_in_every_dialect() -> None:
    for dialect in ("duckdb", "postgres"):
        found = folder_query('SELECT o.id FROM sales.orders AS o JOIN "raw/people" AS p ON p.id = o.id', dialect)  # type: ignore[arg-type]
        assert sorted(map(str, found.views.values())) == ["raw/people", "sales.orders"]


def test_unproven_dialects_are_translated_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert (
            translated("SELECT IFF(i > 1, 'a', 'b') AS x FROM t", "snowflake")
            == "SELECT IF(i > 1, 'a', 'b') AS x FROM t"
        )
    assert "snowflake" in caplog.text


def test_spark_sql_is_left_as_it_is() -> None:
    assert spark_expression("a DIV b", "spark", {}, "derive") == "a DIV b"
    assert translated("SELECT a / b FROM t", "spark") == "SELECT a / b FROM t"


def test_names_of_dialects_are_checked() -> None:
    assert checked_dialect("PostgreSQL") == "postgres"
    with pytest.raises(InvalidDeclaration, match="did you mean 'duckdb'"):
        checked_dialect("duckd")
    with pytest.raises(InvalidDeclaration, match="'spark', 'duckdb'"):
        checked_dialect(None)


class Complaint(Exception):
    """What an engine says about SQL: Spark with a name and parameters, the native engine with a sentence alone."""

    def __init__(self, sentence: str = "", condition: str | None = None, **parameters: str) -> None:
        super().__init__(sentence)
        self.condition, self.parameters = condition, parameters

    def getCondition(self) -> str | None:
        return self.condition

    def getMessageParameters(self) -> dict[str, str]:
        return self.parameters


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            Complaint("", "UNRESOLVED_COLUMN.WITH_SUGGESTION", objectName="`vv`", proposal="`v`"),
            "line 2, column 7: 'vv': there is no column 'vv'.",
        ),
        (
            Complaint('attribute ObjectName([Identifier("t"), Identifier("vv")]) is missing from the schema: cannot'),
            "line 2, column 7: 'vv': there is no column 'vv'.",
        ),
        (
            Complaint("", "UNRESOLVED_ROUTINE", routineName="`uper`"),
            "line 2, column 2: 'uper': Spark has no function 'uper'.",
        ),
        (Complaint("unknown function: UPER"), "line 2, column 2: 'uper': the native engine has no function 'uper'."),
        (Complaint("Cannot coerce it to valid types"), ": it cannot be run: Cannot coerce it to valid types"),
    ],
)
def test_what_an_engine_says_about_spark_sql_points_into_the_text(said: Complaint, told: str) -> None:
    message = complaint(said, UserSql("SELECT id,\n uper(vv) FROM t", "spark")).message
    assert message.splitlines()[0].endswith(told)
