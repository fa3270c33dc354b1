"""Databases that are one file with one writer: rows are staged in a Parquet spool beside it, leases are file locks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from ematix_flow.backends import spool
from ematix_flow.backends.locks import FileLock, digest
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.plans import BatchPlan, Landed, OpenedRun, SourceQuery
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.connection_base import DatabaseFileConnection
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.errors import ConnectionFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DatabaseFileBackend(SqlBackend):
    """One database file, or `:memory:` within this process."""

    system: ClassVar[str]
    is_on_this_machine = True

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        assert isinstance(connection, DatabaseFileConnection)
        self.path = str(connection.path)
        self.is_memory = connection.is_memory

    def require_folder(self) -> None:
        """Refuse a file whose folder is not there, before a lock or a spool would make it."""
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            raise ConnectionFailed(
                f"The folder of the {self.system} database '{self.path}' does not exist.", fix=f"mkdir -p {folder}"
            )

    def estimated_bytes(self, query: SourceQuery, dialect: SqlDialect = "spark") -> int | None:
        return os.path.getsize(self.path) if os.path.exists(self.path) else None

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def stage(self, frame: DataFrame, plan: BatchPlan, run: OpenedRun) -> Landed:
        place = self._staging_place(run)
        os.makedirs(self.spool_root(), exist_ok=True)
        try:
            spool.write_frame(frame, place)
            return spool.landed(place, plan)
        except BaseException:
            spool.remove(place)
            raise

    def staged_rows(self, run: OpenedRun) -> int | None:
        return spool.rows_so_far(self._staging_place(run))

    def discard(self, landed: Landed) -> None:
        spool.remove(landed.handle)

    def spool_root(self) -> str:
        """The folder of all spools and locks of this database: beside it, or among the temporary files."""
        absolute = os.path.abspath(self.path)
        folder = os.path.dirname(absolute)
        if self.is_memory or not os.access(folder, os.W_OK):
            return spool.temporary_root()
        return os.path.join(folder, f".{os.path.basename(absolute)}.ematix-flow-spool")

    def _staging_place(self, run: OpenedRun) -> str:
        return os.path.join(self.spool_root(), f"{self._owner(run.pipeline)}-{run.run_id}")

    def _owner(self, pipeline: str) -> str:
        """Whose lock and spool it is; a root among the temporary files is shared by databases and by processes."""
        process = os.getpid() if self.is_memory else ""
        return digest(f"{process} {self.connection.identity()} {pipeline}")

    # ── one living run per pipeline ──────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def lease(self, pipeline: str) -> Iterator[None]:
        if not self.is_memory:
            self.require_folder()
        with self.holding(self._lock(self._owner(pipeline)), pipeline):
            yield

    def _lock(self, name: str) -> FileLock:
        return FileLock(os.path.join(self.spool_root(), f"{name}.lock"))

    def clean_up_after_dead_runs(self, pipeline: str) -> None:
        root = self.spool_root()
        spool.remove_dead_reads(root)
        mine = self._owner(pipeline)
        for name in spool.left_behind(root):
            owner = name.split("-")[0]
            if owner == mine:
                spool.remove(os.path.join(root, name))
                continue
            lock = self._lock(owner)
            if lock.acquire():
                spool.remove(os.path.join(root, name))
                lock.release()
