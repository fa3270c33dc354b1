"""What the values of a change mean: Debezium's logical types, from the schema that comes with a message, or by rule.

Images arrive as texts, so that no digit of a number is lost on the way. Here a text becomes a typed value: by the
logical type of its field where the feed says it, and else by what the target's column asks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, functions as F, types as t

from ematix_flow.declare import columns as c
from ematix_flow.spark.fitting import fitted_or_null

TEXTS = "map<string, string>"
"""An image, or a key: texts by name."""

_DEBEZIUM, _CONNECT = "io.debezium.", "org.apache.kafka.connect.data."
_PLAIN: dict[str, c.ColumnType] = {
    "int8": c.SmallInt(),
    "int16": c.SmallInt(),
    "int32": c.Integer(),
    "int64": c.BigInt(),
    "float": c.Float(),
    "float32": c.Float(),
    "double": c.Double(),
    "float64": c.Double(),
    "boolean": c.Boolean(),
    "string": c.Text(),
    "bytes": c.Bytes(),
    "struct": c.JSON(),
    "array": c.JSON(),
    "map": c.JSON(),
}
_NAMED: dict[str, c.ColumnType] = {
    "time.Date": c.Date(),
    "time.Timestamp": c.Timestamp(),
    "time.MicroTimestamp": c.Timestamp(),
    "time.NanoTimestamp": c.Timestamp(),
    "time.IsoTimestamp": c.TimestampTZ(),
    "time.ZonedTimestamp": c.TimestampTZ(),
    "time.IsoDate": c.Date(),
    "time.Time": c.Text(),
    "time.MicroTime": c.Text(),
    "time.NanoTime": c.Text(),
    "data.VariableScaleDecimal": c.Text(),
    "data.Uuid": c.UUID(),
    "data.Json": c.JSON(),
    "Date": c.Date(),
    "Timestamp": c.Timestamp(),
    "Time": c.Text(),
}
_WHOLE = r"^-?[0-9]{1,19}$"
_MOST_DIGITS = 38
MILLIS_BELOW, MICROS_BELOW = 10**14, 10**17
"""Below which size a whole number counts milliseconds, and below which microseconds."""


@dataclass(frozen=True)
class Field:
    """One field of an image, as the feed's own schema describes it.

    Attributes:
        kind: Connect's type, such as `int32`.
        logical: The name of its logical type without the package; empty for none.
    """

    name: str
    kind: str
    logical: str = ""
    scale: int | None = None
    precision: int | None = None

    @property
    def column_type(self) -> c.ColumnType:
        """The type of a column that holds it."""
        if self.logical == "Decimal" and self.scale is not None:
            precision = min(self.precision or _MOST_DIGITS, _MOST_DIGITS)
            return c.Numeric(max(precision, self.scale), self.scale) if self.scale <= _MOST_DIGITS else c.Text()
        return _NAMED.get(self.logical) or _PLAIN.get(self.kind, c.Text())

    def to_dict(self) -> dict[str, Any]:
        """The field as it travels with a frame."""
        return {key: value for key, value in vars(self).items() if value not in (None, "")}


def fields_of_block(text: str, after: str = "after") -> tuple[Field, ...]:
    """The fields of the image in the schema that Connect's JSON converter writes beside a payload."""
    block = json.loads(text)
    inner = {part.get("field"): part for part in block.get("fields") or ()}
    image = inner.get(after) or inner.get("before") or block
    return tuple(_connect_field(part) for part in image.get("fields") or () if part.get("field"))


def _connect_field(part: Mapping[str, Any]) -> Field:
    parameters = part.get("parameters") or {}
    return Field(
        part["field"],
        str(part.get("type", "string")),
        _short(part.get("name")),
        _number(parameters.get("scale")),
        _number(parameters.get("connect.decimal.precision")),
    )


def fields_of_avro(schemas: Iterable[Mapping[str, Any]], after: str = "after") -> tuple[Field, ...]:
    """The fields of images in Avro schemas that Connect wrote, where a field's name says more than its Avro type."""
    found: dict[str, Field] = {}
    for schema in schemas:
        records = _named_records(schema)
        image = _record_of(schema, after, records) or _record_of(schema, "before", records)
        for part in (image or {}).get("fields", ()):
            kind = next((one for one in _branches(part["type"]) if one != "null"), "null")
            if isinstance(kind, str) and kind in records:
                kind = records[kind]
            if isinstance(kind, dict) and str(kind.get("connect.name", "")).startswith(_DEBEZIUM):
                plain = {"int": "int32", "long": "int64", "record": "struct"}.get(kind["type"], str(kind["type"]))
                found[part["name"]] = Field(part["name"], plain, _short(kind["connect.name"]))
    return tuple(found.values())


def _named_records(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    pending = [schema]
    while pending:
        one = pending.pop()
        if isinstance(one, list):
            pending += one
        elif isinstance(one, dict):
            if one.get("name") and one.get("type") == "record":
                found[one["name"]] = one
                found[f"{one.get('namespace', '')}.{one['name']}".lstrip(".")] = one
            pending += [one.get("type"), one.get("items"), one.get("values"), *one.get("fields", ())]
    return found


def _record_of(schema: Mapping[str, Any], name: str, records: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for part in schema.get("fields", ()):
        if part["name"] == name:
            for kind in _branches(part["type"]):
                found = records.get(kind) if isinstance(kind, str) else kind
                if isinstance(found, dict) and found.get("type") == "record":
                    return found
    return None


def _branches(kind: Any) -> Sequence[Any]:
    return kind if isinstance(kind, list) else [kind]


def _short(name: object) -> str:
    return str(name or "").removeprefix(_DEBEZIUM).removeprefix(_CONNECT)


def _number(text: object) -> int | None:
    return int(str(text)) if str(text).lstrip("-").isdigit() else None


def text_of(column: Column, kind: t.DataType) -> Column:
    """A typed value as the text that JSON would have of it: bytes in base64, times in ISO, what is nested as JSON."""
    if isinstance(kind, t.BinaryType):
        return F.base64(column)
    if isinstance(kind, t.TimestampType):
        return F.date_format(column, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
    if isinstance(kind, t.StructType | t.ArrayType | t.MapType):
        return F.to_json(column)
    return column.cast("string")


def texts_of(column: Column, kind: t.DataType | None, names: Mapping[str, str] | None = None) -> Column:
    """A struct as texts by name, some of them renamed; NULL for what is none."""
    if not isinstance(kind, t.StructType) or not kind.fields:
        return F.lit(None).cast(TEXTS)
    known = names or {}
    given = F.array(*[F.lit(known.get(name, name)) for name in kind.names])
    texts = F.array(*[text_of(column[field.name], field.dataType) for field in kind.fields])
    return F.when(column.isNotNull(), F.map_from_arrays(given, texts))


# ── one value ────────────────────────────────────────────────────────────────────────────────────────────────────────


def value_of(text: Column, field: Field | None, to: c.ColumnType, name: str, *, counts_seconds: bool) -> Column:
    """A text of an image as a value of a column type; NULL also when it is no such value.

    Args:
        field: What the feed says of it; None when it says nothing.
        counts_seconds: Whether a small whole number is seconds, where nothing is said of a time.
    """
    value, kind = _meant(text, field) if field is not None else (text, t.StringType())
    if isinstance(kind, t.StringType):
        if isinstance(to, c.Bytes):
            return F.try_to_binary(value, F.lit("base64"))
        if isinstance(to, c.Date):
            days = _days(value)
            value, kind = F.coalesce(days, F.when(days.isNull(), value.try_cast("date"))), t.DateType()
        elif isinstance(to, c.Timestamp | c.TimestampTZ):
            wanted = "timestamp_ntz" if isinstance(to, c.Timestamp) else "timestamp"
            counted = _moment(value, counts_seconds).cast(wanted)
            value = F.when(value.rlike(_WHOLE), counted).otherwise(value.try_cast(wanted))
            kind = t.TimestampNTZType() if isinstance(to, c.Timestamp) else t.TimestampType()
    elif isinstance(kind, t.BinaryType) and not isinstance(to, c.Bytes):
        value, kind = F.base64(value), t.StringType()
    return fitted_or_null(value, kind, to, name)


def _meant(text: Column, field: Field) -> tuple[Column, t.DataType]:
    """The value that a field's logical type makes of its text, and its type; the text itself where it is one."""
    whole = text.try_cast("bigint")
    logical = field.logical
    if logical in ("time.Date", "Date") and field.kind == "int32":
        return _days(text), t.DateType()
    if logical in ("time.Timestamp", "Timestamp") and field.kind == "int64":
        return F.timestamp_millis(whole).cast("timestamp_ntz"), t.TimestampNTZType()
    if logical == "time.MicroTimestamp":
        return F.timestamp_micros(whole).cast("timestamp_ntz"), t.TimestampNTZType()
    if logical == "time.NanoTimestamp":
        return _nanos(whole).cast("timestamp_ntz"), t.TimestampNTZType()
    if logical in ("time.Time", "Time", "time.MicroTime", "time.NanoTime") and field.kind in ("int32", "int64"):
        micros = {"time.MicroTime": whole, "time.NanoTime": _thousandth(whole)}.get(logical, whole * 1000)
        return F.date_format(F.timestamp_micros(micros.cast("bigint")), "HH:mm:ss.SSSSSS"), t.StringType()
    if logical == "Decimal" and field.kind == "bytes" and field.scale is not None:
        return decimal_text(F.try_to_binary(text, F.lit("base64")), F.lit(field.scale)), t.StringType()
    if logical == "data.VariableScaleDecimal":
        parts = F.from_json(text, "struct<scale: int, value: string>")
        return decimal_text(F.try_to_binary(parts["value"], F.lit("base64")), parts["scale"]), t.StringType()
    if field.kind == "bytes":
        return F.try_to_binary(text, F.lit("base64")), t.BinaryType()
    return text, t.StringType()


def decimal_text(unscaled: Column, scale: Column) -> Column:
    """The text of a decimal whose digits are a whole number in two's complement; NULL beyond what 16 bytes hold."""
    digits = F.hex(unscaled)
    is_negative = F.conv(F.substring(digits, 1, 1), 16, 10).cast("int") >= 8
    wide = F.lpad(digits, 32, "0")
    wide = F.when(is_negative, F.concat(F.repeat(F.lit("F"), F.lit(32) - F.length(digits)), digits)).otherwise(wide)
    high = F.conv(F.substring(wide, 1, 16), 16, -10).cast("decimal(20,0)")
    low = F.conv(F.substring(wide, 17, 16), 16, 10).cast("decimal(21,0)")
    unit = F.lit(Decimal(2**64)).cast("decimal(21,0)")
    # Of negative numbers the upper half is rounded towards zero: the smallest would not fit before the rest is added.
    high = F.when(is_negative, high + 1).otherwise(high).cast("decimal(20,0)")
    low = F.when(is_negative, low - unit).otherwise(low)
    whole = F.when(
        F.length(digits).between(2, 32), F.try_add(F.try_multiply(high, unit), low).try_cast("decimal(38,0)")
    )
    # Spark's `abs` rounds to 34 digits.
    text = F.lpad(F.regexp_replace(whole.cast("string"), "^-", ""), 39, "0")
    before = F.regexp_replace(F.substr(text, F.lit(1), F.lit(39) - scale), "^0+(?=.)", "")
    behind = F.when(scale > 0, F.concat(F.lit("."), F.substr(text, F.lit(40) - scale, scale))).otherwise("")
    return F.when(scale.between(0, 38), F.concat(F.when(whole < 0, "-").otherwise(""), before, behind))


def _days(text: Column) -> Column:
    """Days since 1970 as a day; NULL for what is no such number."""
    number = text.try_cast("int")
    return F.when(text.rlike(_WHOLE) & number.between(-719162, 2932896), F.date_add(F.lit("1970-01-01"), number))


def _moment(text: Column, counts_seconds: bool) -> Column:
    """A whole number as an instant: by its size in milliseconds, microseconds or nanoseconds."""
    whole = text.try_cast("bigint")
    size = F.abs(whole)
    found = F.when(size < MILLIS_BELOW, F.timestamp_millis(whole)).when(size < MICROS_BELOW, F.timestamp_micros(whole))
    if counts_seconds:
        found = F.when(size < 10**11, F.timestamp_seconds(whole)).otherwise(found.otherwise(_nanos(whole)))
        return found
    return found.otherwise(_nanos(whole))


def _nanos(whole: Column) -> Column:
    return F.timestamp_micros(_thousandth(whole))


def _thousandth(whole: Column) -> Column:
    """Divided exactly: as doubles, nanoseconds of today would be off by some."""
    return F.floor(whole.cast("decimal(20,0)") / F.lit(1000).cast("decimal(4,0)")).cast("bigint")
