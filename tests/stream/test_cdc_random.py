"""Random change feeds through Kafka and Spark into PostgreSQL and Delta: tables hold what plain Python makes of them.

A feed has many families of keys, each with a life of its own: rows come, change, move to another key, go and return;
events come twice, late, within one millisecond, with some of their columns, without a time or a place in the log. Some
feeds empty the whole table now and then. Batches are cut anywhere, and streams end, or are killed, between any two.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from ematix_flow import run_streaming_pipeline
from ematix_flow.plan.change_feed import Moment
from tests.plan.change_model import COLUMNS, Event, Mirror, place_in
from tests.services.kafka import KafkaServer
from tests.stream.conftest import Topic
from tests.stream.program import keywords, run_and_die

PROVES = bool(os.environ.get("EMATIX_PROVE"))
SEEDS = range(8) if PROVES else range(2)
FAMILIES, KEYS = 60, 3
STARTS, EVENTS = (6, 300) if PROVES else (2, 200)
LETTERS = {"create": "c", "read": "r", "update": "u", "delete": "d"}
KINDS = {"new": 9, "old": 3, "again": 3, "untimed": 1, "moved": 2, "replaced": 1}


@dataclass(frozen=True)
class Message:
    """A message, and the changes that it stands for in the words of the model."""

    family: int
    key: int | None
    value: dict[str, Any] | None
    changes: tuple[Event, ...] = ()


class Feed:
    """A table that changes at random, and what is said of it. One with truncates keeps all keys in one partition."""

    def __init__(self, seed: int, topic: Topic, partitions: int) -> None:
        self.chosen, self.topic, self.partitions = Random(seed), topic, partitions
        self.truncates = partitions == 1
        self.mirror = Mirror()
        self.clock, self.log, self.family = 10**12, 0, 0
        self.sent: dict[int, list[Message]] = defaultdict(list)
        self.offsets = [0] * partitions

    def send(self, number: int) -> None:
        """Send so many messages, or a few more, and tell the model."""
        producer = Producer({"bootstrap.servers": self.topic.server.address, "linger.ms": 5, "log_level": 0})
        left = number
        while left > 0:
            for message in self._next():
                left -= 1
                partition = message.family % self.partitions
                producer.produce(
                    self.topic.name,
                    value=None if message.value is None else json.dumps(message.value),
                    key=None if message.key is None else json.dumps({"id": message.key}),
                    partition=partition,
                )
                producer.poll(0)
                for change in message.changes:
                    self.mirror.apply(placed(change, self.offsets[partition]))
                self.offsets[partition] += 1
        assert producer.flush(30) == 0

    def _next(self) -> list[Message]:
        chosen = self.chosen
        if chosen.random() < 0.4:  # else the same one goes on, often within a millisecond
            self.family = chosen.randrange(FAMILIES)
        family = self.family
        if self.truncates and chosen.random() < 0.01:
            return [self._kept(family, self._truncate(family))]
        kind = chosen.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "again" and self.sent[family]:
            return [chosen.choice(self.sent[family])]
        self.clock += chosen.randint(0, 2)
        self.log += 1
        key, other = (family * KEYS + place for place in chosen.sample(range(KEYS), 2))
        if kind == "moved":
            return [self._kept(family, self._moved(family, key, other))]
        if kind == "replaced":  # what Debezium makes of a key that changes
            self.clock += 1
            gone = self._kept(family, self._message(family, "delete", key, self.clock))
            return [
                gone,
                Message(family, key, None),
                self._kept(family, self._message(family, "create", other, self.clock)),
            ]
        op = chosen.choice(["create", "read", "update", "update", "delete"])
        behind = chosen.choice([chosen.randint(0, 8), chosen.randint(0, 300)]) if kind == "old" else 0
        ts = None if kind == "untimed" else self.clock - behind
        return [self._kept(family, self._message(family, op, key, ts))]

    def _kept(self, family: int, message: Message) -> Message:
        self.sent[family].append(message)
        return message

    def _place(self, family: int) -> int | None:
        """Where in its log the source says that a change is, sometimes a little too early; of some families nowhere."""
        return self.chosen.choice([self.log, self.log, max(self.log - 3, 0)]) if family % 3 else None

    def _image(self) -> dict[str, int]:
        names = COLUMNS if self.chosen.random() < 0.5 else self.chosen.sample(COLUMNS, self.chosen.randint(0, 3))
        return {name: self.chosen.randint(0, 9) for name in names}

    def _message(self, family: int, op: str, key: int, ts: int | None) -> Message:
        lsn, image = self._place(family), {} if op == "delete" else self._image()
        event = Event(op, key, moment(ts, lsn, is_snapshot=op == "read"), image)
        sides = {"before": {"id": key}, "after": None} if op == "delete" else {"after": {"id": key, **image}}
        return Message(family, key, envelope(LETTERS[op], ts, lsn, **sides), (event,))

    def _moved(self, family: int, key: int, other: int) -> Message:
        """One event for a key that changes, as a capture writes it that knows the row before."""
        lsn, image, when = self._place(family), self._image(), self.clock
        at = moment(when, lsn)
        value = envelope("u", when, lsn, before={"id": key}, after={"id": other, **image})
        return Message(family, other, value, (Event("delete", key, at), Event("update", other, at, image)))

    def _truncate(self, family: int) -> Message:
        self.clock, self.log = self.clock + 2, self.log + 1
        at = self.clock - 1
        event = Event("truncate", None, moment(at, self.log))
        return Message(family, None, envelope("t", at, self.log), (event,))


def envelope(op: str, ts: int | None, lsn: int | None, **images: Any) -> dict[str, Any]:
    """An event as Debezium writes it without a schema."""
    source = {"ts_ms": ts, "table": "t", **({} if lsn is None else {"lsn": lsn})}
    return {"op": op, "before": None, "after": None, **images, "source": source}


def moment(ts: int | None, lsn: int | None, *, is_snapshot: bool = False) -> Moment:
    return Moment(ts, None if lsn is None else place_in("lsn:", lsn), is_snapshot)


def placed(change: Event, offset: int) -> Event:
    """The change as it is read: without a place in the source's log, that in the broker's counts."""
    position = change.moment.position or place_in("off:", offset)
    return replace(change, moment=replace(change.moment, position=position))


@pytest.mark.timeout(1800)  # six starts, three of them after a death, for a table and a lake
@pytest.mark.parametrize("seed", SEEDS)
def test_any_feed_leaves_the_table_of_the_model(
    seed: int, kafka_server: KafkaServer, pg_url: str, tmp_path: Path
) -> None:
    partitions = 1 + seed % 2
    topic = Topic(kafka_server, partitions=partitions)
    feed, chosen = Feed(seed, topic, partitions), Random(seed)
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("CREATE TABLE t (id bigint PRIMARY KEY, a bigint, b bigint, c bigint)")
        lake = {"connection": "lake", "table": ["shop", "t"], "primary_key": ["id"]}
        given: dict[str, Any] = {
            "connections": {
                "broker": {"kind": "kafka", "bootstrap_servers": kafka_server.address, "group_id": f"g-{topic.name}"},
                "pg": {"kind": "postgres", "url": pg_url},
                "lake": {"kind": "delta_local", "path": str(tmp_path / "lake")},
            },
            "name": f"random_{topic.name}",
            "source": "broker",
            "source_query": topic.name,
            "targets": [{"connection": "pg", "table": ["public", "t"]}, *([lake] if PROVES else [])],
            "cdc": {},
            "once": True,
        }
        for start in range(STARTS):
            feed.send(EVENTS)
            given["max_batch_rows"] = chosen.randint(EVENTS // 3, EVENTS)
            if PROVES and start % 2:
                run_and_die(
                    given, chosen.choice(["batch-began", "mid-settle", "gate-passed", "committed", "batch-applied"])
                )
            run_streaming_pipeline(**keywords(given))
            assert db.execute("SELECT id, a, b, c FROM t ORDER BY id").fetchall() == feed.mirror.table()
    if PROVES:
        assert in_lake(given["connections"]["lake"]["path"]) == feed.mirror.table()


def in_lake(path: str) -> list[tuple[Any, ...]]:
    from ematix_flow import DeltaLocalConnection
    from ematix_flow.df import to_pyspark

    lake = DeltaLocalConnection(name="lake", path=path)
    return [tuple(row) for row in to_pyspark(lake, "SELECT id, a, b, c FROM shop.t ORDER BY id").collect()]
