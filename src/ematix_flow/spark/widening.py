"""Rows of several shapes brought into one: columns by name, and of two types the one that holds both.

Whole numbers and fractions become `double`, what does not go together becomes text. Columns keep their places, and new
ones come behind them, so that a stream's columns only ever grow.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F, types as t

from ematix_flow.backends.transport import quoted
from ematix_flow.errors import IncompatibleSchema

_WHOLE: tuple[type[t.DataType], ...] = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_FRACTIONS: tuple[type[t.DataType], ...] = (t.FloatType, t.DoubleType)
_NESTED = (t.StructType, t.ArrayType, t.MapType, t.VariantType)
_DIGITS: dict[type[t.DataType], int] = {t.ByteType: 3, t.ShortType: 5, t.IntegerType: 10, t.LongType: 19}
_MOST_DIGITS = 38


def widened(known: t.StructType, found: t.StructType, where: str) -> t.StructType:
    """The columns of both; names that differ only in their case are one column.

    Raises:
        IncompatibleSchema: a column is nested in one of them and something else in the other.
    """
    added = {field.name.lower(): field for field in found.fields}
    fields = []
    for field in known.fields:
        other = added.pop(field.name.lower(), field)
        fields.append(t.StructField(field.name, _wider(field.dataType, other.dataType, f"{where}: '{field.name}'")))
    return t.StructType([*fields, *(t.StructField(f.name, _nullable(f.dataType)) for f in added.values())])


def fitted(frame: DataFrame, schema: t.StructType) -> DataFrame:
    """The rows in the columns of a schema that was widened by theirs; what they lack is NULL."""
    have = {field.name.lower(): field for field in frame.schema.fields}
    values = []
    for field in schema.fields:
        found = have.get(field.name.lower())
        value = F.lit(None) if found is None else F.col(quoted(found.name))
        values.append(_as(value, None if found is None else found.dataType, field.dataType).alias(field.name))
    return frame.select(values)


def _wider(one: t.DataType, other: t.DataType, where: str) -> t.DataType:
    one, other = _nullable(one), _nullable(other)
    if one == other or isinstance(other, t.NullType):
        return one
    if isinstance(one, t.NullType):
        return other
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        return widened(one, other, where)
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        return t.ArrayType(_wider(one.elementType, other.elementType, where))
    if isinstance(one, _NESTED) or isinstance(other, _NESTED):
        raise IncompatibleSchema(
            f"{where} is {one.simpleString()} in some files and {other.simpleString()} in others.",
            fix="give each kind of file a folder of its own",
        )
    kinds = {type(one), type(other)}
    for widths in (_WHOLE, _FRACTIONS):
        if kinds <= set(widths):
            return max(one, other, key=lambda kind: widths.index(type(kind)))
    if kinds <= {*_WHOLE, *_FRACTIONS}:
        return t.DoubleType()
    if t.DecimalType in kinds and kinds <= {*_WHOLE, t.DecimalType}:
        (whole, scale), (more, finer) = _digits(one), _digits(other)
        scale = max(scale, finer)
        if max(whole, more) + scale <= _MOST_DIGITS:
            return t.DecimalType(max(whole, more) + scale, scale)
    elif t.DecimalType in kinds and kinds <= {*_FRACTIONS, t.DecimalType}:
        return t.DoubleType()
    return t.StringType()


def _digits(kind: t.DataType) -> tuple[int, int]:
    """How many digits a number has in front of its point and behind it."""
    if isinstance(kind, t.DecimalType):
        return kind.precision - kind.scale, kind.scale
    return _DIGITS[type(kind)], 0


def _nullable(kind: t.DataType) -> t.DataType:
    """Whether something may be NULL is no difference between two types."""
    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(field.name, _nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, t.MapType):
        return t.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def _as(value: Column, have: t.DataType | None, want: t.DataType) -> Column:
    if have is None or isinstance(have, t.NullType):
        return value.cast(want)
    if isinstance(have, t.StructType) and isinstance(want, t.StructType):
        inside = {field.name.lower(): field for field in have.fields}
        fields = []
        for field in want.fields:
            found = inside.get(field.name.lower())
            part = F.lit(None) if found is None else value.getField(found.name)
            fields.append(_as(part, None if found is None else found.dataType, field.dataType).alias(field.name))
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(have, t.ArrayType) and isinstance(want, t.ArrayType) and _nullable(have) != _nullable(want):
        element, wanted = have.elementType, want.elementType
        return F.transform(value, lambda item: _as(item, element, wanted))
    if isinstance(have, t.BinaryType) and isinstance(want, t.StringType):
        return F.base64(value)
    return value.cast(want)
