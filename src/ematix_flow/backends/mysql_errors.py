"""What MySQL and MariaDB say when they refuse something, as errors of ours: columns and indexes named, values never."""

from __future__ import annotations

import re

from ematix_flow.backends.sql import failed_statement
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import (
    ConnectionFailed,
    DuplicateKeys,
    FlowError,
    IncompatibleSchema,
    InvalidPlan,
    UnfitValue,
    WriteConflict,
)

BROKEN = frozenset({0, 1053, 1077, 1080, 1152, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 2014, 2055, 4031})
_BUSY = frozenset({1020, 1205, 1213, 1614, 3058, 3572})
_TOO_LONG, _RANGE = frozenset({1406}), frozenset({1264, 1690})
_UNREADABLE = frozenset({1265, 1292, 1366, 1411, 1525, 3140, 3141, 3144, 3156, 4025, 4038})
_DENIED = frozenset({1044, 1142, 1143, 1227, 1370, 1410})


def explained(exc: Exception, connection: str) -> FlowError | None:
    """A driver's error as one of ours; None when it is not the driver's."""
    import pymysql

    if not isinstance(exc, pymysql.Error):
        return None
    code = exc.args[0] if exc.args and isinstance(exc.args[0], int) else 0
    said = scrub(str(exc.args[1] if len(exc.args) > 1 else exc).strip().splitlines()[0]) if exc.args else ""
    return refusal(code, said, connection)


def refusal(code: int, said: str, connection: str) -> FlowError:
    """The error for a code and a message of the server."""
    if code in BROKEN:
        return ConnectionFailed(f"MySQL connection '{connection}' broke: {said or 'the server closed it'}")
    if code in _BUSY:
        return WriteConflict(f"MySQL could not settle beside another writer: {said}.", fix="run it again")
    if code == 1062 or code == 1586:
        return _duplicate(said)
    if code in (1048, 1364):
        return UnfitValue(f"Column '{_column(said)}' is NOT NULL and the source has rows without a value.")
    if code in (3819, 1451, 1452) or (code == 4025 and "CONSTRAINT" in said):
        found = re.search(r"(?:constraint|CONSTRAINT) [`']([^`']+)[`']", said)
        return UnfitValue(f"Rows break the constraint '{found[1] if found else '?'}' of the table.")
    if code in _TOO_LONG | _RANGE | _UNREADABLE:
        column = _column(said)
        whose = f"A value of column '{column}' does not fit its type" if column else "A value does not fit"
        why = "it is too long" if code in _TOO_LONG else "it is out of range" if code in _RANGE else "it cannot be read"
        return UnfitValue(f"{whose}: {why}.", fix="look at the declared types and lengths")
    if code == 1170:
        return unbounded_key(_column(said) or "?")
    if code == 1071:
        return InvalidPlan(
            "A key of the table is too long for MySQL, whose indexes hold 3,072 bytes, at most four a character.",
            fix="declare shorter String[n] columns, or fewer of them, as keys",
        )
    if code in (1267, 1270, 1271):
        return IncompatibleSchema(
            f"Texts of the table are compared by another rule than landed ones: {said}.",
            fix="ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin (MySQL: utf8mb4_0900_bin)",
        )
    if code in _DENIED:
        return failed_statement(said, "grant the user what it needs; tables of our own live in database 'ematix_flow'")
    if code == 1300:
        return failed_statement("a text is not valid UTF-8, or a name holds a character beyond U+FFFF")
    return failed_statement(said)


def unbounded_key(column: str) -> InvalidPlan:
    """A key cannot be a text without a length."""
    return InvalidPlan(
        f"Column '{column}' is part of a key, and MySQL's keys need texts of a known length.",
        fix=f"declare it String[n]: {column}: Annotated[String[255], pk()]",
    )


def _duplicate(said: str) -> DuplicateKeys:
    # The server quotes the offending value before the name of the index.
    found = re.search(r"for key '([^']*)'$", said)
    index = found[1].split(".")[-1] if found else "?"
    error = DuplicateKeys(
        f"Rows with the same key exist already: index '{index}'.", fix="use mode='merge', or remove the duplicates"
    )
    vars(error)["index"] = index
    return error


def _column(said: str) -> str | None:
    """The column a message names last, behind any value it quotes: `db`.`table`.`column`, or 'column'."""
    found = re.search(
        r".*(?:[Cc]olumn|Field) (?:`.*`\.)?[`'](.+?)[`'](?= at row| cannot| doesn't| used in|$)", said, re.DOTALL
    )
    return found[1] if found else None
