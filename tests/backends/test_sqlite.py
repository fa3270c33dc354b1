"""SQLite keeps the contract: rows from itself, from PostgreSQL and from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import pytest

from ematix_flow.connections import ObjectStoreLocalConnection, PostgresConnection, SQLiteConnection
from ematix_flow.errors import InvalidPlan
from ematix_flow.markers import pk
from ematix_flow.pipeline import sync
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, SqlEndpoint, SqliteEndpoint
from ematix_flow.types import BigInt, Text

NO_NAN = frozenset({("float", "nan"), ("double", "nan")})


class TestSqlite(BackendContract):
    """A file beside the project."""

    @pytest.fixture
    def target(self, tmp_project: Path) -> SqlEndpoint:
        return SqliteEndpoint(
            SQLiteConnection(name="warehouse", path=str(tmp_project / "warehouse.db")), "main", NO_NAN
        )

    @pytest.fixture
    def sources(self, pg_url: str, tmp_project: Path) -> Mapping[str, Endpoint]:
        return {
            "postgres": SqlEndpoint(PostgresConnection(name="shop", url=pg_url), schema="public"),
            "files": FilesEndpoint(
                ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
            ),
        }

    def test_a_database_in_memory_works_within_the_process(self, bench: Bench) -> None:
        there = Bench(SqliteEndpoint(SQLiteConnection(name="scratch", path=":memory:"), "main"), bench.source)
        users = there.table("users", id=Annotated[BigInt, pk()], name=Text)
        there.load(users, [(1, "ann"), (2, "bob")], route="pushdown", mode="scd2")
        there.load(users, [(1, "eve")], route="spark", mode="scd2")
        assert there.history(users) == [(1, "ann", 1, 2, False), (1, "eve", 2, None, True), (2, "bob", 1, None, True)]

    def test_another_schema_than_main_is_refused(self, target: SqlEndpoint, bench: Bench) -> None:
        bench.put(bench.table("users", id=BigInt), [(1,)], route="pushdown")
        elsewhere = Bench(target, bench.source)
        elsewhere.target.schema = "analytics"
        users = elsewhere.table("users", id=BigInt)
        with pytest.raises(InvalidPlan, match="'analytics'"):
            sync(target=users, source="SELECT 1 AS id", target_connection=target.connection)
