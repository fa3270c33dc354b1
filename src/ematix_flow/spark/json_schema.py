"""The schema of JSON messages, learned from samples: it only ever grows, so that a stream keeps its columns.

Whole numbers are `bigint`, numbers that do not fit there exact decimals, others `double`; text stays text; objects and
lists are what is in them. Two kinds that do not go together become text. A field that was only ever null is text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce
from operator import add, or_
from typing import Any

from pyspark.sql import Column, functions as F, types as t

from ematix_flow.backends.transport import quoted

LARGEST = 2**63
_DIGITS = 38


def learned(known: t.StructType, samples: Iterable[bytes]) -> t.StructType:
    """The schema that also holds these messages; known columns keep their order, new ones come behind them.

    Messages that are not JSON objects teach nothing.
    """
    schema: t.DataType = known
    for sample in samples:
        try:
            value = json.loads(sample)
        except ValueError:
            continue
        if isinstance(value, dict):
            schema = _merged(schema, _kind_of(value))
    found = _without_nulls(schema)
    assert isinstance(found, t.StructType)
    return found


def _kind_of(value: Any) -> t.DataType:
    if value is None:
        return t.NullType()
    if isinstance(value, bool):
        return t.BooleanType()
    if isinstance(value, int):
        if -LARGEST <= value < LARGEST:
            return t.LongType()
        return t.DecimalType(_DIGITS, 0) if len(str(abs(value))) <= _DIGITS else t.StringType()
    if isinstance(value, float):
        return t.DoubleType()
    if isinstance(value, list):
        element: t.DataType = t.NullType()
        for part in value:
            element = _merged(element, _kind_of(part))
        return t.ArrayType(element)
    if isinstance(value, dict):
        return t.StructType([t.StructField(name, _kind_of(part)) for name, part in value.items()])
    return t.StringType()


def _merged(one: t.DataType, other: t.DataType) -> t.DataType:
    if one == other or isinstance(other, t.NullType):
        return one
    if isinstance(one, t.NullType):
        return other
    if isinstance(one, t.StructType) and isinstance(other, t.StructType):
        added = {field.name: field.dataType for field in other.fields}
        fields = [
            t.StructField(field.name, _merged(field.dataType, added.pop(field.name, t.NullType())))
            for field in one.fields
        ]
        return t.StructType(fields + [t.StructField(name, kind) for name, kind in added.items()])
    if isinstance(one, t.ArrayType) and isinstance(other, t.ArrayType):
        return t.ArrayType(_merged(one.elementType, other.elementType))
    kinds = {type(one), type(other)}
    if kinds == {t.LongType, t.DecimalType}:
        return t.DecimalType(_DIGITS, 0)
    if kinds <= {t.LongType, t.DecimalType, t.DoubleType}:
        return t.DoubleType()
    return t.StringType()


def _without_nulls(kind: t.DataType) -> t.DataType:
    """Nothing was ever seen there: text holds whatever comes."""
    if isinstance(kind, t.NullType):
        return t.StringType()
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_without_nulls(kind.elementType))
    if isinstance(kind, t.StructType):
        # An object without fields cannot be held as one.
        if not kind.fields:
            return t.StructType([])
        fields = [t.StructField(field.name, _held(field.dataType)) for field in kind.fields]
        return t.StructType(fields)
    return kind


def _held(kind: t.DataType) -> t.DataType:
    if isinstance(kind, t.StructType) and not kind.fields:
        return t.StringType()
    return _without_nulls(kind)


def unknown_fields(text: Column, schema: t.StructType) -> Column:
    """The names of a message's fields that the schema lacks, also inside of its objects; empty when it has all.

    Objects inside of lists are not looked into.
    """
    found = [F.array_except(F.json_object_keys(text), _names(schema))]
    for path, inner in _objects(schema, "$"):
        keys = F.json_object_keys(F.get_json_object(text, path))
        found.append(F.array_except(keys, _names(inner)))
    empty = F.array().cast("array<string>")
    return F.concat(*[F.coalesce(names, empty) for names in found])


def has_unknown_fields(text: Column, parsed: str, schema: t.StructType) -> Column:
    """Whether a message has more than the schema; most are cleared without reading them a second time.

    Behind every key stands `":`, unless blanks come between. A message with just as many of those as known fields have
    values can hold no other key. Nulls, lists of objects and such texts in values are reasons for a closer look.

    Args:
        text: The message.
        parsed: The column with what the schema found in it.
    """
    keys = (F.octet_length(text) - F.octet_length(F.replace(text, F.lit('":'), F.lit("")))) / 2
    spaced = reduce(or_, (F.contains(text, F.lit(f"{blank}:")) for blank in " \t\r\n"))
    looked_at = F.size(unknown_fields(text, schema)) > 0
    return F.when((keys == _values(parsed, schema)) & ~spaced, F.lit(False)).otherwise(looked_at)


def _values(parsed: str, schema: t.StructType) -> Column:
    """How many fields have a value, those inside of objects counted."""
    counts = [F.lit(0)]
    for field in schema.fields:
        place = f"{parsed}.{quoted(field.name)}"
        counts.append(F.col(place).isNotNull().cast("int"))
        if isinstance(field.dataType, t.StructType):
            counts.append(_values(place, field.dataType))
    return reduce(add, counts)


def _names(schema: t.StructType) -> Column:
    return F.array(*[F.lit(name) for name in schema.names]).cast("array<string>")


def _objects(schema: t.StructType, path: str) -> Iterable[tuple[str, t.StructType]]:
    for field in schema.fields:
        if isinstance(field.dataType, t.StructType) and "'" not in field.name:
            inside = f"{path}['{field.name}']"
            yield inside, field.dataType
            yield from _objects(field.dataType, inside)
