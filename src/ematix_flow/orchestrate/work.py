"""One claimed pipeline, done in this process: its slot begins, its body runs under a heartbeat, its end is noted.

`flow run-due`, `flow run --claim-token` and warm workers all come here, so that a run means the same everywhere.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any
from uuid import uuid4

from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.orchestration import AttemptState, RunLog, Slot
from ematix_flow.contracts.run_context import RunContext, running
from ematix_flow.contracts.runtime import RunHistory, RunObserver, RunRecord
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError, InvalidConfig, RunCancelled, StaleLease, StepFailed
from ematix_flow.orchestrate.heartbeat import Heartbeat
from ematix_flow.orchestrate.outcomes import Outcome, cause_of, error_words
from ematix_flow.plan.retries import after_failure
from ematix_flow.run.registered import Orchestrated
from ematix_flow.run.runlogs.open import use_run_log
from ematix_flow.run.runner import run_function, run_pipeline, run_transform
from ematix_flow.watch.run_output import kept_output
from ematix_flow.watch.telling import Telling

log = logging.getLogger(__name__)

PATIENCE_S = 15.0
"""How long the end of a run waits for a run log that does not answer."""
_PAUSE_LOOK_S = 0.5
_NOT_MINE = "the claim went to somebody else before the end could be written down"


def utc_now() -> datetime:
    """The time of this host."""
    return datetime.now(timezone.utc)


def slot_key(slot: datetime) -> str:
    """The logical run of a slot: targets apply it once.

    >>> slot_key(datetime(2026, 3, 1, 6, tzinfo=timezone.utc))
    '2026-03-01T06:00:00Z'
    """
    text = slot.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return f"{text.removesuffix('000000').removesuffix('.')}Z"


@dataclass(frozen=True)
class Lease:
    """A claim that this process holds, and how it keeps it."""

    token: str
    lease_s: float
    heartbeat_s: float


class Work:
    """Does claimed work over one run log.

    Args:
        clock: The time that attempts and their waits are measured by; another one than the host's when somebody asks
            what is due at another time. When a run ended is always the host's.
        observer: Told what the run of a pipeline does.
        history: Where runs are recorded; the run log itself, unless that is only one in memory beside another that
            holds no claims.
    """

    def __init__(
        self,
        store: RunLog,
        telling: Telling,
        *,
        clock: Callable[[], datetime] = utc_now,
        observer: Callable[[str], RunObserver | None] = lambda _name: None,
        history: RunHistory | None = None,
    ) -> None:
        self.store, self.telling, self._clock, self._observer = store, telling, clock, observer
        self.history: RunHistory = history if history is not None else store
        self._chance = random.Random()

    def run_slot(self, entry: Orchestrated, slot: Slot, lease: Lease, *, again: str | None = None) -> Outcome:
        """Begin the slot, run the body, write the outcome down. The claim is the caller's to release.

        A target applies the logical run of a slot once. With `again` it is another one, which it applies besides; it
        says no more about how the pipeline is doing than any other backfill.
        """
        attempt, run_id = slot.attempt + 1, str(uuid4())
        begun = replace(slot, status="running", attempt=attempt, run_id=run_id, reason=None)
        if not self.store.move_slot(begun, expected="pending", expected_attempt=slot.attempt, token=lease.token):
            return Outcome(entry.name, "unstarted", reason="somebody else has begun it")
        reached("slot-begun")
        anew = f"{slot_key(slot.at)} again {again}" if again is not None else self._begun_anew(slot.run_id)
        logical_run = anew or slot_key(slot.at)
        is_backfill = slot.backfill is not None or again is not None
        context = self._context(
            entry,
            run_id,
            lease,
            slot=slot.at,
            attempt=attempt,
            restart_from=self._failed_step(slot.run_id),
            facts={
                "slot": slot_key(slot.at),
                "trigger": "backfill" if is_backfill else "schedule",
                **({"backfill": slot.backfill} if slot.backfill else {}),
                **({"logical_run": anew} if anew is not None else {}),
                **self._goes_on(entry, slot.run_id, logical_run),
            },
        )
        return self._done(entry, context, lease, logical_run, begun)

    def run_request(self, entry: Orchestrated, request: RunRecord, lease: Lease) -> Outcome:
        """A run that somebody asked for: its record is there already and gets the outcome."""
        asked = request.extras
        restart_from = asked.get("restart_from_step")
        refusal = self._refusal(entry, str(restart_from), asked.get("prior_run_id")) if restart_from else None
        if refusal is not None:
            return self._refused(entry, request, refusal)
        logical_run = self._logical_run_of(asked.get("prior_run_id")) if restart_from else None
        context = self._context(
            entry,
            request.run_id,
            lease,
            restart_from=str(restart_from) if restart_from else None,
            facts={**asked, "trigger": "request", "logical_run": logical_run or request.run_id},
        )
        return self._done(entry, context, lease, logical_run or request.run_id, None)

    def _refusal(self, entry: Orchestrated, step: str, prior_run_id: Any) -> FlowError | None:
        """Why a pipeline cannot begin at a step: its rows may be there already, and nothing would know them again."""
        if not isinstance(entry.thing, Pipeline) or entry.is_repeatable or step.startswith("post["):
            return None
        prior = self.store.get_run(str(prior_run_id)) if prior_run_id else None
        steps = prior.extras.get("steps", ()) if prior is not None else ()
        loads = [one for one in steps if str(one.get("name")).startswith("load")]
        if loads and all(one.get("status") in ("pending", "skipped") for one in loads):
            return None  # it did not get so far
        return InvalidConfig(
            f"'{entry.name}' is not restarted at '{step}': what the earlier run has loaded would be loaded twice.",
            fix="see what the target holds, then run it by hand; or declare idempotent=True if it can be repeated",
        )

    def _refused(self, entry: Orchestrated, request: RunRecord, refusal: FlowError) -> Outcome:
        record = self.store.get_run(request.run_id) or request
        ended = max(utc_now(), record.started_at)
        self.store.record_run_record(
            replace(record, status="failed", finished_at=ended, error_summary=scrub(str(refusal)))
        )
        return Outcome(entry.name, "failed", request.run_id, error=refusal)

    def run_by_hand(self, entry: Orchestrated, lease: Lease, *, logical_run: str | None = None) -> Outcome:
        """A run that no slot stands behind. Its success ends a row of failures like any other."""
        named = {"logical_run": logical_run} if logical_run is not None else {}
        context = self._context(entry, str(uuid4()), lease, facts={"trigger": "manual", **named})
        return self._done(entry, context, lease, logical_run, None)

    def run_job(
        self, job: Orchestrated, context: RunContext, logical_run: str | None, token: str, lease_s: float
    ) -> Any:
        """A job inside a workflow's run: recorded as a run of its own; its failure is the workflow's to judge."""
        with Heartbeat(self.store, token, lease_s=lease_s, every_s=lease_s / 3), running(context):
            try:
                result = self._body(job, logical_run)
            except (RunCancelled, StaleLease):
                raise
            except Exception:
                self._patiently(lambda: self.store.record_run(job.name, utc_now(), False))
                raise
        self._patiently(lambda: self.store.record_run(job.name, utc_now(), True, slot=context.slot))
        return result

    def now(self) -> datetime:
        """The time, as this work sees it."""
        return self._clock()

    # ── the body ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _done(
        self, entry: Orchestrated, context: RunContext, lease: Lease, logical_run: str | None, begun: Slot | None
    ) -> Outcome:
        began = time.monotonic()
        heartbeat = Heartbeat(
            self.store,
            lease.token,
            lease_s=lease.lease_s,
            every_s=lease.heartbeat_s,
            is_cancelled=lambda: self._is_cancelled(context.run_id),
        )
        try:
            with (
                heartbeat,
                use_run_log(self.history),
                running(context),
                kept_output(context.run_id),
                heartbeat.interruptible(),
            ):
                result = self._body(entry, logical_run)
        except StaleLease as exc:
            log.warning("%s: %s", entry.name, exc.message)
            return Outcome(entry.name, "lost", context.run_id, error=exc, reason=exc.message)
        except RunCancelled as exc:
            return self._cancelled(entry, context, begun, lease, exc, time.monotonic() - began)
        except KeyboardInterrupt as exc:
            if heartbeat.has_interrupted:
                return self._cancelled(entry, context, begun, lease, exc, time.monotonic() - began)
            self._interrupted(entry, context, begun, lease, exc)
            raise
        except Exception as exc:
            if heartbeat.has_interrupted:  # whoever was in the middle of something put it in words of its own
                return self._cancelled(entry, context, begun, lease, exc, time.monotonic() - began)
            return self._failed(entry, context, begun, lease, exc, time.monotonic() - began)
        reached("body-done")
        if isinstance(result, Mapping) and result.get("errors"):
            problem = RuntimeError(
                f"{len(result['errors'])} of its parts failed: {', '.join(map(str, result['errors']))}"
            )
            return self._failed(entry, context, begun, lease, problem, time.monotonic() - began, result)
        return self._succeeded(entry, context, begun, lease, result, time.monotonic() - began)

    def _body(self, entry: Orchestrated, logical_run: str | None) -> Any:
        try:
            return self._called(entry, logical_run)
        except (Exception, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as exc:  # sys.exit(), a coroutine that was cancelled: a body's end is not this process's
            raise StepFailed(
                f"'{entry.name}' raised {type(exc).__name__}: {exc}",
                fix="let it return when it is done, and raise an exception of its own when it has failed",
            ) from exc

    def _called(self, entry: Orchestrated, logical_run: str | None) -> Any:
        thing = entry.thing
        if entry.kind == "workflow":
            from ematix_flow.orchestrate.workflow_run import run_workflow

            return run_workflow(self, entry, logical_run)
        if isinstance(thing, Pipeline):
            return run_pipeline(thing.spec, logical_run=logical_run, observer=self._observer(entry.name))
        return run_transform(entry.name) if entry.kind == "transform" else run_function(entry.name, thing)

    def _context(
        self, entry: Orchestrated, run_id: str, lease: Lease, facts: Mapping[str, Any], **fields: Any
    ) -> RunContext:
        return RunContext(
            entry.name,
            run_id,
            between_steps=lambda: self._heed(entry.name, run_id, lease),
            before_commit=lambda: self._require(lease, entry.name, run_id),
            # A record that says so ends as lost when nobody holds the claim any more.
            facts={**facts, "claimed": True},
            # Others judge it by its record: one that stayed `running` would be taken for lost, whatever its slot says.
            record_patience_s=PATIENCE_S,
            **fields,
        )

    def _is_cancelled(self, run_id: str) -> bool:
        record = self.store.get_run(run_id)
        return record is not None and bool(record.extras.get("cancel_requested"))

    def _require(self, lease: Lease, name: str, run_id: str) -> None:
        """Nothing is committed by a run whose claim went to somebody else."""
        try:
            self._require_claim(lease, name)
            record = self.store.get_run(run_id)
        except StaleLease:
            raise
        except Exception as exc:  # not knowing is no reason to stop: the target's own books keep a second run out
            log.warning("%s: the run log does not answer before the commit: %s", name, scrub(str(exc)))
            return
        if record is not None and record.extras.get("cancel_requested"):
            raise RunCancelled("The run was cancelled before its rows became visible; nothing was changed.")

    def _require_claim(self, lease: Lease, name: str) -> None:
        if not self.store.holds(lease.token):
            raise StaleLease(
                f"The claim of '{name}' ran out while it worked, and may be somebody else's: nothing more is done.",
                fix="it is tried again by itself; a longer --lease-seconds helps where processes are held up",
            )

    def _heed(self, name: str, run_id: str, lease: Lease) -> None:
        """Pause, go on or stop, as somebody wishes; stop, too, when the work is somebody else's by now."""
        is_paused = False
        while True:
            try:
                self._require_claim(lease, name)
                record = self.store.get_run(run_id)
            except StaleLease:
                raise
            except Exception:  # wishes that cannot be read are none
                return
            if record is None:
                return
            if record.extras.get("cancel_requested"):
                raise RunCancelled("The run was cancelled before its next step.")
            wanted = bool(record.extras.get("pause_requested"))
            if wanted != is_paused:
                is_paused = wanted
                extras = {**record.extras, "paused_at": self._clock().isoformat()} if wanted else record.extras
                self.store.record_run_record(
                    replace(record, status="paused" if wanted else "running", extras=dict(extras))
                )
            if not wanted:
                return
            time.sleep(_PAUSE_LOOK_S)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _succeeded(
        self, entry: Orchestrated, run: RunContext, begun: Slot | None, lease: Lease, result: Any, took_s: float
    ) -> Outcome:
        now = self._clock()
        if not self._is_mine(begun, lease):
            return Outcome(entry.name, "lost", run.run_id, result, reason=_NOT_MINE)
        state = AttemptState() if _is_backfill(run) else self._state(entry.name)
        if not _is_backfill(run):  # the past says nothing about how the pipeline is doing
            # Before the slot ends: whoever finds a slot that is over finds the rest written, too. A run by hand stands
            # for every time up to now.
            stands_for = run.slot or utc_now()
            self._patiently(lambda: self.store.record_run(entry.name, utc_now(), True, slot=stands_for))
        reached("outcome-noted")
        if not _is_backfill(run):
            # Told before the slot ends, too: after that nobody would look at it again.
            self.telling.succeeded(
                entry.name,
                run_id=run.run_id,
                slot=run.slot,
                failures=state.attempt_count,
                result=result,
                took_s=took_s,
                at=now,
            )
            if state.attempt_count:
                self._patiently(lambda: self.store.clear_attempt_state(entry.name))
        reached("outcome-told")
        if not self._moved(begun, lease, status="succeeded", eligible_at=None):
            return Outcome(entry.name, "lost", run.run_id, result, reason=_NOT_MINE)
        reached("slot-ended")
        return Outcome(entry.name, "succeeded", run.run_id, result, attempt_count=state.attempt_count + 1)

    def _failed(
        self,
        entry: Orchestrated,
        run: RunContext,
        begun: Slot | None,
        lease: Lease,
        error: Exception,
        took_s: float,
        result: Any = None,
    ) -> Outcome:
        now = self._clock()
        if not self._is_mine(begun, lease):
            return Outcome(entry.name, "lost", run.run_id, error=error, reason=_NOT_MINE)
        # Only slots count: a run by hand that fails does not keep the schedule from trying, nor does a backfill.
        counts = begun is not None and not _is_backfill(run)
        state = self._state(entry.name) if counts else AttemptState()
        if run.slot is not None:
            # Another slot's success in between is not this one's: its own attempts count as well.
            state = replace(state, attempt_count=max(state.attempt_count, run.attempt - 1))
        after = after_failure(entry.retry, state, begun, now, cause_of(error), jitter=self._chance)
        first = begun.first_failed_at or now if begun is not None else None
        status = "pending" if after.retry_at is not None else "failed"
        kind, said = error_words(error)
        reason = f"{kind}: {said.splitlines()[0] if said else ''}".rstrip(": ")
        if not _is_backfill(run):
            self._patiently(lambda: self.store.record_run(entry.name, utc_now(), False))
        if counts:
            self._patiently(lambda: self.store.record_attempt(entry.name, after.state))
        reached("outcome-noted")
        # Told before the slot is moved: after that nobody would look at this attempt again.
        self.telling.failed(
            entry.name,
            cause_of(error),
            run_id=run.run_id,
            slot=run.slot,
            attempt_count=after.state.attempt_count,
            max_attempts=entry.retry.max_attempts,
            gave_up=after.gave_up,
            took_s=took_s,
            at=now,
        )
        reached("outcome-told")
        if not self._moved(
            begun, lease, status=status, eligible_at=after.retry_at, first_failed_at=first, reason=reason
        ):
            return Outcome(entry.name, "lost", run.run_id, error=error, reason=_NOT_MINE)
        return Outcome(
            entry.name,
            "failed",
            run.run_id,
            result,
            error,
            attempt_count=after.state.attempt_count,
            gave_up=after.gave_up,
            retry_at=after.retry_at if begun is not None else None,
        )

    def _cancelled(
        self,
        entry: Orchestrated,
        run: RunContext,
        begun: Slot | None,
        lease: Lease,
        error: BaseException,
        took_s: float,
    ) -> Outcome:
        record = self._patiently(lambda: self.store.get_run(run.run_id))
        if record is not None and record.status == "succeeded":  # its rows were visible already
            return self._succeeded(entry, run, begun, lease, record.extras.get("result"), took_s)
        if record is not None and record.status == "failed":
            # Whoever was interrupted in the middle of something said what it saw of that; it is not why the run ended.
            ended = replace(record, status="cancelled", error_summary="cancelled by hand")
            self._patiently(lambda: self.store.record_run_record(ended))
        self._moved(begun, lease, status="cancelled", reason="cancelled by hand")
        if not isinstance(error, RunCancelled):
            error = RunCancelled("The run was cancelled in the middle of a step.")
        return Outcome(entry.name, "cancelled", run.run_id, error=error, reason="cancelled")

    def _interrupted(
        self, entry: Orchestrated, run: RunContext, begun: Slot | None, lease: Lease, error: BaseException
    ) -> None:
        """What can be repeated waits for its next turn, as if it had not begun; the rest is left to a person."""
        if begun is None:
            return
        if entry.is_repeatable:
            self._moved(begun, lease, status="pending", attempt=begun.attempt - 1, reason="interrupted")
            return
        reason = "interrupted, and it is not known how far it got; `flow retry` runs it again"
        self._moved(begun, lease, status="failed", reason=reason)
        if not _is_backfill(run):
            self._patiently(lambda: self.store.record_run(entry.name, utc_now(), False))
            self.telling.failed(entry.name, reason, error_type="Interrupted", run_id=run.run_id, slot=run.slot)

    def _is_mine(self, begun: Slot | None, lease: Lease) -> bool:
        """Whether the slot's end is still this process's to write; when nobody can say, it is."""
        return begun is None or self._patiently(lambda: self.store.holds(lease.token)) is not False

    def _state(self, name: str) -> AttemptState:
        return self._patiently(lambda: self.store.attempts().get(name)) or AttemptState()

    def _moved(self, begun: Slot | None, lease: Lease, **changes: Any) -> bool:
        if begun is None:
            return True
        moved = self._patiently(
            lambda: self.store.move_slot(
                replace(begun, **changes), expected="running", expected_attempt=begun.attempt, token=lease.token
            )
        )
        return moved is not False

    def _patiently(self, step: Callable[[], Any]) -> Any:
        """Do it, waiting for a run log that comes back; None after one warning when it does not."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return step()
            except Exception as exc:
                if time.monotonic() >= deadline:
                    log.warning(
                        "the run log does not answer, so the end of this run is not in it (%s); a later look finds the "
                        "run without an owner and, where it can be repeated, does it again: the target applies it once",
                        scrub(str(exc)),
                    )
                    return None
                time.sleep(0.5)

    # ── what an earlier attempt left ─────────────────────────────────────────────────────────────────────────────────

    def _failed_step(self, run_id: str | None) -> str | None:
        """The after-load step that an earlier attempt stopped at: the load before it is done."""
        record = self._patiently(lambda: self.store.get_run(run_id)) if run_id else None
        step = record.failed_step if record is not None and record.status == "failed" else None
        return step if step and step.startswith("post[") else None

    def _goes_on(self, entry: Orchestrated, run_id: str | None, logical_run: str) -> dict[str, str]:
        """The earlier attempt of a workflow whose finished jobs are not run again: they are done for this slot."""
        if entry.kind != "workflow" or run_id is None:
            return {}
        is_same = self._patiently(lambda: self._logical_run_of(run_id)) == logical_run
        return {"goes_on_after": run_id} if is_same else {}

    def _begun_anew(self, run_id: str | None) -> str | None:
        """The logical run of an earlier attempt that was to apply the slot once more, and did not get to it."""
        record = self._patiently(lambda: self.store.get_run(run_id)) if run_id else None
        known = record.extras.get("logical_run") if record is not None else None
        return str(known) if known else None

    def _logical_run_of(self, run_id: Any) -> str | None:
        record = self.store.get_run(str(run_id)) if run_id else None
        if record is None:
            return None
        known = record.extras.get("logical_run") or record.extras.get("slot")
        return str(known) if known else record.run_id


def _is_backfill(run: RunContext) -> bool:
    return run.facts.get("trigger") == "backfill"
