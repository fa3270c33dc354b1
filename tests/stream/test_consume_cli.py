"""`flow consume` as it is used: exit codes, signals under load, two at once, all of a module."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from ematix_flow.cli.main import main
from ematix_flow.declare import registry
from ematix_flow.run.runlogs.sqlite import SqliteRunLog
from tests.stream.conftest import Topic

PROVE = bool(os.environ.get("EMATIX_PROVE"))
MODULE = """
import os
from ematix_flow import KafkaConnection, PostgresConnection, ematix

BROKER = KafkaConnection(
    name="broker", bootstrap_servers=os.environ["BROKER"], group_id="group-" + os.environ["TOPIC"]
)
WAREHOUSE = PostgresConnection(name="warehouse", url=os.environ["WAREHOUSE"])

for name in ("to_events", "to_others"):
    @ematix.streaming_pipeline(
        name=name, source=BROKER, source_query=os.environ["TOPIC"], target=WAREHOUSE,
        target_table=("public", name.removeprefix("to_")), idle_pause_ms=20, max_batch_rows=int(os.environ["BATCH"]),
    )
    def declared():
        "One stream."
"""
TOML = """
pipeline_name = "from_toml"
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


@pytest.fixture
def project(topic: Topic, pg_url: str, tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module of two streams, and a TOML file with one."""
    (tmp_project / "streams.py").write_text(MODULE)
    (tmp_project / "pipeline.toml").write_text(TOML.format(topic=topic.name, broker=topic.server.address))
    monkeypatch.setenv("BROKER", topic.server.address)
    monkeypatch.setenv("TOPIC", topic.name)
    monkeypatch.setenv("WAREHOUSE", pg_url)
    monkeypatch.setenv("BATCH", "300")
    with registry.isolated():
        yield tmp_project
    sys.modules.pop("streams", None)
    sys.path[:] = [place for place in sys.path if place != str(tmp_project)]


def rows(url: str, table: str = "events") -> list[int]:
    with psycopg.connect(url) as db:
        return [row[0] for row in db.execute(f"SELECT id FROM public.{table} ORDER BY id").fetchall()]


def until(is_so: Callable[[], bool], what: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"it was never so: {what}"
        time.sleep(0.05)


@contextmanager
def consuming(*words: str, name: str = "to_events") -> Iterator[subprocess.Popen[str]]:
    """`flow consume` as a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ematix_flow", "consume", "--module", "streams", name, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def sending(topic: Topic) -> Iterator[Callable[[], int]]:
    """Messages with rising ids, about a thousand a second; gives how many have been sent so far."""
    sent, done = [0], threading.Event()

    def send() -> None:
        while not done.wait(0.1) and sent[0] < 20_000:
            topic.send({"id": n} for n in range(sent[0], sent[0] + 100))
            sent[0] += 100

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield lambda: sent[0]
    finally:
        done.set()
        thread.join()


# ── what is said without Spark ───────────────────────────────────────────────────────────────────────────────────────


def test_the_streams_of_a_module_are_listed_sorted(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume-list", "--module", "streams"]) == 0
    assert capsys.readouterr().out == "to_events\nto_others\n"
    assert main(["consume-list", "--module", "streams", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pipelines": ["to_events", "to_others"]}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--module", "streams", "to_event"], 2, "'to_event'"),
        (["--module", "streams", "to_event"], 2, "'to_others'"),
        (["--module", "streams"], 2, "to_events"),
        (["nothing_there"], 2, "nothing_there"),
        (["--all"], 2, "--module"),
        (["--max-batches", "0", "pipeline.toml"], 2, "above zero"),
        (["--metrics-port", "70000", "pipeline.toml"], 2, "no port"),
        (["not_there.toml"], 1, "cannot be read"),
        (["broken.toml"], 1, "pipeline_nam"),
        (["--module", "no_such_module", "x"], 1, "no_such_module"),
    ],
)
def test_mistakes_end_with_their_code_before_java_starts(
    project: Path, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    (project / "broken.toml").write_text('pipeline_nam = "x"\n')
    assert main(["consume", *words]) == code
    heard = capsys.readouterr()
    assert said in heard.err
    assert heard.out == ""
    assert "Traceback" not in heard.err


def test_a_failing_stream_of_all_leaves_a_summary_and_code_1(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAREHOUSE", "postgresql://127.0.0.1:1/nothing")
    monkeypatch.setenv("TOPIC", "no-such-topic")
    assert main(["consume", "--module", "streams", "--all", "--drain"]) == 1
    heard = capsys.readouterr()
    assert json.loads(heard.out) == {"pipelines": {"to_events": {"exit_code": 1}, "to_others": {"exit_code": 1}}}
    for name in ("to_events", "to_others"):
        assert f"{name}: Kafka has no topic 'no-such-topic'" in heard.err


# ── what it does ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_draining_a_file_gives_the_summary_as_the_last_line_and_a_record(
    project: Path, topic: Topic, pg_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic.send({"id": n} for n in range(5))
    assert main(["consume", "--drain"]) == 0
    heard = capsys.readouterr()
    assert json.loads(heard.out) == {"total_rows": 5, "iterations": 1, "shutdown_triggered": False}
    assert "from_toml ended after" in heard.err
    assert rows(pg_url) == list(range(5))
    assert main(["runs", "list", "--pipeline", "from_toml"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert "succeeded" in line
    assert "5 consumed · 5 written" in line
    assert main(["runs", "show", "from_toml-stream-"]) == 0
    assert "1 batches · 0 errors" in capsys.readouterr().out


def test_no_batch_more_is_worked_on_than_was_asked_for(
    project: Path, topic: Topic, pg_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCH", "1")
    topic.send([{"id": n} for n in range(12)], partition=0)
    for done in (4, 8):
        assert main(["consume", "--module", "streams", "to_events", "--max-batches", "4"]) == 0
        assert json.loads(capsys.readouterr().out) == {"total_rows": 4, "iterations": 4, "shutdown_triggered": False}
        assert rows(pg_url) == list(range(done))
        assert topic.committed() == done


@pytest.mark.parametrize("number", [signal.SIGTERM, *([signal.SIGINT] if PROVE else [])])
def test_a_signal_under_load_finishes_the_batch_and_no_row_is_lost_or_doubled(
    project: Path, topic: Topic, pg_url: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.send([{"id": -1}])
    with consuming() as process:
        until(lambda: _count(pg_url) == 1, "it runs")
        _refuses_a_second_one()
        with sending(topic) as sent:
            until(lambda: _count(pg_url) > 400, "rows arrive")
            process.send_signal(number)
            out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])
    there = rows(pg_url)
    assert summary["shutdown_triggered"] is True
    assert summary["total_rows"] == len(there) == len(set(there)) == topic.committed()
    assert "Traceback" not in err
    total = sent()
    monkeypatch.setenv("BATCH", "100000")
    assert main(["consume", "--module", "streams", "to_events", "--drain"]) == 0
    assert rows(pg_url) == list(range(-1, total))
    records, _ = SqliteRunLog("~/.ematix-flow/run_log.db").list_runs(pipeline="to_events")
    assert [record.status for record in records] == ["succeeded", "failed", "cancelled"], "the second one in between"


def _count(url: str) -> int:
    with psycopg.connect(url) as db:
        there = db.execute("SELECT to_regclass('public.events')").fetchone()
        if there is None or there[0] is None:
            return 0
        counted = db.execute("SELECT count(*) FROM public.events").fetchone()
        return 0 if counted is None else int(counted[0])


def _refuses_a_second_one() -> None:
    with consuming("--drain") as second:
        out, err = second.communicate(timeout=180)
    assert second.returncode == 1
    assert "already running" in err
    assert out == ""


def test_sigterm_while_waiting_to_start_again_ends_well(
    project: Path, topic: Topic, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPIC", "no-such-topic")
    with consuming("--restart-on-error", "--min-backoff-ms", "60000") as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "started again" in line)
        assert "no topic 'no-such-topic'" in line
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == {"total_rows": 0, "iterations": 0, "shutdown_triggered": True}


def test_all_streams_of_a_module_run_beside_each_other(
    project: Path, topic: Topic, pg_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic.send({"id": n} for n in range(700))
    assert main(["consume", "--module", "streams", "--all", "--drain"]) == 0
    told = json.loads(capsys.readouterr().out)["pipelines"]
    assert {name: result["total_rows"] for name, result in told.items()} == {"to_events": 700, "to_others": 700}
    assert rows(pg_url) == rows(pg_url, "others") == list(range(700))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_all_streams_end_with_the_process_that_started_them(
    project: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TOPIC", "no-such-topic")
    words = ["--module", "streams", "--all", "--restart-on-error", "--initial-backoff-ms", "600000"]
    words += ["--max-backoff-ms", "600000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ematix_flow", "consume", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        waiting = [next(line for line in process.stderr if "started again" in line) for _ in range(2)]
        assert {line.partition(":")[0] for line in waiting} == {"to_events", "to_others"}
        children = _children(process.pid)
        assert len(children) == 2
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    if number == signal.SIGTERM:
        assert process.returncode == 0
        assert [told["shutdown_triggered"] for told in json.loads(out)["pipelines"].values()] == [True, True]
    until(lambda: not any(Path(f"/proc/{child}/cmdline").exists() for child in children), "nobody is left behind", 30)


def _children(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(number) for number in listed]
