"""The documented streams that are run by a command or until they are told to stop, on real servers.

They are run as they are written, but for the addresses of servers and the name of the topic, which others use too.
"""

from __future__ import annotations

import functools
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

import ematix_flow
from ematix_flow import Aggregation, Annotated, BigInt, PostgresConnection, Text, Window, ematix, pk
from ematix_flow.declare import registry
from tests.docs.seed_examples import example
from tests.services.moto import S3Server
from tests.stream.conftest import Topic
from tests.stream.test_consume_cli import until

Example = Callable[[str], str]


@pytest.fixture
def documented(topic: Topic, pg_url: str, tmp_project: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    """An example, with addresses of this machine."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP", topic.server.address)
    monkeypatch.setenv("WAREHOUSE_DSN", pg_url)
    places = {
        "localhost:9092": topic.server.address,
        "postgres://localhost/mydb": pg_url,
        "postgres://localhost/wh": pg_url,
        "postgres://localhost/ematix_state": pg_url,
        "9100": str(free_port()),
        '"ematix-flow"': f'"group-{topic.name}"',
        'source_query="events"': f'source_query="{topic.name}"',
        'source_query  = "events"': f'source_query  = "{topic.name}"',
        'source_query = "events"': f'source_query = "{topic.name}"',
    }

    def here(name: str) -> str:
        text = example(name if "/" in name else f"readme-0.3/{name}")
        for written, address in places.items():
            text = text.replace(written, address)
        return text

    return here


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def found(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as db:
        return db.execute(sql).fetchall()  # type: ignore[arg-type]


def arrived(url: str) -> int:
    """How many events are in the documented table."""
    if found(url, "SELECT to_regclass('public.events')::text") == [(None,)]:
        return 0
    return int(found(url, "SELECT count(DISTINCT id) FROM public.events")[0][0])


@contextmanager
def running(line: str) -> Iterator[subprocess.Popen[str]]:
    """A line as a shell reads it, until it is told to stop; it must end well then."""
    process = subprocess.Popen(["sh", "-c", f"exec {line}"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        said, story = process.communicate(timeout=120)
        assert process.returncode == 0, said + story
    finally:
        process.kill()
        process.communicate()


def send_at(topic: Topic, seconds: float, message: dict[str, Any]) -> None:
    """One message, as if it had been sent then."""
    producer = Producer({"bootstrap.servers": topic.server.address, "log_level": 0})
    producer.produce(topic.name, value=json.dumps(message), partition=0, timestamp=round(seconds * 1000))
    assert producer.flush(30) == 0


def program(line: str) -> str:
    """A command with the `flow` of this environment in place of the one on the path."""
    return line.replace("flow ", f"{Path(sys.executable).parent / 'flow'} ", 1)


def test_a_document_is_consumed_until_it_is_told_to_stop(documented: Example, topic: Topic, pg_url: str) -> None:
    Path("pipeline.toml").write_text(documented("stream.toml"))
    line = documented("consume.sh")
    topic.send({"id": n} for n in range(5))
    with running(program(line)):
        until(lambda: arrived(pg_url) == 5, "all messages are rows")
        port = line.split("--metrics-port ")[1].split()[0]
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        assert "events-to-pg" in page


def test_a_declared_stream_is_listed_and_consumed(documented: Example, topic: Topic, pg_url: str) -> None:
    Path("my_pipelines.py").write_text(documented("stream-declared.python"))
    consume, listing = (line for line in documented("consume-module.sh").splitlines() if line)
    listed = subprocess.run(["sh", "-c", program(listing)], capture_output=True, text=True, check=True)
    assert listed.stdout == "events_to_pg\n"
    topic.send({"id": n} for n in range(5))
    with running(program(consume)):
        until(lambda: arrived(pg_url) == 5, "all messages are rows")


def test_a_document_is_run_by_a_program(documented: Example, topic: Topic, pg_url: str) -> None:
    Path("pipeline.toml").write_text(documented("stream.toml"))
    Path("program.py").write_text(documented("stream-run.python"))
    topic.send({"id": n} for n in range(5))
    with running(f"{sys.executable} program.py"):
        until(lambda: arrived(pg_url) == 5, "all messages are rows")


def test_one_topic_goes_into_a_table_and_a_bucket(
    documented: Example, topic: Topic, pg_url: str, s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, secret = s3_server.loader
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    fan_out = documented("stream-fan-out.python").replace("https://s3.amazonaws.com", s3_server.endpoint)
    text = documented("stream-declared.python") + fan_out.replace("ematix-archive", s3_bucket)
    topic.send({"id": n} for n in range(5))
    with registry.isolated():
        scope: dict[str, Any] = {"__name__": "documented"}
        exec(compile(text, "stream-fan-out", "exec"), scope)
        scope["events_fanout"].run(once=True)
    files = [name for name in s3_server.objects(s3_bucket) if name.startswith("events/raw/") and ".parquet" in name]
    assert arrived(pg_url) == 5 and files


def test_windows_sessions_joins_and_changes(
    documented: Example, topic: Topic, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = functools.partial(ematix_flow.run_streaming_pipeline, once=True)
    places = {"orders": Topic(topic.server), "payments": Topic(topic.server), "dbserver1.public.customers": topic}
    scope: dict[str, Any] = {
        "__name__": "documented",
        "run_streaming_pipeline": once,
        "kafka_prod": topic.connection(),
        "warehouse": PostgresConnection(name="warehouse", url=pg_url),
        **{"Window": Window, "Aggregation": Aggregation, "ematix": ematix},
    }

    def run(name: str) -> None:
        text = documented(f"stream-{name}.python")
        for written, place in places.items():
            text = text.replace(f'query="{written}"', f'query="{place.name}"')
            text = text.replace(f'_source="{written}"', f'_source="{place.name}"')
        exec(compile(text, name, "exec"), scope)

    long_ago = round((time.time() - 3600) / 60) * 60
    send_at(topic, long_ago + 1, {"user_id": 1, "page": "/"})
    send_at(topic, long_ago + 2, {"user_id": 1, "page": "/cart"})
    send_at(topic, time.time(), {"user_id": 2, "page": "/"})
    with registry.isolated():
        run("window")
        assert found(pg_url, "SELECT user_id, n FROM public.events_per_min") == [(1, 2)]
        scope["kafka_prod"] = topic.connection(group_id=f"sessions-{topic.name}")  # else it goes on where that one was
        run("session")
        sessions = found(pg_url, "SELECT user_id, events, entry_page, exit_page FROM public.user_sessions")
        assert sessions == [(1, 2, "/", "/cart")]
        places["orders"].send([{"order_id": 7, "total": 3}])
        places["payments"].send([{"order_id": 7, "paid": 3}])
        run("join")
        assert found(pg_url, "SELECT count(*) FROM public.orders_with_payments") == [(1,)]

        @ematix.table(schema="public")
        class customer_mirror:
            id: Annotated[BigInt, pk()]
            email: Text

        scope["customer_mirror"] = customer_mirror
        places["dbserver1.public.customers"] = Topic(topic.server)
        event = {"op": "c", "before": None, "after": {"id": 1, "email": "ann@example.com"}, "ts_ms": 1}
        places["dbserver1.public.customers"].send([{**event, "source": {"lsn": 1, "ts_ms": 1}}])
        run("cdc")
        scope["mirror_customers"].run(once=True)
        assert found(pg_url, "SELECT id, email FROM public.customer_mirror") == [(1, "ann@example.com")]


def test_options_that_are_shown_on_their_own(documented: Example, topic: Topic, pg_url: str) -> None:
    letters = Topic(topic.server)
    given = {
        **{"name": "events", "source": topic.connection(), "source_query": topic.name, "once": True},
        **{"target": PostgresConnection(name="warehouse", url=pg_url), "target_table": ("public", "events")},
    }
    scope = {
        "__name__": "documented",
        "run_streaming_pipeline": lambda *left_out, **shown: ematix_flow.run_streaming_pipeline(**given, **shown),
    }
    topic.send([{"id": 1}])
    exec(compile(documented("stream-watermark.python"), "stream-watermark", "exec"), scope)
    topic.send([{"id": 2}])
    topic.send([b"no document"])
    exec(
        compile(documented("stream-on-error.python").replace("events-failed", letters.name), "on-error", "exec"), scope
    )
    assert arrived(pg_url) == 2
    assert len(topic.server.messages(letters.name)) == 1


def test_the_older_document_runs_as_well(
    documented: Example,
    topic: Topic,
    pg_url: str,
    s3_server: S3Server,
    s3_bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key, secret = s3_server.loader
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    once = functools.partial(ematix_flow.run_streaming_pipeline, once=True)
    monkeypatch.setattr(ematix_flow, "run_streaming_pipeline", once)
    orders, payments, letters = (Topic(topic.server) for _ in range(3))
    places = {'"orders"': orders.name, '"payments"': payments.name, '"events-failed"': letters.name}
    places |= {'"ematix-archive"': s3_bucket, '"https://s3.amazonaws.com"': s3_server.endpoint}
    scope: dict[str, Any] = {"__name__": "documented"}

    def text_of(name: str) -> str:
        text = documented(f"readme-0.1/{name}")
        for written, place in places.items():
            text = text.replace(written, f'"{place}"')
        return text.replace(f'"group-{topic.name}"', f'"{name}-{topic.name}"')  # each reads the topic by itself

    def run(name: str) -> None:
        exec(compile(text_of(name), name, "exec"), scope)

    def forget_events() -> None:
        with psycopg.connect(pg_url) as db:
            db.execute("DROP TABLE public.events")

    long_ago = round((time.time() - 3600) / 60) * 60
    send_at(topic, long_ago + 1, {"id": 1, "user_id": 1, "page": "/", "payload": "a"})
    send_at(topic, long_ago + 2, {"id": 2, "user_id": 1, "page": "/cart", "payload": "b"})
    send_at(topic, time.time(), {"id": 3, "user_id": 2, "page": "/", "payload": "c"})
    orders.send([{"order_id": 7, "total": 3}])
    payments.send([{"order_id": 7, "paid": 3}])
    with registry.isolated():
        run("stream-window.python")
        assert found(pg_url, "SELECT user_id, n FROM public.events_per_min") == [(1, 2)]
        run("stream-session.python")
        sessions = found(pg_url, "SELECT user_id, events, entry_page, exit_page FROM public.user_sessions")
        assert sessions == [(1, 2, "/", "/cart")]
        run("stream-join.python")
        assert found(pg_url, "SELECT left_total, right_paid FROM public.orders_with_payments") == [(3, 3)]
        run("stream-declared.python")
        scope["events_to_pg"].run(once=True)
        assert arrived(pg_url) == 3
        forget_events()
        topic.send([{"id": 4, "user_id": 2, "page": "/", "payload": "d"}])  # the group has read what was there
        run("stream-watermark.python")
        assert found(pg_url, "SELECT user_id, payload FROM public.events") == [(2, "d")]
        topic.send([{"id": 5, "user_id": 2, "page": "/", "payload": "e"}])
        run("stream-files.python")
        assert [name for name in s3_server.objects(s3_bucket) if name.startswith("events/raw/") and ".parquet" in name]
    forget_events()
    file = tmp_path / "pipeline.toml"
    file.write_text(text_of("stream.toml"))
    monkeypatch.setenv("EMATIX_FLOW_NO_DEPRECATION", "1")  # the document has its URL in it
    ematix_flow.run_pipeline(str(file), once=True)
    assert arrived(pg_url) == 5
