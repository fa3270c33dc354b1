"""SQLite keeps the contract: rows from itself, from PostgreSQL and from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ematix_flow.connections import ObjectStoreLocalConnection, PostgresConnection, SQLiteConnection
from ematix_flow.testing.contract import BackendContract
from ematix_flow.testing.endpoints import Endpoint, FilesEndpoint, SqlEndpoint, SqliteEndpoint
from ematix_flow.testing.gaps import notimpl, notyet


NO_NAN = frozenset({("float", "nan"), ("double", "nan")})


class TestSqlite(BackendContract):
    """A file beside the project."""

    widens_columns = notyet("SQLite cannot change a column's declared type; wider values fit as they are")
    relaxes_not_null = notimpl("SQLite has no ALTER COLUMN; the table would have to be rebuilt")

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
