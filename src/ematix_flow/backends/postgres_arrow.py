"""PostgreSQL and Spark, Arrow batches in between: parallel reading of one snapshot, and COPY into a staging table.

The functions given to `mapInArrow` run in Spark's Python workers. They carry what they need as plain values; nothing of
it appears in Spark's plan, log or UI.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.transport import (
    arrow_type,
    exact_numbers,
    highest_mark,
    in_a_task,
    is_decimal,
    mark_text,
    quoted,
    spark_type,
    task_attempt,
)
from ematix_flow.contracts import refusals
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.plans import Reading, WatermarkRule
from ematix_flow.contracts.shapes import ColumnShape
from ematix_flow.declare.columns import (
    JSON,
    JSONB,
    UUID,
    Numeric,
)
from ematix_flow.errors import ConnectionFailed, MissingDriver, StatementFailed, UnfitValue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_AS_TEXT = (Numeric, JSON, JSONB, UUID)
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LOST_IN_JSONB = r"\\u0000|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"


def frame(
    spark: SparkSession,
    url: str,
    snapshot: str,
    queries: Sequence[str],
    shapes: Sequence[ColumnShape],
    reading: Reading,
) -> DataFrame:
    """A DataFrame over the queries, one partition each, all reading the exported snapshot."""
    from pyspark.sql import functions as F

    _require_adbc()
    wrapped = [_transportable(query, shapes) for query in queries]
    exact = _exact(shapes)
    schema = ", ".join(f"{quoted(shape.name)} {spark_type(shape.type)}" for shape in shapes)

    def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with in_a_task():
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from read_batches(url, snapshot, wrapped[index], exact)

    result = spark.range(0, len(wrapped), 1, len(wrapped)).mapInArrow(rows_of, schema)
    declared = {reading.renamed.get(c.name, c.name): c for c in reading.columns}
    for shape in shapes:
        if shape.native.startswith("numeric") and not is_decimal(shape.type):
            # A number without normalizers is cast straight to its declared type, so no digit is lost on the way.
            column = declared.get(shape.name)
            if column is None or not isinstance(column.type, Numeric) or column.normalizers:
                result = result.withColumn(shape.name, F.col(quoted(shape.name)).cast("decimal(38,18)"))
    return result


def table(url: str, snapshot: str, query: str, shapes: Sequence[ColumnShape]) -> pa.Table:
    """All rows of a query, read by this process.

    Raises:
        StatementFailed, UnfitValue: the server could not work the query out, or a number is none.
    """
    import pyarrow as pa

    _require_adbc()
    batches = list(read_batches(url, snapshot, _transportable(query, shapes), _exact(shapes)))
    if not batches:
        return pa.schema([(shape.name, arrow_type(shape.type)) for shape in shapes]).empty_table()
    found = pa.Table.from_batches(batches)
    for place, shape in enumerate(shapes):
        if shape.native.startswith("numeric") and not is_decimal(shape.type):
            found = found.set_column(place, shape.name, exact_numbers(found.column(place), shape.name))
    return found


def _exact(shapes: Sequence[ColumnShape]) -> dict[str, tuple[int, int]]:
    """Columns that travel as the text of a number, with the precision and scale they have."""
    return {
        shape.name: (shape.type.precision, shape.type.scale)
        for shape in shapes
        if isinstance(shape.type, Numeric) and is_decimal(shape.type)
    }


def read_batches(url: str, snapshot: str, query: str, exact: Mapping[str, tuple[int, int]]) -> Iterator[pa.RecordBatch]:
    """One part of the snapshot, streamed. Runs in a Spark worker.

    Args:
        exact: columns that arrive as the text of a number, with the precision and scale they have.

    Raises:
        StatementFailed, UnfitValue: the server could not work the query out, or a number is none.
    """
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa

    def as_spark_takes_it(name: str, column: pa.Array) -> pa.Array:
        if name in exact:
            try:
                return column.cast(pa.decimal128(*exact[name]))
            except pa.ArrowInvalid as exc:  # its text holds the value
                raise UnfitValue(
                    f"Column '{name}' of the source holds NaN, which no decimal can be.",
                    fix="leave such rows out, or read them as text: CAST(… AS text)",
                ) from exc
        return column.cast(pa.string()) if pa.types.is_large_string(column.type) else column

    try:
        with adbc.connect(url) as db, db.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            cursor.execute("SET LOCAL TIME ZONE 'UTC'")
            cursor.execute(query)
            reader = cursor.fetch_record_batch()
            for batch in reader:
                columns = [as_spark_takes_it(name, batch.column(name)) for name in batch.schema.names]
                yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
    except (adbc.Error, OSError) as exc:  # the driver's own, and Arrow's for a stream that breaks off
        raise _unread(exc) from exc


def _unread(exc: Exception) -> UnfitValue | StatementFailed:
    """The server could not work a query out, or went away. Its own words may quote a value."""
    found = re.search(r"SQLSTATE:? ?(\w{5})", f"{exc} SQLSTATE: {getattr(exc, 'sqlstate', '')}")
    state = found[1] if found else ""
    if state.startswith("22") or "invalid input syntax" in str(exc):
        return UnfitValue("A value does not fit a type that the query casts it to.")
    said = f" (SQLSTATE {state})" if state else ""
    return StatementFailed(f"PostgreSQL broke off while the rows of a query were read{said}.", fix="run it again")


def copy_frame(
    data: DataFrame, url: str, schema: str, table: str, watermark: WatermarkRule | None
) -> tuple[list[int], int, str | None]:
    """COPY a DataFrame into a staging table; the transactions of the tasks that finished, rows, and greatest mark."""
    _require_adbc()
    column = watermark.column if watermark else None
    kind = watermark.type if watermark else None
    names = list(data.schema.names)

    def copy_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        named = (pa.RecordBatch.from_arrays(batch.columns, names=names) for batch in batches)
        with in_a_task():
            transaction, rows, mark = copy_batches(named, url, schema, table, column)
        reached("task-copied", attempt=task_attempt()[0])
        if rows:
            text = None if mark is None else mark_text(mark, kind)
            yield pa.RecordBatch.from_pydict(
                {"xid": pa.array([transaction], pa.int64()), "rows": pa.array([rows], pa.int64()), "mark": [text]},
                schema=pa.schema([("xid", pa.int64()), ("rows", pa.int64()), ("mark", pa.string())]),
            )

    # Spark looks the columns up by unquoted name on the way to Python, which a backtick in a name would break.
    numbered = data.toDF(*(f"c{place}" for place in range(len(names))))
    manifest = numbered.mapInArrow(copy_partition, "xid bigint, rows bigint, mark string").collect()
    highest = highest_mark((row["mark"] for row in manifest), kind)
    return [row["xid"] for row in manifest], sum(row["rows"] for row in manifest), highest


def copy_batches(
    batches: Iterable[pa.RecordBatch], url: str, schema: str, table: str, mark_column: str | None
) -> tuple[int, int, Any]:
    """COPY Arrow batches in one transaction: its number, the rows, the greatest mark. Runs once per task attempt."""
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa
    import pyarrow.compute as pc

    iterator = iter(batches)
    first = next((batch for batch in iterator if batch.num_rows), None)
    if first is None:
        return 0, 0, None
    seen: dict[str, Any] = {"rows": 0, "mark": None}

    def counted() -> Iterator[pa.RecordBatch]:
        for batch in _chain(first, iterator):
            seen["rows"] += batch.num_rows
            if mark_column is not None:
                highest = pc.max(batch.column(mark_column)).as_py()
                if highest is not None and (seen["mark"] is None or highest > seen["mark"]):
                    seen["mark"] = highest
            yield batch

    reader = pa.RecordBatchReader.from_batches(first.schema, counted())
    try:
        with adbc.connect(url) as db, db.cursor() as cursor:
            # Every row carries the number of the transaction that wrote it (xmin): it tells the attempts apart.
            cursor.execute("SELECT (txid_current() % 4294967296)::bigint")
            transaction = int(cursor.fetchone()[0])
            cursor.adbc_ingest(table, reader, mode="append", db_schema_name=schema)
            db.commit()
    except adbc.Error as exc:
        if "0x00" in str(exc):
            # A server that speaks English names the column last.
            found = re.search(r", column (.*)\n\. SQLSTATE", str(exc), re.DOTALL)
            where = f" in column '{found[1]}'" if found and found[1] in first.schema.names else ""
            raise UnfitValue(
                f"A text{where} holds a NUL character, which PostgreSQL cannot keep.",
                fix="replace it in the source, or declare the column Bytes",
            ) from exc
        if not exc.sqlstate:  # nothing that the server said
            raise ConnectionFailed(
                "PostgreSQL broke off while rows were brought to it.", fix="see whether the server is there"
            ) from exc
        raise StatementFailed(f"PostgreSQL refused rows that were brought to it (SQLSTATE {exc.sqlstate}).") from exc
    return transaction, seen["rows"], seen["mark"]


def held_as_jsonb(data: DataFrame, documents: Sequence[str]) -> DataFrame:
    """The same rows; a document in one of these columns that only the type `json` takes fails the load.

    A parsed document has no place for the character NUL, nor for one half of a character that takes two escapes.
    """
    if not documents:
        return data
    from pyspark.sql import functions as F

    columns = []
    for name in data.columns:
        column = F.col(quoted(name))
        if name in documents:
            # A backslash that is escaped itself begins no escape.
            escapes = F.regexp_replace(column, r"\\\\", "")
            # Of characters that take two escapes, only halves are left over.
            escapes = F.regexp_replace(escapes, _HIGH + _LOW, " ")
            message = refusals.unfit_because(
                f"Column '{name}' holds a document with \\u0000 or half a character, which jsonb cannot keep.",
                column=name,
                fix="declare it JSON or Text, or mend the source",
            )
            lost = column.contains("\\u") & escapes.rlike(_LOST_IN_JSONB)
            column = F.when(lost, F.raise_error(F.lit(message)).cast("string")).otherwise(column).alias(name)
        columns.append(column)
    return data.select(*columns)


def _chain(first: pa.RecordBatch, rest: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _transportable(query: str, shapes: Sequence[ColumnShape]) -> str:
    """The query with every column in a type that Arrow and PostgreSQL agree on; the others as text."""
    columns = ", ".join(
        f"q.{_quoted(shape.name)}" + ("" if _is_native(shape) else "::text") + f" AS {_quoted(shape.name)}"
        for shape in shapes
    )
    return f"SELECT {columns} FROM ({query}\n) AS q"


def _is_native(shape: ColumnShape) -> bool:
    return shape.type is not None and not isinstance(shape.type, _AS_TEXT)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _require_adbc() -> None:
    import importlib.util

    if importlib.util.find_spec("adbc_driver_postgresql") is None:
        raise MissingDriver(
            "Moving rows between Spark and PostgreSQL needs 'adbc-driver-postgresql'.",
            fix='pip install "ematix-flow[postgres]"',
        )
