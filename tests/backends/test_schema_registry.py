"""The schema registry's client against a real server, the framings of messages, and Avro rows through both."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from ematix_flow import SchemaRegistryConnection
from ematix_flow.backends.avro_rows import arrow_type, avro_batch, avro_schema, to_avro_messages
from ematix_flow.backends.glue_registry import GlueClient
from ematix_flow.backends.schema_registry import (
    RegistryClient,
    glue_version_and_payload,
    message_indexes_and_payload,
    registry_of,
    schema_id_and_payload,
    with_glue_version,
    with_message_indexes,
    with_schema_id,
)
from ematix_flow.connections import GlueSchemaRegistryConnection
from ematix_flow.errors import BrokerRefused, ConnectionFailed, InvalidConnection, UnfitValue
from tests.services.postgres import _free_port
from tests.services.schema_registry import own_server

ORDER = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
ORDER_2 = {
    "type": "record",
    "name": "order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}


def client_at(url: str, **login: str) -> RegistryClient:
    return RegistryClient(registry_of(SchemaRegistryConnection(name="registry", url=url, **login)))


@pytest.fixture
def client(schema_registry_url: str) -> RegistryClient:
    return client_at(schema_registry_url)


@pytest.fixture
def subject() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}/ü-value"


# ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_schema_is_found_by_its_number_and_its_subject(client: RegistryClient, subject: str) -> None:
    client.ping()
    made = client.register(subject, json.dumps(ORDER))
    fresh = RegistryClient(client.registry)
    assert json.loads(fresh.schema(made.id).text) == ORDER
    assert fresh.latest(subject).id == made.id
    assert client.register(subject, json.dumps(ORDER)).id == made.id
    second = client.register(subject, json.dumps(ORDER_2))
    assert second.id != made.id
    assert client.latest(subject) == second
    assert (made.type, second.references) == ("AVRO", {})


def test_a_number_is_asked_for_once(subject: str) -> None:
    with own_server() as url:
        client = client_at(url)
        made = client.register(subject, json.dumps(ORDER))
        reader = RegistryClient(client.registry)
        reader.schema(made.id)
        reader.latest(subject)
    # the server is gone
    assert reader.schema(made.id).text == made.text
    assert reader.latest(subject).id == made.id
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        reader.schema(made.id + 1)
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        pickle.loads(pickle.dumps(reader)).schema(made.id)  # what it knows does not travel


def test_writing_needs_a_subject_unless_it_may_be_made(client: RegistryClient, subject: str) -> None:
    with pytest.raises(BrokerRefused, match="has no subject") as failure:
        client.for_writing(subject, json.dumps(ORDER), auto_register_schemas=False)
    assert "auto_register_schemas=true" in str(failure.value)
    made = client.for_writing(subject, json.dumps(ORDER), auto_register_schemas=True)
    assert client.for_writing(subject, json.dumps(ORDER_2), auto_register_schemas=False).id == made.id
    with pytest.raises(BrokerRefused, match="has no schema 99999"):
        client.schema(99999)


def test_a_base_path_and_a_login_are_honoured(subject: str) -> None:
    with own_server(user="ann", password="registry-pw", base="/apis/ccompat/v7") as url:
        login = {"basic_auth_user": "ann", "basic_auth_password": "registry-pw"}
        assert url.endswith("/apis/ccompat/v7")
        for address in (url, f"{url}/"):
            client = client_at(address, **login)
            assert client.schema(client.register(subject, json.dumps(ORDER)).id).text
        for wrong in ({}, {"basic_auth_user": "ann", "basic_auth_password": "other-pw"}):
            with pytest.raises(ConnectionFailed, match="refuses the login") as failure:
                client_at(url, **wrong).ping()
            assert "pw" not in str(failure.value)
        with pytest.raises(ConnectionFailed, match="base path") as missing:
            client_at(url.removesuffix("/apis/ccompat/v7"), **login).ping()
        assert "pw" not in str(missing.value) + repr(client.registry)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"url": "http://h", "basic_auth_user": "a"}, "go together"),
        ({"url": "http://h", "basic_auth_password": "a"}, "go together"),
        ({"url": "h:8081"}, "http://"),
        ({"url": "file:///etc/hosts"}, "http://"),
        ({"url": "http://ann:registry-pw@h"}, "has a login in it"),
    ],
)
def test_a_registry_that_cannot_be_is_refused(fields: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConnection, match=complaint) as failure:
        registry_of(SchemaRegistryConnection(name="registry", **fields))
    assert "registry-pw" not in str(failure.value)


class Elsewhere(BaseHTTPRequestHandler):
    """A web server that is no registry: a schema's number is what it answers with, and 200 breaks off."""

    def do_GET(self) -> None:
        number = int(self.path.rpartition("/")[2]) if "ids" in self.path else None
        self.send_response(number or 200)
        if number == 200:
            self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def do_POST(self) -> None:
        self.send_response(400)
        self.end_headers()
        self.wfile.write(b'{"__type": "ThrottlingException"}')

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def elsewhere() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_that_is_away_in_trouble_or_no_registry_is_one_clear_error(elsewhere: str) -> None:
    with pytest.raises(ConnectionFailed, match="something else than JSON"):
        client_at(elsewhere).ping()
    for number, complaint in ((503, "in trouble .HTTP 503"), (429, "in trouble .HTTP 429"), (404, "or it is away")):
        with pytest.raises(ConnectionFailed, match=complaint):  # not one of messages, which would become dead letters
            client_at(elsewhere).schema(number)
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        client_at(elsewhere).schema(200)
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        client_at(f"http://127.0.0.1:{_free_port()}").ping()


def test_a_glue_registry_that_wants_a_pause_blames_no_message(elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", elsewhere)
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    glue = GlueSchemaRegistryConnection(name="glue", registry_name="r", region="us-east-1", **keys)
    with pytest.raises(ConnectionFailed, match="in trouble .ThrottlingException"):
        GlueClient(glue).schema(str(uuid.uuid4()))


# ── framing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 2**32 - 1), st.binary(max_size=30))
def test_a_framed_message_comes_apart_again(schema_id: int, payload: bytes) -> None:
    assert schema_id_and_payload(with_schema_id(schema_id, payload)) == (schema_id, payload)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=4), st.binary(max_size=10))
def test_message_indexes_come_apart_again(indexes: list[int], payload: bytes) -> None:
    assert message_indexes_and_payload(with_message_indexes(indexes, payload)) == (indexes, payload)


@pytest.mark.parametrize("message", [b"", b"\x00\x00\x00\x00", b"\x01\x00\x00\x00\x07x", b'{"a": 1}'])
def test_a_message_without_a_schema_id_is_refused(message: bytes) -> None:
    with pytest.raises(UnfitValue, match="zero byte and a schema id"):
        schema_id_and_payload(message)


@pytest.mark.parametrize("payload", [b"", b"\xff\xff\xff\xff\xff\xff", b"\x04\x02"])
def test_a_damaged_list_of_message_indexes_is_refused(payload: bytes) -> None:
    with pytest.raises(UnfitValue, match="which type"):
        message_indexes_and_payload(payload)


@given(st.uuids(version=4), st.binary(max_size=50), st.booleans(), st.booleans())
def test_glue_messages_come_apart_in_either_order(
    version: uuid.UUID, payload: bytes, compress: bool, aws_order: bool
) -> None:
    message = with_glue_version(version, payload, compress=compress, aws_order=aws_order)
    found = glue_version_and_payload(message)
    assert (found.schema_version, found.payload, found.is_aws_order) == (version, payload, aws_order)


@pytest.mark.parametrize("first_byte", [0, 5])
@pytest.mark.parametrize("aws_order", [True, False])
def test_a_glue_version_that_begins_like_a_compression_is_still_found(first_byte: int, aws_order: bool) -> None:
    version = uuid.UUID(bytes=bytes([first_byte]) + uuid.UUID("11d1c3f2-4b7a-4f0e-9a57-0a3c5f2b9d05").bytes[1:])
    assert glue_version_and_payload(with_glue_version(version, b"x", aws_order=aws_order)).schema_version == version


def test_the_bytes_are_those_of_aws_own_serializers() -> None:
    version = uuid.UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
    assert with_glue_version(version, b"p") == b"\x03\x00" + version.bytes + b"p"
    assert with_glue_version(version, b"p", compress=True)[:2] == b"\x03\x05"


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (b"\x03\x00short", "does not begin"),
        (b"\x00" * 30, "does not begin"),
        (b"\x03\x05" + uuid.UUID(int=4711, version=4).bytes + b"not zlib", "damaged"),
        (b"\x03\x07" + b"\x01" * 30, "not known"),
    ],
)
def test_a_message_that_is_not_glues_is_refused(message: bytes, complaint: str) -> None:
    with pytest.raises(UnfitValue, match=complaint):
        glue_version_and_payload(message)


# ── Avro ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

ROWS = pa.record_batch(
    {
        "id": pa.array([2**63 - 1, None]),
        "small": pa.array([1, None], pa.int32()),
        "amount": pa.array([Decimal("12.50"), None], pa.decimal128(12, 2)),
        "day": pa.array([date(2026, 3, 1), None]),
        "at": pa.array([datetime(2026, 3, 1, 6, 0, 0, 7, tzinfo=timezone.utc), None], pa.timestamp("us", tz="UTC")),
        "wall": pa.array([datetime(2026, 3, 1, 6, 0, 0, 7), None], pa.timestamp("us")),
        "raw": pa.array([b"\x00\xff", None]),
        "ratio": pa.array([0.1, None]),
        "flag": pa.array([True, None]),
        "tags": pa.array([["a", None], None], pa.list_(pa.string())),
        "place": pa.array([{"x": 1, "y": "n"}, None], pa.struct([("x", pa.int64()), ("y", pa.string())])),
        "counts": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
)


def test_rows_go_through_avro_with_their_types(client: RegistryClient, subject: str) -> None:
    messages = list(to_avro_messages(ROWS, subject, client, auto_register_schemas=True))
    back = avro_batch(messages, RegistryClient(client.registry))
    assert back.to_pylist() == ROWS.to_pylist()
    assert back.schema == ROWS.schema


def test_confluents_own_client_reads_what_is_written_and_writes_what_is_read(
    schema_registry_url: str, client: RegistryClient
) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    topic = f"orders-{uuid.uuid4().hex[:8]}"
    theirs = SchemaRegistryClient({"url": schema_registry_url})
    context = SerializationContext(topic, MessageField.VALUE)
    messages = list(to_avro_messages(ROWS, f"{topic}-value", client, auto_register_schemas=True))
    read = [AvroDeserializer(theirs)(message, context) for message in messages]
    assert [row["amount"] for row in read] == [Decimal("12.50"), None]
    assert [row["at"] for row in read] == ROWS.column("at").to_pylist()
    write = AvroSerializer(theirs, json.dumps(ORDER_2), conf={"subject.name.strategy": lambda *_: f"{topic}-theirs"})
    assert avro_batch([write({"id": 1, "note": "n"}, context)], client).to_pylist() == [{"id": 1, "note": "n"}]


def test_several_schema_ids_in_one_batch_give_one_table(client: RegistryClient, subject: str) -> None:
    client.register(subject, json.dumps(ORDER))
    old = list(to_avro_messages(pa.record_batch({"id": [1]}), subject, client, auto_register_schemas=False))
    client.register(subject, json.dumps(ORDER_2))
    rows = pa.record_batch({"id": [2], "note": ["n"]})
    new = list(to_avro_messages(rows, subject, client, auto_register_schemas=False))
    batch = avro_batch([*new, *old], client)
    assert batch.to_pylist() == [{"id": 2, "note": "n"}, {"id": 1, "note": None}]


def test_rows_that_do_not_fit_the_subject_are_refused_without_a_value(client: RegistryClient, subject: str) -> None:
    client.register(subject, json.dumps(ORDER))
    with pytest.raises(UnfitValue, match="has no 'secret'"):
        list(
            to_avro_messages(
                pa.record_batch({"id": [1], "secret": ["s"]}), subject, client, auto_register_schemas=False
            )
        )
    with pytest.raises(UnfitValue, match="does not fit") as failure:
        list(to_avro_messages(pa.record_batch({"id": ["hidden"]}), subject, client, auto_register_schemas=False))
    assert "hidden" not in str(failure.value)


def test_messages_that_are_damaged_or_of_an_unknown_schema_are_refused(client: RegistryClient, subject: str) -> None:
    made = client.register(subject, json.dumps(ORDER_2))
    with pytest.raises(UnfitValue, match=f"Message 2 of 2 cannot be read by its schema {made.id}"):
        avro_batch([with_schema_id(made.id, b"\x02\x00"), with_schema_id(made.id, b"")], client)
    with pytest.raises(BrokerRefused, match="has no schema 4242424"):
        avro_batch([with_schema_id(4242424, b"")], client)
    with pytest.raises(UnfitValue, match="zero byte"):
        avro_batch([b'{"id": 1}'], client)
    proto = client.register(f"{subject}-p", 'syntax = "proto3"; message A { int64 id = 1; }', "PROTOBUF")
    with pytest.raises(UnfitValue, match="is PROTOBUF, not AVRO"):
        avro_batch([with_schema_id(proto.id, b"\x00")], client)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (["null", "int", "string"], "union of several types"),
        ({"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}, "contains itself"),
    ],
)
def test_a_schema_that_has_no_form_as_rows_is_refused(schema: Any, complaint: str) -> None:
    with pytest.raises(UnfitValue, match=complaint):
        arrow_type(schema)


def test_a_type_with_a_name_may_be_used_again() -> None:
    schema = {
        "type": "record",
        "name": "trip",
        "fields": [
            {"name": "a", "type": {"type": "record", "name": "geo.place", "fields": [{"name": "x", "type": "int"}]}},
            {"name": "b", "type": ["null", "geo.place"]},
            {"name": "c", "type": {"type": "enum", "name": "colour", "symbols": ["RED"]}},
            {"name": "d", "type": "colour"},
        ],
    }
    place = pa.struct([("x", pa.int32())])
    assert arrow_type(schema) == pa.struct([("a", place), ("b", place), ("c", pa.string()), ("d", pa.string())])


def test_a_column_that_avro_has_no_form_for_is_refused() -> None:
    with pytest.raises(UnfitValue, match="no form in Avro"):
        avro_schema(pa.schema([("d", pa.duration("s"))]), "s")
