"""One table of files: which files are live, and how new ones become live in one step.

::

    <table>/
    ├── 20260301T060000.000000Z-4be1…-00000.parquet   data, named by time and logical run
    ├── _ematix_flow/manifest.json                     the live files, applied runs and watermarks: the commit point
    ├── _ematix_flow/publishing.json                   while a publish is under way, or its old files are read
    └── _ematix_flow_staging/<run>/                    what Spark is writing; gone when the run ends

A run's files are moved into the folder, then the manifest is replaced in one step: before it nothing has happened,
after it everything has. Old files of a `truncate` are removed last, and never while a reader of ours is still at them.
Where a lock can pass to another run (`Store.locks_can_pass`), the manifest is replaced only if it is still the one that
was read, and whoever undoes a publish marks the manifest first: the run that was given up then cannot commit any more.
Programs that list the folder instead of following the manifest may see new files a moment before they count, and old
and new ones together while a `truncate` is being published.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.backends.files_options import CsvLayout
from ematix_flow.backends.files_store import Lock, Store, VersionChanged
from ematix_flow.backends.json_books import BOOKS, PipelineState
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.declare.fileformats import FileFormat, format_from_path
from ematix_flow.errors import InvalidSource, StatementFailed, WriteConflict

log = logging.getLogger(__name__)

STAGING = "_ematix_flow_staging"
_MANIFEST_VERSION = 1


@dataclass(frozen=True)
class DataFile:
    """A data file, relative to its table. Files of ours know their CSV layout and columns; others are looked at."""

    path: str
    size: int
    layout: CsvLayout | None = None
    columns: tuple[str, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The file in a manifest."""
        known: dict[str, Any] = {"path": self.path, "bytes": self.size}
        if self.layout is not None:
            known["csv"] = self.layout.to_dict()
        if self.columns is not None:
            known["columns"] = list(self.columns)
        return known

    @staticmethod
    def from_dict(known: Mapping[str, Any]) -> DataFile:
        """The inverse of `to_dict`."""
        layout = CsvLayout(**known["csv"]) if "csv" in known else None
        columns = tuple(known["columns"]) if "columns" in known else None
        return DataFile(known["path"], known["bytes"], layout, columns)


@dataclass(frozen=True)
class Manifest:
    """The committed state of a table. `publish_id` names the publish that made it, None before the first.

    `version` is the store's own word for the manifest that was read.
    """

    files: tuple[DataFile, ...]
    pipelines: Mapping[str, PipelineState] = field(default_factory=dict)
    schema: Mapping[str, Any] | None = None
    publish_id: str | None = None
    version: str | None = None

    def pipeline(self, name: str) -> PipelineState:
        """What is known of a pipeline."""
        return self.pipelines.get(name, PipelineState())


class TableFolder:
    """One folder of data files of one format."""

    def __init__(self, store: Store, folder: str, file_format: FileFormat) -> None:
        self.store, self.folder, self.file_format = store, folder, file_format
        self._manifest_path = f"{folder}/{BOOKS}/manifest.json"
        self._intent_path = f"{folder}/{BOOKS}/publishing.json"
        self._published: str | None = None

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def manifest(self) -> Manifest | None:
        """What we committed here, or None when we never wrote."""
        return self._parsed(*self.store.read_versioned(self._manifest_path))

    def _parsed(self, known: Any, version: str | None) -> Manifest | None:
        if known is None or known.get("files") is None:  # the latter: marked before the first commit
            return None
        if known.get("version") != _MANIFEST_VERSION:
            raise StatementFailed(
                f"The manifest of '{self.folder}' has version {known.get('version')!r}, unknown to this release.",
                where=self.store.shown_path(self._manifest_path),
                fix="use the release of ematix-flow that wrote it, or a newer one",
            )
        return Manifest(
            files=tuple(DataFile.from_dict(file) for file in known["files"]),
            pipelines={name: PipelineState.from_dict(state) for name, state in known["pipelines"].items()},
            schema=known["schema"],
            publish_id=known["publish_id"],
            version=version,
        )

    def live_files(self, manifest: Manifest | None) -> tuple[DataFile, ...]:
        """The files that count: those of the manifest, or all of the format where we never wrote."""
        present = self._files_of_format()
        if manifest is None:
            intent = self.store.read_json(self._intent_path)
            manifest = self.manifest()
            if manifest is None:  # files of a first publish that was not committed do not count yet
                uncommitted = set(intent["adds"]) if intent is not None else set()
                return tuple(file for file in present if file.path not in uncommitted)
            present = self._files_of_format()  # it was committed while we looked
        known = {file.path for file in present}
        gone = [file.path for file in manifest.files if file.path not in known]
        if gone:
            raise InvalidSource(
                f"'{self.folder}' misses {len(gone)} of the files in its manifest, first '{gone[0]}'.",
                where=self.store.shown_path(self.folder),
                fix=f"put them back, or remove {BOOKS}/manifest.json there to read the folder as it stands",
            )
        extra = known - {file.path for file in manifest.files}
        if extra and not self.store.exists(self._intent_path):
            log.warning(
                "%s holds %d files that are not in its manifest and are not read, first '%s'",
                self.store.shown_path(self.folder),
                len(extra),
                min(extra),
            )
        return manifest.files

    def _files_of_format(self) -> tuple[DataFile, ...]:
        found = self.store.visible_files(self.folder)
        return tuple(DataFile(f.path, f.size) for f in found if format_from_path(f.path) == self.file_format)

    @contextmanager
    def being_read(self) -> Iterator[None]:
        """Keep live files from being removed while a query reads them; a folder that is not ours is left untouched."""
        lock = None
        if self.store.exists(self._manifest_path):
            try:
                lock = self.store.lock(self._readers_path, shared=True, wait=True)
            except PermissionError:
                log.debug("%s cannot be locked for reading; its files may be replaced meanwhile", self.folder)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()
                self._sweep_as_reader()

    def _sweep_as_reader(self) -> None:
        """The last reader removes what was replaced while it read, if it may."""
        try:
            if self.store.exists(self._intent_path):
                self.sweep(wait=False)
        except PermissionError:
            log.debug("replaced files of %s are left to the next run that writes there", self.folder)

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the table against other writers; short, since the rows are already staged."""
        lock = self.store.lock(self._lock_path, wait=True)
        if lock is None:
            raise WriteConflict(f"'{self.folder}' cannot be locked for writing.", fix="run it again")
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def staging(self, run_id: str) -> Iterator[str]:
        """A hidden folder for Spark to write into, removed at the end; its lock tells others that it is in use."""
        with self.locked():  # a sweep must not find the folder before its lock is held
            lock = self.store.lock(f"{self.folder}/{STAGING}/{run_id}.lock")
        if lock is None:
            raise WriteConflict(f"Run '{run_id}' is already writing to '{self.folder}'.")
        try:
            yield f"{self.folder}/{STAGING}/{run_id}"
        finally:
            self._drop_staging(run_id, lock)

    def current(self) -> Manifest:
        """The committed state to build on, with an interrupted publish undone. Called with the table locked.

        Where we never wrote, the files that are there are adopted: they stay visible.
        """
        self._finish_publish()
        known, version = self.store.read_versioned(self._manifest_path)
        return self._parsed(known, version) or Manifest(files=self._files_of_format(), version=version)

    def publish(self, staged: Sequence[tuple[str, DataFile]], after: Manifest, *, replace: bool) -> None:
        """Move staged files to their places and make `after` the committed state. Called with the table locked.

        With `replace`, every other file of the format is removed once `after` is committed.

        Raises:
            WriteConflict: the manifest is not the one that `after` was made from; nothing has happened.
        """
        publish_id = uuid.uuid4().hex
        kept = {file.path for file in after.files}
        removes = [file.path for file in self._files_of_format() if file.path not in kept] if replace else []
        intent = {
            "id": publish_id,
            "adds": [file.path for _, file in staged],
            "removes": removes,
            "leftovers": self._leftovers(),
        }
        self.store.write_json(self._intent_path, intent)
        self.store.move_all([(place, f"{self.folder}/{file.path}") for place, file in staged])
        reached("mid-settle")
        content = {
            "version": _MANIFEST_VERSION,
            "format": self.file_format,
            "publish_id": publish_id,
            "files": [file.to_dict() for file in after.files],
            "schema": after.schema,
            "pipelines": {name: state.to_dict() for name, state in after.pipelines.items()},
        }
        try:
            self.store.replace_json(self._manifest_path, content, after.version)
        except VersionChanged:
            now = self.manifest()
            if now is None or now.publish_id != publish_id:  # else it was our own, and only its answer got lost
                self._remove(intent["adds"])
                raise WriteConflict(
                    f"Another run wrote to '{self.folder}' at the same time; this one changed nothing.",
                    fix="run it again",
                ) from None
        self._published = publish_id

    def clear_replaced(self) -> None:
        """Remove what the last publish replaced, unless somebody still reads it. Called with the table locked."""
        intent = self.store.read_json(self._intent_path)
        if intent is not None and intent["id"] == self._published:  # another one's publish is not ours to end
            self._finish_publish()

    def sweep(self, *, wait: bool = True) -> None:
        """Remove what dead runs left: half a publish, replaced files, staging folders. Never a living run's."""
        if not self.store.exists(f"{self.folder}/{BOOKS}"):
            return
        lock = self.store.lock(self._lock_path, wait=wait)
        if lock is None:
            return
        try:
            self._finish_publish()
            for run_id in sorted(
                {name.removesuffix(".lock") for name in self.store.children(f"{self.folder}/{STAGING}")}
            ):
                staging = self.store.lock(f"{self.folder}/{STAGING}/{run_id}.lock")
                if staging is not None:
                    self._drop_staging(run_id, staging)
            self.store.remove_if_empty(f"{self.folder}/{STAGING}")
        finally:
            lock.release()

    def _drop_staging(self, run_id: str, lock: Lock) -> None:
        self.store.remove_tree(f"{self.folder}/{STAGING}/{run_id}")
        self.store.remove(f"{self.folder}/{STAGING}/{run_id}.lock")
        lock.release()
        self.store.remove_if_empty(f"{self.folder}/{STAGING}")

    def _finish_publish(self) -> None:
        """Bring a publish to its end: a committed one loses its old files, any other one its new files."""
        intent = self.store.read_json(self._intent_path)
        if intent is None:
            return
        known, version = self.store.read_versioned(self._manifest_path)
        committed = known is not None and known["publish_id"] == intent["id"]
        if not committed:
            if self.store.locks_can_pass and not self._is_marked(known, version):
                return self._finish_publish()  # it was committed after all, in this very moment
            self._remove(intent["adds"])
        replaced = intent["leftovers"] + (intent["removes"] if committed else [])
        readers = self.store.lock(self._readers_path)
        if readers is None:
            return  # the intent stays, so that a later run or the last reader removes the files
        try:
            self._remove(replaced)
            self.store.remove(self._intent_path)
        finally:
            readers.release()

    def _is_marked(self, known: Any, version: str | None) -> bool:
        """Write the manifest again, with a mark: a publish that was begun on this version cannot commit any more."""
        nothing: dict[str, Any] = {
            "version": _MANIFEST_VERSION,
            "format": self.file_format,
            "publish_id": None,
            "files": None,
            "schema": None,
            "pipelines": {},
        }
        try:
            self.store.replace_json(self._manifest_path, {**(known or nothing), "mark": uuid.uuid4().hex}, version)
        except VersionChanged:
            return False
        return True

    def _leftovers(self) -> list[str]:
        """Replaced files of the publish before, which a reader still holds."""
        intent = self.store.read_json(self._intent_path)
        if intent is None:
            return []
        manifest = self.manifest()
        committed = manifest is not None and manifest.publish_id == intent["id"]
        return [*intent["leftovers"], *(intent["removes"] if committed else [])]

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.store.remove(f"{self.folder}/{path}")
            inner = path.split("/")[:-1]
            while inner:  # folders of partitions that are empty now
                self.store.remove_if_empty("/".join([self.folder, *inner]))
                inner.pop()

    @property
    def _lock_path(self) -> str:
        return f"{self.folder}/{BOOKS}/table.lock"

    @property
    def _readers_path(self) -> str:
        return f"{self.folder}/{BOOKS}/readers.lock"
