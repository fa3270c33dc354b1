"""Names with quotes, semicolons, newlines, other alphabets, reserved words and great length, wherever a name may stand.

What a database can hold must simply work, and nothing beside it may be touched. What it cannot hold is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tests.bad_input.conftest import ROW_VALUE, Bench


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Names:
    """One sort of odd names, in every position a name may stand."""

    schema: str
    table: str
    key: str
    column: str
    pipeline: str
    connection: str
    source_schema: str
    source_table: str
    source_column: str

    @classmethod
    def numbered(cls, pattern: str) -> Names:
        """The same name nine times, told apart by its first character."""
        return cls(*(f"{letter}{pattern}" for letter in "abcdefghi"))


ATTACK = 'x"; DROP TABLE canary; --'
SORTS = {
    "quotes": Names.numbered("\"b'c''d\"\"e"),
    "attack": Names.numbered(ATTACK),
    "attack in a string": Names.numbered("'; DROP TABLE canary; --"),
    "newline": Names.numbered("two\nlines\r\tand a tab"),
    "unicode": Names.numbered("größe_ñ_😀_日本_ẞ"),
    "spaces": Names.numbered(" trailing and  double "),
    "placeholders": Names.numbered("100%s %(x)s {b} {0} $1 ? :name @p"),
    "backslash": Names.numbered("back\\slash\\'\\n`tick`"),
    "markup": Names.numbered("[red]bold[/red] \x1b[31m"),
    "capitals": Names.numbered("MixedCase"),
    "comment": Names.numbered("-- /* */ #"),
    "longest": Names.numbered("n" * 62),
    "longest in bytes": Names.numbered("ñ" * 31),
    "reserved": Names("order", "select", "user", "group", "from", "default", "table", "where", "null"),
}
CONTROL = ("newline", "markup")  # a connection's name must be printable; tested below
SORTS |= {sort: replace(SORTS[sort], connection="plain") for sort in CONTROL}
# The words that the framework writes itself must not get in the way either.
SORTS["our own words"] = Names("main_", "ematix_flow_landed_", "src", "n", "t", "s", "w", "q", "col")

MODULE = """
import os
from ematix_flow import PostgresConnection, SQLiteConnection, register_connection

if {kind!r} == "postgres":
    register_connection(PostgresConnection(name={connection!r}, url=os.environ["EMATIX_FLOW_DSN_WAREHOUSE"]))
else:
    register_connection(SQLiteConnection(name={connection!r}, path="warehouse.db"))

class Odd(ManagedTable):
    __schema__ = {schema!r}
    __tablename__ = {table!r}
    first = Column(BigInt(), nullable=False, primary_key=True, name={key!r})
    second = Column(Text(), name={column!r})

@ematix.pipeline(
    name={pipeline!r}, target=Odd, target_connection={connection!r}, mode={mode!r}, engine={engine!r},
    keys=[{key!r}], compare_columns=[{column!r}],
    source_table={source_schema!r} + "." + {source_table!r},
    column_map={{{key!r}: {source_column!r}, {column!r}: {column!r}}},
)
def load():
    pass
"""


def module(bench: Bench, names: Names, *, mode: str, engine: str = "auto") -> str:
    facts = {
        **{name: getattr(names, name) for name in Names.__dataclass_fields__},
        "kind": bench.kind,
        "mode": mode,
        "engine": engine,
    }
    if bench.kind == "sqlite":
        facts |= {"schema": "main", "source_schema": "main"}
    return MODULE.format(**facts)


def fill(bench: Bench, names: Names) -> str:
    """A source table under the odd names, and a table that must survive. Gives the source's qualified name."""
    source = quoted(names.source_table)
    bench.execute("CREATE TABLE canary (id integer)", "INSERT INTO canary VALUES (1)")
    if bench.kind == "postgres":
        source = f"{quoted(names.source_schema)}.{source}"
        bench.execute(f"CREATE SCHEMA {quoted(names.source_schema)}")
    bench.execute(
        f"CREATE TABLE {source} ({quoted(names.source_column)} bigint, {quoted(names.column)} text)",
        f"INSERT INTO {source} VALUES (1, '{ROW_VALUE}'), (2, 'two')",
    )
    return source


def target(bench: Bench, names: Names) -> str:
    table = quoted(names.table)
    return f"{quoted(names.schema)}.{table}" if bench.kind == "postgres" else table


def loaded(bench: Bench, names: Names, condition: str = "1 = 1") -> list[tuple[object, ...]]:
    """The rows of the target, by its odd names."""
    key, column = quoted(names.key), quoted(names.column)
    return bench.rows(f"SELECT t.{key}, t.{column} FROM {target(bench, names)} AS t WHERE {condition} ORDER BY 1, 2")


@pytest.mark.parametrize("mode", ["merge", "scd2"])
@pytest.mark.parametrize("sort", sorted(SORTS))
def test_odd_names_work_in_every_position(bench: Bench, sort: str, mode: str) -> None:
    names = SORTS[sort]
    source = fill(bench, names)
    first = bench.run(module(bench, names, mode=mode), names.pipeline)
    assert first.code == 0, first.err
    bench.execute(f"UPDATE {source} SET {quoted(names.column)} = 'changed' WHERE {quoted(names.source_column)} = 2")
    second = bench.run(module(bench, names, mode=mode), names.pipeline)
    assert second.code == 0, second.err
    if mode == "merge":
        assert loaded(bench, names) == [(1, ROW_VALUE), (2, "changed")]
    else:
        assert loaded(bench, names) == [(1, ROW_VALUE), (2, "changed"), (2, "two")]
        assert loaded(bench, names, "is_current") == [(1, ROW_VALUE), (2, "changed")]
    assert bench.rows("SELECT id FROM canary") == [(1,)]
    assert [entry[:2] for entry in bench.history()] == [(names.pipeline, "success")] * 2
    assert [entry[:2] for entry in bench.run_log()] == [(names.pipeline, "succeeded")] * 2
    bench.keeps_quiet(second)


@pytest.mark.parametrize("mode", ["append", "truncate"])
@pytest.mark.parametrize("sort", ["attack", "placeholders"])
def test_odd_names_work_in_the_simple_modes(bench: Bench, sort: str, mode: str) -> None:
    names = SORTS[sort]
    fill(bench, names)
    text = module(bench, names, mode=mode).replace(f"compare_columns=[{names.column!r}],", "")
    outcome = bench.run(text, names.pipeline)
    assert outcome.code == 0, outcome.err
    assert loaded(bench, names) == [(1, ROW_VALUE), (2, "two")]
    assert bench.rows("SELECT id FROM canary") == [(1,)]


@pytest.mark.parametrize("sort", ["attack", "unicode", "backslash", "longest", "reserved"])
def test_odd_names_travel_through_spark(bench: Bench, sort: str) -> None:
    names = SORTS[sort]
    fill(bench, names)
    outcome = bench.run(module(bench, names, mode="merge", engine="spark"), names.pipeline)
    assert outcome.code == 0, outcome.err
    assert '"path": "cross_db"' in outcome.out
    assert loaded(bench, names) == [(1, ROW_VALUE), (2, "two")]
    assert bench.rows("SELECT id FROM canary") == [(1,)]


@pytest.mark.parametrize("command", ["preview", "validate", "dry-run"])
def test_looking_at_odd_names_touches_nothing(bench: Bench, command: str) -> None:
    names = SORTS["attack"]
    fill(bench, names)
    before = bench.picture()
    outcome = bench.flow(command, "--module", bench.module(module(bench, names, mode="merge")), names.pipeline)
    assert outcome.code == 0, outcome.err
    assert bench.picture() == before


def test_an_odd_column_evolves(bench: Bench) -> None:
    names = SORTS["attack"]
    source = fill(bench, names)
    text = module(bench, names, mode="merge")
    assert bench.run(text, names.pipeline).code == 0
    extra = 'y"; DROP TABLE canary; --'
    bench.execute(f"ALTER TABLE {source} ADD COLUMN {quoted(extra)} text")
    last = f"name={names.column!r})\n"
    wider = text.replace(last, f"{last}    third = Column(Text(), name={extra!r})\n", 1)
    outcome = bench.run(wider, names.pipeline)
    assert outcome.code == 0, outcome.err
    assert bench.rows(f"SELECT {quoted(extra)} FROM {target(bench, names)}") == [(None,), (None,)]
    assert bench.rows("SELECT id FROM canary") == [(1,)]


# ── what a database cannot hold ──────────────────────────────────────────────────────────────────────────────────────

PLAIN = Names("odd", "target", "id", "label", "load", "plain", "source_schema", "source", "source_id")


def with_name(position: str, name: str) -> Names:
    return Names(**{**{p: getattr(PLAIN, p) for p in Names.__dataclass_fields__}, position: name})


@pytest.mark.parametrize("kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("name", ["n" * 64, "ñ" * 32, "n" * 300], ids=["64", "64 bytes", "300"])
@pytest.mark.parametrize(
    "position", ["schema", "table", "key", "column", "source_schema", "source_table", "source_column"]
)
def test_a_name_that_postgres_would_cut_off_is_refused(bench: Bench, position: str, name: str) -> None:
    fill(bench, PLAIN)
    if position in ("schema", "table"):  # what the cut name would hit
        bench.execute(f"CREATE SCHEMA {'odd' if position == 'table' else quoted(name)}")
    before = bench.picture()
    outcome = bench.run(module(bench, with_name(position, name), mode="merge"))
    bench.refused(outcome, name, code=(1, 2))
    assert bench.picture() == before
    assert bench.run_log()[-1][:2] == ("load", "failed")


@pytest.mark.parametrize("position", ["table", "key", "column", "source_table", "source_column", "schema"])
@pytest.mark.parametrize("name", ["nul\x00byte", ""], ids=["nul", "empty"])
def test_a_name_that_no_database_holds_is_refused(bench: Bench, position: str, name: str) -> None:
    fill(bench, PLAIN)
    before = bench.picture()
    text = module(bench, with_name(position, name), mode="merge")
    if position == "schema":
        text = text.replace("__schema__ = 'main'", f"__schema__ = {name!r}")
    outcome = bench.run(text)
    bench.refused(outcome, code=(1, 2), fix=None)
    assert bench.picture() == before


@pytest.mark.parametrize("name", ["p" * 64, "p" * 255, "ñ" * 255])
def test_a_pipeline_may_have_a_long_name(bench: Bench, name: str) -> None:
    fill(bench, PLAIN)
    outcome = bench.run(module(bench, with_name("pipeline", name), mode="merge"), name)
    assert outcome.code == 0, outcome.err
    assert bench.history()[-1][:2] == (name, "success")


def test_a_pipeline_name_that_the_books_cannot_hold_is_refused(bench: Bench) -> None:
    fill(bench, PLAIN)
    before = bench.picture()
    outcome = bench.run(module(bench, with_name("pipeline", "p" * 256), mode="merge"), "p" * 256)
    bench.refused(outcome, "p" * 256, code=(1, 2), fix="shorter")
    assert bench.picture() == before


@pytest.mark.parametrize("name", ["c" * 64, "c" * 300, "ñ-.:/@ c"])
def test_a_connection_may_have_any_name(bench: Bench, name: str) -> None:
    fill(bench, PLAIN)
    outcome = bench.run(module(bench, with_name("connection", name), mode="merge"))
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("name", ["nul\x00byte", "two\nlines", "\x1b[31mred"])
def test_a_connection_name_that_cannot_be_printed_is_refused(bench: Bench, name: str) -> None:
    fill(bench, PLAIN)
    before = bench.picture()
    outcome = bench.run(module(bench, with_name("connection", name), mode="merge"))
    bench.refused(outcome, "control character", code=2)
    assert name not in outcome.err, "the terminal would obey it"
    assert bench.picture() == before


def test_a_pipeline_name_with_a_nul_is_refused(bench: Bench) -> None:
    fill(bench, PLAIN)
    before = bench.picture()
    outcome = bench.run(module(bench, with_name("pipeline", "nul\x00byte"), mode="merge"), "nul\x00byte")
    bench.refused(outcome, code=(1, 2), fix=None)
    assert bench.picture() == before


@pytest.mark.parametrize("name", ["", "   "])
def test_a_pipeline_without_a_name_is_refused_or_named_after_its_function(bench: Bench, name: str) -> None:
    fill(bench, PLAIN)
    outcome = bench.run(module(bench, with_name("pipeline", name), mode="merge"))
    if name:
        bench.refused(outcome, "needs a name", code=2)
    else:
        assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("written", ["people", "a.b.c", ".people", "raw.", "", "."])
def test_a_source_table_that_is_not_schema_and_table_is_refused(bench: Bench, people: str, written: str) -> None:
    outcome = bench.run(
        people
        + f'@ematix.pipeline(target=People, target_connection="warehouse", mode="merge", source_table={written!r})\n'
        "def load():\n    pass\n"
    )
    bench.refused(outcome, "source_table must be 'schema.table'", code=2, fix=None)
