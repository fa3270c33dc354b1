"""The rows of captured tables as they are in one snapshot, read in bulk by COPY."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from ematix_flow.backends.postgres_events import Moment, TableEvents
from ematix_flow.backends.postgres_published import CapturedTable
from ematix_flow.backends.postgres_values import type_facts
from ematix_flow.backends.queue_spool import Message

_ESCAPED = re.compile(r"\\(.)")
_LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def snapshot_messages(
    db: Any, tables: Sequence[CapturedTable], lsn: int, moment: Moment
) -> Generator[Message, None, None]:
    """All rows of the tables as events, in the transaction that `db` is in."""
    for table in tables:
        yield from _messages(db, table, lsn, moment)


def _messages(db: Any, table: CapturedTable, lsn: int, moment: Moment) -> Iterator[Message]:
    database = db.info.dbname
    events = TableEvents(database, table.schema, table.name, table.columns, table.key, table.key, type_facts(db))
    columns = ", ".join(_quoted(name) for name, _ in table.columns)
    chosen = f" WHERE {table.row_filter}" if table.row_filter else ""
    query = f"SELECT {columns} FROM {_quoted(table.schema)}.{_quoted(table.name)}{chosen}"
    with db.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT") as lines:
        for line in lines:
            yield events.event("r", copied_values(bytes(line).decode()), lsn, moment)


def copied_values(line: str) -> list[str | None]:
    r"""The values of one line of COPY's text.

    >>> copied_values("1\t\\N\ta\\tb\\\\\n")
    ['1', None, 'a\tb\\']
    """
    fields = line.removesuffix("\n").split("\t")
    if "\\" not in line:
        return list(fields)
    return [None if field == "\\N" else _ESCAPED.sub(_letter, field) if "\\" in field else field for field in fields]


def _letter(match: re.Match[str]) -> str:
    return _LETTERS.get(match.group(1), match.group(1))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
