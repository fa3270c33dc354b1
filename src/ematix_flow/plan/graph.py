"""The graph of pipelines: in which order they run, who waits for whom, and whether the wait is over."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ematix_flow.contracts.orchestration import LastRun
from ematix_flow.declare.dependencies import find_cycle
from ematix_flow.errors import InvalidPlan
from ematix_flow.plan.cron import Schedule, as_utc


class Graph:
    """Pipelines and their upstreams. Names that occur only as upstreams belong to it, too.

    Raises:
        InvalidPlan: (a ValueError) There is a cycle; it is named.
    """

    def __init__(self, edges: Mapping[str, Iterable[str]]) -> None:
        self._upstream = {name: tuple(dict.fromkeys(upstreams)) for name, upstreams in edges.items()}
        cycle = find_cycle(self._upstream)
        if cycle is not None:
            raise InvalidPlan(f"The pipelines wait for each other in a cycle: {' → '.join(cycle)}.")
        self._downstream: dict[str, list[str]] = {}
        for name, upstreams in list(self._upstream.items()):
            for upstream in upstreams:
                self._upstream.setdefault(upstream, ())
                self._downstream.setdefault(upstream, []).append(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Every pipeline, in the order it was given."""
        return tuple(self._upstream)

    def __contains__(self, name: object) -> bool:
        return name in self._upstream

    def upstream(self, name: str) -> tuple[str, ...]:
        """What it waits for, directly."""
        return self._upstream.get(name, ())

    def downstream(self, name: str) -> tuple[str, ...]:
        """What waits for it, directly."""
        return tuple(self._downstream.get(name, ()))

    def all_upstream(self, name: str) -> tuple[str, ...]:
        """Everything it waits for, at any distance, nearest first."""
        return _reached(name, self.upstream)

    def all_downstream(self, name: str) -> tuple[str, ...]:
        """Everything that waits for it, at any distance, nearest first."""
        return _reached(name, self.downstream)

    def order(self, names: Iterable[str]) -> tuple[str, ...]:
        """Some of the pipelines so that upstreams come first; the given order is kept where nothing speaks against it.

        >>> Graph({"report": ["orders"], "orders": [], "stock": []}).order(["stock", "report", "orders"])
        ('stock', 'orders', 'report')
        """
        chosen = list(dict.fromkeys(names))
        place = {name: i for i, name in enumerate(chosen)}
        waits = {name: sum(upstream in place for upstream in self.upstream(name)) for name in chosen}
        ready = [place[name] for name in chosen if not waits[name]]
        found: list[str] = []
        while ready:
            name = chosen[heapq.heappop(ready)]
            found.append(name)
            for waiting in self.downstream(name):
                if waiting in place:
                    waits[waiting] -= 1
                    if not waits[waiting]:
                        heapq.heappush(ready, place[waiting])
        return tuple(found)

    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Layers: every pipeline stands one below the lowest of its upstreams."""
        depth: dict[str, int] = {}
        layers: list[list[str]] = []
        for name in self.order(self.names):
            depth[name] = 1 + max((depth[upstream] for upstream in self.upstream(name)), default=-1)
            if depth[name] == len(layers):
                layers.append([])
            layers[depth[name]].append(name)
        return tuple(map(tuple, layers))


@dataclass(frozen=True)
class Upstream:
    """One upstream as the gate sees it: when it should have run, and how it last did."""

    name: str
    schedule: Schedule | None
    last: LastRun | None


def gate(
    upstreams: Sequence[Upstream], *, slot: datetime, now: datetime, freshness_s: float | None = None
) -> tuple[str, ...]:
    """The upstreams that hold a slot back; none of them means that it may run.

    An upstream holds back when it never ran, when its last run failed, when its last success is older than
    `freshness_s`, and, if it has a schedule, when it has not succeeded for its own latest fire time up to the slot.
    """
    return tuple(upstream.name for upstream in upstreams if _holds_back(upstream, slot, now, freshness_s))


def _holds_back(upstream: Upstream, slot: datetime, now: datetime, freshness_s: float | None) -> bool:
    last = upstream.last
    if last is None or not last.success:
        return True
    succeeded_at = as_utc(last.last_success_at or last.at)
    if freshness_s is not None and as_utc(now) - succeeded_at > timedelta(seconds=freshness_s):
        return True
    expected = upstream.schedule.latest(slot) if upstream.schedule is not None else None
    # A run by hand stands for every time up to its own; where no time is known, for the moment it ended at.
    reached = as_utc(last.last_success_slot) if last.last_success_slot is not None else succeeded_at
    return expected is not None and reached < expected


def _reached(start: str, beside: Callable[[str], Sequence[str]]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    row = list(beside(start))
    while row:
        found.update(dict.fromkeys(row))
        row = [further for name in row for further in beside(name) if further not in found]
    return tuple(found)
