"""PostgreSQL as the source of a stream: its changes, by logical decoding, without a broker between.

A slot keeps the log for the stream; it is made together with a snapshot of the rows, so that nothing lies between both.
Changes are received into files (`queue_spool.py`), applied by the stream, and then confirmed (`postgres_changes.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ematix_flow.backends.capture_giver import CaptureGiver
from ematix_flow.backends.capture_state import CaptureState, Position
from ematix_flow.backends.capture_stream import CapturesTables, begun_anew, reset_in
from ematix_flow.backends.locks import digest
from ematix_flow.backends.postgres_changes import Capture, ChangesGiver
from ematix_flow.backends.postgres_published import (
    captured,
    check_server,
    drop_slot,
    publish,
    slot_facts,
    unpublish,
)
from ematix_flow.backends.postgres_replication import Replication
from ematix_flow.backends.queue_spool import kept_position
from ematix_flow.contracts.streams import StreamReading
from ematix_flow.declare.capture import OnFullSlot, captured_tables
from ematix_flow.declare.connection import PostgresConnection
from ematix_flow.errors import AlreadyRunning, StateIncompatible


class CapturesChanges(CapturesTables):
    """What PostgreSQL's backend adds to be read as a stream."""

    _capture: Capture | None = None

    def check_stream(self, query: str) -> None:
        """Make sure that the server can do it, that the tables are there and have keys, and that we are let in."""
        with self.session() as db:
            check_server(db, self.connection.name)
            captured(db, captured_tables(query))
        Replication(self.url, self.connection.name).close()

    def prepare(self, reading: StreamReading) -> None:
        """Decide how the capture begins or goes on. Only the publication is made here; the slot comes with the rows."""
        self._capture = self._prepared(reading, self._folder_of(reading))

    def changes(self, folder: Path, position: Any) -> CaptureGiver:
        """Who receives changes for the spool."""
        assert self._capture is not None
        return ChangesGiver(self._capture, folder, position)

    def let_go(self, query: str, stream: str) -> Sequence[str]:
        """Drop the slot, and the publication if it is our own. The stream cannot go on afterwards, only begin anew.

        Raises:
            AlreadyRunning: somebody receives from the slot.
        """
        assert isinstance(self.connection, PostgresConnection)
        removed = []
        with self.session() as db:
            slot = self.connection.slot or slot_name(db.info.dbname, stream, query)
            known = slot_facts(db, slot)
            if known is not None and known.is_active:
                raise AlreadyRunning(f"Somebody receives from the replication slot '{slot}'.", fix="stop it first")
            if known is not None:
                drop_slot(db, slot)
                removed.append(f"replication slot '{slot}'")
            if self.connection.publication is None and unpublish(db, slot):
                removed.append(f"publication '{slot}'")
        return removed

    # ── beginning or going on ────────────────────────────────────────────────────────────────────────────────────────

    def _prepared(self, reading: StreamReading, folder: Path) -> Capture:
        assert isinstance(self.connection, PostgresConnection)
        own = self.connection
        with self.session() as db:
            slot = own.slot or slot_name(db.info.dbname, reading.stream, reading.query)
            capture = Capture(
                self.session,
                self.url,
                own.name,
                reading.query,
                reading.stream,
                slot,
                own.publication or slot,
                max_slot_bytes=None if own.max_slot_bytes is None else int(own.max_slot_bytes),
                on_full_slot=cast(OnFullSlot, own.on_full_slot or "fail"),
            )
            tables = captured(db, captured_tables(reading.query))
            state = self._settled_beginning(db, capture, folder, reading.start)
            is_own, begins = own.publication is None, state.phase == "snapshot"
            tables = publish(db, capture.publication, tables, is_own=is_own, begins=begins)
        return replace(capture, tables=tuple(tables))

    def _settled_beginning(self, db: Any, capture: Capture, folder: Path, start: Any) -> CaptureState:
        """What is remembered of the capture, or that it begins now; refuses to go on where changes are missing."""
        state, slot = CaptureState.read(folder), slot_facts(db, capture.slot)
        reset, with_rows = reset_in(start)
        if reset and (state is None or state.begun != reset):
            if slot is not None and slot.is_active:
                raise AlreadyRunning(f"Another stream receives from the replication slot '{capture.slot}'.")
            drop_slot(db, capture.slot)
            return begun_anew(folder, capture.slot, reset, with_rows=with_rows)
        if state is None:
            # A slot that is there without anything remembered was made by somebody, for a reason: it stays, and changes
            # since it was made come in addition to the rows as they are now.
            state = CaptureState(capture.slot, "snapshot", keeps_slot=slot is not None)
            state.write(folder)
            return state
        if state.slot != capture.slot:
            raise StateIncompatible(
                f"The stream '{capture.stream}' captured through slot '{state.slot}', and now names '{capture.slot}'.",
                fix=f"name the old one, or begin with all rows: flow state reset {capture.stream} --from earliest",
            )
        if state.phase == "snapshot":
            return state
        if state.phase == "dropped":
            raise capture.lost(f"The replication slot '{capture.slot}' had become too large and was dropped")
        if slot is None or slot.is_lost:
            gone = "is gone" if slot is None else "has lost its log: it had grown beyond max_slot_wal_keep_size"
            raise capture.lost(f"The replication slot '{capture.slot}' {gone}")
        kept = Position.of(kept_position(folder))
        if slot.confirmed_lsn > max(state.lsn, state.confirmed, kept.lsn if kept is not None else 0):
            raise capture.lost(f"Somebody else has received changes from the replication slot '{capture.slot}'")
        return state


def slot_name(database: str, stream: str, query: str) -> str:
    """The slot of a stream's source: recognised by people, and shared with no other of any database of the server.

    >>> slot_name("shop", "Orders to lake", "public.orders")
    'ematix_flow_orders_to_lake_...'
    """
    slug = re.sub(r"[^a-z0-9]+", "_", stream.lower()).strip("_")[:36]
    return f"ematix_flow_{slug}_{digest(f'{database} {stream} {query}')[:8]}"
