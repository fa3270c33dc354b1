"""One side of `benchmarks/windows.py`.   windows.py plain|flow tumbling|reopen|session TOPIC FOLDER"""

from __future__ import annotations

import os
import sys

side, case, topic, folder = sys.argv[1:]
BATCH = 1_000_000
LATENESS_MS = 10_000


def plain() -> None:
    from pyspark.sql import SparkSession, functions as F

    spark = SparkSession.builder.config("spark.jars", os.environ["STREAM_JARS"]).getOrCreate()
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", os.environ["KAFKA"])
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH)
        .load()
        .select(
            F.from_json(F.col("value").cast("string"), "user BIGINT, at BIGINT, amount BIGINT, page STRING").alias("r")
        )
        .select("r.*")
        .withColumn("at", F.timestamp_millis("at"))
        .withWatermark("at", f"{LATENESS_MS} milliseconds")
    )
    window = F.session_window("at", "8 seconds") if case == "session" else F.window("at", "1 minute")
    counts = rows.groupBy(window.alias("w"), "user").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
    out = counts.select("w.start", "w.end", "user", "n", "total")
    query = (
        out.writeStream.format("parquet")
        .option("checkpointLocation", os.environ["CHECKPOINT"])
        .outputMode("append")
        .trigger(availableNow=True)
        .start(folder)
    )
    query.awaitTermination()


def flow() -> None:
    from ematix_flow import (
        Aggregation,
        KafkaConnection,
        ObjectStoreLocalConnection,
        StateStore,
        Target,
        Watermark,
        Window,
        run_streaming_pipeline,
    )

    shape = {"kind": "tumbling", "duration_ms": 60_000}
    if case == "session":
        shape = {"kind": "session", "gap_ms": 8_000, "max_session_duration_ms": 86_400_000}
    late = {"late_data": "reopen", "allowed_lateness_ms": 600_000} if case == "reopen" else {}
    print(
        run_streaming_pipeline(
            name=f"bench_{case}",
            source=KafkaConnection(name="broker", bootstrap_servers=os.environ["KAFKA"], group_id=f"bench-{case}"),
            source_query=topic,
            targets=[
                Target(
                    connection=ObjectStoreLocalConnection(name="out", path=folder, format="parquet"), prefix="windows"
                )
            ],
            window=Window(
                **shape,  # type: ignore[arg-type]
                **late,  # type: ignore[arg-type]
                event_time_column="at",
                group_by=("user",),
                aggregations=[Aggregation("count", "n"), Aggregation("sum", "total", "amount")],
            ),
            watermark=Watermark(lateness_ms=LATENESS_MS),
            state_store=StateStore(kind="rocksdb"),
            checkpoint=os.environ["CHECKPOINT"],
            max_batch_rows=BATCH,
            once=True,
        )
    )


plain() if side == "plain" else flow()
