"""Amazon Kinesis for notebooks: Arrow batches out of a stream's shards and into it, from positions that you commit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.kinesis_client import (
    BEGINNING,
    SHARD_END,
    Record,
    ShardReader,
    Stream,
    list_shards,
    put,
    readable,
    require_driver,
    stream_of,
)
from ematix_flow.backends.notebook import (
    MEBIBYTE,
    Limits,
    Payloads,
    ReadsBatches,
    given_batches,
    instants,
    named,
    positive,
    require_arrow,
    value_errors,
    with_columns,
)
from ematix_flow.declare.connection import KinesisConnection
from ematix_flow.errors import FlowError

if TYPE_CHECKING:
    import pyarrow as pa


class KinesisBackend(ReadsBatches):
    """An Amazon Kinesis stream, for notebooks. Make one with `open`.

    Positions are kept in this object: a new one begins at the oldest record that the stream still has. Any text will do
    for `query`: the stream was named when this was opened. Records of one shard keep their order. A batch that cannot
    be read stays the next one; `payload_format="raw_bytes"` gives its bytes.
    """

    def __init__(
        self, stream: Stream, limits: Limits, payloads: Payloads, *, max_empty_polls: int, metadata: bool
    ) -> None:
        self._stream, self._limits, self._payloads, self._max_empty_polls = stream, limits, payloads, max_empty_polls
        self._has_metadata = metadata
        self._committed: dict[str, str] = {}
        self._given: dict[str, str] = {}
        self._client: Any = None
        self._readers: dict[str, ShardReader] = {}
        self._left: deque[Record] = deque()  # fetched, and left over for the next batch

    @classmethod
    def open(
        cls,
        stream_name: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        payload_format: str = "json",
        metadata: bool = False,
        batch_size: int = 1_000,
        batch_bytes: int = 16 * MEBIBYTE,
        max_empty_polls: int = 1,
        idle_poll_ms: int = 250,
    ) -> KinesisBackend:
        """A client for a stream. Nothing connects before it is used.

        Without keys the usual AWS chain is asked. A batch ends with `batch_size` records or `batch_bytes`, or when all
        shards had nothing for `max_empty_polls` rounds, `idle_poll_ms` apart.

        `metadata=True` adds columns: `_partition_key`, `_shard`, `_sequence` and `_event_ts`.

        Raises:
            ValueError: an argument is empty or makes no sense, or of the two keys only one is given.
            ImportError: the client library is not installed.
        """
        require_arrow("kinesis")
        require_driver()
        positive(max_empty_polls=max_empty_polls, idle_poll_ms=idle_poll_ms)
        connection = KinesisConnection(
            name="notebook",
            stream_name=stream_name,
            region=region,
            endpoint=endpoint,
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
        )
        limits = Limits(batch_size, batch_bytes, idle_poll_ms)
        return cls(
            stream_of(connection),
            limits,
            Payloads(payload_format),
            max_empty_polls=max_empty_polls,
            metadata=metadata,
        )

    def ping(self) -> None:
        """Ask for the stream.

        Raises:
            ValueError: the service cannot be reached, refuses the login, or has no such stream.
        """
        with value_errors():
            self._stream.ping()

    def write_arrow_stream(self, name: str, batches: Any) -> int:
        """Put every row of the batches into the stream; how many. The service has taken all when this returns.

        Row `n` has the partition key `<name>-<n>`, so rows are spread over the shards.
        """
        with value_errors():
            named("partition key prefix", name)
            return put(self._stream, self._records(name, batches), self._connected())

    def commit_offsets(self) -> None:
        """Remember the positions after everything that was read, for `reset_to_committed_offsets`."""
        self._committed = dict(self._given)

    def reset_to_committed_offsets(self) -> None:
        """Read again what was read since the last commit."""
        self._given = dict(self._committed)
        self._readers.clear()
        self._left.clear()

    def pending_sequence_count(self) -> int:
        """How many shards were read further than the committed positions."""
        return sum(1 for shard, position in self._given.items() if self._committed.get(shard) != position)

    def close(self) -> None:
        """End all connections."""
        if self._client is not None:
            self._client.close()
        self._client = None
        self._readers.clear()

    def _records(self, prefix: str, batches: Any) -> Iterator[tuple[str, bytes]]:
        number = 0
        for batch in given_batches(batches):
            for body in self._payloads.messages(batch, prefix):
                yield f"{prefix}-{number}", body
                number += 1

    def _connected(self) -> Any:
        if self._client is None:
            self._client = self._stream.client()
        return self._client

    def _next_batch(self, query: str) -> pa.RecordBatch | None:
        named("query", query)
        taken: list[Record] = []
        size = empty_rounds = 0
        while empty_rounds < self._max_empty_polls:
            if not self._left and not self._fetch(self._limits.rows - len(taken)):
                empty_rounds += 1
                if empty_rounds < self._max_empty_polls:
                    time.sleep(self._limits.idle_s)
                continue
            empty_rounds = 0
            while self._left and len(taken) < self._limits.rows:
                if taken and size + len(self._left[0].body) > self._limits.bytes:
                    break
                record = self._left.popleft()
                taken.append(record)
                size += len(record.body)
            if self._left or len(taken) >= self._limits.rows or size >= self._limits.bytes:
                break
        try:
            bodies = [record.body for record in taken]
            batch = self._payloads.batch(bodies, self._stream.stream_name) if taken else None
            if batch is not None and self._has_metadata:
                batch = with_columns(batch, _metadata(taken))
        except FlowError:
            self._left.extendleft(reversed(taken))
            raise
        self._given |= {record.shard: record.sequence for record in taken}
        self._note_ends()
        return batch

    def _fetch(self, most: int) -> bool:
        """Ask every shard that has its turn; whether anything was there, be it only the end of a shard."""
        client = self._connected()
        anything = False
        # Children may be begun while the last records of their parents wait in front of theirs.
        ended = {shard: SHARD_END for shard, reader in self._readers.items() if reader.is_at_end}
        for shard in readable(list_shards(self._stream, client), {**self._given, **ended}):
            reader = self._readers.get(shard.id)
            if reader is None:
                position = self._given.get(shard.id, BEGINNING)
                reader = self._readers[shard.id] = ShardReader(self._stream, shard.id, position, client)
            records = reader.read(most)
            self._left.extend(records)
            anything = anything or bool(records) or reader.is_at_end
        return anything

    def _note_ends(self) -> None:
        waiting = {record.shard for record in self._left}
        for shard, reader in self._readers.items():
            if reader.is_at_end and shard not in waiting:
                self._given[shard] = SHARD_END


def _metadata(records: list[Record]) -> dict[str, tuple[Any, Any]]:
    import pyarrow as pa

    return {
        "_partition_key": (pa.string(), [record.partition_key for record in records]),
        "_shard": (pa.string(), [record.shard for record in records]),
        "_sequence": (pa.string(), [record.sequence for record in records]),
        "_event_ts": instants([record.event_time_us for record in records]),
    }
