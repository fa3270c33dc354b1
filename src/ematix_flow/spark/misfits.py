"""Rows that a target's columns cannot hold, found before they are written: which ones, and why.

A load that meets such a row stops. A stream that is told to go on sets the row aside instead, so it has to know of each
row by itself.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F, types as t

from ematix_flow.contracts.plans import BatchPlan
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import InvalidPlan
from ematix_flow.spark.expressions import column_of, compile_column
from ematix_flow.spark.fitting import fitted_or_null, typed_column
from ematix_flow.spark.types import to_spark_type
from ematix_flow.spark.user_sql import markers_in_spark


def misfit(frame: DataFrame, plan: BatchPlan) -> Column | None:
    """Why a row of the frame does not fit the plan's table, without any value of it; NULL for one that does.

    None when every row fits. The plan must have no row steps, as those of streams have none.
    """
    reasons = [reason for column in plan.columns for reason in _reasons(frame, plan, column)]
    return F.coalesce(*reasons) if reasons else None


def _reasons(frame: DataFrame, plan: BatchPlan, column: ColumnSpec) -> list[Column]:
    given, kind = _normalized(frame, plan, column)
    unfit = F.lit(f"column '{column.name}' does not fit {column.type}")
    try:
        fitted = fitted_or_null(given, kind, column.type, column.name)
    except InvalidPlan:  # no value of this kind ever fits; a row without one does
        found = [F.when(given.isNotNull(), unfit)]
    else:
        found = [] if _always_fits(kind, column) else [F.when(given.isNotNull() & fitted.isNull(), unfit)]
    if not column.nullable:
        found.append(F.when(given.isNull(), F.lit(f"column '{column.name}' is NOT NULL and has no value")))
    return found


def _always_fits(kind: t.DataType, column: ColumnSpec) -> bool:
    return kind == to_spark_type(column.type) and not isinstance(kind, (t.StringType, t.TimestampType, t.DateType))


def _normalized(frame: DataFrame, plan: BatchPlan, column: ColumnSpec) -> tuple[Column, t.DataType]:
    """The column as `shape` brings it to its declared type: under its own name, and after its markers."""
    reading = plan.reading
    assert reading is not None
    assert not reading.steps
    name = reading.renamed.get(column.name, column.name)
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    pending = reading.pending.get(column.name, ())
    if name not in kinds:
        raw, kind = F.lit(None), to_spark_type(column.type)
    else:
        raw, kind = column_of(name), kinds[name]
    if pending:
        raw, kind = typed_column(raw, kind, reading.source_types.get(name), name) if name in kinds else (raw, kind)
        pending = markers_in_spark(pending, reading.dialect, frame, kind, name=column.name)
        raw = compile_column(pending, raw, kind, name=column.name)
        kind = frame.select(raw.alias(column.name)).schema[0].dataType
    return raw, kind
