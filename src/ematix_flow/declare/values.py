"""What every marker and type means, for one value: plain functions, the model the other routes are tested against.

Values are in the form SQLite stores: numbers as int or float, exact decimals as text with a fixed scale, days as
`2026-01-02`, wall-clock times as `2026-01-02T03:04:05.000000`, instants the same with `Z`, so that the order of the
texts is the order of the times; booleans as 0 and 1, bytes as bytes. Functions over text are not called with NULL.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from ematix_flow.declare.instants import time_of
from ematix_flow.declare.marker_arguments import as_instant
from ematix_flow.declare.patterns import PortablePattern, replacement_parts
from ematix_flow.declare.timeformats import time_format

Stored = None | int | float | str | bytes

TIME_KINDS = frozenset({"date", "timestamp", "timestamp_tz"})

# Letters of Unicode 16 that have a case. Spark knows them; the ICU of a database and Python may be older, so they are
# mapped by hand after the built-in mapping (which leaves what it does not know alone).
RECENT_UPPER = "\u1c89\ua7cb\ua7cc\ua7da\ua7dc" + "".join(map(chr, range(0x10D50, 0x10D66)))
RECENT_LOWER = "\u1c8a\u0264\ua7cd\ua7db\u019b" + "".join(map(chr, range(0x10D70, 0x10D86)))
_TO_LOWER = str.maketrans(RECENT_UPPER, RECENT_LOWER)
_TO_UPPER = str.maketrans(RECENT_LOWER, RECENT_UPPER)

_WIDE = Context(prec=400, Emax=999999, Emin=-999999)


class Unfit(ValueError):
    """A value that cannot become what was declared. Says nothing of the value itself."""


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def text_of(value: Stored) -> str | None:
    """A value as the text a text marker works on."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return double_text(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Unfit("bytes that are not UTF-8 text") from None
    return str(int(value))


def double_text(value: float) -> str:
    """A float as Java writes it: `1.0`, `1.0E7`, `1.5E-5`.

    >>> double_text(12345678.0), double_text(0.001), double_text(-0.0001)
    ('1.2345678E7', '0.001', '-1.0E-4')
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1, value) < 0 else ""
    size = abs(value)
    if size == 0:
        return sign + "0.0"
    _, figures, exponent = Decimal(repr(size)).as_tuple()
    digits = "".join(map(str, figures)).rstrip("0") or "0"
    place = len(figures) + int(exponent)  # digits before the point
    if 1e-3 <= size < 1e7:
        if place <= 0:
            return f"{sign}0.{'0' * -place}{digits}"
        return f"{sign}{digits[:place].ljust(place, '0')}.{digits[place:] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{place - 1}"


def trim(text: str) -> str:
    """Without the spaces at both ends."""
    return text.strip(" ")


def lower(text: str) -> str:
    """Lower case."""
    return text.lower().translate(_TO_LOWER)


def upper(text: str) -> str:
    """Upper case."""
    return text.upper().translate(_TO_UPPER)


def empty_to_null(text: str) -> str | None:
    """None for the empty text."""
    return text or None


def whitespace_to_null(text: str) -> str | None:
    """Trimmed; None when nothing is left."""
    return trim(text) or None


def email_normalize(text: str) -> str:
    """Trimmed, in lower case."""
    return lower(trim(text))


def phone_normalize(text: str) -> str:
    """The digits and plus signs."""
    return "".join(character for character in text if character in "+0123456789")


def regex_replace(text: str, pattern: PortablePattern, replacement: str, replaces_all: bool) -> str:
    """Matches replaced, all or the first."""
    parts = replacement_parts(replacement)

    def filled(match: re.Match[str]) -> str:
        return "".join(part if isinstance(part, str) else (match.group(part) or "") for part in parts)

    return compiled(pattern.text("python")).sub(filled, text, count=0 if replaces_all else 1)


# ── reading text ─────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_int(value: Stored) -> int | None:
    r"""The whole number of 64 bits that a text `-?\d+` means, or a number that already is one."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and -(2.0**63) <= value < 2.0**63 else None
    if isinstance(value, int):
        return value
    text = text_of(value)
    if text is None or not compiled("-?[0-9]+").fullmatch(text):
        return None
    digits = text.lstrip("-").lstrip("0") or "0"
    if len(digits) > 19:  # out of range, and perhaps too long to read
        return None
    number = -int(digits) if text.startswith("-") else int(digits)
    return number if -(2**63) <= number < 2**63 else None


def parse_numeric(value: Stored, precision: int, scale: int) -> str | None:
    r"""The decimal that a text `-?\d+(\.\d+)?` means, with a fixed scale, rounded half away from zero."""
    if isinstance(value, float):
        return None if not math.isfinite(value) else fixed_decimal(Decimal(repr(value)), precision, scale)
    text = text_of(value)
    if text is None or not compiled(r"-?[0-9]+(\.[0-9]+)?").fullmatch(text):
        return None
    whole, _, fraction = text.partition(".")
    sign, digits = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    digits = digits.lstrip("0") or "0"
    if len(digits) > precision - scale + 1:  # too long whatever the rounding, and perhaps too long to read
        return None
    return fixed_decimal(Decimal(f"{sign}{digits}.{fraction[: scale + 1] or '0'}"), precision, scale)


def parse_bool(value: Stored, truthy: Sequence[str], falsy: Sequence[str]) -> int | None:
    """1 or 0 for the words, None for any other."""
    text = text_of(value)
    if text is None:
        return None
    word = lower(text)
    if word in {lower(known) for known in truthy}:
        return 1
    return 0 if word in {lower(known) for known in falsy} else None


def parse_timestamp(value: Stored, formats: Sequence[str]) -> str | None:
    """The instant a text means under the first format whose shape it has."""
    text = text_of(value)
    if text is None:
        return None
    for written in formats:
        reading = time_format(written)
        if reading.matches(text):
            moment = reading.read(text)
            return None if moment is None else instant_text(moment)
    return None


def parse_date(value: Stored, formats: Sequence[str]) -> str | None:
    """The day a text means, in UTC if it tells a time."""
    moment = parse_timestamp(value, formats)
    return None if moment is None else moment[:10]


# ── time and numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


def instant_text(moment: datetime) -> str:
    """The stored form of an instant."""
    return wall_text(as_instant(moment)) + "Z"


def wall_text(moment: datetime) -> str:
    """The stored form of a wall-clock time."""
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds")


def read_time(text: str) -> datetime:
    """A stored day, wall-clock time or instant as a naive UTC time.

    Raises:
        Unfit: the text is none of them.
    """
    try:
        return time_of(text[:-1] if text.endswith("Z") else text)
    except (ValueError, TypeError):
        raise Unfit("not a time") from None


def to_timezone(text: str, zone: str) -> str:
    """The wall-clock time of a zone at a stored time."""
    from zoneinfo import ZoneInfo

    return wall_text(read_time(text).replace(tzinfo=timezone.utc).astimezone(ZoneInfo(zone)))


def later(text: str, micros: int) -> str:
    """A stored instant so many microseconds later.

    >>> later("2026-03-01T10:00:00.000000Z", 2)
    '2026-03-01T10:00:00.000002Z'
    """
    return wall_text(read_time(text) + timedelta(microseconds=micros)) + "Z"


def date_trunc(text: str, precision: str) -> str:
    """The beginning of the unit of time, in the form the value came in."""
    moment = read_time(text)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    cut = {
        "microsecond": moment,
        "millisecond": moment.replace(microsecond=moment.microsecond // 1000 * 1000),
        "second": moment.replace(microsecond=0),
        "minute": moment.replace(second=0, microsecond=0),
        "hour": moment.replace(minute=0, second=0, microsecond=0),
        "day": day,
        "week": day - timedelta(days=day.weekday()),
        "month": day.replace(day=1),
        "quarter": day.replace(day=1, month=(day.month - 1) // 3 * 3 + 1),
        "year": day.replace(day=1, month=1),
    }[precision]
    if len(text) == 10:
        return cut.date().isoformat()
    return wall_text(cut) + ("Z" if text.endswith("Z") else "")


def round_half_up(value: Stored, places: int) -> Stored:
    """Rounded half away from zero, in the form the value came in.

    Raises:
        Unfit: the value is no number, or no longer fits 64 bits.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return value
    number = number_of(value)
    rounded = number.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP, context=_WIDE)
    if isinstance(value, int):
        if not -(2**63) <= int(rounded) < 2**63:
            raise Unfit("out of range after rounding")
        return value if places >= 0 else int(rounded)
    if isinstance(value, float):
        return float(rounded) + 0.0  # a negative zero becomes zero, as everywhere else
    return plain_decimal(rounded if int(number.as_tuple().exponent) < -places else number)


def clamp(value: Stored, low: Stored, high: Stored) -> Stored:
    """`low` below it, `high` above it, else the value. Texts are decimals or stored times, like the bounds."""
    if isinstance(value, float):
        if math.isnan(value):
            return high  # as every engine orders it: above all numbers
        least, most = float(number_of(low)), float(number_of(high))
        return least if value < least else most if value > most else value
    reads_time = isinstance(low, str) and "-" in low[1:]
    read: Callable[[Any], Any] = read_time if reads_time else number_of
    if read(value) < read(low):
        return low
    return high if read(value) > read(high) else value


def nullif(value: Stored, other: Stored, kind: str | None) -> Stored:
    """None when equal: decimals as numbers, times as times, anything else as it is."""
    if kind == "numeric":
        return None if number_of(value) == number_of(other) else value
    if kind in TIME_KINDS:
        return None if read_time(str(value)) == read_time(str(other)) else value
    if isinstance(value, str | bytes) or isinstance(other, str | bytes):
        return None if type(value) is type(other) and value == other else value
    return None if value == other else value


# ── hashing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def canonical_bytes(values: Sequence[Stored]) -> bytes:
    """Values in a row as bytes: NULL is not `''` and not `'NULL'`, and `('ab', 'c')` is not `('a', 'bc')`."""
    return b"\x01".join(_bytes_of(value) for value in values)


def sha256(*values: Stored) -> bytes:
    """The hash of a row of values."""
    return hashlib.sha256(canonical_bytes(values)).digest()


def _bytes_of(value: Stored) -> bytes:
    if value is None:
        return b"\x00NULL\x00"
    if isinstance(value, bytes):
        return value
    return (repr(value) if isinstance(value, float) else str(value)).encode()


def fixed_decimal(number: Decimal, precision: int, scale: int) -> str | None:
    """A decimal with so many places, or None when it has too many digits before the point."""
    if number.adjusted() >= precision - scale + 1:
        return None
    if number.adjusted() < -scale - 1:
        number = Decimal(0)
    rounded = number.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP, context=_WIDE)
    if rounded != 0 and rounded.adjusted() >= precision - scale:
        return None
    return plain_decimal(rounded)


def plain_decimal(number: Decimal) -> str:
    """A decimal as digits, without an exponent and without a negative zero."""
    shown = format(number, "f")
    return shown[1:] if number == 0 and shown.startswith("-") else shown


def number_of(value: Any) -> Decimal:
    """A stored number, or text that reads as one, as an exact decimal."""
    if isinstance(value, float):
        return Decimal(repr(value))
    if isinstance(value, str) and not compiled(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,6})?").fullmatch(
        value
    ):
        raise Unfit("not a number")
    if not isinstance(value, str | int | Decimal):
        raise Unfit("not a number")
    return Decimal(value)


@functools.lru_cache(maxsize=512)
def compiled(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """A pattern, compiled once."""
    return re.compile(pattern, flags)
