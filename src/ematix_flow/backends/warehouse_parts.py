"""Rows on their way into a warehouse: every task writes one Parquet file and sends it off; a manifest says which count.

A file belongs to one attempt of a task. What an attempt sent that did not finish is never named in the manifest, so a
repeated task doubles nothing.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ematix_flow.backends.frames import column_type_of
from ematix_flow.backends.transport import arrow_type, highest_mark, in_a_task, mark_text, task_attempt
from ematix_flow.backends.warehouse_dialect import WarehouseDialect
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.plans import WatermarkRule
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import StatementFailed, UnfitValue

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_MANIFEST = "name string, rows bigint, size bigint, mark string"


@dataclass(frozen=True)
class Part:
    """One file that has arrived: its name there, its rows and bytes."""

    name: str
    rows: int
    size: int


class Sender(Protocol):
    """Brings a file to where the warehouse takes it from. Made on the driver, used in a worker; must be picklable."""

    def send(self, path: str, name: str) -> None:
        """Send one file under a name of its own."""
        ...


def send_frame(
    frame: DataFrame,
    columns: Sequence[ColumnSpec],
    dialect: WarehouseDialect,
    sender: Sender,
    watermark: WatermarkRule | None,
) -> tuple[list[Part], str | None]:
    """Send a DataFrame as Parquet files, one per task; the files that count, and the greatest mark."""
    names = list(frame.columns)
    by_name = {column.name: column for column in columns}
    ordered = [by_name[name] for name in names]

    def send_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        name = f"{task_attempt()[1]}-{secrets.token_hex(4)}.parquet"
        with in_a_task(), tempfile.TemporaryDirectory(prefix="ematix-flow-") as folder:
            path = os.path.join(folder, name)
            rows, mark = write_part(batches, path, ordered, dialect, watermark)
            if not rows:
                return
            sender.send(path, name)
            size = os.path.getsize(path)
        reached("task-copied", attempt=task_attempt()[0])
        yield pa.RecordBatch.from_pydict(
            {"name": [name], "rows": [rows], "size": [size], "mark": [mark]},
            schema=pa.schema(
                [("name", pa.string()), ("rows", pa.int64()), ("size", pa.int64()), ("mark", pa.string())]
            ),
        )

    # Spark looks the columns up by unquoted name on the way to Python, which a backtick in a name would break.
    plain = frame.toDF(*(f"c{place}" for place in range(len(names))))
    manifest = plain.mapInArrow(send_partition, _MANIFEST).collect()
    mark = highest_mark((row["mark"] for row in manifest), watermark.type if watermark else None)
    return [Part(row["name"], row["rows"], row["size"]) for row in manifest], mark


def numbered(columns: Sequence[ColumnSpec], dialect: WarehouseDialect) -> list[str]:
    """What columns are called on their way, whatever their own names are: not every name goes through every format."""
    return [dialect.kept_name(f"c{place}") for place in range(len(columns))]


def columns_of(files: Sequence[str], dialect: WarehouseDialect) -> list[ColumnSpec]:
    """The columns of Parquet files that were all made by one query."""
    import pyarrow.parquet as pq

    if not files:
        raise StatementFailed("There is nothing to write: not even columns.")
    schema = pq.read_schema(files[0])
    return [ColumnSpec(dialect.declared_name(f.name), column_type_of(f.type), nullable=True) for f in schema]


def send_file(path: str, columns: Sequence[ColumnSpec], dialect: WarehouseDialect, sender: Sender) -> list[Part]:
    """Send one Parquet file of this machine in the form the warehouse takes; nothing when it has no row."""
    import pyarrow.parquet as pq

    name = f"{secrets.token_hex(8)}.parquet"
    with tempfile.TemporaryDirectory(prefix="ematix-flow-") as folder, pq.ParquetFile(path) as file:
        made = os.path.join(folder, name)
        rows, _ = write_part(file.iter_batches(), made, columns, dialect)
        if not rows:
            return []
        sender.send(made, name)
        return [Part(name, rows, os.path.getsize(made))]


def write_part(
    batches: Iterable[pa.RecordBatch],
    path: str,
    columns: Sequence[ColumnSpec],
    dialect: WarehouseDialect,
    watermark: WatermarkRule | None = None,
    *,
    named: bool = False,
) -> tuple[int, str | None]:
    """Write batches into one Parquet file, in the types the warehouse takes; the rows, and the greatest mark.

    Nothing is written when there is no row. Columns are numbered, unless they are to be `named`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    names = [dialect.kept_name(c.name) for c in columns] if named else numbered(columns, dialect)
    schema = pa.schema([(n, arrow_type(dialect.transported(c.type))) for n, c in zip(names, columns, strict=True)])
    marked = next((place for place, c in enumerate(columns) if watermark and c.name == watermark.column), None)
    writer: pq.ParquetWriter | None = None
    rows, highest = 0, None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if writer is None:
                writer = pq.ParquetWriter(path, schema)
            arrays = [_as_taken(batch.column(place), schema.field(place), c) for place, c in enumerate(columns)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            rows += batch.num_rows
            if marked is not None:
                found = pc.max(batch.column(marked)).as_py()
                highest = found if highest is None or (found is not None and found > highest) else highest
    finally:
        if writer is not None:
            writer.close()
    return rows, None if highest is None or watermark is None else mark_text(highest, watermark.type)


def _as_taken(values: pa.Array, field: pa.Field, column: ColumnSpec) -> Any:
    import pyarrow as pa

    if values.type == field.type:
        return values
    try:
        return values.cast(field.type)
    except pa.ArrowException as exc:  # its words hold the value
        raise UnfitValue(f"A value of column '{column.name}' does not fit its type: {column.type}.") from exc
