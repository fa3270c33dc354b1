"""The launcher itself: a server per worker, an empty one for each test, and nothing left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pymysql
import pytest

from tests.services.mariadb import MariadbServer, shared_server
from tests.services.run_folder import REPOSITORY, RunFolder

A_RUN = """
import sys
from tests.services.mariadb import shared_server
from tests.services.run_folder import RunFolder
folder = RunFolder.create()
print(folder.path, shared_server(folder).url, flush=True)
sys.stdin.read()
"""


def test_everyone_in_a_worker_gets_the_same_server(mariadb_server: MariadbServer) -> None:
    assert shared_server(RunFolder.joined()) == mariadb_server


def test_every_database_that_a_test_made_is_gone_after_it(mariadb_server: MariadbServer) -> None:
    before = mariadb_server.databases()
    with mariadb_server.fresh_database() as url:
        mariadb_server.run("CREATE DATABASE ematix_flow", "CREATE DATABASE `hos``tile`")
        assert {url.rsplit("/", 1)[1], "ematix_flow", "hos`tile"} <= mariadb_server.databases()
    assert mariadb_server.databases() == before


def test_a_database_is_dropped_although_somebody_holds_a_table(mariadb_server: MariadbServer) -> None:
    if mariadb_server.is_shared:
        pytest.skip("connections of others are left alone on a server of somebody else")
    with mariadb_server.fresh_database() as url, mariadb_server.connected() as left_open:
        name = url.rsplit("/", 1)[1]
        cursor = left_open.cursor()
        for statement in (f"CREATE TABLE {name}.t (id INT)", "BEGIN", f"INSERT INTO {name}.t VALUES (1)"):
            cursor.execute(statement)
        with mariadb_server.fresh_database():
            pass
        with pytest.raises(pymysql.Error):
            cursor.execute("SELECT 1")
        left_open._force_close()  # the server has ended it
    assert name not in mariadb_server.databases()


def test_a_wrong_password_is_refused(mariadb_server: MariadbServer) -> None:
    wrong = MariadbServer(mariadb_server.url_of("mysql", password="wrong"))
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        wrong.run("SELECT 1")


def test_the_server_ends_with_a_run_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMATIX_TEST_MYSQL_URL", raising=False)
    with subprocess.Popen(
        [sys.executable, "-c", A_RUN], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        folder, url = run.stdout.readline().split()
        MariadbServer(url).run("SELECT 1")
        run.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while Path(folder).exists():
        assert time.monotonic() < deadline, f"{folder} is still there"
        time.sleep(0.05)
    with pytest.raises(pymysql.Error):
        MariadbServer(url).run("SELECT 1")
