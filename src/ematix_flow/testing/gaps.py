"""Known gaps of a backend, said in its test class: what it can never do, cannot do yet, or what nobody has built.

A gap is strict: the tests that need the ability still run and must fail. What makes no sense (`never`) must fail with
one clear error of ours, never with wrong rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pytest

from ematix_flow.errors import FlowError

Ability = Literal[
    "append",
    "truncate",
    "merge",
    "scd2",
    "exact_history",
    "incremental",
    "pushdown",
    "keys_enforced",
    "not_null_kept",
    "adds_columns",
    "widens_columns",
    "widens_places",
    "relaxes_not_null",
    "fills_added_columns",
    "sql",
]
"""What a test may ask of a system; each is an attribute of `BackendContract`, None or a `Gap`.

`keys_enforced`: the table itself knows its keys, and refuses what breaks them. `not_null_kept`: it knows which columns
must have a value. `widens_places`: a decimal may get more places behind the point. `fills_added_columns`: rows that
were there get the default of a column that is added. `sql`: people and steps may send it SQL of their own.
"""

_NEEDS = "__flow_needs__"
_Test = TypeVar("_Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Gap:
    """An ability that is missing, and why."""

    kind: Literal["never", "notyet", "notimpl"]
    reason: str

    @property
    def marker(self) -> pytest.MarkDecorator:
        """The strict expectation that a test fails."""
        raises = FlowError if self.kind == "never" else BaseException
        return pytest.mark.xfail(reason=f"{self.kind}: {self.reason}", raises=raises, strict=True)


def never(reason: str) -> Gap:
    """It makes no sense on this system; asking for it must give one clear error."""
    return Gap("never", reason)


def notyet(reason: str) -> Gap:
    """The other system must change first."""
    return Gap("notyet", reason)


def notimpl(reason: str) -> Gap:
    """We could, and have not built it."""
    return Gap("notimpl", reason)


def needs(*abilities: Ability) -> Callable[[_Test], _Test]:
    """Say which abilities a test of the contract uses."""

    def told(test: _Test) -> _Test:
        setattr(test, _NEEDS, abilities)
        return test

    return told


def needed_by(test: Callable[..., Any]) -> Iterable[Ability]:
    """The abilities a test uses."""
    found: tuple[Ability, ...] = getattr(test, _NEEDS, ())
    return found
