"""Protobuf messages of a schema registry as Arrow rows and back, with the same values and types that streams give them.

All messages of a batch are of one type, and are read by the newest schema among those they came with, which knows the
fields of older ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.protobuf_rows import AS_JSON, TIMESTAMP, WRAPPERS, is_map, is_repeated, message_of, values_of
from ematix_flow.backends.protobuf_schema import Compiled, compiled
from ematix_flow.backends.schema_registry import (
    RegistryClient,
    message_indexes_and_payload,
    schema_id_and_payload,
    with_message_indexes,
    with_schema_id,
)
from ematix_flow.contracts import refusals
from ematix_flow.errors import UnfitValue, listed

if TYPE_CHECKING:
    import pyarrow as pa

Known = dict[int, Compiled]
"""Schemas of a registry that were compiled already, by their numbers."""


def protobuf_batch(bodies: Sequence[bytes], client: RegistryClient, known: Known) -> pa.RecordBatch:
    """Framed messages as one batch of the newest schema among them.

    Raises:
        UnfitValue: a message is not framed, is damaged, or is of another type than the first one.
        MissingDriver: the compiler of schemas is not installed.
        FlowError: the registry does not know a schema, or cannot be asked.
    """
    import pyarrow as pa

    framed = [_apart(body) for body in bodies]
    for number in sorted({number for number, _, _ in framed}):
        if number not in known:
            known[number] = compiled(client.schema(number))
    names = [known[number].name(way) for number, way, _ in framed]
    name, newest = names[0], max(number for number, _, _ in framed)
    message = known[newest].message(name)
    kind, read = _struct(message.DESCRIPTOR), values_of(message)
    rows = []
    for place, ((_, _, payload), own) in enumerate(zip(framed, names, strict=True), start=1):
        found = read(payload) if own == name else None
        if found is None:
            why = "is damaged" if own == name else f"is a '{own}', and the first one a '{name}'"
            raise UnfitValue(
                f"Message {place:,} of {len(framed):,} {why}.",
                fix="payload_format='raw_bytes' gives the bytes as they are",
            )
        rows.append(_shaped(kind, found))
    return pa.RecordBatch.from_struct_array(pa.array(rows, type=kind))


def to_protobuf_messages(batch: pa.RecordBatch, subject: str, client: RegistryClient, known: Known) -> Iterator[bytes]:
    """One framed message per row, as the first message type of a subject's newest schema.

    Raises:
        UnfitValue: the rows have columns that the schema lacks, or a value that it does not take.
        MissingDriver: the compiler of schemas is not installed.
        FlowError: there is no such subject, or the registry cannot be asked.
    """
    schema = client.latest(subject)
    if schema.id not in known:
        known[schema.id] = compiled(schema)
    message = known[schema.id].message(known[schema.id].name([0]))
    fields = message.DESCRIPTOR.fields
    unknown = [name for name in batch.schema.names if name not in {field.name for field in fields}]
    if unknown:
        raise UnfitValue(
            f"The newest schema of subject '{subject}' has no {listed(unknown)}.",
            fix="leave the column out, or register a version that has it",
        )
    for row in batch.to_pylist():
        try:
            body = message_of(message, {field.name: _given(field.type, row[field.name]) for field in batch.schema})
        except (ValueError, AttributeError) as exc:
            said = (refusals.facts_in(str(exc)) or {}).get("message")
            raise UnfitValue(said or f"A row does not fit the newest schema of subject '{subject}'.") from exc
        yield with_schema_id(schema.id, with_message_indexes([0], body))


def _apart(body: bytes) -> tuple[int, list[int], bytes]:
    number, rest = schema_id_and_payload(body)
    way, payload = message_indexes_and_payload(rest)
    return number, way, payload


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _struct(descriptor: Any) -> Any:
    import pyarrow as pa

    return pa.struct([(field.name, _kind(field)) for field in descriptor.fields])


def _kind(field: Any) -> Any:
    import pyarrow as pa

    if is_map(field):
        inside = field.message_type.fields_by_name
        return pa.map_(_single(inside["key"]), _single(inside["value"]))
    return pa.list_(_single(field)) if is_repeated(field) else _single(field)


def _single(field: Any) -> Any:
    import pyarrow as pa

    if field.message_type is not None:
        full = field.message_type.full_name
        if full == TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        if full in WRAPPERS:
            return _single(field.message_type.fields_by_name["value"])
        return pa.string() if full in AS_JSON else _struct(field.message_type)
    plain = {
        field.TYPE_DOUBLE: pa.float64(),
        field.TYPE_FLOAT: pa.float32(),
        field.TYPE_BOOL: pa.bool_(),
        field.TYPE_BYTES: pa.binary(),
        field.TYPE_STRING: pa.string(),
        field.TYPE_ENUM: pa.string(),
        **dict.fromkeys((field.TYPE_INT32, field.TYPE_SINT32, field.TYPE_SFIXED32), pa.int32()),
        **dict.fromkeys((field.TYPE_UINT64, field.TYPE_FIXED64), pa.decimal128(20, 0)),
    }
    return plain.get(field.type, pa.int64())


def _shaped(kind: Any, value: Any) -> Any:
    """A value as Arrow takes it: records by the names of their fields, maps as pairs."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _shaped(field.type, one) for field, one in zip(kind, value, strict=True)}
    if pa.types.is_map(kind):
        return [(key, _shaped(kind.item_type, one)) for key, one in value.items()]
    return [_shaped(kind.value_type, one) for one in value] if pa.types.is_list(kind) else value


def _given(kind: Any, value: Any) -> Any:
    """The other way: a value of Arrow with maps as such."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _given(field.type, value[field.name]) for field in kind}
    if pa.types.is_map(kind):
        return {key: _given(kind.item_type, one) for key, one in value}
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return [_given(kind.value_type, one) for one in value] if is_list else value
