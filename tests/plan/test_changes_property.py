"""The one-statement modes of lake tables against the models: the same stories, told to a database that knows MERGE.

DuckDB stands for Spark here: the statements are those of `plan/changes.py`, and hundreds of stories take seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given

from ematix_flow.backends.duckdb_dialect import DuckdbDialect
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.contracts.dialect import LANDED, SCRATCH, TOUCHED
from ematix_flow.contracts.plans import ChangeSet, SettleReport, SourceQuery, Stamp
from ematix_flow.declare.connection import DuckDBConnection
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.plan.batch import plan_load
from ematix_flow.run.places import opened
from tests.plan import test_history_property as histories, test_merge_property as merges
from tests.plan.loading import SOURCE, Db, Loaded, Row, database, minute

EXAMPLES = 1000 if os.environ.get("EMATIX_PROVE") else 60


class OneStatement(DuckdbDialect):
    """DuckDB as if it knew no transactions and no keys."""

    keeps_keys = False
    commits_each_statement = True

    def only_while(self, condition: str) -> str | None:
        return f"CASE WHEN {condition} THEN TRUE ELSE error('stopped, and nobody else was there') END"


class OneStatementDb(Db):
    """A database that is changed by one statement per load."""

    def load(self, spec: PipelineSpec, rows: Sequence[Row], *, now: int, run_id: str = "", **how: Any) -> Loaded:
        self.put(spec, rows, retracts="retracts" in how)
        stamp = Stamp(run_id or str(uuid4()), minute(now))
        with opened(spec, spec.target) as places:
            backend = places.target
            assert isinstance(backend, SqlBackend)
            source = places.source_side(SourceQuery(sql=f"SELECT * FROM {SOURCE}"))
            side = replace(places.target_side(spec.target), dialect=OneStatement(""))
            plan = plan_load(spec, spec.target, source, side, stamp=stamp, stored_mark=None, **how)
            assert plan.changes is not None and plan.landing_sql is not None
            with backend.transaction() as db:
                for statement in plan.ddl.statements:
                    db.execute(statement.sql)
                db.execute(self.dialect.create_landed(LANDED, plan.landing_sql))
                landed, _ = backend.verified(db, plan, None)
                report = self.changed(db, plan.changes, landed, is_new=plan.ddl.action == "create")
                for relation in (LANDED, TOUCHED, SCRATCH):
                    db.execute(f"DROP TABLE IF EXISTS {self.dialect.quote(relation)}")
        return Loaded(stamp.run_id, report)

    def changed(self, db: Any, changes: ChangeSet, landed: int, *, is_new: bool) -> SettleReport:
        """Do what the changes say, and count it."""
        if is_new and changes.fill is not None:
            db.execute(changes.fill.sql)
            return SettleReport(landed, landed)
        if changes.touched is not None:
            db.execute(self.dialect.create_scratch(TOUCHED, changes.touched.sql, ()))
        db.execute(self.dialect.create_scratch(SCRATCH, changes.query.sql, ()))
        changed, *counts = db.execute(changes.counts).fetchone()
        report = SettleReport(landed, *map(int, counts))
        statement = changes.least(changed, report)
        if statement is not None:
            db.execute(statement.sql)
        return report


@pytest.fixture
def one_statement_db() -> Iterator[Db]:
    with database(DuckDBConnection(name="store", path=":memory:"), schema="main") as db:
        yield OneStatementDb(db.connection, db.schema, db.backend, db.own)


@histories.prove(EXAMPLES)
@given(story=histories.stories())
def test_histories_by_one_statement_are_those_of_the_model(one_statement_db: Db, story: Any) -> None:
    histories.run(one_statement_db, replace(story, exact=False))


@merges.prove(EXAMPLES)
@given(story=merges.stories())
def test_merges_by_one_statement_are_those_of_the_model(one_statement_db: Db, story: Any) -> None:
    merges.run(one_statement_db, story)
