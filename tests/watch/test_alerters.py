"""Alerts by HTTP and on stderr: what is sent, to real servers, and what happens when it cannot be."""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ematix_flow import alerters
from ematix_flow.alerters import AlertEvent, SlackAlerter, WebhookAlerter, from_url
from ematix_flow.declare.redaction import forget_secrets
from ematix_flow.watch.alerters import open_alerters, registered, send, split_urls
from tests.watch.receivers import Receiver, certificate, http_receiver

AT = datetime(2026, 3, 1, 6, 0, 5, tzinfo=timezone.utc)
FAILED = AlertEvent("failed", "orders", AT, "disk full", "OSError", attempt_count=1, max_attempts=3, run_id="r-1")
GAVE_UP = AlertEvent("gave_up", "orders", AT, "disk full", "OSError", 3, 3, True)
RECOVERED = AlertEvent("recovered", "orders", AT, attempt_count=4)


@pytest.fixture(autouse=True)
def _nothing_remembered() -> Iterator[None]:
    yield
    forget_secrets()
    alerters.clear_alerters()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as running:
        yield running


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (FAILED, "[ALERT] 2026-03-01T06:00:05Z failed: orders (attempt 1/3): OSError: disk full"),
        (GAVE_UP, "[ALERT] 2026-03-01T06:00:05Z gave_up: orders after 3 attempts: OSError: disk full"),
        (RECOVERED, "[ALERT] 2026-03-01T06:00:05Z recovered: orders (after 4 attempts)"),
        (
            AlertEvent("sla_breached", "orders", AT, "2 h old"),
            "[ALERT] 2026-03-01T06:00:05Z sla_breached: orders: 2 h old",
        ),
    ],
)
def test_stdout_is_one_line_on_stderr(event: AlertEvent, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    from_url("stdout://").notify(event)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", line + "\n")


def test_an_error_of_many_lines_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from_url("stdout://").notify(AlertEvent("failed", "orders", AT, "first\n  second\npassword=hush", "X", 1, 1))
    assert capsys.readouterr().err.endswith("X: first second password=<redacted>\n")


def test_a_webhook_gets_the_whole_event(receiver: Receiver) -> None:
    assert send(FAILED, [from_url(f"http://127.0.0.1:{receiver.port}/hook?team=a%20b&timeout=2")]) == ()
    (request,) = receiver.requests
    assert request.path == "/hook?team=a%20b"
    assert request.headers["X-Ematix-Flow-Event"] == "failed"
    assert request.json() == {
        "kind": "failed",
        "pipeline": "orders",
        "timestamp": "2026-03-01T06:00:05Z",
        "error_message": "disk full",
        "error_type": "OSError",
        "attempt_count": 1,
        "max_attempts": 3,
        "gave_up": False,
        "run_id": "r-1",
    }


def test_a_webhook_signs_logs_in_and_adds_headers(receiver: Receiver) -> None:
    url = f"webhook+http://ann:p%40ss@127.0.0.1:{receiver.port}/h?secret=k%26y&header=X-Team:data&header=X-B:1"
    assert send(FAILED, [from_url(url)]) == ()
    (request,) = receiver.requests
    expected = hmac.new(b"k&y", request.body, hashlib.sha256).hexdigest()
    assert request.headers["X-Ematix-Flow-Signature"] == f"sha256={expected}"
    assert (request.headers["X-Team"], request.headers["X-B"]) == ("data", "1")
    assert request.headers["Authorization"] == "Basic YW5uOnBAc3M="
    assert request.path == "/h"
    named = from_url(f"http://127.0.0.1:{receiver.port}/h?secret=k&signature_header=X-Hub-Signature-256&%73ecret=its")
    named.notify(FAILED)
    assert receiver.requests[1].headers["X-Hub-Signature-256"].startswith("sha256=")
    assert receiver.requests[1].path == "/h?%73ecret=its"


def test_slack_gets_one_message_by_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with http_receiver(pem) as receiver:
        slack = from_url(f"slack://localhost:{receiver.port}/services/T0/B0/key")
        assert send(AlertEvent("failed", "a<b", AT, "no `disk` <!channel>", "OSError", 1, 3), [slack]) == ()
    assert receiver.requests[0].path == "/services/T0/B0/key"
    assert receiver.requests[0].json() == {
        "text": ":x: *a&lt;b* failed (attempt 1/3) `OSError: no 'disk' &lt;!channel&gt;` _2026-03-01T06:00:05Z_"
    }


def test_hosts_of_slack_are_known_and_everything_else_is_a_webhook() -> None:
    assert isinstance(from_url("https://hooks.slack.com/services/T/B/x"), SlackAlerter)
    assert isinstance(from_url("https://hooks.slack-gov.com/services/T/B/x"), SlackAlerter)
    assert isinstance(from_url("https://notslack.com/services/T/B/x"), WebhookAlerter)
    assert isinstance(from_url("webhook://hooks.example.com/x"), WebhookAlerter)


def test_pagerduty_opens_and_resolves_incidents(receiver: Receiver) -> None:
    """A stand-in for PagerDuty's Events API v2: it takes requests and answers 202."""
    receiver.answer = lambda _: (202, b'{"status": "success"}')
    url = f"pagerduty://R0uteKEY?service=shop&severity=warning&endpoint=http://127.0.0.1:{receiver.port}/v2/enqueue"
    pager = from_url(url)
    long = AlertEvent("failed", "orders", AT, "x" * 3000, "OSError", 1, 3)
    assert [send(event, [pager]) for event in (long, GAVE_UP, RECOVERED)] == [(), (), ()]
    first, second, third = (request.json() for request in receiver.requests)
    assert (first["routing_key"], first["event_action"], first["dedup_key"]) == ("R0uteKEY", "trigger", "shop:orders")
    assert first["payload"]["severity"] == "warning"
    assert len(first["payload"]["summary"]) == 1024
    assert first["payload"]["custom_details"]["attempt_count"] == 1
    assert second["payload"]["severity"] == "critical"
    assert third == {"routing_key": "R0uteKEY", "event_action": "resolve", "dedup_key": "shop:orders"}


def test_a_refusal_is_one_warning_without_the_secrets_of_the_url(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer = lambda request: (403, f"no: {request.path} {request.headers['Authorization']}".encode())
    hook = from_url(f"http://ann:hushhush@127.0.0.1:{receiver.port}/h?token=t0psecret&secret=s1gned")
    with caplog.at_level(logging.WARNING):
        assert send(FAILED, [hook]) == (hook,)
    (line,) = caplog.messages
    assert "answered 403" in line
    assert "'orders' failed" in line
    for secret in ("hushhush", "t0psecret", "s1gned", "YW5uOmh1c2hodXNo"):
        assert secret not in line


def test_a_redirect_is_not_followed(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.answer, receiver.headers = (lambda _: (302, b"")), {"Location": "/elsewhere"}
    hook = from_url(f"http://127.0.0.1:{receiver.port}/h")
    assert send(FAILED, [hook]) == (hook,)
    assert [request.method for request in receiver.requests] == ["POST"]
    assert "answered 302" in caplog.text


def test_nobody_waits_longer_than_the_timeout(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    may_answer = threading.Event()
    receiver.answer = lambda _: (200, b"late") if may_answer.wait(10) else (500, b"")
    slow = [from_url(f"http://127.0.0.1:{receiver.port}/{n}?timeout=0.3") for n in range(3)]
    began = time.monotonic()
    try:
        assert send(FAILED, slow) == tuple(slow)
        assert time.monotonic() - began < 2
    finally:
        may_answer.set()
    assert len(caplog.messages) == 3


def test_an_alerter_of_somebody_else_may_break_and_may_hang(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def notify(self, event: AlertEvent) -> None:
            raise RuntimeError("cannot reach https://ann:hushhush@host/")

    class Hanging:
        timeout_s = 0.1
        release = threading.Event()

        def notify(self, event: AlertEvent) -> None:
            self.release.wait(10)

    class Good:
        heard: list[AlertEvent] = []

        def notify(self, event: AlertEvent) -> None:
            self.heard.append(event)

    broken, hanging, good = Broken(), Hanging(), Good()
    assert send(FAILED, [broken, hanging, good]) == (broken, hanging)
    hanging.release.set()
    assert good.heard == [FAILED]
    assert len(caplog.messages) == 2
    assert "hushhush" not in caplog.text


def test_bad_urls_are_left_out_with_a_warning_that_shows_no_secret() -> None:
    said: list[str] = []
    bad = [
        "slak://hooks.slack.com/services/T/B/hushhush",
        "slack+http://hushhush",
        "email://ann:hushhush@mail.example.com",
        "pagerduty://hushhush?severity=bad",
        "https://ann:hushhush@host:99999/hushhush",
        "https://host/hushhush?realert_after=soon",
        "http://host/x?header=hushhush",
        "email://ann:hushhush@mail?to=a@b&starttls=off",
        "pagerduty://hushhush?endpoint=http://elsewhere/",
        "https://${NOT_SET_ANYWHERE}/hushhush",
    ]
    opened = open_alerters([*bad, "stdout://"], warn=said.append)
    assert [type(alerter).__name__ for alerter in opened] == ["StdoutAlerter"]
    assert len(said) == len(bad)
    assert "hushhush" not in " ".join(said)
    with pytest.raises(ValueError, match="cannot be sent"):
        from_url("")


def test_references_are_filled_in(monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
    monkeypatch.setenv("HOOK_KEY", "a/b c")
    (hook,) = open_alerters([f"http://127.0.0.1:{receiver.port}/h?secret=${{HOOK_KEY}}"])
    hook.notify(FAILED)
    expected = hmac.new(b"a/b c", receiver.requests[0].body, hashlib.sha256).hexdigest()
    assert receiver.requests[0].headers["X-Ematix-Flow-Signature"] == f"sha256={expected}"


def test_a_list_is_split_between_urls_only() -> None:
    assert split_urls("") == ()
    assert split_urls(" https://h/a?x=1,2 ,email://m?to=a@x,b@x,stdout://") == (
        "https://h/a?x=1,2",
        "email://m?to=a@x,b@x",
        "stdout://",
    )


def test_the_process_keeps_alerters() -> None:
    first, second = from_url("stdout://"), from_url("stdout://")
    alerters.register_alerter(first)
    alerters.register_alerter(first)
    with registered([second]):
        assert alerters.active_alerters() == (first, second)
    assert alerters.active_alerters() == (first,)
    alerters.clear_alerters()
    assert alerters.active_alerters() == ()
