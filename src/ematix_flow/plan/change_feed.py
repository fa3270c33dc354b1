"""When a change counts: the rules of a feed, as plain functions. Spark and every database are told the same in SQL.

Events of a key come in the order of their arrival. One counts when it is newer than everything that came before it,
in this batch or earlier. Two places in one log of the source say themselves which change is the newer one: clocks are
set back, and MySQL stamps a change with the moment at which its statement began. Only where a place is missing, or is
of another log, the times decide. What was seen is kept per key in a *gate*, also when the row is deleted, so that
neither a redelivery nor an old create brings it back.

Rows of a snapshot have a place and a time of their own in the gate: a change is behind them also where the snapshot
was read at the very place at which the change begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

OFFSET_KIND = "off:"
"""How a position begins that is only a place in the broker's log, and says nothing of the source's."""

LOG_LETTERS = 12
"""How many letters of a position say in which log it is: its kind, and of a binlog which one."""

ECHO = "~"
"""What stands behind the position of a tombstone: it comes right after the event before it, and before any other."""


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

    >>> gate = Gate(5, "lsn:00000000:2")
    >>> is_newer(Moment(4, "lsn:00000000:3"), gate), is_newer(Moment(6, "lsn:00000000:1"), gate)
    (True, False)
    """
    if moment.ts_ms is None:
        return True
    return _is_after(moment, gate.ts_ms, gate.position) and _is_after(
        moment, gate.snapshot_ts_ms, gate.snapshot_position, or_there=not moment.is_snapshot
    )


def passed(gate: Gate, moment: Moment) -> Gate:
    """The gate after a change came to it, whether or not it counted."""
    if moment.ts_ms is None:
        return gate
    if moment.is_snapshot:
        ts_ms, position = _newest(moment, gate.snapshot_ts_ms, gate.snapshot_position)
        return replace(gate, snapshot_ts_ms=ts_ms, snapshot_position=position)
    ts_ms, position = _newest(moment, gate.ts_ms, gate.position)
    return replace(gate, ts_ms=ts_ms, position=position)


def log_of(position: str | None) -> str | None:
    """In which log of the source a position is; None for what is none."""
    return None if position is None or position.startswith(OFFSET_KIND) else position[:LOG_LETTERS]


def _is_after(moment: Moment, ts_ms: int | None, position: str | None, *, or_there: bool = False) -> bool:
    assert moment.ts_ms is not None
    if ts_ms is None:
        return True
    if moment.position is not None and position is not None and log_of(moment.position) == log_of(position) is not None:
        return moment.position > position or (or_there and moment.position == position)
    if moment.ts_ms != ts_ms:
        return moment.ts_ms > ts_ms
    return moment.position is None or position is None or moment.position > position


def _newest(moment: Moment, ts_ms: int | None, position: str | None) -> tuple[int | None, str | None]:
    """The newest of a change and of what was known; the time never goes back behind that of an earlier place."""
    assert moment.ts_ms is not None
    if ts_ms is None:
        return moment.ts_ms, moment.position
    if moment.position is not None and position is not None and log_of(moment.position) == log_of(position) is not None:
        return max(ts_ms, moment.ts_ms), max(position, moment.position)
    # At the same time, one that does not know its place leaves the place that is known.
    if (moment.ts_ms == ts_ms and moment.position is None) or not _is_after(moment, ts_ms, position):
        return ts_ms, position
    return moment.ts_ms, moment.position


# ── the same in SQL ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class MomentSql:
    """The same facts as expressions; texts are compared byte by byte as they stand here."""

    ts: str
    position: str
    snapshot: str = "0"


def same_log_sql(position: str, other: str) -> str:
    """Whether two positions are of one log of the source: true, or false or NULL."""
    one, two = (f"substr({place}, 1, {LOG_LETTERS})" for place in (position, other))
    return f"({one} = {two} AND substr({one}, 1, {len(OFFSET_KIND)}) <> '{OFFSET_KIND}')"


def after_sql(moment: MomentSql, ts: str, position: str, *, or_there: str = "0 = 1") -> str:
    """Whether a change is after another; true without another.

    Args:
        or_there: Under which condition it is also when it stands at the same place of the same log.
    """
    place = f"{moment.position} > {position} OR ({moment.position} = {position} AND {or_there})"
    tie = f"{moment.position} IS NULL OR {position} IS NULL OR {moment.position} > {position}"
    return f"({ts} IS NULL OR {_order_sql(moment, ts, position, place, tie)})"


def behind_sql(moment: MomentSql, gate: MomentSql) -> str:
    """Whether what the gate knows is surely after a change: true, or false or NULL."""
    later = f"{gate.position} > {moment.position}"
    is_later = _order_sql(gate, moment.ts, moment.position, later, f"coalesce({later}, 0 = 1)")
    return f"({gate.ts} IS NOT NULL AND {moment.ts} IS NOT NULL AND {is_later})"


def _order_sql(moment: MomentSql, ts: str, position: str, place: str, tie: str) -> str:
    return (
        f"CASE WHEN {same_log_sql(moment.position, position)} THEN {place} "
        f"WHEN {moment.ts} <> {ts} THEN {moment.ts} > {ts} ELSE {tie} END"
    )


def newer_sql(moment: MomentSql, gate: MomentSql, snapshot: MomentSql) -> str:
    """`is_newer`: true, or false or NULL. The gate is given as what it knows of changes and of snapshots."""
    behind_snapshot = after_sql(moment, snapshot.ts, snapshot.position, or_there=f"{moment.snapshot} = 0")
    return f"({moment.ts} IS NULL OR ({after_sql(moment, gate.ts, gate.position)} AND {behind_snapshot}))"


def newest_sql(moment: MomentSql, ts: str, position: str) -> tuple[str, str, str]:
    """What remains of a change and of what was known: whether anything is new, the newest time, the newest position."""
    same = same_log_sql(moment.position, position)
    is_known = f"({ts} IS NULL OR {moment.ts} > {ts} OR {moment.position} IS NOT NULL)"
    is_new = (
        f"({moment.ts} IS NOT NULL AND CASE WHEN {same} THEN {moment.position} > {position} OR {moment.ts} > {ts} "
        f"ELSE {is_known} AND {after_sql(moment, ts, position)} END)"
    )
    keeps_ts, keeps_position = f"{same} AND {ts} > {moment.ts}", f"{same} AND {position} > {moment.position}"
    return is_new, keeps_ts, keeps_position
