"""What a stream remembers outlives its disk: the copy of a checkpoint in PostgreSQL."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import (
    Aggregation,
    Join,
    KafkaConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    Source,
    SQLiteConnection,
    StateStore,
    Target,
    Window,
    run_streaming_pipeline,
)
from ematix_flow.backends.checkpoint_mirror import CheckpointMirror
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.errors import ConnectionFailed, StateIncompatible
from ematix_flow.run.streams import Stream, run_stream
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


class Files:
    """Streams over files, into SQLite, which remember something and have a copy of their checkpoint."""

    def __init__(self, kind: str, folder: Path, pg_url: str) -> None:
        self._folder, self._database, self._sent = folder / "drop", folder / "out.db", 0
        drop = ObjectStoreLocalConnection(name="drop", path=str(self._folder), format="json_lines")
        self.options = {
            "name": "kept",
            "target": SQLiteConnection(name="lite", path=str(self._database)),
            "target_table": ("main", "out"),
            "state_store": StateStore("postgres", url=pg_url, schema="flow_state"),
        }
        if kind == "join":
            self.options |= {
                "sources": [Source(drop, "left"), Source(drop, "right")],
                "join": Join("left", "right", ["k"], ["k"], 3_600_000, event_time_column="at"),
            }
            return
        spans: dict[str, Any] = {"duration_ms": 60_000}
        if kind == "session":
            spans = {"gap_ms": 50_000, "max_session_duration_ms": 600_000, "group_by": ("k",)}
        window = Window(kind, [Aggregation("count", "n")], event_time_column="at", **spans)  # type: ignore[arg-type]
        self.options |= {"source": drop, "source_query": "left", "window": window}

    def send(self, side: str, *minutes: int) -> None:
        """Add a file with an event at each of these minutes."""
        self._sent += 1
        (self._folder / side).mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"k": "a", "at": f"2026-03-01T06:{minute:02}:00Z"}) for minute in minutes]
        (self._folder / side / f"{self._sent}.jsonl").write_text("\n".join(lines))

    def rows(self, columns: str) -> list[Any]:
        with sqlite3.connect(self._database) as db:
            return db.execute(f"SELECT {columns} FROM out ORDER BY 1").fetchall()


def dies_at(monkeypatch: pytest.MonkeyPatch, module: str, point: str) -> None:
    """Let the stream of this process fail at a point, which then does no more than a killed one."""

    def reached(passed: str) -> None:
        if passed == point:
            raise RuntimeError("killed")

    monkeypatch.setattr(f"ematix_flow.{module}.reached", reached)


@pytest.mark.parametrize("kind", ["tumbling", "session", "join"])
@pytest.mark.parametrize(
    ("module", "point"),
    [("spark.micro_batch", "batch-applied"), ("spark.stateful_batch", "stepped"), ("backends.sql", "mid-settle")],
    ids=["batch-applied", "stepped", "mid-settle"],
)
def test_a_stream_that_remembers_is_killed_and_loses_its_disk(
    kind: str, module: str, point: str, pg_url: str, tmp_path: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Files(kind, tmp_path, pg_url)
    stream.send("left", 0, 0, 1, 1, 1)
    stream.send("right", 0)
    with monkeypatch.context() as deadly:
        dies_at(deadly, module, point)
        with pytest.raises(RuntimeError, match="killed"):
            run_streaming_pipeline(**stream.options, once=True)
    shutil.rmtree(checkpoints)
    stream.send("left", 1, 3)
    stream.send("right", 2)
    run_streaming_pipeline(**stream.options, once=True)
    if kind == "join":
        minutes = [(left, right) for left in (0, 0, 1, 1, 1, 1, 3) for right in (0, 2)]
        assert len(stream.rows("left_at, right_at")) == len(minutes)
    else:
        assert stream.rows("n") == ([(2,), (4,)] if kind == "tumbling" else [(2,), (4,)])


def test_what_a_stream_came_to_is_copied_while_it_waits(pg_url: str, tmp_path: Path) -> None:
    stream, stop = Files("tumbling", tmp_path, pg_url), threading.Event()
    stream.send("left", 0, 1)
    spec = stream_spec(stream.options, user_location())
    thread = threading.Thread(target=run_stream, args=(spec,), kwargs={"stop": stop})
    thread.start()
    try:
        deadline, copied = time.monotonic() + 60, set[str]()
        while not {"commits/0", "memory/0/note.json"} <= copied:
            assert time.monotonic() < deadline and thread.is_alive()
            time.sleep(0.1)
            with psycopg.connect(pg_url) as db, db.transaction():
                if db.execute("SELECT to_regclass('flow_state.ematix_streaming_state')").fetchone() != (None,):
                    found = db.execute("SELECT group_key FROM flow_state.ematix_streaming_state").fetchall()
                    copied = {path.partition("/")[2] for (path,) in found}
    finally:
        stop.set()
        thread.join()


class Folders:
    """Folders of one stream, by what they have come to; nothing else of a checkpoint is there."""

    def __init__(self, root: Path, pg_url: str) -> None:
        self._root, self._url = root, pg_url

    def made(self, name: str, generation: str, begun_at: str, batches: int) -> Path:
        place = self._root / name
        shutil.rmtree(place, ignore_errors=True)
        (place / f"gen-{generation}" / "offsets").mkdir(parents=True)
        (place / "current.json").write_text(json.dumps({"generation": generation, "begun_at": begun_at}))
        for number in range(batches):
            (place / f"gen-{generation}" / "offsets" / str(number)).write_text(f"{generation} {number}")
        return place

    def mirror(self, place: Path) -> CheckpointMirror:
        mirror = CheckpointMirror(self._url, "flow_state", "kept", place)
        mirror.open()
        return mirror


def told(place: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in place.rglob("*") if file.is_file() and file.name.isdigit()}


def test_a_folder_that_was_put_back_from_earlier_is_brought_up_to_its_copy(pg_url: str, tmp_path: Path) -> None:
    folders = Folders(tmp_path, pg_url)
    folders.mirror(folders.made("new", "a", "2026-03-01T06:00:00.000Z", 11)).copy(10, {})
    old = folders.made("old", "a", "2026-03-01T06:00:00.000Z", 9)
    (old / "behind").mkdir()
    (old / "behind" / "3").write_text("was delivered since")
    (old / "gen-a" / "offsets" / ".8.crc").write_text("of what was there")
    mirror = folders.mirror(old)
    assert mirror.restore()
    assert told(old) == {str(number): f"a {number}" for number in range(11)}
    assert not list(old.rglob("*.crc"))
    assert not mirror.restore(), "a folder that is as far as its copy stays as it is"
    ahead = folders.made("ahead", "a", "2026-03-01T06:00:00.000Z", 12)
    assert not folders.mirror(ahead).restore()
    assert len(told(ahead)) == 12


@pytest.mark.parametrize("text", ["", "{", "[]", '{"generation": "a"}'])
def test_a_folder_whose_note_is_damaged_is_filled_from_its_copy(pg_url: str, tmp_path: Path, text: str) -> None:
    folders = Folders(tmp_path, pg_url)
    place = folders.made("here", "a", "2026-03-01T06:00:00.000Z", 3)
    whole = (place / "current.json").read_text()
    folders.mirror(place).copy(2, {})
    (place / "current.json").write_text(text)
    assert folders.mirror(place).restore()
    assert (place / "current.json").read_text() == whole
    assert told(place) == {str(number): f"a {number}" for number in range(3)}


def test_a_folder_from_before_a_reset_is_refused_and_its_copy_stays(pg_url: str, tmp_path: Path) -> None:
    folders = Folders(tmp_path, pg_url)
    folders.mirror(folders.made("new", "b", "2026-03-01T07:00:00.000Z", 3)).copy(2, {})
    old = folders.mirror(folders.made("old", "a", "2026-03-01T06:00:00.000Z", 9))
    with pytest.raises(StateIncompatible, match="begun at 2026-03-01T06:00:00.000Z, and its copy.*T07") as caught:
        old.restore()
    assert "flow state reset kept" in str(caught.value.fix)
    newer = folders.made("reset", "c", "2026-03-01T08:00:00.000Z", 1)
    assert not folders.mirror(newer).restore()
    empty = tmp_path / "empty"
    assert folders.mirror(empty).restore()
    assert told(empty) == {"0": "b 0", "1": "b 1", "2": "b 2"}


def test_a_way_out_names_the_stream_also_when_who_tells_it_does_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(stream_spec(Files("tumbling", tmp_path, "postgres://h/d").options, user_location()))

    def fails(*_: Any) -> bool:
        raise StateIncompatible("The target holds another batch.", fix="flow state reset NAME --from latest")

    monkeypatch.setattr(stream, "_run", fails)
    with pytest.raises(StateIncompatible) as caught:
        stream.run(threading.Event())
    assert caught.value.fix == "flow state reset kept --from latest"


def test_two_streams_with_one_checkpoint_are_refused_and_both_are_named(tmp_path: Path) -> None:
    first, second = (CheckpointFolder(name, str(tmp_path / "shared")) for name in ("orders", "visits"))
    generation = first.begin("rows")
    with pytest.raises(StateIncompatible, match="'visits' is that of stream 'orders'") as caught:
        second.current()
    assert "flow state reset visits --from group" in str(caught.value.fix)
    with pytest.raises(StateIncompatible, match="'orders'"):
        second.begin("rows")
    with pytest.raises(StateIncompatible, match="'orders'"):
        second.forget()
    with first.held(), pytest.raises(StateIncompatible, match="'orders'"), second.held():
        pass
    kept = first.current()
    assert kept is not None and kept.name == generation.name


@pytest.mark.parametrize(
    ("variable", "kept_in"),
    [
        ("/var/flow", "/var/flow"),
        ("file:///var/flow", "/var/flow"),
        ("s3a://bucket/all", "~/.ematix-flow/checkpoints"),
        (None, "~/.ematix-flow/checkpoints"),
    ],
)
def test_what_stays_here_of_a_checkpoint_in_a_bucket_is_where_checkpoints_are(
    variable: str | None, kept_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EMATIX_FLOW_CHECKPOINT_DIR")
    if variable is not None:
        monkeypatch.setenv("EMATIX_FLOW_CHECKPOINT_DIR", variable)
    folder = CheckpointFolder("x", "s3a://bucket/x")
    assert (folder.place, folder.path.parent) == ("s3a://bucket/x", Path(kept_in).expanduser())


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
