"""The table as it is stored: the declared columns, the ones a mode adds, and the two stamps."""

from __future__ import annotations

from ematix_flow.declare.columns import UUID, Boolean, Bytes, TimestampTZ
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.target import TargetSpec

HISTORY_COLUMNS = (
    ColumnSpec("valid_from", TimestampTZ(), nullable=False),
    ColumnSpec("valid_to", TimestampTZ(), nullable=True),
    ColumnSpec("is_current", Boolean(), nullable=False),
    ColumnSpec("row_hash", Bytes(), nullable=False),
)
"""What `scd2` adds to the declared columns. A target of that mode declares none of them itself."""

_STAMPS = (ColumnSpec("_loaded_at", TimestampTZ(), nullable=False), ColumnSpec("_batch_id", UUID(), nullable=False))


def stamps(target: TargetSpec) -> tuple[ColumnSpec, ...]:
    """The stamp columns the framework writes; a stamp that the user declares is the user's own."""
    if not target.stamped:
        return ()
    return tuple(column for column in _STAMPS if column.name not in target.table.column_names)


def physical_columns(target: TargetSpec) -> tuple[ColumnSpec, ...]:
    """Every column of the stored table, in order."""
    added = HISTORY_COLUMNS if target.is_versioned else ()
    return (*target.table.columns, *added, *stamps(target))


def physical_primary_key(target: TargetSpec) -> tuple[str, ...]:
    """The declared primary key; versions of one key differ in `valid_from`, which joins it."""
    declared = target.table.primary_key
    return (*declared, "valid_from") if declared and target.is_versioned else declared


def physical_unique(target: TargetSpec) -> tuple[tuple[str, ...], ...]:
    """The declared unique constraints; in a history they hold per `valid_from`."""
    if not target.is_versioned:
        return target.table.unique
    return tuple((*constraint, "valid_from") for constraint in target.table.unique)


def events_columns(target: TargetSpec) -> tuple[ColumnSpec, ...]:
    """The companion table of `exact_history`: every event ever seen, and the closings."""
    keys = set(target.resolved_keys()[0])
    declared = tuple(
        column if column.name in keys else ColumnSpec(column.name, column.type, nullable=True)
        for column in target.table.columns
    )
    return (
        *declared,
        ColumnSpec("event_at", TimestampTZ(), nullable=False),
        ColumnSpec("is_closing", Boolean(), nullable=False),
        *stamps(target),
    )
