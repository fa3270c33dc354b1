"""What a stream remembers outlives its disk: the copy of a checkpoint in PostgreSQL."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import (
    Aggregation,
    KafkaConnection,
    PostgresConnection,
    SQLiteConnection,
    StateStore,
    Target,
    Window,
    run_streaming_pipeline,
)
from ematix_flow.backends.checkpoint_mirror import CheckpointMirror
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.errors import ConnectionFailed
from ematix_flow.run.streams import Stream
from ematix_flow.spark.checkpoints import CheckpointFolder
from ematix_flow.spark.session import close_session
from tests.services.moto import S3Server
from tests.stream.conftest import Topic


def test_a_stream_whose_disk_is_lost_goes_on_from_its_state_store(
    topic: Topic, pg_url: str, checkpoints: Path, tmp_path: Path
) -> None:
    def consume() -> dict[str, Any]:
        return run_streaming_pipeline(
            name=f"kept_{topic.name}",
            source=topic.connection(),
            source_query=topic.name,
            target=PostgresConnection(name="pg", url=pg_url),
            target_table=("public", "events"),
            state_store=StateStore(kind="postgres", url=pg_url, schema="flow_state"),
            once=True,
        )

    topic.send({"id": n} for n in range(30))
    consume()
    shutil.rmtree(checkpoints)
    with psycopg.connect(pg_url) as db:
        # Without what the target knows, only the state store can say where the stream is.
        db.execute("DELETE FROM ematix_flow.applied_runs")
    topic.send({"id": n} for n in range(30, 40))
    assert consume()["total_rows"] == 10
    with psycopg.connect(pg_url) as db:
        assert [row[0] for row in db.execute("SELECT id FROM public.events ORDER BY id").fetchall()] == list(range(40))
        (positions,) = db.execute("SELECT convert_from(offset_bytes, 'UTF8') FROM flow_state.ematix_streaming_offsets")
    assert sum(json.loads(positions[0])[topic.name].values()) == 40


def test_a_state_store_with_a_path_is_where_the_checkpoint_is(topic: Topic, tmp_path: Path) -> None:
    spec = stream_spec(
        {
            "name": "somewhere",
            "source": topic.connection(),
            "source_query": topic.name,
            "target": PostgresConnection(name="pg", url="postgresql://u@h/d"),
            "target_table": ("public", "events"),
            "state_store": StateStore(kind="rocksdb", path=str(tmp_path / "kept")),
        },
        user_location(),
    )
    assert CheckpointFolder.of(spec).path == tmp_path / "kept"


def test_a_store_in_memory_forgets_with_its_process(topic: Topic, tmp_path: Path, checkpoints: Path) -> None:
    def consume() -> int:
        minutes = Window("tumbling", [Aggregation("count", "n")], duration_ms=60_000, event_time_column="at")
        return int(
            run_streaming_pipeline(
                name=f"forgets_{topic.name}",
                source=topic.connection(),
                source_query=topic.name,
                target=SQLiteConnection(name="lite", path=str(tmp_path / "minutes.db")),
                target_table=("main", "minutes"),
                window=minutes,
                state_store=StateStore("in_memory"),
                once=True,
            )["total_rows"]
        )

    topic.send({"at": f"2026-03-01T06:0{minute}:00Z"} for minute in (0, 0, 1, 1, 1))
    assert consume() == 1
    assert not list(checkpoints.rglob("current.json")) and not list(checkpoints.rglob("gen-*"))
    topic.send({"at": f"2026-03-01T06:0{minute}:00Z"} for minute in (1, 2))
    assert consume() == 1
    with sqlite3.connect(tmp_path / "minutes.db") as db:
        assert db.execute("SELECT n FROM minutes ORDER BY window_start").fetchall() == [(2,), (1,)]


def test_files_that_go_while_they_are_copied_are_no_obstacle(pg_url: str, tmp_path: Path) -> None:
    mirror, ended = CheckpointMirror(pg_url, "flow_state", "restless", tmp_path), threading.Event()
    mirror.open()
    (tmp_path / "current.json").write_text("{}")

    def come_and_go() -> None:
        while not ended.is_set():
            for number in range(50):
                (tmp_path / "spool" / str(number)).mkdir(parents=True, exist_ok=True)
                (tmp_path / "spool" / str(number) / "0.parquet").write_text("x")
            shutil.rmtree(tmp_path / "spool")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for version in range(30):
            mirror.copy(version, {})
    finally:
        ended.set()
        thread.join()
    mirror.copy(30, {})
    with psycopg.connect(pg_url) as db:
        assert db.execute("SELECT group_key FROM flow_state.ematix_streaming_state").fetchall() == [("current.json",)]


def test_a_checkpoint_may_be_in_a_bucket(
    topic: Topic, pg_url: str, s3_server: S3Server, s3_bucket: str, tmp_project: Path, checkpoints: Path
) -> None:
    key, secret = s3_server.loader
    options = {
        "name": f"remote_{topic.name}",
        "source": topic.connection(),
        "source_query": topic.name,
        "target": PostgresConnection(name="pg", url=pg_url),
        "target_table": ("public", "events"),
        "checkpoint": f"s3a://{s3_bucket}/checkpoints/visits",
        "once": True,
    }
    hadoop = f"spark.hadoop.fs.s3a.bucket.{s3_bucket}."
    settings = {
        "endpoint": s3_server.endpoint,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": key,
        "secret.key": secret,
    }
    lines = "\n".join(f'"{hadoop}{name}" = "{value}"' for name, value in settings.items())
    (tmp_project / ".ematix-flow.toml").write_text(f"[spark.conf]\n{lines}\n")
    close_session()  # settings of the project reach a session when it is opened
    topic.send({"id": n} for n in range(20))
    assert run_streaming_pipeline(**options)["total_rows"] == 20
    assert any("/commits/0" in name for name in s3_server.objects(s3_bucket))
    topic.send([{"id": 20}])
    assert run_streaming_pipeline(**options)["total_rows"] == 1
    with psycopg.connect(pg_url) as db:
        assert [row[0] for row in db.execute("SELECT id FROM public.events ORDER BY id").fetchall()] == list(range(21))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"transform_on_error": "dlq"}, "dead letters stay on this machine"),
        ({"transform_on_error": "dlq", "dead_letter_topic": "letters"}, None),
        ({"continue_on_target_failure": True}, "rows that wait for a target stay on this machine"),
        ({}, None),
    ],
)
def test_what_a_checkpoint_in_a_bucket_leaves_on_this_machine_is_said(
    options: dict[str, Any], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    declared = {
        "name": "remote",
        "source": KafkaConnection(name="broker", bootstrap_servers="h:1", group_id="g"),
        "source_query": "visits",
        "targets": [
            Target(connection=SQLiteConnection(name=name, path=name), table=("main", "t")) for name in ("a", "b")
        ],
        "checkpoint": "s3a://bucket/visits",
    }
    stream = Stream(stream_spec({**declared, **options}, user_location("remote")))
    with caplog.at_level("WARNING", "ematix_flow"):
        stream._refuse_checkpoint_elsewhere([])
    assert said in caplog.text if said else not caplog.text


def test_a_checkpoint_that_cannot_be_reached_is_one_clear_error(topic: Topic, tmp_project: Path) -> None:
    close_session()
    with pytest.raises(ConnectionFailed, match="The checkpoint at s3a://nowhere/visits cannot be reached") as caught:
        run_streaming_pipeline(
            name=f"lost_{topic.name}",
            source=topic.connection(),
            source_query=topic.name,
            target=SQLiteConnection(name="db", path=str(tmp_project / "x.db")),
            target_table=("main", "events"),
            checkpoint="s3a://nowhere/visits",
            once=True,
        )
    assert "spark.hadoop.fs.s3a.access.key" in str(caught.value.fix)
