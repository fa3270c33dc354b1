"""Files between a source and Spark: numbers are never used again, and what a dead process left is no obstacle."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.backends.queue_spool import (
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
