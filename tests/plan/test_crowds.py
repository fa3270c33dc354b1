"""merge and scd2 through Spark against their models: the lives of many keys at once, into every system.

A load through Spark takes seconds, so there are few of them here, and each brings a batch of forty keys, of which every
one has a life of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ematix_flow.connections import (
    DeltaLocalConnection,
    DuckDBConnection,
    IcebergConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
)
from ematix_flow.contracts.backend import KeepsBooks
from ematix_flow.contracts.plans import SettleReport, SourceQuery
from ematix_flow.contracts.runtime import SilentObserver
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.columns import TimestampTZ
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.table import ColumnSpec, TableSpec
from ematix_flow.declare.target import TargetSpec, check_target
from ematix_flow.plan.history import events_table
from ematix_flow.plan.physical import events_columns, physical_columns
from ematix_flow.run import loads
from ematix_flow.run.places import opened
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, MysqlEndpoint, SqlEndpoint, SqliteEndpoint
from ematix_flow.testing.lake_endpoints import DeltaEndpoint, IcebergEndpoint
from ematix_flow.testing.spark import settings
from tests.plan import test_history_property as histories, test_merge_property as merges
from tests.plan.loading import DAWN, SOURCE, Loaded, minute

IS_PROOF = bool(os.environ.get("EMATIX_PROVE"))
KEYS = [(number // 4, ("x", "y", "", "z")[number % 4]) for number in range(40)]
LAKES = ("delta", "iceberg")
SYSTEMS = (*LAKES, "postgres", "mysql", "sqlite", "duckdb") if IS_PROOF else ("delta", "postgres")
SEEDS = range(8) if IS_PROOF else range(1)


class ThroughSpark:
    """A system that is loaded from files through Spark, by whole runs, with the clock in the test's hand."""

    def __init__(self, target: Endpoint, source: FilesEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        self.target, self.source, self.monkeypatch = target, source, monkeypatch

    def spec(self, columns: Sequence[ColumnSpec], **options: Any) -> PipelineSpec:
        """A pipeline from the files into a table of these columns."""
        table = TableSpec(self.target.schema, "t", tuple(columns))
        target = check_target(TargetSpec(table=table, connection=self.target.connection, **options))
        return PipelineSpec(
            name="load_t",
            function=lambda: None,
            parameters=0,
            targets=(target,),
            is_fan_out=False,
            where=SourceLocation(file="<test>", line=1),
            source_connection=self.source.connection,
            source_table=f"{self.source.schema}.{SOURCE}",
            mover=settings().engine,
        )

    def forget(self, spec: PipelineSpec) -> None:
        """Nothing is there yet."""

    def load(self, spec: PipelineSpec, rows: Sequence[Mapping[str, Any]], *, now: int, run_id: str) -> Loaded:
        """Load these rows at this moment."""
        columns = spec.target.table.columns
        self.source.put(SOURCE, columns, [tuple(_value(row[c.name], c) for c in columns) for row in rows])
        self.monkeypatch.setattr(loads, "now", lambda: minute(now))
        with opened(spec, spec.target) as places:
            books = places.target
            assert isinstance(books, KeepsBooks)
            query = SourceQuery(table=TableRef(self.source.schema, SOURCE))
            with books.lease(spec.name):
                result, run = loads.load_target(
                    spec, spec.target, places, query, run_id=run_id, logical_run=None, observer=SilentObserver()
                )
                books.close_run(run, error=None, now=minute(now))
        assert result.path == "cross_db", "this is about the way through Spark"
        counts = {name: getattr(result, f"rows_{name}", 0) for name in ("inserted", "updated", "closed", "deleted")}
        report = SettleReport(rows=len(rows), **counts)
        return Loaded(run_id, report)

    def stored(self, spec: PipelineSpec) -> list[dict[str, Any]]:
        """The whole target table, bookkeeping columns included."""
        return self._read(spec, "t", physical_columns(spec.target))

    def remembered(self, spec: PipelineSpec) -> list[dict[str, Any]]:
        """The companion table of `exact_history`."""
        name = events_table(TableRef(self.target.schema, "t")).name
        return self._read(spec, name, events_columns(spec.target))

    def _read(self, spec: PipelineSpec, name: str, columns: Sequence[ColumnSpec]) -> list[dict[str, Any]]:
        found = [
            {column.name: _plain(value) for column, value in zip(columns, row, strict=True)}
            for row in self.target.rows(name, columns)
        ]
        order = (*spec.target.resolved_keys()[0], "valid_from", "event_at")
        return sorted(found, key=lambda row: [row[name] for name in order if name in row])


def _value(value: Any, column: ColumnSpec) -> Any:
    return minute(value) if isinstance(column.type, TimestampTZ) and value is not None else value


def _plain(value: Any) -> Any:
    return int((value - DAWN).total_seconds() // 60) if isinstance(value, datetime) else value


@pytest.fixture(params=SYSTEMS)
def through_spark(request: pytest.FixtureRequest, tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> ThroughSpark:
    """One of the systems, empty."""
    return ThroughSpark(_endpoint(request.param, request, tmp_project), _files(tmp_project), monkeypatch)


def _files(project: Path) -> FilesEndpoint:
    return FilesEndpoint(ObjectStoreLocalConnection(name="inbox", path=str(project / "inbox"), format="parquet"))


def _endpoint(system: str, request: pytest.FixtureRequest, project: Path) -> Endpoint:
    if system == "delta":
        return DeltaEndpoint(DeltaLocalConnection(name="lake", path=str(project / "lake")), "analytics")
    if system == "iceberg":
        return IcebergEndpoint(IcebergConnection(name="lake", warehouse=str(project / "lake")), "analytics")
    if system == "sqlite":
        return SqliteEndpoint(SQLiteConnection(name="store", path=str(project / "store.db")), "main")
    if system == "duckdb":
        return SqlEndpoint(DuckDBConnection(name="store", path=str(project / "store.duckdb")), "analytics")
    if system == "mysql":
        return MysqlEndpoint(MySQLConnection(name="store", url=request.getfixturevalue("mysql_url")), "analytics")
    assert system == "postgres"
    return SqlEndpoint(PostgresConnection(name="store", url=request.getfixturevalue("pg_url")), "analytics")


def history_of_a_crowd(seed: int, *, exact: bool) -> histories.Story:
    """Every key comes, changes, stays away and returns by itself; nothing that would be refused."""
    chance = Random(seed)
    event_time = ("at", None)[seed % 2]
    now, batches = 4, []
    for _ in range(4):
        rows = {}
        for a, b in KEYS:
            for _ in range(chance.choice([0, 0, 1, 1, 1, 2] if event_time else [0, 1, 1])):
                at = chance.randint(0, 12)
                row = {"v": chance.choice([None, "", "p", "q"]), "w": chance.choice([None, 1])}
                rows[a, b, at if event_time else 0] = {"a": a, "b": b, **row, "at": at}
        batches.append((now, list(rows.values())))
        now += chance.choice([1, 2, 3])
    batches.append((now, batches[0][1]))  # the first one comes again
    return histories.Story(
        event_time=event_time,
        compare_columns=chance.choice([None, ("v",), ("v", "w")]),
        soft_deletes=chance.random() < 0.5,
        ttl=chance.choice([None, 3]),
        refuse_late=False,
        exact=exact,
        batches=tuple(batches),
    )


def merge_of_a_crowd(seed: int) -> merges.Story:
    """Every key comes, changes and stays away by itself."""
    chance = Random(seed)
    batches = [
        [
            {"a": a, "b": b, "v": chance.choice([None, "", "p"]), "w": chance.choice([None, 0, 1])}
            for a, b in KEYS
            if chance.random() < 0.7
        ]
        for _ in range(3)
    ]
    return merges.Story(
        mode="merge",
        update_columns=chance.choice([None, None, ("v",), ()]),
        compare_columns=chance.choice([None, None, ("w", "v")]),
        hard_deletes=seed % 2 == 1,
        allow_empty_source=False,
        batches=(*batches, batches[1]),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_the_histories_of_a_crowd_are_those_of_the_model(through_spark: Any, seed: int) -> None:
    is_lake = through_spark.target.connection.kind in ("delta_local", "iceberg")
    histories.run(through_spark, history_of_a_crowd(seed, exact=seed % 3 == 2 and not is_lake))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_merges_of_a_crowd_are_those_of_the_model(through_spark: Any, seed: int) -> None:
    merges.run(through_spark, merge_of_a_crowd(seed))
