"""The one Kafka broker of a test run, put together from the jars of its release: KRaft, one node, no other program.

First the broker named by `EMATIX_TEST_KAFKA` (an address without login, allowed to create topics), else a fresh one on
free ports of 127.0.0.1, with nothing kept after the run. It creates no topics by itself; its second listener really
checks passwords, its third wants a certificate of the client. Jars come from a Maven repository, the way connector jars
do, and stay in the cache of the tests.

    python -m tests.services.kafka fetch           bring the jars into the cache; exit code 1 when they cannot be had
    python -m tests.services.kafka stop FOLDER     stop the broker of a test run
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ematix_flow.backends import jars
from ematix_flow.backends.java import find_java
from ematix_flow.errors import FlowError
from tests.services.background import answers, restart_program, start_program, stop_program
from tests.services.run_folder import RunFolder

VARIABLE = "EMATIX_TEST_KAFKA"
USER, PASSWORD = "alice", "alice-pw-4711"
SCRAM_USER, SCRAM_PASSWORD = "bob", "bob-pw-4712"
MAX_MESSAGE_BYTES = 1_000_000
PATIENCE = 180.0
VERSION = "4.1.1"
JARS = (
    "com.dynatrace.hash4j:hash4j:0.22.0",
    "com.fasterxml.jackson.core:jackson-annotations:2.19.0",
    "com.fasterxml.jackson.core:jackson-core:2.19.0",
    "com.fasterxml.jackson.core:jackson-databind:2.19.0",
    "com.fasterxml.jackson.dataformat:jackson-dataformat-csv:2.19.0",
    "com.fasterxml.jackson.dataformat:jackson-dataformat-yaml:2.19.0",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.19.0",
    "com.github.ben-manes.caffeine:caffeine:3.2.0",
    "com.github.luben:zstd-jni:1.5.6-10",
    "com.google.re2j:re2j:1.8",
    "com.typesafe.scala-logging:scala-logging_2.13:3.9.5",
    "com.yammer.metrics:metrics-core:2.2.0",
    "commons-beanutils:commons-beanutils:1.9.4",
    "commons-collections:commons-collections:3.2.2",
    "commons-digester:commons-digester:2.1",
    "commons-logging:commons-logging:1.3.2",
    "commons-validator:commons-validator:1.9.0",
    "net.sf.jopt-simple:jopt-simple:5.0.4",
    "net.sourceforge.argparse4j:argparse4j:0.7.0",
    "org.apache.kafka:kafka-clients:4.1.1",
    "org.apache.kafka:kafka-coordinator-common:4.1.1",
    "org.apache.kafka:kafka-group-coordinator-api:4.1.1",
    "org.apache.kafka:kafka-group-coordinator:4.1.1",
    "org.apache.kafka:kafka-metadata:4.1.1",
    "org.apache.kafka:kafka-raft:4.1.1",
    "org.apache.kafka:kafka-server-common:4.1.1",
    "org.apache.kafka:kafka-server:4.1.1",
    "org.apache.kafka:kafka-share-coordinator:4.1.1",
    "org.apache.kafka:kafka-storage-api:4.1.1",
    "org.apache.kafka:kafka-storage:4.1.1",
    "org.apache.kafka:kafka-tools-api:4.1.1",
    "org.apache.kafka:kafka-transaction-coordinator:4.1.1",
    "org.apache.kafka:kafka_2.13:4.1.1",
    "org.apache.logging.log4j:log4j-api:2.24.3",
    "org.apache.logging.log4j:log4j-core:2.24.3",
    "org.bitbucket.b_c:jose4j:0.9.6",
    "org.hdrhistogram:HdrHistogram:2.2.2",
    "org.jspecify:jspecify:1.0.0",
    "org.lz4:lz4-java:1.8.0",
    "org.pcollections:pcollections:4.0.2",
    "org.scala-lang:scala-library:2.13.16",
    "org.scala-lang:scala-reflect:2.13.16",
    "org.slf4j:slf4j-api:1.7.36",
    "org.slf4j:slf4j-simple:1.7.36",
    "org.xerial.snappy:snappy-java:1.1.10.7",
    "org.yaml:snakeyaml:2.4",
)
SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,CONTROLLER:PLAINTEXT
listener.name.tls.ssl.client.auth=required
listener.name.tls.ssl.keystore.type=PEM
listener.name.tls.ssl.keystore.location={certificates}/broker-all.pem
listener.name.tls.ssl.truststore.type=PEM
listener.name.tls.ssl.truststore.location={certificates}/ca.pem
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl.plain.sasl.jaas.config={module}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl.scram-sha-512.sasl.jaas.config={module}.scram.ScramLoginModule required;
log.dirs={data}
auto.create.topics.enable=false
num.partitions=2
message.max.bytes={max_message_bytes}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=2
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.hours=-1
"""


@dataclass(frozen=True)
class Message:
    """One message as a reader gets it."""

    key: bytes | None
    value: bytes | None
    partition: int


@dataclass(frozen=True)
class KafkaServer:
    """A running broker: `address` asks for no login, `sasl_address` for a password, `tls_address` for a certificate.

    `certificates` is the folder with `ca.pem`, `client.pem` and `client.key`.
    """

    address: str
    sasl_address: str
    tls_address: str = ""
    certificates: str = ""

    def create_topic(self, topic: str, *, partitions: int = 2, **config: str) -> str:
        """Make a topic; its name."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        made = admin.create_topics([NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)])
        made[topic].result(timeout=30)
        deadline = time.monotonic() + 30
        while topic not in admin.list_topics(timeout=10).topics:
            assert time.monotonic() < deadline, f"topic '{topic}' does not appear"
        return topic

    def topics(self) -> set[str]:
        """The names of all topics."""
        from confluent_kafka.admin import AdminClient

        return set(AdminClient({"bootstrap.servers": self.address}).list_topics(timeout=10).topics)

    def messages(self, topic: str, *, isolation: str = "read_committed") -> list[Message]:
        """All messages of a topic, partition after partition."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": f"reader-{uuid.uuid4().hex}",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
            found: list[Message] = []
            ended: set[int] = set()
            deadline = time.monotonic() + 30
            while len(ended) < len(partitions):
                assert time.monotonic() < deadline, f"topic '{topic}' has no end"
                for message in consumer.consume(1000, timeout=0.5):
                    error = message.error()
                    if error is None:
                        found.append(Message(message.key(), message.value(), message.partition()))
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        ended.add(message.partition())
            return sorted(found, key=lambda message: message.partition)
        finally:
            consumer.close()


def shared_server(folder: RunFolder) -> KafkaServer:
    """The one broker of this test run; the first caller starts it."""
    if outside := os.environ.get(VARIABLE):
        return KafkaServer(outside, outside)
    address = folder.path / "kafka.address"
    with folder.locked("kafka"):
        if not address.exists():
            folder.guard(__name__)
            started = start(folder.path / "kafka")
            address.write_text("\n".join(astuple(started)))
        return KafkaServer(*address.read_text().split("\n"))


def fetch() -> Path:
    """The folder with the broker's jars; what is missing is fetched."""
    cache = Path(os.environ.get("EMATIX_TEST_CACHE") or jars.cache_root())
    folder = cache / "kafka-broker" / VERSION
    for coordinate in JARS:
        jars._fetched(jars.Jar("kafka-broker", coordinate), folder, None)
    return folder


def start(home: Path) -> KafkaServer:
    """Start a broker in `home`. Whoever calls it sees to `stop`."""
    home.mkdir()
    java = [
        str(find_java().path / "bin" / "java"),
        "-Xms64m",
        "-Xmx384m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
    ]
    java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{fetch()}/*"]
    certificates = _make_certificates(home / "tls")
    for attempt in range(3):  # between finding free ports and taking them, somebody else may
        plain, sasl, tls, controller = _free_ports(4)
        settings, data = home / "server.properties", home / f"data-{attempt}"
        settings.write_text(
            SETTINGS.format(
                plain=plain,
                sasl=sasl,
                tls=tls,
                certificates=certificates,
                controller=controller,
                data=data,
                module="org.apache.kafka.common.security",
                user=USER,
                password=PASSWORD,
                max_message_bytes=MAX_MESSAGE_BYTES,
            )
        )
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").lstrip("-").ljust(22, "A")
        made = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
            + ["--add-scram", f"SCRAM-SHA-512=[name={SCRAM_USER},password={SCRAM_PASSWORD}]"],
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise RuntimeError(f"Kafka's storage could not be made:\n{(made.stdout + made.stderr)[-2000:]}")
        pid = start_program(home, [*java, "kafka.Kafka", str(settings)])
        server = KafkaServer(f"127.0.0.1:{plain}", f"127.0.0.1:{sasl}", f"127.0.0.1:{tls}", str(certificates))
        if answers(pid, partial(_is_up, server), PATIENCE):
            return server
    raise RuntimeError(f"Kafka did not start:\n{(home / 'log').read_text()[-2000:]}")


def _make_certificates(folder: Path) -> Path:
    """A certificate authority, and certificates of the broker and of one client."""
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(*new, "-x509", "-days", "30", "-subj", "/CN=test-ca", "-keyout", "ca.key", "-out", "ca.pem")
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("broker", "client"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
        openssl(*signed, "-days", "30", "-out", f"{name}.pem", "-extfile", "names")
    both = (folder / "broker.key").read_text() + (folder / "broker.pem").read_text()
    (folder / "broker-all.pem").write_text(both)
    return folder


def restart(home: Path, server: KafkaServer) -> None:
    """Let the broker in `home` crash and come back on its ports, with its topics."""
    restart_program(home, partial(_is_up, server), PATIENCE)


def stop(home: Path) -> None:
    """Stop the broker in `home`."""
    stop_program(home)


def _is_up(server: KafkaServer) -> bool:
    """Whether the broker takes part in its own cluster."""
    return all(_listens(address) for address in (server.address, server.sasl_address)) and _has_broker(server)


def _listens(address: str) -> bool:
    host, _, port = address.partition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
        return True
    return False


def _has_broker(server: KafkaServer) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    with contextlib.suppress(KafkaException):
        metadata: Any = AdminClient({"bootstrap.servers": server.address, "log_level": 0}).list_topics(timeout=2)
        return bool(metadata.brokers)
    return False


def _free_ports(count: int) -> Sequence[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """The address of something that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["stop"]:
        stop(Path(sys.argv[2]) / "kafka")
    else:
        try:
            print(fetch())
        except FlowError as missing:
            sys.exit(str(missing))
