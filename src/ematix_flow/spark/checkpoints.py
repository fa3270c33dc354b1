"""Where a stream remembers how far it is: one folder per pipeline, one generation of Spark's checkpoint at a time.

::

    <root>/<pipeline>-<16 hex digits>/
    ├── current.json          the generation in use, and the shape of what it remembers
    ├── gen-<generation>/     Spark's checkpoint
    ├── sources.json          which topics these were, by the ids that brokers gave them
    ├── schemas/<source>.json what was learned of a source's messages
    ├── spool/<source>/       messages of a queue, until every target has them
    ├── behind/<target>/      rows that a target could not take yet
    └── stream.lock           held by the living stream

A reset or a rewind begins a new generation and then moves `current.json` to it; Spark's own files are never edited.
Only what is broken is ever removed: a file that a crash left half written, a checksum without its file.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pyspark.sql import SparkSession, types as t

from ematix_flow.backends.json_books import file_name
from ematix_flow.backends.locks import FileLock
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.contracts.runtime import instant_text
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import AlreadyRunning, StateIncompatible
from ematix_flow.plan.stream import is_of_shape
from ematix_flow.spark.checkpoint_files import CheckpointFiles, LocalFiles, RemoteFiles, needs_of, on_disk, scheme_of
from ematix_flow.spark.session import open_session

log = logging.getLogger(__name__)

VARIABLE = "EMATIX_FLOW_CHECKPOINT_DIR"
DEFAULT_ROOT = "~/.ematix-flow/checkpoints"

_SPARKS = re.compile(r"\d+|metadata")
"""Names of files in Spark's logs."""


@dataclass(frozen=True)
class Generation:
    """One checkpoint of Spark's, from its first batch to a reset."""

    name: str
    shape: str
    start: Mapping[str, Any] | None = None
    """Where its first batch begins, by source, when that was decided beforehand (a rewind)."""
    begun_at: str | None = None


class CheckpointFolder:
    """What one pipeline remembers.

    `checkpoint=` may be any address that Spark can write to. `path` is then still a folder of this machine, for what
    belongs to it: the lock, messages of queues, rows and letters that wait.

    Attributes:
        needs: What the session must have, should it be opened to look at files that are elsewhere.
    """

    def __init__(self, pipeline: str, chosen: str | None = None) -> None:
        self.pipeline = pipeline
        root = os.environ.get(VARIABLE) or DEFAULT_ROOT
        place = chosen or f"{root}/{file_name(pipeline)}"
        self.is_remote = scheme_of(place) is not None
        self.needs = needs_of(place)
        if self.is_remote:
            self.place = place if chosen else place.rstrip("/")
            here = DEFAULT_ROOT if scheme_of(root) else root
            self.path = _local(f"{here}/{file_name(pipeline)}")
            self.files: CheckpointFiles = RemoteFiles(self.place, self._session)
        else:
            self.path = _local(place)
            self.place = str(self.path)
            self.files = LocalFiles(self.path)

    @classmethod
    def of(cls, spec: StreamSpec) -> CheckpointFolder:
        """The folder that a stream declares: `checkpoint=`, else the `path` of its state store, else by convention."""
        store = spec.state_store
        return cls(spec.name, spec.checkpoint or (store.path if store is not None else None))

    def _session(self) -> SparkSession:
        return open_session(self.needs, spark_settings())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the stream for this process.

        Raises:
            AlreadyRunning: a living process holds it.
        """
        lock = FileLock(str(self.path / "stream.lock"))
        with on_disk(self.path):
            is_held = lock.acquire()
        if not is_held:
            self.current()  # it may be another stream that holds it, which is worse
            raise AlreadyRunning(
                f"The stream '{self.pipeline}' is already running on this machine; this one has done nothing.",
                where=self.place,
                fix="stop the other one first, or give this one another name",
            )
        try:
            yield
        finally:
            lock.release()

    # ── generations ──────────────────────────────────────────────────────────────────────────────────────────────────

    def current(self) -> Generation | None:
        """The generation in use; None before the first start.

        Raises:
            StateIncompatible: it is another stream's, or cannot be read.
        """
        known = self._note()
        if known is None:
            return None
        owner = known.get("pipeline", self.pipeline)
        if owner != self.pipeline:
            raise StateIncompatible(
                f"The checkpoint of stream '{self.pipeline}' is that of stream '{owner}'; with one for both, each "
                "would leave out what the other has read.",
                where=self.place,
                fix="give each a checkpoint= of its own. A stream that was only renamed: give it its old name again, "
                "or a new folder, in which it begins where its consumer group is after "
                f"`flow state reset {self.pipeline} --from group`",
            )
        return Generation(known["generation"], known["shape"], known.get("start"), known.get("begun_at"))

    def begin(self, shape: str, start: Mapping[str, Any] | None = None) -> Generation:
        """Begin a new generation and remove the one before; what it had committed stays in the targets.

        Raises:
            StateIncompatible: the folder is another stream's.
        """
        before = self._replaced()
        fresh = Generation(uuid4().hex[:12], shape, start)
        self._write(
            "current.json",
            {
                "pipeline": self.pipeline,
                "generation": fresh.name,
                "shape": shape,
                "start": start,
                "begun_at": instant_text(datetime.now(timezone.utc)),
            },
        )
        for name in before:
            self.files.remove(name)
        return fresh

    def _replaced(self) -> list[str]:
        """The folders of generations that a new one takes the place of; all of them where nobody knows which it was."""
        try:
            self._note()
        except StateIncompatible as exc:
            log.warning("%s: %s It is begun anew.", self.pipeline, exc.message)
            return self._generations()
        before = self.current()
        return [] if before is None else [f"gen-{before.name}"]

    def forget(self) -> None:
        """Remove every generation; rows and letters that wait stay, because nobody else has them.

        Raises:
            StateIncompatible: they are another stream's.
        """
        self.current()
        self.files.remove("current.json")
        for name in self._generations():
            self.files.remove(name)

    def _generations(self) -> list[str]:
        return [name for name in self.files.names("") if name.startswith("gen-")]

    def _note(self) -> dict[str, Any] | None:
        """What `current.json` says; None before the first start."""
        known = self._read("current.json")
        if known is None:
            return None
        if not isinstance(known, dict) or not all(isinstance(known.get(key), str) for key in ("generation", "shape")):
            raise self._damaged("current.json")
        return known

    def location(self, generation: Generation) -> str:
        """Where Spark keeps its files of a generation."""
        return self.files.uri(f"gen-{generation.name}")

    def require_shape(self, generation: Generation, shape: str) -> None:
        """Make sure that a changed declaration can go on with what is remembered.

        What a checkpoint of an earlier version did not say of its shape is written down, so that it counts from now on.

        Raises:
            StateIncompatible: it cannot.
        """
        if not is_of_shape(generation.shape, shape):
            raise StateIncompatible(
                f"The stream '{self.pipeline}' was changed in a way that its checkpoint cannot follow: it remembers "
                f"{generation.shape}, and is now {shape}.",
                where=self.place,
                fix=f"undo the change, or flow state reset {self.pipeline}: it begins anew, where its target is",
            )
        if generation.shape != shape:
            self._write("current.json", {**self._read("current.json"), "shape": shape})

    # ── Spark's files ────────────────────────────────────────────────────────────────────────────────────────────────

    def has_batches(self, generation: Generation) -> bool:
        """Whether Spark has planned any batch yet."""
        return bool(self._numbers(generation, "offsets"))

    def newest(self, generation: Generation, log_name: Literal["offsets", "commits"]) -> int | None:
        """The last batch that Spark has planned, or that it has written down as done."""
        return next(iter(reversed(self._numbers(generation, log_name))), None)

    def offsets(self, generation: Generation, number: int) -> Sequence[str]:
        """The lines of one batch's end, one per source; a source that had nothing yet has `-`."""
        text = self.files.read(f"gen-{generation.name}/offsets/{number}")
        assert text is not None, "Spark writes the end of a batch before it begins"
        return text.splitlines()[2:]

    def planned_ms(self, generation: Generation, number: int) -> int:
        """When a batch was planned, in milliseconds since 1970."""
        text = self.files.read(f"gen-{generation.name}/offsets/{number}") or ""
        return int(json.loads(text.splitlines()[1]).get("batchTimestampMs", 0))

    def is_committed(self, generation: Generation, number: int) -> bool:
        """Whether Spark has written that the batch is done."""
        return number in self._numbers(generation, "commits")

    def mend(self, generation: Generation, sources: int) -> None:
        """Remove a file that a crash left half written: an end that was planned, for each of its sources, or a commit.

        Spark then plans the batch anew, or does it again; what a target holds already is not applied twice. A checksum
        whose file somebody removed goes, too: Spark would take it for another stream that writes the same batch.
        """
        of_query = f"gen-{generation.name}/metadata"
        if (told := self.files.read(of_query)) is not None and not _is_json(told):
            log.warning("%s was half written and is removed", self.files.uri(of_query))
            self.files.remove(of_query)
        self._remove_lone_checksums(f"gen-{generation.name}")
        for log_name, lines in (("offsets", 2 + sources), ("commits", 2)):
            self._remove_lone_checksums(f"gen-{generation.name}/{log_name}")
            files = [f"gen-{generation.name}/{log_name}/{number}" for number in self._numbers(generation, log_name)]
            if not files:
                continue
            newest = files[-1]
            # Ticks are a source that is not declared: with them there are as many lines as in the file before.
            told_before = [len((self.files.read(file) or "").splitlines()) for file in files[-2:-1]]
            if not _is_whole(self.files.read(newest) or "", max([lines, *told_before])):
                log.warning("%s was half written and is removed; its batch is done again", self.files.uri(newest))
                self.files.remove(newest)

    def _remove_lone_checksums(self, folder: str) -> None:
        names = set(self.files.names(folder))
        for name in names:
            checked = name.removeprefix(".").removesuffix(".crc")
            if name == f".{checked}.crc" and _SPARKS.fullmatch(checked) and checked not in names:
                log.warning(
                    "%s is the checksum of a file that is gone and is removed", self.files.uri(f"{folder}/{name}")
                )
                self.files.remove(f"{folder}/{name}")

    def _numbers(self, generation: Generation, log_name: str) -> list[int]:
        names = self.files.names(f"gen-{generation.name}/{log_name}")
        return sorted(int(name) for name in names if name.isdigit())

    # ── what was learned ─────────────────────────────────────────────────────────────────────────────────────────────

    def schema(self, source: str) -> t.StructType | None:
        """What was learned of a source's messages."""
        name = f"schemas/{file_name(source)}.json"
        known = self._read(name)
        try:
            return None if known is None else t.StructType.fromJson(known)
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise self._damaged(name) from exc

    def keep_schema(self, source: str, schema: t.StructType) -> None:
        """Remember it."""
        self._write(f"schemas/{file_name(source)}.json", schema.jsonValue())

    def identities(self, generation: Generation) -> Mapping[str, str]:
        """What told the sources of a generation from others of their names."""
        known = self._read("sources.json") or {}
        if not isinstance(known, dict):
            raise self._damaged("sources.json")
        return dict(known.get("identities", {})) if known.get("generation") == generation.name else {}

    def keep_identities(self, generation: Generation, identities: Mapping[str, str]) -> None:
        """Remember it."""
        self._write("sources.json", {"generation": generation.name, "identities": dict(identities)})

    def spool(self, source: str) -> Path:
        """Where messages of a queue are kept between their arrival and their target."""
        return self.path / "spool" / file_name(source)

    def behind(self, target: str) -> Path:
        """Where rows are kept that a target could not take."""
        return self.path / "behind" / file_name(target)

    def sources_log(self, generation: Generation, number: int) -> Path:
        """Where Spark lists the files that a source of this machine has given."""
        return self.path / f"gen-{generation.name}" / "sources" / str(number)

    def _read(self, name: str) -> Any:
        text = self.files.read(name)
        try:
            return None if text is None else json.loads(text)
        except ValueError as exc:
            raise self._damaged(name) from exc

    def _damaged(self, name: str) -> StateIncompatible:
        fixes = {
            "current.json": f"put it back from a copy, or begin anew: flow state reset {self.pipeline}",
            "sources.json": "remove it: topics are taken for those that they were",
        }
        return StateIncompatible(
            f"A file in the checkpoint of stream '{self.pipeline}' is damaged: {name}.",
            where=self.place,
            fix=fixes.get(name, "remove it: columns are learned anew from the messages that come"),
        )

    def _write(self, name: str, content: Any) -> None:
        self.files.write(name, json.dumps(content, indent=1))


def _local(place: str) -> Path:
    """A folder of this machine."""
    return Path(re.sub(r"^file:(//)?", "", place)).expanduser().absolute()


def _is_whole(text: str, number: int) -> bool:
    """Whether a file of Spark's log is all there: its version, then a line of JSON for each thing it tells, or `-`.

    >>> _is_whole('v1\\n{"batchId": 1}\\n{"events": {"0": 17}}', 3)
    True
    >>> _is_whole('v1\\n{"batchId": 1}\\n{"events": {"0": 1', 3)
    False
    """
    lines = text.splitlines()
    return len(lines) >= number and all(line == "-" or _is_json(line) for line in lines[1:])


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
