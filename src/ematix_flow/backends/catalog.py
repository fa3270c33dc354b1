"""The one index of backends: which class serves a kind of connection, and what it needs to be installed."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from ematix_flow.contracts.backend import Backend
from ematix_flow.declare.connection import Connection
from ematix_flow.errors import UnsupportedBackend, listed


@dataclass(frozen=True)
class Entry:
    """Where a backend lives, the extra that installs its driver, and the connector jars of its family."""

    path: str
    extra: str | None = None
    jars: tuple[str, ...] = ()


BACKENDS: dict[str, Entry] = {
    "postgres": Entry("ematix_flow.backends.postgres:PostgresBackend", extra="postgres"),
    "sqlite": Entry("ematix_flow.backends.sqlite:SqliteBackend"),
    "mysql": Entry("ematix_flow.backends.mysql:MysqlBackend", extra="mysql"),
    "duckdb": Entry("ematix_flow.backends.duckdb:DuckdbBackend", extra="duckdb"),
    "kafka": Entry("ematix_flow.backends.kafka:KafkaBackend", extra="kafka"),
    "rabbitmq": Entry("ematix_flow.backends.rabbitmq:RabbitmqBackend", extra="rabbitmq"),
    "pubsub": Entry("ematix_flow.backends.pubsub:PubsubBackend", extra="pubsub"),
    "kinesis": Entry("ematix_flow.backends.kinesis:KinesisBackend", extra="kinesis"),
    "delta_local": Entry("ematix_flow.backends.delta:DeltaBackend", extra="spark", jars=("delta",)),
    "delta_s3": Entry("ematix_flow.backends.delta:S3DeltaBackend", extra="s3", jars=("delta", "hadoop-aws")),
    "iceberg": Entry("ematix_flow.backends.iceberg:IcebergBackend", extra="spark", jars=("iceberg",)),
    "snowflake": Entry("ematix_flow.backends.snowflake:SnowflakeBackend", extra="snowflake"),
    "bigquery": Entry("ematix_flow.backends.bigquery:BigqueryBackend", extra="bigquery"),
    "redshift": Entry("ematix_flow.backends.redshift:RedshiftBackend", extra="redshift"),
    "object_store_local": Entry("ematix_flow.backends.files:FilesBackend", extra="spark"),
    "object_store_s3": Entry("ematix_flow.backends.files_s3:S3FilesBackend", extra="s3", jars=("hadoop-aws",)),
    "object_store_gcs": Entry("ematix_flow.backends.files_gcs:GcsFilesBackend", extra="gcs", jars=("gcs-connector",)),
    "object_store_azure": Entry(
        "ematix_flow.backends.files_azure:AzureFilesBackend", extra="azure", jars=("hadoop-azure",)
    ),
}


def open_backend(connection: Connection) -> Backend:
    """The backend behind a resolved connection. Cheap: nothing connects yet.

    Raises:
        UnsupportedBackend: connections of this kind can be declared, but this version cannot use them.
    """
    entry = BACKENDS.get(connection.kind)
    if entry is None:
        raise UnsupportedBackend(
            f"Connection '{connection.name}': the '{connection.kind}' backend is not part of this version.",
            fix=f"this version moves data between {listed(BACKENDS)}",
        )
    module, _, name = entry.path.partition(":")
    backend: Backend = getattr(import_module(module), name)(connection)
    return backend
