"""Servers that alerts, numbers and spans are sent to in these tests, on this machine.

HTTP is the standard library's, mail is aiosmtpd, OTLP is gRPC and HTTP with OpenTelemetry's own messages. `Pushgateway`
is a stand-in: it keeps groups and shows them as one page, which is what the real one does with well-formed input.
"""

from __future__ import annotations

import base64
import gzip
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families


@dataclass
class Request:
    """One request that came in."""

    method: str
    path: str
    headers: Any
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Request], tuple[int, bytes]]


@dataclass
class Receiver:
    """Everything that came in, and how it is answered."""

    port: int = 0
    requests: list[Request] = field(default_factory=list)
    answer: Answer = lambda _: (200, b"ok")
    headers: dict[str, str] = field(default_factory=dict)


@contextmanager
def http_receiver(tls: Path | None = None) -> Iterator[Receiver]:
    """An HTTP server; with a certificate an HTTPS one."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path, self.headers, body)
            receiver.requests.append(request)
            status, text = receiver.answer(request)
            self.send_response(status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_POST

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that went away is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Pushgateway:
    """What a Pushgateway does: PUT replaces a group, GET shows all of them with the labels of their path."""

    def __init__(self) -> None:
        self.groups: dict[tuple[tuple[str, str], ...], str] = {}

    def __call__(self, request: Request) -> tuple[int, bytes]:
        if request.method == "GET":
            return 200, self.page().encode()
        parts = request.path.removeprefix("/metrics/").split("/")
        labels = []
        for name, value in zip(parts[::2], parts[1::2], strict=True):
            is_encoded = name.endswith("@base64")
            plain = base64.urlsafe_b64decode(value).decode() if is_encoded else unquote(value)
            labels.append((name.removesuffix("@base64"), plain))
        self.groups[tuple(labels)] = request.body.decode()
        return 202, b""

    def page(self) -> str:
        lines = []
        for labels, text in self.groups.items():
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    both = {**sample.labels, **dict(labels)}
                    inside = ",".join(f'{name}="{value}"' for name, value in both.items())
                    lines.append(f"{sample.name}{{{inside}}} {sample.value}")
        return "\n".join(lines) + "\n"


@dataclass
class Otlp:
    """Spans and numbers that came in, by gRPC or HTTP."""

    endpoint: str = ""
    spans: list[Any] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)

    def take_traces(self, request: Any) -> None:
        for resource_spans in request.resource_spans:
            self.resources.append({a.key: a.value.string_value for a in resource_spans.resource.attributes})
            for scope in resource_spans.scope_spans:
                self.spans.extend(scope.spans)

    def take_metrics(self, request: Any) -> None:
        for resource_metrics in request.resource_metrics:
            self.resources.append({a.key: a.value.string_value for a in resource_metrics.resource.attributes})
            for scope in resource_metrics.scope_metrics:
                self.metrics.update({metric.name: metric for metric in scope.metrics})

    def points(self, name: str) -> dict[tuple[str, ...], Any]:
        """The points of one metric, by the values of their labels in order of the labels' names."""
        metric = self.metrics[name]
        points = getattr(metric, metric.WhichOneof("data")).data_points
        return {tuple(a.value.string_value for a in sorted(p.attributes, key=lambda a: a.key)): p for p in points}


@contextmanager
def otlp_by_grpc() -> Iterator[Otlp]:
    """A collector that speaks gRPC."""
    taken = Otlp()

    class Traces(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            taken.take_traces(request)
            return trace_service_pb2.ExportTraceServiceResponse()

    class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            taken.take_metrics(request)
            return metrics_service_pb2.ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    taken.endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield taken
    finally:
        server.stop(None).wait()


@contextmanager
def otlp_by_http() -> Iterator[Otlp]:
    """A collector that speaks HTTP with protobuf; gRPC would not be understood."""
    taken = Otlp()

    def answer(request: Request) -> tuple[int, bytes]:
        body = gzip.decompress(request.body) if request.headers.get("Content-Encoding") == "gzip" else request.body
        assert request.headers["Content-Type"] == "application/x-protobuf"
        if request.path == "/v1/traces":
            taken.take_traces(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
        elif request.path == "/v1/metrics":
            taken.take_metrics(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body))
        else:
            return 404, b""
        return 200, b""

    with http_receiver() as receiver:
        receiver.answer = answer
        taken.endpoint = f"127.0.0.1:{receiver.port}"
        yield taken


def certificate(folder: Path) -> Path:
    """A certificate of this machine that nobody vouches for, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


def awaited(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until something is so."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)
