"""What a stream can promise between two systems."""

from __future__ import annotations

import pytest

from ematix_flow import KafkaConnection, RabbitMQConnection
from ematix_flow.connections import (
    ObjectStoreAzureConnection,
    ObjectStoreGcsConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
)
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream import Source
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import Target
from ematix_flow.plan.stream import plan_stream

STORES = (
    ObjectStoreLocalConnection(name="files", path="lake", format="csv"),
    ObjectStoreS3Connection(
        name="files",
        endpoint="http://h",
        bucket="lake",
        region="r",
        access_key_id="k",
        secret_access_key="s",
        format="csv",
    ),
    ObjectStoreGcsConnection(name="files", bucket="lake", format="csv"),
    ObjectStoreAzureConnection(name="files", account="shop", account_key="c2VjcmV0", container="lake", format="csv"),
)
BROKER = KafkaConnection(name="broker", bootstrap_servers="h:9092", group_id="g")


def promised(source: Connection, target: Target) -> str:
    spec = StreamSpec(name="promise", where=user_location(), sources=(Source(source, "events"),), targets=(target,))
    return plan_stream(spec).delivery


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.kind)
def test_every_store_of_files_gives_and_takes_rows_exactly_once(store: Connection) -> None:
    assert promised(store, Target(connection=BROKER, topic="events")) == "exactly_once"
    assert promised(BROKER, Target(connection=store, prefix="events")) == "exactly_once"


def test_a_queue_does_not() -> None:
    queue = RabbitMQConnection(name="queue", amqp_url="amqp://h")
    assert promised(queue, Target(connection=BROKER, topic="events")) == "at_least_once"
    assert promised(BROKER, Target(connection=queue, queue="events")) == "at_least_once"
