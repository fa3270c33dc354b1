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

import pika
import psycopg
import pytest

from tests.services import kafka, postgres, rabbitmq
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer
from tests.services.rabbitmq import RabbitMQServer
from tests.services.weak_line import weak_line
from tests.stream.conftest import Topic
from tests.stream.test_queues import MAKERS, messages


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    home = tmp_path / "kafka"
    try:
        yield kafka.start(home)
    finally:
        kafka.stop(home)


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    home = tmp_path / "postgres"
    try:
        yield postgres.start(home)
    finally:
        postgres.stop(home)


@pytest.fixture
def own_rabbitmq(tmp_path: Path) -> Iterator[RabbitMQServer]:
    home = tmp_path / "rabbitmq"
    try:
        yield rabbitmq.start(home)
    finally:
        rabbitmq.stop(home)


class Running:
    """A `flow consume` of its own that begins again when something fails."""

    def __init__(self, folder: Path, source: str, url: str) -> None:
        self.url, self.log, config = url, folder / "stream.log", folder / "stream.toml"
        config.write_text(
            f'pipeline_name = "restarts"\nidle_pause_ms = 100\n{source}'
            '[target]\nkind = "postgres"\nurl = "${TARGET_URL}"\n[target.table]\nschema = "public"\nname = "events"\n'
        )
        with self.log.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ematix_flow", "consume", str(config)]
                + ["--restart-on-error", "--initial-backoff-ms", "200", "--max-backoff-ms", "2000"],
                env={**os.environ, "TARGET_URL": url, "NO_COLOR": "1"},
                stdout=output,
                stderr=output,
            )

    def wait_for(self, number: int) -> None:
        """Wait until exactly the rows 0 to `number` - 1 are there."""
        deadline = time.monotonic() + 180
        while rows(self.url) != list(range(number)):
            assert self.process.poll() is None, self._said()
            assert time.monotonic() < deadline, (len(rows(self.url)), number, self._said())
            time.sleep(0.2)

    def wait_for_words(self, words: str) -> None:
        """Wait until it has said something."""
        deadline = time.monotonic() + 120
        while words not in self.log.read_text():
            assert time.monotonic() < deadline, self._said()
            time.sleep(0.2)

    def end(self) -> None:
        """Ask it to end; it says what it did."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0, self._said()
        assert json.loads(self.log.read_text().strip().splitlines()[-1])["shutdown_triggered"] is True

    def _said(self) -> str:
        return self.log.read_text()[-4000:]


def test_a_stream_outlives_crashes_of_its_broker_and_its_database(
    own_kafka: KafkaServer, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    topic, url = Topic(own_kafka), own_postgres.url
    stream = Running(
        tmp_path,
        f'source_query = "{topic.name}"\ndelivery = "exactly_once"\n[source]\nkind = "kafka"\n'
        f'bootstrap_servers = "{own_kafka.address}"\ngroup_id = "group-{topic.name}"\n',
        url,
    )
    try:
        topic.send({"id": n} for n in range(100))
        stream.wait_for(100)
        topic.send({"id": n} for n in range(100, 3000))
        postgres.restart(tmp_path / "postgres")
        topic.send({"id": n} for n in range(3000, 4000))
        stream.wait_for(4000)
        topic.send({"id": n} for n in range(4000, 6000))
        kafka.restart(tmp_path / "kafka", own_kafka)
        topic.send({"id": n} for n in range(6000, 7000))
        stream.wait_for(7000)
        stream.end()
    finally:
        stream.process.kill()
    assert rows(url) == list(range(7000))


def test_a_stream_outlives_a_crash_of_its_queue(own_rabbitmq: RabbitMQServer, pg_url: str, tmp_path: Path) -> None:
    queue = own_rabbitmq.create_queue()
    stream = Running(
        tmp_path,
        f'source_query = "{queue}"\n[source]\nkind = "rabbitmq"\namqp_url = "{own_rabbitmq.url}"\n',
        pg_url,
    )

    def send(numbers: range) -> None:
        with own_rabbitmq.channel() as channel:
            channel.confirm_delivery()
            for n in numbers:
                lasting = pika.BasicProperties(delivery_mode=2, message_id=str(n))
                channel.basic_publish("", queue, json.dumps({"id": n}).encode(), lasting)

    try:
        send(range(100))
        stream.wait_for(100)
        send(range(100, 1500))
        rabbitmq.restart(tmp_path / "rabbitmq", own_rabbitmq)
        send(range(1500, 2000))
        stream.wait_for(2000)
        stream.end()
    finally:
        stream.process.kill()
    assert rows(pg_url) == list(range(2000))
    assert own_rabbitmq.ready(queue) == 0


@pytest.mark.parametrize("kind", ["pubsub", "kinesis"])
def test_a_stream_outlives_a_broker_that_goes_away_under_it(
    kind: str, request: pytest.FixtureRequest, pg_url: str, tmp_path: Path
) -> None:
    queue = MAKERS[kind](request)
    port = int(str(queue.fields["endpoint"]).rpartition(":")[2])
    # These servers keep everything in memory, and would come back empty: it is the way to them that breaks.
    with weak_line("127.0.0.1", port) as line:
        endpoint = str(queue.fields["endpoint"]).replace(f":{port}", f":{line.port}")
        fields = {**queue.fields, "endpoint": endpoint}
        delivery = 'delivery = "exactly_once"\n' if kind == "kinesis" else ""
        stream = Running(
            tmp_path,
            f'source_query = "{queue.query}"\n{delivery}[source]\n'
            + "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items()),
            pg_url,
        )
        try:
            queue.send(messages(range(100)))
            stream.wait_for(100)
            for first in range(100, 1500, 200):
                queue.send(messages(range(first, first + 200)))
                line.drop()  # while some are on their way, and others not acknowledged yet
            stream.wait_for(1500)
            line.cut()
            for first in range(1500, 2000, 250):
                queue.send(messages(range(first, first + 250)))
            stream.wait_for_words("is started again")
            line.mend()
            stream.wait_for(2000)
            stream.end()
        finally:
            stream.process.kill()
    assert rows(pg_url) == list(range(2000))
    if kind == "pubsub":
        assert queue.bodies() == []


def rows(url: str) -> list[int]:
    try:
        with psycopg.connect(url) as db:
            return [row[0] for row in db.execute("SELECT id FROM public.events ORDER BY id").fetchall()]
    except psycopg.Error:
        return []
