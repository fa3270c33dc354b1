"""Times that come out differently: parts, differences, sums with intervals, names of days."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.translation.kinds import kind
from ematix_flow.backends.translation.rules import (
    Rule,
    Task,
    call,
    cast,
    constant,
    number,
    operation,
    string,
)

if TYPE_CHECKING:
    from sqlglot import exp

_SECONDS = {"HOUR": 3600, "MINUTE": 60, "SECOND": 1}
_MICROS = 1_000_000
_PLAIN_PARTS = frozenset({"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "QUARTER", "WEEK", "DOY"})
_NAMES = {
    "DAYOFWEEK": "DOW",
    "WEEKDAY": "DOW",
    "DAYOFYEAR": "DOY",
    "WEEKOFYEAR": "WEEK",
    "SECONDS": "SECOND",
    "MILLISECOND": "MILLISECONDS",
    "MICROSECOND": "MICROSECONDS",
    "YEARS": "YEAR",
    "MONTHS": "MONTH",
    "DAYS": "DAY",
    "HOURS": "HOUR",
    "MINUTES": "MINUTE",
    "QUARTERS": "QUARTER",
    "WEEKS": "WEEK",
    "DAYOFMONTH": "DAY",
}


def part_of(name: str, value: exp.Expr, node: exp.Expr, task: Task) -> exp.Expr:
    """One part of a time, as DuckDB and PostgreSQL number it."""
    part = _NAMES.get(name.upper(), name.upper())
    if kind(value).name == "interval":
        return _part_of_interval(part, value, node, task)
    if part in _PLAIN_PARTS:
        return call("date_part", string(part), value)
    if part == "DOW":  # Sunday is 0 there and 1 here
        return operation("Sub", call("dayofweek", value), number(1))
    if part == "ISODOW":
        return operation("Add", call("weekday", value), number(1))
    if part == "ISOYEAR":
        return call("date_part", string("YEAROFWEEK"), value)
    if part == "DECADE":
        return cast(call("floor", operation("Div", call("year", value), number(10))), "bigint")
    if part == "EPOCH":
        micros = call("unix_micros", cast(value, "timestamp"))
        return operation("Div", cast(micros, "double"), number(_MICROS))
    if part in ("SECOND", "MILLISECONDS", "MICROSECONDS"):
        second = call("date_part", string("SECOND"), value)
        scaled = (
            second
            if part == "SECOND"
            else operation("Mul", second, number(1000 if part[1] == "I" and part[2] == "L" else _MICROS))
        )
        return cast(call("floor", scaled), "bigint") if task.family == "duckdb" or part == "MICROSECONDS" else scaled
    raise task.refused(node, f"the part {part} of a time has no counterpart in Spark.")


def _part_of_interval(part: str, value: exp.Expr, node: exp.Expr, task: Task) -> exp.Expr:
    parts = {name: call("date_part", string(name), value) for name in ("DAY", "HOUR", "MINUTE", "SECOND")}
    if part in parts:
        return (
            parts[part] if part != "SECOND" or task.family != "duckdb" else cast(call("floor", parts[part]), "bigint")
        )
    if part != "EPOCH":
        raise task.refused(node, f"the part {part} of an interval has no counterpart in Spark.")
    total = parts["SECOND"]
    for name, seconds in (("DAY", 86400), ("HOUR", 3600), ("MINUTE", 60)):
        total = operation("Add", operation("Mul", parts[name], number(seconds)), total)
    return cast(total, "double")


def _extract(node: exp.Expr, task: Task) -> exp.Expr | None:
    return part_of(node.name, node.expression, node, task)


def _part_named(part: str) -> Rule:
    def rule(node: exp.Expr, task: Task) -> exp.Expr | None:
        return part_of(part, node.this, node, task)

    return rule


def _difference(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`date_diff` counts the borders crossed there and whole units here."""
    if task.family != "duckdb":
        raise task.refused(node, "it is not a function of PostgreSQL.", "subtract the dates")
    start, end = node.expression, node.this
    unit = (node.args["unit"].name if node.args.get("unit") is not None else "DAY").upper()
    unit = _NAMES.get(unit, unit)
    if unit == "DAY":
        return call("datediff", end, start)
    if unit == "WEEK":
        return operation("IntDiv", call("datediff", end, start), number(7))
    months = {"MONTH": 1, "QUARTER": 3}
    if unit in months:
        counted = [
            operation("Add", operation("Mul", call("year", side), number(12 // months[unit])), call(unit.lower(), side))
            for side in (end, start)
        ]
        return operation("Sub", *counted)
    if unit == "YEAR":
        return operation("Sub", call("year", end), call("year", start))
    if unit in _SECONDS:
        sides = [
            call("unix_micros", call("date_trunc", string(unit), cast(side, "timestamp"))) for side in (end, start)
        ]
        return operation("IntDiv", operation("Sub", *sides), number(_SECONDS[unit] * _MICROS))
    raise task.refused(node, f"differences in units of {unit} have no counterpart in Spark.")


def _subtraction(node: exp.Expr, task: Task) -> exp.Expr | None:
    """The difference of two dates is a number of days there and an interval here."""
    left, right = kind(node.this), kind(node.expression)
    if left.name == right.name == "date":
        return call("datediff", node.this, node.expression)
    return _sum_with_interval(node, task)


def _sum_with_interval(node: exp.Expr, task: Task) -> exp.Expr | None:
    """A date and an interval make a point in time there; here a date stays a date."""
    from sqlglot import exp

    sides = (node.this, node.expression)
    if {kind(side).name for side in sides} != {"date", "interval"}:
        return None
    above = node.parent
    while isinstance(above, exp.Paren):
        above = above.parent
    if isinstance(above, exp.Predicate) and not list(node.find_all(exp.Column)):
        return None  # compared with something: the same either way, and Spark can look it up in statistics
    if isinstance(above, exp.Cast) and above.to.is_type("date"):
        return None
    return cast(exp.Paren(this=node.copy()), "timestamp_ntz")


def _interval(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`INTERVAL (n) MONTH`: Spark takes constants only, so one unit is multiplied."""
    from sqlglot import exp

    value, unit = node.this, node.args.get("unit")
    if value is None or isinstance(value, exp.Literal) or unit is None:
        return None
    if constant(value) is not None:
        return exp.Interval(this=string(str(constant(value))), unit=unit.copy())
    return operation("Mul", value, exp.Interval(this=string("1"), unit=unit.copy()))


def _truncated(node: exp.Expr, task: Task) -> exp.Expr | None:
    unit = node.args["unit"].name.upper()
    if unit not in (
        "YEAR",
        "QUARTER",
        "MONTH",
        "WEEK",
        "DAY",
        "HOUR",
        "MINUTE",
        "SECOND",
        "MILLISECOND",
        "MICROSECOND",
    ):
        raise task.refused(node, f"truncating to {unit} has no counterpart in Spark.")
    if node.args.get("zone") is not None:
        raise task.refused(node, "truncating in a time zone has no counterpart in Spark.")
    cut = call("date_trunc", string(unit), node.this)
    return cut if kind(node).name == "instant" else cast(cut, "timestamp_ntz")


def _day_name(node: exp.Expr, task: Task) -> exp.Expr | None:
    return call("date_format", node.this, string("EEEE" if type(node).__name__ == "Dayname" else "MMMM"))


def _from_epoch(node: exp.Expr, task: Task) -> exp.Expr | None:
    """Seconds (or milliseconds) since 1970 as a point in time, and the other way round for `epoch_ms`."""
    scale = constant(node.args.get("scale")) or 0
    if task.sql.dialect == "datafusion" and (kind(node.this).is_time or kind(node.this).name == "text"):
        return cast(node.this, "timestamp")  # to_timestamp reads texts there
    if kind(node.this).is_time and scale:
        return operation("IntDiv", call("unix_micros", cast(node.this, "timestamp")), number(10 ** (6 - scale)))
    if scale == 3:
        return cast(call("timestamp_millis", node.this), "timestamp_ntz")
    if scale == 6:
        return cast(call("timestamp_micros", node.this), "timestamp_ntz")
    if scale == 0:
        micros = cast(call("round", operation("Mul", node.this, number(_MICROS))), "bigint")
        return call("timestamp_micros", micros)
    raise task.refused(node, "times in nanoseconds have no counterpart in Spark.")


def _to_epoch(node: exp.Expr, task: Task) -> exp.Expr | None:
    return part_of("EPOCH", node.this, node, task)


def _addition(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`date_add(d, INTERVAL 1 DAY)`; Spark's takes a number of days."""
    from sqlglot import exp

    if not isinstance(node.expression, exp.Interval):
        raise task.refused(node, "Spark's date_add takes a number of days.", "write d + INTERVAL 1 DAY")
    total = exp.Paren(this=exp.Add(this=node.this.copy(), expression=node.expression.copy()))
    return cast(total, "timestamp_ntz") if kind(node.this).name == "date" else total


RULES: Mapping[str, Rule] = {
    "DateAdd": _addition,
    "Extract": _extract,
    "DayOfWeek": _part_named("DOW"),
    "DayOfWeekIso": _part_named("ISODOW"),
    "Second": _part_named("SECOND"),
    "Week": _part_named("WEEK"),
    "DateDiff": _difference,
    "Sub": _subtraction,
    "Add": _sum_with_interval,
    "Interval": _interval,
    "TimestampTrunc": _truncated,
    "DateTrunc": _truncated,
    "Monthname": _day_name,
    "Dayname": _day_name,
    "UnixToTime": _from_epoch,
    "TimeToUnix": _to_epoch,
}
