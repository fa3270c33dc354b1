"""The databases whose merge and scd2 are proven here, as one fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ematix_flow.declare.connection import DuckDBConnection, MySQLConnection, PostgresConnection, SQLiteConnection
from tests.plan.loading import Db, database
from tests.services.mariadb import MariadbServer
from tests.services.postgres import PostgresServer


@pytest.fixture
def sqlite_db() -> Iterator[Db]:
    """An empty SQLite database in memory."""
    with database(SQLiteConnection(name="store", path=":memory:"), schema="main") as db:
        yield db


@pytest.fixture
def duckdb_db() -> Iterator[Db]:
    """An empty DuckDB database in memory."""
    with database(DuckDBConnection(name="store", path=":memory:"), schema="main") as db:
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


@pytest.fixture(scope="module")
def mysql_module_url(mariadb_server: MariadbServer) -> Iterator[str]:
    """A MariaDB database for all tests of a file."""
    with mariadb_server.fresh_database() as url:
        yield url


@pytest.fixture
def mysql_db(mysql_module_url: str) -> Iterator[Db]:
    """An empty MariaDB database."""
    name = mysql_module_url.rsplit("/", 1)[1]
    with database(MySQLConnection(name="store", url=mysql_module_url), schema=name) as db:
        yield db
        for statement in (f"DROP DATABASE {name}", f"CREATE DATABASE {name}", "DROP DATABASE IF EXISTS ematix_flow"):
            db.own.execute(statement)


@pytest.fixture(params=["sqlite", "postgres", "duckdb", "mysql"])
def db(request: pytest.FixtureRequest) -> Db:
    """Each database in turn."""
    found: Db = request.getfixturevalue(f"{request.param}_db")
    return found
