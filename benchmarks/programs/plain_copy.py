"""The obvious PySpark program: one database's table into another by JDBC, with defaults.   plain_copy.py TABLE MODE"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

table, mode = sys.argv[1:]
spark = SparkSession.builder.config("spark.jars", os.environ["JDBC_JARS"]).getOrCreate()
rows = spark.read.jdbc(os.environ["SOURCE_JDBC"], table, properties={"driver": "com.mysql.cj.jdbc.Driver"})
rows.write.jdbc(os.environ["TARGET_JDBC"], table, mode=mode, properties={"driver": "org.postgresql.Driver"})
