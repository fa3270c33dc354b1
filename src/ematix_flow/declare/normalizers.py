"""Normalization markers: what `Annotated[Text, trim(), lower()]` says about cleaning a column.

A marker is data: a frozen object whose arguments are checked where they are written. What it *means* is written in
`declare/values.py`; the compilers to SQL and to Spark give the same result or refuse to push down. The functions
at the end are the documented spelling; `round` shadows the built-in on purpose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any, ClassVar, Literal, get_args

from ematix_flow.declare.marker_arguments import (
    as_instant,
    check_scalar,
    check_text,
    check_whole,
    chosen_formats,
    default_instant,
    exact,
    is_number,
    user_expression,
)
from ematix_flow.declare.patterns import group_count, replacement_parts
from ematix_flow.declare.timeformats import TimeFormat, time_format
from ematix_flow.errors import InvalidDeclaration, closest, listed

OnFailure = Literal["null", "default", "error"]
Precision = Literal["microsecond", "millisecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year"]
Scalar = bool | int | float | Decimal | str | date | datetime

GREATEST_PRECISION = 38  # digits of the longest decimal that every route can hold

TIMESTAMP_FORMATS = (
    "YYYY-MM-DD HH24:MI:SS.MS",
    "YYYY-MM-DDTHH24:MI:SSOF",
    "YYYY-MM-DDTHH24:MI:SS",
    "YYYY-MM-DD HH24:MI:SS",
    "YYYY-MM-DD",
    "MM/DD/YYYY",
    # Nothing above has these shapes, so they only give a value to what would have none: JavaScript, Python, PostgreSQL.
    "YYYY-MM-DDTHH24:MI:SS.USOF",
    "YYYY-MM-DDTHH24:MI:SS.US",
    "YYYY-MM-DD HH24:MI:SSOF",
    "YYYY-MM-DD HH24:MI:SS.USOF",
)
DATE_FORMATS = ("YYYY-MM-DD", "YYYYMMDD", "MM/DD/YYYY")


@dataclass(frozen=True)
class Normalizer:
    """The base of all markers. `kind` is the name the user wrote."""

    kind: ClassVar[str] = ""
    is_user_sql: ClassVar[bool] = False

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING:
                shown.append(repr(value))
            elif value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"{self.kind}({', '.join(shown)})"


# ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Trim(Normalizer):
    """Strips spaces from both ends; tabs and line ends stay."""

    kind = "trim"


class Lower(Normalizer):
    """Lower case, by Unicode's full mapping."""

    kind = "lower"


class Upper(Normalizer):
    """Upper case, by Unicode's full mapping."""

    kind = "upper"


class EmptyToNull(Normalizer):
    """The empty text becomes NULL."""

    kind = "empty_to_null"


class WhitespaceToNull(Normalizer):
    """Strips spaces; nothing left becomes NULL."""

    kind = "whitespace_to_null"


class EmailNormalize(Normalizer):
    """Strips spaces and lowers the case."""

    kind = "email_normalize"


class PhoneNormalize(Normalizer):
    """Keeps digits and `+`."""

    kind = "phone_normalize"


@dataclass(frozen=True, repr=False)
class Replace(Normalizer):
    """Every occurrence of one text becomes another."""

    old: str
    new: str

    kind: ClassVar[str] = "replace"

    def __post_init__(self) -> None:
        check_text(self.kind, "old", self.old)
        check_text(self.kind, "new", self.new, may_be_empty=True)


@dataclass(frozen=True, repr=False)
class RegexReplace(Normalizer):
    r"""What a pattern matches becomes the replacement; `\1` is its first group."""

    pattern: str
    replacement: str
    flags: str = "g"

    kind: ClassVar[str] = "regex_replace"

    def __post_init__(self) -> None:
        check_text(self.kind, "pattern", self.pattern)
        check_text(self.kind, "replacement", self.replacement, may_be_empty=True)
        if not isinstance(self.flags, str) or set(self.flags) - {"g", "i"} or len(set(self.flags)) < len(self.flags):
            raise InvalidDeclaration(
                f"regex_replace: flags={self.flags!r} is not known.",
                fix="'g' replaces all matches (without it the first), 'i' ignores case: '', 'g', 'i' or 'gi'",
            )
        groups = group_count(self.pattern)
        wanted = max((part for part in replacement_parts(self.replacement) if isinstance(part, int)), default=0)
        if groups is not None and wanted > groups:
            raise InvalidDeclaration(
                f"regex_replace: the replacement names group {wanted}, the pattern {self.pattern!r} has {groups}."
            )

    @property
    def replaces_all(self) -> bool:
        """Every match, not only the first."""
        return "g" in self.flags

    @property
    def ignores_case(self) -> bool:
        """ASCII letters match in both cases."""
        return "i" in self.flags


@dataclass(frozen=True, repr=False)
class Truncate(Normalizer):
    """The first `length` characters."""

    length: int

    kind: ClassVar[str] = "truncate"

    def __post_init__(self) -> None:
        check_whole(self.kind, "n", self.length, least=0)


# ── reading text as something else ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, repr=False)
class Parser(Normalizer):
    """A marker that reads text. What cannot be read becomes NULL, a default, or the end of the load."""

    on_failure: OnFailure = "null"
    default: Any = None

    def _check_failure(self) -> None:
        if self.on_failure not in get_args(OnFailure):
            raise InvalidDeclaration(
                f"{self.kind}: on_failure={self.on_failure!r} is not known.", fix="use 'null', 'default' or 'error'"
            )
        if self.on_failure == "default" and self.default is None:
            raise InvalidDeclaration(f"{self.kind}: on_failure='default' needs default=.")
        if self.on_failure != "default" and self.default is not None:
            raise InvalidDeclaration(f"{self.kind}: default= needs on_failure='default'.")


@dataclass(frozen=True, repr=False)
class ParseInt(Parser):
    r"""Text of the shape `-?\d+` becomes a whole number of 64 bits."""

    kind: ClassVar[str] = "parse_int"

    def __post_init__(self) -> None:
        self._check_failure()
        if self.default is not None:
            check_whole(self.kind, "default", self.default, least=-(2**63), most=2**63 - 1)


@dataclass(frozen=True, repr=False, kw_only=True)
class ParseNumeric(Parser):
    r"""Text of the shape `-?\d+(\.\d+)?` becomes a decimal, rounded half away from zero to the scale."""

    precision: int
    scale: int

    kind: ClassVar[str] = "parse_numeric"

    def __post_init__(self) -> None:
        self._check_failure()
        check_whole(self.kind, "precision", self.precision, least=1, most=GREATEST_PRECISION)
        check_whole(self.kind, "scale", self.scale, least=0, most=self.precision)
        if self.default is not None:
            try:
                value = exact(self.default)
                with localcontext() as context:
                    context.prec = 100
                    rounded = value.quantize(Decimal(1).scaleb(-self.scale), rounding=ROUND_HALF_UP)
                fits = rounded == value and abs(value) < Decimal(10) ** (self.precision - self.scale)
            except (InvalidOperation, ValueError, TypeError):
                fits = False
            if not fits:
                raise InvalidDeclaration(
                    f"parse_numeric: default={self.default!r} does not fit Numeric[{self.precision}, {self.scale}]."
                )
            object.__setattr__(self, "default", rounded)

    def __repr__(self) -> str:
        shown = [str(self.precision), str(self.scale)]
        shown += [] if self.on_failure == "null" else [f"on_failure={self.on_failure!r}"]
        shown += [] if self.default is None else [f"default={self.default!r}"]
        return f"{self.kind}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class ParseTime(Parser):
    """The base of the two time parsers: the first format whose shape matches is used."""

    formats: tuple[str, ...] = ()

    standard: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        self._check_failure()
        for written in self.formats:
            time_format(written)
        if self.on_failure == "error" and len(self.formats) != 1:
            raise InvalidDeclaration(
                f"{self.kind}: on_failure='error' needs exactly one format.", fix="give format='…', or use 'null'"
            )

    @property
    def readings(self) -> tuple[TimeFormat, ...]:
        """The formats in order, read."""
        return tuple(time_format(written) for written in self.formats)

    def __repr__(self) -> str:
        shown = [] if self.formats == self.standard else [f"formats={self.formats!r}"]
        if len(self.formats) == 1:
            shown = [repr(self.formats[0])]
        shown += [] if self.on_failure == "null" else [f"on_failure={self.on_failure!r}"]
        shown += [] if self.default is None else [f"default={self.default!r}"]
        return f"{self.kind}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class ParseTimestamp(ParseTime):
    """Text becomes an instant; without an offset it is UTC. A timestamp or date passes through."""

    kind: ClassVar[str] = "parse_timestamp"
    standard: ClassVar[tuple[str, ...]] = TIMESTAMP_FORMATS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.default is not None:
            object.__setattr__(self, "default", default_instant(self.kind, self.default))


@dataclass(frozen=True, repr=False)
class ParseDate(ParseTime):
    """Text becomes a day; a format with a time gives the day in UTC. A date passes through."""

    kind: ClassVar[str] = "parse_date"
    standard: ClassVar[tuple[str, ...]] = DATE_FORMATS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.default is not None:
            object.__setattr__(self, "default", default_instant(self.kind, self.default).date())


@dataclass(frozen=True, repr=False)
class ParseBool(Normalizer):
    """Words become true or false, whatever their case; any other becomes NULL."""

    truthy: tuple[str, ...] = ("true", "1", "yes", "y")
    falsy: tuple[str, ...] = ("false", "0", "no", "n")

    kind: ClassVar[str] = "parse_bool"

    def __post_init__(self) -> None:
        for name in ("truthy", "falsy"):
            words = getattr(self, name)
            if isinstance(words, str) or not isinstance(words, Sequence) or not words:
                raise InvalidDeclaration(f"parse_bool: {name} takes a tuple of words.")
            for word in words:
                check_text(self.kind, name, word)
            object.__setattr__(self, name, tuple(words))
        both = {word.lower() for word in self.truthy} & {word.lower() for word in self.falsy}
        if both:
            raise InvalidDeclaration(f"parse_bool: {listed(sorted(both))} cannot be both true and false.")


# ── time and numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, repr=False)
class ToTimezone(Normalizer):
    """An instant becomes the wall-clock time of a zone, without a zone. Wall-clock input is taken as UTC."""

    tz: str

    kind: ClassVar[str] = "to_timezone"

    def __post_init__(self) -> None:
        from zoneinfo import ZoneInfo, available_timezones  # reads the zone files only when a zone is declared

        check_text(self.kind, "tz", self.tz)
        try:
            ZoneInfo("" if self.tz in ("localtime", "Factory", "posixrules") else self.tz)  # Java knows none of these
        except (LookupError, ValueError, OSError):
            raise InvalidDeclaration(
                f"to_timezone: there is no time zone '{self.tz}'.",
                fix=closest(self.tz, available_timezones()) or "use a name such as 'Europe/Berlin' or 'UTC'",
            ) from None


@dataclass(frozen=True, repr=False)
class DateTrunc(Normalizer):
    """A time becomes the beginning of its second, day, month…, in UTC."""

    precision: Precision

    kind: ClassVar[str] = "date_trunc"

    def __post_init__(self) -> None:
        written = self.precision.lower() if isinstance(self.precision, str) else self.precision
        singular = written[:-1] if isinstance(written, str) and written.endswith("s") else written
        if singular not in get_args(Precision):
            raise InvalidDeclaration(
                f"date_trunc: precision {self.precision!r} is not known.", fix=f"use {', '.join(get_args(Precision))}"
            )
        object.__setattr__(self, "precision", singular)


@dataclass(frozen=True, repr=False)
class Round(Normalizer):
    """A number rounded half away from zero to so many places; negative places round before the point."""

    precision: int

    kind: ClassVar[str] = "round"

    def __post_init__(self) -> None:
        check_whole(self.kind, "precision", self.precision, least=-GREATEST_PRECISION, most=GREATEST_PRECISION)


@dataclass(frozen=True, repr=False)
class Clamp(Normalizer):
    """Nothing below `low` or above `high`; NULL stays NULL."""

    low: Any
    high: Any

    kind: ClassVar[str] = "clamp"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool | str):
                raise InvalidDeclaration(f"clamp: {name}={value!r} is neither a number nor a time.")
            check_scalar(self.kind, name, value)
        low, high = self.low, self.high
        if is_number(low) != is_number(high) or isinstance(low, datetime) != isinstance(high, datetime):
            raise InvalidDeclaration(f"clamp: {low!r} and {high!r} cannot be compared.")
        if isinstance(low, datetime):
            low, high = as_instant(low), as_instant(high)
        if low > high:
            raise InvalidDeclaration(f"clamp: low={self.low!r} lies above high={self.high!r}.")


# ── NULL ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, repr=False)
class Default(Normalizer):
    """NULL becomes the value."""

    value: Any

    kind: ClassVar[str] = "default"

    def __post_init__(self) -> None:
        check_scalar(self.kind, "value", self.value)


class NotNullOr(Default):
    """NULL becomes the value; another name of `default`."""

    kind = "not_null_or"


@dataclass(frozen=True, repr=False)
class NullIf(Normalizer):
    """The value becomes NULL."""

    value: Any

    kind: ClassVar[str] = "nullif"

    def __post_init__(self) -> None:
        check_scalar(self.kind, "value", self.value)


# ── the user's own SQL ───────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, repr=False)
class Sql(Normalizer):
    """An expression in the source's SQL; the word `col` stands for the value so far."""

    expression: str

    kind: ClassVar[str] = "sql"
    is_user_sql: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "expression", user_expression(self.kind, self.expression))


@dataclass(frozen=True, repr=False)
class Derive(Normalizer):
    """A value computed from the source's columns, in the source's SQL. Stands first."""

    expression: str

    kind: ClassVar[str] = "derive"
    is_user_sql: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "expression", user_expression(self.kind, self.expression))


# ── the documented spelling ──────────────────────────────────────────────────────────────────────────────────────────


def trim() -> Normalizer:
    """Strip spaces (not tabs, not line ends) from both ends."""
    return Trim()


def lower() -> Normalizer:
    """Lower case."""
    return Lower()


def upper() -> Normalizer:
    """Upper case."""
    return Upper()


def empty_to_null() -> Normalizer:
    """`''` becomes NULL; `'  '` stays."""
    return EmptyToNull()


def whitespace_to_null() -> Normalizer:
    """Strip spaces; an empty rest becomes NULL."""
    return WhitespaceToNull()


def replace(old: str, new: str) -> Normalizer:
    """Replace every occurrence of a literal text."""
    return Replace(old, new)


def regex_replace(pattern: str, replacement: str, flags: str = "g") -> Normalizer:
    r"""Replace what a pattern matches. Flags: `g` all matches (else the first), `i` ignore case; `\1` is a group."""
    return RegexReplace(pattern, replacement, flags)


def truncate(n: int) -> Normalizer:
    """Keep the first n characters."""
    return Truncate(n)


def email_normalize() -> Normalizer:
    """Strip spaces and lower the case."""
    return EmailNormalize()


def phone_normalize() -> Normalizer:
    """Keep digits and `+`."""
    return PhoneNormalize()


def parse_timestamp(
    format: str | None = None,  # the documented name
    *,
    formats: Sequence[str] | None = None,
    on_failure: OnFailure = "null",
    default: Any = None,
) -> Normalizer:
    """Read text as an instant."""
    return ParseTimestamp(on_failure, default, chosen_formats("parse_timestamp", format, formats, TIMESTAMP_FORMATS))


def parse_date(
    format: str | None = None,  # the documented name
    *,
    formats: Sequence[str] | None = None,
    on_failure: OnFailure = "null",
    default: Any = None,
) -> Normalizer:
    """Read text as a day."""
    return ParseDate(on_failure, default, chosen_formats("parse_date", format, formats, DATE_FORMATS))


def to_timezone(tz: str) -> Normalizer:
    """An instant as the wall-clock time of a zone."""
    return ToTimezone(tz)


def date_trunc(precision: Precision) -> Normalizer:
    """The beginning of the second, minute, hour, day, week, month, quarter or year."""
    return DateTrunc(precision)


def parse_int(on_failure: OnFailure = "null", default: int | None = None) -> Normalizer:
    """Read text as a whole number."""
    return ParseInt(on_failure, default)


def parse_numeric(precision: int, scale: int, on_failure: OnFailure = "null", default: Any = None) -> Normalizer:
    """Read text as an exact decimal."""
    return ParseNumeric(precision=precision, scale=scale, on_failure=on_failure, default=default)


def round(precision: int) -> Normalizer:  # the documented name
    """Round half away from zero."""
    return Round(precision)


def clamp(low: Any, high: Any) -> Normalizer:
    """Keep a value between two others; NULL stays NULL."""
    return Clamp(low, high)


def parse_bool(
    truthy: Sequence[str] = ("true", "1", "yes", "y"), falsy: Sequence[str] = ("false", "0", "no", "n")
) -> Normalizer:
    """Read words as true or false; any other word becomes NULL."""
    return ParseBool(truthy, falsy)  # type: ignore[arg-type]  # made a tuple, and checked, in __post_init__


def default(value: Scalar) -> Normalizer:
    """NULL becomes the value."""
    return Default(value)


def not_null_or(value: Scalar) -> Normalizer:
    """NULL becomes the value."""
    return NotNullOr(value)


def nullif(value: Scalar) -> Normalizer:
    """The value becomes NULL."""
    return NullIf(value)


def sql(expression: str) -> Normalizer:
    """Your own expression in the source's SQL; `col` is the value so far."""
    return Sql(expression)


def derive(expression: str) -> Normalizer:
    """A value computed from source columns; must be the first marker."""
    return Derive(expression)
