"""Change feeds: the columns in which changes land, and what a plan does with them. No behaviour but names and sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.columns import BigInt, SmallInt, String
from ematix_flow.declare.table import ColumnSpec

if TYPE_CHECKING:
    from ematix_flow.contracts.plans import Statement

# What is to be done about a landed change, and what it counts as.
NOTHING, UPSERT, DELETE, TRUNCATE = 0, 1, 2, 3
UNCOUNTED, CREATED, UPDATED, DELETED, STALE, SKIPPED, LATE = 0, 1, 2, 3, 4, 5, 6

OP, COUNTS_AS = "__flow_op", "__flow_counts"
PK, TS, POSITION, SNAPSHOT = "__flow_pk", "__flow_ts", "__flow_position", "__flow_snapshot"
"""The key as text, and when the change was made: milliseconds, a place in the source's log, whether it was a read."""

TURN = "__flow_turn"
"""In which round a change of its key is applied; 0 when a later one of the same batch says all that it says."""

SEQ = "__flow_seq"
"""Its place among those that arrived, which decides where a change has no time."""

TIP = "__flow_tip"
NEWEST, NEWEST_READ, LAST_ROW, LAST_GONE, ALONE, FURTHEST = 1, 2, 4, 8, 16, 32
"""What an event is among those of its key in the batch, as bits: the newest change, the newest row of a snapshot, the
last to arrive (with a row, or the end of one), a tombstone that nothing comes before. In a history, where every version
is the newest of its time: the furthest of all."""

PLACE = "__flow_place"
"""Where the last to arrive, or such a tombstone, stands in its topic: the partition and the offset."""

PARTITION_LETTERS = 10
"""How many letters of a place are its partition."""

AT = "__flow_event_at"
"""The change's time, where a history is kept."""

KEY, NTH = "__flow_key", "__flow_nth"
"""And there also: the key by itself, since `PK` goes on with the time, and the how manieth of its key's versions in the
batch it is, by the order of the log."""

MASK = "__flow_mask"
BITS_PER_MASK = 62
"""Which columns a change has: bits, in as many whole numbers as it takes."""

FRESH = "__flow_fresh"
"""Judged by the target: 1 applies, 0 is not newer than what was applied; -1 is older by more than is usual, and -2
stands earlier in the log although it is that much younger. 2 is the echo of a delete, which is no event of its own."""

ECHOES = 2

GATE = "cdc_idempotency"
LONGEST_KEY = 500
"""Keys whose text is longer are known by its digest."""

EVERY_KEY = ""
"""The key under which a gate remembers the last truncate."""


def masks(columns: int) -> tuple[str, ...]:
    """The names of the columns that hold the bits of so many columns."""
    return tuple(f"{MASK}_{number}" for number in range(max(1, -(-columns // BITS_PER_MASK))))


def bit_of(place: int) -> tuple[str, int]:
    """Where the bit of a column is: the name of its mask, and the number that has only this bit.

    >>> bit_of(1), bit_of(62)
    (('__flow_mask_0', 2), ('__flow_mask_1', 1))
    """
    return f"{MASK}_{place // BITS_PER_MASK}", 1 << (place % BITS_PER_MASK)


def full_masks(columns: int) -> dict[str, int]:
    """The masks of an image that has all of so many columns.

    >>> full_masks(3)
    {'__flow_mask_0': 7}
    """
    whole = (1 << columns) - 1
    return {
        name: (whole >> (number * BITS_PER_MASK)) & ((1 << BITS_PER_MASK) - 1)
        for number, name in enumerate(masks(columns))
    }


def control_columns(columns: int) -> tuple[ColumnSpec, ...]:
    """The columns that land beside those of the table."""
    small, large = SmallInt(), BigInt()
    kinds = {
        **{OP: small, COUNTS_AS: small, PK: String(LONGEST_KEY), TS: large, POSITION: String(255)},
        **{SNAPSHOT: small, SEQ: large, TURN: large, TIP: small, PLACE: String(40)},
        **dict.fromkeys(masks(columns), large),
    }
    return tuple(ColumnSpec(name, kind, nullable=True) for name, kind in kinds.items())


@dataclass(frozen=True)
class ChangeCounts:
    """What became of the events of a batch, each counted once."""

    creates: int = 0
    updates: int = 0
    deletes: int = 0
    skipped: int = 0
    idempotent_skipped: int = 0
    late: int = 0
    rewound: int = 0

    @property
    def applied(self) -> int:
        """Events that changed something, or would have without a later one of the same batch."""
        return self.creates + self.updates + self.deletes

    @staticmethod
    def of(rows: Iterable[Any]) -> ChangeCounts:
        """The sum of rows (what it counts as, whether it is fresh, how many)."""
        sums = dict.fromkeys(("creates", "updates", "deletes", "skipped", "idempotent_skipped", "late", "rewound"), 0)
        names = {CREATED: "creates", UPDATED: "updates", DELETED: "deletes", SKIPPED: "skipped"}
        for counts_as, fresh, number in rows:
            if fresh == ECHOES:
                continue
            is_stale = counts_as in (STALE, LATE) or (counts_as in (CREATED, UPDATED, DELETED) and fresh != 1)
            if is_stale:
                sums["idempotent_skipped"] += int(number)
                sums["late"] += int(number) if counts_as == LATE or fresh == -1 else 0
                sums["rewound"] += int(number) if fresh == -2 else 0
            elif counts_as in names:
                sums[names[counts_as]] += int(number)
        return ChangeCounts(**sums)


@dataclass(frozen=True)
class FeedPlan:
    """How landed changes are applied, beside the statements of the plan, which judge them first.

    `rounds` counts the turns; `turns` are run once for each, with `$turn` for its number. `passed` remembers what was
    applied. `tally` gives the rows of `ChangeCounts.of`. Where every statement is a commit, `gate` is the table beside
    the target that remembers, `make_gate` makes it, `mend_gate` adds the columns that one of an older version may lack,
    by name, and `passed` comes before the target's own commit. `prepares` is for a gate that is there already: what it
    should no longer know.
    """

    tally: str
    rounds: str = ""
    turns: tuple[Statement, ...] = ()
    passed: tuple[Statement, ...] = ()
    gate: TableRef | None = None
    make_gate: tuple[Statement, ...] = ()
    mend_gate: tuple[tuple[str, Statement], ...] = ()
    prepares: tuple[Statement, ...] = ()

    def turn(self, number: int) -> tuple[Statement, ...]:
        """The statements of one turn."""
        return tuple(replace(one, sql=one.sql.replace("$turn", str(number))) for one in self.turns)

    def renamed(self, rename: Callable[[str], str]) -> FeedPlan:
        """The same over other tables."""
        return FeedPlan(
            rename(self.tally),
            rename(self.rounds),
            tuple(replace(one, sql=rename(one.sql)) for one in self.turns),
            tuple(replace(one, sql=rename(one.sql)) for one in self.passed),
            self.gate,
            self.make_gate,
            self.mend_gate,
            self.prepares,
        )
