"""Dead letters in a table of a database: `ematix_dlq_records`, one row per letter.

Here is what operators do with them: look, take for a replay, set aside, remove. How a stream brings new ones in bulk is
the business of `run/dead_letters.py`, which loads the table like any other: ids that are there are left as they are.

A letter that was replayed leaves its id behind for a while, with status `replayed` and nothing else, and in `lease_id`
the generation of the stream's checkpoint. A batch that is done again after a crash then does not bring it back.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from ematix_flow.backends.books import Db
from ematix_flow.backends.database_file import DatabaseFileBackend
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.dead_letters import (
    ARRIVALS_MIN,
    COLUMNS,
    LEASE_MS,
    TABLE,
    TAKEN_BYTES,
    TAKEN_LETTERS,
    DeadLetter,
    DeadLetterStats,
    Selection,
    Status,
    Taken,
    position_text,
)
from ematix_flow.contracts.plans import Statement
from ematix_flow.contracts.shapes import TableRef

_TYPES = {column.name: column.type for column in COLUMNS}
_NAMES = tuple(_TYPES)
_REPLAYED = "replayed"
_REMEMBERED_MS = 7 * 24 * 3_600_000
_OLDEST_FIRST = "ORDER BY failed_at, seq, id"
_ALIKE = tuple(name for name in _NAMES if name in DeadLetter.__dataclass_fields__)


class SqlDeadLetters:
    """The letters of one pipeline in one database. `generation` is that of its checkpoint."""

    def __init__(self, backend: SqlBackend, pipeline: str, schema: str, generation: str = "") -> None:
        self.backend, self.pipeline, self.generation = backend, pipeline, generation
        self.table: TableRef = backend.table_ref(schema, TABLE)
        self._sql = backend.dialect.table(self.table)

    @property
    def label(self) -> str:
        """For people: the connection and the table."""
        return f"{self.backend.connection.name}.{self.table}"

    def ensure(self) -> None:
        """Make the table, should it not be there."""
        if self._is_there():
            return
        dialect = self.backend.dialect
        parts = [
            f"{dialect.quote(column.name)} {dialect.type_sql(column.type)}{'' if column.nullable else ' NOT NULL'}"
            for column in COLUMNS
        ]
        if isinstance(self.backend, DatabaseFileBackend):
            os.makedirs(os.path.dirname(os.path.abspath(self.backend.path)), exist_ok=True)
        make_schema = dialect.create_schema(self.table.schema) if self.table.schema else None
        with self.backend.transaction() as db:
            if make_schema:
                self.backend.change_schema(db, Statement(make_schema))
            db.execute(f"CREATE TABLE IF NOT EXISTS {self._sql} ({', '.join(parts)}, PRIMARY KEY (id))")

    def _is_there(self) -> bool:
        if isinstance(self.backend, DatabaseFileBackend) and not os.path.exists(self.backend.path):
            return False  # connecting would make an empty file
        return self.backend.describe(self.table) is not None

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def records(self, status: Status | None, page: int, page_size: int) -> list[DeadLetter]:
        """One page, oldest first."""
        only = f" AND status = {self._value('status', status)}" if status else ""
        return self._letters(f"WHERE {self._mine}{only} {_OLDEST_FIRST} LIMIT {page_size} OFFSET {page * page_size}")

    def by_id(self, letter: str) -> DeadLetter | None:
        """The letter with this id."""
        found = self._letters(f"WHERE {self._mine} AND id = {self._value('id', letter)}")
        return found[0] if found else None

    def ids_like(self, beginning: str, most: int = 10) -> list[str]:
        """Ids that begin so. An id holds no letters that LIKE would read in its own way."""
        if not self._is_there() or not set(beginning) <= set("0123456789abcdef-"):
            return []
        like = self._value("id", f"{beginning}%")
        with self.backend.session() as db:
            found = db.execute(
                f"SELECT id FROM {self._sql} WHERE {self._mine} AND id LIKE {like} ORDER BY id LIMIT {most}"
            )
            return [str(row[0]) for row in found.fetchall()]

    def stats(self, now_ms: int) -> DeadLetterStats:
        """Counts over all letters."""
        ages = [
            f"sum(CASE WHEN failed_at >= {now_ms - minutes * 60_000} THEN 1 ELSE 0 END)" for minutes in ARRIVALS_MIN
        ]
        rows: list[Any] = []
        if self._is_there():
            with self.backend.session() as db:
                asked = f"SELECT stage, status, count(*), {', '.join(ages)} FROM {self._sql} WHERE {self._mine}"
                rows = db.execute(f"{asked} GROUP BY stage, status").fetchall()
        stages: dict[str, int] = {}
        for stage, _, number, *_ in rows:
            stages[str(stage)] = stages.get(str(stage), 0) + int(number)
        counts = {wanted: sum(int(row[2]) for row in rows if row[1] == wanted) for wanted in ("pending", "parked")}
        arrivals = {
            f"last_{minutes}m": sum(int(row[3 + place]) for row in rows) for place, minutes in enumerate(ARRIVALS_MIN)
        }
        return DeadLetterStats(counts["pending"], counts["parked"], stages, arrivals, sum(counts.values()), False)

    def _letters(self, condition: str) -> list[DeadLetter]:
        if not self._is_there():
            return []
        with self.backend.session() as db:
            return self._read(db, condition)

    def _read(self, db: Db, condition: str) -> list[DeadLetter]:
        columns = self.backend.dialect.columns(_NAMES)
        rows = db.execute(f"SELECT {columns} FROM {self._sql} {condition}").fetchall()
        return [_letter(dict(zip(_NAMES, row, strict=True))) for row in rows]

    # ── a replay ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, selection: Selection, *, before_ms: int, now_ms: int) -> Taken | None:
        """The next step of a replay: one that was cut off and whose lease has ended, else letters nobody holds."""
        if not self._is_there():
            return None
        with self.backend.transaction() as db:
            db.execute(f"DELETE FROM {self._sql} WHERE {self._traces} AND failed_at < {now_ms - _REMEMBERED_MS}")
            cut_off = db.execute(
                f"SELECT lease_id FROM {self._sql} WHERE {self._mine} AND lease_id IS NOT NULL "
                f"AND leased_until <= {now_ms} {_OLDEST_FIRST} LIMIT 1"
            ).fetchone()
            if cut_off is not None:
                lease = str(cut_off[0])
                self._lease(db, lease, f"lease_id = {self._value('lease_id', lease)}", now_ms)
            else:
                ids = self._free(db, selection, before_ms)
                if not ids:
                    return None
                lease = str(uuid4())
                self._lease(db, lease, f"id IN ({self._ids(ids)})", now_ms)
            held = f"WHERE {self._mine} AND lease_id = {self._value('lease_id', lease)} {_OLDEST_FIRST}"
            return Taken(lease, tuple(self._read(db, held)))

    def _free(self, db: Db, selection: Selection, before_ms: int) -> list[str]:
        """Ids of letters that may be taken, as many as one step holds."""
        size = "length" if self.backend.dialect.name == "sqlite" else "octet_length"
        most = min(TAKEN_LETTERS, selection.n) if selection.kind == "first_n" else TAKEN_LETTERS
        named = selection.kind == "ids"
        # A letter that is named is meant, parked or not; others wait until it is said that they are.
        which = f"id IN ({self._ids(selection.ids)})" if named else f"status = 'pending' AND failed_at < {before_ms}"
        rows = db.execute(
            f"SELECT id, coalesce({size}(payload), 0) FROM {self._sql} WHERE {self._mine} AND lease_id IS NULL "
            f"AND {which} {_OLDEST_FIRST} LIMIT {most}{self.backend.lock_clause}"
        ).fetchall()
        ids: list[str] = []
        total = 0
        for letter, bytes_ in rows:
            total += int(bytes_)
            if ids and total > TAKEN_BYTES:
                break
            ids.append(str(letter))
        return ids

    def _lease(self, db: Db, lease: str, which: str, now_ms: int) -> None:
        db.execute(
            f"UPDATE {self._sql} SET lease_id = {self._value('lease_id', lease)}, leased_until = {now_ms + LEASE_MS} "
            f"WHERE {self._mine} AND {which}"
        )

    def decide(self, taken: Taken, failed: Sequence[DeadLetter], originals: Sequence[str], *, now_ms: int) -> None:
        """Put letters that failed again in the place of their originals, in one transaction; the rest is held on."""
        with self.backend.transaction() as db:
            for again, original in zip(failed, originals, strict=True):
                self._replace(db, again, original)
            self._lease(db, taken.lease, f"lease_id = {self._value('lease_id', taken.lease)}", now_ms)
        reached("letters-decided")

    def _replace(self, db: Db, again: DeadLetter, original: str) -> None:
        """The payload stays where it is: the new row is made from the old one."""
        changed: dict[str, object] = {
            **{name: getattr(again, name) for name in ("id", "stage", "error", "failed_at", "attempt", "status")},
            "lease_id": None,
            "leased_until": None,
        }
        values = [
            self._value(name, changed[name]) if name in changed else f"t.{self.backend.dialect.quote(name)}"
            for name in _NAMES
        ]
        db.execute(
            f"INSERT INTO {self._sql} ({self.backend.dialect.columns(_NAMES)}) SELECT {', '.join(values)} "
            f"FROM {self._sql} AS t WHERE t.id = {self._value('id', original)} "
            f"AND NOT EXISTS (SELECT 1 FROM {self._sql} AS o WHERE o.id = {self._value('id', again.id)})"
        )
        self._leave_traces(db, f"id = {self._value('id', original)}", again.failed_at)

    def done(self, taken: Taken, *, now_ms: int) -> None:
        """The targets hold what is left of the step: remove it."""
        with self.backend.transaction() as db:
            self._leave_traces(db, f"lease_id = {self._value('lease_id', taken.lease)}", now_ms)

    def give_back(self, taken: Taken) -> None:
        """The step could not be finished. The next replay takes it up under the same name, and need not wait."""
        with self.backend.transaction() as db:
            lease = self._value("lease_id", taken.lease)
            db.execute(f"UPDATE {self._sql} SET leased_until = 0 WHERE {self._mine} AND lease_id = {lease}")

    def _leave_traces(self, db: Db, which: str, now_ms: int) -> None:
        changes = {
            **{"status": _REPLAYED, "error": "", "payload": None, "message_key": None, "headers": None},
            **{"lease_id": self.generation, "leased_until": None, "failed_at": now_ms},
        }
        told = ", ".join(f"{name} = {self._value(name, value)}" for name, value in changes.items())
        db.execute(f"UPDATE {self._sql} SET {told} WHERE {self._mine} AND {which}")

    def forget_traces(self) -> None:
        """Forget replayed letters of earlier generations: after a rewind the same messages may fail anew."""
        with self.backend.transaction() as db:
            other = f"lease_id <> {self._value('lease_id', self.generation)}"
            db.execute(f"DELETE FROM {self._sql} WHERE {self._traces} AND {other}")

    def known(self, ids: Sequence[str]) -> set[str]:
        """Which of these are here, or have left a trace."""
        if not ids or not self._is_there():
            return set()
        found: set[str] = set()
        with self.backend.session() as db:
            for at in range(0, len(ids), TAKEN_LETTERS):
                some = self._ids(ids[at : at + TAKEN_LETTERS])
                rows = db.execute(f"SELECT id FROM {self._sql} WHERE id IN ({some})").fetchall()
                found |= {str(row[0]) for row in rows}
        return found

    # ── by hand ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def keep(self, letters: Sequence[DeadLetter]) -> None:
        """Add letters that come from elsewhere; those that are there stay as they are."""
        self.ensure()
        with self.backend.transaction() as db:
            for letter in letters:
                known = db.execute(f"SELECT 1 FROM {self._sql} WHERE id = {self._value('id', letter.id)}").fetchone()
                if known is None:
                    row = _row(letter)
                    values = ", ".join(self._value(name, row.get(name)) for name in _NAMES)
                    db.execute(f"INSERT INTO {self._sql} ({self.backend.dialect.columns(_NAMES)}) VALUES ({values})")

    def park(self, selection: Selection, *, now_ms: int) -> int:
        """Set pending letters aside, so that replays leave them."""
        return self._change(selection, now_ms, f"UPDATE {self._sql} SET status = 'parked'", " AND status = 'pending'")

    def purge(self, selection: Selection, *, now_ms: int) -> int:
        """Remove letters for good, parked ones too; those that a replay holds stay."""
        return self._change(selection, now_ms, f"DELETE FROM {self._sql}", "")

    def _change(self, selection: Selection, now_ms: int, statement: str, also: str) -> int:
        if not self._is_there():
            return 0
        free = f"{self._mine} AND (lease_id IS NULL OR leased_until <= {now_ms}){also}"
        with self.backend.transaction() as db:
            if selection.kind == "all":
                which = ""
            elif selection.kind == "ids":
                which = f" AND id IN ({self._ids(selection.ids)})"
            else:
                oldest = db.execute(f"SELECT id FROM {self._sql} WHERE {free} {_OLDEST_FIRST} LIMIT {selection.n}")
                ids = [str(row[0]) for row in oldest.fetchall()]
                if not ids:
                    return 0
                which = f" AND id IN ({self._ids(ids)})"
            number = int(db.execute(f"SELECT count(*) FROM {self._sql} WHERE {free}{which}").fetchone()[0])
            db.execute(f"{statement} WHERE {free}{which}")
            return number

    @property
    def _mine(self) -> str:
        return f"pipeline_name = {self._value('pipeline_name', self.pipeline)} AND status <> '{_REPLAYED}'"

    @property
    def _traces(self) -> str:
        return f"pipeline_name = {self._value('pipeline_name', self.pipeline)} AND status = '{_REPLAYED}'"

    def _ids(self, ids: Sequence[str]) -> str:
        return ", ".join(self._value("id", one) for one in ids)

    def _value(self, column: str, value: object) -> str:
        return self.backend.dialect.literal(value, _TYPES[column])


def _letter(row: Mapping[str, Any]) -> DeadLetter:
    given = {name: row[name] for name in _ALIKE}
    for name in ("id", "pipeline_name", "stage", "error", "source_id", "payload_format", "status"):
        given[name] = str(given[name])
    for name in ("failed_at", "attempt"):
        given[name] = int(given[name])
    headers = json.loads(row["headers"]) if row["headers"] else ()
    given |= {
        "payload": None if row["payload"] is None else bytes(row["payload"]),
        "key": None if row["message_key"] is None else bytes(row["message_key"]),
        "position": json.loads(row["offset_bytes"]),
        "event_ts": None if row["event_ts"] is None else int(row["event_ts"]),
        "headers": tuple((header["key"], _unpacked(header.get("value"))) for header in headers),
    }
    return DeadLetter(**given)


def _row(letter: DeadLetter) -> dict[str, object]:
    packed = [
        {"key": key, **({} if value is None else {"value": base64.b64encode(value).decode()})}
        for key, value in letter.headers
    ]
    offset = letter.position.get("offset")
    return {
        **{name: getattr(letter, name) for name in _ALIKE if name != "headers"},
        "message_key": letter.key,
        "headers": json.dumps(packed) if packed else None,
        "offset_bytes": position_text(letter.position),
        "seq": offset if isinstance(offset, int) else 0,
    }


def _unpacked(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
