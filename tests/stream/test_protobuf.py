"""Protobuf from Kafka: several versions of a schema, its types as columns, and bad messages."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from ematix_flow import PostgresConnection, run_streaming_pipeline
from ematix_flow.backends.protobuf_schema import compiled
from ematix_flow.backends.schema_registry import (
    Registry,
    RegistryClient,
    Schema,
    message_indexes_and_payload,
    schema_id_and_payload,
    with_message_indexes,
    with_schema_id,
)
from ematix_flow.errors import BadMessages, UnfitValue
from tests.services.kafka import KafkaServer
from tests.stream.conftest import Topic

FIRST = """
syntax = "proto3"; package shop;
message Order { int32 id = 1; string name = 2; }
"""
SECOND = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other { int32 x = 1; }
message Order {
  enum Kind { WEB = 0; SHOP = 1; }
  message Home { string city = 1; }
  int64 id = 1; string name = 2; Kind kind = 3; uint64 big = 4; repeated string tags = 5; map<string, int32> counts = 6;
  google.protobuf.Timestamp at = 7; google.protobuf.Int32Value maybe = 8; optional double price = 9; Home home = 10;
  bytes raw = 11;
}
"""
AT = datetime(2026, 3, 1, 6, 0, 0, 123456, tzinfo=timezone.utc)


def test_versions_of_a_schema_become_one_table(topic: Topic, pg_url: str, schema_registry_url: str) -> None:
    client = RegistryClient(Registry("r", schema_registry_url))
    first, second = (client.register(f"{topic.name}-value", text, "PROTOBUF") for text in (FIRST, SECOND))
    order = compiled(first).message("shop.Order")(id=1, name="a")
    newer: Any = compiled(second).message("shop.Order")(
        id=2**40, kind=1, big=2**64 - 1, tags=["x", "y"], counts={"k": 3}, price=0.0, raw=b"\x00\xff"
    )
    newer.at.FromDatetime(AT)
    newer.maybe.value = 7
    newer.home.city = "Rome"
    good = [
        with_schema_id(first.id, with_message_indexes([0], order.SerializeToString())),
        with_schema_id(second.id, with_message_indexes([1], newer.SerializeToString())),
    ]
    other = with_schema_id(second.id, with_message_indexes([0], b"\x08\x01"))
    bad = [b"{}", b"\x00\x00\x00\x00", with_schema_id(first.id, b"\x00\x0a\xff"), with_schema_id(99999, b"\x00")]
    topic.send([*good, *bad, other])

    def consume(**options: Any) -> None:
        run_streaming_pipeline(
            name=f"proto_{topic.name}",
            source=topic.connection(payload_format="protobuf", schema_registry_url=schema_registry_url),
            source_query=topic.name,
            target=PostgresConnection(name="warehouse", url=pg_url),
            target_table=("public", "orders"),
            once=True,
            **options,
        )

    with pytest.raises(BadMessages, match="5 messages"):
        consume()
    consume(transform_on_error="drop")
    with psycopg.connect(pg_url) as db:
        found = db.execute(
            "SELECT id, name, kind, big, tags, counts, at, maybe, price, home->>'city', raw "
            "FROM public.orders ORDER BY id"
        ).fetchall()
    assert found == [
        (1, "a", "WEB", Decimal(0), [], {}, None, None, None, None, b""),
        (2**40, "", "SHOP", Decimal(2**64 - 1), ["x", "y"], {"k": 3}, AT, 7, 0.0, "Rome", b"\x00\xff"),
    ]


def test_rows_are_written_with_the_schema_of_their_topic(
    topic: Topic, kafka_server: KafkaServer, schema_registry_url: str
) -> None:
    out = kafka_server.create_topic(f"out-{uuid.uuid4().hex[:8]}", partitions=1)
    text = SECOND.replace("message Other { int32 x = 1; }", "")
    known = RegistryClient(Registry("r", schema_registry_url)).register(f"{out}-value", text, "PROTOBUF")
    topic.send(
        [{"id": 2**40, "kind": "SHOP", "tags": ["x"], "at": "2026-03-01T06:00:00.123456Z", "home": {"city": "R"}}]
    )
    topic.send([{"id": 2, "price": 0.0}])
    run_streaming_pipeline(
        name=f"out_{out}",
        source=topic.connection(),
        source_query=topic.name,
        target=topic.connection(payload_format="protobuf", schema_registry_url=schema_registry_url),
        target_topic=out,
        transform_sql="SELECT id, kind, tags, CAST(at AS timestamp) AS at, home, price FROM source",
        once=True,
    )
    framed = [schema_id_and_payload(message.value or b"") for message in kafka_server.messages(out)]
    assert [number for number, _ in framed] == [known.id] * 2
    order = compiled(known).message("shop.Order")
    found = sorted(
        (order.FromString(message_indexes_and_payload(body)[1]) for _, body in framed), key=lambda message: message.id
    )
    expected: Any = order(id=2**40, kind=1, tags=["x"], home={"city": "R"})
    expected.at.FromDatetime(AT)
    assert found == [order(id=2, price=0.0), expected]


@pytest.mark.parametrize("text", ["message {", 'syntax = "proto3"; import "missing.proto";'])
def test_a_schema_that_does_not_compile_says_so(text: str) -> None:
    with pytest.raises(UnfitValue, match="Schema 7 .* does not compile"):
        compiled(Schema(7, "PROTOBUF", text))
