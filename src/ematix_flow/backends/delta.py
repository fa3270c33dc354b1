"""Delta Lake tables in folders `<schema>/<table>/` of this machine or of a bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.backends import delta_native
from ematix_flow.backends.files_frames import held_by_folders
from ematix_flow.backends.files_options import prefix_segments
from ematix_flow.backends.files_store import LocalStore, Store, require_no_pattern
from ematix_flow.backends.files_store_s3 import S3Store
from ematix_flow.backends.json_books import file_name
from ematix_flow.backends.lake import LandedRows
from ematix_flow.backends.lake_commits import Commit, LoadCommit, told
from ematix_flow.backends.lake_dialect import LakeDialect
from ematix_flow.backends.lake_stream import DeltaStreams
from ematix_flow.backends.transport import quoted
from ematix_flow.contracts.plans import BatchPlan
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.connection import Connection, DeltaLocalConnection, DeltaS3Connection
from ematix_flow.errors import WriteConflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.backends.lake_maintenance import LakeMaintenance

_CONF = "spark.databricks.delta."
_NEEDS = SessionNeeds(
    jars=frozenset({"delta"}),
    conf={
        # A log is read by 50 tasks by default, most of them empty; small tables feel it in every query.
        f"{_CONF}snapshotPartitions": "2",
    },
)


_RUN = "ematix_flow_run"
"""What says in a commit's mark which run made it."""

_LOOKED_BACK = 100
"""Commits that are looked through for the loads of a pipeline whose books are lost."""

_CHANGED = "EMATIX_FLOW_ROWS_CAME_IN_BETWEEN"
_COMMIT_FILE = re.compile(r"(\d{20})\.json")
_UNFIT_FOR_PARQUET = re.compile(r"[ ,;{}()\n\t=]")
_NAME_MAPPING = "'delta.columnMapping.mode' = 'name'"
"""Lets columns have names that files cannot give them."""


class DeltaDialect(LakeDialect):
    """Spark SQL over Delta tables."""

    def only_while(self, condition: str) -> str | None:
        # An INSERT that reads nothing of the table goes through whatever others add to it at the same time.
        return f"CASE WHEN {condition} THEN TRUE ELSE raise_error({self.text(_CHANGED)}) END"

    def storage(self, columns: Sequence[str], partition_by: Sequence[str], *, changes_rows: bool) -> str:
        partitions = f" PARTITIONED BY ({self.columns(partition_by)})" if partition_by else ""
        properties = []
        if changes_rows:
            # Marking rows as gone is much less work than writing their files anew; tables that only grow stay without,
            # since some readers do not know it yet.
            properties.append("'delta.enableDeletionVectors' = 'true'")
        if any(_UNFIT_FOR_PARQUET.search(name) for name in columns):
            properties.append(_NAME_MAPPING)
        return f" USING delta{partitions}" + (f" TBLPROPERTIES ({', '.join(properties)})" if properties else "")


class DeltaBackend(DeltaStreams):
    """The Delta tables below one folder."""

    connection_type: ClassVar[type[Connection]] = DeltaLocalConnection
    needs = _NEEDS
    system = "Delta"
    dialect_type = DeltaDialect
    goes_without_spark = True

    def open_store(self, connection: Connection) -> Store:
        assert isinstance(connection, DeltaLocalConnection)
        return LocalStore(connection.path)

    def name_of(self, table: TableRef) -> str:
        return f"delta.{quoted(self._path(table))}"

    def _path(self, table: TableRef) -> str:
        return self.store.spark_uri(self.folder_of(table))

    def _log(self, table: TableRef) -> str:
        return f"{self.folder_of(table)}/_delta_log"

    def exists(self, table: TableRef) -> bool:
        return self.store.exists(self._log(table))

    def describe(self, table: TableRef) -> TableShape | None:
        if not self.is_native or not self.goes_without_spark:
            return super().describe(table)
        require_no_pattern(self._local(table))
        if not self.exists(table):
            return None
        found = delta_native.opened(self._local(table))
        delta_native.require_known(found, writes=True)
        columns = tuple(
            ColumnShape(name, self.dialect.from_native(native), native, nullable)
            for name, native, nullable in delta_native.columns(found)
        )
        partition_by = tuple(found.metadata().partition_columns)
        return TableShape(table, columns, has_rows=bool(found.file_uris()), partition_by=partition_by)

    def _named(self, text: str) -> TableRef:
        """`schema.table`, or a folder of any depth that a path names: the tables of others lie where they like."""
        if "." in text and "/" not in text:
            return super()._named(text)
        *above, name = prefix_segments(text)
        return TableRef("/".join(above) or None, name)

    def _local(self, table: TableRef) -> str:
        assert isinstance(self.store, LocalStore), "tables in buckets are left to Spark"
        return self.store.local_path(self.folder_of(table))

    def version(self, spark: SparkSession, table: TableRef) -> int:
        # The log's own file names say it; Spark would start a job to find out.
        return max(self._commits(table))

    def _commits(self, table: TableRef) -> list[int]:
        names = (_COMMIT_FILE.fullmatch(name) for name in self.store.children(self._log(table)))
        return [int(found[1]) for found in names if found]

    def frame(self, spark: SparkSession, table: TableRef, moment: int | str | None = None) -> DataFrame:
        if self.is_native:
            return delta_native.rows_of(spark, self._local(table), moment)
        reader, path = spark.read.format("delta"), self._path(table)
        if isinstance(moment, int):
            return reader.option("versionAsOf", moment).load(path)
        if moment is None:
            return reader.load(path)
        newest = self.version(spark, table)  # looked up first: one that comes in between may be too late for the moment
        try:
            frame = reader.option("timestampAsOf", moment).load(path)
            _ = frame.schema  # a Spark Connect server has not looked at the table before
        except Exception as exc:
            if not _is_after_the_newest(exc):
                raise
            return self.frame(spark, table, newest)
        return frame

    def has_rows(self, spark: SparkSession, table: TableRef) -> bool:
        if self.is_native:
            return bool(delta_native.opened(self._local(table)).file_uris())
        return self.rows_and_partitions(spark, table)[0]

    def rows_and_partitions(self, spark: SparkSession, table: TableRef) -> tuple[bool, tuple[str, ...]]:
        found = spark.sql(f"DESCRIBE DETAIL {self.name_of(table)}").collect()[0]
        return bool(found["numFiles"]), tuple(found["partitionColumns"])

    def change_schema(self, spark: SparkSession, statement: str) -> None:
        table, _, change = statement.partition(" ALTER COLUMN ")
        if " TYPE " in change:
            spark.sql(f"{table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
        table, _, column = statement.partition(" ADD COLUMNS (`")
        if _UNFIT_FOR_PARQUET.search(column.rpartition("`")[0]):
            spark.sql(f"{table} SET TBLPROPERTIES ({_NAME_MAPPING})")
        spark.sql(statement)

    def change_table(self, spark: SparkSession, plan: BatchPlan) -> None:
        if self.is_native:
            delta_native.change(self._local(plan.table), plan.ddl.changes, plan.ddl.partition_by)
        else:
            super().change_table(spark, plan)

    def carry_out(self, spark: SparkSession, load: LoadCommit) -> None:
        if not self.is_native:
            return super().carry_out(spark, load)
        write = load.statement.write
        assert write is not None and isinstance(self.store, LocalStore)
        place = f"{self._staging_root(load.run.pipeline)}/{file_name(load.run.run_id)}-rows"
        try:
            self._written(spark.sql(write.rows), place)
            files = [self.store.local_path(f"{place}/{file.path}") for file in self.store.visible_files(place)]
            only_adds = load.plan.changes is None and write.kind == "append"
            delta_native.commit(
                self._local(load.plan.table),
                None if only_adds else load.version,
                write,
                files,
                metadata=_mark(load.mark),
                application=load.mark.application,
                number=load.mark.number,
            )
        finally:
            self.store.remove_tree(place)

    def storable(self, frame: DataFrame, plan: BatchPlan) -> DataFrame:
        return held_by_folders(frame, plan.ddl.partition_by)

    def _packed(self, rows: LandedRows, plan: BatchPlan) -> DataFrame:
        return rows.frame if self.is_native else super()._packed(rows, plan)

    def commit(self, spark: SparkSession, table: TableRef, statement: str, commit: Commit) -> None:
        marks = {
            f"{_CONF}write.txnAppId": commit.application,
            f"{_CONF}write.txnVersion": str(commit.number),
            f"{_CONF}commitInfo.userMetadata": _mark(commit),
            # A session may be told that INSERT OVERWRITE leaves the partitions alone that no row comes for.
            "spark.sql.sources.partitionOverwriteMode": "static",
        }
        try:
            with told(spark, marks):
                spark.sql(statement)
        except Exception as exc:
            if self.is_conflict(exc):
                raise WriteConflict(f"Another program changed {table} at the same time.") from exc
            raise
        if not self.is_committed(spark, table, commit.run_id):
            raise WriteConflict(
                f"{table} already holds commit {commit.number} of another run; this one changed nothing.",
                fix="run it again",
            )

    def is_conflict(self, exc: Exception) -> bool:
        return any(word in str(exc) for word in ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", _CHANGED))

    def maintenance(self) -> LakeMaintenance:
        from ematix_flow.backends.delta_maintenance import DeltaMaintenance

        return DeltaMaintenance(self)

    def is_committed(self, spark: SparkSession, table: TableRef, run_id: str, *, after: int | None = None) -> bool:
        return self._commit_of(table, run_id, after) is not None

    def rows_written(self, spark: SparkSession, table: TableRef, run_id: str) -> int:
        commit = self._commit_of(table, run_id)
        assert commit is not None
        metrics = commit["operationMetrics"]
        return int(metrics["num_added_rows" if self.is_native else "numOutputRows"])

    def loads_of(self, spark: SparkSession, table: TableRef, pipeline: str) -> Mapping[str, str]:
        newest = islice(self._commits_with_marks(table), _LOOKED_BACK)
        marks = [mark for _, mark, _ in newest if mark.get("pipeline") == pipeline]
        return {mark["logical_run"]: mark[_RUN] for mark in reversed(marks)}

    def _commit_of(self, table: TableRef, run_id: str, after: int | None = None) -> Mapping[str, Any] | None:
        """What the log says about a run's commit, newest first; None when there is none behind version `after`."""
        for number, mark, information in self._commits_with_marks(table):
            if after is not None and number <= after:
                break
            if mark.get(_RUN) == run_id:
                return information
        return None

    def _commits_with_marks(self, table: TableRef) -> Iterator[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
        """The commits, newest first: number, the mark if it is one of ours, and all that the log says about it."""
        for number in sorted(self._commits(table), reverse=True):
            with self.store.open(f"{self._log(table)}/{number:020d}.json") as file:
                actions = [json.loads(line) for line in file.read().splitlines() if line.startswith(b'{"commitInfo"')]
            information: Mapping[str, Any] = actions[0]["commitInfo"] if actions else {}
            yield number, _marked_by_us(information.get("userMetadata")), information


class S3DeltaBackend(DeltaBackend):
    """The Delta tables of one bucket."""

    connection_type: ClassVar[type[Connection]] = DeltaS3Connection
    needs = _NEEDS | SessionNeeds(jars=frozenset({"hadoop-aws"}))
    goes_without_spark = False

    def open_store(self, connection: Connection) -> Store:
        assert isinstance(connection, DeltaS3Connection)
        return S3Store(connection)


def _mark(commit: Commit) -> str:
    return json.dumps({_RUN: commit.run_id, "pipeline": commit.pipeline, "logical_run": commit.logical_run})


def _marked_by_us(text: Any) -> Mapping[str, Any]:
    """The mark that a commit carries; nothing when its words are those of another program."""
    try:
        mark = json.loads(text or "")
    except (TypeError, ValueError):
        return {}
    return mark if isinstance(mark, dict) and _RUN in mark else {}


def _is_after_the_newest(exc: Exception) -> bool:
    """Whether Spark says that a table has no version as late as a moment: Delta refuses what nobody can know yet."""
    told = getattr(exc, "getCondition", None) or getattr(exc, "getErrorClass", None)
    return "DELTA_TIMESTAMP_GREATER_THAN_COMMIT" in f"{told() if callable(told) else ''} {exc}"
