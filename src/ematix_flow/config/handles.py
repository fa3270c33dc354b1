"""Open connections for people: a few methods over a database, as notebooks and scripts want them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.config.resolve import DEFAULT_NAME, ResolvedConnection, resolve
from ematix_flow.config.secrets import expand_field
from ematix_flow.contracts.backend import Health
from ematix_flow.declare.connection import Connection, connection_from_dsn
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.server_address import server_address, url_scheme
from ematix_flow.errors import FlowError, StatementFailed, UnsupportedBackend

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

    from ematix_flow.contracts.plans import RunResult


class QueryColumn(TypedDict):
    """A column of a query's answer; `type` is the database's own word."""

    name: str
    type: str


class QueryResult(TypedDict):
    """The answer to `ConnectionHandle.query`."""

    columns: list[QueryColumn]
    rows: list[list[Any]]
    truncated: bool


class ConnectionInfo(TypedDict):
    """Where a handle leads; no password. None where the kind of database has no such thing."""

    host: str | None
    port: int | None
    dbname: str | None
    user: str | None


class FrameMethods(ABC):
    """DataFrames of a connection: what `ematix_flow.df` and `ematix_flow.spark` add to handles.

    The work is done in `run/frames.py`, which is looked up when a method is called.
    """

    @property
    @abstractmethod
    def connection(self) -> Connection:
        """The connection as it was resolved."""

    def read_df(self, sql: str, *, prefer: str = "auto") -> Any:
        """The rows of a query as a polars or pandas DataFrame; `auto` is polars when it is installed.

        Raises:
            InvalidDeclaration: (a ValueError) `prefer` is neither `auto`, `polars` nor `pandas`.
            MissingDriver: (an ImportError) What is asked for is not installed.
        """
        return _frames().read_df(self.connection, sql, prefer=prefer)

    def to_polars(self, sql: str) -> pl.DataFrame:
        """The rows of a query as a polars DataFrame."""
        frame: pl.DataFrame = _frames().read_df(self.connection, sql, prefer="polars")
        return frame

    def to_pandas(self, sql: str) -> pd.DataFrame:
        """The rows of a query as a pandas DataFrame."""
        return _frames().read_df(self.connection, sql, prefer="pandas")

    def write_df(
        self,
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
            df: A pandas, polars or Spark DataFrame, or an Arrow table.
            table: `schema.table`.
            mode: `append`, `truncate`, `merge`, `scd1`; with `target=` also `scd2`.
            target: The declared table: its columns, types and markers, and the columns that loads add. Without it the
                frame's own columns are written and no others.
            keys: What rows are matched on; needed for a merge without `target=`.
            update_columns, compare_columns, event_timestamp_column: As for a pipeline.
            run_id: The logical run; repeating one that was applied changes nothing.

        Raises:
            WrongDeclarationType: (a TypeError) It is no DataFrame.
            InvalidDeclaration: (a ValueError) The table's name has no schema, or an option does not fit.
            MissingSourceColumn: (a ValueError) The frame lacks a declared column.
            UnsupportedMode: (a NotImplementedError) `scd2` without `target=`.
        """
        result: RunResult = _frames().write_df(
            self.connection,
            df,
            table,
            mode=mode,
            target=target,
            keys=keys,
            update_columns=update_columns,
            compare_columns=compare_columns,
            event_timestamp_column=event_timestamp_column,
            run_id=run_id,
        )
        return result

    def read_spark_df(self, session: SparkSession, sql: str) -> DataFrame:
        """The rows of a query as a DataFrame of a given session.

        Raises:
            WrongDeclarationType: (a TypeError) It is no Spark session.
        """
        frame: DataFrame = _frames().read_spark_df(self.connection, session, sql)
        return frame

    def to_pyspark(self, sql: str, session: SparkSession | None = None) -> DataFrame:
        """The same, in the session there is, or a new one, when none is given."""
        frame: DataFrame = _frames().to_pyspark(self.connection, sql, session)
        return frame

    def write_spark_df(
        self,
        df: DataFrame,
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
        """Load a Spark DataFrame into a table; see `write_df`.

        Raises:
            WrongDeclarationType: (a TypeError) It is no Spark DataFrame.
        """
        result: RunResult = _frames().write_spark_df(
            self.connection,
            df,
            table,
            mode=mode,
            target=target,
            keys=keys,
            update_columns=update_columns,
            compare_columns=compare_columns,
            event_timestamp_column=event_timestamp_column,
            run_id=run_id,
        )
        return result

    def from_pyspark(
        self,
        df: DataFrame,
        target: Any,
        *,
        mode: str,
        keys: Sequence[str] | None = None,
        update_columns: Sequence[str] | None = None,
        compare_columns: Sequence[str] | None = None,
        event_timestamp_column: str | None = None,
        run_id: str | None = None,
    ) -> RunResult:
        """The same, into a declared table or into `schema.table`."""
        result: RunResult = _frames().from_pyspark(
            df,
            target,
            connection=self.connection,
            mode=mode,
            keys=keys,
            update_columns=update_columns,
            compare_columns=compare_columns,
            event_timestamp_column=event_timestamp_column,
            run_id=run_id,
        )
        return result


def _frames() -> Any:
    return import_module("ematix_flow.run.frames")


class ConnectionHandle(FrameMethods):
    """An open database. Each method commits by itself; close it, or use it in a `with` block.

    Every statement's failure is a `StatementFailed` without secrets. Made by `connect`.
    """

    def __init__(self, resolved: ResolvedConnection) -> None:
        """Open the database behind a resolved connection.

        Raises:
            ConnectionFailed: (a ValueError) The server cannot be reached or refuses the credentials.
            UnsupportedBackend: This kind of system does not speak SQL, or has no backend yet.
        """
        self._connection = resolved.connection
        backend = open_backend(resolved.connection)
        if not isinstance(backend, SqlBackend):
            raise UnsupportedBackend(
                f"A handle speaks SQL, and '{self.name}' is a {self._connection.kind} connection.",
                fix="use it as source or target of a pipeline, or with read_df and write_df of ematix_flow.df",
            )
        self._backend = backend
        self._db: Any = backend.connect()  # commits each statement by itself
        self._in_transaction = False

    def __repr__(self) -> str:
        return f"<ConnectionHandle {self.name!r} {self._connection.display()}>"

    def __enter__(self) -> ConnectionHandle:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The connection's name."""
        return self._connection.name

    @property
    def connection(self) -> Connection:
        """The connection as it was resolved."""
        return self._connection

    @property
    def driver_connection(self) -> Any:
        """The driver's own connection, for what a handle cannot do. It commits each statement by itself."""
        return self._db

    def ping(self) -> bool:
        """True when the database answers; otherwise the error says why not."""
        return self.fetch_scalar_int("SELECT 1") == 1

    def execute(self, sql: str) -> int:
        """Run one statement and give the number of rows it touched; 0 where that means nothing."""
        with self._open() as db:
            return max(int(db.execute(sql).rowcount), 0)

    def execute_in_transaction(self, statements: Sequence[str]) -> None:
        """Run statements in one transaction: all of them happen, or none. In a transform it is the transform's."""
        if isinstance(statements, str):
            statements = [statements]
        with self.transaction(), self._open() as db:
            for statement in statements:
                db.execute(statement)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens, or nothing. One within another is a part of it."""
        if self._in_transaction:
            yield
            return
        with self._open() as db:
            db.execute(self._backend.begin)
        self._in_transaction = True
        try:
            yield
            with self._open() as db:
                db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        finally:
            self._in_transaction = False

    def fetch_scalar_int(self, sql: str) -> int:
        """The whole number in the first column of the first row.

        Raises:
            StatementFailed: There is no row, or its first value is not a whole number.
        """
        with self._open() as db:
            cursor = db.execute(sql)
            row = cursor.fetchone() if cursor.description else None
        if row is None:
            raise StatementFailed(f"The query on '{self.name}' gave no row.")
        value: object = row[0]
        if isinstance(value, Decimal) and value == value.to_integral_value():
            value = int(value)  # sums of whole numbers come as decimals from some databases
        if not isinstance(value, int) or isinstance(value, bool):
            raise StatementFailed(f"The query on '{self.name}' gave {type(value).__name__}, not a whole number.")
        return value

    def query(self, sql: str, max_rows: int | None = None) -> QueryResult:
        """Run a query and give its rows, at most `max_rows`; `truncated` says that there were more."""
        with self._open() as db:
            cursor = db.execute(sql)
            if not cursor.description:
                return QueryResult(columns=[], rows=[], truncated=False)
            rows = cursor.fetchall() if max_rows is None else cursor.fetchmany(max_rows + 1)
            described = list(cursor.description)
        is_truncated = max_rows is not None and len(rows) > max_rows
        kept = [list(row) for row in rows[:max_rows]]
        columns = [
            QueryColumn(name=str(column[0]), type=_type_name(column, [row[index] for row in kept]))
            for index, column in enumerate(described)
        ]
        return QueryResult(columns=columns, rows=kept, truncated=is_truncated)

    def dsn(self) -> str:
        """The connection's URL with its password: for other drivers, never for people."""
        return self._connection.dsn()

    def dialect(self) -> str:
        """Which SQL is spoken here: ``postgres``, ``sqlite``, …"""
        return self._backend.dialect.name

    def connection_info(self) -> ConnectionInfo:
        """Where this leads, without the password."""
        dsn = self._connection.dsn()
        if url_scheme(dsn) == self._connection.kind and hasattr(self._connection, "path"):
            return ConnectionInfo(host=None, port=None, dbname=str(self._connection.path), user=None)
        address = server_address(dsn, default_port=getattr(self._connection, "default_port", 0))
        return ConnectionInfo(host=address.host, port=address.port, dbname=address.database, user=address.user)

    def close(self) -> None:
        """Close the connection; may be called twice."""
        if self._db is not None:
            db, self._db = self._db, None
            self._backend.release(db)
            self._backend.close()

    @contextmanager
    def _open(self) -> Iterator[Any]:
        """The driver's connection, whose errors come out as ours."""
        if self._db is None:
            raise StatementFailed(f"The handle of '{self.name}' is closed.", fix="open it again with connect(…)")
        try:
            yield self._db
        except FlowError:
            raise
        except Exception as exc:
            found = self._backend.explained(exc)
            if found is None:
                raise
            raise found.at(f"connection '{self.name}'") from exc

    def _roll_back(self) -> None:
        # A connection that is broken has rolled back already; the first error is the one to show.
        try:
            self._db.execute("ROLLBACK")
        except Exception as exc:
            if self._backend.explained(exc) is None:
                raise


def connect(name: str | Connection = DEFAULT_NAME, *, url: str | None = None) -> ConnectionHandle:
    """Open a database by name through the documented chain, or by `url`, which goes around it.

    Raises:
        ConnectionFailed: (a ValueError) The server cannot be reached or refuses the credentials.
        UnknownConnection: (a LookupError) Nobody knows the name.
        InvalidConnection: (a ValueError) The URL is not one of the supported forms.
    """
    if url is None:
        return ConnectionHandle(resolve(name))
    called = name if isinstance(name, str) else name.name
    connection = connection_from_dsn(called, expand_field(url))
    return ConnectionHandle(ResolvedConnection(connection, "given", "url="))


def check_connection(name: str | Connection) -> tuple[bool, str]:
    """Whether a connection works, and one line about it. Works for every kind that has a backend; never raises.

    The line is the connection without its secrets, or the reason.
    """
    try:
        resolved = resolve(name)
        health = connection_health(resolved)
    except FlowError as exc:
        return False, scrub(exc.message)
    return (True, resolved.connection.display()) if health.ok else (False, scrub(health.detail))


def connection_health(resolved: ResolvedConnection) -> Health:
    """Open the backend, ask whether it is there, and let it go."""
    backend = open_backend(resolved.connection)
    try:
        return backend.check()
    finally:
        backend.close()


_SQLITE_CLASSES = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}


def _type_name(column: Any, values: Sequence[Any]) -> str:
    """The database's word for a column's type; SQLite only has one per value, so the first value speaks."""
    shown = getattr(column, "type_display", None)
    if isinstance(shown, str):
        return shown
    if column[1] is not None:
        return str(column[1])
    first = next((value for value in values if value is not None), None)
    return "NULL" if first is None else _SQLITE_CLASSES.get(type(first), type(first).__name__)
