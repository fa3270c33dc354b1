"""Column types: what a table's annotations name. One class per type, used bare (`BigInt`) or called (`BigInt()`)."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ematix_flow.errors import InvalidDeclaration, WrongDeclarationType


@dataclass(frozen=True)
class ColumnType:
    """The base of all column types. Equal types compare equal; `kind` names them in plans and JSON."""

    kind: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """The type as plan data: `{"kind": "numeric", "precision": 12, "scale": 2}`."""
        return {"kind": self.kind, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def __str__(self) -> str:
        arguments = ", ".join(str(getattr(self, f.name)) for f in fields(self))
        return f"{type(self).__name__}[{arguments}]" if arguments else type(self).__name__


class SmallInt(ColumnType):
    """A whole number of 16 bits."""

    kind = "small_int"


class Integer(ColumnType):
    """A whole number of 32 bits."""

    kind = "integer"


class BigInt(ColumnType):
    """A whole number of 64 bits."""

    kind = "big_int"


class Float(ColumnType):
    """A binary floating-point number of 32 bits."""

    kind = "float"


class Double(ColumnType):
    """A binary floating-point number of 64 bits."""

    kind = "double"


class Boolean(ColumnType):
    """True or false."""

    kind = "boolean"


class Text(ColumnType):
    """Text of any length."""

    kind = "text"


class Date(ColumnType):
    """A calendar day."""

    kind = "date"


class Timestamp(ColumnType):
    """Wall-clock time without a zone, to the microsecond."""

    kind = "timestamp"


class TimestampTZ(ColumnType):
    """An instant, kept in UTC, to the microsecond."""

    kind = "timestamp_tz"


class JSON(ColumnType):
    """A JSON document, kept as it was written where the system can."""

    kind = "json"


class JSONB(ColumnType):
    """A JSON document, kept in the system's own parsed form where it has one."""

    kind = "jsonb"


class UUID(ColumnType):
    """A universally unique identifier."""

    kind = "uuid"


class Bytes(ColumnType):
    """Raw bytes."""

    kind = "bytes"


class _NeedsArguments:
    """`String[256]` makes a subclass with the arguments bound, so that `String[256] | None` is an ordinary type."""

    bound: ClassVar[tuple[Any, ...] | None] = None
    wanted: ClassVar[str] = ""

    def __class_getitem__(cls, arguments: Any) -> type[Any]:
        values = arguments if isinstance(arguments, tuple) else (arguments,)
        return _bind(cls, values)  # type: ignore[arg-type]  # a class is hashable, whatever its instances are


@functools.cache
def _bind(cls: type[Any], values: tuple[Any, ...]) -> type[Any]:
    """The subclass of `cls` with its arguments bound; the same arguments give the same class."""
    try:
        cls(*values)  # the arguments are checked where they are written
    except WrongDeclarationType:
        raise
    except TypeError as exc:
        raise WrongDeclarationType(f"{cls.__name__} takes {cls.wanted}.") from exc
    name = f"{cls.__name__}[{', '.join(map(str, values))}]"
    return type(name, (cls,), {"bound": values, "__module__": cls.__module__})


@dataclass(frozen=True)
class String(_NeedsArguments, ColumnType):
    """Text of at most `length` characters: `String[256]`."""

    length: int

    kind: ClassVar[str] = "string"
    wanted: ClassVar[str] = "one whole number, the greatest length: String[256]"

    def __post_init__(self) -> None:
        if not isinstance(self.length, int) or isinstance(self.length, bool):
            raise WrongDeclarationType(f"String takes {self.wanted}.")
        if self.length < 1:
            raise InvalidDeclaration(f"String[{self.length}]: the length must be at least 1.")


@dataclass(frozen=True)
class Numeric(_NeedsArguments, ColumnType):
    """An exact decimal number with `precision` digits, `scale` of them behind the point: `Numeric[12, 2]`."""

    precision: int
    scale: int

    kind: ClassVar[str] = "numeric"
    wanted: ClassVar[str] = "two whole numbers, precision and scale: Numeric[12, 2]"

    def __post_init__(self) -> None:
        for value in (self.precision, self.scale):
            if not isinstance(value, int) or isinstance(value, bool):
                raise WrongDeclarationType(f"Numeric takes {self.wanted}.")
        if self.precision < 1:
            raise InvalidDeclaration(f"{self}: the precision must be at least 1.")
        if not 0 <= self.scale <= self.precision:
            raise InvalidDeclaration(f"{self}: the scale must lie between 0 and the precision.")


Decimal = Numeric

ALL_TYPES: tuple[type[ColumnType], ...] = (
    SmallInt,
    Integer,
    BigInt,
    Float,
    Double,
    Numeric,
    Boolean,
    Text,
    String,
    Date,
    Timestamp,
    TimestampTZ,
    JSON,
    JSONB,
    UUID,
    Bytes,
)
_BY_KIND = {cls.kind: cls for cls in ALL_TYPES}


def to_column_type(written: object) -> ColumnType:
    """The type behind what the user wrote: an instance, a bare class, or `String[256]`.

    Raises:
        TypeError: it is not a column type, or `String` / `Numeric` stands without its arguments.
    """
    if isinstance(written, ColumnType):
        return written
    if not (isinstance(written, type) and issubclass(written, ColumnType)) or written is ColumnType:
        shown = written.__name__ if isinstance(written, type) else repr(written)
        raise WrongDeclarationType(
            f"{shown} is not a column type.",
            fix="use a type of ematix_flow.types, such as BigInt, Text, String[256], Numeric[12, 2] or TimestampTZ",
        )
    if issubclass(written, _NeedsArguments):
        bound = written.bound
        if bound is None:
            raise WrongDeclarationType(f"{written.__name__} requires arguments: {written.wanted}.")
        base = String if issubclass(written, String) else Numeric
        return base(*bound)
    return written()


def column_type_from_dict(data: dict[str, Any]) -> ColumnType:
    """The inverse of `ColumnType.to_dict`."""
    arguments = {key: value for key, value in data.items() if key != "kind"}
    return _BY_KIND[data["kind"]](**arguments)
