"""Lists, structs and maps as JSON text, for columns of databases that hold JSON.

Fields without a value are there as null, times are ISO 8601 in UTC with their microseconds, bytes are hexadecimal, and
numbers that JSON does not have (NaN, infinities) are null.
"""

from __future__ import annotations

import math

from pyspark.sql import Column, functions as F, types as t

from ematix_flow.backends.files_options import TEXT_TIMES

_OPTIONS = {**TEXT_TIMES, "ignoreNullFields": "false"}


def json_text(column: Column, kind: t.DataType) -> Column:
    """A nested value as JSON."""
    return F.to_json(_sayable(column, kind), _OPTIONS)


def _sayable(column: Column, kind: t.DataType) -> Column:
    """The same value with what JSON cannot say in other words."""
    if not _has_unsayable(kind):
        return column
    if isinstance(kind, t.StructType):
        fields = [_sayable(column.getField(field.name), field.dataType).alias(field.name) for field in kind.fields]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, t.ArrayType):
        return F.transform(column, lambda item: _sayable(item, kind.elementType))
    if isinstance(kind, t.MapType):
        return F.transform_values(column, lambda _, value: _sayable(value, kind.valueType))
    if isinstance(kind, t.BinaryType):
        return F.lower(F.hex(column))
    return F.when(~(F.isnan(column) | (F.abs(column) == math.inf)), column)


def _has_unsayable(kind: t.DataType) -> bool:
    if isinstance(kind, t.StructType):
        return any(_has_unsayable(field.dataType) for field in kind.fields)
    if isinstance(kind, t.ArrayType):
        return _has_unsayable(kind.elementType)
    if isinstance(kind, t.MapType):
        return _has_unsayable(kind.valueType)
    return isinstance(kind, (t.BinaryType, t.FloatType, t.DoubleType))
