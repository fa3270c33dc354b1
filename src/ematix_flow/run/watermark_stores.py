"""Where the marks of warehouse pipelines are kept. Any object with `get(name)` and `set(name, value)` will do."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ematix_flow.backends.locks import FileLock
from ematix_flow.errors import InvalidConfig

DEFAULT_PATH = os.path.join(".ematix-flow", "watermarks.json")


class InMemoryWatermarkStore:
    """Marks that end with the process: for tests and for trying things out."""

    def __init__(self) -> None:
        self._marks: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """The mark of a pipeline, or None."""
        return self._marks.get(name)

    def set(self, name: str, value: Any) -> None:
        """Keep a new mark."""
        self._marks[name] = value


class FileWatermarkStore:
    """Marks in a JSON file, replaced as a whole: a crash leaves the old file or the new one.

    Args:
        path: The file; `.ematix-flow/watermarks.json` in the working directory when none is given. It is looked up when
            it is used, and made when the first mark is kept.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = path

    @property
    def path(self) -> str:
        """The file."""
        return os.path.abspath(os.path.expanduser(os.fspath(self._path if self._path is not None else DEFAULT_PATH)))

    def get(self, name: str) -> str | None:
        """The mark of a pipeline, or None."""
        return self._read().get(name)

    def set(self, name: str, value: Any) -> None:
        """Keep a new mark; it is on the disk when this returns."""
        with self._alone():
            marks = {**self._read(), name: str(value)}
            partial = f"{self.path}.{os.getpid()}.partial"
            with open(partial, "w", encoding="utf-8") as file:
                json.dump(marks, file, indent=2, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.path)

    def _read(self) -> dict[str, str]:
        try:
            with open(self.path, encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            return {}
        except ValueError as exc:
            raise InvalidConfig(
                f"The watermarks in {self.path} cannot be read.", fix="mend or remove the file"
            ) from exc
        if not isinstance(found, dict):
            raise InvalidConfig(f"The watermarks in {self.path} cannot be read.", fix="mend or remove the file")
        return {str(name): str(value) for name, value in found.items()}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process writes the file."""
        import time

        lock = FileLock(f"{self.path}.lock")
        deadline = time.monotonic() + 30.0
        while not lock.acquire():
            if time.monotonic() >= deadline:
                raise InvalidConfig(f"Another process has been writing {self.path} for 30 seconds.", fix="end it")
            time.sleep(0.01)  # the operating system tells nobody when a lock is let go
        try:
            yield
        finally:
            lock.release()
