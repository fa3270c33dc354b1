"""Incidents at PagerDuty, by its Events API v2: a failure opens one per pipeline, a recovery resolves it."""

from __future__ import annotations

import hashlib
import json
import socket
from typing import Any

from ematix_flow.contracts.orchestration import AlertEvent
from ematix_flow.declare.redaction import remember_secret
from ematix_flow.errors import InvalidConfig, listed
from ematix_flow.watch.addresses import read_address
from ematix_flow.watch.alert_base import COMMON_OPTIONS, UrlAlerter
from ematix_flow.watch.alert_text import facts, moment, sentence
from ematix_flow.watch.posting import exchange

ENDPOINT = "https://events.pagerduty.com/v2/enqueue"
SEVERITIES = ("critical", "error", "warning", "info")
TIMEOUT_S = 5.0

_LONGEST_SUMMARY = 1024
_LONGEST_KEY = 255
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


class PagerDutyAlerter(UrlAlerter):
    """Opens and resolves incidents.

    Args:
        url: `pagerduty://<routing key>[?service=…&severity=…]`. `severity` is that of failures; giving up is always
            critical. `endpoint=` names another address of the API, that of the European service region for example.
    """

    def __init__(self, url: str) -> None:
        address = read_address(url, ("service", "severity", "endpoint", *COMMON_OPTIONS))
        super().__init__(address, timeout_s=TIMEOUT_S)
        self._key = address.host
        if not self._key:
            raise InvalidConfig("This URL names no routing key.", where=address.shown, fix="pagerduty://<routing key>")
        remember_secret(self._key)
        self._service = address.option("service") or "ematix-flow"
        self._severity = address.option("severity") or "error"
        if self._severity not in SEVERITIES:
            raise InvalidConfig(
                f"severity={self._severity} is unknown.", where=address.shown, fix=f"one of {listed(SEVERITIES)}"
            )
        self._endpoint = address.option("endpoint") or ENDPOINT
        there = read_address(self._endpoint)
        if there.scheme != "https" and there.host not in _THIS_MACHINE:
            raise InvalidConfig("The routing key would be sent in the clear.", where=address.shown, fix="use https")

    def notify(self, event: AlertEvent) -> None:
        """Send it. Raises ConnectionFailed."""
        body = json.dumps(self._message(event), ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json"}
        exchange("POST", self._endpoint, body, headers, timeout_s=self.timeout_s, shown=self.shown)

    def _message(self, event: AlertEvent) -> dict[str, Any]:
        message: dict[str, Any] = {"routing_key": self._key, "dedup_key": _dedup_key(self._service, event.pipeline)}
        if event.kind == "recovered":
            return {**message, "event_action": "resolve"}
        payload = {
            "summary": sentence(event)[:_LONGEST_SUMMARY],
            "source": socket.gethostname() or "ematix-flow",
            "severity": "critical" if event.kind == "gave_up" else self._severity,
            "timestamp": moment(event.timestamp),
            "component": event.pipeline,
            "group": self._service,
            "class": event.kind,
            "custom_details": facts(event),
        }
        return {**message, "event_action": "trigger", "payload": payload}


def _dedup_key(service: str, pipeline: str) -> str:
    """What makes several alerts one incident. PagerDuty takes no more than 255 letters."""
    key = f"{service}:{pipeline}"
    return key if len(key) <= _LONGEST_KEY else hashlib.sha256(key.encode()).hexdigest()
