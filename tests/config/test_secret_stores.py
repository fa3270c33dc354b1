"""Secret stores with the vendors' own clients: AWS on moto's server, the others on stand-ins for their servers.

The stand-ins speak as much of each vendor's protocol as reading a secret takes: Vault's KV v2 over HTTP, Google's
Secret Manager over gRPC, Azure's Key Vault over HTTPS with its challenge. None of them is the real service.
"""

from __future__ import annotations

import datetime
import json
import ssl
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ematix_flow.config import secret_stores
from ematix_flow.config.secrets import expand, register_resolver, unregister_resolver
from ematix_flow.declare.redaction import forget_secrets, scrub
from ematix_flow.errors import MissingSecret
from ematix_flow.secrets import AzureKeyVaultResolver, GCPSecretManagerResolver

TOKEN = "hvs.a-token-for-tests"


@pytest.fixture(autouse=True)
def nothing_known(tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for store in secret_stores.STORES.values():
        for name in store.variables:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(secret_stores, "_opened", {})
    forget_secrets()
    yield
    forget_secrets()


# ── Vault ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Vault(BaseHTTPRequestHandler):
    """A stand-in for Vault: reads of a key-value engine of version 2."""

    def do_GET(self) -> None:
        mount, _, path = self.path.removeprefix("/v1/").partition("/data/")
        found = self.server.secrets.get((self.headers.get("X-Vault-Namespace"), mount, path))  # type: ignore[attr-defined]
        if self.headers.get("X-Vault-Token") != self.server.token:  # type: ignore[attr-defined]
            self._answer(403, {"errors": ["permission denied"]})
        elif found is None:
            self._answer(404, {"errors": []})
        else:
            self._answer(200, {"data": {"data": found, "metadata": {"version": 1, "deletion_time": ""}}})

    def _answer(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *words: Any) -> None:
        """Quiet."""


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Vault) as server:
        server.token = TOKEN  # type: ignore[attr-defined]
        server.secrets = {  # type: ignore[attr-defined]
            (None, "secret", "app/db"): {"password": "tr0ub4dor", "port": 5432},
            ("team-a", "kv", "app"): {"key": "of-team-a"},
        }
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("VAULT_ADDR", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("VAULT_TOKEN", TOKEN)
        yield server
        server.shutdown()


def test_vault_is_found_by_its_variables(vault: Any) -> None:
    assert expand("postgres://ann:${vault:app/db#password}@db/x") == "postgres://ann:tr0ub4dor@db/x"
    assert expand("${vault:app/db#port}") == "5432"
    assert json.loads(expand("${vault:app/db}")) == {"password": "tr0ub4dor", "port": 5432}
    assert scrub("the driver says tr0ub4dor") == "the driver says <redacted>"


def test_vault_with_a_namespace_and_another_mount(vault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAULT_NAMESPACE", "team-a")
    monkeypatch.setenv("VAULT_KV_MOUNT", "kv")
    assert expand("${vault:app#key}") == "of-team-a"


def test_vault_takes_the_token_of_the_file_and_sees_a_new_one(
    vault: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("VAULT_TOKEN")
    file = tmp_path / "home" / ".vault-token"
    file.write_text(TOKEN + "\n")
    assert expand("${vault:app/db#password}") == "tr0ub4dor"
    vault.token = "hvs.a-newer-one"
    with pytest.raises(MissingSecret, match="permission denied"):
        expand("${vault:app/db#password}")
    file.write_text("hvs.a-newer-one")
    assert expand("${vault:app/db#password}") == "tr0ub4dor"


@pytest.mark.parametrize(
    ("reference", "said"),
    [("${vault:nowhere#x}", "'vault' could not resolve 'nowhere#x'"), ("${vault:app/db#pasword}", "'password'?")],
)
def test_vault_says_what_is_missing(vault: Any, reference: str, said: str) -> None:
    with pytest.raises(MissingSecret) as missing:
        expand(reference)
    assert said in str(missing.value) and "tr0ub4dor" not in str(missing.value)


def test_a_registered_resolver_comes_first(vault: Any) -> None:
    class Mine:
        def resolve(self, reference: str) -> str:
            return f"mine:{reference}"

    register_resolver("vault", Mine())
    try:
        assert expand("${vault:app/db#password}") == "mine:app/db#password"
    finally:
        unregister_resolver("vault")
    assert expand("${vault:app/db#password}") == "tr0ub4dor"


# ── AWS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def aws_endpoint() -> Iterator[str]:
    """moto's own server, which has Secrets Manager."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_aws_is_found_by_its_variables(aws_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("AWS_ENDPOINT_URL", aws_endpoint),
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ACCESS_KEY_ID", "testing"),
        ("AWS_SECRET_ACCESS_KEY", "testing-too"),
    ):
        monkeypatch.setenv(name, value)
    import boto3

    client = boto3.client("secretsmanager", region_name="eu-west-1")
    client.create_secret(Name="prod/warehouse", SecretString=json.dumps({"password": "tr0ub4dor"}))
    client.create_secret(Name="plain", SecretString="just text")
    client.create_secret(Name="bytes", SecretBinary=b"raw text")
    assert expand("${aws:prod/warehouse#password}") == "tr0ub4dor"
    assert expand("${aws:plain}") == "just text" and expand("${aws:bytes}") == "raw text"
    with pytest.raises(MissingSecret, match="not a JSON map") as no_map:
        expand("${aws:plain#field}")
    assert "just text" not in str(no_map.value)
    with pytest.raises(MissingSecret, match="ResourceNotFoundException"):
        expand("${aws:nowhere}")


# ── Google ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def quiet_google() -> None:
    """Google's packages say on import how long they will look after this Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from google.cloud import secretmanager  # noqa: F401


@pytest.fixture
def google_client(quiet_google: None) -> Iterator[Any]:
    """Google's client on a gRPC server that stands in for Secret Manager."""
    import grpc
    from google.cloud import secretmanager
    from google.cloud.secretmanager_v1.services.secret_manager_service.transports import (
        SecretManagerServiceGrpcTransport,
    )

    kept = {
        "projects/shop/secrets/warehouse/versions/latest": b"newest",
        "projects/shop/secrets/warehouse/versions/2": b"second",
    }

    def access(request: Any, context: Any) -> Any:
        if request.name not in kept:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Secret Version [{request.name}] not found.")
        return secretmanager.AccessSecretVersionResponse(name=request.name, payload={"data": kept[request.name]})

    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(
        access,
        request_deserializer=secretmanager.AccessSecretVersionRequest.deserialize,
        response_serializer=secretmanager.AccessSecretVersionResponse.serialize,
    )
    service = "google.cloud.secretmanager.v1.SecretManagerService"
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"AccessSecretVersion": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield secretmanager.SecretManagerServiceClient(transport=SecretManagerServiceGrpcTransport(channel=channel))
    server.stop(None)


def test_google_gives_versions_by_short_and_full_names(google_client: Any) -> None:
    store = GCPSecretManagerResolver(google_client, project="shop")
    assert store.resolve("warehouse") == "newest"
    assert store.resolve("warehouse#2") == "second"
    assert store.resolve("projects/shop/secrets/warehouse/versions/2") == "second"
    register_resolver("gcp", store)
    try:
        with pytest.raises(MissingSecret, match="NotFound: 404"):
            expand("${gcp:nowhere}")
    finally:
        unregister_resolver("gcp")


def test_google_without_a_login_says_which_ones_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(MissingSecret) as missing:
        expand("${gcp:warehouse}")
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(missing.value)


# ── Azure ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class KeyVault(BaseHTTPRequestHandler):
    """A stand-in for Azure Key Vault: who has no token is told where to get one, who has reads secrets."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0].removeprefix("/secrets/").rstrip("/")
        found = {"warehouse": "newest", "warehouse/1a2b": "older", "login": '{"password": "tr0ub4dor"}'}.get(path)
        if self.headers.get("Authorization") != "Bearer a-token":
            challenge = 'Bearer authorization="https://login.windows.net/t", resource="https://vault.azure.net"'
            self._answer(401, {"error": {"code": "Unauthorized"}}, ("WWW-Authenticate", challenge))
        elif found is None:
            self._answer(404, {"error": {"code": "SecretNotFound", "message": f"A secret with {path} was not found"}})
        else:
            self._answer(
                200, {"value": found, "id": f"https://{self.headers['Host']}/secrets/{path}", "attributes": {}}
            )

    def _answer(self, status: int, body: Any, *headers: tuple[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for header in (("Content-Type", "application/json"), ("Content-Length", str(len(data))), *headers):
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: Any) -> None:
        """Quiet."""


def self_signed(folder: Path) -> Path:
    """A certificate for 127.0.0.1, with its key, in one file."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stand-in")])
    today = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = folder / "stand-in.pem"
    file.write_bytes(key.private_bytes(*form) + certificate.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
def azure_client(tmp_path: Path) -> Iterator[Any]:
    """Azure's client on an HTTPS server that stands in for a vault."""
    from azure.core.credentials import AccessToken
    from azure.keyvault.secrets import SecretClient

    class Login:
        def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            return AccessToken("a-token", int(time.time()) + 3600)

    pem = self_signed(tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), KeyVault) as server:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(pem)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        with SecretClient(
            vault_url=f"https://127.0.0.1:{server.server_port}",
            credential=Login(),
            verify_challenge_resource=False,
            connection_verify=str(pem),
        ) as client:
            yield client
        server.shutdown()


def test_azure_gives_versions_and_fields(azure_client: Any) -> None:
    store = AzureKeyVaultResolver(azure_client)
    assert store.resolve("warehouse") == "newest"
    assert store.resolve("warehouse/1a2b") == "older"
    assert store.resolve("login#password") == "tr0ub4dor"
    with pytest.raises(MissingSecret, match="not a JSON map"):
        store.resolve("warehouse#password")
    register_resolver("azure", store)
    try:
        with pytest.raises(MissingSecret, match="SecretNotFound"):
            expand("${azure:nowhere}")
    finally:
        unregister_resolver("azure")


# ── what is not there ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("prefix", "variable"), [("vault", "VAULT_ADDR"), ("aws", "AWS_REGION"), ("azure", "AZURE_KEY_VAULT_URL")]
)
def test_a_store_that_nothing_describes_says_what_would(prefix: str, variable: str) -> None:
    with pytest.raises(MissingSecret) as missing:
        expand(f"${{{prefix}:app}}")
    assert variable in str(missing.value)


@pytest.mark.parametrize(
    ("prefix", "module"), [("vault", "hvac"), ("aws", "boto3"), ("gcp", "google.cloud"), ("azure", "azure.identity")]
)
def test_a_client_that_is_not_installed_says_the_line(
    prefix: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_ADDR", "http://127.0.0.1:1")
    monkeypatch.setenv("VAULT_TOKEN", "x")
    monkeypatch.setenv("AZURE_KEY_VAULT_URL", "https://v.vault.azure.net")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingSecret) as missing:
        expand(f"${{{prefix}:app}}")
    assert missing.value.fix == f'pip install "ematix-flow[secrets-{prefix}]"'


def test_an_unknown_prefix_is_answered_with_the_nearest() -> None:
    with pytest.raises(MissingSecret, match="did you mean 'vault'"):
        expand("${valt:app}")
