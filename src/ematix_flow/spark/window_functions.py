"""Aggregates of the user's own (`@udaf`) in windows: from rows to states, from states to a state, to the answer.

Each task makes one state per group of the rows it has (`PartialAggregation`), and states that meet are merged. What is
remembered of a group between batches is the state that the class declares, as JSON: it is read in a later process, and
possibly written by an older one, so nothing in it is ever run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, functions as F, types as t
from pyspark.sql.pandas.functions import pandas_udf

from ematix_flow.declare.stream import Aggregation
from ematix_flow.declare.udf import PythonAggregateUdfHandle
from ematix_flow.errors import IncompatibleSchema, UnknownColumn, closest
from ematix_flow.spark.expressions import column_of
from ematix_flow.spark.function_workers import (
    CARRIERS,
    PartialAggregation,
    Share,
    answering_function,
    folding_function,
)
from ematix_flow.spark.functions import fits, traveling
from ematix_flow.spark.payloads import MESSAGE, RAW

_WANTED = "__wanted"


def share_of(name: str, wanted: Aggregation, handle: PythonAggregateUdfHandle, schema: t.StructType) -> Share:
    """Which columns of the rows an aggregate takes.

    Raises:
        UnknownColumn: the rows do not have one.
        IncompatibleSchema: its type has no place in the declared one.
    """
    for column, declared in zip(wanted.columns or (), handle.args, strict=True):
        if column not in schema.names:
            raise UnknownColumn(
                f"Aggregation '{wanted.as_}' names the column '{column}', which the rows do not have.",
                fix=closest(column, schema.names),
            )
        kind = schema[column].dataType
        if not fits(None, kind, declared):
            raise IncompatibleSchema(
                f"Aggregation '{wanted.as_}': '{handle.name}' declares {declared} and column '{column}' is "
                f"{kind.simpleString()}.",
                fix=f"cast it in transform_sql: CAST({column} AS {CARRIERS[declared].upper()})",
            )
    return Share(handle, tuple(wanted.columns or ()), _WANTED, f"{name}_state")


def folded(handle: PythonAggregateUdfHandle, states: Column, *, are_new: bool) -> Column:
    """One state of several of a group: of those that tasks have just made, or of those that are remembered."""
    with traveling([handle]):
        return _called(folding_function(handle, are_new=are_new), "string", F.collect_list(states))


def answered(handle: PythonAggregateUdfHandle, state: Column) -> Column:
    """The result of a group, of its state."""
    with traveling([handle]):
        return _called(answering_function(handle), CARRIERS[handle.returns], state)


def _called(function: Callable[..., Any], gives: str, given: Column) -> Column:
    made: Any = pandas_udf(function, gives)  # type: ignore[call-overload]  # hints tell which
    called: Column = made(given)
    return called


def with_states(
    rows: DataFrame, keys: Sequence[str], shares: Sequence[Share], needed: Sequence[str], counts: Column
) -> DataFrame:
    """Rows, and among them the states that each task has made of its own, by group.

    Args:
        keys: What makes a group.
        needed: The other columns that are aggregated.
        counts: Whether a row belongs to its group, or is only counted there.
    """
    given = {
        f"{share.state}_{number}": column_of(name).cast(CARRIERS[declared])
        for share in shares
        for number, (name, declared) in enumerate(zip(share.arguments, share.handle.args, strict=True))
    }
    sent = [
        Share(share.handle, tuple(f"{share.state}_{n}" for n in range(len(share.arguments))), _WANTED, share.state)
        for share in shares
    ]
    carried = [
        name for name in rows.columns if name not in (*keys, RAW, MESSAGE) and (name in needed or name.startswith("__"))
    ]
    frame = rows.withColumns({**given, _WANTED: counts}).select(*keys, *map(column_of, carried), *given, _WANTED)
    columns = [frame.schema[name] for name in (*keys, *carried)]
    states = [t.StructField(share.state, t.BinaryType()) for share in shares]
    with traveling([share.handle for share in shares]):
        work = PartialAggregation(tuple(keys), tuple(carried), tuple(sent), True)
        return frame.mapInArrow(work, t.StructType([*columns, *states]))
