"""Clients for notebooks, under the import path that documents promise: a database by its URL, and message brokers.

The brokers are not part of this version: the classes exist so that code can name them, and opening one says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ematix_flow.declare.udf import PythonAggregateUdfHandle, PythonScalarUdfHandle
from ematix_flow.errors import UnsupportedBackend

if TYPE_CHECKING:
    from ematix_flow.config.handles import ConnectionHandle

__all__ = [
    "KafkaBackend",
    "KinesisBackend",
    "PubSubBackend",
    "PythonAggregateUdfHandle",
    "PythonScalarUdfHandle",
    "RabbitMQBackend",
    "connect",
]


def connect(url: str) -> ConnectionHandle:
    """Open a database by its URL; the same as `ematix_flow.config.connect(url=url)`."""
    from ematix_flow.config.handles import connect as open_handle

    return open_handle(url=url)


class KafkaBackend:
    """A Kafka cluster."""

    @classmethod
    def open(cls, bootstrap_servers: str, **options: Any) -> NoReturn:
        """Would make a client for the cluster; refused in this version."""
        raise _not_here("Kafka", cls)


class RabbitMQBackend:
    """A RabbitMQ server."""

    @classmethod
    def open(cls, amqp_url: str, **options: Any) -> NoReturn:
        """Would make a client for the server; refused in this version."""
        raise _not_here("RabbitMQ", cls)


class PubSubBackend:
    """A Google Pub/Sub project."""

    @classmethod
    def open(cls, project_id: str, **options: Any) -> NoReturn:
        """Would make a client for the project; refused in this version."""
        raise _not_here("Pub/Sub", cls)


class KinesisBackend:
    """An Amazon Kinesis stream."""

    @classmethod
    def open(cls, stream_name: str, **options: Any) -> NoReturn:
        """Would make a client for the stream; refused in this version."""
        raise _not_here("Kinesis", cls)


def _not_here(system: str, cls: type) -> UnsupportedBackend:
    return UnsupportedBackend(
        f"{cls.__name__} cannot be opened: {system} is not part of this version.",
        fix="PostgreSQL, SQLite and local files are; open a database with connect(url)",
    )
