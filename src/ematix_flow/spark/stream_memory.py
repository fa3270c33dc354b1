"""What a stream with windows or joins remembers between batches: parts of Parquet, and a note that says which count.

::

    gen-<generation>/memory/<batch>/
    ├── note.json      the parts that count after this batch, how far event time is
    └── <part>/        what this batch added

A batch reads what the note of the batch before it names, and writes a folder of its own before any target has its
rows. A batch that is done again finds the same note, writes the same folder again, and comes to the same answer. Two
batches later nobody needs a folder that the newest notes do not name, and it is removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, types as t

from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.errors import StateIncompatible
from ematix_flow.plan.event_time import EventClock
from ematix_flow.plan.window_spans import Span
from ematix_flow.spark.checkpoints import CheckpointFolder, Generation
from ematix_flow.spark.expressions import column_of

MOST_PARTS = 16
"""From how many parts on they are put together to one, which makes reading them cheap again."""


@dataclass(frozen=True)
class Part:
    """Rows that are remembered.

    Attributes:
        name: What they are; parts of one name belong together.
        path: Below the memory's folder.
        size: In bytes.
        low: The least of what decides how long they are needed (a window's start, an event time), in microseconds.
        high: The greatest.
        most: For windows, the groups in the largest of them.
        spans: For windows, which of them it has something of.
        fullness: For windows, how much the fullest group has of what it may have, from 0 to 1.
    """

    name: str
    path: str
    schema: str
    rows: int
    size: int = 0
    low: int | None = None
    high: int | None = None
    most: int = 0
    spans: tuple[Span, ...] = ()
    fullness: float = 0.0

    @property
    def columns(self) -> t.StructType:
        """The columns of its rows."""
        return t.StructType.fromJson(json.loads(self.schema))


@dataclass(frozen=True)
class Note:
    """What is remembered after one batch.

    Attributes:
        alone_us: For joins, up to which event time rows without a match have come out.
        columns_of: The columns that each source, or each side of a join, had last; its rows may all be forgotten.
        open_windows: How many windows or sessions may still get rows; None for joins.
        begun_ms: For joins, when the first row came, by the clock of this machine, in milliseconds since 1970.
    """

    number: int = -1
    digest: str = ""
    clock: EventClock = field(default_factory=EventClock)
    parts: tuple[Part, ...] = ()
    alone_us: int | None = None
    columns_of: Mapping[str, t.StructType] = field(default_factory=dict)
    open_windows: int | None = None
    begun_ms: int | None = None

    def of(self, name: str) -> list[Part]:
        """The parts of one name, oldest first."""
        return [part for part in self.parts if part.name == name]

    def to_json(self) -> str:
        return json.dumps(
            {
                "number": self.number,
                "digest": self.digest,
                "clock": self.clock.to_dict(),
                "parts": [asdict(part) for part in self.parts],
                "alone_us": self.alone_us,
                "columns_of": {name: columns.jsonValue() for name, columns in self.columns_of.items()},
                "open_windows": self.open_windows,
                "begun_ms": self.begun_ms,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Note:
        known = json.loads(text)
        return cls(
            known["number"],
            known["digest"],
            EventClock.from_dict(known["clock"]),
            tuple(Part(**{**part, "spans": tuple(map(tuple, part["spans"]))}) for part in known["parts"]),
            known["alone_us"],
            {name: t.StructType.fromJson(columns) for name, columns in known["columns_of"].items()},
            known["open_windows"],
            known.get("begun_ms"),
        )


class StreamMemory:
    """The memory of one generation of a stream."""

    def __init__(self, folder: CheckpointFolder, generation: Generation) -> None:
        self._folder, self._root = folder, f"gen-{generation.name}/memory"
        self._pipeline = folder.pipeline

    def before(self, batch: StreamBatch) -> Note:
        """What was remembered when a batch began.

        Raises:
            StateIncompatible: it is not there any more.
        """
        if batch.number == 0:
            return Note()
        found = self.note(batch.number - 1)
        if found is None:
            raise StateIncompatible(
                f"What '{self._pipeline}' remembered before batch {batch.number} is gone.",
                where=self._folder.files.uri(self._root),
                fix=f"put its folder back, or begin anew: flow state reset {self._pipeline} --from earliest",
            )
        return found

    def carried(self, batch: StreamBatch) -> Note:
        """Remember after a batch without any row what was remembered before it."""
        note = replace(self.before(batch), number=batch.number, digest=batch.digest)
        self.keep(note)
        return note

    def newest(self) -> Note | None:
        """The last note that is there."""
        numbers = self._numbers()
        return self.note(numbers[-1]) if numbers else None

    def note(self, number: int) -> Note | None:
        """The note of one batch."""
        text = self._folder.files.read(f"{self._root}/{number}/note.json")
        return None if text is None else Note.from_json(text)

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine."""
        return not self._folder.is_remote

    def local_path(self, part: Part) -> Path:
        """Where a part lies, when that is on this machine."""
        return self._folder.path / self._root / part.path

    def keep(self, note: Note) -> None:
        """Write down what counts after a batch, and remove what neither it nor the batch before it needs."""
        self._folder.files.write(f"{self._root}/{note.number}/note.json", note.to_json())
        before = self.note(note.number - 1)
        needed = {note.number, note.number - 1}
        for known in (note, before):
            needed |= {int(part.path.partition("/")[0]) for part in (known.parts if known else ())}
        for number in self._numbers():
            if number not in needed:
                self._folder.files.remove(f"{self._root}/{number}")

    # ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, batch: StreamBatch, name: str, rows: DataFrame, suffix: str = "") -> Part:
        """Write a part; its numbers are for whoever knows what they mean."""
        path = f"{batch.number}/{name}{suffix}"
        rows.write.mode("overwrite").option("compression", "lz4_raw").parquet(self._uri(path))
        return Part(name, path, json.dumps(rows.schema.jsonValue()), 0, self._folder.files.size(f"{self._root}/{path}"))

    def read(self, spark: SparkSession, parts: Sequence[Part]) -> DataFrame | None:
        """The rows of some parts together; types that have grown since are those of the newest."""
        frames = [spark.read.schema(part.columns).parquet(self._uri(part.path)) for part in parts]
        if not frames:
            return None
        newest = frames[-1].schema
        return reduce(
            lambda one, other: one.unionByName(other, allowMissingColumns=True),
            [self._grown(frame, newest) for frame in frames],
        )

    def rows(self, spark: SparkSession, part: Part) -> DataFrame:
        """The rows of one part."""
        found = self.read(spark, [part])
        assert found is not None
        return found

    def _grown(self, frame: DataFrame, newest: t.StructType) -> DataFrame:
        """A frame of older parts with the types that the newest have: numbers may have become wider ones."""
        columns = []
        for field_ in frame.schema.fields:
            wanted = newest[field_.name].dataType if field_.name in newest.names else field_.dataType
            if wanted != field_.dataType and not _can_grow(field_.dataType, wanted):
                raise StateIncompatible(
                    f"'{self._pipeline}' remembers {field_.dataType.simpleString()} where its rows now have "
                    f"{wanted.simpleString()} (column '{field_.name}').",
                    fix=f"cast the column in transform_sql, or begin anew: flow state reset {self._pipeline}",
                )
            columns.append(column_of(field_.name).cast(wanted).alias(field_.name))
        return frame.select(*columns)

    def _uri(self, path: str) -> str:
        return self._folder.files.uri(f"{self._root}/{path}")

    def _numbers(self) -> list[int]:
        return sorted(int(name) for name in self._folder.files.names(self._root) if name.isdigit())


def _can_grow(old: t.DataType, new: t.DataType) -> bool:
    if isinstance(old, t.StructType) and isinstance(new, t.StructType):
        return old.names == new.names and all(
            one.dataType == other.dataType or _can_grow(one.dataType, other.dataType)
            for one, other in zip(old.fields, new.fields, strict=True)
        )
    if isinstance(old, t.ArrayType) and isinstance(new, t.ArrayType):
        return _can_grow(old.elementType, new.elementType)
    if isinstance(old, t.NullType):
        return True
    if isinstance(new, t.DecimalType):
        return _holds(new, old)
    wider = {"tinyint": 0, "smallint": 1, "int": 2, "bigint": 3, "float": 4, "double": 5}
    names = old.simpleString(), new.simpleString()
    return all(name in wider for name in names) and wider[names[0]] < wider[names[1]]


def _holds(new: t.DecimalType, old: t.DataType) -> bool:
    """Whether every value of the old type is one of the new, digit by digit."""
    whole = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}.get(old.simpleString())
    if isinstance(old, t.DecimalType):
        return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
    return whole is not None and new.precision - new.scale >= whole
