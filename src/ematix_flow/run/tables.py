"""Tables without a load: `Table.ensure(conn)` creates what is missing and compares what is there."""

from __future__ import annotations

from typing import Any, cast

from ematix_flow.backends.catalog import open_backend
from ematix_flow.config.handles import ConnectionHandle
from ematix_flow.config.resolve import resolve
from ematix_flow.contracts.backend import Settles
from ematix_flow.declare.pipeline import OnDrift
from ematix_flow.declare.table import TableSpec
from ematix_flow.declare.target import STAMP_COLUMNS, VERSION_COLUMNS
from ematix_flow.errors import InvalidDeclaration, UnsupportedBackend
from ematix_flow.plan.ddl import create_statements, differences, schema_drift


def ensure(table: TableSpec, conn: Any, on_drift: str = "error") -> dict[str, Any]:
    """Create the table, or say in what it differs; the columns that loads add are not counted.

    Raises:
        IncompatibleSchema: (a ValueError) it differs and `on_drift` is "error".
    """
    if on_drift not in ("error", "warn", "evolve"):
        raise InvalidDeclaration(f"on_drift must be 'evolve', 'warn' or 'error', not {on_drift!r}.")
    connection = conn.connection if isinstance(conn, ConnectionHandle) else resolve(conn).connection
    backend = open_backend(connection)
    if not isinstance(backend, Settles):
        raise UnsupportedBackend(f"Tables of '{connection.name}' ({connection.kind}) need no creating.")
    ref = backend.table_ref(table.schema, table.name)
    live = backend.describe(ref)
    if live is None:
        backend.execute(create_statements(backend.dialect, ref, table.columns, table.primary_key, table.unique))
        return {"action": "created", "differences": []}
    added = (*STAMP_COLUMNS, *VERSION_COLUMNS)
    found = [
        difference
        for difference in differences(backend.dialect, ref, table.columns, table.primary_key, table.unique, live)
        if not any(f"'{name}'" in difference.text for name in added if name not in table.column_names)
    ]
    texts = [difference.text for difference in found]
    if found and on_drift == "error":
        raise schema_drift(ref, texts, cast("OnDrift", on_drift))
    return {"action": "drift" if found else "matched", "differences": texts}
