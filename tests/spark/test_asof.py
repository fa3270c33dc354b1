"""As-of joins give on Spark what DuckDB gives."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from ematix_flow.backends.translation.spark_sql import parsed_query, spark_query
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.errors import InvalidSource

TYPES = {
    "quotes": {"sym": "string", "at": "bigint", "price": "bigint"},
    "trades": {"sym": "string", "at": "bigint", "n": "bigint"},
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    chance = random.Random(7)
    folder, made = tmp_path_factory.mktemp("asof"), {}
    for name, value, rows in (("trades", "n", 200), ("quotes", "price", 60)):
        moments = chance.sample(range(300), rows)  # two quotes at one moment would leave the answer open
        table = pa.table(
            {
                "sym": [chance.choice(["a", "b", "c", None]) for _ in range(rows)],
                "at": [None if chance.random() < 0.05 else moment for moment in moments],
                value: list(range(rows)),
            }
        )
        made[name] = folder / f"{name}.parquet"
        pq.write_table(table, made[name])
    return made


@pytest.mark.parametrize("comparison", ["t.at >= q.at", "t.at > q.at", "q.at >= t.at", "t.at < q.at"])
@pytest.mark.parametrize("kind", ["ASOF JOIN", "ASOF LEFT JOIN"])
def test_an_asof_join_is_what_duckdb_makes_of_it(
    spark: SparkSession, tables: dict[str, Path], comparison: str, kind: str
) -> None:
    sql = f"SELECT t.n, q.price, t.sym FROM trades AS t {kind} quotes AS q ON t.sym = q.sym AND {comparison}"
    here = duckdb.connect()
    for name, path in tables.items():
        here.execute(f"CREATE VIEW {name} AS SELECT * FROM '{path}'")
        spark.read.parquet(str(path)).createOrReplaceTempView(name)
    written = UserSql(sql, "duckdb")
    found = spark.sql(spark_query(parsed_query(written), written, TYPES)).collect()
    expected = here.execute(sql).fetchall()
    assert sorted(map(str, (tuple(row) for row in found))) == sorted(map(str, expected))
    assert len(expected) > 20


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT n FROM trades t ASOF JOIN quotes q ON t.sym = q.sym AND t.at >= q.at", "every column must name"),
        ("SELECT t.n FROM trades t ASOF JOIN quotes q ON t.sym = q.sym", "exactly one comparison"),
        (
            "SELECT t.n FROM trades t ASOF JOIN quotes q ON t.at >= q.at AND t.n > 5",
            "compares one table with the other",
        ),
    ],
)
def test_an_asof_join_of_another_form_is_refused_with_the_form(sql: str, reason: str) -> None:
    written = UserSql(sql, "duckdb")
    with pytest.raises(InvalidSource, match=reason):
        spark_query(parsed_query(written), written, TYPES)
