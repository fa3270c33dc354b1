"""The aggregates of windows in three steps: from rows to a part, from parts to a part, from a part to the answer.

Parts can be put together in any order and grouping, which is what lets a stream remember one part per batch and group
instead of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column, functions as F, types as t

from ematix_flow.contracts.refusals import refusal
from ematix_flow.declare.stream import Aggregation, own_aggregate
from ematix_flow.declare.udf import PythonAggregateUdfHandle
from ematix_flow.errors import IncompatibleSchema, UnknownColumn, closest
from ematix_flow.spark.expressions import column_of

if TYPE_CHECKING:
    from ematix_flow.spark.function_workers import Share

MICROS = "__us"
"""The event time of a row, in microseconds since 1970."""

ARRIVAL = "__arrival"
"""The order of arrival, as a struct of whole numbers."""

_HLL_SIZE = 14
_HASHED_AS_IT_IS = (t.IntegerType, t.LongType, t.StringType, t.BinaryType)


@dataclass(frozen=True)
class Accumulator:
    """One aggregate over groups.

    Attributes:
        first: Rows to part.
        again: Parts to part; given the names of the part's columns.
        answer: A part to the aggregate.
        fullness: How much a part has of what it may have, from 0 to 1; None where there is no bound.
    """

    names: tuple[str, ...]
    first: tuple[Column, ...]
    again: tuple[Column, ...]
    answer: Column
    alias: str
    fullness: Column | None = None
    share: Share | None = None


def accumulators(
    aggregations: Sequence[Aggregation], schema: t.StructType, own: Sequence[PythonAggregateUdfHandle] = ()
) -> list[Accumulator]:
    """The aggregates of a window over rows of this schema.

    Args:
        own: Aggregates of the user's own; rows that they take have gone through `with_states` before.

    Raises:
        UnknownColumn: an aggregate names a column that the rows do not have.
        IncompatibleSchema: a column's type has no such aggregate.
    """
    return [_accumulator(number, aggregation, schema, own) for number, aggregation in enumerate(aggregations)]


def _accumulator(
    number: int, wanted: Aggregation, schema: t.StructType, own: Sequence[PythonAggregateUdfHandle]
) -> Accumulator:
    names = [f"__a{number}"]
    if wanted.columns is not None:
        return _own(names[0], wanted, schema, own)
    if wanted.agg == "count":
        return _simple(names, wanted, F.count(F.lit(1)), F.sum)
    kind = _kind(wanted, schema)
    column = column_of(wanted.column or "")
    if wanted.agg == "count_col":
        return _simple(names, wanted, F.count(column), F.sum)
    if wanted.agg == "count_distinct":
        return _distinct(names[0], wanted, column, kind)
    if wanted.agg in ("sum", "avg") and not isinstance(kind, t.NumericType):
        raise IncompatibleSchema(
            f"agg='{wanted.agg}' of column '{wanted.column}': its type {kind.simpleString()} is no number."
        )
    if wanted.agg == "sum" and isinstance(kind, t.DecimalType):
        return _decimal_sum(names[0], wanted, column, kind)
    if wanted.agg == "sum":
        total = _sum_within(wanted, "64 bits") if isinstance(kind, t.IntegralType) else F.sum
        return _simple(names, wanted, total(_wide(column, kind)), total)
    if wanted.agg == "avg":
        names = [f"__a{number}", f"__n{number}"]
        part = F.col(names[0]), F.col(names[1])
        return Accumulator(
            tuple(names),
            (F.sum(column.cast("double")), F.count(column)),
            (F.sum(part[0]), F.sum(part[1])),
            F.when(part[1] > 0, part[0] / part[1]),
            wanted.as_,
        )
    if isinstance(kind, (t.MapType, t.VariantType)):
        raise IncompatibleSchema(
            f"agg='{wanted.agg}' of column '{wanted.column}': values of type {kind.simpleString()} have no order."
        )
    if wanted.agg == "min":
        return _simple(names, wanted, F.min(_wide(column, kind)), F.min)
    if wanted.agg == "max":
        return _simple(names, wanted, F.max(_wide(column, kind)), F.max)
    return _placed(names[0], wanted, column)


def _simple(names: list[str], wanted: Aggregation, first: Column, again: Callable[[Column], Column]) -> Accumulator:
    part = F.col(names[0])
    return Accumulator(tuple(names), (first,), (again(part),), part, wanted.as_)


def _sum_within(wanted: Aggregation, width: str) -> Callable[[Column], Column]:
    """A sum that says which one it is when it is larger than its type."""
    wider = "DECIMAL(38, 0)" if width == "64 bits" else "DOUBLE"
    said = refusal(
        "UnfitValue",
        message=f"'{wanted.as_}', the sum of '{wanted.column}' over one window, needs more than {width}.",
        fix=f"filter such values in transform_sql, or cast the column to {wider} there",
    )
    too_large = F.raise_error(F.lit(said))
    return lambda values: F.coalesce(F.try_sum(values), F.when(F.count(values) > 0, too_large))


def _decimal_sum(name: str, wanted: Aggregation, column: Column, kind: t.DecimalType) -> Accumulator:
    """A sum of decimals: parts have one type, however often they are put together.

    Spark gives each sum ten digits more than its values have, and a sum of sums ten more again. The answer has the
    type that one sum of all values would have.
    """
    widest = t.DecimalType(38, kind.scale)
    answer = t.DecimalType(min(kind.precision + 10, 38), kind.scale)
    part, total = F.col(name), _sum_within(wanted, "38 digits")
    return Accumulator((name,), (total(column.cast(widest)),), (total(part),), part.cast(answer), wanted.as_)


def _own(name: str, wanted: Aggregation, schema: t.StructType, own: Sequence[PythonAggregateUdfHandle]) -> Accumulator:
    from ematix_flow.spark.window_functions import answered, folded, share_of

    handle = own_aggregate(wanted, own)
    share = share_of(name, wanted, handle, schema)
    part = F.col(name)
    first = folded(handle, F.col(share.state), are_new=True)
    again = folded(handle, part, are_new=False)
    return Accumulator((name,), (first,), (again,), answered(handle, part), wanted.as_, share=share)


def _placed(name: str, wanted: Aggregation, column: Column) -> Accumulator:
    """The value with the least or the greatest event time. Of several at one moment the one that came first counts."""
    last = wanted.agg == "last"
    order = [
        F.col(f"{ARRIVAL}.{part}") * -1 if last else F.col(f"{ARRIVAL}.{part}") for part in ("batch", "place", "part")
    ]
    row = F.struct(F.col(MICROS).alias("us"), *[one.alias(f"o{n}") for n, one in enumerate(order)], column.alias("v"))
    choose = F.max if last else F.min
    return Accumulator(
        (name,), (choose(F.when(column.isNotNull(), row)),), (choose(F.col(name)),), F.col(f"{name}.v"), wanted.as_
    )


def _distinct(name: str, wanted: Aggregation, column: Column, kind: t.DataType) -> Accumulator:
    part = F.col(name)
    if wanted.mode != "exact":
        hashed = column if isinstance(kind, _HASHED_AS_IT_IS) else column.cast("string")
        return Accumulator(
            (name,),
            (F.hll_sketch_agg(hashed, F.lit(_HLL_SIZE)),),
            (F.hll_union_agg(part),),
            F.coalesce(F.hll_sketch_estimate(part), F.lit(0)).cast("bigint"),
            wanted.as_,
        )
    first, again = F.collect_set(column), F.array_distinct(F.flatten(F.collect_list(part)))
    cap = wanted.max_distinct_values_per_group
    held = (lambda values: values) if cap is None else _held_to(cap, wanted)
    return Accumulator(
        (name,),
        (held(first),),
        (held(again),),
        F.size(part).cast("bigint"),
        wanted.as_,
        None if cap is None else F.size(part) / cap,
    )


def _held_to(cap: int, wanted: Aggregation) -> Callable[[Column], Column]:
    """Values, when they are not too many. They are counted before they are remembered."""
    said = refusal(
        "StateTooLarge",
        message=f"A group has more than {cap:,} values of '{wanted.column}' in one window: "
        f"max_distinct_values_per_group of '{wanted.as_}'.",
        fix="raise it, or use mode='approximate'",
    )
    return lambda values: F.when(F.size(values) > cap, F.raise_error(F.lit(said))).otherwise(values)


def _wide(column: Column, kind: t.DataType) -> Column:
    """Whole numbers as 64 bits, fractions as doubles; everything else as it is."""
    if isinstance(kind, t.IntegralType):
        return column.cast("bigint")
    return column.cast("double") if isinstance(kind, t.FloatType) else column


def _kind(wanted: Aggregation, schema: t.StructType) -> t.DataType:
    if wanted.column not in schema.names:
        raise UnknownColumn(
            f"Aggregation '{wanted.as_}' names the column '{wanted.column}', which the rows do not have.",
            fix=closest(wanted.column or "", schema.names),
        )
    return schema[wanted.column].dataType
