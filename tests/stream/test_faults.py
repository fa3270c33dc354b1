"""`kill -9` of a running stream at every point that matters, and what else can go wrong with what it remembers.

Every test counts every row: nothing is lost, and nothing is there twice.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import StateStore, run_streaming_pipeline
from ematix_flow.contracts.streams import StreamBatch
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.errors import AlreadyRunning, StateIncompatible, UnknownColumn
from ematix_flow.run.stream_targets import StreamTarget
from ematix_flow.run.stream_watch import StreamWatch
from ematix_flow.run.streams import run_stream
from tests.services.postgres import PostgresServer
from tests.services.weak_line import weak_line
from tests.stream.conftest import Topic
from tests.stream.program import keywords, run_and_die
from tests.stream.test_targets import MAKERS

PROVE = bool(os.environ.get("EMATIX_PROVE"))
POINTS = ("batch-began", "staged", "mid-settle", "batch-applied")


class Killable:
    """A stream into PostgreSQL and, if asked, into SQLite, that can be run here or in a process that is killed."""

    def __init__(self, topic: Topic, url: str, folder: Path, *, two_targets: bool = False) -> None:
        self.topic, self.url, self.folder = topic, url, folder
        self.options: dict[str, Any] = {
            "name": f"killed_{topic.name}",
            "connections": {
                "broker": {
                    "kind": "kafka",
                    "bootstrap_servers": topic.server.address,
                    "group_id": f"group-{topic.name}",
                },
                "pg": {"kind": "postgres", "url": url},
                "lite": {"kind": "sqlite", "path": str(folder / "events.db")},
            },
            "source": "broker",
            "source_query": topic.name,
            "targets": [{"connection": "pg", "table": ["public", "events"]}],
            "once": True,
            "max_batch_rows": 30,
        }
        if two_targets:
            self.options["targets"].append({"connection": "lite", "table": ["main", "events"]})

    def run(self, **more: Any) -> dict[str, Any]:
        """Run it here, to its end."""
        return run_streaming_pipeline(**keywords({**self.options, **more}))

    def run_and_die(self, point: str, **more: Any) -> None:
        """Run it elsewhere, and let it die at a point."""
        run_and_die({**self.options, **more}, point)

    def ids(self, url: str | None = None) -> list[int]:
        """What PostgreSQL has, by its own address if another one is cut off; nothing before there is a table."""
        with psycopg.connect(url or self.url) as db:
            if url and db.execute("SELECT to_regclass('public.events')").fetchone() == (None,):
                return []
            return [row[0] for row in db.execute("SELECT id FROM public.events ORDER BY id").fetchall()]

    def lite_ids(self) -> list[int]:
        """What SQLite has."""
        import sqlite3

        with sqlite3.connect(self.folder / "events.db") as db:
            return [row[0] for row in db.execute("SELECT id FROM events ORDER BY id").fetchall()]


@pytest.fixture
def stream(topic: Topic, pg_url: str, tmp_path: Path) -> Killable:
    return Killable(topic, pg_url, tmp_path)


@pytest.mark.parametrize("point", POINTS if PROVE else ("staged", "batch-applied"))
def test_a_killed_stream_goes_on_as_if_nothing_had_happened(stream: Killable, point: str) -> None:
    stream.topic.send({"id": n} for n in range(20))
    stream.run()
    stream.topic.send({"id": n} for n in range(20, 100))
    stream.run_and_die(point)
    stream.topic.send({"id": n} for n in range(100, 110))
    stream.run()
    assert stream.ids() == list(range(110))
    assert stream.topic.committed() == 110


@pytest.mark.parametrize("point", ["mid-settle", "batch-applied"])
@pytest.mark.parametrize("kind", ["delta", "iceberg", "files", "mysql", "duckdb"])
def test_a_killed_stream_into_another_kind_of_target_goes_on_likewise(
    kind: str, point: str, topic: Topic, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    end = MAKERS[kind](kind, request, tmp_path)
    connection, place = end.target.connection, end.target
    given = {name: value for name, value in asdict(connection).items() if value is not None and name != "name"}
    stream = Killable(topic, "postgres://nobody@nowhere/none", tmp_path)
    stream.options["connections"]["end"] = {"kind": connection.kind, **given}
    table = {"prefix": place.prefix} if place.prefix else {"table": list(place.table)}
    stream.options["targets"] = [{"connection": "end", **table}]
    topic.send({"id": n, "name": "a"} for n in range(20))
    stream.run()
    topic.send({"id": n, "name": "b"} for n in range(20, 60))
    stream.run_and_die(point)
    topic.send({"id": n, "name": "c"} for n in range(60, 70))
    stream.run()
    assert [number for number, _ in end.rows()] == list(range(70))
    assert topic.committed() == 70


def test_a_stream_killed_between_two_targets_gives_each_every_row_once(
    topic: Topic, pg_url: str, tmp_path: Path
) -> None:
    stream = Killable(topic, pg_url, tmp_path, two_targets=True)
    topic.send({"id": n} for n in range(60))
    stream.run_and_die("between-targets")
    assert len(stream.ids()) > 0
    stream.run()
    assert stream.ids() == list(range(60))
    assert stream.lite_ids() == list(range(60))


def test_a_stream_cut_off_between_the_commits_of_two_tasks_doubles_nothing(stream: Killable, tmp_path: Path) -> None:
    for partition in (0, 1):
        stream.topic.send(({"id": 20 * partition + n} for n in range(20)), partition=partition)
    # One task after the other, and no second attempt: the first dies when its COPY is committed, the next never begins.
    (tmp_path / ".ematix-flow.toml").write_text('[spark]\nmaster = "local[1]"\n')
    run_and_die({**stream.options, "max_batch_rows": 100}, "task-copied", code=1, folder=tmp_path)
    stream.topic.send({"id": n} for n in range(40, 45))
    stream.run(max_batch_rows=100)
    assert stream.ids() == list(range(45))
    assert stream.topic.committed() == 45


@pytest.mark.parametrize("point", ["staged", *(["mid-settle", "batch-applied"] if PROVE else [])])
def test_a_batch_that_is_done_again_in_other_parts_is_there_once(stream: Killable, point: str) -> None:
    sql = "SELECT id, spark_partition_id() AS part FROM (SELECT /*+ REPARTITION({}) */ id FROM source)"
    stream.topic.send({"id": n} for n in range(60))
    options = {"max_batch_rows": 100, "dialect": "spark"}
    stream.run_and_die(point, transform_sql=sql.format(7), **options)
    stream.run(transform_sql=sql.format(2), **options)
    assert stream.ids() == list(range(60))
    with psycopg.connect(stream.url) as db:
        parts = {row[0] for row in db.execute("SELECT DISTINCT part FROM public.events").fetchall()}
    assert parts == ({0, 1, 2, 3, 4, 5, 6} if point == "batch-applied" else {0, 1})


def test_a_second_instance_that_knows_nothing_of_the_first_is_kept_out_by_the_target(
    stream: Killable, tmp_path: Path
) -> None:
    """Two checkpoints, as on two machines: the lock of a checkpoint cannot help here."""
    stream.topic.send({"id": n} for n in range(20))
    given = keywords({**stream.options, "checkpoint": str(tmp_path / "first")})
    del given["once"]
    first, stop, results = stream_spec(given, user_location("first")), threading.Event(), []
    running = threading.Thread(target=lambda: results.append(run_stream(first, stop=stop)))
    running.start()
    try:
        deadline = time.monotonic() + 120
        while stream.topic.committed() < 20:
            assert running.is_alive() and time.monotonic() < deadline
            time.sleep(0.1)
        with pytest.raises(AlreadyRunning):
            stream.run(checkpoint=str(tmp_path / "second"))
    finally:
        stop.set()
        running.join()
    assert [result["total_rows"] for result in results] == [20]
    assert stream.ids() == list(range(20))
    stream.topic.send({"id": n} for n in range(20, 25))
    stream.run(checkpoint=str(tmp_path / "second"))
    assert stream.ids() == list(range(25)), "it goes on where the target is"


def newest(checkpoints: Path, log: str) -> Path:
    (folder,) = checkpoints.glob(f"*/gen-*/{log}")
    return max((file for file in folder.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))


@pytest.mark.parametrize("damage", ["deleted", "deleted-but-its-checksum", "truncated"])
def test_a_lost_commit_file_makes_no_row_come_twice(stream: Killable, checkpoints: Path, damage: str) -> None:
    stream.topic.send({"id": n} for n in range(50))
    stream.run()
    commit = newest(checkpoints, "commits")
    written = commit.read_text()
    commit.unlink()
    if damage == "truncated":
        commit.write_text(written[:-1])  # its checksum stays, as after a crash of the machine
    elif damage == "deleted":
        commit.with_name(f".{commit.name}.crc").unlink()
    stream.topic.send({"id": n} for n in range(50, 55))
    stream.run()
    assert stream.ids() == list(range(55))


def test_a_half_written_plan_of_a_batch_is_planned_anew(stream: Killable, checkpoints: Path) -> None:
    stream.topic.send({"id": n} for n in range(20))
    stream.run()
    last = newest(checkpoints, "offsets")
    (last.parent / str(int(last.name) + 1)).write_text(last.read_text()[:-2])
    stream.topic.send({"id": n} for n in range(20, 25))
    stream.run()
    assert stream.ids() == list(range(25))


def test_a_checkpoint_put_back_from_an_old_copy_is_refused_and_nothing_is_written(
    stream: Killable, checkpoints: Path, tmp_path: Path
) -> None:
    stream.topic.send({"id": n} for n in range(20))
    stream.run()
    shutil.copytree(checkpoints, tmp_path / "copy")
    stream.topic.send({"id": n} for n in range(20, 30))
    stream.run()
    shutil.rmtree(checkpoints)
    shutil.move(tmp_path / "copy", checkpoints)
    stream.topic.send([{"id": 30}])
    with pytest.raises(StateIncompatible, match="flow state reset"):
        stream.run()
    assert stream.ids() == list(range(30))


def test_a_target_that_is_away_is_waited_for_while_the_other_goes_on(topic: Topic, pg_url: str, tmp_path: Path) -> None:
    stream = Killable(topic, pg_url, tmp_path, two_targets=True)
    topic.send({"id": n} for n in range(20))
    stream.run()
    with psycopg.connect(pg_url) as db:
        db.execute("ALTER TABLE public.events RENAME COLUMN id TO other")
    topic.send({"id": n} for n in range(20, 60))
    watch, given = StreamWatch("counts"), keywords(stream.options)
    del given["once"]
    with pytest.raises(UnknownColumn):
        run_stream(stream_spec(given, user_location("counts")), watch=watch, once=True)
    assert watch.view().counts["rows_consumed"] == 0, "it counts what is done"
    stream.run(continue_on_target_failure=True)
    assert stream.lite_ids() == list(range(60))
    with psycopg.connect(pg_url) as db:
        assert db.execute("SELECT count(*) FROM public.events").fetchone() == (20,)
        db.execute("ALTER TABLE public.events RENAME COLUMN other TO id")
    topic.send([{"id": 60}])
    stream.run(continue_on_target_failure=True)
    assert stream.ids() == list(range(61))
    assert stream.lite_ids() == list(range(61))


def test_a_target_that_does_not_answer_gets_everything_when_it_comes(
    topic: Topic, pg_url: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with weak_line(postgres_server.host, postgres_server.port) as line:
        url = pg_url.replace(f":{postgres_server.port}/", f":{line.port}/")
        stream = Killable(topic, url, tmp_path, two_targets=True)
        stream.options |= {"continue_on_target_failure": True, "transform_on_error": "drop"}
        line.cut()
        topic.send({"id": n} for n in range(20))
        assert stream.run()["total_rows"] == 20, "it begins without the one that is away"
        topic.send({"id": n} for n in range(20, 30))
        stream.run()
        given, told, results = keywords(stream.options), threading.Event(), []
        del given["once"]
        spec = stream_spec(given, user_location("away"))
        running = threading.Thread(target=lambda: results.append(run_stream(spec, stop=told)))
        running.start()
        sent = 30

        def send_until(is_so: Callable[[], bool]) -> None:
            nonlocal sent
            deadline = time.monotonic() + 120
            while not is_so():
                assert running.is_alive() and time.monotonic() < deadline
                topic.send([{"id": sent}])
                sent += 1
                time.sleep(0.5)

        try:
            send_until(lambda: len(stream.lite_ids()) > 32)
            line.mend()
            send_until(lambda: len(stream.ids(pg_url)) > 32)
            line.cut()  # now that it was there, and nobody has asked yet for the table that it made
            before = len(stream.lite_ids())
            send_until(lambda: len(stream.lite_ids()) > before + 2)
            line.mend()
            send_until(lambda: len(stream.ids(pg_url)) > before + 2)
        finally:
            told.set()
            running.join(120)
        assert len(results) == 1
        stream.run()
        assert stream.ids(pg_url) == stream.lite_ids() == list(range(sent))
    with psycopg.connect(pg_url) as db:
        asked = "SELECT column_name FROM information_schema.columns WHERE table_name = 'events'"
        assert db.execute(asked).fetchall() == [("id",)], "hidden columns stay hidden"


def test_a_target_that_comes_back_to_a_stream_without_its_checkpoint_gets_nothing_twice(
    topic: Topic,
    pg_url: str,
    postgres_server: PostgresServer,
    tmp_path: Path,
    checkpoints: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with weak_line(postgres_server.host, postgres_server.port) as line:
        stream = Killable(topic, pg_url.replace(f":{postgres_server.port}/", f":{line.port}/"), tmp_path)
        stream.options |= {"continue_on_target_failure": True}
        topic.send({"id": n} for n in range(20))
        stream.run()
        shutil.rmtree(checkpoints)
        line.cut()
        topic.send([{"id": 20}])
        comes_back = StreamTarget.come_back

        def at_last(target: StreamTarget, waiting: Sequence[StreamBatch]) -> None:
            line.mend()
            comes_back(target, waiting)

        monkeypatch.setattr("ematix_flow.run.stream_targets.ASK_AGAIN_S", 0)
        monkeypatch.setattr(StreamTarget, "come_back", at_last)
        with pytest.raises(StateIncompatible, match="began anew"):
            stream.run()
    assert stream.ids(pg_url) == list(range(20))


def test_a_store_in_memory_keeps_what_only_some_targets_have(topic: Topic, pg_url: str, tmp_path: Path) -> None:
    stream = Killable(topic, pg_url, tmp_path, two_targets=True)
    stream.options |= {"state_store": StateStore("in_memory")}
    topic.send({"id": n} for n in range(20))
    stream.run()
    with psycopg.connect(pg_url) as db:
        db.execute("ALTER TABLE public.events RENAME COLUMN id TO other")
    topic.send({"id": n} for n in range(20, 30))
    with pytest.raises(UnknownColumn):
        stream.run()
    assert stream.lite_ids() == list(range(30))
    with psycopg.connect(pg_url) as db:
        db.execute("ALTER TABLE public.events RENAME COLUMN other TO id")
    stream.run()
    assert stream.ids() == stream.lite_ids() == list(range(30))
