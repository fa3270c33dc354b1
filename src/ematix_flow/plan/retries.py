"""What happens after a failure: another attempt at some time, or none any more. State, time and chance are given."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from ematix_flow.contracts.orchestration import AttemptState, Slot
from ematix_flow.declare.schedule import RetryPolicy
from ematix_flow.plan.cron import as_utc

_LONGEST_S = 10 * 365 * 86_400.0


@dataclass(frozen=True)
class AfterFailure:
    """The decision after a failed attempt.

    Attributes:
        state: The pipeline's attempt state from now on; its `gave_up` keeps the pipeline from being started at all.
        retry_at: When the slot is tried again; None when it is not.
        gave_up: What results and alerts say: retrying was asked for and is over.
    """

    state: AttemptState
    retry_at: datetime | None
    gave_up: bool


def next_window_s(policy: RetryPolicy, attempt: int, *, jitter: random.Random) -> float:
    """Seconds to wait after attempt `attempt` (the first one is 1); never longer than `max_backoff_secs`.

    >>> policy = RetryPolicy(max_attempts=5, backoff="exponential", base_secs=30)
    >>> [next_window_s(policy, n, jitter=random.Random(0)) for n in (1, 2, 3, 4)]
    [30.0, 60.0, 120.0, 240.0]
    """
    return min(_bound_s(policy), _undisturbed_s(policy, attempt) * (1 + policy.jitter * jitter.uniform(-1, 1)))


def longest_window_s(policy: RetryPolicy, attempt: int) -> float:
    """What `next_window_s` gives at most: a wait that lasts longer is not one of this policy."""
    return min(_bound_s(policy), _undisturbed_s(policy, attempt) * (1 + policy.jitter))


def _bound_s(policy: RetryPolicy) -> float:
    return _LONGEST_S if policy.max_backoff_secs is None else min(_LONGEST_S, policy.max_backoff_secs)


def after_failure(
    policy: RetryPolicy,
    state: AttemptState,
    slot: Slot | None,
    now: datetime,
    error: BaseException,
    *,
    jitter: random.Random,
) -> AfterFailure:
    """Count the failure and say what comes next.

    Another attempt follows while `max_attempts` is not reached, the error is one of `retry_on` (any, if none is named)
    and the attempt would begin within `max_total_secs` of the slot's first failure. A pipeline is shut
    (`state.gave_up`) only by a second failure or a later one, and only where several attempts were allowed.
    """
    now = as_utc(now)
    count = state.attempt_count + 1
    first_failed_at = as_utc(slot.first_failed_at) if slot is not None and slot.first_failed_at is not None else now
    retry_at = now + timedelta(seconds=next_window_s(policy, count, jitter=jitter))
    is_last = count >= policy.max_attempts
    if policy.max_total_secs is not None:
        is_last = is_last or (retry_at - first_failed_at).total_seconds() > policy.max_total_secs
    is_hopeless = not is_retried(policy, error)
    is_shut = is_last and not is_hopeless and policy.max_attempts > 1 and count > 1
    return AfterFailure(
        state=AttemptState(attempt_count=count, last_attempt_at=now, gave_up=is_shut),
        retry_at=None if is_last or is_hopeless else retry_at,
        gave_up=policy.explicit and (is_last or is_hopeless),
    )


def is_retried(policy: RetryPolicy, error: BaseException) -> bool:
    """Whether `retry_on` names the error's class or one it inherits from, as a type, a name or a dotted name."""
    if not policy.retry_on:
        return True
    names = {name for kind in type(error).__mro__ for name in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}")}
    return any(kind in names if isinstance(kind, str) else isinstance(error, kind) for kind in policy.retry_on)


def _undisturbed_s(policy: RetryPolicy, attempt: int) -> float:
    if policy.backoff == "fixed":
        return float(policy.base_secs)
    if policy.backoff == "linear":
        return float(policy.base_secs) * attempt
    try:
        return min(_LONGEST_S, float(policy.base_secs) * float(policy.backoff_factor) ** (attempt - 1))
    except OverflowError:
        return _LONGEST_S if policy.base_secs else 0.0
