"""The framework's own tables in an SQL target: ledger, applied runs, watermarks and run history.

They live beside the data, so that a load and its bookkeeping commit or vanish together. Every function takes an open
connection and leaves the transaction to its caller.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Protocol

from ematix_flow.contracts.change_feeds import GATE, LONGEST_KEY
from ematix_flow.contracts.dialect import Dialect
from ematix_flow.contracts.plans import AppliedRun, OpenedRun, SettleReport
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.contracts.streams import STREAM
from ematix_flow.declare.columns import BigInt, ColumnType, Integer, SmallInt, String, Text, TimestampTZ
from ematix_flow.declare.instants import time_of
from ematix_flow.declare.redaction import scrub
from ematix_flow.errors import IncompatibleSchema, InvalidIdentifier, WriteConflict, listed

_NAME = String(255)  # a key column: MySQL cannot index text of unbounded length
_TABLES: dict[str, tuple[tuple[str, ColumnType], ...]] = {
    "ledger": (
        ("pipeline_name", _NAME),
        ("generation", BigInt()),
        ("settled_at", TimestampTZ()),
        ("open_logical_run", Text()),
        ("open_run_id", Text()),
        ("opened_at", TimestampTZ()),
        ("host", Text()),
        ("pid", BigInt()),
    ),
    "applied_runs": (
        ("pipeline_name", _NAME),
        ("logical_run", _NAME),
        ("run_id", Text()),
        ("applied_at", TimestampTZ()),
        ("metrics_json", Text()),
    ),
    "watermarks": (
        ("pipeline_name", _NAME),
        ("column_name", Text()),
        ("last_value", Text()),
        ("updated_at", TimestampTZ()),
    ),
    "run_history": (
        ("run_id", _NAME),
        ("pipeline_name", Text()),
        ("target_schema", Text()),
        ("target_table", Text()),
        ("mode", Text()),
        ("path", Text()),
        ("started_at", TimestampTZ()),
        ("finished_at", TimestampTZ()),
        ("status", Text()),
        ("rows_inserted", BigInt()),
        ("rows_updated", BigInt()),
        ("rows_unchanged", BigInt()),
        ("error_message", Text()),
        ("parent_run_id", Text()),
        ("step_name", Text()),
        ("metrics_json", Text()),
    ),
}
_GATE_COLUMNS: tuple[tuple[str, ColumnType], ...] = (
    ("pipeline_name", _NAME),
    ("pk_json", String(LONGEST_KEY)),
    ("last_seen_ts_ms", BigInt()),
    ("position", String(255)),
    ("snapshot_ts_ms", BigInt()),
    ("snapshot_position", String(255)),
    ("arrived", String(40)),
    ("is_row", SmallInt()),
    ("updated_at", TimestampTZ()),
)
_GATE_KEYS = ("pipeline_name", "pk_json")
_GATE_NEEDS: dict[str, tuple[type[ColumnType], ...]] = {
    **dict.fromkeys(_GATE_KEYS, (String, Text)),
    "last_seen_ts_ms": (SmallInt, Integer, BigInt),
}
"""Without these a gate knows nothing."""


_KEYS = {
    "ledger": ("pipeline_name",),
    "applied_runs": ("pipeline_name", "logical_run"),
    "watermarks": ("pipeline_name",),
    "run_history": ("run_id",),
}


class Cursor(Protocol):
    """What this room uses of a DB-API cursor."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


class Db(Protocol):
    """What this room uses of a database connection: statements in autocommit, transactions by BEGIN and COMMIT."""

    def execute(self, sql: str, /) -> Cursor: ...

    def close(self) -> None: ...


class Books:
    """Reads and writes the framework's tables in one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def table(self, name: str) -> str:
        """One of the tables, qualified and quoted."""
        return self.dialect.table(self.dialect.bookkeeping(name))

    def create_statements(self) -> list[str]:
        """The DDL of all four tables; running it again changes nothing."""
        schema = self.dialect.bookkeeping_schema
        make_schema = self.dialect.create_schema(schema) if schema else None
        statements = [make_schema] if make_schema else []
        return [*statements, *(self._create(name, columns, _KEYS[name]) for name, columns in _TABLES.items())]

    def gate_statement(self) -> str:
        """The DDL of the table that only targets of change feeds have."""
        return self._create(GATE, _GATE_COLUMNS, _GATE_KEYS)

    def gate_additions(self, live: TableShape) -> list[str]:
        """What such a table lacks that an older version made; its rows then know the less, and are judged by the rest.

        Raises:
            IncompatibleSchema: it was not made for this.
        """
        unlike = [name for name, kinds in _GATE_NEEDS.items() if not isinstance(_type_of(live, name), kinds)]
        if unlike:
            raise IncompatibleSchema(
                f"Change feeds remember in {live.ref} what they applied, but the table that is there was not made for "
                f"that: see {listed(unlike)}.",
                fix="rename it; a new one then knows nothing, so build the mirrors anew",
            )
        return [
            statement
            for name, kind in _GATE_COLUMNS
            if live.column(name) is None
            and (statement := self.dialect.add_column(self.table(GATE), name, self.dialect.type_sql(kind), None))
        ]

    def _create(self, name: str, columns: Sequence[tuple[str, ColumnType]], keys: Sequence[str]) -> str:
        parts = [
            f"{self.dialect.quote(column)} {self.dialect.type_sql(kind)}{' NOT NULL' if column in keys else ''}"
            for column, kind in columns
        ]
        parts.append(f"PRIMARY KEY ({self.dialect.columns(keys)})")
        return f"CREATE TABLE IF NOT EXISTS {self.table(name)} ({', '.join(parts)})"

    def open(
        self,
        db: Db,
        pipeline: str,
        *,
        run_id: str,
        logical_run: str | None,
        target: TableRef,
        mode: str,
        now: datetime,
    ) -> OpenedRun:
        """Open a run in the ledger and in the history; an interrupted one is taken up again under its own name."""
        for what, name in (("pipeline", pipeline), ("logical run", logical_run)):
            if name is not None and len(name) > _NAME.length:
                raise InvalidIdentifier(
                    f"The {what} '{name}' has a name of {len(name)} characters; at most {_NAME.length} are kept.",
                    fix="choose a shorter name",
                )
        row = db.execute(
            f"SELECT generation, open_logical_run, open_run_id, settled_at FROM {self.table('ledger')} "
            f"WHERE pipeline_name = {self._text(pipeline)}"
        ).fetchone()
        if row is None:
            self._insert(db, "ledger", {"pipeline_name": pipeline, "generation": 0})
            row = (0, None, None, None)
        generation, interrupted, interrupted_run = int(row[0]), row[1], row[2]
        chosen = logical_run or interrupted or run_id
        if interrupted_run is not None:
            self._update(
                db,
                "run_history",
                {"status": "failed", "finished_at": now, "error_message": "worker lost"},
                f"run_id = {self._text(interrupted_run)} AND status = 'running'",
            )
        self._update(
            db,
            "ledger",
            {
                "open_logical_run": chosen,
                "open_run_id": run_id,
                "opened_at": now,
                "host": socket.gethostname(),
                "pid": os.getpid(),
            },
            f"pipeline_name = {self._text(pipeline)}",
        )
        self._insert(
            db,
            "run_history",
            {
                "run_id": run_id,
                "pipeline_name": pipeline,
                "target_schema": target.schema,
                "target_table": target.name,
                "mode": mode,
                "started_at": now,
                "status": "running",
            },
        )
        return OpenedRun(
            pipeline=pipeline,
            run_id=run_id,
            logical_run=chosen,
            generation=generation,
            watermark=self.watermark(db, pipeline),
            resumed=interrupted is not None and chosen == interrupted,
            applied=self.applied(db, pipeline, chosen),
            settled_at=_instant(row[3]),
        )

    def holder(self, db: Db, pipeline: str) -> str | None:
        """Who has the pipeline open, for a message."""
        row = db.execute(
            f"SELECT open_run_id, host, pid, {self.dialect.as_watermark_text('opened_at', TimestampTZ())} "
            f"FROM {self.table('ledger')} WHERE pipeline_name = {self._text(pipeline)} AND open_run_id IS NOT NULL"
        ).fetchone()
        return f"run {str(row[0])[:8]} on {row[1]}, process {row[2]}, since {row[3]}" if row else None

    def lock(self, db: Db, run: OpenedRun, lock_clause: str) -> None:
        """Lock the pipeline's ledger row and make sure that nobody settled since the run was planned."""
        row = db.execute(
            f"SELECT generation, open_run_id FROM {self.table('ledger')} "
            f"WHERE pipeline_name = {self._text(run.pipeline)}{lock_clause}"
        ).fetchone()
        if row is None or int(row[0]) != run.generation or row[1] != run.opened_id:
            raise WriteConflict(
                f"Another run of '{run.pipeline}' was faster; this one changed nothing.",
                fix="look at `flow runs list`; run it again if it is still needed",
            )

    def applied(self, db: Db, pipeline: str, logical_run: str) -> AppliedRun | None:
        """The logical run, if the target already holds it."""
        row = db.execute(
            f"SELECT run_id, metrics_json FROM {self.table('applied_runs')} "
            f"WHERE pipeline_name = {self._text(pipeline)} AND logical_run = {self._text(logical_run)}"
        ).fetchone()
        return AppliedRun(logical_run, row[0], json.loads(row[1] or "{}")) if row else None

    def watermark(self, db: Db, pipeline: str) -> tuple[str, str] | None:
        """The stored mark as (column, text)."""
        row = db.execute(
            f"SELECT column_name, {self.dialect.quote('last_value')} FROM {self.table('watermarks')} "
            f"WHERE pipeline_name = {self._text(pipeline)}"
        ).fetchone()
        return (row[0], row[1]) if row else None

    def settle(
        self,
        db: Db,
        run: OpenedRun,
        report: SettleReport,
        *,
        column: str | None,
        path: str,
        unchanged: int,
        changed: int,
        now: datetime,
    ) -> None:
        """Write down a settled load: mark, history, ledger. Part of the load's own transaction."""
        if column is not None and report.watermark is not None:
            db.execute(f"DELETE FROM {self.table('watermarks')} WHERE pipeline_name = {self._text(run.pipeline)}")
            mark = {"pipeline_name": run.pipeline, "column_name": column, "last_value": report.watermark}
            self._insert(db, "watermarks", {**mark, "updated_at": now})
        metrics = json.dumps(run.metrics(report))
        if run.batch is not None:  # of a stream only the last batch is kept
            db.execute(
                f"DELETE FROM {self.table('applied_runs')} WHERE pipeline_name = {self._text(run.pipeline)} "
                f"AND logical_run = {self._text(run.logical_run)}"
            )
        self._insert(
            db,
            "applied_runs",
            {
                "pipeline_name": run.pipeline,
                "logical_run": run.logical_run,
                "run_id": run.run_id,
                "applied_at": now,
                "metrics_json": metrics,
            },
        )
        if run.batch is None:
            self._update(
                db,
                "run_history",
                {
                    "status": "success",
                    "path": path,
                    "finished_at": now,
                    "rows_inserted": report.inserted,
                    "rows_updated": changed,
                    "rows_unchanged": unchanged,
                    "metrics_json": metrics,
                },
                f"run_id = {self._text(run.run_id)}",
            )
        else:
            counts = {"rows_inserted": report.inserted, "rows_updated": changed, "rows_unchanged": unchanged}
            sums = [f"{column} = coalesce({column}, 0) + {number}" for column, number in counts.items()]
            db.execute(
                f"UPDATE {self.table('run_history')} SET {', '.join(sums)} WHERE run_id = {self._text(run.opened_id)}"
            )
        db.execute(
            f"UPDATE {self.table('ledger')} SET generation = generation + 1, "
            f"settled_at = {self.dialect.literal(now, TimestampTZ())} "
            f"WHERE pipeline_name = {self._text(run.pipeline)}"
        )

    def close(self, db: Db, run: OpenedRun, *, error: str | None, now: datetime) -> None:
        """The run is over: nothing of it is left to repeat."""
        if error is not None:
            self._update(
                db,
                "run_history",
                {"status": "failed", "finished_at": now, "error_message": _keepable(error)},
                f"run_id = {self._text(run.run_id)}",
            )
        elif run.logical_run == STREAM:
            self._update(
                db, "run_history", {"status": "success", "finished_at": now}, f"run_id = {self._text(run.run_id)}"
            )
        elif run.applied is not None:
            self._update(
                db,
                "run_history",
                {"status": "success", "finished_at": now, "rows_inserted": 0, "rows_updated": 0},
                f"run_id = {self._text(run.run_id)}",
            )
        self._update(
            db,
            "ledger",
            {"open_logical_run": None, "open_run_id": None},
            f"pipeline_name = {self._text(run.pipeline)} AND open_run_id = {self._text(run.run_id)}",
        )

    def record_step(
        self,
        db: Db,
        run: OpenedRun,
        step_id: str,
        step: str,
        *,
        error: str | None,
        metrics: Any,
        started: datetime,
        now: datetime,
    ) -> None:
        """One after-load transform in the history."""
        self._insert(
            db,
            "run_history",
            {
                "run_id": step_id,
                "pipeline_name": run.pipeline,
                "mode": "transform",
                "path": "post",
                "started_at": started,
                "finished_at": now,
                "status": "transform_failed" if error else "transform_success",
                "error_message": _keepable(error) if error else None,
                "parent_run_id": run.run_id,
                "step_name": step,
                "metrics_json": None if metrics is None else json.dumps(metrics, default=str),
            },
        )

    def _insert(self, db: Db, table: str, values: Mapping[str, Any]) -> None:
        rendered = ", ".join(self._literal(table, column, value) for column, value in values.items())
        db.execute(f"INSERT INTO {self.table(table)} ({self.dialect.columns(tuple(values))}) VALUES ({rendered})")

    def _update(self, db: Db, table: str, values: Mapping[str, Any], condition: str) -> None:
        changes = ", ".join(
            f"{self.dialect.quote(column)} = {self._literal(table, column, value)}" for column, value in values.items()
        )
        db.execute(f"UPDATE {self.table(table)} SET {changes} WHERE {condition}")

    def _literal(self, table: str, column: str, value: Any) -> str:
        return "NULL" if value is None else self.dialect.literal(value, dict(_TABLES[table])[column])

    def _text(self, value: str) -> str:
        return self.dialect.literal(value, Text())


def _keepable(error: str) -> str:
    """An error as it may be stored: without secrets, and without the one character that databases refuse in text."""
    return scrub(error).replace("\x00", "\\x00")


def _instant(stored: Any) -> datetime | None:
    """An instant as a driver gives it back: a datetime, which MySQL's says nothing of its zone, or SQLite's text."""
    if stored is None:
        return None
    if isinstance(stored, datetime):
        return stored if stored.tzinfo is not None else stored.replace(tzinfo=timezone.utc)
    return time_of(str(stored))


def _type_of(live: TableShape, name: str) -> ColumnType | None:
    shape = live.column(name)
    return shape.type if shape else None
