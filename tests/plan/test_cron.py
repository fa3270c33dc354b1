"""When cron expressions fire: syntax, windows, and the weeks in which clocks change."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from itertools import islice
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ematix_flow.errors import InvalidDeclaration
from ematix_flow.plan.cron import Schedule, forecast_next_run, is_due, matched_fire_time
from tests.plan.cron_model import fires, utc

PROVE = bool(os.environ.get("EMATIX_PROVE"))
EXAMPLES = 400 if PROVE else 80
DAYS = 370 if PROVE else 3

# Where clocks change, how, and the first instant after it: forward and back in 2026, and zones that never do.
CHANGES = {
    "America/New_York": (utc(2026, 3, 8, 7), utc(2026, 11, 1, 6)),
    "Europe/Berlin": (utc(2026, 3, 29, 1), utc(2026, 10, 25, 1)),
    "Europe/London": (utc(2026, 3, 29, 1), utc(2026, 10, 25, 1)),
    "Australia/Sydney": (utc(2026, 10, 3, 16), utc(2026, 4, 4, 16)),
    "Australia/Lord_Howe": (utc(2026, 10, 3, 15, 30), utc(2026, 4, 4, 15)),
}
NO_CHANGE = ("Asia/Kathmandu", "America/Sao_Paulo", "UTC")
ZONES = (*CHANGES, *NO_CHANGE)


def local_times(schedule: Schedule, day: datetime, *, hours: int = 24) -> list[str]:
    """Fire times of a few hours around an instant, as the clock on the wall shows them."""
    zone = ZoneInfo(schedule.timezone or "UTC")
    around = schedule.between(day - timedelta(hours=hours), day + timedelta(hours=hours))
    return [t.astimezone(zone).strftime("%d %H:%M%z") for t in around]


# ── explicit weeks ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_time_that_is_left_out_runs_once_right_after_the_gap() -> None:
    forward, _ = CHANGES["America/New_York"]
    assert local_times(Schedule("30 2 * * *", "America/New_York"), forward, hours=30) == [
        "07 02:30-0500",
        "08 03:00-0400",
        "09 02:30-0400",
    ]


def test_a_time_that_is_left_out_may_be_skipped() -> None:
    forward, _ = CHANGES["America/New_York"]
    schedule = Schedule("30 2 * * *", "America/New_York", missing_hour="skip")
    assert local_times(schedule, forward, hours=30) == ["07 02:30-0500", "09 02:30-0400"]


def test_several_times_that_are_left_out_are_one_run_after_the_gap() -> None:
    forward, _ = CHANGES["Europe/Berlin"]
    schedule = Schedule("*/20 2,3 * * *", "Europe/Berlin")
    assert local_times(schedule, forward, hours=4) == ["29 03:00+0200", "29 03:20+0200", "29 03:40+0200"]


def test_a_time_that_comes_twice_runs_the_first_time() -> None:
    _, back = CHANGES["America/New_York"]
    schedule = Schedule("30 1 * * *", "America/New_York")
    assert local_times(schedule, back, hours=30) == ["31 01:30-0400", "01 01:30-0400", "02 01:30-0500"]


def test_a_time_that_comes_twice_may_run_twice() -> None:
    _, back = CHANGES["America/New_York"]
    schedule = Schedule("15,45 1 * * *", "America/New_York", repeated_hour="twice")
    assert local_times(schedule, back, hours=4) == ["01 01:15-0400", "01 01:45-0400", "01 01:15-0500", "01 01:45-0500"]


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("edge", [0, 1], ids=["forward", "back"])
def test_quarters_are_quarters_of_real_time_across_both_changes(zone: str, edge: int) -> None:
    change = CHANGES[zone][edge]
    found = list(Schedule("*/15 * * * *", zone).between(change - timedelta(days=1), change + timedelta(days=1)))
    assert len(found) == 2 * 96
    assert {later - earlier for earlier, later in zip(found, found[1:], strict=False)} == {timedelta(minutes=15)}


@pytest.mark.parametrize("zone", [zone for zone in ZONES if zone != "Australia/Lord_Howe"])
@pytest.mark.parametrize("edge", [0, 1], ids=["forward", "back"])
def test_an_hourly_schedule_runs_once_per_real_hour(zone: str, edge: int) -> None:
    change = CHANGES.get(zone, CHANGES["Europe/Berlin"])[edge]
    found = list(Schedule("@hourly", zone).between(change - timedelta(days=1), change + timedelta(days=1)))
    assert len(found) == 48
    assert {later - earlier for earlier, later in zip(found, found[1:], strict=False)} == {timedelta(hours=1)}


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("edge", [0, 1], ids=["forward", "back"])
def test_the_week_of_every_change_is_what_the_clock_on_the_wall_says(zone: str, edge: int) -> None:
    change = CHANGES.get(zone, CHANGES["Europe/Berlin"])[edge]
    after, until = change - timedelta(days=3), change + timedelta(days=4)
    for expression in ("30 1 * * *", "45 1,2 * * *", "*/10 0-4 * * *", "0 */2 * * *", "0 * * * *", "59 23 * * SUN"):
        for repeated, missing in (("once", "shift"), ("twice", "skip"), ("once", "skip"), ("twice", "shift")):
            schedule = Schedule(expression, zone, repeated_hour=repeated, missing_hour=missing)  # type: ignore[arg-type]
            expected = fires(expression, zone, after, until, repeated=repeated, missing=missing)
            assert list(schedule.between(after, until)) == expected, (expression, repeated, missing)


@pytest.mark.parametrize("zone", CHANGES)
def test_a_daily_run_happens_once_on_every_day_of_twenty_years(zone: str) -> None:
    for expression in ("30 1 * * *", "15 2 * * *", "0 0 * * *"):
        found = list(Schedule(expression, zone).between(utc(2010, 1, 1), utc(2030, 1, 1)))
        days = [t.astimezone(ZoneInfo(zone)).date() for t in found]
        assert len(days) == len(set(days)) == 20 * 365 + 5


def test_a_day_that_a_country_left_out_is_made_up_for_at_once() -> None:
    # Samoa went from 29 to 31 December 2011.
    schedule = Schedule("0 9 * * *", "Pacific/Apia")
    assert local_times(schedule, utc(2011, 12, 30, 10), hours=30) == [
        "29 09:00-1000",
        "31 00:00+1400",
        "31 09:00+1400",
    ]


# ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────────


def field(least: int, most: int) -> st.SearchStrategy[str]:
    value = st.integers(least, most)
    span = st.tuples(value, value).map(sorted).map(lambda pair: f"{pair[0]}-{pair[1]}")
    stepped = st.tuples(st.one_of(st.just("*"), span), st.integers(1, most - least)).map(lambda p: f"{p[0]}/{p[1]}")
    part = st.one_of(value.map(str), span, stepped)
    return st.one_of(st.just("*"), part, st.lists(part, min_size=2, max_size=3).map(",".join))


weekdays = st.one_of(
    st.just("*"),
    st.just("*"),
    field(0, 6),
    st.sampled_from(["7", "MON-FRI", "sun", "SAT,SUN", "5#1", "0#5", "3#2"]),
)
days = st.one_of(st.just("*"), st.just("*"), field(1, 28), st.sampled_from(["L", "31", "29-31"]))
months = st.one_of(st.just("*"), st.just("*"), field(1, 12), st.sampled_from(["MAR,apr,OCT,NOV"]))
hours = st.one_of(field(0, 23), st.sampled_from(["1", "2", "1-3", "0,1", "*/2"]))


def comes(expression: str) -> bool:
    """Not the 31st of a month that has 30 days."""
    try:
        Schedule(expression)
    except InvalidDeclaration:
        return False
    return True


expressions = st.tuples(field(0, 59), hours, days, months, weekdays).map(" ".join).filter(comes)


@st.composite
def windows(draw: st.DrawFn) -> tuple[str, datetime, datetime]:
    """A zone and a few days, often those in which its clock changes."""
    zone = draw(st.sampled_from(ZONES))
    if zone in CHANGES and draw(st.booleans()):
        start = draw(st.sampled_from(CHANGES[zone])) - timedelta(minutes=draw(st.integers(0, 48 * 60)))
    else:
        start = utc(2000, 1, 1) + timedelta(minutes=draw(st.integers(0, 35 * 365 * 1440)))
    return zone, start, start + timedelta(minutes=draw(st.sampled_from([47, 1440, DAYS * 1440])))


@given(
    expression=expressions,
    window=windows(),
    repeated=st.sampled_from(["once", "twice"]),
    missing=st.sampled_from(["shift", "skip"]),
)
@settings(max_examples=EXAMPLES)
def test_every_schedule_fires_when_a_walk_through_every_minute_says(
    expression: str, window: tuple[str, datetime, datetime], repeated: str, missing: str
) -> None:
    zone, after, until = window
    expected = fires(expression, zone, after, until, repeated=repeated, missing=missing)
    schedule = Schedule(expression, zone, repeated_hour=repeated, missing_hour=missing)  # type: ignore[arg-type]
    assert list(schedule.between(after, until)) == expected
    # Backwards it is the same times, and single questions have the same answers.
    back = []
    for instant in schedule.before(until):
        if instant <= after:
            break
        back.append(instant)
    assert back[::-1] == expected
    if expected:
        assert schedule.next_after(after) == expected[0]
        assert schedule.latest(until) == expected[-1]
        assert schedule.latest(expected[-1] - timedelta(microseconds=1)) in (*expected[-2:-1], schedule.latest(after))


# ── syntax ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("expression", "first", "second"),
    [
        ("*/5 * * * *", "2026-03-01T00:05", "2026-03-01T00:10"),
        ("0 9 * * MON-fri", "2026-03-02T09:00", "2026-03-03T09:00"),
        ("0 0 1 jan *", "2027-01-01T00:00", "2028-01-01T00:00"),
        ("0 0 * * 0", "2026-03-08T00:00", "2026-03-15T00:00"),
        ("0 0 * * 7", "2026-03-08T00:00", "2026-03-15T00:00"),
        ("0 0 L * *", "2026-03-31T00:00", "2026-04-30T00:00"),
        ("0 0 * * 5#1", "2026-03-06T00:00", "2026-04-03T00:00"),
        ("0 0 L * 5#1", "2026-03-06T00:00", "2026-03-31T00:00"),
        ("0 0 13 * FRI", "2026-03-06T00:00", "2026-03-13T00:00"),
        ("0 22-1 * * *", "2026-03-01T01:00", "2026-03-01T22:00"),
        ("* * * * * 30", "2026-03-01T00:00:30", "2026-03-01T00:01:30"),
        ("0 0 1 1 * 0 2030", "2030-01-01T00:00", None),
        ("0 0 29 2 *", "2028-02-29T00:00", "2032-02-29T00:00"),
        ("@hourly", "2026-03-01T01:00", "2026-03-01T02:00"),
        ("@daily", "2026-03-02T00:00", "2026-03-03T00:00"),
        ("@midnight", "2026-03-02T00:00", "2026-03-03T00:00"),
        ("@weekly", "2026-03-08T00:00", "2026-03-15T00:00"),
        ("@monthly", "2026-04-01T00:00", "2026-05-01T00:00"),
        ("@yearly", "2027-01-01T00:00", "2028-01-01T00:00"),
        ("@annually", "2027-01-01T00:00", "2028-01-01T00:00"),
    ],
)
def test_the_syntax(expression: str, first: str, second: str | None) -> None:
    found = list(islice(Schedule(expression).between(utc(2026, 3, 1), utc(2040, 1, 1)), 2))
    expected = [datetime.fromisoformat(text).replace(tzinfo=timezone.utc) for text in (first, second) if text]
    assert found == expected


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "61 * * * *",
        "@reboot",
        "@every 5m",
        "H * * * *",
        "R * * * *",
        "0 0 15W * *",
        "0 0 30 2 *",
        "often",
    ],
)
def test_what_no_clock_can_follow_is_a_value_error_that_quotes_it(expression: str) -> None:
    for call in (
        lambda: Schedule(expression),
        lambda: is_due(expression, utc(2026, 1, 1), 60),
        lambda: matched_fire_time(expression, utc(2026, 1, 1), 60),
        lambda: forecast_next_run(expression, now=utc(2026, 1, 1)),
    ):
        with pytest.raises(InvalidDeclaration) as caught:
            call()
        assert isinstance(caught.value, ValueError) and repr(expression) in str(caught.value)


def test_a_zone_that_does_not_exist_is_a_value_error_that_quotes_it() -> None:
    with pytest.raises(ValueError, match="Mars/Olympus"):
        Schedule("@daily", "Mars/Olympus")


# ── questions with a window ──────────────────────────────────────────────────────────────────────────────────────────


def test_the_window_is_open_at_its_beginning_and_closed_at_now() -> None:
    nine = utc(2026, 3, 1, 9)
    assert is_due("0 9 * * *", nine, 60)
    assert is_due("0 9 * * *", nine + timedelta(seconds=59.999), 60)
    assert not is_due("0 9 * * *", nine + timedelta(seconds=60), 60)
    assert not is_due("0 9 * * *", nine - timedelta(microseconds=1), 60)


def test_polling_every_interval_sees_every_time_once() -> None:
    start = utc(2026, 3, 1, 0, 0, 17)
    seen = [matched_fire_time("*/7 * * * *", start + i * timedelta(seconds=45), 45) for i in range(2000)]
    found = [t for t in seen if t is not None]
    assert found == list(
        Schedule("*/7 * * * *").between(start - timedelta(seconds=45), start + 1999 * timedelta(seconds=45))
    )


def test_the_first_time_of_a_wide_window_is_matched() -> None:
    assert matched_fire_time("*/10 * * * *", utc(2026, 3, 1, 9, 5), 3600) == utc(2026, 3, 1, 8, 10)


def test_without_a_zone_the_clock_is_utc_whatever_the_offset_of_now() -> None:
    now = datetime.fromisoformat("2026-11-16T04:00:30-05:00")
    assert is_due("0 9 * * *", now, 60) and not is_due("0 4 * * *", now, 60)
    assert is_due("0 4 * * *", now, 60, tz="America/New_York")
    assert is_due("0 4 * * *", now, 60, tz=ZoneInfo("America/New_York"))


def test_without_a_schedule_nothing_is_ever_due() -> None:
    assert not is_due(None, utc(2026, 1, 1), 1e9)
    assert matched_fire_time(None, utc(2026, 1, 1), 1e9) is None
    assert forecast_next_run(None, now=utc(2026, 1, 1)) is None


def test_the_forecast_is_strictly_later_and_in_utc() -> None:
    assert forecast_next_run("0 9 * * *", now=utc(2026, 3, 1, 9)) == utc(2026, 3, 2, 9)
    berlin = forecast_next_run("0 9 * * *", now=utc(2026, 7, 1), timezone="Europe/Berlin")
    assert berlin == utc(2026, 7, 1, 7) and berlin is not None and berlin.tzinfo is timezone.utc
