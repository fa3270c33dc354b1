"""Schema registries for tests: Confluent's REST API kept in memory, with a login or a base path where a test asks.

The shared one has neither. It checks no compatibility: every new version is taken.

    python -m tests.services.schema_registry fetch           build it into the cache; exit code 1 when it cannot be had
    python -m tests.services.schema_registry stop FOLDER     stop the servers of a test run
"""

from __future__ import annotations

import base64
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.services.background import answers, start_program, stop_program
from tests.services.go_program import built
from tests.services.postgres import _free_port
from tests.services.pubsub import listens
from tests.services.run_folder import RunFolder

PATIENCE = 60.0


def shared_server(folder: RunFolder) -> str:
    """The URL of the one registry of this test run; the first caller starts it."""
    address = folder.path / "schema_registry.url"
    with folder.locked("schema_registry"):
        if not address.exists():
            folder.guard(__name__)
            address.write_text(start(folder.path / "schema_registry"))
        return address.read_text()


def start(home: Path, *, user: str | None = None, password: str = "", base: str = "") -> str:
    """Start a registry in `home` on a free port; its URL. Whoever calls it sees to `stop`."""
    program = built("schema_registry")
    home.mkdir()
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    options = ["-base", base, *(["-authorization", f"Basic {login}"] if user else [])]
    for _ in range(3):  # between finding a free port and taking it, somebody else may
        port = _free_port()
        pid = start_program(home, [str(program), "-address", f"127.0.0.1:{port}", *options])
        if answers(pid, partial(listens, port), PATIENCE):
            return f"http://127.0.0.1:{port}{base}"
    raise RuntimeError(f"The schema registry did not start:\n{(home / 'log').read_text()[-2000:]}")


@contextlib.contextmanager
def own_server(*, user: str | None = None, password: str = "", base: str = "") -> Iterator[str]:
    """A registry of a test's own, which ends with it; its URL."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "registry"
        try:
            yield start(home, user=user, password=password, base=base)
        finally:
            stop(home)


def stop(home: Path) -> None:
    """Stop the registry in `home`."""
    stop_program(home)


if __name__ == "__main__":
    if sys.argv[1:2] == ["stop"]:
        stop(Path(sys.argv[2]) / "schema_registry")
    else:
        try:
            print(built("schema_registry"))
        except RuntimeError as missing:
            sys.exit(str(missing))
