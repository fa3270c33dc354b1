"""Messages of a schema registry: Avro and Protobuf, each message read by the schema that it names.

Schemas are fetched here, once for each id, and a batch may hold many of them: all become columns of one reader, the
newest schema that was met and what older ones had besides. An id that the registry does not know makes its messages
bad ones; a registry that does not answer stops the batch, which comes again.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame, functions as F, types as t
from pyspark.sql.avro.functions import from_avro

from ematix_flow.backends.avro_schema import PRESENT, bare_kind, reading_all, whole
from ematix_flow.backends.glue_registry import GlueClient
from ematix_flow.backends.registries import has_keys_with_schemas, registry_of_kafka
from ematix_flow.backends.schema_registry import RegistryClient, Schema, glue_version_and_payload
from ematix_flow.backends.transport import quoted
from ematix_flow.contracts.streams import VALUE
from ematix_flow.declare.connection import KafkaConnection
from ematix_flow.errors import BrokerRefused, UnfitValue
from ematix_flow.spark.payloads import BAD, RAW, SAMPLE, UNKNOWN, Codec, hidden

Remember = Callable[[t.StructType], None]
SCHEMA_ID, BODY, PARSED = "__schema", "__body", "__parsed"
BARE = "__bare"
"""The one field of a key that is a bare value."""

_MOST_SCHEMAS = 500
"""How many ids one look may find; messages with more of them are damaged rather than various."""


class RegistryCodec(Codec):
    """What Avro and Protobuf have in common: ids, and which of them are known."""

    def __init__(self, remember: Remember) -> None:
        self._remember = remember
        self._schemas: dict[str, Schema] = {}
        self._refused: dict[str, str] = {}
        self._refuses_others = self._is_empty = False
        self._kind: t.StructType = t.StructType([])

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._kind.names)

    def prepare(self, messages: DataFrame) -> None:
        self._refused, self._refuses_others = {}, False  # what the registry lacked, it may have by now
        if not self._schemas:
            self._learn(messages.limit(SAMPLE))
        self._is_empty = not self._schemas and messages.where(F.col(VALUE).isNotNull()).isEmpty()

    def has_nothing(self) -> bool:
        return self._is_empty

    def widen(self, messages: DataFrame) -> bool:
        return self._learn(messages)

    def _learn(self, messages: DataFrame) -> bool:
        framed = self._framed(messages).where(F.col(SCHEMA_ID).isNotNull())
        if met := [*self._schemas, *self._refused]:
            framed = framed.where(~F.col(SCHEMA_ID).isin(met))
        often = framed.groupBy(SCHEMA_ID).count().orderBy(F.desc("count"), SCHEMA_ID)
        found = [row[0] for row in often.limit(_MOST_SCHEMAS).collect()]
        for key in found:
            try:
                self._schemas[key] = self._usable(key)
            except (BrokerRefused, UnfitValue) as exc:
                self._refused[key] = exc.message
        self._refuses_others = self._refuses_others or len(found) == _MOST_SCHEMAS
        if found and self._schemas:
            self._arrange()
            kind = self._parse(self._framed(messages)).schema[PARSED].dataType
            assert isinstance(kind, t.StructType)
            kind = t.StructType([field for field in kind.fields if field.name != PRESENT])
            if kind != self._kind:
                self._kind = kind
                self._remember(kind)
        return bool(found)

    def decoded(self, messages: DataFrame) -> DataFrame:
        framed = self._framed(messages.where(F.col(VALUE).isNotNull()))
        parsed = self._parse(framed)
        known, refused = [*self._schemas], [*self._refused]
        key, unknown = F.col(SCHEMA_ID), self._is_unmet()
        reason = F.when(key.isNull(), F.lit(self.unframed))
        for one in refused:
            reason = reason.when(key == one, F.lit(self._refused[one]))
        if self._refuses_others:
            reason, unknown = reason.when(unknown, F.lit("its schema was not looked for")), F.lit(False)
        if known:
            reason = reason.when(
                key.isin(known) & ~self._is_read(), F.lit(f"damaged, or not {self.form} of its schema")
            )
        return parsed.select(
            *[F.col(f"{PARSED}.{quoted(name)}").alias(name) for name in self.columns],
            *hidden(messages, self.columns),
            F.col(VALUE).alias(RAW),
            reason.alias(BAD),
            unknown.alias(UNKNOWN),
        )

    def beside(self, frame: DataFrame, framed: Column, name: str, unknown: str) -> DataFrame:
        """A frame with two more columns: what framed bytes hold, and whether their schema was not looked for yet.

        Args:
            name: The column of a struct; NULL where the bytes cannot be read.
        """
        packed = self._framed(frame.select(F.struct("*").alias("__row"), framed.alias(VALUE)))
        is_unmet = F.lit(False) if self._refuses_others else F.coalesce(self._is_unmet(), F.lit(False))
        if not self._schemas:
            return packed.select("__row.*", F.lit(None).cast("struct<>").alias(name), is_unmet.alias(unknown))
        fields = [F.col(f"{PARSED}.{quoted(column)}").alias(column) for column in self.columns]
        return self._parse(packed).select(
            "__row.*", F.when(self._is_read(), F.struct(*fields)).alias(name), is_unmet.alias(unknown)
        )

    def _is_unmet(self) -> Column:
        """Whether a message names a schema that was not looked for."""
        key, met = F.col(SCHEMA_ID), [*self._schemas, *self._refused]
        return key.isNotNull() & ~key.isin(met) if met else key.isNotNull()

    form: str
    unframed: str

    @abstractmethod
    def _usable(self, key: str) -> Schema:
        """The schema of an id; `BrokerRefused` or `UnfitValue` when its messages cannot be read."""

    @abstractmethod
    def _arrange(self) -> None:
        """Work out how messages are read, now that more schemas are known."""

    @abstractmethod
    def _framed(self, messages: DataFrame) -> DataFrame:
        """The messages with `SCHEMA_ID` and `BODY`; both NULL where one is not framed."""

    @abstractmethod
    def _parse(self, framed: DataFrame) -> DataFrame:
        """The messages with `PARSED`: a struct with the columns of all of them."""

    @abstractmethod
    def _is_read(self) -> Column:
        """Whether a message of a known schema could be read."""


class AvroCodec(RegistryCodec):
    """Avro, in the framing of Confluent's registries or of AWS Glue's."""

    form = "Avro"
    unframed = "it does not begin with the id of a schema"
    wants = "each must be Avro with the id of its schema in front"

    def __init__(self, client: RegistryClient | GlueClient, remember: Remember) -> None:
        super().__init__(remember)
        self._client = client
        self._writers: dict[str, dict[str, Any]] = {}
        self._reader: dict[str, Any] = {}

    def _usable(self, key: str) -> Schema:
        schema = self._schema(key)
        self._writers[key] = whole(schema)
        return schema

    def _schema(self, key: str) -> Schema:
        return self._client.schema(key) if isinstance(self._client, GlueClient) else self._client.schema(int(key))

    def writers(self) -> list[dict[str, Any]]:
        """The schemas that messages were written with, as far as they are known."""
        return [self._writers[key] for key in sorted(self._schemas, key=lambda key: self._schemas[key].id)]

    def _arrange(self) -> None:
        newest = max(self._schemas, key=lambda key: self._schemas[key].id)
        others = sorted((key for key in self._schemas if key != newest), key=lambda key: -self._schemas[key].id)
        self._reader = reading_all(self._writers[newest], [self._writers[key] for key in others])

    def _framed(self, messages: DataFrame) -> DataFrame:
        return _glue_framed(messages) if isinstance(self._client, GlueClient) else _confluent_framed(messages, 6)

    def _parse(self, framed: DataFrame) -> DataFrame:
        options = {"mode": "PERMISSIVE", "avroSchema": json.dumps(self._reader)}
        parsed: Column | None = None
        for key in self._schemas:
            read = from_avro(F.col(BODY), json.dumps(self._writers[key]), options)
            parsed = (
                F.when(F.col(SCHEMA_ID) == key, read) if parsed is None else parsed.when(F.col(SCHEMA_ID) == key, read)
            )
        return framed.withColumn(PARSED, F.lit(None) if parsed is None else parsed)

    def _is_read(self) -> Column:
        return F.col(f"{PARSED}.{PRESENT}").isNotNull()


class AvroKeyCodec(AvroCodec):
    """The keys of messages in Avro, which need no record: a bare value is written like a record that has only it."""

    def _schema(self, key: str) -> Schema:
        schema = super()._schema(key)
        kind = bare_kind(schema)
        if kind is None:
            return schema
        return replace(
            schema, text=json.dumps({"type": "record", "name": BARE, "fields": [{"name": BARE, "type": kind}]})
        )


def _confluent_framed(messages: DataFrame, begins: int) -> DataFrame:
    value = F.col(VALUE)
    is_framed = (F.octet_length(value) >= begins - 1) & (F.substring(value, 1, 1) == F.lit(b"\x00"))
    number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10)
    body = F.substring(value, begins, 2**31 - 1)
    return messages.withColumns({SCHEMA_ID: F.when(is_framed, number), BODY: F.when(is_framed, body)})


def _glue_framed(messages: DataFrame) -> DataFrame:
    @F.udf("struct<id: string, body: binary>", useArrow=True)  # type: ignore[call-overload,untyped-decorator,unused-ignore]
    def unframed(value: bytes | None) -> tuple[str | None, bytes | None]:
        try:
            found = glue_version_and_payload(bytes(value or b""))
        except UnfitValue:
            return None, None
        return str(found.schema_version), found.payload

    parts = messages.withColumn("__framed", unframed(F.col(VALUE)))
    return parts.withColumns({SCHEMA_ID: F.col("__framed.id"), BODY: F.col("__framed.body")}).drop("__framed")


def registry_codec(connection: KafkaConnection, remember: Remember) -> RegistryCodec:
    """The codec of a connection whose `payload_format` is `avro` or `protobuf`."""
    client = registry_of_kafka(connection)
    if connection.payload_format == "protobuf":
        from ematix_flow.spark.payload_protobuf import ProtobufCodec

        assert isinstance(client, RegistryClient), "checked when the stream was declared"
        return ProtobufCodec(client, remember)
    return AvroCodec(client, remember)


def key_codec(connection: KafkaConnection) -> RegistryCodec | None:
    """What reads message keys that name a schema; None for a connection without a registry."""
    if connection.payload_format not in ("avro", "protobuf") and not has_keys_with_schemas(connection):
        return None
    if connection.payload_format == "protobuf":
        return registry_codec(connection, lambda _: None)
    return AvroKeyCodec(registry_of_kafka(connection), lambda _: None)
