"""Window: alerters, and what they are told, as documented under this path."""

from __future__ import annotations

from ematix_flow.contracts.orchestration import Alerter, AlertEvent, DispatchFailedEvent
from ematix_flow.watch.alert_http import SlackAlerter, WebhookAlerter, signature
from ematix_flow.watch.alert_mail import MailAlerter
from ematix_flow.watch.alert_pagerduty import PagerDutyAlerter
from ematix_flow.watch.alerters import (
    StdoutAlerter,
    active_alerters,
    clear_alerters,
    from_url,
    register_alerter,
    send,
)

__all__ = [
    "AlertEvent",
    "Alerter",
    "DispatchFailedEvent",
    "MailAlerter",
    "PagerDutyAlerter",
    "SlackAlerter",
    "StdoutAlerter",
    "WebhookAlerter",
    "active_alerters",
    "clear_alerters",
    "from_url",
    "register_alerter",
    "send",
    "signature",
]
