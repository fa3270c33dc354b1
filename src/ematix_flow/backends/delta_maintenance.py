"""Delta tables looked after: OPTIMIZE puts small files together, VACUUM removes what is no longer needed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from ematix_flow.backends.lake_commits import told
from ematix_flow.backends.lake_maintenance import LakeMaintenance
from ematix_flow.contracts.maintenance import FileCount
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.maintenance import age_text
from ematix_flow.errors import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONF = "spark.databricks.delta."


class DeltaMaintenance(LakeMaintenance):
    """Looks after Delta tables."""

    hidden_folders = ("_delta_log",)

    def live(self, spark: SparkSession, table: TableRef) -> FileCount:
        detail = spark.sql(f"DESCRIBE DETAIL {self.backend.name_of(table)}").collect()[0]
        return FileCount(detail["numFiles"], detail["sizeInBytes"])

    def compact(self, spark: SparkSession, table: TableRef, size: int) -> list[str]:
        sizes = {
            f"{_CONF}optimize.maxFileSize": str(size),
            # A file that is nearly full is left alone, or it would be written anew for every few rows that come.
            f"{_CONF}optimize.minFileSize": str(size * 3 // 4),
        }
        with told(spark, sizes):
            metrics = spark.sql(f"OPTIMIZE {self.backend.name_of(table)}").collect()[0]["metrics"]
        gone, new = metrics["numFilesRemoved"], metrics["numFilesAdded"]
        return [f"{counted(gone, 'file')} put together into {new:,}"] if gone or new else []

    def remove_old(self, spark: SparkSession, table: TableRef, before: datetime, keep: int, now: datetime) -> list[str]:
        folder = self.backend.folder_of(table)
        there = {file.path for file in self.store.visible_files(folder)}
        hours = (now - before) / timedelta(hours=1)
        settings = {
            # Delta refuses less than a week unless told that it is meant; a declared retention is a day at least.
            f"{_CONF}retentionDurationCheck.enabled": "false",
            # Folders are listed by 10,000 tasks by default, which takes a minute even when there is one folder.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
        }
        with told(spark, settings):
            spark.sql(f"VACUUM {self.backend.name_of(table)} RETAIN {hours:.3f} HOURS")
        gone = len(there - {file.path for file in self.store.visible_files(folder)})
        return [f"{counted(gone, 'file')} not needed for {age_text(now - before)} removed"] if gone else []
