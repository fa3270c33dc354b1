"""`kill -9` of loads into lake tables of a bucket, and two processes that load one table there.

The worst moment is on the wire: the data files are in the bucket, and the request that would make them count is not. A
door in front of the server sees that request coming, lets it go no further, and kills the process that sent it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.crash.test_lake_kill import LakeProject, filled
from tests.services.moto import REGION, S3Server

PREFIX = "tables/of/mine"
COMMITS = {
    "delta": re.compile(rb"PUT /[^ ]*/_delta_log/\d{20}\.json"),
    "iceberg": re.compile(rb"PUT /[^ ]*/metadata/v\d+\.metadata\.json"),
}
"""The request that is a commit. Iceberg gives a file that is there its final name, which S3 does by a copy."""

MERGES = """
def declare(part):
    name = f"part{part}"
    @ematix.pipeline(name=name, source_connection="till", target=Loaded, target_connection="lake", mode="merge")
    def load_part(conn):
        return f"SELECT id, name || ' by {part}' AS name FROM source WHERE id = 0 OR id % 2 = {part} - 1"

declare(1)
declare(2)
"""


@dataclass
class BucketProject(LakeProject):
    """A project whose lake is in a bucket."""

    objects: Callable[[], Mapping[str, bytes]] = field(default=dict)

    def files(self) -> Mapping[str, bytes]:
        return {key.removeprefix(f"{PREFIX}/"): content for key, content in self.objects().items()}

    def data_files(self) -> set[str]:
        """The files with rows of the one table, whether they count or not."""
        return {name for name in self.files() if name.startswith("sales/loaded/") and name.endswith(".parquet")}


def bucket_project(folder: Path, kind: str, server: S3Server, bucket: str) -> BucketProject:
    place = {"kind": "delta_s3", "bucket": bucket, "prefix": PREFIX}
    if kind == "iceberg":
        place = {"kind": "iceberg", "warehouse": f"s3://{bucket}/{PREFIX}"}
    login = {"access_key_id": server.loader[0], "secret_access_key": server.loader[1]}
    project = BucketProject(folder, {"LAKE_ENDPOINT": server.endpoint}, lambda: server.objects(bucket))
    filled(project, {**place, "endpoint": "${LAKE_ENDPOINT}", "region": REGION, **login})
    return project


class Door:
    """Everything on its way to a server goes through here, until the request that is waited for comes."""

    def __init__(self, behind: str, awaited: re.Pattern[bytes]) -> None:
        address = urlsplit(behind)
        self._behind, self._awaited = (address.hostname, address.port), awaited
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.came = threading.Event()
        self.victim: subprocess.Popen[str] | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listening.accept()
                if self.came.is_set():
                    near.close()
                    continue
                far = socket.create_connection(self._behind)
                threading.Thread(target=self._pass, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, False), daemon=True).start()

    def _pass(self, giver: socket.socket, taker: socket.socket, watched: bool) -> None:
        seen = b""
        with suppress(OSError), giver, taker:
            while not self.came.is_set() and (some := giver.recv(65536)):
                seen = seen[-1000:] + some
                if watched and self._awaited.search(seen):
                    self._kill()
                    return
                taker.sendall(some)

    def _kill(self) -> None:
        if not self.came.is_set() and self.victim is not None:
            os.killpg(self.victim.pid, signal.SIGKILL)
        self.came.set()

    def close(self) -> None:
        self.came.set()
        self._listening.close()


@contextmanager
def door(server: S3Server, kind: str) -> Iterator[Door]:
    made = Door(server.endpoint, COMMITS[kind])
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("mode", ["append", "merge"])
@pytest.mark.parametrize("kind", list(COMMITS))
def test_a_load_killed_between_its_files_and_its_commit_is_made_good(
    kind: str, mode: str, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    project = bucket_project(tmp_path, kind, s3_server, s3_bucket)
    code, said = project.run(mode)
    assert code == 0, said
    before = project.data_files()
    project.sql("UPDATE source SET name = 'B' WHERE id = 2")
    with door(s3_server, kind) as watched:
        watched.victim = project.start(mode, environment={"LAKE_ENDPOINT": watched.endpoint})
        said, _ = watched.victim.communicate(timeout=300)
        assert watched.came.is_set() and watched.victim.returncode == -signal.SIGKILL, said
    assert project.data_files() > before, "its files had been written"
    assert project.rows() == ["a", "b"], "and nobody sees them"
    code, said = project.run(mode)
    assert code == 0, said
    assert project.rows() == (["B", "a", "a", "b"] if mode == "append" else ["B", "a"])
    assert "running" not in project.statuses() and not project.staged()


@pytest.mark.parametrize("point", ["staged", "committed"])
@pytest.mark.parametrize("kind", list(COMMITS))
def test_a_load_killed_beside_its_commit_is_made_good(
    kind: str, point: str, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    project = bucket_project(tmp_path, kind, s3_server, s3_bucket)
    code, said = project.run("append")
    assert code == 0, said
    project.sql("UPDATE source SET name = 'B' WHERE id = 2")
    code, said = project.run("append", crash_at=point)
    assert code == -signal.SIGKILL, said
    code, said = project.run("append")
    assert code == 0, said
    assert project.rows() == ["B", "a", "a", "b"]
    assert "running" not in project.statuses() and not project.staged()


@pytest.mark.parametrize("kind", list(COMMITS))
def test_two_processes_that_merge_at_once_lose_nothing(
    kind: str, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> None:
    project = bucket_project(tmp_path, kind, s3_server, s3_bucket)
    (tmp_path / "lakes.py").write_text((tmp_path / "lakes.py").read_text() + MERGES)
    project.sql("INSERT INTO source VALUES (0, 'zero')")
    code, said = project.run("merge")
    assert code == 0, said
    project.sql("INSERT INTO source VALUES " + ", ".join(f"({n}, 'row {n}')" for n in range(3, 40)))
    processes = [project.start(f"part{part}") for part in (1, 2)]
    for process in processes:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    found = project.rows()
    written = {1: "a", 2: "b", **{n: f"row {n}" for n in range(3, 40)}}
    zeros = [name for name in found if name.startswith("zero")]
    assert zeros in (["zero by 1"], ["zero by 2"])
    assert sorted(set(found) - set(zeros)) == sorted(f"{name} by {n % 2 + 1}" for n, name in written.items())
    assert len(found) == 40
