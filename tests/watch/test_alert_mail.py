"""Alerts by mail, to a real SMTP server: encrypted in both ways or not, with and without a login."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from ematix_flow.alerters import AlertEvent, from_url, send
from ematix_flow.declare.redaction import forget_secrets
from tests.watch.receivers import certificate

AT = datetime(2026, 3, 1, 6, 0, 5, tzinfo=timezone.utc)
FAILED = AlertEvent("failed", "orders", AT, "disk full\nsecond line", "OSError", 1, 3, run_id="r-1")
PASSWORD = "p@ss/w:rd"


@dataclass
class Mailbox:
    """What arrived, and how."""

    port: int = 0
    mails: list[EmailMessage] = field(default_factory=list)
    receivers: list[list[str]] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    was_encrypted: list[bool] = field(default_factory=list)
    refused: tuple[str, ...] = ()

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address in self.refused:
            return "550 not here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]
        self.receivers.append(list(envelope.rcpt_tos))
        self.was_encrypted.append(session.ssl is not None or server.transport.get_extra_info("sslcontext") is not None)
        return "250 OK"

    def check_login(self, server: Any, session: Any, envelope: Any, mechanism: str, login: LoginPassword) -> AuthResult:
        user, password = login.login.decode(), login.password.decode()
        self.logins.append((user, password))
        return AuthResult(success=password == PASSWORD, handled=False)


class _FreePort(Controller):
    """aiosmtpd asks its own port when it starts; with 0 that is not known before."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextmanager
def mail_server(pem: Path | None = None, *, is_implicit: bool = False, login: bool = False) -> Iterator[Mailbox]:
    box = Mailbox()
    context = None
    if pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
    options: dict[str, Any] = {"authenticator": box.check_login, "auth_required": True} if login else {}
    if context is not None and not is_implicit:
        options |= {"tls_context": context, "require_starttls": True}
    if is_implicit:
        options |= {"auth_require_tls": False}  # aiosmtpd counts only STARTTLS as encrypted
    server = _FreePort(box, hostname="127.0.0.1", port=0, ssl_context=context if is_implicit else None, **options)
    server.start()
    box.port = server.port
    try:
        yield box
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    yield
    forget_secrets()


@pytest.fixture
def pem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return path


def test_starttls_with_a_login(pem: Path) -> None:
    with mail_server(pem, login=True) as box:
        url = f"email://ann%40shop:p%40ss%2Fw%3Ard@localhost:{box.port}?to=a@x.org,b@x.org&from=flow@x.org"
        assert send(FAILED, [from_url(url)]) == ()
    (mail,) = box.mails
    assert box.logins == [("ann@shop", PASSWORD)]
    assert box.was_encrypted == [True]
    assert box.receivers == [["a@x.org", "b@x.org"]]
    assert (mail["Subject"], mail["From"]) == ("[ematix-flow] orders failed (attempt 1/3)", "flow@x.org")
    assert mail.get_content().splitlines() == [
        "Pipeline: orders",
        "Event: failed",
        "Time: 2026-03-01T06:00:05Z",
        "Error: OSError: disk full",
        "second line",
        "Attempts: 1 of 3",
        "Run: r-1",
    ]


def test_tls_from_the_first_byte(pem: Path) -> None:
    with mail_server(pem, is_implicit=True) as box:
        assert send(FAILED, [from_url(f"email://localhost:{box.port}?to=a@x.org&starttls=0")]) == ()
    assert box.was_encrypted == [True]


def test_a_relay_without_encryption() -> None:
    with mail_server() as box:
        alerter = from_url(f"email://127.0.0.1:{box.port}?to=a@x.org&starttls=off")
        assert send(AlertEvent("gave_up", "new\nline é", AT, attempt_count=3), [alerter]) == ()
    assert box.was_encrypted == [False]
    assert box.mails[0]["Subject"] == "[ematix-flow] new line é gave up after 3 attempts"


def test_an_unknown_certificate_and_a_wrong_password_are_refused(
    pem: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with mail_server(pem, login=True) as box, caplog.at_level(logging.WARNING):
        wrong = from_url(f"email://ann:wr0ngw0rd@localhost:{box.port}?to=a@x.org")
        assert send(FAILED, [wrong]) == (wrong,)
        monkeypatch.delenv("SSL_CERT_FILE")
        unknown = from_url(f"email://ann:p%40ss%2Fw%3Ard@localhost:{box.port}?to=a@x.org")
        assert send(FAILED, [unknown]) == (unknown,)
    assert box.mails == []
    assert set(box.logins) == {("ann", "wr0ngw0rd")}  # in each of the ways the server knows
    first, second = (record.getMessage() for record in caplog.records if record.name.startswith("ematix_flow"))
    assert "did not take the mail" in first
    assert "certificate verify failed" in second
    assert "wr0ngw0rd" not in caplog.text
    assert PASSWORD not in caplog.text


def test_a_receiver_that_is_refused_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with mail_server() as box:
        box.refused = ("b@x.org",)
        some = from_url(f"email://127.0.0.1:{box.port}?to=a@x.org,b@x.org&starttls=off")
        assert send(FAILED, [some]) == (some,)
        none = from_url(f"email://127.0.0.1:{box.port}?to=b@x.org&starttls=off")
        assert send(FAILED, [none]) == (none,)
    assert box.receivers == [["a@x.org"]]
    assert "refused 'b@x.org'; the others got the mail" in caplog.messages[0]
    assert "it refused 'b@x.org'" in caplog.messages[1]
