"""What kind of value an expression has, in the dialect it is written in: what decides between two translations.

Only what a translation depends on is told apart. Columns are known from the schemas of the tables; what is not known is
`UNKNOWN`, and a rule that needs to know refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sqlglot import exp

KindName = Literal[
    "integer",
    "decimal",
    "float",
    "text",
    "boolean",
    "date",
    "timestamp",
    "instant",
    "interval",
    "bytes",
    "list",
    "map",
    "struct",
    "null",
    "unknown",
]


@dataclass(frozen=True)
class Kind:
    """A family of types; numbers with their most digits, lists with their items, structs with their fields."""

    name: KindName
    precision: int | None = None
    scale: int | None = None
    item: Kind | None = None
    fields: tuple[tuple[str, Kind], ...] = ()

    @property
    def is_number(self) -> bool:
        """An integer, a decimal or a float."""
        return self.name in ("integer", "decimal", "float")

    @property
    def is_time(self) -> bool:
        """A date or a point in time."""
        return self.name in ("date", "timestamp", "instant")


INTEGER, FLOAT, TEXT, BOOLEAN, DATE = Kind("integer", 20, 0), Kind("float"), Kind("text"), Kind("boolean"), Kind("date")
TIMESTAMP, INSTANT, INTERVAL, NULL, UNKNOWN = (
    Kind("timestamp"),
    Kind("instant"),
    Kind("interval"),
    Kind("null"),
    Kind("unknown"),
)
Tables = Mapping[str, Mapping[str, Kind]]
"""Columns by table, both in lower case."""

_OF_TYPE: dict[str, Kind] = {
    **dict.fromkeys(
        ("TINYINT", "SMALLINT", "INT", "UTINYINT", "USMALLINT", "MEDIUMINT", "SERIAL"), Kind("integer", 10, 0)
    ),
    **dict.fromkeys(("BIGINT", "INT128", "UINT", "UBIGINT", "BIGSERIAL", "BIT"), INTEGER),
    **dict.fromkeys(("FLOAT", "DOUBLE"), FLOAT),
    **dict.fromkeys(("TEXT", "VARCHAR", "CHAR", "NCHAR", "NVARCHAR", "UUID", "NAME", "BPCHAR"), TEXT),
    "BOOLEAN": BOOLEAN,
    "DATE": DATE,
    "DATE32": DATE,
    **dict.fromkeys(
        ("TIMESTAMP", "TIMESTAMPNTZ", "DATETIME", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"), TIMESTAMP
    ),
    **dict.fromkeys(("TIMESTAMPTZ", "TIMESTAMPLTZ"), INSTANT),
    "INTERVAL": INTERVAL,
    **dict.fromkeys(("BINARY", "VARBINARY", "BLOB"), Kind("bytes")),
}


def kind_of_type(written: exp.DataType, *, of_spark: bool = False) -> Kind:
    """The kind of a type. In Spark's words a plain `timestamp` is an instant."""
    name = written.this.name if hasattr(written.this, "name") else str(written.this)
    if name == "TIMESTAMP" and of_spark:
        return INSTANT
    if name in ("DECIMAL", "BIGDECIMAL"):
        digits = [int(part.name) for part in written.expressions if part.name.isdigit()]
        return Kind("decimal", *(digits if len(digits) == 2 else [digits[0], 0] if digits else [None, None]))
    if name in ("ARRAY", "LIST"):
        inner = written.expressions[0] if written.expressions else None
        return Kind("list", item=_kind_of_part(inner, of_spark))
    if name == "STRUCT":
        found = [(part.name.lower(), part.args.get("kind")) for part in written.expressions]
        return Kind("struct", fields=tuple((field, _kind_of_part(part, of_spark)) for field, part in found))
    return Kind("map") if name == "MAP" else _OF_TYPE.get(name, UNKNOWN)


def _kind_of_part(part: Any, of_spark: bool) -> Kind:
    """The kind of what stands inside a list or struct; unknown when no type does."""
    return kind_of_type(part, of_spark=of_spark) if type(part).__name__ == "DataType" else UNKNOWN


def spark_kinds(columns: Mapping[str, str]) -> dict[str, Kind]:
    """Kinds by lower-case name of columns whose types Spark gave as text: `decimal(15,2)`."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    found = {}
    for name, written in columns.items():
        try:
            found[name.lower()] = kind_of_type(exp.DataType.build(written, dialect="spark"), of_spark=True)
        except (SqlglotError, ValueError):
            found[name.lower()] = UNKNOWN  # a type that only Spark knows
    return found


def kind(node: exp.Expr | None) -> Kind:
    """What was found out about a node; rules hand it on to what they put in its place."""
    found = None if node is None else node.meta.get("kind")
    return found if isinstance(found, Kind) else UNKNOWN


def find_kinds(tree: exp.Expr, tables: Tables, family: str) -> None:
    """Note the kind of every expression of a query in its `meta`."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.scope import traverse_scope

    try:
        scopes = traverse_scope(tree) if isinstance(tree, exp.Query) else []
    except SqlglotError:
        return  # nothing is known then, and rules that need to know say so
    finder = _Finder(tables, family)
    for scope in scopes:
        finder.visit(scope)


def find_kinds_of_expression(tree: exp.Expr, columns: Mapping[str, Kind], family: str) -> None:
    """Note the kinds in an expression over the columns of one row."""
    from sqlglot import exp

    finder = _Finder({}, family)
    for inner in list(tree.find_all(exp.Query)):
        find_kinds(inner, {}, family)
    for node in reversed(list(tree.walk())):
        if "kind" not in node.meta:
            found = finder.computed(node, lambda column: _in_row(column, columns))
            if found is not UNKNOWN:
                node.meta["kind"] = found


def _in_row(column: Any, columns: Mapping[str, Kind]) -> Kind:
    parts = [part.name.lower() for part in column.parts]
    found = columns.get(parts[0], UNKNOWN)
    for part in parts[1:]:
        found = dict(found.fields).get(part, UNKNOWN)
    return found


class _Finder:
    """Walks the scopes of a query from the innermost outwards; remembers what each gives."""

    def __init__(self, tables: Tables, family: str) -> None:
        self.tables, self.family = tables, family
        self.given: dict[int, dict[str, Kind]] = {}

    def visit(self, scope: Any) -> None:
        """Find the kinds in one scope. The scopes inside it have been visited."""
        for node in reversed(list(scope.walk())):
            if "kind" not in node.meta:
                found = self.computed(node, lambda column: self._column(column, scope))
                if found is not UNKNOWN:
                    node.meta["kind"] = found
        self.given[id(scope.expression)] = self._outputs(scope)

    def _outputs(self, scope: Any) -> dict[str, Kind]:
        from sqlglot import exp

        if isinstance(scope.expression, exp.SetOperation):
            sides = (scope.expression.this, scope.expression.expression)
            left, right = (self.given.get(id(side.unnest()), {}) for side in sides)
            kinds = dict(zip(left, map(common, left.values(), right.values()), strict=False))
        else:
            kinds = {}
            for select in getattr(scope.expression, "selects", ()):
                if select.is_star:
                    for name, source in self._sources(scope):
                        if not getattr(select, "table", "") or select.table.lower() == name:
                            kinds.update(self._columns(source))
                else:
                    kinds[select.alias_or_name.lower()] = kind(select)
        renamed = [getattr(column, "name", str(column)).lower() for column in scope.outer_columns]
        return dict(zip(renamed, kinds.values(), strict=False)) if renamed else kinds

    def _sources(self, scope: Any) -> Iterator[tuple[str, Any]]:
        return ((name.lower(), source) for name, (_, source) in scope.selected_sources.items())

    def _columns(self, source: Any) -> Mapping[str, Kind]:
        if type(source).__name__ == "Table":
            return self.tables.get(source.name.lower(), {})
        return self.given.get(id(source.expression), {})

    def _column(self, column: Any, scope: Any) -> Kind:
        """A column by its name, here or, for a subquery, further out; also a field of a struct column."""
        parts = [part.name.lower() for part in column.parts]
        while scope is not None:
            sources = dict(self._sources(scope))
            if len(parts) > 1 and parts[-2] in sources:
                return self._columns(sources[parts[-2]]).get(parts[-1], UNKNOWN)
            for name, source in sources.items():
                found = self._columns(source).get(parts[0])
                if found is not None:
                    column.meta["source"] = name
                    for part in parts[1:]:
                        found = dict(found.fields).get(part, UNKNOWN)
                    return found
            for select in getattr(scope.expression, "selects", ()):
                if len(parts) == 1 and select.alias.lower() == parts[0]:
                    return kind(select)  # a name given in the same SELECT
            scope = scope.parent
        return UNKNOWN

    def computed(self, node: exp.Expr, column: Callable[[exp.Expr], Kind]) -> Kind:
        """The kind of a node whose parts are known."""
        name = type(node).__name__
        if name == "Column":
            return column(node)
        if name in ("Subquery", "Select", "Union", "Except", "Intersect"):
            inner = self.given.get(id(node.unnest() if name == "Subquery" else node), {})
            return next(iter(inner.values()), UNKNOWN)
        return computed_kind(node, name, self.family)


# ── expressions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAME = _words(
    "Alias Paren Neg Abs Min Max First Last AnyValue FirstValue LastValue NthValue Lag Lead Window Filter WithinGroup "
    "IgnoreNulls RespectNulls Nullif Distinct Ordered Order Ceil Floor Round Trunc ArgMax ArgMin Median Mode"
)
_INTEGERS = _words(
    "Count CountIf ApproxDistinct RowNumber Rank DenseRank Ntile Length StrPosition IntDiv Year Month Day Quarter Week "
    "WeekOfYear DayOfWeek DayOfWeekIso DayOfMonth DayOfYear Hour Minute DateDiff ArraySize Unicode Ascii Levenshtein "
    "Sign"
)
_FLOATS = _words(
    "Sqrt Pow Ln Log Exp Stddev StddevSamp StddevPop Variance VariancePop Corr CovarSamp CovarPop Cbrt Sin Cos Tan "
    "Rand Degrees Radians PercentRank CumeDist PercentileCont"
)
_TEXTS = _words(
    "DPipe Concat ConcatWs Substring Left Right Upper Lower Trim Pad SplitPart Replace Repeat Reverse Initcap "
    "RegexpReplace RegexpExtract TimeToStr GroupConcat MD5 SHA2 Chr Monthname Dayname ToChar"
)
_BOOLEANS = _words(
    "Boolean And Or Xor Not EQ NEQ GT GTE LT LTE Is In Between Like ILike RegexpLike RegexpILike RegexpFullMatch "
    "Exists NullSafeEQ NullSafeNEQ LogicalAnd LogicalOr Escape Any All SimilarTo Glob StartsWith "
    "EndsWith Contains"
)
_CHOICES = _words("Coalesce Greatest Least Case If")
_ALWAYS: dict[str, Kind] = {
    **dict.fromkeys(_INTEGERS, INTEGER),
    **dict.fromkeys(_FLOATS, FLOAT),
    **dict.fromkeys(_TEXTS, TEXT),
    **dict.fromkeys(_BOOLEANS, BOOLEAN),
    **dict.fromkeys(("CurrentDate", "LastDay", "DateFromParts", "StrToDate", "TsOrDsToDate", "Date"), DATE),
    **dict.fromkeys(("CurrentTimestamp", "UnixToTime"), INSTANT),
    **dict.fromkeys(("StrToTime", "TimestampFromParts", "TimestampNtzFromParts", "CurrentDatetime"), TIMESTAMP),
    "Interval": INTERVAL,
    "MakeInterval": INTERVAL,
    "Null": NULL,
}


def computed_kind(node: exp.Expr, name: str, family: str) -> Kind:
    """The kind of a node from its parts; `name` is the name of its class."""
    if name == "Literal":
        return TEXT if node.is_string else _of_number(node.name)
    if name in ("Cast", "TryCast"):
        return kind_of_type(node.args["to"])
    if name in _SAME:
        return kind(node.this if node.this is not None else next(iter(node.expressions), None))
    if name in _ALWAYS:
        return _ALWAYS[name]
    if name in _CHOICES:
        return _of_choices(node, name)
    if name in ("Add", "Sub", "Mul", "Div", "Mod"):
        return of_operation(name, kind(node.this), kind(node.expression), family)
    if name == "Sum":
        summed = kind(node.this)
        return Kind("decimal", 38, summed.scale) if summed.name == "decimal" else summed
    if name == "Avg":
        return FLOAT if family != "postgres" or kind(node.this).name == "float" else Kind("decimal")
    if name == "Extract":
        part = node.name.upper()
        return FLOAT if part == "EPOCH" else Kind("decimal") if family == "postgres" and part == "SECOND" else INTEGER
    if name in ("TimestampTrunc", "DateTrunc"):
        is_instant = kind(node.this).name == "instant" or (family == "postgres" and kind(node.this).name == "date")
        return INSTANT if is_instant else TIMESTAMP
    if name == "ArrayAgg":
        return Kind("list", item=kind(node.this))
    if name == "Array":
        items = [kind(item) for item in node.expressions]
        return Kind("list", item=items[0] if items else UNKNOWN)
    if name == "Bracket":
        inside = kind(node.this)
        return inside.item or UNKNOWN if inside.name == "list" else TEXT if inside.name == "text" else UNKNOWN
    if name == "Dot":
        return dict(kind(node.this).fields).get(node.expression.name.lower(), UNKNOWN)
    return UNKNOWN


def _of_number(digits: str) -> Kind:
    if "e" in digits.lower():
        return FLOAT
    whole, dot, fraction = digits.partition(".")
    if not dot:
        return Kind("integer", len(whole), 0)
    return Kind("decimal", len(whole.lstrip("0")) + len(fraction), len(fraction))


def _of_choices(node: exp.Expr, name: str) -> Kind:
    if name == "Case":
        parts = [*(branch.args["true"] for branch in node.args["ifs"]), node.args.get("default")]
    elif name == "If":
        parts = [node.args["true"], node.args.get("false")]
    else:
        parts = [node.this, *node.expressions]
    found = NULL
    for part in parts:
        if part is not None:
            found = common(found, kind(part))
    return found


def common(first: Kind, second: Kind) -> Kind:
    """What two kinds become when they stand in one column."""
    if first == second or second.name == "null":
        return first
    if first.name == "null":
        return second
    if first.is_number and second.is_number:
        return _wider(first, second)
    if first.name == second.name:
        return Kind(first.name)
    if first.is_time and second.is_time:
        return INSTANT if "instant" in (first.name, second.name) else TIMESTAMP
    return UNKNOWN


def _wider(first: Kind, second: Kind) -> Kind:
    if "float" in (first.name, second.name):
        return FLOAT
    if first.name == second.name == "integer":
        return INTEGER
    if first.precision is None or first.scale is None or second.precision is None or second.scale is None:
        return Kind("decimal")
    scale = max(first.scale, second.scale)
    whole = max(first.precision - first.scale, second.precision - second.scale)
    return Kind("decimal", min(38, whole + scale), scale)


def _of_numbers(name: str, left: Kind, right: Kind) -> Kind:
    wider = _wider(left, right)
    if wider.name != "decimal" or wider.precision is None or wider.scale is None:
        return wider
    if name == "Mul":
        assert left.precision is not None and right.precision is not None
        digits, scale = left.precision + right.precision + 1, (left.scale or 0) + (right.scale or 0)
        return Kind("decimal", min(38, digits), scale)
    if name in ("Add", "Sub"):
        return Kind("decimal", min(38, wider.precision + 1), wider.scale)
    return Kind("decimal") if name == "Div" else wider


def of_operation(name: str, left: Kind, right: Kind, family: str) -> Kind:
    """What an operator makes of two kinds, as DuckDB and PostgreSQL do it."""
    if name == "Div" and family == "duckdb":
        return INTERVAL if left.name == "interval" else FLOAT
    if left.is_number and right.is_number:
        return _of_numbers(name, left, right)
    if name == "Sub" and left.is_time and right.is_time:
        return INTEGER if left.name == right.name == "date" else INTERVAL
    if name in ("Add", "Sub") and left.is_time:
        if right.name == "interval":
            return TIMESTAMP if left.name == "date" else left
        return left if right.name == "integer" else UNKNOWN
    if name == "Add" and right.is_time:
        return of_operation(name, right, left, family)
    if left.name == "interval" and right.name in ("interval", "integer", "decimal", "float"):
        return INTERVAL
    return INTERVAL if name == "Mul" and right.name == "interval" else UNKNOWN
