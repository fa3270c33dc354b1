"""The short way of a load whose rows are a frame in this process: no Spark, the same landing and settling.

The functions that Spark's tasks run over Arrow batches (COPY, LOAD DATA, a Parquet file) are run here, once, over the
frame's own batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.arrow_fitting import can_fit, fitted, with_times_in_utc
from ematix_flow.backends.frames import as_arrow, is_in_memory
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.backend import Backend, Settles
from ematix_flow.contracts.plans import BatchPlan, OpenedRun, Route, SettleReport, Stamp
from ematix_flow.contracts.runtime import RunObserver
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.withheld import HOW_TO_SEE
from ematix_flow.errors import FlowError, MissingSourceColumn, StatementFailed, closest, listed
from ematix_flow.spark.landing import land_and_settle, staging_run

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_BATCH = 50_000


def with_frame_at_hand(spec: PipelineSpec, plan: BatchPlan, target: Backend) -> BatchPlan:
    """The plan with its frame as an Arrow table, on the short way when nothing about the rows needs Spark.

    Plans whose rows are not a frame of this process come back as they are.

    Raises:
        UnfitValue: the frame holds what no column can.
        MissingSourceColumn: it lacks a declared column.
    """
    reading = plan.reading
    if plan.route.engine != "spark" or reading is None or not is_in_memory(reading.query.frame):
        return plan
    bare = [column for column in plan.columns if not reading.pending.get(column.name)]
    table = with_times_in_utc(as_arrow(reading.query.frame), bare, reading.renamed)
    plan = replace(plan, reading=replace(reading, query=replace(reading.query, frame=table)))
    asks = spec.engine != "auto" or not isinstance(target, SqlBackend) or reading.steps or reading.watermark_filter
    if asks or any(reading.pending.values()):
        return plan
    for column in plan.columns:
        name = reading.renamed.get(column.name, column.name)
        if name not in table.column_names:
            raise MissingSourceColumn(
                f"The frame has no column '{name}', which {plan.target.table} declares.",
                fix=closest(name, table.column_names) or f"it has {listed(table.column_names)}",
            )
        if not can_fit(table.schema.field(name).type, column.type):
            return plan
    return replace(plan, route=Route("memory", "the rows are in this process"))


def load_from_memory(
    plan: BatchPlan, target: Settles, run: OpenedRun | None, stamp: Stamp, observer: RunObserver, *, dry_run: bool
) -> SettleReport:
    """Walk a plan on the short way. One transaction at the end makes the rows visible, or none of it happened."""
    reading = plan.reading
    assert reading is not None
    rows = RowsInMemory(fitted(reading.query.frame, plan.columns, reading.renamed))
    return land_and_settle(
        rows,
        plan,
        target,
        run,
        stamp,
        observer,
        dry_run=dry_run,
        staging=_explained(plan),
        staged_as=staging_run(plan, run),
    )


@contextmanager
def _explained(plan: BatchPlan) -> Iterator[None]:
    """What a driver says while rows are brought beside the target, as an error of ours."""
    try:
        yield
    except FlowError:
        raise
    except Exception as exc:
        raise StatementFailed(
            f"The rows could not be brought beside {plan.table}: the driver raised {type(exc).__name__}.",
            fix=f"check that the server is there and has room; {HOW_TO_SEE}",
        ) from exc


class RowsInMemory:
    """What staging asks of a DataFrame, answered by one Arrow table: as if Spark had a single task, in this process."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def columns(self) -> list[str]:
        """The names, in order."""
        return list(self._table.column_names)

    @property
    def schema(self) -> pa.Schema:
        """The columns, with `names` as a DataFrame's schema has them."""
        return self._table.schema

    def toDF(self, *names: str) -> RowsInMemory:
        """The same rows under other names."""
        return RowsInMemory(self._table.rename_columns(list(names)))

    def mapInArrow(
        self, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
    ) -> RowsInMemory:
        """What a function makes of the batches; it has been called once when this returns."""
        import pyarrow as pa

        made = list(function(iter(self._table.to_batches(max_chunksize=_ROWS_PER_BATCH))))
        return RowsInMemory(pa.Table.from_batches(made) if made else pa.table({}))

    def collect(self) -> Sequence[dict[str, Any]]:
        """All rows."""
        rows: Sequence[dict[str, Any]] = self._table.to_pylist()
        return rows

    @property
    def write(self) -> RowsInMemory:
        """Where `parquet` is found."""
        return self

    def parquet(self, place: str) -> None:
        """Write the rows into a folder, as one file that is there when it is complete."""
        import pyarrow.parquet as pq

        os.makedirs(place)
        partial = os.path.join(place, ".part-00000")
        pq.write_table(self._table, partial)
        os.replace(partial, os.path.join(place, "part-00000.parquet"))
