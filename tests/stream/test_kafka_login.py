"""Kafka clusters that ask who is there: Spark reads them with the same login as everything else."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from ematix_flow import KafkaConnection, PostgresConnection, run_streaming_pipeline
from ematix_flow.backends.kafka import KafkaBackend
from ematix_flow.backends.kafka_client import cluster_of
from ematix_flow.backends.kafka_stream import java_settings
from ematix_flow.errors import ConnectionFailed
from tests.services.kafka import PASSWORD, SCRAM_PASSWORD, SCRAM_USER, USER
from tests.stream.conftest import Topic


def login(topic: Topic, way: str) -> dict[str, Any]:
    server, passed = topic.server, {"security_protocol": "SASL_PLAINTEXT"}
    if way == "plain":
        fields = {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
        return {"bootstrap_servers": server.sasl_address, **passed, **fields}
    if way == "scram":
        fields = {"sasl_scram_username": SCRAM_USER, "sasl_scram_password": SCRAM_PASSWORD}
        return {"bootstrap_servers": server.sasl_address, "sasl_scram_mechanism": "sha-512", **passed, **fields}
    folder = server.certificates
    files = {"tls_ca_path": f"{folder}/ca.pem", "tls_cert_path": f"{folder}/client.pem"}
    return {"bootstrap_servers": server.tls_address, "tls_key_path": f"{folder}/client.key", **files}


def consume(topic: Topic, url: str, **fields: Any) -> None:
    run_streaming_pipeline(
        name=f"login_{topic.name}",
        source=topic.connection(**fields),
        source_query=topic.name,
        target=PostgresConnection(name="pg", url=url),
        target_table=("public", "events"),
        once=True,
    )


@pytest.mark.parametrize("way", ["plain", "scram", "certificate"])
def test_a_topic_is_read_with_a_login(topic: Topic, pg_url: str, way: str) -> None:
    topic.send({"id": n} for n in range(3))
    consume(topic, pg_url, **login(topic, way))
    with psycopg.connect(pg_url) as db:
        assert db.execute("SELECT count(*) FROM public.events").fetchone() == (3,)
    assert topic.committed() == 3


def test_a_wrong_password_is_one_error_that_does_not_hold_it(topic: Topic, pg_url: str) -> None:
    wrong = "tulip-zephyr-90210"
    fields = {**login(topic, "plain"), "sasl_plain_password": wrong}
    with pytest.raises(ConnectionFailed, match="password is wrong") as refused:
        consume(topic, pg_url, **fields)
    assert wrong not in str(refused.value)


def test_java_logs_in_as_python_does() -> None:
    given = {"name": "k", "bootstrap_servers": "h:1"}

    def told(**login: Any) -> dict[str, str]:
        settings = java_settings(cluster_of(KafkaConnection(**given, **login)))
        return {key.removeprefix("kafka."): value for key, value in settings.items()}

    amazon = told(msk_iam_region="eu-west-1")
    assert (amazon["security.protocol"], amazon["sasl.mechanism"]) == ("SASL_SSL", "AWS_MSK_IAM")
    assert amazon["sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    assert amazon["sasl.client.callback.handler.class"] == "software.amazon.msk.auth.iam.IAMClientCallbackHandler"
    scram = told(sasl_scram_username="a", sasl_scram_password='p"w\\', sasl_scram_mechanism="sha-256")
    assert (scram["security.protocol"], scram["sasl.mechanism"]) == ("SASL_SSL", "SCRAM-SHA-256")
    assert scram["sasl.jaas.config"].endswith('username="a" password="p\\"w\\\\";')
    plain = told(sasl_plain_username="a", sasl_plain_password="b", security_protocol="SASL_PLAINTEXT")
    assert (plain["security.protocol"], plain["sasl.mechanism"]) == ("SASL_PLAINTEXT", "PLAIN")
    needs = KafkaBackend(KafkaConnection(**given, msk_iam_region="eu-west-1")).stream_needs
    assert "msk-iam" in needs.jars
