"""A RabbitMQ server as its client library sees it: what is consumed, held and acknowledged, and its errors as ours.

A `Broker` is plain data, so that it travels to Spark's workers as it is. A `Consumer` keeps its connection alive in a
thread of its own, however long a batch takes, and fetches no more ahead than it was told, in rows and in bytes. When
the connection is lost it comes back; the server then gives again what was not acknowledged, and what came before can
no longer be. Every wait has an end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, TimeoutError as NotInTime
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from ematix_flow.declare.connection import RabbitMQConnection
from ematix_flow.declare.server_address import server_address, url_scheme
from ematix_flow.errors import BrokerRefused, ConnectionFailed, FlowError, MissingDriver

WAIT_S = 10.0
"""How long a server may take to answer before it counts as unreachable."""

RETURN_S = 60.0
"""How long a lost connection is tried to be had again before whoever waits for messages is told."""

FIRST_CREDIT = 64
"""How many messages are asked for before anything is known of their size."""

_PORTS = {"amqp": 5672, "amqps": 5671}


# ── where a server is ────────────────────────────────────────────────────────────────────────────────────────────────


def broker_of(connection: RabbitMQConnection) -> Broker:
    """The server behind a connection. Nothing connects.

    Raises:
        InvalidConnection: the URL is none of a RabbitMQ server.
    """
    scheme = url_scheme(connection.amqp_url)
    if scheme not in _PORTS:
        connection.refuse("amqp_url must begin with 'amqp://' or 'amqps://'")
    try:
        address = server_address(connection.amqp_url, default_port=_PORTS[scheme])
    except ValueError as exc:
        connection.refuse(f"amqp_url cannot be read: {exc}")
    return Broker(connection.name, f"{address.host}:{address.port}", address.database or "/", connection.amqp_url)


@dataclass(frozen=True)
class Broker:
    """One server and virtual host. `url` holds the password and is never shown."""

    name: str
    server: str
    vhost: str
    url: str = field(repr=False)

    def parameters(self) -> Any:
        """How the library connects: soon or not at all."""
        import pika

        if not (log := logging.getLogger("pika")).handlers:
            # Else it prints what becomes an error of ours, several times over, where nobody has set up logging.
            log.addHandler(logging.NullHandler())
        parameters = pika.URLParameters(self.url)
        parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = WAIT_S
        parameters.connection_attempts = 1
        if "heartbeat" not in self.url:
            parameters.heartbeat = 30
        return parameters

    def connect(self) -> Any:
        """An open connection, for one thread."""
        import pika

        with self.explaining():
            return pika.BlockingConnection(self.parameters())

    def ping(self) -> None:
        """Log in and out again."""
        with self.explaining():
            self.connect().close()

    @contextmanager
    def explaining(self, queue: str | None = None) -> Iterator[None]:
        """The library's errors as ours; everything else passes."""
        import pika.exceptions

        try:
            yield
        except (pika.exceptions.AMQPError, OSError) as exc:
            raise self.explained(exc, queue) from exc

    def explained(self, error: BaseException, queue: str | None = None) -> FlowError:
        """One error of the library, as what a user can act on."""
        import pika.exceptions as E

        where = f"connection '{self.name}' (rabbitmq)"
        if isinstance(error, (E.ProbableAuthenticationError, E.AuthenticationError)):
            return ConnectionFailed(
                f"RabbitMQ at {self.server} refuses the login of '{self.name}': its user or password is wrong.",
                fix="check user and password in amqp_url; 'guest' is let in from the same machine only",
            )
        if isinstance(error, E.ProbableAccessDeniedError):
            return ConnectionFailed(
                f"RabbitMQ at {self.server} does not let the user of '{self.name}' into virtual host '{self.vhost}'.",
                fix="check the path of amqp_url (`/` is written %2F), or grant the user the virtual host",
            )
        if isinstance(error, E.ChannelClosedByBroker) and error.reply_code == 404:
            return unknown_queue(queue, self.name)
        if isinstance(error, E.ChannelClosedByBroker) and error.reply_code == 403:
            return BrokerRefused(
                f"RabbitMQ does not allow the user of '{self.name}' to do this on queue '{queue}'.",
                fix="grant read on the queue to consume, write on the default exchange to publish",
            )
        if isinstance(error, E.ChannelClosedByBroker) and error.reply_code == 406:
            return ConnectionFailed(
                f"RabbitMQ at {self.server} took messages of queue '{queue}' back: {error.reply_text}.",
                where=where,
                fix="acknowledge within the server's consumer_timeout, half an hour unless it was changed",
            )
        if isinstance(error, E.ChannelClosedByBroker):
            return BrokerRefused(f"RabbitMQ at {self.server} said no: {error.reply_text}.", where=where)
        if isinstance(error, E.ConnectionBlockedTimeout):
            return ConnectionFailed(
                f"RabbitMQ at {self.server} takes no messages at present: it is short of memory or disk.", where=where
            )
        refused = isinstance(_first_cause(error), ConnectionRefusedError)
        return ConnectionFailed(
            f"RabbitMQ at {self.server} cannot be reached within {WAIT_S:.0f} s"
            f"{' (connection refused)' if refused else ''}.",
            where=where,
            fix="check host, port and scheme of amqp_url, and that the server is up",
        )


def require_driver() -> None:
    """Say how to install the client library, before anything else fails for its lack."""
    try:
        import pika  # noqa: F401
    except ImportError as exc:
        raise MissingDriver("The rabbitmq backend needs 'pika'.", fix='pip install "ematix-flow[rabbitmq]"') from exc


def unknown_queue(queue: str | None, connection: str) -> FlowError:
    """A queue that is not there. It is never made on the way: somebody has to decide on its kind."""
    return BrokerRefused(
        f"RabbitMQ has no queue '{queue}' (connection '{connection}').",
        fix="create the queue, durable; or name another one",
    )


def _first_cause(error: BaseException) -> BaseException:
    """What the library wraps, several times over."""
    while True:
        inside = getattr(error, "exceptions", None) or [a for a in error.args if isinstance(a, BaseException)]
        inside = inside or [e for e in (getattr(error, "exception", None), error.__cause__) if e is not None]
        if not inside or inside[-1] is error:
            return error
        error = inside[-1]


# ── consuming ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that is held: neither acknowledged nor given back. `epoch` is the connection it came by."""

    epoch: int
    tag: int
    body: bytes
    message_id: str | None
    redelivered: bool
    event_time_us: int
    headers: Mapping[str, Any]


class Consumer:
    """Messages of one queue, held until they are acknowledged. Connects when it is first asked for messages."""

    def __init__(
        self, broker: Broker, queue: str, *, most_rows: int, most_bytes: int, consumer_tag: str | None = None
    ) -> None:
        self.broker, self.queue = broker, queue
        self.most_rows, self.most_bytes = most_rows, most_bytes
        self._consumer_tag = consumer_tag
        self._changed = threading.Condition()
        self._ready: deque[Delivery] = deque()  # received, not yet given out
        self._held: dict[tuple[int, int], int] = {}  # received and not settled: by which request
        self._ready_bytes = 0
        self._given: dict[tuple[int, int], None] = {}  # given out and not settled
        self._epoch = 0
        self._request = 0  # the open request for messages
        self._credit_left = 0  # what it may still bring
        self._seen_rows = self._seen_bytes = 0
        self._failure: FlowError | None = None
        self._closing = False
        self._connection: Any = None
        self._channel: Any = None
        self._open_tag: str | None = None
        self._thread: threading.Thread | None = None

    @property
    def pending(self) -> int:
        """How many messages were given out and are not settled."""
        with self._changed:
            return len(self._given)

    def take(self, *, rows: int, most_bytes: int, idle_s: float, first_s: float | None = None) -> list[Delivery]:
        """Wait for messages: until there are `rows`, or `most_bytes`, or none came for `idle_s`.

        The first one may take `first_s`. What is given out stays held until `ack` or `nack`.

        Raises:
            FlowError: the queue is not there, or the server cannot be had again.
        """
        self._begin()
        taken: list[Delivery] = []
        size = 0
        waiting_until = time.monotonic() + (idle_s if first_s is None else first_s)
        with self._changed:
            while len(taken) < rows and size < most_bytes:
                if self._failure is not None and not self._ready:
                    failure, self._failure, self._thread = self._failure, None, None
                    raise failure  # whoever asks again connects anew
                if self._ready:
                    if taken and size + len(self._ready[0].body) > most_bytes:
                        break
                    delivery = self._ready.popleft()
                    self._ready_bytes -= len(delivery.body)
                    if delivery.epoch != self._epoch:
                        continue  # the server gives it again
                    taken.append(delivery)
                    self._given[(delivery.epoch, delivery.tag)] = None
                    size += len(delivery.body)
                    waiting_until = time.monotonic() + idle_s
                else:
                    self._ask_soon()
                    if not self._changed.wait(max(0.0, waiting_until - time.monotonic())):
                        break
        self._ask_soon()
        return taken

    def ack(self, last: Delivery) -> None:
        """Settle everything that was given out up to and with a delivery.

        Raises:
            ConnectionFailed: it came by a connection that is lost; the server gives it again.
        """
        self._settle(last, lambda tag: self._channel.basic_ack(tag, multiple=True))

    def nack(self, last: Delivery, *, requeue: bool) -> None:
        """Give back everything up to and with a delivery; without `requeue` it goes to the queue's dead letters."""
        self._settle(last, lambda tag: self._channel.basic_nack(tag, multiple=True, requeue=requeue))

    def ack_only(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Settle these and no others.

        Returns:
            Those that came by a connection that is lost: they come again.

        Raises:
            ConnectionFailed: that is so for all of them.
        """
        return self._settle_only(deliveries, lambda tag, multiple: self._channel.basic_ack(tag, multiple=multiple))

    def reject_only(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Hand these and no others to the queue's dead letters; otherwise like `ack_only`."""
        return self._settle_only(
            deliveries, lambda tag, multiple: self._channel.basic_nack(tag, multiple=multiple, requeue=False)
        )

    def close(self) -> None:
        """End the connection; what is held and not acknowledged goes back to the queue."""
        with self._changed:
            self._closing = True
            connection = self._connection
        if connection is not None:
            with suppress(Exception):  # it may be gone this very moment
                connection.add_callback_threadsafe(lambda: None)
        if self._thread is not None:
            self._thread.join(WAIT_S)

    def _settle(self, last: Delivery, say: Callable[[int], None]) -> None:
        with self._changed:
            lost = last.epoch != self._epoch
        if lost:
            raise self._lost()
        self._in_thread(lambda: self._settle_here(last, say))

    def _settle_only(self, deliveries: Sequence[Delivery], say: Callable[[int, bool], None]) -> list[Delivery]:
        settled: set[tuple[int, int]] = set()
        if deliveries:
            self._in_thread(lambda: settled.update(self._settle_only_here(deliveries, say)))
            if not settled:
                raise self._lost()
        return [delivery for delivery in deliveries if (delivery.epoch, delivery.tag) not in settled]

    def _lost(self) -> ConnectionFailed:
        with self._changed:
            self._given = {key: None for key in self._given if key[0] == self._epoch}
        return ConnectionFailed(
            f"The connection to RabbitMQ at {self.broker.server} was lost before messages of queue "
            f"'{self.queue}' were acknowledged.",
            fix="read again: the server gives them once more, marked as redelivered",
        )

    def _settle_here(self, last: Delivery, say: Callable[[int], None]) -> None:
        say(last.tag)
        with self._changed:
            # What was received and not given out has later tags: they are counted up, and given out in their order.
            for key in [key for key in self._held if key[0] == last.epoch and key[1] <= last.tag]:
                self._credit_left += self._held.pop(key) == self._request  # the server counts so too, and sends more
                self._given.pop(key, None)
        self._ask()

    def _settle_only_here(
        self, deliveries: Sequence[Delivery], say: Callable[[int, bool], None]
    ) -> list[tuple[int, int]]:
        """Settle some of what is held, with few words: as far as nothing else is held before, with one for all."""
        with self._changed:
            asked = {(delivery.epoch, delivery.tag) for delivery in deliveries}
            keys = [key for key in self._held if key in asked]
            first = list(takewhile(asked.__contains__, self._held))
        if first:
            say(first[-1][1], True)
        for _, tag in keys[len(first) :]:
            say(tag, False)
        with self._changed:
            for key in keys:
                self._credit_left += self._held.pop(key) == self._request
                self._given.pop(key, None)
        self._ask()
        return keys

    def _ask_soon(self) -> None:
        if self._open_tag is not None and self._credit_left > 0:
            return
        with suppress(Exception):  # a connection that is gone asks when it is back
            self._connection.add_callback_threadsafe(self._ask)

    # Below this line everything runs in the thread of the connection, but for the first two.

    def _begin(self) -> None:
        if self._thread is None:
            first: Future[None] = Future()
            self._thread = threading.Thread(target=self._live, args=(first,), name="rabbitmq-consumer", daemon=True)
            self._thread.start()
            try:
                first.result()
            except FlowError:
                self._thread = None
                raise

    def _in_thread(self, act: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def run() -> None:
            try:
                act()
            except BaseException as exc:
                done.set_exception(exc)
                raise
            done.set_result(None)

        with self.broker.explaining(self.queue):
            self._connection.add_callback_threadsafe(run)
            try:
                done.result(WAIT_S)
            except NotInTime as exc:
                raise self.broker.explained(exc, self.queue) from exc

    def _live(self, first: Future[None]) -> None:
        import pika.exceptions

        lost_at: float | None = None
        while not self._closing:
            try:
                self._open()
                lost_at = None
                if not first.done():
                    first.set_result(None)
                while not self._closing:
                    self._connection.process_data_events(time_limit=1.0)
                    if not self._channel.is_open:  # the library tells nobody but the next who uses it
                        raise getattr(self._channel, "_closing_reason", None) or pika.exceptions.ChannelClosed(0, "")
                    self._ask()
                self._connection.close()
            except (pika.exceptions.AMQPError, OSError, FlowError) as exc:
                error = exc if isinstance(exc, FlowError) else self.broker.explained(exc, self.queue)
                self._lose()
                if not first.done():
                    first.set_exception(error)
                    return
                lost_at = lost_at or time.monotonic()
                if isinstance(error, BrokerRefused) or time.monotonic() - lost_at > RETURN_S:
                    with self._changed:
                        self._failure = error
                        self._changed.notify_all()
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, timeout=0.2)

    def _open(self) -> None:
        self._connection = self.broker.connect()
        self._channel = self._connection.channel()
        self._channel.add_on_cancel_callback(self._cancelled)
        with self.broker.explaining(self.queue):
            self._channel.queue_declare(self.queue, passive=True)
        self._ask()

    def _lose(self) -> None:
        """Forget what came by a connection that is gone; the server gives it again."""
        with self._changed:
            self._epoch += 1
            self._held.clear()
            self._ready.clear()
            self._ready_bytes = self._credit_left = 0
            self._open_tag = None
        with suppress(Exception):  # a channel that failed leaves its connection open
            self._connection.close()

    def _ask(self) -> None:
        """Ask for as many messages as may be fetched ahead, judging by the size of those seen."""
        with self._changed:
            rows_left, bytes_left = self.most_rows - len(self._ready), self.most_bytes - self._ready_bytes
            if self._open_tag is not None and bytes_left <= 0:
                credit = 0
            elif rows_left <= 0 or bytes_left <= 0 or (self._open_tag is not None and self._credit_left > 0):
                return
            elif not self._seen_rows:
                credit = min(rows_left, FIRST_CREDIT)
            else:
                credit = max(1, min(rows_left, bytes_left * self._seen_rows // max(1, self._seen_bytes)))
            credit = min(credit, 65_535)  # the protocol counts no further
        if self._open_tag is not None:
            self._channel.basic_cancel(self._open_tag)
            self._open_tag = None
        if credit:
            # The limit is one of each consumer, so a new one begins with a limit of its own.
            self._channel.basic_qos(prefetch_count=credit)
            with self._changed:
                self._credit_left = credit
                self._request += 1
            self._open_tag = self._channel.basic_consume(
                self.queue, self._received, consumer_tag=self._consumer_tag, auto_ack=False
            )

    def _received(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        sent = properties.timestamp
        delivery = Delivery(
            self._epoch,
            method.delivery_tag,
            body,
            properties.message_id,
            bool(method.redelivered),
            int(sent) * 1_000_000 if sent is not None else time.time_ns() // 1000,
            properties.headers or {},
        )
        with self._changed:
            self._held[(delivery.epoch, delivery.tag)] = self._request
            self._ready_bytes += len(body)
            self._credit_left -= 1
            self._seen_rows += 1
            self._seen_bytes += len(body)
            self._ready.append(delivery)
            self._changed.notify_all()

    def _cancelled(self, frame: Any) -> None:
        """The server ended the consumer: its queue was deleted, or moved to another node."""
        self._open_tag = None
        raise unknown_queue(self.queue, self.broker.name)
