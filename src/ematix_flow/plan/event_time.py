"""How far event time has come: what a stream with windows or joins knows of its sources, as plain values.

The mark of a source is the greatest event time it has shown, less the lateness that is allowed. The mark of a stream is
the least over its sources, without those that have been silent for too long; when all are silent, nothing moves. A row
is judged by the mark that stood before its batch, so that no batch makes its own rows late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ematix_flow.declare.stream import Watermark

IDLE_AFTER_MS = 60_000
"""After how long a silent source is no longer waited for, when nothing is said."""


@dataclass(frozen=True)
class SourceMark:
    """What one source has shown.

    Attributes:
        latest_us: The greatest event time, in microseconds since 1970.
        seen_ms: When it last had anything, by the clock of this machine, in milliseconds since 1970.
    """

    latest_us: int
    seen_ms: int


@dataclass(frozen=True)
class EventClock:
    """The event time of a stream after some batch.

    Attributes:
        marks: By source; one that has shown nothing yet is not among them, and is not waited for.
        mark_us: Rows before it may be late; None before there was any.
    """

    marks: Mapping[str, SourceMark] = field(default_factory=dict)
    mark_us: int | None = None

    def after(self, latest_us: Mapping[str, int], now_ms: int, allowed: Watermark | None) -> EventClock:
        """The clock after a batch in which each source showed event times up to `latest_us`; it never goes back.

        >>> clock = EventClock().after({"a": 90_000, "b": 50_000}, now_ms=0, allowed=Watermark(lateness_ms=10))
        >>> clock.mark_us
        40000
        >>> clock.after({"a": 95_000}, now_ms=60_001, allowed=Watermark(lateness_ms=10)).mark_us  # b fell silent
        85000
        """
        lateness_us = _lateness_us(allowed)
        idle_ms = idle_after_ms(allowed)
        marks = dict(self.marks)
        for source, latest in latest_us.items():
            known = marks.get(source)
            marks[source] = SourceMark(max(latest, known.latest_us) if known else latest, now_ms)
        awake = [mark.latest_us - lateness_us for mark in marks.values() if now_ms - mark.seen_ms <= idle_ms]
        found = min(awake, default=None)
        known_mark = self.mark_us
        if found is None or (known_mark is not None and known_mark > found):
            found = known_mark
        return EventClock(marks, found)

    def by_source(self, allowed: Watermark | None) -> dict[str, int]:
        """The mark of each source by itself, in microseconds since 1970.

        >>> EventClock().after({"a": 90_000}, now_ms=0, allowed=None).by_source(Watermark(lateness_ms=10))
        {'a': 80000}
        """
        return {name: mark.latest_us - _lateness_us(allowed) for name, mark in self.marks.items()}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "mark_us": self.mark_us,
            "sources": {name: [mark.latest_us, mark.seen_ms] for name, mark in self.marks.items()},
        }

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> EventClock:
        """What `to_dict` gave."""
        return cls({name: SourceMark(*pair) for name, pair in known["sources"].items()}, known["mark_us"])


def idle_after_ms(allowed: Watermark | None) -> int:
    """After how long a silent source is no longer waited for."""
    return allowed.source_idleness_ms if allowed and allowed.source_idleness_ms is not None else IDLE_AFTER_MS


def _lateness_us(allowed: Watermark | None) -> int:
    return 1000 * ((allowed.lateness_ms if allowed else None) or 0)
