"""Pub/Sub's client against Google's own test server: what is held, what comes again, and what goes wrong."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Iterator

import pytest

from ematix_flow import PubSubConnection
from ematix_flow.backends import pubsub_client
from ematix_flow.backends.pubsub_client import Project, Puller, project_of, publish, require_dead_letter_policy
from ematix_flow.errors import BrokerRefused, ConnectionFailed, InvalidConnection, UnfitValue
from tests.services.postgres import _free_port
from tests.services.pubsub import PROJECT, PubSubServer

BYTES = 1024 * 1024


@pytest.fixture
def project(pubsub_server: PubSubServer) -> Project:
    return project_of(
        PubSubConnection(name="bus", project_id=PROJECT, endpoint=pubsub_server.address, anonymous_auth=True)
    )


@contextlib.contextmanager
def pulling(project: Project, subscription: str, *, lease_s: int = 60) -> Iterator[Puller]:
    puller = Puller(project, subscription, lease_s=lease_s)
    try:
        yield puller
    finally:
        puller.close()


def numbers(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def test_what_is_published_is_pulled_and_gone_when_acknowledged(project: Project, pubsub_server: PubSubServer) -> None:
    topic = pubsub_server.create_topic()
    subscription = pubsub_server.create_subscription(topic)
    before = time.time_ns() // 1000
    assert publish(project, topic, numbers(2500)) == 2500
    with pulling(project, subscription) as puller:
        taken = puller.take(rows=3000, most_bytes=BYTES, idle_s=1, first_s=5)
        assert sorted((m.body for m in taken), key=int) == numbers(2500)
        assert len({m.message_id for m in taken}) == 2500
        assert all(before - 1_000_000 < m.event_time_us for m in taken)
        assert puller.pending == 2500
        puller.ack(taken)
        assert puller.pending == 0
    assert pubsub_server.bodies(subscription, wait_s=1) == []


def test_a_batch_ends_with_its_rows_or_its_bytes_and_nothing_is_left_out(
    project: Project, pubsub_server: PubSubServer
) -> None:
    topic = pubsub_server.create_topic()
    subscription = pubsub_server.create_subscription(topic)
    publish(project, topic, [bytes(1000)] * 30)
    with pulling(project, subscription) as puller:
        first = puller.take(rows=10, most_bytes=BYTES, idle_s=1, first_s=5)
        second = puller.take(rows=100, most_bytes=5500, idle_s=1)
        third = puller.take(rows=100, most_bytes=BYTES, idle_s=1)
        assert (len(first), len(second), len(third)) == (10, 5, 15)
        assert puller.pending == 30
        oversized = pubsub_server.create_subscription(topic)
        publish(project, topic, [bytes(5000)])
        with pulling(project, oversized) as other:
            assert len(other.take(rows=5, most_bytes=100, idle_s=1, first_s=5)) == 1


def test_what_is_given_back_comes_again_at_once(project: Project, pubsub_server: PubSubServer) -> None:
    topic = pubsub_server.create_topic()
    subscription = pubsub_server.create_subscription(topic, ack_deadline_s=600)
    publish(project, topic, [b"a", b"b"])
    with pulling(project, subscription) as puller:
        puller.nack(puller.take(rows=2, most_bytes=BYTES, idle_s=1, first_s=5))
        again = puller.take(rows=2, most_bytes=BYTES, idle_s=3)
        assert sorted(m.body for m in again) == [b"a", b"b"]
    # closing gives back what is held, too
    assert sorted(pubsub_server.bodies(subscription)) == [b"a", b"b"]


def test_a_subscription_without_a_dead_letter_policy_is_refused_and_one_with_it_moves_what_is_given_back(
    project: Project, pubsub_server: PubSubServer
) -> None:
    topic, dead = pubsub_server.create_topic(), pubsub_server.create_topic()
    moved = pubsub_server.create_subscription(dead)
    without = pubsub_server.create_subscription(topic)
    for name, said in ((without, "has no dead-letter policy"), ("nobody", "has no 'nobody'")):
        with pytest.raises(BrokerRefused, match=said):
            require_dead_letter_policy(project, name)
    policy = {"dead_letter_topic": f"projects/{PROJECT}/topics/{dead}", "max_delivery_attempts": 5}
    subscription = pubsub_server.create_subscription(topic, ack_deadline_s=600, dead_letter_policy=policy)
    require_dead_letter_policy(project, subscription)
    publish(project, topic, [b"bad", b"good"])
    with pulling(project, subscription) as puller:
        given = 0
        while taken := puller.take(rows=2, most_bytes=BYTES, idle_s=1, first_s=5 if not given else None):
            given += sum(message.body == b"bad" for message in taken)
            puller.ack([message for message in taken if message.body == b"good"])
            puller.nack([message for message in taken if message.body == b"bad"])
    assert given == 5
    assert pubsub_server.bodies(moved) == [b"bad"]


def test_deadlines_are_put_off_for_as_long_as_a_message_is_held(project: Project, pubsub_server: PubSubServer) -> None:
    topic = pubsub_server.create_topic()
    subscription = pubsub_server.create_subscription(topic)
    publish(project, topic, [b"held"])
    with pulling(project, subscription, lease_s=2) as puller:
        (held,) = puller.take(rows=1, most_bytes=BYTES, idle_s=1, first_s=5)
        assert pubsub_server.bodies(subscription, wait_s=5) == []  # two leases and more
        puller.ack([held])
    assert pubsub_server.bodies(subscription, wait_s=1) == []


def test_without_being_put_off_the_same_deadline_would_have_passed(
    project: Project, pubsub_server: PubSubServer
) -> None:
    topic = pubsub_server.create_topic()
    subscription = pubsub_server.create_subscription(topic)
    publish(project, topic, [b"left"])
    with pulling(project, subscription, lease_s=2) as puller:
        puller.take(rows=1, most_bytes=BYTES, idle_s=1, first_s=5)
        puller._closing.set()  # the thread that puts it off ends
        assert pubsub_server.bodies(subscription, wait_s=5) == [b"left"]


def test_an_unknown_topic_or_subscription_is_refused_by_name(project: Project) -> None:
    with pytest.raises(BrokerRefused, match="has no 'nowhere'"):
        publish(project, "nowhere", [b"a"])
    with pulling(project, "nobody") as puller, pytest.raises(BrokerRefused, match="has no 'nobody'"):
        puller.take(rows=1, most_bytes=1, idle_s=1)


def test_a_service_that_is_away_is_one_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pubsub_client, "WAIT_S", 1.0)
    away = project_of(
        PubSubConnection(name="bus", project_id="p", endpoint=f"127.0.0.1:{_free_port()}", anonymous_auth=True)
    )
    for act in (
        away.ping,
        lambda: publish(away, "t", [b"a"]),
        lambda: Puller(away, "s").take(rows=1, most_bytes=1, idle_s=0.5),
    ):
        began = time.monotonic()
        with pytest.raises(ConnectionFailed, match="cannot be reached"):
            act()
        assert time.monotonic() - began < 8


def test_missing_credentials_say_where_they_come_from(monkeypatch: pytest.MonkeyPatch, tmp_project: object) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(ConnectionFailed, match="no Google credentials"):
        project_of(PubSubConnection(name="bus", project_id="p")).ping()


def test_a_message_that_is_too_large_is_refused_before_it_is_sent(
    project: Project, pubsub_server: PubSubServer
) -> None:
    with pytest.raises(UnfitValue, match="10 MB"):
        publish(project, pubsub_server.create_topic(), [bytes(10_000_001)])


def test_where_a_project_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConnection, match="needs an endpoint"):
        project_of(PubSubConnection(name="bus", project_id="p", anonymous_auth=True))
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "localhost:8085")
    project = project_of(PubSubConnection(name="bus", project_id="p"))
    assert (project.endpoint, project.is_plain) == ("localhost:8085", True)
    assert pickle.loads(pickle.dumps(project)) == project
    assert project.path("topics", "t") == "projects/p/topics/t"
    assert project.path("topics", "projects/q/topics/t") == "projects/q/topics/t"
