"""The event time of rows as one column of microseconds since 1970, whatever form it comes in."""

from __future__ import annotations

from pyspark.sql import Column, functions as F, types as t

from ematix_flow.errors import IncompatibleSchema
from ematix_flow.spark.expressions import column_of

_MICROS_BY_MAGNITUDE = ((1e11, 1_000_000.0), (1e14, 1_000.0), (1e17, 1.0))
"""Below which number an epoch counts seconds, milliseconds, microseconds; above them all it counts nanoseconds."""


def event_micros(name: str, kind: t.DataType) -> Column:
    """Microseconds since 1970; NULL where there is none, and where a text or a number is no moment.

    Raises:
        IncompatibleSchema: a column of this type holds no moments.
    """
    column = column_of(name)
    if isinstance(kind, t.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, (t.TimestampNTZType, t.DateType)):
        return F.unix_micros(column.cast("timestamp"))
    if isinstance(kind, t.StringType):
        return F.unix_micros(F.try_to_timestamp(column))
    if isinstance(kind, t.DecimalType) and kind.scale > 0:
        return _from_exact_fractions(column)  # `ts_ms / 1000.0` is one of these
    if isinstance(kind, (t.IntegralType, t.DecimalType)):
        return _from_epoch(column.try_cast("bigint"))
    if isinstance(kind, t.FractionalType):
        # Seconds with fractions, as many producers write them; larger numbers count smaller units, as above.
        size = F.abs(column)
        factor = F.lit(0.001)
        for bound, micros in reversed(_MICROS_BY_MAGNITUDE):
            factor = F.when(size < bound, F.lit(micros)).otherwise(factor)
        return F.when(~F.isnan(column), F.round(column * factor).try_cast("bigint"))
    raise IncompatibleSchema(
        f"Column '{name}' is the event time, and its type {kind.simpleString()} holds no moments.",
        fix="use a timestamp, a text in ISO 8601, or a number since 1970; event_time_column= names the column",
    )


def _from_epoch(number: Column) -> Column:
    size = F.abs(number)
    return (
        F.when(size < int(1e11), number * 1_000_000)
        .when(size < int(1e14), number * 1_000)
        .when(size < int(1e17), number)
        .otherwise(F.call_function("div", number, F.lit(1_000)))  # whole numbers throughout
    )


def _from_exact_fractions(number: Column) -> Column:
    """The same of a decimal number, whose digits behind the point count as well."""
    whole = F.when(F.abs(number) < int(1e11), F.round(number * 1_000_000).cast("bigint"))
    whole = whole.when(F.abs(number) < int(1e14), F.round(number * 1_000).cast("bigint"))
    return whole.otherwise(_from_epoch(number.try_cast("bigint")))


def as_timestamp(micros: Column) -> Column:
    """Microseconds since 1970 as a moment."""
    return F.timestamp_micros(micros)
