"""Finding the few units that spoil the rest: exactly those, in few tries."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, strategies as st

from ematix_flow.errors import ConnectionFailed, EngineFailed, FlowError, StepFailed, UnfitValue
from ematix_flow.spark.poison import blames_rows, poison


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


def test_after_too_many_all_that_is_left_counts_as_bad() -> None:
    found = poison(range(100), lambda some: UnfitValue("no") if any(n >= 10 for n in some) else None, most=3)
    assert set(found) == set(range(10, 100))


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
