"""Rows that one reading of the source brought, kept by Spark until the last of their targets is loaded.

They are persisted, in memory as far as it goes and on disk beyond: that works wherever Spark runs and keeps every type.
The native engine persists nothing; there they are kept as Parquet files, which it reads faster than a source.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.storagelevel import StorageLevel

from ematix_flow.backends.frames import as_arrow
from ematix_flow.contracts.backend import Backend
from ematix_flow.contracts.left_out import LeftOutFile, left_out_by
from ematix_flow.contracts.plans import BatchPlan, Reading, WatermarkRule
from ematix_flow.contracts.runtime import RunObserver
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.errors import counted
from ematix_flow.plan.joint import JointReading
from ematix_flow.spark import native
from ematix_flow.spark.expressions import column_of
from ematix_flow.spark.fitting import typed_column
from ematix_flow.spark.types import to_spark_schema, to_spark_type

log = logging.getLogger(__name__)

_ONE_PART_BYTES = 4 * 1024 * 1024


class KeptRows:
    """The rows of a joint reading, read when the first target asks for them.

    Args:
        joint: what is read, and for whom.
        needs: what the backends they go to ask of a session, so that it has all of it before it starts.
    """

    def __init__(self, joint: JointReading, needs: SessionNeeds) -> None:
        self.joint = joint
        self.needs = needs
        self.left_out: tuple[LeftOutFile, ...] = ()
        self._frame: DataFrame | None = None
        self._is_persisted = False
        self._folder: str | None = None

    def holds(self, plan: BatchPlan) -> bool:
        """Whether a target's rows are among them."""
        return self.joint.share_of(plan) is not None

    def share(
        self, spark: SparkSession, source: Backend, plan: BatchPlan, observer: RunObserver
    ) -> tuple[DataFrame, BatchPlan]:
        """A target's rows, and its plan with the reading that fits them. Reads the source unless that has been done."""
        share = self.joint.share_of(plan)
        assert share is not None
        if self._frame is None:
            self._frame = self._read(spark, source, observer)
        frame = self._frame
        if share.newer_than is not None:
            frame = frame.where(_newer(frame, share.newer_than, share.reading))
        return frame, replace(plan, reading=share.reading)

    def _read(self, spark: SparkSession, source: Backend, observer: RunObserver) -> DataFrame:
        observer.step("read", "running")
        began = time.perf_counter()
        with source_rows(spark, source, self.joint.reading) as frame:
            self.left_out = left_out_by(source)
            if not _is_at_hand(frame, self.joint.reading):
                if native.is_running():
                    return self._written(spark, frame, observer, began)
                frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
                self._is_persisted = True
                self._frame = frame  # from here on `close` lets go of it, however far it gets
            try:
                # The action that fills the store, while the source still shows the same rows to every task.
                rows = frame.count()
            except BaseException:
                self.close()
                raise
        self._told(observer, rows, began)
        return frame

    def _written(self, spark: SparkSession, frame: DataFrame, observer: RunObserver, began: float) -> DataFrame:
        self._folder = tempfile.mkdtemp(prefix="ematix-flow-kept-")
        try:
            frame.write.mode("overwrite").parquet(self._folder)
            kept = spark.read.schema(frame.schema).parquet(self._folder)
            self._told(observer, kept.count(), began)
        except BaseException:
            self.close()
            raise
        return kept

    def _told(self, observer: RunObserver, rows: int, began: float) -> None:
        words = f"{counted(rows, 'row')}, once for {counted(len(self.joint.names), 'target')}"
        observer.step("read", "succeeded", words, (time.perf_counter() - began) * 1000)

    def close(self) -> None:
        """Let go of the rows. A session that has ended has done so already."""
        frame, self._frame = self._frame, None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if frame is None or not self._is_persisted:
            return
        self._is_persisted = False
        try:
            frame.unpersist()
        except Exception as exc:  # the load's own outcome is the one to show
            log.debug("kept rows went with their session: %s", exc)


@contextmanager
def source_rows(spark: SparkSession, source: Backend, reading: Reading) -> Iterator[DataFrame]:
    """The rows of a reading: the source's, or those of the frame that the user gave."""
    given = reading.query.frame
    if given is None:
        with source.read(spark, reading.query, reading) as frame:
            yield frame
    elif isinstance(given, DataFrame):
        yield given
    else:
        table = as_arrow(given)
        frame = spark.createDataFrame(table, schema=to_spark_schema(table.schema))
        # Spark cuts rows into as many parts as it has cores, however few they are, and a part may become a file.
        is_small = table.nbytes < _ONE_PART_BYTES and not native.is_running()
        yield frame.coalesce(1) if is_small else frame


def _is_at_hand(frame: DataFrame, reading: Reading) -> bool:
    """Whether the user keeps the rows: as pandas, polars or Arrow, or as a DataFrame that is persisted already."""
    given = reading.query.frame
    if given is None:
        return False
    return not isinstance(given, DataFrame) or frame.storageLevel.useMemory or frame.storageLevel.useDisk


def _newer(frame: DataFrame, rule: WatermarkRule, reading: Reading) -> Column:
    name = reading.renamed.get(rule.column, rule.column)
    value, _ = typed_column(column_of(name), frame.schema[name].dataType, reading.source_types.get(name), name)
    return value > F.lit(rule.last_value).cast(to_spark_type(rule.type))
