"""How changes are cut into files: transactions stay whole where they can, and nothing is lost where they cannot."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, strategies as st

from ematix_flow.backends.capture_state import CaptureState, Gathered, Position
from ematix_flow.backends.queue_spool import Message

ROWS, SIZE = 8, 10_000

transactions = st.lists(st.integers(0, 25), max_size=12)


def message(transaction: int, number: int) -> Message:
    return Message(f"{transaction}.{number}".encode(), 0, None)


def received(lengths: list[int], position: Position, files: int | None = None) -> tuple[list[list[bytes]], Position]:
    """What a source gives from a position on, in files, until all is given or so many files are written."""
    gathered = Gathered(position, ROWS, SIZE)
    written: list[list[bytes]] = []
    done = position

    def write() -> None:
        nonlocal done
        while found := gathered.take():
            if files is None or len(written) < files:
                written.append([one.body for one in found])
                done = gathered.position

    for transaction, length in enumerate(lengths):
        if transaction < position.lsn:
            continue  # the server does not give what lies before
        for number in range(length):
            gathered.add(message(transaction, number))
            if gathered.is_full:
                write()
        gathered.commit(transaction + 1, transaction)
        if gathered.is_full:
            write()
    write()
    assert files is not None or gathered.is_empty
    return written, done


@given(transactions)
def test_every_change_is_in_one_file_in_order(lengths: list[int]) -> None:
    files, end = received(lengths, Position(0))
    whole = [message(t, n).body for t, length in enumerate(lengths) for n in range(length)]
    assert [body for file in files for body in file] == whole
    assert all(len(file) <= ROWS for file in files)
    if any(lengths):
        assert end.skip == 0 or end.skip == lengths[end.lsn], "behind a transaction, or behind all of a large one"


@given(transactions)
def test_a_transaction_that_fits_into_a_file_is_in_one_file(lengths: list[int]) -> None:
    files, _ = received(lengths, Position(0))
    for transaction, length in enumerate(lengths):
        holding = [file for file in files if any(body.startswith(f"{transaction}.".encode()) for body in file)]
        assert len(holding) <= 1 or length >= ROWS - 1


@given(transactions, st.integers(0, 20))
def test_what_comes_after_a_restart_follows_what_is_in_files(lengths: list[int], files: int) -> None:
    whole, _ = received(lengths, Position(0))
    before, position = received(lengths, Position(0), files)
    after, _ = received(lengths, position)
    flat = [body for file in (*before, *after) for body in file]
    assert flat == [body for file in whole for body in file]


def test_a_large_message_makes_a_file_of_its_own() -> None:
    gathered = Gathered(Position(0), ROWS, 10)
    gathered.add(Message(b"x" * 11, 0, None))
    assert gathered.is_full
    assert len(gathered.take()) == 1
    assert gathered.position == Position(0, 0, skip=1)


def test_what_is_remembered_is_read_again(tmp_path: Path) -> None:
    assert CaptureState.read(tmp_path) is None
    state = CaptureState("slot", "stream", begun="abc", lsn=7, staged=3)
    state.write(tmp_path)
    assert CaptureState.read(tmp_path) == state
