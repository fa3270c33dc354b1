"""The run log in one SQLite file: the default, without a server, for all processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ematix_flow.run.runlogs.rows import instant
from ematix_flow.run.runlogs.sql import SqlRunLog
from ematix_flow.run.runlogs.words import SQLITE

_BUSY_TIMEOUT_S = 10.0


class SqliteRunLog(SqlRunLog):
    """A run log in a SQLite file in WAL mode, usable by several threads and processes of one host at once.

    Opening it ends `running` records whose process is dead as failed, "worker lost". With `max_age_days` or
    `max_records` finished records beyond that are removed whenever one is written. Its clock is the host's, and all
    processes that use it are on that host: a file on a network drive is no run log.

    Raises:
        ConnectionFailed: The file cannot be opened or is no run log.
        InvalidConfig: The file was written by a newer version.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_age_days: float | None = None, max_records: int | None = None
    ) -> None:
        self.path = Path(path).expanduser()
        super().__init__(where=str(self.path), words=SQLITE, max_age_days=max_age_days, max_records=max_records)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as exc:
            raise self.unopened(exc) from exc
        self.open()

    def connect(self) -> sqlite3.Connection:
        """Open the file."""
        connection = connected(self.path)
        try:
            _use_wal(connection)
            # Enough in WAL mode: a crash of the machine may lose the last records, never the file.
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def driver_errors(self) -> tuple[type[Exception], ...]:
        """SQLite's."""
        return (sqlite3.Error,)


def connected(path: Any) -> sqlite3.Connection:
    """A connection that every thread may use, one at a time, and that knows the clock."""
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.create_function("flow_later", 1, _later)
    return connection


def _later(microseconds: int) -> str:
    return instant(datetime.now(timezone.utc) + timedelta(microseconds=microseconds))


def _use_wal(connection: sqlite3.Connection) -> None:
    """Readers and one writer at the same time. Changing the mode ignores the busy timeout, hence the patience here."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            return  # a file system that cannot share memory: the old journal works as well, only slower
