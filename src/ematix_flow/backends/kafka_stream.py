"""Kafka as a source of streams: Spark reads the topic, and the consumer group hears how far its targets have got.

Where a stream is, is written in its checkpoint and in its targets. The group's offsets follow once a batch is durable:
tools that watch lag by group see the truth, and a stream without a checkpoint begins where the group is.
"""

from __future__ import annotations

import json
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from ematix_flow.backends.kafka_client import WAIT_S, Cluster, Heard, admin_module, answer_of, unknown_topic
from ematix_flow.backends.registries import registry_of_kafka
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.streams import EVENT_TIME, VALUE, Gap, Lag, Newest, StreamReading
from ematix_flow.declare.connection import KafkaConnection
from ematix_flow.errors import InvalidDeclaration, listed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

RESETS = ("earliest", "latest")
_MSK = "software.amazon.msk.auth.iam"
_ANSWER_MS = 20_000
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EARLIEST, _LATEST = -2, -1
"""How Spark writes "from the beginning" and "from now on" for one partition."""


class KafkaStreams:
    """What `KafkaBackend` adds to be read as a stream."""

    kafka: KafkaConnection
    needs: SessionNeeds
    gives_messages = True

    @property
    @abstractmethod
    def cluster(self) -> Cluster:
        """How to reach the brokers."""

    @property
    def stream_needs(self) -> SessionNeeds:
        """The connector that comes with Spark, as a jar of its own; Amazon's login and Avro, where these are used."""
        return self.needs | SessionNeeds(
            jars=frozenset({"kafka", "msk-iam"} if self.kafka.msk_iam_region else {"kafka"})
        )

    # ── before it starts ─────────────────────────────────────────────────────────────────────────────────────────────

    def check_stream(self, query: str) -> None:
        """Refuse a missing group, an unknown reset policy, and a topic that is not there."""
        if not self.kafka.group_id:
            raise InvalidDeclaration(
                f"Connection '{self.kafka.name}': group_id is required to consume '{query}'.",
                fix='group_id = "my-service": under this name the brokers know how far it has got',
            )
        if self._reset not in RESETS:
            raise InvalidDeclaration(
                f"Connection '{self.kafka.name}': auto_offset_reset must be one of {listed(RESETS)}, "
                f"not {self._reset!r}."
            )
        if self.kafka.payload_format in ("avro", "protobuf"):
            registry_of_kafka(self.kafka)
        if query not in self.cluster.topics():
            raise unknown_topic(query, self.kafka.name)

    def first_position(self, query: str) -> Any:
        """Where the group is; in partitions it never read, what `auto_offset_reset` says."""
        unread = _EARLIEST if self._reset == "earliest" else _LATEST
        partitions = self.cluster.topics()[query].partitions
        known = self._committed(query, list(partitions))
        return {query: {str(number): known.get(number, unread) for number in partitions}}

    @property
    def _reset(self) -> str:
        return self.kafka.auto_offset_reset or "earliest"

    def _committed(self, topic: str, partitions: Sequence[int]) -> Mapping[int, int]:
        from confluent_kafka import TopicPartition

        heard = Heard()
        with self.cluster.explaining(heard, topic):
            asked = [TopicPartition(topic, number) for number in partitions]
            found = _patiently(lambda: self._member(heard).committed(asked, timeout=WAIT_S))
        return {place.partition: place.offset for place in found if place.offset >= 0 and place.error is None}

    # ── while it runs ────────────────────────────────────────────────────────────────────────────────────────────────

    def read_stream(self, spark: SparkSession, reading: StreamReading) -> DataFrame:
        """Messages of committed transactions, in the order of each partition."""
        from pyspark.sql import functions as F

        options = {
            **java_settings(self.cluster),
            "subscribe": reading.query,
            "includeHeaders": "true",
            "startingOffsets": json.dumps(self._whole(reading) if reading.begins else reading.start),
            "failOnDataLoss": "false" if reading.tolerates_gaps else "true",
            "kafka.isolation.level": "read_committed",
            # Spark asks three times: brokers that are away for a minute end the stream, a restart of theirs does not.
            "kafka.default.api.timeout.ms": str(_ANSWER_MS),
            "kafka.request.timeout.ms": str(_ANSWER_MS),
            "groupIdPrefix": f"{self.kafka.group_id}-spark",
        }
        if reading.max_rows is not None:
            options["maxOffsetsPerTrigger"] = str(reading.max_rows)
        frame = spark.readStream.format("kafka").options(**options).load()
        return frame.select(
            F.col("value").alias(VALUE),
            F.col("key").alias("_key"),
            F.col("topic").alias("_topic"),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
            F.col("timestamp").alias("_timestamp"),
            F.col("headers").alias("_headers"),
            F.col("timestamp").alias(EVENT_TIME),
        )

    def _whole(self, reading: StreamReading) -> Any:
        """Where to begin in every partition: one that came after the position was kept is read from its beginning."""
        known = reading.start.get(reading.query, {})
        unread = {str(number): _EARLIEST for number in self._partitions(reading.query) if str(number) not in known}
        return {**reading.start, reading.query: {**known, **unread}}

    def position(self, offset: str) -> Any:
        """Spark writes `{"topic": {"0": 17}}`, and takes the same."""
        return json.loads(offset)

    def applied(self, query: str, end: Any) -> None:
        """Tell the group; a failure to do so is no failure of the stream."""
        from confluent_kafka import KafkaException, TopicPartition

        places = [
            TopicPartition(topic, int(number), offset)
            for topic, offsets in end.items()
            for number, offset in offsets.items()
            if offset >= 0
        ]
        if not places:
            return
        try:
            self._member(Heard()).commit(offsets=places, asynchronous=False)
        except KafkaException as exc:
            log.warning(
                "the offsets of group '%s' could not be written: %s; the stream itself knows where it is",
                self.kafka.group_id,
                exc.args[0].str(),
            )

    def lag(self, query: str, end: Any) -> Sequence[Lag]:
        """Messages behind the position, per partition; transaction markers count as messages there."""
        from confluent_kafka import KafkaException

        reached = {int(number): int(offset) for number, offset in sorted(end.get(query, {}).items())}
        try:
            newest = self._ends(query, list(reached), "latest")
            unread = [number for number, offset in reached.items() if offset == _EARLIEST]
            reached |= self._ends(query, unread, "earliest")
        except KafkaException:
            return ()  # a number for people is not worth a failed stream
        return [
            Lag(f"{query}-{number}", max(newest[number] - offset, 0) if offset >= 0 else 0)
            for number, offset in sorted(reached.items())
        ]

    def gaps(self, query: str, start: Any, end: Any) -> Sequence[Gap]:
        """Offsets between two positions that retention has removed."""
        from confluent_kafka import KafkaException

        known = {int(number): int(offset) for number, offset in (start or {}).get(query, {}).items()}
        reached = {int(number): int(offset) for number, offset in end.get(query, {}).items()}
        places = [number for number, offset in known.items() if 0 <= offset < reached.get(number, 0)]
        try:
            first = self._ends(query, places, "earliest")
        except KafkaException:
            return ()  # a number for people is not worth a failed stream
        return [
            Gap(str(number), known[number], min(first[number], reached[number]))
            for number in places
            if first[number] > known[number]
        ]

    def identity(self, query: str) -> str | None:
        """The id that the brokers gave the topic when it was made; brokers before Kafka 2.8 have none."""
        from confluent_kafka import KafkaException, TopicCollection

        admin = self._asking = self._asking or self.cluster.admin(Heard())
        try:
            [answer] = admin.describe_topics(TopicCollection([query]), request_timeout=WAIT_S).values()
            found = str(answer_of(answer).topic_id)
        except KafkaException as exc:
            log.debug("the id of topic '%s' is not known: %s", query, exc.args[0].str())
            return None
        return found if found.strip("A=") else None  # all zeros

    def newest(self, query: str, within_s: float) -> Newest:
        """The sum over the partitions; the markers of transactions count, messages of open ones do not."""
        from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition

        heard, until = Heard(), time.monotonic() + within_s

        def look() -> Newest:
            left_s = max(0.5, until - time.monotonic())
            [asked] = admin.describe_topics(TopicCollection([query]), request_timeout=left_s).values()
            topic = answer_of(asked)
            answers = admin.list_offsets(
                {TopicPartition(query, one.id): admin_module().OffsetSpec.latest() for one in topic.partitions},
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=max(0.5, until - time.monotonic()),
            )
            messages = sum(answer_of(one).offset for one in answers.values())
            identity = str(topic.topic_id)
            return Newest(messages, identity if identity.strip("A=") else "")

        with self.cluster.explaining(heard, query, wait_s=within_s):
            admin = self.cluster.admin(heard)
            return _patiently(look, within_s)

    def _ends(self, topic: str, partitions: Sequence[int], end: Literal["earliest", "latest"]) -> dict[int, int]:
        """The first or the next offset of partitions."""
        from confluent_kafka import TopicPartition

        if not partitions:
            return {}
        # Held here until it has answered: its answers end with it, and another thread may put its own in this place.
        admin = self._asking = self._asking or self.cluster.admin(Heard())
        spec = getattr(admin_module().OffsetSpec, end)()
        answers = admin.list_offsets({TopicPartition(topic, n): spec for n in partitions}, request_timeout=WAIT_S)
        return {place.partition: answer_of(answer).offset for place, answer in answers.items()}

    # ── other positions than the next one ────────────────────────────────────────────────────────────────────────────

    def position_at(self, query: str, when: datetime | Literal["earliest", "latest"]) -> Any:
        """The first message of each partition that is not older than a moment; the end, where there is none."""
        from confluent_kafka import TopicPartition

        heard = Heard()
        partitions = list(self._partitions(query))
        with self.cluster.explaining(heard, query):
            if not isinstance(when, datetime):
                found = self._ends(query, partitions, when)
            else:
                found = self._ends(query, partitions, "latest")
                # A message has a whole millisecond; what was before 1970 is none, and below zero are words of Kafka's.
                moment = max(-((_EPOCH - when) // timedelta(milliseconds=1)), 0)
                asked = [TopicPartition(query, number, moment) for number in partitions]
                places = self._member(heard).offsets_for_times(asked, timeout=WAIT_S)
                found |= {place.partition: place.offset for place in places if place.offset >= 0}
        return {query: {str(number): found[number] for number in sorted(found)}}

    def position_given(self, query: str, given: Any) -> Any:
        """Offsets of all partitions, `{"0": 17, "1": 5}`, or the same below the topic's name.

        Raises:
            InvalidDeclaration: (a ValueError) it is something else, or lies outside of what the topic holds.
        """
        offsets = given.get(query, given) if isinstance(given, Mapping) else None
        form = f'give offsets by partition: {{"{query}": {{"0": 17, "1": 5}}}}'
        if not isinstance(offsets, Mapping) or not offsets:
            raise InvalidDeclaration(f"This is no position in '{query}'.", fix=form)
        first, last = (self.position_at(query, end)[query] for end in ("earliest", "latest"))
        numbers = {str(number) for number in offsets}
        if numbers != set(first):
            missing, unknown = sorted(set(first) - numbers), sorted(numbers - set(first))
            problem = f"has no partition {listed(unknown)}" if unknown else f"also has partition {listed(missing)}"
            raise InvalidDeclaration(f"Topic '{query}' {problem}.", fix=form)
        for number, offset in offsets.items():
            if isinstance(offset, bool) or not isinstance(offset, int):
                raise InvalidDeclaration(f"Partition {number} of '{query}': an offset is a whole number.", fix=form)
            if not first[str(number)] <= offset <= last[str(number)]:
                raise InvalidDeclaration(
                    f"Partition {number} of '{query}' holds offsets {first[str(number)]} to {last[str(number)]}, "
                    f"and {offset} is not among them.",
                    fix="choose one that is there, or rewind to a time",
                )
        return {query: {str(number): offset for number, offset in offsets.items()}}

    def _partitions(self, topic: str) -> Sequence[int]:
        known = self.cluster.topics()
        if topic not in known:
            raise unknown_topic(topic, self.kafka.name)
        return sorted(known[topic].partitions)

    _consumer: Any = None
    _asking: Any = None

    def _member(self, heard: Heard) -> Any:
        """A consumer that carries the group's name, joins nothing and reads nothing: it only writes offsets."""
        if self._consumer is None:
            self._consumer = self.cluster.group_reader(self.kafka.group_id or "", heard)
        return self._consumer

    def leave_group(self) -> None:
        """Let go of the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._asking = None


def _patiently(ask: Callable[[], _Answer], within_s: float | None = None) -> _Answer:
    """Ask again for a while where the broker of a group or of a partition is only just taking over."""
    from confluent_kafka import KafkaError as E, KafkaException

    deadline = time.monotonic() + (WAIT_S if within_s is None else within_s)
    while True:
        try:
            return ask()
        except KafkaException as exc:
            passing = (
                *(E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS),
                *(E.NOT_LEADER_FOR_PARTITION, E.LEADER_NOT_AVAILABLE),
            )
            if exc.args[0].code() not in passing or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def java_settings(cluster: Cluster) -> dict[str, str]:
    """The cluster's settings in the words of Java's client, as options of Spark's source.

    Certificates travel as text, so that workers on other machines need no files.
    """
    known = cluster.settings
    settings = {
        "kafka.bootstrap.servers": str(known["bootstrap.servers"]),
        "kafka.security.protocol": str(known["security.protocol"]),
    }
    mechanism = known.get("sasl.mechanism")
    if cluster.msk_iam_region:
        # Java's client knows Amazon's login by another mechanism, and renews it by itself.
        settings["kafka.sasl.mechanism"] = "AWS_MSK_IAM"
        settings["kafka.sasl.jaas.config"] = f"{_MSK}.IAMLoginModule required;"
        settings["kafka.sasl.client.callback.handler.class"] = f"{_MSK}.IAMClientCallbackHandler"
    elif mechanism:
        settings["kafka.sasl.mechanism"] = str(mechanism)
        settings["kafka.sasl.jaas.config"] = _login_module(str(mechanism), known)
    if known.get("ssl.ca.location"):
        settings["kafka.ssl.truststore.type"] = "PEM"
        settings["kafka.ssl.truststore.certificates"] = _text_of(known["ssl.ca.location"])
    if known.get("ssl.certificate.location"):
        settings["kafka.ssl.keystore.type"] = "PEM"
        settings["kafka.ssl.keystore.certificate.chain"] = _text_of(known["ssl.certificate.location"])
        settings["kafka.ssl.keystore.key"] = _text_of(known["ssl.key.location"])
    return settings


def _login_module(mechanism: str, known: Mapping[str, Any]) -> str:
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    user, password = (_quoted(str(known[f"sasl.{half}"])) for half in ("username", "password"))
    return f"org.apache.kafka.common.security.{module} required username={user} password={password};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text_of(path: Any) -> str:
    try:
        return Path(str(path)).read_text()
    except OSError as exc:
        raise InvalidDeclaration(f"The file '{path}' of a Kafka connection cannot be read: {exc.strerror}.") from exc
