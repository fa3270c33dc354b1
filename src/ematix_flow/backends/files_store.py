"""The few file operations that bookkeeping needs: what any place for files must offer, and one local folder.

Rows never pass through here: Spark reads and writes them by path. Buckets are in `bucket_store.py`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from ematix_flow.backends.files_native import encoded_uri, is_native
from ematix_flow.contracts.backend import Health
from ematix_flow.errors import ConnectionFailed, RouteImpossible, StatementFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter, SparkSession


_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class StoredFile:
    """A file below some folder: its path there with forward slashes, and its size."""

    path: str
    size: int


class VersionChanged(Exception):
    """A file is no longer the one that was read; nothing was written."""


class Lock(Protocol):
    """Something held until it is released, or until its holder is gone."""

    def note(self, text: str) -> None:
        """Leave a word for whoever finds the lock taken."""
        ...

    def is_held(self) -> bool:
        """Whether it has not passed to somebody else; the place is asked where that can happen."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...


class Store(Protocol):
    """A place for files. All paths are relative to it, with forward slashes.

    `locks_can_pass` says whether a lock may go to somebody else while its holder still lives, as leases do when their
    holder falls silent. What is committed under such a lock must be committed by `replace_json`.
    """

    locks_can_pass: bool

    def shown_path(self, path: str) -> str:
        """The path for people, in messages."""
        ...

    def spark_path(self, path: str) -> str:
        """The path for Spark's readers, not to be taken for a pattern."""
        ...

    def spark_uri(self, path: str) -> str:
        """The path for Spark where no patterns are looked for: its writers, and options such as `basePath`."""
        ...

    def prepare(self, spark: SparkSession) -> None:
        """Tell a session, also one that runs already, how to get here."""
        ...

    def save(self, spark: SparkSession, writer: DataFrameWriter, folder: str) -> None:
        """Let Spark write a folder, so that nothing of killed and repeated tasks stays in it."""
        ...

    def health(self) -> Health:
        """Whether the place is there and can be used; never raises."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        ...

    def is_file(self, path: str) -> bool:
        """Whether it is a file."""
        ...

    def size(self, path: str) -> int:
        """The size of a file in bytes."""
        ...

    def visible_files(self, folder: str) -> list[StoredFile]:
        """Every file below a folder, sorted; names that begin with '_' or '.' are hidden, with all below them."""
        ...

    def children(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none when it is not there."""
        ...

    def open(self, path: str) -> IO[bytes]:
        """A file to be read in parts: a footer, a first line."""
        ...

    def read_json(self, path: str) -> Any:
        """A small JSON file, or None when it is not there."""
        ...

    def read_versioned(self, path: str) -> tuple[Any, str | None]:
        """The same, with its version for `replace_json`."""
        ...

    def write_json(self, path: str, content: Any) -> None:
        """Replace a small JSON file in one step: readers and crashes see the old one or the new one."""
        ...

    def replace_json(self, path: str, content: Any, version: str | None) -> None:
        """Replace it only if it is still the version that was read, None for a file that was not there.

        Raises:
            VersionChanged: somebody else has replaced it since.
        """
        ...

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Give finished files their places; they outlive a crash from then on."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; one that is already gone is fine."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all below it; one that is already gone is fine."""
        ...

    def remove_if_empty(self, folder: str) -> None:
        """Remove a folder that holds nothing."""
        ...

    def lock(self, path: str, *, shared: bool = False, wait: bool = False) -> Lock | None:
        """Take a lock of that name. None when somebody else has it and we do not wait."""
        ...

    def lock_note(self, path: str) -> str:
        """What the holder of a lock wrote into it."""
        ...

    def explained(self) -> AbstractContextManager[None]:
        """Let the place's refusals out as errors of ours."""
        ...


class HeldLock:
    """A lock on a file, held until released; the operating system frees it when the process ends, however it ends."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle

    def note(self, text: str) -> None:
        """Leave a word for whoever finds the lock taken."""
        self._handle.seek(0)
        self._handle.truncate()
        self._handle.write(text.encode())
        self._handle.flush()

    def is_held(self) -> bool:
        """Always: the operating system takes it from no living process."""
        return True

    def release(self) -> None:
        """Give it back. The file stays: removing it would let two processes lock two different files."""
        self._handle.close()


class LocalStore:
    """Files below one folder of this machine. All paths are relative to it, with forward slashes."""

    locks_can_pass = False  # the operating system gives a lock back when its process ends, and never before

    def __init__(self, root: str) -> None:
        self.root = Path(os.path.abspath(os.path.expanduser(root)))
        self._encodes = False

    def local_path(self, path: str) -> str:
        """The path for the operating system."""
        return str(self.root / path) if path else str(self.root)

    def shown_path(self, path: str) -> str:
        """The path for people."""
        return self.local_path(path)

    def spark_path(self, path: str) -> str:
        """The path for Spark, local whatever its default file system is; not to be taken for a pattern."""
        return self.spark_uri(path) if self._encodes else not_a_pattern(self.spark_uri(path))

    def spark_uri(self, path: str) -> str:
        """The path for Spark's writers and options."""
        return encoded_uri(self.raw_path(path)) if self._encodes else "file://" + self.raw_path(path)

    def prepare(self, spark: SparkSession) -> None:
        """Nothing to tell: Spark knows local files. The native engine wants their paths in another form."""
        self._encodes = is_native(spark)

    def save(self, spark: SparkSession, writer: DataFrameWriter, folder: str) -> None:
        """Spark's usual way does: the files of a task are moved when it has succeeded."""
        writer.save(self.spark_uri(folder))

    def raw_path(self, path: str) -> str:
        """The path for Spark's options that are never taken for a pattern."""
        full = Path(self.local_path(path)).as_posix()
        return full if full.startswith("/") else "/" + full

    def health(self) -> Health:
        """Whether the folder is there or can be made, and can be written to."""
        started = time.perf_counter()
        place = self.local_path("")
        while not os.path.exists(place):
            place = os.path.dirname(place)
        if not os.path.isdir(place):
            ok, detail = False, f"{place} is not a folder"
        elif not os.access(place, os.R_OK | os.W_OK | os.X_OK):
            ok, detail = False, f"{place} cannot be read and written by this user"
        else:
            ok, detail = True, "ok" if place == self.local_path("") else "ok, the folder will be made"
        return Health(ok, detail, (time.perf_counter() - started) * 1000)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def exists(self, path: str) -> bool:
        """Whether a file or folder is there."""
        return os.path.exists(self.local_path(path))

    def is_file(self, path: str) -> bool:
        """Whether it is a file."""
        return os.path.isfile(self.local_path(path))

    def size(self, path: str) -> int:
        """The size of a file in bytes."""
        return os.path.getsize(self.local_path(path))

    def visible_files(self, folder: str) -> list[StoredFile]:
        """Every file below a folder, sorted; names that begin with '_' or '.' are hidden, with all below them."""
        found: list[StoredFile] = []
        top = self.local_path(folder)
        for place, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name[0] not in "._"]
            for name in names:
                if name[0] not in "._":
                    full = os.path.join(place, name)
                    found.append(StoredFile(Path(full).relative_to(top).as_posix(), os.path.getsize(full)))
        return sorted(found, key=lambda file: file.path)

    def children(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none when it is not there."""
        full = self.local_path(folder)
        return sorted(os.listdir(full)) if os.path.isdir(full) else []

    def read_json(self, path: str) -> Any:
        """A small JSON file, or None when it is not there."""
        try:
            with open(self.local_path(path), encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            return None

    def read_versioned(self, path: str) -> tuple[Any, str | None]:
        """The file; versions are not needed where a lock is certain."""
        return self.read_json(path), None

    def open(self, path: str) -> IO[bytes]:
        """A file to be read in parts."""
        return open(self.local_path(path), "rb")

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def write_json(self, path: str, content: Any) -> None:
        """Replace a small JSON file in one step: readers and crashes see the old one or the new one."""
        full = self.local_path(path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        scratch = os.path.join(os.path.dirname(full), f".{uuid.uuid4().hex}.tmp")
        try:
            with open(scratch, "w", encoding="utf-8") as file:
                file.write(json.dumps(content, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, full)
        except OSError:  # a full disk must not get fuller
            Path(scratch).unlink(missing_ok=True)
            raise
        _sync_folder(os.path.dirname(full))

    def replace_json(self, path: str, content: Any, version: str | None) -> None:
        """Replace it; its reader holds the lock, so it is what it was."""
        self.write_json(path, content)

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Move files, one after the other."""
        for source, destination in moves:
            self.move(source, destination)

    def move(self, source: str, destination: str) -> None:
        """Give a finished file its place; it is on the disk, not only in memory, before it gets there."""
        full = self.local_path(destination)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        handle = os.open(self.local_path(source), os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(self.local_path(source), full)
        _sync_folder(os.path.dirname(full))

    def remove(self, path: str) -> None:
        """Remove a file; one that is already gone is fine."""
        Path(self.local_path(path)).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        """Remove a folder and all below it; one that is already gone is fine."""
        shutil.rmtree(self.local_path(path), ignore_errors=True)

    def remove_if_empty(self, folder: str) -> None:
        """Remove a folder that holds nothing."""
        full = self.local_path(folder)
        if os.path.isdir(full) and not os.listdir(full):
            os.rmdir(full)

    # ── locks ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def lock(self, path: str, *, shared: bool = False, wait: bool = False) -> HeldLock | None:
        """Lock a file of that name, made if needed. None when somebody else has it and we do not wait."""
        full = self.local_path(path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        handle = open(full, "a+b")  # noqa: SIM115 - kept open for as long as the lock is held
        try:
            _lock(handle, shared=shared, wait=wait)
        except OSError:
            handle.close()
            return None
        return HeldLock(handle)

    def lock_note(self, path: str) -> str:
        """What the holder of a lock wrote into it."""
        try:
            return Path(self.local_path(path)).read_text(encoding="utf-8")
        except OSError:
            return ""

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Let the operating system's refusals out as ours, with the place."""
        try:
            yield
        except OSError as exc:
            if exc.errno in _NO_SPACE:
                raise StatementFailed(
                    "The disk is full; the files that were there are as they were.",
                    where=str(exc.filename or self.root),
                    fix="make room and run it again",
                ) from exc
            reason = exc.strerror or type(exc).__name__
            raise ConnectionFailed(
                f"The folder cannot be used: {reason}.",
                where=str(exc.filename or self.root),
                fix="check the connection's path, its permissions and the space left",
            ) from exc


def not_a_pattern(uri: str) -> str:
    """A path in which Spark's readers find no wildcards."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", uri)


def _lock(handle: IO[bytes], *, shared: bool, wait: bool) -> None:
    if sys.platform == "win32":
        import msvcrt

        # Windows knows no shared lock here, and refuses to delete files in use by itself.
        if not shared:
            msvcrt.locking(handle.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(handle.fileno(), how if wait else how | fcntl.LOCK_NB)


def _sync_folder(folder: str) -> None:
    """Make a rename outlive a power cut; not every system can open a folder for that."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_PATTERN = re.compile(r"[\[\]{}*?%\\]")


def require_no_pattern(path: str) -> None:
    """Refuse a folder that the native engine takes for a pattern: it would find nothing there, and say nothing.

    Raises:
        RouteImpossible: it has such a character.
    """
    if found := _PATTERN.search(path):
        raise RouteImpossible(
            f"The native engine cannot work in a folder with {found[0]!r} in its name.",
            where=path,
            fix="another folder, or engine='spark' on this pipeline",
        )
