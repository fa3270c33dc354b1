"""Casting a column to its declared type so that a value that does not fit fails the load, and no value is bent."""

from __future__ import annotations

from uuid import uuid4

from pyspark.sql import Column, functions as F, types as t

from ematix_flow.contracts import refusals
from ematix_flow.declare import columns as c
from ematix_flow.errors import InvalidPlan
from ematix_flow.spark import native, native_forms
from ematix_flow.spark.nested_json import json_text
from ematix_flow.spark.types import from_spark_type, to_spark_type

_INTEGERS = (c.SmallInt, c.Integer, c.BigInt)
_FLOATS = (c.Float, c.Double)
_TIMES = (c.Date, c.Timestamp, c.TimestampTZ)
_TEXTS = (c.Text, c.String, c.JSON, c.JSONB, c.UUID)
_BITS: dict[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
# Spark's own defaults let single quotes and NaN pass, and refuse numbers of more than 1,000 digits.
_STRICT_JSON = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false", "maxNumLen": str(2**31 - 1)}
_YEARS: dict[type[c.ColumnType], tuple[str, str]] = {
    c.Date: ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    c.Timestamp: ("TIMESTAMP_NTZ'0001-01-01 00:00:00'", "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'"),
    c.TimestampTZ: ("TIMESTAMP_LTZ'0001-01-01 00:00:00Z'", "TIMESTAMP_LTZ'9999-12-31 23:59:59.999999Z'"),
}
_HYPHENATED = "$1-$2-$3-$4-$5"
_UUID = r"\A([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})\z"


def fit_column(column: Column, from_type: t.DataType, to: c.ColumnType, name: str) -> Column:
    """The column in its declared type.

    A number becomes a whole one only when it is whole; decimals are rounded half away from zero to their scale and fail
    when too large; text is read by an ANSI cast; `String[n]` fails on longer text, JSON on what is not one document.
    The failure names column and type and never the value.

    Args:
        column: The normalized column.
        from_type: Its Spark type.
        to: The declared type.
        name: The declared name.

    Raises:
        InvalidPlan: values of this type can never become the declared one.
    """
    fitted, may_fail = _fitted(column, from_type, to, name)
    wanted = str(to)
    if isinstance(to, c.String):
        fitted = F.when(F.length(fitted) > to.length, failing(name, wanted)).otherwise(fitted)
    if isinstance(to, _TIMES):
        fitted, may_fail = _within_years(fitted, to), True
        if isinstance(from_spark_type(from_type), _TIMES):
            wanted = f"{to} of the years 1 to 9999"
    if not may_fail:
        return fitted
    return or_failing(fitted, column, to, failing(name, wanted))


def or_failing(fitted: Column, given: Column, to: c.ColumnType, failure: Column) -> Column:
    """What was made of a value, and failure where there was a value and nothing was made of it."""
    if native.is_running() and isinstance(to, c.Boolean | c.Bytes):
        # There a failure in a choice between truth values is worked out for all rows, needed or not, and a failure is
        # no choice beside bytes.
        return F.when(fitted.isNotNull(), fitted).when(given.isNotNull(), failure.cast(to_spark_type(to)))
    # One evaluation: Spark would work a cast out twice that stands in a condition and in its branch.
    return F.coalesce(fitted, F.when(given.isNotNull(), failure))


def or_required(fitted: Column, to: c.ColumnType, failure: Column) -> Column:
    """A value, and failure where there is none."""
    return or_failing(fitted, F.lit(True), to, failure)


def typed_column(
    column: Column, given: t.DataType, source: c.ColumnType | None, name: str
) -> tuple[Column, t.DataType]:
    """A column in the type its source says it has, for sources that hand times and exact numbers over as text.

    Markers and row steps see values, not their spelling: a decimal is ordered as a number, a time can be shifted.
    """
    if isinstance(given, t.StringType) and isinstance(source, (*_TIMES, c.Numeric)):
        return fit_column(column, given, source, name), to_spark_type(source)
    return column, given


def fitted_or_null(column: Column, from_type: t.DataType, to: c.ColumnType, name: str) -> Column:
    """The same, with NULL for what does not fit: to count such rows instead of failing."""
    fitted, _ = _fitted(column, from_type, to, name)
    if isinstance(to, _TIMES):
        return _within_years(fitted, to)
    return F.when(F.length(fitted) <= to.length, fitted) if isinstance(to, c.String) else fitted


def failing(column: str, wanted: str, marker: str | None = None) -> Column:
    """A Column that fails the query with our error when a row reaches it."""
    return F.raise_error(F.lit(refusals.unfit(column, wanted, marker)))


def integral(column: Column, given: t.DataType, wanted: t.DataType) -> Column:
    """A number as a whole one, NULL when it is not whole or too large."""
    whole = column.try_cast(wanted)
    if isinstance(given, t.DecimalType):
        return F.when(whole == column, whole)
    # The greatest whole numbers are rounded up when made a double, so the bound is strict.
    bits = _BITS[type(wanted)]
    return F.when((whole.cast("double") == column) & (column < F.lit(2.0 ** (bits - 1))), whole)


def _fitted(column: Column, from_type: t.DataType, to: c.ColumnType, name: str) -> tuple[Column, bool]:
    """The cast, and whether it can give NULL for a value."""
    wanted = to_spark_type(to)
    if isinstance(from_type, t.NullType):
        return column.cast(wanted), False
    if from_type == wanted and not isinstance(wanted, t.StringType):
        return column, False
    given = from_spark_type(from_type)
    if isinstance(given, c.JSON):
        if isinstance(to, _TEXTS) and not isinstance(to, c.UUID):
            return json_text(column, from_type), False
    elif isinstance(given, _TEXTS):
        return _from_text(column, to, wanted)
    elif isinstance(given, _INTEGERS):
        if isinstance(to, (*_INTEGERS, c.Numeric)):
            return column.try_cast(wanted), True
        if isinstance(to, (*_FLOATS, c.Text, c.String)):
            return column.cast(wanted), False
        if isinstance(to, c.Boolean):
            return F.when(column == 0, False).when(column == 1, True), True
    elif isinstance(given, (c.Numeric, *_FLOATS)):
        if isinstance(to, _INTEGERS):
            return integral(column, from_type, wanted), True
        if isinstance(to, c.Numeric):
            return decimal_of(column, from_type, to), True
        if isinstance(to, c.Float) and not isinstance(given, c.Float):
            return _narrowed(column), True
        if isinstance(to, (*_FLOATS, c.Text, c.String)):
            if isinstance(given, _FLOATS) and not isinstance(to, _FLOATS):
                refuse_text_of_floats(name)
            return column.cast(wanted), False
    elif isinstance(given, c.Boolean):
        if isinstance(to, (c.Boolean, *_INTEGERS, c.Text, c.String)):
            return column.cast(wanted), False
    elif isinstance(given, _TIMES):
        if isinstance(to, (*_TIMES, c.Text, c.String)):
            return column.cast(wanted), False
    elif isinstance(given, c.Bytes) and isinstance(to, c.Bytes):
        return column, False
    raise InvalidPlan(
        f"Column '{name}' is {given} in the source and cannot become {to}.",
        fix="change the declared type, or convert it in the source query",
    )


def _from_text(column: Column, to: c.ColumnType, wanted: t.DataType) -> tuple[Column, bool]:
    if isinstance(to, c.UUID):
        lowered = F.lower(column)
        return F.when(lowered.rlike(_UUID), F.regexp_replace(lowered, _UUID, _HYPHENATED)), True
    if isinstance(to, c.JSON | c.JSONB):
        return F.when(_is_json(column), column), True
    if isinstance(to, _TEXTS):
        return column, False
    if isinstance(to, c.Bytes):
        return column.cast(wanted), False
    if isinstance(to, c.Float):
        return _narrowed(column.try_cast("double")), True
    if native.is_running() and isinstance(to, c.Boolean):
        return native_forms.text_to_boolean(column), True
    if native.is_running() and isinstance(to, c.Date):
        return native_forms.text_to_date(column), True
    if isinstance(to, c.Numeric):
        return decimal_of(column, t.StringType(), to), True
    return column.try_cast(wanted), True


def decimal_of(column: Column, given: t.DataType, to: c.Numeric) -> Column:
    """A number or the text of one as an exact decimal, rounded half away from zero; NULL when it does not fit."""
    wanted = to_spark_type(to)
    assert isinstance(wanted, t.DecimalType)
    if native.is_running() and isinstance(given, t.StringType):
        return native_forms.text_to_decimal(column, wanted)
    if native.is_running() and isinstance(given, t.FloatType | t.DoubleType):
        return native_forms.double_to_decimal(column, wanted)
    return column.try_cast(wanted)


def refuse_text_of_floats(name: str) -> None:
    """Sail and Java spell floating-point numbers differently, and texts that differ are other values."""
    if native.is_running():
        raise native.refuse(
            f"write the floating-point column '{name}' as text",
            "it spells such numbers in another way than Spark",
            fix="declare it Double or Numeric, or run this pipeline with engine='spark'",
        )


def _within_years(column: Column, to: c.ColumnType) -> Column:
    """A time that every system can hold, and NULL for one before the year 1, after 9999, or at no end of time at all.

    Spark has far more years, and a driver that knows no infinity hands it over as one of those.
    """
    first, last = _YEARS[type(to)]
    return F.when(column.between(F.expr(first), F.expr(last)), column)


def _is_json(column: Column) -> Column:
    """True for a text that is one JSON document, and False or NULL for any other.

    Spark stops reading when it has one document, whatever comes behind. So the text becomes the first of two elements:
    the second is found only when the first was read to its end, and was one.
    """
    end = uuid4().hex
    pair = F.concat(F.lit("["), column, F.lit(f',"{end}"]'))
    if native.is_running():  # its `from_json` stops at numbers that no double holds
        return F.get_json_object(pair, "$[1]") == F.lit(end)
    return F.get(F.from_json(pair, t.ArrayType(t.StringType()), _STRICT_JSON), F.lit(1)) == F.lit(end)


def _narrowed(column: Column) -> Column:
    """A double in 32 bits; NULL when it is too large for them."""
    narrow = column.cast("double").cast("float")
    too_large = (F.abs(narrow) == F.lit(float("inf"))) & (F.abs(column.cast("double")) != F.lit(float("inf")))
    return F.when(~too_large, narrow)
