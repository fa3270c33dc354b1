"""Spark's errors as ours, from a real Spark: the right class, a sentence, and never a value of a row."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ematix_flow import errors
from ematix_flow.errors import FlowError
from ematix_flow.spark.failures import explain

ROW_VALUE = "rowvalue"


def explained(action: Callable[[], object]) -> FlowError:
    """What a failing action is turned into."""
    with pytest.raises(Exception) as caught:
        action()
    found = explain(caught.value)
    assert found is not None
    assert ROW_VALUE not in str(found)
    return found


def test_an_error_of_ours_crosses_from_the_worker_whole(spark: SparkSession) -> None:
    def refuse(batches):
        try:
            raise ValueError(ROW_VALUE)
        except ValueError as exc:
            raise errors.UnfitValue(
                "Column 'x' is\ntoo short.", where="task", tried=["a", "b"], fix="widen it"
            ) from exc
        yield from batches

    found = explained(lambda: spark.range(1).mapInArrow(refuse, "id long").collect())
    assert isinstance(found, errors.UnfitValue)
    assert (found.message, found.where, found.tried, found.fix) == (
        "Column 'x' is\ntoo short.",
        "task",
        ("a", "b"),
        "widen it",
    )


def test_an_error_of_ours_without_further_lines_crosses_too(spark: SparkSession) -> None:
    def refuse(batches):
        raise errors.ConnectionFailed("The server is gone.")
        yield from batches

    found = explained(lambda: spark.range(1).mapInArrow(refuse, "id long").collect())
    assert (type(found), found.message, found.fix) == (errors.ConnectionFailed, "The server is gone.", None)
    assert found.retryable


def test_a_refusal_of_an_expression_names_column_and_type(spark: SparkSession) -> None:
    text = '\'ematix-flow-error: {"error": "UnfitValue", "column": "a}b", "type": "String(3)"}\''
    found = explained(lambda: spark.sql(f"SELECT raise_error({text})").collect())
    assert isinstance(found, errors.UnfitValue)
    assert found.message == "A value of column 'a}b' does not fit its type: String(3)."


def test_a_refusal_with_a_message_of_its_own_keeps_it(spark: SparkSession) -> None:
    text = '\'ematix-flow-error: {"error": "DuplicateKeys", "message": "Twice.", "fix": "once"}\''
    found = explained(lambda: spark.sql(f"SELECT raise_error({text})").collect())
    assert (type(found), found.message, found.fix) == (errors.DuplicateKeys, "Twice.", "once")


def test_the_users_own_exception_is_named_with_its_place_only(spark: SparkSession) -> None:
    def broken(batches):
        for _ in batches:
            int("rowvalue")
        yield from batches

    found = explained(lambda: spark.range(1).mapInArrow(broken, "id long").collect())
    assert isinstance(found, errors.StepFailed)
    assert found.message == "Python code running on Spark raised ValueError."
    assert "test_failures.py" in str(found.where)


UNFIT = {
    "SELECT CAST(t.x AS INT) FROM VALUES ('rowvalue') t(x)": (
        "A value of column 'x' of type STRING cannot be read as INT."
    ),
    "SELECT CAST(x AS TINYINT) FROM VALUES (3000) t(x)": "A value of type INT is too large for TINYINT.",
    "SELECT CAST(`a b` AS DECIMAL(3,1)) FROM VALUES ('300.1') t(`a b`)": (
        "A value of column 'a b' does not fit Decimal(3, 1)."
    ),
    "SELECT to_timestamp(x, 'yyyy') FROM VALUES ('rowvalue') t(x)": "A value cannot be parsed as timestamp.",
}


@pytest.mark.parametrize(("sql", "message"), UNFIT.items())
def test_a_value_that_does_not_fit_is_told_without_the_value(spark: SparkSession, sql: str, message: str) -> None:
    found = explained(lambda: spark.sql(sql).collect())
    assert (type(found), found.message) == (errors.UnfitValue, message)


UNWORKABLE = {
    "parse_url(x, 'HOST')": "is no URL",
    "url_decode(x)": "is no encoded URL",
    "from_utc_timestamp(timestamp'2026-01-01', x)": "names no time zone",
    "make_date(2026, n, 1)": "is no part of a date or time",
    "next_day(date'2026-01-01', x)": "names no day of the week",
    "cast(x AS interval day)": "is no interval",
    "to_number(x, '99')": "does not match its format",
    "array(1)[n]": "points outside of its array",
    "map(nullif(n, n), 1)": "is NULL and the key of a map",
    "timestamp_seconds(n * 9000000000000000)": "is out of range",
    "sequence(n, 1, 1)": "bounds no sequence",
    "unbase64(substr(x, 2, 5))": "is no base64",
}


def test_what_a_function_has_against_a_value_is_told_without_it_and_is_a_row_s_fault(spark: SparkSession) -> None:
    for call, words in UNWORKABLE.items():
        found = explained(
            lambda call=call: spark.sql(f"SELECT {call} FROM VALUES ('(rowvalue%zz', 13L) t(x, n)").collect()
        )
        assert (type(found), found.message) == (
            errors.UnfitValue,
            f"A value that a function of the SQL was given {words}.",
        ), call


def test_a_constant_that_cannot_be_read_is_no_row_s_fault(spark: SparkSession) -> None:
    found = explained(lambda: spark.sql("SELECT interval '1 hours x' FROM VALUES (1) t(n)").collect())
    assert not isinstance(found, errors.UnfitValue)


def test_a_value_that_does_not_fit_while_writing_is_told_the_same(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(ROW_VALUE,)], "t string").selectExpr("CAST(t AS INT) AS n")
    found = explained(lambda: rows.write.parquet(str(tmp_path / "out")))
    assert (type(found), found.message) == (
        errors.UnfitValue,
        "A value of column 't' of type STRING cannot be read as INT.",
    )


def test_a_missing_path_is_named(spark: SparkSession) -> None:
    found = explained(lambda: spark.read.parquet("/no/such/folder"))
    assert isinstance(found, errors.InvalidSource)
    assert "/no/such/folder" in found.message


def test_a_missing_column_is_named_with_what_there_is(spark: SparkSession) -> None:
    found = explained(lambda: spark.range(1).select("ID2"))
    assert (type(found), found.message) == (errors.MissingSourceColumn, "There is no column 'ID2'.")
    assert found.fix == "did you mean one of 'id'?"


def test_a_missing_table_is_named(spark: SparkSession) -> None:
    found = explained(lambda: spark.table("nowhere"))
    assert (type(found), found.message) == (errors.InvalidSource, "Spark knows no table or view nowhere.")


def test_wrong_sql_is_told_by_place(spark: SparkSession) -> None:
    found = explained(lambda: spark.sql("SELECT 1\nFORM x, rowvalue"))
    assert isinstance(found, errors.InvalidPlan)
    assert str(found.where).startswith("line 2")


BARE_SESSION = """
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.spark.failures import explain
from ematix_flow.spark.session import open_session
spark = open_session(SessionNeeds(), SparkSettings(master="local[1]", short_job=True))
for source in ("kafka", "avro", "com.nobody.Source"):
    try:
        spark.read.format(source).load("/x")
    except Exception as exc:
        found = explain(exc)
        print(type(found).__name__, found.message, found.fix, sep="|")
"""


def test_a_missing_connector_is_told_with_the_command_that_fetches_it() -> None:
    # In a process of its own: the session of this one may have been given connectors by other tests.
    done = subprocess.run([sys.executable, "-c", BARE_SESSION], capture_output=True, text=True, timeout=300, check=True)
    found = [line.split("|") for line in done.stdout.splitlines()]
    assert [kind for kind, _, _ in found] == ["MissingJar"] * 3
    for (_, message, fix), source, wanted in zip(
        found,
        ("kafka", "avro", "com.nobody.Source"),
        ("run `flow jars fetch kafka`", "run `flow jars fetch avro`", "spark.jars"),
        strict=True,
    ):
        assert f"'{source}'" in message
        assert wanted in fix


def test_a_missing_driver_class_is_told_without_the_url(spark: SparkSession) -> None:
    url = "jdbc:mysql://u:pw@h/x?password=rowvalue"
    reader = spark.read.format("jdbc").options(url=url, dbtable="x", driver="com.mysql.cj.jdbc.Driver")
    found = explained(reader.load)
    assert isinstance(found, errors.MissingJar)
    assert found.tried == ("com.mysql:mysql-connector-j:9.7.0",)


def test_running_out_of_memory_says_what_to_give_more_of(spark: SparkSession) -> None:
    found = explained(lambda: spark._jvm.java.util.ArrayList(2_000_000_000))  # type: ignore[union-attr]
    assert isinstance(found, errors.EngineFailed)
    assert "driver_memory" in str(found.fix)


def test_a_refusal_in_the_users_sql_is_told_without_its_text(spark: SparkSession) -> None:
    found = explained(lambda: spark.sql("SELECT raise_error('bad: rowvalue')").collect())
    assert isinstance(found, errors.StepFailed)


def test_anything_else_gives_the_first_sentence_without_quoted_text(spark: SparkSession) -> None:
    found = explained(lambda: spark.sql("SELECT 1 / x FROM VALUES (0) t(x)").collect())
    assert (type(found), found.message) == (errors.EngineFailed, "Spark failed: Division by zero.")
    found = explained(lambda: spark.sql("SELECT to_number('rowvalue', '99')").collect())
    assert isinstance(found, errors.FlowError)


def test_what_is_not_from_spark_is_left_alone() -> None:
    assert explain(ValueError("x")) is None
    own = errors.EmptySource("Empty.")
    assert explain(own) is own
