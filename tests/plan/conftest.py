"""The two databases whose merge and scd2 are proven here, as one fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ematix_flow.declare.connection import PostgresConnection, SQLiteConnection
from tests.plan.loading import Db, database
from tests.services.postgres import PostgresServer


@pytest.fixture
def sqlite_db() -> Iterator[Db]:
    """An empty SQLite database in memory."""
    with database(SQLiteConnection(name="store", path=":memory:"), schema="main") as db:
        yield db


@pytest.fixture(scope="module")
def module_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A PostgreSQL database for all tests of a file: making one takes longer than most of them."""
    with postgres_server.fresh_database() as url:
        yield url


@pytest.fixture
def postgres_db(module_url: str) -> Iterator[Db]:
    """An empty PostgreSQL database."""
    with database(PostgresConnection(name="store", url=module_url), schema="public") as db:
        yield db
        db.own.execute("DROP SCHEMA public CASCADE")
        db.own.execute("DROP SCHEMA IF EXISTS ematix_flow CASCADE")
        db.own.execute("CREATE SCHEMA public")


@pytest.fixture(params=["sqlite", "postgres"])
def db(request: pytest.FixtureRequest) -> Db:
    """Each database in turn."""
    found: Db = request.getfixturevalue(f"{request.param}_db")
    return found
