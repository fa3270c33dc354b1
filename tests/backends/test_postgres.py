"""PostgreSQL keeps the contract: rows from itself, from SQLite and from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ematix_flow.connections import ObjectStoreLocalConnection, PostgresConnection, SQLiteConnection
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, SqlEndpoint, SqliteEndpoint


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
