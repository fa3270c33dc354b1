"""What merge and scd2 mean, in plain Python: dictionaries and loops, written from the specification.

Times are whole numbers (minutes), rows are dictionaries, a load's stamp is any value. The property tests run the same
loads through a model and through a real database and compare whole tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Row = Mapping[str, Any]
Key = tuple[Any, ...]
CLOSED = "closed"
"""What a history says about a key from the moment it is gone."""


class Refused(Exception):
    """The load must be refused and the table stay as it is. The argument is the kind of refusal."""


@dataclass
class Counts:
    """What a load did, for the comparison with what it reports."""

    inserted: int = 0
    updated: int = 0
    closed: int = 0
    deleted: int = 0


def key_of(row: Row, keys: Sequence[str]) -> Key:
    """The key of a row."""
    return tuple(row[name] for name in keys)


def same(left: Row, right: Row, names: Iterable[str]) -> bool:
    """Whether two rows agree in some columns; NULL is a value like any other."""
    return all(left[name] == right[name] for name in names)


# ── merge ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Stamped:
    """A stored row and the load that last really changed it."""

    row: dict[str, Any]
    stamp: Any


@dataclass
class MergeModel:
    """One row per key."""

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    update_columns: tuple[str, ...] | None = None
    compare_columns: tuple[str, ...] | None = None
    hard_deletes: bool = False
    allow_empty_source: bool = False
    stored: dict[Key, Stamped] = field(default_factory=dict)

    def load(self, rows: Sequence[Row], stamp: Any) -> Counts:
        """Load one batch."""
        keys = [key_of(row, self.keys) for row in rows]
        if len(set(keys)) < len(keys):
            raise Refused("duplicate_keys")
        if self.hard_deletes and not rows and not self.allow_empty_source:
            raise Refused("empty_source")
        counts = Counts()
        if self.hard_deletes:
            for gone in set(self.stored) - set(keys):
                del self.stored[gone]
                counts.deleted += 1
        written = tuple(n for n in self.columns if n not in self.keys)
        if self.update_columns is not None:
            written = self.update_columns
        compared = written if self.compare_columns is None else self.compare_columns
        for key, row in zip(keys, rows, strict=True):
            known = self.stored.get(key)
            if known is None:
                self.stored[key] = Stamped(dict(row), stamp)
                counts.inserted += 1
            # A row whose written columns are as they were is not really updated.
            elif not same(known.row, row, compared) and not same(known.row, row, written):
                known.row.update({name: row[name] for name in written})
                known.stamp = stamp
                counts.updated += 1
        return counts


# ── scd2 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Version:
    """One stored version of a key."""

    row: Row
    valid_from: int
    valid_to: int | None
    stamp: Any


Told = dict[int, Any]
"""What is known of one key: at this time it became this row, or was `CLOSED`."""


@dataclass
class HistoryModel:
    """Versions of keys. What a version does not show is forgotten: an event that repeats its predecessor."""

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    event_time: str | None = None
    compare_columns: tuple[str, ...] | None = None
    soft_deletes: bool = False
    ttl: int | None = None
    refuse_late: bool = False
    stored: dict[Key, dict[int, Version]] = field(default_factory=dict)

    @property
    def compared(self) -> tuple[str, ...]:
        """The columns that make a difference."""
        if self.compare_columns is not None:
            return self.compare_columns
        return tuple(n for n in self.columns if n not in self.keys and n != self.event_time)

    def load(self, rows: Sequence[Row], now: int, stamp: Any) -> Counts:
        """Load one batch at one moment."""
        self._check(rows)
        counts = Counts()
        incoming: dict[Key, Told] = {}
        for row in rows:
            events = incoming.setdefault(key_of(row, self.keys), {})
            when = now if self.event_time is None else row[self.event_time]
            if when is not None:
                events[when] = row
        for key, events in incoming.items():
            told = self.told(key)
            if self.soft_deletes or self.event_time is None:
                # The key is there now, whatever a clock ahead of this one said.
                for when in [when for when, word in told.items() if word == CLOSED and when >= now]:
                    del told[when]
            told.update(events)
            if self.soft_deletes and events and told[max(told)] == CLOSED:
                told[now] = events[max(events)]  # the source has the key, so it is open
            self._store(key, told, stamp, counts)
        if self.soft_deletes:
            for key in set(self.stored) - set(incoming):
                self._close(key, now, stamp, counts, unless_younger_than=None)
        if self.ttl is not None:
            for key in self.stored:
                self._close(key, now, stamp, counts, unless_younger_than=now - self.ttl)
        return counts

    def told(self, key: Key) -> Told:
        """Everything known of a key."""
        versions = self.stored.get(key, {})
        closings = {v.valid_to: CLOSED for v in versions.values() if v.valid_to not in {None, *versions}}
        return {**closings, **{v.valid_from: v.row for v in versions.values()}}  # type: ignore[dict-item]

    def closed(self, key: Key, at: int) -> None:
        """A key was closed: a `valid_to` without a successor says so already."""

    def open_version(self, key: Key) -> Version | None:
        """The version of a key that has no end."""
        return next((v for v in self.stored.get(key, {}).values() if v.valid_to is None), None)

    def _check(self, rows: Sequence[Row]) -> None:
        seen: dict[tuple[Key, Any], Row] = {}
        for row in rows:
            key = key_of(row, self.keys)
            if self.event_time is None:
                if (key, None) in seen:
                    raise Refused("duplicate_keys")
                seen[key, None] = row
                continue
            when = row[self.event_time]
            current = self.open_version(key)
            if when is None and (current is None or not same(current.row, row, self.compared)):
                raise Refused("null_event_time")
        if self.event_time is None:
            return
        for row in rows:
            event = key_of(row, self.keys), row[self.event_time]
            if seen.setdefault(event, row) != row:
                raise Refused("duplicate_events")
        if self.refuse_late:
            for row in rows:
                self._check_late(key_of(row, self.keys), row)

    def _check_late(self, key: Key, row: Row) -> None:
        assert self.event_time is not None
        when = row[self.event_time]
        versions = self.stored.get(key, {})
        if when is None or not any(start >= when for start in versions):
            return
        for version in versions.values():
            holds = version.valid_from <= when and (version.valid_to is None or when < version.valid_to)
            if holds and same(version.row, row, self.compared):
                return  # says what the history says already
        raise Refused("late")

    def _store(self, key: Key, told: Told, stamp: Any, counts: Counts) -> None:
        before, after = self.stored.get(key, {}), {}
        for version in versions_of(told, self.compared):
            old = before.get(version.valid_from)
            if old is None:
                after[version.valid_from] = replace(version, stamp=stamp)
                counts.inserted += 1
                continue
            is_same_content = same(old.row, version.row, self.compared)
            if is_same_content and old.valid_to == version.valid_to:
                after[old.valid_from] = old
                continue
            is_closed = old.valid_to is None and version.valid_to is not None
            counts.closed += is_closed
            counts.updated += not is_same_content or not is_closed
            row = old.row if is_same_content else version.row
            after[old.valid_from] = Version(row, old.valid_from, version.valid_to, stamp)
        if after:
            self.stored[key] = after

    def _close(self, key: Key, now: int, stamp: Any, counts: Counts, *, unless_younger_than: int | None) -> None:
        version = self.open_version(key)
        if version is None or (unless_younger_than is not None and version.valid_from >= unless_younger_than):
            return
        # One that has not begun yet ends as it begins.
        end = max(now, version.valid_from)
        self.stored[key][version.valid_from] = replace(version, valid_to=end, stamp=stamp)
        counts.closed += 1
        if end > version.valid_from:
            self.closed(key, end)


@dataclass
class ExactHistoryModel(HistoryModel):
    """`exact_history=True`: nothing is forgotten, so the order in which batches arrive makes no difference."""

    memory: dict[Key, Told] = field(default_factory=dict)

    def told(self, key: Key) -> Told:
        """Every event ever seen."""
        return self.memory.setdefault(key, {})

    def closed(self, key: Key, at: int) -> None:
        """A closing is an event, too."""
        self.memory[key][at] = CLOSED


def versions_of(told: Told, compared: Iterable[str]) -> list[Version]:
    """The versions that follow from everything known of one key."""
    compared = tuple(compared)
    turns: list[tuple[int, Any]] = []
    state: Any = CLOSED  # before anything is known there is no such key
    for when in sorted(told):
        word = told[when]
        is_news = word != state if CLOSED in (word, state) else not same(word, state, compared)
        if is_news:
            turns.append((when, word))
        state = word
    ends = [when for when, _ in turns[1:]] + [None]
    return [Version(word, when, end, None) for (when, word), end in zip(turns, ends, strict=True) if word != CLOSED]
