"""How the work on one slot or request ended, and what `flow run-due` says of all it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import FlowError, StepFailed


@dataclass(frozen=True)
class Outcome:
    """The end of one attempt.

    Attributes:
        status: `unstarted` when somebody else had it first; `lost` when the claim went to somebody else meanwhile.
        retry_at: When it is tried again; None when it is not.
    """

    name: str
    status: Literal["succeeded", "failed", "cancelled", "unstarted", "lost"]
    run_id: str = ""
    result: Any = None
    error: BaseException | None = None
    attempt_count: int = 0
    gave_up: bool = False
    retry_at: datetime | None = None
    reason: str = ""


def cause_of(error: BaseException) -> BaseException:
    """What the user's code raised, without the words we put around it."""
    return error.__cause__ if isinstance(error, StepFailed) and error.__cause__ is not None else error


def error_words(error: BaseException) -> tuple[str, str]:
    """An error's type and what it says, for people and without secrets."""
    cause = cause_of(error)
    return type(cause).__name__, scrub(cause.message if isinstance(cause, FlowError) else str(cause))


@dataclass(frozen=True)
class FiredEvent:
    """A pipeline that ran."""

    name: str
    result: Any


@dataclass(frozen=True)
class FailedEvent:
    """A pipeline that failed."""

    name: str
    error_message: str
    error_type: str
    attempt_count: int
    gave_up: bool


@dataclass(frozen=True)
class SkippedEvent:
    """A pipeline that was due and did not start."""

    name: str
    reason: str


@dataclass(frozen=True)
class MissedEvent:
    """Scheduled times of a pipeline that passed while nobody looked, and that nobody will run by itself."""

    name: str
    count: int
    first: datetime | None
    last: datetime | None


@dataclass(frozen=True)
class RunDueResult:
    """Everything one look at the clock led to, in the order in which it happened."""

    fired: Sequence[FiredEvent] = field(default_factory=tuple)
    failed: Sequence[FailedEvent] = field(default_factory=tuple)
    skipped: Sequence[SkippedEvent] = field(default_factory=tuple)
    missed: Sequence[MissedEvent] = field(default_factory=tuple)
