"""Debezium for a test: Kafka Connect with the connector for PostgreSQL, put together from the jars of their releases.

It reads one database and sends its changes to topics `PREFIX.SCHEMA.TABLE`. Jars come from a Maven repository, the way
connector jars do, and stay in the cache of the tests.

    python -m tests.services.debezium fetch        bring the jars into the cache; exit code 1 when they cannot be had
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from functools import partial
from pathlib import Path

from ematix_flow.backends import jars
from ematix_flow.backends.java import find_java
from ematix_flow.errors import FlowError
from tests.services.background import answers, start_program, stop_program
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer, _free_port

VERSION = "3.4.0.Final"
PATIENCE = 240.0
JARS = (
    "com.fasterxml.jackson.core:jackson-annotations:2.19.0",
    "com.fasterxml.jackson.core:jackson-core:2.19.0",
    "com.fasterxml.jackson.core:jackson-databind:2.19.0",
    "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.19.0",
    "com.fasterxml.jackson.datatype:jackson-datatype-jsr310:2.19.0",
    "com.fasterxml.jackson.jakarta.rs:jackson-jakarta-rs-base:2.19.0",
    "com.fasterxml.jackson.jakarta.rs:jackson-jakarta-rs-json-provider:2.19.0",
    "com.fasterxml.jackson.module:jackson-module-blackbird:2.19.0",
    "com.fasterxml.jackson.module:jackson-module-jakarta-xmlbind-annotations:2.19.0",
    "com.github.luben:zstd-jni:1.5.6-10",
    "com.google.protobuf:protobuf-java:3.25.5",
    "com.sun.activation:jakarta.activation:2.0.1",
    "io.debezium:debezium-api:3.4.0.Final",
    "io.debezium:debezium-common:3.4.0.Final",
    "io.debezium:debezium-connector-postgres:3.4.0.Final",
    "io.debezium:debezium-core:3.4.0.Final",
    "io.debezium:debezium-openlineage-api:3.4.0.Final",
    "io.github.classgraph:classgraph:4.8.179",
    "io.swagger.core.v3:swagger-annotations:2.2.25",
    "jakarta.activation:jakarta.activation-api:2.1.0",
    "jakarta.annotation:jakarta.annotation-api:2.1.1",
    "jakarta.inject:jakarta.inject-api:2.0.1",
    "jakarta.servlet:jakarta.servlet-api:6.0.0",
    "jakarta.validation:jakarta.validation-api:3.0.2",
    "jakarta.ws.rs:jakarta.ws.rs-api:3.1.0",
    "jakarta.xml.bind:jakarta.xml.bind-api:3.0.1",
    "javax.activation:activation:1.1.1",
    "javax.activation:javax.activation-api:1.2.0",
    "javax.xml.bind:jaxb-api:2.3.1",
    "org.apache.commons:commons-lang3:3.12.0",
    "org.apache.kafka:connect-api:4.1.1",
    "org.apache.kafka:connect-json:4.1.1",
    "org.apache.kafka:connect-runtime:4.1.1",
    "org.apache.kafka:connect-transforms:4.1.1",
    "org.apache.kafka:kafka-clients:4.1.1",
    "org.apache.maven:maven-artifact:3.9.6",
    "org.bitbucket.b_c:jose4j:0.9.6",
    "org.checkerframework:checker-qual:3.49.3",
    "org.codehaus.plexus:plexus-utils:3.5.1",
    "org.eclipse.jetty.ee10:jetty-ee10-servlet:12.0.22",
    "org.eclipse.jetty.ee10:jetty-ee10-servlets:12.0.22",
    "org.eclipse.jetty:jetty-alpn-client:12.0.22",
    "org.eclipse.jetty:jetty-client:12.0.22",
    "org.eclipse.jetty:jetty-http:12.0.22",
    "org.eclipse.jetty:jetty-io:12.0.22",
    "org.eclipse.jetty:jetty-security:12.0.22",
    "org.eclipse.jetty:jetty-server:12.0.22",
    "org.eclipse.jetty:jetty-session:12.0.22",
    "org.eclipse.jetty:jetty-util:12.0.22",
    "org.glassfish.hk2.external:aopalliance-repackaged:3.0.6",
    "org.glassfish.hk2:hk2-api:3.0.6",
    "org.glassfish.hk2:hk2-locator:3.0.6",
    "org.glassfish.hk2:hk2-utils:3.0.6",
    "org.glassfish.hk2:osgi-resource-locator:1.0.3",
    "org.glassfish.jersey.containers:jersey-container-servlet-core:3.1.10",
    "org.glassfish.jersey.containers:jersey-container-servlet:3.1.10",
    "org.glassfish.jersey.core:jersey-client:3.1.10",
    "org.glassfish.jersey.core:jersey-common:3.1.10",
    "org.glassfish.jersey.core:jersey-server:3.1.10",
    "org.glassfish.jersey.inject:jersey-hk2:3.1.10",
    "org.javassist:javassist:3.30.2-GA",
    "org.lz4:lz4-java:1.8.0",
    "org.postgresql:postgresql:42.7.7",
    "org.slf4j:slf4j-api:1.7.36",
    "org.slf4j:slf4j-simple:1.7.36",
    "org.xerial.snappy:snappy-java:1.1.10.7",
)
_WORKER = """
bootstrap.servers={broker}
listeners=http://127.0.0.1:{port}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable={schemas}
value.converter.schemas.enable={schemas}
offset.storage.file.filename={home}/offsets
offset.flush.interval.ms=500
plugin.discovery=hybrid_warn
"""
_CONNECTOR = """
name=source
connector.class=io.debezium.connector.postgresql.PostgresConnector
plugin.name=pgoutput
database.hostname={host}
database.port={pg_port}
database.user={user}
database.password={password}
database.dbname={database}
topic.prefix={prefix}
slot.name={prefix}
publication.name={prefix}
publication.autocreate.mode=filtered
table.include.list={tables}
poll.interval.ms=50
"""


def fetch() -> Path:
    """The folder with the jars; what is missing is fetched."""
    cache = Path(os.environ.get("EMATIX_TEST_CACHE") or jars.cache_root())
    folder = cache / "debezium" / VERSION
    for coordinate in JARS:
        jars._fetched(jars.Jar("debezium", coordinate), folder, None)
    return folder


def start(
    home: Path,
    broker: KafkaServer,
    server: PostgresServer,
    database: str,
    *,
    prefix: str,
    tables: str,
    schemas: bool,
    more: str = "",
) -> None:
    """Start it in `home`, with topics made beforehand. Whoever calls it sees to `stop`.

    Args:
        schemas: Whether every message carries its schema.
        more: Settings of the connector, a line each.
    """
    home.mkdir()
    port = _free_port()
    facts = {
        **{"broker": broker.address, "port": port, "schemas": str(schemas).lower(), "home": home},
        **{"host": server.host, "pg_port": server.port, "user": server.user, "password": server.password},
        **{"database": database, "prefix": prefix, "tables": tables},
    }
    (home / "worker.properties").write_text(_WORKER.format(**facts))
    (home / "source.properties").write_text(_CONNECTOR.format(**facts) + more)
    java = [str(find_java().path / "bin" / "java"), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{fetch()}/*"]
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    pid = start_program(home, [*java, main, str(home / "worker.properties"), str(home / "source.properties")])
    if not answers(pid, partial(_runs, port), PATIENCE):
        raise RuntimeError(f"Debezium did not start:\n{(home / 'log').read_text()[-4000:]}")


def stop(home: Path) -> None:
    """Stop what runs in `home`."""
    stop_program(home)


def _runs(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/connectors/source/status", timeout=5) as answer:
            tasks = json.load(answer)["tasks"]
    except OSError:
        return False
    return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)


if __name__ == "__main__":
    try:
        print(fetch())
    except FlowError as exc:
        print(exc.message, file=sys.stderr)
        raise SystemExit(1) from None
