"""Order, layers, gates and triggers of a graph of pipelines."""

from __future__ import annotations

import time
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ematix_flow.contracts.orchestration import LastRun
from ematix_flow.declare.dependencies import find_cycle
from ematix_flow.declare.trigger import AllOf, AnyOf, trigger_met
from ematix_flow.plan.cron import Schedule
from ematix_flow.plan.graph import Graph, Upstream, gate
from tests.plan.cron_model import utc

SHOP = Graph({"report": ["orders", "stock"], "orders": ["raw"], "stock": ["raw"], "raw": [], "mail": ["report"]})


# ── order ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_upstreams_come_first_and_ties_keep_the_given_order() -> None:
    assert SHOP.order(["mail", "stock", "report", "raw", "orders"]) == ("raw", "stock", "orders", "report", "mail")
    assert SHOP.order(["stock", "orders"]) == ("stock", "orders")


def test_edges_to_names_outside_the_subset_are_ignored() -> None:
    assert SHOP.order(["mail", "raw"]) == ("mail", "raw")
    assert SHOP.order(["unheard", "raw"]) == ("unheard", "raw")


def test_neighbours_and_layers() -> None:
    assert SHOP.upstream("report") == ("orders", "stock") and SHOP.downstream("raw") == ("orders", "stock")
    assert SHOP.all_downstream("raw") == ("orders", "stock", "report", "mail")
    assert SHOP.all_upstream("mail") == ("report", "orders", "stock", "raw")
    assert SHOP.levels() == (("raw",), ("orders", "stock"), ("report",), ("mail",))
    assert Graph({}).levels() == ()


def test_names_that_are_only_upstreams_belong_to_the_graph() -> None:
    assert Graph({"b": ["a"]}).levels() == (("a",), ("b",))


def test_a_cycle_is_found_with_its_path() -> None:
    assert find_cycle({"a": ["b"], "b": ["c"], "c": ["b"]}) == ["b", "c", "b"]
    assert find_cycle({"a": ["a"]}) == ["a", "a"]
    assert find_cycle({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}) is None
    with pytest.raises(ValueError, match="cycle: b → c → b"):
        Graph({"a": ["b"], "b": ["c"], "c": ["b"]})


@given(
    edges=st.dictionaries(st.integers(0, 12).map(str), st.lists(st.integers(0, 12).map(str), max_size=3), max_size=13),
    chosen=st.lists(st.integers(0, 12).map(str), unique=True),
)
def test_every_graph_has_a_cycle_or_an_order(edges: dict[str, list[str]], chosen: list[str]) -> None:
    cycle = find_cycle(edges)
    if cycle is not None:
        assert cycle[0] == cycle[-1] and len(cycle) > 1
        assert all(later in edges[earlier] for earlier, later in zip(cycle, cycle[1:], strict=False))
        return
    graph = Graph(edges)
    order = graph.order(chosen)
    assert sorted(order) == sorted(chosen)
    for i, name in enumerate(order):
        assert not set(graph.upstream(name)) & set(order[i + 1 :])
        # Whoever stands in front although it was given later had to: somebody in between waits for it.
        for later in order[i + 1 :]:
            if chosen.index(later) < chosen.index(name):
                assert set(graph.upstream(later)) & set(order[i:]), (name, later)
    assert sorted(name for layer in graph.levels() for name in layer) == sorted(graph.names)


def test_a_long_chain_takes_no_recursion_and_little_time() -> None:
    edges = {str(i): [str(i - 1)] if i else [] for i in range(20_000)}
    began = time.perf_counter()
    assert Graph(edges).order(reversed(list(edges))) == tuple(edges)
    assert time.perf_counter() - began < 2


# ── the gate ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SLOT = utc(2026, 3, 2, 6)
DAILY = Schedule("0 5 * * *")


def held(schedule: Schedule | None, last: LastRun | None, *, freshness_s: float | None = None) -> bool:
    now = SLOT + timedelta(minutes=1)
    return gate([Upstream("up", schedule, last)], slot=SLOT, now=now, freshness_s=freshness_s) == ("up",)


def test_an_upstream_that_never_ran_or_failed_last_holds_back() -> None:
    yesterday = utc(2026, 3, 1, 5)
    assert held(None, None)
    assert held(None, LastRun(SLOT, success=False, last_success_at=yesterday, last_success_slot=yesterday))


def test_an_upstream_without_a_schedule_counts_by_its_last_success_however_old() -> None:
    assert not held(None, LastRun(utc(2025, 1, 1), True, utc(2025, 1, 1)))


def test_a_scheduled_upstream_must_have_succeeded_for_its_own_latest_time() -> None:
    late = LastRun(utc(2026, 3, 1, 5, 2), True, utc(2026, 3, 1, 5, 2), utc(2026, 3, 1, 5))
    assert held(DAILY, late)
    assert not held(DAILY, LastRun(utc(2026, 3, 2, 5, 2), True, utc(2026, 3, 2, 5, 2), utc(2026, 3, 2, 5)))
    # A run by hand stands for every time up to its own; one that ended late for an older time does not.
    by_hand = utc(2026, 3, 2, 5, 30)
    assert not held(DAILY, LastRun(by_hand, True, by_hand, by_hand))
    assert not held(DAILY, LastRun(by_hand, True, by_hand))
    assert held(DAILY, LastRun(by_hand, True, by_hand, utc(2026, 3, 1, 5)))


def test_a_late_success_for_an_early_slot_does_not_open_a_later_one() -> None:
    upstream = Upstream("up", DAILY, LastRun(utc(2026, 3, 2, 4), True, utc(2026, 3, 2, 4), utc(2026, 3, 1, 5)))
    assert gate([upstream], slot=SLOT, now=SLOT, freshness_s=None) == ("up",)
    assert gate([upstream], slot=utc(2026, 3, 1, 6), now=SLOT, freshness_s=None) == ()


def test_success_may_be_only_so_old() -> None:
    fresh = LastRun(SLOT, True, SLOT)
    assert not held(None, fresh, freshness_s=60)
    assert held(None, fresh, freshness_s=59)


def test_the_gate_names_all_that_hold_back() -> None:
    good = LastRun(SLOT, True, SLOT)
    ups = [Upstream("a", None, None), Upstream("b", None, good), Upstream("c", None, None)]
    assert gate(ups, slot=SLOT, now=SLOT) == ("a", "c")
    assert gate([], slot=SLOT, now=SLOT) == ()


# ── triggers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_triggers_are_met_as_they_read() -> None:
    condition = AllOf("orders", AnyOf("eu", AllOf("us", "ca")))
    assert trigger_met(condition, {"orders", "eu"}.__contains__)
    assert trigger_met(condition, {"orders", "us", "ca"}.__contains__)
    assert not trigger_met(condition, {"orders", "us"}.__contains__)
    assert not trigger_met(condition, {"eu"}.__contains__)
    assert trigger_met("orders", {"orders"}.__contains__)
