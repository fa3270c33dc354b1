"""Small files of a checkpoint: on a disk of this machine, or wherever Spark can write."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.declare.withheld import HOW_TO_SEE
from ematix_flow.errors import ConnectionFailed, MissingJar
from ematix_flow.spark.failures import explain
from ematix_flow.spark.jvm import HadoopFolder, java_name

_SCHEME = re.compile(r"^(?P<scheme>[a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_S3 = ("s3a", "s3", "s3n")


class CheckpointFiles(Protocol):
    """Files below one folder, by their relative paths."""

    def read(self, name: str) -> str | None:
        """The text of a file; None when it is not there."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write a file that is there as a whole or not at all, replacing the one before."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none when it is not there."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file or a folder with all that is in it."""
        ...

    def size(self, folder: str) -> int:
        """How many bytes the files of a folder have."""
        ...

    def uri(self, name: str) -> str:
        """How Spark calls it."""
        ...


class LocalFiles:
    """Files of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> str | None:
        """The text of a file."""
        with on_disk(self._root):
            try:
                return (self._root / name).read_text(errors="replace")
            except FileNotFoundError:
                return None

    def write(self, name: str, text: str) -> None:
        """Write beside, then put in place."""
        place = self._root / name
        with on_disk(self._root):
            place.parent.mkdir(parents=True, exist_ok=True)
            partial = place.with_name(f".{place.name}.{os.getpid()}")
            with open(partial, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, place)

    def names(self, folder: str) -> list[str]:
        """The names in a folder."""
        place = self._root / folder
        with on_disk(self._root):
            return [file.name for file in place.iterdir()] if place.is_dir() else []

    def remove(self, name: str) -> None:
        """Remove it, and the checksum that Hadoop keeps beside it."""
        place = self._root / name
        with on_disk(self._root):
            place.with_name(f".{place.name}.crc").unlink(missing_ok=True)
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)

    def size(self, folder: str) -> int:
        """How many bytes its files have."""
        return sum(file.stat().st_size for file in (self._root / folder).iterdir())

    def uri(self, name: str) -> str:
        """A `file:` address."""
        return (self._root / name).as_uri()


@contextmanager
def on_disk(root: Path) -> Iterator[None]:
    """What the operating system says of a checkpoint's folder becomes one error."""
    try:
        yield
    except (OSError, ValueError) as exc:  # a ValueError is a path that no file can have
        said = getattr(exc, "strerror", None) or exc
        raise ConnectionFailed(
            f"The checkpoint {str(root)!r} cannot be used: {said}.",
            fix="it must be a folder that this user can write to; another is named by checkpoint=, --checkpoint or "
            "EMATIX_FLOW_CHECKPOINT_DIR",
        ) from exc


class RemoteFiles:
    """Files of another system, through Spark's own access to it."""

    def __init__(self, root: str, session: Callable[[], SparkSession]) -> None:
        self._root, self._session = root.rstrip("/"), session
        self._opened: HadoopFolder | None = None

    def read(self, name: str) -> str | None:
        """The text of a file."""
        with self._reached() as folder:
            return folder.read(name)

    def write(self, name: str, text: str) -> None:
        """Write it; stores of objects show it when it is complete, and so does what is renamed elsewhere."""
        with self._reached() as folder:
            folder.write(name, text)

    def names(self, folder: str) -> list[str]:
        """The names in a folder."""
        with self._reached() as root:
            return root.names(folder)

    def remove(self, name: str) -> None:
        """Remove it."""
        with self._reached() as folder:
            folder.remove(name)

    def size(self, folder: str) -> int:
        """How many bytes its files have."""
        with self._reached() as root:
            return root.size(folder)

    @contextmanager
    def _reached(self) -> Iterator[HadoopFolder]:
        """The folder; what Java says when it cannot be reached becomes one error."""
        session = self._session()
        try:
            if self._opened is None:
                self._opened = HadoopFolder(session, self._root)
            yield self._opened
        except Py4JError as exc:
            found = explain(exc)
            if isinstance(found, MissingJar):
                raise found from exc
            raise ConnectionFailed(
                f"The checkpoint at {self._root} cannot be reached: {java_name(exc)}.",
                fix="is the address right, and are endpoint and login of its store in [spark.conf], for example "
                f"spark.hadoop.fs.s3a.access.key? {HOW_TO_SEE}",
            ) from exc

    def uri(self, name: str) -> str:
        """Its address."""
        return f"{self._root}/{name}"


def scheme_of(place: str) -> str | None:
    """The scheme of an address that is not on a disk of this machine, else None.

    >>> scheme_of("s3a://bucket/flow"), scheme_of("/var/flow"), scheme_of("file:///var/flow")
    ('s3a', None, None)
    """
    found = _SCHEME.match(place)
    scheme = found["scheme"].lower() if found else None
    return None if scheme in (None, "file") else scheme


def needs_of(place: str) -> SessionNeeds:
    """What a session must have to keep checkpoints there."""
    return SessionNeeds(jars=frozenset({"hadoop-aws"})) if scheme_of(place) in _S3 else SessionNeeds()


def query_settings(place: str) -> dict[str, str]:
    """What a query must be told that keeps its checkpoint there; others of the session must not."""
    if scheme_of(place) not in _S3:
        return {}
    # Else every small file would be written and then renamed, which S3 does by copying.
    manager = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    return {"spark.sql.streaming.checkpointFileManagerClass": manager}
