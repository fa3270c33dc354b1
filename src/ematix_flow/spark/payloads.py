"""Messages become rows: bytes are decoded into columns, and what cannot be decoded says why.

A decoded frame has the payload's columns, the hidden ones of its broker (`contracts/streams.py`), the bytes themselves
in `RAW`, and in `BAD` the reason why a message is none; NULL for a good one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, functions as F, types as t

from ematix_flow.backends.transport import quoted
from ematix_flow.contracts.streams import HIDDEN_COLUMNS, VALUE
from ematix_flow.errors import InvalidDeclaration, UnsupportedBackend, closest, listed
from ematix_flow.spark.json_schema import apart, doubles, has_doubled_fields, has_unknown_fields, learned

RAW, BAD = "__raw", "__bad"
MESSAGE = "__message"
"""The message itself, for those who must keep it: passed on as it is where a batch carries it (`dead_letters.py`)."""

SAMPLE = 1024
FORMATS = ("json", "raw_bytes", "avro", "protobuf")
PAYLOAD = "payload"
"""The one column of messages that are taken as bytes."""

UNKNOWN = "__unknown"
"""Whether a message has more than is known of its kind."""

_PARSED, _CORRUPT = "__parsed", "__corrupt"
_EMPTY = "an object without fields, and no field is known yet"
_DOUBLED = "the name of a field differs only in its case from that of another, and both cannot be columns"


@dataclass(frozen=True)
class Facts:
    """What is known of a decoded batch: its messages, how many are bad, and whether any has fields not known yet."""

    rows: int
    bad: int
    is_wider: bool

    @staticmethod
    def columns() -> list[Column]:
        """The aggregates that tell them, over a decoded frame."""
        return [
            F.count(F.lit(1)).alias("rows"),
            F.count(F.col(BAD)).alias("bad"),
            F.coalesce(F.max(F.col(UNKNOWN)), F.lit(False)).alias("is_wider"),
        ]


class Codec(ABC):
    """How the messages of one source are read."""

    wants: str = "each must be a JSON object in UTF-8"
    """What a message must be, for those who are told that some are not."""

    @abstractmethod
    def decoded(self, messages: DataFrame) -> DataFrame:
        """The rows of a micro-batch; nothing runs yet."""

    def prepare(self, messages: DataFrame) -> None:  # noqa: B027 - most formats need no look at the messages
        """Look at the first messages, should nothing be known of them."""

    def widen(self, messages: DataFrame) -> bool:
        """Learn from messages that have more than is known; whether anything was learned."""
        return False

    def has_nothing(self) -> bool:
        """Whether the prepared batch is known to hold no rows, and nothing is known of its columns."""
        return False

    @property
    def columns(self) -> tuple[str, ...]:
        """The payload's columns as they are known now."""
        return (PAYLOAD,)


class RawCodec(Codec):
    """Messages as they are: one column of bytes."""

    def decoded(self, messages: DataFrame) -> DataFrame:
        return messages.where(F.col(VALUE).isNotNull()).select(
            F.col(VALUE).alias(PAYLOAD),
            *hidden(messages, (PAYLOAD,)),
            F.col(VALUE).alias(RAW),
            F.lit(None).cast("string").alias(BAD),
            F.lit(False).alias(UNKNOWN),
        )


class JsonCodec(Codec):
    """One JSON object per message. Columns are learned from the messages, kept, and only ever grow.

    Args:
        schema: What was learned before.
        remember: Told of every schema that replaces it, before rows of it are written.
    """

    def __init__(self, schema: t.StructType | None, remember: Callable[[t.StructType], None]) -> None:
        self.schema = apart(schema or t.StructType([]))
        self._remember = remember
        self._doubles: tuple[str, ...] = ()
        """Names of fields that were met, and differ only in their case from those of others."""
        self._is_empty = False
        self.passed: tuple[str, ...] = ()
        """Columns beside the message that are passed on; a field of the same name wins."""
        self._made: tuple[Any, Column, Column, list[Column]] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    def prepare(self, messages: DataFrame) -> None:
        if not self.schema.fields:
            self._learn(messages)

    def has_nothing(self) -> bool:
        return self._is_empty and not self.schema.fields

    def widen(self, messages: DataFrame) -> bool:
        teaches = F.col(BAD).isNotNull() & ~F.col(BAD).isin(_EMPTY, _DOUBLED)
        unlike = self.decoded(messages).where(F.col(UNKNOWN) | teaches)
        return self._learn(unlike.select(F.col(RAW).alias(VALUE)))

    def _learn(self, messages: DataFrame) -> bool:
        found = messages.select(VALUE).where(F.col(VALUE).isNotNull()).limit(SAMPLE).collect()
        self._is_empty = not found
        told = learned(self.schema, (bytes(row[0]) for row in found))
        schema, had_doubles = apart(told), bool(self._doubles)
        self._doubles = tuple(dict.fromkeys((*self._doubles, *doubles(told))))
        self.wants = Codec.wants + ("" if schema.fields else ", with a field")
        if self._doubles:
            self.wants += f", whose fields differ in more than the case of their names, unlike {listed(self._doubles)}"
        if schema == self.schema:
            return bool(self._doubles) != had_doubles
        self.schema = schema
        self._remember(schema)
        return True

    def decoded(self, messages: DataFrame) -> DataFrame:
        known = (self.schema, tuple(messages.schema.names), self.passed, bool(self._doubles))
        if self._made is None or self._made[0] != known:
            self._made = (known, *self._columns(messages))
        _, wanted, parsed, columns = self._made
        return messages.where(wanted).select("*", parsed).select(*columns)

    def _columns(self, messages: DataFrame) -> tuple[Column, Column, list[Column]]:
        """Which messages, what they are parsed to, and the columns of that: hundreds of words to Java, said once."""
        text, parsed = F.col(VALUE).cast("string"), F.col(_PARSED)
        wanted = t.StructType([*self.schema.fields, t.StructField(_CORRUPT, t.StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false"}
        corrupt = F.col(f"{_PARSED}.{_CORRUPT}")
        # Spark takes bytes for text without a look, and an empty message, a list or a bare `null` for an object.
        is_object = text.startswith("{") | F.json_object_keys(text).isNotNull()
        bad = (
            F.when(~F.is_valid_utf8(text), F.lit("not UTF-8"))
            .when(F.col(_PARSED).isNull() | ~is_object, F.lit("not a JSON object"))
            .when(corrupt.isNotNull(), F.lit("not a JSON object, or a field of another kind than before"))
        )
        if not self.schema.fields:
            bad = bad.when(F.size(F.json_object_keys(text)) == 0, F.lit(_EMPTY))
        if self._doubles:
            bad = bad.when(has_doubled_fields(text, parsed, self.schema), F.lit(_DOUBLED))
        more = has_unknown_fields(text, parsed, self.schema, has_doubles=bool(self._doubles))
        columns = [
            *[F.col(f"{_PARSED}.`{name.replace('`', '``')}`").alias(name) for name in self.schema.names],
            *hidden(messages, self.schema.names, self.passed),
            F.col(VALUE).alias(RAW),
            bad.alias(BAD),
            more.alias(UNKNOWN),
        ]
        return F.col(VALUE).isNotNull(), F.from_json(text, wanted, options).alias(_PARSED), columns


def hidden(messages: DataFrame, payload: Sequence[str], passed: Sequence[str] = ()) -> list[Column]:
    """What the broker says of a message, and what else is passed on; a field of the payload with the same name wins."""
    taken, given = {name.lower() for name in payload}, messages.schema.names
    names = (*passed, *HIDDEN_COLUMNS, MESSAGE)
    return [F.col(quoted(name)) for name in names if name in given and name.lower() not in taken]


def codec_for(
    payload_format: str | None, schema: t.StructType | None, remember: Callable[[t.StructType], None]
) -> Codec:
    """The codec of a connection's `payload_format`.

    Raises:
        InvalidDeclaration: there is no such format.
        UnsupportedBackend: it is not part of this version.
    """
    written = payload_format or "json"
    if written == "json":
        return JsonCodec(schema, remember)
    if written == "raw_bytes":
        return RawCodec()
    if written in FORMATS:
        raise UnsupportedBackend(f"payload_format='{written}' cannot be read as a stream in this version.")
    raise InvalidDeclaration(
        f"payload_format '{written}' is unknown.", fix=closest(written, FORMATS) or f"choose one of {listed(FORMATS)}"
    )
