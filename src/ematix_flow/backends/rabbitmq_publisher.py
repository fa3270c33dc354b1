"""Messages into a RabbitMQ queue: persistent, and sent only when the server has confirmed every one of them.

Many messages are under way at once; the server's confirmations are counted in a thread of their own. What a lost
connection left unconfirmed is sent again under the same message id, so a reader can tell a message that came twice.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.backends.rabbitmq_client import RETURN_S, WAIT_S, Broker, unknown_queue
from ematix_flow.errors import BrokerRefused, ConnectionFailed, FlowError

ROUND_ROWS = 1_000
ROUND_BYTES = 8 * 1024 * 1024
"""How much is under way before confirmations are awaited."""

STALLED_S = 30.0
"""How long a server may confirm nothing before it counts as unreachable; it may be writing to a slow disk."""


@dataclass
class _Round:
    """Messages that go out together, and what is known of them."""

    queue: str
    messages: dict[str, bytes]  # by message id; what is confirmed is taken out
    by_tag: dict[int, str] = field(default_factory=dict)
    error: FlowError | None = None
    progress: int = 0


class Publisher:
    """Sends messages to queues of one server. Connects with the first of them; for one caller at a time."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._changed = threading.Condition()
        self._connection: Any = None
        self._channel: Any = None
        self._thread: threading.Thread | None = None
        self._lost: FlowError | None = None
        self._was_there = False
        self._next_tag = 1
        self._round: _Round | None = None

    def send(self, queue: str, bodies: Iterable[bytes]) -> int:
        """Send messages; how many. All of them are confirmed when this returns.

        Raises:
            FlowError: the queue is not there, the server refuses one, or it cannot be had again. Some may be sent then.
        """
        sent = 0
        for messages in _rounds(bodies):
            sent += len(messages)
            self._send_round(_Round(queue, messages))
        return sent

    def close(self) -> None:
        """End the connection."""
        connection, thread = self._connection, self._thread
        if connection is None or thread is None:
            return
        connection.ioloop.add_callback_threadsafe(lambda: _end(connection))
        thread.join(WAIT_S)
        self._connection = self._thread = None

    def _send_round(self, round_: _Round) -> None:
        give_up_at: float | None = None
        while True:
            try:
                self._connect()
                self._confirmed(round_)
                return
            except ConnectionFailed:
                self.close()
                give_up_at = give_up_at or time.monotonic() + RETURN_S
                if not self._was_there or time.monotonic() > give_up_at:
                    raise
                time.sleep(0.2)

    def _confirmed(self, round_: _Round) -> None:
        """Hand a round to the connection's thread and wait until nothing of it is unconfirmed."""
        self._connection.ioloop.add_callback_threadsafe(lambda: self._publish(round_))
        with self._changed:
            seen, deadline = round_.progress, time.monotonic() + STALLED_S
            while round_.messages and round_.error is None and self._lost is None:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise ConnectionFailed(
                        f"RabbitMQ at {self.broker.server} has confirmed no message for {STALLED_S:.0f} s.",
                        fix="look at the server: it may be short of memory or disk",
                    )
                if round_.progress != seen:
                    seen, deadline = round_.progress, time.monotonic() + STALLED_S
            if round_.error is not None:
                raise round_.error
            if round_.messages and self._lost is not None:
                raise self._lost

    # Below this line everything but `_connect` runs in the thread of the connection.

    def _connect(self) -> None:
        if self._connection is not None and self._lost is None:
            return
        import pika

        self.close()
        self._lost, self._channel = None, None
        with self.broker.explaining():
            self._connection = pika.SelectConnection(
                self.broker.parameters(),
                on_open_callback=lambda connection: connection.channel(on_open_callback=self._channel_open),
                on_open_error_callback=self._closed,
                on_close_callback=self._closed,
            )
        self._thread = threading.Thread(target=self._connection.ioloop.start, name="rabbitmq-publisher", daemon=True)
        self._thread.start()
        with self._changed:
            came = self._changed.wait_for(lambda: self._channel is not None or self._lost is not None, WAIT_S)
        if self._lost is not None:
            raise self._lost
        if not came:
            raise self.broker.explained(TimeoutError())

    def _channel_open(self, channel: Any) -> None:
        channel.add_on_close_callback(self._channel_closed)
        channel.add_on_return_callback(self._returned)
        channel.confirm_delivery(self._answered, callback=lambda frame: self._ready(channel))

    def _ready(self, channel: Any) -> None:
        with self._changed:
            self._channel, self._next_tag, self._was_there = channel, 1, True
            self._changed.notify_all()

    def _publish(self, round_: _Round) -> None:
        import pika

        self._round = round_
        round_.by_tag.clear()  # tags are counted anew by each connection
        if self._channel is None or not self._channel.is_open:
            return  # whoever waits is told by `_closed`
        now = int(time.time())
        for message_id, body in list(round_.messages.items()):
            round_.by_tag[self._next_tag] = message_id
            self._next_tag += 1
            properties = pika.BasicProperties(delivery_mode=2, message_id=message_id, timestamp=now)
            self._channel.basic_publish("", round_.queue, body, properties, mandatory=True)

    def _answered(self, frame: Any) -> None:
        round_, method = self._round, frame.method
        if round_ is None:
            return
        last = method.delivery_tag
        tags = [tag for tag in round_.by_tag if tag <= last] if method.multiple else [last]
        with self._changed:
            for tag in tags:
                message_id = round_.by_tag.pop(tag, None)
                if message_id is not None and method.NAME == "Basic.Ack":
                    round_.messages.pop(message_id, None)
                elif message_id is not None:
                    round_.error = BrokerRefused(
                        f"RabbitMQ did not take a message for queue '{round_.queue}'.",
                        fix="the queue is full (x-overflow), or the node that holds it is down",
                    )
            round_.progress += 1
            self._changed.notify_all()

    def _returned(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        with self._changed:
            if self._round is not None:
                self._round.error = unknown_queue(self._round.queue, self.broker.name)
            self._changed.notify_all()

    def _channel_closed(self, channel: Any, reason: Exception) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
        self._note(reason)

    def _closed(self, connection: Any, reason: Exception) -> None:
        connection.ioloop.stop()
        self._note(reason)

    def _note(self, reason: Exception) -> None:
        with self._changed:
            queue = self._round.queue if self._round is not None else None
            self._lost = self._lost or self.broker.explained(reason, queue)
            self._changed.notify_all()


def _end(connection: Any) -> None:
    if connection.is_open:
        connection.close()
    elif not connection.is_closing:
        connection.ioloop.stop()


def _rounds(bodies: Iterable[bytes]) -> Iterator[dict[str, bytes]]:
    """Messages in bounded groups, each with an id that it keeps."""
    origin = uuid.uuid4().hex
    found: dict[str, bytes] = {}
    size = 0
    for number, body in enumerate(bodies):
        found[f"{origin}-{number}"] = body
        size += len(body)
        if len(found) >= ROUND_ROWS or size >= ROUND_BYTES:
            yield found
            found, size = {}, 0
    if found:
        yield found
