"""RabbitMQ's client against a real broker: what is held, what comes again, and what a lost line leaves."""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from ematix_flow import RabbitMQConnection
from ematix_flow.backends.rabbitmq_client import Broker, Consumer, broker_of
from ematix_flow.backends.rabbitmq_publisher import ROUND_ROWS, Publisher
from ematix_flow.errors import BrokerRefused, ConnectionFailed, InvalidConnection
from tests.services.postgres import _free_port
from tests.services.rabbitmq import PASSWORD, USER, RabbitMQServer
from tests.services.weak_line import WeakLine, weak_line

BYTES = 1024 * 1024


def broker_at(url: str) -> Broker:
    return broker_of(RabbitMQConnection(name="queue_server", amqp_url=url))


@pytest.fixture
def broker(rabbitmq_server: RabbitMQServer) -> Broker:
    return broker_at(rabbitmq_server.url)


@contextlib.contextmanager
def consuming(broker: Broker, queue: str, *, rows: int = 1000, most_bytes: int = BYTES) -> Iterator[Consumer]:
    consumer = Consumer(broker, queue, most_rows=rows, most_bytes=most_bytes)
    try:
        yield consumer
    finally:
        consumer.close()


def take(consumer: Consumer, rows: int = 1000, most_bytes: int = BYTES, idle_s: float = 0.5) -> list[bytes]:
    return [d.body for d in consumer.take(rows=rows, most_bytes=most_bytes, idle_s=idle_s, first_s=5)]


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False


def numbers(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_come_in_order_and_leave_the_queue_when_acknowledged(
    broker: Broker, rabbitmq_server: RabbitMQServer
) -> None:
    queue = rabbitmq_server.create_queue()
    rabbitmq_server.send(queue, *numbers(300))
    with consuming(broker, queue) as consumer:
        first = consumer.take(rows=120, most_bytes=BYTES, idle_s=0.5, first_s=5)
        second = consumer.take(rows=1000, most_bytes=BYTES, idle_s=0.5)
        assert [d.body for d in first + second] == numbers(300)
        assert consumer.pending == 300
        consumer.ack(first[-1])
        assert consumer.pending == 180
    assert eventually(lambda: rabbitmq_server.ready(queue) == 180)
    assert rabbitmq_server.bodies(queue) == numbers(300)[120:]


def test_what_is_not_acknowledged_comes_again_and_says_so(broker: Broker, rabbitmq_server: RabbitMQServer) -> None:
    queue = rabbitmq_server.create_queue()
    rabbitmq_server.send(queue, b"a", b"b", message_id="m1", timestamp=1_700_000_000, headers={"k": 1})
    with consuming(broker, queue) as consumer:
        taken = consumer.take(rows=10, most_bytes=BYTES, idle_s=0.5, first_s=5)
        assert [(d.message_id, d.redelivered, d.event_time_us) for d in taken] == [
            ("m1", False, 1_700_000_000_000_000)
        ] * 2
        assert taken[0].headers == {"k": 1}
    with consuming(broker, queue) as consumer:
        again = consumer.take(rows=10, most_bytes=BYTES, idle_s=0.5, first_s=5)
        assert [(d.body, d.redelivered) for d in again] == [(b"a", True), (b"b", True)]


def test_giving_back_requeues_or_goes_to_dead_letters(broker: Broker, rabbitmq_server: RabbitMQServer) -> None:
    dead = rabbitmq_server.create_queue()
    queue = rabbitmq_server.create_queue(**{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    rabbitmq_server.send(queue, b"a", b"b")
    with consuming(broker, queue) as consumer:
        taken = consumer.take(rows=2, most_bytes=BYTES, idle_s=0.5, first_s=5)
        consumer.nack(taken[-1], requeue=True)
        taken = consumer.take(rows=2, most_bytes=BYTES, idle_s=0.5, first_s=5)
        assert sorted(d.body for d in taken) == [b"a", b"b"]
        consumer.nack(taken[-1], requeue=False)
        assert consumer.pending == 0
        assert eventually(lambda: rabbitmq_server.ready(dead) == 2)


def test_some_of_what_is_held_is_acknowledged_or_rejected_and_the_rest_stays(
    broker: Broker, rabbitmq_server: RabbitMQServer
) -> None:
    dead = rabbitmq_server.create_queue()
    queue = rabbitmq_server.create_queue(**{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    rabbitmq_server.send(queue, *numbers(10))
    with consuming(broker, queue) as consumer:
        taken = consumer.take(rows=10, most_bytes=BYTES, idle_s=0.5, first_s=5)
        consumer.reject_only([taken[0], taken[1], taken[5]])
        consumer.ack_only([taken[2], taken[3], taken[7]])
        consumer.reject_only([taken[9]])
        assert consumer.pending == 3
        rabbitmq_server.send(queue, b"10")
        assert take(consumer) == [b"10"], "the channel lives: nothing was settled twice"
        consumer.ack_only([])
    assert eventually(lambda: rabbitmq_server.ready(queue) == 4)
    assert rabbitmq_server.bodies(queue) == [b"4", b"6", b"8", b"10"]
    assert sorted(rabbitmq_server.bodies(dead)) == [b"0", b"1", b"5", b"9"]


def test_no_more_is_fetched_ahead_than_was_allowed_in_rows(broker: Broker, rabbitmq_server: RabbitMQServer) -> None:
    queue = rabbitmq_server.create_queue()
    rabbitmq_server.send(queue, *numbers(500))
    with consuming(broker, queue, rows=100) as consumer:
        assert take(consumer, rows=1) == [b"0"]
        assert eventually(lambda: rabbitmq_server.ready(queue) == 500 - 101)
        time.sleep(1.2)  # the consumer looks every second whether it may ask for more
        assert rabbitmq_server.ready(queue) >= 500 - 101
        assert take(consumer, rows=1000, idle_s=1.5) == numbers(500)[1:]  # more than may be held ahead, all the same


def test_no_more_is_fetched_ahead_than_was_allowed_in_bytes(broker: Broker, rabbitmq_server: RabbitMQServer) -> None:
    queue = rabbitmq_server.create_queue()
    rabbitmq_server.send(queue, *[bytes(10_000)] * 300)
    with consuming(broker, queue, most_bytes=1_000_000) as consumer:
        assert len(take(consumer, rows=1)) == 1
        assert eventually(lambda: rabbitmq_server.ready(queue) <= 210)
        time.sleep(1.2)
        assert rabbitmq_server.ready(queue) >= 300 - 101 - 1
        assert len(take(consumer, rows=1000, most_bytes=250_000)) == 25
        assert len(take(consumer, rows=1000, most_bytes=10_000_000, idle_s=1.5)) == 300 - 26


def test_a_message_larger_than_every_limit_still_comes(broker: Broker, rabbitmq_server: RabbitMQServer) -> None:
    queue = rabbitmq_server.create_queue()
    rabbitmq_server.send(queue, bytes(5000), b"small")
    with consuming(broker, queue, most_bytes=1000) as consumer:
        assert [len(body) for body in take(consumer, most_bytes=1000)] == [5000]
        assert take(consumer, most_bytes=1000) == [b"small"]


def test_messages_sent_while_waiting_are_seen_at_once(broker: Broker, rabbitmq_server: RabbitMQServer) -> None:
    queue = rabbitmq_server.create_queue()
    with consuming(broker, queue) as consumer:
        assert consumer.take(rows=1, most_bytes=BYTES, idle_s=0.1) == []
        sender = threading.Timer(0.3, lambda: rabbitmq_server.send(queue, b"late"))
        sender.start()
        began = time.monotonic()
        assert take(consumer, rows=1) == [b"late"]
        assert time.monotonic() - began < 3
        sender.join()


# ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def weak_broker(server: RabbitMQServer) -> Iterator[tuple[Broker, WeakLine]]:
    address = urlsplit(server.url)
    with weak_line(str(address.hostname), int(address.port or 0)) as line:
        yield broker_at(f"amqp://{USER}:{PASSWORD}@127.0.0.1:{line.port}/%2F"), line


def test_a_lost_connection_comes_back_and_old_deliveries_cannot_be_acknowledged(
    rabbitmq_server: RabbitMQServer,
) -> None:
    queue = rabbitmq_server.create_queue()
    rabbitmq_server.send(queue, b"a", b"b")
    with weak_broker(rabbitmq_server) as (broker, line), consuming(broker, queue) as consumer:
        before = consumer.take(rows=2, most_bytes=BYTES, idle_s=0.5, first_s=5)
        line.drop()
        assert eventually(lambda: rabbitmq_server.ready(queue) == 0)  # they are held anew
        after = consumer.take(rows=2, most_bytes=BYTES, idle_s=5)
        assert [(d.body, d.redelivered) for d in after] == [(b"a", True), (b"b", True)]
        with pytest.raises(ConnectionFailed, match="lost before messages"):
            consumer.ack(before[-1])
        with pytest.raises(ConnectionFailed, match="lost before messages"):
            consumer.reject_only(before)
        assert consumer.pending == 2
        consumer.ack_only([before[0], after[0]])
        assert consumer.pending == 1
        consumer.ack(after[-1])
        assert consumer.pending == 0
    assert rabbitmq_server.ready(queue) == 0


def test_a_reader_whose_channel_the_server_ends_goes_on_with_another(
    broker: Broker, rabbitmq_server: RabbitMQServer
) -> None:
    queue = rabbitmq_server.create_queue()
    rabbitmq_server.send(queue, b"a")
    with consuming(broker, queue) as consumer:
        (first,) = consumer.take(rows=1, most_bytes=BYTES, idle_s=0.5, first_s=5)
        consumer._in_thread(lambda: consumer._channel.basic_ack(4711))  # no such message: the server minds
        (again,) = consumer.take(rows=1, most_bytes=BYTES, idle_s=5)
        assert (again.body, again.redelivered, again.epoch > first.epoch) == (b"a", True, True)
        consumer.ack(again)
    assert rabbitmq_server.ready(queue) == 0


def test_a_queue_that_is_deleted_under_a_reader_is_one_clear_error(
    broker: Broker, rabbitmq_server: RabbitMQServer
) -> None:
    queue = rabbitmq_server.create_queue()
    with consuming(broker, queue) as consumer:
        assert consumer.take(rows=1, most_bytes=BYTES, idle_s=0.1) == []
        with rabbitmq_server.channel() as channel:
            channel.queue_delete(queue)
        with pytest.raises(BrokerRefused, match=f"no queue '{queue}'"):
            consumer.take(rows=1, most_bytes=BYTES, idle_s=10)


def test_an_unknown_queue_is_refused_by_reader_and_writer(broker: Broker) -> None:
    with consuming(broker, "nowhere") as consumer, pytest.raises(BrokerRefused, match="no queue 'nowhere'"):
        take(consumer)
    with contextlib.closing(Publisher(broker)) as publisher, pytest.raises(BrokerRefused, match="no queue 'nowhere'"):
        publisher.send("nowhere", [b"a"])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda url: url.replace(PASSWORD, "wrong-pw"), "user or password is wrong"),
        (lambda url: url.replace("%2F", "nohost"), "into virtual host 'nohost'"),
        (lambda url: f"amqp://{USER}:{PASSWORD}@127.0.0.1:{_free_port()}/%2F", "connection refused"),
    ],
)
def test_a_server_that_lets_nobody_in_is_one_error_without_the_password(
    rabbitmq_server: RabbitMQServer, change: Callable[[str], str], complaint: str
) -> None:
    broker = broker_at(change(rabbitmq_server.url))
    for act in (
        broker.ping,
        lambda: Publisher(broker).send("q", [b"a"]),
        lambda: Consumer(broker, "q", most_rows=1, most_bytes=1).take(rows=1, most_bytes=1, idle_s=1),
    ):
        with pytest.raises(ConnectionFailed, match=complaint) as failure:
            act()
        assert "pw" not in str(failure.value)


def test_a_url_of_another_system_is_refused() -> None:
    with pytest.raises(InvalidConnection, match="'amqp://'"):
        broker_at("postgresql://ann:secret@host/db")


def test_a_broker_travels_without_showing_its_password() -> None:
    broker = broker_at("amqp://ann:secret@host:5673/shop")
    assert pickle.loads(pickle.dumps(broker)) == broker
    assert "secret" not in repr(broker)
    assert (broker.server, broker.vhost) == ("host:5673", "shop")


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_are_persistent_named_and_in_order(broker: Broker, rabbitmq_server: RabbitMQServer) -> None:
    queue = rabbitmq_server.create_queue()
    count = 2 * ROUND_ROWS + 7
    with contextlib.closing(Publisher(broker)) as publisher:
        assert publisher.send(queue, numbers(count)) == count
        assert rabbitmq_server.ready(queue) == count  # confirmed means there
    found = rabbitmq_server.taken(queue)
    assert [body for _, body in found] == numbers(count)
    assert {properties.delivery_mode for properties, _ in found} == {2}
    assert len({properties.message_id for properties, _ in found}) == count


def test_a_writer_that_loses_its_line_sends_the_rest_again_under_the_same_id(rabbitmq_server: RabbitMQServer) -> None:
    queue = rabbitmq_server.create_queue()

    def cutting(line: WeakLine) -> Iterator[bytes]:
        for number, body in enumerate(numbers(5000)):
            if number == 2500:
                line.drop()
            yield body

    with weak_broker(rabbitmq_server) as (broker, line), contextlib.closing(Publisher(broker)) as publisher:
        assert publisher.send(queue, cutting(line)) == 5000
    found = {properties.message_id: body for properties, body in rabbitmq_server.taken(queue)}
    assert sorted(found.values(), key=int) == numbers(5000)


def test_a_full_queue_that_refuses_is_an_error(broker: Broker, rabbitmq_server: RabbitMQServer) -> None:
    queue = rabbitmq_server.create_queue(**{"x-max-length": 2, "x-overflow": "reject-publish"})
    with contextlib.closing(Publisher(broker)) as publisher, pytest.raises(BrokerRefused, match="did not take"):
        publisher.send(queue, numbers(10))
