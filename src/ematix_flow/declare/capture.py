"""Which tables of a database a stream captures: `public.orders`, or several with commas between them."""

from __future__ import annotations

import re
from typing import Literal, get_args

from ematix_flow.errors import InvalidDeclaration, listed

OnFullSlot = Literal["fail", "drop"]
ON_FULL_SLOT: tuple[str, ...] = get_args(OnFullSlot)

_NAME = r'(?:"(?:[^"]|"")+"|[^\s.,"]+)'
_TABLE = re.compile(rf"\s*({_NAME})(?:\.({_NAME}))?\s*")
_SLOT = re.compile(r"[a-z0-9_]{1,63}")


def captured_tables(query: str, default_schema: str = "public") -> tuple[tuple[str, str], ...]:
    """The tables that a query names, as (schema, name), in its order. Names are taken as they are written.

    >>> captured_tables('public.orders, "My Shop"."Line, Items"')
    (('public', 'orders'), ('My Shop', 'Line, Items'))

    Raises:
        InvalidDeclaration: (a ValueError) it is no list of tables, or names one twice.
    """
    found: list[tuple[str, str]] = []
    place = 0
    while True:
        match = _TABLE.match(query, place)
        end = match.end() if match else place
        if match is None or (end < len(query) and query[end] != ","):
            raise InvalidDeclaration(
                f"'{query}' does not name tables to capture.", fix="public.orders, or several with commas between them"
            )
        first, second = (None if part is None else _unquoted(part) for part in match.groups())
        found.append((default_schema, str(first)) if second is None else (str(first), second))
        if end == len(query):
            break
        place = end + 1
    doubled = [f"{schema}.{name}" for schema, name in found if found.count((schema, name)) > 1]
    if doubled:
        raise InvalidDeclaration(f"'{doubled[0]}' is captured twice by one source.", fix="name it once")
    return tuple(found)


def check_slot_options(what: str, slot: str | None, on_full_slot: str | None, max_slot_bytes: int | None) -> None:
    """Refuse a name that no slot can have, an unknown policy, and a policy without its ceiling.

    Raises:
        InvalidDeclaration: (a ValueError) says which.
    """
    if slot is not None and "${" not in slot and not _SLOT.fullmatch(slot):
        raise InvalidDeclaration(
            f"{what}: slot '{slot}' is no name for a replication slot.", fix="small letters, digits and '_', at most 63"
        )
    if isinstance(max_slot_bytes, int) and max_slot_bytes < 1:  # it may still be a reference
        raise InvalidDeclaration(f"{what}: max_slot_bytes must be at least 1.")
    if on_full_slot is None or "${" in on_full_slot:
        return
    if on_full_slot not in ON_FULL_SLOT:
        raise InvalidDeclaration(f"{what}: on_full_slot is one of {listed(ON_FULL_SLOT)}, not '{on_full_slot}'.")
    if max_slot_bytes is None:
        raise InvalidDeclaration(f"{what}: on_full_slot needs max_slot_bytes.", fix="say from which size on")


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
