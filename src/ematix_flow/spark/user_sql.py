"""The user's own SQL inside markers and row steps, in Spark's words when it is written in another dialect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, functions as F, types as t

from ematix_flow.backends.translation.answers import complained
from ematix_flow.backends.translation.spark_sql import spark_expression
from ematix_flow.backends.translation.text import UserSql
from ematix_flow.declare.normalizers import Derive, Normalizer, Sql
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.declare.steps import FilterWhere, RowStep


def markers_in_spark(
    markers: Sequence[Normalizer], dialect: SqlDialect, frame: DataFrame, column: t.DataType, *, name: str
) -> tuple[Normalizer, ...]:
    """The markers of a column with `derive` and `sql` translated.

    Args:
        markers: In the order they are applied.
        dialect: What the user's SQL is written in.
        frame: The rows whose columns `derive` can name.
        column: The type of the value before the first marker.
        name: The declared column, for messages.

    Raises:
        InvalidSource: the SQL means something else in Spark; the message points into it.
    """
    found: list[Normalizer] = []
    for place, marker in enumerate(markers):
        what = f"{marker.kind} of column '{name}'"
        if isinstance(marker, Derive):
            marker = replace(marker, expression=_over_rows(UserSql(marker.expression, dialect, what), frame))
        elif isinstance(marker, Sql):
            before = {"col": column.simpleString()} if place == 0 else {}
            written = UserSql(marker.expression, dialect, what)
            marker = replace(marker, expression=spark_expression(marker.expression, dialect, before, what))
            if place == 0:
                with complained(written):
                    there = frame.withColumn("col", F.lit(None).cast(column))
                    _ = there.select(F.expr(f"({marker.expression}\n)")).schema
        found.append(marker)
    return tuple(found)


def step_in_spark(step: RowStep, dialect: SqlDialect, frame: DataFrame) -> RowStep:
    """A row step with its condition translated; the frame holds the columns it may name.

    Raises:
        InvalidSource: the condition means something else in Spark; the message points into it.
    """
    if not isinstance(step, FilterWhere):
        return step
    return replace(step, condition=_over_rows(UserSql(step.condition, dialect, step.kind), frame))


def _over_rows(written: UserSql, frame: DataFrame) -> str:
    """An expression over the columns of a frame, in Spark's words, that Spark has understood."""
    columns = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    translated = spark_expression(written.text, written.dialect, columns, written.what)
    with complained(written):
        _ = frame.select(F.expr(f"({translated}\n)")).schema
    return translated
