"""Changes of PostgreSQL tables as messages: change events in the shape that Debezium made known, the key beside them.

A value that an update did not touch and the server did not send is left out of `after`. A changed key is a delete and a
create, as it is there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import cast

from ematix_flow.backends.pgoutput import UNCHANGED, Relation, RowChange, Unchanged, Value
from ematix_flow.backends.postgres_values import Render, TypeFacts, render_of
from ematix_flow.backends.queue_spool import Message

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moment:
    """When changes were made, and by which transaction. `ts_ms` never goes back, whatever the server's clock does."""

    ts_ms: int
    event_time_us: int
    xid: int | None = None
    is_snapshot: bool = False


class TableEvents:
    """Writes the events of one table.

    Args:
        columns: Names and types, in the order of the values.
        key: The columns that tell rows apart; none where only whole rows do.
        identity: The columns that an old row is known by when it does not come whole.
    """

    def __init__(
        self,
        database: str,
        schema: str,
        table: str,
        columns: Sequence[tuple[str, int]],
        key: Sequence[str],
        identity: Sequence[str],
        facts: Mapping[int, TypeFacts],
    ) -> None:
        self._label = f"{schema}.{table}"
        self._columns: list[tuple[str, Render]] = [(f"{quoted(name)}:", render_of(oid, facts)) for name, oid in columns]
        names = [name for name, _ in columns]
        self._key = [names.index(name) for name in key if name in names]
        self._identity = [names.index(name) for name in identity if name in names]
        self._source = (
            f'"source":{{"connector":"postgresql","db":{quoted(database)},"schema":{quoted(schema)},'
            f'"table":{quoted(table)}'
        )
        self._warned = False

    @classmethod
    def of(
        cls, relation: Relation, database: str, primary_key: Sequence[str], facts: Mapping[int, TypeFacts]
    ) -> TableEvents:
        """For a table as the log tells of it; where old rows come whole, its key is asked of the catalogue."""
        flagged = [column.name for column in relation.columns if column.is_identity]
        return cls(
            database,
            relation.schema,
            relation.table,
            [(column.name, column.type_oid) for column in relation.columns],
            primary_key if relation.is_full else flagged,
            flagged,
            facts,
        )

    def changed(self, change: RowChange, lsn: int, moment: Moment) -> list[Message]:
        """The events of one change, at its place in the log: one, or two when the key is another."""
        if change.kind == "insert":
            return [self.event("c", change.new, lsn, moment)]
        before = None if change.old is None else self._row(change.old, self._identity if change.old_is_key else None)
        if change.new is None:
            assert change.old is not None
            return [self._event("d", before, "null", self._key_of(change.old), lsn, moment)]
        new = self._completed(change)
        key = self._key_of(new)
        if change.old is None or self._key_of(change.old) == key:
            return [self._event("u", before, self._row(new), key, lsn, moment)]
        self._warn_of_partial_rows(new)
        return [
            self._event("d", before, "null", self._key_of(change.old), lsn, moment),
            self._event("c", None, self._row(new), key, lsn, moment),
        ]

    def event(self, op: str, row: Sequence[Value] | None, lsn: int, moment: Moment) -> Message:
        """An event of a row that is new here, or that was found here; one without a row is a truncation."""
        if row is None:
            return self._event(op, None, "null", None, lsn, moment)
        return self._event(op, None, self._row(row), self._key_of(row), lsn, moment)

    def _completed(self, change: RowChange) -> Sequence[Value]:
        """The new row, with what was not sent again taken from an old row that came whole."""
        assert change.new is not None
        if change.old is None or change.old_is_key:
            return change.new
        pairs = zip(change.old, change.new, strict=True)
        return [old if isinstance(new, Unchanged) else new for old, new in pairs]

    def _row(self, values: Sequence[Value], only: Sequence[int] | None = None) -> str:
        columns = self._columns
        if only is not None:
            columns, values = [columns[number] for number in only], [values[number] for number in only]
        parts = [
            label + ("null" if value is None else render(cast(str, value)))
            for (label, render), value in zip(columns, values, strict=True)
            if value is not UNCHANGED
        ]
        return "{" + ",".join(parts) + "}"

    def _key_of(self, values: Sequence[Value]) -> str | None:
        return self._row(values, self._key) if self._key else None

    def _event(self, op: str, before: str | None, after: str, key: str | None, lsn: int, moment: Moment) -> Message:
        snapshot = "true" if moment.is_snapshot else "false"
        transaction = "" if moment.xid is None else f',"txId":{moment.xid}'
        body = (
            f'{{"op":"{op}","before":{before or "null"},"after":{after},{self._source}{transaction},'
            f'"lsn":{lsn},"ts_ms":{moment.ts_ms},"snapshot":"{snapshot}"}},"ts_ms":{moment.ts_ms}}}'
        )
        return Message(body.encode(), moment.event_time_us, None, key=None if key is None else key.encode())

    def _warn_of_partial_rows(self, new: Sequence[Value]) -> None:
        if self._warned or not any(isinstance(value, Unchanged) for value in new):
            return
        self._warned = True
        log.warning(
            "%s: a row got another key, and its long values did not change, so the server did not send them: they are "
            "missing under the new key. ALTER TABLE ... REPLICA IDENTITY FULL makes such changes whole",
            self._label,
        )
