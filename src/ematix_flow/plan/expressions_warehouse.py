"""Markers on warehouses: none is pushed down. Only SQL that the user wrote runs there; Spark does the rest."""

from __future__ import annotations

from ematix_flow.declare.normalizers import Normalizer
from ematix_flow.plan.column_expr import CannotPush, ColumnExpr

WAREHOUSES = frozenset({"snowflake", "bigquery", "redshift"})


def compile_marker(marker: Normalizer, given: ColumnExpr, name: str) -> ColumnExpr:
    """Nothing: whether a warehouse means the same by it has never been proven."""
    raise CannotPush(f"{marker.kind}() is left to Spark on warehouses")
