"""DataFrames in this process: pandas, polars and Arrow become one Arrow table, in types all systems know; and back.

Values stay as they are. What has no exact form here (times of day, durations, nanoseconds that are not zero) is one
clear error that names the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from ematix_flow.backends.transport import MOST_DIGITS
from ematix_flow.declare import columns as c
from ematix_flow.errors import InvalidDeclaration, MissingDriver, UnfitValue, listed

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

FrameKind = Literal["pandas", "polars"]

_IN_MEMORY = frozenset(
    {
        ("pandas", "DataFrame"),
        ("polars", "DataFrame"),
        ("polars", "LazyFrame"),
        ("pyarrow", "Table"),
        ("pyarrow", "RecordBatch"),
        ("pyarrow", "RecordBatchReader"),
    }
)
_ON_SPARK = frozenset({("pyspark", "DataFrame")})


def is_in_memory(given: object) -> bool:
    """Whether this is a table in this process: pandas, polars (lazy ones too) or Arrow."""
    return not _kinds(given).isdisjoint(_IN_MEMORY)


def is_spark(given: object) -> bool:
    """Whether this is a Spark DataFrame, of a classic or of a Connect session."""
    return not _kinds(given).isdisjoint(_ON_SPARK)


def _kinds(given: object) -> set[tuple[str, str]]:
    """Package and name of every class of an object: asked without importing any of them."""
    return {(kind.__module__.split(".")[0], kind.__name__) for kind in type(given).__mro__}


# ── to Arrow ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_arrow(frame: Any) -> pa.Table:
    """A frame as an Arrow table of plain types: no categories, no views, times in microseconds and instants in UTC.

    NaN in a pandas frame is its word for NULL and becomes NULL; the index is not a column.

    Raises:
        InvalidDeclaration: (a ValueError) It has no columns, or names that are no text or occur twice.
        UnfitValue: (a ValueError) A column holds values that no column type can hold exactly.
    """
    import pyarrow as pa

    table = _taken(frame)
    names = table.column_names
    if not names:
        raise InvalidDeclaration("The frame has no columns.")
    require_apart(names)
    return pa.table([_plain_column(table.column(place), name) for place, name in enumerate(names)], names=names)


def require_apart(names: Sequence[str]) -> None:
    """Refuse a frame with two columns of one name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidDeclaration(f"The frame has more than one column called {listed(twice)}.", fix="rename them")


def _taken(frame: Any) -> pa.Table:
    import pyarrow as pa

    package = next(package for package, _ in _kinds(frame) & _IN_MEMORY)
    if package == "pandas":
        return _from_pandas(frame)
    if package == "polars":
        return _from_polars(frame)
    if isinstance(frame, pa.RecordBatchReader):
        return frame.read_all()
    return pa.Table.from_batches([frame]) if isinstance(frame, pa.RecordBatch) else frame


def _from_pandas(frame: pd.DataFrame) -> pa.Table:
    import pyarrow as pa

    odd = [name for name in frame.columns if not isinstance(name, str)]
    if odd:
        raise InvalidDeclaration(
            f"The frame has column names that are no text, such as {odd[0]!r}.",
            fix="df.columns = [str(name) for name in df.columns]",
        )
    require_apart(list(frame.columns))
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, UnicodeError, OverflowError, TypeError) as exc:  # their words hold values
        raise _unreadable(frame) from exc
    for place, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and frame.dtypes.iloc[place].kind == "O" and field.type.scale >= 0:
            # Arrow counts the digits that happen to be there; what comes later may have more.
            widest = pa.decimal128(MOST_DIGITS, field.type.scale)
            table = table.set_column(place, field.name, _cast(table.column(place), widest, field.name))
    return table


def _unreadable(frame: pd.DataFrame) -> UnfitValue:
    """The error that names the column of a frame that cannot be taken, and what kinds of things are in it."""
    import pyarrow as pa

    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place]
        try:
            pa.Table.from_pandas(column.to_frame(), preserve_index=False)
        except (pa.ArrowException, UnicodeError, OverflowError, TypeError):
            kinds = sorted({type(value).__name__ for value in column.dropna()})
            return UnfitValue(
                f"Column '{name}' of the frame cannot be taken as one type; it holds {listed(kinds)}.",
                fix=f"make it one type first, such as df['{name}'].astype(str)",
            )
    return UnfitValue("The frame cannot be taken as a table.", fix="look at its columns' types: df.dtypes")


def _from_polars(frame: Any) -> pa.Table:
    import polars as pl

    if isinstance(frame, pl.LazyFrame):
        frame = frame.collect()
    for name, kind in frame.schema.items():
        if kind == pl.Object:
            raise _no_type(name, "Python objects")
    return frame.to_arrow()


def _plain_column(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name != "arrow.json":
            raise _no_type(name, kind.extension_name)
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=kind.storage_type)
        return _plain_column(column, name)
    if pa.types.is_dictionary(kind):
        return _plain_column(column.cast(kind.value_type), name)
    wanted = _plain_type(kind)
    if wanted is None:
        raise _no_type(name, str(kind))
    return column if wanted == kind else _cast(column, wanted, name)


def _cast(column: pa.ChunkedArray, wanted: pa.DataType, name: str) -> pa.ChunkedArray:
    import pyarrow as pa

    try:
        return column.cast(wanted)
    except pa.ArrowNotImplementedError as exc:
        raise _no_type(name, str(column.type)) from exc
    except pa.ArrowException as exc:  # its words hold the value
        if pa.types.is_timestamp(wanted):
            raise UnfitValue(
                f"Column '{name}' of the frame holds times finer than a microsecond, or beyond the year 9999.",
                fix="round them first: .dt.floor('us') in pandas, .dt.truncate('1us') in polars",
            ) from exc
        raise UnfitValue(
            f"Column '{name}' of the frame holds numbers of more than {MOST_DIGITS} digits.", fix="turn them into text"
        ) from exc


def _no_type(name: str, kind: str) -> UnfitValue:
    return UnfitValue(
        f"Column '{name}' of the frame holds {kind}, for which there is no column type.", fix="turn it into text first"
    )


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in which a column travels; None when there is none."""
    import pyarrow as pa

    ask = pa.types
    if ask.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if ask.is_decimal(kind):
        return None if kind.scale < 0 else pa.decimal128(min(kind.precision, MOST_DIGITS), kind.scale)
    if ask.is_string(kind) or ask.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if ask.is_binary(kind) or ask.is_large_binary(kind) or ask.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if ask.is_list(kind) or ask.is_large_list(kind) or ask.is_fixed_size_list(kind):
        inner = _plain_type(kind.value_type)
        return None if inner is None else pa.list_(inner)
    if ask.is_map(kind):
        key, item = _plain_type(kind.key_type), _plain_type(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if ask.is_struct(kind):
        inside = [(field.name, _plain_type(field.type)) for field in kind]
        return None if any(found is None for _, found in inside) else pa.struct(inside)
    renamed = {
        pa.int8(): pa.int16(),
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
    }
    same = (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.date32(), pa.null())
    return kind if kind in same else renamed.get(kind)


def column_type_of(kind: pa.DataType) -> c.ColumnType:
    """The column type of a plain Arrow type; nested values are JSON, and a column without any value is text."""
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        return c.Numeric(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return c.TimestampTZ() if kind.tz else c.Timestamp()
    if pa.types.is_nested(kind):
        return c.JSON()
    known: dict[pa.DataType, c.ColumnType] = {
        pa.int16(): c.SmallInt(),
        pa.int32(): c.Integer(),
        pa.int64(): c.BigInt(),
        pa.float32(): c.Float(),
        pa.float64(): c.Double(),
        pa.bool_(): c.Boolean(),
        pa.date32(): c.Date(),
        pa.binary(): c.Bytes(),
    }
    return known.get(kind, c.Text())


# ── from Arrow ───────────────────────────────────────────────────────────────────────────────────────────────────────


def chosen_kind(prefer: str) -> FrameKind:
    """Which frames to make: `auto` is polars when it is installed, else pandas.

    Raises:
        InvalidDeclaration: (a ValueError) It is neither of the three words.
        MissingDriver: (an ImportError) What was asked for is not installed.
    """
    from importlib.util import find_spec

    if prefer not in ("auto", "polars", "pandas"):
        raise InvalidDeclaration(f"prefer must be 'auto', 'polars' or 'pandas', not {prefer!r}.")
    wanted: Sequence[FrameKind] = ("polars", "pandas") if prefer == "auto" else (prefer,)  # type: ignore[assignment]
    if find_spec("pyarrow") is not None:
        for kind in wanted:
            if find_spec(kind) is not None:
                return kind
    missing = "pyarrow" if find_spec("pyarrow") is None else wanted[-1]
    raise MissingDriver(f"Reading a DataFrame needs '{missing}'.", fix='pip install "ematix-flow[df]"')


def from_arrow(table: pa.Table, kind: FrameKind) -> pd.DataFrame | pl.DataFrame:
    """The same rows as a pandas or polars DataFrame."""
    if kind == "pandas":
        return _to_pandas(table)
    import polars as pl

    return pl.from_arrow(table)


def _to_pandas(table: pa.Table) -> pd.DataFrame:
    """Whole numbers and booleans with NULLs come in pandas' nullable types: as floats they would lose digits."""
    import pandas as pd
    import pyarrow as pa

    nullable = {
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    frame = table.to_pandas()
    for name in table.column_names:
        column = table.column(name)
        if column.null_count and column.type in nullable:
            frame[name] = column.to_pandas(types_mapper=nullable.get)
    return frame
