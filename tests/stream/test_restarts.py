"""A broker and a database that crash and come back under a running stream: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.services import kafka, postgres
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer
from tests.stream.conftest import Topic


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    home = tmp_path / "kafka"
    try:
        yield kafka.start(home)
    finally:
        kafka.stop(home)


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # the database's own user must pass
    home = tmp_path / "postgres"
    try:
        yield postgres.start(home)
    finally:
        postgres.stop(home)


def test_a_stream_outlives_crashes_of_its_broker_and_its_database(
    own_kafka: KafkaServer, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    topic, url = Topic(own_kafka), own_postgres.url
    config = tmp_path / "stream.toml"
    config.write_text(
        f'pipeline_name = "restarts"\nsource_query = "{topic.name}"\nidle_pause_ms = 100\n'
        f'delivery = "exactly_once"\n[source]\nkind = "kafka"\nbootstrap_servers = "{own_kafka.address}"\n'
        f'group_id = "group-{topic.name}"\n[target]\nkind = "postgres"\nurl = "${{TARGET_URL}}"\n'
        '[target.table]\nschema = "public"\nname = "events"\n'
    )
    log = tmp_path / "stream.log"
    with log.open("w") as output:
        stream = subprocess.Popen(
            [sys.executable, "-m", "ematix_flow", "consume", str(config)]
            + ["--restart-on-error", "--initial-backoff-ms", "200", "--max-backoff-ms", "2000"],
            env={**os.environ, "TARGET_URL": url, "NO_COLOR": "1"},
            stdout=output,
            stderr=output,
        )

    def wait_for(number: int) -> None:
        deadline = time.monotonic() + 180
        while rows(url) != list(range(number)):
            assert stream.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, (len(rows(url)), number, log.read_text()[-4000:])
            time.sleep(0.2)

    try:
        topic.send({"id": n} for n in range(100))
        wait_for(100)
        topic.send({"id": n} for n in range(100, 3000))
        postgres.restart(tmp_path / "postgres")
        topic.send({"id": n} for n in range(3000, 4000))
        wait_for(4000)
        topic.send({"id": n} for n in range(4000, 6000))
        kafka.restart(tmp_path / "kafka", own_kafka)
        topic.send({"id": n} for n in range(6000, 7000))
        wait_for(7000)
        stream.send_signal(signal.SIGTERM)
        assert stream.wait(120) == 0, log.read_text()[-4000:]
    finally:
        stream.kill()
    summary = json.loads(log.read_text().strip().splitlines()[-1])
    assert summary["shutdown_triggered"] is True
    assert rows(url) == list(range(7000))


def rows(url: str) -> list[int]:
    try:
        with psycopg.connect(url) as db:
            return [row[0] for row in db.execute("SELECT id FROM public.events ORDER BY id").fetchall()]
    except psycopg.Error:
        return []
