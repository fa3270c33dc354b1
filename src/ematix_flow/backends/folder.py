"""What backends over a place for files have in common: tables are folders of it, and the books lie beside them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, TypeGuard

from ematix_flow.backends.files_options import prefix_segments, unfit_name
from ematix_flow.backends.files_sql import folder_query, is_prefix
from ematix_flow.backends.files_store import LocalStore, Store, require_no_pattern
from ematix_flow.backends.json_books import KeepsJsonBooks
from ematix_flow.contracts.backend import Backend, Health
from ematix_flow.contracts.plans import BatchPlan, SourceQuery
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import InvalidDeclaration, InvalidIdentifier


class FolderBackend(KeepsJsonBooks, Backend):
    """Tables that are folders `<schema>/<table>` of one store. Subclasses make the books."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.store = self.open_store(connection)
        self.is_on_this_machine = isinstance(self.store, LocalStore)

    @abstractmethod
    def open_store(self, connection: Connection) -> Store:
        """Where the files and the books are."""

    def check(self) -> Health:
        return self.store.health()

    def table_ref(self, schema: str, name: str) -> TableRef:
        """The table of that name; refuses names that cannot be folders."""
        for part in (schema, name):
            problem = unfit_name(part)
            if problem:
                raise InvalidIdentifier(f"{part!r} cannot be a folder name: {problem}.", fix="choose another name")
        return TableRef(schema, name)

    def check_partitions(self, target: TargetSpec) -> None:
        """Refuse a `partition_by=` that names no declared column, or leaves none for the files."""
        partitions = tuple(target.files.partition_by or ())
        target.table.require(partitions, "partition_by=")
        if len(partitions) == len(target.table.columns):
            raise InvalidDeclaration(
                f"partition_by= names every column of {target.table}.", fix="leave one in the files"
            )

    # ── size ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def estimated_bytes(self, query: SourceQuery, dialect: SqlDialect = "spark") -> int | None:
        with self.store.explained():
            return sum(map(self._bytes_in, self.folders_of(query, dialect))) or None

    def folders_of(self, query: SourceQuery, dialect: SqlDialect) -> list[str]:
        """The folders that a query reads."""
        if query.table is not None:
            return [self.folder_of(query.table)]
        if query.sql is None:
            return []
        if is_prefix(query.sql):
            return [self.folder_named(query.sql.strip())]
        tables = folder_query(query.sql, dialect).views.values()
        return [self.folder_of(table) if table.schema else self.folder_named(table.name) for table in tables]

    def folder_named(self, name: str) -> str:
        """The folder that a query calls by one name."""
        return "/".join(prefix_segments(name))

    def _bytes_in(self, folder: str) -> int:
        if self.store.is_file(folder):
            return self.store.size(folder)
        return sum(file.size for file in self.store.visible_files(folder))


def refuse_patterns(plan: BatchPlan, source: Backend, target: Any) -> None:
    """The native engine finds nothing where a folder's name could be a pattern, and takes that for no rows.

    Only Delta tables are concerned, whose folders delta-rs is told as they are. All other files are told as addresses.

    Raises:
        RouteImpossible: such a folder would be used.
    """
    if plan.route.engine != "native":
        return
    ends: list[tuple[Any, list[str]]] = []
    if _is_delta(source) and plan.reading is not None:
        ends.append((source, source.folders_of(plan.reading.query, plan.reading.dialect)))
    if _is_delta(target):
        ends.append((target, [target.folder_of(plan.table)]))
    for backend, folders in ends:
        for path in (str(getattr(backend.connection, "path", "")), *folders):
            require_no_pattern(path)


def _is_delta(backend: Any) -> TypeGuard[FolderBackend]:
    return isinstance(backend, FolderBackend) and backend.connection.kind == "delta_local"
