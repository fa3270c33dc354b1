"""Google Pub/Sub for notebooks: Arrow batches out of a subscription and into a topic, acknowledged when you say so."""

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
from ematix_flow.backends.pubsub_client import Project, Pulled, Puller, project_of, publish, require_driver
from ematix_flow.declare.connection import PubSubConnection
from ematix_flow.errors import FlowError, InvalidConfig

if TYPE_CHECKING:
    import pyarrow as pa


class PubSubBackend(ReadsBatches):
    """A Google Pub/Sub project, for notebooks; it reads one subscription. Make one with `open`.

    What was read is kept ours, for as long as it takes, until `commit_offsets`, `nack_pending` or `close`. A batch that
    cannot be read stays the next one until `nack_pending`; `commit_offsets` leaves it alone.
    """

    def __init__(self, project: Project, limits: Limits, payloads: Payloads, *, metadata: bool) -> None:
        self._project, self._limits, self._payloads, self._has_metadata = project, limits, payloads, metadata
        self._puller: Puller | None = None
        self._held: list[Pulled] = []
        self._unread: list[Pulled] = []  # messages that are no rows, and those beside them

    @classmethod
    def open(
        cls,
        project_id: str,
        *,
        endpoint: str | None = None,
        anonymous_auth: bool = False,
        payload_format: str = "json",
        metadata: bool = False,
        batch_size: int = 1_000,
        batch_bytes: int = 16 * MEBIBYTE,
        idle_timeout_ms: int = 2_000,
    ) -> PubSubBackend:
        """A client for a project. Nothing connects before it is used.

        Without `anonymous_auth`, which is for emulators at an `endpoint`, Google's usual credentials are asked. A batch
        ends with `batch_size` messages or `batch_bytes`, or when nothing came for `idle_timeout_ms`.

        `metadata=True` adds columns: `_message_id`, `_attributes` and `_event_ts`.

        Raises:
            ValueError: an argument is empty or makes no sense.
            ImportError: the client library is not installed.
        """
        require_arrow("pubsub")
        require_driver()
        connection = PubSubConnection(
            name="notebook", project_id=project_id, endpoint=endpoint, anonymous_auth=anonymous_auth
        )
        limits = Limits(batch_size, batch_bytes, idle_timeout_ms)
        return cls(project_of(connection), limits, Payloads(payload_format), metadata=metadata)

    def ping(self) -> None:
        """Ask for a topic of the project.

        Raises:
            ValueError: the service cannot be reached, or refuses the login.
        """
        with value_errors():
            self._project.ping()

    def write_arrow_stream(self, name: str, batches: Any) -> int:
        """Send every row of the batches to a topic; how many. The service has confirmed all when this returns."""
        with value_errors():
            named("topic", name)
            messages = (body for batch in given_batches(batches) for body in self._payloads.messages(batch, name))
            return publish(self._project, name, messages)

    def commit_offsets(self) -> None:
        """Acknowledge everything that was read: it is not given again."""
        held, self._held = self._held, []
        if self._puller is not None and held:
            with value_errors():
                self._puller.ack(held)

    def nack_pending(self) -> None:
        """Give everything that was read back at once; the subscription's dead-letter policy counts it.

        A batch that could not be read is among it.
        """
        held = [*self._held, *self._unread]
        self._held, self._unread = [], []
        if self._puller is not None and held:
            with value_errors():
                self._puller.nack(held)

    def pending_handler_count(self) -> int:
        """How many messages were read and are neither acknowledged nor given back."""
        return len(self._held) + len(self._unread)

    def close(self) -> None:
        """Give back what is held, and end all connections."""
        if self._puller is not None:
            self._puller.close()
        self._puller, self._held, self._unread = None, [], []

    def _next_batch(self, subscription: str) -> pa.RecordBatch | None:
        path = self._project.path("subscriptions", named("subscription", subscription))
        if self._puller is None:
            self._puller = Puller(self._project, subscription)
        if self._puller.path != path:
            raise InvalidConfig(
                f"This backend reads subscription '{self._puller.subscription}'.",
                fix="open a second one for another subscription",
            )
        limits = self._limits
        taken, self._unread = self._unread, []
        if not taken:
            taken = self._puller.take(rows=limits.rows, most_bytes=limits.bytes, idle_s=limits.idle_s)
        try:
            batch = self._payloads.batch([message.body for message in taken], subscription) if taken else None
            if batch is not None and self._has_metadata:
                batch = with_columns(batch, _metadata(taken))
        except FlowError:
            self._unread = taken
            raise
        self._held += taken
        return batch


def _metadata(messages: list[Pulled]) -> dict[str, tuple[Any, Any]]:
    import pyarrow as pa

    return {
        "_message_id": (pa.string(), [message.message_id for message in messages]),
        "_attributes": (
            pa.map_(pa.string(), pa.string()),
            [list(message.attributes.items()) for message in messages],
        ),
        "_event_ts": instants([message.event_time_us for message in messages]),
    }
