"""The schema registry of a Kafka connection, whichever kind it is."""

from __future__ import annotations

from ematix_flow.backends.glue_registry import GlueClient
from ematix_flow.backends.schema_registry import RegistryClient, registry_of
from ematix_flow.declare.connection import GlueSchemaRegistryConnection, KafkaConnection, SchemaRegistryConnection
from ematix_flow.errors import InvalidDeclaration


def has_keys_with_schemas(connection: KafkaConnection) -> bool:
    """Whether the keys of messages may name schemas while their values are plain JSON: why else name a registry."""
    is_json = (connection.payload_format or "json") == "json"
    return is_json and bool(connection.schema_registry or connection.schema_registry_url)


def registry_of_kafka(connection: KafkaConnection) -> RegistryClient | GlueClient:
    """The registry that the connection's messages name their schemas in. Nothing connects.

    Raises:
        InvalidDeclaration: (a ValueError) it names none, or one that is not known here.
    """
    registry = connection.schema_registry
    if isinstance(registry, GlueSchemaRegistryConnection):
        return GlueClient(registry)
    if isinstance(registry, SchemaRegistryConnection):
        return RegistryClient(registry_of(registry))
    if connection.schema_registry_url:
        told = SchemaRegistryConnection(name=connection.name, url=connection.schema_registry_url)
        return RegistryClient(registry_of(told))
    raise InvalidDeclaration(
        f"Connection '{connection.name}': payload_format '{connection.payload_format}' needs schema_registry_url or "
        "schema_registry.",
        fix='schema_registry_url = "http://registry:8081"',
    )
