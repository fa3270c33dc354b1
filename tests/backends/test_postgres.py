"""PostgreSQL keeps the contract: rows from itself, from SQLite and from files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from ematix_flow.connections import ObjectStoreLocalConnection, PostgresConnection, SQLiteConnection
from ematix_flow.markers import pk
from ematix_flow.testing.bench import Bench, RouteName
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, SqlEndpoint, SqliteEndpoint
from ematix_flow.types import BigInt, Text
from tests.services.postgres import PostgresServer

NO_NAN = frozenset({("float", "nan"), ("double", "nan")})
NO_NUL = frozenset({("text", "a\x00b")})


class TestPostgres(BackendContract):
    """All of it, no gap."""

    @pytest.fixture
    def target(self, pg_url: str, tmp_project: Path) -> SqlEndpoint:
        return SqlEndpoint(PostgresConnection(name="warehouse", url=pg_url), schema="analytics", cannot_hold=NO_NUL)

    @pytest.fixture
    def sources(self, tmp_project: Path) -> Mapping[str, Endpoint]:
        return {
            "sqlite": SqliteEndpoint(SQLiteConnection(name="shop", path=str(tmp_project / "shop.db")), "main", NO_NAN),
            "files": FilesEndpoint(
                ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
            ),
        }

    def test_a_hostile_schema_is_created_like_any_other(self, target: SqlEndpoint, bench: Bench) -> None:
        there = Bench(SqlEndpoint(target.connection, schema='sch"ema; DROP SCHEMA public; --'), bench.source)
        users = there.table("users", id=Annotated[BigInt, pk()], name=Text)
        there.load(users, [(1, "ann")], route="pushdown", mode="merge")
        there.load(users, [(1, "eve")], route="spark", mode="merge")
        assert there.rows(users) == [(1, "eve")]

    @pytest.fixture
    def other_user(self, postgres_server: PostgresServer, pg_url: str, target: SqlEndpoint) -> Iterator[str]:
        """The same database, reached as somebody who may read everything in it."""
        name = f"reader_{uuid4().hex[:12]}"
        postgres_server.run(f"CREATE ROLE {name} LOGIN PASSWORD 'secret' IN ROLE pg_read_all_data")
        yield postgres_server.url_of(urlsplit(pg_url).path.lstrip("/"), user=name, password="secret")
        target.execute(f"DROP OWNED BY {name} CASCADE")
        postgres_server.run(f"DROP ROLE {name}")

    def test_a_user_who_owns_the_schemas_needs_no_right_on_the_database(
        self, bench: Bench, other_user: str, pg_url: str, route: RouteName
    ) -> None:
        name = urlsplit(other_user).username
        bench.target.execute(
            f"CREATE SCHEMA analytics AUTHORIZATION {name}", f"CREATE SCHEMA ematix_flow AUTHORIZATION {name}"
        )
        owner = Bench(SqlEndpoint(PostgresConnection(name="owner", url=other_user), "analytics"), bench.source)
        users = owner.table("users", id=Annotated[BigInt, pk()], name=Text)
        for mode in ("truncate", "append"):
            bench.put(users, [(len(mode), "ann")], route=route)
            owner.pipeline(users, route=route, mode=mode).sync()
        assert owner.rows(users) == [(6, "ann"), (8, "ann")]

    def test_another_user_of_the_same_database_is_another_place(self, bench: Bench, other_user: str) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.put(users, [(1, "ann")], route="pushdown")
        reader = SqlEndpoint(PostgresConnection(name="reader", url=other_user), bench.target.schema)
        pipeline = bench.pipeline(users, route="spark", mode="merge", place=reader, engine="auto")
        (plan,) = pipeline.preview().targets
        assert plan.path == "cross_db" and "source and target are different databases" in (plan.path_reason or "")
        pipeline.sync()
        assert bench.rows(users) == [(1, "ann")]
