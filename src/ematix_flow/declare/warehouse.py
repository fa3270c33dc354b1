"""Pipelines between warehouses, as the user writes them: a query on one, a table on another, SQL in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from ematix_flow.declare import registry
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.dependencies import refuse_cycle
from ematix_flow.declare.pipeline import parameter_count
from ematix_flow.declare.registry import SourceLocation, function_location
from ematix_flow.declare.schedule import Orchestration, orchestration
from ematix_flow.declare.source import BatchSource
from ematix_flow.declare.sql_dialects import SqlDialect, checked_dialect
from ematix_flow.errors import InvalidDeclaration, WrongConnectionType, WrongDeclarationType, closest, listed

WarehouseKind = Literal["snowflake", "bigquery", "redshift"]
KINDS: tuple[WarehouseKind, ...] = get_args(WarehouseKind)


@dataclass(frozen=True)
class WarehouseSource:
    """Rows to move: a query in the warehouse's own SQL.

    Attributes:
        connection: A warehouse connection, or its name.
        sql: The query.
        kind: Which warehouse it is.
    """

    connection: Connection | str
    sql: str
    kind: WarehouseKind

    def __post_init__(self) -> None:
        _check(self, self.connection, self.kind)
        if not isinstance(self.sql, str):
            raise WrongDeclarationType(f"WarehouseSource: sql must be text, not {type(self.sql).__name__}.")
        text = self.sql.strip().rstrip(";").rstrip()
        if not text:
            raise InvalidDeclaration("WarehouseSource: sql is empty.")
        object.__setattr__(self, "sql", text)


@dataclass(frozen=True)
class WarehouseTarget:
    """The table that rows are written to.

    Attributes:
        connection: A warehouse connection, or its name.
        table_name: `table`, `schema.table` or `database.schema.table`.
        kind: Which warehouse it is.
        create_if_not_exists: Make the table when it is missing. On BigQuery True also replaces the rows that are there.
    """

    connection: Connection | str
    table_name: str
    kind: WarehouseKind
    create_if_not_exists: bool = True

    def __post_init__(self) -> None:
        _check(self, self.connection, self.kind)
        if not isinstance(self.table_name, str):
            raise WrongDeclarationType(
                f"WarehouseTarget: table_name must be text, not {type(self.table_name).__name__}."
            )
        if not self.table_name.strip() or not all(part.strip() for part in self.table_name.split(".")):
            raise InvalidDeclaration(f"WarehouseTarget: table_name {self.table_name!r} is no name of a table.")

    @classmethod
    def snowflake_table(
        cls, connection: Connection | str, name: str, *, create_if_not_exists: bool = True
    ) -> WarehouseTarget:
        """A table in Snowflake."""
        return cls(connection, name, "snowflake", create_if_not_exists)

    @classmethod
    def bigquery_table(
        cls, connection: Connection | str, name: str, *, create_if_not_exists: bool = True
    ) -> WarehouseTarget:
        """A table in BigQuery. With `create_if_not_exists` its rows are replaced, without they are added to."""
        return cls(connection, name, "bigquery", create_if_not_exists)

    @classmethod
    def redshift_table(
        cls, connection: Connection | str, name: str, *, create_if_not_exists: bool = True
    ) -> WarehouseTarget:
        """A table in Redshift; the connection needs `s3_staging_dir` and `iam_role`."""
        return cls(connection, name, "redshift", create_if_not_exists)


@runtime_checkable
class WatermarkStore(Protocol):
    """Remembers how far each incremental pipeline got."""

    def get(self, name: str) -> Any:
        """The mark of a pipeline, or None."""
        ...

    def set(self, name: str, value: Any) -> None:
        """Keep a new mark."""
        ...


class WarehousePipeline:
    """A declared pipeline between warehouses. Calling it runs it once."""

    def __init__(
        self,
        function: Callable[[], str | None],
        *,
        source: WarehouseSource,
        target: WarehouseTarget,
        name: str,
        where: SourceLocation,
        orchestration: Orchestration,
        incremental_column: str | None = None,
        watermark_store: WatermarkStore | None = None,
        dialect: SqlDialect = "spark",
    ) -> None:
        self.function, self.source, self.target = function, source, target
        self.name, self.where, self.orchestration = name, where, orchestration
        self.schedule = orchestration.schedule
        self.incremental_column, self.watermark_store = incremental_column, watermark_store
        self.dialect = dialect
        self.__name__ = name

    def __call__(self) -> dict[str, Any]:
        """Run it once.

        Returns:
            `status`, `pipeline`, `rows_read`, `rows_written`, `duration_ms`; when it is incremental also `watermark`.

        Raises:
            WarehouseSyncError: it failed.
        """
        result: dict[str, Any] = import_module("ematix_flow.run.warehouse_pipelines").run_declared(self)
        return result

    sync = run = __call__


def warehouse_pipeline(
    *,
    source: Any,
    target: Any,
    schedule: str | None,
    name: str | None = None,
    depends_on: Any = None,
    upstream_freshness_secs: float | None = None,
    retry: Mapping[str, Any] | None = None,
    incremental_column: str | None = None,
    watermark_store: Any = None,
    dialect: str = "spark",
) -> Callable[[Callable[[], str | None]], WarehousePipeline]:
    """Declare a pipeline between warehouses; the function gives the SQL that transforms the rows, or None.

    Args:
        source: A `WarehouseSource`, or what `Source.snowflake_query` and its like give.
        target: A `WarehouseTarget`.
        schedule: A cron expression, or None.
        incremental_column: Read only rows above the mark; needs `watermark_store`.
        watermark_store: Where the mark is kept, such as `FileWatermarkStore()`.
        dialect: What the function's SQL is written in; Spark runs it.

    Raises:
        InvalidDeclaration: (a ValueError) nobody here reads the dialect.
        WrongDeclarationType: (a TypeError) a wrong source, target or function; one of the last two alone.
    """
    origin = as_source(source)
    if not isinstance(target, WarehouseTarget):
        raise WrongDeclarationType(
            f"warehouse_pipeline: target must be a WarehouseTarget, not {type(target).__name__}.",
            fix="WarehouseTarget.snowflake_table(connection, 'schema.table'), bigquery_table or redshift_table",
        )
    if (incremental_column is None) != (watermark_store is None):
        raise WrongDeclarationType(
            "warehouse_pipeline: incremental_column= and watermark_store= go together.",
            fix="watermark_store=FileWatermarkStore() keeps the mark in the project's folder",
        )
    if watermark_store is not None and not isinstance(watermark_store, WatermarkStore):
        raise WrongDeclarationType(
            "warehouse_pipeline: watermark_store= needs the methods get(name), set(name, value)."
        )

    spoken = checked_dialect(dialect)

    def declare(function: Callable[[], str | None]) -> WarehousePipeline:
        where = function_location(function)
        chosen = name or function.__name__
        parameter_count(function, allowed=(0,), what="warehouse pipeline")
        orchestrated = orchestration(
            chosen,
            {
                "schedule": schedule,
                "depends_on": depends_on,
                "upstream_freshness_secs": upstream_freshness_secs,
                "retry": retry,
            },
        )
        refuse_cycle(chosen, orchestrated.depends_on, where)
        pipeline = WarehousePipeline(
            function,
            source=origin,
            target=target,
            name=chosen,
            where=where,
            orchestration=orchestrated,
            incremental_column=incremental_column,
            watermark_store=watermark_store,
            dialect=spoken,
        )
        registry.current().add_pipeline(chosen, pipeline, where, orchestrated.depends_on)
        return pipeline

    return declare


def as_source(given: Any) -> WarehouseSource:
    """A source as it is used; `Source.snowflake_query` and its like are taken, too.

    Raises:
        WrongDeclarationType: (a TypeError) it is something else.
    """
    if isinstance(given, WarehouseSource):
        return given
    if isinstance(given, BatchSource) and given.query is not None:
        kind = getattr(given.connection, "kind", None)
        if kind in KINDS:
            return WarehouseSource(given.connection, given.query, kind)
    raise WrongDeclarationType(
        f"A warehouse pipeline reads from a WarehouseSource, not from {type(given).__name__}.",
        fix="WarehouseSource(connection, 'SELECT …', 'snowflake')",
    )


def _check(what: Any, connection: Any, kind: Any) -> None:
    who = type(what).__name__
    if kind not in KINDS:
        raise InvalidDeclaration(
            f"{who}: kind {kind!r} is no warehouse.", fix=closest(str(kind), KINDS) or f"one of {listed(KINDS)}"
        )
    if isinstance(connection, Connection):
        if connection.kind != kind:
            raise WrongConnectionType(
                f"{who} needs a {kind} connection, and '{connection.name}' is a {connection.kind} connection."
            )
    elif not isinstance(connection, str) or not connection:
        raise WrongDeclarationType(f"{who} needs a connection or its name, not {type(connection).__name__}.")
