"""How long `flow status` and `flow runs list` take with a run log of 100,000 runs of 1,000 pipelines, each of which
waits for up to five others: the questions they ask, and the whole commands, process start included. `flow run-due`
beside them has a log of its own and a minute in which nothing is due, so that it decides and runs nothing.

Run it with `python benchmarks/run_log.py` for SQLite; `--postgres URL` measures that database too, in a schema of its
own that is removed afterwards. Filling the log is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ematix_flow.contracts.orchestration import AttemptState, LastRun, Slot
from ematix_flow.contracts.runtime import RunRecord
from ematix_flow.run.runlogs import rows
from ematix_flow.run.runlogs.rows import RECORD_COLUMNS
from ematix_flow.run.runlogs.store import Db
from ematix_flow.run.runlogs.urls import from_url

RUNS, PIPELINES, TIMES = 100_000, 1_000, 7
STEPS = [{"name": name, "status": "succeeded", "depends_on": [], "duration_ms": 12.5} for name in ("source", "load:t")]
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
MODULE = """
from ematix_flow import Annotated, BigInt, SQLiteConnection, ematix, pk

place = SQLiteConnection(name="place", path="place.db")


@ematix.table(schema="main")
class Numbers:
    number: Annotated[BigInt, pk()]


for i in range(1000):
    waits_for = [f"pipeline_{other:04}" for other in range(max(0, i - 5), i)]

    @ematix.pipeline(
        name=f"pipeline_{i:04}",
        target=Numbers,
        target_connection=place,
        mode="append",
        schedule="*/5 * * * *",
        depends_on=waits_for,
    )
    def numbers(conn):
        return "SELECT 1 AS number"
"""


def main() -> int:
    """Fill, ask, print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--postgres", metavar="URL", help="also measure this PostgreSQL")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how many runs the log holds (default {RUNS:,})")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        found["sqlite"] = measured(f"sqlite://{Path(folder) / 'log.db'}", options.runs)
    if options.postgres:
        sign = "&" if "?" in options.postgres else "?"
        found["postgres"] = measured(f"{options.postgres}{sign}schema=flow_benchmark", options.runs)
        drop_schema(options.postgres)
    if options.json:
        print(json.dumps(found))
    for store, seconds in {} if options.json else found.items():
        for question, took in seconds.items():
            print(f"{store:<9} {question:<28} {took * 1000:8.1f} ms")
    return 0


def measured(url: str, runs: int) -> dict[str, float]:
    """The median seconds of every question, each over a newly opened log, as a command opens it."""
    log: Any = from_url(url)
    fill(log, runs)
    log.close()
    questions: dict[str, Callable[[Any], Any]] = {
        "runs list": lambda log: log.list_runs(limit=20),
        "runs list, one pipeline": lambda log: log.list_runs(pipeline="pipeline_0007", limit=20),
        "runs list, failed": lambda log: log.list_runs(status="failed", limit=20),
        "runs show": lambda log: log.get_run("run-0004"),
        "status": lambda log: (
            log.last_runs(),
            log.attempts(),
            log.claims(),
            log.open_slots(),
            log.paused(),
            log.last_errors(),
        ),
        "last slots": lambda log: log.last_slots(),
    }
    found: dict[str, float] = {}
    for name, ask in questions.items():
        took = []
        for _ in range(TIMES):
            began = time.perf_counter()
            log = from_url(url)
            ask(log)
            took.append(time.perf_counter() - began)
            log.close()
        found[name] = statistics.median(took)
    log = from_url(url)
    began = time.perf_counter()
    log.add_slots(Slot(f"pipeline_{i:04}", START + timedelta(days=999)) for i in range(PIPELINES))
    found[f"add {PIPELINES} slots"] = time.perf_counter() - began
    began = time.perf_counter()
    for i in range(100):
        log.claim(f"pipeline_{i:04}", "worker", 60)
    found["claim, one of 100"] = (time.perf_counter() - began) / 100
    log.close()
    return {**found, **commands(url)}


def commands(url: str) -> dict[str, float]:
    """The median seconds of whole commands."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "many.py").write_text(MODULE)
        env = {**os.environ, "EMATIX_FLOW_RUN_LOG_URL": url, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        run_due = ("run-due", "--module", "many", "--now", "2026-06-01T12:02:00", "--run-log", "sqlite://due.db")
        for words in (("runs", "list"), ("status", "--module", "many"), run_due):
            took = []
            for _ in range(TIMES + 1):  # the first one compiles
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-m", "ematix_flow", *words], cwd=folder, env=env, check=True, capture_output=True
                )
                took.append(time.perf_counter() - began)
            found[f"flow {' '.join(words[:3])}"] = statistics.median(took[1:])
    return found


def fill(log: Any, runs: int) -> None:
    """Runs, slots, last runs and attempts, in large inserts.

    Half of the pipelines count as failed last, and of each every twentieth run failed: a harder log than a true one,
    where what failed last is the newest run.
    """
    records, slots = [], []
    for i in range(runs):
        began, pipeline = START + timedelta(seconds=i), f"pipeline_{i % PIPELINES:04}"
        status: Any = "failed" if (i + i // PIPELINES) % 20 == 0 else "succeeded"
        error = "ConnectionFailed: the server does not answer" if status == "failed" else None
        extras = {"steps": STEPS, "rows_inserted": i, "process": {"host": "worker-1", "pid": i}}
        ended = began + timedelta(seconds=3)
        records.append(RunRecord(f"run-{i:08}", pipeline, status, began, ended, error_summary=error, extras=extras))
        slots.append(Slot(pipeline, began, status, 1, run_id=f"run-{i:08}"))

    def work(db: Db) -> None:
        for start in range(0, runs, 60):
            some = records[start : start + 60]
            insert = db.words.insert("run_records", (*RECORD_COLUMNS, "place"), key="run_id", rows=len(some))
            db.change(insert, *(value for one in some for value in (*rows.record_row(one), rows.place())))

    log._together(work)
    log.add_slots(slots)
    log.add_slots(replace(slot, at=START + timedelta(days=99), status="pending") for slot in slots[:PIPELINES])
    names = [f"pipeline_{i:04}" for i in range(PIPELINES)]
    log.take_over(
        [(name, LastRun(START, i % 2 == 1, START, START)) for i, name in enumerate(names)],
        [(name, AttemptState(1)) for name in names[:50]],
    )
    for name in names[:50]:
        log.claim(name, "worker", 3600)
    if log.words.lock:  # a server that has just been filled has not looked at its tables yet
        log._ask(lambda db: [db.say(f"ANALYZE @{table}") for table in ("run_records", "slots")])


def drop_schema(url: str) -> None:
    """Leave nothing behind."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("DROP SCHEMA flow_benchmark CASCADE")


if __name__ == "__main__":
    sys.exit(main())
