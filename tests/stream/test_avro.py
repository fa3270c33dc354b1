"""Avro from Kafka and to it: many schemas in one batch, types that stay what they are, and bad messages."""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import fastavro
import psycopg
import pytest

from ematix_flow import PostgresConnection, SchemaRegistryConnection, run_streaming_pipeline
from ematix_flow.backends.schema_registry import (
    Registry,
    RegistryClient,
    glue_version_and_payload,
    schema_id_and_payload,
    with_glue_version,
    with_schema_id,
)
from ematix_flow.connections import GlueSchemaRegistryConnection
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.errors import BadMessages, BrokerRefused, ConnectionFailed
from ematix_flow.run.stream_watch import StreamWatch
from ematix_flow.run.streams import run_stream
from ematix_flow.run.supervisor import RestartPolicy
from tests.services import schema_registry
from tests.services.kafka import KafkaServer
from tests.services.moto import S3Server
from tests.services.weak_line import weak_line
from tests.stream.conftest import Topic

ADDRESS = {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
FIRST = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "old", "type": "string"},
    ],
}
SECOND = {
    **FIRST,
    "fields": [
        {"name": "id", "type": "long"},
        *FIRST["fields"][1:3],  # type: ignore[index]
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["web", "shop"]}, "default": "shop"},
        {"name": "home", "type": ["null", ADDRESS], "default": None},
        {"name": "raw", "type": ["null", "bytes"]},
    ],
}
DAY, AT = date(2026, 3, 1), datetime(2026, 3, 1, 6, 0, 0, 123456, tzinfo=timezone.utc)


def encoded(schema: Any, row: Any) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return body.getvalue()


def consume(topic: Topic, url: str, registry: Any, **options: Any) -> dict[str, Any]:
    return run_streaming_pipeline(
        **{
            "name": f"avro_{topic.name}",
            "source": topic.connection(payload_format="avro", **registry),
            "source_query": topic.name,
            "target": PostgresConnection(name="warehouse", url=url),
            "target_table": ("public", "orders"),
            "once": True,
            **options,
        }
    )


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(sql).fetchall()


def test_messages_of_several_schemas_become_one_table_with_their_types(topic: Topic, pg_url: str) -> None:
    with schema_registry.own_server(user="ann", password="pw", base="/apis/ccompat/v7") as address:
        client = RegistryClient(Registry("r", address, ("ann", "pw")))
        subject = f"{topic.name}-value"
        first, second = (client.register(subject, json.dumps(schema)).id for schema in (FIRST, SECOND))
        old = {"id": 1, "price": Decimal("9.90"), "day": DAY, "old": "x"}
        new = {"id": 2**40, "price": Decimal("0.01"), "day": DAY, "at": AT, "kind": "web", "raw": b"\x00\xff"}
        good = [
            with_schema_id(first, encoded(FIRST, old)),
            with_schema_id(second, encoded(SECOND, {**new, "home": {"city": "Rome"}})),
        ]
        bad = [b"{}", with_schema_id(first, b"\x02"), with_schema_id(9999, b"abc"), b""]
        topic.send([*good, *bad])
        registry = {
            "schema_registry": SchemaRegistryConnection(
                name="sr", url=address, basic_auth_user="ann", basic_auth_password="pw"
            )
        }
        with pytest.raises(BadMessages, match="4 messages .* Avro with the id of its schema"):
            consume(topic, pg_url, registry)
        consume(topic, pg_url, registry, transform_on_error="drop")
    found = rows(pg_url, "SELECT id, price, day, at, kind, raw, old, home->>'city' FROM public.orders ORDER BY id")
    assert found == [
        (1, Decimal("9.90"), DAY, None, "shop", None, "x", None),
        (2**40, Decimal("0.01"), DAY, AT, "web", b"\x00\xff", None, "Rome"),
    ]
    topic.send([with_schema_id(second, encoded(SECOND, {**new, "id": 3}))])
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        consume(topic, pg_url, registry)


def test_messages_wait_for_a_registry_that_is_away_and_none_becomes_a_dead_letter(
    topic: Topic, pg_url: str, schema_registry_url: str
) -> None:
    def message(number: int, schema: Any, known: int) -> bytes:
        return with_schema_id(known, encoded(schema, {"id": number, "price": Decimal(1), "day": DAY, "old": "x"}))

    client = RegistryClient(Registry("r", schema_registry_url))
    later = {**FIRST, "fields": FIRST["fields"][::-1]}  # type: ignore[index]
    old, new = (client.register(f"{topic.name}-value", json.dumps(schema)).id for schema in (FIRST, later))
    at = urlsplit(schema_registry_url)
    with weak_line(str(at.hostname), int(at.port or 0)) as line:
        options = {
            "name": f"avro_{topic.name}",
            "source": topic.connection(payload_format="avro", schema_registry_url=f"http://127.0.0.1:{line.port}"),
            "source_query": topic.name,
            "target": PostgresConnection(name="warehouse", url=pg_url),
            "target_table": ("public", "orders"),
            "transform_on_error": "dlq",
            "delivery": "exactly_once",
            "idle_pause_ms": 50,
        }
        spec = stream_spec(options, user_location("avro"))
        line.cut()
        topic.send(message(number, FIRST, old) for number in range(5))
        with pytest.raises(ConnectionFailed, match="schema registry at .* cannot be reached"):
            run_stream(spec, once=True)
        watch, told, failed = StreamWatch(spec.name), threading.Event(), []
        patient = RestartPolicy(on_error=True, initial_backoff_ms=100, max_backoff_ms=500)

        def run() -> None:
            try:
                run_stream(spec, stop=told, restarts=patient, watch=watch)
            except Exception as exc:
                failed.append(exc)

        running = threading.Thread(target=run)
        running.start()

        def until(is_so: Any) -> None:
            deadline = time.monotonic() + 120
            while not is_so():
                assert running.is_alive() and time.monotonic() < deadline, failed
                time.sleep(0.1)

        def ids() -> list[int]:
            if rows(pg_url, "SELECT to_regclass('public.orders')") == [(None,)]:
                return []
            return [row[0] for row in rows(pg_url, "SELECT id FROM public.orders ORDER BY id")]

        try:
            until(lambda: watch.view().restarts >= 2)  # it began without its registry
            line.mend()
            until(lambda: ids() == list(range(5)))
            line.cut()
            topic.send(message(number, FIRST, old) for number in range(5, 8))
            until(lambda: ids() == list(range(8)))  # what is known of schemas is not asked for again
            before = watch.view().restarts
            topic.send([message(8, FIRST, old), message(9, later, new), message(10, FIRST, old)])
            until(lambda: watch.view().restarts >= before + 2)
            line.mend()
            until(lambda: ids() == list(range(11)))
        finally:
            told.set()
            running.join(120)
    assert not failed
    counts = watch.view().counts
    assert (counts["dead_letters"], counts["rows_dropped"], counts["rows_written"]) == (0, 0, 11)


def test_rows_are_written_with_the_schema_of_their_topic(
    topic: Topic, kafka_server: KafkaServer, schema_registry_url: str
) -> None:
    out = kafka_server.create_topic(f"out-{uuid.uuid4().hex[:8]}", partitions=1)
    topic.send([{"id": 1, "price": 2.5, "home": {"city": "Rome"}}, {"id": 2}])

    def forward(name: str, **fields: Any) -> None:
        run_streaming_pipeline(
            name=name,
            source=topic.connection(group_id=name),
            source_query=topic.name,
            target=topic.connection(payload_format="avro", schema_registry_url=schema_registry_url, **fields),
            target_topic=out,
            transform_sql="SELECT id, CAST(price AS decimal(9, 2)) AS price, home FROM source",
            once=True,
        )

    with pytest.raises(BrokerRefused, match=f"has no subject '{out}-value'"):
        forward("refused")
    schema = {
        **FIRST,
        "fields": [
            {"name": "id", "type": "int"},
            {"name": "price", "type": ["null", FIRST["fields"][1]["type"]]},  # type: ignore[index]
            {"name": "home", "type": ["null", ADDRESS]},
            {"name": "note", "type": "string", "default": "-"},
        ],
    }
    client = RegistryClient(Registry("r", schema_registry_url))
    known = client.register(f"{out}-value", json.dumps(schema))
    forward("encoded")
    messages = [message.value or b"" for message in kafka_server.messages(out)]
    assert [schema_id_and_payload(message)[0] for message in messages] == [known.id] * 2
    read = fastavro.parse_schema(schema)
    found = [fastavro.schemaless_reader(io.BytesIO(schema_id_and_payload(m)[1]), read) for m in messages]
    assert sorted(found, key=lambda row: row["id"]) == [
        {"id": 1, "price": Decimal("2.50"), "home": {"city": "Rome"}, "note": "-"},
        {"id": 2, "price": None, "home": None, "note": "-"},
    ]
    forward("registered", auto_register_schemas=True)
    fields = json.loads(RegistryClient(Registry("r", schema_registry_url)).latest(f"{out}-value").text)["fields"]
    assert [field["name"] for field in fields] == ["id", "price", "home"]


def test_both_framings_of_glue_are_read_and_amazons_own_is_written(
    topic: Topic, kafka_server: KafkaServer, pg_url: str, moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_server.endpoint)
    key, secret = moto_server.loader
    registry = GlueSchemaRegistryConnection(
        name="glue",
        registry_name=f"r-{topic.name}",
        region="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
    )
    glue = moto_server.glue()
    glue.create_registry(RegistryName=f"r-{topic.name}")
    made = glue.create_schema(
        RegistryId={"RegistryName": f"r-{topic.name}"},
        SchemaName=topic.name,
        DataFormat="AVRO",
        Compatibility="NONE",
        SchemaDefinition=json.dumps(FIRST),
    )
    version = uuid.UUID(made["SchemaVersionId"])
    bodies = [encoded(FIRST, {"id": n, "price": Decimal(n), "day": DAY, "old": "x" * 50}) for n in range(4)]
    topic.send(
        with_glue_version(version, body, compress=number % 2 == 0, aws_order=number < 2)
        for number, body in enumerate(bodies)
    )
    consume(topic, pg_url, {"schema_registry": registry})
    assert rows(pg_url, "SELECT id, price FROM public.orders ORDER BY id") == [(n, Decimal(n)) for n in range(4)]
    out = kafka_server.create_topic(f"out-{uuid.uuid4().hex[:8]}", partitions=1)
    run_streaming_pipeline(
        name=out,
        source=topic.connection(payload_format="avro", schema_registry=registry, group_id=out),
        source_query=topic.name,
        target=topic.connection(payload_format="avro", schema_registry=registry, auto_register_schemas=True),
        target_topic=out,
        once=True,
    )
    told = glue.get_schema_version(
        SchemaId={"RegistryName": registry.registry_name, "SchemaName": out},
        SchemaVersionNumber={"LatestVersion": True},
    )
    read = fastavro.parse_schema(json.loads(told["SchemaDefinition"]))
    found = [glue_version_and_payload(message.value or b"") for message in kafka_server.messages(out)]
    assert {(str(one.schema_version), one.is_aws_order) for one in found} == {(told["SchemaVersionId"], True)}
    numbers = [fastavro.schemaless_reader(io.BytesIO(one.payload), read)["id"] for one in found]
    assert sorted(numbers) == [0, 1, 2, 3]
