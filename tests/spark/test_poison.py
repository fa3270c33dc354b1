"""Finding the few units that spoil the rest: exactly those, in few tries."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from ematix_flow.errors import ConnectionFailed, EngineFailed, FlowError, StepFailed, UnfitValue
from ematix_flow.spark.poison import Tries, blames_rows, clashing, poison, refused


@given(st.lists(st.booleans(), max_size=60))
def test_exactly_the_bad_units_are_found(is_bad: list[bool]) -> None:
    bad = {number for number, wrong in enumerate(is_bad) if wrong}

    def tried(some: Sequence[int]) -> FlowError | None:
        return UnfitValue("no") if bad & set(some) else None

    assert set(poison(range(len(is_bad)), tried)) == bad


@given(st.lists(st.integers(0, 9), max_size=40))
def test_of_units_that_only_clash_with_each_other_the_first_stays(keys: list[int]) -> None:
    def tried(some: Sequence[int]) -> FlowError | None:
        chosen = [keys[number] for number in some]
        return UnfitValue("twice") if len(set(chosen)) < len(chosen) else None

    again = {number for number, key in enumerate(keys) if key in keys[:number]}
    assert set(poison(range(len(keys)), tried)) == again


def test_one_bad_unit_among_a_thousand_takes_few_tries() -> None:
    tries: list[int] = []

    def tried(some: Sequence[int]) -> FlowError | None:
        tries.append(len(some))
        return UnfitValue("no") if 700 in some else None

    assert set(poison(range(1000), tried)) == {700}
    assert len(tries) <= 25


@given(st.lists(st.booleans(), min_size=2, max_size=60))
def test_by_halves_exactly_the_bad_units_are_found_too(is_bad: list[bool]) -> None:
    bad = {number for number, wrong in enumerate(is_bad) if wrong}
    said = {number: UnfitValue(f"no. {number}") for number in bad}

    def tried(some: Sequence[int]) -> FlowError | None:
        return next((said[number] for number in some if number in bad), None)

    whole = tried(range(len(is_bad)))
    found = refused(range(len(is_bad)), Tries(tried, 1_000), whole or UnfitValue("they clash"))
    assert (found.refused, found.unknown) == (said, [])


def test_many_bad_units_spread_over_a_large_whole_cost_a_small_multiple_of_it() -> None:
    bad, written = set(range(25, 50_000, 500)), [0, 0]

    def tried(some: Sequence[int]) -> FlowError | None:
        written[0] += 1
        written[1] += len(some)
        return UnfitValue("no") if bad & set(some) else None

    assert set(refused(range(50_000), Tries(tried, 10_000), UnfitValue("no")).refused) == bad
    assert written[0] < 16 * len(bad)
    assert written[1] < 10 * 50_000


@pytest.mark.parametrize("search", ["refused", "clashing"])
def test_when_tries_are_used_up_only_what_was_found_is_called_bad(search: str) -> None:
    asked: list[int] = []

    def tried(some: Sequence[int]) -> FlowError | None:
        asked.append(len(some))
        return UnfitValue("no") if any(number % 10 == 3 for number in some) else None

    tries = Tries(tried, 40)
    units = range(1_000)
    found = refused(units, tries, UnfitValue("no")) if search == "refused" else clashing(units, tries)
    assert found.refused and all(number % 10 == 3 for number in found.refused)
    known = {*found.refused, *found.unknown}
    assert all(number in known for number in units if number % 10 == 3)
    assert len(asked) <= 42


def test_a_target_that_is_away_is_no_row_s_fault() -> None:
    assert blames_rows(UnfitValue("too long"))
    assert not blames_rows(ConnectionFailed("away"))
    refused, broken = StepFailed("A raise_error() of the query stopped it."), StepFailed("Python code raised.")
    refused.__cause__, broken.__cause__ = RuntimeError("[USER_RAISED_EXCEPTION] odd"), RuntimeError("Traceback")
    assert blames_rows(refused)
    assert not blames_rows(broken)
    zero, memory = EngineFailed("Spark failed: Division by zero."), EngineFailed("out of memory")
    zero.__cause__, memory.__cause__ = RuntimeError("[DIVIDE_BY_ZERO] Division by zero."), RuntimeError("heap")
    assert blames_rows(zero)
    assert not blames_rows(memory)
