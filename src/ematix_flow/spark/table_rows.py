"""A whole table, or a query, of any system that can be read in a batch, as a DataFrame with the types it declares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from ematix_flow.contracts.backend import Backend, SpeaksSql
from ematix_flow.contracts.plans import Reading, SourceQuery
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.spark.expressions import column_of
from ematix_flow.spark.fitting import typed_column


def whole_table(backend: Backend, ref: TableRef, moment: int | str | None = None) -> SourceQuery:
    """All rows of a table; without a schema, what the system takes the name alone for.

    Args:
        moment: The version, or the time, of a lake table.
    """
    from sqlglot import exp

    if isinstance(backend, SpeaksSql):
        name = backend.dialect.table(ref) if ref.schema else backend.dialect.quote(ref.name)
        return SourceQuery(sql=f"SELECT * FROM {name}")
    if moment is not None:
        parts = [exp.to_identifier(part, quoted=True).sql(dialect="spark") for part in (ref.schema, ref.name) if part]
        at = f"VERSION AS OF {moment}" if isinstance(moment, int) else f"TIMESTAMP AS OF '{moment}'"
        return SourceQuery(sql=f"SELECT * FROM {'.'.join(parts)} {at}")
    return SourceQuery(table=backend.table_ref(ref.schema, ref.name)) if ref.schema else SourceQuery(sql=ref.name)


@contextmanager
def table_rows(
    spark: SparkSession, backend: Backend, query: SourceQuery, dialect: SqlDialect = "spark"
) -> Iterator[DataFrame]:
    """The rows of a query as of now, for as long as the context is open.

    Some systems hand times and exact numbers over as text; here they have their types.

    Args:
        dialect: What the query is written in, where Spark runs it.
    """
    shapes = backend.describe_query(query.sql) if isinstance(backend, SpeaksSql) and query.sql is not None else ()
    types = {shape.name: shape.type for shape in shapes}
    reading = Reading(query=query, columns=(), renamed={}, pending={}, source_types=types, dialect=dialect)
    with backend.read(spark, query, reading) as frame:
        typed = [
            typed_column(column_of(field.name), field.dataType, types.get(field.name), field.name)[0].alias(field.name)
            for field in frame.schema.fields
        ]
        yield frame.select(*typed)
