"""Alerts by HTTP: a message in a Slack channel, or the whole event as JSON to a webhook of your own."""

from __future__ import annotations

import hashlib
import hmac
import json
import re

from ematix_flow.contracts.orchestration import AlertEvent
from ematix_flow.declare.redaction import remember_secret
from ematix_flow.errors import InvalidConfig
from ematix_flow.watch.addresses import Address, read_address
from ematix_flow.watch.alert_base import COMMON_OPTIONS, UrlAlerter
from ematix_flow.watch.alert_text import attempts, error_line, facts, moment
from ematix_flow.watch.posting import basic_login, exchange

EVENT_HEADER = "X-Ematix-Flow-Event"
SIGNATURE_HEADER = "X-Ematix-Flow-Signature"
TIMEOUT_S = 5.0

_SLACK_HOST = re.compile(r"(.+\.)?slack(-gov)?\.com")
_EMOJI = {"recovered": ":white_check_mark:", "gave_up": ":no_entry:", "failed": ":x:"}
_OPTIONS = ("secret", "signature_header", "header", *COMMON_OPTIONS)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def is_slack(url: str) -> bool:
    """Whether a URL is one of Slack's own webhooks, which understand one form only."""
    address = read_address(url, keeps_others=True)
    return address.scheme == "https" and _SLACK_HOST.fullmatch(address.host) is not None


class SlackAlerter(UrlAlerter):
    """Posts one sentence as `{"text": …}`: Slack's incoming webhooks, and chats that understand them.

    Args:
        url: `slack://host/path`, or the webhook's own `https://…`.
    """

    def __init__(self, url: str) -> None:
        address = read_address(url, COMMON_OPTIONS, keeps_others=True)
        if address.scheme not in ("slack", "https"):
            raise InvalidConfig("Slack is reached by https only.", where=address.shown, fix="https://hooks.slack.com/…")
        if not address.host or address.path in ("", "/"):
            raise InvalidConfig(
                "This URL names no webhook.", where=address.shown, fix="slack://hooks.slack.com/services/…"
            )
        super().__init__(address, timeout_s=TIMEOUT_S)
        self._url = _target(address, "https")
        remember_secret(address.path.strip("/"))  # who knows the path may write into the channel

    def notify(self, event: AlertEvent) -> None:
        """Post it. Raises ConnectionFailed."""
        body = json.dumps({"text": slack_text(event)}, ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json; charset=utf-8"}
        exchange("POST", self._url, body, headers, timeout_s=self.timeout_s, shown=self.shown)


class WebhookAlerter(UrlAlerter):
    """Posts the whole event as JSON: `webhook://`, `webhook+http://`, `https://`, `http://`.

    Parameters of the URL that are ours: `secret` (sign the body), `signature_header` (under this name), `header`
    (`Name:value`, may be repeated), `timeout` and `realert_after` in seconds. All others are the receiver's.
    """

    def __init__(self, url: str) -> None:
        address = read_address(url, _OPTIONS, keeps_others=True)
        if not address.host:
            raise InvalidConfig("This URL names no host.", where=address.shown, fix="https://host/path")
        super().__init__(address, timeout_s=TIMEOUT_S)
        self._url = _target(address, "http" if address.scheme in ("http", "webhook+http") else "https")
        self._headers = _headers(address)
        self._signature_header = address.option("signature_header") or SIGNATURE_HEADER
        self._secret = address.option("secret")
        remember_secret(self._secret)

    def notify(self, event: AlertEvent) -> None:
        """Post it. Raises ConnectionFailed."""
        body = json.dumps(facts(event), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json; charset=utf-8", EVENT_HEADER: _latin(event.kind), **self._headers}
        if self._secret:
            headers[self._signature_header] = signature(self._secret, body)
        exchange("POST", self._url, body, headers, timeout_s=self.timeout_s, shown=self.shown)


def signature(secret: str, body: bytes) -> str:
    """What the signature header holds: the receiver works it out from the raw body, and compares in constant time.

    >>> signature("key", b"{}")
    'sha256=a777724d943eb48dc69bca8a4a6d57a04db3f9ec7e1de4e581e860265bdf3032'
    """
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def slack_text(event: AlertEvent) -> str:
    """One message in Slack's own marks."""
    emoji = _EMOJI.get(event.kind, ":warning:")
    words = [f"{emoji} *{_slack_plain(event.pipeline)}* {event.kind}"]
    if event.attempt_count:
        words.append(f"({attempts(event)})")
    reason = error_line(event).replace("`", "'")
    if reason:
        words.append(f"`{_slack_plain(reason[:2900])}`")
    words.append(f"_{moment(event.timestamp)}_")
    return " ".join(words)


def _slack_plain(text: str) -> str:
    """`<!channel>` in an error message shall not call everybody."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _target(address: Address, scheme: str) -> str:
    query = f"?{address.query}" if address.query else ""
    return f"{scheme}://{address.server()}{address.path}{query}"


def _headers(address: Address) -> dict[str, str]:
    headers = basic_login(address.user, address.password)
    for written in address.options.get("header", ()):
        name, colon, value = written.partition(":")
        if not colon or not _TOKEN.fullmatch(name.strip()) or not value.isprintable():
            raise InvalidConfig("A header of this URL cannot be read.", where=address.shown, fix="header=Name:value")
        headers[name.strip()] = value.strip()
        remember_secret(value.strip())
    return headers


def _latin(text: str) -> str:
    """Headers hold no more than this."""
    return "".join(letter for letter in text if letter.isascii() and letter.isprintable())
