"""A user's project over a real database, and what must be true whenever something bad was put into it."""

from __future__ import annotations

import itertools
import os
import re
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg
import pytest
from psycopg import sql as psql

from ematix_flow.cli.main import main
from ematix_flow.declare import registry
from ematix_flow.declare.redaction import forget_secrets
from ematix_flow.run.runlogs.open import from_url
from tests.services.postgres import PostgresServer

Kind = Literal["postgres", "sqlite"]

PASSWORD = "hush-hush-91"
ROW_VALUE = "tulip-garden-4711"
"""Stands in every source table; a message that shows it shows a row of somebody's data."""

IMPORTS = "from ematix_flow import *\nfrom ematix_flow import Annotated, Column, ManagedTable, ematix, pk\n"

_numbers = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The error itself: from the line with its code to the end."""
        lines = self.err.splitlines()
        coded = [i for i, line in enumerate(lines) if re.search(r"\[FLOW\d{3}\]$", line)]
        assert len(coded) == 1, f"one error with one code is expected:\n{self.err}"
        return "\n".join(lines[coded[0] :])


@dataclass
class Bench:
    """One project: a module, a database called `warehouse`, and ways to run and to look."""

    kind: Kind
    folder: Path
    url: str
    admin: str
    capture: pytest.CaptureFixture[str]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        """Where target tables live."""
        return "analytics" if self.kind == "postgres" else "main"

    @property
    def raw(self) -> str:
        """Where source tables live."""
        return "raw" if self.kind == "postgres" else "main"

    def execute(self, *statements: Any, as_admin: bool = False) -> None:
        """Statements of the test, committed; by the user that the pipelines run as, or by the server's own."""
        if self.kind == "postgres":
            with psycopg.connect(self.admin if as_admin else self.url, autocommit=True) as server:
                for statement in statements:
                    server.execute(statement)
            return
        db = sqlite3.connect(self.url.removeprefix("sqlite:///"), isolation_level=None)
        for statement in statements:
            db.execute(statement)
        db.close()

    def rows(self, query: Any) -> list[tuple[Any, ...]]:
        """What a query finds."""
        if self.kind == "postgres":
            with psycopg.connect(self.admin) as server:
                return server.execute(query).fetchall()
        db = sqlite3.connect(self.url.removeprefix("sqlite:///"))
        found = db.execute(query).fetchall()
        db.close()
        return found

    def picture(self) -> dict[str, Any]:
        """Everything in the database but the framework's own tables: names, columns, and rows."""
        return self._postgres_picture() if self.kind == "postgres" else self._sqlite_picture()

    def _postgres_picture(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with psycopg.connect(self.admin) as server:
            relations = server.execute(
                "SELECT n.nspname, c.relname, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = "
                "c.relnamespace WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'ematix_flow') "
                "AND n.nspname NOT LIKE 'pg_t%' ORDER BY 1, 2"
            ).fetchall()
            schemas = server.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_%' AND nspname <> 'ematix_flow' ORDER BY 1"
            ).fetchall()
            found["schemas"] = schemas
            for schema, name, kind in relations:
                columns = server.execute(
                    "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute WHERE attnum > 0 "
                    "AND attrelid = (%s || '.' || %s)::regclass ORDER BY attnum",
                    (_quoted(schema), _quoted(name)),
                ).fetchall()
                content: Any = None
                if kind in "rvmp":
                    query = psql.SQL("SELECT t::text FROM {} AS t ORDER BY 1").format(psql.Identifier(schema, name))
                    content = server.execute(query).fetchall()
                found[f"{schema}.{name}"] = (kind, columns, content)
        return found

    def _sqlite_picture(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        objects = self.rows(
            "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'ematix_flow%' "
            "AND tbl_name NOT LIKE 'ematix_flow%' ORDER BY 1, 2"
        )
        for kind, name, definition in objects:
            content = self.rows(f"SELECT * FROM {_quoted(name)}") if kind in ("table", "view") else None
            found[name] = (kind, definition, content)
        return found

    def history(self) -> list[tuple[Any, ...]]:
        """The runs in the target's own history, oldest first; empty when no run got that far."""
        if self.kind == "postgres":
            if self.rows("SELECT to_regclass('ematix_flow.run_history')::text") == [(None,)]:
                return []
            return self.rows(
                "SELECT pipeline_name, status, error_message FROM ematix_flow.run_history ORDER BY started_at"
            )
        if not self.rows("SELECT 1 FROM sqlite_master WHERE name = 'ematix_flow_run_history'"):
            return []
        return self.rows("SELECT pipeline_name, status, error_message FROM ematix_flow_run_history ORDER BY started_at")

    def run_log(self) -> list[tuple[str, str, str | None]]:
        """The runs in the run log, oldest first: pipeline, status, error."""
        path = Path.home() / ".ematix-flow" / "run_log.db"
        if not path.exists():
            return []
        log = from_url(str(path))
        try:
            records, _ = log.list_runs(limit=50)
        finally:
            log.close()
        return [(record.pipeline, record.status, record.error_summary) for record in reversed(records)]

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def module(self, text: str) -> str:
        """Write a module of its own name; the import system remembers names for the whole process."""
        name = f"bad_input_{next(_numbers)}"
        (self.folder / f"{name}.py").write_text(IMPORTS + text, encoding="utf-8")
        return name

    def flow(self, *words: str) -> Outcome:
        """`flow` in this process."""
        self.capture.readouterr()
        with registry.isolated():
            code = main(list(words))
        said = self.capture.readouterr()
        return Outcome(code, said.out, said.err)

    def run(self, text: str, pipeline: str = "load", *options: str) -> Outcome:
        """`flow run` of a pipeline of this module text."""
        return self.flow("run", "--module", self.module(text), pipeline, *options)

    def process(self, *words: str, program: str = "", **environment: str) -> Outcome:
        """`flow` as a process of its own; `program` is Python that runs in it first."""
        code = f"{program}\nimport sys\nfrom ematix_flow.cli.main import main\nsys.exit(main(sys.argv[1:]))"
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=self.folder,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    # ── judging ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def refused(self, outcome: Outcome, *says: str, code: int | tuple[int, int], fix: str | None = "") -> None:
        """One clear error: the code, the words, a way out, and nothing that does not belong there.

        Args:
            fix: words of the way out; None when there is nothing more to say than the message.
        """
        assert outcome.code in (code if isinstance(code, tuple) else (code,)), outcome
        assert outcome.out == "", "the answer is for results; an error is part of the story"
        assert "Traceback" not in outcome.err
        message = outcome.message
        for words in says:
            assert words in outcome.err, outcome.err
        if fix is not None:
            assert re.search(r"^  fix    \S", message, re.M), message
            assert fix in message, message
        self.keeps_quiet(outcome)

    def keeps_quiet(self, outcome: Outcome) -> None:
        """No secret and no row value anywhere: output, run log, history in the target."""
        log = Path.home() / ".ematix-flow" / "run_log.db"
        recorded = log.read_bytes().decode("utf-8", "replace") if log.exists() else ""
        for text in (outcome.out, outcome.err, recorded, str(self.history())):
            assert PASSWORD not in text
            assert ROW_VALUE not in text

    def recorded_as_failed(self, pipeline: str = "load", *, in_target: bool = True) -> None:
        """The run is in the run log as failed, and in the target's history if it got that far."""
        name, status, error = self.run_log()[-1]
        assert (name, status) == (pipeline, "failed")
        assert error
        history = self.history()
        if in_target:
            assert history, "the run reached the target and is not in its history"
            assert history[-1][:2] == (pipeline, "failed")
            assert history[-1][2]
        else:
            assert history == []


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture(params=["postgres", "sqlite"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def bench(
    kind: Kind,
    tmp_project: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Bench]:
    """The project on one kind of database, with one small source table `people`."""
    forget_secrets()
    path = list(sys.path)
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        admin: str = request.getfixturevalue("pg_url")
        role = f"u_{uuid.uuid4().hex[:12]}"
        database = admin.rsplit("/", 1)[1]
        server.run(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
        server.run(f"ALTER DATABASE {database} OWNER TO {role}")
        url = server.url_of(database, user=role, password=PASSWORD)
        found = Bench(kind, tmp_project, url, admin, capsys)
        found.execute(
            "CREATE SCHEMA raw",
            "CREATE SCHEMA analytics",
            "CREATE TABLE raw.people (id bigint, name text, age bigint)",
            f"INSERT INTO raw.people VALUES (1, '{ROW_VALUE}', 30), (2, 'Bob', 40)",
        )
    else:
        url = f"sqlite:///{tmp_project}/warehouse.db"
        found = Bench(kind, tmp_project, url, "", capsys)
        found.execute(
            "CREATE TABLE people (id bigint, name text, age bigint)",
            f"INSERT INTO people VALUES (1, '{ROW_VALUE}', 30), (2, 'Bob', 40)",
        )
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", url)
    monkeypatch.setenv("NO_COLOR", "1")
    yield found
    sys.path[:] = path
    forget_secrets()
    if kind == "postgres":
        server.run(f"ALTER DATABASE {database} OWNER TO {server.user}")
        with psycopg.connect(admin, autocommit=True) as db:
            db.execute(psql.SQL("DROP OWNED BY {} CASCADE").format(psql.Identifier(role)))
        server.run(f"DROP ROLE {role}")


@pytest.fixture
def people(bench: Bench) -> str:
    """A module: `people` merged into a declared table, whose options the test appends."""
    return PEOPLE.format(schema=bench.schema, raw=bench.raw)


PEOPLE = """
class People(ManagedTable):
    __schema__ = "{schema}"
    __tablename__ = "people_dim"
    id: Annotated[BigInt, pk()]
    name: Text | None
    age: Integer | None

SOURCE = "SELECT id, name, age FROM {raw}.people"
"""
