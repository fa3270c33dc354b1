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


def _as_it_is(batches: Iterable[pyarrow.RecordBatch]) -> Iterable[pyarrow.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
