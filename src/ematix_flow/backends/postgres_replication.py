"""A replication connection to PostgreSQL: makes a slot, receives what is written to the log, says how far it got.

psycopg has no replication protocol of its own, but the library below it does all that is needed: commands, messages in
both directions, and a socket to wait for. One thread reads; any may confirm.
"""

from __future__ import annotations

import select
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import AlreadyRunning, ConnectionFailed, FlowError, StatementFailed

SETTINGS = (
    "-c TimeZone=UTC -c DateStyle=ISO,YMD -c IntervalStyle=postgres -c extra_float_digits=1 -c bytea_output=hex "
    "-c client_encoding=UTF8"
)
"""So that a value has one text, whoever asks. Rows are read under the same settings."""

OPTIONS = "proto_version '1', publication_names '{publication}'"
_HEADER, _KEEPALIVE, _STATUS = struct.Struct(">QQq"), struct.Struct(">Qqb"), struct.Struct(">QQQqb")
_IN_USE = "55006"
_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Received:
    """A piece of the log (`data`), or, without data, the word that everything before `lsn` has been sent."""

    lsn: int
    data: bytes | None = None


@dataclass(frozen=True, slots=True)
class NewSlot:
    """A slot that was just made: where its changes begin, and the name of the snapshot that shows all before them."""

    consistent_lsn: int
    snapshot: str


class Replication:
    """One replication connection."""

    def __init__(self, url: str, connection_name: str) -> None:
        import psycopg

        self._name = connection_name
        try:
            self._connection = psycopg.connect(
                url, autocommit=True, connect_timeout=10, replication="database", options=SETTINGS
            )
        except psycopg.Error as exc:
            reason = scrub(str(exc).strip().splitlines()[-1])
            raise ConnectionFailed(
                f"PostgreSQL connection '{connection_name}' is not let in to capture changes: {reason}",
                fix="ALTER ROLE … REPLICATION (on Amazon RDS: GRANT rds_replication TO …), and a free max_wal_senders",
            ) from exc
        self._pg: Any = self._connection.pgconn
        self._lock = threading.Lock()
        self._flushed = 0
        self._seen = 0

    def create_slot(self, slot: str, is_stopping: Callable[[], bool], waiting: Callable[[], None]) -> NewSlot | None:
        """Make a slot and a snapshot that fit each other without a gap; the snapshot lasts until the next command.

        The server waits until every transaction that is open now has ended. `waiting` is called once a while meanwhile.

        Returns:
            None when it was told to stop.
        """
        self._pg.send_query(f'CREATE_REPLICATION_SLOT "{slot}" LOGICAL pgoutput EXPORT_SNAPSHOT'.encode())
        next_word = time.monotonic() + _PATIENCE_S
        while True:
            self._pg.consume_input()
            if not self._pg.is_busy():
                break
            select.select([self._pg.socket], [], [], 0.2)
            if is_stopping():
                self._connection.cancel()
                return None
            if time.monotonic() > next_word:
                waiting()
                next_word = time.monotonic() + 6 * _PATIENCE_S
        result = self._pg.get_result()
        self._refuse_failure(result, slot)
        point, snapshot = (result.get_value(0, number).decode() for number in (1, 2))
        while self._pg.get_result() is not None:
            pass
        return NewSlot(lsn_number(point), snapshot)

    def start(self, slot: str, publication: str, after: int) -> None:
        """Begin to receive what was committed after a place in the log.

        Raises:
            AlreadyRunning: somebody else receives from the slot.
        """
        options = OPTIONS.format(publication=publication.replace("'", "''"))
        command = f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(after)} ({options})'.encode()
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            result = self._pg.exec_(command)
            # The server takes a moment to notice that a process which received from the slot has died.
            if _state_of(result) != _IN_USE or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self._refuse_failure(result, slot)
        self._seen = after  # and nothing is confirmed: what was received before may not be everywhere yet

    def receive(self, wait_s: float) -> Received | None:
        """The next thing the server has to say; None when it says nothing for so long."""
        import psycopg

        try:
            with self._lock:
                size, data = self._pg.get_copy_data(1)
            if size == 0:
                if not select.select([self._pg.socket], [], [], wait_s)[0]:
                    return None
                with self._lock:
                    self._pg.consume_input()
                    size, data = self._pg.get_copy_data(1)
        except psycopg.Error as exc:
            raise self._broken(str(exc)) from exc
        if size == 0:
            return None
        if size < 0:
            raise self._broken(self._pg.get_error_message())
        return self._read(bytes(data))

    def _read(self, data: bytes) -> Received:
        if data[:1] == b"w":
            lsn = _HEADER.unpack_from(data, 1)[0]
            self._seen = max(self._seen, lsn)
            return Received(lsn, data[25:])
        lsn, _, wants_answer = _KEEPALIVE.unpack_from(data, 1)
        self._seen = max(self._seen, lsn)
        if wants_answer:
            self.tell()
        return Received(lsn)

    def confirm(self, lsn: int) -> None:
        """Everything before this is safe elsewhere: the server need not keep it."""
        if lsn > self._flushed:
            self._flushed = lsn
            self.tell()

    def tell(self, *, ask: bool = False) -> None:
        """Say how far it got, which also says that it lives; `ask` for an answer."""
        import psycopg

        status = _STATUS.pack(max(self._seen, self._flushed), self._flushed, self._flushed, 0, int(ask))
        try:
            with self._lock:
                self._pg.put_copy_data(b"r" + status)
                self._pg.flush()
        except psycopg.Error as exc:
            raise self._broken(str(exc)) from exc

    def close(self) -> None:
        """End it so that the server has heard everything that was confirmed."""
        import psycopg

        try:
            with self._lock:
                self._pg.put_copy_end()
                self._pg.flush()
            deadline = time.monotonic() + _PATIENCE_S
            while time.monotonic() < deadline:
                size, _ = self._pg.get_copy_data(1)
                if size < 0:
                    break
                if size == 0 and select.select([self._pg.socket], [], [], 0.2)[0]:
                    self._pg.consume_input()
        except psycopg.Error:
            pass  # it was never started, or is gone already
        self._connection.close()

    def _broken(self, said: str) -> FlowError:
        reason = scrub((said.strip().splitlines() or ["it was closed"])[0])
        return ConnectionFailed(f"Capturing from PostgreSQL connection '{self._name}' broke: {reason}")

    def _refuse_failure(self, result: Any, slot: str) -> None:
        from psycopg import errors, pq

        if result.status in (pq.ExecStatus.COPY_BOTH, pq.ExecStatus.TUPLES_OK):
            return
        error = errors.error_from_result(result)
        if error.sqlstate == _IN_USE:
            raise AlreadyRunning(
                f"Another stream receives from the replication slot '{slot}'; this one has done nothing.",
                fix="stop the other one, or give this one a slot of its own: slot=… on the connection",
            )
        raise StatementFailed(
            f"PostgreSQL refuses to capture through slot '{slot}': {scrub(error.diag.message_primary or '')}.",
            fix=error.diag.message_hint,
        ) from error


def _state_of(result: Any) -> str | None:
    from psycopg import pq

    found = result.error_field(pq.DiagnosticField.SQLSTATE)
    return found.decode() if found else None


def lsn_text(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it.

    >>> lsn_text(0x1505FA8)
    '0/1505FA8'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """The number behind it.

    >>> lsn_number("0/1505FA8") == 0x1505FA8
    True
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)
