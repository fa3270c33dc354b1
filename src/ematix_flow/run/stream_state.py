"""What a stream that does not run remembers: whether it can go on with it, what it says, and beginning elsewhere.

Spark's own files are only read. A reset or a rewind begins a new generation of the checkpoint (`spark/checkpoints.py`),
and is refused while the stream runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ematix_flow.backends.catalog import open_backend
from ematix_flow.config.resolve import resolve
from ematix_flow.contracts.runtime import instant_text
from ematix_flow.contracts.streams import KeepsForStreams, SeeksPositions, StreamsIn
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import InvalidDeclaration, UnsupportedBackend
from ematix_flow.plan.stream import is_of_shape, plan_stream
from ematix_flow.run.places import needing_spark

if TYPE_CHECKING:
    from ematix_flow.spark.checkpoints import Generation

Beginning = Literal["targets", "group", "earliest", "latest"]
BEGINNINGS: tuple[Beginning, ...] = ("targets", "group", "earliest", "latest")


@dataclass(frozen=True)
class Place:
    """Where a stream is sent: to a moment, to the beginning or the end, or to offsets of its one source."""

    when: datetime | Literal["earliest", "latest"] | None = None
    offset: Any = None


@dataclass(frozen=True)
class Verdict:
    """Whether a stream can go on with what it remembers.

    Attributes:
        says: What was found.
        fix: What to do about it, when it cannot.
    """

    can_go_on: bool
    says: str
    fix: str | None = None


class StreamState:
    """The memory of one stream. Connections are resolved; nothing connects before a position is asked for."""

    def __init__(self, spec: StreamSpec) -> None:
        with needing_spark("What a stream remembers is read with Spark's types"):
            from ematix_flow.spark.checkpoints import CheckpointFolder
        self.spec = spec.with_connections(lambda ref: resolve(ref, where=str(spec.where)).connection)
        self.shape = plan_stream(self.spec).shape
        self.folder = CheckpointFolder.of(spec)

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> Verdict:
        """Whether the stream, as it is declared now, can use its checkpoint."""
        current = self.folder.current()
        if current is None:
            return Verdict(True, "there is no checkpoint yet: it begins where its targets are, else where its group is")
        if not is_of_shape(current.shape, self.shape):
            return Verdict(
                False,
                f"its checkpoint remembers {current.shape}, and the stream is now {self.shape}",
                "flow state reset   begins anew where the targets are; or undo the change, or give it another name",
            )
        done = self.folder.newest(current, "commits")
        if done is None:
            return Verdict(True, f"generation {current.name} has no finished batch yet")
        return Verdict(True, f"generation {current.name} goes on after batch {done}")

    def inspect(self) -> dict[str, Any]:
        """Everything that is remembered, as plain data."""
        current = self.folder.current()
        facts: dict[str, Any] = {"pipeline": self.spec.name, "checkpoint": self.folder.place}
        if current is None:
            return {**facts, "generation": None}
        planned, done = (self.folder.newest(current, log) for log in ("offsets", "commits"))
        facts |= {
            "generation": current.name,
            "begun_at": current.begun_at,
            "shape": current.shape,
            "started_from": current.start,
            "last_planned_batch": planned,
            "last_finished_batch": done,
            "positions": self._positions(current, planned),
            "columns": {},
            "bytes": None if self.folder.is_remote else _size(self.folder.path),
        }
        if self.spec.is_stateful:
            facts["memory"] = self._memory(current)
        for source in self.spec.sources:
            schema = self.folder.schema(source.query)
            if schema is not None:
                facts["columns"][source.query] = {field.name: field.dataType.simpleString() for field in schema.fields}
        return facts

    def _memory(self, generation: Generation) -> dict[str, Any] | None:
        """What windows or a join remember after the last batch: how much, of which time, how far event time is."""
        from ematix_flow.spark.stateful_batch import held_keys, steps_of
        from ematix_flow.spark.stream_memory import StreamMemory

        memory = StreamMemory(self.folder, generation)
        note = memory.newest()
        if note is None:
            return None
        steps, sources = steps_of(self.spec, memory), note.clock.by_source(self.spec.watermark)
        parts = {name: note.of(name) for name in dict.fromkeys(part.name for part in note.parts)}
        return {
            "after_batch": note.number,
            "event_time": _moment(note.clock.mark_us),
            "sources": {name: _moment(us) for name, us in sources.items()},
            "parts": {
                name: {
                    "rows": sum(part.rows for part in some),
                    "bytes": sum(part.size for part in some),
                    "oldest": _moment(steps.oldest(replace(note, parts=tuple(some)))),
                    "newest": _moment(max((part.high for part in some if part.high is not None), default=None)),
                }
                for name, some in parts.items()
            },
            **held_keys(self.spec, memory, note),
        }

    def _positions(self, generation: Generation, number: int | None) -> Any:
        """Where the last planned batch ends: by source, or in Spark's own words when the stream was changed since."""
        if number is None:
            return {}
        lines = self.folder.offsets(generation, number)
        if not is_of_shape(generation.shape, self.shape):
            return list(lines)
        with self._sources() as sources:
            return {
                query: source.position(line)
                for (query, source), line in zip(sources.items(), lines, strict=False)
                if line != "-"
            }

    # ── beginning elsewhere ──────────────────────────────────────────────────────────────────────────────────────────

    def reset(self, beginning: Beginning = "targets", *, confirmed: bool = False) -> Mapping[str, Any] | None:
        """Begin anew: where the targets are (found out when it starts), where the group is, or at one of the ends.

        Returns:
            Where each source will begin; None when its targets decide.

        Raises:
            AlreadyRunning: the stream runs.
            InvalidDeclaration: (a ValueError) it remembers rows beyond a batch, and nobody said that these may go.
        """

        def start() -> Mapping[str, Any] | None:
            if beginning == "targets":
                return None
            if beginning != "group":
                return self._everywhere(beginning)
            with self._sources() as sources:
                return {query: source.first_position(query) for query, source in sources.items()}

        return self._begin(start, confirmed=confirmed)

    def rewind(self, place: Place, *, confirmed: bool = False) -> Mapping[str, Any]:
        """Begin anew at a place; whatever lies behind it is read again, and written again.

        Raises:
            AlreadyRunning: the stream runs.
            InvalidDeclaration: (a ValueError) the place is not there, or as for `reset`.
            UnsupportedBackend: a source has no place to go back to.
        """

        def start() -> Mapping[str, Any]:
            if place.when is not None:
                return self._everywhere(place.when)
            if len(self.spec.sources) > 1:
                raise InvalidDeclaration(
                    f"Stream '{self.spec.name}' has several sources, and an offset is of one.",
                    fix="rewind it to a time",
                )
            query = self.spec.sources[0].query
            with self._sources() as sources:
                return {query: _seeking(query, sources[query]).position_given(query, place.offset)}

        begun = self._begin(start, confirmed=confirmed)
        assert begun is not None
        return begun

    def let_go(self) -> list[str]:
        """Remove what sources keep for the stream, which will not come back; what that was, in words.

        Raises:
            AlreadyRunning: the stream runs.
        """
        with self.folder.held(), self._sources() as sources:
            return [
                word
                for query, source in sources.items()
                if isinstance(source, KeepsForStreams)
                for word in source.let_go(query, self.spec.name)
            ]

    def _everywhere(self, when: datetime | Literal["earliest", "latest"]) -> Mapping[str, Any]:
        with self._sources() as sources:
            return {query: _seeking(query, source).position_at(query, when) for query, source in sources.items()}

    def _begin(self, start: Callable[[], Mapping[str, Any] | None], *, confirmed: bool) -> Mapping[str, Any] | None:
        if self.spec.is_stateful and not confirmed:
            raise InvalidDeclaration(
                f"Stream '{self.spec.name}' remembers rows beyond a batch, and would forget them.",
                fix="say that this is meant: --confirm-state-reset",
            )
        with self.folder.held():
            positions = start()
            self.folder.begin(self.shape, positions)
        return positions

    @contextmanager
    def _sources(self) -> Iterator[Mapping[str, StreamsIn]]:
        with ExitStack() as held:
            found = {}
            for source in self.spec.sources:
                backend: Any = open_backend(source.connection)  # type: ignore[arg-type]  # an instance by now
                held.callback(backend.close)
                if not isinstance(backend, StreamsIn):
                    raise UnsupportedBackend(f"'{source.query}' cannot be the source of a stream in this version.")
                found[source.query] = backend
            yield found


def stream_rewind(spec: StreamSpec, target_json: str, confirm_state_reset: bool = False) -> dict[str, Any]:
    """Rewind a stream to what a JSON document says: `{"kind": "timestamp", "ms": …}`, `{"kind": "earliest"}`,
    `{"kind": "latest"}`, or `{"kind": "offset", "bytes": […]}` with the position's JSON in these bytes.

    Returns:
        `sources`: pairs of query and the position's bytes; `state_cleared`: whether there was state to forget.

    Raises:
        InvalidDeclaration: (a ValueError) the document is none of these.
    """
    begun = StreamState(spec).rewind(_place_in(target_json), confirmed=confirm_state_reset)
    return {
        "sources": [(query, json.dumps(position, sort_keys=True).encode()) for query, position in begun.items()],
        "state_cleared": spec.is_stateful,
    }


def _place_in(document: str) -> Place:
    try:
        told = json.loads(document)
        kind = told["kind"]
        if kind == "timestamp":
            return Place(when=datetime.fromtimestamp(int(told["ms"]) / 1000, timezone.utc))
        if kind == "offset":
            return Place(offset=json.loads(bytes(told["bytes"])))
        if kind in ("earliest", "latest"):
            return Place(when=kind)
    except (ValueError, TypeError, KeyError, OverflowError, OSError) as exc:
        raise InvalidDeclaration(
            "This is no place to rewind to.",
            fix='{"kind": "timestamp", "ms": 1767225600000}, {"kind": "offset", "bytes": […]}, {"kind": "earliest"}',
        ) from exc
    raise InvalidDeclaration(
        f"A place to rewind to is of kind 'timestamp', 'offset', 'earliest' or 'latest', not {kind!r}."
    )


def _moment(us: int | None) -> str | None:
    return None if us is None else instant_text(datetime.fromtimestamp(us / 1e6, timezone.utc))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _seeking(query: str, source: StreamsIn) -> SeeksPositions:
    if not isinstance(source, SeeksPositions):
        raise UnsupportedBackend(
            f"'{query}' cannot be rewound: what has been read there is gone, or its place cannot be chosen.",
            fix="flow state reset   begins anew where the targets are",
        )
    return source
