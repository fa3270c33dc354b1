"""Recording a class archive: a short Spark job whose only purpose is to load the classes that pipelines load.

Run as `python -m ematix_flow.spark.training ORDER` by `spark/appcds.py`; nobody imports it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.spark import session
from ematix_flow.spark.appcds import VARIABLE, is_accepted_by_java

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession


def main(order: str) -> int:
    """Record the archive that the order describes; 0 when one is there afterwards."""
    with suppress(OSError, AttributeError):
        os.nice(15)
    wanted = json.loads(order)
    needs = SessionNeeds(jars=frozenset(wanted["jars"]))
    settings = SparkSettings(master=wanted["master"], conf=wanted["conf"], driver_memory=wanted["driver_memory"])
    os.environ[VARIABLE] = "use"  # this session ends without asking for a recording of its own
    launch = session.launch_of(needs, settings)
    archive = session.archive_of(needs, settings)
    if archive is None:
        return 1
    if archive.is_usable:
        return 0
    with archive.recording(lambda path: is_accepted_by_java(launch, path)) as partial:
        if partial is None:
            return 0
        spark = session.open_session(needs, settings, record_to=partial)
        with tempfile.TemporaryDirectory() as folder:
            exercise(spark, Path(folder))
            for connector, lesson in LESSONS.items():
                if connector in needs.jars:
                    with suppress(Exception):  # an archive that lacks some classes is one all the same
                        lesson(spark, Path(folder))
            session.close_session()
    return 0 if archive.is_usable else 1


def exercise(spark: SparkSession, folder: Path) -> None:
    """The usual day of a pipeline, on a handful of rows: files, casts, joins, windows, Arrow hand-over, SQL."""
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    rows = spark.range(200).select(
        f.col("id"),
        (f.col("id") % 7).cast("int").alias("k"),
        f.concat(f.lit("name "), f.col("id").cast("string")).alias("name"),
        f.expr("timestamp'2024-01-01 00:00:00' + make_interval(0, 0, 0, cast(id as int))").alias("at"),
        f.expr("cast(id as decimal(18, 2)) / 3").cast("decimal(18, 2)").alias("amount"),
    )
    for kind in ("parquet", "json", "orc"):
        rows.write.mode("overwrite").format(kind).save(str(folder / kind))
    rows.write.mode("overwrite").option("header", True).csv(str(folder / "csv"))
    back = spark.read.parquet(str(folder / "parquet"))
    spark.read.option("header", True).schema("id long, k int, name string").csv(str(folder / "csv")).count()
    spark.read.schema("id long, k int, name string").json(str(folder / "json")).count()
    latest = Window.partitionBy("k").orderBy(f.col("at").desc())
    newest = back.withColumn("n", f.row_number().over(latest)).filter("n = 1").drop("n")
    totals = back.groupBy("k").agg(f.count("*").alias("c"), f.sum("amount").alias("s"), f.max("at").alias("m"))
    joined = newest.join(totals, "k", "left").withColumn("name", f.lower(f.trim("name"))).repartition(2, "k")
    joined.mapInArrow(_as_it_is, joined.schema).collect()
    joined.createOrReplaceTempView("ematix_flow_training")
    spark.sql("SELECT k, sum(c) FROM ematix_flow_training WHERE m IS NOT NULL GROUP BY k ORDER BY k").toPandas()
    spark.createDataFrame(joined.limit(3).toPandas()).union(joined).distinct().count()


def stream(spark: SparkSession, folder: Path) -> None:
    """A stream from files, batch by batch, and a broker that is not there."""
    from pyspark.sql import DataFrame, functions as f

    def write(batch: DataFrame, number: int) -> None:
        batch.observe("seen", f.count(f.lit(1))).write.mode("overwrite").parquet(str(folder / "streamed"))

    rows = spark.read.parquet(str(folder / "parquet")).schema
    messages = (
        spark.readStream.schema(rows).parquet(str(folder / "parquet")).select(f.to_json(f.struct("*")).alias("v"))
    )
    running = messages.select(f.from_json("v", rows).alias("r")).select("r.*").writeStream.foreachBatch(write)
    place = str(folder / "checkpoint")
    running.option("checkpointLocation", place).trigger(availableNow=True).start().awaitTermination()
    nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "1000"}
    nowhere |= {"kafka.request.timeout.ms": "900", "subscribe": "nothing"}
    spark.read.format("kafka").options(**nowhere).load().count()


def delta(spark: SparkSession, folder: Path) -> None:
    """A Delta table that is made, filled, merged into and read."""
    table = f"delta.`{folder / 'delta'}`"
    spark.sql(f"CREATE TABLE {table} (id BIGINT, k INT, name STRING, at TIMESTAMP, amount DECIMAL(18, 2)) USING delta")
    spark.read.parquet(str(folder / "parquet")).createOrReplaceTempView("ematix_flow_rows")
    spark.sql(f"INSERT INTO {table} SELECT * FROM ematix_flow_rows")
    spark.sql(
        f"MERGE INTO {table} AS t USING ematix_flow_rows AS s ON t.id = s.id "
        "WHEN MATCHED AND t.k = 3 THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    spark.read.format("delta").load(str(folder / "delta")).groupBy("k").count().collect()


LESSONS = {"kafka": stream, "delta": delta}
"""What is done besides when a connector is there, so that its classes are in the archive, too."""


def _as_it_is(batches: Iterable[pyarrow.RecordBatch]) -> Iterable[pyarrow.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
