"""A value fits its declared type in Spark exactly when it fits in SQLite, and is stored as the same thing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions as F, types as t

from ematix_flow.declare import columns as c
from ematix_flow.declare.fitting import fit
from ematix_flow.declare.values import Unfit
from ematix_flow.errors import InvalidPlan, RouteImpossible
from ematix_flow.spark import native
from ematix_flow.spark.expressions import fit_column
from ematix_flow.spark.fitting import failing, fitted_or_null, or_required
from ematix_flow.spark.types import from_spark_type, to_spark_type
from tests.spark.nasty_values import NASTY
from tests.spark.routes import comparable, stored

TEXTS: list[Any] = [value for value in NASTY if value is None or len(value) < 3000] + [
    "+5", " +5 ", "\x1f7\x7f", "\u00a07", "32767", "32768", "-32769", "2147483647", "2147483648", "t", "F", " yes ",
    "NO", "2", "1e2", "1E-2", "-1.5e+3", "+.5", "5.", "1.5d", "1.5F", "0x1p3", "inf", "-Infinity", "+INF", "nan",
    "1e400", "1e39",
    "3.4e38", "2026-1-2", "2026-01", "2026-01-02T", "2026-01-02 x", " 2026-01-02 ", "2026-01-02T3:4:5", "2026-1-2 3:4",
    "2026-01-02 03:04:05.1", "2026-01-02 03:04:05.1234567", "2026-01-02T03:04:05+2", "2026-01-02T03:04:05 +02:00",
    "0b3d6a52-71c5-4c3b-9d1e-6f0f3ac4e1b2", "0B3D6A5271C54C3B9D1E6F0F3AC4E1B2", "0b3d6a52-71c5-4c3b-9d1e", "1" * 40,
]  # fmt: skip
NATIVE_REFUSES = {
    "\x1f7\x7f", "\u0661\u0662", "\uff11\uff12", "1.5d", "1.5F", "0x1p3", '"\\ud800"', "[" * 300 + "]" * 300,
    "1" * 6000,
}  # fmt: skip
"""Texts that are a number or a document to Spark and an unfit value to the native engine: one clear error."""

TYPES = [
    c.SmallInt(), c.Integer(), c.BigInt(), c.Numeric(5, 2), c.Numeric(38, 10), c.Boolean(), c.Date(), c.UUID(),
    c.Text(), c.String(3), c.Bytes(), c.Double(), c.Float(), c.Timestamp(), c.TimestampTZ(),
]  # fmt: skip


DOCUMENTS: list[Any] = [
    '{"a":1}', ' {"a": [1, null, {"b": "ü"}]} ', "1e400", '"x"', "null", "true", '{"a":1,"a":2}', "-0", "1E5", "[]",
    '"\\ud800"', '"\\u0000"', '"\x7f"', "\n1\t\r ", '"' + "x" * 9000 + '"', "[" * 300 + "]" * 300, "1" * 6000,
    "0." + "1" * 6000,
    '{"a": 1', '{"a": 1} x', '{"a":1}}', "{'a': 1}", "{a: 1}", '{"a" 1}', '{"a":}', "{1:2}", "{,}", "NaN", "[NaN]",
    "Infinity", "-Infinity", "-INF", "[1,]", "[,1]", "[1 2]", "", "   ", "01", "+1", ".5", "1.", "--1", "1,2", "1, 2",
    '"a\tb"', "1] [2", "1], [2", "1]", "]", "/*c*/1", "1 //x", "nul", "True", "undefined", '"\\x"', '"abc', '"a" "b"',
    "\ufeff1", "\u00a01", "\x0b1", "1\x00", '1,"x"] [', "[" * 1500 + "]" * 1500,
]  # fmt: skip
"""Texts that are JSON, then texts that are not."""


def model(value: Any, kind: c.ColumnType, source: c.ColumnType) -> Any:
    """What SQLite stores, None when it refuses."""
    first, second, *_ = [*(a for a in kind.to_dict().values() if isinstance(a, int)), None, None]
    try:
        return fit(value, kind.kind, first, second, source.kind)
    except Unfit:
        return None


def differing(values: list[Any], found: list[Any], expected: list[Any]) -> list[tuple[Any, Any, Any]]:
    """Where two results differ. The native engine may refuse a few spellings that Spark takes, and nothing else."""
    wrong = [(v, f, e) for v, f, e in zip(values, found, expected, strict=True) if f != e]
    if native.is_running():
        wrong = [(v, f, e) for v, f, e in wrong if f is not None or v not in NATIVE_REFUSES]
    return wrong


def through_spark(spark: SparkSession, values: list[Any], given: t.DataType, to: c.ColumnType) -> list[Any]:
    frame = spark.createDataFrame(list(enumerate(values)), t.StructType().add("i", t.IntegerType()).add("v", given))
    fitted = frame.select("i", fitted_or_null(F.col("v"), given, to, "v").alias("v"))
    rows = sorted(fitted.select("i", stored(F.col("v"), fitted.schema["v"].dataType)).collect())
    return [comparable(bytes(row[1]) if isinstance(row[1], bytearray) else row[1]) for row in rows]


@pytest.mark.parametrize("to", TYPES, ids=str)
def test_text_fits_alike(spark: SparkSession, to: c.ColumnType) -> None:
    found = through_spark(spark, TEXTS, t.StringType(), to)
    expected = [model(value, to, c.Text()) for value in TEXTS]
    if isinstance(to, c.Numeric):
        found = [None if value is None else format(value, "f") for value in found]
    if isinstance(to, c.Double | c.Float):
        found = [None if value == "NaN" else value for value in found]  # SQLite has no NaN
    if isinstance(to, c.Date | c.Timestamp | c.TimestampTZ):
        # Years that four digits cannot hold are for the target to refuse.
        found = [
            None if value is not None and not "0001" <= value[:5].rstrip("-") <= "9999" else value for value in found
        ]
    assert not (wrong := differing(TEXTS, found, expected)), f"(text, Spark, SQLite) = {wrong[:6]}"


@pytest.mark.parametrize("to", [c.JSON(), c.JSONB()], ids=str)
def test_a_text_is_json_in_spark_exactly_when_it_is_in_sqlite(spark: SparkSession, to: c.ColumnType) -> None:
    texts = [*TEXTS, *DOCUMENTS, *_damaged(DOCUMENTS[1], seed=4)]
    found = through_spark(spark, texts, t.StringType(), to)
    expected = [model(value, to, c.Text()) for value in texts]
    assert not (wrong := differing(texts, found, expected)), f"(text, Spark, SQLite) = {wrong[:6]}"
    kept = [text for text in DOCUMENTS if text in found or (native.is_running() and text in NATIVE_REFUSES)]
    assert kept == DOCUMENTS[:18]


def _damaged(document: str, seed: int) -> list[str]:
    """A document with a character taken out, put in or changed, in many ways."""
    chance = random.Random(seed)
    damaged = []
    for _ in range(400):
        place, new = (
            chance.randrange(len(document)),
            chance.choice(['"', "[", "]", "{", "}", ",", ":", " ", "0", "\\", ""]),
        )
        damaged.append(document[:place] + new + document[place + chance.randrange(2) :])
    return damaged


@pytest.mark.parametrize(
    "to", [c.SmallInt(), c.BigInt(), c.Numeric(5, 2), c.Boolean(), c.Text(), c.String(2), c.Double()], ids=str
)
def test_whole_numbers_fit_alike(spark: SparkSession, to: c.ColumnType) -> None:
    values = [None, 0, 1, 2, -1, 12, 999, 1000, 32767, 32768, -32768, -32769, 2**62, -(2**63), 2**63 - 1]
    found = through_spark(spark, values, t.LongType(), to)
    if isinstance(to, c.Numeric):
        found = [None if value is None else format(value, "f") for value in found]
    assert found == [model(value, to, c.BigInt()) for value in values]


@pytest.mark.parametrize("to", [c.SmallInt(), c.Integer(), c.BigInt(), c.Numeric(5, 2), c.Float(), c.Text()], ids=str)
def test_doubles_fit_alike(spark: SparkSession, to: c.ColumnType) -> None:
    whole = [0.0, -0.0, 1.0, -1.0, 32767.0, 32768.0, 2.0**31, 2.0**31 - 1, 2.0**63, -(2.0**63), 1e300]
    broken = [1.5, 1.005, 999.994, 999.995, 0.1, 3.5e38, 1e-50, float("inf"), float("-inf"), float("nan")]
    values = [None, *whole, *broken]
    if native.is_running() and isinstance(to, c.Text):
        with pytest.raises(RouteImpossible, match="spells such numbers in another way"):
            through_spark(spark, values, t.DoubleType(), to)
        return
    if not isinstance(to, c.Text):
        values.append(2.0**62)  # Java 17 and Java 21 write this one differently
    found = through_spark(spark, values, t.DoubleType(), to)
    if isinstance(to, c.Numeric):
        found = [None if value is None else format(value, "f") for value in found]
    if isinstance(to, c.Float):
        found = [None if value == "NaN" else value for value in found]
    assert found == [model(value, to, c.Double()) for value in values]


def test_decimals_fit_alike(spark: SparkSession) -> None:
    from decimal import Decimal

    values = [None, *map(Decimal, ("0.0000", "1.0000", "1.5000", "-1.0050", "999.9949", "999.9950", "32768.0000"))]
    texts = [None if value is None else format(value, "f") for value in values]
    for to in (c.SmallInt(), c.BigInt(), c.Numeric(5, 2), c.Text(), c.Double()):
        found = through_spark(spark, values, t.DecimalType(12, 4), to)
        shown = [format(value, "f") if isinstance(value, Decimal) else value for value in found]
        assert shown == [model(text, to, c.Numeric(12, 4)) for text in texts], to


@pytest.mark.parametrize(
    ("value", "given", "to"),
    [
        ("x", t.StringType(), c.Integer()),
        ("abcd", t.StringType(), c.String(3)),
        (40000, t.LongType(), c.SmallInt()),
        (1.5, t.DoubleType(), c.BigInt()),
        ("2026-02-30", t.StringType(), c.Date()),
        (2, t.LongType(), c.Boolean()),
    ],
)
def test_an_unfit_value_fails_and_names_the_column_but_not_the_value(
    spark: SparkSession, value: Any, given: t.DataType, to: c.ColumnType
) -> None:
    frame = spark.createDataFrame([(value,)], t.StructType().add("v", given))
    with pytest.raises(PySparkException) as caught:
        frame.select(fit_column(F.col("v"), given, to, "amount")).collect()
    text = str(caught.value)
    start = text.index("ematix-flow-error: ") + len("ematix-flow-error: ")
    facts, _ = json.JSONDecoder().raw_decode(text[start:])
    assert facts == {"error": "UnfitValue", "column": "amount", "type": str(to)}


def test_null_fits_every_type(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(None,)], "v string")
    assert frame.select(*(fit_column(F.col("v"), t.StringType(), to, "v") for to in TYPES)).first() == (None,) * len(
        TYPES
    )


@pytest.mark.parametrize("to", TYPES, ids=str)
def test_a_value_that_must_be_there_passes_and_null_fails(spark: SparkSession, to: c.ColumnType) -> None:
    kind = to_spark_type(to)
    given = spark.createDataFrame([(1, "1"), (2, None)], "n int, v string")
    value = F.col("v").cast("int").cast("boolean") if isinstance(to, c.Boolean) else F.col("v").try_cast(kind)
    if isinstance(to, (c.Date, c.Timestamp, c.TimestampTZ)):
        value = F.when(F.col("v").isNotNull(), F.lit("2026-03-01").cast(kind))
    needed = given.select("n", or_required(value, to, failing("amount", "NOT NULL")).alias("v"))
    assert needed.where("n = 1").collect()[0]["v"] is not None
    assert needed.schema["v"].dataType == kind
    with pytest.raises(PySparkException, match="NOT NULL"):
        needed.collect()


@pytest.mark.parametrize(
    ("given", "to", "shown"),
    [
        (t.DateType(), c.BigInt(), "Date in the source and cannot become BigInt"),
        (t.IntegerType(), c.Bytes(), "Integer in the source and cannot become Bytes"),
        (t.BinaryType(), c.Boolean(), "Bytes in the source and cannot become Boolean"),
    ],
)
def test_a_pair_of_types_without_a_meaning_is_refused_before_anything_runs(
    spark: SparkSession, given: t.DataType, to: c.ColumnType, shown: str
) -> None:
    with pytest.raises(InvalidPlan, match=f"'v' is {shown}"):
        fit_column(F.col("v"), given, to, "v")


def test_types_travel_to_spark_and_back() -> None:
    for kind in (*TYPES, c.JSON()):
        expected = c.Text() if to_spark_type(kind) == t.StringType() else kind
        assert from_spark_type(to_spark_type(kind)) == expected
    with pytest.raises(InvalidPlan, match="more digits than Spark"):
        to_spark_type(c.Numeric(39, 2))


def test_nested_values_become_json(spark: SparkSession) -> None:
    frame = spark.sql("SELECT named_struct('a', 1, 'b', array('x')) AS v")
    given = frame.schema["v"].dataType
    assert frame.select(fit_column(F.col("v"), given, c.JSON(), "v")).first() == ('{"a":1,"b":["x"]}',)
