"""How fresh data is, against what was promised: the last success of a pipeline and its `freshness_sla=`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

Freshness = Literal["healthy", "warning", "breached"]
_WARNING_SHARE = 0.8


@dataclass(frozen=True)
class FreshnessState:
    """One pipeline at one moment. `lag_seconds` is None when it never succeeded."""

    pipeline: str
    sla_seconds: float
    lag_seconds: int | None
    state: Freshness
    last_success: datetime | None
    evaluated_at: datetime

    def to_dict(self) -> dict[str, Any]:
        """The state as data, instants still as instants."""
        return asdict(self)


def evaluate_freshness(
    *, pipeline: str, last_success: datetime | None, sla: timedelta | float, now: datetime | None = None
) -> FreshnessState:
    """Compare a pipeline's last success with its promise. Instants without a zone are UTC.

    >>> noon = datetime(2026, 3, 1, 12)
    >>> evaluate_freshness(pipeline="p", last_success=noon, sla=60, now=noon + timedelta(seconds=50)).state
    'warning'
    """
    allowed = sla.total_seconds() if isinstance(sla, timedelta) else float(sla)
    at = _utc(now) if now is not None else datetime.now(timezone.utc)
    if last_success is None:
        return FreshnessState(pipeline, allowed, None, "breached", None, at)
    lag = (at - _utc(last_success)).total_seconds()
    state: Freshness = "breached" if lag > allowed else "warning" if lag >= _WARNING_SHARE * allowed else "healthy"
    return FreshnessState(pipeline, allowed, int(lag), state, _utc(last_success), at)


def _utc(moment: datetime) -> datetime:
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
