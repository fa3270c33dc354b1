"""Iceberg tables looked after, by the procedures that Iceberg brings for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from ematix_flow.backends.iceberg import IcebergBackend
from ematix_flow.backends.lake_maintenance import LakeMaintenance
from ematix_flow.backends.transport import quoted
from ematix_flow.contracts.maintenance import FileCount
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.maintenance import age_text
from ematix_flow.errors import counted

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

_YOUNGEST_ORPHAN = timedelta(days=1, minutes=1)
"""Iceberg refuses to take younger files for orphans: they may belong to a commit that is under way."""


class IcebergMaintenance(LakeMaintenance):
    """Looks after the Iceberg tables of one catalog."""

    backend: IcebergBackend

    def live(self, spark: SparkSession, table: TableRef) -> FileCount:
        sizes = "count(*), coalesce(sum(file_size_in_bytes), 0)"
        found = spark.sql(f"SELECT {sizes} FROM {self.backend.name_of(table)}.files").collect()[0]
        return FileCount(*found)

    def compact(self, spark: SparkSession, table: TableRef, size: int) -> list[str]:
        options = {
            "target-file-size-bytes": str(size),
            "min-input-files": "2",
            # Rows marked as gone vanish from the files they are in, and the marks with them.
            "delete-file-threshold": "1",
            "remove-dangling-deletes": "true",
        }
        rewritten = self._call(spark, table, "rewrite_data_files", options=options)
        done = []
        if rewritten and rewritten[0]["rewritten_data_files_count"]:
            gone, new = rewritten[0]["rewritten_data_files_count"], rewritten[0]["added_data_files_count"]
            done.append(f"{counted(gone, 'file')} put together into {new:,}")
        # Marks of the newest version outlive the files they belong to, unless they are all written anew.
        self._call(spark, table, "rewrite_position_delete_files", options={"rewrite-all": "true"})
        self._call(spark, table, "rewrite_manifests", use_caching="false")
        return done

    def remove_old(self, spark: SparkSession, table: TableRef, before: datetime, keep: int, now: datetime) -> list[str]:
        snapshots = f"SELECT count(*) FROM {self.backend.name_of(table)}.snapshots"
        there = spark.sql(snapshots).collect()[0][0]
        removed = self._call(spark, table, "expire_snapshots", older_than=_moment(before), retain_last=str(keep))
        gone = there - spark.sql(snapshots).collect()[0][0]
        files = sum(value for name, value in removed[0].asDict().items() if name.startswith("deleted_") and value)
        done = []
        if gone:
            old = f"{counted(gone, 'version')} older than {age_text(now - before)}"
            done.append(f"{old} removed, with {counted(files, 'file')}")
        oldest = min(before, now - _YOUNGEST_ORPHAN)
        orphans = self._call(spark, table, "remove_orphan_files", older_than=_moment(oldest))
        if orphans:
            done.append(f"{counted(len(orphans), 'file')} that no version knows removed")
        return done

    def _call(
        self,
        spark: SparkSession,
        table: TableRef,
        procedure: str,
        *,
        options: Mapping[str, str] | None = None,
        **arguments: str,
    ) -> list[Row]:
        text = self.backend.dialect.text
        given = {"table": text(self.backend.name_of(table)), **arguments}
        if options:
            given["options"] = f"map({', '.join(text(word) for pair in options.items() for word in pair)})"
        words = ", ".join(f"{name} => {value}" for name, value in given.items())
        return spark.sql(f"CALL {quoted(self.backend.catalog.name)}.system.{procedure}({words})").collect()


def _moment(moment: datetime) -> str:
    return f"TIMESTAMP '{moment.astimezone(timezone.utc).strftime('%Y-%m-%d %H:%M:%S.%f')}Z'"
