"""What a stream remembers, seen from outside: checked, shown, reset, and sent to another place."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ematix_flow import PostgresConnection, _core
from ematix_flow.backends.kafka import KafkaBackend
from ematix_flow.cli.main import main
from ematix_flow.declare import registry
from ematix_flow.errors import AlreadyRunning, InvalidDeclaration, LostMessages
from ematix_flow.run.stream_state import Place, StreamState
from ematix_flow.run.streams import run_stream
from ematix_flow.spark.checkpoints import CheckpointFolder
from tests.stream.conftest import Topic

PROVE = bool(os.environ.get("EMATIX_PROVE"))  # each start of a stream takes seconds
TOML = """
pipeline_name = "{name}"
source_query = "{topic}"

[source]
kind = "kafka"
bootstrap_servers = "{broker}"
group_id = "group-{topic}"

[target]
kind = "postgres"
url = "${{WAREHOUSE}}"
table = {{ schema = "public", name = "events" }}
"""


class Project:
    """One stream in a TOML file, from a topic into PostgreSQL."""

    def __init__(self, folder: Path, topic: Topic, url: str) -> None:
        self.topic, self.url, self.name = topic, url, f"stream_{topic.name}"
        self.file = folder / "pipeline.toml"
        self.write(topic.name)

    def write(self, source: str, more: str = "") -> None:
        text = TOML.format(name=self.name, topic=source, broker=self.topic.server.address)
        self.file.write_text(more + text)

    def drain(self) -> int:
        from ematix_flow.config.stream_toml import read_stream_file

        return int(run_stream(read_stream_file(self.file), once=True)["total_rows"])

    def rows(self) -> list[int]:
        with psycopg.connect(self.url) as db:
            return [row[0] for row in db.execute("SELECT id FROM public.events ORDER BY id").fetchall()]


@pytest.fixture
def project(topic: Topic, pg_url: str, tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("WAREHOUSE", pg_url)
    with registry.isolated():
        yield Project(tmp_project, topic, pg_url)


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_stream_is_sent_back_to_a_time_to_offsets_and_to_both_ends(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = project.topic
    topic.send(({"id": n} for n in range(4)), key=b"one key, one partition")
    time.sleep(0.01)  # messages carry milliseconds
    middle = datetime.now(timezone.utc)
    time.sleep(0.01)
    topic.send(({"id": n} for n in range(4, 10)), key=b"one key, one partition")
    assert project.drain() == 10

    assert main(["rewind", "--to", f"timestamp:{middle.isoformat()}"]) == 0
    assert "begins at" in capsys.readouterr().out
    assert project.drain() == 6
    assert project.rows() == sorted([*range(10), *range(4, 10)])

    assert main(["rewind", "--to", "latest", "--json"]) == 0
    ends = told(capsys)["begins_at"][topic.name][topic.name]
    assert sorted(ends.values()) == [0, 10]
    topic.send([{"id": 10}], key=b"one key, one partition")
    assert project.drain() == 1, "what comes after the rewind is read, however late the stream is started"

    offsets = {part: max(offset - 2, 0) for part, offset in ends.items()}
    assert main(["rewind", "--to", f"offset:{json.dumps(offsets)}"]) == 0
    assert project.drain() == 3
    capsys.readouterr()
    for place, begins in (("earliest", [0, 0]), ("timestamp:2100-01-01T00:00:00", [0, 11])):
        assert main(["rewind", "--to", place, "--json"]) == 0
        assert sorted(told(capsys)["begins_at"][topic.name][topic.name].values()) == begins


@pytest.mark.parametrize("place", ["offset:{", "timestamp:yesterday", "somewhere", "offset:7", 'offset:{"0": 1}'])
def test_a_place_that_makes_no_sense_is_refused(project: Project, place: str) -> None:
    assert main(["rewind", "--to", place]) == 2
    assert CheckpointFolder(project.name).current() is None


def test_offsets_that_the_topic_does_not_hold_are_refused(project: Project) -> None:
    from ematix_flow.config.stream_toml import read_stream_file

    state = StreamState(read_stream_file(project.file))
    with pytest.raises(InvalidDeclaration, match="holds offsets 0 to 0, and 5 is not among them"):
        state.rewind(Place(offset={"0": 5, "1": 0}))


def test_the_place_of_a_moment_is_exact_and_before_all_messages_lies_the_first(topic: Topic) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": topic.server.address})
    sent = [int(time.time() * 1000) // 1000 * 1000 + number for number in range(1000)]
    for moment_ms in sent:
        producer.produce(topic.name, value=b"{}", partition=0, timestamp=moment_ms)
    assert producer.flush(30) == 0
    epoch, ms = datetime(1970, 1, 1, tzinfo=timezone.utc), timedelta(milliseconds=1)
    backend = KafkaBackend(topic.connection())

    def offset_at(moment: datetime) -> int:
        return int(backend.position_at(topic.name, moment)[topic.name]["0"])

    try:
        for number in range(0, 1000, 333):
            assert offset_at(epoch + sent[number] * ms) == number
            assert offset_at(epoch + sent[number] * ms + ms / 1000) == number + 1, (
                "one of the same millisecond is older"
            )
        for moment in (epoch - ms, epoch - 2 * ms, datetime(1950, 1, 1, tzinfo=timezone.utc)):
            assert offset_at(moment) == 0
    finally:
        backend.close()


def test_a_stream_that_runs_is_not_touched(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    folder = CheckpointFolder(project.name)
    with folder.held():
        for words in (["rewind", "--to", "earliest"], ["state", "reset"]):
            assert main(words) == 1
            assert "already running" in capsys.readouterr().err
        with pytest.raises(AlreadyRunning):
            _core.stream_rewind(project.file.read_text(), '{"kind": "latest"}')
    assert folder.current() is None


def test_the_notebook_function_rewinds_by_json(project: Project) -> None:
    project.topic.send(({"id": n} for n in range(3)), key=b"k")
    result = _core.stream_rewind(project.file.read_text(), json.dumps({"kind": "timestamp", "ms": 0}))
    [(query, position)] = result["sources"]
    assert (query, result["state_cleared"]) == (project.topic.name, False)
    assert json.loads(position) == {query: {"0": 0, "1": 0}}
    again = _core.stream_rewind(
        project.file.read_text(), json.dumps({"kind": "offset", "bytes": list(position)}), False
    )
    assert again["sources"] == result["sources"]
    for wrong in ("", "[]", '{"kind": "offset"}', '{"kind": "offset", "bytes": [123]}', '{"kind": "timestamp"}'):
        with pytest.raises(ValueError):
            _core.stream_rewind(project.file.read_text(), wrong)


def test_a_changed_stream_is_told_so_and_goes_on_after_a_reset(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["state", "check"]) == 0
    assert "no checkpoint yet" in capsys.readouterr().out
    project.topic.send({"id": n} for n in range(5))
    assert project.drain() == 5
    assert main(["state", "check", "--json"]) == 0
    assert told(capsys)["can_go_on"] is True
    assert main(["state", "inspect", "--json"]) == 0
    facts = told(capsys)
    assert facts["last_finished_batch"] == 0
    assert sum(facts["positions"][project.topic.name][project.topic.name].values()) == 5
    assert facts["columns"] == {project.topic.name: {"id": "bigint"}}

    other = Topic(project.topic.server)
    other.send([{"id": 100}])
    project.write(other.name)
    assert main(["state", "check"]) == 1
    said = capsys.readouterr().out
    assert project.topic.name in said
    assert "flow state reset" in said
    assert main(["consume", "--drain"]) == 1
    assert "flow state reset" in capsys.readouterr().err
    assert main(["state", "reset"]) == 0
    assert "where its targets are" in capsys.readouterr().out
    assert project.drain() == 1
    assert project.rows() == [0, 1, 2, 3, 4, 100]


@pytest.mark.parametrize(
    ("beginning", "again"), [("earliest", 5), *([("targets", 0), ("group", 0), ("latest", 0)] if PROVE else [])]
)
def test_a_reset_begins_where_it_is_told(project: Project, beginning: str, again: int) -> None:
    project.topic.send({"id": n} for n in range(5))
    assert project.drain() == 5
    assert main(["state", "reset", "--from", beginning]) == 0
    project.topic.send([{"id": 5}])
    assert project.drain() == again + 1
    assert len(project.rows()) == 6 + again


def test_messages_that_the_broker_threw_away_are_named_or_left_out(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    project.topic.send(({"id": n} for n in range(5)), key=b"k")
    assert project.drain() == 5
    project.topic.send(({"id": n} for n in range(5, 10)), key=b"k")
    partition = _thrown_away(project.topic, before=8)
    with pytest.raises(LostMessages, match=f"5 and 10 of partition {partition} of '{project.topic.name}'") as lost:
        project.drain()
    assert "on_gap" in str(lost.value)
    project.write(project.topic.name, more='on_gap = "continue"\n')
    with caplog.at_level("WARNING", "ematix_flow"):
        assert project.drain() == 2
    assert f"3 messages of '{project.topic.name}' were gone" in caplog.text
    assert f"partition {partition}, offsets 5 to 7" in caplog.text
    assert project.rows() == [0, 1, 2, 3, 4, 8, 9]


def test_a_topic_that_was_made_anew_is_noticed_although_it_holds_more_than_before(
    project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    project.topic.send({"id": n} for n in range(5))
    assert project.drain() == 5
    project.topic.make_anew()
    project.topic.send({"id": n} for n in range(10, 30))
    with pytest.raises(LostMessages, match=f"'{project.topic.name}' was deleted and made anew"):
        project.drain()
    project.write(project.topic.name, more='on_gap = "continue"\n')
    with caplog.at_level("WARNING", "ematix_flow"):
        assert project.drain() == 20
    assert "made anew; it is read from its beginning" in caplog.text
    assert project.rows() == [*range(5), *range(10, 30)]
    assert project.drain() == 0


def _thrown_away(topic: Topic, *, before: int) -> int:
    """Let the broker forget the beginning of the partition that holds messages."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": topic.server.address, "log_level": 0})
    asked = {TopicPartition(topic.name, number): OffsetSpec.latest() for number in (0, 1)}
    ends = {place.partition: answer.result(10).offset for place, answer in admin.list_offsets(asked).items()}
    partition = max(ends, key=lambda number: ends[number])
    for answer in admin.delete_records([TopicPartition(topic.name, partition, before)]).values():
        answer.result(10)
    return partition


def test_a_warehouse_that_is_away_is_one_error(topic: Topic) -> None:
    from ematix_flow import run_streaming_pipeline
    from ematix_flow.errors import ConnectionFailed

    with pytest.raises(ConnectionFailed):
        run_streaming_pipeline(
            name=f"away_{topic.name}",
            source=topic.connection(),
            source_query=topic.name,
            target=PostgresConnection(name="warehouse", url="postgresql://127.0.0.1:1/nothing"),
            target_table=("public", "events"),
            once=True,
        )


def test_a_question_to_the_broker_is_answered_although_another_thread_changes_the_client(topic: Topic) -> None:
    backend = KafkaBackend(topic.connection())
    told: list[int] = []

    def ask() -> None:
        told.extend(len(backend.lag(topic.name, {topic.name: {"0": 0, "1": 0}})) for _ in range(20))

    asking = threading.Thread(target=ask)
    asking.start()
    while asking.is_alive():
        backend.leave_group()
    assert told == [2] * 20
