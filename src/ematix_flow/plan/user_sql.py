"""The user's own SQL inside ours: putting an expression where the word `col` stands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ematix_flow.declare.normalizers import Normalizer

# Texts, quoted names and comments are stepped over; a `col` behind a dot belongs to somebody else's table.
_WORD = re.compile(
    r"""(?P<skip>'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|--[^\n]*|/\*.*?\*/|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    |(?<![\w.$])(?P<col>col)(?![\w$])""",
    re.DOTALL | re.VERBOSE | re.IGNORECASE,
)


def with_column(expression: str, column: str) -> str:
    """The expression with `column` in the place of every `col`.

    >>> with_column("coalesce(col, 'col') || t.col", '"name"')
    'coalesce("name", \\'col\\') || t.col'
    """
    return _WORD.sub(lambda match: match["skip"] if match["skip"] is not None else column, expression)


def enclosed(expression: str) -> str:
    """The expression in parentheses, safe against a comment at its end."""
    return f"({expression}\n)" if "--" in expression else f"({expression})"


def split_at_user_sql(normalizers: Sequence[Normalizer]) -> tuple[tuple[Normalizer, ...], tuple[Normalizer, ...]]:
    """What must run in the source, because it is or precedes the user's SQL; and what may run anywhere after it."""
    last = max((place for place, marker in enumerate(normalizers) if marker.is_user_sql), default=-1)
    return tuple(normalizers[: last + 1]), tuple(normalizers[last + 1 :])
