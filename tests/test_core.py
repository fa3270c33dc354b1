"""The clients for notebooks, `ematix_flow._core`, against real brokers: batches in and out, failures as ValueErrors."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ematix_flow._core import KafkaBackend, KinesisBackend, PubSubBackend, RabbitMQBackend
from ematix_flow.backends import kafka_client, pubsub_client
from ematix_flow.backends.kafka_client import Heard, IamToken
from ematix_flow.backends.kinesis_client import put, stream_of
from ematix_flow.backends.schema_registry import Registry, RegistryClient
from ematix_flow.declare.connection import KinesisConnection
from ematix_flow.errors import FlowError, MissingDriver
from tests.docs.seed_examples import example
from tests.services import kafka as kafka_service
from tests.services.kafka import PASSWORD, SCRAM_PASSWORD, SCRAM_USER, USER, KafkaServer
from tests.services.moto import REGION, S3Server
from tests.services.postgres import _free_port
from tests.services.pubsub import PROJECT, PubSubServer
from tests.services.rabbitmq import RabbitMQServer

ROWS = pa.record_batch({"id": [1, 2, 3], "name": ["ann", None, "bob"]})
QUICK = {"idle_timeout_ms": 500}
PROTO = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order {
  enum Kind { WEB = 0; SHOP = 1; }
  message Home { string city = 1; map<string, int32> at = 2; }
  int64 id = 1; Kind kind = 3; uint64 big = 4; repeated string tags = 5; map<string, int32> counts = 6;
  google.protobuf.Timestamp at = 7; google.protobuf.Int32Value maybe = 8; optional double price = 9; Home home = 10;
  bytes raw = 11;
}
"""


def ids(batches: Any) -> list[int]:
    return sorted(value for batch in batches for value in batch.column("id").to_pylist())


@contextlib.contextmanager
def opened(backend: Any) -> Iterator[Any]:
    try:
        yield backend
    finally:
        backend.close()


# ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────

BROKERS: list[tuple[Any, str]] = [
    (KafkaBackend, "127.0.0.1:1"),
    (RabbitMQBackend, "amqp://ann:pw@127.0.0.1:1/"),
    (PubSubBackend, "project"),
    (KinesisBackend, "stream"),
]


@pytest.mark.parametrize(("backend", "address"), BROKERS)
def test_opening_connects_to_nothing(backend: Any, address: str) -> None:
    began = time.monotonic()
    assert isinstance(backend.open(address), backend)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(("backend", "address"), BROKERS)
@pytest.mark.parametrize("options", [{}, {"batch_size": 0}, {"batch_bytes": -1}, {"batch_size": True}])
def test_an_empty_address_or_a_senseless_limit_is_a_value_error(
    backend: Any, address: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError):
        backend.open(address if options else "", **options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"payload_format": "jsno"}, "'jsno' is unknown"),
        ({"payload_format": "protobuf", "auto_register_schemas": True}, "cannot be made of rows"),
        ({"delivery_semantics": "at_most_once"}, "delivery_semantics"),
        ({"delivery_semantics": "exactly_once"}, "transactional_id"),
        ({"transactional_id": "t"}, "go together"),
        ({"sasl_plain_username": "a"}, "go together"),
        ({"sasl_plain_password": "a"}, "go together"),
        ({"sasl_scram_username": "a"}, "go together"),
        ({"sasl_scram_mechanism": "sha-256"}, "goes with"),
        ({"sasl_scram_username": "a", "sasl_scram_password": "b", "sasl_scram_mechanism": "md5"}, "one of"),
        ({"sasl_plain_username": "a", "sasl_plain_password": "b", "sasl_scram_username": "c"}, "more than one"),
        ({"sasl_plain_username": "a", "sasl_plain_password": "b", "msk_iam_region": "eu-west-1"}, "more than one"),
        ({"tls_cert_path": "c"}, "go together"),
        ({"tls_cert_path": "c", "tls_key_path": "k", "msk_iam_region": "eu-west-1"}, "mixed"),
        ({"schema_registry_url": "localhost:8081"}, "http://"),
        ({"schema_registry_url": "http://h", "schema_registry_basic_auth_user": "a"}, "go together"),
        ({"schema_registry_basic_auth_user": "a"}, "schema_registry_url"),
        ({"auto_offset_reset": "first"}, "auto_offset_reset"),
        ({"batch_window_ms": 0}, "batch_window_ms"),
    ],
)
def test_kafka_arguments_that_do_not_go_together_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        KafkaBackend.open("127.0.0.1:9092", **options)


def test_half_a_pair_of_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="go together"):
        KinesisBackend.open("stream", access_key_id="a")
    with pytest.raises(ValueError, match="needs an endpoint"):
        PubSubBackend.open("project", anonymous_auth=True)
    with pytest.raises(ValueError, match="amqp://"):
        RabbitMQBackend.open("http://ann:secret@host")


@pytest.mark.parametrize(
    ("driver", "extra", "call"),
    [
        ("confluent_kafka", "kafka", "KafkaBackend.open('h:1')"),
        ("pika", "rabbitmq", "RabbitMQBackend.open('amqp://h')"),
        ("google.pubsub_v1", "pubsub", "PubSubBackend.open('p')"),
        ("boto3", "kinesis", "KinesisBackend.open('s')"),
        ("aws_msk_iam_sasl_signer", "msk", "KafkaBackend.open('h:1', msk_iam_region='eu-west-1').ping()"),
        (
            "fastavro",
            "schema-registry",
            "KafkaBackend.open('h:1', payload_format='avro', "
            "schema_registry_url='http://h')._payloads.batch([b''], 't')",
        ),
    ],
)
def test_a_missing_package_is_an_import_error_with_the_line_to_install_it(driver: str, extra: str, call: str) -> None:
    code = f"""
import sys
sys.modules[{driver!r}] = None
from ematix_flow._core import *
try:
    {call}
except ImportError as exc:
    print(exc)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f'pip install "ematix-flow[{extra}]"' in said
    assert issubclass(MissingDriver, ImportError)


# ── Kafka ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def kafka(server: KafkaServer, **options: Any) -> Any:
    group = {"group_id": f"g-{uuid.uuid4().hex[:8]}", **QUICK}
    return opened(KafkaBackend.open(server.address, **{**group, **options}))


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    return kafka_server.create_topic(f"t-{uuid.uuid4().hex[:12]}")


def test_kafka_rows_go_in_and_come_out(kafka_server: KafkaServer, topic: str) -> None:
    with kafka(kafka_server) as backend:
        backend.ping()
        assert backend.write_arrow_stream(topic, [ROWS]) == 3
        (batch,) = backend.read_arrow_stream(topic)
        assert sorted(batch.to_pylist(), key=lambda row: row["id"]) == ROWS.to_pylist()
        assert backend.read_arrow_stream(topic) == []


def test_kafka_positions_move_only_when_committed(kafka_server: KafkaServer, topic: str) -> None:
    group = f"g-{uuid.uuid4().hex[:8]}"
    with kafka(kafka_server) as writer:
        writer.write_arrow_stream(topic, ROWS)
    with kafka(kafka_server, group_id=group) as first:
        assert ids(first.read_arrow_stream(topic)) == [1, 2, 3]
    with kafka(kafka_server, group_id=group) as second:
        assert ids(second.read_arrow_stream(topic)) == [1, 2, 3]
        second.commit_offsets()
        second.commit_offsets()  # nothing new: nothing to do
    with kafka(kafka_server, group_id=group) as third:
        third.write_arrow_stream(topic, pa.table({"id": [4]}))
        assert ids(third.read_arrow_stream(topic)) == [4]


def test_kafka_batches_keep_their_limits_and_only_what_was_given_is_committed(
    kafka_server: KafkaServer,
) -> None:
    topic = kafka_server.create_topic(f"t-{uuid.uuid4().hex[:12]}", partitions=1)
    group = f"g-{uuid.uuid4().hex[:8]}"
    with kafka(kafka_server, group_id=group, batch_size=40) as backend:
        backend.write_arrow_stream(topic, pa.record_batch({"id": list(range(100))}))
        batches = backend.iter_arrow_stream(topic)
        assert ids([next(batches)]) == list(range(40))
        backend.commit_offsets()  # forty, though more may have been fetched
    with kafka(kafka_server, group_id=group, batch_bytes=100) as backend:
        batches = backend.iter_arrow_stream(topic)
        assert iter(batches) is batches
        found = list(batches)
        assert len(found) > 3 and ids(found) == list(range(40, 100))
        assert list(batches) == []  # one pass


def test_kafka_schemas_widen_from_batch_to_batch(kafka_server: KafkaServer, topic: str) -> None:
    with kafka(kafka_server) as backend:
        backend.write_arrow_stream(topic, pa.record_batch({"id": [1]}))
        assert backend.read_arrow_stream(topic)[0].schema.names == ["id"]
        backend.write_arrow_stream(topic, pa.record_batch({"new": [1.5]}))
        (second,) = backend.read_arrow_stream(topic)
        assert second.to_pylist() == [{"id": None, "new": 1.5}]


def test_kafka_bytes_and_keys(kafka_server: KafkaServer, topic: str) -> None:
    with kafka(kafka_server, payload_format="raw_bytes") as backend:
        backend.write_arrow_stream(topic, pa.record_batch({"payload": [b"\x00", b"\xff"]}))
        (batch,) = backend.read_arrow_stream(topic)
        assert sorted(batch.column("payload").to_pylist()) == [b"\x00", b"\xff"]
        with pytest.raises(ValueError, match="one column of bytes"):
            backend.write_arrow_stream(topic, ROWS)
    with kafka(kafka_server, message_key_column="name") as backend:
        backend.write_arrow_stream(topic, ROWS)
    assert sorted(message.key or b"" for message in kafka_server.messages(topic))[-3:] == [b"", b"ann", b"bob"]
    with kafka(kafka_server, message_key_column="id") as backend, pytest.raises(ValueError, match="text or bytes"):
        backend.write_arrow_stream(topic, ROWS)


def test_kafka_avro_through_a_registry(kafka_server: KafkaServer, topic: str, schema_registry_url: str) -> None:
    avro = {"payload_format": "avro", "schema_registry_url": schema_registry_url}
    with kafka(kafka_server, **avro) as backend, pytest.raises(ValueError, match=f"no subject '{topic}-value'"):
        backend.write_arrow_stream(topic, ROWS)
    with kafka(kafka_server, auto_register_schemas=True, **avro) as backend:
        assert backend.write_arrow_stream(topic, ROWS) == 3
        (batch,) = backend.read_arrow_stream(topic)
        assert sorted(batch.to_pylist(), key=lambda row: row["id"]) == ROWS.to_pylist()
    with kafka(kafka_server, payload_format="avro") as backend, pytest.raises(ValueError, match="schema_registry_url"):
        backend.read_arrow_stream(topic)


def test_kafka_protobuf_through_a_registry(kafka_server: KafkaServer, topic: str, schema_registry_url: str) -> None:
    proto = {"payload_format": "protobuf", "schema_registry_url": schema_registry_url}
    with kafka(kafka_server, **proto) as backend, pytest.raises(ValueError, match=f"no subject '{topic}-value'"):
        backend.write_arrow_stream(topic, ROWS)
    RegistryClient(Registry("r", schema_registry_url)).register(f"{topic}-value", PROTO, "PROTOBUF")
    at = datetime(2026, 3, 1, 6, 0, 0, 123456, tzinfo=timezone.utc)
    full = {"id": 2**40, "kind": "SHOP", "big": Decimal(2**64 - 1), "tags": ["x"], "counts": [("k", 3)], "at": at}
    full |= {"maybe": 7, "price": 0.0, "home": {"city": "Rome", "at": [("door", 1)]}, "raw": b"\x00\xff"}
    with kafka(kafka_server, **proto) as backend:
        assert backend.write_arrow_stream(topic, [pa.record_batch({"id": pa.array([2], pa.int64())})]) == 1
        (batch,) = backend.read_arrow_stream(topic)
        nothing = {"kind": "WEB", "big": Decimal(0), "tags": [], "counts": [], "raw": b""}
        assert batch.to_pylist() == [{**dict.fromkeys(full), "id": 2, **nothing}]
        backend.write_arrow_stream(topic, [pa.RecordBatch.from_pylist([full], schema=batch.schema)])
        (batch,) = backend.read_arrow_stream(topic)
        assert batch.to_pylist() == [full]
        with pytest.raises(ValueError, match="no 'colour'"):
            backend.write_arrow_stream(topic, pa.record_batch({"id": [1], "colour": ["red"]}))
        with pytest.raises(ValueError, match="'id' does not fit"):
            backend.write_arrow_stream(topic, pa.record_batch({"id": ["one"]}))
    with kafka(kafka_server, payload_format="raw_bytes") as backend:
        backend.write_arrow_stream(topic, pa.record_batch({"payload": [b"{}"]}))
    with kafka(kafka_server, **proto) as backend, pytest.raises(ValueError, match="schema"):
        backend.read_arrow_stream(topic)
    with kafka(kafka_server, payload_format="protobuf") as backend, pytest.raises(ValueError, match="registry_url"):
        backend.read_arrow_stream(topic)


def test_kafka_exactly_once_shows_all_of_a_write_or_nothing(kafka_server: KafkaServer, topic: str) -> None:
    once = {"delivery_semantics": "exactly_once", "transactional_id": f"tx-{uuid.uuid4().hex[:8]}"}

    def broken() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": list(range(1000, 3000))})
        raise RuntimeError("the notebook's own")

    with kafka(kafka_server, **once) as backend:
        with pytest.raises(RuntimeError, match="own"):
            backend.write_arrow_stream(topic, broken())
        assert backend.write_arrow_stream(topic, [ROWS, ROWS]) == 6
        assert ids(backend.read_arrow_stream(topic)) == [1, 1, 2, 2, 3, 3]
        with kafka(kafka_server, **once) as second:
            assert second.write_arrow_stream(topic, ROWS) == 3
            with pytest.raises(ValueError, match="Another run"):
                backend.write_arrow_stream(topic, ROWS)
    values = [json.loads(message.value or b"")["id"] for message in kafka_server.messages(topic)]
    assert sorted(values) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_kafka_messages_that_are_no_rows_are_refused_and_tombstones_passed_over(
    kafka_server: KafkaServer, topic: str
) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka_server.address})
    producer.produce(topic, value=None, key="k")
    producer.produce(topic, value=b'{"id": 7}')
    producer.flush(10)
    with kafka(kafka_server) as backend:
        assert ids(backend.read_arrow_stream(topic)) == [7]
        producer.produce(topic, value=b"hidden{")
        producer.flush(10)
        for _ in range(2):  # it is not passed over, whatever is committed
            with pytest.raises(ValueError, match="1 message of 1.*not JSON") as failure:
                backend.read_arrow_stream(topic)
            assert "hidden" not in str(failure.value)
            backend.commit_offsets()
        group = backend._group_id
    with kafka(kafka_server, group_id=group, payload_format="raw_bytes") as backend:
        assert backend.read_arrow_stream(topic)[0].to_pylist() == [{"payload": b"hidden{"}]


@pytest.mark.parametrize(
    ("login", "works"),
    [
        ({"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}, True),
        ({"sasl_scram_username": SCRAM_USER, "sasl_scram_password": SCRAM_PASSWORD}, True),
        ({"sasl_plain_username": USER, "sasl_plain_password": "wrong-pw"}, False),
    ],
)
def test_kafka_logs_in(kafka_server: KafkaServer, login: dict[str, str], works: bool) -> None:
    backend = KafkaBackend.open(kafka_server.sasl_address, security_protocol="SASL_PLAINTEXT", **login)
    if works:
        backend.ping()
        return
    with pytest.raises(ValueError, match="user or password is wrong") as failure:
        backend.ping()
    assert "wrong-pw" not in str(failure.value)


def test_kafka_failures_are_value_errors_that_say_what_to_do(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="group_id is required"):
        KafkaBackend.open(kafka_server.address).read_arrow_stream("t")
    with kafka(kafka_server) as backend:
        for act in (lambda: backend.read_arrow_stream("nowhere"), lambda: backend.write_arrow_stream("nowhere", ROWS)):
            with pytest.raises(ValueError, match="no topic 'nowhere'"):
                act()
        with pytest.raises(ValueError, match="no name"):
            backend.read_arrow_stream(" ")
        with pytest.raises(ValueError, match="RecordBatch"):
            backend.write_arrow_stream(next(iter(kafka_server.topics())), [{"id": 1}])
    monkeypatch.setattr(kafka_client, "WAIT_S", 1.0)
    with pytest.raises(ValueError, match="cannot be reached"):
        KafkaBackend.open(f"127.0.0.1:{_free_port()}").ping()


if os.environ.get("EMATIX_PROVE"):  # a broker of its own: `make prove`

    def test_kafka_that_goes_away_is_no_empty_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kafka_client, "WAIT_S", 3.0)
        server = kafka_service.start(tmp_path / "kafka")
        try:
            topic = server.create_topic("t", partitions=1)
            with kafka(server) as backend:
                backend.write_arrow_stream(topic, ROWS)
                assert ids(backend.read_arrow_stream(topic)) == [1, 2, 3]
                assert backend.read_arrow_stream(topic) == []
                kafka_service.stop(tmp_path / "kafka")
                with pytest.raises(ValueError, match="cannot be reached"):
                    for _ in range(20):  # the library takes a moment to notice
                        assert backend.read_arrow_stream(topic) == []
        finally:
            kafka_service.stop(tmp_path / "kafka")


def test_msk_tokens_are_made_when_the_library_asks_and_last_some_minutes(
    kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "msk-secret")
    asked = IamToken("eu-west-1", Heard())
    for _ in range(2):  # the first one, and one that replaces it
        token, ends_at = asked("")
        assert 60 < ends_at - time.time() < 3600
        assert "msk-secret" not in token
    # A broker that is not MSK lets nobody in by it; without credentials there is not even a token.
    with pytest.raises(ValueError, match="cannot be reached|refuses the login"):
        KafkaBackend.open(
            kafka_server.sasl_address, msk_iam_region="eu-west-1", security_protocol="SASL_PLAINTEXT"
        ).ping()


def test_msk_without_credentials_says_so(kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    backend = KafkaBackend.open(
        kafka_server.sasl_address, msk_iam_region="eu-west-1", security_protocol="SASL_PLAINTEXT"
    )
    with pytest.raises(ValueError, match="AWS gives no token for Kafka in region 'eu-west-1'"):
        backend.ping()


def test_what_brokers_know_of_a_message_comes_as_columns(
    kafka_server: KafkaServer,
    topic: str,
    rabbitmq_server: RabbitMQServer,
    pubsub_server: PubSubServer,
    moto_server: S3Server,
) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka_server.address})
    producer.produce(
        topic, value=b'{"id": 7}', key=b"k", partition=1, timestamp=1_700_000_000_123, headers=[("h", b"v")]
    )
    producer.flush(10)
    at = datetime.fromtimestamp(1_700_000_000.123, timezone.utc)
    with kafka(kafka_server, metadata=True) as backend:
        (row,) = backend.read_arrow_stream(topic)[0].to_pylist()
    assert row == {
        "id": 7,
        "_key": b"k",
        "_topic": topic,
        "_partition": 1,
        "_offset": 0,
        "_timestamp": at,
        "_headers": [{"key": "h", "value": b"v"}],
        "_event_ts": at,
    }

    queue = rabbitmq_server.create_queue()
    rabbitmq_server.send(queue, b'{"id": 7, "_event_ts": "mine"}', message_id="m")
    with rabbitmq(rabbitmq_server, metadata=True) as backend:
        (row,) = backend.read_arrow_stream(queue)[0].to_pylist()
    assert row == {"id": 7, "_event_ts": "mine", "_message_id": "m", "_redelivered": False}

    bus = pubsub_server.create_topic()
    subscription = pubsub_server.create_subscription(bus)
    pubsub_server.publisher().publish(
        topic=f"projects/{PROJECT}/topics/{bus}", messages=[{"data": b'{"id": 7}', "attributes": {"a": "b"}}]
    )
    with pubsub(pubsub_server, metadata=True) as backend:
        batch = backend.read_arrow_stream(subscription)[0]
    assert batch.schema.names == ["id", "_message_id", "_attributes", "_event_ts"]
    assert batch.column("_attributes").to_pylist() == [[("a", "b")]]

    stream = moto_server.new_stream()
    with kinesis(moto_server, stream, metadata=True) as backend:
        backend.write_arrow_stream("orders", pa.record_batch({"id": [7]}))
        (row,) = backend.read_arrow_stream("any")[0].to_pylist()
    assert (row["_partition_key"], row["_shard"][:8]) == ("orders-0", "shardId-")
    assert abs(row["_event_ts"] - datetime.now(timezone.utc)) < timedelta(minutes=5)


@pytest.mark.parametrize("document", ["readme-0.1", "readme-0.3"])
def test_the_documented_example_reads_avro_behind_a_login(
    kafka_server: KafkaServer, schema_registry_url: str, document: str
) -> None:
    topic = kafka_server.create_topic(f"events-{uuid.uuid4().hex[:8]}", partitions=1)
    avro = {"payload_format": "avro", "schema_registry_url": schema_registry_url, "auto_register_schemas": True}
    with kafka(kafka_server, **avro) as writer:
        writer.write_arrow_stream(topic, ROWS)
    text = example(f"{document}/notebook.python")
    for there, here in {  # the addresses and names of this place; its broker has no certificate
        '"localhost:9092",': f'"{kafka_server.sasl_address}", security_protocol="SASL_PLAINTEXT", idle_timeout_ms=500,',
        "http://localhost:8081": schema_registry_url,
        '"secret"': f'"{PASSWORD}"',
        '"alice"': f'"{USER}"',
        '"events"': f'"{topic}"',
        '"ematix-flow"': f'"g-{topic}"',
    }.items():
        assert there in text
        text = text.replace(there, here)
    seen: list[pa.RecordBatch] = []
    namespace: dict[str, Any] = {"process": seen.append}
    for _ in range(2):  # what was committed does not come again
        exec(compile(text, document, "exec"), namespace)
        namespace["backend"].close()
    assert [batch.to_pylist() for batch in seen] == [ROWS.to_pylist()]


# ── RabbitMQ ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def rabbitmq(server: RabbitMQServer, **options: Any) -> Any:
    return opened(RabbitMQBackend.open(server.url, **{**QUICK, **options}))


def test_rabbitmq_rows_go_in_and_leave_when_committed(rabbitmq_server: RabbitMQServer) -> None:
    queue = rabbitmq_server.create_queue()
    with rabbitmq(rabbitmq_server, consumer_tag="notebook") as backend:
        backend.ping()
        assert backend.write_arrow_stream(queue, [ROWS]) == 3
        (batch,) = backend.read_arrow_stream(queue)
        assert batch.to_pylist() == ROWS.to_pylist()
        assert backend.pending_delivery_count() == 3
        backend.commit_offsets()
        assert backend.pending_delivery_count() == 0
        assert backend.read_arrow_stream(queue) == []
    assert rabbitmq_server.ready(queue) == 0


def test_rabbitmq_gives_back_or_to_dead_letters(rabbitmq_server: RabbitMQServer) -> None:
    dead = rabbitmq_server.create_queue()
    queue = rabbitmq_server.create_queue(**{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    with rabbitmq(rabbitmq_server) as backend:
        backend.write_arrow_stream(queue, ROWS)
        assert ids(backend.read_arrow_stream(queue)) == [1, 2, 3]
        backend.nack_pending(requeue=True)
        assert ids(backend.read_arrow_stream(queue)) == [1, 2, 3]
        backend.nack_pending(requeue=False)
        assert backend.pending_delivery_count() == 0
        assert backend.read_arrow_stream(queue) == []
    with rabbitmq(rabbitmq_server) as backend:
        assert ids(backend.read_arrow_stream(dead)) == [1, 2, 3]


def test_rabbitmq_batches_go_on_before_anything_is_committed(rabbitmq_server: RabbitMQServer) -> None:
    queue = rabbitmq_server.create_queue()
    with rabbitmq(rabbitmq_server, batch_size=30) as backend:
        backend.write_arrow_stream(queue, pa.record_batch({"id": list(range(100))}))
        found = list(backend.iter_arrow_stream(queue))
        assert [batch.num_rows for batch in found] == [30, 30, 30, 10]
        assert ids(found) == list(range(100))
        backend.commit_offsets()
    assert rabbitmq_server.ready(queue) == 0


def test_rabbitmq_messages_that_are_no_rows_are_given_back_and_never_acknowledged(
    rabbitmq_server: RabbitMQServer,
) -> None:
    queue = rabbitmq_server.create_queue()
    rabbitmq_server.send(queue, b'{"id": 1}', b'{"id": 2}', b"hidden")
    with rabbitmq(rabbitmq_server, batch_size=1) as backend:
        assert ids(backend.read_arrow_stream(queue)) == [1]
    with rabbitmq(rabbitmq_server, batch_size=2) as backend:
        assert ids(backend.read_arrow_stream(queue)) == [1, 2]
        for _ in range(2):
            with pytest.raises(ValueError, match="1 message of 1") as failure:
                backend.read_arrow_stream(queue)
            assert "hidden" not in str(failure.value)
        backend.commit_offsets()
        assert backend.pending_delivery_count() == 1
        backend.nack_pending(requeue=True)
    with rabbitmq(rabbitmq_server, payload_format="raw_bytes") as backend:
        assert backend.read_arrow_stream(queue)[0].to_pylist() == [{"payload": b"hidden"}]
        backend.commit_offsets()
    assert rabbitmq_server.ready(queue) == 0


# ── Pub/Sub ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def pubsub(server: PubSubServer, **options: Any) -> Any:
    return opened(PubSubBackend.open(PROJECT, endpoint=server.address, anonymous_auth=True, **{**QUICK, **options}))


def test_pubsub_rows_go_in_and_are_gone_when_committed(pubsub_server: PubSubServer) -> None:
    topic = pubsub_server.create_topic()
    subscription = pubsub_server.create_subscription(topic)
    with pubsub(pubsub_server) as backend:
        backend.ping()
        assert backend.write_arrow_stream(topic, [ROWS]) == 3
        assert ids(backend.read_arrow_stream(subscription)) == [1, 2, 3]
        assert backend.pending_handler_count() == 3
        backend.nack_pending()
        assert backend.pending_handler_count() == 0
        full = f"projects/{PROJECT}/subscriptions/{subscription}"
        assert ids(backend.iter_arrow_stream(full)) == [1, 2, 3]
        backend.commit_offsets()
        assert backend.read_arrow_stream(subscription) == []
        with pytest.raises(ValueError, match="reads subscription"):
            backend.read_arrow_stream("another")
    assert pubsub_server.bodies(subscription, wait_s=0.5) == []


def test_pubsub_messages_that_are_no_rows_are_given_back_and_never_acknowledged(pubsub_server: PubSubServer) -> None:
    topic = pubsub_server.create_topic()
    subscription = pubsub_server.create_subscription(topic)
    with pubsub(pubsub_server) as backend:
        backend.write_arrow_stream(topic, ROWS)
        assert ids(backend.read_arrow_stream(subscription)) == [1, 2, 3]
        pubsub_server.send(topic, b"hidden")
        for _ in range(2):
            with pytest.raises(ValueError, match="1 message of 1"):
                backend.read_arrow_stream(subscription)
        backend.commit_offsets()
        assert backend.pending_handler_count() == 1
        backend.nack_pending()
    with pubsub(pubsub_server, payload_format="raw_bytes") as backend:
        assert backend.read_arrow_stream(subscription)[0].to_pylist() == [{"payload": b"hidden"}]
        backend.commit_offsets()


def test_pubsub_failures_are_value_errors(pubsub_server: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pubsub(pubsub_server) as backend:
        with pytest.raises(ValueError, match="has no 'nowhere'"):
            backend.read_arrow_stream("nowhere")
        with pytest.raises(ValueError, match="has no 'nowhere'"):
            backend.write_arrow_stream("nowhere", ROWS)
    monkeypatch.setattr(pubsub_client, "WAIT_S", 1.0)
    with pytest.raises(ValueError, match="cannot be reached"):
        PubSubBackend.open("p", endpoint=f"127.0.0.1:{_free_port()}", anonymous_auth=True).ping()


# ── Kinesis ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def kinesis(server: S3Server, stream: str, **options: Any) -> Any:
    login = {"access_key_id": server.loader[0], "secret_access_key": server.loader[1]}
    return opened(KinesisBackend.open(stream, region=REGION, endpoint=server.endpoint, **login, **options))


def test_kinesis_rows_go_in_and_are_read_from_committed_positions(moto_server: S3Server) -> None:
    stream = moto_server.new_stream()
    with kinesis(moto_server, stream) as backend:
        backend.ping()
        assert backend.write_arrow_stream("orders", [ROWS, ROWS]) == 6
        assert ids(backend.read_arrow_stream("any")) == [1, 1, 2, 2, 3, 3]
        assert backend.pending_sequence_count() >= 1
        backend.reset_to_committed_offsets()
        assert backend.pending_sequence_count() == 0
        assert ids(backend.read_arrow_stream("any")) == [1, 1, 2, 2, 3, 3]
        backend.commit_offsets()
        assert backend.pending_sequence_count() == 0
        backend.reset_to_committed_offsets()
        assert backend.read_arrow_stream("any") == []
        with pytest.raises(ValueError, match="no name"):
            backend.read_arrow_stream("")


def test_kinesis_rows_have_keys_by_their_number(moto_server: S3Server) -> None:
    stream = moto_server.new_stream(shards=1)
    with kinesis(moto_server, stream) as backend:
        backend.write_arrow_stream("orders", [ROWS, ROWS])
    client = moto_server.kinesis()
    (shard,) = client.list_shards(StreamName=stream)["Shards"]
    start = client.get_shard_iterator(StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON")
    records = client.get_records(ShardIterator=start["ShardIterator"])["Records"]
    assert [record["PartitionKey"] for record in records] == [f"orders-{number}" for number in range(6)]


def test_kinesis_batches_keep_their_limits_and_children_follow_their_parents(kinesalite_server: S3Server) -> None:
    stream = kinesalite_server.new_stream(shards=1)
    client = kinesalite_server.kinesis()
    with kinesis(kinesalite_server, stream, batch_size=30, max_empty_polls=3) as backend:
        backend.write_arrow_stream("a", pa.record_batch({"id": list(range(100))}))
        (parent,) = client.list_shards(StreamName=stream)["Shards"]
        client.split_shard(StreamName=stream, ShardToSplit=parent["ShardId"], NewStartingHashKey=str(2**127))
        client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        backend.write_arrow_stream("b", pa.record_batch({"id": list(range(100, 150))}))
        found = [batch.column("id").to_pylist() for batch in backend.iter_arrow_stream("any")]
    assert all(len(batch) <= 30 for batch in found)
    in_order = [number for batch in found for number in batch]
    assert in_order[:100] == list(range(100))
    assert sorted(in_order[100:]) == list(range(100, 150))


def test_kinesis_failures_are_value_errors(moto_server: S3Server) -> None:
    with kinesis(moto_server, "nowhere") as backend:
        for act in (
            backend.ping,
            lambda: backend.read_arrow_stream("a"),
            lambda: backend.write_arrow_stream("a", ROWS),
        ):
            with pytest.raises(ValueError, match="no stream 'nowhere'"):
                act()
    stream = moto_server.new_stream()
    connection = KinesisConnection(
        name="k",
        stream_name=stream,
        region=REGION,
        endpoint=moto_server.endpoint,
        access_key_id=moto_server.loader[0],
        secret_access_key=moto_server.loader[1],
    )
    put(stream_of(connection), [("k", b"hidden")])
    with kinesis(moto_server, stream) as backend:
        for _ in range(2):  # it is not passed over
            with pytest.raises(ValueError, match="not JSON") as failure:
                backend.read_arrow_stream("a")
            assert "hidden" not in str(failure.value)
            assert isinstance(failure.value, FlowError)
            backend.commit_offsets()
    with kinesis(moto_server, stream, payload_format="raw_bytes") as backend:
        assert backend.read_arrow_stream("a")[0].to_pylist() == [{"payload": b"hidden"}]
    with pytest.raises(ValueError, match="'avro' is unknown here"):
        KinesisBackend.open("s", payload_format="avro")


def test_all_brokers_have_the_same_methods() -> None:
    shared = {"open", "ping", "read_arrow_stream", "iter_arrow_stream", "write_arrow_stream", "commit_offsets", "close"}
    more: dict[Any, set[str]] = {
        KafkaBackend: set(),
        RabbitMQBackend: {"nack_pending", "pending_delivery_count"},
        PubSubBackend: {"nack_pending", "pending_handler_count"},
        KinesisBackend: {"reset_to_committed_offsets", "pending_sequence_count"},
    }
    for backend, own in more.items():
        public: set[str] = {name for name in dir(backend) if not name.startswith("_")}
        assert public == shared | own
        method: Callable[..., Any] = backend.ping
        assert method.__doc__
