"""Plain data as TOML text, so that reading the text gives the same data again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import cast

from ematix_flow.errors import InvalidConfig

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def toml_text(document: Mapping[str, object]) -> str:
    """The document as text. Values are text, whole numbers, floats, truths, and lists and tables of them.

    >>> print(toml_text({"name": "a", "source": {"kind": "kafka"}, "targets": [{"kind": "x"}, {"kind": "y"}]}), end="")
    name = "a"
    <BLANKLINE>
    [source]
    kind = "kafka"
    <BLANKLINE>
    [[targets]]
    kind = "x"
    <BLANKLINE>
    [[targets]]
    kind = "y"

    Raises:
        InvalidConfig: (a ValueError) a text that no file can hold (half of a surrogate pair).
    """
    return "\n".join(_table(document, ())).lstrip("\n") + "\n"


def _table(table: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    """Values first: what follows a header belongs to it."""
    for key, value in table.items():
        if not _is_table(value) and not _is_tables(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        here = (*path, key)
        name = ".".join(_key(part) for part in here)
        if _is_table(value):
            inner = cast("Mapping[str, object]", value)
            if not inner or any(not _is_table(entry) for entry in inner.values()):
                yield f"\n[{name}]"
            yield from _table(inner, here)
        elif _is_tables(value):
            for entry in cast("list[Mapping[str, object]]", value):
                yield f"\n[[{name}]]"
                yield from _table(entry, here)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _lines(value) if "\n" in value else _text(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(entry) for entry in value)}]"
    if isinstance(value, Mapping):  # inside a list that holds other things too
        return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    raise InvalidConfig(f"A value of type {type(value).__name__} has no form in TOML.")


def _text(text: str) -> str:
    return f'"{_escaped(text)}"'


def _lines(text: str) -> str:
    """Text of several lines, as it is read. The first line break after the quotes is not part of it."""
    return '"""\n' + "\n".join(_escaped(line) for line in text.split("\n")) + '"""'


def _escaped(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidConfig("A text holds half of a surrogate pair, which no file can hold.") from exc
    return "".join(_ESCAPES.get(char) or (f"\\u{ord(char):04X}" if _is_control(char) else char) for char in text)


def _is_control(char: str) -> bool:
    return ord(char) < 0x20 or ord(char) == 0x7F
