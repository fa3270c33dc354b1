"""Dead letters of a stream: which messages become some, where they are kept, and that a replay is once-only."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import (
    KafkaConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
    StateStore,
    Target,
    _core,
    run_pipeline,
    run_streaming_pipeline,
)
from ematix_flow.contracts.dead_letters import letter_id
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream_pipeline import stream_spec
from ematix_flow.errors import BadMessages, UnfitValue
from ematix_flow.run.dead_letter_replay import _ReplayTarget
from ematix_flow.spark.checkpoints import CheckpointFolder
from tests.stream.conftest import Topic

BAD = (b"{not json", b"\xff\xfe")
PROVE = bool(os.environ.get("EMATIX_PROVE"))


def consume(topic: Topic, url: str, **options: Any) -> dict[str, Any]:
    return run_streaming_pipeline(
        **{
            "name": f"to_pg_{topic.name}",
            "source": topic.connection(),
            "source_query": topic.name,
            "target": PostgresConnection(name="warehouse", url=url),
            "target_table": ("public", "events"),
            "transform_on_error": "dlq",
            "once": True,
            **options,
        }
    )


def document(topic: Topic, url: str, *lines: str) -> str:
    """The same stream as TOML."""
    return "\n".join(
        [
            f'pipeline_name = "to_pg_{topic.name}"',
            f'source_query = "{topic.name}"',
            *lines,
            "[source]",
            'kind = "kafka"',
            f'bootstrap_servers = "{topic.server.address}"',
            f'group_id = "group-{topic.name}"',
            "[target]",
            'kind = "postgres"',
            f'url = "{url}"',
            "[target.table]",
            'schema = "public"',
            'name = "events"',
            "[transform]",
            'on_error = "dlq"',
        ]
    )


def rows(url: str, sql: str = "SELECT id, name FROM public.events ORDER BY id") -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(sql).fetchall()


def letters_file(topic: Topic) -> Path:
    """Where letters are when nothing is said about it."""
    return CheckpointFolder(f"to_pg_{topic.name}").path / "dead_letters.db"


def received(topic: Topic, number: int) -> list[Any]:
    """The first messages of a topic."""
    from confluent_kafka import Consumer

    reader = Consumer(
        {
            "bootstrap.servers": topic.server.address,
            "group.id": "looking",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    found: list[Any] = []
    try:
        reader.subscribe([topic.name])
        while len(found) < number:
            found += [message for message in reader.consume(number, timeout=1) if not message.error()]
    finally:
        reader.close()
    return found


@pytest.fixture(autouse=True)
def without_warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The addresses of test servers stand in documents, passwords included."""
    monkeypatch.setenv("EMATIX_FLOW_NO_DEPRECATION", "1")
    yield


def test_bad_messages_are_kept_as_they_came_and_the_rest_arrives(topic: Topic, pg_url: str, checkpoints: Path) -> None:
    topic.send([{"id": 1, "name": "a"}])
    topic.send(BAD, key=b"\x00k", headers={"trace": b"\xfe"})
    topic.send([{"id": 2, "name": "b", "_offset": 77}])
    consume(topic, pg_url)
    assert rows(pg_url) == [(1, "a"), (2, "b")]
    config = document(topic, pg_url)
    records = _core.dlq_records(config)
    assert sorted(record["payload"] for record in records) == sorted(BAD)
    for record in records:
        at = record["position"]
        assert at["topic"] == topic.name
        expected = letter_id(f"to_pg_{topic.name}", topic.name, record["offset_bytes"].decode(), "transform", 1)
        assert record["id"] == expected
        assert (record["key"], record["headers"]) == (b"\x00k", [("trace", b"\xfe")])
        assert (record["stage"], record["attempt"], record["status"]) == ("transform", 1, "pending")
        assert record["event_ts"] // 1_000_000 <= record["failed_at"] // 1000 + 1
        assert _core.dlq_record_by_id(config, record["id"]) == record
    assert letters_file(topic).is_relative_to(checkpoints)
    assert letters_file(topic).exists()
    assert topic.committed() == 4


def test_rows_that_do_not_fit_the_table_are_letters_one_by_one(topic: Topic, pg_url: str) -> None:
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id integer NOT NULL, name varchar(3), at timestamptz)")
    topic.send(
        [
            {"id": 1, "name": "abc", "at": "2026-03-01T06:00:00Z"},
            {"id": 2, "name": "abcd"},
            {"id": None, "name": "x"},
            {"id": 2**40, "name": "y"},
            {"id": 5, "name": "z", "at": "yesterday"},
        ]
    )
    consume(topic, pg_url)
    assert rows(pg_url) == [(1, "abc")]
    records = _core.dlq_records(document(topic, pg_url))
    assert {record["stage"] for record in records} == {"write"}
    said = {json.loads(record["payload"])["name"]: record["error"] for record in records}
    assert said == {
        "abcd": "column 'name' does not fit String[3]",
        "x": "column 'id' is NOT NULL and has no value",
        "y": "column 'id' does not fit Integer",
        "z": "column 'at' does not fit TimestampTZ",
    }


def test_rows_that_do_not_fit_are_dropped_when_that_is_declared(topic: Topic, pg_url: str) -> None:
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id integer, name text)")
    topic.send([{"id": 1, "name": "a"}, {"id": "many", "name": "b"}, b"{"])
    consume(topic, pg_url, transform_on_error="drop")
    assert rows(pg_url) == [(1, "a")]
    assert _core.dlq_stats(document(topic, pg_url), 0)["scanned"] == 0


def test_any_setting_for_letters_keeps_rows_that_do_not_fit(topic: Topic, pg_url: str) -> None:
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id integer, name text)")
    topic.send([{"id": 1, "name": "a"}, {"id": "many", "name": "b"}])
    with pytest.raises(UnfitValue):
        consume(topic, pg_url, transform_on_error="fail")
    consume(topic, pg_url, transform_on_error="fail", dlq_store="table")
    assert rows(pg_url) == [(1, "a")]
    assert _core.dlq_stats(document(topic, pg_url), 0)["by_stage"] == {"write": 1}


def test_a_row_that_the_database_alone_refuses_is_found_among_many(topic: Topic, pg_url: str) -> None:
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id integer PRIMARY KEY, name text, CHECK (id <> 13))")
        db.execute("INSERT INTO public.events VALUES (7, 'before')")
    topic.send({"id": n, "name": "a"} for n in range(6, 9))
    topic.send([{"id": n, "name": "a"} for n in (12, 13)] if PROVE else [])
    consume(topic, pg_url)
    records = _core.dlq_records(document(topic, pg_url))
    assert sorted(json.loads(record["payload"])["id"] for record in records) == ([7, 13] if PROVE else [7])
    assert rows(pg_url) == [(6, "a"), (7, "before"), (8, "a"), *([(12, "a")] if PROVE else [])]


@pytest.mark.parametrize("on_error", ["drop", "dlq"])
@pytest.mark.parametrize("finds_all", [True, False])
def test_of_rows_that_the_database_alone_refuses_exactly_these_are_set_aside_however_many(
    on_error: str, finds_all: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE events (id integer PRIMARY KEY, CHECK (id % 50 <> 7))")
        db.execute("INSERT INTO events VALUES (11)")
    (tmp_path / "drop" / "events").mkdir(parents=True)
    sent, bad = range(2_000), {11, 1_500, *range(7, 2_000, 50)}
    (tmp_path / "drop" / "events" / "1.jsonl").write_text("\n".join(f'{{"id": {n}}}' for n in (*sent, 1_500)))
    options = {
        "name": "many",
        "source": ObjectStoreLocalConnection(name="drop", path=str(tmp_path / "drop"), format="json_lines"),
        "source_query": "events",
        "target": SQLiteConnection(name="shop", path=str(tmp_path / "shop.db")),
        "target_table": ("main", "events"),
        "transform_on_error": on_error,
        "once": True,
    }
    if not finds_all:
        for bound in ("MOST_TRIES", "MOST_TRIES_AT_HAND"):
            monkeypatch.setattr(f"ematix_flow.spark.refused_rows.{bound}", 20)
    if on_error == "drop" and not finds_all:
        with pytest.raises(BadMessages, match="nothing is known"):
            run_streaming_pipeline(**options)
    else:
        run_streaming_pipeline(**options)
    with sqlite3.connect(tmp_path / "shop.db") as db:
        kept = {row[0] for row in db.execute("SELECT id FROM events").fetchall()}
    letters: list[int] = []
    if on_error == "dlq":
        with sqlite3.connect(CheckpointFolder("many").path / "dead_letters.db") as db:
            letters = [json.loads(row[0])["id"] for row in db.execute("SELECT payload FROM ematix_dlq_records")]
    if finds_all:
        assert kept == set(sent) - bad | {11, 1_500}
        assert sorted(letters) == (sorted(bad) if on_error == "dlq" else [])
    elif on_error == "drop":
        assert kept == {11}, "no good row is dropped"
    else:
        assert kept | set(letters) == set(sent)
        assert set(letters) >= bad


def test_a_row_that_the_transform_stumbles_over_is_found_among_many(topic: Topic, pg_url: str) -> None:
    topic.send({"id": n, "amount": "x" if n % 3 == 0 else str(n)} for n in range(90))
    consume(topic, pg_url, transform_sql="SELECT id, cast(amount AS int) AS name FROM source")
    assert [row[0] for row in rows(pg_url)] == [n for n in range(90) if n % 3]
    records = _core.dlq_records(document(topic, pg_url))
    assert {record["payload"] for record in records} == {b'{"id": %d, "amount": "x"}' % n for n in range(0, 90, 3)}
    assert {(record["stage"], "cannot be read as INT" in record["error"]) for record in records} == {
        ("transform", True)
    }


def test_a_replay_brings_mended_letters_and_counts_the_others_up(topic: Topic, pg_url: str) -> None:
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id integer, name varchar(3), _partition integer, _offset bigint)")
    topic.send([{"id": 1, "name": "abc"}, {"id": 2, "name": "abcd"}, b"{"])
    consume(topic, pg_url)
    config = document(topic, pg_url, "dlq_max_attempts = 2")
    with psycopg.connect(pg_url) as db:
        db.execute("ALTER TABLE public.events ALTER COLUMN name TYPE text")
    before = {record["stage"]: record for record in _core.dlq_records(config)}
    report = _core.dlq_replay(config, '{"kind": "all"}')
    assert (report["taken"], report["succeeded"], report["redeadlettered"], report["parked"]) == (2, 1, 1, 0)
    assert report["started_at_ms"] <= report["finished_at_ms"]
    at = before["write"]["position"]
    assert rows(pg_url, "SELECT id, name, _partition, _offset FROM public.events WHERE id = 2") == [
        (2, "abcd", at["partition"], at["offset"])
    ]
    [left] = _core.dlq_records(config)
    assert (left["attempt"], left["payload"], left["status"]) == (2, b"{", "pending")
    assert _core.dlq_replay(config, '{"kind": "first_n", "n": 5}')["parked"] == 1
    assert _core.dlq_replay(config, '{"kind": "all"}')["taken"] == 0
    [parked] = _core.dlq_records(config, status="parked")
    assert (parked["attempt"], parked["payload"]) == (3, b"{")
    assert len(rows(pg_url)) == 2
    assert _core.dlq_purge(config, json.dumps({"kind": "ids", "ids": [parked["id"]]})) == 1


def test_a_replay_finds_the_letter_that_the_database_alone_refuses(topic: Topic, pg_url: str) -> None:
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id integer NOT NULL, name varchar(1))")
    topic.send({"id": n, "name": "ab"} for n in range(3, 6))
    consume(topic, pg_url)
    with psycopg.connect(pg_url) as db:
        db.execute("ALTER TABLE public.events ALTER COLUMN name TYPE text, ADD CHECK (id <> 4)")
    report = _core.dlq_replay(document(topic, pg_url), '{"kind": "all"}')
    assert (report["succeeded"], report["redeadlettered"]) == (2, 1)
    assert [row[0] for row in rows(pg_url)] == [3, 5]


def test_letters_are_in_the_database_of_the_state_store(topic: Topic, pg_url: str) -> None:
    topic.send([{"id": 1, "name": "a"}, b"{"])
    consume(topic, pg_url, state_store=StateStore(kind="postgres", url=pg_url, schema="flow_state"))
    assert rows(pg_url, "SELECT stage, payload FROM flow_state.ematix_dlq_records") == [("transform", b"{")]


def test_a_topic_of_letters_carries_the_message_unchanged_and_can_be_replayed(topic: Topic, pg_url: str) -> None:
    letters = Topic(topic.server)
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id integer, name varchar(3))")
    topic.send([{"id": 1, "name": "abcd"}, b"\xff"], key=b"k", headers={"trace": b"7"})
    consume(topic, pg_url, dead_letter_topic=letters.name)
    sent = sorted(received(letters, 2), key=lambda message: message.value())
    headers = dict(sent[0].headers())
    assert (sent[0].value(), sent[0].key(), headers["trace"]) == (b'{"id": 1, "name": "abcd"}', b"k", b"7")
    assert headers["emat-dlq-stage"] == b"write"
    assert headers["emat-dlq-attempt"] == b"1"
    assert headers["emat-dlq-payload-format"] == b"json"
    assert headers["emat-dlq-pipeline"] == f"to_pg_{topic.name}".encode()
    assert json.loads(headers["emat-dlq-offset-bytes"])["topic"] == topic.name
    config = document(topic, pg_url, f'dead_letter_topic = "{letters.name}"')
    assert _core.dlq_stats(config, 0)["pending"] == 2
    assert {record["id"] for record in _core.dlq_records(config)} == {
        dict(message.headers())["emat-dlq-id"].decode() for message in sent
    }
    with psycopg.connect(pg_url) as db:
        db.execute("ALTER TABLE public.events ALTER COLUMN name TYPE text")
    report = _core.dlq_replay(config, '{"kind": "all"}')
    assert (report["succeeded"], report["redeadlettered"]) == (1, 1)
    assert rows(pg_url) == [(1, "abcd")]
    assert _core.dlq_replay(config, '{"kind": "all"}')["succeeded"] == 0
    assert rows(pg_url) == [(1, "abcd")]
    assert [record["attempt"] for record in _core.dlq_records(config)] == [3]


def test_the_command_lists_shows_parks_and_purges(
    topic: Topic, pg_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ematix_flow.cli.main import main

    topic.send([{"id": 1, "name": "a"}, b'{"id": 2, '])
    consume(topic, pg_url)
    config = tmp_path / "stream.toml"
    config.write_text(document(topic, pg_url))
    assert main(["dlq", "list", str(config), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["stats"]["pending"], len(told["records"])) == (1, 1)
    letter = told["records"][0]["id"]
    assert main(["dlq", "show", str(config), letter[:6]]) == 0
    shown = capsys.readouterr().out
    assert '{"id": 2, ' in shown
    assert "transform" in shown
    assert main(["dlq", "replay", str(config), "--id", letter[:8]]) == 1
    assert "1 letter replayed, 0 succeeded, 1 failed again" in capsys.readouterr().out
    assert main(["dlq", "show", str(config), letter]) == 2
    assert "begins with" in capsys.readouterr().err
    assert main(["dlq", "purge", str(config)]) == 2
    assert main(["dlq", "park", str(config), "--all"]) == 0
    assert main(["dlq", "list", str(config), "--status", "parked"]) == 0
    assert "parked" in capsys.readouterr().out
    assert main(["dlq", "purge", str(config), "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["purged"] == 1


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def flow(*arguments: str, crash_at: str | None = None) -> subprocess.CompletedProcess[str]:
    """A `flow` command in a process of its own, that may die on its way."""
    env = {**os.environ, **({"EMATIX_FLOW_CRASH_AT": crash_at} if crash_at else {})}
    return subprocess.run([sys.executable, "-m", "ematix_flow", *arguments], env=env, capture_output=True, text=True)


def end_leases(topic: Topic) -> None:
    """As if a minute had passed."""
    with sqlite3.connect(letters_file(topic)) as db:
        db.execute("UPDATE ematix_dlq_records SET leased_until = 1 WHERE leased_until IS NOT NULL")


def test_killed_between_letters_and_rows_a_stream_has_each_of_them_once(
    topic: Topic, pg_url: str, tmp_path: Path
) -> None:
    topic.send([{"id": 1, "name": "a"}, b"{", {"id": 2, "name": "b"}])
    config = tmp_path / "stream.toml"
    config.write_text(document(topic, pg_url))
    died = flow("consume", str(config), "--drain", crash_at="letters-kept")
    assert died.returncode == -9, died.stderr
    assert len(_core.dlq_records(config.read_text())) == 1
    consume(topic, pg_url)
    assert rows(pg_url) == [(1, "a"), (2, "b")]
    assert len(_core.dlq_records(config.read_text())) == 1


@pytest.mark.parametrize("point", ["replay-applied", *(["letters-decided"] if PROVE else [])])
def test_a_replay_that_is_killed_does_not_double_a_row(point: str, topic: Topic, pg_url: str, tmp_path: Path) -> None:
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.events (id integer, name varchar(1))")
    topic.send([{"id": 1, "name": "a"}, {"id": 2, "name": "ab"}, {"id": 3, "name": "ab"}, b"{"])
    consume(topic, pg_url)
    with psycopg.connect(pg_url) as db:
        db.execute("ALTER TABLE public.events ALTER COLUMN name TYPE text")
    config = tmp_path / "stream.toml"
    config.write_text(document(topic, pg_url))
    died = flow("dlq", "replay", str(config), crash_at=point)
    assert died.returncode == -9, died.stderr
    assert _core.dlq_replay(config.read_text(), '{"kind": "all"}')["succeeded"] == 0
    end_leases(topic)
    assert _core.dlq_replay(config.read_text(), '{"kind": "all"}')["succeeded"] == 2
    assert rows(pg_url) == [(1, "a"), (2, "ab"), (3, "ab")]
    assert [record["payload"] for record in _core.dlq_records(config.read_text())] == [b"{"]


def test_a_row_goes_to_all_targets_or_to_none_and_a_replay_too(topic: Topic, pg_url: str, tmp_path: Path) -> None:
    with psycopg.connect(pg_url) as db:
        db.execute("CREATE TABLE public.narrow (id integer, name varchar(1))")
    wide, narrow = (f'[[targets]]\nkind = "postgres"\nurl = "{pg_url}"\n' for _ in range(2))
    text = document(topic, pg_url).replace('[target]\nkind = "postgres"\n', "[dropped]\n")
    before, _, after = text.partition("[dropped]")
    wide += 'name = "wide"\n[targets.table]\nschema = "public"\nname = "events"\n'
    narrow += 'name = "narrow"\n[targets.table]\nschema = "public"\nname = "narrow"\n'
    config = tmp_path / "stream.toml"
    config.write_text(before + wide + narrow + "[transform]" + after.partition("[transform]")[2])
    topic.send([{"id": 1, "name": "a"}, {"id": 2, "name": "ab"}])
    run_pipeline(config, once=True)
    assert rows(pg_url) == rows(pg_url, "SELECT id, name FROM public.narrow") == [(1, "a")]
    with psycopg.connect(pg_url) as db:
        db.execute("ALTER TABLE public.narrow ALTER COLUMN name TYPE text")
    if PROVE:
        assert flow("dlq", "replay", str(config), crash_at="between-targets").returncode == -9
        end_leases(topic)
    assert _core.dlq_replay(config.read_text(), '{"kind": "all"}')["succeeded"] == 1
    assert rows(pg_url) == rows(pg_url, "SELECT id, name FROM public.narrow ORDER BY id") == [(1, "a"), (2, "ab")]


def test_a_stream_that_begins_with_unreadable_messages_says_so_or_keeps_them(topic: Topic, pg_url: str) -> None:
    topic.send(BAD)
    with pytest.raises(BadMessages, match="2 messages of .* cannot be read"):
        consume(topic, pg_url, transform_on_error="fail")
    assert consume(topic, pg_url)["total_rows"] == 0
    topic.send([{"id": 1}])
    assert consume(topic, pg_url)["total_rows"] == 1
    assert rows(pg_url, "SELECT id FROM public.events") == [(1,)]
    with sqlite3.connect(letters_file(topic)) as db:
        assert sorted(db.execute("SELECT payload FROM ematix_dlq_records").fetchall()) == [
            (message,) for message in BAD
        ]


def test_a_name_in_another_case_stops_only_its_own_message(topic: Topic, pg_url: str) -> None:
    topic.send([{}, {}])
    with pytest.raises(BadMessages, match="2 messages of .* with a field"):
        consume(topic, pg_url, transform_on_error="fail")
    assert consume(topic, pg_url)["total_rows"] == 0, "nobody knows a column yet"
    topic.send([{"id": 1, "name": "a"}])
    assert consume(topic, pg_url)["total_rows"] == 1
    topic.send([{"id": 2, "Name": "b"}, {"id": 3, "name": "c", "NAME": "d"}, {"id": 4, "name": "e"}, {}])
    with pytest.raises(BadMessages, match="2 messages of .* the case of their names, unlike 'N"):
        consume(topic, pg_url, transform_on_error="fail")
    assert consume(topic, pg_url)["total_rows"] == 2
    assert rows(pg_url) == [(1, "a"), (4, "e"), (None, None)]
    with sqlite3.connect(letters_file(topic)) as db:
        letters = db.execute("SELECT payload, error FROM ematix_dlq_records").fetchall()
    assert sorted(json.loads(payload).get("id", 0) for payload, _ in letters) == [0, 0, 2, 3]
    assert all("case" in error for payload, error in letters if payload != b"{}")


@pytest.mark.parametrize(
    ("selection", "attempts"), [('{"kind": "all"}', 0), ('{"kind": "all"}', -1), (5, None), (None, 1)]
)
def test_what_says_no_letters_or_no_attempts_is_refused(selection: Any, attempts: int | None) -> None:
    config = """
        pipeline_name = "letters"
        source_query = "t"
        source = { kind = "kafka", bootstrap_servers = "h:9092", group_id = "g" }
        target = { kind = "sqlite", path = "shop.db", table = { schema = "main", name = "t" } }
    """
    with pytest.raises(ValueError, match=r"max_attempts must be at least 1|The selection is not JSON"):
        _core.dlq_replay(config, selection, attempts)


def test_a_replay_asks_for_the_table_anew_before_every_step(tmp_path: Path) -> None:
    lite = SQLiteConnection(name="lite", path=str(tmp_path / "shop.db"))
    kafka = KafkaConnection(name="k", bootstrap_servers="h:9092", group_id="g")
    target = Target(connection=lite, table=("main", "orders"))
    given = {"name": "asks", "source": kafka, "source_query": "orders", "targets": [target]}
    replayed = _ReplayTarget(stream_spec(given, user_location("asks")), target)
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE orders (id integer)")
    for step, wanted in (("one", ["id"]), ("two", ["id", "_offset"])):
        replayed.open_as(step)
        assert replayed.wanted(["id", "_offset"]) == wanted
        replayed.close()
        with sqlite3.connect(tmp_path / "shop.db") as db:
            db.execute(f"ALTER TABLE orders ADD COLUMN {'_offset' if step == 'one' else 'more'} bigint")
