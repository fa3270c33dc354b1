"""When a change counts: the rules of a feed, as plain functions. Spark and every database are told the same in SQL.

Events of a key come in the order of their arrival. One counts when it is newer than everything that came before it,
in this batch or earlier: by its time, and at the same millisecond by its place in the source's log. What was seen is
kept per key in a *gate*, also when the row is deleted, so that neither a redelivery nor an old create brings it back.

Rows of a snapshot carry the time of the snapshot, and changes that were made while it ran may carry an earlier one
(MySQL's log knows only seconds). So a change behind a snapshot's row also counts when its place in the log is behind
that of the snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

OFFSET_KIND = "off:"
"""How a position begins that is only a place in the broker's log, and says nothing of the source's."""

KIND_LETTERS = 4


@dataclass(frozen=True)
class Moment:
    """When a change was made.

    Attributes:
        ts_ms: None when the feed has no times: every change counts then.
        position: A text that is greater for later changes; its first letters say in which log.
        is_snapshot: Whether it is a row that was read, not a change that was made.
    """

    ts_ms: int | None
    position: str | None = None
    is_snapshot: bool = False


@dataclass(frozen=True)
class Gate:
    """The newest change and the newest snapshot's row that were seen of a key."""

    ts_ms: int | None = None
    position: str | None = None
    snapshot_ts_ms: int | None = None
    snapshot_position: str | None = None


def is_newer(moment: Moment, gate: Gate) -> bool:
    """Whether a change counts that comes to this gate.

    >>> is_newer(Moment(5, "lsn:2"), Gate(5, "lsn:1")), is_newer(Moment(5, "lsn:1"), Gate(5, "lsn:1"))
    (True, False)
    """
    if moment.ts_ms is None:
        return True
    behind_snapshot = (
        not moment.is_snapshot
        and moment.position is not None
        and gate.snapshot_position is not None
        and kind_of(moment.position) == kind_of(gate.snapshot_position) != OFFSET_KIND
        and moment.position > gate.snapshot_position
    )
    return _is_after(moment, gate.ts_ms, gate.position) and (
        behind_snapshot or _is_after(moment, gate.snapshot_ts_ms, gate.snapshot_position)
    )


def passed(gate: Gate, moment: Moment) -> Gate:
    """The gate after a change came to it, whether or not it counted."""
    if moment.ts_ms is None:
        return gate
    before = (gate.snapshot_ts_ms, gate.snapshot_position) if moment.is_snapshot else (gate.ts_ms, gate.position)
    # At the same time, one that does not know its place leaves the place that is known.
    if before[0] == moment.ts_ms and moment.position is None or not _is_after(moment, *before):
        return gate
    if moment.is_snapshot:
        return replace(gate, snapshot_ts_ms=moment.ts_ms, snapshot_position=moment.position)
    return replace(gate, ts_ms=moment.ts_ms, position=moment.position)


def class_of(moment: Moment) -> int:
    """Changes of one class stand or fall together: whenever an earlier one counts, so do the later ones of its key.

    So a later one may make an earlier one superfluous without a look at the gate.
    """
    return 0 if moment.ts_ms is None else 1 + 2 * (moment.position is None) + moment.is_snapshot


def kind_of(position: str) -> str:
    """In which log a position is."""
    return position[:KIND_LETTERS]


def _is_after(moment: Moment, ts_ms: int | None, position: str | None) -> bool:
    assert moment.ts_ms is not None
    if ts_ms is None or moment.ts_ms != ts_ms:
        return ts_ms is None or moment.ts_ms > ts_ms
    return moment.position is None or position is None or moment.position > position


# ── the same in SQL ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class MomentSql:
    """The same facts as expressions; texts are compared byte by byte as they stand here."""

    ts: str
    position: str
    snapshot: str = "0"


def after_sql(moment: MomentSql, ts: str, position: str) -> str:
    """Whether a change is after another; true without another."""
    return (
        f"({ts} IS NULL OR {moment.ts} > {ts} OR ({moment.ts} = {ts} AND "
        f"({moment.position} IS NULL OR {position} IS NULL OR {moment.position} > {position})))"
    )


def newer_sql(moment: MomentSql, gate: MomentSql, snapshot: MomentSql) -> str:
    """`is_newer`: true, or false or NULL. The gate is given as what it knows of changes and of snapshots."""
    kind, other = (f"substr({position}, 1, {KIND_LETTERS})" for position in (moment.position, snapshot.position))
    behind_snapshot = (
        f"({moment.snapshot} = 0 AND {kind} = {other} AND {kind} <> '{OFFSET_KIND}' "
        f"AND {moment.position} > {snapshot.position})"
    )
    return (
        f"({moment.ts} IS NULL OR ({after_sql(moment, gate.ts, gate.position)} AND "
        f"({behind_snapshot} OR {after_sql(moment, snapshot.ts, snapshot.position)})))"
    )
