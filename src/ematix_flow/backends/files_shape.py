"""The columns of a table of files: what Parquet and ORC footers say, what a manifest remembers, and both together.

A schema here is Spark's own form of one, as JSON: `{"type": "struct", "fields": [{"name", "type", …}]}`. It is what a
manifest keeps, so that a table is described without opening its files, and read without asking each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from ematix_flow.backends.files_damage import DamagedFile, footer
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
from ematix_flow.errors import IncompatibleSchema, InvalidSource

if TYPE_CHECKING:
    import pyarrow as pa

Schema = Mapping[str, Any]

_COLUMN_TYPES: dict[str, ColumnType] = {
    "boolean": Boolean(),
    "byte": SmallInt(),
    "short": SmallInt(),
    "integer": Integer(),
    "long": BigInt(),
    "float": Float(),
    "double": Double(),
    "string": Text(),
    "date": Date(),
    "timestamp": TimestampTZ(),
    "timestamp_ntz": Timestamp(),
    "binary": Bytes(),
}
_WIDTHS = (("byte", "short", "integer", "long"), ("float", "double"))


def described(table: TableRef, schema: Schema, *, has_rows: bool) -> TableShape:
    """The shape of a table with this schema; a column that has no counterpart here has no type."""
    columns = tuple(
        ColumnShape(field["name"], _column_type(field["type"]), _native(field["type"]), nullable=True)
        for field in schema["fields"]
    )
    return TableShape(ref=table, columns=columns, has_rows=has_rows)


def footer_schema(table: str, file_format: FileFormat, files: Iterable[tuple[str, IO[bytes]]]) -> tuple[Schema, bool]:
    """The schema of files that are there, the newest last, read from their footers; and whether they hold any row.

    Each file is given as its name for people and opened for reading; it is closed here.
    """
    schema: Schema = {"type": "struct", "fields": []}
    has_rows = False
    for name, file in files:
        with file:
            arrow, rows = _footer(table, file_format, name, file)
        has_rows = has_rows or rows > 0
        fields = [_field(f.name, _arrow_type(f.type, file_format)) for f in arrow]
        schema = joined(schema, {"type": "struct", "fields": fields}, table)
    return schema, has_rows


@dataclass(frozen=True)
class Disagreement:
    """A column that two files have in two types that no reader brings together; each with the file it is from."""

    column: str
    one: tuple[str, str]
    other: tuple[str, str]

    def __str__(self) -> str:
        (kind, file), (another, elsewhere) = self.one, self.other
        return f"column '{self.column}' is {kind} in '{file}' and {another} in '{elsewhere}'"


def disagreement(file_format: FileFormat, files: Iterable[tuple[str, IO[bytes]]]) -> Disagreement | None:
    """The first column that files have in two types, by their footers; None when only Spark sees a difference."""
    known: dict[str, tuple[str, str]] = {}
    for name, file in files:
        with file:
            arrow, _ = _footer(name, file_format, name, file)
        for field in arrow:
            here = (_arrow_type(field.type, file_format), name)
            there = known.setdefault(field.name, here)
            if there[0] != here[0]:
                return Disagreement(field.name, there, here)
    return None


def readable(schema: Schema | None) -> bool:
    """Whether Spark can be given a schema: every type in it is one of its own."""
    return schema is not None and all(_is_known(field["type"]) for field in schema["fields"])


def joined(older: Schema | None, newer: Schema, table: str) -> Schema:
    """The schema of old and new files together: the newer columns, then those that only older files have.

    Where they disagree about a number's width, the wider one counts.

    Raises:
        IncompatibleSchema: a column has two types that no reader can bring together.
    """
    known = {field["name"]: field for field in older["fields"]} if older is not None else {}
    fields = []
    for field in newer["fields"]:
        before = known.pop(field["name"], field)
        wider = _wider(before["type"], field["type"])
        if wider is None:
            raise IncompatibleSchema(
                f"{table}: column '{field['name']}' is {_native(before['type'])} in the files that are there, and "
                f"{_native(field['type'])} in the new ones.",
                fix="change the declaration, or write to another table",
            )
        fields.append({**field, "type": wider})
    return {**newer, "fields": [*fields, *known.values()]}


def _wider(one: Any, other: Any) -> Any:
    """The type that holds the values of both; None when there is none."""
    if one == other:
        return one
    for widths in _WIDTHS:
        if one in widths and other in widths:
            return max(one, other, key=widths.index)
    first, second = _column_type(one), _column_type(other)
    if isinstance(first, Numeric) and isinstance(second, Numeric):
        scale = max(first.scale, second.scale)
        whole = max(first.precision - first.scale, second.precision - second.scale)
        return f"decimal({whole + scale},{scale})" if whole + scale <= 38 else None
    return None


def _column_type(spark: Any) -> ColumnType | None:
    if not isinstance(spark, str):
        return None
    if found := re.fullmatch(r"decimal\((\d+),\s*(-?\d+)\)", spark):
        return Numeric(int(found[1]), int(found[2])) if int(found[2]) >= 0 else None
    return _COLUMN_TYPES.get(spark)


def _native(spark: Any) -> str:
    return spark if isinstance(spark, str) else str(spark["type"])


def _is_known(spark: Any) -> bool:
    return not isinstance(spark, str) or _column_type(spark) is not None


def _field(name: str, spark: str) -> dict[str, Any]:
    return {"name": name, "type": spark, "nullable": True, "metadata": {}}


def _footer(table: str, file_format: FileFormat, name: str, opened: IO[bytes]) -> tuple[pa.Schema, int]:
    try:
        return footer(file_format, opened)
    except DamagedFile as exc:
        raise InvalidSource(
            f"A file of '{table}' is not {file_format}, or is damaged: {exc}.", where=name, fix="remove or mend it"
        ) from None


def _arrow_type(arrow: pa.DataType, file_format: FileFormat) -> str:
    """Spark's word for a type in a footer, or Arrow's own where Spark might take it for something else."""
    import pyarrow.types as at

    if at.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    # ORC has one type for instants and wall-clock times; only Spark knows which of them a column holds.
    if at.is_timestamp(arrow) and arrow.unit != "ns" and file_format == "parquet":
        return "timestamp" if arrow.tz else "timestamp_ntz"
    simple = (
        (at.is_boolean(arrow), "boolean"),
        (at.is_int8(arrow), "byte"),
        (at.is_int16(arrow), "short"),
        (at.is_int32(arrow), "integer"),
        (at.is_int64(arrow), "long"),
        (at.is_float32(arrow), "float"),
        (at.is_float64(arrow), "double"),
        (at.is_string(arrow) or at.is_large_string(arrow), "string"),
        (at.is_date(arrow), "date"),
        (at.is_binary(arrow) or at.is_large_binary(arrow), "binary"),
    )
    return next((spark for fits, spark in simple if fits), f"<{arrow}>")
