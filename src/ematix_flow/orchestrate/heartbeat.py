"""Keeping a claim alive while its work is done, and ending work that somebody cancels."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ematix_flow.contracts.orchestration import RunLog
from ematix_flow.declare.redaction import scrub

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""How often the run log is asked whether somebody cancelled the run."""
_ON_ITS_WAY_S = 1.0


class Heartbeat:
    """A thread that moves the expiry of a claim on. A store that does not answer is one warning.

    Args:
        is_cancelled: Whether somebody asked the run to stop; then what is inside `interruptible()` is interrupted.

    Attributes:
        has_interrupted: It was interrupted.
    """

    def __init__(
        self,
        store: RunLog,
        token: str,
        *,
        lease_s: float,
        every_s: float,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self._store, self._token = store, token
        self._lease_s, self._every_s = lease_s, every_s
        self._is_cancelled = is_cancelled
        self._stop = threading.Event()
        self._has_warned = False
        self._turn = threading.Lock()
        self._may_interrupt = False
        self._is_sent = False
        self.has_interrupted = False
        self._thread = threading.Thread(target=self._keep, name="ematix-flow-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """What is done inside ends as by Ctrl-C when the run is cancelled. Only the main thread can be interrupted."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with self._reachable():
            self._may_interrupt = True
            try:
                yield
            except KeyboardInterrupt:
                self._may_interrupt = False
                raise
            except BaseException:
                self._end_interruptible()
                raise
            else:
                self._end_interruptible()

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """A shell starts `flow run … &` with Ctrl-C ignored. That of the terminal stays so, ours goes through."""
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            yield
            return
        signal.signal(signal.SIGINT, self._heed_only_ours)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) == self._heed_only_ours:  # nobody, Spark for one, has another
                signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _heed_only_ours(self, *_: object) -> None:
        if self._is_sent:
            self._is_sent = False
            raise KeyboardInterrupt

    def _end_interruptible(self) -> None:
        """From here on nothing is interrupted any more: what was done is done."""
        try:
            with self._turn:
                self._may_interrupt = False
            if self.has_interrupted:
                time.sleep(_ON_ITS_WAY_S)  # the interruption came too late, and has nothing to end but this
        except KeyboardInterrupt:
            self._may_interrupt = False
            if not self.has_interrupted:
                raise  # a person's

    def _keep(self) -> None:
        beat_at = time.monotonic() + self._every_s
        pause_s = self._every_s if self._is_cancelled is None else min(LOOK_S, self._every_s)
        while not self._stop.wait(pause_s):
            if self._is_cancelled is not None and not self.has_interrupted:
                self._look()
            if time.monotonic() < beat_at - pause_s / 2:
                continue
            beat_at = time.monotonic() + self._every_s
            if not self._beat():
                return  # it is somebody else's; the work finds out before its next step and before it commits

    def _beat(self) -> bool:
        try:
            return self._store.heartbeat(self._token, self._lease_s)
        except Exception as exc:  # the work must not die of its log
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "the run log does not answer (%s): if this lasts longer than %g s, another process may start "
                    "the same pipeline; what reaches the target is still applied once",
                    scrub(str(exc)),
                    self._lease_s,
                )
            return True

    def _look(self) -> None:
        assert self._is_cancelled is not None
        try:
            if not self._is_cancelled():
                return
        except Exception:  # wishes that cannot be read are none
            return
        with self._turn:
            if self._may_interrupt:
                self._is_sent = True  # before the signal: it may be there before we know that it was sent
                self.has_interrupted = _interrupt_main_thread()


def _interrupt_main_thread() -> bool:
    """As Ctrl-C does, also where it waits for a server; False where Ctrl-C does nothing, or more than that."""
    handler = signal.getsignal(signal.SIGINT)
    whose = str(getattr(handler, "__module__", ""))
    is_plain = handler is signal.default_int_handler or whose == __name__ or whose.startswith("pyspark.")
    if not is_plain or not hasattr(signal, "pthread_kill"):
        return False
    ident = threading.main_thread().ident
    if ident is None:
        return False
    signal.pthread_kill(ident, signal.SIGINT)
    return True
