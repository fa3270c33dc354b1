"""Numbers that come out differently: division, averages, rounding, casts, logarithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ematix_flow.backends.translation.kinds import Kind, kind
from ematix_flow.backends.translation.rules import (
    Rule,
    Task,
    call,
    cast,
    choice,
    constant,
    number,
    operation,
    whole_aggregate,
    within,
)

if TYPE_CHECKING:
    from sqlglot import exp

_ENOUGH_DIGITS = 16
_INTEGER_TYPES = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT"})
_TEXT_TYPES = frozenset({"TEXT", "VARCHAR", "CHAR", "NCHAR", "NVARCHAR"})


def _division(node: exp.Expr, task: Task) -> exp.Expr | None:
    """DuckDB divides in floating point, PostgreSQL by the type of its operands; Spark by rules of its own."""
    left, right = kind(node.this), kind(node.expression)
    if "interval" in (left.name, right.name):
        return None
    if task.family == "duckdb":
        is_plain = "float" in (left.name, right.name) or left.name == right.name == "integer"
        return operation("Div", node.this if is_plain else cast(node.this, "double"), node.expression)
    if "float" in (left.name, right.name):
        return operation("Div", node.this, node.expression)
    if left.name == right.name == "integer":
        return operation("IntDiv", node.this, node.expression)
    if left.is_number and right.is_number:
        is_exact = task.sql.dialect == "datafusion" or _digits_of_quotient(left, right) >= _ENOUGH_DIGITS
        return operation("Div", node.this if is_exact else cast(node.this, "double"), node.expression)
    unclear = node.this if not left.is_number else node.expression
    raise task.refused(
        unclear,
        "its type is not known, and whether a division keeps fractions depends on it.",
        "say the type: CAST(… AS BIGINT), CAST(… AS DOUBLE)",
    )


def _digits_of_quotient(left: Kind, right: Kind) -> int:
    """Digits behind the point that Spark gives a quotient of decimals; 0 when that is not known."""
    if left.precision is None or left.scale is None or right.precision is None or right.scale is None:
        return 0
    wanted = max(6, left.scale + right.precision + 1)
    whole = left.precision - left.scale + right.scale
    return wanted if whole + wanted <= 38 else max(38 - whole, min(wanted, 6))


def _product(node: exp.Expr, task: Task) -> exp.Expr | None:
    """A product of decimals whose digits exceed 38 loses decimals in Spark; there it keeps them, or fails.

    The longer factor is given the digits that are left, where these are plenty: a value beyond them is an error.
    """
    sides = [(node.this, kind(node.this)), (node.expression, kind(node.expression))]
    digits, scales = [found.precision for _, found in sides], [found.scale for _, found in sides]
    if not all(found.name in ("decimal", "integer") for _, found in sides) or None in digits or None in scales:
        return None
    known, places = [count or 0 for count in digits], [count or 0 for count in scales]
    if sum(known) + 1 <= 38 or sum(places) <= 6:
        return None
    long = known.index(max(known))
    left_over = 37 - known[1 - long]
    if left_over - places[long] < _ENOUGH_DIGITS - 1:
        return None
    shortened = cast(sides[long][0], f"decimal({left_over}, {places[long]})")
    return operation("Mul", shortened if long == 0 else node.this, shortened if long == 1 else node.expression)


def _whole_division(node: exp.Expr, task: Task) -> exp.Expr | None:
    if task.family == "duckdb" and not (kind(node.this).name == kind(node.expression).name == "integer"):
        raise task.refused(
            node, "`//` of anything but whole numbers has no counterpart in Spark.", "write FLOOR(a / b)"
        )
    return None


def _average(node: exp.Expr, task: Task) -> exp.Expr | None:
    """DuckDB's average is a double, PostgreSQL's has sixteen digits or more; Spark's has four more than the column."""
    from sqlglot import exp

    averaged = kind(node.this)
    if averaged.name in ("float", "integer", "interval"):
        return None
    top = whole_aggregate(node)
    if averaged.name == "decimal":  # the sum is exact, and one division rounds once
        total = within(top, node, exp.Sum(this=node.this.copy()))
        count = within(top, node, exp.Count(this=node.this.copy(), big_int=True))
        made = operation("Div", cast(total, "double" if task.family == "duckdb" else "decimal(38, 16)"), count)
    elif task.family == "duckdb":
        made = within(top, node, exp.Avg(this=_each(node.this, "double")))
    else:
        return None
    made.meta["kind"] = kind(node)
    top.replace(made)
    return made


def _each(argument: exp.Expr, to: str) -> exp.Expr:
    """The argument of an aggregate as another type, DISTINCT kept."""
    from sqlglot import exp

    if isinstance(argument, exp.Distinct):
        return exp.Distinct(expressions=[cast(one, to) for one in argument.expressions])
    return cast(argument, to)


def _conversion(node: exp.Expr, task: Task) -> exp.Expr | None:
    """Casts to whole numbers round there and cut here; a few others change digits or letters."""
    from sqlglot import exp

    to, value = node.args["to"], kind(node.this)
    name = to.this.name if hasattr(to.this, "name") else str(to.this)
    if name in _INTEGER_TYPES:
        # Arrow cuts fractions off, as Spark does.
        return None if task.sql.dialect == "datafusion" else _to_whole_number(node, task, value)
    if name == "DECIMAL" and not to.expressions and task.family == "postgres":
        return _to_numeric(node, task, value)
    if name == "TIMESTAMP" and task.family == "postgres":
        to.replace(exp.DataType(this=exp.DataType.Type.TIMESTAMPNTZ))
        return None
    if name not in _TEXT_TYPES:
        return None
    refuse_as_text(node.this, task)
    if to.expressions and task.family == "postgres":
        if name != "VARCHAR":
            raise task.refused(node, f"{to.sql(dialect='postgres')} pads with spaces.", "use VARCHAR(n) or TEXT")
        return call("substring", cast(node.this, "string"), number(1), to.expressions[0].this)
    return None


def _to_whole_number(node: exp.Expr, task: Task, value: Kind) -> exp.Expr | None:
    from sqlglot import exp

    made = type(node)(**{**node.args, "to": node.args["to"].copy(), "this": node.this.copy()})
    if value.name == "float":
        made.set("this", call("rint", node.this))
    elif value.name == "decimal":
        made.set("this", call("round", node.this))
    elif value.name == "unknown":
        raise task.refused(
            node.this,
            "its type is not known, and a cast to a whole number rounds or cuts depending on it.",
            "cast it to DOUBLE or to VARCHAR first, whichever it is",
        )
    elif value.name == "text" and isinstance(node, exp.TryCast):
        number_read = exp.TryCast(this=node.this.copy(), to=exp.DataType.build("double"), safe=True)
        rounded = exp.TryCast(this=call("rint", number_read), to=node.args["to"].copy(), safe=True)
        return call("coalesce", made, rounded)
    else:
        return None
    return made


def _to_numeric(node: exp.Expr, task: Task, value: Kind) -> exp.Expr:
    """`numeric` without digits holds any number there; Spark's has ten digits and no fraction."""
    from sqlglot import exp

    if value.name == "decimal":
        return exp.Paren(this=node.this.copy())
    digits = {"integer": "decimal(20, 0)", "float": "decimal(38, 15)"}.get(value.name)
    if digits is None:
        raise task.refused(
            node, "NUMERIC without digits holds any number; Spark needs to know how many.", "write NUMERIC(18, 2)"
        )
    return cast(node.this, digits)


def refuse_as_text(value: exp.Expr, task: Task) -> None:
    """Systems write the same value differently; what they agree on may become text."""
    name = kind(value).name
    reasons = {
        "float": "floating-point numbers are written differently as text.",
        "instant": "points in time are written differently as text.",
        "interval": "intervals are written differently as text.",
        "list": "lists are written differently as text.",
        "struct": "structs are written differently as text.",
        "map": "maps are written differently as text.",
    }
    if name in reasons and task.family != "other":
        fix = {"float": "cast it to a decimal first", "instant": "cast it to TIMESTAMP or DATE first"}.get(name)
        raise task.refused(value, reasons[name], fix)


def _rounding(node: exp.Expr, task: Task) -> exp.Expr | None:
    """Halves of floating-point numbers: PostgreSQL rounds to even, DuckDB after multiplying."""
    places = node.args.get("decimals")
    if kind(node.this).name != "float":
        return None
    if places is None or constant(places) == 0:
        is_to_even = task.family == "postgres" and task.sql.dialect != "datafusion"
        return call("rint", node.this) if is_to_even else None
    count = constant(places)
    if count is None or task.family != "duckdb":
        return None
    power = cast(number(10 ** abs(count)), "double")
    first, second = ("Mul", "Div") if count > 0 else ("Div", "Mul")
    return operation(second, call("round", operation(first, node.this, power)), power)


def _logarithm(node: exp.Expr, task: Task) -> exp.Expr | None:
    """`log(x)` is of base 10 there and the natural one here."""
    return call("log10", node.this) if node.args.get("expression") is None else None


def _truncation(node: exp.Expr, task: Task) -> exp.Expr | None:
    if constant(node.args.get("decimals")) not in (None, 0) or (
        node.args.get("decimals") is not None and constant(node.args["decimals"]) is None
    ):
        raise task.refused(node, "TRUNC to decimal places has no counterpart in Spark.", "use ROUND, or FLOOR and CEIL")
    below = operation("LT", node.this, number(0))
    return choice((below, call("ceil", node.this)), otherwise=call("floor", node.this))


def _power(node: exp.Expr, task: Task) -> exp.Expr | None:
    return call("power", node.this, node.expression)


RULES: Mapping[str, Rule] = {
    "Div": _division,
    "Mul": _product,
    "IntDiv": _whole_division,
    "Avg": _average,
    "Cast": _conversion,
    "TryCast": _conversion,
    "Round": _rounding,
    "Log": _logarithm,
    "Trunc": _truncation,
    "Pow": _power,
}
