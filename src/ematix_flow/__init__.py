"""ematix-flow: declare tables and pipelines in Python; Spark, or the database itself, moves the data.

Names are loaded when they are first used, so that importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ematix_flow._version import __version__ as __version__

if TYPE_CHECKING:  # editors and type checkers see plain imports
    from typing import Annotated as Annotated

    from ematix_flow import (
        _core as _core,
        config as config,
        connections as connections,
        pipeline as pipeline,
        streaming as streaming,
    )
    from ematix_flow.config.handles import (
        connect as connect,
    )
    from ematix_flow.contracts.run_context import (
        current_run as current_run,
    )
    from ematix_flow.declare.columns import (
        JSON as JSON,
        JSONB as JSONB,
        UUID as UUID,
        BigInt as BigInt,
        Boolean as Boolean,
        Bytes as Bytes,
        Date as Date,
        Decimal as Decimal,
        Double as Double,
        Float as Float,
        Integer as Integer,
        Numeric as Numeric,
        SmallInt as SmallInt,
        String as String,
        Text as Text,
        Timestamp as Timestamp,
        TimestampTZ as TimestampTZ,
    )
    from ematix_flow.declare.connection import (
        BigQueryConnection as BigQueryConnection,
        Connection as Connection,
        DeltaLocalConnection as DeltaLocalConnection,
        DeltaS3Connection as DeltaS3Connection,
        DuckDBConnection as DuckDBConnection,
        GlueSchemaRegistryConnection as GlueSchemaRegistryConnection,
        IcebergConnection as IcebergConnection,
        KafkaConnection as KafkaConnection,
        KinesisConnection as KinesisConnection,
        MySQLConnection as MySQLConnection,
        ObjectStoreAzureConnection as ObjectStoreAzureConnection,
        ObjectStoreGcsConnection as ObjectStoreGcsConnection,
        ObjectStoreLocalConnection as ObjectStoreLocalConnection,
        ObjectStoreS3Connection as ObjectStoreS3Connection,
        PostgresConnection as PostgresConnection,
        PubSubConnection as PubSubConnection,
        RabbitMQConnection as RabbitMQConnection,
        RedshiftConnection as RedshiftConnection,
        SchemaRegistryConnection as SchemaRegistryConnection,
        SnowflakeConnection as SnowflakeConnection,
        SQLiteConnection as SQLiteConnection,
        get_connection as get_connection,
        register_connection as register_connection,
        registered_connections as registered_connections,
    )
    from ematix_flow.declare.kafka_eos import (
        KafkaToKafkaEosPipeline as KafkaToKafkaEosPipeline,
    )
    from ematix_flow.declare.keys import (
        natural_key as natural_key,
        nullable as nullable,
        pk as pk,
    )
    from ematix_flow.declare.maintenance import (
        Maintenance as Maintenance,
    )
    from ematix_flow.declare.namespace import (
        ematix as ematix,
    )
    from ematix_flow.declare.stream import (
        CDC as CDC,
        Aggregation as Aggregation,
        Join as Join,
        Lookup as Lookup,
        Source as Source,
        StateStore as StateStore,
        Watermark as Watermark,
        Window as Window,
    )
    from ematix_flow.declare.stream_pipeline import (
        run_pipeline as run_pipeline,
        run_streaming_pipeline as run_streaming_pipeline,
    )
    from ematix_flow.declare.table import (
        Column as Column,
        ManagedTable as ManagedTable,
    )
    from ematix_flow.declare.target import (
        Target as Target,
    )
    from ematix_flow.declare.trigger import (
        AllOf as AllOf,
        AnyOf as AnyOf,
        TriggerOp as TriggerOp,
    )
    from ematix_flow.declare.udf import (
        PythonAggregateUdfHandle as PythonAggregateUdfHandle,
        PythonScalarUdfHandle as PythonScalarUdfHandle,
        apply_udaf_to_batch as apply_udaf_to_batch,
        apply_udf_to_batch as apply_udf_to_batch,
        udaf as udaf,
        udf as udf,
    )

_EXPORTS: dict[str, str] = {
    "Annotated": "typing",
    "_core": "ematix_flow",
    "config": "ematix_flow",
    "connections": "ematix_flow",
    "pipeline": "ematix_flow",
    "streaming": "ematix_flow",
    "connect": "ematix_flow.config.handles",
    "current_run": "ematix_flow.contracts.run_context",
    "JSON": "ematix_flow.declare.columns",
    "JSONB": "ematix_flow.declare.columns",
    "UUID": "ematix_flow.declare.columns",
    "BigInt": "ematix_flow.declare.columns",
    "Boolean": "ematix_flow.declare.columns",
    "Bytes": "ematix_flow.declare.columns",
    "Date": "ematix_flow.declare.columns",
    "Decimal": "ematix_flow.declare.columns",
    "Double": "ematix_flow.declare.columns",
    "Float": "ematix_flow.declare.columns",
    "Integer": "ematix_flow.declare.columns",
    "Numeric": "ematix_flow.declare.columns",
    "SmallInt": "ematix_flow.declare.columns",
    "String": "ematix_flow.declare.columns",
    "Text": "ematix_flow.declare.columns",
    "Timestamp": "ematix_flow.declare.columns",
    "TimestampTZ": "ematix_flow.declare.columns",
    "BigQueryConnection": "ematix_flow.declare.connection",
    "Connection": "ematix_flow.declare.connection",
    "DeltaLocalConnection": "ematix_flow.declare.connection",
    "DeltaS3Connection": "ematix_flow.declare.connection",
    "IcebergConnection": "ematix_flow.declare.connection",
    "DuckDBConnection": "ematix_flow.declare.connection",
    "GlueSchemaRegistryConnection": "ematix_flow.declare.connection",
    "KafkaConnection": "ematix_flow.declare.connection",
    "KafkaToKafkaEosPipeline": "ematix_flow.declare.kafka_eos",
    "KinesisConnection": "ematix_flow.declare.connection",
    "MySQLConnection": "ematix_flow.declare.connection",
    "ObjectStoreAzureConnection": "ematix_flow.declare.connection",
    "ObjectStoreGcsConnection": "ematix_flow.declare.connection",
    "ObjectStoreLocalConnection": "ematix_flow.declare.connection",
    "ObjectStoreS3Connection": "ematix_flow.declare.connection",
    "PostgresConnection": "ematix_flow.declare.connection",
    "PubSubConnection": "ematix_flow.declare.connection",
    "RabbitMQConnection": "ematix_flow.declare.connection",
    "RedshiftConnection": "ematix_flow.declare.connection",
    "SQLiteConnection": "ematix_flow.declare.connection",
    "SchemaRegistryConnection": "ematix_flow.declare.connection",
    "SnowflakeConnection": "ematix_flow.declare.connection",
    "get_connection": "ematix_flow.declare.connection",
    "register_connection": "ematix_flow.declare.connection",
    "registered_connections": "ematix_flow.declare.connection",
    "natural_key": "ematix_flow.declare.keys",
    "nullable": "ematix_flow.declare.keys",
    "pk": "ematix_flow.declare.keys",
    "Maintenance": "ematix_flow.declare.maintenance",
    "ematix": "ematix_flow.declare.namespace",
    "CDC": "ematix_flow.declare.stream",
    "Aggregation": "ematix_flow.declare.stream",
    "Join": "ematix_flow.declare.stream",
    "Lookup": "ematix_flow.declare.stream",
    "Source": "ematix_flow.declare.stream",
    "StateStore": "ematix_flow.declare.stream",
    "Watermark": "ematix_flow.declare.stream",
    "Window": "ematix_flow.declare.stream",
    "run_pipeline": "ematix_flow.declare.stream_pipeline",
    "run_streaming_pipeline": "ematix_flow.declare.stream_pipeline",
    "Column": "ematix_flow.declare.table",
    "ManagedTable": "ematix_flow.declare.table",
    "Target": "ematix_flow.declare.target",
    "AllOf": "ematix_flow.declare.trigger",
    "AnyOf": "ematix_flow.declare.trigger",
    "TriggerOp": "ematix_flow.declare.trigger",
    "PythonAggregateUdfHandle": "ematix_flow.declare.udf",
    "PythonScalarUdfHandle": "ematix_flow.declare.udf",
    "apply_udaf_to_batch": "ematix_flow.declare.udf",
    "apply_udf_to_batch": "ematix_flow.declare.udf",
    "udaf": "ematix_flow.declare.udf",
    "udf": "ematix_flow.declare.udf",
}

__all__ = [
    "Aggregation",
    "AllOf",
    "Annotated",
    "AnyOf",
    "BigInt",
    "BigQueryConnection",
    "Boolean",
    "Bytes",
    "CDC",
    "Column",
    "Connection",
    "Date",
    "Decimal",
    "DeltaLocalConnection",
    "DeltaS3Connection",
    "IcebergConnection",
    "Double",
    "DuckDBConnection",
    "Float",
    "GlueSchemaRegistryConnection",
    "Integer",
    "JSON",
    "JSONB",
    "Join",
    "KafkaConnection",
    "KafkaToKafkaEosPipeline",
    "KinesisConnection",
    "Lookup",
    "Maintenance",
    "ManagedTable",
    "MySQLConnection",
    "Numeric",
    "ObjectStoreAzureConnection",
    "ObjectStoreGcsConnection",
    "ObjectStoreLocalConnection",
    "ObjectStoreS3Connection",
    "PostgresConnection",
    "PubSubConnection",
    "PythonAggregateUdfHandle",
    "PythonScalarUdfHandle",
    "RabbitMQConnection",
    "RedshiftConnection",
    "SQLiteConnection",
    "SchemaRegistryConnection",
    "SmallInt",
    "SnowflakeConnection",
    "Source",
    "StateStore",
    "String",
    "Target",
    "Text",
    "Timestamp",
    "TimestampTZ",
    "TriggerOp",
    "UUID",
    "Watermark",
    "Window",
    "__version__",
    "_core",
    "apply_udaf_to_batch",
    "apply_udf_to_batch",
    "config",
    "connect",
    "connections",
    "current_run",
    "ematix",
    "get_connection",
    "natural_key",
    "nullable",
    "pipeline",
    "pk",
    "register_connection",
    "registered_connections",
    "run_pipeline",
    "run_streaming_pipeline",
    "streaming",
    "udaf",
    "udf",
]


def __getattr__(name: str) -> object:
    """Load an exported name from the module that owns it, once."""
    owner = _EXPORTS.get(name)
    if owner is None:
        raise AttributeError(f"module 'ematix_flow' has no attribute '{name}'")
    value: object
    if owner == __name__:  # a module of this package
        value = importlib.import_module(f"{owner}.{name}")
    else:
        value = getattr(importlib.import_module(owner), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
