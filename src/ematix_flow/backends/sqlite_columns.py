"""Changing a column of a SQLite table, which has no ALTER COLUMN: the CREATE TABLE that it keeps is edited in place.

SQLite's own documentation gives this way for changes that leave the stored rows as they are ("Making Other Kinds Of
Table Schema Changes"): dropping NOT NULL, and here also another name for a type of the same affinity. Rows, row ids,
indexes, triggers, views, defaults, checks and foreign keys are not touched, however the table was made, and many rows
cost no more than few. It is part of the transaction it runs in.

The edit is tried on an empty database in memory first: the table must come out as it was, but for the one change.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ematix_flow.backends.books import Db
from ematix_flow.errors import IncompatibleSchema

_QUOTED = r'"(?:[^"]|"")*"'
_ALTER = re.compile(
    rf"ALTER TABLE ({_QUOTED}) ALTER COLUMN ({_QUOTED}) (?:DROP NOT NULL|TYPE ([^\n]+))(?:\n--.*)?", re.S
)
_REMARK = "\n-- by editing the table's definition in place: rows, indexes, triggers and views stay as they are"
_DECIMAL = re.compile(r"DECIMAL TEXT ?\((\d+), ?(\d+)\)", re.I)


def widen_statement(table: str, column: str, type_sql: str) -> str:
    """The change to a wider type as it is shown and planned; `change` does it."""
    return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {type_sql}{_REMARK}"


def drop_not_null_statement(table: str, column: str) -> str:
    """The permission of NULL as it is shown and planned; `change` does it."""
    return f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL{_REMARK}"


def change(db: Db, statement: str) -> bool:
    """Do what a statement of this module says, in the running transaction; False when it is any other statement.

    Raises:
        IncompatibleSchema: the table is written in a way that cannot be edited safely; nothing was changed.
    """
    found = _ALTER.fullmatch(statement)
    if found is None:
        return False
    table, column = (part[1:-1].replace('""', '"') for part in found.group(1, 2))
    before = _definition(db, table)
    after = _edited(before, table, column, found[3])
    if after != before:
        _require_only_change(before, after, table, column, found[3])
        _replace(db, table, after)
    old, new = _DECIMAL.fullmatch(_type_of(before, table, column)), _DECIMAL.fullmatch(found[3] or "")
    if old and new and old[2] != new[2]:
        _respell(db, table, column, new[1], new[2])
    return True


# ── the definition ───────────────────────────────────────────────────────────────────────────────────────────────────


def _definition(db: Db, table: str) -> str:
    found = db.execute(f"SELECT sql FROM sqlite_master WHERE {_is_table(table)}").fetchone()
    if found is None:
        raise IncompatibleSchema(f"The table '{table}' is gone.", fix="run it again")
    return str(found[0])


def _edited(sql: str, table: str, column: str, type_sql: str | None) -> str:
    part = _column_part(sql, table, column)
    if type_sql is None:
        for start, end in reversed(part.not_null):
            sql = sql[:start] + sql[end:]
        return sql
    if type_sql.upper() == "INTEGER" and column in _primary_key(sql, table):
        type_sql = "INT"  # INTEGER in this place would make the column an alias of the row id
    start, end = part.type
    return sql[:start] + (" " if start == end else "") + type_sql + sql[end:]


def _require_only_change(before: str, after: str, table: str, column: str, type_sql: str | None) -> None:
    """The table must be the same in everything that SQLite knows about it, but for what was to be changed."""
    one, other = _looked_at(before, table), _looked_at(after, table)
    place = {"type": 2, "notnull": 3}["notnull" if type_sql is None else "type"]
    same_affinity = True
    for old, new in zip(one.columns, other.columns, strict=False):
        if old[1].lower() == column.lower():
            same_affinity = _affinity(old[2]) == _affinity(new[2])
            old, new = (*old[:place], None, *old[place + 1 :]), (*new[:place], None, *new[place + 1 :])
        if old != new:
            raise _unsafe(table, column)
    if len(one.columns) != len(other.columns) or one.rest != other.rest or not same_affinity:
        raise _unsafe(table, column)


@dataclass(frozen=True)
class _Known:
    """What SQLite makes of a definition."""

    columns: list[tuple[Any, ...]]
    rest: list[tuple[Any, ...]]


def _looked_at(sql: str, table: str) -> _Known:
    from ematix_flow.backends import sqlite_functions

    scratch = sqlite3.connect(":memory:")
    try:
        sqlite_functions.register(scratch)
        scratch.execute(sql)
        name = _text(table)
        rest: list[tuple[Any, ...]] = []
        for pragma in ("index_list", "foreign_key_list"):
            rest += scratch.execute(f"SELECT * FROM pragma_{pragma}({name})").fetchall()
        rest += scratch.execute("SELECT type, name, rootpage FROM sqlite_master ORDER BY 1, 2").fetchall()
        return _Known(scratch.execute(f"SELECT * FROM pragma_table_xinfo({name})").fetchall(), rest)
    except sqlite3.Error as exc:
        raise IncompatibleSchema(
            f"The definition of '{table}' uses something that only its own application knows: {exc}.",
            fix="change the column by hand, or leave the declaration as it was",
        ) from exc
    finally:
        scratch.close()


def _type_of(sql: str, table: str, column: str) -> str:
    found = [row[2] for row in _looked_at(sql, table).columns if row[1].lower() == column.lower()]
    return str(found[0]) if found else ""


def _primary_key(sql: str, table: str) -> list[str]:
    return [row[1] for row in _looked_at(sql, table).columns if row[5]]


def _affinity(declared: str) -> str:
    """SQLite's own rule, in its order."""
    text = declared.upper()
    rules = (("INT", "INTEGER"), ("CHAR|CLOB|TEXT", "TEXT"), ("BLOB|^$", "BLOB"), ("REAL|FLOA|DOUB", "REAL"))
    return next((affinity for pattern, affinity in rules if re.search(pattern, text)), "NUMERIC")


# ── reading CREATE TABLE ─────────────────────────────────────────────────────────────────────────────────────────────

_TOKENS = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))"""
    r"""|(?P<name>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|'(?:[^']|'')*')"""
    r"""|(?P<word>[\w$]+)"""
    r"""|(?P<mark>.)""",
    re.S,
)
_TABLE_CONSTRAINTS = ("CONSTRAINT", "PRIMARY", "UNIQUE", "CHECK", "FOREIGN")
_COLUMN_CONSTRAINTS = (
    "CONSTRAINT",
    "PRIMARY",
    "NOT",
    "NULL",
    "UNIQUE",
    "CHECK",
    "DEFAULT",
    "COLLATE",
    "REFERENCES",
    "GENERATED",
    "AS",
)


@dataclass(frozen=True)
class _Token:
    kind: Literal["name", "word", "mark"]
    text: str
    start: int
    end: int
    depth: int

    def says(self, *words: str) -> bool:
        """Whether it is one of these words or marks, unquoted."""
        return self.kind != "name" and self.text.upper() in words

    @property
    def meaning(self) -> str:
        """The name it stands for."""
        if self.kind != "name":
            return self.text
        quote = self.text[-1]
        return self.text[1:-1] if quote == "]" else self.text[1:-1].replace(quote * 2, quote)


@dataclass(frozen=True)
class _ColumnPart:
    """Where the type and each NOT NULL of a column are in the text."""

    type: tuple[int, int]
    not_null: list[tuple[int, int]]


def _tokens(sql: str) -> list[_Token]:
    found: list[_Token] = []
    depth = 0
    for match in _TOKENS.finditer(sql):
        if match.lastgroup == "space":
            continue
        text = match.group()
        depth -= text == ")"
        found.append(_Token(match.lastgroup, text, match.start(), match.end(), depth))  # type: ignore[arg-type]
        depth += text == "("
    return found


def _column_part(sql: str, table: str, column: str) -> _ColumnPart:
    tokens = _tokens(sql)
    opening = next((n for n, token in enumerate(tokens) if token.text == "(" and token.depth == 0), None)
    if opening is None or any(token.says("VIRTUAL") for token in tokens[:opening]):
        raise _unsafe(table, column)
    part: list[_Token] = []
    for token in tokens[opening + 1 :]:
        if token.depth == 0 or (token.says(",") and token.depth == 1):
            if part and not part[0].says(*_TABLE_CONSTRAINTS) and part[0].meaning.lower() == column.lower():
                return _parts_of(part)
            part = []
            if token.depth == 0:
                break
        else:
            part.append(token)
    raise _unsafe(table, column)


def _parts_of(part: Sequence[_Token]) -> _ColumnPart:
    """The type and every NOT NULL in the definition of one column, which begins with its name."""
    top = part[0].depth
    words = 1
    while words < len(part) and part[words].kind in ("name", "word") and not part[words].says(*_COLUMN_CONSTRAINTS):
        words += 1
    end = words
    if words > 1 and end < len(part) and part[end].text == "(":
        while part[end].text != ")" or part[end].depth != top:
            end += 1
        end += 1
    type_span = (part[1].start, part[end - 1].end) if words > 1 else (part[0].end, part[0].end)
    not_null = []
    for n in range(end, len(part) - 1):
        if part[n].depth != top or not part[n].says("NOT") or not part[n + 1].says("NULL"):
            continue
        first, last = n, n + 1
        if n >= end + 2 and part[n - 2].says("CONSTRAINT"):
            first = n - 2
        if last + 3 < len(part) and part[last + 1].says("ON") and part[last + 2].says("CONFLICT"):
            last += 3
        not_null.append((part[first].start, part[last].end))
    return _ColumnPart(type_span, not_null)


# ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _replace(db: Db, table: str, sql: str) -> None:
    version = int(db.execute("PRAGMA schema_version").fetchone()[0])
    db.execute("PRAGMA writable_schema = ON")
    try:
        db.execute(f"UPDATE sqlite_master SET sql = {_text(sql)} WHERE {_is_table(table)}")
        db.execute(f"PRAGMA schema_version = {version + 1}")  # other connections must read the schema anew
    finally:
        db.execute("PRAGMA writable_schema = RESET")  # so must this one


def _respell(db: Db, table: str, column: str, precision: str, scale: str) -> None:
    """Give decimals the number of places that their type has now: equal numbers are equal texts.

    Triggers are for what people change, so they do not see it.
    """
    name = '"' + table.replace('"', '""') + '"'
    place = '"' + column.replace('"', '""') + '"'
    triggers = db.execute(
        f"SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = {_text(table)} COLLATE NOCASE"
    ).fetchall()
    for trigger, _ in triggers:
        db.execute('DROP TRIGGER "' + trigger.replace('"', '""') + '"')
    fitted = f"ematix_fit({place}, 'numeric', {precision}, {scale}, {_text(column)}, 'numeric')"
    db.execute(f"UPDATE {name} SET {place} = {fitted} WHERE {place} IS NOT NULL")
    for _, sql in triggers:
        db.execute(sql)


def _is_table(table: str) -> str:
    return f"type = 'table' AND name = {_text(table)} COLLATE NOCASE"


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _unsafe(table: str, column: str) -> IncompatibleSchema:
    return IncompatibleSchema(
        f"Column '{column}' of '{table}' cannot be changed in place.",
        fix="change the table by hand, or leave the declaration as it was",
    )
