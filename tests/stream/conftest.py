"""What every test of streams uses: a topic with messages, and a stream that is run until the topic is read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ematix_flow import KafkaConnection
from tests.services.kafka import KafkaServer

Send = Callable[..., None]


class Topic:
    """A topic of its own for one test."""

    def __init__(self, server: KafkaServer, partitions: int = 2) -> None:
        self.server = server
        self.name = server.create_topic(f"events-{uuid4().hex[:8]}", partitions=partitions)

    def connection(self, **fields: Any) -> KafkaConnection:
        """How a stream reads it."""
        given = {"bootstrap_servers": self.server.address, "group_id": f"group-{self.name}", **fields}
        return KafkaConnection(name="broker", **given)

    def send(
        self,
        messages: Iterable[Any],
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int = -1,
    ) -> None:
        """Send messages and wait until the broker has them: bytes as they are, anything else as JSON.

        Without a partition the client chooses one.
        """
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.server.address, "linger.ms": 5, "log_level": 0})
        for message in messages:
            value = message if isinstance(message, bytes) or message is None else json.dumps(message).encode()
            producer.produce(self.name, value=value, key=key, headers=dict(headers or {}), partition=partition)
            producer.poll(0)
        assert producer.flush(30) == 0

    def grow(self, partitions: int) -> None:
        """Give it more partitions."""
        from confluent_kafka.admin import AdminClient, NewPartitions

        admin = AdminClient({"bootstrap.servers": self.server.address, "log_level": 0})
        for answer in admin.create_partitions([NewPartitions(self.name, partitions)]).values():
            answer.result(30)

    def make_anew(self) -> None:
        """Delete it, and make another one of the same name."""
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.server.address, "log_level": 0})
        for answer in admin.delete_topics([self.name], operation_timeout=30).values():
            answer.result(30)
        deadline = time.monotonic() + 30
        while self.name in self.server.topics():
            assert time.monotonic() < deadline, "the topic does not go"
            time.sleep(0.1)
        self.server.create_topic(self.name)

    def committed(self) -> int:
        """How many messages the stream's group has behind it, over all partitions."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self.server.address, "group.id": f"group-{self.name}", "log_level": 0}
        )
        try:
            parts = consumer.list_topics(self.name, timeout=10).topics[self.name].partitions
            found = consumer.committed([TopicPartition(self.name, number) for number in parts], timeout=10)
            return sum(place.offset for place in found if place.offset >= 0)
        finally:
            consumer.close()


@pytest.fixture
def topic(kafka_server: KafkaServer) -> Topic:
    return Topic(kafka_server)


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test keeps its checkpoints for itself."""
    monkeypatch.setenv("EMATIX_FLOW_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    return tmp_path / "checkpoints"
