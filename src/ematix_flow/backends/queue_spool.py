"""Messages of a queue on their way to Spark: received here, written to files, read from there as a stream.

A queue gives a message once, so it cannot be asked again for what a batch held. Each message is therefore in a file
before Spark hears of it, and acknowledged when every target has it; some may be rejected instead, for the broker's own
dead letters. What a dead process left unacknowledged comes again; a message whose id is in a file already is not
written a second time.

::

    <folder>/
    ├── 000000000017.parquet         messages, and in its metadata where the source stood behind them
    ├── _rejected-000000000017.json  which of them are to be rejected (`queue_rejects.py`)
    ├── _ends.json                   where the source stood behind the newest batches (`queue_stream.py`)
    ├── _read_up_to.json             Kinesis: when all shards had been read to their ends (`kinesis_gaps.py`)
    └── _position.json               the same as in the last of the files that are gone, and its number
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ematix_flow.backends.queue_rejects import forget_rejects, note_rejects, noted_rejects
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.streams import EVENT_TIME, VALUE
from ematix_flow.errors import FlowError

log = logging.getLogger(__name__)

MESSAGE_ID = "__message_id"
SPARK_SCHEMA = (
    f"{VALUE} BINARY, _key BINARY, _topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, "
    f"_headers ARRAY<STRUCT<key: STRING, value: BINARY>>, {EVENT_TIME} TIMESTAMP, {MESSAGE_ID} STRING"
)
FILE_ROWS = 10_000
FILE_BYTES = 16 * 1024 * 1024
WAITING_BYTES = 256 * 1024 * 1024
"""How much may wait in files before the queue is left alone: Spark comes first."""

REMEMBERED = "100s"
"""For how long Spark remembers the names of files, on their own clock: a hundred thousand of them."""

_IDLE_S = 0.1
_NAMES = "[0-9]*.parquet"  # a file that is being written begins with a dot, and may be what a dead process left
_POSITION = "_position.json"


@dataclass(frozen=True)
class Message:
    """One message as a client holds it. `held` is what the client needs to settle it; None when there is no need."""

    body: bytes
    event_time_us: int
    held: Any
    id: str | None = None
    key: bytes | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)


class Gives(Protocol):
    """A client that gives messages and hears which of them are done."""

    def take(self, rows: int, most_bytes: int, idle_s: float) -> Sequence[Message]:
        """Messages that are there, within bounds; empty when none came for a while."""
        ...

    def settle(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Everything of these is durable; given in the order in which they were taken. Those that come again."""
        ...

    def position(self) -> Any:
        """Where it stands, for sources that go on by a position; None for queues."""
        ...

    def close(self) -> None:
        """Give back what is not settled."""
        ...


@runtime_checkable
class Rejects(Protocol):
    """A client whose broker has a place for messages that nobody can use."""

    def reject(self, messages: Sequence[Any]) -> None:
        """These cannot be used: let the broker do with them what was set up for such messages."""
        ...


@dataclass(frozen=True)
class _Placed:
    """A message that can be settled, with the file it is in and its row there."""

    file: int
    row: int
    message: Message


class Spool:
    """The files of one source, and the thread that fills them."""

    def __init__(self, folder: Path, client: Gives, topic: str) -> None:
        self._folder, self._client, self._topic = folder, client, topic
        self._held: dict[int, list[_Placed]] = {}  # by file: what this process can settle
        self._ids: dict[str, tuple[int, int]] = {}  # by message: the file it is in, and its row
        self._rejected: dict[int, frozenset[int]] = {}  # by file: rows that are to be rejected
        self._unsettled: dict[int, set[str]] = {}  # by file: messages the broker may still give again
        self._number = 0
        self._waiting: dict[int, int] = {}  # files that are not applied yet, and their bytes
        self._rows: dict[int, int] = {}  # by file: how many messages are in it
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._failure: FlowError | None = None
        self._last_message = time.monotonic()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """See what is there, and begin to receive. Whatever is there waits until `applied` names it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # Spark knows files by their names: one that is used again would count as read.
        gone = _read_position(self._folder)
        self._number = gone["file"] + 1 if gone else 0
        for file in sorted(self._folder.glob(_NAMES)):
            number = int(file.stem)
            _stamp(file, number)  # it may have been copied to here
            self._number = max(self._number, number + 1)
            self._know(number, _ids_in(file))
            self._waiting[number] = file.stat().st_size
        for number, rows in noted_rejects(self._folder).items():
            if number in self._waiting:
                self._rejected[number] = rows
            else:
                forget_rejects(self._folder, number)  # a process died before it came to this
        self._thread = threading.Thread(target=self._receive, name="stream-receiver", daemon=True)
        self._thread.start()

    def applied(self, names: Sequence[str]) -> None:
        """Every target has these files: settle their messages, then remove them."""
        for name in sorted(names):
            number = int(Path(name).stem)
            with self._changed:
                if number not in self._waiting:
                    continue
                held = self._held.pop(number, [])
                del self._waiting[number]
                self._rows.pop(number, None)
                if number in self._rejected:  # some of it may come again, so the queue is not empty yet
                    self._last_message = time.monotonic()
                self._changed.notify_all()
            self._settle(held, [number])

    def reject(self, offsets: Iterable[int]) -> None:
        """Note messages by their offsets, durably: they are rejected when their files are applied."""
        rows: dict[int, set[int]] = {}
        for offset in offsets:
            number, row = divmod(offset, FILE_ROWS)
            rows.setdefault(number, set()).add(row)
        for number, more in rows.items():
            together = self._rejected.get(number, frozenset()) | more
            note_rejects(self._folder, number, together)
            with self._changed:
                self._rejected[number] = together

    def forget_rejects(self) -> bool:
        """Take back what was noted for files that are not applied yet; whether there was anything."""
        with self._changed:
            noted = [number for number in self._rejected if number in self._waiting]
            for number in noted:
                del self._rejected[number]
        for number in noted:
            forget_rejects(self._folder, number)
        return bool(noted)

    def is_drained(self, idle_s: float) -> bool:
        """Whether nothing waits, and nothing has come for a while."""
        self._raise_failure()
        with self._changed:
            return not self._waiting and time.monotonic() - self._last_message > idle_s

    def waiting_rows(self) -> int:
        """How many messages are in files that are not applied yet, as far as this process wrote them."""
        with self._changed:
            return sum(self._rows.get(number, 0) for number in self._waiting)

    def position(self) -> Any:
        """Where the source stood behind the newest file; None when there is none."""
        return kept_position(self._folder)

    def close(self) -> None:
        """Stop receiving; what is not settled goes back."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(30)
        self._client.close()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # ── receiving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self) -> None:
        try:
            while not self._closing.is_set():
                with self._changed:
                    full = sum(self._waiting.values()) > WAITING_BYTES
                    if full:
                        self._changed.wait(1.0)
                        continue
                messages = self._client.take(FILE_ROWS, FILE_BYTES, _IDLE_S)
                if messages:
                    self._last_message = time.monotonic()
                    self._keep(messages)
        except FlowError as exc:
            self._failure = exc
        except Exception as exc:
            log.exception("receiving from '%s' broke", self._topic)
            self._failure = FlowError(f"Receiving from '{self._topic}' broke: {type(exc).__name__}.")

    def _keep(self, messages: Sequence[Message]) -> None:
        """Write new messages into a file; of those that came before, only remember whom to thank."""
        with self._changed:
            places = [None if message.id is None else self._ids.get(message.id) for message in messages]
        number = self._number
        fresh = [message for message, place in zip(messages, places, strict=True) if place is None]
        again = [_Placed(*place, message) for message, place in zip(messages, places, strict=True) if place is not None]
        if fresh:
            size = write_file(self._folder / f"{number:012d}.parquet", fresh, self._topic, self._client.position())
            self._number += 1
        done: list[_Placed] = []
        strays: list[Message] = []  # forgotten just now: nobody knows any more whether they are to be rejected
        with self._changed:
            if fresh:
                self._waiting[number] = size
                self._rows[number] = len(fresh)
                placed = [_Placed(number, row, message) for row, message in enumerate(fresh)]
                self._held[number] = [one for one in placed if one.message.held is not None]
                self._know(number, [message.id for message in fresh])
            for one in again:
                if self._ids.get(one.message.id or "") != (one.file, one.row):
                    strays.append(one.message)
                elif one.file in self._waiting:
                    self._held.setdefault(one.file, []).append(one)
                else:
                    done.append(one)
        if done:
            self._settle(done, {one.file for one in done})
        if strays:
            self._keep(strays)

    def _know(self, number: int, ids: Sequence[str | None]) -> None:
        known = {message: (number, row) for row, message in enumerate(ids) if message is not None}
        self._unsettled[number] = set(known)
        self._ids.update(known)

    def _settle(self, messages: Sequence[_Placed], files: Iterable[int]) -> None:
        """Acknowledge or reject messages, and take away files of which the broker has none left to give again.

        What cannot be acknowledged comes again, and is known by its id as long as its file is there.
        """
        good: list[_Placed] = []
        bad: list[_Placed] = []
        with self._changed:
            for one in messages:
                (bad if one.row in self._rejected.get(one.file, ()) else good).append(one)
            # Not afterwards: a rejected message may come again at once, and is then one like any other.
            self._forget(bad)
            for one in bad:
                self._ids.pop(one.message.id or "", None)
        try:
            if bad:
                assert isinstance(self._client, Rejects)
                self._client.reject([one.message.held for one in bad])
                reached("messages-rejected")
            if good:
                again = {id(held) for held in self._client.settle([one.message.held for one in good])}
                good = [one for one in good if id(one.message.held) not in again]
        except FlowError as exc:
            log.warning("messages of '%s' could not be acknowledged: %s", self._topic, exc.message)
            return
        with self._changed:
            self._forget(good)
            over = [number for number in sorted(files) if not self._unsettled.get(number)]
            for number in over:
                self._unsettled.pop(number, None)
                self._rejected.pop(number, None)
                self._ids = {message: place for message, place in self._ids.items() if place[0] != number}
        for number in over:
            self._remove(number)

    def _forget(self, messages: Sequence[_Placed]) -> None:
        for one in messages:
            self._unsettled.get(one.file, set()).discard(one.message.id or "")

    def _remove(self, number: int) -> None:
        """Take a file away; where the source stood behind it stays known."""
        file = self._folder / f"{number:012d}.parquet"
        if file.exists():
            _keep_position(self._folder, number, position_in(file))
            file.unlink()
        forget_rejects(self._folder, number)


def kept_position(folder: Path) -> Any:
    """Where a source stood behind the newest file of a spool, also when that is gone; None when nothing is known."""
    files = sorted(folder.glob(_NAMES))
    if files:
        return position_in(files[-1])
    known = _read_position(folder)
    return known["position"] if known else None


def applied_position(folder: Path) -> Any:
    """Where a source stood behind the last file that every target has; None when nothing is known."""
    known = _read_position(folder)
    return known["position"] if known else None


def forget_messages(folder: Path) -> None:
    """Remove all files, and where the source stood; their numbers are not used again."""
    files = sorted(folder.glob(_NAMES))
    for file in files:
        _keep_position(folder, int(file.stem), None)
        file.unlink()
        forget_rejects(folder, int(file.stem))
    known = _read_position(folder)
    if known is not None:
        _keep_position(folder, known["file"], None)


def _keep_position(folder: Path, number: int, position: Any) -> None:
    known = _read_position(folder)
    if known is not None and known["file"] > number:
        return
    write_json(folder / _POSITION, {"file": number, "position": position})


def write_json(place: Path, content: Any) -> None:
    """Write a small file that is there as a whole or not at all."""
    partial = place.with_name(f".{place.name}")
    with open(partial, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, place)


def _read_position(folder: Path) -> Any:
    try:
        return json.loads((folder / _POSITION).read_text())
    except FileNotFoundError:
        return None


def write_file(place: Path, messages: Sequence[Message], topic: str, position: Any) -> int:
    """A file of messages, named by its number, there as a whole or not at all; its size."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    times = [message.event_time_us for message in messages]
    moment = pa.timestamp("us", tz="UTC")
    headers = pa.map_(pa.string(), pa.binary())
    pairs = pa.array([list(message.headers.items()) for message in messages], type=headers)
    entries = pa.ListArray.from_arrays(
        pairs.offsets, pa.StructArray.from_arrays([pairs.keys, pairs.items], names=["key", "value"])
    )
    number = int(place.stem)
    table = pa.table(
        {
            VALUE: pa.array([message.body for message in messages], pa.binary()),
            "_key": pa.array([message.key for message in messages], pa.binary()),
            "_topic": pa.array([topic] * len(messages), pa.string()),
            "_partition": pa.array([0] * len(messages), pa.int32()),
            "_offset": pa.array([number * FILE_ROWS + n for n in range(len(messages))], pa.int64()),
            "_timestamp": pa.array(times, moment),
            "_headers": entries,
            EVENT_TIME: pa.array(times, moment),
            MESSAGE_ID: pa.array([message.id for message in messages], pa.string()),
        }
    ).replace_schema_metadata({"position": json.dumps(position)})
    partial = place.with_name(f".{place.name}")
    pq.write_table(table, partial, compression="zstd")
    _stamp(partial, number)
    with open(partial, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(partial, place)
    return place.stat().st_size


def _stamp(file: Path, number: int) -> None:
    """Let a file's time be its number, in milliseconds.

    Spark reads files in the order of their times, and overlooks those far behind the newest it knows: with the time of
    day, messages would be lost when a clock is set back.
    """
    os.utime(file, ns=(number * 1_000_000, number * 1_000_000))


def position_in(file: Path) -> Any:
    """Where the source stood behind the messages of a file."""
    import pyarrow.parquet as pq

    known = pq.read_schema(file).metadata or {}
    return json.loads(known.get(b"position", b"null"))


def _ids_in(file: Path) -> list[str | None]:
    import pyarrow.parquet as pq

    ids: list[str | None] = pq.read_table(file, columns=[MESSAGE_ID])[MESSAGE_ID].to_pylist()
    return ids
