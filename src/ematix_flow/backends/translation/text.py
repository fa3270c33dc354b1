"""The user's SQL text, and errors that point into it: line, column, the words, and a mark below them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.errors import InvalidSource

if TYPE_CHECKING:
    from sqlglot import exp

    from ematix_flow.backends.translation.own_functions import OwnFunctions

_WIDEST = 100


@dataclass(frozen=True)
class UserSql:
    """SQL as it was written; `what` is how messages call it, `The source SQL` or `filter_where`.

    `own` are functions of the user's that it may call.
    """

    text: str
    dialect: SqlDialect
    what: str = "The source SQL"
    own: OwnFunctions | None = None

    def refused(self, node: exp.Expr | None, reason: str, fix: str | None = None) -> InvalidSource:
        """The error that says why some words cannot be taken over, and where they stand."""
        return self.refused_at(None if node is None else span_of(node), reason, fix)

    def refused_at(self, span: tuple[int, int] | None, reason: str, fix: str | None = None) -> InvalidSource:
        """The same for a stretch of the text: first and last character."""
        if span is None or not 0 <= span[0] < len(self.text):
            return InvalidSource(f"{self.what} ({self.dialect}): {reason}", fix=fix)
        start, end = span[0], _closed(self.text, span[0], min(max(span), len(self.text) - 1))
        line, column = place(self.text, start)
        words = self.text[start : end + 1].splitlines()[0] if self.text[start : end + 1].strip() else ""
        said = f" '{_shortened(words)}':" if words else ""
        head = f"{self.what} ({self.dialect}), line {line}, column {column}:{said} {reason}"
        return InvalidSource(scrub(f"{head}\n{_picture(self.text, start, end)}"), fix=fix)


def span_of(node: exp.Expr) -> tuple[int, int] | None:
    """The first and last character of the text that a node was read from."""
    spans = [(found.meta["start"], found.meta["end"]) for found in node.walk() if "start" in found.meta]
    return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None


def place(text: str, position: int) -> tuple[int, int]:
    """Line and column, counted from 1.

    >>> place("SELECT a\\nFROM t", 9)
    (2, 1)
    """
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1


def _picture(text: str, start: int, end: int) -> str:
    """The line of a position with a mark below the words, cut to what fits a terminal."""
    first = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", start)
    line = text[first : stop if stop >= 0 else len(text)].replace("\t", " ").rstrip("\r")
    left = max(0, start - first - _WIDEST // 2)
    shown = line[left : left + _WIDEST]
    width = max(1, min(end - start + 1, len(shown) - (start - first - left)))
    return f"    {shown}\n    {' ' * (start - first - left)}{'^' * width}"


def _closed(text: str, start: int, end: int) -> int:
    """The end of a stretch with the parentheses it opens; what is read from a text knows its words only."""
    missing = text.count("(", start, end + 1) - text.count(")", start, end + 1)
    while missing > 0:
        close = text.find(")", end + 1)
        if close < 0:
            return end
        missing += text.count("(", end + 1, close) - 1
        end = close
    return end


def _shortened(words: str) -> str:
    return words if len(words) <= 60 else words[:57] + "…"
