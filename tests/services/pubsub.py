"""The one Pub/Sub of a test run: the server that Google's client tests run against, everything in memory.

First the emulator named by `EMATIX_TEST_PUBSUB` (`host:port`), else `programs/pubsub` on a free port of 127.0.0.1.

    python -m tests.services.pubsub fetch           build it into the cache; exit code 1 when it cannot be had
    python -m tests.services.pubsub stop FOLDER     stop the server of a test run
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ematix_flow.backends.pubsub_client import require_driver
from tests.services.background import answers, start_program, stop_program
from tests.services.go_program import built
from tests.services.postgres import _free_port
from tests.services.run_folder import RunFolder

VARIABLE = "EMATIX_TEST_PUBSUB"
PROJECT = "shop"
PATIENCE = 60.0


@dataclass(frozen=True)
class PubSubServer:
    """A running server. Topics and subscriptions are made by the tests."""

    address: str

    def create_topic(self) -> str:
        """Make a topic; its bare name."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.publisher().create_topic(name=f"projects/{PROJECT}/topics/{name}")
        return name

    def create_subscription(self, topic: str, *, ack_deadline_s: int = 10, **settings: Any) -> str:
        """Make a subscription to a topic; its bare name."""
        name = f"s-{uuid.uuid4().hex[:12]}"
        self.subscriber().create_subscription(
            request={
                "name": f"projects/{PROJECT}/subscriptions/{name}",
                "topic": f"projects/{PROJECT}/topics/{topic}",
                "ack_deadline_seconds": ack_deadline_s,
                **settings,
            }
        )
        return name

    def send(self, topic: str, *bodies: bytes) -> None:
        """Put messages into a topic."""
        messages = [{"data": body} for body in bodies]
        self.publisher().publish(topic=f"projects/{PROJECT}/topics/{topic}", messages=messages)

    def bodies(self, subscription: str, *, wait_s: float = 2.0) -> list[bytes]:
        """Take what a subscription gives within a time; it ends early once something came, and then nothing more."""
        path, client = f"projects/{PROJECT}/subscriptions/{subscription}", self.subscriber()
        found: list[bytes] = []
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            given = client.pull(subscription=path, max_messages=1000, timeout=wait_s + 5).received_messages
            if given:
                client.acknowledge(subscription=path, ack_ids=[item.ack_id for item in given])
                found += [item.message.data for item in given]
            elif found:
                break
        return found

    def publisher(self) -> Any:
        """The plain client for topics."""
        require_driver()
        from google.pubsub_v1 import PublisherClient

        return PublisherClient(transport=self._transport("PublisherGrpcTransport"))

    def subscriber(self) -> Any:
        """The plain client for subscriptions."""
        require_driver()
        from google.pubsub_v1 import SubscriberClient

        return SubscriberClient(transport=self._transport("SubscriberGrpcTransport"))

    def _transport(self, name: str) -> Any:
        import grpc
        from google.pubsub_v1.services.publisher import transports as publishing
        from google.pubsub_v1.services.subscriber import transports as subscribing

        of = publishing if name.startswith("Publisher") else subscribing
        return getattr(of, name)(channel=grpc.insecure_channel(self.address))


def shared_server(folder: RunFolder) -> PubSubServer:
    """The one server of this test run; the first caller starts it."""
    if outside := os.environ.get(VARIABLE):
        return PubSubServer(outside)
    address = folder.path / "pubsub.address"
    with folder.locked("pubsub"):
        if not address.exists():
            folder.guard(__name__)
            address.write_text(start(folder.path / "pubsub").address)
        return PubSubServer(address.read_text())


def start(home: Path) -> PubSubServer:
    """Start a server in `home` on a free port. Whoever calls it sees to `stop`."""
    program = built("pubsub")
    home.mkdir()
    for _ in range(3):  # between finding a free port and taking it, somebody else may
        port = _free_port()
        pid = start_program(home, [str(program), "-address", f"127.0.0.1:{port}"])
        if answers(pid, partial(listens, port), PATIENCE):
            return PubSubServer(f"127.0.0.1:{port}")
    raise RuntimeError(f"Pub/Sub did not start:\n{(home / 'log').read_text()[-2000:]}")


def stop(home: Path) -> None:
    """Stop the server in `home`."""
    stop_program(home)


def listens(port: int) -> bool:
    """Whether somebody takes connections on a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


if __name__ == "__main__":
    if sys.argv[1:2] == ["stop"]:
        stop(Path(sys.argv[2]) / "pubsub")
    else:
        try:
            print(built("pubsub"))
        except RuntimeError as missing:
            sys.exit(str(missing))
