"""Dead letters in a Kafka topic: payload, key and headers as they came, everything else in headers `emat-dlq-…`.

A topic can only be added to. So it is an inbox: whoever replays, parks or purges first brings what is new into the
table of letters, once per id, and then works there. How far the topic was brought in is kept as the offsets of a
consumer group. A batch that is done again may send a letter twice; readers of the topic tell by its id.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ematix_flow.backends.dead_letters_sql import SqlDeadLetters
from ematix_flow.backends.kafka_books import PREFIX
from ematix_flow.backends.kafka_client import WAIT_S, Cluster, Heard, unknown_topic
from ematix_flow.backends.locks import digest
from ematix_flow.contracts.dead_letters import (
    MOST_SCANNED,
    DeadLetter,
    DeadLetterStats,
    Selection,
    Stage,
    Status,
    Taken,
    stats_of,
)
from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.errors import ConnectionFailed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MARK = "emat-dlq-"
_HEADERS = {
    "id": "id",
    "pipeline_name": "pipeline",
    "stage": "stage",
    "error": "error",
    "source_id": "source-id",
    "offset_bytes": "offset-bytes",
    "event_ts": "event-ts",
    "failed_at": "failed-at",
    "attempt": "attempt",
    "payload_format": "payload-format",
}
_BROUGHT_IN_AT_ONCE = 500


class KafkaDeadLetters:
    """The letters of one pipeline in a topic, and in the table they are brought into.

    Args:
        table: Where letters go that are replayed, parked or purged.
    """

    def __init__(self, cluster: Cluster, topic: str, pipeline: str, table: SqlDeadLetters) -> None:
        self.cluster, self.topic, self.pipeline, self.table = cluster, topic, pipeline, table
        self.group = f"{PREFIX}dead_letters.{digest(pipeline)}.{topic}"
        self._is_brought_in = False

    @property
    def label(self) -> str:
        """For people."""
        return f"topic '{self.topic}'"

    def check(self) -> None:
        """Refuse a topic that is not there, before anything fails for its lack."""
        if self.topic not in self.cluster.topics():
            raise unknown_topic(self.topic, self.cluster.name)

    # ── a running stream ─────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, batch: StreamBatch) -> None:
        """Letters that are there already are known by their ids."""

    def write(self, letters: DataFrame, batch: StreamBatch) -> None:
        """Send the letters of a batch; when this returns, the brokers have them all."""
        cluster, topic = self.cluster, self.topic
        sent = letters.mapInArrow(lambda batches: _send(cluster, topic, batches), "letters bigint")
        sent.collect()  # one number per task

    def close(self) -> None:
        """Nothing is held."""

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def records(self, status: Status | None, page: int, page_size: int) -> list[DeadLetter]:
        """One page, oldest first: of the table, and of what is new in the topic."""
        end = (page + 1) * page_size
        there = self.table.records(status, 0, end)
        new = [] if status == "parked" else self._new()
        found = {letter.id: letter for letter in (*new, *there)}
        ordered = sorted(found.values(), key=lambda one: (one.failed_at, one.position.get("offset") or 0, one.id))
        return ordered[page * page_size : end]

    def by_id(self, letter: str) -> DeadLetter | None:
        """The letter with this id."""
        return self.table.by_id(letter) or next((one for one in self._new() if one.id == letter), None)

    def ids_like(self, beginning: str, most: int = 10) -> list[str]:
        """Ids that begin so."""
        new = [one.id for one in self._new() if one.id.startswith(beginning)]
        return sorted({*new, *self.table.ids_like(beginning, most)})[:most]

    def stats(self, now_ms: int) -> DeadLetterStats:
        """Counts over the table and what is new in the topic, as far as that is looked at."""
        new = self._new()
        known = self.table.stats(now_ms)
        fresh = stats_of([(one.stage, "pending", one.failed_at) for one in new], now_ms=now_ms, truncated=False)
        return DeadLetterStats(
            known.pending + fresh.pending,
            known.parked,
            _added(known.by_stage, fresh.by_stage),
            _added(known.arrivals, fresh.arrivals),
            known.scanned + fresh.scanned,
            len(new) >= MOST_SCANNED,
        )

    def _new(self) -> list[DeadLetter]:
        """Letters of this pipeline that are in the topic only, each once; the oldest, should there be too many."""
        found: dict[str, DeadLetter] = {}
        for _, letters in self._unread():
            for letter in letters:
                found.setdefault(letter.id, letter)
            if len(found) >= MOST_SCANNED:
                break
        for known in self.table.known(list(found)):
            found.pop(known)
        return list(found.values())[:MOST_SCANNED]

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, selection: Selection, *, before_ms: int, now_ms: int) -> Taken | None:
        """The next step of a replay. The first one brings in what the topic has by then."""
        self._bring_in()
        return self.table.take(selection, before_ms=before_ms, now_ms=now_ms)

    def decide(self, taken: Taken, failed: Sequence[DeadLetter], originals: Sequence[str], *, now_ms: int) -> None:
        """Put letters that failed again in the place of their originals."""
        self.table.decide(taken, failed, originals, now_ms=now_ms)

    def done(self, taken: Taken, *, now_ms: int) -> None:
        """The targets hold what is left of the step: remove it."""
        self.table.done(taken, now_ms=now_ms)

    def give_back(self, taken: Taken) -> None:
        """The step could not be finished."""
        self.table.give_back(taken)

    def park(self, selection: Selection, *, now_ms: int) -> int:
        """Set letters aside."""
        self._bring_in()
        return self.table.park(selection, now_ms=now_ms)

    def purge(self, selection: Selection, *, now_ms: int) -> int:
        """Remove letters for good. The messages stay in the topic; they are no longer looked at."""
        self._bring_in()
        return self.table.purge(selection, now_ms=now_ms)

    def _bring_in(self) -> None:
        """Take what is new into the table. Offsets follow the rows, and ids are kept once: a crash costs nothing."""
        if self._is_brought_in:
            return
        from confluent_kafka import TopicPartition

        heard = Heard()
        member = self.cluster.group_reader(self.group, heard)
        try:
            for places, letters in self._unread():
                self.table.keep(letters)
                with self.cluster.explaining(heard, self.topic):
                    offsets = [TopicPartition(self.topic, number, offset) for number, offset in places.items()]
                    member.commit(offsets=offsets, asynchronous=False)
        finally:
            member.close()
        self._is_brought_in = True

    # ── the topic ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _unread(self) -> Iterator[tuple[Mapping[int, int], list[DeadLetter]]]:
        """What the topic has now and was not brought in, some at a time, with the offsets behind it."""
        starts, ends = self._range()
        left = {number for number, end in ends.items() if starts[number] < end}
        if not left:
            return
        from confluent_kafka import KafkaError, TopicPartition

        heard, places, letters = Heard(), dict(starts), list[DeadLetter]()
        reader = self.cluster.reader(heard)
        try:
            with self.cluster.explaining(heard, self.topic):
                reader.assign([TopicPartition(self.topic, number, starts[number]) for number in left])
                deadline = time.monotonic() + WAIT_S
                while left:
                    message = reader.poll(0.5)
                    if message is None:
                        if heard.refusal or time.monotonic() > deadline:
                            raise ConnectionFailed(
                                f"Kafka at {self.cluster.servers} did not give topic '{self.topic}' within "
                                f"{WAIT_S:.0f} s."
                            )
                        continue
                    deadline = time.monotonic() + WAIT_S
                    number = message.partition()
                    if message.error() is None:
                        places[number] = message.offset() + 1
                        letter = _letter(message)
                        if letter is not None and letter.pipeline_name == self.pipeline:
                            letters.append(letter)
                    elif message.error().code() != KafkaError._PARTITION_EOF:
                        raise self.cluster.explained(message.error(), heard, self.topic)
                    if message.error() is not None or places[number] >= ends[number]:
                        left.discard(number)
                    if len(letters) >= _BROUGHT_IN_AT_ONCE:
                        yield dict(places), letters
                        letters = []
        finally:
            reader.close()
        yield {number: max(places[number], end) for number, end in ends.items()}, letters

    def _range(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Where reading begins and ends, by partition."""
        from confluent_kafka import TopicPartition

        heard = Heard()
        known = self.cluster.topics(heard).get(self.topic)
        if known is None:
            raise unknown_topic(self.topic, self.cluster.name)
        member = self.cluster.group_reader(self.group, heard)
        try:
            with self.cluster.explaining(heard, self.topic):
                asked = [TopicPartition(self.topic, number) for number in known.partitions]
                committed = {place.partition: place.offset for place in member.committed(asked, timeout=WAIT_S)}
                edges = {place.partition: member.get_watermark_offsets(place, timeout=WAIT_S) for place in asked}
        finally:
            member.close()
        starts = {number: max(committed[number], low) for number, (low, _) in edges.items()}
        return starts, {number: high for number, (_, high) in edges.items()}


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _send(cluster: Cluster, topic: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Send the letters of one task. Runs in a Spark worker."""
    import pyarrow as pa
    from confluent_kafka import KafkaException

    heard, failures = Heard(), list[Any]()
    producer = cluster.sender(heard)
    number = 0
    try:
        for batch in batches:
            for row in batch.to_pylist():
                _produce(producer, topic, row, failures)
                number += 1
            producer.poll(0)
        waiting = producer.flush(WAIT_S * 3)
    except KafkaException as exc:
        raise cluster.explained(exc.args[0], heard, topic) from exc
    if failures:
        raise cluster.explained(failures[0], heard, topic)
    if waiting:
        raise ConnectionFailed(f"Kafka at {cluster.servers} did not take {waiting} dead letters in time.")
    yield pa.RecordBatch.from_pydict({"letters": pa.array([number], pa.int64())})


def _produce(producer: Any, topic: str, row: Mapping[str, Any], failures: list[Any]) -> None:
    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    headers: list[tuple[str, bytes | None]] = [
        (header["key"], None if header.get("value") is None else base64.b64decode(header["value"]))
        for header in json.loads(row["headers"] or "[]")
        if not header["key"].startswith(MARK)
    ]
    for column, name in _HEADERS.items():
        if row[column] is not None:
            headers.append((f"{MARK}{name}", str(row[column]).encode()))
    while True:
        try:
            producer.produce(
                topic, value=row["payload"], key=row["message_key"], headers=headers, on_delivery=delivered
            )
            return
        except BufferError:
            producer.poll(0.1)


def _letter(message: Any) -> DeadLetter | None:
    """The letter that a message is; None for one that is none of ours."""
    headers = message.headers() or []
    ours = {name.removeprefix(MARK): value for name, value in headers if name.startswith(MARK)}

    def told(name: str) -> str:
        return (ours[name] or b"").decode(errors="replace")

    try:
        return DeadLetter(
            id=told("id"),
            pipeline_name=told("pipeline"),
            stage=cast("Stage", told("stage")),
            error=told("error"),
            source_id=told("source-id"),
            payload=message.value(),
            position=json.loads(told("offset-bytes")),
            failed_at=int(told("failed-at")),
            attempt=int(told("attempt")),
            payload_format=told("payload-format"),
            key=message.key(),
            headers=tuple((name, value) for name, value in headers if not name.startswith(MARK)),
            event_ts=int(told("event-ts")) if "event-ts" in ours else None,
        )
    except (KeyError, ValueError):
        return None


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in (*one, *other)}
