"""A lease in a bucket: an object that says who holds something, written anew as long as its holder lives.

How old it is, is told by the store's clock. A lease that was not renewed in time may be taken over, and so may one
whose process is known to be gone because it ran on this machine. A holder that only slept finds out by its next write:
every renewal has the condition that the object is still the holder's own.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from dataclasses import dataclass
from typing import Any, Protocol

from ematix_flow.backends.files_store import VersionChanged
from ematix_flow.backends.object_client import OnlyIf

log = logging.getLogger(__name__)

_BEATS = 4


class KeepsObjects(Protocol):
    """What a lease needs of its store."""

    lease_s: float

    def put(self, path: str, content: Any, only_if: OnlyIf | None = None) -> str:
        """Write an object; its version."""
        ...

    def read_versioned(self, path: str) -> tuple[Any, str | None]:
        """An object, and its version."""
        ...

    def remove(self, path: str) -> None:
        """Remove an object."""
        ...


@dataclass(frozen=True)
class Holder:
    """A process that holds a lease: where it runs, as exactly as that can be told, and a token of this very lease."""

    token: str
    host: str
    pid: int
    machine: str | None
    started: str | None

    @staticmethod
    def this_process() -> Holder:
        """This process, with a fresh token."""
        pid = os.getpid()
        return Holder(uuid.uuid4().hex, socket.gethostname(), pid, _machine(), _started(pid))

    def content(self, beat: int, note: str) -> dict[str, Any]:
        """The lease as JSON. The beat makes every renewal another version of the object."""
        return {**vars(self), "beat": beat, "note": note}

    @staticmethod
    def is_gone(known: Any) -> bool:
        """Whether the holder of a lease ran on this machine and is not there any more; False when in doubt."""
        if not isinstance(known, dict) or not known.get("machine") or known["machine"] != _machine():
            return False
        return not known.get("started") or _started(int(known["pid"])) != known["started"]


class BucketLease:
    """A lease that this process holds."""

    def __init__(self, store: KeepsObjects, path: str, holder: Holder, version: str) -> None:
        self._store, self._path, self._holder, self._version = store, path, holder, version
        self._beat, self._note = 0, ""
        self.is_lost = False
        self._turn, self._ended = threading.Lock(), threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="ematix-flow-lease", daemon=True)
        self._keeper.start()

    def note(self, text: str) -> None:
        """Leave a word for whoever finds the lease taken."""
        self._note = text
        self._renew()

    def is_held(self) -> bool:
        """Whether it is still this process's own; renews it."""
        self._renew()
        return not self.is_lost

    def try_to_overwrite(self, only_if: OnlyIf) -> None:
        """Write the lease under a condition; `VersionChanged` is what a store should answer to a wrong one."""
        with self._turn:
            self._version = self._store.put(self._path, self._holder.content(self._beat, self._note), only_if)

    def release(self) -> None:
        """Give it back. If that cannot be done it ends by itself."""
        self._ended.set()
        self._keeper.join()
        try:
            known, _ = self._store.read_versioned(self._path)
            if known is not None and known.get("token") == self._holder.token:
                self._store.remove(self._path)
        except OSError as exc:
            log.debug("The lease %s ends by itself: %s", self._path, exc)

    def _keep(self) -> None:
        while not self._ended.wait(self._store.lease_s / _BEATS) and not self.is_lost:
            try:
                self._renew()
            except OSError as exc:
                log.debug("The lease %s could not be renewed this time: %s", self._path, exc)

    def _renew(self) -> None:
        with self._turn:
            if self.is_lost:
                return
            self._beat += 1
            content = self._holder.content(self._beat, self._note)
            try:
                self._version = self._store.put(self._path, content, OnlyIf(self._version))
            except VersionChanged:
                known, version = self._store.read_versioned(self._path)
                if version is not None and known.get("token") == self._holder.token:
                    self._version = version  # written before, and only the answer got lost
                    return
                self.is_lost = True
                log.warning("The lease %s went to another run; this one can publish nothing", self._path)


def _machine() -> str | None:
    """This machine since it was started, and the part of it in which process numbers mean the same; Linux only."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process was started, as the kernel counts; None when there is none, or on another system."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            state, *fields = file.read().rpartition(")")[2].split()
            return None if state in "ZX" else fields[18]  # dead, and only waiting for its parent to look
    except (OSError, IndexError):
        return None
