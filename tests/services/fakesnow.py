"""The one stand-in for Snowflake of a test run: fakesnow, an imitation on DuckDB, in a process of its own.

First the address named by `EMATIX_TEST_SNOWFLAKE_URL`, else a server on a free port of 127.0.0.1, everything in memory.
It lives in a Python environment of its own in the cache of the tests, since it asks for other versions of packages than
the project has. The vendor's own driver speaks to it; what it does not know (`REMOVE`, named files, MERGE within a
transaction) is not used, or tested as text.

    python -m tests.services.fakesnow fetch           install it into the cache; exit code 1 when it cannot be had
    python -m tests.services.fakesnow stop FOLDER     stop the server of a test run
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import uuid
from functools import partial
from pathlib import Path

from ematix_flow.declare.connection import SnowflakeConnection
from tests.services.background import answers, start_program, stop_program
from tests.services.own_python import python_with
from tests.services.postgres import _free_port
from tests.services.run_folder import RunFolder

VARIABLE = "EMATIX_TEST_SNOWFLAKE_URL"
VERSION = "0.12.1"
PACKAGES = (f"fakesnow[server]=={VERSION}", "snowflake-connector-python>=4,<5")
PATIENCE = 60.0


def connection(name: str = "warehouse") -> SnowflakeConnection:
    """A connection to a database that nobody else has."""
    database = f"t_{uuid.uuid4().hex[:12]}".upper()
    return SnowflakeConnection(
        name=name, account="fakesnow", user="fake", password="snow", database=database, schema="PUBLIC"
    )


def shared_server(folder: RunFolder) -> str:
    """The address of the one server of this test run; the first caller starts it."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    address = folder.path / "fakesnow.url"
    with folder.locked("fakesnow"):
        if not address.exists():
            folder.guard(__name__)
            address.write_text(start(folder.path / "fakesnow"))
        return address.read_text()


def fetch() -> Path:
    """The Python that has it; installed when it is not."""
    return python_with("fakesnow", VERSION, PACKAGES)


def start(home: Path) -> str:
    """Start a server in `home` on a free port; its address. Whoever calls it sees to `stop`."""
    home.mkdir()
    python = fetch()
    for _ in range(3):  # between finding a free port and taking it, somebody else may
        port = _free_port()
        pid = start_program(home, [str(python), "-m", "fakesnow", "-s", "-p", str(port)])
        if answers(pid, partial(_listens, port), PATIENCE):
            return f"http://127.0.0.1:{port}"
    raise RuntimeError(f"fakesnow did not start:\n{(home / 'log').read_text()[-2000:]}")


def stop(home: Path) -> None:
    """Stop the server in `home`."""
    stop_program(home)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


if __name__ == "__main__":
    if sys.argv[1] == "fetch":
        try:
            print(fetch())
        except subprocess.CalledProcessError as exc:
            sys.exit(f"fakesnow cannot be installed: {exc.stderr[-500:]}")
    else:
        stop(Path(sys.argv[2]) / "fakesnow")
