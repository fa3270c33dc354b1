"""The run log of one process: a SQLite database in memory, shared by its threads and gone with it."""

from __future__ import annotations

from ematix_flow.run.runlogs.sql import SqlRunLog
from ematix_flow.run.runlogs.sqlite import LeaseClock, connected, steady_zero_us
from ematix_flow.run.runlogs.words import SQLITE


class InMemoryRunLog(SqlRunLog):
    """A run log that keeps nothing beyond its process. A forked process gets a copy of its own."""

    survives_fork = True

    def __init__(self, *, max_age_days: float | None = None, max_records: int | None = None) -> None:
        self._clock = LeaseClock(steady_zero_us())
        super().__init__(where="memory://", words=SQLITE, max_age_days=max_age_days, max_records=max_records)
        self.open()

    def connect(self) -> object:
        """A new database."""
        return connected(":memory:", self._clock)

    def driver_errors(self) -> tuple[type[Exception], ...]:
        """SQLite's."""
        import sqlite3

        return (sqlite3.Error,)
