"""Every type with its extremes, from every system to every other: the same values arrive, or one clear error.

Sources are filled by hand and targets read back by hand, so a mistake cannot hide by being made twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

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
from ematix_flow.declare.columns import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    ColumnType,
    Date,
    Double,
    Float,
    Numeric,
    Text,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import InvalidPlan, UnfitValue
from ematix_flow.testing.bench import Bench, Table
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, MysqlEndpoint, Row, SqlEndpoint, SqliteEndpoint
from ematix_flow.testing.lake_endpoints import DeltaEndpoint, IcebergEndpoint
from ematix_flow.testing.registry import isolated_registry
from tests.backends.type_values import COLUMNS, REFUSED, UNSIGNED_ZERO, Typed, exact, rows_for

System = Literal["PostgreSQL", "MySQL", "SQLite", "DuckDB", "Parquet", "CSV", "JSON lines", "ORC", "Delta", "Iceberg"]
Places = Callable[[System], Endpoint]
MAIN: tuple[System, ...] = ("PostgreSQL", "MySQL", "SQLite", "DuckDB", "Parquet")
BETWEEN: tuple[System, ...] = ("CSV", "JSON lines", "ORC", "Delta", "Iceberg")

pytestmark = pytest.mark.xdist_group("types")  # all loads share one Spark session


class SqlitePlace(SqliteEndpoint):
    """SQLite, with texts that hold a NUL written as their bytes."""

    def value_sql(self, value: Any, kind: ColumnType) -> str:
        if isinstance(value, str) and "\x00" in value:
            return f"CAST(X'{value.encode().hex()}' AS TEXT)"
        return super().value_sql(value, kind)


class DuckdbPlace(SqlEndpoint):
    """DuckDB, with texts that hold a NUL written as their bytes."""

    def value_sql(self, value: Any, kind: ColumnType) -> str:
        if isinstance(value, str) and "\x00" in value:
            return " || ".join(f"'{part}'" for part in value.split("\x00")).replace(" || ", " || chr(0) || ")
        return super().value_sql(value, kind)


@pytest.fixture
def places(tmp_project: Path, request: pytest.FixtureRequest) -> Iterator[Places]:
    """Systems by name, each made when it is first asked for and empty then."""
    known: dict[System, Endpoint] = {}

    def made(system: System) -> Endpoint:
        if system == "PostgreSQL":
            url = request.getfixturevalue("pg_url")
            return SqlEndpoint(PostgresConnection(name="pg", url=url), "types")
        if system == "MySQL":
            return MysqlEndpoint(MySQLConnection(name="my", url=request.getfixturevalue("mysql_url")), "types")
        if system == "SQLite":
            return SqlitePlace(SQLiteConnection(name="till", path=str(tmp_project / "till.db")), "main")
        if system == "DuckDB":
            return DuckdbPlace(DuckDBConnection(name="duck", path=str(tmp_project / "duck.duckdb")), "types")
        if system == "Delta":
            return DeltaEndpoint(DeltaLocalConnection(name="delta", path=str(tmp_project / "delta")), "types")
        if system == "Iceberg":
            lake = IcebergConnection(name="iceberg", warehouse=str(tmp_project / "iceberg"))
            return IcebergEndpoint(lake, "types")
        word = system.lower().replace(" ", "_")
        return FilesEndpoint(
            ObjectStoreLocalConnection(name=word, path=str(tmp_project / word), format=word), schema="types"
        )

    def place(system: System) -> Endpoint:
        if system not in known:
            known[system] = made(system)
        return known[system]

    with isolated_registry():
        yield place


def typed_table(bench: Bench, name: str) -> Table:
    """A table with a nullable column of every type, and the number of the row."""
    return bench.table(name, {"n": BigInt, **{column: typed.declared | None for column, typed in COLUMNS.items()}})


def load(source: Endpoint, target: Endpoint, from_table: str, name: str) -> None:
    """Append one table to a new one in another system, through Spark."""
    bench = Bench(target, source)
    table = typed_table(bench, name)
    from_name = f"{source.schema}.{from_table}"
    bench.pipeline(table, route="spark", mode="append", name=f"{name}_types", source_table=from_name).sync()


def fill(place: Endpoint, rows: list[Row]) -> None:
    """Make the table 'given' by hand, with just these rows."""
    columns = [ColumnSpec("n", BigInt()), *(ColumnSpec(name, typed.source_type) for name, typed in COLUMNS.items())]
    place.put("given", columns, rows)


def stored(place: Endpoint, name: str) -> dict[int, dict[str, Any]]:
    """A table as it is: row → column → value in its exact form."""
    as_text = (JSON, JSONB)
    plain = {column: typed.type for column, typed in COLUMNS.items() if not isinstance(typed.type, as_text)}
    found = {
        row[0]: {column: exact(value, plain[column]) for column, value in zip(plain, row[1:], strict=True)}
        for row in place.rows(name, [ColumnSpec("n", BigInt()), *(ColumnSpec(c, kind) for c, kind in plain.items())])
    }
    for column, typed in COLUMNS.items():
        if isinstance(typed.type, as_text):
            for number, text in documents(place, name, column):
                found[number][column] = exact(text, typed.type)
    return found


def documents(place: Endpoint, name: str, column: str) -> list[Row]:
    """The documents of a column, as text."""
    if isinstance(place, SqlEndpoint):
        wanted = "CHAR" if isinstance(place, MysqlEndpoint) else "TEXT"
        return place.query(f"SELECT n, CAST({column} AS {wanted}) FROM {place.sql_name(name)}")
    return place.rows(name, [ColumnSpec("n", BigInt()), ColumnSpec(column, Text())])


def expected(rows: list[Row]) -> dict[int, dict[str, Any]]:
    """What `stored` must give."""
    return {
        row[0]: {
            column: exact(typed.arrived(value), typed.type)
            for (column, typed), value in zip(COLUMNS.items(), row[1:], strict=True)
        }
        for row in rows
    }


def differences(found: Mapping[int, Mapping[str, Any]], wanted: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Where two tables differ, each place in a line that is not too long."""
    told = (
        [f"rows {sorted(found.keys() ^ wanted.keys())} are not on both sides"] if found.keys() != wanted.keys() else []
    )
    for number in found.keys() & wanted.keys():
        for column, value in wanted[number].items():
            other = found[number][column]
            if other != value:
                told.append(f"row {number}, {column}: {other!r:.80} instead of {value!r:.80}")
    return told


@pytest.mark.parametrize("source", MAIN)
def test_every_value_arrives_from_this_system_in_every_other(source: System, places: Places) -> None:
    wrong = []
    for target in [system for system in MAIN if system != source]:
        rows = rows_for(source, target)
        fill(places(source), rows)
        load(places(source), places(target), "given", "arrived")
        told = differences(stored(places(target), "arrived"), expected(rows))
        wrong += [f"{source} → {target}: {line}" for line in told]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("format_", BETWEEN)
def test_every_value_goes_into_tables_of_this_format_and_from_there_into_every_system(
    format_: System, places: Places
) -> None:
    parquet, files = places("Parquet"), places(format_)
    wrong = []
    for targets in (("DuckDB", "Parquet"), ("PostgreSQL", "MySQL", "SQLite")):
        rows = rows_for(format_, *targets)
        name = f"kept_{targets[0].lower()}"
        fill(parquet, rows)
        load(parquet, files, "given", name)
        # Spark writes ORC's old dates in the calendar of their time; only readers that know of it give them back.
        if format_ != "ORC":
            wrong += [f"Parquet → {format_}: {line}" for line in differences(stored(files, name), expected(rows))]
        for target in targets:
            load(files, places(target), name, "arrived")
            told = differences(stored(places(target), "arrived"), expected(rows))
            wrong += [f"{format_} → {target}: {line}" for line in told]
    assert not wrong, "\n".join(wrong)


def test_every_value_goes_from_one_kind_of_lake_table_to_the_other_and_back(places: Places) -> None:
    way: tuple[System, ...] = ("Parquet", "Delta", "Iceberg", "Delta")
    rows = rows_for(*way)
    fill(places("Parquet"), rows)
    before = "given"
    for number, (source, target) in enumerate(itertools.pairwise(way), start=1):
        load(places(source), places(target), before, f"stop_{number}")
        before = f"stop_{number}"
        assert not differences(stored(places(target), before), expected(rows)), f"{source} → {target}"


def test_a_table_that_went_through_every_system_comes_back_as_it_was(places: Places) -> None:
    way: tuple[System, ...] = ("PostgreSQL", "MySQL", "DuckDB", "SQLite", "Parquet", "PostgreSQL")
    rows = rows_for(*way)
    fill(places("PostgreSQL"), rows)
    before = "given"
    for number, (source, target) in enumerate(itertools.pairwise(way), start=1):
        load(places(source), places(target), before, f"stop_{number}")
        before = f"stop_{number}"
    assert not differences(stored(places("PostgreSQL"), before), expected(rows))


@pytest.mark.parametrize("system", [system for system, refused in REFUSED.items() if refused])
def test_a_value_that_a_system_has_no_place_for_is_one_clear_error(system: System, places: Places) -> None:
    columns = {kind: column_with(kind, value) for kind, value in REFUSED[system]}
    bench = Bench(places(system), places("Parquet"))
    table = bench.table("arrived", {"n": BigInt, **{kind: typed.declared | None for kind, typed in columns.items()}})
    given = {"n": BigInt(), **{kind: typed.source_type for kind, typed in columns.items()}}
    nothing = (None,) * len(columns)
    bench.load(table, [(1, *nothing)], route="spark", mode="append", columns=given)
    known = [ColumnSpec("n", BigInt()), ColumnSpec("_batch_id", UUID())]
    before = bench.target.rows("arrived", known)
    for kind, value in sorted(REFUSED[system], key=repr):
        real = math.nan if value == "nan" else value
        bad = tuple(real if other == kind else None for other in columns)
        with pytest.raises(UnfitValue) as caught:
            bench.load(table, [(2, *nothing), (3, *bad)], route="spark", mode="append", columns=given)
        assert f"'{kind}'" in caught.value.message and caught.value.fix, caught.value
        assert not isinstance(value, str) or value == "nan" or value not in str(caught.value), caught.value
    assert bench.target.rows("arrived", known) == before
    assert not bench.target.strays("arrived")


def column_with(kind: str, value: Any) -> Typed:
    """The column of this kind of type that has the value; NaN is written `"nan"`."""
    real = (lambda v: isinstance(v, float) and math.isnan(v)) if value == "nan" else (lambda v: v == value)
    return next(typed for typed in COLUMNS.values() if typed.type.kind == kind and any(map(real, typed.values)))


@pytest.mark.parametrize("system", sorted(UNSIGNED_ZERO))
def test_a_negative_zero_is_kept_as_zero_where_the_system_has_only_one(system: System, places: Places) -> None:
    bench = Bench(places(system), places("Parquet"))
    zeros = bench.table("zeros", a=Float, b=Double)
    bench.load(zeros, [(-0.0, -0.0)], route="spark", mode="append")
    assert [tuple(map(float.hex, row)) for row in bench.rows(zeros)] == [((0.0).hex(), (0.0).hex())]


FAR = {
    Date: ["'-infinity'", "'infinity'", "'0001-12-31 BC'", "'10000-01-01'", "'5874897-12-31'"],
    Timestamp: ["'infinity'", "'0001-12-31 23:59:59.999999 BC'", "'294276-12-31 23:59:59'"],
    TimestampTZ: ["'-infinity'", "'0001-12-31 23:59:59.999999+00 BC'", "'10000-01-01 00:00:00+00'"],
}


@pytest.mark.parametrize("kind", FAR)
def test_a_time_that_not_every_system_knows_is_refused_on_the_way_and_kept_within_one(
    kind: type[ColumnType], places: Places
) -> None:
    postgres = places("PostgreSQL")
    assert isinstance(postgres, SqlEndpoint)
    bench, home = Bench(places("Parquet"), postgres), Bench(postgres, postgres)
    native = postgres.dialect.type_sql(kind())
    postgres.execute(f"CREATE SCHEMA types; CREATE TABLE types.src_far (v {native})")
    for text in FAR[kind]:
        postgres.execute(f"DELETE FROM types.src_far; INSERT INTO types.src_far VALUES ({text})")
        with pytest.raises(UnfitValue, match="'v'.*years 1 to 9999"):
            bench.pipeline(bench.table("far", v=kind), route="spark", mode="append").sync()
        home.pipeline(home.table("far", v=kind), route="pushdown", mode="truncate").sync()
        assert postgres.query("SELECT count(*) FROM types.far JOIN types.src_far USING (v)") == [(1,)]
    assert bench.target.shape("far") is None


@pytest.mark.parametrize("system", MAIN)
def test_a_decimal_that_spark_cannot_hold_is_refused_before_anything_moves(system: System, places: Places) -> None:
    bench = Bench(places(system), places("Parquet" if system != "Parquet" else "SQLite"))
    wide = bench.table("wide", v=Numeric[39, 2])
    bench.put(wide, [(1,)], route="spark", columns={"v": BigInt()})
    with pytest.raises(InvalidPlan, match="38"):
        bench.pipeline(wide, route="spark", mode="append").sync()
    assert bench.target.shape("wide") is None
