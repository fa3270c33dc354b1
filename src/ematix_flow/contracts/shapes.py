"""What is really there: names and shapes of live tables and queries, as a backend describes them."""

from __future__ import annotations

from dataclasses import dataclass

from ematix_flow.declare.columns import ColumnType


@dataclass(frozen=True, order=True)
class TableRef:
    """The name of a table in one system; `schema` is None where the system has none."""

    schema: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def events(self) -> TableRef:
        """The companion in which `exact_history` keeps every event."""
        return TableRef(self.schema, f"{self.name}__events")


@dataclass(frozen=True)
class ColumnShape:
    """A live column. `type` is None when the system's type has no counterpart here; `native` always says what it is."""

    name: str
    type: ColumnType | None
    native: str
    nullable: bool = True
    has_default: bool = False


@dataclass(frozen=True)
class TableShape:
    """A live table: columns in order, primary key, unique constraints, and whether any row is in it.

    `bound_by` names what hangs on this very table (views, triggers, …) and would be lost if another took its place.
    `partition_by` are the columns whose values are folders.
    """

    ref: TableRef
    columns: tuple[ColumnShape, ...]
    primary_key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    has_rows: bool = False
    bound_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()

    def column(self, name: str) -> ColumnShape | None:
        """The column of that name, or None."""
        return next((column for column in self.columns if column.name == name), None)
