"""When a pipeline runs and how often it is tried again: cron text and retry policy, checked where they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ematix_flow.errors import InvalidDeclaration, closest, listed

Backoff = Literal["fixed", "linear", "exponential"]


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How a failed run is repeated. Durations are seconds."""

    max_attempts: int = 1
    backoff: Backoff = "fixed"
    base_secs: float = 0
    max_backoff_secs: float | None = None
    backoff_factor: float = 2.0
    jitter: float = 0.0
    max_total_secs: float | None = None
    retry_on: tuple[Any, ...] = ()
    explicit: bool = False


_SYNONYMS = {"backoff_seconds": "base_secs"}


def retry_policy(pipeline: str, written: Mapping[str, Any] | None) -> RetryPolicy:
    """The policy behind `retry={...}`, in both documented spellings.

    >>> retry_policy("p", {"max_attempts": 5, "backoff_seconds": 30, "backoff_factor": 2.0}).backoff
    'exponential'
    """
    if written is None:
        return RetryPolicy()
    known = [name for name in RetryPolicy.__dataclass_fields__ if name != "explicit"] + list(_SYNONYMS)
    values: dict[str, Any] = {}
    for key, value in written.items():
        if key not in known:
            raise InvalidDeclaration(
                f"Pipeline '{pipeline}': unknown retry key '{key}'.",
                fix=closest(key, known) or f"known: {listed(known)}",
            )
        name = _SYNONYMS.get(key, key)
        if name in values:
            raise InvalidDeclaration(f"Pipeline '{pipeline}': retry gives '{name}' twice, as '{key}' too.")
        values[name] = value
    if "backoff_seconds" in written:
        values.setdefault("backoff", "exponential")
    attempts = values.get("max_attempts", 1)
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise InvalidDeclaration(f"Pipeline '{pipeline}': retry max_attempts must be a whole number of at least 1.")
    if values.get("backoff", "fixed") not in ("fixed", "linear", "exponential"):
        raise InvalidDeclaration(f"Pipeline '{pipeline}': retry backoff must be 'fixed', 'linear' or 'exponential'.")
    for key in ("base_secs", "max_backoff_secs", "backoff_factor", "jitter", "max_total_secs"):
        value = values.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise InvalidDeclaration(f"Pipeline '{pipeline}': retry {key} must be a number of at least 0.")
    if "retry_on" in values:
        values["retry_on"] = tuple(values["retry_on"])
    return RetryPolicy(**values, explicit=True)


def check_schedule(pipeline: str, schedule: str | None, timezone: str | None) -> None:
    """Refuse a cron expression or a time zone that no clock can follow, naming the pipeline."""
    if schedule is not None:
        from croniter import croniter

        if not isinstance(schedule, str) or not croniter.is_valid(schedule):
            raise InvalidDeclaration(
                f"Pipeline '{pipeline}': {schedule!r} is not a cron expression.",
                fix='five fields: minute hour day-of-month month day-of-week, e.g. "*/5 * * * *" or "0 2 * * MON-FRI"',
            )
    if timezone is not None:
        import zoneinfo

        try:
            zoneinfo.ZoneInfo(str(timezone))
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            raise InvalidDeclaration(
                f"Pipeline '{pipeline}': '{timezone}' is not a time zone.",
                fix="use an IANA name such as 'Europe/Berlin'",
            ) from None
