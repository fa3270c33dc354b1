"""The markers that say what a column is: part of the key, unique, nullable. Always called: `pk()`, never `pk`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PrimaryKey:
    """A column of the primary key; several make a composite key, in declaration order."""

    options: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"pk({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"


@dataclass(frozen=True)
class NaturalKey:
    """A column of a UNIQUE constraint; columns with the same group share one constraint."""

    group: str = ""

    def __repr__(self) -> str:
        return f"natural_key({self.group!r})" if self.group else "natural_key()"


@dataclass(frozen=True)
class Nullable:
    """The column may hold NULL; the same as `T | None`."""

    def __repr__(self) -> str:
        return "nullable()"


def pk(**options: Any) -> PrimaryKey:
    """Mark a column as part of the primary key. Options such as `autoincrement=True` are accepted and ignored.

    >>> pk(), pk(autoincrement=True)
    (pk(), pk(autoincrement=True))
    """
    return PrimaryKey(options)


def natural_key(group: str = "") -> NaturalKey:
    """Mark a column as unique, alone or together with the columns of the same group.

    The first group is also what `merge` and `scd2` match on, before the primary key: useful when the business key is
    not the primary key.
    """
    return NaturalKey(group)


def nullable() -> Nullable:
    """Mark a column as nullable; the same as writing `T | None`."""
    return Nullable()
