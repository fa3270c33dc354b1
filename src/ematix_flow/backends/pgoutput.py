"""The words of `pgoutput`, the decoder of changes that every PostgreSQL brings: its bytes as plain values.

Version 1 of its protocol: whole transactions, in the order in which they were committed, values as text. Nothing here
connects to anything.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

POSTGRES_EPOCH_US = 946_684_800_000_000
"""PostgreSQL counts microseconds from the year 2000."""


class Unchanged:
    """Stands for a value that was stored apart and not touched by an update: the server does not send it again."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Value = str | None | Unchanged


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins; `commit_us` is when it was committed, in microseconds since 1970."""

    commit_lsn: int
    commit_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """It is complete; `end_lsn` is where the next one is looked for."""

    end_lsn: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as it was when the change was made."""

    name: str
    type_oid: int
    is_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, told before its first change and whenever it was altered; `is_full` when old rows come whole."""

    oid: int
    schema: str
    table: str
    columns: tuple[RelationColumn, ...]
    is_full: bool = False


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row that was inserted, updated or deleted.

    `old` is None where the server had no reason to send it; `old_is_key` says that it holds the identity alone.
    """

    kind: Literal["insert", "update", "delete"]
    relation: int
    old: Sequence[Value] | None
    new: Sequence[Value] | None
    old_is_key: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables that were emptied together."""

    relations: tuple[int, ...]


Decoded = Begin | Commit | Relation | RowChange | Truncate

_INT16, _INT32 = struct.Struct(">H"), struct.Struct(">I")
_BEGIN, _COMMIT = struct.Struct(">QqI"), struct.Struct(">BQQq")
_NULL, _SAME, _TEXT = ord("n"), ord("u"), ord("t")


def decode(data: bytes) -> Decoded | None:
    """One message; None for those that say nothing about rows (types, origins, messages of applications)."""
    kind = data[0:1]
    if kind == b"I":
        new, _ = _row(data, 6)
        return RowChange("insert", _INT32.unpack_from(data, 1)[0], None, new)
    if kind == b"U":
        return _update(data)
    if kind == b"D":
        old, _ = _row(data, 6)
        return RowChange("delete", _INT32.unpack_from(data, 1)[0], old, None, data[5:6] == b"K")
    if kind == b"B":
        lsn, when, xid = _BEGIN.unpack_from(data, 1)
        return Begin(lsn, when + POSTGRES_EPOCH_US, xid)
    if kind == b"C":
        return Commit(_COMMIT.unpack_from(data, 1)[2])
    if kind == b"R":
        return _relation(data)
    if kind == b"T":
        number = _INT32.unpack_from(data, 1)[0]
        return Truncate(struct.unpack_from(f">{number}I", data, 6))
    return None


def _update(data: bytes) -> RowChange:
    relation = _INT32.unpack_from(data, 1)[0]
    marker, place = data[5:6], 6
    old: Sequence[Value] | None = None
    if marker != b"N":
        old, place = _row(data, place)
        place += 1  # the marker of the new row
    new, _ = _row(data, place)
    return RowChange("update", relation, old, new, marker == b"K")


def _row(data: bytes, place: int) -> tuple[list[Value], int]:
    """The values of a row, and where it ends."""
    number = _INT16.unpack_from(data, place)[0]
    place += 2
    values: list[Value] = []
    for _ in range(number):
        kind = data[place]
        if kind == _TEXT:
            begin = place + 5
            place = begin + _INT32.unpack_from(data, place + 1)[0]
            values.append(data[begin:place].decode())
            continue
        assert kind in (_NULL, _SAME), "values come as text: nobody asked for binary ones"
        values.append(None if kind == _NULL else UNCHANGED)
        place += 1
    return values, place


def _relation(data: bytes) -> Relation:
    oid = _INT32.unpack_from(data, 1)[0]
    schema, place = _name(data, 5)
    table, place = _name(data, place)
    is_full = data[place : place + 1] == b"f"
    place += 1
    number = _INT16.unpack_from(data, place)[0]
    place += 2
    columns = []
    for _ in range(number):
        is_identity = bool(data[place] & 1)
        name, place = _name(data, place + 1)
        columns.append(RelationColumn(name, _INT32.unpack_from(data, place)[0], is_identity))
        place += 8  # the type, and its modifier
    return Relation(oid, schema or "pg_catalog", table, tuple(columns), is_full)


def _name(data: bytes, place: int) -> tuple[str, int]:
    end = data.index(b"\0", place)
    return data[place:end].decode(), end + 1
