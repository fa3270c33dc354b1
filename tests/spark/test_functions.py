"""Functions and aggregates of one's own in SQL that Spark runs, held against plain Python."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql import DataFrame, SparkSession

from ematix_flow import udaf, udf
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.errors import FlowError, InvalidPlan, InvalidSource, UdfFailed
from ematix_flow.spark.batch import explained
from ematix_flow.spark.functions import SqlFunctions
from ematix_flow.spark.stream_sql import StreamSql

BIG = 2**60 + 1
_OFFSET = 7


def _helper(values: pa.Array) -> pa.Array:
    """A function of this module that a worker could not import."""
    return pc.add(values, _OFFSET)


@udf(args=("Int64",), returns="Int64")
def same(value: pa.Array) -> pa.Array:
    return value


@udf(args=("Int64",), returns="Int64", name="seven_more")
def with_helper(value: pa.Array) -> pa.Array:
    return _helper(value)


@udf(args=("Float64", "Float64"), returns="Float64")
def hypot(a: pa.Array, b: pa.Array) -> pa.Array:
    return pc.sqrt(pc.add(pc.multiply(a, a), pc.multiply(b, b)))


@udf(args=("Utf8",), returns="Utf8", name="upper")
def upper_of_ours(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("ours:", text, "")


@udf(args=("Int64",), returns="Int64")
def failing(value: pa.Array) -> pa.Array:
    raise ValueError("secret 4711")


@udaf(args=("Float64", "Float64"), state=("Float64", "Float64"), returns="Float64", name="vwap")
class Vwap:
    """The aggregate of the documentation."""

    def __init__(self) -> None:
        self.num = 0.0
        self.den = 0.0

    def update_batch(self, prices: pa.Array, qtys: pa.Array) -> None:
        self.num += pc.sum(pc.multiply(prices, qtys)).as_py() or 0.0
        self.den += pc.sum(qtys).as_py() or 0.0

    def merge_batch(self, num_states: pa.Array, den_states: pa.Array) -> None:
        self.num += pc.sum(num_states).as_py() or 0.0
        self.den += pc.sum(den_states).as_py() or 0.0

    def evaluate(self) -> pa.Array:
        return pa.array([None if self.den == 0 else self.num / self.den], type=pa.float64())

    def state(self) -> tuple[pa.Array, pa.Array]:
        return pa.array([self.num], type=pa.float64()), pa.array([self.den], type=pa.float64())


@udaf(args=("Int64",), state=("Int64",), returns="Int64", name="total")
class Total:
    """An exact sum that is NULL without values."""

    def __init__(self) -> None:
        self.value: int | None = None

    def update_batch(self, values: pa.Array) -> None:
        found = pc.sum(values).as_py()
        self.value = found if self.value is None else self.value + (found or 0)

    merge_batch = update_batch

    def evaluate(self) -> pa.Array:
        return pa.array([self.value], pa.int64())

    def state(self) -> tuple[pa.Array]:
        return (pa.array([self.value], pa.int64()),)


def run(
    rows: DataFrame,
    sql: str,
    *,
    dialect: SqlDialect = "datafusion",
    udfs: Sequence[Any] = (),
    udafs: Sequence[Any] = (),
) -> list[tuple[Any, ...]]:
    """The rows of a query over `source`."""
    with explained():
        frame = StreamSql(sql, dialect, functions=SqlFunctions(udfs, udafs))(rows)
        return [tuple(row) for row in frame.collect()]


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    rows = [(1, BIG, 3.0, 4.0, "a"), (2, None, None, math.nan, None), (3, -BIG, 6.0, 8.0, "b"), (4, 0, 0.0, 0.0, "a")]
    return spark.createDataFrame(rows, "id int, n bigint, x double, y double, k string").repartition(3)


# ── functions ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_values_stay_exact_and_null_stays_null(numbers: DataFrame) -> None:
    found = run(
        numbers, "SELECT id, same(n) AS n, seven_more(n) AS m FROM source ORDER BY id", udfs=[same, with_helper]
    )
    assert found == [(1, BIG, BIG + 7), (2, None, None), (3, -BIG, 7 - BIG), (4, 0, 7)]


def test_nan_is_not_null(numbers: DataFrame) -> None:
    sql = "SELECT id, hypot(x, y) AS h, hypot(y, 0) AS y FROM source ORDER BY id"
    first, second, third, _ = run(numbers, sql, udfs=[hypot])
    assert (first[1], third[1], second[1]) == (5.0, 10.0, None)
    assert math.isnan(second[2])


def test_a_function_may_stand_wherever_an_expression_may(numbers: DataFrame) -> None:
    sql = """
        WITH big AS (SELECT id, k, same(seven_more(same(n))) AS m FROM source WHERE same(id) < 4)
        SELECT b.k, sum(same(b.m)) AS total, array_agg(same(b.id)) AS ids
        FROM big b JOIN source s ON same(s.id) = same(b.id)
        WHERE same(n) IS NOT NULL GROUP BY b.k HAVING sum(same(b.m)) < same(1) OR b.k = 'a' ORDER BY same(sum(b.id))
    """
    assert run(numbers, sql, udfs=[same, with_helper]) == [("a", BIG + 7, [1]), ("b", 7 - BIG, [3])]


def test_a_function_of_a_package_may_be_declared_as_it_is(numbers: DataFrame) -> None:
    absolute = udf(args=("Int64",), returns="Int64", name="absolute")(pc.abs)
    assert run(numbers, "SELECT absolute(n) AS n FROM source WHERE id = 3", udfs=[absolute]) == [(BIG,)]


def test_a_function_may_have_the_name_of_a_built_in_one(numbers: DataFrame) -> None:
    sql = "SELECT UPPER(k) AS u, lower('X') AS l FROM source WHERE id = 1"
    assert run(numbers, sql, udfs=[upper_of_ours]) == [("ours:a", "x")]
    assert run(numbers, sql) == [("A", "x")]


def test_integer_division_knows_what_a_function_gives(numbers: DataFrame) -> None:
    assert run(numbers, "SELECT same(id) / 2 AS half FROM source WHERE id = 3", udfs=[same]) == [(1,)]


def test_a_column_that_nobody_named_is_called_like_the_call(numbers: DataFrame) -> None:
    frame = StreamSql("SELECT same(n) FROM source", "spark", functions=SqlFunctions([same]))(numbers)
    assert frame.columns == ["same(n)"]


@pytest.mark.parametrize("type_name", ["UInt8", "UInt16", "UInt32", "UInt64", "Int8", "Int16", "Int32", "Float32"])
def test_every_type_goes_there_and_back(spark: SparkSession, type_name: str) -> None:
    @udf(args=(type_name,), returns=type_name)
    def back(value: pa.Array) -> pa.Array:
        return value

    largest = {"UInt64": 2**64 - 1, "Float32": 0.5}.get(type_name) or 2 ** (
        int(re.sub(r"\D", "", type_name)) - (not type_name.startswith("U"))
    ) - 1
    kinds = {"UInt8": "smallint", "UInt16": "int", "UInt32": "bigint", "UInt64": "decimal(20,0)", "Int8": "tinyint"}
    kind = kinds.get(type_name) or {"Int16": "smallint", "Int32": "int", "Float32": "float"}[type_name]
    rows = spark.sql(f"SELECT CAST({largest} AS {kind}) AS v UNION ALL SELECT NULL")
    found = run(
        rows, "SELECT back(back(v)) AS v FROM source WHERE v IS NOT NULL UNION ALL SELECT back(NULL)", udfs=[back]
    )
    assert [value if value is None else float(value) for (value,) in found] == [float(largest), None]


def test_texts_bytes_and_booleans_go_there_and_back(spark: SparkSession) -> None:
    handles = []
    for name, type_name in (("t", "Utf8"), ("b", "Binary"), ("f", "Boolean")):
        handles.append(udf(args=(type_name,), returns=type_name, name=name)(lambda value: value))
    rows = spark.createDataFrame([("é", b"\x00\xff", True), (None, None, None)], "t string, b binary, f boolean")
    found = run(rows, "SELECT t(t) AS t, b(b) AS b, f(f) AS f FROM source", udfs=handles)
    assert {(t, bytes(b) if b is not None else None, f) for t, b, f in found} == {
        ("é", b"\x00\xff", True),
        (None, None, None),
    }


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT hypot(x) FROM source", r"hypot\(\) takes 2 arguments, not 1"),
        ("SELECT hypot(x, k) FROM source", r"UDF 'hypot' declares Float64 for argument 2 and is given string"),
        ("SELECT same(x) FROM source", r"'same' declares Int64 for argument 1 and is given double"),
        ("SELECT same(IF(rand() > 0.5, n, NULL)) FROM source", r"'same' is given a random value"),
        ("SELECT total(n) OVER (PARTITION BY k) FROM source", r"'total' cannot be used with OVER"),
        ("SELECT total(DISTINCT n) FROM source", r"'total' cannot be used with DISTINCT"),
        ("SELECT id FROM source WHERE total(n) > 1", r"'total' is called where rows are chosen"),
        ("SELECT total(count(*)) FROM source", r"'total' cannot be given an aggregate"),
        ("SELECT k, total(n) FROM source GROUP BY ROLLUP (k)", r"'total' needs a GROUP BY that names its keys"),
        ("SELECT total(k) FROM source", r"UDAF 'total' declares Int64 for argument 1 and is given string"),
    ],
)
def test_what_cannot_work_is_said_before_a_row_moves(numbers: DataFrame, sql: str, said: str) -> None:
    functions = SqlFunctions([same, hypot], [Total])
    with pytest.raises(InvalidPlan, match=said), explained():
        StreamSql(sql, "spark", functions=functions)(numbers)


def test_a_column_that_is_not_there_is_named(numbers: DataFrame) -> None:
    with pytest.raises(InvalidSource, match="no column 'nn'"):
        run(numbers, "SELECT same(nn) FROM source", udfs=[same])


def test_an_error_names_the_function_and_no_value(numbers: DataFrame) -> None:
    with pytest.raises(UdfFailed, match=r"UDF 'failing' raised ValueError") as caught:
        run(numbers, "SELECT failing(n) FROM source", udfs=[failing])
    assert "4711" not in str(caught.value)


# ── aggregates ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_aggregates_stand_beside_those_of_spark(numbers: DataFrame) -> None:
    sql = """
        SELECT k, total(n) AS t, count(*) AS rows, count(n) AS known, sum(x) AS x, total(id) FILTER (WHERE id > 1) AS f,
               same(total(id)) + 1 AS more, max(seven_more(id)) AS highest
        FROM source GROUP BY k HAVING total(id) > 1 ORDER BY k NULLS FIRST
    """
    assert run(numbers, sql, udfs=[same, with_helper], udafs=[Total]) == [
        (None, None, 1, 0, None, 2, 3, 9),
        ("a", BIG, 2, 2, 3.0, 4, 6, 11),
        ("b", -BIG, 1, 1, 6.0, 3, 4, 10),
    ]


def test_all_rows_are_one_group_without_group_by_also_when_there_are_none(numbers: DataFrame) -> None:
    sql = "SELECT total(n) AS t, vwap(x, 2) AS v, count(*) AS c FROM source"
    assert run(numbers, sql, udafs=[Total, Vwap]) == [(0, 2.25, 4)]
    assert run(numbers.where("id > 9"), sql, udafs=[Total, Vwap]) == [(None, None, 0)]


def test_states_alone_are_enough_without_aggregates_of_spark(numbers: DataFrame) -> None:
    sql = "SELECT k AS key, total(id) AS t FROM source GROUP BY key ORDER BY t DESC"
    assert run(numbers, sql, udafs=[Total]) == [("a", 5), ("b", 3), (None, 2)]


def test_the_keys_may_be_expressions_positions_and_functions_of_ours(numbers: DataFrame) -> None:
    sql = "SELECT s.id % 2 AS odd, upper(s.k) AS k, total(s.id) AS t FROM source s GROUP BY 1, upper(s.k) ORDER BY 3"
    found = run(numbers, sql, udfs=[upper_of_ours], udafs=[Total])
    assert found == [(1, "ours:a", 1), (0, None, 2), (1, "ours:b", 3), (0, "ours:a", 4)]


def test_aggregates_work_in_subqueries_ctes_and_joins(numbers: DataFrame) -> None:
    sql = """
        WITH per_key AS (SELECT k, total(id) AS t FROM source GROUP BY k),
             named AS (SELECT k, t, count(*) AS c FROM per_key WHERE k IS NOT NULL GROUP BY k, t)
        SELECT n.k, total(s.id + n.t) AS both, u.most
        FROM source s JOIN named n ON n.k = s.k CROSS JOIN (SELECT total(t) AS most FROM per_key) u
        GROUP BY n.k, u.most ORDER BY n.k
    """
    assert run(numbers, sql, udafs=[Total]) == [("a", 15, 10), ("b", 6, 10)]


@settings(
    max_examples=40 if os.environ.get("EMATIX_PROVE") else 4,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-BIG // 8, BIG // 8), st.booleans()),
        max_size=30,
    ),
    parts=st.integers(1, 5),
)
def test_whatever_the_partitions_the_result_is_that_of_the_model(
    spark: SparkSession, rows: list[tuple[Any, ...]], parts: int
) -> None:
    frame = spark.createDataFrame(rows, "k string, n bigint, f boolean").repartition(parts)
    sql = "SELECT k, f, total(n) AS t, count(*) AS c, min(n) AS low FROM source GROUP BY k, f"
    model: dict[tuple[Any, Any], list[int | None]] = defaultdict(list)
    for key, number, flag in rows:
        model[key, flag].append(number)
    expected = set()
    for (key, flag), values in model.items():
        known = [value for value in values if value is not None]
        expected.add((key, flag, sum(known) if known else None, len(values), min(known, default=None)))
    found = run(frame, sql, udafs=[Total])
    assert set(found) == expected and len(found) == len(expected)


def test_the_function_of_the_documentation_and_its_aggregate(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT timestamp'2026-03-01 06:00:10' AS ts, 10.0D AS price, 2 AS qty UNION ALL "
        "SELECT timestamp'2026-03-01 06:00:50', 13.0D, 1 UNION ALL SELECT timestamp'2026-03-01 06:01:00', 1.0D, 0"
    )
    sql = "SELECT date_trunc('minute', ts) AS minute, vwap(price, qty) AS vwap FROM source GROUP BY 1"
    found = sorted(run(rows, sql, udafs=[Vwap]))
    assert [(minute.minute, value) for minute, value in found] == [(0, 11.0), (1, None)]


def test_refusals_are_errors_of_ours(numbers: DataFrame) -> None:
    with pytest.raises(FlowError):
        run(numbers, "SELECT transform(array(n), v -> same(v)) FROM source", dialect="spark", udfs=[same])
