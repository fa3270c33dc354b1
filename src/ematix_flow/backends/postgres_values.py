"""Values as PostgreSQL writes them, as JSON: exact, and the same whether a row was read or its change was decoded.

Numbers keep all their digits, dates and times become ISO 8601, bytes become base64, arrays become arrays. Documents and
everything else are text, as the server writes it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import Any

Render = Callable[[str], str]
"""The text of a value as a piece of JSON; NULL never comes here."""

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class TypeFacts:
    """What the catalogue says of a type: the one a domain stands for, the one an array is made of."""

    base: int | None = None
    element: int | None = None
    delimiter: str = ","


def _plain(text: str) -> str:
    return text


def _truth(text: str) -> str:
    return "true" if text == "t" else "false"


def _number(text: str) -> str:
    return quoted(text) if text in _NOT_FINITE else text


def _instant(text: str) -> str:
    return quoted(text.replace(" ", "T", 1))


def _zoned(text: str) -> str:
    """The server tells it in UTC, as every session here asks for."""
    return quoted(text.replace(" ", "T", 1).replace("+00", "+00:00", 1))


def _bytes(text: str) -> str:
    return quoted(base64.b64encode(bytes.fromhex(text[2:])).decode())


_SCALARS: Mapping[int, Render] = {
    16: _truth,
    20: _plain,  # int8
    21: _plain,
    23: _plain,
    26: _plain,  # oid
    700: _number,
    701: _number,
    1700: _number,
    17: _bytes,
    1114: _instant,
    1184: _zoned,
}


def render_of(oid: int, facts: Mapping[int, TypeFacts]) -> Render:
    """How values of a type become JSON.

    Args:
        oid: The type.
        facts: What is known of domains and arrays; types that are not in it are themselves.
    """
    known = facts.get(oid, TypeFacts())
    if known.base is not None:
        return render_of(known.base, facts)
    if known.element is not None:
        inner, delimiter = render_of(known.element, facts), known.delimiter
        return lambda text: array_json(text, inner, delimiter)
    return _SCALARS.get(oid, quoted)


def array_json(text: str, inner: Render, delimiter: str = ",") -> str:
    """An array in the server's words as a JSON array; bounds that do not begin at 1 are left out.

    >>> array_json('{{1,2},{NULL,4}}', lambda text: text)
    '[[1,2],[null,4]]'
    >>> array_json('{"a \\\\"b\\\\"",c}', quoted)
    '["a \\\\"b\\\\"","c"]'
    """
    start = text.index("=") + 1 if text.startswith("[") else 0
    parts: list[str] = []
    place = start
    while place < len(text):
        letter = text[place]
        if letter == "{":
            parts.append("[")
        elif letter == "}":
            parts.append("]")
        elif letter == delimiter:
            parts.append(",")
        elif letter == '"':
            value, place = _quoted_value(text, place + 1)
            parts.append(inner(value))
        else:
            end = place
            while text[end] not in ("}", delimiter):
                end += 1
            bare = text[place:end]
            parts.append("null" if bare == "NULL" else inner(bare))
            place = end
            continue
        place += 1
    return "".join(parts)


def _quoted_value(text: str, place: int) -> tuple[str, int]:
    """A value up to its closing quote, and where that is."""
    letters: list[str] = []
    while text[place] != '"':
        if text[place] == "\\":
            place += 1
        letters.append(text[place])
        place += 1
    return "".join(letters), place


TYPE_FACTS = (
    "SELECT t.oid::bigint, CASE WHEN t.typtype = 'd' THEN t.typbasetype::bigint END, "
    "CASE WHEN t.typinput = 'array_in'::regproc THEN t.typelem::bigint END, "
    "coalesce((SELECT e.typdelim FROM pg_type e WHERE e.oid = t.typelem), ',') "
    "FROM pg_type t WHERE t.typtype = 'd' OR t.typinput = 'array_in'::regproc"
)


def type_facts(db: Any) -> dict[int, TypeFacts]:
    """Every domain and array type of a database."""
    return {
        int(oid): TypeFacts(base, element, str(delimiter))
        for oid, base, element, delimiter in db.execute(TYPE_FACTS).fetchall()
    }
