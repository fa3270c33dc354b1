"""Conditions of a workflow: nesting, names, and what is refused."""

from __future__ import annotations

import pytest

from ematix_flow.declare.trigger import AllOf, AnyOf, TriggerOp
from ematix_flow.errors import DeclarationError, InvalidDeclaration, WrongDeclarationType


def test_members_and_kind_are_kept_in_order() -> None:
    nested = AnyOf("eu", "us")
    both = AllOf("orders", nested)
    assert both.kind == "all" and nested.kind == "any"
    assert both.members == ("orders", nested)
    assert isinstance(both, TriggerOp) and isinstance(nested, TriggerOp)


def test_leaves_are_every_name_once_in_order_of_first_mention() -> None:
    deep = AnyOf(AllOf("b", "a"), AllOf("a", AnyOf("c", "b")), "d")
    assert deep.leaves() == ("b", "a", "c", "d")


def test_equal_conditions_are_equal_and_can_be_kept_in_a_set() -> None:
    assert AllOf("a", AnyOf("b")) == AllOf("a", AnyOf("b"))
    conditions: list[TriggerOp] = [AllOf("a"), AnyOf("a")]
    assert conditions[0] != conditions[1]
    assert len({AllOf("a"), AllOf("a"), AnyOf("a")}) == 2
    assert repr(AllOf("a", AnyOf("b"))) == "AllOf('a', AnyOf('b'))"


def test_conditions_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        AllOf("a").members = ("b",)  # type: ignore[misc]


@pytest.mark.parametrize("op", [AllOf, AnyOf])
@pytest.mark.parametrize(
    ("members", "said"),
    [
        ((), "is empty"),
        (("a", "b", "a"), "'a' twice"),
        ((AnyOf("a"), AnyOf("a")), "twice"),
        ((1,), "not int"),
        ((None,), "not NoneType"),
        ((["a", "b"],), "not list"),
        (("",), "empty name"),
    ],
    ids=["no member", "a name twice", "a condition twice", "a number", "None", "a list", "an empty name"],
)
def test_what_no_clockwork_can_wait_for_is_a_value_error(op, members, said: str) -> None:
    with pytest.raises(InvalidDeclaration, match=said) as caught:
        op(*members)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, DeclarationError)
    assert op.__name__ in str(caught.value)


def test_the_same_name_may_stand_on_two_levels() -> None:
    assert AllOf("a", AnyOf("a", "b")).leaves() == ("a", "b")


def test_a_list_is_answered_with_how_to_spread_it() -> None:
    with pytest.raises(InvalidDeclaration) as caught:
        AnyOf(["a", "b"])  # type: ignore[arg-type]
    assert caught.value.fix == "spread a list with AnyOf(*names)"


def test_the_base_itself_joins_nothing() -> None:
    with pytest.raises(WrongDeclarationType, match="TriggerOp"):
        TriggerOp("a")
