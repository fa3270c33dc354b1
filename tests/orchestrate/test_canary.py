"""A marked secret and a marked value of a row, and every place that runs leave something in: neither is in any."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.orchestrate.project import Project
from tests.orchestrate.webhook import Heard

SECRET = "canary-5ecret-7f3a"
VALUE = "canary-value-91c2"

SHOP = f"""
from ematix_flow import Annotated, BigInt, Integer, Text, ematix, pk

@ematix.connection
class warehouse:
    kind = "postgres"
    url = "${{WAREHOUSE_URL}}"

@ematix.table(schema="public")
class Good:
    id: Annotated[BigInt, pk()]
    note: Text

@ematix.table(schema="public")
class Bad:
    id: Annotated[BigInt, pk()]
    note: Integer

@ematix.pipeline(target=Good, target_connection="warehouse", mode="merge", schedule="* * * * *", catchup="latest")
def good(conn):
    ran("good")
    return "SELECT 1 AS id, '{VALUE}' AS note"

@ematix.pipeline(target=Bad, target_connection="warehouse", mode="merge", schedule="* * * * *", catchup="latest")
def bad(conn):
    ran("bad")
    return "SELECT 1 AS id, CAST('{VALUE}' AS integer) AS note"

@pipeline.register(name="shouts", schedule="* * * * *", catchup="latest")
def shouts():
    ran("shouts")
    print("my password is", os.environ["CANARY_PASSWORD"])
    raise RuntimeError("cannot log in with " + os.environ["WAREHOUSE_URL"])
"""


def test_neither_a_secret_nor_a_value_is_left_anywhere(
    pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"canary_{uuid4().hex[:8]}"
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{SECRET}'")
    url = pg_url.replace("postgres:postgres@", f"{role}:{SECRET}@")
    monkeypatch.setenv("WAREHOUSE_URL", url)
    monkeypatch.setenv("CANARY_PASSWORD", SECRET)
    project, heard = Project(tmp_path, url), Heard()
    metrics = tmp_path / "metrics.prom"
    lists: list[str] = []
    try:
        project.write(SHOP)
        running = project.start(
            *(
                "scheduler",
                "--module",
                "flows",
                "--poll-interval",
                "0.2",
                "--alerter",
                heard.url + "?secret=${CANARY_PASSWORD}",
            ),
            *("--metrics", f"textfile://{metrics}", "--traces", "otel://stdout", "--executor", "subprocess+python://"),
        )
        deadline = time.monotonic() + 90
        while {one["name"] for one in project.executions()} < {"good", "bad", "shouts"} or len(heard.bodies) < 2:
            assert time.monotonic() < deadline, project.said()
            lists.append(subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout)
            time.sleep(0.1)
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=30) == 0
        project.until(lambda: '"running"' not in project.flow("runs", "list", "--json").stdout)
        told = {
            # What a pipeline prints itself goes to the terminal as it is, and into files without secrets.
            "what was printed": project.said().replace(f"my password is {SECRET}", ""),
            "alerts": "\n".join(heard.bodies),
            "metrics": metrics.read_text() if metrics.exists() else "",
            "process lists": "\n".join(line for line in "\n".join(lists).splitlines() if "ematix_flow" in line),
            "runs": project.flow("runs", "list", "--limit", "100", "--json").stdout,
            "status": project.flow("status", "--module", "flows", "--json").stdout,
            "files": "\n".join(
                path.read_text(errors="replace") for path in (tmp_path / ".ematix-flow").rglob("*") if path.is_file()
            ),
        }
        for name in ("bad", "shouts"):
            failed = project.flow("run", "--module", "flows", name, "--debug", code=1)
            told[f"traceback of {name}"] = failed.stderr.replace(f"my password is {SECRET}", "")
            assert "Traceback" in told[f"traceback of {name}"] and failed.stdout == ""
        for run in json.loads(told["runs"]):
            told[f"run {run['pipeline']}"] = project.flow("runs", "show", run["run_id"], "--json").stdout
        assert "failed" in told["alerts"] and "good" in told["runs"] and "claim-token" in told["process lists"]
        for place, text in told.items():
            assert SECRET not in text, f"{place} holds the secret:\n{text[:3000]}"
            assert VALUE not in text, f"{place} holds a value of a row:\n{text[:3000]}"
    finally:
        project.close()
        heard.close()
        with psycopg.connect(pg_url, autocommit=True) as db:
            db.execute(f"REASSIGN OWNED BY {role} TO postgres")
            db.execute(f"DROP ROLE {role}")
