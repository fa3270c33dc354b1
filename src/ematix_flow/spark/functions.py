"""Functions and aggregates of the user's own (`@udf`, `@udaf`) in SQL that Spark runs.

A query is changed before Spark sees it. Calls of functions become calls of Python functions that are registered under
names nobody else has, their arguments brought to the declared types; a SELECT with aggregates is changed by
`function_aggregates.py`. Which types arguments have is asked of Spark, so what does not fit is said before a row moves.
"""

from __future__ import annotations

import sys
import sysconfig
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession, types as t
from pyspark.sql.pandas.functions import pandas_udf

from ematix_flow.backends.translation.kinds import BOOLEAN, FLOAT, INTEGER, TEXT, Kind
from ematix_flow.backends.translation.own_functions import OwnFunction, OwnFunctions
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.declare.udf import PythonAggregateUdfHandle, PythonScalarUdfHandle, widens
from ematix_flow.errors import InvalidPlan, counted
from ematix_flow.spark.function_workers import CARRIERS, merging_function, scalar_function

if TYPE_CHECKING:
    from sqlglot import exp

Handle = PythonScalarUdfHandle | PythonAggregateUdfHandle

_KINDS = {"Boolean": BOOLEAN, "Utf8": TEXT, "Binary": Kind("bytes"), "Float32": FLOAT, "Float64": FLOAT}
_DECLARED: dict[type[t.DataType], str] = {
    t.ByteType: "Int8",
    t.ShortType: "Int16",
    t.IntegerType: "Int32",
    t.LongType: "Int64",
    t.FloatType: "Float32",
    t.DoubleType: "Float64",
    t.BooleanType: "Boolean",
    t.StringType: "Utf8",
    t.VarcharType: "Utf8",
    t.CharType: "Utf8",
    t.BinaryType: "Binary",
}
_SIGNED = {"UInt8": "Int16", "UInt16": "Int32", "UInt32": "Int64"}
_RANDOM = ("rand", "random", "randn", "shuffle", "uuid", "spark_partition_id", "monotonically_increasing_id")
_NOTHING = {"Boolean": "FALSE", "Float32": "CAST(0 AS FLOAT)", "Float64": "0D"}


class SqlFunctions:
    """The functions that a stream or a pipeline may call in its SQL."""

    def __init__(
        self, udfs: Sequence[PythonScalarUdfHandle] = (), aggregate_udfs: Sequence[PythonAggregateUdfHandle] = ()
    ) -> None:
        self.tag = f"ematix_own_{uuid.uuid4().hex[:12]}"
        self._handles: dict[str, Handle] = {}
        own: dict[str, OwnFunction] = {}
        handles: list[Handle] = [*udfs, *aggregate_udfs]
        for number, handle in enumerate(handles):
            inner, is_aggregate = f"{self.tag}_{number}", isinstance(handle, PythonAggregateUdfHandle)
            self._handles[inner] = handle
            own[handle.name.lower()] = OwnFunction(
                handle.name, inner, len(handle.args), is_aggregate, _KINDS.get(handle.returns, INTEGER)
            )
        self.own = OwnFunctions(own)
        self._told: dict[tuple[str, str], list[t.StructField]] = {}

    def handle_of(self, call: exp.Expr) -> Handle:
        """What the user decorated, by a call of it."""
        return self._handles[call.name.lower()]

    def check(self, tree: exp.Expr, written: UserSql) -> None:
        """Refuse calls with too few or too many arguments; nothing is asked of anybody.

        Raises:
            InvalidPlan: (a ValueError) the message points at the call.
        """
        for call in self.own.calls_in(tree):
            function = self.own.called(call)
            assert function is not None
            given = _arguments(call)
            if len(given) != function.arguments:
                takes = counted(function.arguments, "argument")
                refused = written.refused(call, f"{function.name}() takes {takes}, not {len(given)}.")
                raise InvalidPlan(refused.message, where=str(self.handle_of(call).where))

    def run(self, spark: SparkSession, sql: str) -> DataFrame:
        """The rows of a query in Spark SQL, over views that are there.

        Raises:
            InvalidPlan: (a ValueError) an argument's type does not fit, or a call stands where it cannot be worked out.
            AnalysisException: Spark does not understand the query.
        """
        import sqlglot

        tree = sqlglot.parse_one(sql, read="spark")
        if not self.own.calls_in(tree):
            return spark.sql(sql)
        from ematix_flow.spark.function_aggregates import AggregateSelects

        views: list[str] = []
        asked = Asked(self, spark, tree)
        self._name_columns(tree)
        try:
            with self._traveling():
                for select in selects_of(tree):
                    self._put_functions(asked, select, with_aggregates=False)
                    AggregateSelects(self, asked, select, views).change()
                    self._put_functions(asked, select, with_aggregates=True)
                return spark.sql(tree.sql(dialect="spark"))
        finally:
            for view in views:
                spark.catalog.dropTempView(view)

    def forget(self, spark: SparkSession) -> None:
        """Take what was registered out of a session. Frames that were made go on."""
        for function in spark.catalog.listFunctions(pattern=f"{self.tag}_*"):
            spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {function.name}")

    # ── columns that nobody named ────────────────────────────────────────────────────────────────────────────────────

    def _name_columns(self, tree: exp.Expr) -> None:
        """A column that is called like its expression keeps the user's words; Spark would show ours."""
        from sqlglot import exp

        for select in tree.find_all(exp.Select):
            for part in list(select.expressions):
                if not isinstance(part, exp.Alias) and self.own.calls_in(part):
                    name = self.own.shown(part.sql(dialect="spark"))
                    part.replace(exp.alias_(part.copy(), name, quoted=True))

    # ── functions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _put_functions(self, asked: Asked, select: exp.Select, *, with_aggregates: bool) -> None:
        """Bring the calls of functions in one SELECT to Spark, inner ones first."""
        while True:
            calls = [call for call in self._calls(select) if not self._calls(select, below=call)]
            if not with_aggregates:  # what is made of aggregates is known when those are
                calls = [call for call in calls if not self._has_aggregate(call)]
            if not calls:
                return
            types = asked.types(select, [argument for call in calls for argument in _arguments(call)])
            for call in calls:
                count = len(_arguments(call))
                self._put_function(asked, call, types[:count])
                types = types[count:]

    def _calls(self, select: exp.Select, *, below: exp.Expr | None = None) -> list[exp.Expr]:
        """Calls of functions that belong to a SELECT, also those below one call only."""
        inside = below if below is not None else select
        return [
            node
            for node in inside.walk()
            if node is not below
            and (function := self.own.called(node)) is not None
            and not function.is_aggregate
            and node.find_ancestor(type(select)) is select
        ]

    def _has_aggregate(self, call: exp.Expr) -> bool:
        return any((found := self.own.called(node)) is not None and found.is_aggregate for node in call.walk())

    def _put_function(self, asked: Asked, call: exp.Expr, types: Sequence[t.StructField]) -> None:
        import sqlglot
        from sqlglot import exp

        handle = self.handle_of(call)
        assert isinstance(handle, PythonScalarUdfHandle)
        if call.find_ancestor(exp.Lambda) is not None:
            raise self.refused(handle, "cannot be called for the items of a list", "unnest the list first")
        if isinstance(call.parent, exp.Window | exp.Filter) and call.parent.this is call:
            raise self.refused(handle, "is no aggregate", "use @udaf for one")
        given: list[exp.Expr] = []
        has_gaps = []
        for number, argument in enumerate(_arguments(call)):
            declared, field = handle.args[number], types[number]
            carried = self.carried(handle, number, argument, field.dataType)
            gaps = field.nullable and declared not in ("Utf8", "Binary")
            has_gaps.append(gaps)
            if gaps:
                if _is_random(argument):  # it is written twice below, and would be two values
                    raise self.refused(handle, "is given a random value that may be missing", "make it in a subquery")
                nothing = sqlglot.parse_one(_NOTHING.get(declared, f"CAST(0 AS {CARRIERS[declared]})"), read="spark")
                given.append(exp.Coalesce(this=carried, expressions=[nothing]))
            else:
                given.append(carried)
        if any(has_gaps):
            given.append(_gap_bits(_arguments(call), has_gaps))
        name = f"{call.name.lower()}_f{''.join('ny'[gaps] for gaps in has_gaps)}"
        asked.register(name, lambda: scalar_function(handle, has_gaps), CARRIERS[handle.returns])
        made = exp.Anonymous(this=name, expressions=given)
        made.meta["gives"] = handle.returns
        call.replace(made)

    def carried(self, handle: Handle, number: int, argument: exp.Expr, given: t.DataType) -> exp.Expr:
        """An argument in the type of Spark's that carries its declared one.

        Raises:
            InvalidPlan: (a ValueError) a value of its type may have no place there.
        """
        from sqlglot import exp

        declared = handle.args[number]
        if not fits(argument.meta.get("gives"), given, declared):
            raise InvalidPlan(
                f"{_what(handle)} declares {declared} for argument {number + 1} and is given {given.simpleString()}.",
                where=str(handle.where),
                fix=f"cast it to {declared} in the SQL: CAST(… AS {CARRIERS[declared].upper()})",
            )
        return exp.Cast(this=argument.copy(), to=exp.DataType.build(CARRIERS[declared], dialect="spark"))

    def refused(self, handle: Handle, reason: str, fix: str) -> InvalidPlan:
        """The error for a call in a place where it cannot be worked out."""
        return InvalidPlan(f"{_what(handle)} {reason}.", where=str(handle.where), fix=fix)

    def merging(self, asked: Asked, call: exp.Expr) -> str:
        """The registered function that makes results of an aggregate's states."""
        handle = self.handle_of(call)
        assert isinstance(handle, PythonAggregateUdfHandle)
        name = f"{call.name.lower()}_m"
        asked.register(name, lambda: merging_function(handle), CARRIERS[handle.returns])
        return name

    @contextmanager
    def _traveling(self) -> Iterator[None]:
        """Modules of the user's functions go to the workers with them, where nobody could import them."""
        with traveling(list(self._handles.values())):
            yield


class Asked:
    """What Spark is asked while a query is changed: types of expressions, and to know a function."""

    def __init__(self, functions: SqlFunctions, spark: SparkSession, tree: exp.Expr) -> None:
        from sqlglot import exp

        self._functions, self.spark = functions, spark
        self._told = functions._told
        names = {table.name for table in tree.find_all(exp.Table) if table.name.startswith("ematix_flow_")}
        self._schemas = "".join(spark.table(name).schema.json() for name in sorted(names))

    def register(self, name: str, made: Callable[[], Callable[..., Any]], gives: str) -> None:
        """Make a Python function known to the session, unless it is."""
        if not self.spark.catalog.functionExists(name):
            self.spark.udf.register(name, pandas_udf(made(), gives))  # type: ignore[call-overload]  # hints tell which

    def types(self, select: exp.Select, wanted: Sequence[exp.Expr]) -> list[t.StructField]:
        """The types of expressions that stand in a SELECT.

        Raises:
            AnalysisException: Spark does not understand one of them.
        """
        try:
            return self._types(select, wanted, is_grouped=False)
        except (AnalysisException, ParseException) as exc:
            for one_by_one in (False, True):
                try:
                    if one_by_one:
                        return [self._type(select, expression) for expression in wanted]
                    return self._types(select, wanted, is_grouped=True)
                except (AnalysisException, ParseException):
                    continue
            raise exc from None

    def _type(self, select: exp.Select, wanted: exp.Expr) -> t.StructField:
        try:
            return self._types(select, [wanted], is_grouped=False)[0]
        except (AnalysisException, ParseException):
            return self._types(select, [wanted], is_grouped=True)[0]

    def _types(self, select: exp.Select, wanted: Sequence[exp.Expr], *, is_grouped: bool) -> list[t.StructField]:
        """Over the rows that the SELECT reads; grouped like it, beside its own columns, where they need that."""
        from sqlglot import exp

        probe = self.reading(select)
        probe.set("where", None)
        for join in probe.args.get("joins") or ():
            if self._functions.own.calls_in(join):  # it says which rows there are, not of which types
                join.set("on", exp.true())
        if is_grouped:
            own = [part.copy() for part in select.expressions if not self._functions.own.calls_in(part)]
            group = select.args.get("group")
            probe.set("expressions", own)
            if group is not None and not any(isinstance(key, exp.Literal) for key in group.expressions):
                probe.set("group", group.copy())
        before = len(probe.expressions)
        named = [exp.alias_(expression.copy(), f"ematix_{place}") for place, expression in enumerate(wanted)]
        probe.set("expressions", [*probe.expressions, *named])
        sql = probe.sql(dialect="spark")
        known = self._told.get((sql, self._schemas))
        if known is None:
            fields = self.spark.sql(sql).schema.fields
            known = self._told[(sql, self._schemas)] = fields[len(fields) - len(wanted) if before else 0 :]
        return known

    def reading(self, select: exp.Select) -> exp.Select:
        """A SELECT without columns over the rows that another one reads, with the CTEs it can see."""
        from sqlglot import exp

        made = exp.Select(expressions=[])
        for clause in ("from_", "joins", "laterals", "where"):
            found = select.args.get(clause)
            if found:
                made.set(clause, [part.copy() for part in found] if isinstance(found, list) else found.copy())
        ctes = _visible_ctes(select)
        if ctes:
            made.set("with_", exp.With(expressions=[cte.copy() for cte in ctes]))
        return made


def selects_of(tree: exp.Expr) -> list[exp.Select]:
    """Every SELECT of a query, each after those it reads from."""
    from sqlglot import exp

    ctes = tree.args.get("with_")
    children = sorted(tree.iter_expressions(), key=lambda child: child is not ctes)
    found = [select for child in children for select in selects_of(child)]
    return [*found, tree] if isinstance(tree, exp.Select) else found


def _visible_ctes(select: exp.Expr) -> list[exp.Expr]:
    """The CTEs that a SELECT may name: its own, and those before it in the queries around it."""
    from sqlglot import exp

    found: dict[str, exp.Expr] = {}
    node: exp.Expr | None = select
    inside: exp.Expr | None = None
    while node is not None:
        with_ = node if isinstance(node, exp.With) else node.args.get("with_") if isinstance(node, exp.Query) else None
        if with_ is not None and with_ is not inside:
            visible = list(with_.expressions)
            if isinstance(node, exp.With):
                here = next(place for place, cte in enumerate(visible) if cte is inside)
                visible = visible[:here]
            found = {cte.alias.lower(): cte for cte in visible if cte.alias.lower() not in found} | found
        inside, node = node, node.parent
    return list(found.values())


def _arguments(call: exp.Expr) -> list[exp.Expr]:
    from sqlglot import exp

    given: list[exp.Expr] = call.expressions
    return list(given[0].expressions) if len(given) == 1 and isinstance(given[0], exp.Distinct) else list(given)


def fits(gives: str | None, given: t.DataType, declared: str) -> bool:
    """Whether any value of a type of Spark's has a place in a declared one; `gives` is known of our own functions."""
    if isinstance(given, t.NullType):
        return True
    if gives is not None:
        return widens(gives, declared)
    if isinstance(given, t.DecimalType):
        # Numbers with a point are decimals in Spark; elsewhere they are floats.
        return declared == "Float64" or (declared == "UInt64" and given.scale == 0 and given.precision <= 20)
    name = _DECLARED.get(type(given))
    if declared == "UInt64":
        return name is not None and name.startswith("Int")
    return widens(name, _SIGNED.get(declared, declared))


def _gap_bits(arguments: Sequence[exp.Expr], has_gaps: Sequence[bool]) -> exp.Expr:
    """A number with a bit for every argument that is missing."""
    import sqlglot

    kind = "SMALLINT" if len(arguments) < 15 else "BIGINT"
    bits = [
        f"IF(({argument.sql(dialect='spark')}) IS NULL, CAST({1 << place} AS {kind}), CAST(0 AS {kind}))"
        for place, (argument, gaps) in enumerate(zip(arguments, has_gaps, strict=True))
        if gaps
    ]
    return sqlglot.parse_one(" | ".join(bits), read="spark")


def _is_random(argument: exp.Expr) -> bool:
    from sqlglot import exp

    return any(
        isinstance(node, exp.Rand | exp.Randn) or (isinstance(node, exp.Func) and node.name.lower() in _RANDOM)
        for node in argument.walk()
    )


@contextmanager
def traveling(handles: Sequence[Handle]) -> Iterator[None]:
    """While functions are handed to Spark: their modules go to the workers with them."""
    names = {getattr(_decorated(handle), "__module__", None) for handle in handles}
    modules = [sys.modules[name] for name in names if name in sys.modules and name != "__main__"]
    modules = [module for module in modules if not _is_installed(module)]
    for module in modules:
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _is_installed(module: ModuleType) -> bool:
    """Whether a module belongs to Python or to a package, which workers have as well."""
    file = getattr(module, "__file__", None)
    places = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    return file is None or any(Path(file).is_relative_to(place) for place in places)


def _decorated(handle: Handle) -> Any:
    return handle.accumulator_class if isinstance(handle, PythonAggregateUdfHandle) else handle.function


def _what(handle: Handle) -> str:
    return f"{'UDAF' if isinstance(handle, PythonAggregateUdfHandle) else 'UDF'} '{handle.name}'"
