"""Avro messages of a schema registry as Arrow rows and back, with logical types kept: decimals, dates, instants, bytes.

Every message is read by the schema it was written with and resolved to the newest schema among those it came with, so
several versions in one batch give one table.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.schema_registry import (
    RegistryClient,
    Schema,
    schema_id_and_payload,
    with_schema_id,
)
from ematix_flow.errors import MissingDriver, UnfitValue, listed

if TYPE_CHECKING:
    import pyarrow as pa


def require_driver() -> None:
    """Say how to install the library that reads Avro, before anything else fails for its lack."""
    try:
        import fastavro  # noqa: F401
    except ImportError as exc:
        raise MissingDriver(
            "payload_format='avro' needs 'fastavro'.", fix='pip install "ematix-flow[schema-registry]"'
        ) from exc


# ── messages to rows ─────────────────────────────────────────────────────────────────────────────────────────────────


def avro_batch(bodies: Sequence[bytes], client: RegistryClient) -> pa.RecordBatch:
    """Framed messages as one batch of the newest schema among them.

    Raises:
        UnfitValue: a message is not framed, is damaged, or its schema has no form as rows.
        FlowError: the registry does not know a schema, or cannot be asked.
    """
    import pyarrow as pa
    from fastavro import schemaless_reader

    framed = [schema_id_and_payload(body) for body in bodies]
    schemas = {schema_id: client.schema(schema_id) for schema_id in sorted({schema_id for schema_id, _ in framed})}
    parsed = {schema_id: _parsed(schema) for schema_id, schema in schemas.items()}
    newest = max(schemas)
    kind = arrow_type(json.loads(schemas[newest].text))
    if not pa.types.is_struct(kind):
        raise UnfitValue(f"Schema {newest} is not a record, so its messages are no rows.")
    rows = []
    for number, (schema_id, payload) in enumerate(framed, start=1):
        reader = None if schema_id == newest else parsed[newest]
        try:
            rows.append(schemaless_reader(io.BytesIO(payload), parsed[schema_id], reader))
        except Exception as exc:  # the library raises whatever the bytes lead it to
            raise UnfitValue(
                f"Message {number:,} of {len(framed):,} cannot be read by its schema {schema_id}"
                f"{'' if reader is None else f' as schema {newest}'}.",
                fix="payload_format='raw_bytes' gives the bytes as they are",
            ) from exc
    return pa.RecordBatch.from_struct_array(pa.array(rows, type=kind))


def _parsed(schema: Schema) -> Any:
    from fastavro import parse_schema

    if schema.type != "AVRO":
        raise UnfitValue(f"Schema {schema.id} is {schema.type}, not AVRO.", fix="set payload_format to what it is")
    if schema.references:
        raise UnfitValue(
            f"Schema {schema.id} uses the schemas {listed(schema.references)} of other subjects, which cannot be read.",
            fix="write the types out in the schema itself",
        )
    try:
        return parse_schema(json.loads(schema.text))
    except Exception as exc:  # the library has errors of its own for every flaw a schema can have
        raise UnfitValue(f"Schema {schema.id} of the registry is not a valid Avro schema.") from exc


def arrow_type(schema: Any, known: Mapping[str, Any] | None = None, *, at: str = "the record") -> Any:
    """The Arrow type for an Avro schema.

    Raises:
        UnfitValue: a part of it has none: a union of several types, or a type that contains itself.
    """
    import pyarrow as pa

    names: dict[str, Any] = dict(known or {})
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        if len(others) != 1:
            raise UnfitValue(f"The Avro schema has a union of several types at {at}, which is no column.")
        return arrow_type(others[0], names, at=at)
    if isinstance(schema, str):
        plain = {
            "null": pa.null(),
            "boolean": pa.bool_(),
            "int": pa.int32(),
            "long": pa.int64(),
            "float": pa.float32(),
            "double": pa.float64(),
            "bytes": pa.binary(),
            "string": pa.string(),
        }
        found = plain.get(schema) or names.get(schema) or names.get(schema.rsplit(".", 1)[-1])
        if found is None:
            raise UnfitValue(f"The Avro schema has the type '{schema}' at {at}, which contains itself or is not known.")
        return found
    logical = _logical_type(schema)
    kind = schema["type"]
    if logical is not None:
        found = logical
    elif kind == "record":
        fields = []
        for field in schema["fields"]:
            inside = arrow_type(field["type"], names, at=f"'{field['name']}'")
            _remember_names(field["type"], inside, names)
            fields.append(pa.field(field["name"], inside))
        found = pa.struct(fields)
    elif kind == "array":
        found = pa.list_(arrow_type(schema["items"], names, at=at))
    elif kind == "map":
        found = pa.map_(pa.string(), arrow_type(schema["values"], names, at=at))
    elif kind == "enum":
        found = pa.string()
    elif kind == "fixed":
        found = pa.binary(schema["size"])
    else:
        found = arrow_type(kind, names, at=at)
    return found


def _remember_names(schema: Any, found: Any, names: dict[str, Any]) -> None:
    """Types with a name may be used again by it."""
    for branch in schema if isinstance(schema, list) else [schema]:
        if isinstance(branch, Mapping) and "name" in branch:
            names[branch["name"].rsplit(".", 1)[-1]] = found


def _logical_type(schema: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    word = schema.get("logicalType")
    if word == "decimal":
        precision = schema["precision"]
        make = pa.decimal128 if precision <= 38 else pa.decimal256
        return make(precision, schema.get("scale", 0))
    return {
        "date": pa.date32(),
        "time-millis": pa.time32("ms"),
        "time-micros": pa.time64("us"),
        "timestamp-millis": pa.timestamp("us", tz="UTC"),
        "timestamp-micros": pa.timestamp("us", tz="UTC"),
        "local-timestamp-millis": pa.timestamp("us"),
        "local-timestamp-micros": pa.timestamp("us"),
        "uuid": pa.string(),
    }.get(str(word))


# ── rows to messages ─────────────────────────────────────────────────────────────────────────────────────────────────


def to_avro_messages(
    batch: pa.RecordBatch, subject: str, client: RegistryClient, *, auto_register_schemas: bool
) -> Iterator[bytes]:
    """One framed message per row, by the newest schema of a subject, or by the rows' own where it may be registered.

    Raises:
        UnfitValue: the rows have columns that the schema lacks, or a value that it does not take.
        FlowError: there is no such subject, or the registry cannot be asked.
    """
    import pyarrow as pa
    from fastavro import schemaless_writer

    text = avro_schema(batch.schema, subject) if auto_register_schemas else ""
    schema = client.for_writing(subject, text, auto_register_schemas=auto_register_schemas)
    parsed = _parsed(schema)
    unknown = [name for name in batch.schema.names if name not in {field["name"] for field in parsed["fields"]}]
    if unknown:
        raise UnfitValue(
            f"The newest schema of subject '{subject}' has no {listed(unknown)}.",
            fix="leave the column out, or register a version that has it",
        )
    maps = [field.name for field in batch.schema if pa.types.is_map(field.type)]
    for row in batch.to_pylist():
        for name in maps:  # they come as lists of pairs
            row[name] = dict(row[name]) if row[name] is not None else None
        out = io.BytesIO()
        try:
            schemaless_writer(out, parsed, row)
        except Exception as exc:  # the library raises whatever a value leads it to, the value included
            raise UnfitValue(f"A row does not fit the newest schema of subject '{subject}'.") from exc
        yield with_schema_id(schema.id, out.getvalue())


def avro_schema(schema: pa.Schema, subject: str) -> str:
    """An Avro schema for rows: a record whose every field may be NULL.

    Raises:
        UnfitValue: a column's type has no form in Avro.
    """
    name = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in subject)
    fields = [
        {"name": field.name, "type": ["null", _avro_type(field.type, f"{name}_{field.name}")], "default": None}
        for field in schema
    ]
    return json.dumps({"type": "record", "name": name if not name[:1].isdigit() else f"_{name}", "fields": fields})


def _avro_type(kind: Any, name: str) -> Any:
    import pyarrow as pa

    t = pa.types
    if t.is_boolean(kind):
        return "boolean"
    if t.is_int8(kind) or t.is_int16(kind) or t.is_int32(kind) or t.is_uint8(kind) or t.is_uint16(kind):
        return "int"
    if t.is_int64(kind) or t.is_uint32(kind):
        return "long"
    if t.is_float32(kind) or t.is_float16(kind):
        return "float"
    if t.is_float64(kind):
        return "double"
    if t.is_string(kind) or t.is_large_string(kind):
        return "string"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return "bytes"
    if t.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if t.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if t.is_timestamp(kind) and kind.unit != "ns":
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if t.is_list(kind) or t.is_large_list(kind):
        return {"type": "array", "items": ["null", _avro_type(kind.value_type, f"{name}_item")]}
    if t.is_map(kind) and t.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _avro_type(kind.item_type, f"{name}_value")]}
    if t.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return {
            "type": "record",
            "name": name,
            "fields": [
                {"name": f.name, "type": ["null", _avro_type(f.type, f"{name}_{f.name}")], "default": None}
                for f in fields
            ],
        }
    raise UnfitValue(f"A column of type {kind} has no form in Avro.", fix="cast it")
