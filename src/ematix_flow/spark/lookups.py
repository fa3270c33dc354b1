"""Lookups of a stream: tables beside `source` that its SQL may join, as they were at one moment.

Each is read when the stream starts and kept as Parquet beside the checkpoint, so every batch reads the same rows of it,
however large it is, and Spark sends small ones to all workers by itself. One that is refreshed is read again in the
background; the new rows take the place of the old ones between two batches, all at once.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, types as t

from ematix_flow.contracts.backend import Backend
from ematix_flow.contracts.plans import SourceQuery
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.contracts.streams import StreamCounters
from ematix_flow.declare.stream import Lookup
from ematix_flow.errors import FlowError
from ematix_flow.spark.batch import explained
from ematix_flow.spark.checkpoints import CheckpointFolder
from ematix_flow.spark.stream_sql import StreamSql
from ematix_flow.spark.table_rows import table_rows, whole_table

log = logging.getLogger(__name__)

_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Snapshot:
    """The rows of a lookup at one moment: where they are kept, and their columns."""

    place: str
    schema: t.StructType

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows; the same each time."""
        return spark.read.schema(self.schema).parquet(self.place)

    @property
    def columns(self) -> str:
        """Names and types, to compare with those of another."""
        return self.schema.simpleString()


@dataclass
class _Kept:
    """One lookup: what batches see, and what has been read since."""

    name: str
    lookup: Lookup
    current: Snapshot | None = None
    newer: Snapshot | None = None
    changed: Snapshot | None = None
    due: float = 0.0
    number: int = 0
    gone: list[Snapshot] = field(default_factory=list)

    @property
    def every_s(self) -> float | None:
        return self.lookup.refresh_interval_ms / 1000 if self.lookup.refresh_interval_ms else None


class Lookups:
    """The lookups of one stream.

    Args:
        stream: Its name, for the log.
        opened: Makes the backend of a lookup's connection; it is closed after each reading.
        folder: The stream's checkpoint; rows are kept beside it.
        counters: Are told of refreshes, and of those that failed.
        owner: Whose copy of the rows it is; nobody else may use the name at the same time.
    """

    def __init__(
        self,
        stream: str,
        lookups: Mapping[str, Lookup],
        opened: Callable[[Lookup], Backend],
        folder: CheckpointFolder,
        counters: Callable[[], StreamCounters],
        owner: str = "stream",
    ) -> None:
        self._owner = owner
        self._stream, self._opened, self._folder, self._counters = stream, opened, folder, counters
        self._kept = [_Kept(name, lookup) for name, lookup in lookups.items()]
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def needs(self) -> SessionNeeds:
        """What the session must have to read them."""
        needs = SessionNeeds()
        for kept in self._kept:
            backend = self._opened(kept.lookup)
            needs = needs | backend.needs
            backend.close()
        return needs

    def open(self, spark: SparkSession) -> None:
        """Read all of them, then begin to refresh those that are to be refreshed.

        Raises:
            FlowError: one cannot be read; the stream must not start without it.
        """
        self._remove_all()
        for kept in self._kept:
            try:
                kept.current = self._read(spark, kept)
            except FlowError as exc:
                exc.message = f"Lookup '{kept.name}': {exc.message}"
                raise
            kept.due = time.monotonic() + (kept.every_s or 0)
        if any(kept.every_s for kept in self._kept):
            self._stopping.clear()
            self._thread = threading.Thread(
                target=self._refresh, args=(spark,), name=f"lookups of {self._stream}", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """End refreshing and remove what was kept."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)  # a database that does not answer must not keep the stream from ending
            self._thread = None
        self._remove_all()

    # ── what batches see ─────────────────────────────────────────────────────────────────────────────────────────────

    def turn(self) -> None:
        """Between two batches: rows that were read since may take their place from here on."""
        with self._lock:
            for kept in self._kept:
                while kept.gone:  # the batch that may have read them is done
                    self._remove(kept.gone.pop().place)
                if kept.newer is None:
                    continue
                newer, kept.newer = kept.newer, None
                if kept.current is not None and newer.columns == kept.current.columns:
                    self._take(kept, newer)
                else:
                    kept.changed = newer

    def over(self, rows: DataFrame, sql: StreamSql) -> DataFrame:
        """The stream's SQL over a batch and the lookups as they are in this batch."""
        spark = rows.sparkSession
        for kept in self._kept:
            if kept.changed is not None:
                self._judge(kept, kept.changed, rows, sql)
        return sql(rows, self._frames(spark))

    def current(self, spark: SparkSession) -> dict[str, DataFrame]:
        """The lookups as they are in this batch."""
        return self._frames(spark)

    def _frames(self, spark: SparkSession, **instead: Snapshot) -> dict[str, DataFrame]:
        found = {}
        for kept in self._kept:
            snapshot = instead.get(kept.name, kept.current)
            assert snapshot is not None, "lookups are read before the first batch"
            found[kept.name] = snapshot.frame(spark)
        return found

    def _judge(self, kept: _Kept, newer: Snapshot, rows: DataFrame, sql: StreamSql) -> None:
        """Columns have changed: take the new rows if what comes out of the SQL has not, else stay with the old ones."""
        spark = rows.sparkSession
        before = sql(rows, self._frames(spark)).schema.simpleString()
        try:
            with explained():
                after = sql(rows, self._frames(spark, **{kept.name: newer})).schema.simpleString()
            reason = None if after == before else "the columns that come out of transform_sql would change"
        except FlowError as exc:
            reason = exc.message
        with self._lock:
            kept.changed = None
            if reason is None:
                self._take(kept, newer)
                return
            kept.gone.append(newer)
        self._counters().add(lookup_failures=1)
        log.warning(
            "%s: lookup '%s' has other columns now and stays as it was: %s; restart the stream to take them",
            self._stream,
            kept.name,
            reason,
        )

    def _take(self, kept: _Kept, newer: Snapshot) -> None:
        if kept.current is not None:
            kept.gone.append(kept.current)
        kept.current = newer

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _refresh(self, spark: SparkSession) -> None:
        """Read each of them again when it is due, until told to stop. Runs in a thread of its own."""
        while True:
            due = [kept for kept in self._kept if kept.every_s]
            first = min(due, key=lambda kept: kept.due)
            if self._stopping.wait(max(first.due - time.monotonic(), 0)):
                return
            try:
                fresh = self._read(spark, first)
            except Exception as exc:  # whatever it is, batches go on with what there is
                if self._stopping.is_set():
                    return
                self._counters().add(lookup_failures=1)
                message = exc.message if isinstance(exc, FlowError) else type(exc).__name__
                log.warning(
                    "%s: lookup '%s' could not be refreshed and stays as it was: %s", self._stream, first.name, message
                )
            else:
                with self._lock:
                    if first.newer is not None:
                        self._remove(first.newer.place)
                    first.newer = fresh
                self._counters().add(lookup_refreshes=1)
            assert first.every_s is not None
            first.due = time.monotonic() + first.every_s

    def _read(self, spark: SparkSession, kept: _Kept) -> Snapshot:
        kept.number += 1
        place = f"{self._root}/{kept.number}-{self._kept.index(kept)}"
        backend = self._opened(kept.lookup)
        began = time.monotonic()
        try:
            with explained(), table_rows(spark, backend, _query(kept.lookup, backend)) as frame:
                schema = frame.schema
                frame.write.mode("overwrite").parquet(place)
        finally:
            backend.close()
        log.debug("%s: lookup '%s' read in %.1f s", self._stream, kept.name, time.monotonic() - began)
        return Snapshot(place, schema)

    @property
    def _root(self) -> str:
        """Beside the checkpoint: what is in it may be copied to a state store, and a lookup's rows need not be."""
        beside = f"{self._folder.place}/lookups" if self._folder.is_remote else f"{self._folder.path}.lookups"
        return f"{beside}/{self._owner}"

    def _remove(self, place: str) -> None:
        if self._folder.is_remote:
            self._folder.files.remove(place.removeprefix(f"{self._folder.place}/"))
        else:
            shutil.rmtree(place, ignore_errors=True)

    def _remove_all(self) -> None:
        if not self._folder.is_remote:
            shutil.rmtree(Path(self._root), ignore_errors=True)
            with suppress(OSError):  # somebody else keeps rows there, or nobody ever did
                Path(self._root).parent.rmdir()
            return
        for kept in self._kept:
            for snapshot in (kept.current, kept.newer, kept.changed, *kept.gone):
                if snapshot is not None:
                    self._remove(snapshot.place)


class WithLookups:
    """A stream's SQL that sees its lookups: what becomes of a batch."""

    def __init__(self, sql: StreamSql, lookups: Lookups) -> None:
        self.sql, self.lookups = sql, lookups

    def __call__(self, rows: DataFrame) -> DataFrame:
        """The result over one batch."""
        return self.lookups.over(rows, self.sql)

    def failing(self, rows: DataFrame, row: str) -> DataFrame | None:
        """As `StreamSql.failing`, with the lookups as they are in this batch."""
        return self.sql.failing(rows, row, self.lookups.current(rows.sparkSession))


def _query(lookup: Lookup, backend: Backend) -> SourceQuery:
    if lookup.query is not None:
        return SourceQuery(sql=lookup.query.strip().rstrip(";").rstrip())
    assert lookup.table is not None
    return whole_table(backend, TableRef(lookup.schema or None, lookup.table))
