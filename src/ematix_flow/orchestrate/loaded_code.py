"""The files of the user's modules, as they were when they were imported, and whether they still are.

Warm workers end when they have changed, schedulers load them again (`reloading.py`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping

Stamp = tuple[int, ...]
_MISSING: Stamp = ()


class LoadedCode:
    """The files of modules below a folder, without installed packages, by what they were when they were imported."""

    def __init__(self, home: str) -> None:
        self._below = os.path.join(os.path.realpath(home), "")
        self._seen: dict[str, Stamp | None] = {}
        self._others: set[str] = set()

    def note(self, since_ns: int) -> None:
        """Remember the files of modules that were imported after `since_ns`.

        A file that was itself changed after that moment may be newer than what was imported, and counts as changed. One
        from the future is not: it was there before the clock was set back.
        """
        for module in tuple(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or file in self._seen or file in self._others:
                continue
            stamp = _stamp(file)
            if not stamp or not self.covers(file):  # modules made by a program name files that never were
                self._others.add(file)
            else:
                self._seen[file] = None if since_ns < stamp[0] <= time.time_ns() else stamp

    def note_as_they_are(self, files: Iterable[str]) -> None:
        """Remember further files as they are now, also those that are gone."""
        for file in files:
            self._seen.setdefault(file, _stamp(file))

    def changed(self) -> str | None:
        """A file that is not what was imported any more, seen from the folder."""
        for file, stamp in self._seen.items():
            if stamp is None or _stamp(file) != stamp:
                return os.path.relpath(os.path.realpath(file), self._below)
        return None

    def stamps(self) -> Mapping[str, Stamp]:
        """The files, and what tells one state of them from another, as of now."""
        return {file: _stamp(file) for file in self._seen}

    def covers(self, file: str) -> bool:
        """Whether a file is the user's own."""
        real = os.path.realpath(file)
        return real.startswith(self._below) and f"{os.sep}site-packages{os.sep}" not in real


def _stamp(file: str) -> Stamp:
    try:
        found = os.stat(file)
    except OSError:
        return _MISSING
    return found.st_ctime_ns, found.st_mtime_ns, found.st_size
