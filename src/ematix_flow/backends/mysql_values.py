"""Values of MySQL and MariaDB as JSON: exact, and the same whether a row was read or its change was found in the log.

Numbers keep all their digits, dates and times become ISO 8601, bytes become base64, bits a number. Documents, sets and
everything else are text. A date of zeros is no date: it becomes null.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from json.encoder import encode_basestring as quoted
from typing import Any

from ematix_flow.errors import UnfitValue

_MEMBERS = re.compile(r"'((?:[^']|'')*)'")


@dataclass(frozen=True)
class MysqlColumn:
    """A column as the catalogue has it: the bare name of its type, how many bytes it holds, the members of a set."""

    name: str
    kind: str
    octets: int | None = None
    members: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, kind: str, octets: int | None, written: str) -> MysqlColumn:
        """From a line of `information_schema.columns`."""
        members = tuple(found.replace("''", "'") for found in _MEMBERS.findall(written)) if kind == "set" else ()
        return cls(name, kind.lower(), octets, members)


def value_json(value: Any, column: MysqlColumn) -> str:
    """One value as a piece of JSON.

    >>> value_json(Decimal("1.10"), MysqlColumn("n", "decimal"))
    '1.10'
    >>> value_json(datetime(2024, 2, 29, 10), MysqlColumn("at", "timestamp"))
    '"2024-02-29T10:00:00+00:00"'
    """
    kind = column.kind
    if value is None:
        return "null"
    if kind == "bit":
        return str(int(value, 2) if isinstance(value, str) else int.from_bytes(value, "big"))
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return short_float(value) if kind == "float" else repr(value)
    if isinstance(value, int):
        return "0" if kind == "year" and value == 1900 else str(int(value))
    if isinstance(value, datetime):
        return quoted(value.isoformat() + ("+00:00" if kind == "timestamp" else ""))
    if isinstance(value, date):
        return quoted(value.isoformat())
    if isinstance(value, timedelta):
        return quoted(time_text(value))
    if isinstance(value, (bytes, bytearray)):
        whole = bytes(value).ljust(column.octets or 0, b"\0") if kind == "binary" else bytes(value)
        return quoted(base64.b64encode(whole).decode())
    if isinstance(value, (set, frozenset)):
        return quoted(",".join(member for member in column.members if member in value))
    if isinstance(value, (dict, list)):
        return quoted(json.dumps(value, ensure_ascii=False, default=_plain))
    if kind in ("date", "datetime", "timestamp"):
        return "null"  # the driver leaves what is no date as text
    return quoted(str(value))


def refuse_misread(value: Any, column: MysqlColumn) -> None:
    """Refuse the one value of the log that its reader is known to get wrong.

    Raises:
        UnfitValue: (a ValueError) a time below zero with a fraction of a second.
    """
    if column.kind == "time" and isinstance(value, timedelta) and value < timedelta(0) and value.microseconds:
        raise UnfitValue(
            f"Column '{column.name}' holds a time below zero with a fraction, which the reader of the log gets wrong.",
            fix="leave the column out of what is written, or keep such times in another type",
        )


def short_float(value: float) -> str:
    """A single-precision number in as few digits as tell it apart.

    >>> short_float(0.10000000149011612)
    '0.1'
    """
    for digits in range(6, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("<f", float(text)) == struct.pack("<f", value):
            return text
    return repr(value)


def time_text(value: timedelta) -> str:
    """A span as MySQL writes a TIME.

    >>> time_text(timedelta(hours=-30, microseconds=-500000))
    '-30:00:00.500000'
    """
    micros = abs(value) // timedelta(microseconds=1)
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}" + (
        f".{fraction:06d}" if fraction else ""
    )
    return f"-{text}" if value < timedelta(0) else text


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else str(value)
