"""What the SQL of the three warehouses has in common: landed rows are a relation of their own, keys are not enforced.

A warehouse takes rows in as Parquet files and gives them back as Arrow. Some types have no exact form on that way:
`transported` says in which type a column travels, `taken_in` how it becomes what is declared, and `given_out` how it
leaves again.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from ematix_flow.backends.locks import digest
from ematix_flow.contracts.dialect import LANDED, Dialect
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.columns import (
    JSON,
    JSONB,
    UUID,
    BigInt,
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
from ematix_flow.errors import InvalidPlan, UnsupportedMode

WHOLE = (SmallInt, Integer, BigInt)
TEXTS = (Text, String)
DAYS = (Date, Timestamp, TimestampTZ)
DOCUMENTS = (JSON, JSONB)
GREATEST_PRECISION = 38
_BITS: dict[type[ColumnType], int] = {SmallInt: 16, Integer: 32, BigInt: 64}


class WarehouseDialect(Dialect):
    """Quoting, types and statements of a warehouse. Histories are not kept there, so nothing is hashed."""

    system: ClassVar[str]
    keeps_keys = False
    enforces_lengths = False  # some do; rows are looked at all the same, since a fast lane would need savepoints
    ddl_commits: ClassVar[bool] = True
    """Whether a statement that changes a schema ends the transaction it stands in."""

    # ── the run's own relations ──────────────────────────────────────────────────────────────────────────────────────

    def relation(self, name: str, run_id: str) -> str:
        # A temporary table cannot be made inside a transaction everywhere, so landed rows have a name of their own.
        return self.table(self.landed_ref(run_id)) if name == LANDED else self.quote(name)

    def landed_ref(self, run_id: str) -> TableRef:
        """The relation of a run's landed rows, in their declared types."""
        return TableRef(self.bookkeeping_schema, f"landed_{digest(run_id)}")

    def parts_ref(self, run_id: str, part: str = "") -> TableRef:
        """The table that Parquet files are copied into; BigQuery has one for each of them."""
        return TableRef(self.bookkeeping_schema, f"parts_{digest(run_id)}" + (f"_{part}" if part else ""))

    def pinned(self, table: str, query: str) -> str:
        """Make a passing table of a query's rows."""
        return f"CREATE TABLE {table} AS {query}"

    def insert_once(self, table: str, key: str, key_sql: str, other: str, other_sql: str) -> str:
        """Insert a row of two columns unless its key is there; two of them at once insert one."""
        column = self.quote(key)
        return (
            f"MERGE INTO {table} AS t USING (SELECT {key_sql} AS {column}) AS s ON t.{column} = s.{column} "
            f"WHEN NOT MATCHED THEN INSERT ({column}, {self.quote(other)}) VALUES (s.{column}, {other_sql})"
        )

    def kept_name(self, name: str) -> str:
        """A declared name as the system keeps it."""
        return name

    def declared_name(self, kept: str) -> str:
        """A name that the system keeps as it is declared here."""
        return kept

    def written(self, table_name: str) -> str:
        """A table as people write it (`table`, `schema.table`, …), quoted."""
        return ".".join(Dialect.quote(self, self.written_name(part.strip())) for part in table_name.split("."))

    def written_name(self, part: str) -> str:
        """One part of a name as people write it, as the system keeps it; in quotes it is meant as it stands."""
        return part[1:-1].replace('""', '"') if len(part) > 1 and part[0] == part[-1] == '"' else part

    # ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────
    # Not every warehouse lets the table that is changed have another name for the length of a statement.

    def delete_where(self, target: str, alias: str, condition: str) -> str:
        return f"DELETE FROM {target} WHERE {_named(condition, alias, target)}"

    def update_from(self, target: str, source: str, assignments: Sequence[tuple[str, str]], condition: str) -> str:
        changes = ", ".join(f"{self.quote(column)} = {value}" for column, value in assignments)
        return f"UPDATE {target} SET {changes} FROM {source} AS s WHERE {_named(condition, 't', target)}"

    # ── how columns travel ───────────────────────────────────────────────────────────────────────────────────────────

    def transported(self, column_type: ColumnType) -> ColumnType:
        """The type a column has in Parquet files and in the table that these are copied into."""
        return Text() if isinstance(column_type, (*DOCUMENTS, UUID)) else column_type

    def taken_in(self, expression: str, column_type: ColumnType) -> str:
        """A transported column as the declared type."""
        return expression

    @abstractmethod
    def given_out(self, expression: str, column_type: ColumnType | None) -> str:
        """A column as it is read: exact in Arrow, as text where Arrow or the driver would bend it."""

    # ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def same_type(self, declared: ColumnType, native: str) -> bool:
        # Several declared types share a native one; a table that is as we would make it is as it should be.
        return self.from_native(native) == self.from_native(self.type_sql(declared))

    def greatest(self, column_type: Numeric) -> Numeric:
        """The type itself, when the system holds so many digits.

        Raises:
            InvalidPlan: it does not.
        """
        if column_type.precision > GREATEST_PRECISION:
            raise InvalidPlan(
                f"{column_type} has more digits than {self.system} can hold ({GREATEST_PRECISION}).",
                fix=f"declare Numeric[{GREATEST_PRECISION}, {min(column_type.scale, GREATEST_PRECISION)}] or less",
            )
        return column_type

    # ── expressions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def is_distinct(self, left: str, right: str, column_type: ColumnType) -> str:
        return f"{left} IS DISTINCT FROM {right}"

    def row_hash(self, expressions: Sequence[tuple[str, ColumnType]]) -> str:
        raise self.no_history()

    def as_instant(self, expression: str, column_type: ColumnType) -> str:
        raise self.no_history()

    def no_history(self) -> UnsupportedMode:
        """The refusal of scd2, with what to do instead."""
        return UnsupportedMode(
            f"mode='scd2' is not possible on {self.system}.",
            fix="keep the history in PostgreSQL, MySQL, SQLite, DuckDB or a Delta table, and load it here with "
            "mode='merge'",
        )

    def fit(self, expression: str, source: ColumnType | None, declared: ColumnType, column: str) -> str | None:
        if source is None:
            return None
        wanted = self.type_sql(Text() if isinstance(declared, TEXTS) else declared)
        # The pairs whose meaning is the same here and in Spark; anything else goes through Spark.
        same = (
            source == declared
            or (isinstance(source, TEXTS) and isinstance(declared, TEXTS))
            or (isinstance(source, WHOLE) and isinstance(declared, (*WHOLE, Numeric)))
            or (isinstance(source, Numeric) and source.scale == 0 and isinstance(declared, WHOLE))
            or (isinstance(source, Numeric) and isinstance(declared, Numeric) and source.scale <= declared.scale)
            or (isinstance(source, Float | Double) and isinstance(declared, Double))
            or (isinstance(source, DOCUMENTS) and isinstance(declared, DOCUMENTS))
        )
        if not same:
            return None
        if source == declared and not isinstance(declared, String):
            return expression
        too_large = _too_large(expression, source, declared)
        if too_large is None:
            return f"CAST({expression} AS {wanted})"
        return (
            f"CASE WHEN {too_large} THEN {self.refusal(expression, declared, column)} "
            f"ELSE CAST({expression} AS {wanted}) END"
        )

    @abstractmethod
    def refusal(self, expression: str, declared: ColumnType, column: str) -> str:
        """An expression that stops the query when a row reaches it, and names column and type; never the value."""


def _named(condition: str, alias: str, target: str) -> str:
    """A condition that speaks of the target by its own name, where it used an alias; names and texts stay as they are.

    >>> _named('t."k" = s."k" AND s."a t." = 1', "t", '"shop"."orders"')
    '"orders"."k" = s."k" AND s."a t." = 1'
    """
    quoted = r"""\"(?:[^\"]|\"\")*\"|'(?:[^'\\\\]|''|\\\\.)*'|`[^`]*`"""
    name = re.findall(quoted, target)[-1]
    return re.sub(
        rf"{quoted}|\b{alias}\.", lambda found: f"{name}." if found[0] == f"{alias}." else found[0], condition
    )


def _too_large(expression: str, source: ColumnType, declared: ColumnType) -> str | None:
    """A condition that is true for the numbers that the declared type cannot hold; None when all of them fit."""
    if isinstance(declared, WHOLE):
        bits = _BITS[type(declared)]
        if isinstance(source, Numeric) or (isinstance(source, WHOLE) and _BITS[type(source)] > bits):
            return f"{expression} NOT BETWEEN {-(2 ** (bits - 1))} AND {2 ** (bits - 1) - 1}"
    if isinstance(declared, Numeric) and isinstance(source, (Numeric, *WHOLE)):
        room = declared.precision - declared.scale
        digits = source.precision - source.scale if isinstance(source, Numeric) else len(str(2 ** _BITS[type(source)]))
        if digits > room:
            return f"({expression} >= 1{'0' * room} OR {expression} <= -1{'0' * room})"
    return None
