"""Looking after lake tables: small files are put together, files and versions that nobody needs any more go.

It is done under the table's turn, so loads of ours wait. Another program's commit in between makes a step begin anew;
if that happens again and again the step is left out and reported. Whether a run that died had committed is read from
the table's versions, so that is settled before any version goes.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from ematix_flow.backends.json_books import BOOKS, file_name
from ematix_flow.contracts.maintenance import FileCount, MaintenanceReport, TableFiles
from ematix_flow.contracts.runtime import instant_text
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.instants import instant_of
from ematix_flow.declare.maintenance import Maintenance
from ematix_flow.errors import AlreadyRunning, InvalidPlan, WriteConflict, counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ematix_flow.backends.lake import LakeBackend

log = logging.getLogger(__name__)

_ATTEMPTS = 3


class LakeMaintenance(ABC):
    """Looks after the tables of one lake. What each kind of table can do is in its subclass."""

    hidden_folders: ClassVar[tuple[str, ...]] = ()
    """Folders of a table that count as its own although their names begin with '_'."""

    def __init__(self, backend: LakeBackend) -> None:
        self.backend = backend
        self.store = backend.store

    @abstractmethod
    def live(self, spark: SparkSession, table: TableRef) -> FileCount:
        """The files of the newest version."""

    @abstractmethod
    def compact(self, spark: SparkSession, table: TableRef, size: int) -> list[str]:
        """Put small files together; says what was done."""

    @abstractmethod
    def remove_old(self, spark: SparkSession, table: TableRef, before: datetime, keep: int, now: datetime) -> list[str]:
        """Remove what the newest version does not need and is older than a moment; says what was done."""

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def look(self, table: TableRef) -> TableFiles | None:
        with self.store.explained():
            if not self.backend.exists(table):
                return None
            return self._files(self._session(), table)

    def last(self, table: TableRef) -> datetime | None:
        with self.store.explained():
            at = (self._book(table) or {}).get("at")
        return instant_of(at) if at else None

    def _files(self, spark: SparkSession, table: TableRef) -> TableFiles:
        folder = self.backend.folder_of(table)
        stored = None
        if self.store.exists(folder):  # a catalog may keep a table elsewhere
            folders = [folder, *(f"{folder}/{name}" for name in self.hidden_folders)]
            sizes = [file.size for one in folders for file in self.store.visible_files(one)]
            stored = FileCount(len(sizes), sum(sizes))
        return TableFiles(self.live(spark, table), stored)

    def _session(self) -> SparkSession:
        spark = self.backend.spark()
        self.backend.prepare(spark)
        return spark

    # ── doing ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def run_if_due(
        self, table: TableRef, wanted: Maintenance, *, now: datetime, begin: Callable[[], None]
    ) -> MaintenanceReport | None:
        with self.store.explained():
            if not self._is_due(table, wanted, now):
                return None
            with self.backend.turn(table):
                if not self._is_due(table, wanted, now):  # another run was faster
                    return None
                begin()
                self._write_book(table, {"tried": instant_text(now)})
                return self._run(table, wanted, wanted.retention, now)

    def run(
        self, table: TableRef, wanted: Maintenance, *, now: datetime, retention: timedelta | None = None
    ) -> MaintenanceReport:
        """Maintain the table now. `retention` may be shorter than a declared one; tests use it."""
        with self.store.explained():
            if not self.backend.exists(table):
                raise InvalidPlan(f"The {self.backend.system} table '{table}' is not there yet.", fix="load it first")
            with self.backend.turn(table):
                return self._run(table, wanted, wanted.retention if retention is None else retention, now)

    def _run(self, table: TableRef, wanted: Maintenance, retention: timedelta, now: datetime) -> MaintenanceReport:
        spark, began = self._session(), time.perf_counter()
        before = self._files(spark, table)
        done: list[str] = []
        left_out: list[str] = []
        if wanted.compact:
            with _conflicts_reported("small files are not put together", left_out):
                done += self._patiently(lambda: self.compact(spark, table, wanted.target_file_size))
        undecided = self._settle_the_dead(table)
        if undecided:
            left_out.append(f"nothing old is removed: {undecided}")
        else:
            with _conflicts_reported("what is old is not removed", left_out):
                oldest, keep = now - retention, wanted.keep_snapshots
                done += self._patiently(lambda: self.remove_old(spark, table, oldest, keep, now))
        report = MaintenanceReport(
            table=table,
            at=now,
            before=before,
            after=self._files(spark, table),
            done=tuple(done),
            left_out=tuple(left_out),
            duration_s=time.perf_counter() - began,
        )
        self._write_book(table, {"at": instant_text(now), "report": report.to_dict()})
        return report

    def _patiently(self, step: Callable[[], list[str]]) -> list[str]:
        """Do a step anew when another program was faster."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return step()
            except Exception as exc:
                if not self.backend.is_conflict(exc):
                    raise
                if attempt == _ATTEMPTS:
                    raise WriteConflict(f"Another program changed the table {counted(attempt, 'time')}.") from exc
                log.info("the table changed meanwhile; trying again")
        raise AssertionError("unreachable")

    def _settle_the_dead(self, table: TableRef) -> str | None:
        """Let the books know what runs that died around their commit have done; says why that cannot be told yet."""
        for name in self.store.children(f"{BOOKS}/ledger"):
            ledger = self.store.read_json(f"{BOOKS}/ledger/{name}") or {}
            pending = ledger.get("pending")
            if pending is None or TableRef(*pending["table"]) != table:
                continue
            pipeline = ledger["pipeline_name"]
            try:
                with self.backend.books.lease(pipeline):
                    self.backend.books.take_up(pipeline)
            except AlreadyRunning:
                return f"a run of '{pipeline}' is under way that the table's versions may have to tell about"
        return None

    # ── when ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_due(self, table: TableRef, wanted: Maintenance, now: datetime) -> bool:
        book = self._book(table)
        if book is None:
            self._write_book(table, {"since": instant_text(now)})
            return False
        # What failed is not tried again by every load, but when the time has passed once more.
        known = [instant_of(book[key]) for key in ("since", "tried", "at") if key in book]
        return now - max(known) >= wanted.every

    def _book(self, table: TableRef) -> dict[str, Any] | None:
        known: dict[str, Any] | None = self.store.read_json(self._book_path(table))
        return known

    def _write_book(self, table: TableRef, changes: dict[str, Any]) -> None:
        self.store.write_json(self._book_path(table), {"table": str(table), **(self._book(table) or {}), **changes})

    def _book_path(self, table: TableRef) -> str:
        return f"{BOOKS}/maintenance/{file_name(str(table))}.json"


@contextmanager
def _conflicts_reported(what: str, left_out: list[str]) -> Iterator[None]:
    """A table that never stands still is no failure: what could not be done is said, the rest goes on."""
    try:
        yield
    except WriteConflict as exc:
        left_out.append(f"{what}: {exc.message}")
