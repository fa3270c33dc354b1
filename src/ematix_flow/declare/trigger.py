"""What a workflow waits for: names of pipelines and workflows, joined by "all of" and "any of", at any depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Union

from ematix_flow.errors import InvalidDeclaration, WrongDeclarationType

TriggerKind = Literal["all", "any"]
Member = Union[str, "TriggerOp"]


@dataclass(frozen=True, init=False, repr=False)
class TriggerOp:
    """The base of `AllOf` and `AnyOf`: members, each a name or another such condition.

    Raises:
        InvalidDeclaration: (a ValueError) no member, the same member twice on one level, an empty name, or a member
            that is neither a name nor a condition.
    """

    kind: ClassVar[TriggerKind]
    members: tuple[Member, ...]

    def __init__(self, *members: Member) -> None:
        name = type(self).__name__
        if not hasattr(self, "kind"):
            raise WrongDeclarationType(f"{name} alone does not join anything.", fix="use AllOf(...) or AnyOf(...)")
        if not members:
            raise InvalidDeclaration(f"{name}() is empty.", fix=f'name at least one upstream: {name}("orders")')
        seen: list[Member] = []
        for member in members:
            if not isinstance(member, str | TriggerOp):
                raise InvalidDeclaration(
                    f"{name} takes names and nested AllOf(...) / AnyOf(...), not {type(member).__name__}.",
                    fix=f"spread a list with {name}(*names)" if isinstance(member, list | tuple | set) else None,
                )
            if isinstance(member, str) and not member.strip():
                raise InvalidDeclaration(f"{name} holds an empty name.")
            if member in seen:
                raise InvalidDeclaration(f"{name} holds {member!r} twice.", fix="name it once")
            seen.append(member)
        object.__setattr__(self, "members", tuple(seen))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.members))})"

    def leaves(self) -> tuple[str, ...]:
        """Every name that occurs, at any depth, once, in the order of first mention.

        >>> AllOf("orders", AnyOf("eu_stock", "us_stock", AllOf("orders", "prices"))).leaves()
        ('orders', 'eu_stock', 'us_stock', 'prices')
        """
        found: dict[str, None] = {}
        for member in self.members:
            found.update(dict.fromkeys([member] if isinstance(member, str) else member.leaves()))
        return tuple(found)


class AllOf(TriggerOp):
    """Met when every member is."""

    kind = "all"


class AnyOf(TriggerOp):
    """Met when at least one member is."""

    kind = "any"


def trigger_met(trigger: TriggerOp | str, succeeded_since: Callable[[str], bool]) -> bool:
    """Whether a condition is met, when `succeeded_since` tells it of every name.

    >>> trigger_met(AllOf("orders", AnyOf("eu", "us")), {"orders", "us"}.__contains__)
    True
    """
    if isinstance(trigger, str):
        return succeeded_since(trigger)
    members = (trigger_met(member, succeeded_since) for member in trigger.members)
    return all(members) if trigger.kind == "all" else any(members)
