"""Pipelines that promise how fresh their data is, looked at once by `flow freshness-check`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from ematix_flow.contracts.orchestration import RunLog
from ematix_flow.declare import registry
from ematix_flow.declare.pipeline import Pipeline, seconds
from ematix_flow.quality.freshness import FreshnessState, evaluate_freshness
from ematix_flow.watch.telling import Telling

_KEY = "freshness-breached:"


def declared_slas() -> dict[str, timedelta]:
    """Every `freshness_sla=` of the declared pipelines.

    Raises:
        InvalidDeclaration: One is no duration.
    """
    slas = {}
    for entry in registry.current().pipelines():
        sla = entry.thing.spec.quality.get("freshness_sla") if isinstance(entry.thing, Pipeline) else None
        if sla is not None:
            slas[entry.name] = seconds("freshness_sla", sla)
    return slas


def check_freshness(
    slas: Mapping[str, timedelta], log: RunLog, telling: Telling, *, now: datetime
) -> list[FreshnessState]:
    """Where every promise stands. A breach is told once, its end too, whoever looks and however often.

    An alerter that did not confirm a breach, or wants to be reminded (`realert_after`), hears of it at a later look.

    Args:
        log: says when pipelines succeeded, and remembers which breaches stand.
        telling: hears of breaches and of their end.
    """
    recorded = log.last_runs()
    states = []
    for pipeline, sla in sorted(slas.items()):
        last = recorded[pipeline].last_success_at if pipeline in recorded else None
        state = evaluate_freshness(pipeline=pipeline, last_success=_later(last, pipeline, log), sla=sla, now=now)
        _tell(state, log, telling)
        states.append(state)
    return states


def _later(known: datetime | None, pipeline: str, log: RunLog) -> datetime | None:
    """The last success: of runs under a schedule, or of one by hand, which only the history has."""
    records, _ = log.list_runs(pipeline=pipeline, status="succeeded", limit=1)
    found = [moment for moment in (known, *(record.finished_at for record in records)) if moment is not None]
    return max(found, default=None)


def _tell(state: FreshnessState, log: RunLog, telling: Telling) -> None:
    key, at = f"{_KEY}{state.pipeline}", state.evaluated_at
    is_new = log.first_alert(key, at)  # only remembers that a breach stands; who hears of it is `telling`'s to say
    if state.state == "breached":
        lag = "it never succeeded" if state.lag_seconds is None else f"its last success is {state.lag_seconds} s ago"
        why = f"{lag}, promised are {state.sla_seconds:g} s"
        telling.sla_breached(state.pipeline, why, since=state.last_success, at=at)
        return
    if not is_new:
        telling.fresh_again(state.pipeline, since=state.last_success, at=at)
    log.forget_alerts(key)
