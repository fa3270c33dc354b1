"""Messages as Arrow rows and back: JSON with a schema that only ever widens, or the bytes as they are.

A `RowSchema` is plain data that can be written down as JSON, so that it travels to workers and can be kept beside a
checkpoint. Columns never vanish and keep their places; a type that no longer fits becomes a wider one, text in the end.
No value is changed on the way: what a column cannot hold exactly is kept as JSON text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ematix_flow.errors import FlowError, InvalidConfig, UnfitValue, counted

if TYPE_CHECKING:
    import pyarrow as pa

PAYLOAD_COLUMN = "payload"
"""The one column of `raw_bytes`."""

# A word, {"list": type} or {"struct": {name: type}}. "integer" has at most 53 bits, so that a double holds it too.
Kind = str | Mapping[str, Any]
_EXACT_IN_DOUBLE = 2**53
_LONGEST = 2**63
_EMPTY: Kind = {"struct": {}}


# ── what a schema is ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RowSchema:
    """The columns that the messages seen so far have, in the order of their first appearance."""

    columns: Mapping[str, Kind] = field(default_factory=dict)

    def widened(self, documents: Iterable[Mapping[str, Any]]) -> RowSchema:
        """The same, wide enough for these documents too; this very object when it is already."""
        columns = dict(self.columns)
        changed = False
        for document in documents:
            for name, value in document.items():
                known = columns.get(name)
                kind = _merged(known, _kind_of(value)) if known is not None else _kind_of(value)
                if kind != known:
                    columns[name] = kind
                    changed = True
        return RowSchema(columns) if changed else self

    def to_json(self) -> str:
        """As text, to be kept."""
        return json.dumps({"columns": self.columns}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> RowSchema:
        """What `to_json` wrote.

        Raises:
            InvalidConfig: the text is something else.
        """
        try:
            columns = json.loads(text)["columns"]
            for kind in columns.values():
                _check(kind)
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise InvalidConfig(
                "The schema of a stream that was kept cannot be read.", fix="remove it; it is found again"
            ) from exc
        return cls(columns)

    def to_arrow(self) -> pa.Schema:
        """The schema of the batches."""
        import pyarrow as pa

        return pa.schema([pa.field(name, _arrow_type(kind)) for name, kind in self.columns.items()])


def _kind_of(value: object) -> Kind:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        size = abs(value)
        return "integer" if size <= _EXACT_IN_DOUBLE else "long" if -_LONGEST <= value < _LONGEST else "text"
    if isinstance(value, float):
        return "double"
    if isinstance(value, list):
        inside: Kind = "null"
        for item in value:
            inside = _merged(inside, _kind_of(item))
        return {"list": inside}
    if isinstance(value, Mapping):
        return {"struct": {name: _kind_of(item) for name, item in value.items()}}
    return "text"


def _merged(one: Kind, other: Kind) -> Kind:
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    if isinstance(one, str) and isinstance(other, str):
        numbers = {one, other}
        if numbers == {"integer", "long"}:
            return "long"
        return "double" if numbers == {"integer", "double"} else "text"
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if "list" in one and "list" in other:
            return {"list": _merged(one["list"], other["list"])}
        if "struct" in one and "struct" in other:
            fields = dict(one["struct"])
            for name, kind in other["struct"].items():
                fields[name] = _merged(fields[name], kind) if name in fields else kind
            return {"struct": fields}
    return "text"


def _arrow_type(kind: Kind) -> Any:
    import pyarrow as pa

    if isinstance(kind, Mapping):
        if "list" in kind:
            return pa.list_(_arrow_type(kind["list"]))
        if not kind["struct"]:  # Arrow has structs without fields, most systems that rows go to do not
            return pa.string()
        return pa.struct([pa.field(name, _arrow_type(inside)) for name, inside in kind["struct"].items()])
    words = {"null": pa.null(), "boolean": pa.bool_(), "double": pa.float64(), "text": pa.string()}
    return words.get(kind, pa.int64())


def _check(kind: object) -> None:
    if isinstance(kind, Mapping):
        for inside in kind["struct"].values() if "struct" in kind else [kind["list"]]:
            _check(inside)
    elif kind not in ("null", "boolean", "integer", "long", "double", "text"):
        raise ValueError(kind)


# ── messages to rows ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Refused:
    """A message that is no row: its place among those given, and why."""

    index: int
    reason: str


def parsed_json(bodies: Sequence[bytes]) -> tuple[list[dict[str, Any] | None], list[Refused]]:
    """Each message as a document, or None where it is none; and why those are not."""
    documents: list[dict[str, Any] | None] = []
    refused: list[Refused] = []
    for index, body in enumerate(bodies):
        try:
            document = json.loads(body, parse_constant=_refuse_constant)
            if not isinstance(document, dict):
                raise ValueError("it is JSON, but not an object")
            if b"\\u" in body or b"e" in body or b"E" in body:  # what may hide half a character, or an endless number
                json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as exc:
            documents.append(None)
            refused.append(Refused(index, _reason(exc)))
        else:
            documents.append(document)
    return documents, refused


def json_batch(documents: Sequence[Mapping[str, Any]], schema: RowSchema) -> pa.RecordBatch:
    """Documents as a batch of a schema that is wide enough for them; what they lack is NULL."""
    import pyarrow as pa

    arrow = schema.to_arrow()
    arrays = [
        pa.array([_fitted(document.get(name), kind) for document in documents], type=arrow.field(name).type)
        for name, kind in schema.columns.items()
    ]
    if not arrays:  # messages without any member are rows nevertheless
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(documents), type=pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


def raw_batch(bodies: Sequence[bytes]) -> pa.RecordBatch:
    """The bytes of messages as the one column `payload`."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(bodies, type=pa.binary())], names=[PAYLOAD_COLUMN])


def not_rows(refused: Sequence[Refused], total: int, place: str) -> FlowError:
    """The error for messages that are no rows, without a word of what is in them."""
    first = refused[0]
    return UnfitValue(
        f"{counted(len(refused), 'message')} of {total:,} from {place} cannot be read as JSON objects; "
        f"the first is number {first.index + 1}: {first.reason}.",
        fix="payload_format='raw_bytes' gives the bytes as they are; or take the messages out of the queue",
    )


def _fitted(value: Any, kind: Kind) -> Any:
    """A value as its column holds it."""
    if value is None:
        return None
    if kind == "text" or kind == _EMPTY:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if kind == "double":
        return float(value)
    if isinstance(kind, Mapping):
        if "list" in kind:
            return [_fitted(item, kind["list"]) for item in value]
        return {name: _fitted(value.get(name), inside) for name, inside in kind["struct"].items()}
    return value


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"it has the number {word}, which JSON does not know")


def _reason(exc: Exception) -> str:
    if isinstance(exc, json.JSONDecodeError):
        return f"it is not JSON ({exc.msg.lower()}, byte {exc.pos})"
    if isinstance(exc, UnicodeError):
        return "its text is not UTF-8"
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    return "it has a number that is too large" if "range" in str(exc) or "digits" in str(exc) else str(exc)


# ── rows to messages ─────────────────────────────────────────────────────────────────────────────────────────────────


def to_messages(batch: pa.RecordBatch, payload: Literal["json", "raw_bytes"]) -> Iterator[bytes]:
    """One message per row.

    JSON: every column, NULL as null, decimals with all digits, bytes as base64, instants in UTC to the microsecond.

    Raises:
        UnfitValue: a column cannot be written so, or `raw_bytes` finds something else than one column of bytes.
    """
    if payload == "raw_bytes":
        yield from _raw_messages(batch)
        return
    columns = []
    for field_, column in zip(batch.schema, batch.columns, strict=True):
        name = json.dumps(field_.name, ensure_ascii=False)
        columns.append([f"{name}:{text}" for text in _texts(column, field_.name)])
    if not columns:
        yield from [b"{}"] * batch.num_rows
    for members in zip(*columns, strict=True):
        yield ("{" + ",".join(members) + "}").encode()


def _raw_messages(batch: pa.RecordBatch) -> Iterator[bytes]:
    import pyarrow as pa

    kinds = [field_.type for field_ in batch.schema]
    if len(kinds) != 1 or not (pa.types.is_binary(kinds[0]) or pa.types.is_large_binary(kinds[0])):
        raise UnfitValue(
            f"payload_format='raw_bytes' writes one column of bytes; the rows have {counted(len(kinds), 'column')}"
            f"{'' if len(kinds) != 1 else f' of type {kinds[0]}'}.",
            fix="select that column alone, or use payload_format='json'",
        )
    for value in batch.column(0).to_pylist():
        yield value if value is not None else b""


def _texts(column: Any, name: str) -> list[str]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = column.cast(pa.timestamp("us", tz=column.type.tz))
        write = _writer(column.type, name)
        return ["null" if value is None else write(value) for value in column.to_pylist()]
    except (pa.ArrowInvalid, OverflowError) as exc:
        raise UnfitValue(
            f"Column '{name}' ({column.type}) holds a time that messages cannot have.",
            fix="times lie in the years 1 to 9999 and go to the microsecond",
        ) from exc


def _writer(kind: Any, name: str) -> Callable[[Any], str]:
    """How a value of an Arrow type is written; NULL is not given to it."""
    import base64

    import pyarrow as pa

    t = pa.types
    if t.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if t.is_integer(kind):
        return str
    if t.is_floating(kind):
        return lambda value: _finite(value, name)
    if t.is_decimal(kind):
        return lambda value: format(value, "f")
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return lambda value: json.dumps(value, ensure_ascii=False)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind):
        return lambda value: f'"{base64.b64encode(value).decode()}"'
    if t.is_timestamp(kind):
        return _instant if kind.tz else _wall_clock
    if t.is_date(kind) or t.is_time(kind):
        return lambda value: f'"{value.isoformat()}"'
    if t.is_null(kind):
        return lambda value: "null"
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        inside = _writer(kind.value_type, name)
        return lambda value: f"[{','.join('null' if item is None else inside(item) for item in value)}]"
    if t.is_struct(kind):
        inner = {kind.field(i).name: _writer(kind.field(i).type, name) for i in range(kind.num_fields)}
        return lambda value: _object((key, value[key], write) for key, write in inner.items())
    if t.is_map(kind) and t.is_string(kind.key_type):
        of = _writer(kind.item_type, name)
        return lambda value: _object((key, item, of) for key, item in value)
    raise UnfitValue(
        f"Column '{name}' has the type {kind}, which JSON has no form for.", fix="cast it to text or a number"
    )


def _object(members: Iterable[tuple[str, Any, Callable[[Any], str]]]) -> str:
    written = (
        f"{json.dumps(key, ensure_ascii=False)}:{'null' if value is None else write(value)}"
        for key, value, write in members
    )
    return "{" + ",".join(written) + "}"


def _finite(value: float, name: str) -> str:
    if not math.isfinite(value):
        raise UnfitValue(
            f"Column '{name}' holds NaN or Infinity, which JSON has no number for.",
            fix="filter such rows, or make them NULL",
        )
    return repr(value)


def _instant(value: Any) -> str:
    from datetime import timezone

    return f'"{value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds")}Z"'


def _wall_clock(value: Any) -> str:
    return f'"{value.isoformat(timespec="microseconds")}"'
