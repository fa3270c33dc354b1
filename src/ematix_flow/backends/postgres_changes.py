"""Changes of PostgreSQL for the spool: first the rows that are there, then every change after them.

Changes are received ahead of the targets and confirmed behind them. Until they are confirmed the server keeps them, and
gives them again to whoever asks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ematix_flow.backends.capture_giver import CaptureGiver, Stopped, stage_messages
from ematix_flow.backends.capture_state import CaptureState
from ematix_flow.backends.capture_stream import changes_lost
from ematix_flow.backends.pgoutput import Begin, Commit, Relation, RowChange, Truncate, decode
from ematix_flow.backends.postgres_events import Moment, TableEvents
from ematix_flow.backends.postgres_published import (
    CapturedTable,
    captured,
    drop_slot,
    end_and_drop_slot,
    open_transactions,
    slot_facts,
    written_mark,
)
from ematix_flow.backends.postgres_replication import Replication
from ematix_flow.backends.postgres_snapshot import snapshot_messages
from ematix_flow.backends.postgres_values import type_facts
from ematix_flow.declare.capture import OnFullSlot
from ematix_flow.errors import ConnectionFailed, FlowError, LostMessages, StreamError

log = logging.getLogger(__name__)

LINGER_S = 0.5
"""How long changes may wait for more before they are written to a file."""

TELL_EVERY_S = 1.0
REST_EVERY_S = 10.0
"""How often a slot with nothing to capture is moved on, so that the server can remove its log."""

GUARD_EVERY_S = 10.0
WARN_AT = 0.8


@dataclass(frozen=True)
class Capture:
    """What is captured, and through what.

    Attributes:
        session: Opens a connection for statements; its errors come out as ours.
        url: For the replication connection.
        name: The connection's name, for messages.
        topic: The source's query.
        stream: The name of the stream.
    """

    session: Callable[[], AbstractContextManager[Any]]
    url: str
    name: str
    topic: str
    stream: str
    slot: str
    publication: str
    tables: tuple[CapturedTable, ...] = ()
    max_slot_bytes: int | None = None
    on_full_slot: OnFullSlot = "fail"

    def lost(self, what: str) -> LostMessages:
        """Changes are gone; only the rows themselves can still be read."""
        return changes_lost(what, self.topic, self.stream)


class ChangesGiver(CaptureGiver):
    """Rows and changes of PostgreSQL for the spool; what targets have is confirmed to the slot."""

    def __init__(self, capture: Capture, folder: Path, kept: Mapping[str, Any] | None) -> None:
        super().__init__(folder, kept)
        self._capture = capture
        self.part = capture.slot
        self._replication: Replication | None = None
        self._state_lock = threading.Lock()
        self._tables: dict[int, TableEvents] = {}
        self._moment = Moment(0, 0)
        self._rested_at = 0.0
        self._keeper: threading.Thread | None = None
        self._ended = threading.Event()
        self._has_warned = False
        self.held_limit = capture.max_slot_bytes

    def _confirm(self, lsn: int) -> None:
        if self._replication is not None:
            self._replication.confirm(lsn)

    def close(self) -> None:
        """Let the slot go; what is not confirmed comes again."""
        self._ended.set()
        if self._keeper is not None:
            self._keeper.join(30)
        if self._replication is not None:
            with suppress(FlowError):
                self._rest(at_once=True)
            self._replication.close()
            self._replication = None

    # ── beginning ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        state = CaptureState.read(self._folder)
        assert state is not None, "it was prepared"
        if state.phase == "snapshot":
            state = self._read_rows(state)
        start = self._start(state)
        self._moment = Moment(start.ts_ms, 0)
        with self._capture.session() as db:
            self._goal = written_mark(db)
        replication = Replication(self._capture.url, self._capture.name)
        try:
            replication.start(self._capture.slot, self._capture.publication, start.lsn)
        except FlowError:
            replication.close()
            raise
        self._replication, self._has_begun = replication, True
        self.confirm()
        self._keeper = threading.Thread(target=self._keep, name="capture-keeper", daemon=True)
        self._keeper.start()

    def _read_rows(self, state: CaptureState) -> CaptureState:
        """Make the slot and read the rows that fit it; where changes begin, and how many files of rows there are."""
        capture = self._capture
        with capture.session() as db:
            # Before the slot, and a little earlier: no change that comes after the rows may look older than they are.
            ts_us = int(db.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").fetchone()[0])
            ts_ms = ts_us // 1000 - 1
            moment = Moment(ts_ms, ts_us, is_snapshot=True)
            if state.keeps_slot:
                known = slot_facts(db, capture.slot)
                if known is None:
                    raise capture.lost(f"The replication slot '{capture.slot}' is gone")
                files = self._staged(db, None, known.confirmed_lsn - 1, moment, state)
                # Changes from before the rows come, too, and must look as old as they are.
                done = replace(state, phase="stream", lsn=known.confirmed_lsn, ts_ms=0, staged=files)
            else:
                drop_slot(db, capture.slot)
                replication = Replication(capture.url, capture.name)
                try:
                    slot = replication.create_slot(capture.slot, self.stopping.is_set, self._say_what_it_waits_for)
                    if slot is None:
                        raise Stopped
                    first = db.execute(
                        "SELECT pg_wal_lsn_diff(restart_lsn, '0/0')::bigint FROM pg_replication_slots "
                        "WHERE slot_name = %s",
                        (capture.slot,),
                    ).fetchone()
                    # A change may lie before the point from which on transactions count, but never before this.
                    files = self._staged(db, slot.snapshot, int(first[0]) - 1, moment, state)
                finally:
                    replication.close()
                done = replace(state, phase="stream", lsn=slot.consistent_lsn, ts_ms=ts_ms, staged=files)
        done.write(self._folder)
        return done

    def _staged(self, db: Any, snapshot: str | None, lsn: int, moment: Moment, state: CaptureState) -> int:
        if not state.with_rows:
            return 0
        db.execute("SET IntervalStyle = 'postgres'")
        db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            if snapshot is not None:
                db.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            # Closed before the transaction ends: a COPY that was left in the middle keeps the connection to itself.
            with closing(snapshot_messages(db, self._capture.tables, lsn, moment)) as rows:
                return stage_messages(self._folder, self._capture.topic, rows, self.stopping.is_set)
        finally:
            db.execute("ROLLBACK")

    def _say_what_it_waits_for(self) -> None:
        with self._capture.session() as db:
            others = open_transactions(db)
        log.warning(
            "%s: waiting for transactions to end that are open in the source (%d write); capture begins behind them",
            self._capture.stream,
            others,
        )

    # ── receiving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, idle_s: float) -> None:
        assert self._replication is not None
        deadline = time.monotonic() + LINGER_S
        while not self._gathered.is_full and time.monotonic() < deadline and not self.stopping.is_set():
            received = self._replication.receive(idle_s)
            if received is None:
                return
            if received.data is not None:
                self._hear(received.lsn, received.data)
                continue
            self._heard = max(self._heard, received.lsn)
            self._rest()
            return  # it has nothing more to say for now

    def _hear(self, lsn: int, data: bytes) -> None:
        message = decode(data)
        if isinstance(message, RowChange):
            for event in self._tables[message.relation].changed(message, lsn, self._moment):
                self._gathered.add(event)
        elif isinstance(message, Begin):
            ts_ms = max(message.commit_us // 1000, self._moment.ts_ms)
            self._moment = Moment(ts_ms, message.commit_us, message.xid)
        elif isinstance(message, Commit):
            self._gathered.commit(message.end_lsn, self._moment.ts_ms)
            self._heard = max(self._heard, message.end_lsn)
        elif isinstance(message, Relation):
            self._tables[message.oid] = self._table(message)
        elif isinstance(message, Truncate):
            for relation in message.relations:
                self._gathered.add(self._tables[relation].event("t", None, lsn, self._moment))

    def _table(self, relation: Relation) -> TableEvents:
        """How a table's events are written; a table that was altered is told again, and asked for again."""
        with self._capture.session() as db:
            facts = type_facts(db)
            key: Sequence[str] = ()
            if relation.is_full:
                with suppress(FlowError):  # it may be gone by now, and still have changes to tell of
                    key = captured(db, [(relation.schema, relation.table)])[0].key
            return TableEvents.of(relation, db.info.dbname, key, facts)

    def _rest(self, *, at_once: bool = False) -> None:
        """Nothing waits anywhere: let the server forget its log up to here, though none of it was captured."""
        is_idle = self._gathered.is_empty and self._given == self._applied and self._staged_next >= self._staged_end
        is_time = at_once or time.monotonic() - self._rested_at >= REST_EVERY_S
        if not is_idle or not is_time or self._heard <= self._gathered.position.lsn or self._state is None:
            return
        assert self._replication is not None
        with self._state_lock:
            # Written down first, so that the next start does not take it for somebody else's doing.
            self._state = replace(self._state, confirmed=self._heard)
            self._state.write(self._folder)
        self._rested_at = time.monotonic()
        self._gathered.rest_at(self._heard)
        self._given = self._applied = self._gathered.position
        self._replication.confirm(self._heard)

    # ── guarding the slot ────────────────────────────────────────────────────────────────────────────────────────────

    def _keep(self) -> None:
        """In a thread of its own: say that we live, and look after the size of the slot."""
        guarded_at = 0.0
        while not self._ended.wait(TELL_EVERY_S if self.is_caught_up else 0.1):
            try:
                assert self._replication is not None
                self._replication.tell(ask=True)
                if time.monotonic() - guarded_at >= GUARD_EVERY_S:
                    guarded_at = time.monotonic()
                    self._guard_if_let_in()
            except FlowError as exc:
                if self._failure is None:
                    self._failure = exc
                return

    def _guard_if_let_in(self) -> None:
        """A server without a free connection is no reason to stop receiving; it is asked again."""
        try:
            self._guard()
        except ConnectionFailed as exc:
            log.warning("%s: the size of its slot is not known: %s", self._capture.stream, exc.message)

    def _guard(self) -> None:
        capture = self._capture
        with capture.session() as db:
            known = slot_facts(db, capture.slot)
        if known is None:
            return
        self.held_bytes = known.held_bytes
        most = capture.max_slot_bytes
        if most is None:
            return
        size = f"{known.held_bytes:,} of {most:,} bytes"
        if known.held_bytes < most:
            is_near = known.held_bytes >= WARN_AT * most
            told, self._has_warned = self._has_warned, is_near
            if is_near and not told:
                log.warning("%s: the server keeps %s of its log for slot '%s'", capture.stream, size, capture.slot)
            return
        if capture.on_full_slot == "drop":
            self._failure = capture.lost(
                f"The replication slot '{capture.slot}' kept {size} of the server's log, and was dropped as declared"
            )
            self._give_up()
            raise self._failure
        raise StreamError(
            f"The server keeps {size} of its log for the replication slot '{capture.slot}' of the stream "
            f"'{capture.stream}'.",
            fix="find out why its targets are slow, and raise max_slot_bytes so that it can catch up",
        )

    def _give_up(self) -> None:
        """Drop the slot, and remember that; whoever reads from it finds the connection closed."""
        assert self._state is not None
        with self._state_lock:
            self._state = replace(self._state, phase="dropped")
            self._state.write(self._folder)
        with self._capture.session() as db:
            end_and_drop_slot(db, self._capture.slot)
