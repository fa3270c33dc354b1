"""Rows of a MySQL query as Arrow batches: the server writes each row as one line of CSV, Arrow reads thousands at once.

The driver makes a Python object of every value it receives, so one value per row instead of one per column is what
makes reading fast. NULL is nothing between commas, text stands in quotes, bytes are written in hexadecimal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ematix_flow.contracts.mysql_words import backticked
from ematix_flow.contracts.shapes import ColumnShape
from ematix_flow.declare.columns import Bytes, Float
from ematix_flow.errors import UnfitValue

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 4 * 1024 * 1024
"""How much text makes a batch."""

_BARE_KINDS = ("small_int", "integer", "big_int", "double", "boolean", "numeric", "date", "timestamp", "timestamp_tz")


def as_lines(sql: str, shapes: Sequence[ColumnShape]) -> str:
    """A query whose one column is the CSV line of each row of another."""
    parts = [_written(f"q.{backticked(shape.name)}", shape) for shape in shapes]
    line = ", ',', ".join(parts)
    return f"SELECT CAST(CONCAT({line}) AS BINARY) FROM ({sql}\n) AS q"


def batches(lines: Iterable[tuple[bytes | None]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Lines as batches in exact types.

    Args:
        lines: The rows of `as_lines`.
        schema: Names and types of the columns that were written.

    Raises:
        UnfitValue: a value is none of its type, such as a day of zeros, or a row is longer than the server sends.
    """
    block: list[bytes] = []
    size = 0
    for (line,) in lines:
        if line is None:
            raise UnfitValue(
                "A row of the source is longer than the server's max_allowed_packet, so that it cannot be sent.",
                fix="raise max_allowed_packet on the server, or leave out large columns",
            )
        block.append(line)
        size += len(line)
        if size >= BATCH_BYTES:
            yield _read(block, schema)
            block, size = [], 0
    if block:
        yield _read(block, schema)


def _written(value: str, shape: ColumnShape) -> str:
    """One value as SQL that gives its part of the line; empty for NULL."""
    if isinstance(shape.type, Bytes):
        text = f"CONCAT('\"', HEX({value}), '\"')"
    elif isinstance(shape.type, Float):
        text = f"{value} * 1e0"  # a FLOAT is written with six digits, a DOUBLE with all it needs
    elif shape.native == "bit(1)":
        text = f"{value} + 0"
    elif shape.type is not None and shape.type.kind in _BARE_KINDS:
        text = value
    else:
        text = f"CONCAT('\"', REPLACE(CONVERT({value} USING utf8mb4), '\"', '\"\"'), '\"')"
    # Not by IFNULL: a text that is too long for the server to work with becomes NULL too, and must not pass for one.
    return f"IF({value} IS NULL, '', {text})"


def _read(lines: list[bytes], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa
    from pyarrow import csv

    text = b"\n".join([*lines, b""])
    numbered = [str(place) for place in range(len(schema))]
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(column_names=numbered, block_size=len(text) + 1, use_threads=False),
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=csv.ConvertOptions(
                column_types={name: _read_as(field.type) for name, field in zip(numbered, schema, strict=True)},
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
                true_values=["1"],
                false_values=["0"],
            ),
        )
    except pa.ArrowInvalid as exc:  # its text holds the value
        place = re.search(r"column #(\d+)", str(exc))
        if place is None:
            raise
        field = schema.field(int(place[1]))
        raise UnfitValue(
            f"Column '{field.name}' of the source holds a value that is no {field.type}.",
            fix="a day of zeros? NULLIF(…, 0) in the source SQL makes it NULL; CAST(… AS CHAR) reads it as text",
        ) from exc
    columns = [
        _unhexed(column.combine_chunks())
        if pa.types.is_binary(field.type)
        else column.combine_chunks().cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        [c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in columns], schema=schema
    )


def _read_as(kind: pa.DataType) -> pa.DataType:
    """The type a column is parsed as: instants are written without their zone, bytes as text."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    return pa.string() if pa.types.is_binary(kind) else kind


def _unhexed(written: pa.Array) -> pa.Array:
    """Hexadecimal texts as bytes, all of them in one go."""
    import binascii

    import numpy as np
    import pyarrow as pa

    if isinstance(written, pa.ChunkedArray):
        written = pa.concat_arrays(written.chunks)
    validity, offsets_buffer, data = written.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[written.offset : written.offset + len(written) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    content = binascii.unhexlify(memoryview(data)[first:last]) if last > first else b""
    halved = pa.py_buffer(((offsets - first) // 2).astype(np.int32))
    valid = written.is_valid()
    packed = valid.buffers()[1] if written.null_count else None
    return pa.Array.from_buffers(pa.binary(), len(written), [packed, halved, pa.py_buffer(content)])
