"""What keeps a load from the native engine, as far as that can be told before its rows are looked at.

Markers and types that it would treat differently are refused by `spark/`, when the columns are known and before any row
moves.
"""

from __future__ import annotations

_MOVES = frozenset({"", "postgres", "mysql", "sqlite", "duckdb", "object_store_local"})
"""Kinds of connections whose rows it moves; "" is a frame that the user's function gives."""


_WAREHOUSES = ("snowflake", "bigquery", "redshift")

_FORMATS: dict[str, str] = {
    "csv": "it takes a quoted empty text in CSV files for NULL, and spells times and numbers in its own way",
    "json_lines": "it guesses other types for JSON lines, and cannot keep the exact text of a value",
    "orc": "it neither reads nor writes ORC files",
}
"""Why files of other formats than Parquet are left to Spark."""


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
