"""Protobuf messages of a schema registry, read by the newest schema that was met: it knows the fields of older ones."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark.sql import Column, DataFrame, functions as F

from ematix_flow.backends.protobuf_rows import columns_of, values_of
from ematix_flow.backends.protobuf_schema import Compiled, compiled
from ematix_flow.backends.schema_registry import RegistryClient, Schema
from ematix_flow.contracts.streams import VALUE
from ematix_flow.spark.payload_registry import BODY, PARSED, SCHEMA_ID, RegistryCodec, Remember


class ProtobufCodec(RegistryCodec):
    """Protobuf in Confluent's framing. An id here is the schema's number and the way to its message type: `7:0`."""

    form = "Protobuf"
    unframed = "it does not begin with the id of a schema and the place of its message type"
    wants = "each must be Protobuf with the id of its schema in front"

    def __init__(self, client: RegistryClient, remember: Remember) -> None:
        super().__init__(remember)
        self._client = client
        self._compiled: dict[int, Compiled] = {}
        self._newest: tuple[Compiled, str] | None = None

    def _usable(self, key: str) -> Schema:
        number, _, _ = key.partition(":")
        schema = self._client.schema(int(number))
        if schema.id not in self._compiled:
            self._compiled[schema.id] = compiled(schema)
        values_of(self._compiled[schema.id].message(self._name(key)))
        return schema

    def _name(self, key: str) -> str:
        number, _, way = key.partition(":")
        return self._compiled[int(number)].name([int(step) for step in way.split("/")])

    def _arrange(self) -> None:
        # Rows of two types are two tables: what most of the first messages are is read, and others are no rows of it.
        name = self._newest[1] if self._newest else self._name(next(iter(self._schemas)))
        for key in [key for key in self._schemas if self._name(key) != name]:
            self._refused[key] = f"it is a '{self._name(key)}', and the stream reads '{name}'"
            del self._schemas[key]
        newest = max(self._schemas, key=lambda key: self._schemas[key].id)
        self._newest = (self._compiled[self._schemas[newest].id], name)

    def _framed(self, messages: DataFrame) -> DataFrame:
        value = F.col(VALUE)
        is_framed = (F.octet_length(value) >= 6) & (F.substring(value, 1, 1) == F.lit(b"\x00"))
        number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10)
        # The way to the type: how many steps, then each, as numbers that are doubled; those below 64 take one byte.
        count = F.coalesce(F.when(is_framed, F.floor(_byte(value, F.lit(6)) / 2)), F.lit(99)).cast("int")
        fits = (count < 16) & (F.octet_length(value) >= count + 6)
        places = F.when(fits & (count > 0), F.sequence(F.lit(7), count + 6))
        steps = F.transform(places, lambda at: F.floor(_byte(value, at) / 2).cast("string"))
        way = F.when(count == 0, F.lit("0")).otherwise(F.concat_ws("/", steps))
        return messages.withColumns(
            {
                SCHEMA_ID: F.when(fits, F.concat(number, F.lit(":"), way)),
                BODY: F.when(fits, F.substring(value, count + 7, F.lit(2**31 - 1))),
            }
        )

    def _parse(self, framed: DataFrame) -> DataFrame:
        if self._newest is None:
            return framed.withColumn(PARSED, F.lit(None))
        schema, name = self._newest
        kind = columns_of(schema.message(name).DESCRIPTOR)
        read = F.udf(_Reader(schema, name), kind)
        body = F.when(F.col(SCHEMA_ID).isin([*self._schemas]), F.col(BODY))
        return framed.withColumn(PARSED, read(body))

    def _is_read(self) -> Column:
        return F.col(PARSED).isNotNull()


class _Reader:
    """Reads messages of one type. It travels to Spark's workers, where its class is made once."""

    def __init__(self, schema: Compiled, name: str) -> None:
        self._schema, self._name = schema, name

    def __call__(self, body: bytearray | bytes | None) -> tuple[Any, ...] | None:
        return None if body is None else _values(self._schema, self._name)(bytes(body))


@lru_cache(maxsize=64)
def _values(schema: Compiled, name: str) -> Any:
    return values_of(schema.message(name))


def _byte(value: Column, at: Column) -> Column:
    """A byte as a number; bytes are counted from one."""
    return F.conv(F.hex(F.substring(value, at, F.lit(1))), 16, 10).cast("int")
