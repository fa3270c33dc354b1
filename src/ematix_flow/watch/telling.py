"""Telling others how runs ended: alerts, once whoever reports them and however often, and numbers.

An alert has a key in the run log, made of its kind, the pipeline, the slot or run, the attempt, and the alerter. Who
writes the key first sends the alert. An alerter with `realert_after` has one key per kind and pipeline instead, which
is free again after that time: a pipeline that fails each minute is told of once an hour, one that is still down too. A
recovery frees the keys. When nobody can be asked, the alert is sent: better twice than never.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import Any
from urllib.parse import quote

from ematix_flow.contracts.orchestration import Alerter, AlertEvent, AlertKind, DispatchFailedEvent, MetricsSink, RunLog
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError
from ematix_flow.watch.alert_text import moment, one_line, scrubbed
from ematix_flow.watch.alerters import send
from ematix_flow.watch.metrics import DetailedMetrics, NullMetrics, rows_of
from ematix_flow.watch.traces import flush_traces

log = logging.getLogger(__name__)

_WITHOUT_OCCASION_S = 3600.0
_LONGEST_WORD = 120
_LATCHED = "latched"
"""A pipeline is given up once, until somebody clears it or it recovers: there is one occasion, whoever tells of it."""
_NEVER = "never"
"""The occasion of a breach by a pipeline that never succeeded."""
_OF_RUNS: tuple[AlertKind, ...] = ("failed", "gave_up", "lost", "dispatch_failed", "quality_failed")
_OF_FRESHNESS: tuple[AlertKind, ...] = ("sla_breached",)


class Telling:
    """What the orchestrator and its workers say to the outside. No method raises, and none waits long.

    Args:
        alerters: Who is told.
        metrics: Where numbers go; nowhere by default.
        log: The run log, which remembers what has been told.
        realert_after_s: For alerters that say nothing themselves: tell again of what is still wrong only after this
            time. None: of every failed attempt.
        clock: What time it is.
    """

    def __init__(
        self,
        alerters: Sequence[Alerter] = (),
        metrics: MetricsSink | None = None,
        log: RunLog | None = None,
        *,
        realert_after_s: float | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.alerters = _named(alerters)
        self.metrics: MetricsSink = metrics or NullMetrics()
        self._log = log
        self._realert_after_s = realert_after_s
        self._clock = clock
        self._told = _ToldHere()
        self._warned: set[str] = set()

    # ── how a run ended ──

    def succeeded(
        self,
        pipeline: str,
        *,
        run_id: str = "",
        slot: datetime | None = None,
        failures: int = 0,
        result: Any = None,
        took_s: float | None = None,
        at: datetime | None = None,
    ) -> None:
        """A run went well; after so many failures in a row that is a recovery."""
        at = at or self._clock()
        self._tell_numbers(pipeline, "success", took_s, attempt_count=0, rows=rows_of(result), succeeded_at=at)
        if failures:
            self.recovered(pipeline, run_id=run_id, slot=slot, attempt_count=failures + 1, at=at)

    def failed(
        self,
        pipeline: str,
        error: BaseException | str,
        *,
        error_type: str = "",
        run_id: str = "",
        slot: datetime | None = None,
        attempt_count: int = 1,
        max_attempts: int = 0,
        gave_up: bool = False,
        took_s: float | None = None,
        at: datetime | None = None,
    ) -> None:
        """An attempt failed; with `gave_up` it was the last, which is told in addition.

        Args:
            error_type: The name of its type, where the error itself is only text.
        """
        self._tell_numbers(pipeline, "failure", took_s, attempt_count=attempt_count)
        facts: dict[str, Any] = {
            "error_type": error_type,
            "run_id": run_id,
            "attempt_count": attempt_count,
            "max_attempts": max_attempts,
        }
        self._alert(self._failure("failed", pipeline, error, gave_up=gave_up, at=at, **facts), slot)
        if gave_up:
            self.gave_up(pipeline, error, slot=slot, at=at, **facts)

    def gave_up(
        self,
        pipeline: str,
        error: BaseException | str = "",
        *,
        error_type: str = "",
        run_id: str = "",
        slot: datetime | None = None,
        attempt_count: int = 0,
        max_attempts: int = 0,
        at: datetime | None = None,
    ) -> None:
        """Nothing is tried any more. May be repeated while that is so: alerters with `realert_after` remind of it."""
        event = self._failure(
            "gave_up",
            pipeline,
            error,
            error_type=error_type,
            run_id=run_id,
            attempt_count=attempt_count,
            max_attempts=max_attempts,
            gave_up=True,
            at=at,
        )
        self._alert(event, slot, occasion=_LATCHED)

    def _failure(
        self,
        kind: AlertKind,
        pipeline: str,
        error: BaseException | str,
        *,
        error_type: str,
        at: datetime | None,
        **facts: Any,
    ) -> AlertEvent:
        return AlertEvent(
            kind=kind,
            pipeline=pipeline,
            timestamp=at or self._clock(),
            error_message=_message(error),
            error_type=error_type or _type(error),
            **facts,
        )

    def recovered(
        self,
        pipeline: str,
        *,
        run_id: str = "",
        slot: datetime | None = None,
        attempt_count: int = 0,
        at: datetime | None = None,
    ) -> None:
        """The first success after failures; `attempt_count` is the attempt that went well."""
        event = AlertEvent("recovered", pipeline, at or self._clock(), attempt_count=attempt_count, run_id=run_id)
        self._alert(event, slot, is_over=_OF_RUNS)

    def lost(
        self,
        pipeline: str,
        *,
        run_id: str = "",
        slot: datetime | None = None,
        attempt_count: int = 0,
        is_repeated: bool = False,
        at: datetime | None = None,
    ) -> None:
        """The worker of a run was not heard of in time."""
        then = "it is tried again" if is_repeated else "it is not tried again by itself"
        event = AlertEvent(
            kind="lost",
            pipeline=pipeline,
            timestamp=at or self._clock(),
            error_message=f"the worker was not heard of in time; {then}",
            error_type="WorkerLost",
            attempt_count=attempt_count,
            run_id=run_id,
        )
        self._alert(event, slot)

    def dispatch_failed(
        self,
        pipeline: str,
        error: BaseException | str,
        *,
        slot: datetime | None = None,
        run_id: str = "",
        at: datetime | None = None,
    ) -> None:
        """A run could not be started: counted every time, told once for its slot, or once an hour without one."""
        self.count(pipeline, "dispatch_failed")
        event = DispatchFailedEvent(
            pipeline, _type(error), _message(error), timestamp=at or self._clock(), run_id=run_id
        )
        self._alert(event, slot)

    def missed(
        self, pipeline: str, why: str, *, count: int = 1, last: datetime | None = None, at: datetime | None = None
    ) -> None:
        """So many scheduled times passed while nobody looked; `last` makes one such stretch another than the next."""
        self._tell_numbers(pipeline, "missed", times=count)
        self._alert(AlertEvent("missed", pipeline, at or self._clock(), error_message=why), last)

    def quality_failed(
        self, pipeline: str, why: str, *, run_id: str = "", slot: datetime | None = None, at: datetime | None = None
    ) -> None:
        """A run went well, its rows did not."""
        event = AlertEvent("quality_failed", pipeline, at or self._clock(), error_message=why, run_id=run_id)
        self._alert(event, slot)

    # ── how old data is ──

    def sla_breached(
        self, pipeline: str, why: str, *, since: datetime | None = None, at: datetime | None = None
    ) -> None:
        """Data is older than promised; `since` is its last success, and makes one breach another than the next."""
        event = AlertEvent("sla_breached", pipeline, at or self._clock(), error_message=why)
        self._alert(event, since, occasion="" if since is not None else _NEVER)

    def fresh_again(self, pipeline: str, *, since: datetime | None = None, at: datetime | None = None) -> None:
        """Data is as fresh as promised again; `since` is the success that made it so."""
        event = AlertEvent("recovered", pipeline, at or self._clock(), error_message="fresh again")
        self._alert(event, since, is_over=_OF_FRESHNESS)

    # ── what is only counted ──

    def count(self, pipeline: str, outcome: str) -> None:
        """One more of `pipeline_runs_total`: dispatched, lease_expired, or `tick_error` of the scheduler itself."""
        self._tell_numbers(pipeline, outcome)

    def skipped(self, pipeline: str) -> None:
        """A due pipeline was not run."""
        self.count(pipeline, "skipped")

    def close(self) -> None:
        """Send what is left; may be called twice."""
        self._quietly("metrics", self.metrics.close)
        self._quietly("traces", flush_traces)

    # ── numbers ──

    def _tell_numbers(
        self,
        pipeline: str,
        outcome: str,
        took_s: float | None = None,
        *,
        attempt_count: int | None = None,
        rows: Mapping[str, int] | None = None,
        succeeded_at: datetime | None = None,
        times: int = 1,
    ) -> None:
        def tell(sink: MetricsSink) -> None:
            for _ in range(times):
                sink.inc_runs(pipeline, outcome)
            if took_s is not None:
                sink.observe_duration(pipeline, took_s)
            if attempt_count is not None:
                sink.set_attempt(pipeline, attempt_count)
            if isinstance(sink, DetailedMetrics):
                for action, number in (rows or {}).items():
                    sink.add_rows(pipeline, action, number)
                if succeeded_at is not None:
                    sink.set_last_success(pipeline, succeeded_at.timestamp())
                sink.flush()

        self._quietly("metrics", lambda: tell(self.metrics))

    # ── alerts ──

    def _alert(
        self, event: AlertEvent, slot: datetime | None, *, is_over: Sequence[AlertKind] = (), occasion: str = ""
    ) -> None:
        event = scrubbed(event)
        if not occasion:
            occasion = event.run_id if slot is None else slot.astimezone(timezone.utc).isoformat()
        mine: dict[str, Alerter] = {}
        for who, alerter in self.alerters.items():
            again_after_s = getattr(alerter, "realert_after_s", None) or self._realert_after_s
            if is_over:  # a recovery ends what was told: there is nothing to hold back
                key, again_after_s = _key(event, occasion or moment(event.timestamp), who), None
            elif again_after_s is not None or not occasion:
                key, again_after_s = _key(event, None, who), again_after_s or _WITHOUT_OCCASION_S
            else:
                key = _key(event, occasion, who)
            if self._is_first(key, event.timestamp, again_after_s):
                mine[key] = alerter
        undelivered = send(event, tuple(mine.values()))
        for key, alerter in mine.items():
            if any(alerter is other for other in undelivered):
                self._forget(key)  # the next failure may tell it
        for kind in is_over:
            self._forget(_prefix(kind, event.pipeline))

    def _is_first(self, key: str, at: datetime, again_after_s: float | None) -> bool:
        if self._log is not None:
            try:
                return self._log.first_alert(key, at, realert_after_s=again_after_s)
            except Exception as exc:  # a run log that is down shall not keep an alert back
                self._warn("alerts", f"the run log does not say whether somebody sent this alert already: {exc}")
        return self._told.first_alert(key, at, realert_after_s=again_after_s)

    def _forget(self, prefix: str) -> None:
        self._told.forget_alerts(prefix)
        if self._log is not None and self.alerters:
            try:
                self._log.forget_alerts(prefix)
            except Exception as exc:
                self._warn("alerts", f"the run log does not forget an alert that is over: {exc}")

    def _quietly(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as exc:  # numbers and spans never stop a run
            why = exc.message if isinstance(exc, FlowError) else f"{type(exc).__name__}: {exc}"
            self._warn(what, f"{what} are not complete: {why}")

    def _warn(self, what: str, text: str) -> None:
        """Once for each kind of trouble; the rest is for those who look closely."""
        level = logging.DEBUG if what in self._warned else logging.WARNING
        self._warned.add(what)
        log.log(level, "%s", scrub(one_line(text)))


def _message(error: BaseException | str) -> str:
    return error.message if isinstance(error, FlowError) else str(error)


def _type(error: BaseException | str) -> str:
    return "" if isinstance(error, str) else type(error).__name__


class _ToldHere:
    """What this process has told, for as long as it lives: what is left without a run log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at: dict[str, datetime] = {}

    def first_alert(self, key: str, at: datetime, *, realert_after_s: float | None = None) -> bool:
        with self._lock:
            before = self._at.get(key)
            if before is not None and (realert_after_s is None or at < before + timedelta(seconds=realert_after_s)):
                return False
            self._at[key] = at
            return True

    def forget_alerts(self, prefix: str) -> None:
        with self._lock:
            self._at = {key: at for key, at in self._at.items() if not key.startswith(prefix)}


def told_of_failures(pipeline: str) -> tuple[str, ...]:
    """How keys begin that say that attempts of a pipeline failed; whoever gives it new ones forgets them."""
    return tuple(_prefix(kind, pipeline) for kind in ("failed", "gave_up", "lost"))


def _key(event: AlertEvent, occasion: str | None, who: str) -> str:
    """The key of one alert for one alerter; without an occasion that of all of its kind and pipeline."""
    when = "*:*" if occasion is None else f"{_word(occasion)}:{event.attempt_count}"
    return f"{_prefix(event.kind, event.pipeline)}{when}:{who}:"


def _prefix(kind: str, pipeline: str) -> str:
    return f"{kind}:{_word(pipeline)}:"


def _word(text: str) -> str:
    """A part of a key: no colon in it, and short enough for every store."""
    word = quote(text, safe="")
    return word if len(word) <= _LONGEST_WORD else sha256(text.encode()).hexdigest()


def _named(alerters: Sequence[Alerter]) -> dict[str, Alerter]:
    """Alerters by a name that is the same in every process that was given the same ones."""
    seen: Counter[str] = Counter()
    named: dict[str, Alerter] = {}
    for alerter in alerters:
        kind = type(alerter)
        name = _word(str(getattr(alerter, "identity", None) or f"{kind.__module__}.{kind.__qualname__}"))
        seen[name] += 1
        named[name if seen[name] == 1 else f"{name}#{seen[name]}"] = alerter
    return named
