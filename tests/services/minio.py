"""MinIO, a second S3 server for the long proofs (`EMATIX_TEST_S3=minio`): durable, and not made for tests.

It has one login, which may do everything; tests of a login that may only read are moto's alone.

    python -m tests.services.minio fetch           build the program into the cache; exit code 1 when it cannot be had
    python -m tests.services.minio stop FOLDER     stop the server of a test run
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import urllib.request
import uuid
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ematix_flow.backends import jars
from tests.services.background import answers, start_program, stop_program
from tests.services.moto import S3Server
from tests.services.postgres import _free_port
from tests.services.run_folder import RunFolder

VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
PATIENCE = 60.0


def program() -> Path | None:
    """The server program: `EMATIX_TEST_MINIO`, one on the PATH, or the one in the cache."""
    for found in (os.environ.get("EMATIX_TEST_MINIO"), shutil.which("minio"), str(_cached())):
        if found and os.access(found, os.X_OK):
            return Path(found)
    return None


def fetch() -> Path:
    """The server program, built from source by Go when it is nowhere; minutes, once."""
    found = program()
    if found is not None:
        return found
    if shutil.which("go") is None:
        raise RuntimeError("MinIO is not on this machine, and Go, which would build it, is not either")
    home = _cached().parent
    home.mkdir(parents=True, exist_ok=True)
    command = ["go", "install", f"github.com/minio/minio@{VERSION}"]
    subprocess.run(command, env={**os.environ, "GOBIN": str(home)}, check=True)
    return _cached()


def _cached() -> Path:
    cache = Path(os.environ.get("EMATIX_TEST_CACHE") or jars.cache_root())
    return cache / "minio" / VERSION / "minio"


def shared_server(folder: RunFolder) -> S3Server:
    """The one server of this test run; the first caller starts it."""
    address = folder.path / "minio.json"
    with folder.locked("minio"):
        if not address.exists():
            folder.guard(__name__)
            address.write_text(json.dumps(asdict(start(folder.path / "minio"))))
        known = json.loads(address.read_text())
        return S3Server(known["endpoint"], tuple(known["loader"]), tuple(known["reader"]))


def start(home: Path) -> S3Server:
    """Start a server in `home` on a free port. Whoever calls it sees to `stop`."""
    found = program()
    if found is None:
        raise RuntimeError("MinIO is not on this machine; `python -m tests.services.minio fetch` builds it")
    home.mkdir()
    login = (f"loader-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex)
    settings = [f"MINIO_ROOT_USER={login[0]}", f"MINIO_ROOT_PASSWORD={login[1]}"]
    for _ in range(3):  # between finding a free port and taking it, somebody else may
        ports = [f"127.0.0.1:{_free_port()}" for _ in range(2)]
        serve = [str(found), "server", "--address", ports[0], "--console-address", ports[1], str(home / "store")]
        pid = start_program(home, ["env", *settings, *serve])
        endpoint = f"http://{ports[0]}"
        if answers(pid, partial(_is_up, endpoint), PATIENCE):
            return S3Server(endpoint, login, login)
    raise RuntimeError(f"MinIO did not start:\n{(home / 'log').read_text()[-2000:]}")


def stop(home: Path) -> None:
    """Stop the server in `home`."""
    stop_program(home)


def _is_up(endpoint: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{endpoint}/minio/health/ready", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


if __name__ == "__main__":
    if sys.argv[1] == "stop":
        stop(Path(sys.argv[2]) / "minio")
    else:
        try:
            print(fetch())
        except (RuntimeError, subprocess.CalledProcessError) as exc:
            print(exc, file=sys.stderr)
            raise SystemExit(1) from None
