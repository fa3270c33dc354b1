"""Workflows that new messages start: every message is followed by a run, and what came together by one."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from ematix_flow import KafkaConnection, ematix, pipeline, register_connection
from ematix_flow.contracts.orchestration import DispatchHandle, DispatchSpec, RunLog, Slot
from ematix_flow.contracts.streams import Newest
from ematix_flow.orchestrate import messages
from ematix_flow.orchestrate.desk import Desk
from ematix_flow.orchestrate.messages import write_down_messages
from ematix_flow.orchestrate.run_due import run_due
from ematix_flow.orchestrate.scheduler import SLOT_VARIABLE, Scheduler, SchedulerSettings
from ematix_flow.orchestrate.work import slot_key
from ematix_flow.run.registered import Orchestrated, orchestrated
from ematix_flow.run.runlogs.memory import InMemoryRunLog
from ematix_flow.run_log import from_url
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.watch.telling import Telling
from tests.orchestrate.project import Project
from tests.services.kafka import KafkaServer

SIX = datetime(2026, 3, 1, 6, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Nothing is declared yet."""
    with isolated_registry():
        yield


def declared(topic: str = "orders") -> tuple[Orchestrated, ...]:
    """A workflow that listens to a topic."""
    pipeline.register(name="job", schedule=None, idempotent=True)(lambda: {})
    ematix.workflow(name="arrivals", jobs=["job"], on_message=f"events/{topic}")
    return orchestrated()


def seeing(count: int, identity: str = "a") -> messages.Looked:
    """A broker whose topics all have come so far."""
    return lambda topics: ({topic: Newest(count, identity) for topic in topics}, {})


def slots(store: RunLog) -> list[datetime]:
    """The times of the workflow, oldest first."""
    return sorted(slot.at for slot in store.slots("arrivals"))


# ── what is decided ──────────────────────────────────────────────────────────────────────────────────────────────────


class DiesBeforeTheSlot(InMemoryRunLog):
    """A run log whose caller is gone once it has noted how far the topic had come."""

    is_fatal = False

    def add_slots(self, slots: Iterable[Slot]) -> Any:
        """Nobody gets here twice."""
        wanted = list(slots)
        if self.is_fatal and any(slot.pipeline == "arrivals" for slot in wanted):
            raise SystemExit
        return super().add_slots(wanted)


STEPS = st.lists(st.tuples(st.sampled_from(["look", "race", "die", "away"]), st.integers(0, 2)), max_size=12)


@settings(max_examples=40)
@given(STEPS)
def test_whatever_happens_messages_that_came_together_are_one_slot(steps: list[tuple[str, int]]) -> None:
    with isolated_registry():
        entries = declared()
    store = DiesBeforeTheSlot()
    desk = Desk(entries, store)
    write_down_messages(desk, SIX, look=seeing(7))
    count = noted = 7  # at the first look, seven old ones
    expected, is_owed = 0, False
    for number, (step, came) in enumerate(steps, start=1):
        count += came
        now = SIX + timedelta(minutes=number)
        seen = count

        def other_host_first(topics: Iterable[str], now: datetime = now, seen: int = seen) -> Any:
            write_down_messages(Desk(entries, store), now + timedelta(seconds=1), look=seeing(seen))
            return seeing(seen)(topics)

        def nobody(topics: Iterable[str]) -> tuple[Mapping[str, Newest], Mapping[str, str]]:
            return {}, dict.fromkeys(topics, "away")

        look = {"race": other_host_first, "away": nobody}.get(step, seeing(seen))
        store.is_fatal = step == "die"
        with suppress(SystemExit):
            write_down_messages(desk, now, look=look)
        is_new = step != "away" and count > noted
        noted = noted if step == "away" else count
        is_owed = is_owed or is_new
        if is_owed and step != "die":
            expected, is_owed = expected + 1, False
        assert len(slots(store)) == expected, (steps, number)
        assert sum(slot.status == "pending" for slot in store.open_slots("arrivals")) == min(expected, 1), "the latest"


def test_a_topic_made_anew_is_counted_from_its_beginning_and_a_broker_that_lags_behind_is_not() -> None:
    store = InMemoryRunLog()
    desk = Desk(declared(), store)
    expected = 0
    for minute, (seen, identity, is_new) in enumerate(
        [
            (5, "a", False),  # the first look
            (4, "a", False),  # a broker that has just taken over
            (5, "a", False),
            (5, "b", True),  # deleted and made again: five others
            (0, "c", False),
            (1, "c", True),
            (9, "", True),  # a broker that has no names for topics
            (2, "", True),
            (2, "", False),
        ]
    ):
        write_down_messages(desk, SIX + timedelta(minutes=minute), look=seeing(seen, identity))
        expected += is_new
        assert len(slots(store)) == expected, (minute, seen, identity)


def test_another_topic_begins_at_its_end_and_what_the_old_one_owes_is_not_forgotten() -> None:
    store = DiesBeforeTheSlot()
    with isolated_registry():
        before = Desk(declared("orders"), store)
    write_down_messages(before, SIX, look=seeing(5))
    store.is_fatal = True
    with pytest.raises(SystemExit):
        write_down_messages(before, SIX + timedelta(minutes=1), look=seeing(6))
    store.is_fatal = False
    after = Desk(declared("returns"), store)
    write_down_messages(after, SIX + timedelta(minutes=2), look=seeing(100, "b"))
    assert slots(store) == [SIX + timedelta(minutes=1)]
    write_down_messages(after, SIX + timedelta(minutes=3), look=seeing(101, "b"))
    assert slots(store)[1:] == [SIX + timedelta(minutes=3)]


def test_a_clock_that_is_set_back_or_stands_still_loses_no_message() -> None:
    store = InMemoryRunLog()
    desk = Desk(declared(), store)
    for count, now in enumerate([SIX, SIX, SIX, SIX - timedelta(hours=1)]):
        write_down_messages(desk, now, look=seeing(count))
    assert [at - SIX for at in slots(store)] == [timedelta(microseconds=n) for n in range(3)]


def test_retention_keeps_the_note_however_quiet_the_topic_is() -> None:
    store = InMemoryRunLog()
    desk = Desk(declared(), store)
    for count in (5, 6):
        write_down_messages(desk, SIX, look=seeing(count))
    store.prune(max_age_days=0)
    write_down_messages(desk, SIX + timedelta(days=300), look=seeing(7))
    assert slots(store) == [SIX, SIX + timedelta(days=300)]


# ── with a broker ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    """An empty topic of two partitions."""
    return kafka_server.create_topic(f"arrivals-{uuid.uuid4().hex}")


@pytest.fixture
def send(kafka_server: KafkaServer, topic: str) -> Callable[[int], None]:
    """Messages into both partitions, in turn."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka_server.address})

    def send(count: int) -> None:
        for number in range(count):
            producer.produce(topic, b"{}", partition=number % 2)
        assert producer.flush(30) == 0

    return send


class Handed:
    """An executor that only remembers."""

    def __init__(self) -> None:
        self.slots: list[str] = []

    def dispatch(self, spec: DispatchSpec) -> DispatchHandle:
        """Somebody else would run it now."""
        self.slots.append(spec.env[SLOT_VARIABLE])
        return DispatchHandle(spec.pipeline_name, "none", spec.claim_token)

    def cancel(self, handle: DispatchHandle) -> None:
        """Nothing runs."""


def test_new_messages_are_one_run_of_run_due_and_one_of_the_scheduler(
    kafka_server: KafkaServer, topic: str, send: Callable[[int], None], tmp_path: Path
) -> None:
    register_connection(KafkaConnection(name="events", bootstrap_servers=kafka_server.address))
    entries = declared(topic)
    with closing(from_url(f"sqlite:///{tmp_path / 'runs.db'}")) as store:

        def fired() -> list[str]:
            found = run_due(entries, store, Telling(), now=datetime.now(timezone.utc))
            assert not found.failed
            return [one.name for one in found.fired]

        send(3)
        assert fired() == [], "what was there at the first look is old"
        send(5)
        assert (fired(), fired()) == (["arrivals"], [])
        send(1)
        send(1)
        executor = Handed()
        how = SchedulerSettings(module="none", run_log_url="none")
        scheduler = Scheduler(how, store, executor, Telling(), entries=lambda: entries)
        scheduler.tick(threading.Event())
        scheduler.tick(threading.Event())
        assert executor.slots == [slot_key(slots(store)[-1])]
        assert len(slots(store)) == 2
        records, count = store.list_runs(pipeline="arrivals")
        assert (count, [record.extras["slot"] for record in records]) == (1, [slot_key(slots(store)[0])])


def test_a_broker_that_is_away_is_one_warning_and_keeps_nobody_from_running(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "WITHIN_S", 0.5)
    register_connection(KafkaConnection(name="events", bootstrap_servers="127.0.0.1:1"))
    declared()
    ematix.workflow(name="unknown", jobs=["job2"], on_message="nowhere/orders")
    pipeline.register(name="job2", schedule=None)(lambda: {})
    pipeline.register(name="hourly", schedule="* * * * *")(lambda: {})
    found = run_due(orchestrated(), InMemoryRunLog(), Telling(), now=SIX)
    assert [one.name for one in found.fired] == ["hourly"]
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said.startswith("2 topics of on_message= cannot be looked at, until the next call: ")
    assert "127.0.0.1:1 cannot be reached" in said and "'nowhere' is not defined" in said


LISTENING = """
from ematix_flow import KafkaConnection, ematix, register_connection

register_connection(KafkaConnection(name="events", bootstrap_servers="{address}"))

@pipeline.register(name="job", schedule=None, idempotent=True)
def job():
    ran("job")
    return {{}}

ematix.workflow(name="arrivals", jobs=["job"], on_message="events/{topic}")
"""


@pytest.fixture
def listening(tmp_path: Path, kafka_server: KafkaServer, topic: str) -> Project:
    """A project whose topic was looked at once."""
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'runs.db'}")
    project.write(LISTENING.format(address=kafka_server.address, topic=topic))
    register_connection(KafkaConnection(name="events", bootstrap_servers=kafka_server.address))
    with closing(from_url(project.run_log_url)) as store:
        write_down_messages(Desk(declared(topic), store), datetime.now(timezone.utc))
    return project


def test_killed_after_it_noticed_the_messages_are_run_for_once(listening: Project, send: Callable[[int], None]) -> None:
    send(4)
    listening.flow("run-due", "--module", "flows", code=-signal.SIGKILL, EMATIX_FLOW_CRASH_AT="messages-noted")
    with closing(from_url(listening.run_log_url)) as store:
        assert (listening.executions(), slots(store)) == ([], [])
    assert [one["_pipeline"] for one in listening.run_due()["ran"]] == ["arrivals"]
    with closing(from_url(listening.run_log_url)) as store:
        [at] = slots(store)
    assert listening.times() == {("job", at.isoformat()): 1}


def test_two_hosts_at_once_run_for_the_same_messages_once(listening: Project, send: Callable[[int], None]) -> None:
    send(4)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _n: listening.run_due(), range(2)))
    assert sorted(len(one["ran"]) for one in found) == [0, 1]
    assert list(listening.times().values()) == [1]
