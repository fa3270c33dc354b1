"""`transform_sql` of a stream: one SELECT over `source`, the rows of the micro-batch, and over its lookups.

What a broker says of a message (`_offset`, `_event_ts`, …) can be named; `*` gives the payload alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from ematix_flow.backends.files_sql import FolderQuery, folder_query
from ematix_flow.contracts.streams import HIDDEN_COLUMNS, POSITION
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.errors import InvalidSource, closest, listed
from ematix_flow.spark.failing_rows import NotByRow, asked_of_each_row
from ematix_flow.spark.row_wise import carrying, require_row_wise

if TYPE_CHECKING:
    from sqlglot import exp

    from ematix_flow.spark.functions import SqlFunctions

SOURCE = "source"


class StreamSql:
    """The SQL of a stream, parsed once and run over every batch.

    Args:
        lookups: Names of tables beside `source`.
        functions: Functions of the user's own that it may call.
        carried: Columns that go through it unasked: a window follows that needs them.

    Raises:
        InvalidSource: it is not one SELECT, or names a table that is neither `source` nor a lookup.
        InvalidPlan: a function is called with too few or too many arguments.
    """

    def __init__(
        self,
        sql: str,
        dialect: SqlDialect,
        lookups: Sequence[str] = (),
        functions: SqlFunctions | None = None,
        carried: Sequence[str] | None = None,
    ) -> None:
        query = folder_query(sql, dialect, functions.own if functions is not None else None)
        self._run = functions.run if functions is not None else None
        if functions is not None:
            functions.check(query.tree, query.written)
        known = (SOURCE, *lookups)
        for ref in query.views.values():
            if ref.schema or ref.name.lower() not in [name.lower() for name in known]:
                raise InvalidSource(
                    f"transform_sql names the table '{ref}'; it can name {listed(known)}.",
                    fix=closest(ref.name, known) or "the rows of the stream are called 'source'",
                )
        self.named = tuple(name for name in HIDDEN_COLUMNS if re.search(rf"(?<![\w]){name}(?![\w])", sql))
        """Hidden columns that the SQL names."""
        self._carried = tuple(carried or ())
        if carried is not None:
            require_row_wise(query, [view for view, ref in query.views.items() if ref.name.lower() == SOURCE])
            hidden = [name for name in self._carried if name in HIDDEN_COLUMNS]
            self.named = tuple(dict.fromkeys((*self.named, *hidden)))
        views = [view for view, ref in query.views.items() if ref.name.lower() == SOURCE]
        self._placed = None if carried is not None else _placed(query, views, self.named)
        self._query = _passing(query, views, self.named, self._carried)

    def __call__(self, rows: DataFrame, lookups: Mapping[str, DataFrame] | None = None) -> DataFrame:
        """The result over one batch.

        Raises:
            InvalidSource: two of its columns have one name, and are not the same.
        """
        found = self._over(rows, lookups, self._run)
        _require_one_of_each(found)
        return found

    def failing(self, rows: DataFrame, row: str, lookups: Mapping[str, DataFrame] | None = None) -> DataFrame | None:
        """What stands in a column of the rows that the SQL fails for; None when that cannot be asked of it."""
        if self._run is not None:
            return None  # a function of the user's own fails for as many rows as it was given
        views = [view for view, ref in self._query.views.items() if ref.name.lower() == SOURCE]
        try:
            return self._over(rows, lookups, asked_of_each_row(views, row), (row,))
        except NotByRow:
            return None

    def _over(
        self,
        rows: DataFrame,
        lookups: Mapping[str, DataFrame] | None,
        run: Callable[[SparkSession, str], DataFrame] | None,
        more: Sequence[str] = (),
    ) -> DataFrame:
        spark = rows.sparkSession
        query = self._query
        if self._placed is not None and POSITION in rows.columns and not more:
            query, more = self._placed, (POSITION,)
        shown = [*(name for name in rows.columns if not name.startswith("__")), *more]
        shown += [name for name in self._carried if name not in shown]
        offered = rows.select(*[_quoted(n) for n in shown if n not in HIDDEN_COLUMNS or n in self.named])
        frames = {SOURCE: offered, **(lookups or {})}
        views = {view: ref.name.lower() for view, ref in query.views.items()}
        try:
            for view, name in views.items():
                frames[next(known for known in frames if known.lower() == name)].createOrReplaceTempView(view)
            return query.frame(spark, run)
        finally:
            for view in views:
                spark.catalog.dropTempView(view)


def _require_one_of_each(found: DataFrame) -> None:
    """A column that stands twice is one; of two that only share their name nobody could say which is meant."""
    seen: dict[str, str] = {}
    for name in found.columns:
        other = seen.get(name.lower())
        if other is None:
            seen[name.lower()] = name
            continue
        try:
            found.select(_quoted(name))
        except AnalysisException as exc:
            raise InvalidSource(
                f"transform_sql gives two columns named '{name}'"
                + (f", which to SQL is '{other}' as well." if other != name else "."),
                fix="name them apart with AS; where a * brings one of them, name its columns instead",
            ) from exc


def _passing(query: FolderQuery, views: Sequence[str], named: Sequence[str], passed: Sequence[str]) -> FolderQuery:
    """The query with columns that go through it unasked, and are no part of `*`."""
    hidden = (*named, *(name for name in passed if name not in named))
    return carrying(_without_hidden(query, hidden), views, passed)


def _placed(query: FolderQuery, views: Sequence[str], named: Sequence[str]) -> FolderQuery | None:
    """The query with `POSITION` going through it; None where a row of its answer comes from several of the stream."""
    try:
        require_row_wise(query, views)
    except InvalidSource:
        return None
    return _passing(replace(query, tree=query.tree.copy()), views, named, (POSITION,))


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _without_hidden(query: FolderQuery, named: Sequence[str]) -> FolderQuery:
    """The query with `*` meaning the payload, although the view it reads has more."""
    if not named:
        return query
    views = [view for view, ref in query.views.items() if ref.name.lower() == SOURCE]
    return query.changed(lambda tree: _narrow_stars(tree, views, named))


def _narrow_stars(tree: exp.Expr, views: Sequence[str], named: Sequence[str]) -> None:
    from sqlglot import exp

    for select in tree.find_all(exp.Select):
        source = select.args.get("from_") or select.args.get("from")
        joins = select.args.get("joins") or ()
        aliases = {
            table.alias_or_name
            for part in (source, *joins)
            if part is not None and isinstance(table := part.this, exp.Table) and table.name in views
        }
        if not aliases:
            continue
        for projection in select.expressions:
            star = projection.this if isinstance(projection, exp.Column) else projection
            if not isinstance(star, exp.Star):
                continue
            if isinstance(projection, exp.Column) and projection.table not in aliases:
                continue
            already = star.args.get("except_") or []
            star.set("except_", [*already, *(exp.to_identifier(name) for name in named)])
