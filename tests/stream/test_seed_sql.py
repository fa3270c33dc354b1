"""The documented streams with SQL, run as they are written: a lookup, nested JSON, a function and an aggregate."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import ematix_flow
from ematix_flow import KafkaConnection, Lookup, ObjectStoreLocalConnection, PostgresConnection, run_streaming_pipeline
from tests.docs.seed_examples import example
from tests.services.kafka import KafkaServer

SNAPSHOTS = "CREATE TABLE marketdata.option_chain_snapshots (minute TIMESTAMPTZ NOT NULL, strikes_json JSONB NOT NULL)"
OPTIONS = (
    "ts,underlying,days_to_expiry,strike,bid,ask,spot,vol,rate,expiry\n"
    "2026-03-01T06:00:10,SPXW,0,4500,1.25,1.30,4500,0.2,0.01,0.5\n"
    "2026-03-01T06:00:40,SPXW,0,4400,9,10,4500,0.2,0.01,0.5\n"
)


def run_documented(name: str, monkeypatch: pytest.MonkeyPatch, **names: Any) -> None:
    """One example as it is written, with what it takes for granted; its stream reads what is there and ends."""
    once = functools.partial(run_streaming_pipeline, once=True)
    monkeypatch.setattr(ematix_flow, "run_streaming_pipeline", once)
    exec(
        compile(example(f"readme-0.3/{name}"), name, "exec"),
        {"__name__": "documented", "Lookup": Lookup, "run_streaming_pipeline": once, **names},
    )


def found(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(sql).fetchall()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["stream-json.python", "stream-udf.python"])
def test_rows_become_json_with_and_without_a_function(
    name: str, tmp_path: Path, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bucket" / "raw" / "options"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text(OPTIONS)
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA marketdata")
        db.execute(SNAPSHOTS)
    s3 = ObjectStoreLocalConnection(name="s3", path=str(tmp_path / "bucket"), format="csv")
    run_documented(name, monkeypatch, s3=s3, warehouse=PostgresConnection(name="warehouse", url=pg_url))
    [(minute, strikes)] = found(pg_url, "SELECT * FROM marketdata.option_chain_snapshots")
    assert minute.minute == 0
    assert {row["strike"]: row["bid"] for row in strikes} == {4500: 1.25, 4400: 9}
    assert ("delta" in strikes[0]) == (name == "stream-udf.python")


def sent(server: KafkaServer, topic: str, *messages: bytes) -> KafkaConnection:
    from confluent_kafka import Producer

    server.create_topic(topic, partitions=1)
    producer = Producer({"bootstrap.servers": server.address, "log_level": 0})
    for message in messages:
        producer.produce(topic, value=message)
    assert producer.flush(30) == 0
    return KafkaConnection(name=topic, bootstrap_servers=server.address, group_id=f"seeds-{uuid4().hex[:8]}")


def test_a_lookup_is_joined(kafka_server: KafkaServer, pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("CREATE TABLE dim_users AS SELECT 1::bigint AS user_id, 'gold' AS tier")
    kafka = sent(kafka_server, "events", b'{"user_id": 1}', b'{"user_id": 2}')
    warehouse = PostgresConnection(name="warehouse", url=pg_url)
    run_documented("stream-lookup.python", monkeypatch, kafka_prod=kafka, warehouse=warehouse)
    assert found(pg_url, "SELECT user_id, tier FROM public.events_clean ORDER BY 1") == [(1, "gold"), (2, None)]


def test_an_aggregate_is_made_per_minute(
    kafka_server: KafkaServer, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA marketdata")
        db.execute("CREATE TABLE marketdata.vwap_per_minute (minute timestamptz, vwap double precision)")
    row = b'{"ts": "2026-03-01T06:00:%02d", "price": %d, "qty": %d}'
    kafka = sent(kafka_server, "quotes", row % (10, 10, 2), row % (50, 13, 1))
    warehouse = PostgresConnection(name="warehouse", url=pg_url)
    run_documented("stream-udaf.python", monkeypatch, kafka_quotes=kafka, warehouse=warehouse)
    assert found(pg_url, "SELECT vwap FROM marketdata.vwap_per_minute") == [(11.0,)]
