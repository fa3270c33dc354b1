"""Words of MySQL and MariaDB that both the planner's expressions and the backend's dialect use."""

from __future__ import annotations

BY_BYTES = "/*M!100202 COLLATE utf8mb4_nopad_bin *//*!80017 COLLATE utf8mb4_0900_bin */"
"""Texts are equal when their bytes are, spaces at the end included. Each server executes the comment with its name."""


def text_literal(text: str) -> str:
    """A text constant that reads the same whether or not a backslash escapes.

    >>> text_literal("it's"), text_literal("a" + chr(92))
    ("'it''s'", "_utf8mb4 X'615c'")
    """
    if "\\" in text or any(letter < " " for letter in text):
        return f"_utf8mb4 X'{text.encode().hex()}'"
    return "'" + text.replace("'", "''") + "'"


def backticked(name: str) -> str:
    """A name as an identifier, whatever characters it holds."""
    return "`" + name.replace("`", "``") + "`"


def by_bytes(expression: str) -> str:
    """A text of any character set in the form whose order and equality are those of its UTF-8 bytes."""
    return f"(CONVERT({expression} USING utf8mb4) {BY_BYTES})"
