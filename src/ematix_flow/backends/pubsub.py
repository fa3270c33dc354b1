"""Google Pub/Sub: subscriptions as sources of streams, topics as targets of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ematix_flow.backends.broker import BrokerBackend, Send
from ematix_flow.backends.pubsub_client import (
    Project,
    Pulled,
    Puller,
    project_of,
    publish,
    require_dead_letter_policy,
)
from ematix_flow.backends.queue_spool import Gives, Message
from ematix_flow.backends.queue_stream import RejectingQueue
from ematix_flow.declare.connection import Connection, PubSubConnection
from ematix_flow.declare.target import TargetSpec

_IDLE_S = 1.0
"""How long one question waits for messages; a shorter wait would ask all the time."""


class PubsubBackend(RejectingQueue, BrokerBackend):
    """One project."""

    connection_type: ClassVar[type[Connection]] = PubSubConnection
    place_option = "topic"

    @property
    def project(self) -> Project:
        """How to reach it."""
        assert isinstance(self.connection, PubSubConnection)
        return project_of(self.connection)

    def ping(self) -> None:
        self.project.ping()

    def giver(self, query: str, position: Any) -> Gives:
        return SubscriptionGiver(Puller(self.project, query))

    def check_rejects(self, query: str) -> None:
        """Refuse a subscription without a dead-letter policy: it would give rejected messages again for ever."""
        require_dead_letter_policy(self.project, query)

    def sender(self, target: TargetSpec, task: str) -> Send:
        return TopicSender(self.project, self.target_ref(target).name)


class SubscriptionGiver:
    """Messages of a subscription for the spool; each has an id that stays when it comes again."""

    def __init__(self, puller: Puller) -> None:
        self._puller = puller

    def take(self, rows: int, most_bytes: int, idle_s: float) -> Sequence[Message]:
        """What is there."""
        found = self._puller.take(rows=rows, most_bytes=most_bytes, idle_s=max(idle_s, _IDLE_S))
        return [
            Message(
                pulled.body,
                pulled.event_time_us,
                pulled,
                id=pulled.message_id,
                headers={name: value.encode() for name, value in pulled.attributes.items()},
            )
            for pulled in found
        ]

    def settle(self, messages: Sequence[Pulled]) -> Sequence[Pulled]:
        """Acknowledge them."""
        self._puller.ack(messages)
        return ()

    def reject(self, messages: Sequence[Pulled]) -> None:
        """Give them back; the subscription's policy counts it, and moves a message that came too often."""
        self._puller.nack(messages)

    def position(self) -> Any:
        """The service knows."""
        return None

    def close(self) -> None:
        """Give back what is held."""
        self._puller.close()


@dataclass(frozen=True)
class TopicSender:
    """Publishes to one topic, with the service's confirmation."""

    project: Project
    topic: str

    def __call__(self, bodies: Iterable[bytes]) -> int:
        return publish(self.project, self.topic, bodies)
