"""Dead letters: messages that a stream could not bring to its targets, kept as they came, and the door to their keeper.

A letter is one message: its bytes, key and headers as the broker had them, where it lay, what was wrong, and how often
it has been tried. Its id follows from pipeline, place, stage and attempt, so the same failure is one letter, however
often a batch is done again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, runtime_checkable
from uuid import UUID, uuid5

from ematix_flow.declare.columns import BigInt, Bytes, ColumnType, String, Text
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import InvalidConfig, InvalidDeclaration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ematix_flow.contracts.streams import StreamBatch

Stage = Literal["transform", "write", "late_data"]
STAGES: tuple[Stage, ...] = get_args(Stage)
Status = Literal["pending", "parked"]
SelectionKind = Literal["all", "first_n", "ids"]

TABLE = "ematix_dlq_records"
NAMESPACE = UUID("6d0f1d52-94a4-5bfb-8a0d-5f1c0e7c3a51")
"""Below it every letter's id is made."""

ERROR_BYTES = 8 * 1024
LEASE_MS = 60_000
MOST_SCANNED = 10_000
"""How many letters `stats` looks at before it says that there are more."""

TAKEN_LETTERS, TAKEN_BYTES = 1_000, 16 * 1024 * 1024
"""What one step of a replay holds at most."""

ARRIVALS_MIN = (1, 5, 15, 60)


@dataclass(frozen=True)
class DeadLetter:
    """One message that did not reach the targets.

    Attributes:
        source_id: The query of the source it came from.
        payload: Its bytes, unchanged.
        position: Where it lay: topic, partition and offset, or what its source has instead.
        event_ts: When it happened, in microseconds since 1970.
        failed_at: In milliseconds since 1970.
        attempt: 1 for the first failure.
        payload_format: How its source reads it.
    """

    id: str
    pipeline_name: str
    stage: Stage
    error: str
    source_id: str
    payload: bytes | None
    position: Mapping[str, Any]
    failed_at: int
    attempt: int = 1
    payload_format: str = "json"
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    event_ts: int | None = None
    status: Status = "pending"

    def to_dict(self) -> dict[str, Any]:
        """The letter as `dlq_records` gives it: bytes as bytes."""
        return {
            "id": self.id,
            "pipeline_name": self.pipeline_name,
            "stage": self.stage,
            "error": self.error,
            "source_id": self.source_id,
            "payload": self.payload,
            "payload_format": self.payload_format,
            "key": self.key,
            "headers": list(self.headers),
            "position": dict(self.position),
            "offset_bytes": position_text(self.position).encode(),
            "event_ts": self.event_ts,
            "failed_at": self.failed_at,
            "attempt": self.attempt,
            "status": self.status,
        }

    def tried_again(self, error: str, *, now_ms: int, most_attempts: int, stage: Stage | None = None) -> DeadLetter:
        """The letter that takes its place when a replay failed; parked once it has been tried often enough."""
        attempt = self.attempt + 1
        chosen = stage or self.stage
        return DeadLetter(
            **{
                **{name: getattr(self, name) for name in self.__dataclass_fields__},
                "id": letter_id(self.pipeline_name, self.source_id, position_text(self.position), chosen, attempt),
                "stage": chosen,
                "error": short_error(error),
                "failed_at": now_ms,
                "attempt": attempt,
                "status": "parked" if attempt > most_attempts else "pending",
            }
        )


def position_text(position: Mapping[str, Any]) -> str:
    """A place in a source as text, the same wherever it is written."""
    return json.dumps(position, separators=(",", ":"), ensure_ascii=False)


def id_words(pipeline: str, source_id: str, position: str, stage: str, attempt: int) -> tuple[str, ...]:
    """What an id is made of, in order; `spark/dead_letters.py` puts the same together as a column."""
    return (pipeline, source_id, position, stage, str(attempt))


def letter_id(pipeline: str, source_id: str, position: str, stage: str, attempt: int) -> str:
    """The id of a failure.

    >>> letter_id("orders", "events", '{"offset":7}', "transform", 1)
    '39de450b-133c-556d-a7b9-ea29c0356934'
    """
    return str(uuid5(NAMESPACE, "\n".join(id_words(pipeline, source_id, position, stage, attempt))))


def short_error(error: str) -> str:
    """At most as much of an error as is kept."""
    return error.encode()[:ERROR_BYTES].decode(errors="ignore").replace("\x00", "")


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _column(name: str, kind: ColumnType, *, nullable: bool = False) -> ColumnSpec:
    return ColumnSpec(name, kind, nullable=nullable, primary_key=name == "id")


COLUMNS: tuple[ColumnSpec, ...] = (
    _column("id", String(36)),
    _column("pipeline_name", String(255)),
    _column("stage", String(16)),
    _column("error", Text()),
    _column("source_id", Text()),
    _column("offset_bytes", Text()),
    _column("event_ts", BigInt(), nullable=True),
    _column("failed_at", BigInt()),
    _column("attempt", BigInt()),
    _column("payload_format", String(16)),
    _column("payload", Bytes(), nullable=True),
    _column("message_key", Bytes(), nullable=True),
    _column("headers", Text(), nullable=True),
    _column("status", String(16)),
    _column("lease_id", String(36), nullable=True),
    _column("leased_until", BigInt(), nullable=True),
    _column("seq", BigInt()),
)
"""The columns of `ematix_dlq_records`. `seq` is the offset in the source: letters of one moment keep its order."""


# ── which letters, and what is known of all of them ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Selection:
    """Which pending letters are meant."""

    kind: SelectionKind = "all"
    n: int = 0
    ids: tuple[str, ...] = ()

    @staticmethod
    def of(written: str | Mapping[str, Any]) -> Selection:
        """From `{"kind": "all"}`, `{"kind": "first_n", "n": 5}` or `{"kind": "ids", "ids": […]}`, as JSON or a dict.

        Raises:
            InvalidConfig: (a ValueError) it is none of them.
        """
        try:
            given = json.loads(written) if isinstance(written, str) else dict(written)
        except (ValueError, TypeError) as exc:
            raise InvalidConfig("The selection is not JSON.", fix='{"kind": "all"}') from exc
        kind = given.get("kind") if isinstance(given, dict) else None
        number, ids = (given.get("n"), given.get("ids")) if isinstance(given, dict) else (None, None)
        if kind == "all":
            return Selection()
        if kind == "first_n" and isinstance(number, int) and not isinstance(number, bool) and number > 0:
            return Selection("first_n", n=number)
        if kind == "ids" and isinstance(ids, list) and ids and all(isinstance(one, str) for one in ids):
            return Selection("ids", ids=tuple(dict.fromkeys(ids)))
        raise InvalidConfig(
            f"The selection {kind!r} is none that is known, or lacks its part.",
            fix='{"kind": "all"}, {"kind": "first_n", "n": 5} or {"kind": "ids", "ids": ["…"]}',
        )


@dataclass(frozen=True)
class DeadLetterStats:
    """How many letters there are, and how many came lately."""

    pending: int
    parked: int
    by_stage: Mapping[str, int]
    arrivals: Mapping[str, int]
    scanned: int
    truncated: bool

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "pending": self.pending,
            "parked": self.parked,
            "by_stage": dict(self.by_stage),
            "arrivals": dict(self.arrivals),
            "scanned": self.scanned,
            "truncated": self.truncated,
        }


def stats_of(facts: Sequence[tuple[str, str, int]], *, now_ms: int, truncated: bool) -> DeadLetterStats:
    """Count letters by their stage, status and time of failure."""
    stages: dict[str, int] = {}
    for stage, _, _ in facts:
        stages[stage] = stages.get(stage, 0) + 1
    arrivals = {
        f"last_{minutes}m": sum(now_ms - minutes * 60_000 <= failed_at for _, _, failed_at in facts)
        for minutes in ARRIVALS_MIN
    }
    parked = sum(status == "parked" for _, status, _ in facts)
    return DeadLetterStats(len(facts) - parked, parked, stages, arrivals, len(facts), truncated)


@dataclass(frozen=True)
class Taken:
    """Letters that a replay holds for a minute, as one step. `lease` names the step in the targets, too.

    `place` is the keeper's own note of where they lay.
    """

    lease: str
    letters: tuple[DeadLetter, ...]
    place: Any = field(default=None, compare=False, repr=False)

    def without(self, ids: frozenset[str] | set[str]) -> Taken:
        """The step without some of its letters."""
        return Taken(self.lease, tuple(letter for letter in self.letters if letter.id not in ids), self.place)


@dataclass(frozen=True)
class ReplayReport:
    """What a replay did."""

    taken: int = 0
    succeeded: int = 0
    redeadlettered: int = 0
    parked: int = 0
    started_at_ms: int = 0
    finished_at_ms: int = 0

    def to_dict(self) -> dict[str, int]:
        """Ready for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


# ── the doors ────────────────────────────────────────────────────────────────────────────────────────────────────────


class TakesDeadLetters(Protocol):
    """Where a running stream puts its letters."""

    @property
    def label(self) -> str:
        """For people."""
        ...

    def begin(self, batch: StreamBatch) -> None:
        """A batch of which no target has anything is worked on, for the first time or again."""
        ...

    def write(self, letters: DataFrame, batch: StreamBatch) -> None:
        """Keep the letters of a batch, durably and once. `letters` has the columns of `COLUMNS`."""
        ...


@runtime_checkable
class RejectsMessages(Protocol):
    """A source whose broker has a place of its own for messages that nobody can use."""

    def check_rejects(self, query: str) -> None:
        """Refuse a source whose broker is seen to have no such place set up; asked when a stream starts."""
        ...

    def reject(self, query: str, offsets: Iterable[int]) -> None:
        """Note messages by their `_offset`, durably; the broker is told when their batch is applied."""
        ...

    def forget_rejects(self, query: str) -> bool:
        """Take back what was noted for messages that are not applied yet; whether there was anything."""
        ...


class KeepsDeadLetters(Protocol):
    """The keeper of one pipeline's letters, as operators see it."""

    @property
    def label(self) -> str:
        """For people."""
        ...

    def records(self, status: Status | None, page: int, page_size: int) -> list[DeadLetter]:
        """One page, oldest first."""
        ...

    def by_id(self, letter: str) -> DeadLetter | None:
        """The letter with this id; None when there is none."""
        ...

    def ids_like(self, beginning: str, most: int = 10) -> list[str]:
        """Ids that begin so."""
        ...

    def stats(self, now_ms: int) -> DeadLetterStats:
        """Counts over the oldest letters, up to `MOST_SCANNED` of them."""
        ...

    def take(self, selection: Selection, *, before_ms: int, now_ms: int) -> Taken | None:
        """The next step of a replay: one that was cut off and whose lease has ended, else letters nobody holds.

        Args:
            before_ms: Only letters that failed earlier; those that fail during a replay wait for the next one.
        """
        ...

    def decide(self, taken: Taken, failed: Sequence[DeadLetter], originals: Sequence[str], *, now_ms: int) -> None:
        """Put letters that failed again in the place of their originals, durably, before the rest is applied."""
        ...

    def done(self, taken: Taken, *, now_ms: int) -> None:
        """The targets hold what is left of the step: remove it."""
        ...

    def give_back(self, taken: Taken) -> None:
        """The step could not be finished. The next replay takes it up under the same name, and need not wait."""
        ...

    def park(self, selection: Selection, *, now_ms: int) -> int:
        """Set letters aside, so that replays leave them; how many."""
        ...

    def purge(self, selection: Selection, *, now_ms: int) -> int:
        """Remove letters for good, parked ones too; how many."""
        ...


def check_page(status: str | None, page: int, page_size: int) -> Status | None:
    """Refuse a status that does not exist and a page that cannot be.

    Raises:
        InvalidDeclaration: (a ValueError) with what is allowed.
    """
    if page < 0 or not 1 <= page_size <= MOST_SCANNED:
        raise InvalidDeclaration(f"There is no page {page} of {page_size} letters.", fix="page=0, page_size=50")
    for known in ("pending", "parked"):
        if status == known:
            return known
    if status is None:
        return None
    raise InvalidDeclaration(f"status is 'pending' or 'parked', not '{status}'.")
