"""The target of a change feed: its table mirrors the source's, or keeps its history; each batch is one transaction.

What differs from any other target of a stream is the plan: rows are events, which a gate judges before they count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from ematix_flow.backends.lake import LakeBackend
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.backend import Settles
from ematix_flow.contracts.change_feeds import ChangeCounts
from ematix_flow.contracts.plans import BatchPlan, OpenedRun, SettleReport, Stamp
from ematix_flow.contracts.runtime import SilentObserver
from ematix_flow.contracts.shapes import TableShape
from ematix_flow.contracts.streams import StreamBatch, StreamCounters
from ematix_flow.declare.columns import ColumnType, String, Text, TimestampTZ
from ematix_flow.declare.stream import CDC
from ematix_flow.declare.stream_ends import target_primary_key
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.table import ColumnSpec, TableSpec
from ematix_flow.declare.target import Target, TargetSpec, check_target
from ematix_flow.errors import (
    IncompatibleSchema,
    MissingKeys,
    UnknownColumn,
    UnsupportedBackend,
    closest,
    counted,
    listed,
)
from ematix_flow.plan.batch import TargetSide
from ematix_flow.plan.change_apply import Feed, plan_changes
from ematix_flow.run.frames import kept_column
from ematix_flow.run.loads import moment_after, new_run_id
from ematix_flow.run.stream_targets import StreamTarget

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ematix_flow.spark.change_order import FeedColumns

log = logging.getLogger(__name__)

_KEY_TEXT = String(255)
"""What a text becomes that is part of a key in a table made here: MySQL cannot index one without bounds."""


def stream_target(stream: StreamSpec, target: Target, counters: StreamCounters) -> StreamTarget:
    """The target of a stream, by what arrives there: rows, or changes."""
    return StreamTarget(stream, target) if stream.cdc is None else ChangeTarget(stream, target, counters)


class ChangeTarget(StreamTarget):
    """A table that changes are applied to."""

    def __init__(self, stream: StreamSpec, target: Target, counters: StreamCounters) -> None:
        assert stream.cdc is not None
        self.cdc: CDC = stream.cdc
        super().__init__(stream, target)
        if not isinstance(self.backend, SqlBackend | LakeBackend):
            raise UnsupportedBackend(f"Changes cannot be applied to {self.resolved.connection.kind}.")
        self._counters = counters
        self._is_counted = stream.targets.index(target) == 0
        self._told: set[str] = set()
        self._begins = False
        self._applied_at: datetime | None = None

    @property
    def shows_whole_batches(self) -> bool:
        return False  # the events of a batch are looked at more than once

    @property
    def keeps_history(self) -> bool:
        """Whether every change becomes a version."""
        return self.target.mode == "scd2"

    def open(self) -> None:
        super().open()
        assert self._run is not None
        self._begins = True
        self._applied_at = self._run.applied.applied_at if self._run.applied else None
        if isinstance(self.backend, SqlBackend):
            self.backend.ensure_gate()

    def wanted(self, columns: list[str]) -> list[str]:
        from ematix_flow.spark.change_events import CHANGE

        return [name for name in columns if name == CHANGE]

    # ── a batch ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(
        self, rows: DataFrame, batch: StreamBatch, *, before_settling: Callable[[], None] = lambda: None
    ) -> SettleReport:
        if self._has_nothing_to_change(rows):
            rows.write.format("noop").mode("overwrite").save()  # whoever wants to stop it counts on the way
            before_settling()
            return SettleReport(rows=0)
        run = self._run_of(batch)
        report, plan = self._settled(rows, run, batch, before_settling)
        self._begins = False
        if not report.replayed:
            self._generation += 1
        if plan.ddl.statements or plan.ddl.action == "create":
            self._described = None
        self.last = batch
        if report.changes is not None:
            self._tell(report.changes)
        return report

    def try_out(self, rows: DataFrame) -> None:
        assert self._run is not None
        run = replace(self._run, run_id=new_run_id(), opened_as=self._run.run_id)
        self._settled(rows, run, None, lambda: None)

    def fetched(self, rows: DataFrame, row: str) -> None:
        return None  # the events of a batch hang together

    def misfit(self, rows: DataFrame) -> Column | None:
        from ematix_flow.spark.change_order import misfit_of

        if self._has_nothing_to_change(rows):
            return None
        return misfit_of(rows, self._feed_columns(*self._table_of(rows)))

    def _has_nothing_to_change(self, rows: DataFrame) -> bool:
        """Whether there is no table, and nothing known of its columns: a feed that begins with tombstones."""
        from ematix_flow.spark.change_order import met_columns

        return self.declared is None and self._live() is None and not met_columns(rows)

    def _settled(
        self, rows: DataFrame, run: OpenedRun, batch: StreamBatch | None, before_settling: Callable[[], None]
    ) -> tuple[SettleReport, BatchPlan]:
        from ematix_flow.spark.change_order import landed_changes, landed_history
        from ematix_flow.spark.landing import land_and_settle

        assert isinstance(self.backend, Settles)
        table, keys, named = self._table_of(rows)
        spec = self._spec(table, keys)
        self.backend.check_target(spec)
        stamp = Stamp(run.run_id, moment_after(run.settled_at))
        feed = self._feed_columns(table, keys, named)
        plan = plan_changes(
            spec,
            TargetSide(
                table=self.table,
                modes=self.backend.capabilities.modes,
                kind=self.resolved.connection.kind,
                dialect=self.backend.dialect,
                live=self._live(),
            ),
            Feed(
                self.name,
                tuple(column.name for column in feed.columns),
                self._soft_delete(table),
                self.cdc.out_of_order_tolerance_ms,
                batch=f"{batch.generation} {batch.number} {batch.digest}" if batch else "",
                begins=self._begins and batch is not None,
                applied_at=self._applied_at,
            ),
            stamp,
        )
        if self.keeps_history:
            landed = landed_history(rows, feed, now=stamp.now)
        else:
            landed = landed_changes(rows, feed, tolerance_ms=self.cdc.out_of_order_tolerance_ms)
        report = land_and_settle(
            landed.select(*[f"`{column.name.replace('`', '``')}`" for column in plan.columns]),
            plan,
            self.backend,
            run,
            stamp,
            SilentObserver(),
            dry_run=batch is None,
            staged_as=run,
            before_settling=before_settling,
        )
        return report, plan

    def _tell(self, changes: ChangeCounts) -> None:
        if self._is_counted:
            self._counters.add(
                cdc_creates=changes.creates,
                cdc_updates=changes.updates,
                cdc_deletes=changes.deletes,
                cdc_skipped=changes.skipped,
                cdc_idempotent_skipped=changes.idempotent_skipped,
            )
        if changes.skipped:
            log.warning(
                "%s: %s without a known operation or a key skipped",
                self.stream.name,
                counted(changes.skipped, "event"),
            )
        if changes.rewound:
            log.warning(
                "%s: %s left out that were made later than what was applied to the same key, but stand earlier in the "
                "source's log. If that log began anew, drop %s, and let the stream read its topic from the beginning",
                self.stream.name,
                counted(changes.rewound, "event"),
                self.table,
            )
        if changes.late:
            log.warning(
                "%s: %s more than %d ms behind what was applied to the same key",
                self.stream.name,
                counted(changes.late, "event"),
                self.cdc.out_of_order_tolerance_ms,
            )

    # ── its table ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _table_of(self, rows: DataFrame) -> tuple[TableSpec, tuple[str, ...], tuple[str, ...]]:
        """The table as it will be, its key, and the columns that images write."""
        from ematix_flow.spark.change_order import met_columns

        live, met = self._live(), met_columns(rows)
        keys = self._keys(live, met)
        self._require_same_case(keys, met)
        known = self._known_columns(live, keys, met)
        news = [name for name in met if name not in known and name not in keys]
        if (live is not None or self.declared is not None) and news:
            self._meet(news, live)
        if self._adds_columns(live):
            known |= {name: ColumnSpec(name, met[name], nullable=True) for name in news}
        soft = self.cdc.soft_delete_column
        if soft is not None and soft not in known:
            if live is not None and not self._adds_columns(live):
                raise UnknownColumn(
                    f"{self.table} has no column '{soft}', in which deleted rows are to be marked.",
                    fix=closest(soft, list(known)) or f"ALTER TABLE {self.table} ADD COLUMN {soft} timestamptz",
                )
            known[soft] = ColumnSpec(soft, TimestampTZ(), nullable=True)
        named = tuple(name for name in known if name in met and name not in keys)
        schema, name = self.declared and (self.declared.schema, self.declared.name) or self._place()
        merge_keys = self.declared.merge_keys if self.declared else ()
        unique = self.declared.unique if self.declared else ()
        return TableSpec(schema, name, tuple(known.values()), unique, merge_keys), keys, named

    def _known_columns(
        self, live: TableShape | None, keys: tuple[str, ...], met: Mapping[str, ColumnType]
    ) -> dict[str, ColumnSpec]:
        if self.declared is not None:
            return {column.name: column for column in self.declared.columns}
        if live is None:
            self._require_keys(keys, met)
            made = {name: met.get(name, Text()) for name in (*keys, *met)}
            return {
                name: ColumnSpec(
                    name,
                    _KEY_TEXT if name in keys and isinstance(kind, Text) and self._bounds_keys else kind,
                    nullable=name not in keys,
                    primary_key=name in keys,
                )
                for name, kind in made.items()
            }
        ours = set(_VERSIONS if self.keeps_history else ())
        missing = [key for key in keys if live.column(key) is None]
        if missing:
            raise UnknownColumn(
                f"{self.table} has no column {listed(missing)}, which is to be its key.",
                fix=closest(missing[0], [c.name for c in live.columns]) or "name its key with primary_key=",
            )
        return {
            column.name: kept_column(live, column.name, met.get(column.name, Text()))
            for column in live.columns
            if column.name not in ours
        }

    def _require_keys(self, keys: tuple[str, ...], met: Mapping[str, ColumnType]) -> None:
        """Refuse to make a table by a key that no image has: every change would be skipped for want of it."""
        missing = [key for key in keys if key not in met]
        if met and missing and not self._is_at_a_path(keys):
            raise UnknownColumn(
                f"The changes have no column {listed(missing)}, which is to be the key of {self.table}.",
                fix=closest(missing[0], list(met)) or f"name its key with primary_key=; they have {listed(list(met))}",
            )

    def _is_at_a_path(self, keys: tuple[str, ...]) -> bool:
        return self.cdc.key_field is not None and len(keys) == 1

    def _require_same_case(self, keys: tuple[str, ...], met: Mapping[str, ColumnType]) -> None:
        """Refuse a key that changes have in other letters only: every one of them would be skipped."""
        if self._is_at_a_path(keys):
            return
        others = {name.lower(): name for name in met}
        for key in keys:
            if key not in met and (other := others.get(key.lower())) is not None:
                raise UnknownColumn(
                    f"The key of {self.table} is '{key}', and the changes call it '{other}': case tells names apart.",
                    fix=f"let the capture rename its columns (Debezium's ReplaceField), or name the table's '{other}'",
                )

    @property
    def _bounds_keys(self) -> bool:
        return self.resolved.connection.kind == "mysql"

    def _keys(self, live: TableShape | None, met: Mapping[str, ColumnType]) -> tuple[str, ...]:
        """The key of the table: as declared, as it is there, as the feed names it."""
        declared = tuple(self.target.keys or ()) or target_primary_key(self.target)
        if declared:
            return tuple(declared)
        if live is not None and live.primary_key:
            return tuple(name for name in live.primary_key if not (self.keeps_history and name == "valid_from"))
        named = (self.cdc.key_field or {"debezium": "after.id", "maxwell": "data.id"}.get(self.cdc.envelope, "")).split(
            "."
        )[-1]
        columns = {column.name for column in live.columns} if live else set(met)
        if named in columns:
            return (named,)
        raise MissingKeys(
            f"Stream '{self.stream.name}': the key of {self.table} is not known.",
            fix="name it: target_primary_key=(…), in TOML [target.table] primary_key = […]",
        )

    def _adds_columns(self, live: TableShape | None) -> bool:
        """Whether the table grows with the feed. A lake table does by itself, unless new columns stop the stream."""
        by_itself = isinstance(self.backend, LakeBackend) and self.cdc.schema_evolution == "skip"
        return self.cdc.schema_evolution == "add" or by_itself

    def _meet(self, news: list[str], live: TableShape | None) -> None:
        """Say what becomes of columns that the table does not have."""
        if self.cdc.schema_evolution == "fail":
            raise IncompatibleSchema(
                f"{self.table} has no column '{news[0]}', which the changes have.",
                fix="add it, or say what becomes of new columns: schema_evolution='add' or 'skip'",
            )
        added = self._adds_columns(live)
        for name in news:
            if name not in self._told:
                self._told.add(name)
                log.warning(
                    "%s: %s has no column '%s', which the changes have: %s",
                    self.stream.name,
                    self.table,
                    name,
                    "it is added" if added else "it is left out (schema_evolution='skip')",
                )

    def _soft_delete(self, table: TableSpec) -> ColumnSpec | None:
        return None if self.cdc.soft_delete_column is None else table.column(self.cdc.soft_delete_column)

    def _feed_columns(self, table: TableSpec, keys: tuple[str, ...], named: tuple[str, ...]) -> FeedColumns:
        from ematix_flow.spark.change_order import FeedColumns

        return FeedColumns(
            tuple(table.column(name) for name in keys), tuple(table.column(name) for name in named), self.cdc
        )

    def _spec(self, table: TableSpec, keys: tuple[str, ...] = ()) -> TargetSpec:
        target = self.target
        history = self.target.mode == "scd2" and bool(keys)
        return check_target(
            TargetSpec(
                table=table,
                connection=target.connection,
                mode="scd2" if history else "merge",
                keys=keys or (table.column_names[0],),
                compare_columns=tuple(target.compare_columns) if history and target.compare_columns else None,
                stamped=self.declared is not None,
                files=target.file_options(),
                broker=target.broker_options(),
            )
        )


_VERSIONS = ("valid_from", "valid_to", "is_current", "row_hash")
