"""Which rows a query of a stream fails for, asked of all of them at once.

A failing expression stops the whole job, so rows that spoil a batch have to be searched for by trying parts of it.
Where a query says something of each row by itself, there is a shorter way: all its expressions are put into one that
gives NULL where any of them fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlglot import exp


class NotByRow(Exception):
    """The query does not say something of each row by itself, in a form that is known here."""


def asked_of_each_row(views: Collection[str], row: str) -> Callable[[SparkSession, str], DataFrame]:
    """What runs the queries that `failing_rows` makes of Spark SQL."""
    return lambda spark, sql: spark.sql(failing_rows(sql, views, row))


def failing_rows(sql: str, views: Collection[str], row: str) -> str:
    """The query, in Spark SQL, that gives the column `row` of the rows that a query fails for.

    Args:
        views: What the query calls the rows of the stream.

    Raises:
        NotByRow: another way has to be found.

    >>> failing_rows("SELECT s.id, CAST(s.v AS INT) AS n FROM v1 AS s WHERE s.id > 1", ["v1"], "at")
    "SELECT s.at FROM v1 AS s WHERE TRY_TO_BINARY(CAST(CASE WHEN s.id > 1 THEN HASH(s.at, CAST(s.v AS INT)) ELSE 0 END \
& 0 AS STRING), 'utf-8') IS NULL"
    """
    from sqlglot import exp, parse_one

    tree = parse_one(sql, read="spark")
    read = _read(tree, views)
    assert isinstance(tree, exp.Select)
    made = [_unnamed(one) for one in tree.expressions]
    # The row itself is among them: what is the same for all rows Spark would work out beforehand, or leave out.
    made = [one for one in made if not one.is_star and not isinstance(one, (exp.Column, exp.Literal))]
    kept = tree.args.get("where")
    worked_out: exp.Expr = exp.Anonymous(this="HASH", expressions=[exp.column(row, table=read), *made])
    if kept is not None:
        worked_out = exp.Case(ifs=[exp.If(this=kept.this, true=worked_out)], default=exp.Literal.number(0))
    text = exp.cast(exp.BitwiseAnd(this=worked_out, expression=exp.Literal.number(0)), "string", dialect="spark")
    # Of Spark's try_ functions this is one that also gives NULL for what fails within its argument, not only for what
    # it does itself; should that change, the query fails like the one it is made of.
    tried = exp.Anonymous(this="TRY_TO_BINARY", expressions=[text, exp.Literal.string("utf-8")])
    tree.set("expressions", [exp.column(row, table=read)])
    tree.set("where", exp.Where(this=exp.Is(this=tried, expression=exp.Null())))
    tree.set("order", None)
    return tree.sql(dialect="spark")


def _read(tree: exp.Expr, views: Collection[str]) -> str:
    """What a query calls the rows of the stream, when it takes each by itself."""
    from sqlglot import exp

    if not isinstance(tree, exp.Select):
        raise NotByRow
    places = ("expressions", "where", "order", "from_", "from", "joins", "kind", "hint")
    together = (exp.AggFunc, exp.Window, exp.Explode, exp.Posexplode, exp.Inline)
    if any(value and name not in places for name, value in tree.args.items()):
        raise NotByRow
    if any(node is not tree and isinstance(node, (exp.Query, *together)) for node in tree.walk()):
        raise NotByRow
    begins = tree.args.get("from_") or tree.args.get("from")
    tables = [begins.this if begins is not None else None, *(join.this for join in tree.args.get("joins") or ())]
    read = [table for table in tables if isinstance(table, exp.Table) and table.name in views]
    if len(read) != 1 or not all(isinstance(table, exp.Table) for table in tables):
        raise NotByRow
    return str(read[0].alias_or_name)


def _unnamed(projection: exp.Expr) -> exp.Expr:
    from sqlglot import exp

    return projection.this if isinstance(projection, exp.Alias) else projection
