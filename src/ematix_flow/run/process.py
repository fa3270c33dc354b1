"""Who runs: a process named so that another one can tell later whether it still lives.

A process number alone is not enough, since numbers are given out again; the moment of its start makes it unique.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessMark:
    """One process of one host.

    Attributes:
        host: Its host name.
        pid: Its number there.
        started: When it began, in whatever the system counts; None where the system does not tell.
        namespace: The space its number belongs to (two containers may share a host name); None outside Linux.
    """

    host: str
    pid: int
    started: str | None = None
    namespace: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for a record."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: object) -> ProcessMark | None:
        """The mark in a record, or None when there is none that makes sense."""
        if not isinstance(fields, Mapping):
            return None
        host, pid = fields.get("host"), fields.get("pid")
        if not isinstance(host, str) or not isinstance(pid, int):
            return None
        return cls(host, pid, fields.get("started"), fields.get("namespace"))

    @property
    def is_dead(self) -> bool:
        """Whether it is certain that this process is gone. Another host, or a doubt, is no certainty."""
        if self.host != socket.gethostname() or self.namespace != _pid_namespace():
            return False
        if sys.platform == "win32":
            return False  # there, asking a process number for a sign of life ends the process
        if not _exists(self.pid):
            return True
        started = _start_of(self.pid)
        return self.started is not None and started is not None and started != self.started


def this_process() -> ProcessMark:
    """The mark of the process that asks."""
    pid = os.getpid()
    return ProcessMark(socket.gethostname(), pid, _start_of(pid), _pid_namespace())


def boot_mark() -> str | None:
    """What all processes of this machine that share its steady clock (`time.monotonic`) have in common until it is
    started again; None where the system does not tell."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    try:
        clocks = os.readlink(_PROC / "self/ns/time")  # a container may have a steady clock of its own
    except OSError:
        clocks = ""
    return f"{boot} {clocks}".strip() if boot else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Ended, but its parent has not looked yet."""
    fields = _stat_fields(pid)
    return fields is not None and fields[0] == "Z"


def _start_of(pid: int) -> str | None:
    """The boot and the clock tick a process began with."""
    fields = _stat_fields(pid)
    if fields is None:
        return None
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{boot[:8]}:{fields[19]}"


def _stat_fields(pid: int) -> list[str] | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The name in brackets may hold spaces and brackets of its own; what follows the last one is numbers.
    return stat.rpartition(")")[2].split()


def _pid_namespace() -> str | None:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return None
