"""Kafka by hand: `from_json` and `foreachBatch`, with the defaults; not exactly once.

plain_stream.py postgres|delta TOPIC TABLE
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import DataFrame, SparkSession, functions as F

target, topic, table = sys.argv[1:]
SCHEMA = "id BIGINT, user_id BIGINT, kind STRING, amount DOUBLE, at STRING, note STRING"
builder = SparkSession.builder.config("spark.jars", os.environ["STREAM_JARS"])
if target == "delta":
    builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension").config(
        "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    )
spark = builder.getOrCreate()
rows = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", os.environ["KAFKA"])
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
    .select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r"))
    .select("r.*")
)


def write(batch: DataFrame, number: int) -> None:
    driver = {"driver": "org.postgresql.Driver"}
    batch.write.jdbc(os.environ["TARGET_JDBC"], table, mode="append", properties=driver)


writer = rows.writeStream.option("checkpointLocation", os.environ["CHECKPOINT"]).trigger(availableNow=True)
if target == "delta":
    writer.format("delta").start(table).awaitTermination()
else:
    writer.foreachBatch(write).start().awaitTermination()
