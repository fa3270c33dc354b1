"""What Spark's Python workers do with functions and aggregates of the user's own: whole Arrow arrays in and out.

Spark hands scalar functions over as pandas Series, in which a number that is missing would become a float. So numbers
and booleans come without gaps, and one more column says with a bit per argument where the gaps are; results go back as
Arrow. Types that Spark does not have, the unsigned ones, travel in the next wider one.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from ematix_flow.declare.udf import ARROW_NAMES, Accumulator, PythonAggregateUdfHandle, PythonScalarUdfHandle
from ematix_flow.errors import UdfFailed

CARRIERS = {
    "Int8": "tinyint",
    "Int16": "smallint",
    "Int32": "int",
    "Int64": "bigint",
    "UInt8": "smallint",
    "UInt16": "int",
    "UInt32": "bigint",
    "UInt64": "decimal(20,0)",
    "Float32": "float",
    "Float64": "double",
    "Boolean": "boolean",
    "Utf8": "string",
    "Binary": "binary",
}
"""Declared types → the types of Spark that carry their values."""

_ARROW_CARRIERS = {"UInt8": pa.int16(), "UInt16": pa.int32(), "UInt32": pa.int64(), "UInt64": pa.decimal128(20, 0)}

_GROUPED_ROWS = 100_000
"""How many rows are gathered before they are divided into groups: small parts of groups cost a call each."""


def arrow_of(type_name: str) -> pa.DataType:
    """The Arrow type of a declared one."""
    return getattr(pa, ARROW_NAMES[type_name])()


def carrier_of(type_name: str) -> pa.DataType:
    """The Arrow type in which Spark carries a declared one."""
    return _ARROW_CARRIERS.get(type_name) or arrow_of(type_name)


def scalar_function(handle: PythonScalarUdfHandle, has_gaps: Sequence[bool]) -> Callable[..., pd.Series]:
    """The function as Spark calls it.

    Args:
        has_gaps: By argument, whether the last column has a bit for values that are missing.
    """

    def call(*columns: pd.Series) -> pd.Series:
        bits = columns[-1].to_numpy() if any(has_gaps) else None
        if bits is not None and not bits.any():
            bits = None
        arrays = []
        for place, (type_name, gaps) in enumerate(zip(handle.args, has_gaps, strict=True)):
            missing = (bits & (1 << place)) != 0 if bits is not None and gaps else None
            values = columns[place].to_numpy()
            carried = pa.array(values, type=carrier_of(type_name), mask=missing, from_pandas=False)
            arrays.append(_declared(handle, carried, type_name))
        return _as_series(handle(*arrays).cast(carrier_of(handle.returns)))

    return call


def merging_function(handle: PythonAggregateUdfHandle) -> Callable[..., pd.Series]:
    """Lists of states, one per group, to results: what is left to do after the rows were grouped by Spark."""

    def call(states: pd.Series) -> pd.Series:
        results = []
        for packed in states:
            group = _merged(handle, [pickle.loads(state) for state in packed])  # written by the task before
            results.append(group.evaluate())
        whole = pa.concat_arrays(results) if results else pa.array([], arrow_of(handle.returns))
        return _as_series(whole.cast(carrier_of(handle.returns)))

    return call


def folding_function(handle: PythonAggregateUdfHandle, *, are_new: bool) -> Callable[..., pd.Series]:
    """Lists of states, one per group, to one state each, as text that may be kept.

    Args:
        are_new: Whether the states were made by the tasks before, and not read from what is kept.
    """

    def call(states: pd.Series) -> pd.Series:
        known = [[pickle.loads(one) if are_new else _read(one) for one in packed] for packed in states]
        return pd.Series([_written(_merged(handle, parts)) for parts in known], dtype=object)

    return call


def answering_function(handle: PythonAggregateUdfHandle) -> Callable[..., pd.Series]:
    """Kept states to results."""

    def call(states: pd.Series) -> pd.Series:
        results = [_merged(handle, [] if state is None else [_read(state)]).evaluate() for state in states]
        whole = pa.concat_arrays(results) if results else pa.array([], arrow_of(handle.returns))
        return _as_series(whole.cast(carrier_of(handle.returns)))

    return call


def _merged(handle: PythonAggregateUdfHandle, parts: Sequence[tuple[Any, ...]]) -> Accumulator:
    group = handle.accumulator()
    if parts:
        types = [arrow_of(type_name) for type_name in handle.state]
        columns = zip(*parts, strict=True)
        group.merge_batch(*(pa.array(column, type) for column, type in zip(columns, types, strict=True)))
    return group


def _written(accumulator: Accumulator) -> str:
    """A state as text; Python writes numbers so that the same ones are read again."""
    values = [part[0].as_py() for part in accumulator.state()]
    return json.dumps([{"bytes": value.hex()} if isinstance(value, bytes) else value for value in values])


def _read(text: str) -> tuple[Any, ...]:
    return tuple(bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value for value in json.loads(text))


def _declared(handle: Any, carried: pa.Array, type_name: str) -> pa.Array:
    """Values in their declared type; only an unsigned one can lack a place for one."""
    try:
        return carried.cast(arrow_of(type_name))
    except pa.ArrowInvalid:
        raise UdfFailed(
            f"UDF '{handle.name}' is given a value that does not fit {type_name}.", where=str(handle.where)
        ) from None


def _as_series(array: pa.Array) -> pd.Series:
    return pd.Series(pd.arrays.ArrowExtensionArray(array))


@dataclass(frozen=True)
class Share:
    """One aggregate's columns among those that come in, and the one that its states go out in."""

    handle: PythonAggregateUdfHandle
    arguments: tuple[str, ...]
    only_where: str | None
    state: str


@dataclass(frozen=True)
class PartialAggregation:
    """The first half of an aggregation: every task makes one state per group of the rows it has.

    With `passes_rows`, rows go through as they are, so that aggregates of Spark's find them; the last row kept of
    each group carries its states. Without, those rows are all that goes out.
    """

    keys: tuple[str, ...]
    carried: tuple[str, ...]
    shares: tuple[Share, ...]
    passes_rows: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        groups: dict[tuple[Any, ...], _Group] = {}
        kept = [*self.keys, *self.carried]
        for rows in _gathered(batches):
            ids, first_rows = _group_ids(rows, self.keys)
            passed = np.ones(rows.num_rows, dtype=bool)
            order = np.argsort(ids, kind="stable")
            ends = np.cumsum(np.bincount(ids, minlength=len(first_rows)))
            ordered = rows.take(pa.array(order))
            arguments = [self._arguments(share, ordered) for share in self.shares]
            names = rows.select(self.keys).take(pa.array(first_rows)).to_pylist()
            for number, first in enumerate(first_rows):
                key = tuple(map(_comparable, names[number].values()))
                group = groups.get(key)
                if group is None:
                    passed[first] = False
                    row = rows.select(kept).slice(int(first), 1)
                    group = groups[key] = _Group(row, [share.handle.accumulator() for share in self.shares])
                start, end = int(ends[number - 1]) if number else 0, int(ends[number])
                for accumulator, (columns, chosen) in zip(group.accumulators, arguments, strict=True):
                    parts = [column.slice(start, end - start) for column in columns]
                    if chosen is not None:
                        part = chosen.slice(start, end - start)
                        parts = [column.filter(part) for column in parts]
                    if len(parts[0]):
                        accumulator.update_batch(*parts)
            if self.passes_rows and passed.any():
                yield from self._with_states(rows.select(kept).filter(pa.array(passed)), None)
        if groups:
            held = pa.concat_tables([group.row for group in groups.values()])
            yield from self._with_states(held, list(groups.values()))

    def _arguments(self, share: Share, rows: pa.Table) -> tuple[list[pa.Array], pa.Array | None]:
        """An aggregate's columns in their declared types, and which of the rows it wants."""
        found = [
            _declared(share.handle, _whole(rows.column(name)), type_name)
            for name, type_name in zip(share.arguments, share.handle.args, strict=True)
        ]
        return found, None if share.only_where is None else _whole(rows.column(share.only_where)).fill_null(False)

    def _with_states(self, rows: pa.Table, groups: Sequence[_Group] | None) -> Iterator[pa.RecordBatch]:
        for place, share in enumerate(self.shares):
            packed = None if groups is None else [_packed(group.accumulators[place]) for group in groups]
            states = pa.nulls(rows.num_rows, pa.binary()) if packed is None else pa.array(packed, pa.binary())
            rows = rows.append_column(share.state, states)
        yield from rows.combine_chunks().to_batches(max_chunksize=_GROUPED_ROWS)


@dataclass(frozen=True)
class _Group:
    row: pa.Table
    accumulators: list[Accumulator]


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches put together until they are worth dividing."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
        if sum(part.num_rows for part in held) >= _GROUPED_ROWS:
            yield pa.Table.from_batches(held).combine_chunks()
            held = []
    if held:
        yield pa.Table.from_batches(held).combine_chunks()


def _group_ids(rows: pa.Table, keys: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """A number for each row's group, and by number the first row of each group.

    Groups may be finer than Spark's, which takes 0.0 and -0.0 for one: their states meet when Spark groups.
    """
    ids = np.zeros(rows.num_rows, dtype=np.int64)
    for key in keys:
        encoded = _whole(rows.column(key)).dictionary_encode(null_encoding="encode")
        # What is known of earlier keys is made small first, so that the product has room.
        _, ids = np.unique(ids, return_inverse=True)
        ids = ids * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
    _, first_rows, ids = np.unique(ids, return_index=True, return_inverse=True)
    return ids, first_rows


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _comparable(value: Any) -> Any:
    """A key's value as part of a dictionary's key; one that is not equal to itself would be a new group every time."""
    return "NaN" if isinstance(value, float) and value != value else (type(value).__name__, value)


def _packed(accumulator: Accumulator) -> bytes:
    """A state as bytes; the values in it are those of Python, which has all of them exactly."""
    return pickle.dumps(tuple(part[0].as_py() for part in accumulator.state()), protocol=5)
