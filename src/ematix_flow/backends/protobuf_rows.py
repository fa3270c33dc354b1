"""Protobuf messages as the values of a row, and rows as messages.

What a message leaves out has Protobuf's default; what may be absent is None. Times are instants, wrapped numbers plain
ones, enums their names, and what has no fixed form (`Any`, `Struct`, `Duration`) is its JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ematix_flow.contracts import refusals
from ematix_flow.errors import UnfitValue

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_DEEPEST = 30
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = {
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
AS_JSON = {f"google.protobuf.{kind}" for kind in ("Any", "Struct", "Value", "ListValue", "Duration", "FieldMask")}


# ── a message as the values of a row ─────────────────────────────────────────────────────────────────────────────────


def values_of(message_class: Any) -> Callable[[bytes], tuple[Any, ...] | None]:
    """How the bytes of a message become the values of its fields, in their order; None where they are no such message.

    Raises:
        UnfitValue: the message holds itself, so that it has no end.
    """
    from google.protobuf.message import DecodeError

    row = _row(message_class.DESCRIPTOR, 0)

    def read(body: bytes) -> tuple[Any, ...] | None:
        try:
            return row(message_class.FromString(body))
        except (DecodeError, ValueError, OverflowError):
            return None

    return read


def _row(descriptor: Any, depth: int) -> Callable[[Any], tuple[Any, ...]]:
    if depth > _DEEPEST:
        raise UnfitValue(f"'{descriptor.full_name}' holds itself, so it has no columns of its own.")
    fields = [_field(field, depth) for field in descriptor.fields]
    return lambda message: tuple([take(message) for take in fields])


def _field(field: Any, depth: int) -> Callable[[Any], Any]:
    name = field.name
    if is_map(field):
        inside = field.message_type.fields_by_name
        key, value = _value(inside["key"], depth), _value(inside["value"], depth)
        return lambda message: {key(k): value(v) for k, v in getattr(message, name).items()}
    convert = _value(field, depth)
    if is_repeated(field):
        return lambda message: [convert(one) for one in getattr(message, name)]
    if field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    return lambda message: convert(getattr(message, name))


def _value(field: Any, depth: int) -> Callable[[Any], Any]:
    if field.message_type is not None:
        full = field.message_type.full_name
        if full == TIMESTAMP:
            return lambda value: _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        if full in WRAPPERS:
            return _wrapped(field.message_type.fields_by_name["value"], depth)
        if full in AS_JSON:
            return _json
        return _row(field.message_type, depth + 1)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value, str(value))
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return Decimal
    return lambda value: value


def _wrapped(inner: Any, depth: int) -> Callable[[Any], Any]:
    convert = _value(inner, depth)
    return lambda value: convert(value.value)


def _json(message: Any) -> str:
    from google.protobuf.json_format import MessageToJson

    return str(MessageToJson(message, indent=None))


def is_map(field: Any) -> bool:
    """Whether a field is a map, which Protobuf keeps as a list of pairs."""
    return bool(is_repeated(field) and field.message_type is not None and field.message_type.GetOptions().map_entry)


def is_repeated(field: Any) -> bool:
    """Whether a field is a list."""
    return bool(field.label == field.LABEL_REPEATED)


# ── the columns of a message ─────────────────────────────────────────────────────────────────────────────────────────


def columns_of(descriptor: Any) -> StructType:
    """The columns of a message, as `values_of` fills them."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _kind(field)) for field in descriptor.fields])


def _kind(field: Any) -> DataType:
    from pyspark.sql.types import ArrayType, MapType

    if is_map(field):
        inside = field.message_type.fields_by_name
        return MapType(_single(inside["key"]), _single(inside["value"]))
    return ArrayType(_single(field)) if is_repeated(field) else _single(field)


def _single(field: Any) -> DataType:
    from pyspark.sql import types as t

    if field.message_type is not None:
        full = field.message_type.full_name
        if full == TIMESTAMP:
            return t.TimestampType()
        if full in WRAPPERS:
            return _single(field.message_type.fields_by_name["value"])
        return t.StringType() if full in AS_JSON else columns_of(field.message_type)
    plain: dict[int, DataType] = {
        field.TYPE_DOUBLE: t.DoubleType(),
        field.TYPE_FLOAT: t.FloatType(),
        field.TYPE_BOOL: t.BooleanType(),
        field.TYPE_BYTES: t.BinaryType(),
        field.TYPE_STRING: t.StringType(),
        field.TYPE_ENUM: t.StringType(),
        **dict.fromkeys((field.TYPE_INT32, field.TYPE_SINT32, field.TYPE_SFIXED32), t.IntegerType()),
        **dict.fromkeys((field.TYPE_UINT64, field.TYPE_FIXED64), t.DecimalType(20, 0)),
    }
    return plain.get(field.type, t.LongType())


# ── the values of a row as a message ─────────────────────────────────────────────────────────────────────────────────


def message_of(message_class: Any, row: Mapping[str, Any]) -> bytes:
    """The bytes of a message whose fields are a row's values by name; None is left out.

    Raises:
        ValueError: a value has no place in its field; the text is one of `contracts/refusals.py`.
    """
    message = message_class()
    _fill(message, row)
    return bytes(message.SerializeToString(deterministic=True))


def _fill(message: Any, row: Mapping[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        value = row.get(field.name)
        if value is None:
            continue
        try:
            _put(message, field, value)
        except (ValueError, TypeError, OverflowError) as exc:
            if refusals.PREFIX in str(exc):
                raise
            said = refusals.unfit_because(
                f"A value of '{field.name}' does not fit its field in the Protobuf schema.", column=field.name
            )
            raise ValueError(said) from None


def _put(message: Any, field: Any, value: Any) -> None:
    name = field.name
    if is_map(field):
        inner, pairs = field.message_type.fields_by_name["value"], getattr(message, name)
        for key, one in value.items():
            if inner.message_type is not None:
                _set(pairs[key], inner, one)
            else:
                pairs[key] = _plain(inner, one)
    elif is_repeated(field):
        many = getattr(message, name)
        for one in value:
            if field.message_type is not None:
                _set(many.add(), field, one)
            else:
                many.append(_plain(field, one))
    elif field.message_type is not None:
        inside = getattr(message, name)
        inside.SetInParent()
        _set(inside, field, value)
    else:
        setattr(message, name, _plain(field, value))


def _set(inside: Any, field: Any, value: Any) -> None:
    full = field.message_type.full_name
    if full == TIMESTAMP:
        inside.FromDatetime(value.astimezone(timezone.utc).replace(tzinfo=None))
    elif full in WRAPPERS:
        inside.value = _plain(field.message_type.fields_by_name["value"], value)
    elif full in AS_JSON:
        from google.protobuf.json_format import Parse

        Parse(value, inside)
    else:
        _fill(inside, value.asDict() if hasattr(value, "asDict") else value)


def _plain(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_name[value].number if value in field.enum_type.values_by_name else int(value)
    if isinstance(value, Decimal):
        return int(value)
    return bytes(value) if isinstance(value, bytearray) else value
