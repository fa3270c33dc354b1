"""What is known of a stream while it runs: for metrics, for a screen, for the run log, and to notice that it hangs.

A `StreamWatch` belongs to a process and a stream, and lives on when the stream is started again. It looks at the stream
once a second, from a thread of its own, and changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Literal, Protocol

from ematix_flow.contracts.runtime import instant_text
from ematix_flow.contracts.streams import BATCH_SECONDS, Lag, Positions, StreamCounters
from ematix_flow.errors import FlowError, counted

log = logging.getLogger(__name__)

Phase = Literal["starting", "running", "waiting", "stalled", "restarting", "ended"]
COUNTS = (
    "rows_consumed",
    "rows_written",
    "rows_dropped",
    "batches",
    "errors",
    "dead_letters",
    "messages_lost",
    "late_rows",
    "windows_emitted",
    "cdc_creates",
    "cdc_updates",
    "cdc_deletes",
    "cdc_skipped",
    "cdc_idempotent_skipped",
    "lookup_refreshes",
    "lookup_failures",
)
STALLED_AFTER_S = 120.0
SNAPSHOT_EVERY_S = 30.0

_SAMPLE_S = 1.0
_LOOKS_PER_LAG = 5
_PARTS_OF_TIME = 50
_PATIENCE_S = 2.0
_MINUTE, _FIVE_MINUTES = 60.0, 300.0

LagOf = Callable[[Positions], Mapping[str, Sequence[Lag]]]
Note = Callable[[Mapping[str, Any]], None]


class Watched(Protocol):
    """A running query, as far as it can be looked at."""

    def is_waiting(self) -> bool:
        """Whether there is nothing to do."""


@dataclass(frozen=True)
class StreamView:
    """A stream at one moment.

    Attributes:
        counts: Since the process began, over all starts.
        rows_per_s: Written, over the last minute.
        lag: By source; empty where a source cannot tell.
        batch_seconds: Batches by duration, as in `StreamCounters`.
        watermark: In seconds since 1970; None without event time.
        source_watermarks: The same of each source.
        held: `groups` and `keys` of which something is remembered, where they could be counted.
        oldest_event: The oldest event time of which something is remembered, likewise.
    """

    pipeline: str
    phase: Phase
    counts: Mapping[str, int]
    restarts: int = 0
    idle: int = 0
    rows_per_s: float = 0.0
    lag: Mapping[str, Sequence[Lag]] = field(default_factory=dict)
    last_batch_s: float | None = None
    last_success_at: float | None = None
    batch_seconds: Sequence[int] = ()
    batch_seconds_sum: float = 0.0
    watermark: float | None = None
    source_watermarks: Mapping[str, float] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    state_rows: int = 0
    state_bytes: int = 0
    open_windows: int = 0
    oldest_event: float | None = None
    late_policy: str = "drop"

    @property
    def behind(self) -> int | None:
        """Messages that wait, over all sources; None when nobody can tell."""
        known = [lag.behind for parts in self.lag.values() for lag in parts]
        return sum(known) if known else None


@dataclass(frozen=True)
class _Sample:
    at: float
    counts: Mapping[str, int]


class StreamWatch:
    """Watches one stream of this process.

    Args:
        stalled_after_s: How long no batch may end while messages wait, before that is said.
        snapshot_every_s: How often the run log is told.
    """

    def __init__(
        self,
        pipeline: str,
        *,
        stalled_after_s: float = STALLED_AFTER_S,
        snapshot_every_s: float = SNAPSHOT_EVERY_S,
        sample_s: float = _SAMPLE_S,
    ) -> None:
        self.pipeline = pipeline
        self.stalled_after_s = stalled_after_s
        self._snapshot_every_s, self._sample_s = snapshot_every_s, sample_s
        self._lock = threading.Lock()
        self._counters = StreamCounters()
        self._before = dict.fromkeys(COUNTS, 0)
        self._seconds_before = ([0] * (len(BATCH_SECONDS) + 1), 0.0)
        self._phase: Phase = "starting"
        self._restarts = self._idle = 0
        self._lag: Mapping[str, Sequence[Lag]] = {}
        self._last_success_at: float | None = None
        self._samples: deque[_Sample] = deque()
        self._held: Mapping[str, int] = {}
        self._held_keys: Callable[[], Mapping[str, int]] = dict
        self._next_keys = 0.0
        self._note: Note = lambda facts: None
        self._moved_at = 0.0
        self._batches_seen = 0

    # ── what it is told ──────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def run_of(self, counters: StreamCounters, note: Note) -> Iterator[None]:
        """One start of the stream, to its end. A start that fails counts as an error, if it has counted none itself."""
        with self._lock:
            self._counters, self._note, self._phase = counters, note, "starting"
            self._held, self._held_keys, self._next_keys = {}, dict, 0.0
            self._samples.clear()
        try:
            yield
        except BaseException:
            if not counters.errors:
                counters.add(errors=1)
            raise
        finally:
            with self._lock:
                self._before = {name: self._before[name] + getattr(counters, name) for name in COUNTS}
                buckets, total = self._seconds_before
                self._seconds_before = (
                    [one + more for one, more in zip(buckets, counters.batch_seconds, strict=True)],
                    total + counters.batch_seconds_sum,
                )
                self._last_success_at = counters.last_batch_at or self._last_success_at
                self._counters, self._phase = StreamCounters(), "ended"

    def restarting(self) -> None:
        """The stream failed and will be started again."""
        with self._lock:
            self._restarts += 1
            self._phase = "restarting"

    @contextmanager
    def sampling(self, running: Watched, lag_of: LagOf) -> Iterator[None]:
        """Look at a running query until the block ends; the run log then has the last numbers."""
        done = threading.Event()
        thread = threading.Thread(
            target=self._look_on, args=(running, lag_of, done), name=f"watch {self.pipeline}", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(_PATIENCE_S)  # a broker that is away may let it wait; it says nothing more afterwards
            self._next_keys = 0.0
            self._count_keys()
            self._sample()
            self._note(self.snapshot())

    # ── what it says ─────────────────────────────────────────────────────────────────────────────────────────────────

    def view(self) -> StreamView:
        """The stream now."""
        with self._lock:
            counters = self._counters
            buckets, total = self._seconds_before
            return StreamView(
                pipeline=self.pipeline,
                phase=self._phase,
                counts={name: self._before[name] + getattr(counters, name) for name in COUNTS},
                restarts=self._restarts,
                idle=self._idle,
                rows_per_s=self._rate("rows_written", _MINUTE),
                lag=self._lag,
                last_batch_s=counters.last_batch_s,
                last_success_at=counters.last_batch_at or self._last_success_at,
                batch_seconds=[one + more for one, more in zip(buckets, counters.batch_seconds, strict=True)],
                batch_seconds_sum=total + counters.batch_seconds_sum,
                watermark=None if counters.event_mark_us is None else counters.event_mark_us / 1e6,
                source_watermarks={name: us / 1e6 for name, us in counters.source_marks_us.items()},
                held=self._held,
                state_rows=counters.remembered_rows,
                state_bytes=counters.remembered_bytes,
                open_windows=counters.open_windows,
                oldest_event=None if counters.oldest_event_us is None else counters.oldest_event_us / 1e6,
                late_policy=counters.late_policy,
            )

    def snapshot(self) -> dict[str, Any]:
        """The stream for the run log: totals of this start, and how fast it is."""
        with self._lock:
            counters = self._counters
            return {
                "snapshot_at": instant_text(datetime.now(timezone.utc)),
                **{f"{name}_total": getattr(counters, name) for name in COUNTS},
                "restarts": self._restarts,
                "lag": {lag.part: lag.behind for parts in self._lag.values() for lag in parts},
                "stats_1m": self._stats(_MINUTE),
                "stats_5m": self._stats(_FIVE_MINUTES),
            }

    # ── looking on ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _look_on(self, running: Watched, lag_of: LagOf, done: threading.Event) -> None:
        began = self._moved_at = time.monotonic()
        self._batches_seen = 0
        next_lag, next_snapshot = began, began + self._snapshot_every_s
        while not done.wait(self._sample_s):
            now = time.monotonic()
            try:
                is_waiting = running.is_waiting()
                if now >= next_lag:
                    self._lag = lag_of(self._counters.positions) or self._lag
                    next_lag = time.monotonic() + _LOOKS_PER_LAG * self._sample_s
                self._count_keys()
            except Exception as exc:  # whoever looks on must not be what the stream dies of
                log.debug("%s: it does not say how it is: %s", self.pipeline, type(exc).__name__)
                continue
            if done.is_set():
                return
            self._sample()
            self._judge(is_waiting, now)
            if now >= next_snapshot:
                self._note(self.snapshot())
                next_snapshot = now + self._snapshot_every_s

    def _count_keys(self) -> None:
        """Count what is remembered by key, when it has changed; this may take one part in fifty of the time."""
        held_keys, began = self._counters.held_keys, time.monotonic()
        if held_keys is self._held_keys or began < self._next_keys:
            return
        try:
            self._held = held_keys()
        except FileNotFoundError:
            return  # two batches have ended meanwhile, and what they no longer need is gone
        except Exception as exc:  # whoever looks on must not be what the stream dies of
            log.debug("%s: its keys cannot be counted: %s", self.pipeline, type(exc).__name__)
        self._held_keys, took = held_keys, time.monotonic() - began
        self._next_keys = began + _PARTS_OF_TIME * took

    def _sample(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._samples.append(_Sample(now, {name: getattr(self._counters, name) for name in COUNTS}))
            while self._samples[0].at < now - _FIVE_MINUTES:
                self._samples.popleft()

    def _judge(self, is_waiting: bool, now: float) -> None:
        """Find out whether it works, waits, or hangs; the last is said once, and so is its end."""
        behind = sum(lag.behind for parts in self._lag.values() for lag in parts)
        batches = self._counters.batches
        if batches != self._batches_seen or (is_waiting and not behind):
            self._batches_seen, self._moved_at = batches, now
        phase: Phase = "waiting" if is_waiting else "running"
        if now - self._moved_at >= self.stalled_after_s:
            phase = "stalled"
        with self._lock:
            before, self._phase = self._phase, phase
            self._idle += is_waiting
        if phase == "stalled" and before != "stalled":
            waiting = f", and {counted(behind, 'message')} wait" if behind else ""
            log.warning(
                "%s makes no progress: no batch has ended for %.0f s%s", self.pipeline, now - self._moved_at, waiting
            )
        elif before == "stalled" and phase != "stalled":
            log.warning("%s goes on again", self.pipeline)

    def _rate(self, name: str, seconds: float) -> float:
        stats = self._span(seconds)
        if stats is None:
            return 0.0
        first, last = stats
        return max(last.counts[name] - first.counts[name], 0) / (last.at - first.at)

    def _stats(self, seconds: float) -> dict[str, float | None]:
        span = self._span(seconds)
        if span is None:
            names = ("rows_consumed", "rows_written", "batches", "errors")
            return {
                **{f"{name}_per_sec": None for name in names},
                "avg_batch_cycle_ms": None,
                "span_seconds": None,
            }
        length = span[1].at - span[0].at
        batches = self._rate("batches", seconds)
        return {
            "rows_consumed_per_sec": round(self._rate("rows_consumed", seconds), 3),
            "rows_written_per_sec": round(self._rate("rows_written", seconds), 3),
            "batches_per_sec": round(batches, 3),
            "errors_per_sec": round(self._rate("errors", seconds), 3),
            "avg_batch_cycle_ms": round(1000 / batches, 3) if batches else None,
            "span_seconds": round(length, 3),
        }

    def _span(self, seconds: float) -> tuple[_Sample, _Sample] | None:
        """The samples at both ends of the last so many seconds; None below two of them."""
        if len(self._samples) < 2:
            return None
        last = self._samples[-1]
        first = next(sample for sample in self._samples if sample.at >= last.at - seconds)
        return (first, last) if last.at > first.at else None


def lag_over(sources: Sequence[Any], starts: Positions) -> LagOf:
    """How far a stream is behind in its sources (`OpenSource`), by where it has got; before its first batch, by where
    it begins."""

    def lag(positions: Positions) -> Mapping[str, Sequence[Lag]]:
        found: dict[str, Sequence[Lag]] = {}
        for source in sources:
            end = positions.get(source.query, starts.get(source.query))
            if end is None:
                continue
            try:
                parts = source.backend.lag(source.query, end)
            except FlowError as exc:
                log.debug("the lag of '%s' is not known: %s", source.query, exc.message)
                continue
            if parts:
                found[source.query] = parts
        return found

    return lag
