"""How one SQL database spells things. Statements are written once, in `plan/`, in terms of these words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import ClassVar

from ematix_flow.contracts.shapes import ColumnShape, TableRef
from ematix_flow.declare.columns import ColumnType
from ematix_flow.errors import InvalidIdentifier

LANDED = "ematix_flow_landed"
"""The one relation every mode reads: the rows of this load, beside the target, in the declared columns and types."""

TOUCHED = "ematix_flow_touched"
"""The stored rows whose keys have landed, written down where looking them up again and again would be slow."""

SCRATCH = "ematix_flow_versions"
"""The temporary table in which scd2 keeps the resolved versions of the affected keys."""


def constant_text(value: object) -> str:
    """What stands between the quotes of a constant: times to the microsecond and in UTC, decimals without exponent.

    >>> constant_text(Decimal("1E+2")), constant_text("it's")
    ('100', "it's")
    """
    if isinstance(value, datetime):
        return (value.astimezone(timezone.utc) if value.tzinfo else value).isoformat(timespec="microseconds")
    return format(value, "f") if isinstance(value, Decimal) else str(value)


class Dialect(ABC):
    """Quoting, types, literals and the few statements that databases spell differently."""

    name: ClassVar[str]
    max_identifier_bytes: ClassVar[int | None] = None
    bookkeeping_schema: ClassVar[str | None] = "ematix_flow"
    bookkeeping_prefix: ClassVar[str] = ""
    swaps_tables: ClassVar[bool] = False
    """Whether another table can take a table's place inside a transaction."""
    enforces_lengths: ClassVar[bool] = False
    """Whether a column of a String type refuses a longer text."""

    keeps_keys: ClassVar[bool] = True
    """Whether tables know their primary key and unique constraints."""
    commits_each_statement: ClassVar[bool] = False
    """Whether every statement is a commit of its own, so that a load must be one statement."""
    fills_added_columns: ClassVar[bool] = True
    """Whether a column that is added can give its default to the rows that are there; otherwise it is NULL in them."""
    ignores_case: ClassVar[bool] = False
    """Whether two columns whose names differ only in case are one."""
    has_engine: ClassVar[bool] = True
    """Whether statements run in the system itself; otherwise Spark runs them."""
    holds_left: bool = False
    """Whether joins hold their left side in memory however large it is, so that the smaller one must be named first."""

    def only_while(self, condition: str) -> str | None:
        """What the rows of an INSERT say to stop it with a conflict unless a condition holds, which reads the table.

        None where no other program's INSERT can come between the two, or where the backend sees to that itself.
        """
        return None

    def quote(self, name: str) -> str:
        """A name as an identifier, whatever characters it holds.

        Raises:
            InvalidIdentifier: the database cannot hold the name (empty, NUL, or cut off silently because too long).
        """
        if not name or "\x00" in name:
            raise InvalidIdentifier(f"{name!r} cannot be a name in {self.name}.", fix="choose another name")
        size = len(name.encode())
        if self.max_identifier_bytes is not None and size > self.max_identifier_bytes:
            raise InvalidIdentifier(
                f"The name '{name}' has {size} bytes; {self.name} keeps only {self.max_identifier_bytes}.",
                fix="choose a shorter name",
            )
        return '"' + name.replace('"', '""') + '"'

    def columns(self, names: Sequence[str], alias: str = "") -> str:
        """Quoted names, comma separated, each behind the alias if one is given."""
        return ", ".join((f"{alias}." if alias else "") + self.quote(name) for name in names)

    def table(self, ref: TableRef) -> str:
        """A qualified table name."""
        return f"{self.quote(ref.schema)}.{self.quote(ref.name)}" if ref.schema else self.quote(ref.name)

    def bookkeeping(self, name: str) -> TableRef:
        """Where one of the framework's own tables lives in this database."""
        return TableRef(self.bookkeeping_schema, self.bookkeeping_prefix + name)

    @abstractmethod
    def type_sql(self, column_type: ColumnType) -> str:
        """The type in CREATE TABLE."""

    @abstractmethod
    def literal(self, value: object, column_type: ColumnType) -> str:
        """A typed constant: a watermark, a load time, a run id."""

    @abstractmethod
    def lowest(self, column_type: ColumnType) -> str:
        """A typed constant below every value of the type; stands for the watermark of a first run."""

    @abstractmethod
    def is_distinct(self, left: str, right: str, column_type: ColumnType) -> str:
        """True when two values differ, NULL counted as a value."""

    def is_same(self, left: str, right: str, column_type: ColumnType) -> str:
        """True when two values do not differ, in a form by which many rows are found quickly."""
        return f"NOT ({self.is_distinct(left, right, column_type)})"

    @abstractmethod
    def row_hash(self, expressions: Sequence[tuple[str, ColumnType]]) -> str:
        """SHA-256 over values in which NULL, '' and 'NULL' differ, and ('ab','c') is not ('a','bc')."""

    @abstractmethod
    def as_watermark_text(self, expression: str, column_type: ColumnType) -> str:
        """An expression for the canonical text of a value, as kept in the watermarks table."""

    def ordered(self, expression: str, column_type: ColumnType) -> str:
        """An expression whose order is the one every system gives the type: numbers by value, text by its bytes."""
        return expression

    @abstractmethod
    def as_instant(self, expression: str, column_type: ColumnType) -> str:
        """A date, wall-clock time (read as UTC) or instant as an instant."""

    def later(self, instant: str, micros: str) -> str:
        """An instant so many microseconds later."""
        return f"({instant} + ({micros}) * INTERVAL '1 microsecond')"

    @abstractmethod
    def fit(self, expression: str, source: ColumnType | None, declared: ColumnType, column: str) -> str | None:
        """An expression of the declared type that fails on values that do not fit.

        `source` is the expression's own type, None when unknown. Returns None when this database cannot convert it
        with just the meaning Spark gives the conversion; the load then goes through Spark.
        """

    def lands_as_declared(self, column_type: ColumnType) -> bool:
        """Whether rows from Spark land in the declared type itself, not in one that is converted when they settle."""
        return True

    @abstractmethod
    def from_native(self, native: str) -> ColumnType | None:
        """The column type behind the database's own type name; None when there is no counterpart."""

    def same_type(self, declared: ColumnType, native: str) -> bool:
        """Whether a live column of this native type is just what the declaration asks for."""
        return self.from_native(native) == declared

    def text_length(self, expression: str) -> str:
        """The number of characters of a text."""
        return f"length({expression})"

    def create_schema(self, schema: str) -> str | None:
        """The statement that makes a schema if it is missing; None where there are no schemas to make."""
        return f"CREATE SCHEMA IF NOT EXISTS {self.quote(schema)}"

    def relation(self, name: str, run_id: str) -> str:
        """One of the run's own relations (`LANDED`, `TOUCHED`, `SCRATCH`) as statements name it."""
        return self.quote(name)

    def stored(self, ref: TableRef, run_id: str) -> str:
        """The target as statements read it; the table itself, unless they read one version of it."""
        return self.table(ref)

    def create_landed(self, name: str, query: str) -> str:
        """Pin a query's rows in a temporary table for the rest of the transaction."""
        return f"CREATE TEMPORARY TABLE {self.quote(name)} AS {query}"

    def create_scratch(self, name: str, query: str, keys: Sequence[tuple[str, ColumnType]]) -> str:
        """Keep a query's rows for the rest of the transaction; `keys` are the columns they will be found by."""
        return self.create_landed(name, query)

    def count_scratch(self, name: str) -> str | None:
        """Let the planner of the database count kept rows, where it would otherwise guess and choose badly."""
        return None

    def delete_all(self, target: str) -> str:
        """Delete every row of `target`."""
        return f"DELETE FROM {target}"

    def delete_where(self, target: str, alias: str, condition: str) -> str:
        """Delete the rows of `target` that meet a condition, which speaks of them by the alias."""
        return f"DELETE FROM {target} AS {alias} WHERE {condition}"

    def delete_matching(self, target: str, source: str, condition: str) -> str:
        """Delete the rows of `target` (alias t) for which `source` (alias s) has a row that meets the condition."""
        return self.delete_where(target, "t", f"EXISTS (SELECT 1 FROM {source} AS s WHERE {condition})")

    def delete_unmatched(self, target: str, source: str, condition: str) -> str:
        """Delete the rows of `target` (alias t) for which `source` (alias s) has no row that meets the condition."""
        return self.delete_where(target, "t", f"NOT EXISTS (SELECT 1 FROM {source} AS s WHERE {condition})")

    def update_from(self, target: str, source: str, assignments: Sequence[tuple[str, str]], condition: str) -> str:
        """Update `target` (alias t) from the rows of `source` (alias s) that meet the condition."""
        changes = ", ".join(f"{self.quote(column)} = {value}" for column, value in assignments)
        return f"UPDATE {target} AS t SET {changes} FROM {source} AS s WHERE {condition}"

    # ── DDL ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def storage(self, columns: Sequence[str], partition_by: Sequence[str], *, changes_rows: bool) -> str:
        """What follows the columns in CREATE TABLE; `changes_rows` says that loads will do more than add rows."""
        return ""

    def add_column(self, table: str, column: str, type_sql: str, default: str | None) -> str:
        """Add a nullable column, or a NOT NULL one with the default that `fills_added_columns`."""
        tail = f" NOT NULL DEFAULT {default}" if default is not None else ""
        return f"ALTER TABLE {table} ADD COLUMN {self.quote(column)} {type_sql}{tail}"

    def column_notes(self, table: str, columns: Sequence[tuple[str, ColumnType]]) -> tuple[str, ...]:
        """Statements that keep what the types of new columns would forget, such as a length; mostly none."""
        return ()

    def can_become(self, live: ColumnType, declared: ColumnType) -> bool:
        """Whether a column takes a type that holds all of its values."""
        return True

    def widen_column(self, table: str, column: str, type_sql: str) -> str | None:
        """Change a column to a wider type; None when the database cannot."""
        return f"ALTER TABLE {table} ALTER COLUMN {self.quote(column)} TYPE {type_sql}"

    def drop_not_null(self, table: str, column: str) -> str | None:
        """Allow NULL in a column; None when the database cannot."""
        return f"ALTER TABLE {table} ALTER COLUMN {self.quote(column)} DROP NOT NULL"

    def widened(self, table: str, live: ColumnShape, type_sql: str) -> str | None:
        """The same as `widen_column`, for databases that must be told everything else about the column again."""
        return self.widen_column(table, live.name, type_sql)

    def relaxed(self, table: str, live: ColumnShape, widened_to: str | None) -> str | None:
        """The same as `drop_not_null`, for databases that must be told the type again: the live one, or a wider."""
        return self.drop_not_null(table, live.name)
