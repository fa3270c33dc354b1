"""Arrow batches as the text MySQL takes in bulk: files for LOAD DATA LOCAL, or INSERTs where the server refuses those.

Whole columns are written at a time; a file is sent and removed when it has grown to `FILE_SIZE`, so a task needs no
more than that, whatever it loads.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING

from ematix_flow.backends.mysql_errors import refusal
from ematix_flow.backends.mysql_session import MysqlSession
from ematix_flow.contracts.mysql_words import backticked
from ematix_flow.declare.columns import Boolean, Bytes, Double, Float, Timestamp, TimestampTZ
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import FlowError, UnfitValue

if TYPE_CHECKING:
    import pyarrow as pa

FILE_SIZE = 32 * 1024 * 1024
_LARGEST_BATCH = 64 * 1024 * 1024
_LARGEST_STATEMENT = 4 * 1024 * 1024
_ESCAPED = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"))
_QUOTED = (("\\", "\\\\"), ("'", "\\'"))


class Loader:
    """Puts batches into one staging table. Made on the driver, used in a worker, by one task at a time."""

    def __init__(self, table: str, columns: Sequence[ColumnSpec], attempt_column: str) -> None:
        self.table, self.columns, self.attempt_column = table, tuple(columns), attempt_column
        self._file: IO[bytes] | None = None
        self._takes_files: bool | None = None

    def add(self, session: MysqlSession, batch: pa.RecordBatch, attempt: int) -> None:
        """Take a batch; it may be sent now or with a later one.

        Raises:
            UnfitValue: a number is NaN or infinite.
        """
        if batch.nbytes > _LARGEST_BATCH and batch.num_rows > 1:
            half = batch.num_rows // 2
            self.add(session, batch.slice(0, half), attempt)
            self.add(session, batch.slice(half), attempt)
            return
        for column, spec in zip(batch.columns, self.columns, strict=True):
            _require_finite(column, spec)
        if self._takes_files is None:
            self._takes_files = bool(session.execute("SELECT @@GLOBAL.local_infile").fetchone()[0])
        if not self._takes_files:
            self._insert(session, batch, attempt)
            return
        if self._file is None:
            self._file = tempfile.NamedTemporaryFile(prefix="ematix-flow-", suffix=".tsv", delete=False)  # noqa: SIM115
        self._file.write(_lines(batch, self.columns, attempt))
        if self._file.tell() >= FILE_SIZE:
            self.flush(session)

    def flush(self, session: MysqlSession) -> None:
        """Send what has been taken and not sent."""
        if self._file is None:
            return
        self._file.close()
        try:
            answer = session.execute(self._load_data(self._file.name))
        finally:
            self.discard()
        if answer.warnings:
            # From a local file a server takes what it can and only remarks on the rest. Nothing may be bent here.
            raise _remark(session.execute("SHOW WARNINGS LIMIT 20").fetchall())

    def discard(self) -> None:
        """Forget what has not been sent."""
        if self._file is not None:
            self._file.close()
            if os.path.exists(self._file.name):
                os.unlink(self._file.name)
            self._file = None

    def _load_data(self, path: str) -> str:
        # Bytes travel as hexadecimal digits, so that the file is text throughout.
        read, made = [], []
        for number, spec in enumerate(self.columns):
            name = backticked(spec.name)
            if isinstance(spec.type, Bytes):
                read.append(f"@b{number}")
                made.append(f"{name} = UNHEX(@b{number})")
            else:
                read.append(name)
        read.append(backticked(self.attempt_column))
        tail = f" SET {', '.join(made)}" if made else ""
        file = path.replace("\\", "\\\\").replace("'", "\\'")
        return (
            f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE {self.table} CHARACTER SET utf8mb4 ({', '.join(read)}){tail}"
        )

    def _insert(self, session: MysqlSession, batch: pa.RecordBatch, attempt: int) -> None:
        names = ", ".join(backticked(name) for name in (*(c.name for c in self.columns), self.attempt_column))
        head = f"INSERT INTO {self.table} ({names}) VALUES ".encode()
        most = int(session.execute("SELECT @@max_allowed_packet").fetchone()[0])
        room = min(most - 1024, _LARGEST_STATEMENT) - len(head)
        for values in _tuples(batch, self.columns, attempt, room):
            session.execute((head + values).decode())


def _remark(warnings: Sequence[tuple[str, int, str]]) -> FlowError:
    """The first of the server's remarks as an error; one that names a column comes before one that does not."""
    for _, code, said in warnings:
        broken = re.search(r"CONSTRAINT `(?:.*\.)?([^`]+)` failed", said)
        if code == 4025 and broken:  # only documents have constraints in a staging table
            return UnfitValue(
                f"Column '{broken[1]}' holds a document that the server does not take as JSON.",
                fix="MariaDB reads documents of whole characters, nested up to 31 deep; declare it Text to keep others",
            )
    return refusal(int(warnings[0][1]), str(warnings[0][2]), "")


def _require_finite(column: pa.Array, spec: ColumnSpec) -> None:
    import pyarrow.compute as pc

    if isinstance(spec.type, Float | Double) and pc.all(pc.is_finite(column)).as_py() is False:
        raise UnfitValue(
            f"Column '{spec.name}' holds NaN or Infinity, which MySQL cannot keep.",
            fix="turn them into NULL in the source, or declare the column Text",
        )


def _lines(batch: pa.RecordBatch, columns: Sequence[ColumnSpec], attempt: int) -> pa.Buffer:
    """The rows as LOAD DATA reads them by default: tabs between values, a backslash before what is special."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [_text(column, spec, _ESCAPED, "") for column, spec in zip(batch.columns, columns, strict=True)]
    end = pa.scalar(f"{attempt}\n")
    joined = pc.binary_join_element_wise(*texts, end, "\t", null_handling="replace", null_replacement="\\N")
    return _content(joined)


def _tuples(
    batch: pa.RecordBatch, columns: Sequence[ColumnSpec], attempt: int, room: int
) -> Iterator[memoryview | bytes]:
    """The rows as the values of INSERTs, each not longer than `room`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [_text(column, spec, _QUOTED, "'") for column, spec in zip(batch.columns, columns, strict=True)]
    joined = pc.binary_join_element_wise(
        *texts, pa.scalar(f"{attempt}),"), ",", null_handling="replace", null_replacement="NULL"
    )
    joined = pc.binary_join_element_wise(pa.scalar("("), joined, "")
    content = memoryview(_content(joined))
    ends = np.cumsum(pc.binary_length(joined).to_numpy(zero_copy_only=False)).tolist()
    begin = last = 0
    for end in ends:
        if end - begin > room and last > begin:
            yield bytes(content[begin : last - 1])
            begin = last
        last = end
    yield bytes(content[begin : last - 1])


def _text(column: pa.Array, spec: ColumnSpec, escapes: Sequence[tuple[str, str]], quote: str) -> pa.Array:
    """A column as text; NULL stays NULL."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = spec.type
    if isinstance(kind, Bytes):
        digits = _hexadecimal(column)
        return pc.binary_join_element_wise(pa.scalar("X'"), digits, pa.scalar("'"), "") if quote else digits
    if isinstance(kind, Boolean):
        return column.cast(pa.int8()).cast(pa.string())
    if isinstance(kind, Float):
        column = column.cast(pa.float64())  # its own text is rounded, and may be too large for a FLOAT
    if isinstance(kind, Timestamp | TimestampTZ):
        column = column.cast(pa.timestamp("us"))
    if not pa.types.is_string(column.type):
        text = column.cast(pa.string())
        is_time = pa.types.is_temporal(column.type)
        return pc.binary_join_element_wise(pa.scalar("'"), text, pa.scalar("'"), "") if quote and is_time else text
    content = _content(column).to_pybytes()
    for plain, escaped in escapes:
        if plain.encode() in content:
            column = pc.replace_substring(column, plain, escaped)
    return pc.binary_join_element_wise(pa.scalar(quote), column, pa.scalar(quote), "") if quote else column


def _hexadecimal(column: pa.Array) -> pa.Array:
    """Bytes as two digits each."""
    import numpy as np
    import pyarrow as pa

    digits = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
    data = np.frombuffer(_content(column), np.uint8)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    # The values' bytes follow each other; only where they begin changes.
    moved = (offsets - offsets[0]).astype(np.int64) * 2
    valid = None if not column.null_count else pa.py_buffer(_validity(column))
    found = pa.Array.from_buffers(
        pa.large_string(), len(column), [valid, pa.py_buffer(moved), pa.py_buffer(digits[data].ravel())]
    )
    return found.cast(pa.string())


def _validity(column: pa.Array) -> bytes:
    import numpy as np

    return np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little").tobytes()


def _content(column: pa.Array) -> pa.Buffer:
    """The bytes of all values of a text or binary column, one after the other."""
    import pyarrow as pa

    offsets, data = column.buffers()[1:]
    if not len(column) or data is None:
        return pa.py_buffer(b"")
    width = 8 if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type) else 4
    view = memoryview(offsets).cast("B")

    def at(place: int) -> int:
        return int.from_bytes(view[place * width : (place + 1) * width], "little")

    begin, end = at(column.offset), at(column.offset + len(column))
    return data.slice(begin, end - begin)
