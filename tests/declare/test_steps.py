"""Row steps as they are written."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ematix_flow import normalize, transforms
from ematix_flow.declare.steps import DeduplicateBy, OrderTerm, deduplicate_by, filter_where, limit, sample_pct
from ematix_flow.errors import InvalidDeclaration


def test_both_spellings_of_deduplicate_by_mean_the_same() -> None:
    assert deduplicate_by("a", "b", order_by="t desc") == deduplicate_by(keys=("a", "b"), order_by=["t desc"])


def test_both_documented_modules_offer_the_steps() -> None:
    for name in ("deduplicate_by", "filter_where", "limit", "sample_pct"):
        assert getattr(normalize, name) is getattr(transforms, name)


@pytest.mark.parametrize(
    ("written", "terms"),
    [
        ("t", [OrderTerm("t")]),
        ("t DESC", [OrderTerm("t", True)]),
        ("t desc nulls first, id asc NULLS LAST", [OrderTerm("t", True, True), OrderTerm("id")]),
        ('"a ""b"", c" desc , zähler', [OrderTerm('a "b", c', True), OrderTerm("zähler")]),
        (["t desc", "id"], [OrderTerm("t", True), OrderTerm("id")]),
        ("desc desc", [OrderTerm("desc", True)]),
    ],
)
def test_an_order_is_read_when_declared(written: Any, terms: list[OrderTerm]) -> None:
    step = deduplicate_by("k", order_by=written)
    assert isinstance(step, DeduplicateBy)
    assert step.order_by == tuple(terms)


@pytest.mark.parametrize("written", ["", "lower(t)", "t desc;", "t,", "t sideways", "1", [], [3], "t nulls", "a b c"])
def test_an_order_that_cannot_be_read_is_refused(written: Any) -> None:
    with pytest.raises(InvalidDeclaration, match="order_by"):
        deduplicate_by("k", order_by=written)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: deduplicate_by(), "at least one key"),
        (lambda: deduplicate_by(keys=()), "at least one key"),
        (lambda: deduplicate_by("a", keys=("b",)), "once"),
        (lambda: deduplicate_by("a", "a"), "twice"),
        (lambda: deduplicate_by(3), "not a column name"),  # type: ignore[arg-type]
        (lambda: filter_where("  ; "), "condition is needed"),
        (lambda: limit(-1), "0 or more"),
        (lambda: limit(True), "0 or more"),
        (lambda: sample_pct(10), "0.1 keeps a tenth"),
        (lambda: sample_pct(-0.1), "between 0 and 1"),
    ],
)
def test_wrong_arguments_are_value_errors(make: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        make()
    assert isinstance(caught.value, InvalidDeclaration)


def test_steps_show_how_they_were_written() -> None:
    shown = [deduplicate_by("a", order_by="t desc"), filter_where("x > 1;"), limit(5), sample_pct(0.5)]
    assert [repr(step) for step in shown] == [
        "deduplicate_by('a', order_by='t desc')",
        "filter_where('x > 1')",
        "limit(5)",
        "sample_pct(0.5)",
    ]
