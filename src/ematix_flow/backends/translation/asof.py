"""`ASOF JOIN`: of the rows with the same key, the last one at or before a moment.

Spark has no such join. Both tables are laid into one list, sorted by key and moment, and every row of the left takes
the last row of the right above it: one sort, whatever the sizes. The two rows travel as structs that have the tables'
names, so `s.price` goes on meaning what it meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.backends.translation.rules import Task

if TYPE_CHECKING:
    from sqlglot import exp

_FIX = "write FROM t ASOF JOIN u ON t.key = u.key AND t.at >= u.at, and name the table of every column"


def without_asof(tree: exp.Expr, task: Task) -> exp.Expr:
    """The query with every ASOF join as a sorted list.

    Raises:
        InvalidSource: one is of another form.
    """
    from sqlglot import exp

    for select in reversed(list(tree.find_all(exp.Select))):
        joins = select.args.get("joins") or []
        if any((join.args.get("method") or "").upper() == "ASOF" for join in joins):
            _rewrite(select, joins, task)
    return tree


def _rewrite(select: exp.Select, joins: list[exp.Join], task: Task) -> None:
    from sqlglot import exp, parse_one

    join, key = joins[0], "from_" if select.args.get("from_") is not None else "from"
    left, right = select.args[key].this, join.this
    condition = join.args.get("on")
    if len(joins) > 1 or not left.alias_or_name or not right.alias_or_name or condition is None:
        raise task.refused(join, "an ASOF JOIN stands alone between two named tables, with ON.", _FIX)
    names = left.alias_or_name, right.alias_or_name
    equal, moments, order = _terms(condition, names, join, task)
    for column in select.find_all(exp.Column):
        if not column.table and column.find_ancestor(exp.Join) is None:
            raise task.refused(column, "beside an ASOF JOIN every column must name its table.", _FIX)
    quoted = [f"`{name}`" for name in names]
    keys = [(f"__k{n}", one.sql("spark"), other.sql("spark")) for n, (one, other) in enumerate(equal)]
    at = [moment.sql("spark") for moment in moments]
    looks_back, takes_equal = order in (">=", ">"), order in (">=", "<=")
    wanted = " AND ".join(f"{term} IS NOT NULL" for term in [at[1], *(key[2] for key in keys)])
    listed = (
        f"SELECT STRUCT({quoted[0]}.*) AS __l, NULL AS __r, {at[0]} AS __at, {int(takes_equal)} AS __turn"
        f"{''.join(f', {one} AS {name}' for name, one, _ in keys)} FROM {left.sql('spark')} UNION ALL "
        f"SELECT NULL, STRUCT({quoted[1]}.*), {at[1]}, {int(not takes_equal)}"
        f"{''.join(f', {other}' for _, _, other in keys)} FROM {right.sql('spark')} WHERE {wanted}"
    )
    partition = f"PARTITION BY {', '.join(name for name, _, _ in keys)} " if keys else ""
    over = f"{partition}ORDER BY __at{'' if looks_back else ' DESC'}, __turn ROWS UNBOUNDED PRECEDING"
    matched = (
        f"SELECT __l, CASE WHEN __at IS NOT NULL THEN LAST_VALUE(__r, TRUE) OVER ({over}) END AS __r FROM ({listed})"
    )
    is_outer = (join.args.get("side") or "").upper() == "LEFT"
    kept = "__l IS NOT NULL" + ("" if is_outer else " AND __r IS NOT NULL")
    derived = f"SELECT * FROM (SELECT __l AS {quoted[0]}, __r AS {quoted[1]} FROM ({matched}) WHERE {kept}) AS __asof"
    made = parse_one(derived, read="spark")
    select.set(key, made.args[key])
    select.set("joins", [])
    _name_columns(select, names)


def _name_columns(select: exp.Select, names: tuple[str, str]) -> None:
    """Columns keep the names they had, and `*` is all columns of both."""
    from sqlglot import exp

    made: list[exp.Expr] = []
    for projection in select.expressions:
        if isinstance(projection, exp.Star):
            made += [exp.column(exp.Star(), table=exp.to_identifier(name, quoted=True)) for name in names]
        else:
            made.append(projection)
    select.set("expressions", made)


def _terms(
    condition: exp.Expr, names: tuple[str, str], join: exp.Join, task: Task
) -> tuple[list[tuple[exp.Expr, exp.Expr]], tuple[exp.Expr, exp.Expr], str]:
    """The equal keys, the two moments, and how the left one compares to the right one."""
    from sqlglot import exp

    orders: dict[type[exp.Expr], str] = {exp.GTE: ">=", exp.GT: ">", exp.LTE: "<=", exp.LT: "<"}
    turned = {">=": "<=", ">": "<", "<=": ">=", "<": ">"}
    equal: list[tuple[exp.Expr, exp.Expr]] = []
    found: list[tuple[tuple[exp.Expr, exp.Expr], str]] = []
    for term in condition.flatten() if isinstance(condition, exp.And) else [condition]:
        bare = term.unnest()
        sides = [
            {column.table.lower() for column in side.find_all(exp.Column)} for side in (bare.this, bare.expression)
        ]
        one, other = ({name.lower()} for name in names)
        if sides == [one, other]:
            pair, is_turned = (bare.this, bare.expression), False
        elif sides == [other, one]:
            pair, is_turned = (bare.expression, bare.this), True
        else:
            raise task.refused(join, "a condition of an ASOF JOIN compares one table with the other.", _FIX)
        if isinstance(bare, exp.EQ):
            equal.append(pair)
        elif type(bare) in orders:
            order = orders[type(bare)]
            found.append((pair, turned[order] if is_turned else order))
        else:
            raise task.refused(join, "an ASOF JOIN takes equal keys and one comparison of moments.", _FIX)
    if len(found) != 1:
        raise task.refused(join, "an ASOF JOIN takes exactly one comparison of moments.", _FIX)
    return equal, found[0][0], found[0][1]
