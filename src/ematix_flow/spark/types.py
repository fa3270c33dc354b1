"""Our column types, Spark's and Arrow's: one table, read both ways.

Instants are Spark's `timestamp` (the session's zone is UTC), wall-clock times `timestamp_ntz`; JSON and UUID travel as
text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from ematix_flow.backends.transport import arrow_type
from ematix_flow.declare import columns as c
from ematix_flow.declare.normalizers import GREATEST_PRECISION
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import InvalidPlan

if TYPE_CHECKING:
    import pyarrow

_TO_SPARK: dict[str, t.DataType] = {
    "small_int": t.ShortType(),
    "integer": t.IntegerType(),
    "big_int": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "boolean": t.BooleanType(),
    "text": t.StringType(),
    "string": t.StringType(),
    "json": t.StringType(),
    "jsonb": t.StringType(),
    "uuid": t.StringType(),
    "date": t.DateType(),
    "timestamp": t.TimestampNTZType(),
    "timestamp_tz": t.TimestampType(),
    "bytes": t.BinaryType(),
}
_FROM_SPARK: tuple[tuple[type[t.DataType], type[c.ColumnType]], ...] = (
    (t.ByteType, c.SmallInt),
    (t.ShortType, c.SmallInt),
    (t.IntegerType, c.Integer),
    (t.LongType, c.BigInt),
    (t.FloatType, c.Float),
    (t.DoubleType, c.Double),
    (t.BooleanType, c.Boolean),
    (t.DateType, c.Date),
    (t.TimestampNTZType, c.Timestamp),
    (t.TimestampType, c.TimestampTZ),
    (t.BinaryType, c.Bytes),
    (t.StructType, c.JSON),
    (t.ArrayType, c.JSON),
    (t.MapType, c.JSON),
    (t.VariantType, c.JSON),
    (t.NullType, c.Text),
    (t.StringType, c.Text),
)


def to_spark_type(column_type: c.ColumnType) -> t.DataType:
    """The Spark type that holds every value of a column type.

    Raises:
        InvalidPlan: a decimal has more digits than Spark can hold.
    """
    if isinstance(column_type, c.Numeric):
        if column_type.precision > GREATEST_PRECISION:
            raise InvalidPlan(
                f"{column_type} has more digits than Spark can hold ({GREATEST_PRECISION}).",
                fix=f"declare Numeric[{GREATEST_PRECISION}, {min(column_type.scale, GREATEST_PRECISION)}] or less",
            )
        return t.DecimalType(column_type.precision, column_type.scale)
    return _TO_SPARK[column_type.kind]


def from_spark_type(spark_type: t.DataType) -> c.ColumnType:
    """The column type that holds every value of a Spark type; nested values become JSON.

    Raises:
        InvalidPlan: there is none, as for intervals.
    """
    if isinstance(spark_type, t.DecimalType):
        return c.Numeric(spark_type.precision, spark_type.scale)
    if isinstance(spark_type, t.CharType | t.VarcharType):
        return c.String(spark_type.length)
    for known, column_type in _FROM_SPARK:
        if isinstance(spark_type, known):
            return column_type()
    raise InvalidPlan(f"There is no column type for Spark's {spark_type.simpleString()}.", fix="cast it to text first")


def to_spark_schema(schema: pyarrow.Schema) -> t.StructType:
    """The schema of an Arrow table in Spark; a time without a zone is wall-clock time, whatever the session prefers."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def to_struct(columns: Iterable[ColumnSpec]) -> t.StructType:
    """The schema of declared columns, in order."""
    return t.StructType([t.StructField(col.name, to_spark_type(col.type), col.nullable) for col in columns])


def to_arrow_schema(columns: Iterable[ColumnSpec]) -> pyarrow.Schema:
    """The same schema for Arrow batches: times to the microsecond, instants in UTC."""
    import pyarrow as pa

    return pa.schema([pa.field(column.name, arrow_type(column.type), nullable=column.nullable) for column in columns])
