"""What a stream remembers outlives its disk: the copy of a checkpoint in PostgreSQL."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import PostgresConnection, SQLiteConnection, StateStore, run_streaming_pipeline
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.errors import ConnectionFailed
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
