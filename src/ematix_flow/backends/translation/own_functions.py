"""Functions of the user's own in a query: told apart from those that SQL has, whatever they are called.

A call of one is given another name before anybody reads the text, so that neither a parser nor a rule of a translation
takes it for a built-in of the same name. What is noted of a place in the text still means the text as it was written.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.translation.kinds import Kind

if TYPE_CHECKING:
    from sqlglot import exp


@dataclass(frozen=True)
class OwnFunction:
    """One function: what the user calls it, the name it has in the text that is read, and what it gives."""

    name: str
    inner_name: str
    arguments: int
    is_aggregate: bool
    gives: Kind


@dataclass(frozen=True)
class OwnFunctions:
    """The functions that a query may call, by their names in lower case."""

    by_name: Mapping[str, OwnFunction]

    def called(self, node: object) -> OwnFunction | None:
        """Which of them a node calls; None for anything else."""
        from sqlglot import exp

        if not isinstance(node, exp.Anonymous):
            return None
        name = node.name.lower()
        return next((function for function in self.by_name.values() if function.inner_name == name), None)

    def calls_in(self, tree: exp.Expr) -> list[exp.Expr]:
        """Every call of one, outermost first."""
        return [node for node in tree.walk() if self.called(node) is not None]

    def renamed(self, text: str, dialect: Any) -> tuple[str, list[tuple[int, int]]]:
        """The text with other names for calls, and by how much places moved: (from which place on, by how much)."""
        from sqlglot import TokenType
        from sqlglot.dialects.dialect import Dialect

        tokens = Dialect.get_or_raise(dialect).tokenize(text)
        made, moved, copied, shift = [], [(0, 0)], 0, 0
        for place, token in enumerate(tokens[:-1]):
            function = self.by_name.get(token.text.lower())
            is_call = tokens[place + 1].token_type == TokenType.L_PAREN
            is_field = place > 0 and tokens[place - 1].token_type == TokenType.DOT
            if function is None or not is_call or is_field or token.token_type == TokenType.STRING:
                continue
            made += [text[copied : token.start], function.inner_name]
            copied = token.end + 1
            shift += len(function.inner_name) - (token.end + 1 - token.start)
            moved.append((copied + shift, shift))
        return "".join([*made, text[copied:]]), moved

    def note(self, tree: exp.Expr, moved: list[tuple[int, int]]) -> None:
        """Write into the tree what the calls give, and put places back to where the user wrote them."""
        starts = [start for start, _ in moved]
        for node in tree.walk():
            function = self.called(node)
            if function is not None:
                node.meta["kind"] = function.gives
            for edge in ("start", "end"):
                if edge in node.meta:
                    node.meta[edge] -= moved[bisect_right(starts, node.meta[edge]) - 1][1]

    def shown(self, text: str) -> str:
        """A text of ours with the names the user knows."""
        for function in self.by_name.values():
            for written in (function.inner_name, function.inner_name.upper()):
                text = text.replace(written, function.name)
        return text
