"""A Google Pub/Sub project as its client library sees it: pulled messages, their deadlines, and its errors as ours.

A `Project` is plain data, so that it travels to Spark's workers as it is. A `Puller` holds what it was given and keeps
extending the deadlines of it in a thread of its own, until it is acknowledged or given back. Every wait has an end.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ematix_flow.declare.connection import PubSubConnection
from ematix_flow.errors import BrokerRefused, ConnectionFailed, FlowError, MissingDriver, UnfitValue, counted

WAIT_S = 10.0
"""How long the service may take to answer before it counts as unreachable."""

LEASE_S = 60
"""How long a message is ours at a time; put off four times as often."""

PUBLISH_ROWS = 1_000
PUBLISH_BYTES = 9_000_000
"""What one request takes; the service allows a little more."""

_ACK_IDS = 1_000
_MESSAGE_BYTES = 10_000_000

T = TypeVar("T")


# ── where a project is ───────────────────────────────────────────────────────────────────────────────────────────────


def project_of(connection: PubSubConnection) -> Project:
    """The project behind a connection. Nothing connects.

    Google's variable for an emulator, `PUBSUB_EMULATOR_HOST`, is followed when the connection names no endpoint.
    """
    require_driver()
    emulator = os.environ.get("PUBSUB_EMULATOR_HOST") if not connection.endpoint else None
    endpoint = (connection.endpoint or emulator or "").removesuffix("/")
    plain = bool(emulator) or (connection.anonymous_auth and not endpoint.startswith("https://"))
    address = endpoint.removeprefix("http://").removeprefix("https://")
    if connection.anonymous_auth and not address:
        connection.refuse("anonymous_auth needs an endpoint", fix="Google's own service lets nobody in without a login")
    return Project(connection.name, connection.project_id, address or None, connection.anonymous_auth, plain)


@dataclass(frozen=True)
class Project:
    """One project, at Google's address or another; `is_plain` means without TLS and without a login."""

    name: str
    project_id: str
    endpoint: str | None
    is_anonymous: bool
    is_plain: bool

    @property
    def place(self) -> str:
        """For messages."""
        return f"Pub/Sub project '{self.project_id}'" + (f" at {self.endpoint}" if self.endpoint else "")

    def path(self, what: Literal["topics", "subscriptions"], name: str) -> str:
        """The full name of a topic or subscription; one that is full already stays as it is."""
        return name if name.startswith("projects/") else f"projects/{self.project_id}/{what}/{name}"

    def publisher(self) -> Any:
        """A client for topics."""
        require_driver()  # also where it has travelled to
        from google.pubsub_v1 import PublisherClient
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

        return self._client(PublisherClient, PublisherGrpcTransport)

    def subscriber(self) -> Any:
        """A client for subscriptions."""
        require_driver()
        from google.pubsub_v1 import SubscriberClient
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

        return self._client(SubscriberClient, SubscriberGrpcTransport)

    def ping(self) -> None:
        """Ask for one topic of the project."""
        with self.explaining(), closing_client(self.publisher()) as client:
            request = {"project": f"projects/{self.project_id}", "page_size": 1}
            client.list_topics(request=request, timeout=WAIT_S, retry=_retry())

    def _client(self, client: Any, transport: Any) -> Any:
        if self.is_plain:
            import grpc

            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
            return client(transport=transport(channel=grpc.insecure_channel(self.endpoint, options=options)))
        from google.auth.credentials import AnonymousCredentials

        with self.explaining():
            return client(
                client_options={"api_endpoint": self.endpoint} if self.endpoint else None,
                credentials=AnonymousCredentials() if self.is_anonymous else None,
            )

    @contextmanager
    def explaining(self, name: str | None = None) -> Iterator[None]:
        """The library's errors as ours; everything else passes."""
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import GoogleAuthError

        try:
            yield
        except (GoogleAPIError, GoogleAuthError) as exc:
            raise self.explained(exc, name) from exc

    def explained(self, error: Exception, name: str | None = None) -> FlowError:
        """One error of the library, as what a user can act on."""
        from google.api_core import exceptions as E
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

        where = f"connection '{self.name}' (pubsub)"
        if isinstance(error, DefaultCredentialsError):
            return ConnectionFailed(
                f"There are no Google credentials to open {self.place} with.",
                where=where,
                fix="`gcloud auth application-default login`, or name a key file in GOOGLE_APPLICATION_CREDENTIALS; "
                "for an emulator set endpoint and anonymous_auth",
            )
        if isinstance(error, (GoogleAuthError, E.Unauthenticated)):
            return ConnectionFailed(f"{self.place} refuses the login.", where=where, fix="renew the credentials")
        if isinstance(error, E.PermissionDenied):
            return BrokerRefused(
                f"{self.place} does not allow this{f' on {name!r}' if name else ''}.",
                where=where,
                fix="grant roles/pubsub.subscriber to read, roles/pubsub.publisher to write",
            )
        if isinstance(error, E.NotFound):
            return BrokerRefused(
                f"{self.place} has no '{name}'.", where=where, fix="create it, or name another topic or subscription"
            )
        if isinstance(error, (E.ServiceUnavailable, E.DeadlineExceeded, E.RetryError, E.GatewayTimeout)):
            return ConnectionFailed(
                f"{self.place} cannot be reached within {WAIT_S:.0f} s.",
                where=where,
                fix="check the endpoint and the network",
            )
        text = getattr(error, "message", None) or type(error).__name__
        return BrokerRefused(f"{self.place} said no: {str(text).rstrip('.')}.", where=where)


def require_driver() -> None:
    """Say how to install the client library, before anything else fails for its lack."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # how long Google looks after which Python
            import google.pubsub_v1  # noqa: F401
    except ImportError as exc:
        raise MissingDriver(
            "The pubsub backend needs 'google-cloud-pubsub'.", fix='pip install "ematix-flow[pubsub]"'
        ) from exc


@contextmanager
def closing_client(client: T) -> Iterator[T]:
    """A client whose channel ends with the block."""
    try:
        yield client
    finally:
        client.transport.close()  # type: ignore[attr-defined]


def _retry() -> Any:
    from google.api_core.exceptions import Aborted, InternalServerError, ServiceUnavailable
    from google.api_core.retry import Retry, if_exception_type

    passing = if_exception_type(ServiceUnavailable, Aborted, InternalServerError)
    return Retry(passing, initial=0.1, maximum=2.0, timeout=WAIT_S)


# ── pulling ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Pulled:
    """One message that is held: neither acknowledged nor given back."""

    ack_id: str
    message_id: str
    body: bytes
    attributes: Mapping[str, str]
    event_time_us: int


def require_dead_letter_policy(project: Project, subscription: str) -> None:
    """Make sure that a subscription moves messages to a dead-letter topic when they came too often.

    Raises:
        BrokerRefused: (a ValueError) it does not, is not there, or may not be looked at.
    """
    from google.api_core.exceptions import PermissionDenied

    where = f"connection '{project.name}' (pubsub)"
    with project.explaining(subscription), closing_client(project.subscriber()) as client:
        try:
            request = {"subscription": project.path("subscriptions", subscription)}
            found = client.get_subscription(request=request, timeout=WAIT_S, retry=_retry())
        except PermissionDenied as exc:
            raise BrokerRefused(
                f"{project.place} does not show the dead-letter policy of '{subscription}'.",
                where=where,
                fix="grant roles/pubsub.viewer on the subscription",
            ) from exc
    if not found.dead_letter_policy.dead_letter_topic:
        raise BrokerRefused(
            f"Subscription '{subscription}' has no dead-letter policy, so {project.place} would give messages that "
            "cannot be used again and again.",
            where=where,
            fix=f"gcloud pubsub subscriptions update {subscription} --dead-letter-topic=TOPIC, or dlq_store='table'",
        )


class Puller:
    """Messages of one subscription, kept ours until they are acknowledged. Connects when it is first asked for some."""

    def __init__(self, project: Project, subscription: str, *, lease_s: int = LEASE_S) -> None:
        self.project, self.subscription = project, subscription
        self.path = project.path("subscriptions", subscription)
        self._lease_s = lease_s
        self._client: Any = None
        self._lock = threading.Lock()
        self._held: dict[str, None] = {}
        self._waiting: list[Pulled] = []  # pulled, and left over for the next batch
        self._closing = threading.Event()
        self._extender: threading.Thread | None = None

    @property
    def pending(self) -> int:
        """How many messages were given out and are not settled."""
        with self._lock:
            return len(self._held) - len(self._waiting)

    def take(self, *, rows: int, most_bytes: int, idle_s: float, first_s: float | None = None) -> list[Pulled]:
        """Wait for messages: until there are `rows`, or `most_bytes`, or none came for `idle_s`.

        The first one may take `first_s`. What is given out is kept ours until `ack` or `nack`.
        """
        self._begin()
        taken: list[Pulled] = []
        size = 0
        while len(taken) < rows and size < most_bytes:
            if not self._waiting:
                wait_s = first_s if first_s is not None and not taken else idle_s
                self._waiting = self._pull(min(1_000, rows - len(taken)), wait_s)
                if not self._waiting:
                    break
            if taken and size + len(self._waiting[0].body) > most_bytes:
                break
            with self._lock:
                message = self._waiting.pop(0)
            taken.append(message)
            size += len(message.body)
        return taken

    def ack(self, messages: Sequence[Pulled]) -> None:
        """Settle messages: they are not given again.

        Raises:
            FlowError: some could not be; they may come again.
        """
        self._settle(messages, lambda ids: self._client.acknowledge(**self._request(ids)))

    def nack(self, messages: Sequence[Pulled]) -> None:
        """Give messages back at once; the subscription's dead-letter policy counts it."""
        self._settle(messages, lambda ids: self._modify(ids, 0))

    def close(self) -> None:
        """Give back what is held, and end the connection."""
        self._closing.set()
        if self._client is None:
            return
        with self._lock:
            held = list(self._held)
        with suppress(Exception):  # the service gives them again by itself, a little later
            for ids in _parts(held):
                self._modify(ids, 0)
        if self._extender is not None:
            self._extender.join(WAIT_S)
        self._client.transport.close()
        self._client = None

    def _begin(self) -> None:
        if self._client is None:
            self._client = self.project.subscriber()
            self._extender = threading.Thread(target=self._extend, name="pubsub-deadlines", daemon=True)
            self._extender.start()

    def _pull(self, rows: int, wait_s: float) -> list[Pulled]:
        from google.api_core.exceptions import Cancelled, DeadlineExceeded, ServiceUnavailable, Unknown

        deadline = time.monotonic() + wait_s
        unreachable_at = time.monotonic() + max(WAIT_S, wait_s)
        request = {"subscription": self.path, "max_messages": rows}
        while True:
            with self.project.explaining(self.subscription):
                try:
                    left = max(0.1, deadline - time.monotonic())
                    answer = self._client.pull(request=request, timeout=left, retry=None)
                except (DeadlineExceeded, Cancelled):
                    return []  # nothing came; the service says so too, by an empty answer
                except Unknown as exc:
                    if "RST_STREAM" not in str(exc):  # else both sides ended the wait in the same moment
                        raise
                    return []
                except ServiceUnavailable:
                    if time.monotonic() > unreachable_at:
                        raise
                    self._closing.wait(0.2)
                    continue
            if answer.received_messages:
                return self._hold(answer.received_messages)
            if time.monotonic() >= deadline:
                return []
            self._closing.wait(0.05)

    def _hold(self, received: Iterable[Any]) -> list[Pulled]:
        found = [
            Pulled(
                item.ack_id,
                item.message.message_id,
                item.message.data,
                dict(item.message.attributes),
                int(item.message.publish_time.timestamp() * 1_000_000),
            )
            for item in received
        ]
        with self._lock:
            self._held |= dict.fromkeys(message.ack_id for message in found)
        for ids in _parts([message.ack_id for message in found]):
            with suppress(FlowError):  # the deadline of the subscription still stands
                self._modify(ids, self._lease_s)
        return found

    def _settle(self, messages: Sequence[Pulled], say: Callable[[list[str]], Any]) -> None:
        ids = [message.ack_id for message in messages]
        with self._lock:
            for ack_id in ids:
                self._held.pop(ack_id, None)
        for part in _parts(ids):
            with self.project.explaining(self.subscription):
                say(part)

    def _modify(self, ids: list[str], seconds: int) -> None:
        with self.project.explaining(self.subscription):
            self._client.modify_ack_deadline(**self._request(ids, ack_deadline_seconds=seconds))

    def _request(self, ids: list[str], **more: Any) -> dict[str, Any]:
        return {
            "request": {"subscription": self.path, "ack_ids": ids, **more},
            "timeout": WAIT_S,
            "retry": _retry(),
        }

    def _extend(self) -> None:
        """What the thread does: long before a deadline passes, put it off."""
        while not self._closing.wait(self._lease_s / 4):
            with self._lock:
                held = list(self._held)
            for ids in _parts(held):
                with suppress(FlowError):  # tried again soon; a message that is lost meanwhile is given again
                    self._modify(ids, self._lease_s)


def _parts(ids: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _ACK_IDS):
        yield list(ids[start : start + _ACK_IDS])


# ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def publish(project: Project, topic: str, bodies: Iterable[bytes]) -> int:
    """Send messages to a topic; how many. The service has confirmed all of them when this returns.

    Raises:
        FlowError: the topic is not there, a message is too large, or the service cannot be reached. Some may be sent.
    """
    path = project.path("topics", topic)
    sent = 0
    with closing_client(project.publisher()) as client:
        for part in _publishable(bodies, topic):
            with project.explaining(topic):
                messages = [{"data": body} for body in part]
                request = {"topic": path, "messages": messages}
                answer = client.publish(request=request, timeout=WAIT_S * 3, retry=_retry())
            if len(answer.message_ids) != len(part):
                raise BrokerRefused(
                    f"{project.place} confirmed {len(answer.message_ids):,} of {counted(len(part), 'message')}."
                )
            sent += len(part)
    return sent


def _publishable(bodies: Iterable[bytes], topic: str) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for body in bodies:
        if len(body) > _MESSAGE_BYTES:
            raise UnfitValue(
                f"A row makes a message that is larger than topic '{topic}' takes: Pub/Sub allows 10 MB.",
                fix="leave out or shorten long columns",
            )
        if part and (len(part) >= PUBLISH_ROWS or size + len(body) > PUBLISH_BYTES):
            yield part
            part, size = [], 0
        part.append(body)
        size += len(body)
    if part:
        yield part
