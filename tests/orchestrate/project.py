"""A small project whose pipelines write down, in a file of their own, every time that they really ran."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

PATIENCE_S = 40.0

MODULE = '''
import json, os, pathlib, time
from ematix_flow import current_run, pipeline

HERE = pathlib.Path(os.environ["PROJECT"])

def ran(name):
    """One line per execution: O_APPEND keeps lines of several processes apart."""
    run = current_run()
    with (HERE / "ran.jsonl").open("a") as file:
        file.write(json.dumps({"name": name, "slot": run.slot.isoformat() if run.slot else None, "attempt": run.attempt,
                               "pid": os.getpid()}) + chr(10))

def hold(name):
    """Wait for as long as a file is there, to be killed or frozen in the middle."""
    deadline = time.monotonic() + 60
    while (HERE / f"hold-{name}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)

def fails(name):
    return (HERE / f"fail-{name}").exists()
'''


def quiet_hour() -> tuple[str, datetime]:
    """An hourly schedule and its latest time, a minute or two ago: while a test runs, no other one comes."""
    latest = datetime.now(timezone.utc).replace(second=0, microsecond=0) - timedelta(minutes=1)
    return f"{latest.minute} * * * *", latest


@dataclass
class Project:
    """A folder with a module, and the processes that were started in it."""

    folder: Path
    run_log_url: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def write(self, declarations: str) -> None:
        """The module `flows`."""
        (self.folder / "flows.py").write_text(MODULE + declarations)

    def environment(self, **more: str) -> dict[str, str]:
        """What every process of the project sees."""
        return {
            **os.environ,
            "PROJECT": str(self.folder),
            "HOME": str(self.folder),
            "EMATIX_FLOW_RUN_LOG_URL": self.run_log_url,
            "PYTHONUNBUFFERED": "1",
            **more,
        }

    def start(self, *argv: str, **env: str) -> subprocess.Popen[str]:
        """Start `flow`, with its output in a file beside the project."""
        said = (self.folder / f"said-{len(self.started)}.txt").open("w")
        process = subprocess.Popen(
            [sys.executable, "-m", "ematix_flow", *argv],
            cwd=self.folder,
            env=self.environment(**env),
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        said.close()
        self.started.append(process)
        return process

    def flow(self, *argv: str, code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `flow` to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "ematix_flow", *argv],
            cwd=self.folder,
            env=self.environment(**env),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def run_due(self, *options: str, code: int | None = 0, **env: str) -> dict[str, list[Any]]:
        """What one `flow run-due` did."""
        done = self.flow("run-due", "--module", "flows", *options, code=code, **env)
        found: dict[str, list[Any]] = json.loads(done.stdout)
        return found

    def said(self) -> str:
        """Everything that started processes have printed."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("said-*.txt")))

    def executions(self) -> list[dict[str, Any]]:
        """Every time a body really ran, in order."""
        path = self.folder / "ran.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def times(self) -> Mapping[tuple[str, str], int]:
        """How often each slot of each pipeline was executed."""
        return Counter((one["name"], one["slot"]) for one in self.executions())

    def until(self, is_true: Callable[[], Any], *, within: float = PATIENCE_S) -> Any:
        """Wait for a condition; what it gave."""
        deadline = time.monotonic() + within
        while not (found := is_true()):
            assert time.monotonic() < deadline, f"it did not come true\n{self.said()[-4000:]}"
            time.sleep(0.03)
        return found

    def close(self) -> None:
        """End every process that was started, with its children."""
        for process in self.started:
            for one in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.killpg(process.pid, one)
                except ProcessLookupError:
                    break
            process.wait(timeout=10)


def opened(folder: Path, run_log_url: str) -> Iterator[Project]:
    """A project for one test."""
    project = Project(folder, run_log_url)
    try:
        yield project
    finally:
        project.close()
