"""Locks that end with the process that holds them, however it ends."""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
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
        while True:
            handle = open(self.path, "ab")  # noqa: SIM115 - kept open for as long as the lock is held
            if not _locked(handle):
                handle.close()
                return False
            if _is_at(handle, self.path):
                self._file = handle
                return True
            handle.close()  # its last holder removed the file after we had opened it: that lock protects nothing

    def release(self) -> None:
        """Give the lock back and remove its file."""
        if self._file is not None:
            if sys.platform != "win32":  # which removes no open file; the empty file stays there
                with suppress(FileNotFoundError):  # somebody has removed the folder
                    os.unlink(self.path)
            self._file.close()
            self._file = None


def _locked(handle: IO[bytes]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(handle: IO[bytes], path: str) -> bool:
    """Whether an open file is still the one that others find at the path."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
