"""File locks: one holder, nothing left behind; databases in memory hold nothing against each other."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path

import pytest

from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.locks import FileLock
from ematix_flow.declare.connection import Connection, DuckDBConnection, SQLiteConnection
from ematix_flow.errors import AlreadyRunning


def test_a_lock_has_one_holder_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "a.lock"
    first, second = FileLock(str(path)), FileLock(str(path))
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert not path.exists()
    assert second.acquire()
    second.release()


def test_many_takers_never_hold_a_lock_together(tmp_path: Path) -> None:
    holders: list[int] = []
    met: list[int] = []

    def take(number: int) -> None:
        for _ in range(300):
            lock = FileLock(str(tmp_path / "a.lock"))
            if lock.acquire():
                holders.append(number)
                if len(holders) > 1:
                    met.append(number)
                holders.remove(number)
                lock.release()

    takers = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert met == []


def _leased_elsewhere(kind: type[Connection], answer: multiprocessing.Queue[str]) -> None:
    try:
        with open_backend(kind(name="store", path=":memory:")).lease("load_t"):  # type: ignore[call-arg]
            answer.put("leased")
    except AlreadyRunning as exc:
        answer.put(str(exc))


@pytest.mark.parametrize("kind", [SQLiteConnection, DuckDBConnection])
def test_a_database_in_memory_is_leased_within_its_process_only(kind: type[Connection]) -> None:
    store = kind(name="store", path=":memory:")  # type: ignore[call-arg]
    spawn = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[str] = spawn.Queue()
    with open_backend(store).lease("load_t"):
        with pytest.raises(AlreadyRunning), open_backend(store).lease("load_t"):
            pass
        other = spawn.Process(target=_leased_elsewhere, args=(kind, answer))
        other.start()
        assert answer.get(timeout=60) == "leased"
        other.join()
        with open_backend(kind(name="store", path=":memory:")).lease("load_t"):  # type: ignore[call-arg]
            pass  # another database, in the same process
