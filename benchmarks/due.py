"""Deciding what is due: 1,000 pipelines with 5,000 edges, their slots, gates and order, without a store.

Run it with `python benchmarks/due.py`. Every round is a fresh look at another minute, so that nothing is remembered
from the one before; `--away` says how many hours nobody had looked.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from datetime import datetime, timedelta, timezone

from ematix_flow.contracts.orchestration import LastRun
from ematix_flow.declare import registry
from ematix_flow.declare.dependencies import check_graph
from ematix_flow.plan.due import due_slots
from ematix_flow.plan.graph import Graph, Upstream, gate
from ematix_flow.run.registered import Orchestrated, orchestrated, register

SCHEDULES = (
    "*/5 * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "30 1 * * *",
    "0 6 * * MON-FRI",
    "0 0 L * *",
    "*/10 8-18 * * *",
)
ZONES = (None, "Europe/Berlin", "America/New_York", "Australia/Sydney")


def main() -> int:
    """Measure, print one line per part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pipelines", type=int, default=1000)
    parser.add_argument("--edges", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--away", type=float, default=0, help="hours since anybody looked")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    chance = random.Random(8)
    with registry.isolated():
        began = time.perf_counter()
        declare(options.pipelines, options.edges, chance)
        declared = time.perf_counter()
        check_graph()
        entries = orchestrated()
        seconds = {"declare": declared - began, "check and collect": time.perf_counter() - declared}
        rounds = [decide(entries, chance, options.away) for _ in range(options.rounds)]
    for part in ("slots", "gates", "order"):
        seconds[part] = statistics.median(one[part] for one in rounds)
    seconds["decide"] = statistics.median(sum(one.values()) for one in rounds)
    if options.json:
        print(json.dumps({name: round(value, 4) for name, value in seconds.items()}))
    else:
        for name, value in seconds.items():
            sys.stdout.write(f"{name:<18} {value * 1000:8.1f} ms\n")
    return 0


def declare(pipelines: int, edges: int, chance: random.Random) -> None:
    """Pipelines that wait for earlier ones, with schedules in several zones."""
    upstreams: list[set[int]] = [set() for _ in range(pipelines)]
    drawn = 0
    while drawn < edges:
        name = chance.randrange(1, pipelines)
        upstream = chance.randrange(name)
        if upstream not in upstreams[name]:
            upstreams[name].add(upstream)
            drawn += 1
    for number, above in enumerate(upstreams):
        register(
            name=f"p{number}",
            schedule=SCHEDULES[number % len(SCHEDULES)],
            timezone=ZONES[number % len(ZONES)],
            depends_on=[f"p{upstream}" for upstream in sorted(above)],
        )(lambda: {})


def decide(entries: tuple[Orchestrated, ...], chance: random.Random, away_h: float) -> dict[str, float]:
    """One look at a random minute: what is due, what may run, in which order. Seconds of each part."""
    now = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=chance.randrange(525_600))
    looked = now - timedelta(hours=away_h, minutes=1)
    began = time.perf_counter()
    slots: dict[str, datetime] = {}
    for entry in entries:
        assert entry.due is not None
        found = due_slots(entry.due, now=now, interval_s=60, last_slot=looked if away_h else None)
        # Everything is treated as due, so that every gate is asked.
        slots[entry.name] = found.slots[-1] if found.slots else now
    with_slots = time.perf_counter()
    by_name = {entry.name: entry for entry in entries}
    last = LastRun(now, True, now - timedelta(minutes=7), now - timedelta(minutes=10))
    for entry in entries:
        above = [Upstream(name, due.schedule if (due := by_name[name].due) else None, last) for name in entry.upstreams]
        gate(above, slot=slots[entry.name], now=now)
    with_gates = time.perf_counter()
    order = Graph({entry.name: entry.upstreams for entry in entries}).order(slots)
    assert len(order) == len(entries)
    return {
        "slots": with_slots - began,
        "gates": with_gates - with_slots,
        "order": time.perf_counter() - with_gates,
    }


if __name__ == "__main__":
    raise SystemExit(main())
