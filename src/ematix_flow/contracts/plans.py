"""Plans and reports: what was decided, as data that can be printed or walked, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from ematix_flow.contracts.change_feeds import ChangeCounts, FeedPlan
from ematix_flow.contracts.left_out import LeftOutFile
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.contracts.table_writes import TableChange, TableWrite
from ematix_flow.declare.columns import ColumnType
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.declare.steps import RowStep
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.declare.target import ConnectionRef, TargetSpec

Counter = Literal["inserted", "updated", "closed", "deleted"]
RouteEngine = Literal["pushdown", "memory", "spark", "native"]
PATH_OF: dict[RouteEngine, str] = {
    "pushdown": "same_db",
    "memory": "cross_db",
    "spark": "cross_db",
    "native": "cross_db",
}


@dataclass(frozen=True)
class Stamp:
    """What one run writes into every row it touches: its id, and one instant."""

    run_id: str
    now: datetime


@dataclass(frozen=True)
class Statement:
    """One SQL statement of a plan. Its row count is added to `counts`, when it has one.

    `write` says the same as data, for lake tables that are written without SQL.
    """

    sql: str
    counts: Counter | None = None
    why: str = ""
    write: TableWrite | None = None


CheckKind = Literal["null", "too_long", "null_key", "null_event_time", "duplicate_keys", "duplicate_events", "late"]


@dataclass(frozen=True)
class Check:
    """An expression (in a `Profile`) or a query that gives one number; above zero, the load stops."""

    kind: CheckKind
    sql: str
    columns: tuple[str, ...] = ()
    limit: int | None = None


@dataclass(frozen=True)
class Profile:
    """One pass over the landed rows: how many, the greatest watermark, and the count of every kind of unfit value."""

    sql: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class WatermarkRule:
    """The incremental column, its type, and the mark the plan was made with (None on a first run)."""

    column: str
    type: ColumnType
    last_value: str | None


@dataclass(frozen=True)
class Route:
    """Which engine moves the rows, and why."""

    engine: RouteEngine
    reason: str

    @property
    def path(self) -> str:
        """The documented name: `same_db` or `cross_db`."""
        return PATH_OF[self.engine]


@dataclass(frozen=True)
class DdlPlan:
    """What the declared table needs that the live one lacks; `changes` are the statements as data.

    `partition_by` are the columns whose values are, or will be, folders of the table.
    """

    action: Literal["create", "match", "evolve", "warn"]
    statements: tuple[Statement, ...] = ()
    differences: tuple[str, ...] = ()
    missing_columns: tuple[str, ...] = ()
    changes: tuple[TableChange, ...] = ()
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lane:
    """How landed rows reach the target, and why.

    `insert`: the plan's statements read them. `swap`: the landed table, in just the target's form, takes the target's
    place; `columns` are the landed ones and `constants` those that are added with one value for all rows. `straight`:
    one statement moves rows from the source's query into the target and nothing is landed. Whatever a fast lane cannot
    do in the end is done by the plan's statements.
    """

    kind: Literal["insert", "swap", "straight"] = "insert"
    reason: str = ""
    columns: tuple[ColumnSpec, ...] = ()
    constants: tuple[tuple[ColumnSpec, str], ...] = ()
    statement: Statement | None = None


@dataclass(frozen=True)
class ChangeSet:
    """A load into a table whose every statement is a commit: what changes, worked out first, then applied by one.

    `touched` looks up what `query` needs of the stored rows (None when it looks at them only once). `query` gives the
    rows that differ, each with what is to be done about it; `counts` sums them up as (all, inserted, updated, closed,
    deleted). `apply` does it, whatever it is. The others do the same with less work: `alter` when there are no new rows
    (None when stored rows are never altered), `insert` when there is nothing else, and `fill` puts what landed into a
    table without rows, where nothing needs to be worked out (None when it must be anyway).
    """

    touched: Statement | None
    query: Statement
    counts: str
    apply: Statement
    alter: Statement | None
    insert: Statement
    fill: Statement | None

    def least(self, changed: int, report: SettleReport) -> Statement | None:
        """The statement that does what was counted with the least work; None when there is nothing to do."""
        if not changed:
            return None
        if changed == report.inserted and not report.closed:
            return self.insert
        return self.apply if report.inserted else self.alter or self.apply


@dataclass(frozen=True)
class SourceQuery:
    """Where rows come from, in the source's own words. Exactly one of `sql`, `table` and `frame` is set.

    `connection` is set when the rows are not on the pipeline's own source connection.
    """

    sql: str | None = None
    table: TableRef | None = None
    frame: Any = None
    connection: ConnectionRef | None = None

    @property
    def text(self) -> str:
        """For people: the SQL, the table, or the kind of frame."""
        if self.sql is not None:
            return self.sql
        return str(self.table) if self.table is not None else f"<{type(self.frame).__name__}>"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The source's share of the work: what it computes itself, and what is left for Spark to do with its rows.

    `query` is what the source runs, and `source_types` the types it says its columns have. The columns in `columns`
    whose normalizers are still to be applied carry them in `pending`; `steps` are the row steps left;
    `watermark_filter` is set when the mark must be applied after them. `parallel_reads` is how many readers the
    pipeline asks for; 1 when it asks for several and the load needs one. `dialect` is what the user's SQL that Spark
    runs is written in.
    """

    query: SourceQuery
    columns: tuple[ColumnSpec, ...]
    renamed: Mapping[str, str]
    pending: Mapping[str, tuple[Any, ...]]
    steps: tuple[RowStep, ...] = ()
    watermark_filter: WatermarkRule | None = None
    source_types: Mapping[str, ColumnType | None] = field(default_factory=dict)
    parallel_reads: int | None = None
    dialect: SqlDialect = "spark"


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """One target's load, decided. `flow preview` prints it, the engines walk it.

    `run_id` is that of the run it was made for; relations of the run's own may carry it in their names.
    """

    pipeline: str
    target: TargetSpec
    table: TableRef
    columns: tuple[ColumnSpec, ...]
    route: Route
    ddl: DdlPlan
    landing_sql: str | None
    reading: Reading | None
    profile: Profile | None
    checks: tuple[Check, ...]
    statements: tuple[Statement, ...]
    watermark: WatermarkRule | None
    changes: ChangeSet | None = None
    lane: Lane = Lane()
    keys: tuple[str, ...] = ()
    keys_reason: str = ""
    compare_columns: tuple[str, ...] = ()
    compare_reason: str = ""
    notes: tuple[str, ...] = ()
    run_id: str = ""
    feed: FeedPlan | None = None


@dataclass(frozen=True)
class OpenedRun:
    """What the target knew when a run began; all of it is checked again when the run settles.

    A stream opens one run and settles it once per micro-batch: `batch` then says which, `opened_as` is the stream's
    run, and `run_id` names this batch alone.
    """

    pipeline: str
    run_id: str
    logical_run: str
    generation: int
    watermark: tuple[str, str] | None
    resumed: bool
    applied: AppliedRun | None
    settled_at: datetime | None = None
    batch: StreamBatch | None = None
    opened_as: str = ""

    @property
    def opened_id(self) -> str:
        """The run that the ledger shows as open: this one, or the stream that this is a micro-batch of."""
        return self.opened_as or self.run_id

    @property
    def load_name(self) -> str:
        """The logical run, of a stream the micro-batch in it: what no other load of the pipeline is called."""
        batch = self.batch
        return self.logical_run if batch is None else f"{self.logical_run} {batch.generation} {batch.number}"

    def is_held(self, applied: AppliedRun | None) -> bool:
        """Whether a target that knows of this applied run holds the load already."""
        return applied is not None if self.batch is None else self.batch.held_by(applied)

    def metrics(self, report: SettleReport) -> dict[str, Any]:
        """What the books keep of the load once it is settled."""
        counts = {
            "version": 1,
            "rows": report.rows,
            "inserted": report.inserted,
            "updated": report.updated,
            "closed": report.closed,
            "deleted": report.deleted,
        }
        return counts if self.batch is None else {**counts, "batch": self.batch.to_dict()}


@dataclass(frozen=True)
class AppliedRun:
    """A logical run that the target already holds. `applied_at` is the run's own instant, where the books tell it."""

    logical_run: str
    run_id: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    applied_at: datetime | None = None


@dataclass(frozen=True)
class Landed:
    """Rows brought beside the target by an engine. `verified` says that values were checked on the way.

    `rows` is None where they are counted as they settle.
    """

    handle: Any
    rows: int | None
    watermark: str | None = None
    verified: bool = True


@dataclass(frozen=True)
class SettleReport:
    """What a settling transaction did. `left_out` are files of the source whose rows are not in it.

    `changes` is what became of the events of a change feed; `rows` are then those that were applied.
    """

    rows: int
    inserted: int = 0
    updated: int = 0
    closed: int = 0
    deleted: int = 0
    watermark: str | None = None
    replayed: bool = False
    left_out: tuple[LeftOutFile, ...] = ()
    changes: ChangeCounts | None = None

    @property
    def unchanged(self) -> int:
        """Landed rows that changed nothing."""
        return max(self.rows - self.inserted - self.updated, 0)


class RunResult(Mapping[str, Any]):
    """The outcome of one load: a mapping and an object with attributes, ready for JSON."""

    def __init__(self, **values: Any) -> None:
        object.__setattr__(self, "_values", {key: value for key, value in values.items() if value is not None})

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            raise AttributeError(key)
        try:
            return self._values[key]
        except KeyError:
            raise AttributeError(f"this result has no '{key}'; it has {', '.join(self._values)}") from None

    def __setattr__(self, key: str, value: Any) -> None:
        raise AttributeError("a run result cannot be changed")

    def __repr__(self) -> str:
        return f"RunResult({', '.join(f'{key}={value!r}' for key, value in self._values.items())})"

    def to_dict(self) -> dict[str, Any]:
        """A plain dict, for JSON."""
        return {key: value.to_dict() if isinstance(value, RunResult) else value for key, value in self.items()}


__all__ = [
    "AppliedRun",
    "BatchPlan",
    "ChangeSet",
    "Check",
    "DdlPlan",
    "Landed",
    "Lane",
    "OpenedRun",
    "Profile",
    "Reading",
    "Route",
    "RunResult",
    "SettleReport",
    "SourceQuery",
    "Stamp",
    "Statement",
    "TableShape",
    "WatermarkRule",
]
