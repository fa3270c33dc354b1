"""What a Parquet or ORC file says about its columns, read from its footer without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.contracts.shapes import ColumnShape, TableRef, TableShape
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
    Text,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.declare.fileformats import FileFormat
from ematix_flow.errors import InvalidSource, MissingDriver

if TYPE_CHECKING:
    import pyarrow as pa


def described(table: TableRef, file_format: FileFormat, path: str) -> TableShape:
    """The shape of a table by one of its files."""
    try:
        import pyarrow as pa
        from pyarrow import orc, parquet
    except ImportError:
        raise MissingDriver("Describing files needs 'pyarrow'.", fix='pip install "ematix-flow[spark]"') from None
    try:
        if file_format == "parquet":
            with parquet.ParquetFile(path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        else:
            stripes = orc.ORCFile(path)
            schema, rows = stripes.schema, stripes.nrows
    except pa.ArrowInvalid:
        raise InvalidSource(f"A file of '{table}' is not {file_format}.", where=path, fix="remove or mend it") from None
    columns = tuple(ColumnShape(f.name, _column_type(f.type), str(f.type), nullable=f.nullable) for f in schema)
    return TableShape(ref=table, columns=columns, has_rows=rows > 0)


def _column_type(arrow: pa.DataType) -> ColumnType | None:
    import pyarrow.types as at

    if at.is_decimal(arrow):
        return Numeric(arrow.precision, arrow.scale)
    if at.is_timestamp(arrow):
        return TimestampTZ() if arrow.tz else Timestamp()
    simple: tuple[tuple[bool, ColumnType], ...] = (
        (at.is_boolean(arrow), Boolean()),
        (at.is_int8(arrow) or at.is_int16(arrow), SmallInt()),
        (at.is_int32(arrow), Integer()),
        (at.is_int64(arrow), BigInt()),
        (at.is_float32(arrow), Float()),
        (at.is_float64(arrow), Double()),
        (at.is_string(arrow) or at.is_large_string(arrow), Text()),
        (at.is_date(arrow), Date()),
        (at.is_binary(arrow) or at.is_large_binary(arrow), Bytes()),
    )
    return next((column_type for fits, column_type in simple if fits), None)
