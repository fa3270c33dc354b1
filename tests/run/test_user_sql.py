"""SQL that the user writes in markers runs in the source, pushed down when source and target are one database."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from ematix_flow import Annotated, BigInt, PostgresConnection, Text, ematix, pk
from ematix_flow.errors import StatementFailed
from ematix_flow.normalize import derive, lower, sql, trim, upper
from ematix_flow.testing.registry import isolated_registry


@ematix.table(schema="analytics")
class Person:
    id: Annotated[BigInt, pk()]
    full: Annotated[Text, derive("first || ' ' || last"), trim(), lower()]
    doubled: Annotated[BigInt, derive("points * 2")]
    initial: Annotated[Text, trim(), sql("substr(col, 1, 1)"), upper()]


@ematix.table(schema="analytics")
class Wrong:
    id: Annotated[BigInt, pk()]
    odd: Annotated[Text, derive("no_such_column || 'x'")]


@pytest.fixture
def warehouse(tmp_project: Path, pg_url: str) -> PostgresConnection:
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("CREATE TABLE people (id int, first text, last text, points int)")
        db.execute("INSERT INTO people VALUES (1, ' Ada', 'Lovelace ', 5), (2, 'grace', 'Hopper', 7)")
    return PostgresConnection(name="warehouse", url=pg_url)


def test_derived_and_sql_columns_are_pushed_down(warehouse: PostgresConnection, pg_url: str) -> None:
    with isolated_registry():

        @ematix.pipeline(target=Person, target_connection=warehouse, mode="merge", column_map={"initial": "first"})
        def load(conn: object) -> str:
            return "SELECT * FROM people"

        assert load.sync().path == "same_db"
    with psycopg.connect(pg_url) as db:
        rows = db.execute('SELECT id, "full", doubled, initial FROM analytics.person ORDER BY id').fetchall()
    assert rows == [(1, "ada lovelace", 10, "A"), (2, "grace hopper", 14, "G")]


def test_wrong_sql_in_a_marker_is_one_clear_error(warehouse: PostgresConnection, pg_url: str) -> None:
    with isolated_registry():

        @ematix.pipeline(target=Wrong, target_connection=warehouse, mode="append")
        def load(conn: object) -> str:
            return "SELECT * FROM people"

        with pytest.raises(StatementFailed, match="no_such_column"):
            load.sync()
    with psycopg.connect(pg_url) as db:
        assert db.execute("SELECT to_regclass('analytics.wrong')").fetchone() == (None,)
