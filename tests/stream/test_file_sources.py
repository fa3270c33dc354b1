"""Files as sources of streams: which files are read, what their columns become, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import time
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ematix_flow import (
    ObjectStoreLocalConnection,
    PostgresConnection,
    Source,
    _core,
    run_pipeline,
    run_streaming_pipeline,
)
from ematix_flow.errors import BadMessages, InvalidSource, StateIncompatible, UnsupportedBackend
from tests.services.moto import S3Server
from tests.stream.conftest import Topic


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    return tmp_path / "lake" / "events"


def consume(folder: Path, url: str, file_format: str = "csv", **options: Any) -> dict[str, Any]:
    fields = options.pop("fields", {})
    return run_streaming_pipeline(
        **{
            "name": f"files_{folder.parent.parent.name}",
            "source": ObjectStoreLocalConnection(name="drop", path=str(folder.parent), format=file_format, **fields),
            "source_query": folder.name,
            "target": PostgresConnection(name="warehouse", url=url),
            "target_table": ("public", "events"),
            "once": True,
            **options,
        }
    )


def rows(url: str, sql: str = "SELECT * FROM public.events ORDER BY 1") -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(sql).fetchall()


def test_csv_files_are_read_once_also_those_that_come_late_and_sort_first(
    inbox: Path, pg_url: str, checkpoints: Path
) -> None:
    assert consume(inbox, pg_url)["total_rows"] == 0, "an empty folder is made, and waited at"
    (inbox / "day").mkdir()
    (inbox / "m.csv").write_text("id,name,at,ratio\n1,a,2026-03-01,0.5\n2,,2026-03-02,2\n")
    (inbox / "day" / "n.csv").write_text("name,id\n007,3\n")
    for hidden in ("_half.csv", ".half.csv", "notes.txt"):
        (inbox / hidden).write_text("id,name\n9,x\n")
    assert consume(inbox, pg_url)["total_rows"] == 3
    (inbox / "a.csv").write_text("id,name\n4,d\n")
    last_month = time.time() - 30 * 86_400  # as a copy has it that keeps times
    os.utime(inbox / "a.csv", (last_month, last_month))
    assert consume(inbox, pg_url) == {"total_rows": 1, "iterations": 1, "shutdown_triggered": False}
    assert consume(inbox, pg_url)["total_rows"] == 0
    assert rows(pg_url, "SELECT id, name, at, ratio FROM public.events ORDER BY id") == [
        (1, "a", date(2026, 3, 1), 0.5),
        (2, None, date(2026, 3, 2), 2.0),
        (3, "007", None, None),
        (4, "d", None, None),
    ]
    shutil.rmtree(checkpoints)
    with pytest.raises(StateIncompatible, match="hold files of 'events' already"):
        consume(inbox, pg_url)


def test_a_batch_that_comes_again_is_not_doubled_and_a_checkpoint_put_back_is_noticed(
    inbox: Path, tmp_path: Path, pg_url: str, checkpoints: Path
) -> None:
    inbox.mkdir(parents=True)
    (inbox / "a.csv").write_text("id\n1\n")
    consume(inbox, pg_url)
    shutil.copytree(checkpoints, tmp_path / "copy")
    (inbox / "b.csv").write_text("id\n2\n")
    consume(inbox, pg_url)
    [done] = checkpoints.rglob("commits/1")
    for written in (done, done.with_name(".1.crc")):  # as if it had been killed after the target's commit
        written.unlink()
    assert consume(inbox, pg_url)["total_rows"] == 0
    shutil.rmtree(checkpoints)
    shutil.copytree(tmp_path / "copy", checkpoints)
    (inbox / "c.csv").write_text("id\n3\n")
    with pytest.raises(StateIncompatible, match="with other messages"):
        consume(inbox, pg_url)
    assert rows(pg_url) == [(1,), (2,)]


def test_texts_are_left_to_a_table_that_knows_its_types(inbox: Path, pg_url: str) -> None:
    inbox.mkdir(parents=True)
    (inbox / "a.csv").write_text("version,amount,at\n1.10,12345678901234567.89,2026-03-01T06:00:00Z\n")
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (version text, amount numeric(30, 2), at timestamptz)")
    consume(inbox, pg_url)
    at = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)
    assert rows(pg_url) == [("1.10", Decimal("12345678901234567.89"), at)]


def test_types_that_drift_between_parquet_files_are_widened(inbox: Path, pg_url: str) -> None:
    inbox.mkdir(parents=True)
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id bigint, amount double precision, note text)")
    pq.write_table(
        pa.table({"id": pa.array([1], pa.int32()), "amount": pa.array([2], pa.int64())}), inbox / "a.parquet"
    )
    pq.write_table(pa.table({"id": pa.array([2], pa.int64()), "amount": [0.5], "note": ["x"]}), inbox / "b.parquet")
    assert consume(inbox, pg_url, "parquet")["total_rows"] == 2
    pq.write_table(pa.table({"note": pa.array([7], pa.int16()), "id": pa.array([3], pa.int8())}), inbox / "c.parquet")
    consume(inbox, pg_url, "parquet")
    assert rows(pg_url) == [(1, 2.0, None), (2, 0.5, "x"), (3, None, "7")]


def test_lines_of_json_are_judged_one_by_one(inbox: Path, pg_url: str) -> None:
    part = inbox / "day=2026-03-01"
    part.mkdir(parents=True)
    (part / "a.jsonl").write_text('{"id": 1, "tags": ["x"]}\n\n{broken\n{"id": 2.5}\n')
    with pytest.raises(BadMessages, match="1 message"):
        consume(inbox, pg_url, "json_lines")
    consume(inbox, pg_url, "json_lines", transform_on_error="drop")
    assert rows(pg_url, "SELECT id, tags, day FROM public.events ORDER BY id") == [
        (1.0, ["x"], "2026-03-01"),
        (2.5, None, "2026-03-01"),
    ]


def test_a_row_that_does_not_fit_becomes_a_letter_and_is_replayed(
    inbox: Path, tmp_path: Path, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_NO_DEPRECATION", "1")  # the address of the database stands in the document
    (inbox / "deep").mkdir(parents=True)
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id smallint, at timestamptz)")
    at = datetime(2026, 3, 1, 6, 0, 0, 123456, tzinfo=timezone.utc)
    pq.write_table(pa.table({"id": [1, 70_000], "at": [at, at]}), inbox / "a.parquet")
    document = f"""
        pipeline_name = "letters"
        source_query = "events"
        [source]
        kind = "object_store_local"
        path = "{inbox.parent}"
        format = "parquet"
        [target]
        kind = "postgres"
        url = "{pg_url}"
        table = {{ schema = "public", name = "events" }}
        [transform]
        on_error = "dlq"
    """
    run_pipeline(config_str=document, once=True)
    assert rows(pg_url) == [(1, at)]
    with psycopg.connect(pg_url) as db:
        db.execute("ALTER TABLE public.events ALTER COLUMN id TYPE bigint")
    report = _core.dlq_replay(document, json.dumps({"kind": "all"}))
    assert report["succeeded"] == 1
    assert rows(pg_url) == [(1, at), (70_000, at)]


def test_several_folders_are_one_stream_and_brokers_are_not_mixed_in(inbox: Path, topic: Topic, pg_url: str) -> None:
    drop = ObjectStoreLocalConnection(name="drop", path=str(inbox.parent), format="csv")
    sources = [Source(drop, "events"), Source(drop, "more")]

    def read(*more: Source) -> int:
        told = {"source": None, "source_query": None, "sources": [*sources, *more]}
        return int(consume(inbox, pg_url, **told)["total_rows"])

    with pytest.raises(UnsupportedBackend, match="brokers together with files"):
        read(Source(topic.connection(), topic.name))
    for folder, text in (("events", "id,a\n1,x\n"), ("more", "id,b\n2,y\n")):
        (inbox.parent / folder).mkdir(parents=True)
        (inbox.parent / folder / "f.csv").write_text(text)
    assert read() == 2
    (inbox / "g.csv").write_text("id,a\n3,z\n")
    assert read() == 1
    found = rows(pg_url, "SELECT id, a, b FROM public.events ORDER BY id")
    assert found == [(1, "x", None), (2, None, "y"), (3, "z", None)]


def test_a_folder_that_loads_write_to_is_refused(inbox: Path, pg_url: str) -> None:
    (inbox / "_ematix_flow").mkdir(parents=True)
    (inbox / "_ematix_flow" / "manifest.json").write_text(json.dumps({"version": 1, "files": []}))
    with pytest.raises(InvalidSource, match="a table that ematix-flow writes"):
        consume(inbox, pg_url)


def test_a_prefix_of_a_bucket_is_read_before_and_after_it_has_objects(
    s3_server: S3Server, s3_bucket: str, pg_url: str
) -> None:
    def run() -> Any:
        return run_streaming_pipeline(
            name=f"bucket_{s3_bucket}",
            source=s3_server.connection(s3_bucket, "csv"),
            source_query="in/events",
            target=PostgresConnection(name="warehouse", url=pg_url),
            target_table=("public", "events"),
            transform_sql="SELECT id, upper(name) AS name FROM source",
            once=True,
        )["total_rows"]

    assert run() == 0
    s3_server.client().put_object(Bucket=s3_bucket, Key="in/events/b c.csv", Body=b"id,name\n1,a\n")
    assert run() == 1
    s3_server.client().put_object(Bucket=s3_bucket, Key="in/events/a.csv", Body=b"id,name\n2,b\n")
    assert run() == 1
    assert rows(pg_url) == [(1, "A"), (2, "B")]
