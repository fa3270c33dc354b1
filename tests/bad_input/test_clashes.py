"""Something else stands where the target should: it is left alone, and named."""

from __future__ import annotations

import pytest

from tests.bad_input.conftest import ROW_VALUE, Bench
from tests.bad_input.test_values import module


def refuse(bench: Bench, *says: str, mode: str = "append", age: str = "Integer | None") -> None:
    before = bench.picture()
    outcome = bench.run(module(bench, "auto", mode=mode, age=age))
    bench.refused(outcome, *says, code=1)
    assert bench.picture() == before
    bench.recorded_as_failed()


@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
def test_a_view_is_not_written_to(bench: Bench, mode: str) -> None:
    """PostgreSQL would pass the rows on to the table behind a simple view."""
    bench.execute(
        f"CREATE TABLE {bench.schema}.behind (id bigint PRIMARY KEY, name text, age integer)",
        f"INSERT INTO {bench.schema}.behind VALUES (9, '{ROW_VALUE}', 1)",
        f"CREATE VIEW {bench.schema}.kept AS SELECT * FROM {bench.schema}.behind",
    )
    refuse(bench, "kept", "view", mode=mode)


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        "CREATE MATERIALIZED VIEW analytics.kept AS SELECT 1 AS id",
        "CREATE SEQUENCE analytics.kept",
        "CREATE TABLE analytics.other (id bigint); CREATE INDEX kept ON analytics.other (id)",
        "CREATE TYPE analytics.kept AS (id bigint)",
        "CREATE TYPE analytics.kept AS ENUM ('a')",
    ],
    ids=["materialized view", "sequence", "index", "composite type", "enum"],
)
def test_a_name_that_something_else_has_is_refused_on_postgres(bench: Bench, statement: str) -> None:
    bench.execute(*statement.split("; "))
    refuse(bench, "kept")


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_name_that_an_index_has_is_refused_on_sqlite(bench: Bench) -> None:
    bench.execute("CREATE TABLE other (id bigint)", "CREATE INDEX kept ON other (id)")
    refuse(bench, "kept")


def test_columns_of_another_type_are_listed(bench: Bench) -> None:
    bench.execute(f"CREATE TABLE {bench.schema}.kept (id bigint PRIMARY KEY, name text, age date)")
    refuse(bench, "schema drift detected", "column 'age' is", "declared Integer")


def test_another_primary_key_is_named(bench: Bench) -> None:
    bench.execute(f"CREATE TABLE {bench.schema}.kept (id bigint, name text, age integer, PRIMARY KEY (name))")
    refuse(bench, "primary key is (name), declared (id)", mode="merge")


def test_a_column_that_needs_a_value_and_is_not_declared_is_named(bench: Bench) -> None:
    bench.execute(
        f"CREATE TABLE {bench.schema}.kept (id bigint PRIMARY KEY, name text, age integer, city text NOT NULL)"
    )
    refuse(bench, "column 'city' is in the table and not declared, and is NOT NULL without a default")


def test_a_new_column_that_needs_a_value_is_refused_when_there_are_rows(bench: Bench) -> None:
    bench.execute(
        f"CREATE TABLE {bench.schema}.kept (id bigint PRIMARY KEY, name text)",
        f"INSERT INTO {bench.schema}.kept VALUES (9, '{ROW_VALUE}')",
    )
    refuse(bench, "column 'age'", "NOT NULL and the table has rows", age="Integer")


def test_drift_is_an_error_when_asked_for(bench: Bench) -> None:
    bench.execute(f"CREATE TABLE {bench.schema}.kept (id bigint PRIMARY KEY, name text)")
    refuse(bench, "column 'age' (Integer) is declared and not in the table", mode='append", on_drift="error')


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_schema_that_sqlite_does_not_have_is_named(bench: Bench) -> None:
    before = bench.picture()
    outcome = bench.run(module(bench, "auto", schema="analytics"))
    bench.refused(outcome, "SQLite has no schema 'analytics'", code=1, fix='schema="main"')
    assert bench.picture() == before


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
def test_a_schema_that_belongs_to_somebody_else_is_refused(bench: Bench) -> None:
    bench.execute("CREATE SCHEMA locked", as_admin=True)
    before = bench.picture()
    outcome = bench.run(module(bench, "auto", schema="locked"))
    bench.refused(outcome, "permission denied", "locked", code=1)
    assert bench.picture() == before
    bench.recorded_as_failed()
