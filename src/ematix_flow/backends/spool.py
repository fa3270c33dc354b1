"""The Parquet spool: how rows pass between Spark and a database that only one process may write.

Bounded in memory: a batch of rows at a time, whatever the size of the whole.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.files_native import encoded_uri, is_native
from ematix_flow.backends.files_store import not_a_pattern
from ematix_flow.backends.locks import FileLock
from ematix_flow.backends.transport import arrow_type
from ematix_flow.contracts.plans import BatchPlan, Landed
from ematix_flow.contracts.shapes import ColumnShape
from ematix_flow.declare.columns import (
    BigInt,
    Boolean,
    Bytes,
    ColumnType,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import UnfitValue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_ROWS_PER_BATCH = 50_000
_READ = "read-"


@contextmanager
def folder(root: str) -> Iterator[str]:
    """A new spool folder for reading, removed at the end; those of processes that died are removed here too."""
    os.makedirs(root, exist_ok=True)
    remove_dead_reads(root)
    place = os.path.join(root, f"{_READ}{uuid.uuid4().hex}")
    lock = FileLock(f"{place}.lock")
    lock.acquire()
    os.makedirs(place)
    try:
        yield place
    finally:
        remove(place)
        lock.release()


def rows_in(spark: SparkSession, place: str) -> DataFrame:
    """The rows of a spool folder, whatever is in its name."""
    path = Path(place).absolute().as_posix()
    return spark.read.parquet(encoded_uri(path) if is_native(spark) else not_a_pattern(path))


def write_frame(frame: DataFrame, place: str) -> None:
    """Write a new spool folder: by Spark, or by this process where the rows are in its memory."""
    path = Path(place).absolute().as_posix()
    session = getattr(frame, "sparkSession", None)  # rows in memory have none
    frame.write.parquet(encoded_uri(path) if session is not None and is_native(session) else path)


def remove_dead_reads(root: str) -> None:
    """Remove spool folders whose reader no longer lives; a living reader holds the lock beside its folder."""
    for name in os.listdir(root) if os.path.isdir(root) else ():
        place = os.path.join(root, name)
        if not name.startswith(_READ) or not os.path.isdir(place):
            continue
        lock = FileLock(f"{place}.lock")
        if lock.acquire():
            remove(place)
            lock.release()


def temporary_root() -> str:
    """Where spools go when there is no folder beside the database."""
    return os.path.join(tempfile.gettempdir(), f"ematix-flow-spool-{os.getuid() if hasattr(os, 'getuid') else 0}")


def remove(place: str) -> None:
    """Remove a spool folder; one that is already gone is fine."""
    shutil.rmtree(place, ignore_errors=True)


def left_behind(root: str) -> list[str]:
    """Names of staged spools under a root, the living and the dead."""
    if not os.path.isdir(root):
        return []
    return [name for name in os.listdir(root) if "-" in name and not name.startswith(_READ)]


def data_files(place: str) -> list[str]:
    """The Parquet files that Spark committed to a spool folder; none when there was no row and nobody made it."""
    if not os.path.isdir(place):
        return []
    return sorted(
        os.path.join(place, name) for name in os.listdir(place) if name.endswith(".parquet") and name[0] not in "._"
    )


def rows_so_far(place: str) -> int:
    """Rows in the files that tasks have finished, whether or not Spark has committed them yet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    for folder, _, names in os.walk(place):
        for name in names:
            if name.endswith(".parquet"):
                try:
                    rows += pq.read_metadata(os.path.join(folder, name)).num_rows
                except (OSError, pa.ArrowInvalid):
                    continue  # being written just now
    return rows


def landed(place: str, plan: BatchPlan) -> Landed:
    """Count what Spark wrote, from the file footers; find the greatest watermark without loading the rest."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows, marks = 0, []
    for path in data_files(place):
        with pq.ParquetFile(path) as file:
            rows += file.metadata.num_rows
            if plan.watermark is not None:
                for batch in file.iter_batches(columns=[plan.watermark.column]):
                    highest = pc.max(batch.column(0))
                    if highest.is_valid:
                        marks.append(highest)
    mark = None
    if marks:
        assert plan.watermark is not None
        mark = watermark_text(max(marks, key=lambda scalar: scalar.as_py()), plan.watermark.type)
    return Landed(handle=place, rows=rows, watermark=mark, verified=True)


def watermark_text(scalar: Any, column_type: ColumnType) -> str:
    """The canonical text of a watermark, equal to what SQLite itself would store."""
    import pyarrow as pa

    text = sqlite_column(pa.array([scalar.as_py()], type=scalar.type), ColumnSpec("", column_type))[0]
    return repr(text) if isinstance(text, float) else str(text)


def sqlite_rows(place: str, columns: Sequence[ColumnSpec]) -> Iterator[list[tuple[Any, ...]]]:
    """The spool as SQLite values, a batch at a time."""
    import pyarrow.parquet as pq

    names = [column.name for column in columns]
    for path in data_files(place):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=names):
                values = [sqlite_column(batch.column(column.name), column) for column in columns]
                yield list(zip(*values, strict=True))


def sqlite_column(array: pa.Array, column: ColumnSpec) -> list[Any]:
    """One column in SQLite's canonical form; whole columns at a time, no row loop."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if isinstance(kind, Timestamp | TimestampTZ):
        text = pc.strftime(pc.cast(array, pa.timestamp("us", tz=array.type.tz)), format="%Y-%m-%dT%H:%M:%S")
        if isinstance(kind, TimestampTZ):
            text = pc.binary_join_element_wise(text, "Z", "")
        return text.to_pylist()  # type: ignore[no-any-return]
    if isinstance(kind, Numeric | Date):
        return pc.cast(array, pa.string()).to_pylist()  # type: ignore[no-any-return]
    if isinstance(kind, Boolean):
        return pc.cast(array, pa.int8()).to_pylist()  # type: ignore[no-any-return]
    if isinstance(kind, Float | Double) and pc.any(pc.is_nan(array)).as_py():
        raise UnfitValue(
            f"Column '{column.name}' holds NaN, which SQLite cannot keep.", fix="turn it into NULL with nullif(...)"
        )
    return array.to_pylist()  # type: ignore[no-any-return]


def write_rows(rows: Any, shapes: Sequence[ColumnShape], wanted: Mapping[str, ColumnType], place: str) -> None:
    """Stream a cursor into Parquet files.

    A column's Arrow type comes from what the database declares; where it declares nothing, the first batch decides
    between whole numbers, floating point, bytes and text, guided by the type the target wants.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema: pa.Schema | None = None
    writer: pq.ParquetWriter | None = None
    part = 0
    while True:
        batch = rows.fetchmany(_ROWS_PER_BATCH)
        if not batch and writer is not None:
            break
        columns = list(zip(*batch, strict=True)) if batch else [() for _ in shapes]
        if schema is None:
            schema = pa.schema(
                [
                    (shape.name, _arrow_type(shape, values, wanted.get(shape.name)))
                    for shape, values in zip(shapes, columns, strict=True)
                ]
            )
            writer = pq.ParquetWriter(os.path.join(place, f"part-{part:05d}.parquet"), schema)
        assert writer is not None
        arrays = [_arrow_array(values, field) for values, field in zip(columns, schema, strict=True)]
        writer.write_batch(pa.record_batch(arrays, schema=schema))
        if not batch:
            break
    if writer is not None:
        writer.close()


def arrow_table(rows: Sequence[tuple[Any, ...]], shapes: Sequence[ColumnShape]) -> pa.Table:
    """Rows of SQLite in the types that its columns are declared with; whole numbers have 64 bits, as they have there.

    Raises:
        UnfitValue: a column mixes kinds of values, or holds some that are not of its declared type.
    """
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) if rows else [() for _ in shapes]
    arrays = []
    for shape, values in zip(shapes, columns, strict=True):
        field = pa.field(shape.name, _arrow_type(shape, values, None))
        arrays.append(_as_declared(_arrow_array(values, field), shape))
    return pa.table(arrays, names=[shape.name for shape in shapes])


def _as_declared(array: pa.Array, shape: ColumnShape) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = shape.type
    try:
        if isinstance(kind, Numeric | Date | Timestamp | TimestampTZ):
            return array.cast(arrow_type(kind))
        if isinstance(kind, Boolean):
            if pc.all(pc.is_in(array, pa.array([0, 1, None], array.type))).as_py() is False:
                raise pa.ArrowInvalid("neither true nor false")
            return array.cast(pa.bool_())
    except pa.ArrowException as exc:  # its words hold the value
        raise UnfitValue(
            f"Column '{shape.name}' of the source holds a value that is no {kind}.",
            fix=f"read it as text: CAST({shape.name} AS TEXT)",
        ) from exc
    return array


def _arrow_type(shape: ColumnShape, values: Iterable[Any], wanted: ColumnType | None) -> pa.DataType:
    import pyarrow as pa

    by_type: dict[type[ColumnType], pa.DataType] = {
        SmallInt: pa.int64(),
        Integer: pa.int64(),
        BigInt: pa.int64(),
        Boolean: pa.int64(),
        Float: pa.float64(),
        Double: pa.float64(),
        Bytes: pa.binary(),
    }
    kinds = {type(value) for value in values if value is not None}
    declared = by_type.get(type(shape.type), pa.string()) if shape.type is not None else None
    found = None
    if kinds == {int} or kinds == {bool}:
        found = pa.int64()
    elif kinds and kinds <= {int, float}:
        found = pa.float64()
    elif kinds == {bytes}:
        found = pa.binary()
    elif kinds:
        found = pa.string()
    if found is None:  # an empty first batch: believe the declaration, then the target
        found = declared or (by_type.get(type(wanted), pa.string()) if wanted is not None else pa.string())
    return found if declared is None or declared == found else _common(declared, found)


def _common(declared: pa.DataType, found: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return pa.float64() if {declared, found} == {pa.int64(), pa.float64()} else pa.string()


def _arrow_array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    import pyarrow as pa

    if field.type == pa.string():
        values = [value if value is None or isinstance(value, str) else _as_text(value) for value in values]
    try:
        return pa.array(values, type=field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as exc:
        raise UnfitValue(
            f"Column '{field.name}' of the source mixes {field.type} with other values.",
            fix=f"cast it in the source SQL: CAST({field.name} AS TEXT)",
        ) from exc


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return json.dumps(value) if isinstance(value, float) else str(value)
