"""Kafka as a batch target, against a real broker: what arrives, how often, and what a run that goes wrong leaves."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas
import psycopg
import pytest

from ematix_flow import (
    JSON,
    UUID,
    Annotated,
    BigInt,
    Boolean,
    Bytes,
    Date,
    Double,
    Float,
    KafkaConnection,
    Numeric,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SmallInt,
    SQLiteConnection,
    String,
    Target,
    Text,
    Timestamp,
    TimestampTZ,
    ematix,
    pk,
)
from ematix_flow.backends import kafka_client, kafka_rows
from ematix_flow.backends.kafka import KafkaBackend
from ematix_flow.backends.kafka_books import KafkaBooks, books_topic, read_books
from ematix_flow.backends.kafka_client import cluster_of
from ematix_flow.contracts.plans import SettleReport
from ematix_flow.contracts.session import SessionNeeds, SparkSettings
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.errors import (
    AlreadyRunning,
    ConnectionFailed,
    FlowError,
    InvalidConnection,
    InvalidDeclaration,
    InvalidIdentifier,
    InvalidPlan,
    StatementFailed,
    TakenOver,
    UnfitValue,
    UnsupportedBackend,
    UnsupportedMode,
)
from ematix_flow.spark.session import open_session
from ematix_flow.testing.registry import isolated_registry
from tests.services.kafka import PASSWORD, SCRAM_PASSWORD, SCRAM_USER, USER, KafkaServer, Message, silent_server

NOW = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)
PROVE = bool(os.environ.get("EMATIX_PROVE"))  # each crash starts Spark once more: `make prove` has more of them


@ematix.table(schema="shop", name="orders")
class Orders:
    id: BigInt
    name: Text | None
    amount: BigInt


@dataclass
class Place:
    """A broker, a topic of the test's own, and a SQLite database that rows come from."""

    server: KafkaServer
    connection: KafkaConnection
    topic: str
    shop: SQLiteConnection
    pipeline_name: str

    def execute(self, *statements: str) -> None:
        with sqlite3.connect(self.shop.path) as db:
            for statement in statements:
                db.execute(statement)
        db.close()

    def own_topics(self) -> set[str]:
        """The topics of this test, those of books included; other tests use the same broker."""
        return {name for name in self.server.topics() if self.topic in name}

    def fill(self, first: int, last: int) -> None:
        numbers = f"WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last})"
        self.execute(
            "CREATE TABLE IF NOT EXISTS orders (id bigint, name text, amount bigint)",
            f"INSERT INTO orders {numbers} SELECT n, 'name ' || (n % 7), n * 10 FROM s",
        )

    def pipeline(self, table: Any = Orders, source: Any = "SELECT id, name, amount FROM orders", **options: Any) -> Any:
        target = {
            key: options.pop(key) for key in ("message_key_column", "prefix", "queue", "partition_by") if key in options
        }
        options.setdefault("mode", "append")
        options.setdefault("source_connection", self.shop)
        target = {"topic": self.topic, "connection": self.connection, **target}
        declared = ematix.pipeline(
            name=self.pipeline_name, targets=[Target(table=table, **target), *options.pop("others", ())], **options
        )(lambda conn: source)
        assert isinstance(declared, Pipeline)
        return declared

    def values(self) -> list[dict[str, Any]]:
        """All rows in the topic, as readers of committed messages see them."""
        return sorted((json.loads(m.value or b"") for m in self.messages()), key=lambda row: (row["id"], str(row)))

    def ids(self) -> list[int]:
        return [row["id"] for row in self.values()]

    def messages(self, **options: Any) -> list[Message]:
        return self.server.messages(self.topic, **options)

    def runs(self, table: str = "shop.orders") -> list[dict[str, Any]]:
        """The records of all runs in the books, oldest first."""
        books = read_books(cluster_of(self.connection), f"{self.pipeline_name}::{table}")
        return sorted(
            (value for key, value in books.entries.items() if key[0] == "run"), key=lambda run: run["started_at"]
        )


@pytest.fixture
def place(kafka_server: KafkaServer, tmp_project: Path) -> Iterator[Place]:
    name = f"t{uuid.uuid4().hex[:12]}"
    with isolated_registry():
        yield Place(
            server=kafka_server,
            connection=KafkaConnection(name="events", bootstrap_servers=kafka_server.address),
            topic=kafka_server.create_topic(name),
            shop=SQLiteConnection(name="till", path=str(tmp_project / "till.db")),
            pipeline_name=f"load {name}",
        )


def only(result: Any) -> Any:
    """The result of the one target."""
    (found,) = result.values()
    return found


def spark_frame(rows: list[Any], schema: str) -> Any:
    """A DataFrame whose values nobody has touched on the way."""
    return open_session(SessionNeeds(), SparkSettings()).createDataFrame(rows, schema)


# ── what arrives ─────────────────────────────────────────────────────────────────────────────────────────────────────


@ematix.table(schema="shop", name="things")
class Things:
    id: BigInt
    small: SmallInt
    flag: Boolean | None
    exact: Numeric[38, 18]
    ratio: Double
    narrow: Float
    text: Text | None
    short: String[4]
    born: Date
    wall: Timestamp
    at: TimestampTZ
    raw: Bytes | None
    doc: JSON | None
    token: UUID


TOKEN = "6f1c3c0e-2b7a-4f0e-9a57-0a3c5f2b9d11"
THINGS: dict[str, list[Any]] = {
    "id": [2**63 - 1, -(2**63), 3],
    "small": [32767, -32768, 0],
    "flag": [True, False, None],
    "exact": [Decimal("99999999999999999999.999999999999999999"), Decimal("-0.000000000000000001"), Decimal(0)],
    "ratio": [1e300, 0.1, -0.0],
    "narrow": [0.5, 1.5, -2.25],
    "text": ['quote " back \\ slash / {} 😀 \u2028', "a\x00b\n\t", None],
    "short": ["", "{}", "null"],
    "born": [date(9999, 12, 31), date(1, 1, 1), date(1582, 10, 10)],
    "wall": [datetime(2026, 3, 29, 2, 30), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(2026, 1, 1)],
    "at": [
        datetime(2026, 10, 25, 1, 30, 0, 1, timezone.utc),
        datetime(1900, 1, 1, tzinfo=timezone.utc),
        datetime(2026, 1, 1, 12, tzinfo=timezone.utc),
    ],
    "raw": [b"\x00\xff{}", b"", None],
    "doc": ['{"b": 1.50, "a": [null, {"x": "\\u00e9"}], "n": 12345678901234567890.123}', "[]", None],
    "token": [TOKEN, TOKEN, TOKEN],
}


def test_every_type_arrives_as_it_was(place: Place) -> None:
    schema = (
        "id bigint, small smallint, flag boolean, exact decimal(38,18), ratio double, narrow float, text string, "
        "short string, born date, wall timestamp_ntz, at timestamp, raw binary, doc string, token string"
    )
    frame = spark_frame(list(zip(*THINGS.values(), strict=True)), schema)
    run = only(place.pipeline(Things, source=frame).sync())
    assert run.rows_inserted == 3
    texts = [(message.value or b"").decode() for message in place.messages()]
    found = {row["id"]: row for row in (json.loads(text, parse_float=Decimal) for text in texts)}
    assert list(found[3]) == [*THINGS, "_loaded_at", "_batch_id"]
    for index, key in enumerate(THINGS["id"]):
        row, want = found[key], {name: values[index] for name, values in THINGS.items()}
        assert row["_batch_id"] == run.run_id
        assert datetime.fromisoformat(row["_loaded_at"].replace("Z", "+00:00")) <= datetime.now(timezone.utc)
        for name in ("id", "small", "flag", "exact", "text", "short", "token"):
            assert row[name] == want[name], name
        for name in ("ratio", "narrow"):
            assert math.copysign(1, float(row[name])) == math.copysign(1, want[name]) and float(row[name]) == want[name]
        assert row["born"] == want["born"].isoformat()
        assert row["wall"] == want["wall"].isoformat(timespec="microseconds")
        assert row["at"] == want["at"].strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"
        assert row["raw"] == (None if want["raw"] is None else base64.b64encode(want["raw"]).decode())
        assert row["doc"] == (None if want["doc"] is None else json.loads(want["doc"], parse_float=Decimal))
    assert any('"exact":-0.000000000000000001,' in text for text in texts), "decimals are written out in full"
    assert any(str(THINGS["doc"][0]) in text for text in texts), "a document stays as it was written"


def test_a_name_may_hold_anything(place: Place) -> None:
    odd = {"__annotations__": {'we"ird': Text, "a.b": Numeric[4, 2], "ü{}": JSON}, "__module__": __name__}
    table = ematix.table(schema="shop", name="odd")(type("Odd", (), odd))
    rows = pandas.DataFrame({'we"ird': ["x"], "a.b": [Decimal("1.50")], "ü{}": ["[1]"]})
    place.pipeline(table, source=rows).sync()
    (message,) = place.messages()
    row = json.loads(message.value or b"")
    assert [row['we"ird'], row["a.b"], row["ü{}"]] == ["x", 1.5, [1]]


def test_the_key_is_the_columns_value_and_one_key_stays_in_one_partition(place: Place) -> None:
    place.fill(1, 40)
    place.execute("INSERT INTO orders VALUES (99, NULL, 1)")
    place.pipeline(message_key_column="name").sync()
    partitions: dict[bytes | None, set[int]] = {}
    for message in place.messages():
        name = json.loads(message.value or b"")["name"]
        assert message.key == (name or "").encode()
        partitions.setdefault(message.key, set()).add(message.partition)
    assert len(partitions) == 8 and all(len(found) == 1 for found in partitions.values())


def test_raw_bytes_are_the_whole_message(place: Place) -> None:
    @ematix.table(schema="shop", name="blobs")
    class Blobs:
        device: Text
        payload: Bytes | None

    place.connection = KafkaConnection(
        name="events", bootstrap_servers=place.server.address, payload_format="raw_bytes"
    )
    rows = pandas.DataFrame({"device": ["a", "b", "c"], "payload": [b"\x00\x01", b"", None]})
    place.pipeline(Blobs, source=rows, message_key_column="device").sync()
    assert {m.key: m.value for m in place.messages()} == {b"a": b"\x00\x01", b"b": b"", b"c": None}


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_number_that_json_does_not_know_stops_the_load_before_anything_is_sent(place: Place, value: float) -> None:
    @ematix.table(schema="shop", name="orders")
    class Ratios:
        id: BigInt
        ratio: Double

    frame = spark_frame([(1, 0.5), (2, value)], "id bigint, ratio double")
    with pytest.raises(UnfitValue, match="'ratio' holds NaN or Infinity"):
        place.pipeline(Ratios, source=frame).sync()
    assert place.messages(isolation="read_uncommitted") == []
    assert [run["status"] for run in place.runs()] == ["failed"]


# ── once ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_incremental_load_goes_on_where_it_stopped(place: Place) -> None:
    place.fill(1, 3)
    pipeline = place.pipeline(incremental_column="id")
    assert only(pipeline.sync()).watermark == "3"
    assert only(pipeline.sync()).rows_inserted == 0
    place.fill(4, 12)
    assert pipeline.dry_run().targets[0].dry_run_rows_affected == 9
    again = only(pipeline.sync())
    assert (again.rows_inserted, again.watermark) == (9, "12")
    assert place.ids() == list(range(1, 13))
    assert [run["status"] for run in place.runs()] == ["success"] * 3
    assert [run["rows_inserted"] for run in place.runs()] == [3, 0, 9]


def test_a_run_id_is_loaded_once(place: Place) -> None:
    place.fill(1, 3)
    pipeline = place.pipeline()
    pipeline.sync(run_id="monday")
    repeated = only(pipeline.sync(run_id="monday"))
    assert repeated.replayed and repeated.rows_inserted == 0
    assert place.ids() == [1, 2, 3]
    assert [message.key for message in place.messages()] == [None] * 3, "without a key column there is no key"
    pipeline.sync(run_id="tuesday")
    assert place.ids() == [1, 1, 2, 2, 3, 3]


def test_a_big_load_goes_out_in_several_parts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_rows, "PART_BYTES", 2000)
    place.fill(1, 60)
    assert only(place.pipeline(incremental_column="id").sync()).rows_inserted == 60
    assert place.ids() == list(range(1, 61))
    books = read_books(cluster_of(place.connection), f"{place.pipeline_name}::shop.orders")
    assert not [key for key in books.entries if key[0] in ("part", "sending")], "nothing is left of a load that is done"


def test_a_dry_run_counts_and_sends_nothing(place: Place) -> None:
    place.fill(1, 5)
    pipeline = place.pipeline()
    before = place.own_topics()
    assert pipeline.dry_run().targets[0].dry_run_rows_affected == 5
    assert "written by Spark" in str(pipeline.preview())
    assert place.messages(isolation="read_uncommitted") == []
    assert place.own_topics() == before


def test_one_source_goes_to_postgres_and_kafka(place: Place, pg_url: str) -> None:
    @ematix.table(schema="public", name="copied")
    class Copied:
        id: Annotated[BigInt, pk()]
        name: Text

    warehouse = PostgresConnection(name="warehouse", url=pg_url)
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute(
            "CREATE TABLE raw AS SELECT n::bigint AS id, 'n' || n AS name, n::bigint AS amount "
            "FROM generate_series(1, 50) AS n"
        )
        result = place.pipeline(
            source="SELECT id, name, amount FROM raw",
            source_connection=warehouse,
            others=[Target(table=Copied, connection=warehouse)],
        ).sync()
        assert {name: one.rows_inserted for name, one in result.items()} == {"shop.orders": 50, "public.copied": 50}
        assert db.execute("SELECT count(*) FROM copied").fetchone() == (50,)
    assert place.ids() == list(range(1, 51))


# ── two at once ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_run_on_this_machine_is_refused(place: Place) -> None:
    place.fill(1, 3)
    with KafkaBackend(place.connection).lease(f"{place.pipeline_name}::shop.orders"):
        with pytest.raises(AlreadyRunning, match="already running") as refused:
            place.pipeline().sync()
        assert str(os.getpid()) in str(refused.value)
    assert place.messages() == []
    assert only(place.pipeline().sync()).rows_inserted == 3


def test_a_run_on_another_machine_ends_the_one_before(place: Place) -> None:
    def opened(run_id: str) -> Any:
        books = KafkaBooks(cluster_of(place.connection), place.pipeline_name)
        run, _ = books.open(run_id=run_id, logical_run=None, target=TableRef(None, place.topic), mode="append", now=NOW)
        return books, run

    first, first_run = opened("first")
    second, second_run = opened("second")
    assert second_run.resumed and second_run.logical_run == "first"
    with pytest.raises(TakenOver, match="Another run"):
        first.settle(first_run, SettleReport(rows=1, inserted=1), None, NOW)
    second.settle(second_run, SettleReport(rows=2, inserted=2), None, NOW)
    books = read_books(cluster_of(place.connection), place.pipeline_name)
    assert books.entries[("applied", "first")]["metrics"]["rows"] == 2
    assert books.entries[("run", "first")]["error_message"] == "worker lost"


# ── cut off ──────────────────────────────────────────────────────────────────────────────────────────────────────────

MODULE = """
import os
from ematix_flow import BigInt, KafkaConnection, SQLiteConnection, Target, Text, ematix
from ematix_flow.backends import kafka_rows

kafka_rows.PART_BYTES = int(os.environ["PART_BYTES"])

@ematix.table(schema="shop", name="orders")
class Orders:
    id: BigInt
    name: Text | None
    amount: BigInt

@ematix.pipeline(
    name=os.environ["PIPELINE"],
    targets=[Target(
        table=Orders,
        topic=os.environ["TOPIC"],
        connection=KafkaConnection(name="events", bootstrap_servers=os.environ["BROKER"]),
    )],
    mode="append",
    source_connection=SQLiteConnection(name="till", path="till.db"),
    incremental_column="id",
)
def load(conn):
    return "SELECT id, name, amount FROM orders"
"""


def start(place: Place, folder: Path, *, crash_at: str = "", part_bytes: int = 10**9, master: str = "local[1]") -> Any:
    """`flow run` of the same pipeline in a process of its own."""
    (folder / "sending.py").write_text(MODULE)
    (folder / ".ematix-flow.toml").write_text(f'[spark]\nmaster = "{master}"\n')
    env = {
        **os.environ,
        "PART_BYTES": str(part_bytes),
        "PIPELINE": place.pipeline_name,
        "TOPIC": place.topic,
        "BROKER": place.server.address,
        "EMATIX_FLOW_CRASH_AT": crash_at,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "ematix_flow", "run", "--module", "sending", place.pipeline_name],
        cwd=folder,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def run_to_its_end(process: Any) -> tuple[int, str]:
    out, err = process.communicate(timeout=180)
    return process.returncode, out + err


def kill_with_its_workers(process: Any) -> None:
    """`kill -9` of the run and of every process it started, as when a machine goes down."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != process.pid:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(entry.name)) == process.pid:
                    os.kill(int(entry.name), signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)


def wait_for(condition: Callable[[], bool], process: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)


def test_a_run_killed_while_it_sends_is_made_good_by_the_next(place: Place, tmp_project: Path) -> None:
    from confluent_kafka import Consumer, TopicPartition

    place.fill(1, 60_000)
    process = start(place, tmp_project)
    reader = Consumer({"bootstrap.servers": place.server.address, "group.id": "watching"})
    try:
        # Also what is not committed yet moves the end of a partition.
        ends = [TopicPartition(place.topic, number) for number in (0, 1)]
        wait_for(lambda: any(reader.get_watermark_offsets(end, timeout=10)[1] for end in ends), process)
        kill_with_its_workers(process)
    finally:
        reader.close()
    assert place.messages(isolation="read_uncommitted") != []
    assert len(place.messages()) in (0, 60_000), "one part is there as a whole or not at all"
    pipeline = place.pipeline(incremental_column="id")
    pipeline.sync()
    assert only(pipeline.sync()).watermark == "60000"
    assert place.ids() == list(range(1, 60_001))


def test_a_task_killed_before_its_commit_leaves_nothing_for_readers(place: Place, tmp_project: Path) -> None:
    place.fill(1, 60)
    code, said = run_to_its_end(start(place, tmp_project, crash_at="part-sent"))
    assert code == 1, said
    assert len(place.messages(isolation="read_uncommitted")) == 60
    assert place.messages() == []
    result = only(place.pipeline(incremental_column="id").sync())
    assert (result.rows_inserted, result.watermark) == (60, "60")
    assert place.ids() == list(range(1, 61))
    assert [run["status"] for run in place.runs()] == ["failed", "success"]


def test_a_run_killed_when_all_is_sent_is_not_sent_again(place: Place, tmp_project: Path) -> None:
    place.fill(1, 60)
    code, said = run_to_its_end(start(place, tmp_project, crash_at="mid-settle", part_bytes=2000))
    assert code == -signal.SIGKILL, said
    assert place.ids() == list(range(1, 61))
    place.fill(61, 70)  # the source goes on meanwhile
    pipeline = place.pipeline(incremental_column="id")
    assert only(pipeline.sync()).replayed
    assert only(pipeline.sync()).rows_inserted == 10
    assert place.ids() == list(range(1, 71))
    assert [run["status"] for run in place.runs()] == ["success"] * 3


@pytest.mark.parametrize(
    "goes_on",
    [pytest.param(False, id="same source"), *([pytest.param(True, id="source goes on")] if PROVE else [])],
)
def test_a_run_cut_off_between_two_parts_loses_nothing(
    place: Place, tmp_project: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    place.fill(1, 60)
    code, said = run_to_its_end(start(place, tmp_project, crash_at="part-committed", part_bytes=2000))
    assert code == 1, said
    first_part = place.ids()
    assert 0 < len(first_part) < 60
    assert [run["status"] for run in place.runs()] == ["failed"]
    last = 60
    if goes_on:
        last = 600
        place.fill(61, 600)
    monkeypatch.setattr(kafka_rows, "PART_BYTES", 5000)  # the parts it began with count
    result = only(place.pipeline(incremental_column="id").sync())
    assert (result.rows_inserted, result.watermark) == (last, str(last))
    if goes_on:  # the rows of the first part have changed: it comes again, and nothing else does
        assert sorted(set(place.ids())) == list(range(1, last + 1))
        assert place.ids() == sorted([*range(1, last + 1), *first_part])
    else:
        assert place.ids() == list(range(1, 61))


def test_a_task_killed_after_its_commit_doubles_nothing(place: Place, tmp_project: Path) -> None:
    place.fill(1, 60)
    code, said = run_to_its_end(
        start(place, tmp_project, crash_at="part-committed", part_bytes=4000, master="local[2,3]")
    )
    assert code == 0, said
    assert place.ids() == list(range(1, 61))


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["truncate", "merge", "scd1", "scd2"])
def test_other_modes_are_refused_and_told_what_to_use(place: Place, mode: str) -> None:
    with pytest.raises(UnsupportedMode, match=f"mode='{mode}' is not possible on kafka") as refused:
        place.pipeline(mode=mode, **({} if mode == "truncate" else {"keys": ("id",)})).sync()
    assert "append" in str(refused.value) and "database" in str(refused.value)


def test_kafka_is_no_source_of_a_batch(place: Place) -> None:
    pipeline = place.pipeline(source="SELECT 1", source_connection=place.connection)
    with pytest.raises(UnsupportedBackend, match="cannot be the source of a batch pipeline"):
        pipeline.sync()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"prefix": "a/b"}, "prefix= is an option for files"),
        ({"queue": "q"}, "queue= is an option for other brokers"),
        ({"message_key_column": "amount"}, "a key is text or bytes"),
    ],
)
def test_options_that_mean_nothing_here_are_refused(place: Place, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidPlan, match=complaint):
        place.pipeline(**options).sync()


def test_a_key_column_must_be_declared(place: Place) -> None:
    with pytest.raises(ValueError, match="message_key_column"):
        place.pipeline(message_key_column="nmae").sync()


def test_broker_options_mean_nothing_elsewhere(place: Place, tmp_project: Path) -> None:
    lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
    for connection in (place.shop, lake):
        place.connection = connection  # type: ignore[assignment]
        with pytest.raises(InvalidPlan, match="topic= is an option for brokers"):
            place.pipeline().sync()


@pytest.mark.parametrize("name", ["no spaces", "", "..", "x" * 250, "_ematix_flow.books.mine"])
def test_a_name_that_cannot_be_a_topic_is_refused(place: Place, name: str) -> None:
    with pytest.raises(InvalidIdentifier):
        KafkaBackend(place.connection).table_ref("", name)


def test_without_a_topic_the_tables_name_is_taken(place: Place) -> None:
    with pytest.raises(StatementFailed, match="has no topic 'orders'"):
        ematix.pipeline(name=place.pipeline_name, target=Orders, target_connection=place.connection, mode="append")(
            lambda conn: pandas.DataFrame({"id": [1], "name": ["a"], "amount": [1]})
        ).sync()


@pytest.mark.parametrize(
    ("fields", "error", "complaint"),
    [
        ({"payload_format": "avro"}, InvalidDeclaration, "'avro' needs schema_registry_url"),
        ({"payload_format": "jsno"}, InvalidPlan, "'jsno' is unknown"),
        ({"payload_format": "raw_bytes"}, InvalidPlan, "exactly one column of type Bytes"),
        ({"msk_iam_region": "eu-1", "sasl_plain_username": "a"}, InvalidConnection, "more than one way"),
        ({"sasl_plain_username": "a"}, InvalidConnection, "go together"),
        ({"security_protocol": "SASL_SSL"}, InvalidConnection, "does not go with no login"),
        ({"security_protocol": "HTTPS"}, InvalidConnection, "must be one of"),
        ({"tls_key_path": "k"}, InvalidConnection, "go together"),
        (
            {"sasl_plain_username": "a", "sasl_plain_password": "b", "sasl_scram_username": "c"},
            InvalidConnection,
            "more than one way",
        ),
    ],
)
def test_a_connection_that_cannot_work_is_refused(
    place: Place, fields: dict[str, str], error: type[Exception], complaint: str
) -> None:
    place.connection = KafkaConnection(name="events", bootstrap_servers=place.server.address, **fields)
    with pytest.raises(error, match=complaint):
        place.pipeline().sync()


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_topic_that_is_not_there_is_said_and_not_made(place: Place) -> None:
    place.fill(1, 3)
    place.topic = f"missing-{uuid.uuid4().hex[:8]}"
    with pytest.raises(StatementFailed, match="has no topic 'missing-") as missing:
        place.pipeline().sync()
    assert "kafka-topics.sh --create" in str(missing.value)
    assert place.topic not in place.server.topics()
    assert [run["status"] for run in place.runs()] == ["failed"]


def test_a_broker_that_is_not_there_is_said_in_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "WAIT_S", 2.0)
    place.connection = KafkaConnection(name="events", bootstrap_servers="127.0.0.1:1")
    began = time.monotonic()
    with pytest.raises(ConnectionFailed, match="127.0.0.1:1 cannot be reached"):
        place.pipeline().sync()
    assert time.monotonic() - began < 15


def test_a_broker_that_never_answers_is_said_in_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "WAIT_S", 2.0)
    with silent_server() as address:
        health = KafkaBackend(KafkaConnection(name="events", bootstrap_servers=address)).check()
    assert not health.ok and "cannot be reached within" in health.detail
    assert health.elapsed_ms < 15_000


def test_how_far_a_topic_has_come_is_what_readers_of_committed_messages_can_see(kafka_server: KafkaServer) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    topic = kafka_server.create_topic(f"newest-{uuid.uuid4().hex[:8]}", partitions=2)
    backend = KafkaBackend(KafkaConnection(name="events", bootstrap_servers=kafka_server.address))
    empty = backend.newest(topic, 10)
    producer = Producer({"bootstrap.servers": kafka_server.address, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(4):
        producer.produce(topic, b"x", partition=number % 2)
    producer.flush(30)
    assert (empty.messages, backend.newest(topic, 10)) == (0, empty), "the transaction is open"
    producer.commit_transaction(30)
    deadline = time.monotonic() + 30
    while backend.newest(topic, 10).messages != 6:  # four, and where the transaction ended in two partitions
        assert time.monotonic() < deadline
    admin = AdminClient({"bootstrap.servers": kafka_server.address})
    admin.delete_topics([topic])[topic].result(30)
    while topic in kafka_server.topics():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(StatementFailed, match=f"has no topic '{topic}'"):
        backend.newest(topic, 10)
    kafka_server.create_topic(topic)
    again = backend.newest(topic, 10)
    assert again.messages == 0 and again.identity != empty.identity


@pytest.mark.parametrize("kind", ["plain", "scram"])
def test_a_wrong_password_is_said_and_never_shown(place: Place, kind: str) -> None:
    user = {"plain": USER, "scram": SCRAM_USER}[kind]
    fields = {f"sasl_{kind}_username": user, f"sasl_{kind}_password": "wr0ng-4713"}
    place.connection = KafkaConnection(
        name="events", bootstrap_servers=place.server.sasl_address, security_protocol="SASL_PLAINTEXT", **fields
    )
    with pytest.raises(ConnectionFailed, match="refuses the login") as refused:
        place.pipeline().sync()
    cause: BaseException | None = refused.value
    while cause is not None:
        assert "wr0ng-4713" not in str(cause) + repr(vars(cause))
        cause = cause.__cause__


@pytest.mark.parametrize("kind", ["plain", "scram"])
def test_with_the_right_password_rows_go_out(place: Place, kind: str) -> None:
    user, password = {"plain": (USER, PASSWORD), "scram": (SCRAM_USER, SCRAM_PASSWORD)}[kind]
    fields = {f"sasl_{kind}_username": user, f"sasl_{kind}_password": password}
    place.connection = KafkaConnection(
        name="events", bootstrap_servers=place.server.sasl_address, security_protocol="SASL_PLAINTEXT", **fields
    )
    place.fill(1, 3)
    place.pipeline().sync()
    assert place.ids() == [1, 2, 3]
    assert password not in repr(cluster_of(place.connection))


def test_a_message_that_is_too_large_stops_the_load_before_anything_is_sent(place: Place) -> None:
    place.fill(1, 3)
    place.topic = place.server.create_topic(f"{place.topic}-small", **{"max.message.bytes": "2000"})
    place.execute("INSERT INTO orders VALUES (4, 'SECRET' || hex(zeroblob(2000)), 1)")
    with pytest.raises(UnfitValue, match="larger than topic") as unfit:
        place.pipeline().sync()
    assert "SECRET" not in str(unfit.value) and "2,000 bytes" in str(unfit.value)
    assert place.messages(isolation="read_uncommitted") == []
    assert [run["status"] for run in place.runs()] == ["failed"]


def test_a_large_message_that_the_topic_takes_goes_out(place: Place) -> None:
    place.topic = place.server.create_topic(f"{place.topic}-wide", **{"max.message.bytes": "6000000"})
    place.fill(1, 1)
    place.execute("INSERT INTO orders VALUES (2, hex(randomblob(2000000)), 1)")
    place.pipeline().sync()
    assert place.ids() == [1, 2]


def test_checking_a_connection_asks_the_broker(place: Place) -> None:
    health = KafkaBackend(place.connection).check()
    assert health.ok and "topics" in health.detail


def test_books_of_two_pipelines_never_share_a_topic() -> None:
    assert books_topic("a b") != books_topic("a_b")
    assert len(books_topic("x" * 500)) < 249


def test_a_load_that_fails_is_followed_by_one_that_succeeds(place: Place) -> None:
    place.fill(1, 3)
    place.execute("INSERT INTO orders VALUES (4, 'x', NULL)")
    with pytest.raises(FlowError):
        place.pipeline().sync()
    place.execute("DELETE FROM orders WHERE id = 4")
    assert only(place.pipeline().sync()).rows_inserted == 3
    assert place.ids() == [1, 2, 3]
    assert [run["status"] for run in place.runs()] == ["failed", "success"]
