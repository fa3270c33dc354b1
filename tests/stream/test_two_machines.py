"""One stream started on two machines by mistake: no lock of a machine helps, so the target keeps the second one out, or
the second one ends the first. `tests/stream/test_faults.py` has it for PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from ematix_flow import MySQLConnection, run_streaming_pipeline
from ematix_flow.backends.mysql import MysqlBackend
from ematix_flow.errors import AlreadyRunning
from tests.services.kafka import KafkaServer
from tests.services.moto import REGION, S3Server
from tests.stream.conftest import Topic
from tests.stream.program import ROOT, keywords

Ids = Callable[[], list[int]]


@pytest.fixture(params=["mysql", "s3-delta", "s3-files"])
def target(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any], Ids]:
    """The fields of a target's connection, the target, and the numbers in it."""
    if request.param == "mysql":
        url = request.getfixturevalue("mysql_url")

        def stored() -> list[int]:
            with MysqlBackend(MySQLConnection(name="end", url=url)).session() as db:
                return [row[0] for row in db.execute("SELECT id FROM events ORDER BY id").fetchall()]

        return {"kind": "mysql", "url": url}, {"table": [url.rpartition("/")[2], "events"]}, stored
    server: S3Server = request.getfixturevalue("s3_server")
    bucket = request.getfixturevalue("s3_bucket")
    fields = {
        "endpoint": server.endpoint,
        "bucket": bucket,
        "region": REGION,
        "access_key_id": server.loader[0],
        "secret_access_key": server.loader[1],
    }
    if request.param == "s3-delta":
        options = {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": server.loader[0],
            "AWS_SECRET_ACCESS_KEY": server.loader[1],
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

        def in_delta() -> list[int]:
            table = DeltaTable(f"s3://{bucket}/shop/events", storage_options=options)
            return sorted(row["id"] for row in table.to_pyarrow_table(columns=["id"]).to_pylist())

        return {"kind": "delta_s3", **fields}, {"table": ["shop", "events"]}, in_delta

    def in_files() -> list[int]:
        from ematix_flow import ObjectStoreS3Connection
        from ematix_flow.df import to_pyspark

        end = ObjectStoreS3Connection(name="end", format="parquet", **fields)
        return sorted(row["id"] for row in to_pyspark(end, "SELECT id FROM `events/`").collect())

    return {"kind": "object_store_s3", "format": "parquet", **fields}, {"prefix": "events/"}, in_files


@contextmanager
def running_elsewhere(given: dict[str, Any], machine: Path) -> Iterator[subprocess.Popen[str]]:
    """A stream in a process that shares no lock and no checkpoint with this one."""
    jars = Path(os.environ["EMATIX_FLOW_CACHE_DIR"])
    (machine / "cache").mkdir(parents=True)
    for entry in jars.iterdir():
        if entry.name != "leases":
            (machine / "cache" / entry.name).symlink_to(entry)
    environment = {
        **os.environ,
        "EMATIX_FLOW_CACHE_DIR": str(machine / "cache"),
        "EMATIX_FLOW_CHECKPOINT_DIR": str(machine / "checkpoints"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.stream.program", json.dumps(given)],
        env=environment,
        cwd=machine,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def stream_of(topic: Topic, end: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    connection = {"kind": "kafka", "bootstrap_servers": topic.server.address, "group_id": f"group-{topic.name}"}
    return {
        "name": f"twice_{topic.name}",
        "connections": {"broker": connection, "end": end},
        "source": "broker",
        "source_query": topic.name,
        "targets": [{"connection": "end", **target}],
        "idle_pause_ms": 100,
    }


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_second_is_kept_out_by_the_target_and_goes_on_when_the_first_has_ended(
    topic: Topic, target: tuple[dict[str, Any], dict[str, Any], Ids], tmp_path: Path
) -> None:
    end, place, stored = target
    topic.send({"id": n} for n in range(20))
    given = stream_of(topic, end, place)
    with running_elsewhere(given, tmp_path / "first") as first:
        wait_until(lambda: topic.committed() >= 20, first)
        with pytest.raises(AlreadyRunning):
            run_streaming_pipeline(**keywords({**given, "once": True}))
        topic.send({"id": n} for n in range(20, 30))
        wait_until(lambda: topic.committed() >= 30, first)  # it never noticed
        os.kill(first.pid, signal.SIGTERM)
        out, err = first.communicate(timeout=60)
        assert first.returncode == 0, err
        assert json.loads(out.splitlines()[-1])["total_rows"] == 30
    topic.send({"id": n} for n in range(30, 35))
    run_streaming_pipeline(**keywords({**given, "once": True}))
    assert stored() == list(range(35)), "it goes on where the target is, with a checkpoint of its own"


def test_the_second_into_kafka_ends_the_first_and_goes_on_where_it_was(
    topic: Topic, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    out = Topic(kafka_server)
    topic.send({"id": n} for n in range(20))
    given = stream_of(topic, {"kind": "kafka", "bootstrap_servers": kafka_server.address}, {"topic": out.name})
    with running_elsewhere(given, tmp_path / "first") as first:
        wait_until(lambda: topic.committed() >= 20, first)
        topic.send({"id": n} for n in range(20, 30))
        run_streaming_pipeline(**keywords({**given, "once": True}))
        topic.send({"id": n} for n in range(30, 40))
        _, err = first.communicate(timeout=120)
        assert first.returncode == 1
        assert "Another run" in err
    run_streaming_pipeline(**keywords({**given, "once": True}))
    found = [json.loads(message.value or b"")["id"] for message in kafka_server.messages(out.name)]
    assert sorted(found) == list(range(40))
