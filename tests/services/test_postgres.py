"""The launcher itself: one server per run, a database per test, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.services.postgres import PostgresServer, shared_server
from tests.services.run_folder import REPOSITORY, RunFolder

A_RUN = """
import sys
from tests.services.postgres import shared_server
from tests.services.run_folder import RunFolder
folder = RunFolder.create()
print(folder.path, shared_server(folder).url, flush=True)
sys.stdin.read()
"""


def test_everyone_in_a_run_gets_the_same_server(postgres_server: PostgresServer) -> None:
    assert shared_server(RunFolder.joined()) == postgres_server


def test_each_test_has_a_database_of_its_own(postgres_server: PostgresServer) -> None:
    with postgres_server.fresh_database() as one, postgres_server.fresh_database() as other:
        with psycopg.connect(one) as connection:
            connection.execute("CREATE TABLE only_here (id int)")
        with psycopg.connect(other) as connection:
            assert connection.execute("SELECT to_regclass('only_here')").fetchone() == (None,)


def test_a_database_is_dropped_although_somebody_is_still_connected(postgres_server: PostgresServer) -> None:
    with postgres_server.fresh_database() as url:
        left_open = psycopg.connect(url)
    with left_open, pytest.raises(psycopg.OperationalError):
        left_open.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_a_wrong_password_is_refused(postgres_server: PostgresServer, pg_url: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres_server.url_of(pg_url.rsplit("/", 1)[1], password="wrong"))


def test_the_server_ends_with_a_run_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMATIX_TEST_POSTGRES_URL", raising=False)
    with subprocess.Popen(
        [sys.executable, "-c", A_RUN], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        folder, url = run.stdout.readline().split()
        psycopg.connect(url).close()
        run.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while Path(folder).exists():
        assert time.monotonic() < deadline, f"{folder} is still there"
        time.sleep(0.05)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
