"""Arrow columns in their declared types: the pairs that Arrow converts just as Spark does, and no others.

Whatever is not on the list (numbers out of text, decimals out of floating point, documents, …) is Spark's to convert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.transport import arrow_type, is_decimal
from ematix_flow.declare import columns as c
from ematix_flow.declare.table import ColumnSpec
from ematix_flow.errors import UnfitValue, counted

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = (c.SmallInt, c.Integer, c.BigInt)
_FLOATS = (c.Float, c.Double)
_TIMES = (c.Date, c.Timestamp, c.TimestampTZ)
_DIGITS_OF_BIGINT = 19


def can_fit(given: pa.DataType, wanted: c.ColumnType) -> bool:
    """Whether values of an Arrow type become a column type here, each exactly as Spark would make it."""
    import pyarrow as pa

    ask = pa.types
    if isinstance(wanted, c.JSON | c.JSONB | c.UUID) or (isinstance(wanted, c.Numeric) and not is_decimal(wanted)):
        return False
    if ask.is_null(given) or given == arrow_type(wanted):
        return True
    if ask.is_integer(given):
        if isinstance(wanted, c.Numeric):
            return wanted.scale <= 38 - _DIGITS_OF_BIGINT
        return isinstance(wanted, (*_WHOLE, *_FLOATS))
    if ask.is_floating(given):
        return isinstance(wanted, _WHOLE) or (isinstance(wanted, c.Double) and given == pa.float32())
    if ask.is_decimal(given):
        return isinstance(wanted, c.Numeric) and given.scale <= wanted.scale
    if ask.is_timestamp(given) or ask.is_date32(given):
        return isinstance(wanted, c.Timestamp | c.TimestampTZ)
    return False


def fitted(table: pa.Table, columns: Sequence[ColumnSpec], renamed: Mapping[str, str]) -> pa.Table:
    """The declared columns of a table, in their types.

    Args:
        renamed: what a column is called in the table, where that is not its declared name.

    Raises:
        UnfitValue: a value is none of its type, too long, or missing where there must be one. The value is not told.
    """
    import pyarrow as pa

    arrays = [_fitted(table.column(renamed.get(column.name, column.name)), column) for column in columns]
    return pa.table(arrays, names=[column.name for column in columns])


def with_times_in_utc(table: pa.Table, columns: Sequence[ColumnSpec], renamed: Mapping[str, str]) -> pa.Table:
    """The same rows; a time that is to become an instant, or the other way round, has become one, by the clock of UTC.

    Spark would read it by the clock of its session, which may be the user's and anything.
    """
    import pyarrow as pa

    wanted: dict[str, set[c.ColumnType]] = {}
    for column in columns:
        wanted.setdefault(renamed.get(column.name, column.name), set()).add(column.type)
    for place, field in enumerate(table.schema):
        kinds = wanted.get(field.name, set())
        if len(kinds) == 1 and (pa.types.is_timestamp(field.type) or pa.types.is_date32(field.type)):
            kind = next(iter(kinds))
            if isinstance(kind, c.Timestamp | c.TimestampTZ):
                table = table.set_column(place, field.name, _converted(table.column(place), kind))
    return table


def require_years(table: pa.Table) -> pa.Table:
    """The same table, of a query's rows; refuses times that no frame can show, such as PostgreSQL's `infinity`."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) or pa.types.is_date32(field.type):
            kind = c.Date() if pa.types.is_date32(field.type) else c.TimestampTZ() if field.type.tz else c.Timestamp()
            if not _within_years(table.column(place), kind):
                raise UnfitValue(
                    f"Column '{field.name}' holds a time outside of the years 1 to 9999.",
                    fix=f"leave such rows out, or read it as text: CAST({field.name} AS …)",
                )
    return table


def _fitted(values: pa.ChunkedArray, column: ColumnSpec) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if values.null_count and not column.nullable:
        raise UnfitValue(
            f"Column '{column.name}' is NOT NULL, and the frame has no value for it in "
            f"{counted(values.null_count, 'row')}.",
            fix=f"declare it nullable ({column.name}: T | None), fill it with default(...), or mend the frame",
        )
    try:
        found = _converted(values, column.type)
    except pa.ArrowInvalid as exc:  # its words hold the value
        raise _unfit(column, str(column.type)) from exc
    if isinstance(column.type, c.String):
        longest = pc.max(pc.utf8_length(found)).as_py()
        if longest is not None and longest > column.type.length:
            raise _unfit(column, str(column.type))
    if isinstance(column.type, _TIMES) and not _within_years(found, column.type):
        raise _unfit(column, f"{column.type} of the years 1 to 9999")
    return found


def _converted(values: pa.ChunkedArray, wanted: c.ColumnType) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    given, kind = values.type, arrow_type(wanted)
    if given == kind:
        return values
    if pa.types.is_integer(given) and isinstance(wanted, c.Numeric):
        # Straight to few digits Arrow refuses by type, whatever the values are.
        values = values.cast(pa.decimal128(38, wanted.scale))
    if isinstance(wanted, _FLOATS):
        return values.cast(kind, safe=False)  # the nearest number, as everywhere
    if isinstance(wanted, c.Timestamp | c.TimestampTZ):
        values = values.cast(pa.timestamp("us"))  # an instant gives its time in UTC
        return pc.assume_timezone(values, "UTC") if isinstance(wanted, c.TimestampTZ) else values
    return values.cast(kind)


def _within_years(values: pa.ChunkedArray, wanted: c.ColumnType) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    bounds: tuple[Any, Any] = (date.min, date.max)
    if not isinstance(wanted, c.Date):
        zone = timezone.utc if isinstance(wanted, c.TimestampTZ) else None
        bounds = (datetime.min.replace(tzinfo=zone), datetime.max.replace(tzinfo=zone))
    first, last = (pa.scalar(bound, values.type) for bound in bounds)
    outside = pc.or_(pc.less(values, first), pc.greater(values, last))
    return not pc.any(outside).as_py()


def _unfit(column: ColumnSpec, wanted: str) -> UnfitValue:
    return UnfitValue(
        f"A value of column '{column.name}' does not fit its type: {wanted}.",
        fix="declare a type that takes it, such as Text, or mend the frame",
    )
