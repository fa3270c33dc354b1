"""The run log in one SQLite file: the default, without a server, for all processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ematix_flow.errors import StatementFailed
from ematix_flow.run.process import boot_mark
from ematix_flow.run.runlogs.rows import instant
from ematix_flow.run.runlogs.sql import SqlRunLog
from ematix_flow.run.runlogs.store import Db
from ematix_flow.run.runlogs.words import SQLITE

_BUSY_TIMEOUT_S = 10.0
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class SqliteRunLog(SqlRunLog):
    """A run log in a SQLite file in WAL mode, usable by several threads and processes of one host at once.

    Opening it ends `running` records whose process is dead as failed, "worker lost". With `max_age_days` or
    `max_records` finished records beyond that are removed whenever one is written. All processes that use it are on one
    host: a file on a network drive is no run log. So leases go by that host's steady clock, which nobody sets: a time
    of day that jumps takes no claim from a process that is alive.

    Raises:
        ConnectionFailed: The file cannot be opened or is no run log.
        InvalidConfig: The file was written by a newer version.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_age_days: float | None = None, max_records: int | None = None
    ) -> None:
        self.path = Path(path).expanduser()
        self._clock = LeaseClock()
        super().__init__(where=str(self.path), words=SQLITE, max_age_days=max_age_days, max_records=max_records)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as exc:
            raise self.unopened(exc) from exc
        self.open()

    def connect(self) -> sqlite3.Connection:
        """Open the file."""
        connection = connected(self.path, self._clock)
        try:
            _use_wal(connection)
            # Enough in WAL mode: a crash of the machine may lose the last records, never the file.
            connection.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self) -> None:
        super()._prepare()
        boot = boot_mark()
        if boot is None:
            return
        proposed = steady_zero_us()

        def agree(db: Db) -> int:
            asked = "SELECT zero_us FROM @lease_clocks WHERE boot = ?"
            found = db.rows(asked, boot)
            if not found:
                db.change(db.words.insert("lease_clocks", ("boot", "zero_us"), key="boot"), boot, proposed)
                found = db.rows(asked, boot)
            return int(found[0][0])

        with suppress(StatementFailed):  # a file that may only be read holds nobody's claim
            self._clock.zero_us = self._ask(agree)

    def driver_errors(self) -> tuple[type[Exception], ...]:
        """SQLite's."""
        return (sqlite3.Error,)


class LeaseClock:
    """The clock of leases: the machine's steady one, once it is agreed what its zero is called; until then the day's.

    The time of day can be set, and a lease of a minute would be over an hour early. The steady clock cannot; what its
    zero is called must be the same for all processes, so the first of them after the machine's start writes it down.
    """

    def __init__(self, zero_us: int | None = None) -> None:
        self.zero_us = zero_us

    def later(self, microseconds: int) -> str:
        """The instant so much later, as stored."""
        if self.zero_us is None:
            return instant(datetime.now(timezone.utc) + timedelta(microseconds=microseconds))
        steady = time.monotonic_ns() // 1000
        return instant(_EPOCH + timedelta(microseconds=self.zero_us + steady + microseconds))


def steady_zero_us() -> int:
    """What the zero of the steady clock is called, as the time of day is now: microseconds since 1970."""
    return (time.time_ns() - time.monotonic_ns()) // 1000


def connected(path: Any, clock: LeaseClock) -> sqlite3.Connection:
    """A connection that every thread may use, one at a time, and that knows the clocks."""
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.create_function("flow_later", 1, clock.later)
    connection.create_function("flow_moment", 0, lambda: instant(datetime.now(timezone.utc)))
    return connection


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
