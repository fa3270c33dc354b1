"""AWS Kinesis: a stream as a source, read from all its shards, and as a target of records."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ematix_flow.backends.broker import BrokerBackend, Send
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
from ematix_flow.backends.queue_spool import Gives, Message
from ematix_flow.backends.queue_stream import PositionedQueue
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.connection import Connection, KinesisConnection
from ematix_flow.declare.target import TargetSpec

SHARDS_EVERY_S = 30.0
"""How often is asked for shards that were made by a split or a merge."""


class KinesisBackend(PositionedQueue, BrokerBackend):
    """One stream."""

    connection_type: ClassVar[type[Connection]] = KinesisConnection
    place_option = "partition_key_prefix"

    @property
    def stream(self) -> Stream:
        """How to reach it."""
        require_driver()
        assert isinstance(self.connection, KinesisConnection)
        return stream_of(self.connection)

    def ping(self) -> None:
        self.stream.ping()

    def giver(self, query: str, position: Any) -> Gives:
        return ShardsGiver(self.stream, position or {})

    def target_ref(self, target: TargetSpec) -> TableRef:
        return TableRef(None, self.stream.stream_name)

    def sender(self, target: TargetSpec, task: str) -> Send:
        return RecordSender(self.stream, target.broker.partition_key_prefix or target.table.name)


class ShardsGiver:
    """Records of all shards for the spool; it goes on behind a position in each. Nothing is acknowledged there."""

    def __init__(self, stream: Stream, positions: dict[str, str]) -> None:
        self._stream, self._positions = stream, dict(positions)
        self._client = stream.client()
        self._readers: dict[str, ShardReader] = {}
        self._found: deque[Record] = deque()  # read, and not given yet
        self._ended: set[str] = set()  # shards that have nothing more to read
        self._looked_at = 0.0

    def take(self, rows: int, most_bytes: int, idle_s: float) -> Sequence[Message]:
        """What one round over the shards that may be read now has found, as much of it at a time as is asked for."""
        if not self._found:
            self._look()
            self._read(rows, most_bytes)
        if not self._found:
            time.sleep(max(idle_s, 0.2))  # a shard answers five questions a second
        given: list[Record] = []
        weight = 0
        while self._found and len(given) < rows:
            weight += len(self._found[0].body)
            if given and weight > most_bytes:
                break
            given.append(self._found.popleft())
        self._stand_behind(given)
        return [
            Message(
                record.body,
                record.event_time_us,
                record.sequence,
                key=record.partition_key.encode(),
                headers={"shard": record.shard.encode(), "sequence": record.sequence.encode()},
            )
            for record in given
        ]

    def _read(self, rows: int, most_bytes: int) -> None:
        """Ask one shard after another, until there is enough; those that were not asked come first the next time."""
        weight = 0
        for shard in list(self._readers):
            reader = self._readers.pop(shard)
            records = reader.read(max(1, rows // (len(self._readers) + 1)))
            self._found.extend(records)
            weight += sum(len(record.body) for record in records)
            if not reader.is_at_end:
                self._readers[shard] = reader  # behind the others
            else:
                self._ended.add(shard)
            if weight >= most_bytes:
                return

    def _stand_behind(self, given: Sequence[Record]) -> None:
        """Note where each shard is, now that records are given; one that ended counts as such behind its last one."""
        self._positions |= {record.shard: record.sequence for record in given}
        waiting = {record.shard for record in self._found}
        for shard in self._ended - waiting:
            self._ended.discard(shard)
            self._positions[shard] = SHARD_END
            self._looked_at = 0.0  # its children may be read now

    def _look(self) -> None:
        if time.monotonic() - self._looked_at < SHARDS_EVERY_S and self._looked_at:
            return
        for shard in readable(list_shards(self._stream, self._client), self._positions):
            if shard.id not in self._readers and shard.id not in self._ended:
                position = self._positions.get(shard.id, BEGINNING)
                self._readers[shard.id] = ShardReader(self._stream, shard.id, position, self._client)
        self._looked_at = time.monotonic()

    def settle(self, messages: Sequence[Any]) -> Sequence[Any]:
        """The position in the files says it all."""
        return ()

    def position(self) -> Any:
        """Behind the last record of each shard."""
        return {shard: position for shard, position in self._positions.items() if position != BEGINNING}

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class RecordSender:
    """Puts records, under keys that spread them over the shards."""

    stream: Stream
    prefix: str

    def __call__(self, bodies: Iterable[bytes]) -> int:
        return put(self.stream, ((f"{self.prefix}-{number}", body) for number, body in enumerate(bodies)))
