"""The one stand-in for BigQuery of a test run: bqemulator, an imitation on DuckDB, in a process of its own.

First the address named by `EMATIX_TEST_BIGQUERY_URL`, else a server on a free port of 127.0.0.1, everything in memory.
It lives in a Python environment of its own in the cache of the tests, since it asks for other versions of packages than
the project has. The vendor's own client speaks to it, as the service is spoken to but without a login.

    python -m tests.services.bqemulator fetch           install it into the cache; exit code 1 when it cannot be had
    python -m tests.services.bqemulator stop FOLDER     stop the server of a test run
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
import uuid
from functools import partial
from pathlib import Path

from ematix_flow.declare.connection import BigQueryConnection
from tests.services.background import answers, start_program, stop_program
from tests.services.own_python import python_with
from tests.services.postgres import _free_port
from tests.services.run_folder import RunFolder

VARIABLE = "EMATIX_TEST_BIGQUERY_URL"
VERSION = "1.4.0"
PACKAGES = (f"bqemulator=={VERSION}", "duckdb>=1.4,<2", "numpy>=2,<3")
PROGRAM = """
from bqemulator.cli import main
from bqemulator.storage.engine import DuckDBEngine
DuckDBEngine._load_spatial = lambda self: None
main()
"""
"""Starts it without GEOGRAPHY: that part of DuckDB comes from nowhere but its own site, and no test asks for it."""
PATIENCE = 90.0


def connection(name: str = "warehouse") -> BigQueryConnection:
    """A connection to a project that nobody else has; its dataset is not there yet."""
    return BigQueryConnection(name=name, project=f"p-{uuid.uuid4().hex[:12]}", dataset="shop", location="US")


def shared_server(folder: RunFolder) -> str:
    """The address of the one server of this test run; the first caller starts it."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    address = folder.path / "bqemulator.url"
    with folder.locked("bqemulator"):
        if not address.exists():
            folder.guard(__name__)
            address.write_text(start(folder.path / "bqemulator"))
        return address.read_text()


def fetch() -> Path:
    """The Python that has it; installed when it is not."""
    return python_with("bqemulator", VERSION, PACKAGES)


def start(home: Path) -> str:
    """Start a server in `home` on a free port; its address. Whoever calls it sees to `stop`."""
    home.mkdir()
    python = fetch()
    for _ in range(3):  # between finding a free port and taking it, somebody else may
        rest, storage = _free_port(), _free_port()
        ports = ["--rest-port", str(rest), "--grpc-port", str(storage)]
        program = ["env", f"TMPDIR={home}", str(python), "-c", PROGRAM]  # files of load jobs stay there
        pid = start_program(home, [*program, "start", *ports, "--log-level", "warning"])
        if answers(pid, partial(_answers, rest), PATIENCE):
            return f"http://127.0.0.1:{rest}"
    raise RuntimeError(f"bqemulator did not start:\n{(home / 'log').read_text()[-2000:]}")


def stop(home: Path) -> None:
    """Stop the server in `home`."""
    stop_program(home)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as answer:
        return bool(answer.status == 200)
    return False


if __name__ == "__main__":
    if sys.argv[1] == "fetch":
        try:
            print(fetch())
        except subprocess.CalledProcessError as exc:
            sys.exit(f"bqemulator cannot be installed: {exc.stderr[-500:]}")
    else:
        stop(Path(sys.argv[2]) / "bqemulator")
