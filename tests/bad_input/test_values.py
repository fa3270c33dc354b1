"""Values that do not fit their column: the whole load is refused, the table and its schema stay as they were."""

from __future__ import annotations

import pytest

from tests.bad_input.conftest import ROW_VALUE, Bench

TABLE = """
class Kept(ManagedTable):
    __schema__ = "{schema}"
    __tablename__ = "kept"
    id: Annotated[BigInt, pk()]
    name: {name}
    age: {age}

@ematix.pipeline(target=Kept, target_connection="warehouse", mode="{mode}", engine="{engine}")
def load(conn):
    return {source!r}
"""
ENGINES = ["pushdown", "spark"]


def module(bench: Bench, engine: str, **changes: str) -> str:
    """A load of `people` with one thing about it changed."""
    chosen = {
        "schema": bench.schema,
        "mode": "append",
        "engine": engine,
        "name": "Text | None",
        "age": "Integer | None",
        "source": f"SELECT id, name, age FROM {bench.raw}.people",
        **changes,
    }
    return TABLE.format(**chosen)


@pytest.fixture(params=["a table with rows", "no table"])
def table(request: pytest.FixtureRequest, bench: Bench) -> str:
    """A target that was loaded before, or one that is not there yet."""
    if request.param == "a table with rows":
        create = module(bench, "pushdown", source=f"SELECT id + 100 AS id, name, age FROM {bench.raw}.people")
        assert bench.run(create).code == 0
    found: str = request.param
    return found


def refuse(bench: Bench, text: str, *says: str, fix: str | None = "") -> None:
    """Run it; one error, the target as it was, the failure on record."""
    before = bench.picture()
    outcome = bench.run(text)
    bench.refused(outcome, *says, code=1, fix=fix)
    assert bench.picture() == before
    bench.recorded_as_failed()


@pytest.mark.parametrize("engine", ENGINES)
def test_text_that_is_too_long_names_column_and_length(bench: Bench, table: str, engine: str) -> None:
    name = "String[5] | None"
    text = module(bench, engine, name=name)
    if table == "a table with rows":
        bench.execute(f"DROP TABLE {bench.schema}.kept")
        assert bench.run(module(bench, "pushdown", name=name, source=short(bench))).code == 0
    refuse(bench, text, "'name'", "5", fix="String[n]" if engine == "pushdown" else None)


def short(bench: Bench) -> str:
    return f"SELECT id + 100 AS id, 'abc' AS name, age FROM {bench.raw}.people"


@pytest.mark.parametrize(
    ("engine", "number"), [("pushdown", 2**31), ("pushdown", -(2**31) - 1), ("pushdown", 2**62), ("spark", 2**31)]
)
def test_a_number_beyond_its_column_is_refused(bench: Bench, table: str, engine: str, number: int) -> None:
    source = f"SELECT id, name, CASE WHEN id = 1 THEN {number} ELSE age END AS age FROM {bench.raw}.people"
    bench.execute(f"CREATE VIEW {bench.raw}.large AS {source}")
    refuse(bench, module(bench, engine, source=f"SELECT id, name, age FROM {bench.raw}.large"), fix=None)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_value_in_a_column_that_needs_one_names_the_column(bench: Bench, table: str, engine: str) -> None:
    if table == "a table with rows":
        bench.execute(f"DROP TABLE {bench.schema}.kept")
        assert bench.run(module(bench, "pushdown", age="Integer", source=short(bench))).code == 0
    bench.execute(f"UPDATE {bench.raw}.people SET age = NULL WHERE id = 1")
    refuse(bench, module(bench, engine, age="Integer"), "'age'", "NOT NULL", fix=None)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_key_that_exists_already_is_refused_by_append(bench: Bench, engine: str) -> None:
    assert (
        bench.run(module(bench, "pushdown", source=f"SELECT id, 'old' AS name, age FROM {bench.raw}.people")).code == 0
    )
    refuse(bench, module(bench, engine), "[FLOW503]", fix="merge")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_key_twice_in_the_source_is_refused_by_append(bench: Bench, table: str, engine: str) -> None:
    bench.execute(f"UPDATE {bench.raw}.people SET id = 7")
    refuse(bench, module(bench, engine), "[FLOW503]")


@pytest.mark.parametrize("mode", ["merge", "scd2"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_key_twice_in_the_source_names_the_way_out(bench: Bench, engine: str, mode: str) -> None:
    bench.execute(f"UPDATE {bench.raw}.people SET id = 7")
    refuse(bench, module(bench, engine, mode=mode), "'id'", "[FLOW503]", fix="deduplicate_by")


@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd2"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_key_without_a_value_is_refused(bench: Bench, engine: str, mode: str) -> None:
    bench.execute(f"UPDATE {bench.raw}.people SET id = NULL WHERE id = 2")
    refuse(bench, module(bench, engine, mode=mode), "'id'", fix=None)


@pytest.mark.parametrize("mode", ["truncate", "merge", "scd2"])
def test_a_bad_value_leaves_the_rows_that_the_mode_would_have_replaced(bench: Bench, mode: str) -> None:
    assert bench.run(module(bench, "pushdown", mode=mode, name="String[30] | None")).code == 0
    bench.execute(f"UPDATE {bench.raw}.people SET name = '{ROW_VALUE * 3}', age = age + 1")
    refuse(bench, module(bench, "pushdown", mode=mode, name="String[30] | None"), "'name'", "30")


def test_a_bad_value_leaves_the_schema_that_was_about_to_change(bench: Bench) -> None:
    assert bench.run(module(bench, "pushdown", mode="merge")).code == 0
    changed = module(bench, "pushdown", mode="merge", age="Integer | None\n    city: String[3] | None")
    changed = changed.replace("SELECT id, name, age", "SELECT id, name, age, name AS city")
    refuse(bench, changed, "'city'", "3")


@pytest.mark.parametrize("engine", ENGINES)
def test_text_that_is_no_number_is_not_repeated(bench: Bench, engine: str) -> None:
    """The source's own cast fails while it is read."""
    source = f"SELECT id, name, CAST(name AS integer) AS age FROM {bench.raw}.people"
    if bench.kind == "sqlite":
        source = f"SELECT id, name, name AS age FROM {bench.raw}.people"
    refuse(bench, module(bench, engine, source=source), fix=None)


@pytest.mark.parametrize(
    "marker", ["parse_int(on_failure='error')", "parse_date(format='YYYY-MM-DD', on_failure='error')"]
)
def test_a_value_that_a_marker_cannot_read_is_not_repeated(bench: Bench, marker: str) -> None:
    kind = "BigInt" if "int" in marker else "Date"
    text = "from ematix_flow.normalize import *\n" + module(
        bench,
        "auto",
        age=f"Annotated[{kind} | None, {marker}]",
        source=f"SELECT id, name, name AS age FROM {bench.raw}.people",
    )
    refuse(bench, text, "'age'", fix=None)


def test_hard_deletes_refuse_an_empty_source(bench: Bench) -> None:
    assert bench.run(module(bench, "pushdown", mode="merge")).code == 0
    text = module(
        bench, "pushdown", mode='merge", handle_deletes="hard', source=f"SELECT * FROM {bench.raw}.people WHERE 1 = 0"
    )
    refuse(bench, text, "[FLOW504]", fix="allow_empty_source=True")
