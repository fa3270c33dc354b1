"""The obvious PySpark program: one database's table into another by JDBC, with defaults, or row by row from the server.

plain_copy.py TABLE MODE defaults|streaming
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

table, mode, how = sys.argv[1:]
spark = SparkSession.builder.config("spark.jars", os.environ["JDBC_JARS"]).getOrCreate()
source = {"driver": "com.mysql.cj.jdbc.Driver"}
if how == "streaming":
    source |= {"useCursorFetch": "true", "fetchsize": "10000"}
rows = spark.read.jdbc(os.environ["SOURCE_JDBC"], table, properties=source)
rows.write.jdbc(os.environ["TARGET_JDBC"], table, mode=mode, properties={"driver": "org.postgresql.Driver"})
