"""Histories straight from a change feed: images that lack columns are completed, and a truncate ends every key.

An image takes what it lacks from the version before it, stored or landed. What was deleted is no such version: a key
that returns begins anew.

A change that comes late is put in its place. Only where the version of its very time was made by a change that stands
later in the log does it come too late: the gate remembers the place of every version.

A change that stands behind all others of its key in the log, but has an earlier time, was made when the clock had been
set back: its version begins a microsecond behind the last one. The gate remembers also which version of a key that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.contracts.change_feeds import (
    AT,
    DELETE,
    OP,
    POSITION,
    SEQ,
    TRUNCATE,
    TS,
    UPSERT,
    bit_of,
    full_masks,
)
from ematix_flow.contracts.dialect import Dialect
from ematix_flow.contracts.plans import Statement
from ematix_flow.declare.columns import Text

if TYPE_CHECKING:
    from ematix_flow.plan.history import Words

_EMPTYING = 3
"""How a truncate ranks: whatever else is known of a key at that moment came behind it."""

_EMPTIED_AT, _PLACE, _SEQ = "__flow_emptied_at", "__flow_emptied_place", "__flow_emptied_seq"
_LACKS = "__flow_lacks"
_LOOKED_AT, _MARKED, _FILLED, _WHOLE = "__flow_looked_at", "__flow_marked", "__flow_filled", "__flow_whole"


@dataclass(frozen=True)
class FeedEvents:
    """What landed changes are. Conditions are said of the alias `s`.

    Attributes:
        at: The column of a change's time.
        beside: What is joined to landed changes for the conditions that follow.
        moved_at: The time from which its version is, with that.
        rank: Which of two of one time comes first, as the greater number; neither is above 0.
        is_row: Under which condition a change is about the row of a key.
        closes: Under which it ends a version.
        empties: Under which it ends all versions.
        is_partial: Under which it lacks columns.
        has: By column, under which it has that one.
        is_past: Under which a later change of the same time was applied before.
    """

    at: str
    beside: str
    moved_at: str
    rank: str
    is_row: str
    closes: str
    empties: str
    is_partial: str
    has: tuple[tuple[str, str], ...]
    is_past: str

    @staticmethod
    def of(
        dialect: Dialect, columns: Sequence[str], beside: str, moved_at: str, is_again: str, is_past: str
    ) -> FeedEvents:
        """As changes land whose images may have these columns."""
        op = f"s.{dialect.quote(OP)}"
        lacks = [f"s.{dialect.quote(mask)} <> {full}" for mask, full in full_masks(len(columns)).items()]
        has = []
        for place, name in enumerate(columns):
            mask, bit = bit_of(place)
            has.append((name, f"({op} = {DELETE} OR (s.{dialect.quote(mask)} & {bit}) <> 0)"))
        return FeedEvents(
            at=AT,
            beside=beside,
            moved_at=moved_at,
            rank=f"CASE WHEN {is_again} THEN 0 ELSE -1 END",
            is_row=f"{op} IN ({UPSERT}, {DELETE})",
            closes=f"{op} = {DELETE}",
            empties=f"{op} = {TRUNCATE}",
            is_partial=f"({op} = {UPSERT} AND ({' OR '.join(lacks)}))",
            has=tuple(has),
            is_past=is_past,
        )


def landed_changes(words: Words) -> str:
    """What the FROM and the WHERE of a query are for changes that count (alias s).

    One that was made before a truncate of the same time does not. Truncates are few: they are gathered first.
    """
    quote, feed, at = words.dialect.quote, _feed(words), _feed(words).moved_at
    ts, seq, landed = quote(TS), quote(SEQ), words.load.landed_sql
    position = words.dialect.ordered(f"s.{quote(POSITION)}", Text())
    truncates = (
        f"SELECT {words.at('s')} AS {_EMPTIED_AT}, max({position}) AS {_PLACE}, max(s.{seq}) AS {_SEQ} "
        f"FROM {landed} AS s WHERE {feed.empties} GROUP BY {words.at('s')}"
    )
    behind = f"CASE WHEN s.{ts} IS NULL THEN s.{seq} > r.{_SEQ} ELSE {position} > r.{_PLACE} END"
    return (
        f"FROM {landed} AS s {feed.beside} LEFT JOIN ({truncates}) AS r ON r.{_EMPTIED_AT} = {at} "
        f"WHERE {at} IS NOT NULL AND {feed.is_row} AND (r.{_EMPTIED_AT} IS NULL OR {behind}) AND NOT {feed.is_past}"
    )


def emptied_keys(words: Words) -> str:
    """A query for the truncates as events of every key that landed."""
    feed, landed = _feed(words), words.load.landed_sql
    keys = f"SELECT DISTINCT {words.keys('s')} FROM {landed} AS s WHERE {feed.is_row}"
    columns = f"{words.closing_columns('k')}, {words.at('e')}, {_EMPTYING}, 1{marks(words, known=True)}"
    return f"SELECT {columns} FROM ({keys}) AS k CROSS JOIN ({_truncates(words)}) AS e"


def ended_by_truncates(words: Words) -> Statement:
    """End the versions of all other keys where a truncate cut them; nothing is read where none landed."""
    load, at = words.load, words.at("e")
    cut = f"{at} > t.{words.valid_from} AND (t.{words.valid_to} IS NULL OR t.{words.valid_to} > {at})"
    truncates = f"({_truncates(words)}) AS e"
    changes = [
        ("valid_to", f"(SELECT min({at}) FROM {truncates} WHERE {at} > t.{words.valid_from})"),
        ("is_current", words.false),
        *load.stamp_values(),
    ]
    listed = ", ".join(f"{words.dialect.quote(column)} = {value}" for column, value in changes)
    return Statement(
        f"UPDATE {load.table_sql} AS t SET {listed} WHERE EXISTS ({_truncates(words)}) "
        f"AND EXISTS (SELECT 1 FROM {truncates} WHERE {cut}) AND {_is_absent(words)}",
        counts="closed",
        why="close the versions that a truncate ends",
    )


def cut_by_truncates(words: Words) -> str:
    """What the FROM and the rest of a query are for the versions (alias t) of keys that did not land, cut by `e`."""
    load, at = words.load, words.at("e")
    return (
        f"{load.stored_sql} AS t JOIN ({_truncates(words)}) AS e ON {at} > t.{words.valid_from} "
        f"AND (t.{words.valid_to} IS NULL OR t.{words.valid_to} > {at}) "
        f"WHERE {_is_absent(words)} GROUP BY {words.keys('t')}, t.{words.valid_from}, t.{words.valid_to}"
    )


def _is_absent(words: Words) -> str:
    """Whether the key of a stored version (alias t) did not land; of those that did, all is worked out already."""
    is_landed = f"{words.match('t', 's')} AND {_feed(words).is_row}"
    return f"NOT EXISTS (SELECT 1 FROM {words.load.landed_sql} AS s WHERE {is_landed})"


def _truncates(words: Words) -> str:
    return f"SELECT DISTINCT {words.at('s')} FROM {words.load.landed_sql} AS s WHERE {_feed(words).empties}"


# ── images that lack columns ─────────────────────────────────────────────────────────────────────────────────────────


def marks(words: Words, *, known: bool) -> str:
    """Columns that say which columns an event has, to stand behind its own; all of them where it is `known` whole."""
    feed = _feed(words)
    has = "".join(
        f", 1 AS {_has(place)}" if known else f", CASE WHEN {condition} THEN 1 ELSE 0 END AS {_has(place)}"
        for place, (_, condition) in enumerate(feed.has)
    )
    return f"{has}, 0 AS {_LACKS}" if known else f"{has}, CASE WHEN {feed.is_partial} THEN 1 ELSE 0 END AS {_LACKS}"


def completed(words: Words, events: str, at: str, rank: str, closing: str) -> tuple[list[str], str]:
    """Relations, one after the other, in which the events of a relation get what they lack; and the last one's name.

    To carry a column on takes a pass for each, which only keys are given that have an event without some.
    """
    quote, feed = words.dialect.quote, _feed(words)
    others = f"{at}, {rank}, {closing}"
    names = words.dialect.columns(words.load.names)
    keys = words.dialect.columns(words.key_names)
    has = "".join(f", {_has(place)}" for place in range(len(feed.has)))
    looked_at = f"SELECT {names}, {others}{has}, max({_LACKS}) OVER (PARTITION BY {keys}) AS {_LACKS} FROM {events}"
    in_order = f"ORDER BY {at}, {rank} DESC"
    groups = "".join(f", sum({_has(place)}) OVER w AS {_group(place)}" for place in range(len(feed.has)))
    places = {name: place for place, (name, _) in enumerate(feed.has)}
    carried = ", ".join(
        f"first_value({quote(name)}) OVER (PARTITION BY {keys}, {_group(places[name])} {in_order}) AS {quote(name)}"
        if name in places
        else quote(name)
        for name in words.load.names
    )
    marked = (
        f"SELECT {names}, {others}{groups} FROM {_LOOKED_AT} WHERE {_LACKS} = 1 "
        f"WINDOW w AS (PARTITION BY {keys} {in_order} ROWS UNBOUNDED PRECEDING)"
    )
    return [
        f"{_LOOKED_AT} AS ({looked_at})",
        f"{_MARKED} AS ({marked})",
        f"{_FILLED} AS (SELECT {carried}, {others} FROM {_MARKED})",
        f"{_WHOLE} AS (SELECT {names}, {others} FROM {_LOOKED_AT} WHERE {_LACKS} = 0 "
        f"UNION ALL SELECT {names}, {others} FROM {_FILLED})",
    ], _WHOLE


def _feed(words: Words) -> FeedEvents:
    assert words.load.feed is not None
    return words.load.feed


def _has(place: int) -> str:
    return f"__flow_has_{place}"


def _group(place: int) -> str:
    return f"__flow_group_{place}"
