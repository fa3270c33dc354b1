"""A REST catalog for Iceberg, and a door before it that wants a login.

The catalog is the project's own servlet in a Jetty, on a free port of 127.0.0.1, ended with its tests. Its jars come
from a Maven repository, the way connector jars do, and stay in the cache of the tests.
"""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ematix_flow.backends import jars
from ematix_flow.backends.jars import Jar
from ematix_flow.backends.java import find_java

ICEBERG, JETTY = "1.11.0", "12.1.5"
JARS = (
    f"org.apache.iceberg:iceberg-api:{ICEBERG}",
    f"org.apache.iceberg:iceberg-bundled-guava:{ICEBERG}",
    f"org.apache.iceberg:iceberg-common:{ICEBERG}",
    f"org.apache.iceberg:iceberg-core:{ICEBERG}",
    "com.github.ben-manes.caffeine:caffeine:2.9.3",
    "jakarta.servlet:jakarta.servlet-api:6.0.0",
    "org.apache.httpcomponents.client5:httpclient5:5.5",
    "org.apache.httpcomponents.core5:httpcore5:5.3.4",
    "org.apache.httpcomponents.core5:httpcore5-h2:5.3.4",
    "org.xerial:sqlite-jdbc:3.53.4.0",
    f"org.eclipse.jetty.ee10:jetty-ee10-servlet:{JETTY}",
    *(f"org.eclipse.jetty:jetty-{part}:{JETTY}" for part in ("http", "io", "security", "server", "session", "util")),
)


class JarOfTests(Jar):
    """The jar with a project's tests, where the servlet is."""

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}-tests.jar"


def fetch() -> Path:
    """The folder with the server's jars; what is missing is fetched."""
    folder = Path(os.environ.get("EMATIX_TEST_CACHE") or jars.cache_root()) / "iceberg-rest" / ICEBERG
    for coordinate in JARS:
        jars._fetched(Jar("iceberg-rest", coordinate), folder, None)
    jars._fetched(JarOfTests("iceberg-rest", f"org.apache.iceberg:iceberg-core:{ICEBERG}"), folder, None)
    return folder


@contextmanager
def rest_catalog(warehouse: Path) -> Iterator[str]:
    """The address of a REST catalog whose tables are below a folder; it knows none yet."""
    import pyspark
    from py4j.java_gateway import JavaGateway

    of_spark = Path(pyspark.__file__).parent / "jars"
    # Python drives the Java process that the server lives in; it ends with its input, so at the latest with this one.
    gateway = JavaGateway.launch_gateway(
        classpath=f"{fetch()}/*:{of_spark}/*",
        jarpath=str(next(of_spark.glob("py4j-*.jar"))),
        java_path=str(find_java().path / "bin" / "java"),
        javaopts=["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        die_on_exit=True,
    )
    try:
        server = _serving(gateway.jvm, warehouse)
        yield f"http://127.0.0.1:{server.getConnectors()[0].getLocalPort()}"
        server.stop()
    finally:
        gateway.shutdown()
        gateway.java_process.stdin.close()
        gateway.java_process.wait(30)


def _serving(jvm: Any, warehouse: Path) -> Any:
    iceberg, jetty = jvm.org.apache.iceberg, jvm.org.eclipse.jetty
    settings = jvm.java.util.HashMap()
    settings.put("warehouse", str(warehouse))
    settings.put("uri", f"jdbc:sqlite:{warehouse / 'catalog.db'}")
    settings.put("jdbc.schema-version", "V1")
    catalog = iceberg.jdbc.JdbcCatalog()
    catalog.setConf(jvm.org.apache.hadoop.conf.Configuration())
    catalog.initialize("rest", settings)
    context = jetty.ee10.servlet.ServletContextHandler()
    servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(catalog))
    context.addServlet(jetty.ee10.servlet.ServletHolder(servlet), "/*")
    server = jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
    server.setHandler(context)
    server.start()
    return server


@dataclass
class Door:
    """What a door was asked: the logins it got, and the warehouses that were named."""

    address: str = ""
    logins: list[dict[str, str]] = field(default_factory=list)
    warehouses: set[str] = field(default_factory=set)


@contextmanager
def door_before(catalog: str, *, credential: str) -> Iterator[Door]:
    """A server that lets through to a REST catalog who has a token, and gives one for a credential (`id:secret`)."""
    door = Door()

    class Doorman(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = urlsplit(self.path)
            if asked.path == "/login":
                login = {key: values[0] for key, values in parse_qs(body.decode()).items()}
                door.logins.append(login)
                is_known = f"{login.get('client_id')}:{login.get('client_secret')}" == credential
                token = {"access_token": "a-token", "token_type": "bearer", "expires_in": 3600}
                return self.say(
                    200 if is_known else 401, json.dumps(token if is_known else {"error": "invalid_client"})
                )
            if self.headers.get("Authorization") != "Bearer a-token":
                return self.say(401, json.dumps({"error": {"message": "no", "type": "NotAuthorized", "code": 401}}))
            door.warehouses.update(parse_qs(asked.query).get("warehouse", []))
            given = {"Content-Type": "application/json"}
            wanted = urllib.request.Request(catalog + self.path, body or None, given, method=self.command)
            try:
                with urllib.request.urlopen(wanted) as found:
                    self.say(found.status, found.read().decode())
            except urllib.error.HTTPError as exc:
                self.say(exc.code, exc.read().decode())

        do_GET = do_POST = do_HEAD = do_DELETE = answer

        def say(self, status: int, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Doorman) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        door.address = f"http://127.0.0.1:{server.server_port}"
        yield door
        server.shutdown()
