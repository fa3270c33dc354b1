"""The declared table against the files that are there: what may lie beside them, and what could not be read together.

Files keep no keys and no NOT NULL, and those that are there stay as they are. So a new column is NULL in older files, a
wider type is for the reader to widen, and another type is refused.
"""

from __future__ import annotations

from ematix_flow.contracts.plans import DdlPlan
from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
from ematix_flow.declare.columns import JSON, JSONB, UUID, ColumnType, String, Text, Timestamp, TimestampTZ
from ematix_flow.declare.pipeline import OnDrift
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.target import STAMP_COLUMNS, TargetSpec
from ematix_flow.plan.ddl import Difference, is_wider, schema_drift
from ematix_flow.plan.physical import physical_columns


def plan_file_drift(target: TargetSpec, table: TableRef, live: TableShape | None, on_drift: OnDrift) -> DdlPlan:
    """What is to be said about the files of a target before rows are written beside them.

    Raises:
        IncompatibleSchema: the files differ in a way that `on_drift` does not allow, or could no longer be read as one
            table.
    """
    if live is None:
        return DdlPlan("match")
    found = _differences(target, live)
    texts = tuple(difference.text for difference in found)
    # A truncate leaves nothing behind that the new files would have to agree with.
    stops = [d.text for d in found if not d.can_evolve and target.mode != "truncate"]
    if on_drift == "error" and found:
        raise schema_drift(table, texts, on_drift)
    if on_drift == "warn" and found:
        missing = tuple(d.missing_column for d in found if d.missing_column is not None)
        stops = [d.text for d in found if not d.can_evolve and d.missing_column is None and d.text in stops]
        if not stops:
            return DdlPlan("warn", (), texts, missing)
    if stops:
        raise schema_drift(table, stops, on_drift)
    return DdlPlan("match", (), texts)


def stored_type(declared: ColumnType) -> ColumnType:
    """The type that a file gives a column: what is no number, time or bytes is text."""
    return Text() if isinstance(declared, String | JSON | JSONB | UUID) else declared


def _differences(target: TargetSpec, live: TableShape) -> list[Difference]:
    found: list[Difference] = []
    columns = physical_columns(target)
    in_folders = set(target.files.partition_by or ())  # their values are names of folders, which have no type
    for column in columns:
        there = live.column(column.name)
        if there is None:
            found.append(_missing(column, live, in_folders))
        elif column.name not in in_folders and not _is_same(column.type, there):
            found.append(_of_another_type(column, there))
    declared = {column.name for column in columns}
    for extra in live.columns:
        if extra.name not in declared:
            found.append(Difference(f"column '{extra.name}' is in the files and not declared", harmless=True))
    return found


def _is_same(declared: ColumnType, there: ColumnShape) -> bool:
    if there.type is None and isinstance(declared, Timestamp | TimestampTZ):
        return "timestamp" in there.native  # some formats have one type for instants and wall-clock times
    return there.type == stored_type(declared)


def _missing(column: ColumnSpec, live: TableShape, in_folders: set[str]) -> Difference:
    text = f"column '{column.name}' ({column.type}) is declared and not in the files"
    optional = column.nullable or column.name in STAMP_COLUMNS or column.name in in_folders
    if optional or not live.has_rows:
        return Difference(text, harmless=True, missing_column=column.name)
    return Difference(
        f"{text}; it is NOT NULL and there are rows, which files cannot be given a default(...) for: "
        "declare it nullable",
        missing_column=column.name,
    )


def _of_another_type(column: ColumnSpec, there: ColumnShape) -> Difference:
    wanted = stored_type(column.type)
    either_way = there.type is not None and (is_wider(wanted, there.type) or is_wider(there.type, wanted))
    return Difference(f"column '{column.name}' is {there.native}, declared {column.type}", harmless=either_way)
