"""Files between a source and Spark: numbers are never used again, what a dead process left is no obstacle, and the
broker hears of every message what has become of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.queue_rejects import noted_rejects
from ematix_flow.backends.queue_spool import (
    FILE_ROWS,
    Message,
    Spool,
    applied_position,
    forget_messages,
    kept_position,
)


class Counting:
    """Gives every message once; its position is how many it gave."""

    def __init__(self, *bodies: bytes) -> None:
        self.left = [Message(body, 0, None) for body in bodies]
        self.given = 0

    def take(self, rows: int, most_bytes: int, idle_s: float) -> Sequence[Message]:
        if not self.left:
            time.sleep(0.01)
            return ()
        self.given += 1
        return [self.left.pop(0)]

    def settle(self, messages: Sequence[Any]) -> None:
        raise AssertionError("nothing is held")

    def position(self) -> Any:
        return self.given

    def close(self) -> None:
        pass


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("[0-9]*"))


def received(folder: Path, *bodies: bytes) -> Spool:
    """A spool that has received these."""
    spool = Spool(folder, Counting(*bodies), "orders")
    spool.open()
    deadline = time.monotonic() + 10
    while spool.waiting_rows() < len(bodies):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return spool


def test_a_spool_that_was_emptied_goes_on_counting(tmp_path: Path) -> None:
    spool = received(tmp_path, b"1", b"2")
    spool.applied(names(tmp_path))
    spool.close()
    assert names(tmp_path) == []
    assert (applied_position(tmp_path), kept_position(tmp_path)) == (2, 2)
    received(tmp_path, b"3").close()
    assert names(tmp_path) == ["000000000002.parquet"], "Spark would take an old name for a file that it has read"


def test_a_file_that_a_dead_process_left_half_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".000000000000.parquet").write_bytes(b"PAR1")
    assert kept_position(tmp_path) is None
    received(tmp_path, b"1").close()
    assert names(tmp_path) == ["000000000000.parquet"]


def test_messages_that_are_forgotten_leave_only_their_numbers(tmp_path: Path) -> None:
    received(tmp_path, b"1", b"2").close()
    forget_messages(tmp_path)
    assert (applied_position(tmp_path), kept_position(tmp_path), names(tmp_path)) == (None, None, [])
    received(tmp_path, b"3").close()
    assert names(tmp_path) == ["000000000002.parquet"]


@pytest.mark.parametrize("applied", [0, 1, 2])
def test_a_position_is_behind_the_newest_file_and_another_behind_what_is_applied(tmp_path: Path, applied: int) -> None:
    spool = received(tmp_path, b"1", b"2")
    spool.applied(names(tmp_path)[:applied])
    assert spool.waiting_rows() == 2 - applied
    spool.close()
    assert kept_position(tmp_path) == 2
    assert applied_position(tmp_path) == (applied or None)


# ── rejecting ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Broker:
    """A queue in memory: it gives a message again until it is acknowledged; rejected ones lie in `dead`."""

    def __init__(self, *bodies: str, has_ids: bool = True, gives_rejected_again: bool = False) -> None:
        self.queue = list(bodies)
        self.dead: list[str] = []
        self.has_ids, self.gives_rejected_again = has_ids, gives_rejected_again
        self.is_away = False

    def client(self) -> Holding:
        return Holding(self)


class Holding:
    """One consumer of the queue. What it holds when it dies is still there for the next one."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.held: list[str] = []
        self.lines: dict[str, int] = {}

    def lose_line(self, *bodies: str) -> None:
        """These come again, by another connection; what is said of them by the old one reaches nobody."""
        for body in bodies:
            self.lines[body] = self.lines.get(body, 0) + 1
            self.held.remove(body)

    def take(self, rows: int, most_bytes: int, idle_s: float) -> Sequence[Message]:
        new = [] if self.broker.is_away else [body for body in self.broker.queue if body not in self.held]
        self.held += new
        time.sleep(0 if new else 0.01)
        return [
            Message(body.encode(), 0, (body, self.lines.get(body, 0)), id=body if self.broker.has_ids else None)
            for body in new
        ]

    def settle(self, messages: Sequence[Any]) -> Sequence[Any]:
        again = [held for held in messages if held[1] != self.lines.get(held[0], 0)]
        for held in messages:
            if held not in again:
                self.broker.queue.remove(held[0])
        return again

    def reject(self, messages: Sequence[Any]) -> None:
        for body, _ in messages:
            self.broker.dead.append(body)
            if self.broker.gives_rejected_again:
                self.held.remove(body)
            else:
                self.broker.queue.remove(body)

    def position(self) -> Any:
        return None

    def close(self) -> None:
        pass


def opened(folder: Path, broker: Broker, client: Holding | None = None) -> Spool:
    """A spool that holds all of the queue's messages, each of them in a file."""
    client = client or broker.client()
    spool = Spool(folder, client, "orders")
    spool.open()
    until(lambda: client.held == broker.queue and bool(names(folder)) and len(spool._waiting) == len(names(folder)))
    return spool


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_messages_whose_line_was_lost_come_again_and_are_known(tmp_path: Path) -> None:
    broker = Broker("a", "b", "c", "d")
    client = broker.client()
    spool = opened(tmp_path, broker, client)
    broker.is_away = True
    client.lose_line("a", "b")
    spool.applied(names(tmp_path))
    assert broker.queue == ["a", "b"]
    assert names(tmp_path) == ["000000000000.parquet"], "it is how they are known when they come again"
    broker.is_away = False
    until(lambda: broker.queue == [])
    spool.close()
    assert names(tmp_path) == []


@pytest.mark.parametrize("has_ids", [True, False])
def test_noted_messages_are_rejected_when_their_file_is_applied_and_the_others_acknowledged(
    tmp_path: Path, has_ids: bool
) -> None:
    broker = Broker("a", "b", "c", "d", has_ids=has_ids)
    spool = opened(tmp_path, broker)
    spool.reject([1])
    spool.reject([3])
    assert (broker.queue, broker.dead) == (["a", "b", "c", "d"], []), "the targets have nothing yet"
    spool.applied(names(tmp_path))
    spool.close()
    assert (broker.queue, broker.dead) == ([], ["b", "d"])
    assert (names(tmp_path), noted_rejects(tmp_path)) == ([], {})


def test_the_next_process_rejects_what_a_dead_one_noted(tmp_path: Path) -> None:
    broker = Broker("a", "b", "c")
    dying = opened(tmp_path, broker)
    dying.reject([1])
    dying.close()  # this broker takes nothing back, as after a death
    broker.queue.append("d")
    spool = opened(tmp_path, broker)
    assert noted_rejects(tmp_path) == {0: {1}}
    spool.applied(names(tmp_path)[:1])
    until(lambda: broker.queue == ["d"])
    spool.close()
    assert broker.dead == ["b"]
    assert [int(name[:12]) for name in names(tmp_path)] == [1], "the file of the new message waits"


def test_what_was_noted_can_be_taken_back_until_the_file_is_applied(tmp_path: Path) -> None:
    broker = Broker("a", "b")
    spool = opened(tmp_path, broker)
    assert not spool.forget_rejects()
    spool.reject([0])
    assert spool.forget_rejects()
    assert noted_rejects(tmp_path) == {}
    spool.applied(names(tmp_path))
    spool.close()
    assert (broker.queue, broker.dead) == ([], [])


def test_a_rejected_message_that_comes_again_is_one_like_any_other(tmp_path: Path) -> None:
    broker = Broker("a", "b", gives_rejected_again=True)
    spool = opened(tmp_path, broker)
    spool.reject([1])
    spool.applied(names(tmp_path))
    until(lambda: list(spool._waiting) == [1])
    assert (broker.queue, broker.dead) == (["b"], ["b"])
    spool.reject([FILE_ROWS])
    spool.applied(names(tmp_path))
    until(lambda: list(spool._waiting) == [2])
    assert broker.dead == ["b", "b"]
    spool.applied(names(tmp_path))
    spool.close()
    assert (broker.queue, broker.dead) == ([], ["b", "b"]), "the third time it was good"


def test_a_rejected_message_that_comes_again_is_new_also_while_its_file_is_kept_for_others(tmp_path: Path) -> None:
    broker = Broker("a", "b", gives_rejected_again=True)
    dying = opened(tmp_path, broker)
    dying.reject([1])
    dying.close()
    broker.queue.remove("a")  # acknowledged by the dead process, which could not take the file away any more
    spool = opened(tmp_path, broker)
    spool.applied(["000000000000.parquet"])
    until(lambda: list(spool._waiting) == [1])
    assert broker.dead == ["b"]
    spool.applied(["000000000001.parquet"])
    spool.close()
    assert (broker.queue, broker.dead) == ([], ["b"])
