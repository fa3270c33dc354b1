"""A table into Parquet by JDBC: with PySpark's defaults, or partitioned by hand with a fetch size.

plain_unload.py TABLE FOLDER defaults|partitioned
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

table, folder, how = sys.argv[1:]
spark = SparkSession.builder.config("spark.jars", os.environ["JDBC_JARS"]).getOrCreate()
reader = spark.read.format("jdbc").option("url", os.environ["TARGET_JDBC"]).option("dbtable", table)
reader = reader.option("driver", "org.postgresql.Driver")
if how == "partitioned":
    reader = (
        reader.option("fetchsize", 10_000)
        .option("partitionColumn", "l_orderkey")
        .option("lowerBound", 1)
        .option("upperBound", os.environ["HIGHEST_KEY"])
        .option("numPartitions", 8)
    )
reader.load().write.mode("overwrite").parquet(folder)
