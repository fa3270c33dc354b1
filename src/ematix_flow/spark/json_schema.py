"""The schema of JSON messages, learned from samples: it only ever grows, so that a stream keeps its columns.

Whole numbers are `bigint`, numbers that do not fit there exact decimals, others `double`; text stays text; objects and
lists are what is in them. Two kinds that do not go together become text. A field that was only ever null is text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import add, or_
from typing import Any

from pyspark.sql import Column, functions as F, types as t

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


def apart(schema: t.StructType) -> t.StructType:
    """The schema without fields whose names differ only in their case from an earlier one: Spark takes them for one.

    >>> apart(t.StructType.fromDDL("id int, Name string, name string")).names
    ['id', 'Name']
    """
    found = {field.name.lower(): field for field in reversed(schema.fields)}
    fields = [field for field in schema.fields if found[field.name.lower()] is field]
    return t.StructType([t.StructField(field.name, _apart(field.dataType)) for field in fields])


def _apart(kind: t.DataType) -> t.DataType:
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_apart(kind.elementType))
    return apart(kind) if isinstance(kind, t.StructType) else kind


def doubles(schema: t.DataType) -> Iterator[str]:
    """The names that `apart` leaves out, as they are written.

    >>> list(doubles(t.StructType.fromDDL("id int, Name string, place struct<zip int, Zip int>, name string")))
    ['Zip', 'name']
    """
    if isinstance(schema, t.ArrayType):
        yield from doubles(schema.elementType)
    elif isinstance(schema, t.StructType):
        kept = set(apart(schema).names)
        for field in schema.fields:
            if field.name in kept:
                yield from doubles(field.dataType)
            else:
                yield field.name


# ── what messages have beyond it ─────────────────────────────────────────────────────────────────────────────────────

Says = Callable[[Column, t.StructType], Column]
"""Of an object's names that the schema lacks, and the schema that was expected there: whether it is so."""


def has_unknown_fields(text: Column, parsed: Column, schema: t.StructType, *, has_doubles: bool = False) -> Column:
    """Whether a message has more than the schema; most are cleared without reading them a second time.

    Behind every key stands `":`, unless blanks come between. A message with just as many of those as known fields have
    values can hold no other key. Nulls and such texts in values are reasons for a closer look.

    Args:
        text: The message.
        parsed: What the schema found in it.
        has_doubles: Leave names out that `has_doubled_fields` tells.
    """
    return _looked_at(text, parsed, schema, _is_new if has_doubles else _is_more)


def has_doubled_fields(text: Column, parsed: Column, schema: t.StructType) -> Column:
    """Whether a message has a field that differs only in its case from one that is known."""
    return _looked_at(text, parsed, schema, _is_double)


def _looked_at(text: Column, parsed: Column, schema: t.StructType, says: Says) -> Column:
    keys = (F.octet_length(text) - F.octet_length(F.replace(text, F.lit('":'), F.lit("")))) / 2
    spaced = reduce(or_, (F.contains(text, F.lit(f"{blank}:")) for blank in " \t\r\n"))
    return F.when((keys == _values(parsed, schema)) & ~spaced, F.lit(False)).otherwise(_any(text, schema, says))


def _any(text: Column, schema: t.StructType, says: Says, path: str = "$") -> Column:
    """Whether it is so of any object at or below a path of a text: also inside of objects, and of lists of them."""
    here = text if path == "$" else F.get_json_object(text, path)
    found = [says(F.array_except(F.json_object_keys(here), _names(schema.names)), schema)]
    for field in schema.fields:
        kind, inside = field.dataType, f"{path}['{field.name}']"
        if "'" in field.name:
            continue
        if isinstance(kind, t.StructType):
            found.append(_any(text, kind, says, inside))
        elif isinstance(kind, t.ArrayType) and isinstance(kind.elementType, t.StructType):
            found.append(_any_of(F.get_json_object(text, inside), kind.elementType, says))
    return reduce(or_, (F.coalesce(one, F.lit(False)) for one in found))


def _any_of(texts: Column, schema: t.StructType, says: Says) -> Column:
    """Whether it is so of any object of a list."""
    return F.exists(F.from_json(texts, "array<string>"), lambda one: _any(one, schema, says))


def _is_more(names: Column, schema: t.StructType) -> Column:
    return F.size(names) > 0


def _is_double(names: Column, schema: t.StructType) -> Column:
    known = _names([name.lower() for name in schema.names])
    return F.exists(names, lambda name: F.array_contains(known, F.lower(name)))


def _is_new(names: Column, schema: t.StructType) -> Column:
    known = _names([name.lower() for name in schema.names])
    return F.exists(names, lambda name: ~F.array_contains(known, F.lower(name)))


def _values(parsed: Column, schema: t.StructType) -> Column:
    """How many fields have a value, those inside of objects and of lists of objects counted."""
    counts = [F.lit(0)]
    for field in schema.fields:
        place, kind = parsed.getField(field.name), field.dataType
        counts.append(place.isNotNull().cast("int"))
        if isinstance(kind, t.StructType):
            counts.append(_values(place, kind))
        elif isinstance(kind, t.ArrayType) and isinstance(kind.elementType, t.StructType):
            counts.append(F.coalesce(_values_of(place, kind.elementType), F.lit(0)))
    return reduce(add, counts)


def _values_of(list_: Column, schema: t.StructType) -> Column:
    return F.aggregate(list_, F.lit(0), lambda total, one: total + _values(one, schema))


def _names(names: Sequence[str]) -> Column:
    return F.array(*[F.lit(name) for name in names]).cast("array<string>")
