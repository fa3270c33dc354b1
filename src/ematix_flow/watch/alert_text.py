"""An alert in words and as data. Whatever leaves this process passes here first, and loses its secrets here."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from ematix_flow.contracts.orchestration import AlertEvent
from ematix_flow.declare.redaction import scrub


def scrubbed(event: AlertEvent) -> AlertEvent:
    """The event without secrets in its texts."""
    return replace(event, error_message=scrub(event.error_message), error_type=scrub(event.error_type))


def facts(event: AlertEvent) -> dict[str, Any]:
    """The whole event as JSON knows it; the body of a webhook."""
    event = scrubbed(event)
    return {
        "kind": event.kind,
        "pipeline": event.pipeline,
        "timestamp": moment(event.timestamp),
        "error_message": event.error_message,
        "error_type": event.error_type,
        "attempt_count": event.attempt_count,
        "max_attempts": event.max_attempts,
        "gave_up": event.gave_up,
        "run_id": event.run_id,
    }


def sentence(event: AlertEvent) -> str:
    """The event on one line.

    >>> at = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)
    >>> sentence(AlertEvent("failed", "orders", at, "disk full", "OSError", attempt_count=1, max_attempts=3))
    'failed: orders (attempt 1/3): OSError: disk full'
    """
    reason = error_line(event)
    if event.kind == "failed":
        return f"failed: {event.pipeline} ({attempts(event)}): {reason}"
    if event.kind == "gave_up":
        return f"gave_up: {event.pipeline} after {event.attempt_count} attempts: {reason}"
    if event.kind == "recovered" and event.attempt_count:
        return f"recovered: {event.pipeline} (after {event.attempt_count} attempts)"
    return f"{event.kind}: {event.pipeline}: {reason}" if reason else f"{event.kind}: {event.pipeline}"


def headline(event: AlertEvent) -> str:
    """What happened, without why: the subject of a mail."""
    said = {
        "failed": f"failed ({attempts(event)})",
        "gave_up": f"gave up after {event.attempt_count} attempts",
        "recovered": "recovered",
        "quality_failed": "failed its quality checks",
        "sla_breached": "is not fresh",
        "dispatch_failed": "could not be started",
        "lost": "was lost by its worker",
        "missed": "missed scheduled times",
    }.get(event.kind, event.kind)
    return one_line(f"{event.pipeline} {said}")


def error_line(event: AlertEvent) -> str:
    """`Type: message`, on one line."""
    event = scrubbed(event)
    return one_line(": ".join(part for part in (event.error_type, event.error_message) if part))


def attempts(event: AlertEvent) -> str:
    """`attempt 1/3`; without a known budget `attempt 1`."""
    of = f"/{event.max_attempts}" if event.max_attempts else ""
    return f"attempt {event.attempt_count}{of}"


def moment(at: datetime) -> str:
    """An instant in UTC, to the second. One without a zone is UTC.

    >>> moment(datetime(2026, 3, 1, 6, 0, 0))
    '2026-03-01T06:00:00Z'
    """
    at = at.replace(tzinfo=timezone.utc) if at.tzinfo is None else at.astimezone(timezone.utc)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def one_line(text: str) -> str:
    """Text without line breaks: errors have many, subjects and log lines one."""
    return " ".join(text.split())
