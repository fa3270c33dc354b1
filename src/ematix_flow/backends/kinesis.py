"""AWS Kinesis: a stream as a source, read from all its shards, and as a target of records."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, Literal

from ematix_flow.backends.broker import BrokerBackend, Send
from ematix_flow.backends.kinesis_client import (
    BEGINNING,
    SHARD_END,
    Record,
    ShardReader,
    Stream,
    at_moment,
    is_sequence,
    list_shards,
    moment_of,
    put,
    readable,
    require_driver,
    stream_of,
)
from ematix_flow.backends.kinesis_gaps import ReadUpTo, without_lost
from ematix_flow.backends.queue_spool import Gives, Message
from ematix_flow.backends.queue_stream import BEHIND, PositionedQueue
from ematix_flow.contracts.runtime import instant_text
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.contracts.streams import StreamReading
from ematix_flow.declare.connection import Connection, KinesisConnection
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import FlowError, InvalidDeclaration, LostMessages, listed

log = logging.getLogger(__name__)

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

    _read_up_to: ReadUpTo | None = None
    _tolerates_gaps = False
    _asking: Any = None

    def _where_it_was(self, folder: Path, reading: StreamReading) -> Any:
        self._read_up_to, self._tolerates_gaps = ReadUpTo(folder), reading.tolerates_gaps
        if reading.begins and reading.start is not None:
            self._read_up_to.forget()
        return super()._where_it_was(folder, reading)

    def giver(self, query: str, position: Any) -> Gives:
        stream, known = self.stream, self._read_up_to
        up_to, now_ms = known.ms() if known else None, round(time.time() * 1000)
        positions = without_lost(stream, position or {}, up_to, now_ms, tolerates_gaps=self._tolerates_gaps)
        return ShardsGiver(stream, positions, known, tolerates_gaps=self._tolerates_gaps)

    def identity(self, query: str) -> str | None:
        """When it was made: another stream of its name has another history."""
        try:
            self._asking = self._asking or self.stream.client()
            made: datetime | None = self.stream.summary(self._asking).get("StreamCreationTimestamp")
        except FlowError as exc:
            log.debug("the age of stream '%s' is not known: %s", self.stream.stream_name, exc.message)
            return None
        return instant_text(made)

    # ── other positions than the next one ────────────────────────────────────────────────────────────────────────────

    def position_at(self, query: str, when: datetime | Literal["earliest", "latest"]) -> Any:
        """Before the first record of each shard that arrived at a moment or later; the end is now."""
        now = datetime.now(timezone.utc)
        moment = min(when, now) if isinstance(when, datetime) else now
        place = BEGINNING if when == "earliest" else at_moment(moment)
        return {BEHIND: {shard.id: place for shard in list_shards(self.stream)}}

    def position_given(self, query: str, given: Any) -> Any:
        """Behind a record of each shard, `{"shardId-000000000000": "4959…"}`, or at one of its ends.

        Raises:
            InvalidDeclaration: (a ValueError) it is something else, or of a record that is not known.
        """
        stream, client = self.stream, self.stream.client()
        positions = given.get(BEHIND, given) if isinstance(given, Mapping) else None
        form = (
            f'give the last sequence number before it or "{BEGINNING}", by shard: {{"shardId-000000000000": "4959…"}}'
        )
        if not isinstance(positions, Mapping) or not positions:
            raise InvalidDeclaration(f"This is no position in stream '{stream.stream_name}'.", fix=form)
        shards = {shard.id for shard in list_shards(stream, client)}
        missing, unknown = sorted(shards - set(positions)), sorted(set(positions) - shards)
        if missing or unknown:
            problem = f"has no {listed(unknown)}" if unknown else f"also has {listed(missing)}"
            raise InvalidDeclaration(f"Stream '{stream.stream_name}' {problem}.", fix=form)
        for shard, position in positions.items():
            _check_position(ShardReader(stream, shard, str(position), client), form)
        return {BEHIND: {shard: str(position) for shard, position in positions.items()}}

    def target_ref(self, target: TargetSpec) -> TableRef:
        return TableRef(None, self.stream.stream_name)

    def sender(self, target: TargetSpec, task: str) -> Send:
        return RecordSender(self.stream, target.broker.partition_key_prefix or target.table.name)


def _check_position(reader: ShardReader, form: str) -> None:
    """Refuse a position that is none, or that the shard does not know."""
    position = reader.position
    if is_sequence(position):
        try:
            reader.read(1)
        except LostMessages as exc:
            raise InvalidDeclaration(
                f"Shard '{reader.shard}' knows no record {position}.",
                fix="choose one that is there, or rewind to a time",
            ) from exc
    elif position not in (BEGINNING, SHARD_END) and moment_of(position) is None:
        raise InvalidDeclaration(f"Shard '{reader.shard}': {position!r} is no position.", fix=form)


class ShardsGiver:
    """Records of all shards for the spool; it goes on behind a position in each. Nothing is acknowledged there.

    Args:
        read_up_to: Hears when all shards have been read to their ends.
        tolerates_gaps: Whether a position that its shard does not know is the beginning of what is there.
    """

    def __init__(
        self,
        stream: Stream,
        positions: Mapping[str, str],
        read_up_to: ReadUpTo | None = None,
        *,
        tolerates_gaps: bool = False,
    ) -> None:
        self._stream, self._positions = stream, dict(positions)
        self._read_up_to, self._tolerates_gaps = read_up_to, tolerates_gaps
        self._client = stream.client()
        self._readers: dict[str, ShardReader] = {}
        self._found: deque[Record] = deque()  # read, and not given yet
        self._ended: set[str] = set()  # shards that have nothing more to read
        self._looked_at = 0.0

    def take(self, rows: int, most_bytes: int, idle_s: float) -> Sequence[Message]:
        """What one round over the shards that may be read now has found, as much of it at a time as is asked for."""
        if not self._found:
            began_ms = round(time.time() * 1000)
            self._look()
            self._read(rows, most_bytes)
            if self._read_up_to is not None and self._is_level():
                self._read_up_to.note(began_ms)  # whatever was given before is in a file by now
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
            records = self._records(reader, max(1, rows // (len(self._readers) + 1)))
            self._found.extend(records)
            weight += sum(len(record.body) for record in records)
            if not reader.is_at_end:
                self._readers[shard] = reader  # behind the others
            else:
                self._ended.add(shard)
            if weight >= most_bytes:
                return

    def _is_level(self) -> bool:
        """Whether nothing is left anywhere, nor in shards that may be read when others have ended."""
        readers = self._readers.values()
        return bool(readers) and not self._found and not self._ended and all(reader.is_level for reader in readers)

    def _records(self, reader: ShardReader, most_rows: int) -> list[Record]:
        try:
            return reader.read(most_rows)
        except LostMessages as exc:
            if not self._tolerates_gaps:
                raise
            log.warning("%s It is read from the beginning of what is there.", exc.message)
            reader.position = BEGINNING
            return reader.read(most_rows)

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
