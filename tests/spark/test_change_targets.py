"""Targets of change feeds without a broker: what a lake's gate remembers, and a table that is made anew."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from pyspark.sql import DataFrame, SparkSession

from ematix_flow import (
    CDC,
    DeltaLocalConnection,
    IcebergConnection,
    KafkaConnection,
    Source,
    SQLiteConnection,
    Target,
)
from ematix_flow.backends import lake
from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.iceberg import IcebergBackend
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.contracts.streams import StreamBatch, StreamCounters
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import UnknownColumn
from ematix_flow.plan.change_feed import Moment
from ematix_flow.plan.change_merge import gate_of
from ematix_flow.run.change_targets import ChangeTarget
from ematix_flow.spark.change_events import ChangeCodec
from ematix_flow.spark.payloads import UNKNOWN
from ematix_flow.testing.spark import local_spark
from tests.plan.change_model import Event, Source as Shop, place_in

LETTERS = {"create": "c", "update": "u", "delete": "d", "truncate": "t"}


class Died(Exception):
    """What stands for the end of a process."""


class Mirror:
    """A table `t` that is told events, as a stream tells it batches."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        schema: str,
        mode: Literal["scd2"] | None = None,
        key: str = "id",
    ) -> None:
        self.spark = spark
        target = Target(connection=connection, table=(schema, "t"), primary_key=(key,), mode=mode)
        kafka = KafkaConnection(name="broker", bootstrap_servers="nowhere:1", group_id="g")
        self.stream = StreamSpec(
            name="mirror",
            where=SourceLocation(file=__file__, line=1),
            sources=(Source(kafka, "t"),),
            targets=(target,),
            cdc=CDC(),
        )

    @contextmanager
    def opened(self) -> Iterator[ChangeTarget]:
        target = ChangeTarget(self.stream, self.stream.targets[0], StreamCounters())
        if isinstance(target.backend, lake.LakeBackend):
            target.backend.use_spark(lambda: self.spark)
        target.open()
        try:
            yield target
        finally:
            target.close()

    def tell(self, events: Sequence[Event], generation: str, number: int) -> None:
        with self.opened() as target:
            target.write(self.rows(events), StreamBatch(generation, number, f"{number}"))

    def rows(self, events: Sequence[Event]) -> DataFrame:
        messages = [
            (
                None if event.op == "tombstone" else json.dumps(message(event)).encode(),
                json.dumps({"id": event.key}).encode(),
                0,
                number if event.offset is None else event.offset,
            )
            for number, event in enumerate(events)
        ]
        given = self.spark.createDataFrame(messages, "value binary, _key binary, _partition int, _offset bigint")
        codec = ChangeCodec(self.stream.cdc or CDC(), None, lambda schema: None, refuses=False)
        codec.prepare(given)
        while codec.decoded(given).where(UNKNOWN).count():
            assert codec.widen(given)
        return codec.decoded(given)


def message(event: Event) -> dict[str, Any]:
    image = {"before" if event.op == "delete" else "after": {"id": event.key, **event.image}}
    ts = None if event.moment.ts_ms is None else event.moment.ts_ms + 10**12
    source = {"ts_ms": ts, "lsn": int((event.moment.position or "")[4:])}
    return {"op": LETTERS[event.op], **({} if event.key is None else image), "source": source}


def change(op: str, key: int, log: int, **image: int) -> Event:
    return Event(op, key, Moment(log, place_in("lsn:", log)), image)


LAKES: dict[str, Callable[[str], Connection]] = {
    "delta": lambda path: DeltaLocalConnection(name="lake", path=path),
    "iceberg": lambda path: IcebergConnection(name="lake", warehouse=path),
}


def in_a_lake(kind: str, path: Path, mode: Literal["scd2"] | None = None) -> Mirror:
    connection = LAKES[kind](str(path))
    backend = open_backend(connection)
    assert isinstance(backend, lake.LakeBackend)
    return Mirror(local_spark(backend.needs), connection, "shop", mode)


@pytest.fixture(params=LAKES)
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> Mirror:
    return in_a_lake(request.param, tmp_path / "lake")


def stored(mirror: Mirror, *columns: str) -> DataFrame:
    """These columns of the table, as it is now."""
    with mirror.opened() as target:
        assert isinstance(target.backend, lake.LakeBackend)
        target.backend.prepare(mirror.spark)
        return target.backend.frame(mirror.spark, target.table).select(*columns)


def in_lake(mirror: Mirror) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in stored(mirror, "id", *COLUMNS).orderBy("id").collect()]


def tell_and_die(mirror: Mirror, events: Sequence[Event], generation: str, number: int) -> None:
    """Tell a batch, and die when the gate has it and the table has not."""

    def die(point: str) -> None:
        if point == "gate-passed":
            raise Died

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lake, "reached", die)
        with pytest.raises(Died):
            mirror.tell(events, generation, number)


COLUMNS = ("a", "b", "c")


def test_a_lake_ends_as_the_source_whatever_is_delivered_again(mirror: Mirror) -> None:
    shop = Shop(Random(6), 10, "both", 1)
    for number, batch in enumerate(shop.deliveries(60, 40)):
        mirror.tell(batch, "g", number)
    assert in_lake(mirror) == shop.table()


def test_what_died_between_the_gate_and_the_table_is_applied_after_a_reset(mirror: Mirror) -> None:
    whole = {"a": 1, "b": 1, "c": 1}
    mirror.tell([change("create", key, key, **whole) for key in (1, 2)], "first", 0)
    news = [change("update", 1, 11, a=2), change("delete", 2, 12), change("create", 3, 13, **whole)]
    tell_and_die(mirror, news, "first", 1)
    assert in_lake(mirror) == [(1, 1, 1, 1), (2, 1, 1, 1)]
    mirror.tell(news[:1], "second", 0)  # cut otherwise: what the gate took back stays taken back
    mirror.tell(news[1:], "second", 1)
    assert in_lake(mirror) == [(1, 2, 1, 1), (3, 1, 1, 1)]


def test_a_truncate_that_comes_again_after_a_death_still_empties_the_table(mirror: Mirror) -> None:
    whole = {"a": 1, "b": 1, "c": 1}
    mirror.tell([change("create", 1, 1, **whole)], "g", 0)
    untimed = Event("create", 2, Moment(None, place_in("lsn:", 2)), whole)
    emptied = Event("truncate", None, Moment(3, place_in("lsn:", 3)))
    batch = [untimed, emptied, change("create", 3, 4, **whole)]
    tell_and_die(mirror, batch, "g", 1)
    mirror.tell(batch, "g", 1)
    assert in_lake(mirror) == [(3, 1, 1, 1)]


FEED = [change("create", 1, 1, a=1, b=1, c=1), change("update", 1, 2, a=2)]


def test_a_lake_table_that_is_gone_is_built_anew_from_its_topic(mirror: Mirror, tmp_path: Path) -> None:
    mirror.tell(FEED, "first", 0)
    shutil.rmtree(tmp_path / "lake" / "shop" / "t")
    mirror.tell(FEED, "second", 0)
    assert in_lake(mirror) == [(1, 2, 1, 1)]


def test_a_table_that_is_gone_is_built_anew_from_its_topic(tmp_path: Path) -> None:
    path = str(tmp_path / "mirror.db")
    lite = Mirror(local_spark(), SQLiteConnection(name="lite", path=path), "main")
    with sqlite3.connect(path) as db:
        lite.tell(FEED, "first", 0)
        lite.tell(FEED, "again", 0)
        db.execute("DROP TABLE t")
        lite.tell(FEED, "second", 0)
        assert db.execute("SELECT id, a, b, c FROM t").fetchall() == [(1, 2, 1, 1)]


NEWS = [change("update", 1, 1, a=7), change("update", 1, 3, b=3)]
"""The first stands behind what FEED ended with, so that only a gate that remembers leaves it out."""


def test_a_lake_goes_on_with_the_gate_of_an_older_version(mirror: Mirror, tmp_path: Path) -> None:
    mirror.tell(FEED, "first", 0)
    gate = gate_of(TableRef("shop", "t"))
    with mirror.opened() as target:
        assert isinstance(target.backend, lake.LakeBackend)
        target.backend.prepare(mirror.spark)
        known, name = target.backend.frame(mirror.spark, gate), target.backend.dialect.table(gate)
        newer = ("arrived", "is_row", "before_arrived", "before_is_row")
        if isinstance(target.backend, IcebergBackend):
            mirror.spark.sql(f"ALTER TABLE {name} DROP COLUMNS ({', '.join(newer)})")
        else:
            older = known.drop(*newer).localCheckpoint().write.format("delta").mode("overwrite")
            older.option("overwriteSchema", True).save(str(tmp_path / "lake" / "shop" / gate.name))
    mirror.tell(NEWS, "first", 1)
    assert in_lake(mirror) == [(1, 2, 3, 1)]


def test_a_table_goes_on_with_the_gate_of_an_older_version(tmp_path: Path) -> None:
    path = str(tmp_path / "mirror.db")
    lite = Mirror(local_spark(), SQLiteConnection(name="lite", path=path), "main")
    with sqlite3.connect(path) as db:
        lite.tell(FEED, "first", 0)
        for column in ("arrived", "is_row"):
            db.execute(f"ALTER TABLE ematix_flow_cdc_idempotency DROP COLUMN {column}")
        lite.tell(NEWS, "first", 1)
        assert db.execute("SELECT id, a, b, c FROM t").fetchall() == [(1, 2, 3, 1)]


@pytest.mark.parametrize("kind", [*LAKES, "sqlite"])
def test_a_history_goes_by_the_log_where_the_clock_was_set_back(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "kept")
    lite = SQLiteConnection(name="store", path=path)
    is_lake = kind in LAKES
    history = in_a_lake(kind, tmp_path / "kept", "scd2") if is_lake else Mirror(local_spark(), lite, "main", "scd2")
    history.tell([at(10, 1, a=1), at(10, 2, key=2, a=1)], "g", 0)
    back = [at(5, 3, a=2), at(6, 4, a=3), Event("delete", 2, Moment(7_000, place_in("lsn:", 5)), {})]
    if is_lake:
        tell_and_die(history, back, "g", 1)
    history.tell(back, "g", 1)
    history.tell([at(8, 6, a=4)], "g", 2)
    history.tell(back[1:2], "g", 3)  # once more, alone
    history.tell([at(12, 7, a=5)], "g", 4)
    named = ("id", "a", "valid_from", "is_current")
    if is_lake:
        rows = [tuple(row) for row in stored(history, *named).orderBy("id", "valid_from").collect()]
    else:
        with sqlite3.connect(path) as db:
            rows = db.execute(f"SELECT {', '.join(named)} FROM t ORDER BY id, valid_from").fetchall()
    assert [(*row[:2], bool(row[3])) for row in rows] == [
        *[(1, number, False) for number in range(1, 5)],
        (1, 5, True),
        (2, 1, False),
    ]


def at(second: int, log: int, key: int = 1, **image: int) -> Event:
    return Event("create" if log < 3 else "update", key, Moment(second * 1000, place_in("lsn:", log)), image)


def test_a_key_that_changes_have_in_other_letters_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "mirror.db")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (ID INTEGER PRIMARY KEY, a INTEGER)")
    lite = Mirror(local_spark(), SQLiteConnection(name="lite", path=path), "main", key="ID")
    with pytest.raises(UnknownColumn, match="is 'ID', and the changes call it 'id'"):
        lite.tell(FEED, "first", 0)
