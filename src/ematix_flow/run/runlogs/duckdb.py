"""The run log in a DuckDB file: for one process, whose history is then read by analysts with SQL."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ematix_flow.errors import ConnectionFailed, MissingDriver
from ematix_flow.run.runlogs.sql import SqlRunLog
from ematix_flow.run.runlogs.store import Db
from ematix_flow.run.runlogs.words import DUCKDB

_HELD = re.compile(r"conflicting lock|could not set lock|being used by another process", re.IGNORECASE)


class _DuckDb(Db):
    """DuckDB's cursors are connections of their own, and it tells how many rows were changed as a row."""

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(self.raw.execute(self.words.spelled(statement), list(values)).fetchall())

    def change(self, statement: str, *values: Any) -> int:
        found = self.rows(statement, *values)
        return int(found[0][0]) if found else 0

    def say(self, statement: str) -> None:
        self.raw.execute(self.words.spelled(statement))


class DuckDBRunLog(SqlRunLog):
    """A run log in a DuckDB file, or in memory with the path `:memory:`.

    DuckDB gives a file to one process at a time: while a run or a scheduler has it open, `flow status` in another
    terminal is refused. Two processes need SQLite, PostgreSQL or MySQL.

    Raises:
        MissingDriver: duckdb is not installed; it is an ImportError.
        ConnectionFailed: The file cannot be opened, or another process has it.
        InvalidConfig: The tables are missing and may not be made, or a newer version made them.
    """

    db_type = _DuckDb

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create_tables: bool = True,
        max_age_days: float | None = None,
        max_records: int | None = None,
    ) -> None:
        try:
            import duckdb  # noqa: F401
        except ImportError as exc:
            raise MissingDriver(
                "A run log in DuckDB needs 'duckdb'.", fix='pip install "ematix-flow[runlog-duckdb]"'
            ) from exc
        self.path = str(path) if str(path) == ":memory:" else str(Path(path).expanduser())
        super().__init__(
            where=self.path,
            words=DUCKDB,
            create_tables=create_tables,
            max_age_days=max_age_days,
            max_records=max_records,
        )
        if self.path != ":memory:":
            try:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                raise self.unopened(exc) from exc
        self.open()

    def connect(self) -> Any:
        """Open the file."""
        import duckdb

        return duckdb.connect(self.path)

    def driver_errors(self) -> tuple[type[Exception], ...]:
        """DuckDB's."""
        import duckdb

        return (duckdb.Error,)

    def must_give_way(self, exc: Exception) -> bool:
        """Another connection of this process changes the same rows, or has just added the same key."""
        import duckdb

        return isinstance(exc, duckdb.TransactionException | duckdb.ConstraintException)

    def unopened(self, exc: BaseException) -> ConnectionFailed:
        """Say who has the file, when that is the reason."""
        if not _HELD.search(str(exc)):
            return super().unopened(exc)
        holder = re.search(r"\(PID (\d+)\)", str(exc))
        who = f"process {holder[1]}" if holder else "another process"
        return ConnectionFailed(
            f"The run log '{self.path}' is open in {who}; DuckDB gives a file to one process at a time.",
            fix="wait until that is done, or keep the run log in SQLite, PostgreSQL or MySQL",
        )
