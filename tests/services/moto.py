"""The one S3 server of a test run, which also has Kinesis: moto, in a process of its own, everything in memory.

Signatures and policies are really checked, for two users: one may do everything with buckets, the other may only read.
Conditional PUTs, ranges, uploads in parts and copies work as on Amazon's own.

    python -m tests.services.moto stop FOLDER     stop the server of a test run
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ematix_flow.declare.connection import ObjectStoreS3Connection
from tests.services.background import answers, start_program, stop_program
from tests.services.postgres import _free_port
from tests.services.run_folder import RunFolder

PATIENCE = 60.0
REGION = "us-east-1"
_MAY = {"loader": ["s3:*", "kinesis:*", "glue:*"], "reader": ["s3:Get*", "s3:List*"]}


@dataclass(frozen=True)
class S3Server:
    """A running server. A login is a pair of key and secret."""

    endpoint: str
    loader: tuple[str, str]
    reader: tuple[str, str]

    def connection(
        self, bucket: str, file_format: str = "parquet", *, name: str = "lake", login: tuple[str, str] | None = None
    ) -> ObjectStoreS3Connection:
        """A connection to a bucket, as the loader unless told otherwise."""
        key, secret = login or self.loader
        return ObjectStoreS3Connection(
            name=name,
            endpoint=self.endpoint,
            bucket=bucket,
            region=REGION,
            access_key_id=key,
            secret_access_key=secret,
            format=file_format,
        )

    def client(self) -> Any:
        """A client of the loader's."""
        return _client(self.endpoint, "s3", self.loader)

    def kinesis(self) -> Any:
        """A client of the loader's for Kinesis, which the same server has."""
        return _client(self.endpoint, "kinesis", self.loader)

    def glue(self) -> Any:
        """A client of the loader's for Glue, whose schema registry the same server has."""
        return _client(self.endpoint, "glue", self.loader)

    def new_stream(self, *, shards: int = 2) -> str:
        """An empty Kinesis stream of its own for a test; its name."""
        name = f"t-{uuid.uuid4().hex[:16]}"
        self.kinesis().create_stream(StreamName=name, ShardCount=shards)
        self.kinesis().get_waiter("stream_exists").wait(StreamName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        return name

    def new_bucket(self) -> str:
        """An empty bucket of its own for a test; its name."""
        name = f"t-{uuid.uuid4().hex[:16]}"
        self.client().create_bucket(Bucket=name)
        return name

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Everything in a bucket."""
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}


def shared_server(folder: RunFolder) -> S3Server:
    """The one server of this test run; the first caller starts it."""
    address = folder.path / "moto.json"
    with folder.locked("moto"):
        if not address.exists():
            folder.guard(__name__)
            address.write_text(json.dumps(asdict(start(folder.path / "moto"))))
        known = json.loads(address.read_text())
        return S3Server(known["endpoint"], tuple(known["loader"]), tuple(known["reader"]))


def start(home: Path) -> S3Server:
    """Start a server in `home` on a free port. Whoever calls it sees to `stop`."""
    home.mkdir()
    for _ in range(3):  # between finding a free port and taking it, somebody else may
        port = _free_port()
        pid = start_program(home, [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)])
        endpoint = f"http://127.0.0.1:{port}"
        if answers(pid, partial(_is_up, endpoint), PATIENCE):
            logins = {user: _user(endpoint, user, may) for user, may in _MAY.items()}
            _post(f"{endpoint}/moto-api/reset-auth", "0")  # from now on nobody does anything without a login
            return S3Server(endpoint, logins["loader"], logins["reader"])
    raise RuntimeError(f"moto did not start:\n{(home / 'log').read_text()[-2000:]}")


def stop(home: Path) -> None:
    """Stop the server in `home`."""
    stop_program(home)


@contextlib.contextmanager
def fresh_bucket(server: S3Server) -> Iterator[str]:
    """An empty bucket that only one test sees; gone afterwards, since everything in it is in memory."""
    bucket = server.new_bucket()
    try:
        yield bucket
    finally:
        client = server.client()
        for key in server.objects(bucket):
            client.delete_object(Bucket=bucket, Key=key)
        client.delete_bucket(Bucket=bucket)


@functools.lru_cache
def _client(endpoint: str, service: str, login: tuple[str, str]) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.session.Session().client(
        service,
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=login[0],
        aws_secret_access_key=login[1],
        config=Config(s3={"addressing_style": "path"}),
    )


def _user(endpoint: str, name: str, may: list[str]) -> tuple[str, str]:
    iam = _client(endpoint, "iam", ("nobody", "nothing"))
    iam.create_user(UserName=name)
    allowed: Mapping[str, Any] = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": may, "Resource": "*"}],
    }
    iam.put_user_policy(UserName=name, PolicyName="may", PolicyDocument=json.dumps(allowed))
    made = iam.create_access_key(UserName=name)["AccessKey"]
    return made["AccessKeyId"], made["SecretAccessKey"]


def _post(url: str, body: str) -> None:
    headers = {"Content-Type": "text/plain"}  # else it is taken for a form
    request = urllib.request.Request(url, data=body.encode(), headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def _is_up(endpoint: str) -> bool:
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"{endpoint}/moto-api/data.json", timeout=5) as answer,
    ):
        return bool(answer.status == 200)
    return False


if __name__ == "__main__":
    stop(Path(sys.argv[2]) / "moto")
