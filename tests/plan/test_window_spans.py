"""Windows counted by spans are those that a set of their starts has."""

from __future__ import annotations

from hypothesis import given, strategies as st

from ematix_flow.plan.window_spans import spans_of, starts_after

parts = st.lists(st.sets(st.integers(-20, 20).map(lambda number: 5 * number)), max_size=4)


@given(parts=parts, bound=st.one_of(st.none(), st.integers(-110, 110)))
def test_spans_have_the_starts_that_their_parts_have(parts: list[set[int]], bound: int | None) -> None:
    spans = [span for starts in parts for span in spans_of(starts, 5)]
    every = set().union(*parts)
    assert starts_after(spans, 5, bound) == len({start for start in every if bound is None or start > bound})
    assert all(len(spans_of(starts, 5)) <= len(starts) for starts in parts)


def test_many_windows_in_a_row_are_one_span() -> None:
    assert spans_of(range(0, 1_000_000, 10), 10) == ((0, 999_990),)
