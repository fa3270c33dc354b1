"""The obvious PySpark program: Parquet into a database by JDBC, with its defaults.   plain_load.py FOLDER TABLE MODE"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

folder, table, mode = sys.argv[1:]
spark = SparkSession.builder.config("spark.jars", os.environ["JDBC_JARS"]).getOrCreate()
driver = {"driver": "org.postgresql.Driver"}
spark.read.parquet(folder).write.jdbc(os.environ["TARGET_JDBC"], table, mode=mode, properties=driver)
