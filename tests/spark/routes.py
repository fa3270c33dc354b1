"""One set of values through every route: Spark, PostgreSQL, SQLite, DuckDB. Each runs one query for all markers."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
from pyspark.sql import Column, SparkSession, functions as F, types as t

from ematix_flow.backends import duckdb_functions, sqlite_functions
from ematix_flow.declare.columns import ColumnType, Numeric, Timestamp, TimestampTZ
from ematix_flow.declare.normalizers import Normalizer
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.values import instant_text, wall_text
from ematix_flow.plan.expressions import ColumnExpr, NotPushable, compile_column
from ematix_flow.spark import expressions
from ematix_flow.spark.types import to_arrow_schema, to_spark_type

Chain = tuple[Normalizer, ...]

_PG_TYPES = {
    "text": "text",
    "small_int": "smallint",
    "integer": "integer",
    "big_int": "bigint",
    "float": "real",
    "double": "double precision",
    "numeric": "numeric",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_tz": "timestamptz",
}


def through_spark(
    spark: SparkSession, chains: Sequence[Chain], values: Sequence[Any], kind: ColumnType
) -> list[list[Any]]:
    """A column of results per chain. Times come back as their stored text, lest Python's own zone touches them."""
    spark_type = to_spark_type(kind)
    given = [str(v) if isinstance(v, date) else v for v in values]
    schema = "i int, v string" if isinstance(spark_type, _TIMES) else f"i int, v {spark_type.simpleString()}"
    frame = spark.createDataFrame(list(enumerate(given)), schema)
    frame = frame.select("i", F.col("v").cast(spark_type).alias("v"))
    compiled = frame.select(
        "i",
        *(expressions.compile_column(c, F.col("v"), spark_type, name="v").alias(f"c{k}") for k, c in enumerate(chains)),
    )
    shown = [stored(F.col(field.name), field.dataType).alias(field.name) for field in compiled.schema.fields[1:]]
    rows = sorted(compiled.select("i", *shown).collect())
    return [[comparable(row[k + 1]) for row in rows] for k in range(len(chains))]


_TIMES = (t.TimestampType, t.TimestampNTZType, t.DateType)


def stored(column: Column, kind: t.DataType) -> Column:
    """Times as their stored text, lest Python's own zone touches them."""
    if isinstance(kind, t.TimestampType):
        return F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
    if isinstance(kind, t.TimestampNTZType):
        return F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
    return column.cast("string") if isinstance(kind, t.DateType) else column


def through_postgres(
    connection: psycopg.Connection[Any], chains: Sequence[Chain], values: Sequence[Any], kind: ColumnType
) -> list[list[Any] | NotPushable]:
    """A column of results per chain, or the refusal to push it down."""
    compiled = [compile_column("postgres", chain, ColumnExpr('t."x y"', kind), name="v") for chain in chains]
    selected = [
        f"to_char(({c.sql}) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
        if isinstance(c.type, TimestampTZ)
        else (f"to_char({c.sql}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US')" if isinstance(c.type, Timestamp) else c.sql)
        for c in compiled
        if isinstance(c, ColumnExpr)
    ]
    native = _PG_TYPES[kind.kind]
    query = f'SELECT {", ".join(["t.i", *selected])} FROM unnest(%s::int[], %s::{native}[]) AS t(i, "x y") ORDER BY t.i'
    query = query.replace("%", "%%").replace("%%s::", "%s::")
    rows = connection.execute(query.encode(), (list(range(len(values))), list(values))).fetchall()
    columns = iter([[comparable(row[k + 1]) for row in rows] for k in range(len(selected))])
    return [c if isinstance(c, NotPushable) else next(columns) for c in compiled]


def through_sqlite(chains: Sequence[Chain], values: Sequence[Any], kind: ColumnType) -> list[list[Any] | NotPushable]:
    """The same in SQLite, which calls the model."""
    connection = sqlite3.connect(":memory:")
    sqlite_functions.register(connection)
    connection.execute('CREATE TABLE t (i INTEGER, "x y")')
    connection.executemany("INSERT INTO t VALUES (?, ?)", [(i, _to_sqlite(v, kind)) for i, v in enumerate(values)])
    results: list[list[Any] | NotPushable] = []
    for chain in chains:
        compiled = compile_column("sqlite", chain, ColumnExpr('t."x y"', kind), name="v")
        if isinstance(compiled, NotPushable):
            results.append(compiled)
            continue
        rows = connection.execute(f"SELECT {compiled.sql} FROM t ORDER BY i").fetchall()
        is_decimal = isinstance(compiled.type, Numeric)
        results.append([Decimal(v) if is_decimal and v is not None else comparable(v) for (v,) in rows])
    connection.close()
    return results


def through_duckdb(chains: Sequence[Chain], values: Sequence[Any], kind: ColumnType) -> list[list[Any] | NotPushable]:
    """The same in DuckDB. The session's zone is far from UTC: it must not matter."""
    compiled = [compile_column("duckdb", chain, ColumnExpr('t."x y"', kind), name="v") for chain in chains]
    selected = []
    for c in compiled:
        if isinstance(c, ColumnExpr):
            moment = f"({c.sql}) AT TIME ZONE 'UTC'" if isinstance(c.type, TimestampTZ) else c.sql
            tail = "Z" if isinstance(c.type, TimestampTZ) else ""
            is_time = isinstance(c.type, TimestampTZ | Timestamp)
            selected.append(f"strftime({moment}, '%Y-%m-%dT%H:%M:%S.%f{tail}')" if is_time else c.sql)
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'Pacific/Auckland'")
        duckdb_functions.register(connection)
        arrow = to_arrow_schema([ColumnSpec("x y", kind)]).field(0).type
        rows = pa.table({"i": pa.array(range(len(values)), pa.int32()), "x y": pa.array(values, arrow)})
        connection.register("t", rows)
        found = connection.execute(f"SELECT {', '.join(['t.i', *selected])} FROM t ORDER BY t.i").fetchall()
    columns = iter([[comparable(row[k + 1]) for row in found] for k in range(len(selected))])
    return [c if isinstance(c, NotPushable) else next(columns) for c in compiled]


def _to_sqlite(value: Any, kind: ColumnType) -> Any:
    if isinstance(value, datetime):
        return instant_text(value) if isinstance(kind, TimestampTZ) else wall_text(value)
    if isinstance(value, date):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else value


def comparable(value: Any) -> Any:
    """Results of drivers in one form: booleans as 0 and 1, days as text, NaN as a text that is equal to itself."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and value != value:
        return "NaN"
    return value
