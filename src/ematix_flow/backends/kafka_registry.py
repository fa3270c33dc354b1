"""Rows as messages with a schema: encoded by the newest schema of `<topic>-value`, with its id in front.

Every field of the schema is filled from the column of its name; one that is missing gets its default or null. A column
that the schema lacks is an error: it would be lost on the way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.avro_schema import whole
from ematix_flow.backends.glue_registry import GlueClient
from ematix_flow.backends.protobuf_rows import columns_of, message_of
from ematix_flow.backends.protobuf_schema import Compiled, compiled
from ematix_flow.backends.registries import registry_of_kafka
from ematix_flow.backends.schema_registry import Schema, with_glue_version, with_message_indexes, with_schema_id
from ematix_flow.backends.transport import quoted
from ematix_flow.contracts import refusals
from ematix_flow.contracts.plans import BatchPlan
from ematix_flow.declare.connection import KafkaConnection
from ematix_flow.errors import IncompatibleSchema, UnfitValue, UnsupportedBackend, closest, listed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def framed_value(frame: DataFrame, plan: BatchPlan, connection: KafkaConnection) -> Column:
    """The bytes of a row's message.

    Raises:
        BrokerRefused: the subject is not there, and `auto_register_schemas` is off.
        IncompatibleSchema: the rows have a column that the schema lacks, or lack one that it needs.
        UnsupportedBackend: a Protobuf schema would have to be made of the rows.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import to_avro

    topic = plan.table.name
    if connection.payload_format == "protobuf":
        return _protobuf_value(frame, connection, topic)
    prefix, schema = _schema(frame, connection, topic)
    record = whole(schema)
    text = json.dumps(record)
    row = F.struct(*_fields(frame, record, _kinds(frame, text), topic))
    return F.concat(F.lit(prefix), to_avro(row, text))


def _protobuf_value(frame: DataFrame, connection: KafkaConnection, topic: str) -> Column:
    """The row as the first message type of the newest schema."""
    from pyspark.sql import functions as F

    client = registry_of_kafka(connection)
    if connection.auto_register_schemas or isinstance(client, GlueClient):
        raise UnsupportedBackend(
            f"Connection '{connection.name}': a Protobuf schema cannot be made of rows.",
            fix=f"register one as '{topic}-value' in a Confluent registry, and leave out auto_register_schemas",
        )
    schema = client.latest(f"{topic}-value")
    ready = compiled(schema)
    name = ready.name([0])
    kinds = columns_of(ready.message(name).DESCRIPTOR)
    have = {field.name: field.dataType for field in frame.schema.fields}
    _refuse_extra(have, kinds.names, topic)
    values = [_as(F.col(quoted(n)), have[n], kinds[n].dataType).alias(n) for n in kinds.names if n in have]
    encode = F.udf(_Encoder(ready, name), "binary")
    return F.concat(F.lit(with_schema_id(schema.id, with_message_indexes([0], b""))), encode(F.struct(*values)))


class _Encoder:
    """Makes messages of one type. It travels to Spark's workers, where its class is made once."""

    def __init__(self, schema: Compiled, name: str) -> None:
        self._schema, self._name = schema, name

    def __call__(self, row: Any) -> bytes:
        return message_of(self._schema.message(self._name), row.asDict())


def _refuse_extra(have: Iterable[str], wanted: Collection[str], topic: str) -> None:
    extra = [name for name in have if name not in wanted]
    if extra:
        raise IncompatibleSchema(
            f"The schema of '{topic}-value' has no field '{extra[0]}', which the rows have.",
            fix=closest(extra[0], wanted) or "register a version that has it, or leave the column out",
        )


def _schema(frame: DataFrame, connection: KafkaConnection, topic: str) -> tuple[bytes, Schema]:
    """The schema that is written, and what stands in front of every message."""
    client = registry_of_kafka(connection)
    register = bool(connection.auto_register_schemas)
    text = json.dumps(avro_record(frame.schema, topic)) if register else ""
    if isinstance(client, GlueClient):
        version, found = client.for_writing(topic, text, auto_register_schemas=register)
        return with_glue_version(version, b""), found
    schema = client.for_writing(f"{topic}-value", text, auto_register_schemas=register)
    return with_schema_id(schema.id, b""), schema


def _kinds(frame: DataFrame, text: str) -> StructType:
    """Spark's types of a schema's fields."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.types import StructType

    empty = frame.sparkSession.range(0).select(from_avro(F.lit(None).cast("binary"), text).alias("row"))
    kind = empty.schema["row"].dataType
    assert isinstance(kind, StructType)
    return kind


def _fields(frame: DataFrame, record: Mapping[str, Any], kinds: StructType, topic: str) -> list[Column]:
    from pyspark.sql import functions as F

    have = {field.name: field.dataType for field in frame.schema.fields}
    wanted = {field["name"]: field for field in record["fields"]}
    _refuse_extra(have, wanted, topic)
    missing = [n for n, f in wanted.items() if n not in have and "default" not in f and not _is_optional(f["type"])]
    if missing:
        raise IncompatibleSchema(
            f"The schema of '{topic}-value' needs {listed(missing)}, which the rows do not have.",
            fix="give them in the query, or register a version in which they have a default",
        )
    values = []
    for name, field in wanted.items():
        kind = kinds[name].dataType
        if name not in have:
            value = F.lit(field.get("default")).cast(kind)
        else:
            value = _as(F.col(quoted(name)), have[name], kind)
        if not _is_optional(field["type"]):
            message = refusals.unfit_because(
                f"Column '{name}' is NULL in a row, and its field in the schema of '{topic}-value' must not be.",
                column=name,
                fix="filter such rows, or let the field be null in the schema",
            )
            value = F.when(value.isNull(), F.raise_error(F.lit(message)).cast(kind)).otherwise(value)
        values.append(value.alias(name))
    return values


def _as(column: Column, have: DataType, want: DataType) -> Column:
    """A column in the type that the schema wants; nested values come as JSON from most plans."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(want, StructType | ArrayType | MapType) and isinstance(have, StringType):
        return F.from_json(column, want.simpleString(), {"mode": "FAILFAST"})
    return column.cast(want)


def _is_optional(kind: Any) -> bool:
    return kind == "null" or (isinstance(kind, list) and "null" in kind)


# ── a schema for rows that have none ─────────────────────────────────────────────────────────────────────────────────


def avro_record(schema: StructType, name: str) -> dict[str, Any]:
    """Columns as an Avro record in which everything may be null.

    Raises:
        UnfitValue: a column has a name or a type that Avro has no form for.
    """
    fields = []
    for field in schema.fields:
        if not _NAME.fullmatch(field.name):
            raise UnfitValue(
                f"Column '{field.name}' cannot be a field of Avro: its names have letters, digits and '_'.",
                fix="rename it in the query",
            )
        kind = _avro_type(field.dataType, f"{name}_{field.name}")
        fields.append({"name": field.name, "type": ["null", kind], "default": None})
    return {"type": "record", "name": re.sub(r"\W", "_", name, flags=re.ASCII), "fields": fields}


def _avro_type(kind: DataType, name: str) -> Any:
    from pyspark.sql import types as t

    simple: tuple[tuple[tuple[type[DataType], ...], Any], ...] = (
        ((t.BooleanType,), "boolean"),
        ((t.ByteType, t.ShortType, t.IntegerType), "int"),
        ((t.LongType,), "long"),
        ((t.FloatType,), "float"),
        ((t.DoubleType,), "double"),
        ((t.StringType,), "string"),
        ((t.BinaryType,), "bytes"),
        ((t.DateType,), {"type": "int", "logicalType": "date"}),
        ((t.TimestampType,), {"type": "long", "logicalType": "timestamp-micros"}),
        ((t.TimestampNTZType,), {"type": "long", "logicalType": "local-timestamp-micros"}),
    )
    for kinds, written in simple:
        if isinstance(kind, kinds):
            return written
    if isinstance(kind, t.DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if isinstance(kind, t.ArrayType):
        return {"type": "array", "items": ["null", _avro_type(kind.elementType, name)]}
    if isinstance(kind, t.MapType) and isinstance(kind.keyType, t.StringType):
        return {"type": "map", "values": ["null", _avro_type(kind.valueType, name)]}
    if isinstance(kind, t.StructType):
        return avro_record(kind, name)
    raise UnfitValue(f"A column of type {kind.simpleString()} has no form in Avro.", fix="cast it in the query")
