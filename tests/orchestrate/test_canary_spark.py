"""The canary once more, with rows that go through Spark: its pages, its event log, its processes, and loads that fail.

The password stands in the project's file and nowhere else, so that no process has a reason to have it in its
environment or on its command line. The value stands in rows only.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

import psycopg
import pyarrow as pa
from pyarrow import parquet

from ematix_flow.contracts.orchestration import Slot
from ematix_flow.run.runlogs.urls import from_url
from tests.orchestrate.project import Project
from tests.orchestrate.webhook import Heard
from tests.services.postgres import PostgresServer

SECRET = "canary-5ecret-2e8d"
VALUE = "canary-value-60b7"

SHOP = """
from ematix_flow import Annotated, BigInt, Integer, Text, ematix, pk

@ematix.connection
class lake:
    kind = "object_store_local"
    format = "parquet"
    path = "lake"
"""
LOAD = """
@ematix.table(schema="public", name="{name}")
class Of_{name}:
    id: Annotated[BigInt, pk()]
    note: {type}

@ematix.pipeline(source_connection="{source}", target=Of_{name}, target_connection="warehouse", mode="merge",
                 engine="spark", schedule="0 * * * *", catchup="all")
def {name}(conn):
    return "{sql}"
"""
NOTES, FROM_SHOP = "SELECT id, note FROM raw.notes", "FROM public.notes"
LOADS = (
    ("from_files", "Text", "lake", NOTES),
    ("from_database", "Text", "shop", f"SELECT id, note {FROM_SHOP}"),
    ("unfit", "Integer", "lake", NOTES),
    ("unreadable", "Integer", "shop", f"SELECT id, CAST(note AS integer) AS note {FROM_SHOP}"),
    ("unstorable", "Text", "lake", "SELECT id, note FROM raw.odd_notes"),  # PostgreSQL keeps no text with a NUL in it
    ("unwanted", "Text", "lake", NOTES),  # its table has a rule
)
LOADED, REFUSED = [name for name, *_ in LOADS[:2]], [name for name, *_ in LOADS[2:]]

PROJECT = """
[connections.warehouse]
kind = "postgres"
url = "{warehouse}"

[connections.shop]
kind = "postgres"
url = "{shop}"

[spark]
master = "local[2]"

[spark.conf]
"spark.ui.enabled" = "true"
"spark.ui.port" = "{port}"
"spark.eventLog.enabled" = "true"
"spark.eventLog.compress" = "false"
"spark.eventLog.dir" = "{events}"
"""


def test_a_load_through_spark_leaves_neither_a_secret_nor_a_value(
    postgres_server: PostgresServer, pg_url: str, tmp_path: Path
) -> None:
    project, heard, seen = Project(tmp_path, f"sqlite:///{tmp_path / 'runs.db'}"), Heard(), Processes()
    with postgres_server.fresh_database() as shop_url, _login(pg_url) as role:
        port = _prepared(project, pg_url, shop_url, role)
        try:
            running = project.start(
                *("scheduler", "--module", "flows", "--poll-interval", "0.2", "--executor", "workers://?count=1"),
                *("--alerter", heard.url, "--metrics", f"textfile://{tmp_path / 'metrics.prom'}"),
                *("--traces", "otel://stdout", "--lineage", f"file://{tmp_path / 'lineage.jsonl'}"),
            )
            project.until(lambda: seen.looked() and len(_ended(project)) == len(LOADED + REFUSED), within=150)
            assert _ended(project) == {**dict.fromkeys(LOADED, "succeeded"), **dict.fromkeys(REFUSED, "failed")}
            project.until(lambda: len(heard.bodies) >= len(REFUSED))
            pages = spark_pages(port)  # the worker is warm: Spark is still up
            running.send_signal(signal.SIGTERM)
            assert running.wait(timeout=30) == 0
            told = _told(project, heard) | pages
            told["command lines"], told["environments"] = "\n".join(seen.commands), "\n".join(seen.environments)
        finally:
            project.close()
            heard.close()
        with psycopg.connect(pg_url) as db:
            for name in LOADED:
                assert db.execute(f"SELECT note FROM {name}").fetchall() == [(VALUE,)], "it was really there"
    _assert_everything_was_looked_at(told)
    for place, text in told.items():
        assert SECRET not in text, f"{place} holds the secret: {_around(SECRET, text)}"
        assert VALUE not in text, f"{place} holds a value of a row: {_around(VALUE, text)}"
    assert "A value does not fit a type that the query casts it to." in told["a failed run"], "Spark knows no more"


class Processes:
    """What every user of the machine sees of its processes, and what root sees, each time somebody looked."""

    def __init__(self) -> None:
        self.commands: set[str] = set()
        self.environments: set[str] = set()

    def looked(self) -> bool:
        """Look once more."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
            except OSError:
                continue  # it ended, or is somebody else's
            self.commands.add(command.replace(b"\0", b" ").decode(errors="replace"))
            self.environments.add(environment.replace(b"\0", b"\n").decode(errors="replace"))
        return True


def spark_pages(port: int) -> dict[str, str]:
    """Every page of Spark's own pages that the others link to, and what its REST interface says, by address."""
    root, api = f"http://127.0.0.1:{port}", "/api/v1/applications"
    application = json.loads(_got(root + api))[0]["id"]
    words = ("jobs", "stages?details=true", "sql?details=true&planDescription=true&length=1000", "environment")
    waiting = [f"{api}/{application}/{word}" for word in (*words, "allexecutors", "storage/rdd")]
    waiting += [f"/{page}/" for page in ("jobs", "stages", "storage", "environment", "executors", "SQL")]
    found: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = _got(root + path)
        links = re.findall(r'href="(?:http://127\.0\.0\.1:\d+)?(/(?:jobs|stages|SQL)/\w+/?\?[^"#]*)"', found[path])
        waiting += [link.replace("&amp;", "&") for link in links if "kill" not in link and "sort" not in link]
    return found


def _prepared(project: Project, warehouse_url: str, shop_url: str, role: str) -> int:
    """Sources, targets and slots; the port that Spark's pages are to be on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    (project.folder / "events").mkdir()
    urls = {
        name: url.replace("postgres:postgres@", f"{role}:{SECRET}@")
        for name, url in (("warehouse", warehouse_url), ("shop", shop_url))
    }
    events = (project.folder / "events").as_uri()
    (project.folder / ".ematix-flow.toml").write_text(PROJECT.format(**urls, port=port, events=events))
    for name, note in (("notes", VALUE), ("odd_notes", f"{VALUE}\0")):
        (project.folder / "lake/raw" / name).mkdir(parents=True)
        rows = pa.table({"id": pa.array([1], pa.int64()), "note": [note]})
        parquet.write_table(rows, project.folder / "lake/raw" / name / "a.parquet")
    with psycopg.connect(shop_url) as db:
        db.execute("CREATE TABLE notes (id bigint PRIMARY KEY, note text)")
        db.execute("INSERT INTO notes VALUES (1, %s)", (VALUE,))
    with psycopg.connect(warehouse_url) as db:
        db.execute("CREATE TABLE unwanted (id bigint PRIMARY KEY, note text NOT NULL CHECK (length(note) < 5))")
    loads = [LOAD.format(name=name, type=kind, source=source, sql=sql) for name, kind, source, sql in LOADS]
    project.write(SHOP + "".join(loads))
    log = from_url(project.run_log_url)
    hour = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0)
    log.add_slots([Slot(name, hour) for name in LOADED + REFUSED])
    log.close()
    return port


@contextmanager
def _login(url: str) -> Iterator[str]:
    """A role whose password is the secret."""
    role = f"canary_{uuid4().hex[:8]}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{SECRET}'")
    try:
        yield role
    finally:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"REASSIGN OWNED BY {role} TO postgres")
            db.execute(f"DROP ROLE {role}")


def _ended(project: Project) -> dict[str, str]:
    """What has become of the slots that are over."""
    log = from_url(project.run_log_url)
    try:
        slots = [slot for name in LOADED + REFUSED for slot in log.slots(name)]
    finally:
        log.close()
    return {slot.pipeline: slot.status for slot in slots if slot.status in ("succeeded", "failed")}


def _told(project: Project, heard: Heard) -> dict[str, str]:
    """Everything that was printed, sent or kept, by its place."""
    told = {
        "what was printed": project.said(),
        "alerts": "\n".join(heard.bodies),
        "metrics": (project.folder / "metrics.prom").read_text(),
        "lineage": (project.folder / "lineage.jsonl").read_text(),
        "run log": _text_below(project.folder, "runs.db*"),
        "events of Spark": _text_below(project.folder / "events", "**/*"),
        "files at home": _text_below(project.folder / ".ematix-flow", "**/*"),
        "runs": project.flow("runs", "list", "--limit", "100", "--json").stdout,
        "status": project.flow("status", "--module", "flows", "--json").stdout,
    }
    unreadable = next(run["run_id"] for run in json.loads(told["runs"]) if run["pipeline"] == "unreadable")
    told["a failed run"] = project.flow("runs", "show", unreadable, "--json").stdout
    told["its output"] = project.flow("logs", unreadable).stdout
    return told


def _assert_everything_was_looked_at(told: dict[str, str]) -> None:
    """Places that were empty would prove nothing."""
    assert "SparkListenerSQLExecutionStart" in told["events of Spark"]
    assert "SparkListenerTaskEnd" in told["events of Spark"] and "ExceptionFailure" in told["events of Spark"]
    assert "org.apache.spark.deploy.SparkSubmit" in told["command lines"] and "warm_worker" in told["command lines"]
    assert "SPARK_HOME" in told["environments"]
    assert sum("/stages/stage/" in place for place in told) >= 2 and "FAILED" in told["/stages/"].upper()
    assert any("/SQL/execution/" in place for place in told) and any("/jobs/job/" in place for place in told)
    assert '"eventType": "FAIL"' in told["lineage"] and '"eventType": "COMPLETE"' in told["lineage"]
    assert '"failed"' in told["alerts"] and "unfit" in told["alerts"]
    assert 'outcome="failure"' in told["metrics"] and "from_files" in told["run log"]


def _got(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as exc:
        raise AssertionError(f"{url}: {exc.read().decode(errors='replace')[:500]}") from exc


def _text_below(folder: Path, pattern: str) -> str:
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob(pattern)) if path.is_file())


def _around(word: str, text: str) -> str:
    place = text.index(word)
    return text[max(0, place - 600) : place + 600]
