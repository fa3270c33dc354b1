"""DataFrames in and out of a connection: a query becomes a frame; a frame is loaded like the rows of a pipeline.

Writing goes through the runner: lease, books, run history and the once-only rule are those of every other load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ematix_flow.backends.arrow_fitting import require_years
from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.frames import (
    as_arrow,
    chosen_kind,
    column_type_of,
    from_arrow,
    is_in_memory,
    is_spark,
    require_apart,
)
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.config.handles import FrameMethods
from ematix_flow.config.resolve import resolve
from ematix_flow.config.spark_place import spark_settings
from ematix_flow.contracts.plans import Reading, RunResult, SourceQuery
from ematix_flow.contracts.shapes import TableShape
from ematix_flow.declare.columns import ColumnType
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.pipeline import PipelineSpec, as_names
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.table import ColumnSpec, TableSpec, table_spec
from ematix_flow.declare.target import ConnectionRef, TargetSpec, check_target
from ematix_flow.errors import (
    InvalidDeclaration,
    MissingDriver,
    MissingKeys,
    MissingSourceColumn,
    UnknownColumn,
    UnsupportedBackend,
    UnsupportedMode,
    WrongDeclarationType,
    closest,
    listed,
)
from ematix_flow.run.loads import new_run_id
from ematix_flow.run.places import lend_spark
from ematix_flow.run.runner import run_pipeline

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Taken = TypeVar("Taken")

__all__ = [
    "from_pyspark",
    "read_df",
    "read_spark_df",
    "to_pandas",
    "to_polars",
    "to_pyspark",
    "write_df",
    "write_spark_df",
]


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def to_polars(connection: Any, sql: str) -> pl.DataFrame:
    """The rows of a query as a polars DataFrame.

    Args:
        connection: A connection, its name, or a handle.
        sql: The query, in the SQL of that system.
    """
    found: pl.DataFrame = read_df(connection, sql, prefer="polars")
    return found


def to_pandas(connection: Any, sql: str) -> pd.DataFrame:
    """The rows of a query as a pandas DataFrame.

    Args:
        connection: A connection, its name, or a handle.
        sql: The query, in the SQL of that system.
    """
    return read_df(connection, sql, prefer="pandas")


def to_pyspark(connection: Any, sql: str, session: SparkSession | None = None) -> DataFrame:
    """The rows of a query as a Spark DataFrame, in the session given, in the one there is, or in a new one.

    Rows of a database are read at once, in parallel where the database can, and kept by Spark; files are read when they
    are needed, except on a Spark Connect server, which keeps their rows as well.

    Args:
        connection: A connection, its name, or a handle.
        sql: The query, in the SQL of that system.
        session: Where the DataFrame is to live.

    Raises:
        WrongDeclarationType: (a TypeError) `session` is no Spark session.
    """
    return _on_spark(connection, sql, session, _kept)


def read_df(connection: Any, sql: str, *, prefer: str = "auto") -> Any:
    """The rows of a query as a polars or pandas DataFrame; `auto` is polars when it is installed.

    Args:
        connection: A connection, its name, or a handle; also one to files or lake tables, which has no handle.
        sql: The query, in the SQL of that system.
        prefer: `auto`, `polars` or `pandas`.

    Raises:
        InvalidDeclaration: (a ValueError) `prefer` is none of these.
        MissingDriver: (an ImportError) What is asked for is not installed.
    """
    kind = chosen_kind(prefer)
    table = require_years(_read(_connection(connection), _query(sql)))
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidDeclaration(
            f"The query gives more than one column called {listed(twice)}.", fix="name them apart with AS"
        )
    return from_arrow(table, kind)


def read_spark_df(connection: Any, session: Any, sql: str) -> DataFrame:
    """The rows of a query in a session that must be given."""
    if session is None:
        raise WrongDeclarationType("read_spark_df needs a Spark session.", fix="to_pyspark(sql) finds or makes one")
    return _on_spark(connection, sql, session, _kept)


def _read(connection: ConnectionRef, sql: str) -> pa.Table:
    backend = open_backend(resolve(connection).connection)
    try:
        if isinstance(backend, SqlBackend):
            return backend.read_arrow(sql)
    finally:
        backend.close()
    # What the user asked for is the rows, here; what they are read from is there as long as it is being read.
    return _on_spark(connection, sql, None, lambda frame, _: frame.toArrow())


def _kept(frame: DataFrame, is_database: bool) -> DataFrame:
    """A frame that can be used when the reading is over.

    A database shows the same rows only as long as it is being read, and a Spark Connect server looks up the tables of a
    query anew whenever its frame is used: Spark must have the rows by then.
    """
    is_looked_up_anew = _is_connect_session(frame.sparkSession) and spark_settings().engine != "native"
    return frame.localCheckpoint(eager=True) if is_database or is_looked_up_anew else frame


def _on_spark(given: Any, sql: str, session: Any, taken: Callable[[DataFrame, bool], Taken]) -> Taken:
    """What is taken from the rows of a query while they are being read, told whether a database gives them."""
    connection, sql = resolve(_connection(given)).connection, _query(sql)
    _require_pyspark()
    from pyspark.sql import SparkSession

    from ematix_flow.spark.batch import explained
    from ematix_flow.spark.session import open_session, use_session

    if session is not None and not (isinstance(session, SparkSession) or _is_connect_session(session)):
        raise WrongDeclarationType(f"A Spark session is needed, not {type(session).__name__}.")
    backend = open_backend(connection)
    if not backend.capabilities.reads:
        raise UnsupportedBackend(f"'{connection.name}' ({connection.kind}) cannot be read by a query.")
    lend_spark(backend)
    reading = Reading(query=SourceQuery(sql=sql), columns=(), renamed={}, pending={})
    try:
        with explained():
            spark = use_session(session, backend.needs) if session is not None else None
            spark = spark or open_session(backend.needs, spark_settings())
            with backend.read(spark, reading.query, reading) as frame:
                return taken(frame, isinstance(backend, SqlBackend))
    finally:
        backend.close()


def _is_connect_session(session: object) -> bool:
    return any(kind.__module__.startswith("pyspark.sql.connect.session") for kind in type(session).__mro__)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def from_pyspark(
    df: DataFrame,
    target: Any,
    *,
    connection: Any,
    mode: str,
    keys: Sequence[str] | None = None,
    update_columns: Sequence[str] | None = None,
    compare_columns: Sequence[str] | None = None,
    event_timestamp_column: str | None = None,
    run_id: str | None = None,
) -> RunResult:
    """Load a Spark DataFrame into a table, as a pipeline would: all of it or nothing, and recorded.

    Args:
        df: The rows, in whatever session they live.
        target: A declared table, or `schema.table` for the DataFrame's own columns and no others.
        connection: A connection, its name, or a handle.
        mode: `append`, `truncate`, `merge`, `scd1`; into a declared table also `scd2`.
        keys: What rows are matched on; needed for a merge into a table that is not declared.
        update_columns, compare_columns, event_timestamp_column: As for a pipeline.
        run_id: The logical run; repeating one that was applied changes nothing.

    Raises:
        WrongDeclarationType: (a TypeError) It is no Spark DataFrame.
        FlowError: The load was refused or failed; the table is as it was.
    """
    is_name = isinstance(target, str)
    return write_spark_df(
        connection,
        df,
        target if is_name else str(table_spec(target)),
        mode=mode,
        target=None if is_name else target,
        keys=keys,
        update_columns=update_columns,
        compare_columns=compare_columns,
        event_timestamp_column=event_timestamp_column,
        run_id=run_id,
    )


def write_spark_df(connection: Any, df: Any, table: str, **options: Any) -> RunResult:
    """`write_df` for Spark DataFrames alone."""
    if not is_spark(df):
        raise WrongDeclarationType(f"A Spark DataFrame is needed, not {type(df).__name__}.", fix="use write_df")
    return write_df(connection, df, table, **options)


def write_df(
    connection: Any,
    df: Any,
    table: str,
    *,
    mode: str,
    target: Any = None,
    keys: Sequence[str] | None = None,
    update_columns: Sequence[str] | None = None,
    compare_columns: Sequence[str] | None = None,
    event_timestamp_column: str | None = None,
    run_id: str | None = None,
) -> RunResult:
    """Load a DataFrame into a table, as a pipeline would: all of it or nothing, and recorded.

    Args:
        connection: A connection, its name, or a handle; also one to files or lake tables, which has no handle.
        df: A pandas, polars or Spark DataFrame, or an Arrow table.
        table: `schema.table`.
        mode: `append`, `truncate`, `merge`, `scd1`; with `target=` also `scd2`; files take the first two.
        target: The declared table: its columns, types and markers, and the columns that loads add. Without it the
            frame's own columns are written and no others.
        keys: What rows are matched on; needed for a merge without `target=`.
        update_columns, compare_columns, event_timestamp_column: As for a pipeline.
        run_id: The logical run; repeating one that was applied changes nothing.

    Raises:
        WrongDeclarationType: (a TypeError) It is no DataFrame.
        InvalidDeclaration: (a ValueError) The table's name has no schema, or an option does not fit.
        MissingSourceColumn: (a ValueError) The frame lacks a declared column.
        UnsupportedMode: (a NotImplementedError) `scd2` without `target=`, or a mode that the target does not have.
    """
    if not (is_in_memory(df) or is_spark(df)):
        raise WrongDeclarationType(
            f"A DataFrame is needed, not {type(df).__name__}.",
            fix="pass a pandas, polars or Spark DataFrame, or an Arrow table",
        )
    found = _connection(connection)
    schema, name = _split(table, found)
    frame = as_arrow(df) if is_in_memory(df) else _living(df)
    if target is None:
        if mode == "scd2":
            raise UnsupportedMode(
                f"mode='scd2' needs to know the columns of {table} and their meaning.",
                fix="declare the table and pass it as target=",
            )
        declared = _of_frame(found, schema, name, _types_of(frame))
        if mode in ("merge", "scd1") and not keys:
            raise MissingKeys(f"mode='{mode}' on {table} needs keys=.", fix="name the columns that rows are matched on")
    else:
        declared = table_spec(target)
        if str(declared) != table:
            raise InvalidDeclaration(
                f"The table is '{table}', and target= declares {declared}.", fix=f"write to '{declared}'"
            )
        _require_columns(declared, _names_of(frame))
    spec = TargetSpec(
        table=declared,
        connection=found,
        mode=mode,  # type: ignore[arg-type]  # checked by check_target
        keys=as_names("keys", keys),
        update_columns=as_names("update_columns", update_columns),
        compare_columns=as_names("compare_columns", compare_columns),
        event_timestamp_column=event_timestamp_column,
        stamped=target is not None,
    )
    pipeline = PipelineSpec(
        name=f"write_df:{declared}",
        function=lambda: frame,
        parameters=0,
        targets=(check_target(spec),),
        is_fan_out=False,
        where=user_location(),
    )
    # Another frame is another load, also after one that was interrupted; only a run that is named is the same one.
    result: RunResult = run_pipeline(pipeline, logical_run=run_id or new_run_id())
    return result


def _of_frame(connection: ConnectionRef, schema: str, name: str, types: Mapping[str, ColumnType]) -> TableSpec:
    """The table as the frame has it; a table that is there keeps its types."""
    backend = open_backend(resolve(connection).connection)
    lend_spark(backend)
    try:
        live = backend.describe(backend.table_ref(schema, name))
    finally:
        backend.close()
    if live is None:
        return TableSpec(schema, name, tuple(ColumnSpec(n, kind, nullable=True) for n, kind in types.items()))
    extra = [column for column in types if live.column(column) is None]
    if extra:
        known = [column.name for column in live.columns]
        raise UnknownColumn(
            f"{schema}.{name} has no column '{extra[0]}', which the frame has.",
            fix=closest(extra[0], known) or "drop it from the frame, or declare the table and pass it as target=",
        )
    return TableSpec(schema, name, tuple(kept_column(live, column, kind) for column, kind in types.items()))


def kept_column(live: TableShape, name: str, kind: ColumnType) -> ColumnSpec:
    """A column as the table that is there has it; one that it lacks, in the type that comes."""
    there = live.column(name)
    if there is None:
        return ColumnSpec(name, kind, nullable=True)
    in_key = name in live.primary_key
    return ColumnSpec(name, there.type or kind, nullable=there.nullable and not in_key, primary_key=in_key)


def _types_of(frame: Any) -> Mapping[str, ColumnType]:
    if is_in_memory(frame):
        return {field.name: column_type_of(field.type) for field in frame.schema}
    from ematix_flow.spark.types import from_spark_type

    require_apart(frame.columns)
    return {field.name: from_spark_type(field.dataType) for field in frame.schema.fields}


def _names_of(frame: Any) -> list[str]:
    return list(frame.column_names if is_in_memory(frame) else frame.columns)


def _require_columns(table: TableSpec, names: Sequence[str]) -> None:
    missing = [
        column.name
        for column in table.columns
        if column.name not in names and not (column.normalizers and column.normalizers[0].kind == "derive")
    ]
    if missing:
        raise MissingSourceColumn(
            f"The frame lacks {listed(missing)}, which {table} declares.",
            fix=closest(missing[0], names) or f"it has {listed(names)}; an index of pandas is no column: reset_index()",
        )


def _living(df: DataFrame) -> DataFrame:
    from ematix_flow.contracts.session import SessionNeeds
    from ematix_flow.spark.session import use_session

    use_session(df.sparkSession, SessionNeeds())
    return df


# ── what was given ───────────────────────────────────────────────────────────────────────────────────────────────────


def _connection(given: Any) -> ConnectionRef:
    if isinstance(given, FrameMethods):
        return given.connection
    if isinstance(given, str | Connection):
        return given
    raise WrongDeclarationType(f"A connection, its name or a handle is needed, not {type(given).__name__}.")


def _query(sql: object) -> str:
    if not isinstance(sql, str):
        raise WrongDeclarationType(f"A query is text, not {type(sql).__name__}.")
    text = sql.strip().rstrip(";").rstrip()
    if not text:
        raise InvalidDeclaration("The query is empty.")
    return text


_SCHEMAS = {
    "sqlite": 'SQLite has one schema: "main.table"',
    "duckdb": 'the first schema of DuckDB is main: "main.table"',
    "postgres": 'the first schema of PostgreSQL is public: "public.table"',
    "mysql": 'the schema is a database of the server: "shop.table"',
}


def _split(table: object, connection: ConnectionRef) -> tuple[str, str]:
    parts = table.split(".") if isinstance(table, str) else []
    if len(parts) != 2 or not all(part.strip() for part in parts):
        kind = resolve(connection).connection.kind
        fix = _SCHEMAS.get(kind, 'say which schema it is in, as in "sales.table"')
        raise InvalidDeclaration(f"The table must be 'schema.table', not {table!r}.", fix=fix)
    return parts[0], parts[1]


def _require_pyspark() -> None:
    from importlib.util import find_spec

    if find_spec("pyspark") is None:
        raise MissingDriver("Spark DataFrames need 'pyspark'.", fix='pip install "ematix-flow[spark]"')
