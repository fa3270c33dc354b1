"""What keeps a load from the native engine, as far as that can be told before its rows are looked at.

Markers and types that it would treat differently are refused by `spark/`, when the columns are known and before any row
moves.
"""

from __future__ import annotations

import re

from ematix_flow.contracts.plans import DdlPlan
from ematix_flow.declare.columns import Bytes, Double, Float, Numeric
from ematix_flow.declare.target import TargetSpec

_MOVES = frozenset({"", "postgres", "mysql", "sqlite", "duckdb", "object_store_local", "delta_local"})
"""Kinds of connections whose rows it moves; "" is a frame that the user's function gives."""


_WAREHOUSES = ("snowflake", "bigquery", "redshift")

_FORMATS: dict[str, str] = {
    "csv": "it takes a quoted empty text in CSV files for NULL, and spells times and numbers in its own way",
    "json_lines": "it guesses other types for JSON lines, and cannot keep the exact text of a value",
    "orc": "it neither reads nor writes ORC files",
}
"""Why files of other formats than Parquet are left to Spark."""

_SPELT: dict[type, str] = {Float: "floating-point numbers", Double: "floating-point numbers", Bytes: "bytes"}
"""Types whose values are other texts to it than to Spark."""

_UNFIT_FOR_PARQUET = re.compile(r"[ ,;{}()\n\t=]")


def against_native(*ends: tuple[str, str | None]) -> list[str]:
    """Everything that stands against it, in words; empty when nothing does.

    Args:
        ends: where the rows come from and where they go: the kind of the connection, and the format of its files.
    """
    kinds = dict.fromkeys(kind for kind, _ in ends if kind not in _MOVES)
    reasons = [
        f"{kind} has not been tried with it"
        if kind in _WAREHOUSES
        else f"{kind} works through connectors for a JVM, and it has none"
        for kind in kinds
    ]
    return reasons + [_FORMATS[name] for _, name in dict.fromkeys(ends) if name in _FORMATS]


def against_native_target(kind: str, target: TargetSpec, ddl: DdlPlan) -> list[str]:
    """What stands against it in the target's table, where the engine itself has to write that: files and Delta."""
    if kind == "object_store_local":
        return [
            f"folders would be named by the values of '{name}', and it spells {what} differently"
            for name in target.files.partition_by or ()
            if name in target.table.column_names and (what := _SPELT.get(type(target.table.column(name).type)))
        ]
    if kind != "delta_local":
        return []
    reasons = []
    changed = [(change.kind, column) for change in ddl.changes for column in change.columns]
    for change, column in changed:
        if change == "widen":
            reasons.append(f"column '{column.name}' needs a wider type, which delta-rs cannot give to a Delta table")
        elif change in ("create", "add") and _UNFIT_FOR_PARQUET.search(column.name):
            reasons.append(f"the name '{column.name}' needs the column mapping of Delta, which delta-rs does not write")
    reasons += [
        f"delta-rs does not write partitions by values like those of '{name}'"
        for name in ddl.partition_by
        if name in target.table.column_names
        and isinstance(target.table.column(name).type, Numeric | Float | Double | Bytes)
    ]
    if target.is_versioned:
        compared = target.resolved_compare_columns()[0]
        reasons += [
            f"row_hash covers '{name}', and it spells floating-point numbers differently"
            for name in compared
            if isinstance(target.table.column(name).type, Float | Double)
        ]
    if target.table.maintenance is not None:
        reasons.append("maintenance= is work for Spark; leave it out here, and run `flow maintain` with Spark")
    return reasons
