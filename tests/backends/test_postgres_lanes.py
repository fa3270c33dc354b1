"""The fast lanes of PostgreSQL: tables that take another's place, and rows that go straight in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest

from ematix_flow.backends.postgres import PostgresBackend
from ematix_flow.connections import ObjectStoreLocalConnection, PostgresConnection
from ematix_flow.declare.columns import String
from ematix_flow.errors import DuplicateKeys, UnfitValue
from ematix_flow.markers import pk
from ematix_flow.run.preview import preview
from ematix_flow.testing.bench import Bench, RouteName, Table
from ematix_flow.testing.endpoints import FilesEndpoint, SqlEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.testing.runlog import MemoryRunLog, use_run_log
from ematix_flow.types import UUID, BigInt, Text

BOTH = pytest.mark.parametrize("route", ["pushdown", "spark"])


@pytest.fixture
def bench(pg_url: str, tmp_project: Path) -> Iterator[Bench]:
    target = SqlEndpoint(PostgresConnection(name="base", url=pg_url), schema="shop")
    lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
    with isolated_registry(), use_run_log(MemoryRunLog()):
        yield Bench(target, FilesEndpoint(lake))


@pytest.fixture
def users(bench: Bench) -> Table:
    return bench.table(
        "users", id=Annotated[BigInt, pk()], name=Annotated[String[8], "a name"], mail=Text | None, unique=[["name"]]
    )


def oid(bench: Bench, table: str = "shop.users") -> int:
    return int(bench.target.query(f"SELECT '{table}'::regclass::oid")[0][0])


def load(bench: Bench, table: Table, *names: str, route: RouteName = "pushdown", mode: str = "truncate") -> Any:
    rows = [(number, name, None) for number, name in enumerate(names, start=1)]
    return bench.load(table, rows, route=route, mode=mode, **({"keys": ("id",)} if mode == "merge" else {}))


@BOTH
def test_truncate_puts_a_new_table_in_the_old_ones_place(bench: Bench, users: Table, route: RouteName) -> None:
    load(bench, users, "ann", "bob", route=route)
    before = oid(bench)
    result = load(bench, users, "eve", route=route)
    assert bench.rows(users) == [(1, "eve", None)]
    assert (result.rows_inserted, oid(bench) != before) == (1, True)
    assert bench.batches(users) == {1: result.run_id}
    assert bench.target.query("SELECT count(*) FROM pg_class WHERE relname LIKE 'stg%'") == [(0,)]


@BOTH
@pytest.mark.parametrize("mode", ["append", "truncate", "merge"])
def test_a_first_load_leaves_the_table_that_was_declared(
    bench: Bench, users: Table, route: RouteName, mode: str
) -> None:
    load(bench, users, "ann", "bob", route=route, mode=mode)
    swapped = bench.target.query(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'shop.users'::regclass "
        "AND contype <> 'n' ORDER BY 1"
    )
    assert swapped == [("users_name_key", "UNIQUE (name)"), ("users_pkey", "PRIMARY KEY (id)")]
    columns = bench.target.query(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, atthasdef FROM pg_attribute "
        "WHERE attrelid = 'shop.users'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    assert columns == [
        ("id", "bigint", True, False),
        ("name", "character varying(8)", True, False),
        ("mail", "text", False, False),
        ("_loaded_at", "timestamp with time zone", True, False),
        ("_batch_id", "uuid", True, False),
    ]
    logged = bench.target.query("SELECT relpersistence::text FROM pg_class WHERE oid = 'shop.users'::regclass")
    assert logged == [("p",)]
    assert bench.rows(users) == [(1, "ann", None), (2, "bob", None)]


@BOTH
def test_indexes_and_grants_go_over(bench: Bench, users: Table, route: RouteName) -> None:
    load(bench, users, "ann", route=route)
    hostile = 'in" USING btree ;--'
    quoted = hostile.replace('"', '""')
    bench.target.execute(
        f'CREATE INDEX "{quoted}" ON shop.users (lower(mail) DESC) WHERE mail IS NOT NULL',
        "CREATE UNIQUE INDEX one_mail ON shop.users USING btree (mail)",
        "GRANT SELECT ON shop.users TO PUBLIC",
        "DO $$ BEGIN CREATE ROLE reader; EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        "GRANT SELECT, INSERT ON shop.users TO reader WITH GRANT OPTION",
    )
    looks = (
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'shop' AND tablename = 'users' ORDER BY 1",
        "SELECT grantee, privilege_type, is_grantable FROM information_schema.table_privileges "
        "WHERE table_schema = 'shop' AND table_name = 'users' ORDER BY 1, 2",
    )
    before, number = [bench.target.query(look) for look in looks], oid(bench)
    load(bench, users, "eve", "zoe", route=route)
    assert oid(bench) != number
    assert [bench.target.query(look) for look in looks] == before
    assert any(name == hostile for name, _ in before[0])


BINDINGS = {
    "view": ("CREATE VIEW shop.names AS SELECT name FROM shop.users", "SELECT name FROM shop.names"),
    "trigger": (
        "CREATE FUNCTION shop.seen() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.mail := ''seen''; RETURN NEW; END'",
        "CREATE TRIGGER seen BEFORE INSERT ON shop.users FOR EACH ROW EXECUTE FUNCTION shop.seen()",
        "SELECT tgname FROM pg_trigger WHERE tgrelid = 'shop.users'::regclass",
    ),
    "check": (
        "ALTER TABLE shop.users ADD CONSTRAINT real CHECK (id > 0)",
        "SELECT conname FROM pg_constraint WHERE conrelid = 'shop.users'::regclass AND contype = 'c'",
    ),
    "comment": (
        "COMMENT ON COLUMN shop.users.name IS 'who'",
        "SELECT col_description('shop.users'::regclass, 2)",
    ),
    "setting": (
        "ALTER TABLE shop.users SET (fillfactor = 70)",
        "SELECT reloptions FROM pg_class WHERE oid = 'shop.users'::regclass",
    ),
    "policy": (
        "ALTER TABLE shop.users ENABLE ROW LEVEL SECURITY",
        "SELECT relrowsecurity FROM pg_class WHERE oid = 'shop.users'::regclass",
    ),
    "publication": (
        "CREATE PUBLICATION changes FOR TABLE shop.users",
        "SELECT pubname FROM pg_publication_tables WHERE tablename = 'users'",
    ),
    "column grant": (
        "GRANT SELECT (name) ON shop.users TO PUBLIC",
        "SELECT attacl::text FROM pg_attribute WHERE attrelid = 'shop.users'::regclass AND attname = 'name'",
    ),
}


@pytest.mark.parametrize("binding", BINDINGS)
def test_what_hangs_on_a_table_is_kept_by_keeping_the_table(bench: Bench, users: Table, binding: str) -> None:
    load(bench, users, "ann", "bob")
    *statements, look = BINDINGS[binding]
    bench.target.execute(*statements)
    before, number = bench.target.query(look), oid(bench)
    load(bench, users, "ann", "bob")
    assert oid(bench) == number
    assert bench.target.query(look) == before
    assert [row[:2] for row in bench.rows(users)] == [(1, "ann"), (2, "bob")]


def test_a_view_that_appears_after_planning_keeps_the_table(
    bench: Bench, users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ematix_flow.backends import postgres_swap

    load(bench, users, "ann")
    number = oid(bench)
    bench.target.execute("CREATE VIEW shop.names AS SELECT name FROM shop.users")
    real, asked = postgres_swap.bound_by, iter([()])
    monkeypatch.setattr(postgres_swap, "bound_by", lambda db, oid: next(asked, None) or real(db, oid)[:9])
    load(bench, users, "eve")
    assert (oid(bench), bench.target.query("SELECT name FROM shop.names")) == (number, [("eve",)])


def test_a_table_that_somebody_reads_is_not_waited_for(bench: Bench, users: Table, pg_url: str) -> None:
    load(bench, users, "ann")
    number = oid(bench)
    with psycopg.connect(pg_url) as reader:
        assert reader.execute("SELECT name FROM shop.users").fetchall() == [("ann",)]
        load(bench, users, "eve")
        assert reader.execute("SELECT name FROM shop.users").fetchall() == [("eve",)]
    assert oid(bench) == number


def test_an_append_goes_straight_from_the_query_into_the_target(bench: Bench, users: Table) -> None:
    load(bench, users, "ann", mode="append")
    bench.put(users, [(7, "zoe", "z@x")], route="pushdown")
    declared = bench.pipeline(users, route="pushdown", mode="append")
    shown = "\n".join(preview(declared.spec).targets[0].plan_sql)
    assert "-- fast lane: rows go from the query into the target" in shown
    assert declared.sync().rows_inserted == 1
    assert bench.rows(users) == [(1, "ann", None), (7, "zoe", "z@x")]


@pytest.mark.parametrize("mode", ["append", "truncate"])
def test_a_fast_lane_names_the_column_of_an_unfit_value(bench: Bench, users: Table, mode: str) -> None:
    load(bench, users, "ann", mode=mode)
    columns = {"id": BigInt(), "name": Text(), "mail": Text()}
    with pytest.raises(UnfitValue, match="Column 'name' of shop.users holds at most 8 characters"):
        bench.load(users, [(2, "far too long", None)], route="pushdown", mode=mode, columns=columns)
    with pytest.raises(UnfitValue, match="Column 'name' of shop.users is NOT NULL"):
        bench.load(users, [(2, None, None)], route="pushdown", mode=mode, columns=columns)
    assert bench.rows(users) == [(1, "ann", None)]


@BOTH
def test_a_first_merge_with_double_keys_leaves_nothing(bench: Bench, users: Table, route: RouteName) -> None:
    with pytest.raises(DuplicateKeys, match="1 key more than once"):
        bench.load(users, [(1, "ann", None), (1, "eve", None)], route=route, mode="merge", keys=("id",))
    assert bench.target.shape("users") is None


def test_documents_and_identifiers_are_inserted(bench: Bench) -> None:
    things = bench.table("things", id=Annotated[UUID, pk()])
    rows = [("00000000-0000-0000-0000-000000000001",)]
    for _ in range(2):
        bench.load(things, rows, route="spark", mode="truncate")
    assert bench.rows(things) == rows


@pytest.mark.parametrize("mode", ["append", "merge", "truncate"])
def test_a_server_that_is_slow_to_end_sessions_keeps_no_staging_table(
    bench: Bench, users: Table, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(bench, users, "ann")
    kept: list[Any] = []
    monkeypatch.setattr(PostgresBackend, "release", lambda self, db: kept.append(db))
    bench.load(users, [(7, "eve", None)], route="spark", mode=mode, **({"keys": ("id",)} if mode == "merge" else {}))
    monkeypatch.undo()
    assert (7, "eve", None) in bench.rows(users)
    assert bench.target.query("SELECT count(*) FROM pg_class WHERE relname LIKE 'stg%'") == [(0,)]
    for db in kept:
        db.close()
