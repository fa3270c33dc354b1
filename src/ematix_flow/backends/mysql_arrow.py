"""MySQL and Spark, Arrow batches in between: readers, each of one snapshot, and LOAD DATA into a staging table.

The functions given to `mapInArrow` run in Spark's Python workers. They carry what they need as plain values; nothing of
it appears in Spark's plan, log or UI.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends import mysql_lines
from ematix_flow.backends.mysql_errors import explained
from ematix_flow.backends.mysql_rows import Loader
from ematix_flow.backends.mysql_session import open_session
from ematix_flow.backends.transport import (
    MOST_DIGITS,
    arrow_type,
    exact_numbers,
    highest_mark,
    in_a_task,
    mark_text,
    quoted,
    spark_type,
    task_attempt,
)
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.plans import Reading, WatermarkRule
from ematix_flow.contracts.shapes import ColumnShape
from ematix_flow.declare.columns import (
    ColumnType,
    Numeric,
)
from ematix_flow.declare.table import ColumnSpec

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def frame(
    spark: SparkSession, url: str, name: str, queries: Sequence[str], shapes: Sequence[ColumnShape], reading: Reading
) -> DataFrame:
    """A DataFrame over the queries, each read by one task in a snapshot of its own: connections cannot share one."""
    from pyspark.sql import functions as F

    wrapped = [mysql_lines.as_lines(query, shapes) for query in queries]
    types = [shape.type for shape in shapes]
    names = [shape.name for shape in shapes]
    schema = ", ".join(f"{quoted(n)} {spark_type(t)}" for n, t in zip(names, types, strict=True))

    def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with in_a_task():
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from read_batches(url, name, wrapped[index], names, types)

    result = spark.range(0, len(wrapped), 1, len(wrapped)).mapInArrow(rows_of, schema)
    declared = {reading.renamed.get(c.name, c.name): c for c in reading.columns}
    for shape in shapes:
        if not isinstance(shape.type, Numeric) or shape.type.precision <= MOST_DIGITS:
            continue
        # A number without normalizers is cast straight to its declared type, so no digit is lost on the way.
        column = declared.get(shape.name)
        if column is not None and isinstance(column.type, Numeric) and not column.normalizers:
            continue
        result = result.withColumn(shape.name, F.col(quoted(shape.name)).cast("decimal(38,18)"))
    return result


def table(url: str, name: str, sql: str, shapes: Sequence[ColumnShape]) -> pa.Table:
    """All rows of a query, read by this process, in the order that the query asks for."""
    import pyarrow as pa

    names, types = [shape.name for shape in shapes], [shape.type for shape in shapes]
    query = mysql_lines.as_lines(_kept_in_order(sql), shapes)
    schema = pa.schema([(n, arrow_type(t)) for n, t in zip(names, types, strict=True)])
    found = pa.Table.from_batches(list(read_batches(url, name, query, names, types)), schema)
    for place, shape in enumerate(shapes):
        if isinstance(shape.type, Numeric) and shape.type.precision > MOST_DIGITS:
            found = found.set_column(place, shape.name, exact_numbers(found.column(place), shape.name))
    return found


def _kept_in_order(sql: str) -> str:
    """The query with the greatest of limits: without one, a server forgets the order of a query inside another."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        found = sqlglot.parse_one(sql, read="mysql")
    except SqlglotError:
        return sql
    return f"{sql}\nLIMIT {2**64 - 1}" if found.args.get("order") and not found.args.get("limit") else sql


def read_batches(
    url: str, name: str, query: str, names: Sequence[str], types: Sequence[ColumnType | None]
) -> Iterator[pa.RecordBatch]:
    """The rows of a query, streamed. Runs in a Spark worker."""
    import pyarrow as pa

    schema = pa.schema([(n, arrow_type(t)) for n, t in zip(names, types, strict=True)])
    session = open_session(url, name)
    try:
        session.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        yield from mysql_lines.batches(session.streamed(query), schema)
    except Exception as exc:
        found = explained(exc, name)
        if found is None:
            raise
        raise found from exc
    finally:
        session.close()


def load_frame(
    data: DataFrame,
    url: str,
    name: str,
    table: str,
    columns: Sequence[ColumnSpec],
    attempt_column: str,
    watermark: WatermarkRule | None,
) -> tuple[dict[int, int], str | None]:
    """Load a DataFrame into a staging table; the rows of each task attempt that finished, and the greatest mark."""
    place = [column.name for column in columns].index(watermark.column) if watermark else None
    kind = watermark.type if watermark else None

    def load_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        again, attempt = task_attempt()
        # Its own one: where tasks are threads of one process, they would share what is outside of this function.
        loader = Loader(table, tuple(columns), attempt_column)
        with in_a_task():
            rows, mark = _loaded(loader, batches, url, name, attempt, place)
        reached("task-copied", attempt=again)
        if rows:
            text = None if mark is None else mark_text(mark, kind)
            yield pa.RecordBatch.from_pydict(
                {"attempt": pa.array([attempt], pa.int64()), "rows": pa.array([rows], pa.int64()), "mark": [text]},
                schema=pa.schema([("attempt", pa.int64()), ("rows", pa.int64()), ("mark", pa.string())]),
            )

    # Spark looks the columns up by unquoted name on the way to Python, which a backtick in a name would break.
    numbered = data.toDF(*(f"c{number}" for number in range(len(columns))))
    manifest = numbered.mapInArrow(load_partition, "attempt bigint, rows bigint, mark string").collect()
    highest = highest_mark((row["mark"] for row in manifest), kind)
    return {row["attempt"]: row["rows"] for row in manifest}, highest


def _loaded(
    loader: Loader, batches: Iterable[pa.RecordBatch], url: str, name: str, attempt: int, mark_place: int | None
) -> tuple[int, Any]:
    """Load Arrow batches in one transaction. Runs in a Spark worker, once per task attempt."""
    import pyarrow.compute as pc

    rows, mark, session = 0, None, None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if session is None:
                session = open_session(url, name, sends_files=True)
                session.execute("BEGIN")
            rows += batch.num_rows
            if mark_place is not None:
                highest = pc.max(batch.column(mark_place)).as_py()
                mark = highest if mark is None or (highest is not None and highest > mark) else mark
            loader.add(session, batch, attempt)
        if session is not None:
            loader.flush(session)
            session.execute("COMMIT")
    except Exception as exc:
        found = explained(exc, name)
        if found is None:
            raise
        raise found from exc
    finally:
        loader.discard()
        if session is not None:
            session.close()
    return rows, mark
