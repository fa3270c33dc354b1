"""Lineage of streams, for others: every start of a stream as OpenLineage events. No stream ever fails for it.

A stream may run for months, so whoever listens hears of it on the way: START, RUNNING at most every minute, then
COMPLETE when everything was read, ABORT when somebody ended it, FAIL when it could not go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

from ematix_flow.contracts.runtime import RunStatus
from ematix_flow.declare.redaction import scrub
from ematix_flow.watch.lineage import Lineage
from ematix_flow.watch.openlineage import ENDS, TrackedRun, current_emitter

log = logging.getLogger(__name__)

RUNNING_EVERY_S = 60.0


class StreamLineage:
    """What one start of a stream tells of its lineage. No method ever raises.

    Used by the conductor of a stream beside the record in the run log: `started`, then `goes_on` as often as it likes,
    from any thread, then `finished`.

    Args:
        stream: its name in the run log.
        run_id: the id of this start.
        lineage: what it reads and writes; asked once, and only if somebody listens.
    """

    def __init__(self, stream: str, run_id: str, lineage: Callable[[], Lineage]) -> None:
        self._emitter = current_emitter()
        self._run = TrackedRun(run_id, stream, datetime.now(timezone.utc), is_stream=True)
        self._lineage = lineage
        self._lock = threading.Lock()
        self._told_at = 0.0
        self._is_over = False

    def started(self) -> None:
        """It begins; call it once."""
        if self._emitter is None:
            return
        try:
            self._run = replace(self._run, lineage=self._lineage())
        except Exception as exc:  # lineage is a note beside the stream
            said = scrub(f"{type(exc).__name__}: {exc}")
            log.warning("the lineage of '%s' cannot be told: %s", self._run.pipeline, said)
        self._told_at = time.monotonic()
        self._emitter.started(self._run)

    def goes_on(self, rows: int) -> None:
        """It is alive, and has written so many rows since it started."""
        with self._lock:  # nothing is said of a stream after its end, whoever was looking on until then
            now = time.monotonic()
            if self._emitter is None or self._is_over or now - self._told_at < RUNNING_EVERY_S:
                return
            self._told_at = now
            self._emitter.goes_on(self._with_rows(rows))

    def finished(self, status: RunStatus, rows: int, *, error: BaseException | None = None) -> None:
        """It is over."""
        with self._lock:
            self._is_over = True
        if self._emitter is None:
            return
        words = None if error is None else scrub(str(error) or type(error).__name__)
        self._emitter.finished(replace(self._with_rows(rows), error=words), ENDS.get(status, "FAIL"))

    def _with_rows(self, rows: int) -> TrackedRun:
        """Only the sum over all targets is counted, so it is known of a target that is the only one."""
        outputs = self._run.lineage.outputs if self._run.lineage is not None else ()
        return replace(self._run, rows={str(outputs[0].dataset): rows}) if len(outputs) == 1 else self._run
