"""Changes by hand: `from_json`, the last change of every key in a batch, JDBC into a staging table, DELETE and upsert.

    plain_cdc.py WARM_TOPIC WARM_TABLE TOPIC TABLE

It knows nothing of what earlier batches brought, so a change that comes late or twice wins over a newer one. Prints the
seconds of the second stream; the first pays for starting Java.
"""

from __future__ import annotations

import os
import sys
import time

import psycopg
from pyspark.sql import DataFrame, SparkSession, Window, functions as F

_ROW = "id BIGINT, name STRING, city STRING, balance DECIMAL(12, 2), visits BIGINT, seen BIGINT"
_EVENT = f"op STRING, before STRUCT<id: BIGINT>, after STRUCT<{_ROW}>, source STRUCT<ts_ms: BIGINT, lsn: BIGINT>"
_COLUMNS = ("id", "name", "city", "balance", "visits", "seen")

spark = SparkSession.builder.config("spark.jars", os.environ["STREAM_JARS"]).getOrCreate()


def mirrored(topic: str, table: str) -> float:
    """Mirror all that is there; the seconds it took."""
    others = [name for name in _COLUMNS if name != "id"]
    staging = f"staging_{table}"
    last = Window.partitionBy("id").orderBy(F.col("lsn").desc())

    def apply(batch: DataFrame, number: int) -> None:
        newest = batch.withColumn("nth", F.row_number().over(last)).where("nth = 1").drop("nth", "lsn")
        driver = {"driver": "org.postgresql.Driver"}
        newest.write.jdbc(os.environ["TARGET_JDBC"], staging, mode="overwrite", properties=driver)
        names, updates = ", ".join(_COLUMNS), ", ".join(f"{name} = EXCLUDED.{name}" for name in others)
        with psycopg.connect(os.environ["TARGET_URL"]) as db:
            db.execute(f"DELETE FROM {table} AS t USING {staging} AS s WHERE t.id = s.id AND s.op = 'd'")
            db.execute(
                f"INSERT INTO {table} ({names}) SELECT {names} FROM {staging} WHERE op <> 'd' "
                f"ON CONFLICT (id) DO UPDATE SET {updates}"
            )

    events = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", os.environ["KAFKA"])
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), _EVENT).alias("e"))
        .select(
            "e.op",
            F.coalesce("e.after.id", "e.before.id").alias("id"),
            *[F.col(f"e.after.{name}") for name in others if name != "seen"],
            F.timestamp_millis("e.after.seen").alias("seen"),
            "e.source.lsn",
        )
    )
    began = time.perf_counter()
    place = f"{os.environ['CHECKPOINT']}/{table}"
    writer = events.writeStream.option("checkpointLocation", place).trigger(availableNow=True)
    writer.foreachBatch(apply).start().awaitTermination()
    return time.perf_counter() - began


mirrored(sys.argv[1], sys.argv[2])
print("seconds", mirrored(sys.argv[3], sys.argv[4]))
