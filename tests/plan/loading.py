"""Loads into a real database with the clock in the test's hand, and the stored table read back as plain values.

Instants are whole minutes after `DAWN` on the way in and on the way out, so that expectations read like a timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import uuid4

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.plans import SettleReport, SourceQuery, Stamp
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.contracts.streams import RETRACTED
from ematix_flow.declare.columns import UUID, Boolean, ColumnType, SmallInt, TimestampTZ
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.table import ColumnSpec, TableSpec
from ematix_flow.declare.target import TargetSpec, check_target
from ematix_flow.plan.batch import plan_load
from ematix_flow.plan.history import events_table
from ematix_flow.plan.physical import events_columns, physical_columns
from ematix_flow.run.places import opened

DAWN = datetime(2024, 2, 28, 23, 0, tzinfo=timezone.utc)
SOURCE = "raw_rows"
Row = Mapping[str, Any]


def minute(number: int) -> datetime:
    """A moment of the timeline."""
    return DAWN + timedelta(minutes=number)


@dataclass(frozen=True)
class Loaded:
    """One load that went through."""

    run_id: str
    report: SettleReport


class Db:
    """A database with one source table, into which each load's rows are put.

    `own` is a connection for the test's own reading and writing; loads open theirs as they always do.
    """

    def __init__(self, connection: Connection, schema: str, backend: SqlBackend, own: Any) -> None:
        self.connection, self.schema = connection, schema
        self.backend, self.own = backend, own
        self.dialect = backend.dialect

    def spec(self, columns: Sequence[ColumnSpec], *, name: str = "t", **options: Any) -> PipelineSpec:
        """A pipeline from the source table into a table of these columns."""
        declared = {o: options.pop(o) for o in ("unique", "merge_keys") if o in options}
        table = TableSpec(self.schema, name, tuple(columns), **declared)
        target = check_target(TargetSpec(table=table, connection=self.connection, **options))
        return PipelineSpec(
            name=f"load_{name}",
            function=lambda conn: f"SELECT * FROM {SOURCE}",
            parameters=1,
            targets=(target,),
            is_fan_out=False,
            where=SourceLocation(file="<test>", line=1),
        )

    def load(self, spec: PipelineSpec, rows: Sequence[Row], *, now: int, run_id: str = "", **how: Any) -> Loaded:
        """Load these rows at this moment, by the statements that a run of the pipeline would use.

        Args:
            how: Further keywords of `plan_load`.
        """
        self.put(spec, rows, retracts="retracts" in how)
        stamp = Stamp(run_id or str(uuid4()), minute(now))
        with opened(spec, spec.target) as places:
            source = places.source_side(SourceQuery(sql=f"SELECT * FROM {SOURCE}"))
            side = places.target_side(spec.target)
            plan = plan_load(spec, spec.target, source, side, stamp=stamp, stored_mark=None, **how)
            assert plan.route.engine == "pushdown", plan.route.reason
            assert isinstance(places.target, SqlBackend)
            return Loaded(stamp.run_id, places.target.settle(plan, None, stamp, None))

    def put(self, spec: PipelineSpec, rows: Sequence[Row], *, retracts: bool = False) -> None:
        """Make these the rows of the source table; with `retracts` they say in `RETRACTED` which of them are to go."""
        columns, dialect = spec.target.table.columns, self.dialect
        if retracts:
            columns = (*columns, ColumnSpec(RETRACTED, SmallInt(), nullable=False))
        parts = ", ".join(f"{dialect.quote(c.name)} {dialect.type_sql(c.type)}" for c in columns)
        values = ", ".join(
            "(" + ", ".join(dialect.literal(_timed(row[c.name], c.type), c.type) for c in columns) + ")" for row in rows
        )
        self.own.execute(f"CREATE TABLE IF NOT EXISTS {SOURCE} ({parts})")
        self.own.execute(f"DELETE FROM {SOURCE}")
        if rows:
            self.own.execute(f"INSERT INTO {SOURCE} VALUES {values}")

    def stored(self, spec: PipelineSpec) -> list[dict[str, Any]]:
        """The whole target table, bookkeeping columns included; empty when there is none yet."""
        return self._read(spec, self._table(spec), physical_columns(spec.target))

    def remembered(self, spec: PipelineSpec) -> list[dict[str, Any]]:
        """The companion table of `exact_history`."""
        return self._read(spec, events_table(self._table(spec)), events_columns(spec.target))

    def runs(self, spec: PipelineSpec) -> list[tuple[Any, ...]]:
        """(mode, status, inserted, updated, unchanged) of every run in the target's own history, in order."""
        history = self.dialect.table(self.dialect.bookkeeping("run_history"))
        found = self.own.execute(
            f"SELECT mode, status, rows_inserted, rows_updated, rows_unchanged FROM {history} "
            f"WHERE pipeline_name = '{spec.name}' ORDER BY started_at"
        ).fetchall()
        return [tuple(row) for row in found]

    def forget(self, spec: PipelineSpec) -> None:
        """Drop the pipeline's tables."""
        table = self._table(spec)
        for name in (table, events_table(table), TableRef(None, SOURCE)):
            self.own.execute(f"DROP TABLE IF EXISTS {self.dialect.table(name)}")

    def _table(self, spec: PipelineSpec) -> TableRef:
        return self.backend.table_ref(spec.target.table.schema, spec.target.table.name)

    def _read(self, spec: PipelineSpec, table: TableRef, columns: Sequence[ColumnSpec]) -> list[dict[str, Any]]:
        if self.backend.shape(self.own, table) is None:
            return []
        names = self.dialect.columns([column.name for column in columns])
        found = self.own.execute(f"SELECT {names} FROM {self.dialect.table(table)}").fetchall()
        rows = [{c.name: _plain(value, c.type) for c, value in zip(columns, values, strict=True)} for values in found]
        order = (*spec.target.resolved_keys()[0], "valid_from", "event_at")
        return sorted(rows, key=lambda row: [row[name] for name in order if name in row])


@contextmanager
def database(connection: Connection, schema: str) -> Iterator[Db]:
    """An open `Db`."""
    backend = open_backend(connection)
    assert isinstance(backend, SqlBackend)
    with backend.session() as own:
        yield Db(connection, schema, backend, own)


def _timed(value: Any, kind: ColumnType) -> Any:
    return minute(value) if isinstance(kind, TimestampTZ) and isinstance(value, int) else value


def _plain(value: Any, kind: ColumnType) -> Any:
    if value is None:
        return None
    if isinstance(kind, TimestampTZ):
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value.replace("Z", "+00:00"))
        moment = moment.replace(tzinfo=moment.tzinfo or timezone.utc)
        return int((moment - DAWN).total_seconds() // 60)
    if isinstance(kind, Boolean):
        return bool(value)
    return str(value) if isinstance(kind, UUID) else value
