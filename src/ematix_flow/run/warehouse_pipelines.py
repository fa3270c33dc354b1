"""Moving rows between warehouses: read as Arrow, transform on Spark where asked, write in bulk.

Rows pass through Parquet files of this machine, a batch at a time, whatever their number.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.backends import spool
from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.files_sql import FolderQuery, folder_query
from ematix_flow.backends.frames import as_arrow
from ematix_flow.backends.transport import highest_mark, mark_text
from ematix_flow.backends.warehouse import WarehouseBackend
from ematix_flow.config.resolve import resolve
from ematix_flow.declare.columns import ColumnType
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.sql_dialects import SqlDialect, checked_dialect
from ematix_flow.declare.warehouse import WarehousePipeline, WarehouseSource, WarehouseTarget, as_source
from ematix_flow.errors import (
    FlowError,
    InvalidSource,
    MissingSourceColumn,
    WarehouseSyncError,
    WrongConnectionType,
    WrongDeclarationType,
    closest,
    listed,
)

if TYPE_CHECKING:
    import pyarrow as pa


_SOURCE = "source"
"""The table that `transform_sql` sees."""


@dataclass(frozen=True)
class WarehouseRunResult:
    """What one run moved."""

    rows_read: int
    rows_written: int
    duration_ms: float


@dataclass(frozen=True)
class _Increment:
    """Read only rows above a mark."""

    column: str
    mark: str | None


def run_warehouse_pipeline(
    source: Any, target: Any, *, transform_sql: str | None = None, dialect: str = "spark"
) -> WarehouseRunResult:
    """Move the rows of a query into a table, once.

    Args:
        source: A `WarehouseSource`.
        target: A `WarehouseTarget`.
        transform_sql: SQL over the rows, which it sees as the table `source`.
        dialect: What `transform_sql` is written in; Spark runs it.

    Raises:
        WarehouseSyncError: it failed. Rows are written by one statement, so there are all of them or none.
        ImportError: a warehouse's SDK is missing; the message names the extra.
        TypeError: the source or the target is none.
    """
    origin = as_source(source)
    if not isinstance(target, WarehouseTarget):
        raise WrongDeclarationType(f"The target must be a WarehouseTarget, not {type(target).__name__}.")
    return _moved(origin, target, _checked_sql(transform_sql), checked_dialect(dialect), None)[0]


def run_declared(pipeline: WarehousePipeline) -> dict[str, Any]:
    """Run a declared pipeline once; the mark moves on only after the rows have been written."""
    transform_sql = _checked_sql(pipeline.function())
    store, column = pipeline.watermark_store, pipeline.incremental_column
    increment = None
    if store is not None and column is not None:
        known = store.get(pipeline.name)
        increment = _Increment(column, None if known is None else str(known))
    result, mark = _moved(pipeline.source, pipeline.target, transform_sql, pipeline.dialect, increment)
    told: dict[str, Any] = {
        "status": "succeeded",
        "pipeline": pipeline.name,
        "rows_read": result.rows_read,
        "rows_written": result.rows_written,
        "duration_ms": result.duration_ms,
    }
    if store is not None and increment is not None:
        if mark is not None:
            store.set(pipeline.name, mark)
        told["watermark"] = mark if mark is not None else increment.mark
    return told


def _checked_sql(given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str):
        raise WrongDeclarationType(
            f"A warehouse pipeline's function gives SQL text or None, not {type(given).__name__}."
        )
    return given.strip().rstrip(";").rstrip() or None


def _moved(
    source: WarehouseSource,
    target: WarehouseTarget,
    transform_sql: str | None,
    dialect: SqlDialect,
    increment: _Increment | None,
) -> tuple[WarehouseRunResult, str | None]:
    began = time.perf_counter()
    with _explained(f"{source.kind} → {target.kind} table '{target.table_name}'"):
        transform = None if transform_sql is None else _over_source(transform_sql, dialect)
        reads, writes = backend_of(source.connection, source.kind), backend_of(target.connection, target.kind)
        with spool.folder(spool.temporary_root()) as place:
            raw = os.path.join(place, "read")
            os.makedirs(raw)
            sql, kind = _above_mark(reads, source.sql, increment)
            rows_read = reads.spooled(sql, raw)
            mark = None if increment is None else _greatest(raw, increment.column, kind)
            folder = raw if transform is None else _transformed(raw, os.path.join(place, "made"), transform)
            written = writes.write_files(
                target.table_name, spool.data_files(folder), create_if_not_exists=target.create_if_not_exists
            )
    return WarehouseRunResult(rows_read, written, (time.perf_counter() - began) * 1000), mark


def _above_mark(reads: WarehouseBackend, sql: str, increment: _Increment | None) -> tuple[str, ColumnType | None]:
    """The query with only the rows above the mark, compared in the column's own type."""
    if increment is None:
        return sql, None
    shapes = {shape.name: shape for shape in reads.describe_query(sql)}
    shape = shapes.get(increment.column)
    if shape is None:
        raise MissingSourceColumn(
            f"The query does not deliver '{increment.column}', which is the incremental_column.",
            fix=closest(increment.column, shapes) or f"it delivers {listed(shapes)}",
        )
    if increment.mark is None:
        return sql, shape.type
    mark = reads.dialect.literal(increment.mark, shape.type) if shape.type else f"'{increment.mark}'"
    column = reads.dialect.quote(increment.column)
    return f"SELECT * FROM ({sql}\n) AS w WHERE w.{column} > {mark}", shape.type


def _greatest(folder: str, column: str, kind: ColumnType | None) -> str | None:
    """The greatest value of a column of the files that were read, as text; None when there is no row."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    marks = []
    for path in spool.data_files(folder):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[column]):
                found = pc.max(batch.column(0)).as_py()
                marks.append(None if found is None else mark_text(found, kind))
    return highest_mark(marks, kind)


def _over_source(sql: str, dialect: SqlDialect) -> FolderQuery:
    """The user's SQL, read before any row is; its only table is `source`."""
    query = folder_query(sql, dialect, what="transform_sql")
    for table in query.views.values():
        if table.schema or table.name.lower() != _SOURCE:
            raise InvalidSource(
                f"transform_sql names the table '{table}'; it can name 'source'.",
                fix="join other tables in the query of the source, or in a pipeline with @ematix.pipeline",
            )
    return query


def _transformed(raw: str, made: str, transform: FolderQuery) -> str:
    """What SQL makes of the files that were read."""
    from ematix_flow.config.spark_place import spark_settings
    from ematix_flow.contracts.session import SessionNeeds
    from ematix_flow.spark.batch import explained, require_this_machine
    from ematix_flow.spark.session import open_session

    settings = spark_settings()
    require_this_machine(settings, "The rows of a warehouse pipeline lie")
    with explained(), ExitStack() as stack:
        spark = open_session(SessionNeeds(), settings)
        rows = spark.read.parquet(raw)
        for view in transform.views:  # of names that nobody has: the session may be the user's own
            rows.createOrReplaceTempView(view)
            stack.callback(spark.catalog.dropTempView, view)
        transform.frame(spark).write.parquet(made)
    return made


def backend_of(connection: Connection | str, kind: str) -> WarehouseBackend:
    """The warehouse behind a connection or its name.

    Raises:
        WrongConnectionType: (a TypeError) it is a connection of another kind.
    """
    resolved = resolve(connection).connection
    if resolved.kind != kind:
        raise WrongConnectionType(
            f"A {kind} connection is needed, and '{resolved.name}' is a {resolved.kind} connection."
        )
    backend = open_backend(resolved)
    assert isinstance(backend, WarehouseBackend)
    return backend


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Every failure as one kind of error; a missing SDK and a wrong argument keep their own."""
    try:
        yield
    except (ImportError, TypeError, WarehouseSyncError):
        raise
    except FlowError as exc:
        raise WarehouseSyncError(f"{what}: {exc.message}", where=exc.where, tried=exc.tried, fix=exc.fix) from exc
    except Exception as exc:
        raise WarehouseSyncError(f"{what}: {type(exc).__name__}: {scrub(str(exc))}") from exc


# ── one step at a time ───────────────────────────────────────────────────────────────────────────────────────────────


def snowflake_query_to_arrow(connection: Connection | str, sql: str) -> pa.Table:
    """All rows of a query on Snowflake, in this process."""
    return _query(connection, "snowflake", sql)


def bigquery_query_to_arrow(connection: Connection | str, sql: str) -> pa.Table:
    """All rows of a query on BigQuery, in this process."""
    return _query(connection, "bigquery", sql)


def redshift_query_to_arrow(connection: Connection | str, sql: str) -> pa.Table:
    """All rows of a query on Redshift, in this process."""
    return _query(connection, "redshift", sql)


def snowflake_write_arrow(
    connection: Connection | str, table_name: str, table: Any, *, create_if_not_exists: bool = True
) -> int:
    """Add the rows of an Arrow table (or a pandas or polars frame) to a table in Snowflake; how many they were."""
    return _write(connection, "snowflake", table_name, table, create_if_not_exists)


def bigquery_write_arrow(
    connection: Connection | str, table_name: str, table: Any, *, create_if_not_exists: bool = True
) -> int:
    """The same for BigQuery; with `create_if_not_exists` the rows that are there are replaced."""
    return _write(connection, "bigquery", table_name, table, create_if_not_exists)


def redshift_write_arrow(
    connection: Connection | str, table_name: str, table: Any, *, create_if_not_exists: bool = True
) -> int:
    """The same for Redshift; the connection needs `s3_staging_dir` and `iam_role`."""
    return _write(connection, "redshift", table_name, table, create_if_not_exists)


def _query(connection: Connection | str, kind: str, sql: str) -> pa.Table:
    with _explained(kind):
        return backend_of(connection, kind).read_arrow(sql.strip().rstrip(";").rstrip())


def _write(connection: Connection | str, kind: str, table_name: str, table: Any, create: bool) -> int:
    import pyarrow.parquet as pq

    with _explained(f"{kind} table '{table_name}'"), spool.folder(spool.temporary_root()) as place:
        backend = backend_of(connection, kind)
        path = os.path.join(place, "part-00000.parquet")
        pq.write_table(as_arrow(table), path)
        return backend.write_files(table_name, [path], create_if_not_exists=create)


__all__: Sequence[str] = [
    "WarehouseRunResult",
    "bigquery_query_to_arrow",
    "bigquery_write_arrow",
    "redshift_query_to_arrow",
    "redshift_write_arrow",
    "run_warehouse_pipeline",
    "snowflake_query_to_arrow",
    "snowflake_write_arrow",
]
