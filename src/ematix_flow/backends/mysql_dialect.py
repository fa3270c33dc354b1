"""MySQL's and MariaDB's spelling of names, types, constants and conversions, in one text that both understand.

The two need different names for the one collation under which texts are equal when their bytes are: comments that
only one of them executes hold both. What a native type does not tell (an instant from a wall-clock time, an identifier
from any text of 36 characters) is kept in the column's comment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import ClassVar

from ematix_flow.backends.locks import digest
from ematix_flow.contracts.dialect import LANDED, Dialect
from ematix_flow.contracts.mysql_words import BY_BYTES, backticked, by_bytes, text_literal
from ematix_flow.contracts.shapes import ColumnShape, TableRef
from ematix_flow.declare.columns import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    ColumnType,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.errors import InvalidIdentifier

_TEXT = f"CHARACTER SET utf8mb4 {BY_BYTES}"
_OURS = frozenset({"utf8mb4_nopad_bin", "utf8mb4_0900_bin"})
_MARKED: dict[str, ColumnType] = {
    str(kind): kind for kind in (TimestampTZ(), UUID(), JSON(), JSONB())
}  # what a comment may say a column is
_BARE_TYPES: dict[type[ColumnType], str] = {
    SmallInt: "SMALLINT",
    Integer: "INT",
    BigInt: "BIGINT",
    Float: "FLOAT",
    Double: "DOUBLE",
    Boolean: "TINYINT(1)",
    Text: f"LONGTEXT {_TEXT}",
    Date: "DATE",
    Timestamp: "DATETIME(6)",
    TimestampTZ: "DATETIME(6) COMMENT 'TimestampTZ'",
    JSON: "JSON COMMENT 'JSON'",
    JSONB: "JSON COMMENT 'JSONB'",
    UUID: "CHAR(36) CHARACTER SET ascii COLLATE ascii_bin COMMENT 'UUID'",
    Bytes: "LONGBLOB",
}
_READ_AS: dict[str, ColumnType] = {
    "tinyint": SmallInt(),
    "tinyint unsigned": SmallInt(),
    "smallint": SmallInt(),
    "smallint unsigned": Integer(),
    "mediumint": Integer(),
    "mediumint unsigned": Integer(),
    "year": SmallInt(),
    "int": Integer(),
    "int unsigned": BigInt(),
    "bigint": BigInt(),
    "bigint unsigned": Numeric(20, 0),
    "float": Float(),
    "float unsigned": Float(),
    "double": Double(),
    "double unsigned": Double(),
    "bit(1)": Boolean(),
    "date": Date(),
    "tinytext": Text(),
    "text": Text(),
    "mediumtext": Text(),
    "longtext": Text(),
    "json": JSON(),
    "uuid": UUID(),
    "inet4": Text(),
    "inet6": Text(),
    "tinyblob": Bytes(),
    "blob": Bytes(),
    "mediumblob": Bytes(),
    "longblob": Bytes(),
}
# Native types that are just what a declaration asks for, besides those its own DDL makes: tables made by hand.
_SAME: dict[type[ColumnType], frozenset[str]] = {
    SmallInt: frozenset({"smallint"}),
    Integer: frozenset({"int"}),
    BigInt: frozenset({"bigint"}),
    Float: frozenset({"float"}),
    Double: frozenset({"double"}),
    Boolean: frozenset({"tinyint(1)"}),
    Text: frozenset({"text", "mediumtext", "longtext"}),
    Date: frozenset({"date"}),
    Timestamp: frozenset({"datetime(6)"}),
    TimestampTZ: frozenset({"datetime(6)", "timestamp(6)"}),
    JSON: frozenset({"json", "longtext"}),
    JSONB: frozenset({"json", "longtext"}),
    UUID: frozenset({"char(36)", "uuid"}),
    Bytes: frozenset({"blob", "mediumblob", "longblob"}),
}
_WHOLE = (SmallInt, Integer, BigInt)
_TEXTS = (Text, String)
_TIMES = (Timestamp, TimestampTZ)
_LONGEST_VARCHAR = 16_383  # a row has room for 65,535 bytes, and a character may take four
_INDEXED = 64  # characters of a text that an index of ours holds


class MysqlDialect(Dialect):
    """MySQL 8.0.17 and MariaDB 10.3, and later. Sessions are kept in UTC with backslash escapes and strict modes."""

    name = "mysql"
    max_identifier_chars: ClassVar[int] = 64

    def quote(self, name: str) -> str:
        if not name or "\x00" in name or name != name.rstrip(" "):
            raise InvalidIdentifier(
                f"{name!r} cannot be a name in MySQL.", fix="choose another name; it may not end in a space"
            )
        if any(letter > "\uffff" for letter in name):
            raise InvalidIdentifier(
                f"The name '{name}' holds a character that MySQL's names cannot hold.",
                fix="leave out emoji and other characters beyond U+FFFF",
            )
        if len(name) > self.max_identifier_chars:
            raise InvalidIdentifier(
                f"The name '{name}' has {len(name)} characters; MySQL keeps only {self.max_identifier_chars}.",
                fix="choose a shorter name",
            )
        return backticked(name)

    def relation(self, name: str, run_id: str) -> str:
        # MySQL reads a temporary table only once in a statement, so landed rows are kept in an ordinary one.
        return self.table(self.landed_ref(run_id)) if name == LANDED else self.quote(name)

    def landed_ref(self, run_id: str) -> TableRef:
        """The table of a run's landed rows."""
        return TableRef(self.bookkeeping_schema, f"landed_{digest(run_id)}")

    # ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def type_sql(self, column_type: ColumnType) -> str:
        if isinstance(column_type, Numeric):
            return f"DECIMAL({column_type.precision},{column_type.scale})"
        if isinstance(column_type, String):
            if column_type.length > _LONGEST_VARCHAR:
                return f"LONGTEXT {_TEXT}"
            return f"VARCHAR({column_type.length}) {_TEXT}"
        return _BARE_TYPES[type(column_type)]

    def landed_type(self, column_type: ColumnType) -> str:
        """The type in which rows land: the declared one, with room to see that a text is too long.

        MySQL cuts spaces off the end of a text that is too long, and says nothing; one character more shows it.
        """
        if isinstance(column_type, String):
            return f"VARCHAR({column_type.length + 1}) {_TEXT}" if column_type.length < 256 else f"LONGTEXT {_TEXT}"
        return self.type_sql(column_type)

    def index(self, keys: Sequence[tuple[str, ColumnType]]) -> str | None:
        """An index over columns in their landed types; None when one of them cannot be in an index."""
        parts = []
        for name, kind in keys:
            if isinstance(kind, JSON | JSONB):
                return None
            head = ""
            if isinstance(kind, String | Text | Bytes):
                head = f"({min(kind.length, _INDEXED) if isinstance(kind, String) else _INDEXED})"
            parts.append(self.quote(name) + head)
        return f"INDEX ({', '.join(parts)})" if parts else None

    def native(self, type_text: str, collation: str | None, comment: str) -> str:
        """A live column's type as this dialect speaks of it: `varchar(9) collate latin1_bin`, `char(36) as UUID`."""
        text = type_text
        if text != "tinyint(1)":  # elsewhere the number in parentheses is only a width of display
            text = re.sub(r"^(tinyint|smallint|mediumint|int|bigint|year)\(\d+\)", r"\1", text)
        marked = _MARKED.get(comment.split(" ")[0]) if comment else None
        if marked is not None and marked.kind != "uuid" and not text.startswith(("datetime", "longtext", "json")):
            marked = None
        if collation and collation not in _OURS and marked is None:
            text += f" collate {collation}"
        return f"{text} as {marked}" if marked is not None else text

    def from_native(self, native: str) -> ColumnType | None:
        text, _, marked = native.partition(" as ")
        if marked in _MARKED:
            return _MARKED[marked]
        text = text.partition(" collate ")[0].removesuffix(" zerofill")
        if text == "tinyint(1)":
            return Boolean()
        if text in _READ_AS:
            return _READ_AS[text]
        if found := re.fullmatch(r"(?:var)?char\((\d+)\)", text):
            return String(int(found[1])) if int(found[1]) else Text()
        if re.fullmatch(r"(?:var)?binary\(\d+\)|geometry|point|bit\(\d+\)", text):
            return Bytes()
        if found := re.fullmatch(r"(datetime|timestamp)(?:\(\d\))?", text):
            return Timestamp() if found[1] == "datetime" else TimestampTZ()
        if found := re.fullmatch(r"decimal\((\d+),(\d+)\)(?: unsigned)?", text):
            return Numeric(int(found[1]), int(found[2]))
        if found := re.fullmatch(r"(float|double)\(\d+,\d+\)(?: unsigned)?", text):
            return Float() if found[1] == "float" else Double()
        return Text() if text.startswith(("enum", "set")) else None

    def same_type(self, declared: ColumnType, native: str) -> bool:
        text, _, marked = native.partition(" as ")
        text = text.partition(" collate ")[0]
        if marked:
            found = _MARKED[marked]
            return found == declared or {found.kind, declared.kind} == {"json", "jsonb"}
        if isinstance(declared, String):
            length = declared.length
            return text == f"varchar({length})" or (length > _LONGEST_VARCHAR and text == "longtext")
        if isinstance(declared, Numeric):
            return text == f"decimal({declared.precision},{declared.scale})"
        if isinstance(declared, Bytes) and text.startswith("varbinary("):
            return True
        return text in _SAME[type(declared)]

    # ── constants and expressions ────────────────────────────────────────────────────────────────────────────────────

    def literal(self, value: object, column_type: ColumnType) -> str:
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "1" if value else "0"
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        if isinstance(column_type, _TIMES):
            return f"TIMESTAMP'{_wall_clock(value)}'"
        if isinstance(column_type, Date):
            return f"DATE'{value.isoformat() if isinstance(value, date) else str(value)}'"
        if isinstance(column_type, _WHOLE):
            return str(int(value))  # type: ignore[call-overload]  # a stored watermark is the text of a whole number
        if isinstance(column_type, Numeric):
            return format(value if isinstance(value, Decimal) else Decimal(str(value)), "f")
        if isinstance(column_type, Float | Double):
            text = repr(float(value))  # type: ignore[arg-type]
            return text if "e" in text else f"{text}e0"  # without an exponent it would be a decimal
        if isinstance(column_type, Boolean):
            return "1" if str(value).lower() in ("1", "true") else "0"
        return text_literal(str(value))

    def lowest(self, column_type: ColumnType) -> str:
        if isinstance(column_type, Date):
            return "DATE'0000-01-01'"
        if isinstance(column_type, _TIMES):
            return "TIMESTAMP'0000-01-01 00:00:00'"
        if isinstance(column_type, Float | Double):
            return "-1.7976931348623157e308"
        if isinstance(column_type, Numeric):
            return f"-1{'0' * (column_type.precision - column_type.scale)}"
        return str(-(2**63)) if isinstance(column_type, _WHOLE) else "''"

    def is_distinct(self, left: str, right: str, column_type: ColumnType) -> str:
        return f"NOT ({left} <=> {right})"

    def is_same(self, left: str, right: str, column_type: ColumnType) -> str:
        return f"{left} <=> {right}"

    def row_hash(self, expressions: Sequence[tuple[str, ColumnType]]) -> str:
        parts = [f"COALESCE({self._bytes_of(e, kind)}, X'004e554c4c00')" for e, kind in expressions]
        joined = ", X'01', ".join(parts)
        return f"UNHEX(SHA2(CONCAT({joined}), 256))"

    def _bytes_of(self, expression: str, kind: ColumnType) -> str:
        if isinstance(kind, Bytes):
            return expression
        if isinstance(kind, Float):
            expression = f"{expression} * 1e0"  # a FLOAT by itself is written with six digits
        if isinstance(kind, JSON | JSONB):
            expression = f"CAST({expression} AS CHAR)"  # MySQL's documents are no text by themselves
        return f"CAST({expression} AS BINARY)"

    def as_watermark_text(self, expression: str, column_type: ColumnType) -> str:
        if isinstance(column_type, _TIMES):
            tail = "Z" if isinstance(column_type, TimestampTZ) else ""
            return f"DATE_FORMAT({expression}, '%Y-%m-%dT%H:%i:%s.%f{tail}')"
        if isinstance(column_type, Float):
            return f"CAST({expression} * 1e0 AS CHAR)"
        return f"CAST({expression} AS CHAR)"

    def ordered(self, expression: str, column_type: ColumnType) -> str:
        return by_bytes(expression) if isinstance(column_type, _TEXTS) else expression

    def as_instant(self, expression: str, column_type: ColumnType) -> str:
        return f"CAST({expression} AS DATETIME(6))" if isinstance(column_type, Date) else expression

    def fit(self, expression: str, source: ColumnType | None, declared: ColumnType, column: str) -> str | None:
        """The expression as it is, in most cases: rows land in columns of the declared types, which refuse the rest."""
        if source is None:
            return None
        if isinstance(declared, Boolean):
            # MySQL's booleans are small numbers; one that is neither 0 nor 1 is made one that no column takes.
            return f"IF({expression} NOT IN (0, 1), 1000, {expression})" if isinstance(source, Boolean) else None
        if isinstance(source, _TIMES) and isinstance(declared, Date):
            return f"DATE({expression})"
        same = (
            type(source) is type(declared)
            or (isinstance(source, _TEXTS) and isinstance(declared, _TEXTS))
            or (isinstance(source, _WHOLE) and isinstance(declared, (*_WHOLE, Numeric, Double)))
            or (isinstance(source, Float) and isinstance(declared, Double))
            or (isinstance(source, (Date, *_TIMES)) and isinstance(declared, _TIMES))
            or (isinstance(source, JSON | JSONB) and isinstance(declared, (JSON, JSONB, Text)))
            or (isinstance(source, UUID) and isinstance(declared, _TEXTS))
        )
        return expression if same else None

    def later(self, instant: str, micros: str) -> str:
        return f"TIMESTAMPADD(MICROSECOND, {micros}, {instant})"

    def text_length(self, expression: str) -> str:
        return f"CHAR_LENGTH({expression})"

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────

    def create_scratch(self, name: str, query: str, keys: Sequence[tuple[str, ColumnType]]) -> str:
        index = self.index(keys)
        return f"CREATE TEMPORARY TABLE {self.quote(name)} {f'({index}) ' if index else ''}AS {query}"

    def delete_where(self, target: str, alias: str, condition: str) -> str:
        return f"DELETE {alias} FROM {target} AS {alias} WHERE {condition}"

    def update_from(self, target: str, source: str, assignments: Sequence[tuple[str, str]], condition: str) -> str:
        changes = ", ".join(f"t.{self.quote(column)} = {value}" for column, value in assignments)
        return f"UPDATE {target} AS t JOIN {source} AS s ON {condition} SET {changes}"

    def add_column(self, table: str, column: str, type_sql: str, default: str | None) -> str:
        # Only in parentheses may a text have a default.
        tail = f" NOT NULL DEFAULT ({default})" if default is not None else ""
        return f"ALTER TABLE {table} ADD COLUMN {self.quote(column)} {type_sql}{tail}"

    def widened(self, table: str, live: ColumnShape, type_sql: str) -> str | None:
        if live.has_default:
            return None  # MODIFY forgets a default, and nobody asked for that
        null = "NULL" if live.nullable else "NOT NULL"
        return f"ALTER TABLE {table} MODIFY COLUMN {self.quote(live.name)} {type_sql} {null}"

    def relaxed(self, table: str, live: ColumnShape, widened_to: str | None) -> str | None:
        if live.has_default:
            return None
        definition = widened_to or self._definition(live.native)
        return f"ALTER TABLE {table} MODIFY COLUMN {self.quote(live.name)} {definition} NULL"

    def _definition(self, native: str) -> str:
        """A live column's type as DDL says it."""
        text, _, marked = native.partition(" as ")
        if marked:
            return self.type_sql(_MARKED[marked])
        kept, _, collation = text.partition(" collate ")
        if collation:
            return f"{kept} COLLATE {collation}"
        return f"{kept} {_TEXT}" if isinstance(self.from_native(native), _TEXTS) else kept


def _wall_clock(value: object) -> str:
    """An instant (in UTC), a wall-clock time, or the text of a stored mark, as MySQL writes it."""
    if isinstance(value, datetime):
        moment = value.astimezone(timezone.utc).replace(tzinfo=None) if value.tzinfo else value
        return moment.isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, date):
        return f"{value.isoformat()} 00:00:00"
    return str(value).removesuffix("Z").replace("T", " ")
