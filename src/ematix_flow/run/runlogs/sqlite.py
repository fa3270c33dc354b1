"""The run log in one SQLite file: the default, without a server, for all processes of one machine."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import ConnectionFailed, InvalidConfig
from ematix_flow.run.process import ProcessMark

WORKER_LOST = "worker lost: the process of this run is gone; its pipeline can simply be run again"

# One entry per version, forward only: an entry is never changed once it was released, the next one is added below it.
_MIGRATIONS = (
    (
        """
        CREATE TABLE run_records (
            run_id TEXT PRIMARY KEY,
            pipeline TEXT NOT NULL,
            status TEXT NOT NULL,
            started_at TEXT NOT NULL,
            finished_at TEXT,
            attempt INTEGER NOT NULL,
            failed_step TEXT,
            failed_watermark TEXT,
            error_summary TEXT,
            kind TEXT NOT NULL,
            extras TEXT NOT NULL
        )
        """,
        "CREATE INDEX run_records_by_time ON run_records (started_at)",
        "CREATE INDEX run_records_by_pipeline ON run_records (pipeline, started_at)",
    ),
)
_NAMES = (
    *("run_id", "pipeline", "status", "started_at", "finished_at", "attempt"),
    *("failed_step", "failed_watermark", "error_summary", "kind", "extras"),
)
_COLUMNS = ", ".join(_NAMES)
# Not INSERT OR REPLACE: that would give the row a new place in the order of those that began in the same moment.
_UPSERT = (
    f"INSERT INTO run_records ({_COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))})"
    f" ON CONFLICT (run_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _NAMES[1:])}"
)
_BUSY_TIMEOUT_S = 10.0
_INSTANT = "%Y-%m-%dT%H:%M:%S.%fZ"  # fixed width, so that text order is time order


class SqliteRunLog:
    """Run records in a SQLite file in WAL mode, usable by several threads and processes of one host at once.

    Opening it ends `running` records whose process is dead as failed, "worker lost". With `max_age_days` or
    `max_records` finished records beyond that are removed whenever one is written.

    Raises:
        ConnectionFailed: The file cannot be opened or is no run log.
        InvalidConfig: The file was written by a newer version.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_age_days: float | None = None, max_records: int | None = None
    ) -> None:
        self.path = Path(path).expanduser()
        self._max_age_days = max_age_days
        self._max_records = max_records
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._owner_pid = 0
        self._closed = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._transaction() as connection:
                _migrate(connection, self.path)
            self._end_lost_runs()
        except BaseException as exc:
            self.close()
            if isinstance(exc, sqlite3.Error | OSError):
                raise ConnectionFailed(
                    f"The run log '{self.path}' cannot be opened: {scrub(str(exc))}.",
                    fix="give another place with --run-log, or none with --no-run-log",
                ) from exc
            raise

    def record_run_record(self, record: RunRecord) -> None:
        """Insert the record, or replace the one with the same run id."""
        with self._transaction() as connection:
            connection.execute(_UPSERT, _to_row(record))
            if record.finished_at is not None:
                self._prune(connection, record.finished_at)

    def list_runs(
        self, *, pipeline: str | None = None, status: str | None = None, limit: int = 50, offset: int = 0
    ) -> tuple[Sequence[RunRecord], int]:
        """Newest first, with the number of all that match."""
        wanted = {"pipeline": pipeline, "status": status}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(f'{name} = ?' for name in given)}" if given else ""
        page = f"SELECT {_COLUMNS} FROM run_records {where} ORDER BY started_at DESC, rowid DESC LIMIT ? OFFSET ?"
        with self._lock:
            connection = self._open()
            rows = connection.execute(page, (*given.values(), limit, offset)).fetchall()
            (total,) = connection.execute(f"SELECT count(*) FROM run_records {where}", (*given.values(),)).fetchone()
        return [_to_record(row) for row in rows], int(total)

    def get_run(self, run_id: str) -> RunRecord | None:
        """The record with that id, or with an id that begins so when only one does."""
        if not run_id:
            return None
        with self._lock:
            # Not LIKE: an id may hold its wildcards.
            rows = (
                self._open()
                .execute(
                    f"SELECT {_COLUMNS} FROM run_records WHERE substr(run_id, 1, ?) = ? ORDER BY run_id <> ? LIMIT 2",
                    (len(run_id), run_id, run_id),
                )
                .fetchall()
            )
        if rows and (len(rows) == 1 or rows[0][0] == run_id):
            return _to_record(rows[0])
        return None

    def close(self) -> None:
        """Let go of the file; may be called twice. A closed log refuses further work."""
        with self._lock:
            self._closed = True
            if self._connection is not None and self._owner_pid == os.getpid():
                self._connection.close()
            self._connection = None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Kept as a default: at the very end of the interpreter modules are gone, this module's names included.
        if hasattr(self, "_lock") and not is_finalizing():
            self.close()

    def _open(self) -> sqlite3.Connection:
        """The connection of this process. A connection must not be carried into a forked child."""
        if self._closed:
            raise ConnectionFailed(f"The run log '{self.path}' is closed.")
        if self._connection is None or self._owner_pid != os.getpid():
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._connection, self._owner_pid = connection, os.getpid()
            _use_wal(connection)
            # Enough in WAL mode: a crash of the machine may lose the last records, never the file.
            connection.execute("PRAGMA synchronous = NORMAL")
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                if connection.in_transaction:  # a full disk ends it by itself
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _end_lost_runs(self) -> None:
        with self._lock:
            rows = self._open().execute(f"SELECT {_COLUMNS} FROM run_records WHERE status = 'running'").fetchall()
        for record in map(_to_record, rows):
            process = ProcessMark.from_dict(record.extras.get("process"))
            if process is None or not process.is_dead:
                continue
            lost = _lost(record)
            with self._transaction() as connection:
                # Only if it is still running: its last word may have come in since we looked.
                connection.execute(
                    "UPDATE run_records SET status = ?, finished_at = ?, failed_step = ?, error_summary = ?, extras = ?"
                    " WHERE run_id = ? AND status = 'running'",
                    (
                        lost.status,
                        _instant(lost.finished_at),
                        lost.failed_step,
                        lost.error_summary,
                        _extras(lost),
                        lost.run_id,
                    ),
                )

    def _prune(self, connection: sqlite3.Connection, now: datetime) -> None:
        if self._max_age_days is not None:
            oldest = _instant(now - timedelta(days=self._max_age_days))
            connection.execute("DELETE FROM run_records WHERE finished_at < ?", (oldest,))
        if self._max_records is not None:
            connection.execute(
                "DELETE FROM run_records WHERE finished_at IS NOT NULL AND run_id NOT IN"
                " (SELECT run_id FROM run_records ORDER BY started_at DESC, rowid DESC LIMIT ?)",
                (self._max_records,),
            )


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


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to this version, in one transaction: two processes may open a new file at the same moment."""
    connection.execute("CREATE TABLE IF NOT EXISTS ematix_flow_run_log_version (version INTEGER NOT NULL)")
    row = connection.execute("SELECT max(version) FROM ematix_flow_run_log_version").fetchone()
    version = int(row[0] or 0)
    if version > len(_MIGRATIONS):
        raise InvalidConfig(
            f"The run log '{path}' has version {version}; this program knows {len(_MIGRATIONS)}.",
            fix="update ematix-flow, or give another place with --run-log",
        )
    for number, statements in enumerate(_MIGRATIONS[version:], start=version + 1):
        for statement in statements:
            connection.execute(statement)
        connection.execute("INSERT INTO ematix_flow_run_log_version (version) VALUES (?)", (number,))


def _lost(record: RunRecord) -> RunRecord:
    """The record of a run whose process died: the step it was in failed, the ones after it never came."""
    now = datetime.now(timezone.utc)
    steps: list[dict[str, Any]] = [dict(step) for step in record.extras.get("steps", ())]
    failed_step = record.failed_step
    for step in steps:
        if step.get("status") == "running":
            step["status"] = "failed"
            failed_step = failed_step or step.get("name")
        elif step.get("status") == "pending":
            step["status"] = "skipped"
    return replace(
        record,
        status="failed",
        finished_at=max(now, record.started_at),
        failed_step=failed_step,
        error_summary=WORKER_LOST,
        extras={**record.extras, "steps": steps},
    )


def _to_row(record: RunRecord) -> tuple[Any, ...]:
    return (
        record.run_id,
        record.pipeline,
        record.status,
        _instant(record.started_at),
        _instant(record.finished_at),
        record.attempt,
        record.failed_step,
        record.failed_watermark,
        record.error_summary,
        record.kind,
        _extras(record),
    )


def _to_record(row: Sequence[Any]) -> RunRecord:
    return RunRecord(
        run_id=row[0],
        pipeline=row[1],
        status=row[2],
        started_at=_moment(row[3]),
        finished_at=None if row[4] is None else _moment(row[4]),
        attempt=row[5],
        failed_step=row[6],
        failed_watermark=row[7],
        error_summary=row[8],
        kind=row[9],
        extras=json.loads(row[10]),
    )


def _extras(record: RunRecord) -> str:
    return json.dumps(dict(record.extras), ensure_ascii=False, default=str)


def _instant(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(timezone.utc).strftime(_INSTANT)


def _moment(text: str) -> datetime:
    return datetime.strptime(text, _INSTANT).replace(tzinfo=timezone.utc)
