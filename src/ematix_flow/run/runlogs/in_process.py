"""What this process knows of last runs and attempts: filled from the run log, asked by the functions of `pipeline`."""

from __future__ import annotations

import threading

from ematix_flow.run.runlogs.memory import InMemoryRunLog

_lock = threading.Lock()
_logs: list[InMemoryRunLog] = []


def process_log() -> InMemoryRunLog:
    """The one of this process; empty until a log is restored into it, or something is recorded in it."""
    with _lock:
        if not _logs:
            _logs.append(InMemoryRunLog())
        return _logs[0]


def forget_process_log() -> None:
    """Begin with an empty one; for tests."""
    with _lock:
        while _logs:
            _logs.pop().close()
