"""Run logs store by store: how they are reached, what they leave behind, and what happens when a connection breaks."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from ematix_flow.contracts.orchestration import AttemptState, RunEvent, RunLog, Slot
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.errors import ConnectionFailed, InvalidConfig, StatementFailed
from ematix_flow.run.runlogs.azure import AzureBlobRunLog
from ematix_flow.run.runlogs.duckdb import DuckDBRunLog
from ematix_flow.run.runlogs.gcs import GcsRunLog
from ematix_flow.run.runlogs.mysql import MySQLRunLog
from ematix_flow.run.runlogs.postgres import PostgresRunLog
from ematix_flow.run.runlogs.s3 import S3RunLog
from ematix_flow.run.runlogs.store import Db
from ematix_flow.run.runlogs.urls import _split, from_url
from tests.services import postgres
from tests.services.azurite import ACCOUNT
from tests.services.weak_line import WeakLine

MORNING = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)


def done(run_id: str, *, hours: int = 0) -> RunRecord:
    began = MORNING + timedelta(hours=hours)
    return RunRecord(run_id, "p", "succeeded", began, began + timedelta(seconds=1))


# ── URLs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url", ["", "  ", "gopher://x", "azure://account", "azureblob://account/", "s3://", "duckdb://"]
)
def test_what_cannot_be_a_run_log_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match=r"run log|Run log"):
        from_url(url)


@pytest.mark.parametrize(
    ("rest", "parts"),
    [
        ("db/x?schema=a", ("db/x", "schema=a")),
        ("ann:p?w@db/x?schema=a", ("ann:p?w@db/x", "schema=a")),
        ("ann:p?w@db/x", ("ann:p?w@db/x", "")),
        ("db/x?user=ann@host", ("db/x", "user=ann@host")),
        ("/var/lib/log.db", ("/var/lib/log.db", "")),
    ],
)
def test_options_begin_after_the_login(rest: str, parts: tuple[str, str]) -> None:
    assert _split(rest) == parts


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgres://db/x", "psycopg", "runlog-postgres"),
        ("mysql://db/x", "pymysql", "runlog-mysql"),
        ("duckdb://:memory:", "duckdb", "runlog-duckdb"),
        ("s3://bucket", "boto3", "runlog-s3"),
        ("gs://bucket", "google.cloud", "runlog-gcs"),
        ("azure://account/container", "azure.storage.blob", "runlog-azure"),
    ],
)
def test_a_missing_driver_names_what_to_install(url: str, driver: str, extra: str, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, driver, None)
    with pytest.raises(ImportError, match=rf"ematix-flow\[{extra}\]"):
        from_url(url)


# ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────────────────────────


def tables(url: str) -> set[tuple[str, str]]:
    import psycopg

    with psycopg.connect(url) as db:
        found = db.execute(
            "SELECT schemaname::text, tablename::text FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        return set(found.fetchall())


def test_postgres_tables_lie_in_a_schema(pg_url: str) -> None:
    assert from_url(pg_url).list_runs() == ([], 0)
    assert {schema for schema, _ in tables(pg_url)} == {"ematix_flow"}
    assert {"run_log", "attempt_state", "pipeline_claims", "run_records"} <= {name for _, name in tables(pg_url)}
    PostgresRunLog(pg_url).close()
    assert {schema for schema, _ in tables(pg_url)} == {"ematix_flow", "public"}
    odd = f"{pg_url}?schema={quote('My 100% schema')}&application_name=flow&connect_timeout=3"
    log = from_url(odd)
    log.record_run("p", MORNING, True)
    assert ("My 100% schema", "run_log") in tables(pg_url)
    assert list(log.last_runs()) == ["p"]
    log.close()
    PostgresRunLog(pg_url.replace("postgresql://", "postgres://"), schema='with "quotes"').close()
    assert ('with "quotes"', "slots") in tables(pg_url)


def test_postgres_tables_are_not_made_when_that_is_off(pg_url: str) -> None:
    with pytest.raises(InvalidConfig, match="create_tables is off"):
        from_url(f"{pg_url}?create_tables=false")
    assert tables(pg_url) == set()
    from_url(pg_url).close()
    import psycopg

    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS only_writes")
        db.execute("CREATE ROLE only_writes LOGIN PASSWORD 'wr1tes-only'")
        db.execute("GRANT USAGE ON SCHEMA ematix_flow TO only_writes")
        db.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ematix_flow TO only_writes")
        try:
            whole = urlsplit(pg_url)
            login = whole._replace(netloc=f"only_writes:wr1tes-only@{whole.hostname}:{whole.port}").geturl()
            for url in (f"{login}?create_tables=false", login):
                log = from_url(url)
                log.record_run_record(done("r"))
                assert log.claim("p", "ann", 0).acquired
                log.close()
        finally:
            db.execute("DROP OWNED BY only_writes")
            db.execute("DROP ROLE only_writes")


_OPENER = """
import sys
from ematix_flow.run.runlogs.urls import from_url
sys.stdin.readline()
log = from_url(sys.argv[1])
log.record_run(sys.argv[2], log.clock(), True)
log.close()
"""


@pytest.mark.parametrize("fixture", ["pg_url", "mysql_url"])
def test_processes_make_the_tables_at_the_same_time(fixture: str, request) -> None:
    url = request.getfixturevalue(fixture)
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", _OPENER, url, str(number)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for number in range(3)
    ]
    for opener in openers:
        opener.stdin.write("go\n")
        opener.stdin.flush()
    for opener in openers:
        _, said = opener.communicate(timeout=60)
        assert opener.returncode == 0, said
    log = from_url(url)
    assert set(log.last_runs()) == {"0", "1", "2"}
    log.close()


@pytest.mark.parametrize("fixture", ["pg_url", "mysql_url"])
def test_a_wrong_password_is_an_error_without_it(fixture: str, request) -> None:
    whole = urlsplit(request.getfixturevalue(fixture))
    wrong = whole._replace(netloc=f"{whole.username}:not-th3-password@{whole.hostname}:{whole.port}").geturl()
    with pytest.raises(ConnectionFailed, match="cannot be opened") as failed:
        from_url(wrong)
    assert "not-th3-password" not in str(failed.value)
    assert str(whole.port) in str(failed.value)


def test_a_statement_that_is_refused_says_why(pg_url: str) -> None:
    log = from_url(pg_url)
    import psycopg

    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("DROP TABLE ematix_flow.slots")
    with pytest.raises(StatementFailed, match="slots"):
        log.open_slots()
    log.record_run("p", MORNING, True)
    assert list(log.last_runs()) == ["p"], "the connection is as good as before"
    log.close()


# ── MySQL ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_mysql_tables_may_begin_with_a_prefix(mysql_url: str, mariadb_server) -> None:
    whole = urlsplit(mysql_url)
    log = from_url(mysql_url.replace("mysql://", "mariadb://") + "?table_prefix=flow_")
    log.add_slots([Slot("p", MORNING)])
    log.close()
    login = {
        "host": whole.hostname,
        "port": whole.port,
        "user": whole.username,
        "password": whole.password,
        "database": whole.path.strip("/"),
    }
    again = MySQLRunLog(connect_kwargs=login, table_prefix="flow_", create_tables=False)
    assert again.open_slots() == [Slot("p", MORNING)]
    assert str(whole.password) not in again.where
    again.close()
    names = {row[0] for row in mariadb_server.run(f"SHOW TABLES FROM {whole.path.strip('/')}")}
    assert names and all(name.startswith("flow_") for name in names)
    with pytest.raises(InvalidConfig, match="create_tables is off"):
        MySQLRunLog(mysql_url, create_tables=False)
    for wrong in ({}, {"url": mysql_url, "connect_kwargs": login}, {"url": mysql_url, "table_prefix": "a b"}):
        with pytest.raises(InvalidConfig):
            MySQLRunLog(**wrong)


def test_a_name_that_is_too_long_for_mysql_is_refused_and_not_cut(mysql_url: str) -> None:
    log = from_url(mysql_url)
    for write in (
        lambda: log.add_slots([Slot("x" * 600, MORNING)]),
        lambda: log.claim("x" * 600, "ann", 30),
        lambda: log.first_alert("x" * 600, MORNING),
    ):
        with pytest.raises(StatementFailed, match="too long"):
            write()
    assert log.open_slots() == []
    log.close()


# ── a connection that breaks ─────────────────────────────────────────────────────────────────────────────────────────


class ForgetfulLine(WeakLine):
    """Breaks once: a request that holds certain words reaches the server, its answer never comes back."""

    loses: bytes | None = None
    _is_losing = False

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            is_answer = source.getpeername()[1] == self._target[1]
            while data := source.recv(65536):
                if is_answer and self._is_losing:  # so it is done now
                    self._is_losing = False
                    self.drop()
                    break
                if not is_answer and self.loses is not None and self.loses in data:
                    self.loses, self._is_losing = None, True
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        source.close()


@pytest.fixture(params=["pg_url", "mysql_url"])
def line_and_log(request) -> Iterator[tuple[ForgetfulLine, Any, str]]:
    """A line to a server, a log at the other end of it, and the address past it."""
    url = request.getfixturevalue(request.param)
    whole = urlsplit(url)
    line = ForgetfulLine(str(whole.hostname), int(whole.port or 0))
    host = f"{whole.username}:{whole.password}@127.0.0.1:{line.port}"
    log = from_url(whole._replace(netloc=host).geturl())
    yield line, log, url
    log.close()
    line.close()


def test_a_dropped_connection_is_opened_again(line_and_log) -> None:
    line, log, _ = line_and_log
    log.record_run("p", MORNING, True)
    line.drop()
    assert list(log.last_runs()) == ["p"]
    line.drop()
    mine = log.claim("p", "ann", 30)
    assert mine.acquired
    line.drop()
    assert log.heartbeat(mine.token, 30)
    line.drop()
    assert log.add_slots([Slot("p", MORNING)]) == [Slot("p", MORNING)]
    line.cut()
    for ask in (log.last_runs, lambda: log.claim("q", "ann", 30)):
        with pytest.raises(ConnectionFailed, match="run log"):
            ask()
    line.mend()
    assert log.holds(mine.token)


def test_a_claim_survives_a_crash_of_the_server(tmp_path: Path) -> None:
    server = postgres.start(tmp_path / "postgres")
    try:
        log = from_url(server.url)
        mine = log.claim("p", "ann", 60)
        postgres.restart(tmp_path / "postgres")
        assert log.holds(mine.token)
        assert not log.claim("p", "bob", 60).acquired
        log.close()
    finally:
        postgres.stop(tmp_path / "postgres")


def test_what_happened_although_the_answer_was_lost_is_answered_as_it_is(line_and_log) -> None:
    line, log, _ = line_and_log
    line.loses = b"UPDATE"
    assert log.claim("p", "ann", 30).acquired
    line.loses = b"INSERT"
    mine = log.claim("q", "ann", 30)
    assert mine.acquired, "the first claim of a name"
    assert line.loses is None
    log.release(mine.token)
    line.loses = b"UPDATE"
    mine = log.claim("q", "ann", 30)
    assert mine.acquired
    assert line.loses is None
    assert mine.fence == 2, "claimed once"
    slots = [Slot("p", MORNING + timedelta(hours=i)) for i in range(3)]
    line.loses = b"COMMIT"
    assert log.add_slots(slots) == slots
    assert line.loses is None
    moved = replace(slots[0], status="running", attempt=1, run_id="r1", reason="due")
    line.loses = b"COMMIT"
    assert log.move_slot(moved, expected="pending", token=mine.token)
    assert line.loses is None
    assert not log.move_slot(replace(moved, run_id="r2"), expected="pending", token=mine.token)
    run_id = log.enqueue_run("p")
    line.loses = b"COMMIT"
    assert log.consume_requested_run(run_id)
    assert not log.consume_requested_run(run_id)
    line.loses = b"UPDATE"
    assert log.break_claim("q", mine.token)
    assert line.loses is None
    assert not log.break_claim("q", mine.token)
    line.loses = b"INSERT"
    assert log.first_alert("k", MORNING)
    assert line.loses is None
    assert not log.first_alert("k", MORNING)
    line.loses = b"INSERT"
    log.add_event(RunEvent("r1", MORNING, "load", "running"))
    assert line.loses is None
    assert len(log.events("r1")) == 1


@pytest.mark.parametrize("fixture", ["pg_url", "mysql_url"])
def test_who_is_frozen_in_a_transaction_loses_its_locks(fixture: str, request, monkeypatch) -> None:
    """As by SIGSTOP between two statements: the others go on, and when it wakes up it has changed nothing."""
    for kind in (PostgresRunLog, MySQLRunLog):
        monkeypatch.setattr(kind, "frozen_s", 1)
    url = request.getfixturevalue(fixture)
    frozen, other = from_url(url), from_url(url)
    slot = Slot("p", MORNING, "running", 1)
    frozen.add_slots([slot])
    old = frozen.claim("p", "ann", 0.2)
    is_locked, is_taken = threading.Event(), threading.Event()
    answers: list[bool] = []

    def write_the_outcome(db: Db) -> bool:
        seen = db.rows(f"SELECT 1 FROM @pipeline_claims WHERE claim_token = ?{db.words.lock}", old.token)
        is_locked.set()
        assert is_taken.wait(30)
        return bool(seen) and db.change("UPDATE @slots SET status = 'succeeded'") > 0

    thread = threading.Thread(target=lambda: answers.append(frozen._together(write_the_outcome)))
    thread.start()
    assert is_locked.wait(10)
    new = other.claim("p", "bob", 60)
    while not new.acquired:
        new = other.claim("p", "bob", 60)
    is_taken.set()
    thread.join()
    assert answers == [False]
    assert other.open_slots() == [slot]
    assert new.fence == old.fence + 1
    frozen.close()
    other.close()


def test_a_move_that_waits_for_the_claim_sees_who_has_it_then(pg_url: str) -> None:
    """The claim's row is locked by somebody who takes it over while the old holder wants to write its outcome."""
    log, other = from_url(pg_url), from_url(pg_url)
    slot = Slot("p", MORNING, "running", 1)
    log.add_slots([slot])
    old = log.claim("p", "ann", 60)
    import psycopg

    with psycopg.connect(pg_url) as db:
        db.execute("UPDATE ematix_flow.pipeline_claims SET claim_token = 'new', fence = fence + 1")
        answers: list[bool] = []
        mover = threading.Thread(
            target=lambda: answers.append(
                other.move_slot(replace(slot, status="succeeded"), expected="running", token=old.token)
            )
        )
        mover.start()
        asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        with psycopg.connect(pg_url, autocommit=True) as watching:
            while watching.execute(asked).fetchone() == (0,):
                assert mover.is_alive()
        db.commit()
    mover.join()
    assert answers == [False]
    assert log.open_slots() == [slot]
    log.close()
    other.close()


# ── DuckDB ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_duckdb_belongs_to_one_process(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "log.duckdb"
    log = DuckDBRunLog(path)
    log.record_run("p", MORNING, True)
    code = f"from ematix_flow.run.runlogs.urls import from_url; from_url('duckdb://{path}')"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "DuckDB gives a file to one process at a time" in other.stderr
    assert "SQLite, PostgreSQL or MySQL" in other.stderr
    log.close()
    again = from_url(f"duckdb://{path}?create_tables=false&max_records=5")
    assert list(again.last_runs()) == ["p"]
    again.close()
    memory = from_url("duckdb://:memory:")
    assert memory.last_runs() == {}
    memory.close()


# ── retention by URL ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fixture", ["pg_url", "mysql_url"])
def test_old_records_are_removed_when_a_new_one_ends(fixture: str, request) -> None:
    log = from_url(request.getfixturevalue(fixture) + "?max_records=2&max_age_days=1")
    for i in range(4):
        log.add_event(RunEvent(f"r{i}", MORNING, "load", "succeeded"))
        log.record_run_record(done(f"r{i}", hours=i))
    assert [record.run_id for record in log.list_runs()[0]] == ["r3", "r2"]
    assert [len(log.events(f"r{i}")) for i in range(4)] == [0, 0, 1, 1]
    log.record_run_record(done("later", hours=26))
    assert [record.run_id for record in log.list_runs()[0]] == ["later", "r3"]
    log.record_run_record(done("much later", hours=99))
    assert [record.run_id for record in log.list_runs()[0]] == ["much later"]
    log.close()


# ── buckets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_s3_is_found_by_the_usual_credentials_and_keeps_the_documented_objects(
    s3_server, s3_bucket, monkeypatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.loader[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.loader[1])
    log = from_url(f"s3://{s3_bucket}/ops/flow?region=us-east-1&endpoint={s3_server.endpoint}&max_records=2")
    log.record_run("orders", MORNING, True)
    log.record_attempt("orders/daily", AttemptState(1, MORNING))
    objects = {key: json.loads(body) for key, body in s3_server.objects(s3_bucket).items()}
    assert set(objects) == {"ops/flow/run_log/orders.json", "ops/flow/attempt_state/orders%2Fdaily.json"}
    assert objects["ops/flow/run_log/orders.json"]["last_run_at"] == "2026-03-01T06:00:00.000000Z"
    assert objects["ops/flow/run_log/orders.json"]["success"] is True
    # An object as version 1.0.0 wrote it.
    s3_server.client().put_object(
        Bucket=s3_bucket,
        Key="ops/flow/run_log/old.json",
        Body=b'{"last_run_at": "2026-03-01T06:00:00Z", "success": false}',
    )
    assert {name: last.success for name, last in log.last_runs().items()} == {"orders": True, "old": False}
    for i in range(4):
        log.record_run_record(done(f"r{i}", hours=i))
    assert log.prune(max_records=2) == 2
    assert [record.run_id for record in log.list_runs()[0]] == ["r3", "r2"]
    log.close()


def test_s3_refusals_are_errors_without_a_key(s3_server, s3_bucket) -> None:
    with pytest.raises(ConnectionFailed, match="does not exist"):
        S3RunLog("no-such-bucket-anywhere", client=s3_server.client())
    import boto3

    wrong = boto3.session.Session().client(
        "s3",
        endpoint_url=s3_server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=s3_server.loader[0],
        aws_secret_access_key="not-the-s3cret",
    )
    with pytest.raises(ConnectionFailed) as failed:
        S3RunLog(s3_bucket, client=wrong)
    assert "not-the-s3cret" not in str(failed.value)


def test_gcs_is_found_by_its_url(gcs_server, monkeypatch) -> None:
    bucket = gcs_server.new_bucket()
    url = f"gs://{bucket}/flow?endpoint={gcs_server.endpoint}&project=shop"
    with pytest.raises(ConnectionFailed):
        from_url(url)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", gcs_server.loader)
    log = from_url(url)
    log.record_run("p", MORNING, True)
    assert list(gcs_server.objects(bucket)) == ["flow/run_log/p.json"]
    log.close()
    from google.oauth2.service_account import Credentials

    credentials = Credentials.from_service_account_file(
        gcs_server.loader, scopes=["https://www.googleapis.com/auth/devstorage.read_write"]
    )
    again = GcsRunLog(bucket, prefix="flow", credentials=credentials, endpoint=gcs_server.endpoint)
    assert list(again.last_runs()) == ["p"]
    again.close()


def test_azure_is_found_by_its_url(azure_server, monkeypatch) -> None:
    container = azure_server.new_bucket()
    account_url = f"{azure_server.endpoint.rstrip('/')}/{ACCOUNT}"
    monkeypatch.setenv("AZURE_STORAGE_KEY", azure_server.key)
    for scheme in ("azure", "azureblob"):
        log = from_url(f"{scheme}://{ACCOUNT}/{container}/flow?endpoint={account_url}")
        log.record_run(scheme, MORNING, True)
        log.close()
    assert set(azure_server.objects(container)) == {"flow/run_log/azure.json", "flow/run_log/azureblob.json"}
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    again = AzureBlobRunLog(container, account_url=account_url, prefix="flow", credential=azure_server.key)
    assert set(again.last_runs()) == {"azure", "azureblob"}
    again.close()
    reader = AzureBlobRunLog(container, account_url=account_url, prefix="flow", credential=azure_server.reader)
    with pytest.raises(ConnectionFailed, match="may not") as failed:
        reader.record_run("p", MORNING, True)
    assert not [secret for secret in azure_server.secrets() if secret in str(failed.value)]
    reader.close()
    with pytest.raises(InvalidConfig, match="account_url"):
        AzureBlobRunLog(container)


def test_the_documented_paths_lead_here() -> None:
    import ematix_flow.run_log as window
    from ematix_flow.run_log.history import InMemoryRunHistory, PauseChecker, RunHistoryStore, RunRecord as Record

    assert window.from_url is from_url
    assert window.PostgresRunLog is PostgresRunLog
    assert Record is RunRecord
    history: RunHistoryStore = InMemoryRunHistory()
    assert isinstance(history, RunLog)
    assert not PauseChecker(history, "unknown").should_pause()
    with pytest.raises(KeyError):
        PauseChecker(history, "unknown").acknowledge_pause()
    history.close()


def test_a_history_that_does_not_answer_pauses_nobody(caplog) -> None:
    from ematix_flow.run_log.history import InMemoryRunHistory, PauseChecker

    history = InMemoryRunHistory()
    checker = PauseChecker(history, "r")
    history.close()
    assert [checker.should_pause(), checker.should_pause(), checker.should_cancel()] == [False, False, False]
    assert len(caplog.messages) == 1
