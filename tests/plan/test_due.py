"""What is due: every fire time is run or reported, once, however the clock is looked at."""

from __future__ import annotations

import os
from datetime import datetime, timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ematix_flow.orchestrate.desk import Desk
from ematix_flow.plan.cron import Schedule
from ematix_flow.plan.due import MOST_COUNTED, DueRule, DueSlots, backfill_slots, due_slots
from ematix_flow.run.registered import orchestrated, register
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.testing.registry import isolated_registry
from tests.plan.cron_model import fires, utc
from tests.plan.test_cron import expressions, windows

PROVE = bool(os.environ.get("EMATIX_PROVE"))
EXAMPLES = 400 if PROVE else 80

SIX = Schedule("0 6 * * *")
QUARTERS = Schedule("*/15 * * * *")


def due(rule: DueRule, now: datetime, last: datetime | None, interval_s: float = 60, **more: datetime) -> DueSlots:
    return due_slots(rule, now=now, interval_s=interval_s, last_slot=last, **more)


# ── one look ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fire_time_of_this_interval_is_due_and_a_known_one_is_not() -> None:
    rule = DueRule(SIX)
    assert due(rule, utc(2026, 3, 1, 6, 0, 30), None).slots == (utc(2026, 3, 1, 6),)
    assert due(rule, utc(2026, 3, 1, 6, 0, 30), utc(2026, 3, 1, 6)) == DueSlots()
    assert due(rule, utc(2026, 3, 1, 6, 1), None) == DueSlots()


def test_without_catching_up_what_passed_unseen_is_reported() -> None:
    found = due(DueRule(SIX), utc(2026, 3, 5, 12), utc(2026, 3, 1, 6))
    assert found == DueSlots((), 4, utc(2026, 3, 2, 6), utc(2026, 3, 5, 6))


def test_a_wide_interval_runs_its_latest_time_and_reports_the_others() -> None:
    found = due(DueRule(QUARTERS), utc(2026, 3, 1, 6, 50), utc(2026, 3, 1, 6), interval_s=3600)
    assert found == DueSlots((utc(2026, 3, 1, 6, 45),), 2, utc(2026, 3, 1, 6, 15), utc(2026, 3, 1, 6, 30))


def test_the_latest_is_caught_up_however_old_it_is() -> None:
    found = due(DueRule(SIX, catchup="latest"), utc(2026, 3, 5, 12), utc(2026, 3, 1, 6))
    assert found == DueSlots((utc(2026, 3, 5, 6),), 3, utc(2026, 3, 2, 6), utc(2026, 3, 4, 6))


def test_all_are_caught_up_oldest_first() -> None:
    found = due(DueRule(SIX, catchup="all"), utc(2026, 3, 4, 12), utc(2026, 3, 1, 6))
    assert found == DueSlots((utc(2026, 3, 2, 6), utc(2026, 3, 3, 6), utc(2026, 3, 4, 6)))


def test_catching_up_is_bounded_and_the_newest_count() -> None:
    found = due(DueRule(SIX, catchup="all", max_catchup=2), utc(2026, 3, 5, 12), utc(2026, 3, 1, 6))
    assert found.slots == (utc(2026, 3, 4, 6), utc(2026, 3, 5, 6))
    assert (found.missed, found.missed_from, found.missed_until) == (2, utc(2026, 3, 2, 6), utc(2026, 3, 3, 6))


@pytest.mark.parametrize("catchup", ["none", "latest", "all"])
def test_a_clock_that_went_back_gives_nothing(catchup: str) -> None:
    rule = DueRule(QUARTERS, catchup=catchup)  # type: ignore[arg-type]
    assert due(rule, utc(2026, 3, 1, 5, 30), utc(2026, 3, 1, 6, 30), interval_s=7200) == DueSlots()
    assert due(rule, utc(2026, 3, 1, 6, 30), utc(2026, 3, 1, 6, 30)) == DueSlots()


@pytest.mark.parametrize("catchup", ["none", "latest", "all"])
def test_a_pipeline_nobody_has_seen_has_no_past(catchup: str) -> None:
    rule = DueRule(QUARTERS, catchup=catchup)  # type: ignore[arg-type]
    assert due(rule, utc(2026, 3, 1, 6, 15, 30), None).slots == (utc(2026, 3, 1, 6, 15),)
    assert due(rule, utc(2026, 3, 1, 6, 20), None) == DueSlots()


def test_a_pipeline_that_was_seen_and_never_ran_has_a_past_since_then() -> None:
    seen = utc(2026, 3, 1, 12)
    assert due(DueRule(SIX, catchup="all"), utc(2026, 3, 3, 7), None, first_seen=seen).slots == (
        utc(2026, 3, 2, 6),
        utc(2026, 3, 3, 6),
    )
    assert due(DueRule(SIX), utc(2026, 3, 3, 7), None, first_seen=seen).missed == 2
    # Seen for the first time just after its time: still of this interval.
    assert due(DueRule(SIX), utc(2026, 3, 1, 6, 0, 10), None, first_seen=utc(2026, 3, 1, 6, 0, 10)).slots


def test_nothing_is_missed_of_the_time_before_a_pipeline_was_first_seen() -> None:
    now = utc(2026, 3, 1, 6, 50)
    found = due(DueRule(QUARTERS), now, None, interval_s=3600, first_seen=now)
    assert found == DueSlots((utc(2026, 3, 1, 6, 45),))
    found = due(DueRule(QUARTERS), now, None, interval_s=3600, first_seen=utc(2026, 3, 1, 6, 20))
    assert (found.slots, found.missed_from, found.missed) == ((utc(2026, 3, 1, 6, 45),), utc(2026, 3, 1, 6, 30), 1)


def test_a_year_of_missed_minutes_is_not_counted_out() -> None:
    found = due(DueRule(Schedule("* * * * *")), utc(2027, 3, 1), utc(2026, 3, 1))
    assert found.slots == (utc(2027, 3, 1),) and found.missed == MOST_COUNTED
    assert (found.missed_from, found.missed_until) == (utc(2026, 3, 1, 0, 1), utc(2027, 2, 28, 23, 59))


def test_a_backfill_includes_its_beginning_and_not_its_end() -> None:
    assert backfill_slots(SIX, utc(2026, 3, 1, 6), utc(2026, 3, 3, 6)) == (utc(2026, 3, 1, 6), utc(2026, 3, 2, 6))
    assert backfill_slots(SIX, utc(2026, 3, 3), utc(2026, 3, 1)) == ()


# ── years of looks ───────────────────────────────────────────────────────────────────────────────────────────────────


def naive(
    times: list[datetime], rule: DueRule, now: datetime, interval_s: float, last: datetime | None
) -> tuple[list[datetime], list[datetime]]:
    """What to run and what is missed, from the list of all fire times."""
    window = now - timedelta(seconds=interval_s)
    unseen = [t for t in times if (window if last is None else last) < t <= now]
    if rule.catchup == "all":
        return unseen[-rule.max_catchup :], unseen[: -rule.max_catchup]
    if rule.catchup == "latest":
        return unseen[-1:], unseen[:-1]
    recent = [t for t in unseen if t > window][-1:]
    return recent, [t for t in unseen if t not in recent]


@given(
    expression=expressions,
    window=windows(),
    catchup=st.sampled_from(["none", "latest", "all"]),
    max_catchup=st.integers(1, 20),
    interval_s=st.sampled_from([10, 60, 60, 3600]),
    data=st.data(),
)
@settings(max_examples=EXAMPLES)
def test_whenever_somebody_looks_every_time_is_run_or_reported_and_none_twice(
    expression: str,
    window: tuple[str, datetime, datetime],
    catchup: str,
    max_catchup: int,
    interval_s: int,
    data: st.DataObject,
) -> None:
    zone, start, end = window
    rule = DueRule(Schedule(expression, zone), catchup, max_catchup)  # type: ignore[arg-type]
    times = fires(expression, zone, start - timedelta(hours=2), end)
    now, last, accounted = start, None, []
    for _ in range(data.draw(st.integers(1, 12), label="looks")):
        # Usually the next look; now and then nobody looks for a while, or the clock is set back.
        pause = data.draw(
            st.sampled_from([interval_s, interval_s, interval_s * 1.5, 5400, 86_400, 2_600_000, -1800]), label="s"
        )
        now = min(now + timedelta(seconds=pause), end)
        found = due(rule, now, last, interval_s)
        run, missed = naive(times, rule, now, interval_s, last)
        assert list(found.slots) == run
        assert found.missed == min(len(missed), MOST_COUNTED)
        if missed:
            assert (found.missed_from, found.missed_until) == (missed[0], missed[-1])
        if run:
            accounted += sorted(missed + run)
            last = run[-1]
    assert len(accounted) == len(set(accounted))
    if last is not None:
        assert accounted == [t for t in times if accounted[0] <= t <= last]


@given(
    expression=expressions,
    window=windows(),
    catchup=st.sampled_from(["none", "latest", "all"]),
    interval_s=st.sampled_from([10, 60, 60, 3600]),
    data=st.data(),
)
@settings(max_examples=EXAMPLES)
def test_whoever_looks_finds_a_slot_or_a_report_for_every_time_since_the_first_look(
    expression: str, window: tuple[str, datetime, datetime], catchup: str, interval_s: int, data: st.DataObject
) -> None:
    """The same over a run log: what it remembers is enough that no time is lost, the very first one included."""
    zone, start, end = window
    store = InMemoryRunLog()
    with isolated_registry():
        register(name="p", schedule=expression, timezone=zone, catchup=catchup, max_catchup=20)(lambda: None)
        entries = orchestrated()
    now, looked, reported = start, [start], []
    for step in range(data.draw(st.integers(2, 10), label="looks")):
        pause = data.draw(st.sampled_from([interval_s, interval_s * 1.5, 5400, 86_400, 2_600_000, -1800]), label="s")
        now = min(now + timedelta(seconds=pause if step else 0), end)
        looked.append(now)
        reported += Desk(entries, store).write_down_due(now, interval_s)  # each look is another process's
    slots = [slot.at for slot in store.slots("p", limit=100_000)]
    times = fires(expression, zone, start - timedelta(hours=2), end)
    for t in times:
        if start < t <= max(looked):
            assert t in slots or any(one.first <= t <= one.last for one in reported), t
    just_before = [t for t in times if start - timedelta(seconds=interval_s) < t <= start]
    assert not just_before or just_before[-1] in slots, "it is of the first interval"
    # A clock that is set back has somebody look at a time before the first look.
    assert all(one.first > min(looked) for one in reported), "what nobody knew of was not missed"
    store.close()


def test_the_first_time_of_a_monthly_pipeline_is_not_lost_when_nobody_looks_at_it() -> None:
    for catchup, slots, missed in (("all", [utc(2026, 5, 1, 6)], 0), ("none", [], 1)):
        store = InMemoryRunLog()
        with isolated_registry():
            register(name="p", schedule="0 6 1 * *", catchup=catchup)(lambda: None)
            entries = orchestrated()
        reported = []
        for day in range(2, 31):
            reported += Desk(entries, store).write_down_due(utc(2026, 4, day, 12), 60)
        assert (store.slots("p"), reported) == ([], [])
        reported += Desk(entries, store).write_down_due(utc(2026, 5, 1, 9), 60)
        assert [slot.at for slot in store.slots("p")] == slots
        assert [one.count for one in reported] == [missed] * bool(missed)
        store.close()
