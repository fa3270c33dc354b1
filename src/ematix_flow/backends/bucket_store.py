"""A bucket as a place for files: small files by its vendor's client, rows by Spark; commits and leases by conditions.

A bucket has no rename and no locks. It has writes that succeed only if an object is still the one that was read, or is
not there yet, and one clock. Leases (`bucket_lease.py`) and `replace_json` are made of these; a store that ignores the
conditions is found out when the first lease is taken, and refused. What differs between vendors is in their clients
(`object_client.py`) and in how Spark is told of a bucket.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, ClassVar, cast

from ematix_flow.backends.bucket_lease import BucketLease, Holder
from ematix_flow.backends.files_store import Lock, StoredFile, VersionChanged, not_a_pattern
from ematix_flow.backends.object_client import ObjectClient, OnlyIf, StoredObject, StoreForbidden, StoreRefused, at_once
from ematix_flow.contracts.backend import Health
from ematix_flow.errors import ConnectionFailed, InvalidPlan, MissingDriver, UnsupportedBackend

if TYPE_CHECKING:
    from pyspark.sql import DataFrameWriter, SparkSession

log = logging.getLogger(__name__)

LEASE_S = 60.0
"""How long a lease lasts after its holder was heard of; it is heard of four times as often."""

_POLL_S = 0.25
_BY_FACTORY = {
    # Spark asks for a committer made for the store instead of renaming folders.
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
}

_HIDDEN_SETTING = "spark.sql.redaction.options.regex"
_HIDDEN_BY_SPARK = "(?i)url"
_HIDDEN = r"(?i:secret|password|token|credential|(access|private|account)[._-]?key)"

_known_to_spark: dict[tuple[str, str], str] = {}
_warned: set[str] = set()


class BucketStore(ABC):
    """Files in one bucket, below a prefix if there is one. All paths are relative to it, with forward slashes.

    Attributes:
        scheme: How addresses begin for people.
        committer: The settings by which Spark writes without leaving anything of killed tasks.
        fit_stores: What to use instead of a store that ignores conditions.
        stand_in: What this code has been run against where it never met the service itself, for a warning.
        is_service: Whether this is the service itself.
    """

    locks_can_pass = True
    scheme: ClassVar[str]
    committer: ClassVar[Mapping[str, str]]
    fit_stores: ClassVar[str]
    service: ClassVar[str] = ""
    stand_in: ClassVar[str | None] = None
    is_service: bool = False

    def __init__(self, client: ObjectClient, bucket: str, endpoint: str, *, prefix: str = "", lease_s: float) -> None:
        self.client, self.bucket, self.endpoint, self.prefix = client, bucket, endpoint, prefix
        self.lease_s = lease_s
        self._is_reached = self._keeps_conditions = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shown_path('')} at {self.endpoint}>"

    # ── paths ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def key(self, path: str) -> str:
        """The object's name in the bucket."""
        path = "" if path == "." else path.removeprefix("./")
        return f"{self.prefix}/{path}".strip("/") if self.prefix else path

    def shown_path(self, path: str) -> str:
        """The path for people."""
        return f"{self.scheme}://{self.bucket}/{self.key(path)}".rstrip("/")

    def spark_path(self, path: str) -> str:
        """The path for Spark's readers."""
        return not_a_pattern(self.spark_uri(path))

    @abstractmethod
    def spark_uri(self, path: str) -> str:
        """The path for Spark's writers and options."""

    # ── Spark ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def spark_settings(self) -> Mapping[str, str]:
        """Where the bucket is and who asks, in the words of Spark's connector."""

    def spark_patience(self) -> Mapping[str, str]:
        """How long the connector waits; settings of the user's own win."""
        return {}

    @abstractmethod
    def spark_place(self) -> tuple[str, str]:
        """What Spark's connector keeps open by the login of its first use, by name and for people."""

    @abstractmethod
    def login_parts(self) -> Sequence[str]:
        """Everything that makes two logins differ; only its hash is kept."""

    def prepare(self, spark: SparkSession) -> None:
        """Tell the session where the bucket is and who asks; Spark hands its settings on to each query.

        Raises:
            ConnectionFailed: the bucket cannot be reached; Spark would find that out later, and slower.
            InvalidPlan: Spark knows a place of this name elsewhere, or by another login.
        """
        if not self._is_reached:
            with self.explained():
                self.client.list(self.key(""), at_most=1)
            self._is_reached = True
        application = str(spark.conf.get("spark.app.id", "") or "")
        name, shown = self.spark_place()
        mark = hashlib.sha256("\n".join([self.endpoint, *self.login_parts()]).encode()).hexdigest()
        # Spark opens a place once and keeps it by its name alone, with the login of the first time.
        if _known_to_spark.setdefault((application, name), mark) != mark:
            raise InvalidPlan(
                f"Spark has {shown} open with another endpoint or login, and keeps it.",
                fix="run the two pipelines in separate processes",
            )
        self._keep_secret(spark)
        for setting, value in self.spark_settings().items():
            spark.conf.set(setting, value)
        for setting, value in self.spark_patience().items():
            if all(spark.conf.get(f"{kind}{setting}", None) is None for kind in ("spark.hadoop.", "")):
                spark.conf.set(setting, value)
        self._warn_once()

    def _keep_secret(self, spark: SparkSession) -> None:
        """Let Spark show no login: its pages and event logs have a session's settings with every query.

        A session of the user's own hides what it was told to when it was made, which does not cover every store.
        """
        known = str(spark.conf.get(_HIDDEN_SETTING, _HIDDEN_BY_SPARK))
        if not known.endswith(_HIDDEN):
            spark.conf.set(_HIDDEN_SETTING, f"(?:{known})|{_HIDDEN}")

    def _warn_once(self) -> None:
        """Say once per process that this path has never met the service itself."""
        if self.stand_in is not None and self.is_service and self.service not in _warned:
            _warned.add(self.service)
            log.warning(
                "%s: this path has been tested against %s, never against %s itself; look at the first loads closely "
                "(docs/object-stores.md)",
                self.shown_path(""),
                self.stand_in,
                self.service,
            )

    def save(self, spark: SparkSession, writer: DataFrameWriter, folder: str) -> None:
        """Let Spark write a folder by the store's own committer."""
        committer = {**_BY_FACTORY, **self.committer}
        before = {name: spark.conf.get(name, None) for name in committer}
        for name, value in committer.items():
            spark.conf.set(name, value)
        try:
            writer.save(self.spark_uri(folder))
            return
        except Exception as exc:
            if "ClassNotFoundException: org.apache.spark.internal.io.cloud" not in str(exc):
                raise
        finally:
            for name, old in before.items():
                spark.conf.unset(name) if old is None else spark.conf.set(name, old)
        # A session that somebody else started, without that class. Hadoop's own way copies each file twice, safely.
        log.debug("The session has no committer for buckets; files are renamed instead")
        writer.save(self.spark_uri(folder))

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def health(self) -> Health:
        """Whether the bucket answers to this login."""
        started = time.perf_counter()
        ok, detail = True, "ok"
        try:
            self.client.list(self.key(""), at_most=1)
        except MissingDriver as exc:
            ok, detail = False, exc.message
        except StoreRefused as exc:
            ok, detail = False, exc.message
        return Health(ok, detail, (time.perf_counter() - started) * 1000)

    def exists(self, path: str) -> bool:
        """Whether an object of that name is there, or any below it."""
        return self.is_file(path) or bool(self.client.list(f"{self.key(path)}/", at_most=1).objects)

    def is_file(self, path: str) -> bool:
        """Whether it is an object."""
        return bool(self.key(path)) and self.client.size(self.key(path)) is not None

    def size(self, path: str) -> int:
        """The size of an object in bytes."""
        size = self.client.size(self.key(path))
        if size is None:
            raise StoreRefused(f"{self.shown_path(path)} is gone.", self.shown_path(path), "run it again")
        return size

    def visible_files(self, folder: str) -> list[StoredFile]:
        """Every object below a folder, sorted; a '_' or '.' where a name begins hides it, and all below it."""
        top = f"{self.key(folder)}/" if self.key(folder) else ""
        found = [StoredFile(item.key.removeprefix(top), item.size) for item in self._files(top)]
        hidden = ("", "_", ".")  # an empty name is how some programs mark a folder
        shown = [file for file in found if not any(name[:1] in hidden for name in file.path.split("/"))]
        return sorted(shown, key=lambda file: file.path)

    def _files(self, prefix: str) -> list[StoredObject]:
        return [item for item in self.client.list(prefix).objects if not item.is_folder]

    def children(self, folder: str) -> list[str]:
        """The names in a folder, sorted."""
        top = f"{self.key(folder)}/"
        return sorted({item.key.removeprefix(top).split("/")[0] for item in self.client.list(top).objects} - {""})

    def open(self, path: str) -> IO[bytes]:
        """An object to be read in parts."""
        return cast("IO[bytes]", io.BufferedReader(_Ranges(self, path), buffer_size=256 * 1024))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Some bytes of an object, both ends included."""
        return self.client.get_range(self.key(path), start, end)

    def read_json(self, path: str) -> Any:
        """A small JSON file, or None when it is not there."""
        return self.read_versioned(path)[0]

    def read_versioned(self, path: str) -> tuple[Any, str | None]:
        """The same, with its version."""
        found = self.client.get(self.key(path))
        return (None, None) if found is None else (json.loads(found[0]), found[1])

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def write_json(self, path: str, content: Any) -> None:
        """Replace a small JSON file in one step."""
        self.put(path, content)

    def replace_json(self, path: str, content: Any, version: str | None) -> None:
        """Replace it only if it is still the version that was read; the store decides, not a lock."""
        self.put(path, content, OnlyIf(version))

    def put(self, path: str, content: Any, only_if: OnlyIf | None = None) -> str:
        """Write an object; its version.

        Raises:
            VersionChanged: the condition does not hold.
        """
        return self.client.put(self.key(path), (json.dumps(content, ensure_ascii=False) + "\n").encode(), only_if)

    def move_all(self, moves: Sequence[tuple[str, str]]) -> None:
        """Copy files to their places, several at once, within the store. The others go with their folder."""
        at_once(lambda move: self.client.copy(self.key(move[0]), self.key(move[1])), moves)

    def remove(self, path: str) -> None:
        """Remove an object; one that is already gone is fine."""
        self.client.delete([self.key(path)])

    def remove_tree(self, path: str) -> None:
        """Remove everything below a folder, and uploads into it that nobody will complete."""
        top = f"{self.key(path)}/"
        assert top != "/", "never the whole bucket"
        found = self.client.list(top).objects
        self.client.delete([item.key for item in found if not item.is_folder])
        # What marks a folder goes after what is in it, the innermost first: some stores insist on that.
        marks = {*self.client.folder_marks(self.key(path)), *(item.key for item in found if item.is_folder)}
        self.client.delete(sorted(marks, key=lambda key: (-key.count("/"), key)))
        try:
            self.client.end_uploads(top)
        except StoreForbidden:
            log.debug("Unfinished uploads below %s cannot be listed; the bucket's own rules must end them", top)

    def remove_if_empty(self, folder: str) -> None:
        """Remove what marks a folder that holds nothing; a bucket has no folders, only names with slashes."""
        marks = self.client.folder_marks(self.key(folder))
        if marks and all(item.key in marks for item in self.client.list(f"{self.key(folder)}/", at_most=2).objects):
            self.client.delete(marks)

    # ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def lock(self, path: str, *, shared: bool = False, wait: bool = False) -> Lock | None:
        """Take a lease: an object that is kept fresh while its holder lives. A stale one may be taken over."""
        holder = Holder.this_process()
        if shared:
            name = f"{path}.{uuid.uuid4().hex}"
            return BucketLease(self, name, holder, self.put(name, holder.content(0, "")))
        while True:
            lease = self._taken(path, holder)
            if lease is not None or not wait:
                return lease
            time.sleep(_POLL_S)

    def _taken(self, path: str, holder: Holder) -> BucketLease | None:
        found = self.client.list(self.key(path))
        ages = {item.key: (found.now - item.modified).total_seconds() for item in found.objects}
        for key, age in ages.items():
            if key != self.key(path):  # somebody shares it
                if age <= self.lease_s:
                    return None
                self.client.delete([key])
        condition = OnlyIf(None)
        if self.key(path) in ages:
            known, version = self.read_versioned(path)
            if version is not None:
                if ages[self.key(path)] <= self.lease_s and not Holder.is_gone(known):
                    return None
                condition = OnlyIf(version)
        try:
            version = self.put(path, holder.content(0, ""), condition)
        except VersionChanged:
            return None  # somebody else was faster
        lease = BucketLease(self, path, holder, version)
        self._require_conditions(lease)
        return lease

    def _require_conditions(self, lease: BucketLease) -> None:
        """Make sure, once, that the store refuses a write whose condition does not hold."""
        if self._keeps_conditions:
            return
        wrong = (OnlyIf(None), OnlyIf(self.client.no_version))
        for condition, word in zip(wrong, self.client.conditions, strict=True):
            try:
                lease.try_to_overwrite(condition)
            except VersionChanged:
                continue
            lease.release()
            raise UnsupportedBackend(
                f"The store at {self.endpoint} ignores the condition {word} of a write; two runs could overwrite each "
                "other's work.",
                fix=f"use a store with conditional writes, such as {self.fit_stores}",
            )
        self._keeps_conditions = True

    def lock_note(self, path: str) -> str:
        """What the holder of a lease wrote into it."""
        known = self.read_json(path)
        return str(known.get("note", "")) if isinstance(known, dict) else ""

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Let the store's refusals out as ours, with the place."""
        try:
            yield
        except StoreRefused as exc:
            raise ConnectionFailed(exc.message, where=exc.where, fix=exc.fix) from exc


class _Ranges(io.RawIOBase):
    """An object as a file that can be sought in; each read is one request."""

    def __init__(self, store: BucketStore, path: str) -> None:
        self._store, self._path, self._place = store, path, 0
        self._size = store.size(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        end = min(self._place + len(buffer), self._size)
        if end <= self._place:
            return 0
        found = self._store.read_range(self._path, self._place, end - 1)
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)
