"""Keeping a claim alive while its work is done, and knowing when it went to somebody else."""

from __future__ import annotations

import logging
import threading

from ematix_flow.contracts.orchestration import RunLog
from ematix_flow.declare.redaction import scrub

log = logging.getLogger(__name__)


class Heartbeat:
    """A thread that moves the expiry of a claim on. A store that does not answer is one warning."""

    def __init__(self, store: RunLog, token: str, *, lease_s: float, every_s: float) -> None:
        self._store, self._token = store, token
        self._lease_s, self._every_s = lease_s, every_s
        self._stop = threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._beat, name="ematix-flow-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _beat(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                if not self._store.heartbeat(self._token, self._lease_s):
                    return  # it is somebody else's; the work finds out before its next step and before it commits
            except Exception as exc:  # the work must not die of its log
                if not self._has_warned:
                    self._has_warned = True
                    log.warning(
                        "the run log does not answer (%s): if this lasts longer than %g s, another process may start "
                        "the same pipeline; what reaches the target is still applied once",
                        scrub(str(exc)),
                        self._lease_s,
                    )
