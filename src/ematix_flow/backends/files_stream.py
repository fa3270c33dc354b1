"""Files as a source of streams: Spark watches a prefix for new names, and every batch reads the files that it names.

What is streamed are the names alone, so nothing needs to be known of the files beforehand: a prefix may be empty, and
each batch finds the columns of its own files, read as a batch pipeline would read them. Which files were taken is
written in the checkpoint, by name: one that comes late and sorts first is read, one that was read never again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ematix_flow.backends.files_damage import footer, parted
from ematix_flow.backends.files_frames import Expected, FrameFiles
from ematix_flow.backends.files_options import prefix_segments
from ematix_flow.backends.files_store import LocalStore, Store
from ematix_flow.backends.files_table import DataFile
from ematix_flow.backends.json_books import BOOKS
from ematix_flow.contracts.left_out import left_out_words
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.streams import FILE_NAME, FILE_SIZE, Lag, StreamReading
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.fileformats import TYPED_FORMATS, FileFormat, format_from_path
from ematix_flow.declare.target import FileOptions
from ematix_flow.errors import InvalidDeclaration, InvalidSource, StateIncompatible

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

ALL_FILES = {"files": "all"}
"""Where a stream begins that was told to read every file again."""

BYTES_PER_ROW = 256
"""What a row is taken to weigh where a batch is bounded in rows: Spark bounds batches of files in bytes."""

FOR_EVER = "36500d"
"""Spark leaves out files that are a week older than the newest it has seen, and says nothing. Here none is too old."""

_NAMES = "path string, modificationTime timestamp, length bigint, content binary"


class FileStreams:
    """What `FilesBackend` adds to be read as a stream."""

    connection: Connection
    store: Store
    file_format: FileFormat
    options: FileOptions
    goes_on_without: bool
    needs: SessionNeeds
    gives_messages = False
    _looked_into: frozenset[str] = frozenset()
    _lists: str | None = None

    @property
    def stream_needs(self) -> SessionNeeds:
        """What reading the files in batches needs."""
        return self.needs

    # ── before it starts ─────────────────────────────────────────────────────────────────────────────────────────────

    def check_stream(self, query: str) -> None:
        """Refuse a file and a folder of ours; make a folder of this machine that is not there yet."""
        folder = _folder(query)
        with self.store.explained():
            if self.store.is_file(folder):
                raise InvalidDeclaration(
                    f"'{query}' is a file; a stream reads the files that come into a folder.",
                    where=self.store.shown_path(folder),
                )
            self._refuse_ours([folder])
            if isinstance(self.store, LocalStore):
                os.makedirs(self.store.local_path(folder), exist_ok=True)

    def _refuse_ours(self, folders: Iterable[str]) -> None:
        """A table that loads write to: files lie there before they count, and go when they are replaced."""
        for folder in folders:
            if any(self.store.exists(f"{folder}/{BOOKS}/{name}.json") for name in ("manifest", "publishing")):
                raise InvalidSource(
                    f"'{folder}' is a table that ematix-flow writes; its files come and go with the loads, and cannot "
                    "be read as a stream.",
                    where=self.store.shown_path(folder),
                    fix="write to a Delta or Iceberg table and read that as a stream, or read this one in batches",
                )

    def first_position(self, query: str) -> Any:
        """Every file that is there."""
        return None

    def position_at(self, query: str, when: datetime | Literal["earliest", "latest"]) -> Any:
        """The beginning: names of files say nothing of when they came.

        Raises:
            InvalidDeclaration: (a ValueError) another place is asked for.
        """
        if when == "earliest":
            return ALL_FILES
        raise InvalidDeclaration(
            f"'{query}': a stream of files begins with all of them, or where it was.",
            fix="flow state reset NAME --from earliest, or move the files that are not wanted away",
        )

    def position_given(self, query: str, given: Any) -> Any:
        """None but the beginning."""
        return self.position_at(query, "earliest" if given == ALL_FILES else "latest")

    # ── while it runs ────────────────────────────────────────────────────────────────────────────────────────────────

    def read_stream(self, spark: SparkSession, reading: StreamReading) -> DataFrame:
        """The names of files, as they come.

        Raises:
            StateIncompatible: the targets hold batches of files, and which files these were has been lost.
        """
        if reading.begins and reading.start not in (None, ALL_FILES):
            raise StateIncompatible(
                f"The targets hold files of '{reading.query}' already, and the checkpoint that knew which is gone.",
                fix="put the checkpoint back (StateStore(kind='postgres') keeps a copy); or read every file again: "
                "flow state reset NAME --from earliest",
            )
        from pyspark.sql import functions as F

        self._lists = reading.log
        self.store.prepare(spark)
        options = {"recursiveFileLookup": "true", "maxFileAge": FOR_EVER}
        if reading.max_rows is not None:
            options["maxBytesPerTrigger"] = str(reading.max_rows * BYTES_PER_ROW)
        # The content is never looked at, so it is not read either.
        frame = spark.readStream.format("binaryFile").schema(_NAMES).options(**options)
        names = frame.load(self._watched(_folder(reading.query)))
        return names.select(F.col("path").alias(FILE_NAME), F.col("length").alias(FILE_SIZE))

    def _watched(self, folder: str) -> str:
        path = self.store.spark_path(folder)
        if isinstance(self.store, LocalStore) or folder == "." or not path[-1].isalnum():
            return path
        return f"{path[:-1]}[{path[-1]}]"  # Spark refuses a prefix without objects, unless it is a pattern

    def file_frames(self, spark: SparkSession, query: str, names: Sequence[tuple[str, int]]) -> list[DataFrame]:
        """The rows of a batch's files: one frame, or one for each kind of file where files disagree about a type.

        JSON lines come as the text of each line. Files of other formats and hidden ones are left out.
        """
        folder = _folder(query)
        with self.store.explained():
            files = self._files(folder, names)
            if not files:
                return []
            frames = FrameFiles(spark, self.store, self.file_format, self.options)
            if self.file_format == "json_lines":
                return [frames.lines(folder, files)]
            try:
                return [frames.read(folder, files, Expected())]
            except InvalidSource:
                if self.file_format not in TYPED_FORMATS or len(files) == 1:
                    raise
                groups = self._of_one_kind(folder, files)
                if len(groups) == 1:
                    raise
                return [frames.read(folder, group, Expected()) for group in groups]

    def _files(self, folder: str, names: Sequence[tuple[str, int]]) -> tuple[DataFile, ...]:
        top = self.store.spark_uri(folder).replace("file://", "file:").rstrip("/") + "/"
        found = [DataFile(name.removeprefix(top), size) for name, size in names]
        shown = [file for file in found if not any(part[:1] in ("_", ".", "") for part in file.path.split("/"))]
        files = tuple(sorted((f for f in shown if format_from_path(f.path) == self.file_format), key=lambda f: f.path))
        within = {f"{folder}/{place}" for file in files for place in _parents(file.path)} - self._looked_into
        self._refuse_ours([folder, *sorted(within)])
        self._looked_into |= within
        if not self.goes_on_without:
            return files
        sound, damaged = parted(self.store, folder, files, self.file_format)
        if damaged:
            log.warning("%s: %s; left out", self.connection.name, left_out_words(damaged))
        return tuple(sound)

    def _of_one_kind(self, folder: str, files: Sequence[DataFile]) -> list[tuple[DataFile, ...]]:
        """Files that have the same columns in the same types, by their footers."""
        groups: dict[str, list[DataFile]] = {}
        for file in files:
            with self.store.open(f"{folder}/{file.path}") as opened:
                schema, _ = footer(self.file_format, opened)
            groups.setdefault(str(schema.remove_metadata()), []).append(file)
        return [tuple(group) for group in groups.values()]

    def position(self, offset: str) -> Any:
        """Spark counts the lists of files that it has taken, `{"logOffset": 3}`; which files these are is added.

        A batch is known by its positions, and a checkpoint that was put back from a copy counts again from there.
        """
        told = json.loads(offset)
        files = None if self._lists is None else _listed_in(Path(self._lists), told["logOffset"])
        return told if files is None else {**told, "files": hashlib.sha256("\n".join(files).encode()).hexdigest()[:16]}

    def applied(self, query: str, end: Any) -> None:
        """Nobody waits for it: files stay where they are."""

    def lag(self, query: str, end: Any) -> Sequence[Lag]:
        """Not known without listing the prefix once more."""
        return ()


def _folder(query: str) -> str:
    """The folder that a query names; `.` is the whole of the connection."""
    return "." if query.strip() in (".", "./", "/") else "/".join(prefix_segments(query))


def _listed_in(lists: Path, number: int) -> list[str] | None:
    """The files of one list; Spark puts older lists together into `<number>.compact`."""
    compacted = sorted(int(file.stem) for file in lists.glob("*.compact") if file.stem.isdigit())
    places = [str(number), *(f"{later}.compact" for later in compacted if later >= number)]
    for name in places:
        try:
            lines = (lists / name).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        entries = [json.loads(line) for line in lines]
        return sorted(entry["path"] for entry in entries if entry.get("batchId") == number)
    return None


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]
