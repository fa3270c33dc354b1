"""Every documented batch example, run as it is written against a real PostgreSQL.

An example that builds on an earlier one is put behind it in one module, `my_pipelines`. Names that a document uses and
never declares (`DailyRollups`, `CustomerArchive`, a `CustomerDim` with a column `target_col`) are declared by the test.
What a document leaves out on purpose (`def ingest(conn): ...`) is declared as it stands and then filled in and run.

Streams are in `tests/stream/test_seed_sql.py` and `test_seed_commands.py`, with brokers.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow.errors import FlowError
from ematix_flow.run.runlogs.urls import from_url as run_log_from_url
from ematix_flow.watch import alerters, metrics
from tests.docs.seed_examples import NOT_OURS, SEEDS, blocks, command_lines, example, kept
from tests.services.postgres import PostgresServer
from tests.services.run_folder import RunFolder

EVENTS = """
CREATE SCHEMA raw;
CREATE TABLE raw.events (event_id bigint, name text, received_at timestamptz);
INSERT INTO raw.events VALUES
  (1, 'open', '2026-03-01T08:00:00Z'), (2, NULL, '2026-03-01T08:05:00Z'), (3, 'close', '2026-03-01T08:10:00Z');
"""
CUSTOMERS = """
CREATE SCHEMA IF NOT EXISTS raw;
CREATE TABLE raw.customers (customer_id bigint, email text, name text, updated_at timestamptz);
INSERT INTO raw.customers VALUES
  (1, '  Ann@Example.com ', 'Ann', '2026-03-01T08:00:00Z'), (2, '', 'Bob', '2026-03-01T09:00:00Z');
CREATE VIEW customers AS SELECT * FROM raw.customers;
"""


@dataclass
class Project:
    """A user's working directory: one module, an environment, and `flow` as a process of its own."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, *parts: str) -> None:
        """The module `my_pipelines`, put together from examples and the test's own lines."""
        (self.folder / "my_pipelines.py").write_text("\n\n".join(parts), encoding="utf-8")

    def shell(self, line: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """One line as a shell reads it."""
        programs = str(Path(sys.executable).parent)
        return subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "NO_COLOR": "1",
                **self.environment,
                **extra,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def flow(self, line: str, **extra: str) -> subprocess.CompletedProcess[str]:
        """One line that must succeed."""
        done = self.shell(line, **extra)
        assert done.returncode == 0, f"`{line}` ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def run(self, pipeline: str, **extra: str) -> Any:
        """`flow run`, and its result."""
        return json.loads(self.flow(f"flow run --module my_pipelines {pipeline}", **extra).stdout.splitlines()[-1])


@pytest.fixture
def project(tmp_project: Path) -> Project:
    return Project(tmp_project)


@pytest.fixture
def warehouse(pg_url: str, project: Project) -> str:
    """One database that every documented connection name leads to, with the documented source tables."""
    execute(pg_url, EVENTS, CUSTOMERS)
    project.environment |= {
        "WAREHOUSE_URL": pg_url,
        "WAREHOUSE_DSN": pg_url,
        "EMATIX_FLOW_DSN": pg_url,
        "EMATIX_FLOW_DSN_RAW_DB": pg_url,
        "EMATIX_FLOW_DSN_LAKE": pg_url,
    }
    return pg_url


def execute(url: str, *statements: str) -> None:
    """Statements of a test, committed."""
    with psycopg.connect(url, autocommit=True) as db:
        for statement in statements:
            text: Any = statement
            db.execute(text)


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """What a query finds."""
    with psycopg.connect(url) as db:
        text: Any = query
        return db.execute(text).fetchall()


def customer_history(url: str) -> list[tuple[Any, ...]]:
    """The versions in `analytics.customer_dim`, without the times the load itself chose."""
    return rows(
        url,
        "SELECT customer_id, email, name, updated_at::text, is_current, valid_to IS NULL "
        "FROM analytics.customer_dim ORDER BY customer_id, valid_from",
    )


ANN_AND_BOB = [
    (1, "ann@example.com", "Ann", "2026-03-01 08:00:00+00", True, True),
    (2, None, "Bob", "2026-03-01 09:00:00+00", True, True),
]
EVENT_ROWS = [(1, "open"), (2, None), (3, "close")]


def event_rows(url: str) -> list[tuple[Any, ...]]:
    return rows(url, "SELECT event_id, name FROM analytics.events ORDER BY event_id")


# ── the copies are the documents ─────────────────────────────────────────────────────────────────────────────────────

needs_seeds = pytest.mark.skipif(not SEEDS.is_dir(), reason="the documents are not beside this checkout")


@needs_seeds
def test_the_kept_examples_are_the_documents_own_blocks() -> None:
    written = {block.text for block in blocks("readme-0.3.md")}
    assert [name for name, text in kept("readme-0.3").items() if text not in written] == []


@needs_seeds
def test_every_block_of_the_document_is_kept() -> None:
    have = set(kept("readme-0.3").values())
    missing = [
        block.text
        for block in blocks("readme-0.3.md")
        if block.text not in have and not block.text.startswith(NOT_OURS)
    ]
    assert missing == []


@needs_seeds
def test_the_older_examples_differ_from_their_document_in_white_space_only() -> None:
    document = " ".join((SEEDS / "readme-0.1.md").read_text(encoding="utf-8").split())
    assert [name for name, text in kept("readme-0.1").items() if " ".join(text.split()) not in document] == []


# ── the front page ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_introduction_creates_its_table_and_loads_it(project: Project, warehouse: str) -> None:
    project.write(example("readme-0.3/intro.python"))
    result = project.run("ingest_events")
    assert (result["status"], result["rows_inserted"], result["path"]) == ("success", 3, "same_db")
    assert event_rows(warehouse) == EVENT_ROWS
    columns = rows(
        warehouse,
        "SELECT column_name, is_nullable FROM information_schema.columns "
        "WHERE table_schema = 'analytics' AND table_name = 'events' ORDER BY ordinal_position",
    )
    assert columns == [
        ("event_id", "NO"),
        ("name", "YES"),
        ("received_at", "NO"),
        ("_loaded_at", "NO"),
        ("_batch_id", "NO"),
    ]


# ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def documented_names(postgres_server: PostgresServer, project: Project) -> Iterator[PostgresServer]:
    """A server on which the documented addresses lead somewhere: user `user`, databases `wh` and `raw`, host `host`.

    The documents give neither port nor a real host; PostgreSQL's own variables fill those in.
    """
    with RunFolder.joined().locked("documented-names"):  # names of a whole server: one test at a time
        forget = (
            "DROP DATABASE IF EXISTS wh WITH (FORCE)",
            "DROP DATABASE IF EXISTS raw WITH (FORCE)",
            'DROP ROLE IF EXISTS "user"',
        )
        make = (
            "CREATE ROLE \"user\" LOGIN PASSWORD 'spring rain'",
            'CREATE DATABASE wh OWNER "user"',
            'CREATE DATABASE raw OWNER "user"',
        )
        for statement in (*forget, *make):
            postgres_server.run(statement)
        project.environment |= {
            "PGHOSTADDR": socket.gethostbyname(postgres_server.host),
            "PGPORT": str(postgres_server.port),
            "WAREHOUSE_PASSWORD": "spring%20rain",
            "RAW_DB_PASSWORD": "spring%20rain",
            "KAFKA_BOOTSTRAP": "broker:9092",
        }
        try:
            yield postgres_server
        finally:
            for statement in forget:
                postgres_server.run(statement)


def test_the_connections_file_is_listed_and_reached(project: Project, documented_names: PostgresServer) -> None:
    home = project.folder.parent / "home" / ".ematix-flow"
    home.mkdir()
    (home / "connections.toml").write_text(example("readme-0.3/connections.toml"))
    listing, check = command_lines("readme-0.3/connections-inspect.sh")
    listed = project.flow(listing).stdout
    assert re.search(r"kafka_prod\s+.*broker:9092", listed)
    assert re.search(r"warehouse\s+.*postgres://user:\*\*\*@host/wh", listed)
    assert "spring" not in listed
    reached = project.flow(check)
    assert reached.stdout.startswith("warehouse: ok (postgres://user:***@host/wh)")


def test_a_missing_variable_is_shown_beside_its_entry_only(project: Project, documented_names: PostgresServer) -> None:
    home = project.folder.parent / "home" / ".ematix-flow"
    home.mkdir()
    (home / "connections.toml").write_text(example("readme-0.3/connections.toml"))
    del project.environment["WAREHOUSE_PASSWORD"]
    listed = project.flow("flow connections list").stdout
    assert "WAREHOUSE_PASSWORD" in listed
    assert re.search(r"kafka_prod\s+.*broker:9092", listed)


def test_the_older_connections_file_resolves_both_entries(
    project: Project, documented_names: PostgresServer, warehouse: str
) -> None:
    (project.folder / ".ematix-flow.toml").write_text(example("readme-0.1/connections.toml"))
    del project.environment["EMATIX_FLOW_DSN_RAW_DB"]
    project.environment["WAREHOUSE_DSN"] = warehouse.split("://", 1)[1]
    assert project.flow("flow connections check raw_db").stdout.startswith("raw_db: ok (postgres://user:***@host/raw)")
    assert project.flow("flow connections check warehouse").stdout.startswith("warehouse: ok")


def test_connections_declared_by_decorator_are_instances_without_visible_secrets(project: Project) -> None:
    project.write(example("readme-0.3/connections-decorator.python"))
    project.environment |= {"WAREHOUSE_DSN": "postgres://u:tulip-77@h/wh", "KAFKA_BOOTSTRAP": "broker:9092"}
    project.environment |= {"KAFKA_USER": "ann", "KAFKA_PASS": "tulip-78"}
    listed = project.flow("flow connections list --module my_pipelines").stdout
    assert re.search(r"warehouse\s+.*postgres://u:\*\*\*@h/wh", listed)
    assert re.search(r"kafka_prod\s+.*broker:9092", listed)
    assert "tulip" not in listed
    shown = project.flow(
        'python -c "import my_pipelines as m; print(repr(m.warehouse), repr(m.kafka_prod), m.kafka_prod.kind)"'
    ).stdout
    assert shown.startswith("PostgresConnection(name='warehouse', kind='postgres', ")
    assert "KafkaConnection(name='kafka_prod', kind='kafka', " in shown
    assert shown.rstrip().endswith(" kafka")
    assert "tulip" not in shown


def test_a_registered_instance_is_found_by_name_and_reached(project: Project, documented_names: PostgresServer) -> None:
    project.write(example("readme-0.3/connections-instance.python"))
    done = project.flow(
        "flow connections check --module my_pipelines warehouse", PGUSER="user", PGPASSWORD="spring rain"
    )
    assert done.stdout.startswith("warehouse: ok (postgres://localhost/wh)")


@pytest.mark.parametrize("name", ["connections-schema-registry", "payload-format"])
def test_a_schema_registry_is_named_by_a_kafka_connection(project: Project, name: str) -> None:
    project.write("from ematix_flow import ematix", example(f"readme-0.3/{name}.python"))
    shown = project.flow('python -c "import my_pipelines as m; print(m.kafka_avro)"').stdout
    assert "payload_format='avro'" in shown
    assert "schema_registry='sr_prod'" in shown


def test_connections_are_edited_from_the_command_line(project: Project, pg_url: str) -> None:
    listing, check, change = command_lines("readme-0.3/connections-edit.sh")
    filled = change.replace("postgres://...", pg_url)
    assert filled != change
    written = project.flow(filled).stdout
    assert "connections.toml" in written
    assert "warehouse" in project.flow(listing).stdout
    assert project.flow(check).stdout.startswith("warehouse: ok")


def test_the_connections_declared_in_code_carry_a_pipeline(project: Project, warehouse: str) -> None:
    quickstart = example("readme-0.1/quickstart.python").partition("@ematix.pipeline(")[0]
    project.write(quickstart, example("readme-0.1/connections-in-code.python"))
    assert project.run("sync_customers")["rows_inserted"] == 2
    assert customer_history(warehouse) == ANN_AND_BOB


# ── pipelines ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_pipeline_and_its_commands(project: Project, warehouse: str) -> None:
    project.write(example("readme-0.3/pipelines.python"))
    run, run_due, status, preview, validate = command_lines("readme-0.3/pipelines.sh")
    assert '"rows_inserted": 3' in project.flow(run).stdout
    assert re.search(r"ingest_events +\*/5 \* \* \* \*", project.flow(status).stdout)
    shown = project.flow(preview).stdout
    assert "analytics.events" in shown
    assert "SELECT event_id, name, received_at FROM raw.events" in shown
    assert "ingest_events" in project.flow(validate).stdout
    assert event_rows(warehouse) == EVENT_ROWS, "looking changes nothing"
    assert "ingest_events" in project.flow("flow runs list").stdout
    execute(warehouse, "TRUNCATE analytics.events")
    project.flow(run_due)  # due or not, it ends well
    execute(warehouse, "TRUNCATE analytics.events")  # it was due, if this is a full five minutes
    project.flow(at_a_time_when_it_is_due(run_due))
    assert event_rows(warehouse) == EVENT_ROWS


def at_a_time_when_it_is_due(run_due: str) -> str:
    """The command as cron would call it at five past eight, an hour and some days from now."""
    soon = (datetime.now(timezone.utc) + timedelta(days=3)).replace(hour=8, minute=5, second=10, microsecond=0)
    return f"{run_due.partition('#')[0]} --now {soon.isoformat()}"


@pytest.mark.parametrize("name", ["run-due", "run-due-installed"])
def test_due_pipelines_run_by_one_command(project: Project, warehouse: str, name: str) -> None:
    project.write(example("readme-0.3/pipelines.python"))
    (command,) = command_lines(f"readme-0.3/{name}.sh")
    project.flow(command)
    # It was due already, if this is a full five minutes: then the table is there and holds these keys.
    execute(warehouse, "DROP TABLE IF EXISTS analytics.events")
    project.flow(at_a_time_when_it_is_due(command))
    assert event_rows(warehouse) == EVENT_ROWS


def test_due_pipelines_are_recorded_watched_and_counted(project: Project, warehouse: str) -> None:
    project.write(example("readme-0.3/pipelines.python"))
    written = example("readme-0.3/run-due-observed.sh")
    filled = written.replace("postgres://flow:pw@logdb/flow_history", warehouse).replace(":9100", f":{free_port()}")
    assert filled.count(warehouse) == 1 and ":9100" not in filled
    project.flow(at_a_time_when_it_is_due(filled.rstrip()))
    assert event_rows(warehouse) == EVENT_ROWS
    told = json.loads(project.flow(f"flow runs list --json --run-log {warehouse}").stdout)
    assert [(run["pipeline"], run["status"]) for run in told] == [("ingest_events", "succeeded")]


def test_every_documented_address_of_a_log_an_alerter_and_metrics_is_known() -> None:
    text = example("readme-0.3/run-options.text")
    (logs,) = re.findall(r"\(([a-z0-9/]+)\)", text)
    for name in logs.split("/"):
        try:
            run_log_from_url(f"{name}://").close()
        except FlowError as exc:  # a place is missing; the kind is known
            assert "is unknown" not in exc.message
    for url in ("stdout://", "slack://hooks.slack.com/services/T/B/x"):
        assert url.partition("://")[0] in text and alerters.from_url(url)
    for url in ("null://", "stdout://", "memory://", f"prometheus://:{free_port()}", "otlp://127.0.0.1:4317"):
        assert url.partition("://")[0] in text and metrics.from_url(url)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


ROLLUPS = """
@ematix.table(schema="analytics")
class DailyRollups:
    day: Annotated[TimestampTZ, pk()]
    events: BigInt
"""
ROLLUP_SQL = "SELECT date_trunc('day', received_at) AS day, count(*) AS events FROM analytics.events GROUP BY 1"


def test_a_pipeline_with_dependencies_and_retries_is_declared_and_merges(project: Project, warehouse: str) -> None:
    declared = example("readme-0.3/dependencies.python")
    project.write(example("readme-0.3/pipelines.python"), ROLLUPS, declared)
    assert re.search(r"daily_rollups\s+pipeline\s+0 2 \* \* \*", project.flow("flow list --module my_pipelines").stdout)
    filled = declared.replace("SELECT ... FROM analytics.events GROUP BY ...", ROLLUP_SQL)
    assert filled != declared
    project.write(example("readme-0.3/pipelines.python"), ROLLUPS, filled)
    project.run("ingest_events")
    first, second = project.run("daily_rollups"), project.run("daily_rollups")
    assert (first["rows_inserted"], first["rows_updated"], first["rows_unchanged"]) == (1, 0, 0)
    assert (second["rows_inserted"], second["rows_updated"], second["rows_unchanged"]) == (0, 0, 1)
    assert rows(warehouse, "SELECT day::text, events FROM analytics.daily_rollups") == [("2026-03-01 00:00:00+00", 3)]


def tables() -> tuple[str, str]:
    """The two blocks that declare `Events` and `CustomerDim`."""
    return example("readme-0.3/pipelines.python"), example("readme-0.3/tables.python")


def test_a_table_with_markers_is_wired_to_its_source_in_the_same_database(project: Project, warehouse: str) -> None:
    project.write(*tables(), example("readme-0.3/wiring.python"))
    result = project.run("sync_customers")
    assert (result["path"], result["rows_inserted"]) == ("same_db", 2)
    assert customer_history(warehouse) == ANN_AND_BOB
    execute(warehouse, "UPDATE raw.customers SET name = 'Anna' WHERE customer_id = 1")
    changed = project.run("sync_customers")
    assert (changed["rows_inserted"], changed["rows_closed"]) == (1, 1)
    assert [row[2:] for row in customer_history(warehouse)] == [
        ("Ann", "2026-03-01 08:00:00+00", False, False),
        ("Anna", "2026-03-01 08:00:00+00", True, True),
        ("Bob", "2026-03-01 09:00:00+00", True, True),
    ]


@pytest.mark.parametrize("block", ["readme-0.3/wiring.python", "readme-0.1/cross-database.python"])
def test_a_pipeline_crosses_databases(
    project: Project, warehouse: str, postgres_server: PostgresServer, block: str
) -> None:
    project.write(*tables(), example(block))
    with postgres_server.fresh_database() as raw:
        execute(raw, CUSTOMERS)
        result = project.run("sync_customers", EMATIX_FLOW_DSN_RAW_DB=raw)
    assert (result["path"], result["rows_inserted"]) == ("cross_db", 2)
    assert customer_history(warehouse) == ANN_AND_BOB


def test_the_two_signatures_are_what_the_decorator_takes(project: Project, warehouse: str) -> None:
    signatures = example("readme-0.3/signatures.python")
    use = """
options = dict(target=Events, target_connection="warehouse", mode="append")
static = ematix.pipeline(name="static", source_table="raw.events", **options)(sync)
"""
    project.write(*tables(), signatures, use)
    assert project.run("static")["rows_inserted"] == 3
    assert event_rows(warehouse) == EVENT_ROWS


RENAMED = """
@ematix.table(schema="analytics")
class CustomerDim:
    customer_id: Annotated[BigInt, pk()]
    target_col: Text | None
"""


def test_the_static_form_reads_a_table_and_renames_columns(project: Project, warehouse: str) -> None:
    execute(
        warehouse, "ALTER TABLE raw.customers ADD source_col text; UPDATE raw.customers SET source_col = 'x' || name"
    )
    project.write(example("readme-0.3/pipelines.python"), RENAMED, example("readme-0.3/static.python"))
    assert project.run("sync_customers")["rows_inserted"] == 2
    found = rows(warehouse, "SELECT customer_id, target_col FROM analytics.customer_dim ORDER BY 1")
    assert found == [(1, "xAnn"), (2, "xBob")]


def test_the_older_static_form_loads_through_the_default_connection(project: Project, warehouse: str) -> None:
    project.write(*tables(), example("readme-0.1/static.python"))
    assert project.run("sync_customers")["rows_inserted"] == 2
    assert customer_history(warehouse) == ANN_AND_BOB


ARCHIVE = """
@ematix.table(schema="archive")
class CustomerArchive:
    customer_id: Annotated[BigInt, pk()]
    name: Text | None
"""


def test_one_query_feeds_two_tables(project: Project, warehouse: str) -> None:
    project.write(*tables(), ARCHIVE, example("readme-0.3/fan-out.python"))
    result = project.run("sync_customers")
    assert set(result) == {"analytics.customer_dim", "archive.customer_archive"}
    assert [part["rows_inserted"] for part in result.values()] == [2, 2]
    assert rows(warehouse, "SELECT customer_id, email FROM analytics.customer_dim ORDER BY 1") == [
        (1, "ann@example.com"),
        (2, None),
    ]
    assert rows(warehouse, "SELECT customer_id, name FROM archive.customer_archive ORDER BY 1") == [
        (1, "Ann"),
        (2, "Bob"),
    ]


def test_one_query_feeds_tables_of_two_other_databases(
    project: Project, warehouse: str, postgres_server: PostgresServer
) -> None:
    project.write(*tables(), ARCHIVE, example("readme-0.3/fan-out.python"))
    with postgres_server.fresh_database() as raw, postgres_server.fresh_database() as lake:
        execute(raw, CUSTOMERS)
        result = project.run("sync_customers", EMATIX_FLOW_DSN_RAW_DB=raw, EMATIX_FLOW_DSN_LAKE=lake)
        assert [part["path"] for part in result.values()] == ["cross_db", "cross_db"]
        assert rows(lake, "SELECT customer_id, name FROM archive.customer_archive ORDER BY 1") == [
            (1, "Ann"),
            (2, "Bob"),
        ]
    assert rows(warehouse, "SELECT customer_id, email FROM analytics.customer_dim ORDER BY 1") == [
        (1, "ann@example.com"),
        (2, None),
    ]


# ── modes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_append_loads_through_the_default_connection(project: Project, warehouse: str) -> None:
    project.write(*tables(), example("readme-0.3/append.python"))
    assert project.run("ingest")["rows_inserted"] == 3
    assert event_rows(warehouse) == EVENT_ROWS


THREE_COLUMNS = """
@ematix.table(schema="analytics")
class CustomerDim:
    customer_id: Annotated[BigInt, pk()]
    email: Text | None
    name: Text | None
"""


def test_merge_updates_only_what_changed(project: Project, warehouse: str) -> None:
    project.write(example("readme-0.3/pipelines.python"), THREE_COLUMNS, example("readme-0.3/merge.python"))
    assert project.run("sync")["rows_inserted"] == 2
    execute(
        warehouse,
        "UPDATE raw.customers SET name = 'Anna' WHERE customer_id = 1",
        "INSERT INTO raw.customers VALUES (3, 'c@example.com', 'Cleo', now())",
    )
    second = project.run("sync")
    assert (second["rows_inserted"], second["rows_updated"], second["rows_unchanged"]) == (1, 1, 1)
    found = rows(warehouse, "SELECT customer_id, name FROM analytics.customer_dim ORDER BY 1")
    assert found == [(1, "Anna"), (2, "Bob"), (3, "Cleo")]


def test_scd2_takes_its_times_from_the_source_and_closes_old_versions(project: Project, warehouse: str) -> None:
    execute(
        warehouse,
        "UPDATE raw.customers SET updated_at = now() - interval '1 day' WHERE customer_id = 1",
        "UPDATE raw.customers SET updated_at = now() - interval '40 days' WHERE customer_id = 2",
    )
    project.write(*tables(), example("readme-0.3/scd2.python"))
    result = project.run("sync")
    assert (result["rows_inserted"], result["rows_closed"]) == (2, 1)
    found = rows(
        warehouse,
        "SELECT customer_id, valid_from = updated_at, is_current, valid_to IS NULL, octet_length(row_hash) "
        "FROM analytics.customer_dim ORDER BY 1",
    )
    assert found == [(1, True, True, True, 32), (2, True, False, False, 32)]


def test_an_incremental_load_reads_only_what_is_newer_than_its_mark(project: Project, warehouse: str) -> None:
    project.write(*tables(), example("readme-0.3/incremental.python"))
    assert project.run("ingest")["rows_inserted"] == 3
    execute(
        warehouse,
        "INSERT INTO raw.events VALUES (4, 'late', '2026-03-01T07:00:00Z'), (5, 'new', '2026-03-01T09:00:00Z')",
    )
    assert project.run("ingest")["rows_inserted"] == 1
    assert project.run("ingest")["rows_inserted"] == 0
    assert event_rows(warehouse) == [*EVENT_ROWS, (5, "new")]
    marks = rows(warehouse, "SELECT pipeline_name, column_name, last_value FROM ematix_flow.watermarks")
    assert marks == [("ingest", "received_at", "2026-03-01T09:00:00.000000Z")]


INGEST_SQL = 'def ingest(conn): return "SELECT event_id, name, received_at FROM raw.events"'
MART = """
@ematix.transform(name="update_mart")
def update_mart(conn):
    conn.execute("CREATE TABLE mart AS SELECT count(*) AS n FROM analytics.events")
"""


def test_steps_around_a_load_run_in_order(project: Project, warehouse: str) -> None:
    declared = example("readme-0.3/transforms.python")
    filled = declared.replace("def ingest(conn): ...", INGEST_SQL)
    assert filled != declared
    execute(warehouse, "INSERT INTO raw.events VALUES (1, 'reopen', '2026-03-02T00:00:00Z')")
    project.write(*tables(), MART, filled)
    result = project.run("ingest")
    assert result["rows_inserted"] == 2
    assert event_rows(warehouse) == [(1, "reopen"), (3, "close")]
    assert rows(warehouse, "SELECT n FROM mart") == [(2,)]
    steps = rows(
        warehouse,
        "SELECT step_name, status FROM ematix_flow.run_history WHERE mode = 'transform' ORDER BY started_at",
    )
    assert steps == [("transform[0]:sql", "transform_success"), ("transform[1]:ref=update_mart", "transform_success")]
    execute(warehouse, "DROP TABLE mart")
    assert "update_mart" in project.flow("flow transform list --module my_pipelines").stdout
    alone = project.flow("flow transform run --module my_pipelines update_mart", EMATIX_FLOW_DSN=warehouse)
    assert json.loads(alone.stdout.splitlines()[-1])["status"] == "transform_success"
    assert rows(warehouse, "SELECT n FROM mart") == [(2,)]


def test_a_missing_after_load_step_is_recorded_and_the_run_goes_on(project: Project, warehouse: str) -> None:
    project.write(*tables(), example("readme-0.3/transforms.python").replace("def ingest(conn): ...", INGEST_SQL))
    assert project.run("ingest")["rows_inserted"] == 2
    steps = rows(
        warehouse,
        "SELECT step_name, status FROM ematix_flow.run_history WHERE mode = 'transform' ORDER BY started_at",
    )
    assert steps == [("transform[0]:sql", "transform_success"), ("transform[1]:ref=update_mart", "transform_failed")]


@pytest.mark.parametrize("name", ["transforms", "cron"])
def test_a_function_that_was_left_out_is_declared_and_says_what_it_misses(
    project: Project, warehouse: str, name: str
) -> None:
    project.write(*tables(), example(f"readme-0.3/{name}.python"))
    assert re.search(r"ingest\s+pipeline\s+\*/5 \* \* \* \*", project.flow("flow list --module my_pipelines").stdout)
    done = project.shell("flow run --module my_pipelines ingest")
    assert done.returncode == 1
    assert "Pipeline 'ingest' gave no source. [FLOW307]" in done.stderr
    assert "fix    return SQL from the function" in done.stderr


# ── running ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_scheduled_pipeline_is_run_once_by_hand(project: Project, warehouse: str) -> None:
    project.write(*tables(), example("readme-0.3/cron.python").replace("def ingest(conn): ...", INGEST_SQL))
    run, preview, validate = command_lines("readme-0.3/one-shot.sh")
    assert "raw.events" in project.flow(preview).stdout
    assert rows(warehouse, "SELECT to_regclass('analytics.events')::text") == [(None,)], "a preview creates nothing"
    assert "ingest" in project.flow(validate).stdout
    assert '"rows_inserted": 3' in project.flow(run).stdout
    assert event_rows(warehouse) == EVENT_ROWS


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_a_pipeline_is_run_from_python(project: Project, warehouse: str, mode: str) -> None:
    declared = example("readme-0.3/cron.python").replace("def ingest(conn): ...", INGEST_SQL)
    project.write(*tables(), declared.replace('mode="append"', f'mode="{mode}"'))
    (project.folder / "program.py").write_text(example("readme-0.3/programmatic.python"))
    project.flow("python program.py")
    assert event_rows(warehouse) == EVENT_ROWS


def test_the_commands_of_the_quickstart(project: Project, warehouse: str) -> None:
    project.write(example("readme-0.1/quickstart.python"))
    run_due, run, preview, validate = command_lines("readme-0.1/commands.sh")
    project.flow(run_due)
    assert '"rows_inserted": 2' in project.flow(run).stdout
    assert "analytics.customer_dim" in project.flow(preview).stdout
    assert "sync_customers" in project.flow(validate).stdout
    assert customer_history(warehouse) == ANN_AND_BOB


def test_every_command_of_the_overview_exists(project: Project) -> None:
    seen = 0
    for line in command_lines("readme-0.3/commands.sh"):
        words = re.sub(r"--\w+ \S+|<\w+>", "", line.partition("#")[0]).split()
        choices = [word for word in words[2:] if word != "/"] or [""]
        for choice in choices:
            project.flow(" ".join([*words[:2], choice, "--help"]))
            seen += 1
    assert seen == 16
    assert "no connections configured" in project.flow("flow connections list").stdout
    project.flow("flow runs list")


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_format_of_a_file_is_told_by_its_name() -> None:
    lines = example("readme-0.3/file-formats.python").splitlines()
    names: dict[str, Any] = {}
    checked = 0
    for line in lines:
        code, arrow, said = line.partition("# →")
        if arrow:
            assert repr(eval(code, names)) == said.strip().replace('"', "'")
            checked += 1
        else:
            exec(code, names)
    assert checked == 3


LAKE = """
from ematix_flow import ObjectStoreLocalConnection, StateStore, Target
lake = ObjectStoreLocalConnection(name="lake", path="lake", format="{format}")
"""


@pytest.mark.parametrize("name", ["write-options", "read-options", "state-store"])
def test_options_of_files_and_state_are_taken_as_documented(project: Project, name: str) -> None:
    project.write(LAKE.format(format="csv"), example(f"readme-0.3/{name}.python"))
    project.flow('python -c "import my_pipelines"')
