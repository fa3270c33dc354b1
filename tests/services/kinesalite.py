"""A second Kinesis for tests, where moto is too kind: shards that were split come to their end, and children follow.

First the address named by `EMATIX_TEST_KINESIS` (any login does), else kinesalite on a free port of 127.0.0.1, with
everything in memory. It runs on the Node that azurite runs on.

    python -m tests.services.kinesalite fetch           install it into the cache; exit code 1 when it cannot be had
    python -m tests.services.kinesalite stop FOLDER     stop the server of a test run
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from ematix_flow.backends.jars import cache_root
from tests.services.azurite import _node, _npm
from tests.services.background import answers, start_program, stop_program
from tests.services.moto import S3Server
from tests.services.postgres import _free_port
from tests.services.pubsub import listens
from tests.services.run_folder import RunFolder

VARIABLE = "EMATIX_TEST_KINESIS"
VERSION = "3.3.3"
LOGIN = ("any", "any-secret")
PATIENCE = 60.0
# Its own command would listen on every address of the machine.
SERVE = """
const [port] = process.argv.slice(-1);
const settings = {createStreamMs: 20, deleteStreamMs: 20, updateStreamMs: 20, shardLimit: 1000};
require("kinesalite")(settings).listen(Number(port), "127.0.0.1");
"""


def shared_server(folder: RunFolder) -> S3Server:
    """The one server of this test run; the first caller starts it."""
    if outside := os.environ.get(VARIABLE):
        return S3Server(outside, LOGIN, LOGIN)
    address = folder.path / "kinesalite.url"
    with folder.locked("kinesalite"):
        if not address.exists():
            folder.guard(__name__)
            address.write_text(start(folder.path / "kinesalite"))
        return S3Server(address.read_text(), LOGIN, LOGIN)


def fetch() -> tuple[str, Path]:
    """Node, and the folder with the server's modules; installed when they are not there."""
    home = _cache() / f"kinesalite-{VERSION}"
    if not (home / "installed").exists():
        home.mkdir(parents=True, exist_ok=True)
        # Its scripts would build a store on disk; it keeps everything in memory here.
        install = ["install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--prefix", str(home)]
        subprocess.run([*_npm(), *install, f"kinesalite@{VERSION}"], cwd=home, check=True, capture_output=True)
        (home / "installed").touch()
    return _node(), home / "node_modules"


def start(home: Path) -> str:
    """Start a server in `home` on a free port; its URL. Whoever calls it sees to `stop`."""
    node, modules = fetch()
    home.mkdir()
    for _ in range(3):  # between finding a free port and taking it, somebody else may
        port = _free_port()
        pid = start_program(home, ["env", f"NODE_PATH={modules}", node, "-e", SERVE, str(port)])
        if answers(pid, partial(listens, port), PATIENCE):
            return f"http://127.0.0.1:{port}"
    raise RuntimeError(f"kinesalite did not start:\n{(home / 'log').read_text()[-2000:]}")


def stop(home: Path) -> None:
    """Stop the server in `home`."""
    stop_program(home)


def _cache() -> Path:
    return Path(os.environ.get("EMATIX_TEST_CACHE") or cache_root())


if __name__ == "__main__":
    if sys.argv[1:2] == ["stop"]:
        stop(Path(sys.argv[2]) / "kinesalite")
    else:
        try:
            print(fetch()[1])
        except subprocess.CalledProcessError as exc:
            sys.exit(f"kinesalite cannot be installed: {exc.stderr[-500:]!r}")
