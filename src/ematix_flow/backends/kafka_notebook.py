"""Kafka for notebooks: Arrow batches out of a topic and into one, with positions that are committed when you say so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.kafka_client import Cluster, Heard, cluster_of, require_driver, unknown_topic
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
from ematix_flow.backends.schema_registry import Registry, registry_of
from ematix_flow.declare.connection import KafkaConnection, SchemaRegistryConnection
from ematix_flow.errors import BrokerRefused, ConnectionFailed, FlowError, InvalidConfig, UnfitValue

if TYPE_CHECKING:
    import pyarrow as pa

JOIN_S = 15.0
"""How long joining a group may take."""

DELIVERY_S = 60.0
"""How long brokers may take to confirm what was sent."""


class KafkaBackend(ReadsBatches):
    """A Kafka cluster, for notebooks. Make one with `open`.

    Reading goes on after what the group has committed; `commit_offsets` commits. A batch that cannot be read stays the
    next one, whatever is committed; `payload_format="raw_bytes"` gives its bytes.
    """

    def __init__(
        self,
        cluster: Cluster,
        payloads: Payloads,
        limits: Limits,
        *,
        window_s: float,
        group_id: str | None,
        auto_offset_reset: str,
        transactional_id: str | None,
        message_key_column: str | None,
        metadata: bool,
    ) -> None:
        self._cluster, self._payloads, self._limits, self._window_s = cluster, payloads, limits, window_s
        self._group_id, self._auto_offset_reset = group_id, auto_offset_reset
        self._transactional_id, self._key_column = transactional_id, message_key_column
        self._has_metadata = metadata
        self._readings: dict[str, _Reading] = {}
        self._producer: Any = None
        self._heard = Heard()

    @classmethod
    def open(
        cls,
        bootstrap_servers: str,
        *,
        group_id: str | None = None,
        payload_format: str = "json",
        schema_registry_url: str | None = None,
        schema_registry_basic_auth_user: str | None = None,
        schema_registry_basic_auth_password: str | None = None,
        auto_register_schemas: bool = False,
        delivery_semantics: str = "at_least_once",
        transactional_id: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_plain_password: str | None = None,
        sasl_scram_username: str | None = None,
        sasl_scram_password: str | None = None,
        sasl_scram_mechanism: str | None = None,
        tls_cert_path: str | None = None,
        tls_key_path: str | None = None,
        tls_ca_path: str | None = None,
        msk_iam_region: str | None = None,
        security_protocol: str | None = None,
        auto_offset_reset: str = "earliest",
        message_key_column: str | None = None,
        metadata: bool = False,
        batch_size: int = 100_000,
        batch_bytes: int = 16 * MEBIBYTE,
        batch_window_ms: int = 5_000,
        idle_timeout_ms: int = 5_000,
    ) -> KafkaBackend:
        """A client for a cluster. Nothing connects before it is used.

        A batch ends with `batch_size` messages or `batch_bytes`, `batch_window_ms` after its first message, or when
        nothing came for `idle_timeout_ms`. `metadata=True` adds what Kafka knows of a message as columns: `_key`,
        `_topic`, `_partition`, `_offset`, `_timestamp`, `_headers` and `_event_ts`.

        Raises:
            ValueError: an argument is empty, unknown, or does not go with another.
            ImportError: the client library is not installed.
        """
        require_arrow("kafka")
        require_driver()
        if sasl_scram_mechanism and not sasl_scram_username:
            raise InvalidConfig("sasl_scram_mechanism goes with sasl_scram_username and sasl_scram_password.")
        has_login = any((sasl_plain_username, sasl_scram_username, msk_iam_region))
        if has_login and (tls_cert_path or tls_key_path):
            raise InvalidConfig(
                "A login by password or role and one by certificate are mixed.",
                fix="keep one of them; tls_ca_path goes with either",
            )
        if delivery_semantics not in ("at_least_once", "exactly_once"):
            raise InvalidConfig(
                f"delivery_semantics '{delivery_semantics}' is unknown.", fix="'at_least_once' or 'exactly_once'"
            )
        if (delivery_semantics == "exactly_once") != bool(transactional_id):
            raise InvalidConfig(
                "delivery_semantics='exactly_once' and transactional_id go together.", fix="give both or none"
            )
        if auto_offset_reset not in ("earliest", "latest"):
            raise InvalidConfig(f"auto_offset_reset '{auto_offset_reset}' is unknown.", fix="'earliest' or 'latest'")
        positive(batch_window_ms=batch_window_ms)
        connection = KafkaConnection(
            name="notebook",
            bootstrap_servers=bootstrap_servers,
            sasl_plain_username=sasl_plain_username,
            sasl_plain_password=sasl_plain_password,
            sasl_scram_username=sasl_scram_username,
            sasl_scram_password=sasl_scram_password,
            sasl_scram_mechanism=sasl_scram_mechanism,
            msk_iam_region=msk_iam_region,
            security_protocol=security_protocol,
            tls_cert_path=tls_cert_path,
            tls_key_path=tls_key_path,
            tls_ca_path=tls_ca_path,
        )
        login = (schema_registry_basic_auth_user, schema_registry_basic_auth_password)
        return cls(
            cluster_of(connection),
            Payloads(
                payload_format,
                _registry(schema_registry_url, *login),
                auto_register_schemas=auto_register_schemas,
                known=("json", "raw_bytes", "avro", "protobuf"),
            ),
            Limits(batch_size, batch_bytes, idle_timeout_ms),
            window_s=batch_window_ms / 1000,
            group_id=group_id,
            auto_offset_reset=auto_offset_reset,
            transactional_id=transactional_id,
            message_key_column=message_key_column,
            metadata=metadata,
        )

    def ping(self) -> None:
        """Log in and ask for the topics; returns when the cluster has answered.

        Raises:
            ValueError: it cannot be reached, or refuses the login.
        """
        with value_errors():
            self._cluster.topics()

    def write_arrow_stream(self, name: str, batches: Any) -> int:
        """Send every row of the batches to a topic; how many. Brokers have confirmed all of them when this returns.

        With `exactly_once` they become visible together, or not at all.
        """
        with value_errors():
            named("topic", name)
            if name not in self._cluster.topics():
                raise unknown_topic(name, "notebook")
            with self._cluster.explaining(self._heard, name):
                return self._write(name, batches)

    def commit_offsets(self) -> None:
        """Commit the positions after everything that was read: the group does not get it again."""
        with value_errors():
            for reading in self._readings.values():
                reading.commit()

    def close(self) -> None:
        """Leave the group and end all connections; what was not committed is read again."""
        for reading in self._readings.values():
            reading.close()
        self._readings.clear()
        self._producer = None

    def _next_batch(self, topic: str) -> pa.RecordBatch | None:
        if not self._group_id:
            raise InvalidConfig("group_id is required to read.", fix="open the backend with group_id=")
        named("topic", topic)
        if topic not in self._readings:
            if topic not in self._cluster.topics():
                raise unknown_topic(topic, "notebook")
            settings = {
                "auto.offset.reset": self._auto_offset_reset,
                "max.poll.interval.ms": 1_800_000,
                "enable.partition.eof": True,
            }
            self._readings[topic] = _Reading(self._cluster, topic, self._group_id, settings)
        reading = self._readings[topic]
        messages = reading.take(self._limits, self._window_s)
        rows = [message for message in messages if message.value() is not None]
        try:
            batch = self._payloads.batch([message.value() for message in rows], topic) if rows else None
            if batch is not None and self._has_metadata:
                batch = with_columns(batch, _metadata(rows))
        except FlowError:
            reading.put_back(messages)
            raise
        reading.given(messages)
        return batch

    def _write(self, topic: str, batches: Any) -> int:
        producer = self._ready_producer()
        if self._transactional_id:
            producer.begin_transaction()
        try:
            sent = self._send(producer, topic, batches)
            if self._transactional_id:
                producer.commit_transaction(DELIVERY_S)
            return sent
        except BaseException:
            if self._transactional_id:
                producer.abort_transaction(DELIVERY_S)
            raise

    def _ready_producer(self) -> Any:
        if self._producer is None:
            if self._transactional_id:
                producer = self._cluster.producer(self._transactional_id, self._heard)
                producer.init_transactions(DELIVERY_S)
            else:
                producer = self._cluster.sender(self._heard)
            self._producer = producer
        return self._producer

    def _send(self, producer: Any, topic: str, batches: Any) -> int:
        failed: list[Any] = []

        def confirmed(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        sent = 0
        for batch in given_batches(batches):
            keys = self._keys(batch)
            for body, key in zip(self._payloads.messages(batch, f"{topic}-value"), keys, strict=True):
                while True:
                    try:
                        producer.produce(topic, value=body, key=key, on_delivery=confirmed)
                        break
                    except BufferError:  # as much is under way as may be
                        producer.poll(0.1)
                sent += 1
                if sent % 1000 == 0:
                    producer.poll(0)
                if failed:
                    break
        left = producer.flush(DELIVERY_S)
        if failed:
            raise self._cluster.explained(failed[0], self._heard, topic)
        if left:
            raise ConnectionFailed(f"Kafka at {self._cluster.servers} did not confirm {left:,} messages in time.")
        return sent

    def _keys(self, batch: pa.RecordBatch) -> list[bytes | None]:
        import pyarrow as pa

        if self._key_column is None:
            return [None] * batch.num_rows
        if self._key_column not in batch.schema.names:
            raise UnfitValue(f"The rows have no column '{self._key_column}' (message_key_column).")
        column = batch.column(self._key_column)
        t = pa.types
        kinds = (t.is_string, t.is_large_string, t.is_binary, t.is_large_binary)
        if not any(is_kind(column.type) for is_kind in kinds):
            raise UnfitValue(f"Column '{self._key_column}' is {column.type}; a message key is text or bytes.")
        values = column.to_pylist()
        return [b"" if value is None else value if isinstance(value, bytes) else value.encode() for value in values]


class _Reading:
    """One topic, read as a member of a group."""

    def __init__(self, cluster: Cluster, topic: str, group: str, settings: dict[str, Any]) -> None:
        self._cluster, self._topic, self._heard = cluster, topic, Heard()
        self._left: list[Any] = []  # fetched, and left over for the next batch
        self._positions: dict[int, int] = {}
        self._assigned: set[int] | None = None  # None until the group has let us in
        self._heard_of: set[int] = set()  # partitions that have given something, be it that they are at their end
        with cluster.explaining(self._heard, topic):
            self._consumer = cluster.group_reader(group, self._heard, **settings)
            self._consumer.subscribe([topic], on_assign=self._joined, on_revoke=self._revoked)

    def take(self, limits: Limits, window_s: float) -> list[Any]:
        """Messages of one batch; they count as read once `given` is told of them."""
        taken: list[Any] = []
        size, window_ends, silent_since = 0, float("inf"), time.monotonic()
        while len(taken) < limits.rows and size < limits.bytes:
            now = time.monotonic()
            was_reading = self._is_reading
            if now >= min(window_ends, silent_since + (limits.idle_s if was_reading else JOIN_S)):
                break
            fetched = self._left or self._fetched(min(1_000, limits.rows - len(taken)))
            self._left = []
            if not was_reading and self._is_reading:
                silent_since = time.monotonic()
            for index, message in enumerate(fetched):
                weight = len(message.value() or b"")
                if len(taken) >= limits.rows or (taken and size + weight > limits.bytes):
                    self._left = fetched[index:]
                    return taken
                taken.append(message)
                size += weight
            if fetched:
                silent_since = time.monotonic()
                window_ends = min(window_ends, silent_since + window_s)
        if not taken:
            self._explain_silence()
        return taken

    def given(self, messages: list[Any]) -> None:
        """The caller has these; their positions may be committed."""
        for message in messages:
            self._positions[message.partition()] = message.offset() + 1

    def put_back(self, messages: list[Any]) -> None:
        """The caller could not have these; they are next again, and are not passed over by a commit."""
        self._left = [*messages, *self._left]

    def commit(self) -> None:
        """Commit the positions after all that was given, and wait for it."""
        from confluent_kafka import TopicPartition

        if not self._positions:
            return
        offsets = [TopicPartition(self._topic, number, offset) for number, offset in self._positions.items()]
        with self._cluster.explaining(self._heard, self._topic):
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        refused = [partition.error for partition in done if partition.error is not None]
        if refused:
            raise self._cluster.explained(refused[0], self._heard, self._topic)
        self._positions.clear()

    def close(self) -> None:
        self._consumer.close()

    def _fetched(self, most: int) -> list[Any]:
        from confluent_kafka import KafkaError

        found = []
        with self._cluster.explaining(self._heard, self._topic):
            for message in self._consumer.consume(most, timeout=0.1):
                error = message.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    self._heard_of.add(message.partition())
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    continue
                elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
                    raise BrokerRefused(
                        f"More than half an hour passed between two readings of topic '{self._topic}', so the group "
                        "gave its partitions to others.",
                        fix="read again; what was not committed comes again",
                    )
                elif not error.retriable():
                    raise self._cluster.explained(error, self._heard, self._topic)
        return found

    def _explain_silence(self) -> None:
        """Nothing came: because there is nothing, or because the brokers are away?"""
        if self._heard.refusal or self._heard.are_all_away or not self._is_reading:
            self._cluster.topics()
            self._heard.are_all_away = False  # they are back
        if not self._is_reading:
            raise ConnectionFailed(
                f"Kafka at {self._cluster.servers} gave nothing of topic '{self._topic}' within {JOIN_S:.0f} s, not "
                "even that it is at its end.",
                fix="look for other members of the group that do not answer",
            )

    @property
    def _is_reading(self) -> bool:
        """Whether silence means that there is nothing: joining a group and finding the positions takes its time."""
        return self._assigned is not None and self._assigned <= self._heard_of

    def _joined(self, consumer: Any, partitions: list[Any]) -> None:
        self._assigned = {partition.partition for partition in partitions}
        self._heard_of.clear()

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        # Others read them from the committed positions on; what is left over here is theirs.
        gone = {partition.partition for partition in partitions}
        self._left = [message for message in self._left if message.partition() not in gone]
        self._positions = {number: at for number, at in self._positions.items() if number not in gone}


def _metadata(messages: list[Any]) -> dict[str, tuple[Any, Any]]:
    import pyarrow as pa

    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    # A message may be without a time; the library then says -1 or 0.
    times = [stamp[1] * 1000 if (stamp := message.timestamp())[0] else None for message in messages]
    return {
        "_key": (pa.binary(), [message.key() for message in messages]),
        "_topic": (pa.string(), [message.topic() for message in messages]),
        "_partition": (pa.int32(), [message.partition() for message in messages]),
        "_offset": (pa.int64(), [message.offset() for message in messages]),
        "_timestamp": instants(times),
        "_headers": (
            headers,
            [[{"key": key, "value": value} for key, value in message.headers() or ()] for message in messages],
        ),
        "_event_ts": instants(times),
    }


def _registry(url: str | None, user: str | None, password: str | None) -> Registry | None:
    if url is None:
        if user or password:
            raise InvalidConfig("schema_registry_basic_auth_user and _password go with schema_registry_url.")
        return None
    return registry_of(
        SchemaRegistryConnection(name="schema_registry", url=url, basic_auth_user=user, basic_auth_password=password)
    )
