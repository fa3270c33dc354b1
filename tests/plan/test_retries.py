"""Windows between attempts, and when they end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ematix_flow.contracts.orchestration import AttemptState, Slot
from ematix_flow.declare.schedule import RetryPolicy, retry_policy
from ematix_flow.errors import ConnectionFailed, InvalidDeclaration
from ematix_flow.plan.retries import AfterFailure, after_failure, next_window_s
from tests.plan.cron_model import utc

NOW = utc(2026, 3, 1, 6)


def windows(written: Mapping[str, Any], attempts: int = 4) -> list[float]:
    policy = retry_policy("p", written)
    return [next_window_s(policy, n, jitter=random.Random(0)) for n in range(1, attempts + 1)]


def failed(
    written: Mapping[str, Any] | None,
    failures: int,
    error: BaseException | None = None,
    *,
    first: datetime | None = None,
) -> AfterFailure:
    """The decision after so many failures in a row, `failures` of them before this one."""
    slot = Slot("p", NOW, attempt=failures + 1, first_failed_at=first)
    state = AttemptState(failures, NOW if failures else None)
    return after_failure(retry_policy("p", written), state, slot, NOW, error or ValueError(), jitter=random.Random(0))


# ── windows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({}, [0, 0, 0, 0]),
        ({"base_secs": 10}, [10, 10, 10, 10]),
        ({"base_secs": 10, "backoff": "linear"}, [10, 20, 30, 40]),
        ({"base_secs": 10, "backoff": "exponential"}, [10, 20, 40, 80]),
        ({"base_secs": 10, "backoff": "exponential", "max_backoff_secs": 30}, [10, 20, 30, 30]),
        ({"backoff_seconds": 30, "backoff_factor": 2.0}, [30, 60, 120, 240]),
        ({"backoff_seconds": 1, "backoff_factor": 3}, [1, 3, 9, 27]),
        ({"backoff_seconds": 5, "backoff": "fixed"}, [5, 5, 5, 5]),
        ({"retry_backoff_ms": 500}, [0.5, 1, 2, 4]),
        ({"base_secs": 10, "max_backoff_secs": 0}, [0, 0, 0, 0]),
    ],
)
def test_every_spelling_gives_its_windows(written: Mapping[str, Any], expected: list[float]) -> None:
    assert windows(written) == expected


def test_a_thousandth_attempt_is_still_a_number() -> None:
    assert 0 < next_window_s(retry_policy("p", {"backoff_seconds": 30}), 5000, jitter=random.Random(0)) < 1e9
    assert next_window_s(retry_policy("p", {"backoff": "exponential"}), 5000, jitter=random.Random(0)) == 0


@given(seed=st.integers(), attempt=st.integers(1, 12), jitter=st.floats(0, 1))
def test_jitter_stays_within_its_fraction_and_below_the_cap(seed: int, attempt: int, jitter: float) -> None:
    policy = RetryPolicy(max_attempts=20, backoff="exponential", base_secs=10, jitter=jitter, max_backoff_secs=300)
    window = next_window_s(policy, attempt, jitter=random.Random(seed))
    undisturbed = 10 * 2 ** (attempt - 1)
    assert min(300, undisturbed * (1 - jitter) * 0.999) <= window <= min(300, undisturbed * (1 + jitter) * 1.001)


def test_jitter_spreads() -> None:
    policy = RetryPolicy(max_attempts=9, base_secs=100, jitter=0.5)
    found = {round(next_window_s(policy, 1, jitter=random.Random(seed))) for seed in range(50)}
    assert len(found) > 20 and min(found) < 70 and max(found) > 130


# ── the end of trying ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_attempt_follows_until_there_are_enough() -> None:
    written = {"max_attempts": 3, "base_secs": 30}
    first, second, third = (failed(written, n) for n in range(3))
    assert first == AfterFailure(AttemptState(1, NOW, False), NOW + timedelta(seconds=30), False)
    assert second == AfterFailure(AttemptState(2, NOW, False), NOW + timedelta(seconds=30), False)
    assert third == AfterFailure(AttemptState(3, NOW, True), None, True)


def test_without_a_policy_nothing_is_given_up_and_nothing_tried_again() -> None:
    assert failed(None, 0) == AfterFailure(AttemptState(1, NOW, False), None, False)
    assert failed(None, 7) == AfterFailure(AttemptState(8, NOW, False), None, False)


def test_one_explicit_attempt_is_given_up_and_never_shut() -> None:
    for failures in (0, 5):
        found = failed({"max_attempts": 1}, failures)
        assert found.gave_up and not found.state.gave_up and found.retry_at is None


def test_retries_counts_what_comes_after_the_first_attempt() -> None:
    assert retry_policy("p", {"retries": 2}).max_attempts == 3


@pytest.mark.parametrize("key", ["max_total_secs", "retry_max_total_ms"])
def test_the_total_time_ends_it_too(key: str) -> None:
    total = 100 if key == "max_total_secs" else 100_000
    written = {"max_attempts": 50, "base_secs": 30, key: total}
    assert failed(written, 1, first=NOW - timedelta(seconds=70)).retry_at == NOW + timedelta(seconds=30)
    late = failed(written, 2, first=NOW - timedelta(seconds=71))
    assert late.retry_at is None and late.gave_up and late.state.gave_up


def test_one_failure_never_shuts_a_pipeline() -> None:
    found = failed({"max_attempts": 5, "base_secs": 30, "max_total_secs": 10}, 0)
    assert found == AfterFailure(AttemptState(1, NOW, False), None, True)


@pytest.mark.parametrize("kind", [OSError, "OSError", "builtins.OSError", "TimeoutError", ["Other", TimeoutError]])
def test_only_named_errors_are_tried_again(kind: object) -> None:
    written = {"max_attempts": 3, "retry_on": kind if isinstance(kind, list) else [kind]}
    assert failed(written, 0, TimeoutError()).retry_at == NOW
    other = failed(written, 0, ValueError())
    assert other.retry_at is None and other.gave_up and not other.state.gave_up


def test_a_wait_that_no_calendar_holds_is_cut() -> None:
    retry_at = failed({"max_attempts": 3, "base_secs": 1e300, "max_backoff_secs": 1e300}, 0).retry_at
    assert retry_at is not None and retry_at.year == 2036


def test_our_errors_are_named_by_their_classes() -> None:
    written = {"max_attempts": 3, "retry_on": ["BackendError"]}
    assert failed(written, 0, ConnectionFailed("no answer")).retry_at is not None


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"max_attemps": 3}, "max_attemps"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 2.5}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"retries": -1}, "retries"),
        ({"retries": 1.5}, "max_attempts"),
        ({"backoff": "cubic"}, "backoff"),
        ({"base_secs": -1}, "base_secs"),
        ({"base_secs": float("nan")}, "base_secs"),
        ({"max_backoff_secs": "5"}, "max_backoff_secs"),
        ({"retry_backoff_ms": "5"}, "retry_backoff_ms"),
        ({"jitter": 1.5}, "jitter"),
        ({"base_secs": 1, "backoff_seconds": 1}, "base_secs"),
        ({"retry_on": 3}, "retry_on"),
        ({"retry_on": [3]}, "retry_on"),
        ({"retry_on": [int]}, "retry_on"),
    ],
)
def test_a_wrong_policy_is_a_value_error_with_the_pipeline_and_the_field(written: Mapping[str, Any], said: str) -> None:
    with pytest.raises(InvalidDeclaration) as caught:
        retry_policy("nightly", written)
    assert isinstance(caught.value, ValueError)
    assert "nightly" in caught.value.message and said in caught.value.message


def test_a_mistyped_key_is_answered_with_the_right_one() -> None:
    with pytest.raises(InvalidDeclaration) as caught:
        retry_policy("nightly", {"max_attemps": 3})
    assert caught.value.fix == "did you mean 'max_attempts'?"
