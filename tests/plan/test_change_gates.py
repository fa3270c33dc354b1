"""The table in which change feeds remember what they applied, when it is there already."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ematix_flow.contracts.change_feeds import GATE
from ematix_flow.errors import IncompatibleSchema
from tests.plan.loading import Db


@pytest.fixture(params=["sqlite_db", "postgres_db", "mysql_db", "duckdb_db"])
def db(request: pytest.FixtureRequest) -> Iterator[Db]:
    found: Db = request.getfixturevalue(request.param)
    found.backend.ensure_books()
    yield found
    found.own.execute(f"DROP TABLE IF EXISTS {gate_of(found)}")


def gate_of(db: Db) -> str:
    return db.dialect.table(db.dialect.bookkeeping(GATE))


def make(db: Db, columns: str) -> None:
    db.own.execute(f"DROP TABLE IF EXISTS {gate_of(db)}")
    db.own.execute(f"CREATE TABLE {gate_of(db)} ({columns}, PRIMARY KEY (pipeline_name, pk_json))")


def test_one_of_an_older_version_gets_the_columns_that_it_lacks_and_keeps_its_rows(db: Db) -> None:
    make(db, "pipeline_name varchar(255), pk_json varchar(500), last_seen_ts_ms bigint, updated_at varchar(30)")
    db.own.execute(f"INSERT INTO {gate_of(db)} VALUES ('mirror', '{{}}', 5, NULL)")
    for _ in range(2):
        db.backend.ensure_gate()
        found = db.own.execute(f"SELECT last_seen_ts_ms, position, arrived, is_row FROM {gate_of(db)}").fetchall()
        assert [tuple(row) for row in found] == [(5, None, None, None)]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("pipeline_name varchar(255), pk_json varchar(99), note bigint", "'last_seen_ts_ms'"),
        ("pipeline_name varchar(255), pk_json bigint, last_seen_ts_ms bigint", "'pk_json'"),
    ],
)
def test_one_that_was_not_made_for_this_is_refused(db: Db, columns: str, named: str) -> None:
    make(db, columns)
    with pytest.raises(IncompatibleSchema, match=f"{GATE}.* was not made for that: see {named}"):
        db.backend.ensure_gate()
