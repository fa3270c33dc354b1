"""RabbitMQ: queues as sources of streams, and as targets of messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ematix_flow.backends.broker import BrokerBackend, Send
from ematix_flow.backends.queue_spool import Gives, Message
from ematix_flow.backends.queue_stream import RejectingQueue
from ematix_flow.backends.rabbitmq_client import Broker, Consumer, Delivery, broker_of, require_driver
from ematix_flow.backends.rabbitmq_publisher import Publisher
from ematix_flow.declare.connection import Connection, RabbitMQConnection
from ematix_flow.declare.target import TargetSpec

log = logging.getLogger(__name__)

HELD_ROWS = 50_000
HELD_BYTES = 64 * 1024 * 1024
"""How much may be received and not acknowledged."""


class RabbitmqBackend(RejectingQueue, BrokerBackend):
    """One virtual host of a server."""

    connection_type: ClassVar[type[Connection]] = RabbitMQConnection
    place_option = "queue"

    @property
    def broker(self) -> Broker:
        """How to reach it."""
        require_driver()
        assert isinstance(self.connection, RabbitMQConnection)
        return broker_of(self.connection)

    def ping(self) -> None:
        self.broker.ping()

    def giver(self, query: str, position: Any) -> Gives:
        assert isinstance(self.connection, RabbitMQConnection)
        tag = self.connection.consumer_tag
        return QueueGiver(Consumer(self.broker, query, most_rows=HELD_ROWS, most_bytes=HELD_BYTES, consumer_tag=tag))

    def check_rejects(self, query: str) -> None:
        """Say what cannot be asked: the protocol tells nothing of a queue's settings, and policies may change them."""
        log.warning(
            "queue '%s' must have a dead-letter exchange, which RabbitMQ does not tell us: "
            "without one it throws rejected messages away",
            query,
        )

    def sender(self, target: TargetSpec, task: str) -> Send:
        return QueueSender(self.broker, self.target_ref(target).name)


class QueueGiver:
    """Messages of a queue for the spool. Producers that set `message_id` can be recognised when they come again."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def take(self, rows: int, most_bytes: int, idle_s: float) -> Sequence[Message]:
        """What is there."""
        return [_message(found) for found in self._consumer.take(rows=rows, most_bytes=most_bytes, idle_s=idle_s)]

    def settle(self, messages: Sequence[Delivery]) -> Sequence[Delivery]:
        """Acknowledge them, and none that may still be rejected."""
        return self._consumer.ack_only(messages)

    def reject(self, messages: Sequence[Delivery]) -> None:
        """Hand them to the queue's dead-letter exchange."""
        self._consumer.reject_only(messages)

    def position(self) -> Any:
        """The server knows."""
        return None

    def close(self) -> None:
        """What is not acknowledged goes back to the queue."""
        self._consumer.close()


def _message(found: Delivery) -> Message:
    headers = {name: str(value).encode() for name, value in found.headers.items() if value is not None}
    return Message(found.body, found.event_time_us, found, id=found.message_id, headers=headers)


@dataclass(frozen=True)
class QueueSender:
    """Sends to one queue, with the server's confirmation."""

    broker: Broker
    queue: str

    def __call__(self, bodies: Iterable[bytes]) -> int:
        publisher = Publisher(self.broker)
        try:
            return publisher.send(self.queue, bodies)
        finally:
            publisher.close()
