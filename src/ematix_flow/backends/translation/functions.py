"""Functions known by name only: those that Spark calls differently, and those it would take for something else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.translation.kinds import kind
from ematix_flow.backends.translation.rules import Rule, Task, call, cast, constant, number, operation, text_constant
from ematix_flow.backends.translation.times import part_of

if TYPE_CHECKING:
    from sqlglot import exp

_PARTS_OF_DUCKDB = frozenset({"weekday", "isoyear", "decade", "millisecond", "microsecond", "isodow"})
_DIFFERENT = {
    "hash": "hashes differ between systems",
    "date_sub": "it counts whole units in a way of its own",
    "datesub": "it counts whole units in a way of its own",
    "age": "years and months of different lengths are counted in a way of its own",
    "format": "its placeholders differ",
    "list_position": "a missing element is NULL there and 0 in Spark",
    "array_position": "a missing element is NULL there and 0 in Spark",
    "list_sort": "NULLs are put in another place",
    "array_sort": "NULLs are put in another place",
    "list_distinct": "NULLs are dropped there and kept in Spark",
    "array_distinct": "NULLs are dropped there and kept in Spark",
    "div": "Spark has it as an operator only",
    "timezone": "time zones are applied in another order",
    "regexp_match": "it gives a list of groups",
    "regexp_matches": "it gives a set of lists of groups",
    "regexp_split_to_array": "its patterns differ",
    "regexp_split_to_table": "its patterns differ",
    "width_bucket": "borders are counted differently",
}
_RENAMED = {"make_array": "array", "approx_percentile_cont": "approx_percentile", "to_unixtime": "unix_timestamp"}
_FROM_EPOCH = {
    "to_timestamp_micros": "timestamp_micros",
    "to_timestamp_millis": "timestamp_millis",
    "to_timestamp_seconds": "timestamp_seconds",
    "from_unixtime": "timestamp_seconds",
}
_ARROW_TYPES = {
    **{f"Int{bits}": name for bits, name in ((8, "tinyint"), (16, "smallint"), (32, "int"), (64, "bigint"))},
    **{f"UInt{bits}": name for bits, name in ((8, "smallint"), (16, "int"), (32, "bigint"), (64, "decimal(20, 0)"))},
    "Float32": "float",
    "Float64": "double",
    "Utf8": "string",
    "LargeUtf8": "string",
    "Utf8View": "string",
    "Boolean": "boolean",
    "Binary": "binary",
    "Date32": "date",
}
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}


def _named(node: exp.Expr, task: Task) -> exp.Expr | None:
    name, given = node.name.lower(), node.expressions
    if name in _DIFFERENT:
        raise task.refused(node, f"{name}() cannot be taken over: {_DIFFERENT[name]}.")
    if name == "date_part" and len(given) == 2 and text_constant(given[0]) is not None:
        return part_of(text_constant(given[0]) or "", given[1], node, task)
    if task.family == "duckdb" and len(given) == 1 and name in _PARTS_OF_DUCKDB:
        return part_of(name, given[0], node, task)
    if task.family == "duckdb" and name == "yearweek" and len(given) == 1:
        year = operation("Mul", part_of("ISOYEAR", given[0], node, task), number(100))
        return operation("Add", year, part_of("WEEK", given[0], node, task))
    if task.sql.dialect == "datafusion":
        return _of_datafusion(name, node, task)
    return None


def _of_datafusion(name: str, node: exp.Expr, task: Task) -> exp.Expr | None:
    given = node.expressions
    if name in _RENAMED:
        return call(_RENAMED[name], *given)
    if name in (*_FROM_EPOCH, "to_timestamp_nanos") and len(given) == 1:
        if kind(given[0]).name == "text" or kind(given[0]).is_time:
            return cast(given[0], "timestamp")
        if name == "to_timestamp_nanos":  # Spark's times have microseconds
            return call("timestamp_micros", operation("IntDiv", given[0], number(1000)))
        return call(_FROM_EPOCH[name], *given)
    if name == "arrow_cast" and len(given) == 2:
        wanted = text_constant(given[1]) or ""
        decimal = re.fullmatch(r"Decimal(?:128|256)\((\d+), *(\d+)\)", wanted)
        if wanted.startswith("Timestamp("):
            return cast(given[0], "timestamp_ntz" if "None" in wanted else "timestamp")
        to = f"decimal({decimal[1]}, {decimal[2]})" if decimal else _ARROW_TYPES.get(wanted)
        if to is None:
            raise task.refused(given[1], "this Arrow type has no counterpart in Spark.")
        return cast(given[0], to)
    return None


def _bins(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`date_bin`: the start of the stretch of time that a moment lies in."""
    from sqlglot import exp

    width = _seconds(node.this)
    if width is None:
        raise task.refused(node.this, "date_bin needs a written width of days or less: interval '15 minutes'.")
    micros = call("unix_micros", cast(node.expression, "timestamp"))
    origin = node.args.get("origin") or node.args.get("zone") or node.args.get("unit")
    since = micros
    if isinstance(origin, exp.Var):  # a time that is written as text is taken for a unit by who parsed it
        origin = exp.Literal.string(origin.name)
    if isinstance(origin, exp.Expr):
        since = operation("Sub", micros, call("unix_micros", cast(origin, "timestamp")))
    return call("timestamp_micros", operation("Sub", micros, call("pmod", since, number(width * 1_000_000))))


def _seconds(width: exp.Expr) -> int | None:
    from sqlglot import exp

    if isinstance(width, exp.Interval) and width.args.get("unit") is not None:
        count = constant(width.this) if text_constant(width.this) is None else _whole(text_constant(width.this))
        unit = width.args["unit"].name.lower().rstrip("s")
        return count * _UNITS[unit] if count is not None and unit in _UNITS else None
    written = re.fullmatch(r"\s*(\d+)\s*([a-z]+?)s?\s*", (text_constant(width) or "").lower())
    return int(written[1]) * _UNITS[written[2]] if written and written[2] in _UNITS else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def _refusing(reason: str) -> Rule:
    """For functions that sqlglot knows, and Spark has with another meaning."""

    def rule(node: exp.Expr, task: Task) -> exp.Expr | None:
        raise task.refused(node, f"it cannot be taken over: {reason}.")

    return rule


def _encoded(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`encode(bytes, 'hex')`: there it says how bytes become text, here in which alphabet a text is written."""
    if task.family != "postgres":
        return None
    how = (text_constant(node.args.get("charset")) or "").lower()
    made = {"hex": "hex", "base64": "base64"}.get(how)
    if made is None:
        raise task.refused(node, "only encode(…, 'hex') and encode(…, 'base64') can be taken over.")
    encoded = call(made, cast(node.this, "binary"))
    return call("lower", encoded) if how == "hex" else encoded


def _rows_counted(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`count()` is DuckDB's short form of `count(*)`."""
    from sqlglot import exp

    return None if node.this is not None else exp.Count(this=exp.Star(), big_int=True)


RULES: Mapping[str, Rule] = {
    "Count": _rows_counted,
    "Encode": _encoded,
    "Anonymous": _named,
    "DateBin": _bins,
    "ArraySort": _refusing(_DIFFERENT["array_sort"]),
    "SortArray": _refusing(_DIFFERENT["array_sort"]),
    "ArrayDistinct": _refusing(_DIFFERENT["array_distinct"]),
    "ArrayPosition": _refusing(_DIFFERENT["array_position"]),
    "ArraySlice": _refusing("its last argument is the end there and the length in Spark; write l[1:3]"),
    "Kurtosis": _refusing("Spark takes the rows for the whole population"),
    "Skewness": _refusing("Spark takes the rows for the whole population"),
    "JSONExtract": _refusing("it gives JSON there and text in Spark; use ->> for text"),
    "RegexpSplit": _refusing(_DIFFERENT["regexp_split_to_array"]),
    "AtTimeZone": _refusing("Spark shifts the clock where others convert"),
    "SHA2Digest": _refusing("it gives bytes there and text in Spark"),
}
