"""merge against its model: random batches, replays, every choice of written and compared columns, hard deletes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ematix_flow.declare.columns import BigInt, String, Text
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import DuplicateKeys, EmptySource, FlowError
from tests.plan.loading import Db
from tests.plan.models import Counts, MergeModel, Refused

COLUMNS = (
    ColumnSpec("a", BigInt(), primary_key=True),
    ColumnSpec("b", String(40), primary_key=True),
    ColumnSpec("v", Text(), nullable=True),
    ColumnSpec("w", BigInt(), nullable=True),
)
NAMES = tuple(column.name for column in COLUMNS)
ERRORS: dict[str, type[FlowError]] = {"duplicate_keys": DuplicateKeys, "empty_source": EmptySource}
some_columns = st.sampled_from([None, None, (), ("v",), ("w",), ("w", "v")])


def prove(examples: int) -> Callable[[Any], Any]:
    """Many examples, the same ones every time; each starts from an empty database of its own making."""
    return settings(
        max_examples=examples, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )


@dataclass(frozen=True)
class Story:
    """How a table is kept, and the batches that come in."""

    mode: str
    update_columns: tuple[str, ...] | None
    compare_columns: tuple[str, ...] | None
    hard_deletes: bool
    allow_empty_source: bool
    batches: tuple[list[dict[str, Any]], ...]

    def model(self) -> MergeModel:
        return MergeModel(
            keys=("a", "b"),
            columns=NAMES,
            update_columns=self.update_columns,
            compare_columns=self.compare_columns,
            hard_deletes=self.hard_deletes,
            allow_empty_source=self.allow_empty_source,
        )

    def spec(self, db: Db) -> PipelineSpec:
        return db.spec(
            COLUMNS,
            mode=self.mode,
            update_columns=self.update_columns,
            compare_columns=self.compare_columns,
            handle_deletes="hard" if self.hard_deletes else None,
            allow_empty_source=self.allow_empty_source,
        )


@st.composite
def row_lists(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A few rows, mostly one per key."""
    key = st.sampled_from([(1, "x"), (1, "y"), (2, "x"), (2, "")])
    values = st.tuples(key, st.sampled_from([None, "", "p"]), st.sampled_from([None, 0, 1]))
    size = draw(st.sampled_from([0, 1, 2, 3, 4]))
    rows = [{"a": a, "b": b, "v": v, "w": w} for (a, b), v, w in draw(st.lists(values, min_size=size, max_size=size))]
    if draw(st.integers(0, 9)) < 9:
        rows = list({(row["a"], row["b"]): row for row in rows}.values())
    return rows


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Batches, some of them replays of earlier ones."""
    batches: list[list[dict[str, Any]]] = []
    for _ in range(draw(st.integers(2, 5))):
        is_replay = batches and draw(st.integers(0, 3)) == 3
        batches.append(draw(st.sampled_from(batches)) if is_replay else draw(row_lists()))
    return Story(
        mode=draw(st.sampled_from(["merge", "scd1"])),
        update_columns=draw(some_columns),
        compare_columns=draw(some_columns),
        hard_deletes=draw(st.booleans()),
        allow_empty_source=draw(st.booleans()),
        batches=tuple(batches),
    )


def run(db: Db, story: Story) -> None:
    """Tell the story to the model and to the database; they must agree after every batch."""
    spec, model = story.spec(db), story.model()
    db.forget(spec)
    for number, rows in enumerate(story.batches, start=1):
        run_id = str(UUID(int=number))
        try:
            counts = model.load(rows, (number, run_id))
        except Refused as refusal:
            with pytest.raises(ERRORS[str(refusal)]):
                db.load(spec, rows, now=number, run_id=run_id)
        else:
            found = db.load(spec, rows, now=number, run_id=run_id).report
            assert Counts(found.inserted, found.updated, found.closed, found.deleted) == counts
            assert found.rows == len(rows)
        assert db.stored(spec) == expected(model)


def expected(model: MergeModel) -> list[dict[str, Any]]:
    """The model's table, row by row, as it must be stored."""
    rows = [{**kept.row, "_loaded_at": kept.stamp[0], "_batch_id": kept.stamp[1]} for kept in model.stored.values()]
    return sorted(rows, key=lambda row: (row["a"], row["b"]))


@prove(200)
@given(story=stories())
def test_merges_on_sqlite_are_those_of_the_model_after_every_batch(sqlite_db: Db, story: Story) -> None:
    run(sqlite_db, story)


@prove(20)
@given(story=stories())
def test_merges_on_postgres_are_those_of_the_model_after_every_batch(postgres_db: Db, story: Story) -> None:
    run(postgres_db, story)


@prove(150 if os.environ.get("EMATIX_PROVE") else 10)
@given(story=stories())
def test_merges_on_mysql_are_those_of_the_model_after_every_batch(mysql_db: Db, story: Story) -> None:
    run(mysql_db, story)


@prove(200 if os.environ.get("EMATIX_PROVE") else 20)
@given(story=stories())
def test_merges_on_duckdb_are_those_of_the_model_after_every_batch(duckdb_db: Db, story: Story) -> None:
    run(duckdb_db, story)
