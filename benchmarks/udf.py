"""What a function in Python costs in SQL: `@udf` over Arrow arrays beside Spark's own `udf`, called row by row.

    python benchmarks/udf.py                    2 million rows, three rounds of each
    python benchmarks/udf.py --rows 10000000

Four functions: `same` gives back what it gets, so the way there and back is measured, the floor of both forms; `score`
hardly does more; `delta`, an option's, calls Python's `erf` for every row in either form; `volatility` searches in
twenty steps. Both forms work out the same numbers over rows that Spark has in memory, some of them with gaps, and the
sums of the results are compared. The first round of each is left out. Beside the time it took stands that of the
processor, for Java and Python together, which does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf as spark_udf

from ematix_flow import udf
from ematix_flow.spark.functions import SqlFunctions
from ematix_flow.spark.stream_sql import StreamSql
from ematix_flow.testing.spark import local_spark


@udf(args=("Float64",), returns="Float64")
def same(price: pa.Array) -> pa.Array:
    """Nothing."""
    return price


def same_of_one(price: float | None) -> float | None:
    """The same for one row."""
    return price


@udf(args=("Float64", "Int64"), returns="Float64")
def score(price: pa.Array, quantity: pa.Array) -> pa.Array:
    """Price times quantity."""
    return pc.multiply(price, quantity)


def score_of_one(price: float | None, quantity: int | None) -> float | None:
    """The same for one row."""
    return None if price is None or quantity is None else price * quantity


@udf(args=("Float64",) * 5, returns="Float64")
def delta(strike: pa.Array, spot: pa.Array, vol: pa.Array, rate: pa.Array, expiry: pa.Array) -> pa.Array:
    """The documented function: how a call's price follows that of what it is written on."""
    k, s, v, r, t = (column.to_numpy(zero_copy_only=False) for column in (strike, spot, vol, rate, expiry))
    d1 = (np.log(s / k) + (r + 0.5 * v * v) * t) / (v * np.sqrt(t))
    cdf = 0.5 * (1.0 + np.vectorize(math.erf)(d1 / np.sqrt(2)))
    return pa.array(cdf, type=pa.float64())


def delta_of_one(strike: float, spot: float, vol: float, rate: float, expiry: float) -> float:
    """The same for one row."""
    d1 = (math.log(spot / strike) + (rate + 0.5 * vol * vol) * expiry) / (vol * math.sqrt(expiry))
    return 0.5 * (1.0 + math.erf(d1 / math.sqrt(2)))


@udf(args=("Float64",) * 5, returns="Float64")
def volatility(strike: pa.Array, spot: pa.Array, price: pa.Array, rate: pa.Array, expiry: pa.Array) -> pa.Array:
    """At which volatility a call costs its price."""
    k, s, p, r, t = (column.to_numpy(zero_copy_only=False) for column in (strike, spot, price, rate, expiry))
    low, high = np.full(len(k), 0.01), np.full(len(k), 2.0)
    for _ in range(20):
        v = (low + high) / 2
        d1 = (np.log(s / k) + (r + 0.5 * v * v) * t) / (v * np.sqrt(t))
        d2 = d1 - v * np.sqrt(t)
        is_low = s * _normal(d1) - k * np.exp(-r * t) * _normal(d2) < p
        low, high = np.where(is_low, v, low), np.where(is_low, high, v)
    return pa.array((low + high) / 2, type=pa.float64())


def _normal(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def volatility_of_one(strike: float, spot: float, price: float, rate: float, expiry: float) -> float:
    """The same for one row."""
    low, high = 0.01, 2.0
    for _ in range(20):
        v = (low + high) / 2
        d1 = (math.log(spot / strike) + (rate + 0.5 * v * v) * expiry) / (v * math.sqrt(expiry))
        d2 = d1 - v * math.sqrt(expiry)
        one = 0.5 * (1.0 + math.tanh(0.7978845608 * (d1 + 0.044715 * d1 * d1 * d1)))
        two = 0.5 * (1.0 + math.tanh(0.7978845608 * (d2 + 0.044715 * d2 * d2 * d2)))
        if spot * one - strike * math.exp(-rate * expiry) * two < price:
            low = v
        else:
            high = v
    return (low + high) / 2


@dataclass(frozen=True)
class Took:
    """How long it took, and how much of the processor, in seconds."""

    total: float
    wall: float
    cpu: float


def timed(sums: Callable[[], float], rounds: int) -> Took:
    """The result, and the best of some rounds after one that is not counted."""
    sums()
    found = []
    for _ in range(rounds):
        began, spent = time.perf_counter(), cpu_seconds()
        total = sums()
        found.append(Took(total, time.perf_counter() - began, cpu_seconds() - spent))
    return Took(found[-1].total, min(one.wall for one in found), min(one.cpu for one in found))


def cpu_seconds() -> float:
    """What this process and all that it started have had of the processor."""
    parents: dict[int, tuple[int, float]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(place.parent.name)] = int(words[1]), (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    total, pending = 0.0, [os.getpid()]
    while pending:
        one = pending.pop()
        total += parents[one][1]
        pending += [child for child, (parent, _) in parents.items() if parent == one]
    return total


def rows_of(spark: SparkSession, number: int) -> DataFrame:
    """Rows in memory; every seventh quantity is missing."""
    made = spark.range(number).selectExpr(
        "CAST(id % 1000 AS DOUBLE) / 8 AS price",
        "IF(id % 7 = 0, NULL, id % 50) AS quantity",
        "CAST(4000 + id % 1000 AS DOUBLE) AS strike",
        "4500.0D AS spot",
        "0.1D + CAST(id % 10 AS DOUBLE) / 100 AS vol",
        "0.01D AS rate",
        "0.5D AS expiry",
        "560.0D + CAST(id % 40 AS DOUBLE) AS worth",
    )
    made = made.cache()
    made.count()
    return made


def main() -> None:
    """Measure both forms of each function and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    spark = local_spark()
    rows = rows_of(spark, given.rows)
    for handle, one, columns in (
        (same, same_of_one, ("price",)),
        (score, score_of_one, ("price", "quantity")),
        (delta, delta_of_one, ("strike", "spot", "vol", "rate", "expiry")),
        (volatility, volatility_of_one, ("strike", "spot", "worth", "rate", "expiry")),
    ):
        text = f"SELECT sum({handle.name}({', '.join(columns)})) AS total FROM source"
        sql = StreamSql(text, "spark", functions=SqlFunctions([handle]))
        row_by_row = spark_udf(one, "double")(*columns).alias("one")

        def in_arrow(sql: StreamSql = sql) -> float:
            return float(sql(rows).collect()[0][0])

        def by_row(row_by_row: object = row_by_row) -> float:
            return float(rows.select(row_by_row).selectExpr("sum(one)").collect()[0][0])  # type: ignore[call-overload]

        ours, theirs = timed(in_arrow, given.rounds), timed(by_row, given.rounds)
        assert abs(ours.total - theirs.total) <= 1e-9 * abs(theirs.total), (ours, theirs)
        for name, took in (("@udf, Arrow arrays", ours), ("udf, row by row", theirs)):
            print(f"{handle.name:11} {name:20} {took.wall:7.2f} s   processor {took.cpu:7.2f} s")
        wall, cpu = theirs.wall / ours.wall, theirs.cpu / ours.cpu
        print(f"{handle.name:11} {'ratio':20} {wall:7.1f}     processor {cpu:7.1f}", flush=True)


if __name__ == "__main__":
    main()
