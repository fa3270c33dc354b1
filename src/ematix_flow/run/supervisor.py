"""Starting a stream again after it failed, more and more patiently, in the same process and Spark session."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import (
    ConfigError,
    DeliveryImpossible,
    DuplicateName,
    FlowError,
    InvalidConfig,
    InvalidDeclaration,
    InvalidPlan,
    MissingDriver,
    MissingJar,
    MissingJava,
    RouteImpossible,
    StateIncompatible,
    TakenOver,
    UnsupportedBackend,
    UnsupportedMode,
    WrongDeclarationType,
)

log = logging.getLogger(__name__)

Result = dict[str, Any]

HOPELESS = (
    *(InvalidDeclaration, WrongDeclarationType, DuplicateName, ConfigError),
    *(InvalidPlan, UnsupportedMode, RouteImpossible, UnsupportedBackend, DeliveryImpossible),
    *(MissingDriver, MissingJar, MissingJava),
    *(StateIncompatible, TakenOver),
)
"""What another start cannot mend: this process would say the same again, or would end the one that took its place, and
that one this one, for ever. A table that lacks a column is not among it: somebody may add that meanwhile."""


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """When and how soon a stream that failed is started again.

    Attributes:
        on_error: Whether it is at all.
        initial_backoff_ms: How long to wait the first time; twice as long each further time.
        max_backoff_ms: The longest wait.
        max_restarts: How often in a row; None for ever.
        reset_after_s: A start that lasted so long was a good one: waiting and counting begin anew.
    """

    on_error: bool = False
    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    max_restarts: int | None = None
    reset_after_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("initial_backoff_ms", "max_backoff_ms", "max_restarts", "reset_after_s"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise InvalidConfig(f"{name} cannot be below zero.")

    def backoff_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row.

        >>> [RestartPolicy(initial_backoff_ms=1000, max_backoff_ms=5000).backoff_s(n) for n in (1, 2, 3, 4, 5000)]
        [1.0, 2.0, 4.0, 5.0, 5.0]
        """
        doubled = self.initial_backoff_ms * 2 ** min(failures - 1, 60)
        return float(min(doubled, self.max_backoff_ms) / 1000)


def keep_running(
    start: Callable[[], Result],
    policy: RestartPolicy,
    told: threading.Event,
    *,
    on_restart: Callable[[], None] = lambda: None,
    when_told: Callable[[], Result],
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Start a stream, and again whenever it fails, until it ends well, is told to stop, or has failed too often.

    What is `HOPELESS` ends it at once.

    Args:
        start: Runs the stream to its end.
        told: Set from outside to stop; ends a wait at once.
        on_restart: Called after each failure that is followed by another start.
        when_told: The result when the word to stop came while waiting.

    Raises:
        Exception: what the last start raised.
    """
    failures = 0
    while True:
        began = clock()
        try:
            return start()
        except Exception as exc:
            if clock() - began >= policy.reset_after_s:
                failures = 0
            failures += 1
            is_enough = policy.max_restarts is not None and failures > policy.max_restarts
            if not policy.on_error or is_enough or told.is_set() or isinstance(exc, HOPELESS):
                raise
            pause = policy.backoff_s(failures)
            log.warning("%s; it is started again in %.1f s", _words(exc), pause)
        on_restart()
        if told.wait(pause):
            return when_told()


def _words(exc: Exception) -> str:
    said = exc.message if isinstance(exc, FlowError) else f"{type(exc).__name__}: {exc}"
    return scrub(" ".join(f"the stream failed: {said}".split())).rstrip(".")
