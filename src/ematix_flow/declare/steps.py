"""Row steps: what `transforms_pre=[…]` does to the whole row set, in order, after the columns are normalized."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ematix_flow.errors import InvalidDeclaration


@dataclass(frozen=True)
class RowStep:
    """The base of all row steps. `kind` is the name the user wrote."""

    kind: ClassVar[str] = ""
    is_user_sql: ClassVar[bool] = False


@dataclass(frozen=True)
class OrderTerm:
    """One term of an order. NULLs come last in both directions unless asked otherwise."""

    column: str
    descending: bool = False
    nulls_first: bool = False

    def __str__(self) -> str:
        return f"{self.column}{' desc' if self.descending else ''}{' nulls first' if self.nulls_first else ''}"


@dataclass(frozen=True, repr=False)
class DeduplicateBy(RowStep):
    """Keeps the first row of each key. Ties are broken by all columns in order, so the result is always the same."""

    keys: tuple[str, ...]
    order_by: tuple[OrderTerm, ...] = ()

    kind: ClassVar[str] = "deduplicate_by"

    def __repr__(self) -> str:
        shown = [repr(key) for key in self.keys]
        if self.order_by:
            shown.append(f"order_by={', '.join(map(str, self.order_by))!r}")
        return f"{self.kind}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class FilterWhere(RowStep):
    """Keeps the rows for which an SQL condition over the declared columns is true."""

    condition: str

    kind: ClassVar[str] = "filter_where"
    is_user_sql: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"{self.kind}({self.condition!r})"


@dataclass(frozen=True, repr=False)
class Limit(RowStep):
    """Keeps at most so many rows."""

    rows: int

    kind: ClassVar[str] = "limit"

    def __repr__(self) -> str:
        return f"{self.kind}({self.rows})"


@dataclass(frozen=True, repr=False)
class SamplePct(RowStep):
    """Keeps each row with a probability; `fraction` lies between 0 and 1."""

    fraction: float

    kind: ClassVar[str] = "sample_pct"

    def __repr__(self) -> str:
        return f"{self.kind}({self.fraction})"


def deduplicate_by(
    *columns: str, keys: Sequence[str] | str | None = None, order_by: str | Sequence[str] | None = None
) -> RowStep:
    """Keep the first row per key: `deduplicate_by("id", order_by="received_at desc")`.

    Args:
        columns: The key columns.
        keys: The same as a tuple, instead of `columns`.
        order_by: Which row is first: `col [asc|desc] [nulls first|last]`, comma separated or as a list. NULLs are last
            unless said otherwise. Without it the least row counts.

    Raises:
        InvalidDeclaration: no key, a key twice, both spellings, or an order that cannot be read.
    """
    if columns and keys is not None:
        raise InvalidDeclaration("deduplicate_by: give the key columns once, as arguments or as keys=.")
    named: tuple[Any, ...] = (keys,) if isinstance(keys, str) else tuple(keys or columns)
    if not named:
        raise InvalidDeclaration("deduplicate_by: at least one key column is needed.")
    for name in named:
        if not isinstance(name, str) or not name:
            raise InvalidDeclaration(f"deduplicate_by: {name!r} is not a column name.")
    if len(set(named)) < len(named):
        raise InvalidDeclaration("deduplicate_by: a key column is named twice.")
    return DeduplicateBy(named, _order(order_by))


def filter_where(expr: str) -> RowStep:
    """Keep the rows for which a condition in the source's SQL is true."""
    if not isinstance(expr, str) or not expr.strip().rstrip(";").strip():
        raise InvalidDeclaration("filter_where: an SQL condition is needed, such as filter_where('name IS NOT NULL').")
    return FilterWhere(expr.strip().rstrip(";").rstrip())


def limit(n: int) -> RowStep:
    """Keep at most n rows."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        raise InvalidDeclaration(f"limit: {n!r} is not a number of rows, 0 or more.")
    return Limit(n)


def sample_pct(p: float) -> RowStep:
    """Keep about a fraction p of the rows, between 0 and 1: `sample_pct(0.1)` keeps a tenth."""
    if not isinstance(p, int | float) or isinstance(p, bool) or not 0 <= p <= 1:
        raise InvalidDeclaration(f"sample_pct: {p!r} is not a fraction between 0 and 1.", fix="0.1 keeps a tenth")
    return SamplePct(float(p))


_TERM = re.compile(
    r"""\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\W\d][\w$]*))
    (?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?\s*(?P<comma>,|\Z)""",
    re.IGNORECASE | re.VERBOSE,
)


def _order(written: str | Sequence[str] | None) -> tuple[OrderTerm, ...]:
    if written is None:
        return ()
    texts = (written,) if isinstance(written, str) else tuple(written)
    if not texts:
        raise InvalidDeclaration("deduplicate_by: order_by is empty.")
    terms: list[OrderTerm] = []
    for text in texts:
        terms.extend(_terms(text))
    return tuple(terms)


def _terms(text: object) -> list[OrderTerm]:
    terms: list[OrderTerm] = []
    position, open_end = 0, True
    while isinstance(text, str) and open_end:
        match = _TERM.match(text, position)
        if match is None:
            break
        name = match["plain"] or match["quoted"].replace('""', '"')
        terms.append(
            OrderTerm(name, (match["direction"] or "").lower() == "desc", (match["nulls"] or "").lower() == "first")
        )
        position, open_end = match.end(), match["comma"] == ","
    if open_end:
        raise InvalidDeclaration(
            f"deduplicate_by: order_by={text!r} cannot be read.",
            fix="write columns, each with asc or desc and nulls first or nulls last: 'received_at desc, id'",
        )
    return terms
