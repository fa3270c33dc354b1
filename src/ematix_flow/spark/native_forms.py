"""Expressions that the native engine would work out differently from Spark, written so that both agree.

Every form here exists because the plain one gave another value, or none, where Spark gives one; `tests/spark` runs the
same tables of values through both.
"""

from __future__ import annotations

from pyspark.sql import Column, functions as F, types as t

from ematix_flow.spark import native

_NUMBER = r"\A[\x00-\x20]*([+-]?)([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]{1,4}))?[\x00-\x20]*\z"
_HAS_DIGIT = r"\A[\x00-\x20]*[+-]?(?:[0-9]|\.[0-9])"
_MOST_ZEROS = 80
_MOST_PLACES = 18
_DAY = r"\A[\x00-\x20]*([+-]?[0-9]{4,7}-[0-9]{1,2}-[0-9]{1,2})(?:[ T](?s:.*))?[\x00-\x20]*\z"
_MICROS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}


def group(number: int) -> str:
    """A group of the pattern, in the words of a replacement."""
    return f"${{{number}}}" if native.is_running() else f"${number}"


def replacement_text(text: str) -> str:
    """A text that stands for itself in a replacement."""
    return text.replace("$", "$$") if native.is_running() else text.replace("\\", "\\\\").replace("$", "\\$")


def text_to_boolean(text: Column) -> Column:
    """Sail also takes `on` and `off`."""
    return F.when(~F.lower(F.trim(text)).isin("on", "off"), text.try_cast("boolean"))


def text_to_date(text: Column) -> Column:
    """Sail takes no blanks around a date and nothing behind it; Spark takes a time and does not look at it."""
    return F.when(text.rlike(_DAY), F.regexp_replace(text, _DAY, group(1)).try_cast("date")).otherwise(
        text.try_cast("date")
    )


def text_to_decimal(text: Column, wanted: t.DecimalType) -> Column:
    """Sail knows no exponents, takes other blanks than Spark, and gives up on texts of many digits."""
    sign, whole, fraction, exponent = (F.regexp_replace(text, _NUMBER, group(n)) for n in range(1, 5))
    digits = F.concat(whole, fraction)
    point = F.length(whole) + F.coalesce(exponent.try_cast("int"), F.lit(0))
    point = F.greatest(F.least(point, F.lit(_MOST_ZEROS)), F.lit(-_MOST_ZEROS))
    shifted = (
        F.when(point <= 0, F.concat(F.lit("0."), F.repeat(F.lit("0"), -point), digits))
        .when(point >= F.length(digits), F.concat(digits, F.repeat(F.lit("0"), point - F.length(digits))))
        .otherwise(
            F.concat(F.substring(digits, F.lit(1), point), F.lit("."), F.substring(digits, point + 1, F.length(digits)))
        )
    )
    plain = F.when(text.contains("e") | text.contains("E"), F.concat(sign, shifted)).otherwise(text)
    # The first digit that is dropped decides how to round.
    cut = F.regexp_replace(
        plain, rf"\A([\x00-\x20]*[+-]?[0-9]*\.[0-9]{{{wanted.scale + 1}}})[0-9]*([\x00-\x20]*)\z", group(1) + group(2)
    )
    return F.when(text.rlike(_NUMBER) & text.rlike(_HAS_DIGIT), cut.try_cast(wanted))


def double_to_decimal(column: Column, wanted: t.DecimalType) -> Column:
    """Spark rounds the shortest text of a double, Sail its bits."""
    return text_to_decimal(column.cast("double").cast("string"), wanted)


def rounded_double(column: Column, kind: t.DataType, places: int) -> Column:
    """The same for rounding; what is so large that it has no places is left alone."""
    if places > _MOST_PLACES:
        raise native.refuse(f"round a floating-point number to {places} places", f"it is exact up to {_MOST_PLACES}")
    exact = double_to_decimal(column, t.DecimalType(38, max(places, 0) or _MOST_PLACES if places < 0 else places))
    rounded = F.round(exact, places) if places < 0 else exact
    return F.when(F.abs(column) < F.lit(1e17), rounded.cast("string").cast("double").cast(kind)).otherwise(column)


def truncated_date(day: Column, precision: str) -> Column:
    """The first day of a date's week, month, quarter or year; Sail's own functions end with the year 2262."""
    if precision == "week":
        number = F.unix_date(day)
        return F.date_from_unix_date((number - F.pmod(number + 3, F.lit(7))).cast("int"))
    month = {"month": F.month(day), "quarter": F.quarter(day) * 3 - 2, "year": F.lit(1)}[precision]
    return F.make_date(F.year(day), month.cast("int"), F.lit(1))


def truncated_time(moment: Column, kind: t.DataType, precision: str) -> Column:
    """The beginning of a time's second, day, month …; for the same reason."""
    if precision not in _MICROS:
        return truncated_date(moment.cast("date"), precision).cast(kind)
    micros = F.unix_micros(moment.cast("timestamp"))
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(_MICROS[precision]))).cast(kind)
