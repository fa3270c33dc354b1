"""Locks that end with the process that holds them, however it ends."""

from __future__ import annotations

import hashlib
import os
import sys
from typing import IO


def digest(pipeline: str) -> str:
    """A pipeline's name as 16 hexadecimal digits: safe in file names, table names and lock numbers."""
    return hashlib.sha256(pipeline.encode()).hexdigest()[:16]


class FileLock:
    """An exclusive lock on a file, held by this process until released; the operating system frees it on a crash."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Take the lock now, or say that somebody else has it."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        handle = open(self.path, "ab")  # noqa: SIM115 - kept open for as long as the lock is held
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            handle.close()
            return False
        self._file = handle
        return True

    def release(self) -> None:
        """Give the lock back. The file stays: removing it would let two processes lock two different files."""
        if self._file is not None:
            self._file.close()
            self._file = None
