"""What the broker clients for notebooks have in common: limits of a batch, payloads, and errors that are ValueErrors.

These clients read and write Arrow batches without Spark and without a pipeline. The clients themselves are beside this
file, one per broker, and are shown to users by `ematix_flow._core`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from ematix_flow.backends import avro_rows, payload_rows, protobuf_batches
from ematix_flow.backends.payload_rows import RowSchema
from ematix_flow.backends.schema_registry import Registry, RegistryClient
from ematix_flow.errors import BrokerRefused, FlowError, InvalidConfig, MissingDriver, closest, listed

if TYPE_CHECKING:
    import pyarrow as pa

PayloadFormat = Literal["json", "raw_bytes", "avro", "protobuf"]
"""What a message is."""

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """When a batch is done: so many messages or bytes, or nothing more for so long."""

    rows: int
    bytes: int
    idle_ms: int

    def __post_init__(self) -> None:
        positive(batch_size=self.rows, batch_bytes=self.bytes, idle_timeout_ms=self.idle_ms)

    @property
    def idle_s(self) -> float:
        """The longest silence within a batch."""
        return self.idle_ms / 1000


class ArrowBatchIter:
    """Batches of one reading, one after the other; it can be walked through once."""

    def __init__(self, next_batch: Callable[[], pa.RecordBatch | None]) -> None:
        self._next_batch = next_batch
        self._is_over = False

    def __iter__(self) -> ArrowBatchIter:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = None if self._is_over else self._next_batch()
        if batch is None:
            self._is_over = True
            raise StopIteration
        return batch


class ReadsBatches(ABC):
    """A client that gives batches of what it reads, one after the other."""

    def read_arrow_stream(self, query: str) -> list[pa.RecordBatch]:
        """The next batch, in a list; an empty list when nothing comes. Call it again for more.

        Args:
            query: The topic, queue or subscription.
        """
        with value_errors():
            batch = self._next_batch(query)
        return [] if batch is None else [batch]

    def iter_arrow_stream(self, query: str) -> ArrowBatchIter:
        """Batches, one after the other, until nothing comes any more.

        Args:
            query: The topic, queue or subscription.
        """

        def next_batch() -> pa.RecordBatch | None:
            with value_errors():
                return self._next_batch(query)

        return ArrowBatchIter(next_batch)

    @abstractmethod
    def _next_batch(self, place: str) -> pa.RecordBatch | None:
        """The next batch of a place; None when nothing comes."""


class Payloads:
    """Messages of one broker as batches and back. Per place that is read, the schema of JSON only ever widens."""

    def __init__(
        self,
        payload_format: str = "json",
        registry: Registry | None = None,
        *,
        auto_register_schemas: bool = False,
        known: Sequence[PayloadFormat] = ("json", "raw_bytes"),
    ) -> None:
        self.format = checked_format(payload_format, known)
        self._client = RegistryClient(registry) if registry is not None else None
        self._auto_register_schemas = auto_register_schemas
        self._schemas: dict[str, RowSchema] = {}
        self._compiled: protobuf_batches.Known = {}
        if self.format == "protobuf" and auto_register_schemas:
            raise InvalidConfig(
                "A Protobuf schema cannot be made of rows.", fix="register one, and leave out auto_register_schemas"
            )

    def batch(self, bodies: Sequence[bytes], place: str) -> pa.RecordBatch:
        """Messages as one batch.

        Raises:
            UnfitValue: one of them is no row.
        """
        if self.format == "raw_bytes":
            return payload_rows.raw_batch(bodies)
        if self.format == "avro":
            return avro_rows.avro_batch(bodies, self._registry())
        if self.format == "protobuf":
            return protobuf_batches.protobuf_batch(bodies, self._registry(), self._compiled)
        documents, refused = payload_rows.parsed_json(bodies)
        if refused:
            raise payload_rows.not_rows(refused, len(bodies), f"'{place}'")
        rows = cast("list[dict[str, Any]]", documents)
        self._schemas[place] = self._schemas.get(place, RowSchema()).widened(rows)
        return payload_rows.json_batch(rows, self._schemas[place])

    def messages(self, batch: pa.RecordBatch, subject: str) -> Iterable[bytes]:
        """One message per row; `subject` is where a registry keeps their schema."""
        if self.format == "avro":
            register = self._auto_register_schemas
            return avro_rows.to_avro_messages(batch, subject, self._registry(), auto_register_schemas=register)
        if self.format == "protobuf":
            return protobuf_batches.to_protobuf_messages(batch, subject, self._registry(), self._compiled)
        return payload_rows.to_messages(batch, self.format)

    def _registry(self) -> RegistryClient:
        if self._client is None:
            raise InvalidConfig(f"payload_format='{self.format}' needs schema_registry_url.", fix="give it to open()")
        if self.format == "avro":
            avro_rows.require_driver()
        return self._client


def with_columns(batch: pa.RecordBatch, columns: Mapping[str, tuple[Any, Sequence[Any]]]) -> pa.RecordBatch:
    """A batch with more columns behind its own, each by its type and values; one the messages have themselves stays."""
    import pyarrow as pa

    for name, (kind, values) in columns.items():
        if name not in batch.schema.names:
            batch = batch.append_column(name, pa.array(values, type=kind))
    return batch


def instants(times_us: Sequence[int | None]) -> tuple[Any, Sequence[Any]]:
    """A column of instants, from microseconds since 1970."""
    import pyarrow as pa

    return pa.timestamp("us", tz="UTC"), times_us


def checked_format(payload_format: str, known: Sequence[PayloadFormat]) -> PayloadFormat:
    """A payload format by its name.

    Raises:
        InvalidConfig: there is no such format, or it cannot be used here.
    """
    if payload_format not in known:
        raise InvalidConfig(
            f"payload_format '{payload_format}' is unknown here.",
            fix=closest(payload_format, known) or f"one of {listed(known)}",
        )
    return cast(PayloadFormat, payload_format)


def given_batches(batches: Any) -> Iterator[pa.RecordBatch]:
    """What the user hands over to be written: batches, a table, a reader, one batch."""
    import pyarrow as pa

    if isinstance(batches, pa.RecordBatch):
        batches = [batches]
    elif isinstance(batches, pa.Table):
        batches = batches.to_batches()
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidConfig(
                f"write_arrow_stream takes pyarrow.RecordBatch objects, not {type(batch).__name__}.",
                fix="pyarrow.Table.from_pandas(frame).to_batches(), or frame.to_arrow().to_batches()",
            )
        yield batch


def positive(**numbers: int) -> None:
    """Limits that make sense.

    Raises:
        InvalidConfig: one does not.
    """
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
            raise InvalidConfig(f"{name} must be a whole number above 0.")


def named(what: str, name: str) -> str:
    """A topic or queue that somebody named.

    Raises:
        InvalidConfig: the name is empty.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidConfig(f"The {what} has no name.", fix=f"name the {what}")
    return name


def require_arrow(extra: str) -> None:
    """Say how to install Arrow, before anything else fails for its lack."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as exc:
        raise MissingDriver("Batches need 'pyarrow'.", fix=f'pip install pyarrow "ematix-flow[{extra}]"') from exc


@contextmanager
def value_errors() -> Iterator[None]:
    """Whatever goes wrong is a ValueError, as the documents of these clients say; a missing package an ImportError."""
    try:
        yield
    except FlowError as exc:
        if isinstance(exc, (ValueError, ImportError)):
            raise
        raise BrokerRefused(exc.message, where=exc.where, tried=exc.tried, fix=exc.fix) from exc
