"""MySQL and MariaDB as sources of streams: their changes, from the binary log, without a broker between."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

from ematix_flow.backends.capture_giver import CaptureGiver
from ematix_flow.backends.capture_state import CaptureState, Position
from ematix_flow.backends.capture_stream import CapturesTables, begun_anew, changes_lost, reset_in
from ematix_flow.backends.locks import digest
from ematix_flow.backends.mysql_binlog import BinlogCapture, BinlogGiver, number_of, table_events
from ematix_flow.backends.queue_spool import kept_position
from ematix_flow.contracts.streams import StreamReading
from ematix_flow.declare.capture import captured_tables
from ematix_flow.declare.connection import MySQLConnection
from ematix_flow.errors import ConnectionFailed, FlowError, InvalidDeclaration, MissingDriver

_NEEDED = {"log_bin": "1", "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
_IDS = 2**31


class CapturesBinlog(CapturesTables):
    """What MySQL's backend adds to be read as a stream."""

    _capture: BinlogCapture | None = None

    @abstractmethod
    def explained(self, exc: Exception) -> FlowError | None:
        """A driver's error as one of ours."""

    def check_stream(self, query: str) -> None:
        """Make sure that the server writes down what is needed, that the tables are there, and that we may read it.

        Raises:
            ConnectionFailed: (a ValueError) a setting, or a right; says what to set.
            InvalidDeclaration: (a ValueError) a table is not there.
        """
        require_reader()
        with self.session() as db:
            for name, wanted in _NEEDED.items():
                row = db.execute(f"SHOW GLOBAL VARIABLES LIKE '{name}'").fetchone()
                found = "" if row is None else str(row[1]).upper()
                if found != wanted and not (name == "log_bin" and found == "ON"):
                    raise ConnectionFailed(
                        f"MySQL connection '{self.connection.name}' has {name} '{found}', and changes can be captured "
                        f"with '{'ON' if name == 'log_bin' else wanted}' only.",
                        fix="start the server with log_bin, binlog_format = ROW, binlog_row_image = FULL and "
                        "binlog_row_metadata = FULL",
                    )
            for schema, table in self._tables(query):
                if table_events(db, schema, table) is None:
                    raise InvalidDeclaration(
                        f"'{schema}.{table}' is not there, so its changes cannot be captured.",
                        fix="name a table as database.table",
                    )
            try:
                self._logs(db)
            except FlowError as exc:
                raise ConnectionFailed(
                    f"MySQL connection '{self.connection.name}' may not read the binary log: {exc.message}",
                    fix="GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO …; on MariaDB BINLOG MONITOR, too",
                ) from exc

    def prepare(self, reading: StreamReading) -> None:
        """Decide how the capture begins or goes on; nothing is made in the server."""
        folder = self._folder_of(reading)
        capture = BinlogCapture(
            self.session,
            self.explained,
            self.url,
            self.connection.name,
            reading.query,
            reading.stream,
            self._tables(reading.query),
            # Replicas of one server must differ in this number.
            _IDS + int(digest(f"{reading.stream} {reading.query}")[:7], 16),
        )
        self._capture = capture
        reset, with_rows = reset_in(reading.start)
        state = CaptureState.read(folder)
        if state is None or (reset and state.begun != reset):
            begun_anew(folder, "", reset, with_rows=with_rows or not reset)
            return
        if state.phase == "stream":
            kept = Position.of(kept_position(folder))
            needed = max(state.lsn, kept.lsn if kept is not None else 0) >> 40
            with self.session() as db:
                first = min((number_of(str(row[0]), 0) >> 40 for row in self._logs(db)), default=needed + 1)
            if first > needed:
                raise changes_lost("The server has removed its log", capture.topic, capture.stream)

    def changes(self, folder: Path, position: Any) -> CaptureGiver:
        """Who reads the log for the spool."""
        assert self._capture is not None
        return BinlogGiver(self._capture, folder, position)

    def _tables(self, query: str) -> tuple[tuple[str, str], ...]:
        assert isinstance(self.connection, MySQLConnection)
        return captured_tables(query, self.connection.address().database or "")

    def _logs(self, db: Any) -> list[Any]:
        try:
            return list(db.execute("SHOW BINARY LOGS").fetchall())
        except Exception as exc:
            found = self.explained(exc)
            if found is None:
                raise
            raise found from exc


def require_reader() -> None:
    """Say how to install the library that reads the log.

    Raises:
        MissingDriver: it is not there.
    """
    try:
        import pymysqlreplication  # noqa: F401
    except ImportError as exc:
        raise MissingDriver(
            "Capturing MySQL needs 'mysql-replication'.", fix='pip install "ematix-flow[mysql-capture]"'
        ) from exc
