"""Markers and row steps as Spark Columns: built-in functions only, so that Spark Connect and Sail can run them too.

What each marker means is written in `declare/values.py`. Values that cannot be read never raise by themselves
(`try_cast` behind a check of their shape); what must fail does so by `raise_error` with a text that
`spark/failures.py` turns back into our error. The session's time zone must be UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame, Window, functions as F, types as t

from ematix_flow.declare import normalizers as n
from ematix_flow.declare.columns import BigInt, ColumnType, Date, Numeric, TimestampTZ
from ematix_flow.declare.fitting import constant
from ematix_flow.declare.patterns import portable, replacement_parts
from ematix_flow.declare.steps import DeduplicateBy, FilterWhere, Limit, OrderTerm, RowStep, SamplePct
from ematix_flow.declare.timeformats import TimeFormat
from ematix_flow.declare.values import Unfit, instant_text, wall_text
from ematix_flow.errors import InvalidPlan
from ematix_flow.spark import native
from ematix_flow.spark.fitting import (
    decimal_of,
    failing,
    fit_column as fit_column,
    integral,
    or_failing,
    refuse_text_of_floats,
)
from ematix_flow.spark.native_forms import group, replacement_text, rounded_double, truncated_date, truncated_time
from ematix_flow.spark.types import from_spark_type, to_spark_type

_STRING = t.StringType()
_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_NESTED = (t.StructType, t.ArrayType, t.MapType, t.VariantType)
_TIMES = (t.DateType, t.TimestampType, t.TimestampNTZType)
_RANK = "ematix_flow_rank"


@dataclass(frozen=True)
class _Value:
    """A Column and its type; None behind the user's own SQL, which only the analyzer understands."""

    column: Column
    type: t.DataType | None


def compile_column(
    normalizers: Sequence[n.Normalizer], column: Column, spark_type: t.DataType, *, name: str = ""
) -> Column:
    """A column with its markers applied, left to right.

    Args:
        normalizers: The markers, in order. `sql` and `derive` hold Spark SQL here.
        column: The column as it was read.
        spark_type: Its type in the frame it belongs to.
        name: The declared column, for messages.

    Raises:
        InvalidPlan: a marker meets a type it cannot work on, or a constant that is no value of the type.
    """
    value = _Value(column, spark_type)
    for marker in normalizers:
        value = _applied(marker, value, name)
    return value.column


def apply_step(frame: DataFrame, step: RowStep) -> DataFrame:
    """The rows of a frame after one row step.

    Raises:
        InvalidPlan: the step names a column that the frame does not have.
    """
    if isinstance(step, FilterWhere):
        return frame.where(F.expr(f"({step.condition}\n)"))
    if isinstance(step, Limit):
        return frame.limit(step.rows)
    if isinstance(step, SamplePct):
        if step.fraction in (0.0, 1.0):
            return frame if step.fraction else frame.limit(0)
        return frame.sample(fraction=step.fraction)
    if isinstance(step, DeduplicateBy):
        return _deduplicated(frame, step)
    raise InvalidPlan(f"Spark does not know the row step '{step.kind}'.")


def column_of(name: str) -> Column:
    """The column of exactly that name, whatever characters it holds."""
    return F.col("`" + name.replace("`", "``") + "`")


def _deduplicated(frame: DataFrame, step: DeduplicateBy) -> DataFrame:
    for name in (*step.keys, *(term.column for term in step.order_by)):
        if name not in frame.columns:
            raise InvalidPlan(
                f"deduplicate_by: there is no column '{name}'.", fix=f"columns: {', '.join(frame.columns)}"
            )
    named = {term.column for term in step.order_by}
    orderable = [f.name for f in frame.schema.fields if not isinstance(f.dataType, t.MapType | t.VariantType)]
    terms = [*step.order_by, *(OrderTerm(name) for name in orderable if name not in named)]
    window = Window.partitionBy(*map(column_of, step.keys)).orderBy(*map(_ordered, terms))
    return frame.withColumn(_RANK, F.row_number().over(window)).where(F.col(_RANK) == 1).drop(_RANK)


def _ordered(term: OrderTerm) -> Column:
    column = column_of(term.column)
    if term.descending:
        return column.desc_nulls_first() if term.nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if term.nulls_first else column.asc_nulls_last()


# ── markers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _applied(marker: n.Normalizer, value: _Value, name: str) -> _Value:
    if isinstance(marker, n.Derive):
        return _Value(F.expr(f"({marker.expression}\n)"), None)
    if isinstance(marker, n.Sql):
        # A lambda is how Spark SQL names an expression; `col` in texts and comments is left alone by its parser.
        body = F.expr(f"col -> ({marker.expression}\n)")
        return _Value(F.call_function("transform", F.array(value.column), body).getItem(0), None)
    for kinds, compiler in _COMPILERS:
        if isinstance(marker, kinds):
            return compiler(marker, value, name)
    raise InvalidPlan(f"Spark does not know the marker {marker!r}.")


def _text(value: _Value, name: str) -> Column:
    """The value as text; nested values as JSON."""
    if isinstance(value.type, t.StringType):
        return value.column
    if isinstance(value.type, t.FloatType | t.DoubleType):
        refuse_text_of_floats(name)
    return F.to_json(value.column) if isinstance(value.type, _NESTED) else value.column.cast("string")


def _text_marker(marker: n.Normalizer, value: _Value, name: str) -> _Value:
    text = _text(value, name)
    return _Value(_TEXT_FUNCTIONS[marker.kind](text), _STRING)


def _empty_to_null(text: Column) -> Column:
    return F.nullif(text, F.lit(""))


_TEXT_FUNCTIONS: dict[str, Callable[[Column], Column]] = {
    "trim": F.trim,
    "lower": F.lower,
    "upper": F.upper,
    "empty_to_null": _empty_to_null,
    "whitespace_to_null": lambda text: _empty_to_null(F.trim(text)),
    "email_normalize": lambda text: F.lower(F.trim(text)),
    "phone_normalize": lambda text: F.regexp_replace(text, "[^0-9+]", ""),
}


def _replace(marker: n.Replace, value: _Value, name: str) -> _Value:
    return _Value(F.replace(_text(value, name), F.lit(marker.old), F.lit(marker.new)), _STRING)


def _truncate(marker: n.Truncate, value: _Value, name: str) -> _Value:
    return _Value(F.substring(_text(value, name), 1, marker.length), _STRING)


def _regex_replace(marker: n.RegexReplace, value: _Value, name: str) -> _Value:
    common = portable(marker.pattern, marker.ignores_case)
    if common is None and native.is_running():
        raise native.refuse(f"apply {marker!r} to column '{name}'", "regex engines disagree about such patterns")
    if common is not None:
        pattern, is_single = common.text("java"), common.starts
    else:
        pattern, is_single = _java_pattern(marker), False
    shift = 0
    if not marker.replaces_all and not is_single:
        # Spark replaces all matches. Tied to the start, behind the shortest possible prefix, there is just the first.
        pattern, shift = rf"\A((?s:.*?))({_renumbered(pattern, 2) if common is None else pattern})", 2
    replacement = group(1) if shift else ""
    for part in replacement_parts(marker.replacement):
        if isinstance(part, int):
            replacement += group(part + shift)
            continue
        escaped = replacement_text(part)
        # `$1` and a digit would read as another group.
        is_ambiguous = replacement and escaped[0].isdigit() and not native.is_running()
        replacement += "\\" + escaped if is_ambiguous else escaped
    return _Value(F.regexp_replace(_text(value, name), F.lit(pattern), F.lit(replacement)), _STRING)


def _java_pattern(marker: n.RegexReplace) -> str:
    """A pattern of Java's own; `$` at its end is the very end here too."""
    pattern = marker.pattern
    body = pattern[:-1]
    if pattern.endswith("$") and (len(body) - len(body.rstrip("\\"))) % 2 == 0:
        pattern = body + r"\z"
    return f"(?i:{pattern})" if marker.ignores_case else f"(?:{pattern})"


def _renumbered(pattern: str, shift: int) -> str:
    """Back-references that still mean their groups after others were put in front."""
    return re.sub(
        r"\\(.)", lambda m: f"\\{int(m[1]) + shift}" if m[1] in "123456789" else m[0], pattern, flags=re.DOTALL
    )


def _settled(marker: n.Parser, given: Column, read: Column, wanted: ColumnType, name: str) -> _Value:
    """What a parser gives: what it read, or what was declared for failure."""
    spark_type = to_spark_type(wanted)
    if marker.on_failure == "error":
        read = or_failing(read, given, wanted, failing(name, str(wanted), marker.kind))
    elif marker.on_failure == "default":
        read = F.coalesce(read, _literal(marker, marker.default, spark_type))
    return _Value(read, spark_type)


def _parse_int(marker: n.ParseInt, value: _Value, name: str) -> _Value:
    column = value.column
    if isinstance(value.type, _INTEGERS):
        read = column.cast("bigint")
    elif isinstance(value.type, t.FloatType | t.DoubleType | t.DecimalType):
        read = integral(column, value.type, t.LongType())
    else:
        text = _text(value, name)
        read = F.when(text.rlike(r"\A-?[0-9]+\z"), text.try_cast("bigint"))
    return _settled(marker, column, read, BigInt(), name)


def _parse_numeric(marker: n.ParseNumeric, value: _Value, name: str) -> _Value:
    wanted = Numeric(marker.precision, marker.scale)
    if isinstance(value.type, (*_INTEGERS, t.FloatType, t.DoubleType, t.DecimalType)):
        read = decimal_of(value.column, value.type, wanted)
    else:
        text = _text(value, name)
        read = F.when(text.rlike(r"\A-?[0-9]+(?:\.[0-9]+)?\z"), decimal_of(text, _STRING, wanted))
    return _settled(marker, value.column, read, wanted, name)


def _parse_time(marker: n.ParseTime, value: _Value, name: str) -> _Value:
    wanted: ColumnType = Date() if isinstance(marker, n.ParseDate) else TimestampTZ()
    if isinstance(value.type, _TIMES):
        read = value.column.cast(to_spark_type(wanted))
    else:
        text, formats = _text(value, name), marker.readings
        only_days = isinstance(wanted, Date) and not any(reading.has_time for reading in formats)
        iso = F.when(_has_shape(text, formats[0]), _iso(text, formats[0], only_days))
        for reading in formats[1:]:
            iso = iso.when(_has_shape(text, reading), _iso(text, reading, only_days))
        if only_days:
            day = iso.try_cast("date")
            read = F.when(day >= F.lit("0001-01-01").cast("date"), day)
        else:
            moment = iso.try_cast("timestamp")
            first, last = F.lit("0001-01-01T00:00:00Z"), F.lit("9999-12-31T23:59:59.999999Z")
            read = F.when(moment.between(first.cast("timestamp"), last.cast("timestamp")), moment)
            read = read.cast(to_spark_type(wanted))
    return _settled(marker, value.column, read, wanted, name)


def _has_shape(text: Column, reading: TimeFormat) -> Column:
    return text.rlike(rf"\A{reading.pattern}\z")


def _iso(text: Column, reading: TimeFormat, only_day: bool) -> Column:
    """A text of a format's shape, written as ISO 8601."""
    pattern = rf"\A{reading.pattern}\z"
    iso = reading.iso(group)
    if only_day:
        return F.regexp_replace(text, pattern, iso.partition("T")[0])
    if not reading.is_twelve_hour:
        return F.regexp_replace(text, pattern, iso)
    hour_group, meridiem = group(reading.group("hour12") or 0), group(reading.group("meridiem") or 0)
    day, _, clock = iso.partition("T")
    written = F.regexp_replace(text, pattern, hour_group).cast("int")
    is_afternoon = F.upper(F.regexp_replace(text, pattern, meridiem)) == "PM"
    hour = F.when(written.between(1, 12), written % 12 + F.when(is_afternoon, 12).otherwise(0))
    return F.concat(
        F.regexp_replace(text, pattern, f"{day}T"),
        F.lpad(hour.cast("string"), 2, "0"),
        F.regexp_replace(text, pattern, clock.removeprefix(hour_group)),
    )


def _parse_bool(marker: n.ParseBool, value: _Value, name: str) -> _Value:
    if isinstance(value.type, t.BooleanType):
        return value
    word = F.lower(_text(value, name))
    truthy, falsy = [w.lower() for w in marker.truthy], [w.lower() for w in marker.falsy]
    return _Value(F.when(word.isin(*truthy), True).when(word.isin(*falsy), False), t.BooleanType())


def _to_timezone(marker: n.ToTimezone, value: _Value, name: str) -> _Value:
    _need(marker, value, _TIMES, "a time", "put parse_timestamp() in front")
    wall = value.column.cast("timestamp_ntz")
    return _Value(F.convert_timezone(F.lit("UTC"), F.lit(marker.tz), wall), t.TimestampNTZType())


def _date_trunc(marker: n.DateTrunc, value: _Value, name: str) -> _Value:
    _need(marker, value, _TIMES, "a time", "put parse_timestamp() in front")
    if isinstance(value.type, t.DateType):
        if marker.precision in ("week", "month", "quarter", "year"):
            if native.is_running():
                return _Value(truncated_date(value.column, marker.precision), value.type)
            return _Value(F.trunc(value.column, marker.precision), value.type)
        return value
    if native.is_running():
        kind = value.type or t.TimestampType()
        return _Value(truncated_time(value.column, kind, marker.precision), value.type)
    cut = F.date_trunc(marker.precision, value.column)
    return _Value(cut if value.type is None else cut.cast(value.type), value.type)


def _round(marker: n.Round, value: _Value, name: str) -> _Value:
    numbers = (*_INTEGERS, t.FloatType, t.DoubleType, t.DecimalType)
    _need(marker, value, numbers, "a number", "put parse_numeric() in front")
    if isinstance(value.type, _INTEGERS) and marker.precision >= 0:
        return value
    if isinstance(value.type, t.DecimalType):
        places = marker.precision
        if places >= value.type.scale:
            return value
        scale = max(places, 0)
        digits = min(value.type.precision - value.type.scale + scale + 1, n.GREATEST_PRECISION)
        wanted = t.DecimalType(max(digits, scale + 1), scale)
        return _Value(F.round(value.column, places).cast(wanted), wanted)
    if native.is_running() and isinstance(value.type, t.FloatType | t.DoubleType):
        return _Value(rounded_double(value.column, value.type, marker.precision), value.type)
    return _Value(F.round(value.column, marker.precision), value.type)


def _clamp(marker: n.Clamp, value: _Value, name: str) -> _Value:
    kinds = (*_INTEGERS, t.FloatType, t.DoubleType, t.DecimalType, *_TIMES)
    _need(marker, value, kinds, "a number or a time", "put a parse marker in front")
    low, high = _literal(marker, marker.low, value.type), _literal(marker, marker.high, value.type)
    column = value.column
    clamped = F.when(column < low, low).when(column > high, high).otherwise(column)
    return _Value(clamped, _widened(value.type, (marker.low, marker.high)))


def _default(marker: n.Default, value: _Value, name: str) -> _Value:
    filled = F.coalesce(value.column, _literal(marker, marker.value, value.type))
    return _Value(filled, _widened(value.type, (marker.value,)))


def _nullif(marker: n.NullIf, value: _Value, name: str) -> _Value:
    if value.type is not None:
        try:
            constant(marker.value, from_spark_type(value.type).kind)
        except Unfit:
            return value  # what is no value of the type is never equal to one
    return _Value(F.nullif(value.column, _literal(marker, marker.value, value.type)), value.type)


def _widened(given: t.DataType | None, values: tuple[Any, ...]) -> t.DataType | None:
    """The type Spark gives a choice between the column and constants."""
    if isinstance(given, t.ByteType | t.ShortType | t.IntegerType):
        return t.LongType()
    if not isinstance(given, t.DecimalType):
        return given
    whole, scale = given.precision - given.scale, given.scale
    for value in values:
        number = constant(value, "numeric")
        scale = max(scale, -int(number.as_tuple().exponent))
        whole = max(whole, number.adjusted() + 1)
    if whole + scale > n.GREATEST_PRECISION:
        raise InvalidPlan("A constant has more digits than every route can hold.", fix="give it fewer digits")
    return t.DecimalType(whole + scale, scale)


def _literal(marker: n.Normalizer, value: Any, spark_type: t.DataType | None) -> Column:
    """A constant as a value of the column's type, or of its own behind the user's SQL."""
    try:
        fitted = value if spark_type is None else constant(value, from_spark_type(spark_type).kind)
    except Unfit as exc:
        met = spark_type.simpleString() if spark_type is not None else "unknown type"
        raise InvalidPlan(f"{marker!r} meets a column of Spark's {met}: {exc}.") from None
    if isinstance(fitted, datetime):
        # As text, since a naive datetime would be read in this machine's zone.
        if fitted.tzinfo is None and spark_type is not None:
            return F.lit(wall_text(fitted)).cast("timestamp_ntz")
        return F.lit(instant_text(fitted)).cast("timestamp")
    if isinstance(fitted, date):
        return F.lit(fitted.isoformat()).cast("date")
    if isinstance(fitted, Decimal):
        scale = max(-int(fitted.as_tuple().exponent), 0)
        return F.lit(format(fitted, "f")).cast(t.DecimalType(max(fitted.adjusted() + 1, 1) + scale, scale))
    if isinstance(fitted, bool) or not isinstance(fitted, int | float):
        return F.lit(fitted)
    if isinstance(spark_type, t.FloatType):
        return F.lit(fitted).cast("float")
    return F.lit(fitted).cast("bigint") if isinstance(fitted, int) else F.lit(fitted)


def _need(marker: n.Normalizer, value: _Value, kinds: tuple[type[t.DataType], ...], wanted: str, fix: str) -> None:
    if value.type is not None and not isinstance(value.type, kinds):
        raise InvalidPlan(f"{marker!r} needs {wanted}, not Spark's {value.type.simpleString()}.", fix=fix)


_COMPILERS: tuple[tuple[Any, Callable[[Any, _Value, str], _Value]], ...] = (
    (
        (n.Trim, n.Lower, n.Upper, n.EmptyToNull, n.WhitespaceToNull, n.EmailNormalize, n.PhoneNormalize),
        _text_marker,
    ),
    (n.Replace, _replace),
    (n.RegexReplace, _regex_replace),
    (n.Truncate, _truncate),
    (n.ParseInt, _parse_int),
    (n.ParseNumeric, _parse_numeric),
    (n.ParseTime, _parse_time),
    (n.ParseBool, _parse_bool),
    (n.ToTimezone, _to_timezone),
    (n.DateTrunc, _date_trunc),
    (n.Round, _round),
    (n.Clamp, _clamp),
    (n.Default, _default),
    (n.NullIf, _nullif),
)
