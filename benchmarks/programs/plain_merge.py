"""A merge by hand: changed rows into a staging table by JDBC, then MERGE.   plain_merge.py parquet|table WHERE TABLE"""

from __future__ import annotations

import os
import sys

import psycopg
from pyspark.sql import SparkSession

kind, where, table = sys.argv[1:]
spark = SparkSession.builder.config("spark.jars", os.environ["JDBC_JARS"]).getOrCreate()
url, driver = os.environ["TARGET_JDBC"], {"driver": "org.postgresql.Driver"}
changes = spark.read.parquet(where) if kind == "parquet" else spark.read.jdbc(url, where, properties=driver)
changes.write.jdbc(url, "bench.staging", mode="overwrite", properties=driver)
keys = ("l_orderkey", "l_linenumber")
others = [name for name in changes.columns if name not in keys]
with psycopg.connect(os.environ["TARGET_URL"]) as db:
    db.execute(
        f"MERGE INTO {table} AS t USING bench.staging AS s ON {' AND '.join(f't.{k} = s.{k}' for k in keys)} "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{c} = s.{c}' for c in others)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(changes.columns)}) "
        f"VALUES ({', '.join(f's.{c}' for c in changes.columns)})"
    )
    db.execute("DROP TABLE bench.staging")
