"""A SELECT with aggregates of the user's own, changed into one that Spark can run in two halves.

First every task makes states of the rows it has, one per group (`PartialAggregation`); then Spark groups what came out,
and a function makes results of the states that meet. Everything else the SELECT says, aggregates of Spark's, HAVING,
ORDER BY, stays where it is and sees the same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, types as t

from ematix_flow.declare.udf import PythonAggregateUdfHandle
from ematix_flow.errors import InvalidPlan
from ematix_flow.spark.function_workers import PartialAggregation, Share

if TYPE_CHECKING:
    from sqlglot import exp

    from ematix_flow.spark.functions import Asked, SqlFunctions

_OUTER = ("expressions", "having", "order", "qualify", "distinct", "sort")
"""Parts of a SELECT that see groups; the others see rows."""
_UNGROUPABLE = (t.ArrayType, t.MapType, t.StructType, t.VariantType)


class AggregateSelects:
    """The change of one SELECT.

    Args:
        views: Is told the temporary views that were made, for whoever removes them.
    """

    def __init__(self, functions: SqlFunctions, asked: Asked, select: exp.Select, views: list[str]) -> None:
        self._functions, self._asked, self._select, self._views = functions, asked, select, views
        self._keys: list[exp.Expr] = []
        self._carried: dict[str, exp.Expr] = {}

    def change(self) -> None:
        """Change it, if it has aggregates of the user's own.

        Raises:
            InvalidPlan: (a ValueError) it says something that cannot be done in two halves.
        """
        from sqlglot import exp

        calls = self._calls()
        if not calls:
            return
        self._refuse(calls)
        self._keys = self._group_keys(calls[0])
        distinct: dict[str, exp.Expr] = {}
        for call in calls:
            distinct.setdefault(_whole(call).sql(), _whole(call))
        states = {text: f"state_{place}" for place, text in enumerate(distinct)}
        rows = self._asked.reading(self._select)
        shares = [self._share(rows, one, states[text]) for text, one in distinct.items()]
        for call in calls:
            whole = _whole(call)
            merged = exp.Anonymous(
                this=self._functions.merging(self._asked, call),
                expressions=[exp.Anonymous(this="collect_list", expressions=[exp.column(states[whole.sql()])])],
            )
            merged.meta["gives"] = self._functions.handle_of(call).returns
            whole.replace(merged)
        # What Spark's own aggregates need; without any, states alone are handed on.
        passes_rows = any(
            isinstance(node, exp.AggFunc | exp.Star | exp.Anonymous) and not self._is_ours(node)
            for part in self._parts()
            for node in part.walk()
        )
        for part in self._parts():
            self._see_groups(part)
        for place, key in enumerate(self._keys):
            rows.select(exp.alias_(key.copy(), f"key_{place}"), copy=False)
        if not self._keys:
            rows.select(exp.alias_(exp.true(), "key_0"), copy=False)
        for name, column in self._carried.items():
            rows.select(exp.alias_(column, name, quoted=True), copy=False)
        self._read_from(self._halved(rows, shares, passes_rows or bool(self._carried)))

    def _calls(self) -> list[exp.Expr]:
        found = []
        for node in self._select.walk():
            function = self._functions.own.called(node)
            is_here = node.find_ancestor(type(self._select)) is self._select
            if function is not None and function.is_aggregate and is_here:
                found.append(node)
        return found

    def _refuse(self, calls: list[exp.Expr]) -> None:
        from sqlglot import exp

        outer = [id(node) for part in self._parts() for node in part.walk()]
        for call in calls:
            reason, fix = None, "take it out of there"
            if id(call) not in outer:
                reason, fix = "is called where rows are chosen or grouped", "use HAVING, or a query around this one"
            elif isinstance(call.parent, exp.Window) or isinstance(_whole(call).parent, exp.Window):
                reason, fix = "cannot be used with OVER", "group in a subquery and join it"
            elif any(isinstance(given, exp.Distinct) for given in call.expressions):
                reason, fix = "cannot be used with DISTINCT", "select the distinct rows in a subquery"
            elif any(isinstance(given, exp.Order) for given in call.expressions):
                reason, fix = "takes rows in any order", "leave out ORDER BY"
            elif any(node is not call and self._is_aggregate(node) for node in call.walk()):
                reason, fix = "cannot be given an aggregate", "aggregate in a subquery first"
            elif call.find_ancestor(exp.AggFunc, exp.Lambda) is not None:
                reason = "stands inside another aggregate"
            if reason is not None:
                raise self._functions.refused(self._functions.handle_of(call), reason, fix)

    def _is_aggregate(self, node: exp.Expr) -> bool:
        from sqlglot import exp

        own = self._functions.own.called(node)
        return isinstance(node, exp.AggFunc) or (own is not None and own.is_aggregate)

    def _is_ours(self, node: exp.Expr) -> bool:
        name = node.name.lower()
        return name.startswith(self._functions.tag) or (
            name == "collect_list" and self._is_ours(node.parent) if node.parent is not None else False
        )

    def _parts(self) -> list[exp.Expr]:
        found: list[exp.Expr] = []
        for clause in _OUTER:
            part = self._select.args.get(clause)
            found += part if isinstance(part, list) else [part] if part is not None else []
        return found

    # ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _group_keys(self, call: exp.Expr) -> list[exp.Expr]:
        """What the SELECT groups by, as expressions over the rows it reads."""
        from sqlglot import exp

        group = self._select.args.get("group")
        if group is None:
            return []
        sets = [name for name, value in group.args.items() if name != "expressions" and value]
        if sets or any(isinstance(key, exp.Cube | exp.Rollup | exp.GroupingSets) for key in group.expressions):
            raise self._functions.refused(
                self._functions.handle_of(call), "needs a GROUP BY that names its keys", "write them out, once"
            )
        projections = self._select.expressions
        named = {part.alias.lower(): part.this for part in projections if isinstance(part, exp.Alias)}
        columns: set[str] | None = None
        keys: list[exp.Expr] = []
        for key in group.expressions:
            if isinstance(key, exp.Literal) and not key.is_string:
                place = int(key.name) - 1
                if not 0 <= place < len(projections):
                    raise InvalidPlan(f"GROUP BY {key.name}: the SELECT has {len(projections)} columns.")
                key = projections[place].unalias()
            elif isinstance(key, exp.Column) and not key.table and key.name.lower() in named:
                if columns is None:
                    star = self._asked.reading(self._select).select("*")
                    columns = {name.lower() for name in self._asked.spark.sql(star.sql(dialect="spark")).columns}
                key = key if key.name.lower() in columns else named[key.name.lower()]
            keys.append(key.copy())
        return keys

    def _key_of(self, node: exp.Expr) -> int | None:
        """Which key an expression is; a column may be named with its table in one place and without in another."""
        from sqlglot import exp

        for place, key in enumerate(self._keys):
            if node == key:
                return place
            if isinstance(node, exp.Column) and isinstance(key, exp.Column) and node.name.lower() == key.name.lower():
                tables = {str(node.text("table")).lower(), str(key.text("table")).lower()}
                if len(tables) == 1 or "" in tables:
                    return place
        return None

    def _see_groups(self, part: exp.Expr) -> None:
        """Let a part of the SELECT name what comes out of the first half: keys, and columns that were carried."""
        from sqlglot import exp

        place = self._key_of(part)
        if place is not None:
            made: exp.Expr = exp.column(f"key_{place}")
            if part.parent is self._select and isinstance(part, exp.Column):
                made = exp.alias_(made, part.name, quoted=True)
            elif part.parent is self._select:
                made = exp.alias_(made, part.sql(dialect="spark"), quoted=True)
            part.replace(made)
            return
        if isinstance(part, exp.Query) or self._is_state(part):
            return
        if isinstance(part, exp.Column):
            if not self._is_output(part):
                part.replace(exp.column(self._carry(part), quoted=True))
            return
        for child in list(part.iter_expressions()):
            self._see_groups(child)

    def _is_state(self, node: exp.Expr) -> bool:
        return node.name.lower() == "collect_list" and self._is_ours(node)

    def _is_output(self, column: exp.Expr) -> bool:
        """Whether ORDER BY or HAVING names a column that comes out of the SELECT."""
        from sqlglot import exp

        outer = column.find_ancestor(exp.Order, exp.Having, exp.Qualify)
        if outer is None or outer.parent is not self._select or column.text("table"):
            return False
        names = {part.alias.lower() for part in self._select.expressions if isinstance(part, exp.Alias)}
        return column.name.lower() in names

    def _carry(self, column: exp.Expr) -> str:
        text = column.sql(dialect="spark")
        for name, known in self._carried.items():
            if known.sql(dialect="spark") == text:
                return name
        name = column.name
        while name.lower() in {known.lower() for known in self._carried} or name.lower().startswith(
            ("key_", "state_", "given_")
        ):
            name += "_"
        self._carried[name] = column.copy()
        return name

    # ── the two halves ───────────────────────────────────────────────────────────────────────────────────────────────

    def _share(self, rows: exp.Select, whole: exp.Expr, state: str) -> Share:
        """An aggregate's arguments among the rows that are read."""
        from sqlglot import exp

        call = whole.this if isinstance(whole, exp.Filter) else whole
        handle = self._functions.handle_of(call)
        assert isinstance(handle, PythonAggregateUdfHandle)
        types = self._asked.types(self._select, call.expressions)
        names = []
        for number, (argument, field) in enumerate(zip(call.expressions, types, strict=True)):
            names.append(f"given_{state}_{number}")
            rows.select(
                exp.alias_(self._functions.carried(handle, number, argument, field.dataType), names[-1]), copy=False
            )
        only_where = None
        if isinstance(whole, exp.Filter):
            only_where = f"given_{state}_where"
            rows.select(exp.alias_(whole.expression.this.copy(), only_where), copy=False)
        return Share(handle, tuple(names), only_where, state)

    def _halved(self, rows: exp.Select, shares: list[Share], passes_rows: bool) -> DataFrame:
        frame = self._asked.spark.sql(rows.sql(dialect="spark"))
        keys = [f"key_{place}" for place in range(max(len(self._keys), 1))]
        for name in keys:
            if isinstance(frame.schema[name].dataType, _UNGROUPABLE):
                kind = frame.schema[name].dataType.simpleString()
                raise self._functions.refused(
                    shares[0].handle, f"cannot be grouped by a value of type {kind}", "group by its parts"
                )
        work = PartialAggregation(tuple(keys), tuple(self._carried), tuple(shares), passes_rows)
        fields = [frame.schema[name] for name in (*keys, *self._carried)]
        states = [t.StructField(share.state, t.BinaryType()) for share in shares]
        return frame.mapInArrow(work, t.StructType([*fields, *states]))

    def _read_from(self, frame: DataFrame) -> None:
        from sqlglot import exp

        view = f"{self._functions.tag}_rows_{len(self._views)}"
        frame.createOrReplaceTempView(view)
        self._views.append(view)
        for clause in ("joins", "laterals", "where", "pivots", "hint"):
            self._select.set(clause, None)
        self._select.set("from_", exp.From(this=exp.Table(this=exp.to_identifier(view))))
        if self._keys:
            keys = [exp.column(f"key_{place}") for place in range(len(self._keys))]
            self._select.set("group", exp.Group(expressions=keys))


def _whole(call: exp.Expr) -> exp.Expr:
    """A call with the FILTER that belongs to it."""
    from sqlglot import exp

    return call.parent if isinstance(call.parent, exp.Filter) and call.parent.this is call else call
