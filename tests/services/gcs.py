"""The one Google Cloud Storage of a test run: fake-gcs-server with logins (`programs/gcs`), everything in memory.

It knows two service accounts: one may do everything with buckets, the other may only read. Generations and the
conditions on them are kept as by Google.

    python -m tests.services.gcs fetch           build it into the cache; exit code 1 when it cannot be had
    python -m tests.services.gcs stop FOLDER     stop the server of a test run
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ematix_flow.declare.connection import ObjectStoreGcsConnection
from tests.services.background import answers, start_program, stop_program
from tests.services.go_program import built
from tests.services.postgres import _free_port
from tests.services.run_folder import RunFolder

PROJECT = "shop"
PATIENCE = 60.0
_MAY = {"loader": "write", "reader": "read"}


@dataclass(frozen=True)
class GcsServer:
    """A running server. `loader`, `reader` and `stranger` are key files; the server knows nothing of the last."""

    endpoint: str
    loader: str
    reader: str
    stranger: str

    def connection(
        self, bucket: str, file_format: str = "parquet", *, name: str = "lake", login: str | None = None
    ) -> ObjectStoreGcsConnection:
        """A connection to a bucket, as the loader unless told otherwise."""
        return ObjectStoreGcsConnection(
            name=name,
            bucket=bucket,
            format=file_format,
            project=PROJECT,
            credentials_path=login or self.loader,
            endpoint=self.endpoint,
        )

    def client(self) -> Any:
        """A client of the loader's."""
        return _client(self.endpoint, self.loader)

    def new_bucket(self) -> str:
        """An empty bucket of its own for a test; its name."""
        name = f"t-{uuid.uuid4().hex[:16]}"
        self.client().create_bucket(name)
        return name

    def put(self, bucket: str, key: str, body: bytes) -> None:
        """Put an object there as others would."""
        self.client().bucket(bucket).blob(key).upload_from_string(body)

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Everything in a bucket."""
        return {blob.name: blob.download_as_bytes() for blob in self.client().list_blobs(bucket)}

    def secrets(self) -> list[str]:
        """What no message may hold."""
        return [json.loads(Path(file).read_text())["private_key"] for file in (self.loader, self.reader)]


def shared_server(folder: RunFolder) -> GcsServer:
    """The one server of this test run; the first caller starts it."""
    address = folder.path / "gcs.json"
    with folder.locked("gcs"):
        if not address.exists():
            folder.guard(__name__)
            address.write_text(json.dumps(asdict(start(folder.path / "gcs"))))
        return GcsServer(**json.loads(address.read_text()))


def start(home: Path) -> GcsServer:
    """Start a server in `home` on a free port. Whoever calls it sees to `stop`."""
    program = built("gcs")
    home.mkdir()
    accounts = ",".join(f"{_account(name)}={may}" for name, may in _MAY.items())
    for _ in range(3):  # between finding a free port and taking it, somebody else may
        port = _free_port()
        pid = start_program(home, [str(program), str(port), accounts])
        endpoint = f"http://127.0.0.1:{port}"
        if answers(pid, partial(_is_up, endpoint), PATIENCE):
            files = {name: _key_file(home, name, endpoint) for name in (*_MAY, "stranger")}
            return GcsServer(endpoint, **files)
    raise RuntimeError(f"fake-gcs-server did not start:\n{(home / 'log').read_text()[-2000:]}")


def stop(home: Path) -> None:
    """Stop the server in `home`."""
    stop_program(home)


@contextlib.contextmanager
def fresh_bucket(server: GcsServer) -> Iterator[str]:
    """An empty bucket that only one test sees; gone afterwards, since everything in it is in memory."""
    bucket = server.new_bucket()
    try:
        yield bucket
    finally:
        server.client().bucket(bucket).delete(force=True)


@functools.lru_cache
def _client(endpoint: str, key_file: str) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from google.cloud import storage

    options = {"api_endpoint": endpoint}
    return storage.Client.from_service_account_json(key_file, project=PROJECT, client_options=options)


def _account(name: str) -> str:
    return f"{name}@{PROJECT}.iam.gserviceaccount.com"


def _key_file(home: Path, name: str, endpoint: str) -> str:
    """The key file of a service account, as Google's console gives it out."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = home / f"{name}.json"
    path.write_text(
        json.dumps(
            {
                "type": "service_account",
                "project_id": PROJECT,
                "private_key_id": uuid.uuid4().hex,
                "private_key": private.decode(),
                "client_email": _account(name),
                "client_id": "1",
                "token_uri": f"{endpoint}/token",
            }
        )
    )
    return str(path)


def _is_up(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(f"{endpoint}/storage/v1/b", timeout=5).close()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code == 401  # nobody does anything without a login
    except OSError:
        return False
    return False


if __name__ == "__main__":
    if sys.argv[1] == "stop":
        stop(Path(sys.argv[2]) / "gcs")
    else:
        try:
            print(built("gcs"))
        except RuntimeError as exc:
            print(exc, file=sys.stderr)
            raise SystemExit(1) from None
