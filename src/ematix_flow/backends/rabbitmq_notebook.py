"""RabbitMQ for notebooks: Arrow batches out of a queue and into one, acknowledged when you say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ematix_flow.backends.notebook import (
    MEBIBYTE,
    Limits,
    Payloads,
    ReadsBatches,
    given_batches,
    instants,
    named,
    require_arrow,
    value_errors,
    with_columns,
)
from ematix_flow.backends.rabbitmq_client import Broker, Consumer, Delivery, broker_of, require_driver
from ematix_flow.backends.rabbitmq_publisher import Publisher
from ematix_flow.declare.connection import RabbitMQConnection
from ematix_flow.errors import FlowError

if TYPE_CHECKING:
    import pyarrow as pa


class RabbitMQBackend(ReadsBatches):
    """A RabbitMQ server, for notebooks. Make one with `open`.

    What was read is nobody else's until `commit_offsets`, `nack_pending` or `close`. A batch that cannot be read stays
    the next one until `nack_pending`; `commit_offsets` leaves it alone.
    """

    def __init__(
        self, broker: Broker, limits: Limits, payloads: Payloads, *, consumer_tag: str | None, metadata: bool
    ) -> None:
        self._broker, self._limits, self._payloads, self._consumer_tag = broker, limits, payloads, consumer_tag
        self._has_metadata = metadata
        self._consumers: dict[str, Consumer] = {}
        self._last: dict[str, Delivery] = {}
        self._unread: dict[str, list[Delivery]] = {}  # messages that are no rows, and those beside them
        self._publisher: Publisher | None = None

    @classmethod
    def open(
        cls,
        amqp_url: str,
        *,
        consumer_tag: str | None = None,
        payload_format: str = "json",
        metadata: bool = False,
        batch_size: int = 1_000,
        batch_bytes: int = 16 * MEBIBYTE,
        idle_timeout_ms: int = 2_000,
    ) -> RabbitMQBackend:
        """A client for a server. Nothing connects before it is used.

        A batch ends with `batch_size` messages or `batch_bytes`, or when nothing came for `idle_timeout_ms`.

        `metadata=True` adds columns: `_message_id`, `_redelivered` and `_event_ts`.

        Raises:
            ValueError: an argument is empty or makes no sense.
            ImportError: the client library is not installed.
        """
        require_arrow("rabbitmq")
        require_driver()
        broker = broker_of(RabbitMQConnection(name="notebook", amqp_url=amqp_url, consumer_tag=consumer_tag))
        limits = Limits(batch_size, batch_bytes, idle_timeout_ms)
        return cls(broker, limits, Payloads(payload_format), consumer_tag=consumer_tag, metadata=metadata)

    def ping(self) -> None:
        """Log in and out again.

        Raises:
            ValueError: the server cannot be reached, or refuses the login.
        """
        with value_errors():
            self._broker.ping()

    def write_arrow_stream(self, name: str, batches: Any) -> int:
        """Send every row of the batches to a queue; how many. The server has confirmed all when this returns."""
        with value_errors():
            named("queue", name)
            self._publisher = self._publisher or Publisher(self._broker)
            messages = (body for batch in given_batches(batches) for body in self._payloads.messages(batch, name))
            return self._publisher.send(name, messages)

    def commit_offsets(self) -> None:
        """Acknowledge everything that was read: it leaves the queue.

        Raises:
            ValueError: the connection was lost since; the server gives the messages again.
        """
        with value_errors():
            for queue, last in list(self._last.items()):
                del self._last[queue]
                self._consumers[queue].ack(last)

    def nack_pending(self, requeue: bool = True) -> None:
        """Give everything that was read back to its queue; without `requeue` it goes to the queue's dead letters.

        A batch that could not be read is among it.
        """
        last = {**self._last, **{queue: deliveries[-1] for queue, deliveries in self._unread.items()}}
        self._last.clear()
        self._unread.clear()
        with value_errors():
            for queue, delivery in last.items():
                self._consumers[queue].nack(delivery, requeue=requeue)

    def pending_delivery_count(self) -> int:
        """How many messages were read and are neither acknowledged nor given back."""
        return sum(consumer.pending for consumer in self._consumers.values())

    def close(self) -> None:
        """End all connections; what was not acknowledged goes back to its queue."""
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()
        self._last.clear()
        self._unread.clear()
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def _next_batch(self, queue: str) -> pa.RecordBatch | None:
        named("queue", queue)
        limits = self._limits
        if queue not in self._consumers:
            self._consumers[queue] = Consumer(
                self._broker,
                queue,
                most_rows=limits.rows,
                most_bytes=limits.bytes,
                consumer_tag=self._consumer_tag,
            )
        taken = self._unread.pop(queue, None)
        if taken is None:
            taken = self._consumers[queue].take(rows=limits.rows, most_bytes=limits.bytes, idle_s=limits.idle_s)
        if not taken:
            return None
        try:
            batch = self._payloads.batch([delivery.body for delivery in taken], queue)
            if self._has_metadata:
                batch = with_columns(batch, _metadata(taken))
        except FlowError:
            self._unread[queue] = taken
            raise
        self._last[queue] = taken[-1]
        return batch


def _metadata(deliveries: list[Delivery]) -> dict[str, tuple[Any, Any]]:
    import pyarrow as pa

    return {
        "_message_id": (pa.string(), [delivery.message_id for delivery in deliveries]),
        "_redelivered": (pa.bool_(), [delivery.redelivered for delivery in deliveries]),
        "_event_ts": instants([delivery.event_time_us for delivery in deliveries]),
    }
