"""A small project whose runs are killed: source and target in one database, one pipeline per mode and route."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import psycopg
import pymysql
import pytest

from ematix_flow.backends.locks import digest

MODES = ("append", "truncate", "merge", "scd2")

# They keep a database busy and change nothing. SQLite's depends on the row, or it would be worked out too soon;
# DuckDB's uses one thread, however many there are.
SLOW_ON_SQLITE = (
    "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 60000 + id) SELECT max(n) FROM s) > 0"
)
SLOW_ON_DUCKDB = (
    "id > (WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 150000) SELECT min(n) - 1 FROM s)"
)

MODULE = """
import os
from typing import Annotated
from ematix_flow import BigInt, Integer, Text, ematix, pk

SCHEMA = os.environ["CRASH_SCHEMA"]
SOURCE = os.environ["CRASH_SOURCE"]

@ematix.table(schema=SCHEMA)
class Loaded:
    id: Annotated[BigInt, pk()]
    name: Text | None
    amount: Integer

@ematix.table(schema=SCHEMA, name="loaded")
class Heap:
    id: BigInt
    name: Text | None
    amount: Integer

def declare(mode, engine):
    @ematix.pipeline(
        name=f"{mode}_{engine}",
        target=Heap if mode == "append" else Loaded,
        target_connection="db",
        mode=mode,
        engine=engine,
    )
    def load(conn):
        return SOURCE

@ematix.table(schema=SCHEMA)
class Other:
    id: Annotated[BigInt, pk()]
    name: Text | None

@ematix.pipeline(name="other_pushdown", target=Other, target_connection="db", mode="append", engine="pushdown")
def other(conn):
    return SOURCE

for mode in ("append", "truncate", "merge", "scd2"):
    for engine in ("pushdown", "spark"):
        declare(mode, engine)
"""


@dataclass
class Project:
    """The project, the database behind it, and ways to run and to look."""

    folder: Path
    url: str
    env: dict[str, str] = field(default_factory=dict)

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgres")

    @property
    def is_duckdb(self) -> bool:
        return self.url.startswith("duckdb")

    @property
    def is_mysql(self) -> bool:
        return self.url.startswith("mysql")

    @property
    def has_schemas(self) -> bool:
        return self.is_postgres or self.is_duckdb or self.is_mysql

    @property
    def path(self) -> Path:
        """The database file."""
        return Path(self.url.partition(":///")[2])

    @property
    def source(self) -> str:
        """The table that rows come from."""
        return "raw.source" if self.has_schemas else "source"

    @property
    def slow(self) -> str:
        """A condition that is true of every row and keeps the database busy for a while."""
        if self.is_postgres:
            return "pg_sleep(0.03) IS NOT NULL"
        if self.is_mysql:
            return "sleep(0.03) = 0"
        return SLOW_ON_DUCKDB if self.is_duckdb else SLOW_ON_SQLITE

    def execute(self, sql: str) -> list[Any]:
        """Run one statement and give its rows."""
        if self.is_postgres:
            with psycopg.connect(self.url, autocommit=True) as db:
                cursor = db.execute(sql)
                return cursor.fetchall() if cursor.description else []
        if self.is_duckdb:
            with duckdb.connect(self.path) as db:
                return db.execute(sql).fetchall()
        if self.is_mysql:
            with self.mysql() as db, db.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())
        db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        try:
            return db.execute(sql).fetchall()
        finally:
            db.close()

    def mysql(self) -> Any:
        """A connection of MySQL's driver that commits every statement."""
        address = urlsplit(self.url)
        return pymysql.connect(
            host=address.hostname,
            port=address.port or 3306,
            user=address.username,
            password=address.password or "",
            database=address.path.lstrip("/"),
            autocommit=True,
        )

    def start(self, pipeline: str, *arguments: str, crash_at: str | None = None) -> subprocess.Popen[str]:
        """Start `flow run` in a process group of its own."""
        env = {**self.env, **({"EMATIX_FLOW_CRASH_AT": crash_at} if crash_at else {})}
        return subprocess.Popen(
            [sys.executable, "-m", "ematix_flow", "run", "--module", "crashing", pipeline, *arguments],
            cwd=self.folder,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, pipeline: str, *arguments: str, crash_at: str | None = None) -> tuple[int, str]:
        """Run to the end; exit code and what was said."""
        process = self.start(pipeline, *arguments, crash_at=crash_at)
        out, err = process.communicate(timeout=180)
        return process.returncode, out + err

    def kill_when(self, process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        """`kill -9` the driver as soon as the condition holds."""
        deadline = time.monotonic() + 120
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                out, err = process.communicate(timeout=30)
                raise AssertionError(f"the run ended before it could be killed: {process.returncode}\n{out}\n{err}")
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)

    def staging_exists(self) -> bool:
        """Whether rows are being brought beside the target just now."""
        if self.is_postgres:
            return bool(
                self.execute(
                    "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                    "WHERE n.nspname = 'ematix_flow' AND c.relname LIKE 'stg\\_%'"
                )
            )
        if self.is_mysql:  # staged rows change their name when they settle
            return bool(
                self.execute(
                    "SELECT 1 FROM information_schema.tables "
                    "WHERE table_schema = 'ematix_flow' AND table_comment LIKE 'ematix-flow, passing%'"
                )
            )
        return bool(self.spools())

    def spools(self) -> list[str]:
        """Staged spools beside the database file."""
        root = self.path.parent / f".{self.path.name}.ematix-flow-spool"
        return [entry.name for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []

    def is_leased(self, pipeline: str) -> bool:
        """Whether a run holds the pipeline; only looks, for a lock taken here would send the run away."""
        name = digest(pipeline)
        if self.is_postgres:
            half, other = divmod(int(name, 16), 2**32)
            return bool(
                self.execute(
                    f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted "
                    f"AND classid::bigint = {half} AND objid::bigint = {other}"
                )
            )
        if self.is_mysql:
            return not self.execute(f"SELECT IS_FREE_LOCK('ematix_flow.{name}')")[0][0]
        root = self.path.parent / f".{self.path.name}.ematix-flow-spool"
        return any(root.glob("[!r]*.lock"))  # `read-…` is a reader

    def table(self) -> str:
        return "analytics.loaded" if self.has_schemas else "loaded"

    def rows(self) -> list[Any]:
        """What the target holds, without stamps."""
        return sorted(self.execute(f"SELECT id, name, amount FROM {self.table()}"))

    def history(self) -> list[str]:
        table = "ematix_flow.run_history" if self.has_schemas else "ematix_flow_run_history"
        return [row[0] for row in self.execute(f"SELECT status FROM {table} ORDER BY started_at")]


@pytest.fixture(params=["postgres", "sqlite", "duckdb", "mysql"])
def project(request: pytest.FixtureRequest, tmp_project: Path, tmp_path: Path) -> Iterator[Project]:
    """A project with 200 source rows and nothing loaded yet."""
    (tmp_project / "crashing.py").write_text(MODULE)
    if request.param == "postgres":
        url = request.getfixturevalue("pg_url")
        schema, source = "analytics", "raw.source"
    elif request.param == "mysql":
        url = request.getfixturevalue("mysql_url")
        schema, source = "analytics", "raw.source"
    elif request.param == "duckdb":
        url = f"duckdb:///{tmp_path / 'target.duckdb'}"
        schema, source = "analytics", "raw.source"
    else:
        url = f"sqlite:///{tmp_path / 'target.db'}"
        schema, source = "main", "source"
    env = {
        **os.environ,
        "EMATIX_FLOW_DSN_DB": url,
        "CRASH_SCHEMA": schema,
        "CRASH_SOURCE": f"SELECT id, name, amount FROM {source}",
        "EMATIX_FLOW_CACHE_DIR": os.environ["EMATIX_TEST_CACHE"],
    }
    project = Project(tmp_project, url, env)
    if project.has_schemas:
        project.execute("CREATE SCHEMA raw")
        project.execute("CREATE TABLE raw.source (id bigint, name text, amount integer)")
        numbers = "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 200)"
        project.execute(f"INSERT INTO raw.source {numbers} SELECT n, concat('name ', n), n FROM s")
    else:
        project.execute("CREATE TABLE source (id bigint, name text, amount integer)")
        project.execute(
            "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 200) "
            "INSERT INTO source SELECT n, 'name ' || n, n FROM s"
        )
    yield project
