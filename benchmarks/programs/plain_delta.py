"""Delta by hand, with the defaults.   plain_delta.py fill|merge ROWS TABLE"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

action, rows, table = sys.argv[1:]
spark = (
    SparkSession.builder.config("spark.jars", os.environ["DELTA_JARS"])
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
changes = spark.read.parquet(rows)
if action == "fill":
    changes.write.format("delta").mode("overwrite").save(table)
else:
    changes.createOrReplaceTempView("changes")
    spark.sql(
        f"MERGE INTO delta.`{table}` AS t USING changes AS s "
        "ON t.l_orderkey = s.l_orderkey AND t.l_linenumber = s.l_linenumber "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
