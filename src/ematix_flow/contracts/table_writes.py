"""What a statement does to a lake table, as data: for writers that take no SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ematix_flow.declare.table import ColumnSpec


@dataclass(frozen=True)
class MergeClause:
    """What a merge does with a change: to stored rows of its key (`update`, `delete`), or if there are none (`insert`).

    Only changes whose action is `action` are meant, all when it is None. `columns` are those that are written, each
    with the change's column of the same name. Of several clauses the first that fits is taken.
    """

    kind: Literal["update", "delete", "insert"]
    action: str | None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableWrite:
    """The one statement of a load; `rows` is a query for what goes into the table's columns, by their names.

    A merge compares the columns in `match`, and its rows say in `action_column` what is to be done.
    """

    kind: Literal["append", "replace", "merge"]
    rows: str
    match: tuple[str, ...] = ()
    clauses: tuple[MergeClause, ...] = ()
    action_column: str = ""


@dataclass(frozen=True)
class TableChange:
    """One change of a table itself. `widen` gives columns a wider type, `relax` lets them be NULL."""

    kind: Literal["create", "add", "widen", "relax"]
    columns: tuple[ColumnSpec, ...]
