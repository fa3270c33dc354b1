"""A target of a stream: held and open as long as the stream runs, settled once per micro-batch.

A micro-batch is a load like any other (`plan/batch.py`, `spark/landing.py`), under a name of its own that the target
keeps in the same transaction. A batch that comes again finds its name there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.folder import FolderBackend
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.config.resolve import ResolvedConnection, resolve
from ematix_flow.contracts.backend import Backend, KeepsBooks, Settles, WritesFrames
from ematix_flow.contracts.plans import BatchPlan, OpenedRun, SettleReport, SourceQuery, Stamp
from ematix_flow.contracts.runtime import SilentObserver
from ematix_flow.contracts.shapes import TableShape
from ematix_flow.contracts.streams import (
    HIDDEN_COLUMNS,
    IN_PARTS,
    POSITION,
    RETRACTED,
    STREAM,
    StreamBatch,
    batch_of,
)
from ematix_flow.declare.columns import BigInt, ColumnType, Text
from ematix_flow.declare.pipeline import PipelineSpec, as_names
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.table import ColumnSpec, TableSpec, table_spec
from ematix_flow.declare.target import Target, TargetSpec, check_target
from ematix_flow.errors import (
    ConnectionFailed,
    FlowError,
    StateIncompatible,
    UnknownColumn,
    UnsupportedBackend,
    closest,
)
from ematix_flow.plan.batch import SourceSide, TargetSide, plan_load
from ematix_flow.run.frames import kept_column
from ematix_flow.run.loads import moment_after, new_run_id, now
from ematix_flow.run.maintenance import StreamMaintenance

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)

ASK_AGAIN_S = 5.0
"""How long a target that does not answer is left alone: the others wait while it is asked."""


class StreamTarget:
    """One target of one stream. `open` before the first batch, `close` after the last.

    Attributes:
        last: The batch that it holds, once it is open.
        away: Why it could not be opened, where the stream went on without it.
        goes_back: Whether its stream was sent elsewhere on purpose, so that what it holds says nothing.
    """

    away: FlowError | None = None
    goes_back = False

    def __init__(self, stream: StreamSpec, target: Target) -> None:
        self.stream, self.target = stream, target
        self.resolved: ResolvedConnection = resolve(target.connection, where=str(stream.where))
        self.backend: Backend = open_backend(self.resolved.connection)
        if not isinstance(self.backend, Settles | WritesFrames):
            raise UnsupportedBackend(f"{self.resolved.connection.kind} cannot be the target of a stream.")
        self.declared: TableSpec | None = table_spec(target.table) if isinstance(target.table, type) else None
        spec = self._spec(self.declared or self._table(self._named_columns()))
        self.table = self.backend.target_ref(spec)
        if self.declared is not None:
            self.backend.check_target(spec)
        self._care = StreamMaintenance(self.backend, self.declared)
        self.logical_run = STREAM
        self.last: StreamBatch | None = None
        self._held = ExitStack()
        self._run: OpenedRun | None = None
        self._generation = 0
        self._described: tuple[TableShape | None] | None = None  # what the target said of its table, once it was asked
        self._known: tuple[TableShape | None] | None = None  # the same, as it was before the last change
        self._tried_at = 0.0

    def _named_columns(self) -> dict[str, ColumnSpec]:
        """What is known of a table before its first rows: that it has the columns which options name."""
        target = self.target
        named = [
            *(as_names("keys", target.keys or target.primary_key or self._window_key()) or ()),
            *(as_names("update_columns", target.update_columns) or ()),
            *(as_names("compare_columns", target.compare_columns) or ()),
            *filter(None, [target.event_timestamp_column]),
        ]
        return {name: ColumnSpec(name, Text(), nullable=True) for name in dict.fromkeys([*named, "any"])}

    # ── its life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def label(self) -> str:
        """For people: the connection and the place on it."""
        return f"{self.resolved.connection.name}.{self.table}"

    @property
    def books(self) -> KeepsBooks:
        """The target as the keeper of its own books."""
        assert isinstance(self.backend, KeepsBooks)
        return self.backend

    @property
    def name(self) -> str:
        """The name under which the target keeps what it has of this stream."""
        return self.stream.name if len(self.stream.targets) == 1 else f"{self.stream.name}::{self.table}"

    @property
    def mode(self) -> str:
        """How rows are applied: as declared; without a word windows that may come out again replace what they gave."""
        comes_again = self.stream.window is not None and self.stream.window.late_data == "reopen"
        can_replace = "merge" in self.backend.capabilities.modes
        return self.target.mode or ("merge" if comes_again and can_replace else "append")

    def _window_key(self) -> tuple[str, ...] | None:
        window = self.stream.window
        return None if window is None else (window.window_start_column, *window.group_by)

    @property
    def lands_first(self) -> bool:
        """Whether rows are all there before they count, so that they can be looked at in between."""
        return isinstance(self.backend, SqlBackend)

    @property
    def shows_whole_batches(self) -> bool:
        """Whether nothing of a batch is ever seen that broke off on the way."""
        return isinstance(self.backend, FolderBackend)

    def open(self) -> None:
        """Take the lease and open the stream's run; afterwards `last` is the batch that the target holds.

        Raises:
            AlreadyRunning: another stream of this name writes there.
        """
        try:
            self._held.enter_context(self.books.lease(self.name))
            self._run = self.books.open_run(
                self.name,
                run_id=new_run_id(),
                logical_run=self.logical_run,
                target=self.table,
                mode=self.mode,
                now=now(),
            )
        except BaseException:
            self._held.close()
            raise
        self._generation = self._run.generation
        self.last = batch_of(self._run.applied)

    @property
    def is_away(self) -> bool:
        """Whether it did not answer when the stream began, and has not come back since."""
        return self.away is not None

    @property
    def is_known(self) -> bool:
        """Whether its columns are known, or can be asked for now."""
        if self._known is None and not self.is_away:
            try:
                self._live()
            except FlowError as exc:
                log.debug("%s does not tell its columns: %s", self.label, exc.message)
        return self._known is not None

    def try_to_open(self) -> None:
        """Open it, or leave it so that it can be tried again."""
        try:
            self.open()
        except BaseException:
            self._held.close()
            self._run = None
            raise

    def come_back(self, waiting: Sequence[StreamBatch]) -> None:
        """Try once more to open a target that was away; `waiting` is what it is to get, oldest first.

        Raises:
            FlowError: it is still away.
            StateIncompatible: it has rows of this stream from before the stream's first batch.
        """
        if time.monotonic() - self._tried_at < ASK_AGAIN_S:
            raise ConnectionFailed(f"{self.label} did not answer a moment ago.")
        self._tried_at = time.monotonic()
        self.try_to_open()
        self.away = None
        first = waiting[0]
        if self.last is None or self.goes_back:
            return
        if first.number == 0 and self.last.generation != first.generation:
            raise StateIncompatible(
                f"The stream '{self.stream.name}' began anew while {self.label} was away, which holds batches from "
                "before; nobody knows which of its rows are missing there, and which would come twice.",
                fix=f"decide where all begin: flow state reset {self.stream.name} --from group|earliest|latest",
            )

    def close(self, error: BaseException | None = None) -> None:
        """End the run and give the lease back."""
        if self._run is not None:
            said = None if error is None else str(error) if isinstance(error, FlowError) else type(error).__name__
            try:
                self.books.close_run(self._run, error=said, now=now())
            except FlowError as exc:
                log.warning("the end of the stream could not be written into %s: %s", self.label, exc.message)
            self._run = None
        self._held.close()
        self.backend.close()

    # ── a batch ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def holds(self, batch: StreamBatch) -> bool:
        """Whether the target has the batch already.

        Raises:
            StateIncompatible: it has another one under this name.
        """
        assert self._run is not None
        if self.last is not None and self.last.generation == batch.generation and self.last.number >= batch.number:
            return self.last == batch or batch.held_by(self._run.applied)
        return False

    def write(
        self, rows: DataFrame, batch: StreamBatch, *, before_settling: Callable[[], None] = lambda: None
    ) -> SettleReport:
        """Apply a batch once. `before_settling` may still stop it, on targets where rows land first."""
        from ematix_flow.spark.batch import shape, write_rows
        from ematix_flow.spark.landing import land_and_settle

        run, rows = self._run_of(batch), self._doable(rows)
        plan, stamp = self._plan(rows, run)
        shaped = shape(rows, plan)
        observer = SilentObserver()
        if isinstance(self.backend, Settles):
            report = land_and_settle(
                shaped,
                plan,
                self.backend,
                run,
                stamp,
                observer,
                dry_run=False,
                staged_as=run,
                before_settling=before_settling,
            )
        else:
            assert isinstance(self.backend, WritesFrames)
            report = write_rows(shaped, plan, self.backend, run, stamp, observer, False)
        if not report.replayed:
            self._generation += 1
        if plan.ddl.statements or plan.ddl.action == "create":
            self._described = None
        self.last = batch
        return report

    def look_after(self) -> None:
        """Maintain a lake table that is due, between two batches."""
        if not self.is_away:
            self._care.look(self.table)

    def _run_of(self, batch: StreamBatch) -> OpenedRun:
        """The run under whose name a batch is applied."""
        assert self._run is not None
        return replace(
            self._run,
            run_id=new_run_id(),
            opened_as=self._run.run_id,
            generation=self._generation,
            applied=None,
            batch=batch,
        )

    def misfit(self, rows: DataFrame) -> Column | None:
        """Why a row does not fit the target's columns, NULL for one that does; None when all do."""
        from ematix_flow.spark.misfits import misfit

        assert self._run is not None
        return misfit(rows, self._plan(rows, self._run)[0])

    def try_out(self, rows: DataFrame) -> None:
        """Do all that `write` does and keep nothing of it; raises what it would raise."""
        from ematix_flow.spark.batch import shape, write_rows
        from ematix_flow.spark.landing import land_and_settle

        assert self._run is not None
        run, rows = replace(self._run, run_id=new_run_id(), opened_as=self._run.run_id), self._doable(rows)
        plan, stamp = self._plan(rows, run)
        shaped, observer = shape(rows, plan), SilentObserver()
        if isinstance(self.backend, Settles):
            land_and_settle(shaped, plan, self.backend, run, stamp, observer, dry_run=True, staged_as=run)
        else:
            assert isinstance(self.backend, WritesFrames)
            write_rows(shaped, plan, self.backend, run, stamp, observer, True)

    def fetched(self, rows: DataFrame, row: str) -> Callable[[Sequence[int]], None] | None:
        """Fetch rows, and give what does the same as `try_out` with some of them, by the numbers in a column.

        None where only Spark brings rows to the target.
        """
        if not isinstance(self.backend, SqlBackend) or not isinstance(self.backend, Settles):
            return None
        import pyarrow as pa
        import pyarrow.compute as pc

        from ematix_flow.run.in_memory import RowsInMemory
        from ematix_flow.spark.batch import shape
        from ematix_flow.spark.landing import land_and_settle

        assert self._run is not None
        backend, run = self.backend, replace(self._run, run_id=new_run_id(), opened_as=self._run.run_id)
        rows = self._doable(rows)
        plan, stamp = self._plan(rows.drop(row), run)
        numbered = replace(plan, columns=(*plan.columns, ColumnSpec(row, BigInt(), nullable=True)))
        table = shape(rows, numbered).toArrow()

        def trial(some: Sequence[int]) -> None:
            chosen = table.filter(pc.is_in(table[row], pa.array(some, pa.int64()))).drop_columns([row])
            observer = SilentObserver()
            land_and_settle(RowsInMemory(chosen), plan, backend, run, stamp, observer, dry_run=True, staged_as=run)

        return trial

    def _doable(self, rows: DataFrame) -> DataFrame:
        """The rows, without those that ask for something to be taken back, where the target cannot do that."""
        if RETRACTED not in rows.columns or self._takes_back:
            return rows
        from pyspark.sql import functions as F

        return rows.where(F.col(RETRACTED) == 0).drop(RETRACTED)

    @property
    def _takes_back(self) -> bool:
        """Whether the row of a session that is none any more can be found by its key, and no other row with it."""
        window = self.stream.window
        if window is None or self.mode not in ("merge", "scd1") or not isinstance(self.backend, Settles):
            return False
        keys = set(self._merge_keys().values())
        by_start = {window.window_start_column, *window.group_by}
        return keys <= {*by_start, window.session_id_column} and (window.session_id_column in keys or by_start <= keys)

    def _merge_keys(self) -> dict[str, str]:
        """The columns by which rows are merged, and what they are called in the rows."""
        named = as_names("keys", self.target.keys or self.target.primary_key or self._window_key()) or ()
        return {name: (self.target.column_map or {}).get(name, name) for name in named}

    def _null_keys(self) -> tuple[str, ...]:
        """The columns of the key in which NULL is a group like any other, beside one that is never NULL."""
        groups = self.stream.window.group_by if self.stream.window is not None else ()
        found = tuple(name for name, given in self._merge_keys().items() if given in groups)
        return found if self.mode in ("merge", "scd1") and len(found) < len(self._merge_keys()) else ()

    def _plan(self, rows: DataFrame, run: OpenedRun) -> tuple[BatchPlan, Stamp]:
        from ematix_flow.spark.types import from_spark_type

        retracts = RETRACTED in rows.columns
        kind = self.resolved.connection.kind
        fields = [field for field in rows.schema.fields if field.name not in (RETRACTED, POSITION)]
        given = {field.name: from_spark_type(field.dataType) for field in fields}
        table = self.declared or self._of_rows(given)
        spec = self._spec(table)
        self.backend.check_target(spec)
        stamp = Stamp(run.run_id, moment_after(run.settled_at))
        pipeline = PipelineSpec(
            name=self.stream.name,
            function=lambda: None,
            parameters=0,
            targets=(spec,),
            is_fan_out=len(self.stream.targets) > 1,
            where=self.stream.where,
            engine="spark",
        )
        sink = TargetSide(
            table=self.table,
            modes=self.backend.capabilities.modes,
            kind=kind,
            dialect=self.backend.dialect if isinstance(self.backend, Settles) else None,
            live=self._live(),
            file_format=getattr(self.backend, "file_format", None),
        )
        plan = plan_load(
            pipeline,
            spec,
            SourceSide(SourceQuery(frame=rows)),
            sink,
            stamp=stamp,
            stored_mark=None,
            retracts=retracts,
            is_placed=kind in IN_PARTS and POSITION in rows.columns,
            null_keys=self._null_keys(),
        )
        return replace(plan, pipeline=self.name), stamp

    def _live(self) -> TableShape | None:
        """The table as it is there, asked for again after a batch that changed it; else as it was known last."""
        if self._described is None:
            try:
                self._described = self._known = (self.backend.describe(self.table),)
            except FlowError:
                if self._known is None:
                    raise
                return self._known[0]
        return self._described[0]

    @property
    def knows_columns(self) -> bool:
        """Whether the table is declared or there already; of a target that is away that is not known."""
        return self.declared is not None or (self.is_known and self._live() is not None)

    def wanted(self, columns: list[str]) -> list[str]:
        """Which of a batch's columns are written: all of the payload, and hidden ones that the table has."""
        live = self._live()
        asked = set(self.declared.column_names if self.declared else ())
        asked |= {column.name for column in live.columns} if live else set()
        return [name for name in columns if name not in HIDDEN_COLUMNS or name in asked]

    def _of_rows(self, given: Mapping[str, ColumnType]) -> TableSpec:
        """The table as the rows have it; one that is there keeps its types."""
        live = self._live()
        if live is None:
            return self._table({name: ColumnSpec(name, kind, nullable=True) for name, kind in given.items()})
        if self.lands_first:
            extra = [name for name in given if live.column(name) is None]
            if extra:
                known = [column.name for column in live.columns]
                raise UnknownColumn(
                    f"{self.table} has no column '{extra[0]}', which the messages have.",
                    fix=closest(extra[0], known)
                    or f"add it (ALTER TABLE {self.table} ADD COLUMN …), or choose columns with transform_sql=",
                )
        return self._table({name: kept_column(live, name, kind) for name, kind in given.items()})

    def _table(self, columns: Mapping[str, ColumnSpec]) -> TableSpec:
        schema, name = self._place()
        return TableSpec(schema, name, tuple(columns.values()))

    def _place(self) -> tuple[str, str]:
        target = self.target
        if isinstance(target.table, tuple | list):
            return str(target.table[0]), str(target.table[1])
        if isinstance(target.table, str):
            schema, _, name = target.table.rpartition(".")
            return schema, name
        return (
            "stream",
            target.topic or target.queue or target.prefix or target.partition_key_prefix or self.stream.name,
        )

    def _spec(self, table: TableSpec) -> TargetSpec:
        target = self.target
        return check_target(
            TargetSpec(
                table=table,
                connection=target.connection,
                mode=self.mode,  # type: ignore[arg-type]  # checked by check_target
                keys=as_names("keys", target.keys or target.primary_key or self._window_key())
                if self.mode != "append"
                else None,
                update_columns=as_names("update_columns", target.update_columns),
                compare_columns=as_names("compare_columns", target.compare_columns),
                event_timestamp_column=target.event_timestamp_column,
                column_map=dict(target.column_map or {}),
                stamped=self.declared is not None,
                files=target.file_options(),
                broker=target.broker_options(),
            )
        )
