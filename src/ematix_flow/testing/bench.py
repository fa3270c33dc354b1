"""A workbench for contract tests: declare a table, load rows into it on a route, look at what is stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, cast

from ematix_flow.contracts.plans import RunResult
from ematix_flow.declare.columns import UUID, Boolean, Bytes, ColumnType, TimestampTZ
from ematix_flow.declare.namespace import Ematix
from ematix_flow.declare.pipeline import Engine, Pipeline
from ematix_flow.declare.table import ColumnSpec, ManagedTable, declare_table, table_spec
from ematix_flow.testing.endpoints import Endpoint, Row, SqlEndpoint, in_order

RouteName = Literal["pushdown", "spark"]
Table = type[ManagedTable]

ADDED: dict[str, ColumnType] = {
    "valid_from": TimestampTZ(),
    "valid_to": TimestampTZ(),
    "is_current": Boolean(),
    "row_hash": Bytes(),
    "_loaded_at": TimestampTZ(),
    "_batch_id": UUID(),
}
"""The columns that modes add, and their types."""


class Bench:
    """One target, and the place its rows come from: the target itself when pushed down, another system for Spark."""

    def __init__(self, target: Endpoint, source: Endpoint) -> None:
        self.target = target
        self.source = source

    @property
    def database(self) -> SqlEndpoint:
        """The target, for tests that say `@needs("sql")`."""
        return cast(SqlEndpoint, self.target)

    @property
    def quick(self) -> RouteName:
        """The route for what is the same on both: without Spark, where the target has such a way."""
        return "pushdown" if self.target.speaks_sql else "spark"

    def place(self, route: RouteName) -> Endpoint:
        """Where the rows of a load on this route are put first."""
        return self.target if route == "pushdown" else self.source

    # ── declaring ────────────────────────────────────────────────────────────────────────────────────────────────────

    def table(
        self,
        name: str,
        columns: Mapping[str, Any] | None = None,
        /,
        *,
        unique: Sequence[Sequence[str]] = (),
        merge_keys: Sequence[str] = (),
        **more: Any,
    ) -> Table:
        """A declared table of the target. Declaring a name again is how a test changes a declaration."""
        body = {
            "__annotations__": {**(columns or {}), **more},
            "__module__": __name__,
            "__unique_constraints__": tuple(tuple(group) for group in unique),
            "__merge_keys__": tuple(merge_keys),
        }
        cls = type("Declared", (), body)
        return declare_table(cls, schema=self.target.schema, name=name, frame_names={})

    def pipeline(
        self,
        table: Table,
        *,
        route: RouteName,
        mode: str,
        function: Callable[..., Any] | None = None,
        place: Endpoint | None = None,
        **options: Any,
    ) -> Pipeline:
        """A pipeline into the table, named after it, from the rows that `put` left; or from what a function gives."""
        origin = place or self.place(route)
        options.setdefault("name", table_spec(table).name)
        options.setdefault("engine", engine_of(route))
        if function is None:
            options.setdefault("source_table", f"{origin.schema}.{source_name(table)}")
            function = _nothing
        options.setdefault("source_connection", origin.connection)
        options.setdefault("target_connection", self.target.connection)
        declared = Ematix().pipeline(target=table, mode=mode, **options)(function)
        assert isinstance(declared, Pipeline)
        return declared

    # ── loading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(
        self,
        table: Table,
        rows: Sequence[Row],
        *,
        route: RouteName,
        columns: Mapping[str, ColumnType] | None = None,
        place: Endpoint | None = None,
    ) -> None:
        """Make the source hold just these rows, in the declared columns and types unless others are given."""
        given = [ColumnSpec(name, kind) for name, kind in columns.items()] if columns else table_spec(table).columns
        (place or self.place(route)).put(source_name(table), given, rows)

    def load(
        self,
        table: Table,
        rows: Sequence[Row],
        *,
        route: RouteName,
        mode: str,
        columns: Mapping[str, ColumnType] | None = None,
        place: Endpoint | None = None,
        run_id: str | None = None,
        **options: Any,
    ) -> RunResult:
        """Put rows into the source and run the pipeline once."""
        self.put(table, rows, route=route, columns=columns, place=place)
        result = self.pipeline(table, route=route, mode=mode, place=place, **options).sync(run_id=run_id)
        assert isinstance(result, RunResult)
        assert result.path == ("same_db" if route == "pushdown" else "cross_db")
        return result

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def rows(self, table: Table, *added: str) -> list[Row]:
        """All rows of the target in the declared columns and the added ones that are named."""
        spec = table_spec(table)
        return self.target.rows(spec.name, [*spec.columns, *(ColumnSpec(name, ADDED[name]) for name in added)])

    def history(self, table: Table, *columns: str) -> list[Row]:
        """Versions: the declared columns (or some), `valid_from`, `valid_to`, `is_current`, instants as ranks 1, 2, …

        Load times differ from run to run; their order does not.
        """
        spec = table_spec(table)
        chosen = [column for column in spec.columns if not columns or column.name in columns]
        width = len(chosen)
        added = [ColumnSpec(name, ADDED[name]) for name in ("valid_from", "valid_to", "is_current")]
        found = self.target.rows(spec.name, [*chosen, *added])
        moments = sorted({moment for row in found for moment in row[width : width + 2] if moment is not None})
        rank: dict[datetime | None, int | None] = {None: None, **{m: n for n, m in enumerate(moments, start=1)}}
        return in_order([(*row[:width], rank[row[width]], rank[row[width + 1]], row[width + 2]) for row in found])

    def batches(self, table: Table, *key: str) -> dict[Any, str]:
        """Which run wrote each row: key → `_batch_id`."""
        spec = table_spec(table)
        names = key or spec.primary_key
        found = self.target.rows(spec.name, [*(spec.column(n) for n in names), ColumnSpec("_batch_id", UUID())])
        return {row[0] if len(names) == 1 else row[:-1]: row[-1] for row in found}

    def runs(self, pipeline: str | None = None) -> list[dict[str, Any]]:
        """The run history in the target, oldest first."""
        return self.target.history(pipeline)

    def watermark(self, pipeline: str) -> tuple[str, str] | None:
        """The stored mark of a pipeline: column and value."""
        return self.target.watermark(pipeline)

    def columns(self, table: Table) -> dict[str, ColumnType | None]:
        """The live table's columns and types, in order; empty when there is no table."""
        shape = self.target.shape(table_spec(table).name)
        return {column.name: column.type for column in shape.columns} if shape else {}


def engine_of(route: RouteName) -> Engine:
    """The engine of a route; with EMATIX_TEST_ENGINE=native, what goes through Spark goes through the native engine."""
    return "native" if route == "spark" and os.environ.get("EMATIX_TEST_ENGINE") == "native" else route


def source_name(table: Table) -> str:
    """The table that holds the rows to be loaded: a plain name, whatever the target is called."""
    name = table_spec(table).name
    return f"src_{name}" if name.isidentifier() and len(name) < 40 else "src_rows"


def _nothing() -> None:
    """A pipeline function that leaves everything to `source_table`."""
