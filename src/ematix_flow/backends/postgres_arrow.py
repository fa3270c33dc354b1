"""PostgreSQL and Spark, Arrow batches in between: parallel reading of one snapshot, and COPY into a staging table.

The functions given to `mapInArrow` run in Spark's Python workers. They carry what they need as plain values; nothing of
it appears in Spark's plan, log or UI.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.plans import Reading, WatermarkRule
from ematix_flow.contracts.shapes import ColumnShape
from ematix_flow.declare.columns import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    ColumnType,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.errors import MissingDriver, UnfitValue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_SPARK_TYPES: dict[type[ColumnType], str] = {
    SmallInt: "smallint",
    Integer: "int",
    BigInt: "bigint",
    Float: "float",
    Double: "double",
    Boolean: "boolean",
    Text: "string",
    String: "string",
    Date: "date",
    Timestamp: "timestamp_ntz",
    TimestampTZ: "timestamp",
    Bytes: "binary",
}
_AS_TEXT = (Numeric, JSON, JSONB, UUID)


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
    schema = ", ".join(f"{_backticked(shape.name)} {_travels_as(shape)}" for shape in shapes)

    def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from read_batches(url, snapshot, wrapped[index])

    result = spark.range(0, len(wrapped), 1, len(wrapped)).mapInArrow(rows_of, schema)
    declared = {reading.renamed.get(c.name, c.name): c for c in reading.columns}
    for shape in shapes:
        kind = shape.type
        if shape.native.startswith("numeric"):
            # A number without normalizers is cast straight to its declared type, so no digit is lost on the way.
            column = declared.get(shape.name)
            if column is not None and isinstance(column.type, Numeric) and not column.normalizers:
                continue
            fits = isinstance(kind, Numeric) and kind.precision <= 38
            target = f"decimal({kind.precision},{kind.scale})" if fits else "decimal(38,18)"  # type: ignore[union-attr]
            result = result.withColumn(shape.name, F.col(_backticked(shape.name)).cast(target))
    return result


def read_batches(url: str, snapshot: str, query: str) -> Iterator[pa.RecordBatch]:
    """One part of the snapshot, streamed. Runs in a Spark worker."""
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa

    with adbc.connect(url) as db, db.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        cursor.execute("SET LOCAL TIME ZONE 'UTC'")
        cursor.execute(query)
        reader = cursor.fetch_record_batch()
        for batch in reader:
            columns = [
                column.cast(pa.string()) if pa.types.is_large_string(column.type) else column
                for column in batch.columns
            ]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def copy_frame(
    data: DataFrame, url: str, schema: str, table: str, attempt_column: str, watermark: WatermarkRule | None
) -> tuple[list[int], int, str | None]:
    """COPY a DataFrame into a staging table; which task attempts finished, how many rows, and the greatest mark."""
    _require_adbc()
    column = watermark.column if watermark else None
    kind = watermark.type if watermark else None
    names = list(data.columns)

    def copy_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else 0
        named = (pa.RecordBatch.from_arrays(batch.columns, names=names) for batch in batches)
        rows, mark = copy_batches(named, url, schema, table, attempt_column, attempt, column)
        reached("task-copied", attempt=context.attemptNumber() if context else 0)
        if rows:
            text = None if mark is None else mark_text(mark, kind)
            yield pa.RecordBatch.from_pydict(
                {"attempt": pa.array([attempt], pa.int64()), "rows": pa.array([rows], pa.int64()), "mark": [text]},
                schema=pa.schema([("attempt", pa.int64()), ("rows", pa.int64()), ("mark", pa.string())]),
            )

    # Spark looks the columns up by unquoted name on the way to Python, which a backtick in a name would break.
    numbered = data.toDF(*(f"c{place}" for place in range(len(names))))
    manifest = numbered.mapInArrow(copy_partition, "attempt bigint, rows bigint, mark string").collect()
    marks = [row["mark"] for row in manifest if row["mark"] is not None]
    highest = max(marks, key=lambda text: _comparable(text, kind)) if marks else None
    return [row["attempt"] for row in manifest], sum(row["rows"] for row in manifest), highest


def copy_batches(
    batches: Iterable[pa.RecordBatch],
    url: str,
    schema: str,
    table: str,
    attempt_column: str,
    attempt: int,
    mark_column: str | None,
) -> tuple[int, Any]:
    """COPY Arrow batches in one transaction. Runs in a Spark worker, once per task attempt."""
    import adbc_driver_postgresql.dbapi as adbc
    import pyarrow as pa
    import pyarrow.compute as pc

    iterator = iter(batches)
    first = next((batch for batch in iterator if batch.num_rows), None)
    if first is None:
        return 0, None
    seen: dict[str, Any] = {"rows": 0, "mark": None}

    def stamped() -> Iterator[pa.RecordBatch]:
        for batch in _chain(first, iterator):
            if not batch.num_rows:
                continue
            seen["rows"] += batch.num_rows
            if mark_column is not None:
                highest = pc.max(batch.column(mark_column)).as_py()
                if highest is not None and (seen["mark"] is None or highest > seen["mark"]):
                    seen["mark"] = highest
            attempts = pa.repeat(pa.scalar(attempt, pa.int64()), batch.num_rows)
            yield pa.RecordBatch.from_arrays([*batch.columns, attempts], names=[*batch.schema.names, attempt_column])

    layout = first.schema.append(pa.field(attempt_column, pa.int64()))
    reader = pa.RecordBatchReader.from_batches(layout, stamped())
    try:
        with adbc.connect(url) as db, db.cursor() as cursor:
            cursor.adbc_ingest(table, reader, mode="append", db_schema_name=schema)
            db.commit()
    except adbc.Error as exc:
        if "0x00" in str(exc):
            raise UnfitValue("A text holds a NUL character, which PostgreSQL cannot keep.", fix="replace it") from exc
        raise
    return seen["rows"], seen["mark"]


def mark_text(mark: Any, kind: ColumnType | None) -> str:
    """The canonical text of a watermark: what PostgreSQL itself would give for the same value."""
    if isinstance(kind, TimestampTZ):
        from datetime import timezone

        return str(mark.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")) + "Z"
    if isinstance(kind, Timestamp):
        return str(mark.strftime("%Y-%m-%dT%H:%M:%S.%f"))
    return str(mark)


def _comparable(text: str, kind: ColumnType | None) -> Any:
    from decimal import Decimal

    if isinstance(kind, SmallInt | Integer | BigInt | Numeric):
        return Decimal(text)
    return float(text) if isinstance(kind, Float | Double) else text.encode()


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


def _travels_as(shape: ColumnShape) -> str:
    return _SPARK_TYPES[type(shape.type)] if shape.type is not None and _is_native(shape) else "string"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _backticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _require_adbc() -> None:
    import importlib.util

    if importlib.util.find_spec("adbc_driver_postgresql") is None:
        raise MissingDriver(
            "Moving rows between Spark and PostgreSQL needs 'adbc-driver-postgresql'.",
            fix='pip install "ematix-flow[postgres]"',
        )
