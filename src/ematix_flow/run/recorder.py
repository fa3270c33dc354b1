"""Writes one run into the run log while it happens. A store that fails is one warning; the run goes on without it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ematix_flow.contracts.orchestration import RunEvent
from ematix_flow.contracts.runtime import RunHistory, RunKind, RunRecord, RunStatus, StepStatus
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError
from ematix_flow.run.process import this_process
from ematix_flow.watch.metrics import reported_rows

log = logging.getLogger(__name__)

_SILENCE_S = 30.0
_LOOK_AGAIN_S = 0.5
_ROW_COUNTS = ("rows_inserted", "rows_updated", "rows_unchanged", "rows_closed", "rows_deleted")


class RunRecorder:
    """The record of one run: `running` before its body starts, its steps as they end, its outcome.

    The runner makes one per run and calls `start`, `step` and `finish`; it is a `RunObserver` too, so that steps reach
    it the same way they reach a display. No method ever raises because of the store.

    Args:
        history: where to write; None records nothing.
        pipeline: the pipeline's name.
        run_id: the run's own id, the same that its rows carry in `_batch_id`.
        patience_s: how long the end of the run waits for a store that does not answer.
    """

    def __init__(
        self,
        history: RunHistory | None,
        pipeline: str,
        run_id: str,
        *,
        attempt: int = 1,
        kind: RunKind = "batch",
        extras: Mapping[str, Any] | None = None,
        patience_s: float = 0.0,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._history = history
        self._pipeline = pipeline
        self._run_id = run_id
        self._attempt = attempt
        self._kind = kind
        self._patience_s = patience_s
        self._clock = clock
        self._started_at = clock()
        self._steps: dict[str, dict[str, Any]] = {}
        self._silent_until = 0.0
        self._mark: str | None = None
        self._failed_mark: str | None = None
        self._extras: dict[str, Any] = {**(extras or {}), "process": this_process().to_dict()}

    def start(self) -> None:
        """Write the `running` record; call it before anything else happens."""
        self._started_at = self._clock()
        self._write("running")

    def planned(self, headline: str, route: str) -> None:
        """Remember what a target's plan says in words; written with the next step."""
        self._extras.setdefault("plans", []).append({"headline": scrub(headline), "route": scrub(route)})

    def step(
        self,
        name: str,
        status: StepStatus,
        detail: str = "",
        duration_ms: float | None = None,
        *,
        depends_on: Sequence[str] = (),
        is_news: bool = True,
    ) -> None:
        """A step begins or ended. Steps keep the order in which they were first named.

        What is no news is written with the next that is: each writing is a round trip to the store.
        """
        self.expect(name, depends_on=depends_on)
        _change(self._steps[name], status, detail, duration_ms)
        if status == "failed" and self._failed_mark is None:
            self._failed_mark = self._mark  # of several targets the first that failed
        if is_news:
            self._write("running")
        self._add_event(name, status, scrub(detail), duration_ms)

    def expect(self, name: str, *, depends_on: Sequence[str] = ()) -> None:
        """A step of which only its place is known so far; written with the next one that begins or ends."""
        waiting = {"name": name, "depends_on": list(depends_on), "duration_ms": None, "status": "pending"}
        self._steps.setdefault(name, waiting)

    def stage(self, of: str, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        """What goes on inside a step that is under way."""
        stages = self._steps[of].setdefault("stages", [])
        stage = next((one for one in stages if one["name"] == name), None)
        if stage is None:
            stage = {"name": name, "duration_ms": None}
            stages.append(stage)
        _change(stage, status, detail, duration_ms)
        # The step has just said that it began, and after the end of a stage comes another one, or that of the step.
        if status == "running" and len(stages) > 1:
            self._write("running")
        self._add_event(f"{of}/{name}", status, scrub(detail), duration_ms)

    def _add_event(self, step: str, status: StepStatus, detail: str, duration_ms: float | None) -> None:
        """Append to the run's events, in stores that keep them."""
        add = getattr(self._history, "add_event", None)
        if add is None or time.monotonic() < self._silent_until:
            return
        try:
            add(RunEvent(self._run_id, self._clock(), step, status, detail, duration_ms))
        except Exception as exc:  # as for records: the store never stops a run
            log.debug("an event of run '%s' is not recorded: %s", self._run_id, scrub(str(exc)))

    def note(self, facts: Mapping[str, Any]) -> None:
        """Facts of a run that is under way; they replace earlier ones of the same name."""
        self._extras.update(_plain(facts))
        self._write("running")

    def progress(self, stage: str, rows: int, total: int | None = None) -> None:
        """Rows on their way are not history."""

    def resumes_at(self, watermark: str | None) -> None:
        """Remember where a load begins: should the run fail, its record says where the next one goes on."""
        self._mark = watermark

    def finish(self, status: RunStatus, result: Any = None, error: BaseException | str | None = None) -> None:
        """Write how it ended. Steps that were under way share the run's fate, steps never begun were skipped."""
        for step in self._steps.values():
            end_step(step, "succeeded" if status == "succeeded" else "failed")
        if isinstance(result, Mapping):  # a bare function may have returned anything
            self._extras.update(_counts(result))
            self._extras["result"] = _plain(result)
        self._write(status, error=_error_text(error), finished=True)

    def _write(self, status: RunStatus, *, error: str | None = None, finished: bool = False) -> None:
        if self._history is None or (time.monotonic() < self._silent_until and not finished):
            return
        steps = copied_steps(self._steps.values())
        failed_step = next((step["name"] for step in steps if step["status"] == "failed"), None)
        record = RunRecord(
            run_id=self._run_id,
            pipeline=self._pipeline,
            status=status,
            started_at=self._started_at,
            finished_at=max(self._clock(), self._started_at) if finished else None,
            attempt=self._attempt,
            failed_step=failed_step if finished else None,
            failed_watermark=self._failed_mark or self._mark if finished and status != "succeeded" else None,
            error_summary=error,
            kind=self._kind,
            extras={**self._extras, "steps": steps},
        )
        try:
            self._put(self._history, record, patience_s=self._patience_s if finished else 0.0)
        except Exception as exc:  # the promise of this class: the store never stops a run
            if not self._silent_until:
                reason = " ".join(scrub(str(exc)).split())
                log.warning("run '%s' goes on without history: %s", self._run_id, reason)
            # The end of the run is tried in any case: the store may be back.
            self._silent_until = time.monotonic() + _SILENCE_S

    def _put(self, history: RunHistory, record: RunRecord, *, patience_s: float) -> None:
        """Write it, waiting so long for a store that comes back; raises what the store raised last."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return history.record_run_record(record)
            except Exception:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_LOOK_AGAIN_S)


def copied_steps(steps: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The steps of a record, to be changed without changing the record."""
    return [
        {**step, **({"stages": [dict(stage) for stage in step["stages"]]} if "stages" in step else {})}
        for step in steps
    ]


def end_step(step: dict[str, Any], status: StepStatus) -> None:
    """The run is over: a step that was under way, and its stages, end so; one that never began was skipped."""
    for one in (step, *step.get("stages", ())):
        if one.get("status") == "running":
            one["status"] = status
        elif one.get("status") == "pending":
            one["status"] = "skipped"


def _change(step: dict[str, Any], status: StepStatus, detail: str, duration_ms: float | None) -> None:
    step["status"] = status
    if duration_ms is not None:
        step["duration_ms"] = round(duration_ms, 3)
    if detail:
        step["detail"] = scrub(detail)


def _counts(result: Mapping[str, Any]) -> dict[str, int]:
    """Row counts of a run: its own, or the sums over its targets."""
    counts: dict[str, int] = {}
    parts = result.get("results") if isinstance(result.get("results"), Mapping) else None
    nested = [part for part in (parts or result).values() if isinstance(part, Mapping)]
    for one in [result, *nested]:
        for name in _ROW_COUNTS:
            if isinstance(one.get(name), int):
                counts[name] = counts.get(name, 0) + one[name]
    reported = reported_rows(result)
    return counts if reported is None else {**counts, "rows": reported}


def _plain(value: Any) -> Any:
    """Results are mappings that are no dicts; a record holds only what JSON knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, str):
        return scrub(value)
    return value if value is None or isinstance(value, bool | int | float) else scrub(str(value))


def _error_text(error: BaseException | str | None) -> str | None:
    if error is None:
        return None
    if isinstance(error, str):
        return scrub(error)
    text = str(error) if isinstance(error, FlowError) else f"{type(error).__name__}: {error}".rstrip(": ")
    return scrub(text)
