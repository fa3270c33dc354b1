"""Merges that also take rows back, by keys that may be NULL: random batches against a dictionary, on every database."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import given, strategies as st

from ematix_flow.contracts.streams import RETRACTED
from ematix_flow.declare.columns import BigInt, String
from ematix_flow.declare.table import ColumnSpec
from tests.plan.loading import Db
from tests.plan.test_changes_property import one_statement_db as one_statement_db
from tests.plan.test_merge_property import prove

PROVES = bool(os.environ.get("EMATIX_PROVE"))
COLUMNS = (
    ColumnSpec("start", BigInt()),
    ColumnSpec("user", String(40), nullable=True),
    ColumnSpec("place", BigInt(), nullable=True),
    ColumnSpec("n", BigInt(), nullable=False),
)
Key = tuple[int, str | None, int | None]
Batch = dict[Key, tuple[int, int]]
"""What comes for a key: whether its row goes, and its number."""

keys = st.tuples(st.integers(1, 2), st.sampled_from(["a", "", None]), st.sampled_from([0, None]))
batches = st.dictionaries(keys, st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=5)
stories = st.lists(batches, min_size=1, max_size=5)


def run(db: Db, story: list[Batch]) -> None:
    """Tell the story to a dictionary and to the database; they must agree after every batch, in rows and in counts."""
    spec = db.spec(COLUMNS, mode="merge", keys=("user", "start", "place"), stamped=False, allow_empty_source=True)
    db.forget(spec)
    kept: dict[Key, int] = {}
    for number, batch in enumerate(story):
        gone = [key for key, (goes, _) in batch.items() if goes and key in kept]
        written = {key: n for key, (goes, n) in batch.items() if not goes}
        new = [key for key in written if key not in kept]
        changed = [key for key, n in written.items() if key in kept and kept[key] != n]
        kept = {key: n for key, n in {**kept, **written}.items() if key not in gone}
        rows = [
            {"start": start, "user": user, "place": place, "n": n, RETRACTED: goes}
            for (start, user, place), (goes, n) in batch.items()
        ]
        found = db.load(spec, rows, now=number, retracts=True, null_keys=("user", "place")).report
        assert (found.inserted, found.updated, found.deleted) == (len(new), len(changed), len(gone))
        assert stored(db, spec) == kept
    db.forget(spec)  # the next story has a source of the same columns


def stored(db: Db, spec: Any) -> dict[Key, int]:
    columns = db.dialect.columns(["start", "user", "place", "n"])
    found = db.own.execute(f"SELECT {columns} FROM {db.dialect.table(db._table(spec))}").fetchall()
    assert len({row[:3] for row in found}) == len(found)
    return {tuple(row[:3]): row[3] for row in found}


@prove(300 if PROVES else 60)
@given(story=stories)
def test_rows_go_and_stay_as_the_dictionary_says_on_sqlite(sqlite_db: Db, story: list[Batch]) -> None:
    run(sqlite_db, story)


@prove(200 if PROVES else 15)
@given(story=stories)
def test_the_same_on_duckdb(duckdb_db: Db, story: list[Batch]) -> None:
    run(duckdb_db, story)


@prove(200 if PROVES else 15)
@given(story=stories)
def test_the_same_by_one_statement(one_statement_db: Db, story: list[Batch]) -> None:
    run(one_statement_db, story)


@prove(100 if PROVES else 8)
@given(story=stories)
def test_the_same_on_postgres(postgres_db: Db, story: list[Batch]) -> None:
    run(postgres_db, story)


@prove(100 if PROVES else 8)
@given(story=stories)
def test_the_same_on_mysql(mysql_db: Db, story: list[Batch]) -> None:
    run(mysql_db, story)
