"""What orchestration keeps in a run log: slots, attempts, claims, pauses, alerts, and the doors to them.

A **slot** is one logical time of one pipeline: the pair is the key, so whoever sees it first writes it down and all the
others find it there. Slots decide that a run happens once; claims decide who does it; the target's books decide, by the
logical run of the slot, that its rows are applied once whatever else went wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, Protocol, runtime_checkable

from ematix_flow.contracts.runtime import RunHistory, StepStatus

SlotStatus = Literal["pending", "running", "succeeded", "failed", "superseded", "cancelled"]
"""`pending` waits for its turn, its upstreams or its next attempt; `superseded` had to wait until a later one came."""
OPEN_SLOTS: tuple[SlotStatus, ...] = ("pending", "running")


@dataclass(frozen=True)
class Slot:
    """One logical time of one pipeline or workflow.

    Attributes:
        attempt: How many attempts have begun.
        eligible_at: A pending slot is not tried before.
        first_failed_at: When the first of its attempts failed; the total time of retries counts from there.
        run_id: Its last run.
        reason: Why it is as it is, for people.
        backfill: The backfill that asked for it; such slots supersede nothing and are not superseded.
    """

    pipeline: str
    at: datetime
    status: SlotStatus = "pending"
    attempt: int = 0
    eligible_at: datetime | None = None
    first_failed_at: datetime | None = None
    run_id: str | None = None
    reason: str | None = None
    backfill: str | None = None


@dataclass(frozen=True)
class LastRun:
    """How the last finished run of a pipeline ended, and the last one that went well."""

    at: datetime
    success: bool
    last_success_at: datetime | None = None
    last_success_slot: datetime | None = None


@dataclass(frozen=True)
class AttemptState:
    """Failures in a row. `gave_up` latches until somebody clears it or a run by hand succeeds."""

    attempt_count: int = 0
    last_attempt_at: datetime | None = None
    gave_up: bool = False


@dataclass(frozen=True)
class ClaimResult:
    """The answer to a claim. `fence` grows with every claim of the same name: a later holder has a greater one."""

    acquired: bool
    token: str | None
    holder: str | None
    expires_at: datetime | None
    fence: int = 0


@dataclass(frozen=True)
class ExpiredClaim:
    """A claim whose holder has not been heard of in time."""

    pipeline: str
    worker_id: str
    expires_at: datetime


@dataclass(frozen=True)
class Claim:
    """A claim that is held, or was until it expired."""

    pipeline: str
    worker_id: str
    claimed_at: datetime
    expires_at: datetime
    token: str
    fence: int


@dataclass(frozen=True)
class RunEvent:
    """One thing that happened in a run: a step that began or ended, an attempt, a pause, a lost worker."""

    run_id: str
    at: datetime
    step: str
    status: StepStatus | str
    detail: str = ""
    duration_ms: float | None = None


@dataclass(frozen=True)
class Pause:
    """A pipeline that nobody starts until it is resumed."""

    pipeline: str
    since: datetime
    by: str = ""
    reason: str = ""


@runtime_checkable
class RunLog(RunHistory, Protocol):
    """A run log that orchestration can lean on. All instants are UTC with microseconds; all names may hold anything."""

    # ── what was last ──

    def record_run(self, name: str, ts: datetime, success: bool, *, slot: datetime | None = None) -> None:
        """How the last run ended; `slot` is remembered when it went well and is later than the one known."""

    def last_runs(self) -> Mapping[str, LastRun]:
        """By pipeline."""

    def last_errors(self) -> Mapping[str, str]:
        """What the last failed run said, by pipeline, of those whose last run failed and said something."""

    def record_attempt(self, name: str, state: AttemptState) -> None:
        """Replace the pipeline's attempt state."""

    def clear_attempt_state(self, name: str) -> None:
        """Forget it; nothing happens when there is none."""

    def attempts(self) -> Mapping[str, AttemptState]:
        """By pipeline."""

    def restore_into_process(self) -> None:
        """Bring last runs and attempt states into this process, where the functions of `pipeline` look."""

    # ── claims ──

    def clock(self) -> datetime:
        """The store's own time, which leases are measured by."""

    def claim(self, pipeline: str, worker_id: str, lease_seconds: float) -> ClaimResult:
        """Take the name if it is free or expired (`expires_at <= now`); atomic. The holder does not get it twice."""

    def heartbeat(self, token: str, lease_seconds: float) -> bool:
        """Move the expiry to now + lease; False, and nothing else, for a token that is no longer the claim's."""

    def adopt(self, token: str, worker_id: str) -> str | None:
        """Exchange a token that was handed over for one of the worker's own; None when it is no longer the claim's.

        Of two workers that were handed the same token, one gets the claim, and the other can free nothing.
        """

    def release(self, token: str) -> None:
        """Give that claim back; a stale token frees nothing."""

    def break_claim(self, pipeline: str, token: str) -> bool:
        """Free the claim of a holder that is known to be dead, if it still has that token."""

    def claims(self) -> Sequence[Claim]:
        """Every claim there is, expired ones too."""

    def holds(self, token: str) -> bool:
        """Whether the token is a claim's, and its lease has not run out."""

    def sweep_expired_leases(self, now: datetime | None = None) -> Sequence[ExpiredClaim]:
        """Report claims that expired before `now` (the store's clock without it); nothing is changed."""

    # ── slots ──

    def add_slots(self, slots: Iterable[Slot]) -> Sequence[Slot]:
        """Write down slots that are not known yet, all in one transaction; those that were new come back."""

    def open_slots(self, pipeline: str | None = None) -> Sequence[Slot]:
        """Pending and running ones, by pipeline and time."""

    def slots(
        self, pipeline: str, *, since: datetime | None = None, until: datetime | None = None, limit: int = 1000
    ) -> Sequence[Slot]:
        """Those of one pipeline with `since <= at <= until`, newest first."""

    def last_slots(self) -> Mapping[str, datetime]:
        """The latest slot of every pipeline, whatever became of it; backfilled ones do not count."""

    def first_seen(self, pipelines: Iterable[str], at: datetime) -> Mapping[str, datetime]:
        """Since when each of them is looked at; those that nobody has looked at before are since `at`."""

    def still_declared(self, pipelines: Iterable[str]) -> None:
        """Note that these are declared today. What is left of one of which nobody says so any more is pruned."""

    def move_slot(
        self, slot: Slot, *, expected: SlotStatus, expected_attempt: int | None = None, token: str | None = None
    ) -> bool:
        """Replace the stored slot of the same key if it has the expected status (and attempt), in one transaction.

        With a token also only if that claim is still held: a worker that lost its lease changes nothing.
        """

    # ── people's wishes ──

    def set_paused(self, pipeline: str, paused: bool, *, by: str = "", reason: str = "") -> None:
        """Pause or resume a pipeline; both may be said twice."""

    def paused(self) -> Mapping[str, Pause]:
        """By pipeline."""

    def enqueue_run(self, pipeline: str, *, extras: Mapping[str, Any] | None = None) -> str:
        """Ask for a run of a pipeline now; the id of the `requested` record."""

    def enqueue_restart(self, prior_run_id: str, from_step: str) -> str:
        """Ask for a run that reuses everything before a step. KeyError for an unknown run."""

    def enqueue_rerun(self, prior_run_id: str) -> str:
        """Ask for the whole run again. KeyError for an unknown run."""

    def set_pause(self, run_id: str, paused: bool) -> None:
        """Ask one run to pause at its next step, or to go on. KeyError for an unknown run."""

    def request_cancel(self, run_id: str) -> None:
        """Ask a run to stop (`extras["cancel_requested"]`); one that only was requested is cancelled at once."""

    def pending_actions(self) -> Sequence[Any]:
        """Records that are requested, and running or paused ones whose pause or cancel was asked for; oldest first."""

    def consume_requested_run(self, run_id: str) -> bool:
        """Turn a requested record into a running one; False when somebody else was faster."""

    def end_lost_run(self, seen: Any) -> bool:
        """End a record as failed, "worker lost", if it still is as it was seen."""

    def return_requested_run(self, run_id: str) -> None:
        """Put a consumed record back that could not be started; it is requested again."""

    # ── what others are told, once ──

    def first_alert(self, key: str, at: datetime, *, realert_after_s: float | None = None) -> bool:
        """Whether the caller is the one to send the alert of this key: True once, and again after `realert_after_s`."""

    def forget_alerts(self, prefix: str) -> None:
        """The keys that begin so may be sent again: the thing they told of is over."""

    # ── what happened in a run ──

    def add_event(self, event: RunEvent) -> None:
        """Append an event."""

    def events(self, run_id: str) -> Sequence[RunEvent]:
        """Events of a run, oldest first."""

    def prune(self, *, max_age_days: float | None = None, max_records: int | None = None) -> int:
        """Remove finished records beyond that, with their events and finished slots as old; how many records went."""


@dataclass(frozen=True)
class DispatchSpec:
    """A claimed pipeline on its way to where it will run."""

    pipeline_name: str
    module: str
    claim_token: str
    lease_seconds: float
    run_log_url: str
    alerter_urls: Sequence[str] = ()
    metrics_url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DispatchHandle:
    """Something that was started elsewhere."""

    pipeline_name: str
    backend: str
    ref: str


class Executor(Protocol):
    """Where claimed pipelines run."""

    def dispatch(self, spec: DispatchSpec) -> DispatchHandle:
        """Start it; returns when it has begun, not when it has ended. Raises DispatchError."""

    def cancel(self, handle: DispatchHandle) -> None:
        """Stop it, as well as the place allows."""


@dataclass(frozen=True)
class DispatchReport:
    """How something that was started elsewhere ended. A negative exit code is the signal that killed its process."""

    handle: DispatchHandle
    exit_code: int


@runtime_checkable
class WatchedExecutor(Executor, Protocol):
    """What every executor of ours can do besides; one of the user's own needs only `dispatch` and `cancel`."""

    def running(self) -> int:
        """How many of those it started are still under way; 0 where it cannot know."""

    def reap(self) -> Sequence[DispatchReport]:
        """Those that ended since it was asked last, where it can know; asked several times a second."""

    def close(self, timeout_s: float = 5.0) -> None:
        """Wait so long for what is under way, then leave it alone: it goes on without this process."""


AlertKind = Literal[
    "failed", "gave_up", "recovered", "quality_failed", "sla_breached", "dispatch_failed", "lost", "missed"
]


@dataclass(frozen=True)
class AlertEvent:
    """What an alerter is told."""

    kind: AlertKind | str
    pipeline: str
    timestamp: datetime
    error_message: str = ""
    error_type: str = ""
    attempt_count: int = 0
    max_attempts: int = 0
    gave_up: bool = False
    run_id: str = ""


@dataclass(frozen=True, init=False)
class DispatchFailedEvent(AlertEvent):
    """A claimed pipeline could not be started where it should run; it is tried again."""

    def __init__(
        self,
        pipeline: str,
        error_type: str = "",
        error_message: str = "",
        *,
        timestamp: datetime | None = None,
        kind: str = "dispatch_failed",
        **others: Any,
    ) -> None:
        at = timestamp or datetime.now(timezone.utc)
        super().__init__(kind, pipeline, at, error_message=error_message, error_type=error_type, **others)


class Alerter(Protocol):
    """Anything that can be told of a failure or a recovery. It may raise: that is a warning and nothing else."""

    def notify(self, event: AlertEvent) -> None:
        """Tell somebody."""


class MetricsSink(Protocol):
    """Where numbers about runs go. It may raise: that is a warning and nothing else."""

    def inc_runs(self, name: str, outcome: str) -> None:
        """One run more with that outcome."""

    def observe_duration(self, name: str, secs: float) -> None:
        """How long one took."""

    def set_attempt(self, name: str, count: int) -> None:
        """Failures in a row; 0 when it is well."""

    def close(self) -> None:
        """Send what is left; may be called twice."""
