"""Changes of MySQL and MariaDB from their binary log, read in turns: from the last known transaction to the end.

Places in the log are whole numbers here, the number of the file above the place in it, so that they can be compared.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import Any

from ematix_flow.backends.capture_giver import CaptureGiver, stage_messages
from ematix_flow.backends.capture_state import CaptureState
from ematix_flow.backends.capture_stream import changes_lost
from ematix_flow.backends.mysql_session import login_of
from ematix_flow.backends.mysql_values import MysqlColumn, refuse_misread, value_json
from ematix_flow.backends.queue_spool import Message
from ematix_flow.contracts.mysql_words import backticked, text_literal
from ematix_flow.errors import FlowError, MissingDriver, UnsupportedBackend

POLL_S = 0.3
LINGER_S = 0.5
_PURGED = 1236
_BITS = 40
_PREPARED = 64
"""The flag with which MariaDB begins an XA transaction of which it is not known yet whether it will be committed."""
_TRUNCATE = re.compile(r"^\s*TRUNCATE\s+(?:TABLE\s+)?(?:(`[^`]+`|[\w$]+)\s*\.\s*)?(`[^`]+`|[\w$]+)", re.IGNORECASE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class BinlogCapture:
    """What is captured: tables by (database, name), and who we are among the server's replicas."""

    session: Callable[[], AbstractContextManager[Any]]
    explained: Callable[[Exception], FlowError | None]
    url: str
    name: str
    topic: str
    stream: str
    tables: tuple[tuple[str, str], ...]
    server_id: int


class Events:
    """Writes the events of one table."""

    def __init__(self, schema: str, table: str, columns: Mapping[str, MysqlColumn], key: Sequence[str]) -> None:
        self.columns, self.key = columns, tuple(key)
        self._source = f'"source":{{"connector":"mysql","db":{quoted(schema)},"table":{quoted(table)}'

    def knows(self, names: Sequence[str]) -> bool:
        """Whether all of these columns are known."""
        return all(name in self.columns for name in names)

    def key_of(self, row: Mapping[str, Any] | None) -> str | None:
        """The key of a row as JSON; None where the table has none."""
        return self._image({name: row[name] for name in self.key if name in row}) if row and self.key else None

    def event(
        self,
        op: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        place: tuple[str, int, int],
        ts_ms: int,
        *,
        is_snapshot: bool = False,
    ) -> Message:
        """One event at its place: file, position in it, row of the entry there."""
        file, position, row = place
        key = self.key_of(after if after is not None else before)
        body = (
            f'{{"op":"{op}","before":{self._image(before)},"after":{self._image(after)},{self._source},'
            f'"file":{quoted(file)},"pos":{position},"row":{row},"ts_ms":{ts_ms},'
            f'"snapshot":"{"true" if is_snapshot else "false"}"}},"ts_ms":{ts_ms}}}'
        )
        return Message(body.encode(), ts_ms * 1000, None, key=None if key is None else key.encode())

    def _image(self, row: Mapping[str, Any] | None) -> str:
        if row is None:
            return "null"
        unknown = MysqlColumn("", "")
        parts = (f"{quoted(name)}:{value_json(value, self.columns.get(name, unknown))}" for name, value in row.items())
        return "{" + ",".join(parts) + "}"


def table_events(db: Any, schema: str, table: str) -> Events | None:
    """How a table's events are written; None when it is not there."""
    where = f"table_schema = {text_literal(schema)} AND table_name = {text_literal(table)}"
    columns = db.execute(
        "SELECT column_name, data_type, character_octet_length, column_type FROM information_schema.columns "
        f"WHERE {where} ORDER BY ordinal_position"
    ).fetchall()
    if not columns:
        return None
    key = db.execute(
        f"SELECT column_name FROM information_schema.statistics WHERE {where} AND index_name = 'PRIMARY' "
        "ORDER BY seq_in_index"
    ).fetchall()
    made = {str(row[0]): MysqlColumn.of(str(row[0]), str(row[1]), row[2], str(row[3])) for row in columns}
    return Events(schema, table, made, [str(name) for (name,) in key])


def log_end(db: Any) -> tuple[str, int]:
    """The file that is being written, and where in it."""
    import pymysql

    try:
        row = db.execute("SHOW BINARY LOG STATUS").fetchone()
    except pymysql.err.ProgrammingError:
        row = db.execute("SHOW MASTER STATUS").fetchone()
    return str(row[0]), int(row[1])


def number_of(file: str, position: int) -> int:
    """A place in the log as a number.

    >>> number_of("binlog.000002", 4) - number_of("binlog.000001", 1370) > 0
    True
    """
    return (int(file.rpartition(".")[2]) << _BITS) | position


class BinlogGiver(CaptureGiver):
    """Rows and changes of MySQL for the spool."""

    part = "binlog"

    def __init__(self, capture: BinlogCapture, folder: Path, kept: Mapping[str, Any] | None) -> None:
        super().__init__(folder, kept)
        self._capture = capture
        self._reader: Any = None
        self._events: dict[tuple[str, str], Events] = {}
        self._left: Iterator[Message] = iter(())  # of an entry of the log that was more than a file holds
        self._read_to = self._ts_ms = self._end = 0
        self._is_undecided = False
        """Whether the transaction that is being read may still be rolled back."""

    def close(self) -> None:
        """End the reading; the log stays where it is."""
        if self._reader is not None:
            with suppress(Exception):  # the connection may be gone
                self._reader.close()
            self._reader = None

    def _confirm(self, lsn: int) -> None:
        """The server keeps its log for as long as it was told to, whoever has read it."""

    # ── beginning ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        state = CaptureState.read(self._folder)
        assert state is not None, "it was prepared"
        if state.phase == "snapshot":
            state = self._read_rows(state)
        start = self._start(state)
        self._read_to, self._ts_ms = start.lsn, start.ts_ms
        with self._capture.session() as db:
            self._goal = number_of(*log_end(db))
        self._has_begun = True

    def _read_rows(self, state: CaptureState) -> CaptureState:
        with self._capture.session() as db:
            file, position = log_end(db)
            ts_ms = int(db.execute("SELECT UNIX_TIMESTAMP()").fetchone()[0]) * 1000 - 1
            db.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            db.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            # MariaDB tells the very place that the snapshot shows. Elsewhere changes between both are found in the rows
            # already, and come once more: in order, so that the last word is right.
            said = dict(db.execute("SHOW STATUS LIKE 'binlog\\_snapshot\\_%'").fetchall())
            named = {str(name).lower(): value for name, value in said.items()}
            if named.get("binlog_snapshot_file"):
                file, position = str(named["binlog_snapshot_file"]), int(named["binlog_snapshot_position"])
            self._refuse_prepared(db)
            files = 0
            if state.with_rows:
                rows = self._rows(db, (file, position, 0), ts_ms)
                files = stage_messages(self._folder, self._capture.topic, rows, self.stopping.is_set)
        prefix = file.rpartition(".")[0]
        done = replace(state, slot=prefix, phase="stream", lsn=number_of(file, position), ts_ms=ts_ms, staged=files)
        done.write(self._folder)
        return done

    def _refuse_prepared(self, db: Any) -> None:
        """Refuse to begin while an XA transaction is prepared: its rows are in the log and in no table yet."""
        import pymysql

        try:
            prepared = db.execute("XA RECOVER").fetchall()
        except pymysql.err.MySQLError:
            return  # MySQL tells only those who have XA_RECOVER_ADMIN
        if prepared:
            raise UnsupportedBackend(
                f"The capture of {self._capture.topic} cannot begin while an XA transaction is prepared: its changes "
                "would be missing.",
                fix="XA RECOVER lists them; XA COMMIT or XA ROLLBACK ends one",
            )

    def _rows(self, db: Any, place: tuple[str, int, int], ts_ms: int) -> Iterator[Message]:
        for schema, table in self._capture.tables:
            events = table_events(db, schema, table)
            assert events is not None, "it was looked for"
            # The server shortens single-precision numbers when it writes them as text.
            chosen = ", ".join(
                f"CAST({backticked(name)} AS DOUBLE)" if column.kind == "float" else backticked(name)
                for name, column in events.columns.items()
            )
            names = list(events.columns)
            for row in db.streamed(f"SELECT {chosen} FROM {backticked(schema)}.{backticked(table)}"):
                yield events.event("r", None, dict(zip(names, row, strict=True)), place, ts_ms, is_snapshot=True)

    # ── receiving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, idle_s: float) -> None:
        if self._reader is None and not self._open():
            self.stopping.wait(POLL_S)
            return
        deadline = time.monotonic() + LINGER_S
        try:
            while time.monotonic() < deadline and not self.stopping.is_set():
                for message in self._left:
                    self._gathered.add(message)
                    if self._gathered.is_full:
                        return
                if self._gathered.is_full:
                    return
                event = self._reader.fetchone()
                if event is None:
                    self._reader = None
                    self._heard = max(self._heard, self._end)
                    return
                self._hear(event)
        except Exception as exc:
            found = None if isinstance(exc, FlowError) else self._explained(exc)
            if found is None:
                raise
            raise found from exc

    def _open(self) -> bool:
        """Open the log behind the last transaction; False when nothing is there."""
        with self._capture.session() as db:
            self._end = number_of(*log_end(db))
        if self._end <= self._read_to:
            self._heard = max(self._heard, self._end)
            return False
        assert self._state is not None
        file = f"{self._state.slot}.{self._read_to >> _BITS:06d}"
        self._reader = open_reader(self._capture, file, self._read_to & ((1 << _BITS) - 1))
        return True

    def _hear(self, event: Any) -> None:
        kind = type(event).__name__
        if kind in ("WriteRowsEvent", "UpdateRowsEvent", "DeleteRowsEvent"):
            self._left = self._changed(event, kind)
        elif kind == "XidEvent":
            self._commit()
        elif kind == "QueryEvent":
            self._queried(event)
        elif kind == "MariadbGtidEvent":
            self._is_undecided = bool(event.flags & _PREPARED)
        elif kind == "XAPrepareEvent":
            self._commit()  # nothing that is captured is in it

    def _commit(self) -> None:
        self._is_undecided = False
        self._read_to = number_of(self._reader.log_file, self._reader.log_pos)
        self._gathered.commit(self._read_to, self._ts_ms)
        self._heard = max(self._heard, self._read_to)

    def _changed(self, event: Any, kind: str) -> Iterator[Message]:
        table = (str(event.schema), str(event.table))
        if table not in self._capture.tables:
            return
        if self._is_undecided:
            raise UnsupportedBackend(
                f"An XA transaction changes '{'.'.join(table)}': its changes are in the log before it is known whether "
                "they will be committed.",
                fix="write to captured tables in transactions without XA, and begin with all rows again: "
                f"flow state reset {self._capture.stream} --from earliest",
            )
        self._ts_ms = max(int(event.timestamp) * 1000, self._ts_ms)
        for number, row in enumerate(event.rows):
            before = after = None
            if kind == "WriteRowsEvent":
                after = _image(row["values"], row["none_sources"])
            elif kind == "DeleteRowsEvent":
                before = _image(row["values"], row["none_sources"])
            else:
                before = _image(row["before_values"], row["before_none_sources"])
                after = _image(row["after_values"], row["after_none_sources"])
            yield from self._messages(table, before, after, number)

    def _messages(self, table: tuple[str, str], before: Any, after: Any, number: int) -> Iterator[Message]:
        events = self._table(table, list(after or before))
        for image in (before, after):
            for name, value in (image or {}).items():
                refuse_misread(value, events.columns.get(name, MysqlColumn(name, "")))
        place = (str(self._reader.log_file), int(self._reader.log_pos), number)
        if before is None or after is None:
            op = "c" if before is None else "d"
            yield events.event(op, before, after, place, self._ts_ms)
        elif events.key_of(before) == events.key_of(after):
            yield events.event("u", before, after, place, self._ts_ms)
        else:
            yield events.event("d", before, None, place, self._ts_ms)
            yield events.event("c", None, after, place, self._ts_ms)

    def _table(self, table: tuple[str, str], names: Sequence[str]) -> Events:
        """How a table's events are written; asked for again when it has columns that were not there."""
        known = self._events.get(table)
        if known is None or not known.knows(names):
            with self._capture.session() as db:
                known = table_events(db, *table) or known or Events(*table, {}, ())
            self._events[table] = known
        return known

    def _queried(self, event: Any) -> None:
        """A statement in the log: the end of a transaction, or a change of tables, which is one by itself."""
        said = event.query if isinstance(event.query, str) else event.query.decode("utf-8", "replace")
        text = _COMMENT.sub(" ", said).strip()
        if text.upper() in ("BEGIN", "START TRANSACTION") or text.upper().startswith(("SAVEPOINT", "XA END")):
            return
        if text.upper().startswith(("XA START", "XA BEGIN")):
            self._is_undecided = True  # as MySQL begins one
            return
        emptied = _TRUNCATE.match(text)
        if emptied:
            here = event.schema.decode() if isinstance(event.schema, bytes) else str(event.schema)
            schema, name = (None if part is None else part.strip("`") for part in emptied.groups())
            table = (schema or here, str(name))
            if table in self._capture.tables:
                self._ts_ms = max(int(event.timestamp) * 1000, self._ts_ms)
                place = (str(self._reader.log_file), int(self._reader.log_pos), 0)
                self._gathered.add(self._table(table, ()).event("t", None, None, place, self._ts_ms))
        self._commit()

    def _explained(self, exc: Exception) -> FlowError | None:
        capture = self._capture
        if exc.args and exc.args[0] == _PURGED:
            return changes_lost(
                "The server no longer has its log from where the stream was", capture.topic, capture.stream
            )
        return capture.explained(exc)


def _image(values: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, Any]:
    """A row of the log; where the reader has nothing for an empty set, an empty set."""
    return {name: "" if reasons.get(name) == "empty set" else value for name, value in values.items()}


def _connected(**settings: Any) -> Any:
    """A connection for the reader, which still uses a word that the driver has given up."""
    import pymysql

    if "db" in settings:
        settings["database"] = settings.pop("db")
    return pymysql.connect(**settings)


def open_reader(capture: BinlogCapture, file: str, position: int) -> Any:
    """The library's reader, from a place to the end of what is written.

    Raises:
        MissingDriver: it is not installed.
    """
    try:
        from pymysqlreplication import BinLogStreamReader
        from pymysqlreplication.event import MariadbGtidEvent, QueryEvent, XAPrepareEvent, XidEvent
        from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent
    except ImportError as exc:
        raise MissingDriver(
            "Capturing MySQL needs 'mysql-replication'.", fix='pip install "ematix-flow[mysql-capture]"'
        ) from exc
    return BinLogStreamReader(
        connection_settings=login_of(capture.url, capture.name),
        pymysql_wrapper=_connected,
        server_id=capture.server_id,
        log_file=file,
        log_pos=position,
        resume_stream=True,
        blocking=False,
        only_events=[
            WriteRowsEvent,
            UpdateRowsEvent,
            DeleteRowsEvent,
            XidEvent,
            XAPrepareEvent,
            MariadbGtidEvent,
            QueryEvent,
        ],
        only_schemas=sorted({schema for schema, _ in capture.tables}),
        only_tables=sorted({name for _, name in capture.tables}),
    )
