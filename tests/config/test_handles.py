"""Open handles on real databases: PostgreSQL and SQLite answer alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.config import check_connection, connect
from ematix_flow.config.handles import ConnectionHandle
from ematix_flow.declare.connection import (
    KafkaConnection,
    PostgresConnection,
    SQLiteConnection,
    register_connection,
)
from ematix_flow.declare.server_address import server_address
from ematix_flow.errors import (
    BackendError,
    ConnectionFailed,
    StatementFailed,
    UnknownConnection,
    UnsupportedBackend,
)


@pytest.fixture(params=["postgres", "sqlite"])
def handle(request: pytest.FixtureRequest, project: Path) -> Iterator[ConnectionHandle]:
    url = request.getfixturevalue("pg_url") if request.param == "postgres" else "sqlite:///here.db"
    with connect(url=url) as opened:
        yield opened


def test_a_handle_answers(handle: ConnectionHandle) -> None:
    assert handle.ping() is True
    assert handle.fetch_scalar_int("SELECT 40 + 2") == 42


def test_the_dialect_is_the_database_s_own(pg_url: str) -> None:
    with connect(url=pg_url) as postgres, connect(url="sqlite:///a.db") as sqlite:
        assert (postgres.dialect(), sqlite.dialect()) == ("postgres", "sqlite")


def test_statements_commit_and_tell_how_many_rows_they_touched(handle: ConnectionHandle) -> None:
    assert handle.execute("CREATE TABLE t (id INTEGER, name TEXT)") == 0
    assert handle.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL)") == 2
    assert handle.execute("UPDATE t SET name = 'b' WHERE id = 2") == 1
    with connect(url=handle.dsn()) as another:
        assert another.fetch_scalar_int("SELECT COUNT(*) FROM t WHERE name IS NOT NULL") == 2


def test_a_transaction_happens_whole_or_not_at_all(handle: ConnectionHandle) -> None:
    handle.execute_in_transaction(["CREATE TABLE kept (id INTEGER)", "INSERT INTO kept VALUES (1)"])
    with pytest.raises(StatementFailed):
        handle.execute_in_transaction(
            ["CREATE TABLE lost (id INTEGER)", "INSERT INTO kept VALUES (2)", "INSERT INTO nowhere VALUES (1)"]
        )
    assert handle.fetch_scalar_int("SELECT COUNT(*) FROM kept") == 1
    with pytest.raises(StatementFailed):
        handle.query("SELECT * FROM lost")
    assert handle.ping()


def test_a_query_gives_columns_rows_and_whether_there_was_more(handle: ConnectionHandle) -> None:
    handle.execute("CREATE TABLE t (id INTEGER, name TEXT)")
    handle.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL), (3, 'c')")
    whole = handle.query("SELECT id, name FROM t ORDER BY id")
    assert whole["rows"] == [[1, "a"], [2, None], [3, "c"]] and whole["truncated"] is False
    assert [column["name"] for column in whole["columns"]] == ["id", "name"]
    assert [column["type"] for column in whole["columns"]] == (
        ["int4", "text"] if handle.dialect() == "postgres" else ["INTEGER", "TEXT"]
    )
    cut = handle.query("SELECT id FROM t ORDER BY id", max_rows=2)
    assert (cut["rows"], cut["truncated"]) == ([[1], [2]], True)
    assert handle.query("SELECT id FROM t ORDER BY id", max_rows=3)["truncated"] is False
    assert handle.query("SELECT id FROM t", max_rows=0) == {
        "columns": [{"name": "id", "type": "int4" if handle.dialect() == "postgres" else "NULL"}],
        "rows": [],
        "truncated": True,
    }
    assert handle.query("DELETE FROM t") == {"columns": [], "rows": [], "truncated": False}


@pytest.mark.parametrize("sql", ["SELECT 'text'", "SELECT NULL", "SELECT 1 WHERE 1 = 0", "SELECT 1.5"])
def test_a_scalar_that_is_no_whole_number_is_refused(handle: ConnectionHandle, sql: str) -> None:
    with pytest.raises(StatementFailed):
        handle.fetch_scalar_int(sql)


def test_a_sum_of_whole_numbers_is_one(handle: ConnectionHandle) -> None:
    handle.execute("CREATE TABLE t (n BIGINT)")
    handle.execute("INSERT INTO t VALUES (1), (2)")
    assert handle.fetch_scalar_int("SELECT SUM(n) FROM t") == 3


def test_statements_that_a_database_refuses_are_one_error_and_the_handle_lives_on(handle: ConnectionHandle) -> None:
    for sql in ("SELEC 1", "SELECT * FROM nowhere", "'; DROP TABLE x; --"):
        with pytest.raises(BackendError):
            handle.query(sql)
    assert handle.ping()


def test_where_a_handle_leads_is_told_without_the_password(pg_url: str) -> None:
    address = server_address(pg_url, default_port=5432)
    with connect(url=pg_url) as handle:
        assert handle.connection_info() == {
            "host": address.host,
            "port": address.port,
            "dbname": address.database,
            "user": address.user,
        }
        assert handle.dsn() == pg_url
        assert address.password and f":{address.password}@" not in repr(handle)
    with connect(url="sqlite:///a.db") as handle:
        assert handle.connection_info() == {"host": None, "port": None, "dbname": "a.db", "user": None}


def test_a_closed_handle_says_so_and_may_be_closed_again(handle: ConnectionHandle) -> None:
    handle.close()
    handle.close()
    with pytest.raises(StatementFailed, match="closed"):
        handle.ping()


def test_names_go_through_the_chain(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN", pg_url)
    with connect() as handle:
        assert handle.name == "default" and handle.ping()
    register_connection(SQLiteConnection(name="warehouse", path="code.db"))
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", pg_url)
    with connect("warehouse") as handle:
        assert handle.dialect() == "postgres"
    with pytest.raises(UnknownConnection):
        connect("nobody")


def test_one_database_in_memory_is_shared_by_the_handles_of_its_connection() -> None:
    memory = register_connection(SQLiteConnection(name="test_handles_memory", path=":memory:"))
    with connect("test_handles_memory") as first:
        first.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER)")
        first.execute("INSERT INTO t VALUES (1)")
    with connect(memory) as second:
        assert second.fetch_scalar_int("SELECT COUNT(*) FROM t") == 1


def test_a_wrong_password_fails_at_once_and_does_not_show(pg_url: str) -> None:
    address = server_address(pg_url, default_port=5432)
    wrong = f"postgres://{address.user}:w%40rongpw@{address.host}:{address.port}/{address.database}"
    with pytest.raises(ValueError) as caught:
        connect(url=wrong)
    assert isinstance(caught.value, ConnectionFailed)
    assert "w%40rongpw" not in str(caught.value) and "w@rongpw" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["postgres://ann:pw123@127.0.0.1:1/x", "postgres://ann:pw123@host.invalid/x", "sqlite:///no/such/folder/a.db"],
)
def test_what_cannot_be_reached_fails_at_once(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        connect(url=url)
    assert "pw123" not in str(caught.value)


def test_kinds_that_speak_no_sql_or_have_no_backend_say_so(project: Path) -> None:
    with pytest.raises(UnsupportedBackend, match="kafka"):
        connect(KafkaConnection(name="k", bootstrap_servers="b"))


def test_checking_never_raises(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = server_address(pg_url, default_port=5432)
    ok, message = check_connection(PostgresConnection(name="w", url=pg_url))
    assert ok and f":***@{address.host}" in message and f":{address.password}@" not in message
    for wanted in (
        "nobody",
        PostgresConnection(name="w", url="postgres://ann:pw123@127.0.0.1:1/x"),
        PostgresConnection(name="w", url="${NOT_SET_ANYWHERE}"),
        KafkaConnection(name="k", bootstrap_servers="b"),
    ):
        ok, message = check_connection(wanted)
        assert not ok and message and "pw123" not in message
